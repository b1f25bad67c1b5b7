"""Compiles mutants, binds and calls them on every rung, and says what caught each."""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from emulation.run_in_process import in_process

from .compilation import Mutated, compiled
from .mutants import read
from .verdicts import on_paper_of

if TYPE_CHECKING:
    from .mutants import Mutant

PACKAGE = "mutated"
AT_ONCE = 480
"""So many mutants share a generated package: what they change is one YAML file, which may not grow for ever."""
ON_PAPER = (("gfx950", "v0.1.20"), ("gfx942", "v0.1.20"), ("gfx1250", "v0.1.20"), ("gfx1201", "v0.1.20"))
RUNGS = ("compiler", "gfx950", "gfx942", *(f"{arch} on paper" for arch, _ in ON_PAPER))


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What became of a mutant. rung: where it was caught. equal: whether every output was the same, byte for byte."""

    mutant: Mutant
    rung: str
    words: str
    equal: bool

    @property
    def caught(self) -> bool:
        return bool(self.rung)


def judged(mutants: list[Mutant]) -> list[Verdict]:
    """The verdict on each mutant."""
    parts = [(start, mutants[start : start + AT_ONCE]) for start in range(0, len(mutants), AT_ONCE)]
    return [verdict for start, part in parts for verdict in _judged(part, f"{PACKAGE}{start}")]


def _judged(mutants: list[Mutant], package: str) -> list[Verdict]:
    with tempfile.TemporaryDirectory() as folder:
        entries, refused = compiled(mutants, Path(folder), package)
        found = {number: Verdict(mutants[number], "compiler", words, False) for number, words in refused.items()}
        compared: dict[int, list[tuple[str, str]]] = {number: [] for number in range(len(mutants))}
        out = str(Path(folder) / "out")
        for rung in RUNGS[1:]:
            left = [entry for entry in entries if entry.mutant not in found and _differs(rung, entry.scheme)]
            for number, verdict in _on_rung(rung, left, out, package).items():
                [(kind, words)] = verdict.items()
                if kind == "caught":
                    found[number] = Verdict(mutants[number], rung, words, False)
                else:
                    compared[number].append((kind, f"{rung}: {words}"))
    for number, each in compared.items():
        if number not in found:
            equal = bool(each) and {kind for kind, _ in each} == {"equal"}
            words = "; ".join(text for _, text in each) or "no backend ran"
            found[number] = Verdict(mutants[number], "", words, equal)
    return [found[number] for number in range(len(mutants))]


def _differs(rung: str, scheme: str) -> bool:
    """Whether a scheme may run otherwise there than on gfx950: gfx942 has another FP8."""
    return "gfx942" not in rung or read(f"{scheme}.yaml")["weight"]["format"] == "fp8_e4m3"


def _on_rung(rung: str, entries: list[Mutated], out: str, package: str) -> dict[int, dict[str, str]]:
    if rung.endswith(" on paper"):
        arch, release = next(pair for pair in ON_PAPER if rung.startswith(f"{pair[0]} "))
        sys.path.insert(0, out)
        try:
            return on_paper_of(arch, release, entries, package)
        finally:
            sys.path.remove(out)
    shipped = [entry for entry in entries if entry.mutant < 0]
    halves = [[entry for entry in entries if entry.mutant >= 0 and entry.mutant % 2 == half] for half in (0, 1)]

    def half(part: list[Mutated]) -> dict[str, dict[str, str]]:
        given = [dataclasses.asdict(entry) for entry in (*shipped, *part)]
        arguments = {"entries": given, "folder": out, "package": package}
        found: dict[str, dict[str, str]] = in_process(
            rung, "mutation.verdicts:emulated", interpret=True, arguments=arguments, timeout=1800
        )
        return found

    with ThreadPoolExecutor(2) as pool:
        return {int(number): verdict for found in pool.map(half, halves) for number, verdict in found.items()}
