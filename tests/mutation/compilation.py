"""Many mutants in one generated package: every mutant has kernels and schemes of its own, under names of its own."""

from __future__ import annotations

import copy
import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from qscheme.compiler.emit import emit
from qscheme.compiler.folder import read_folder
from qscheme.compiler.resolve import resolve
from qscheme.tables import shipped_schemes

from .mutants import backends, kernels, read

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from qscheme.compiler.ir import Catalogue
    from qscheme.compiler.source import Place

    from .mutants import Mutant


@dataclass(frozen=True)
class Mutated:
    """A backend of a scheme as one mutant has it, and the name of the scheme that holds it and nothing else."""

    mutant: int
    scheme: str
    backend: str
    name: str


def compiled(mutants: list[Mutant], folder: Path, package: str) -> tuple[list[Mutated], dict[int, str]]:
    """Generate a package into folder/out; return what is in it, and what the compiler said of each mutant it refused.

    Mutants have their place in the list as number; -1 is the YAML as it is shipped.
    """
    refused: dict[int, str] = {}
    while True:
        left = {number: mutant for number, mutant in enumerate(mutants) if number not in refused}
        catalogue, problems = _catalogue(left, folder / f"schemes{len(refused)}")
        if not problems:
            break
        refused |= {number: text for number, text in problems.items() if number not in refused}
    for path, text in emit(catalogue, package).items():
        target = folder / "out" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return [each for each, _ in _schemes(left)], refused


def _schemes(mutants: dict[int, Mutant]) -> Iterable[tuple[Mutated, dict[str, Any]]]:
    """Every scheme with one backend that a mutant has, with its YAML."""
    for scheme, backend in backends():
        yield _scheme(-1, scheme, backend)
        for number, mutant in mutants.items():
            if mutant.kernel is None and mutant.change.startswith(f"{scheme} {backend['name']}: "):
                yield _scheme(number, scheme, mutant.yaml)
            elif mutant.kernel is not None and f"aiter.{mutant.kernel}" in _named(backend):
                yield _scheme(number, scheme, _renamed(backend, mutant.kernel, number))


def _scheme(number: int, scheme: str, backend: dict[str, Any]) -> tuple[Mutated, dict[str, Any]]:
    name = f"{scheme}_{_label(number)}"
    name = f"{name}_{backend['name']}"
    data = {**read(f"{scheme}.yaml"), "scheme": name, "backends": [backend]}
    return Mutated(number, scheme, backend["name"], name), data


def _label(number: int) -> str:
    return "shipped" if number < 0 else f"mutant{number}"


def _named(backend: dict[str, Any]) -> set[str]:
    """The kernels that a backend names."""
    found: set[str] = set()
    for call in backend.get("calls", [backend]):
        quantizer = call.get("quantize", call["gemm"])
        found |= {call["gemm"], quantizer if isinstance(quantizer, str) else quantizer["kernel"]}
    return found


def _renamed(backend: dict[str, Any], kernel: str, number: int) -> dict[str, Any]:
    changed = copy.deepcopy(backend)
    old, new = f"aiter.{kernel}", f"aiter.{kernel}_{_label(number)}"
    for call in changed.get("calls", [changed]):
        if call["gemm"] == old:
            call["gemm"] = new
        if call.get("quantize") == old:
            call["quantize"] = new
        elif not isinstance(call.get("quantize", ""), str) and call["quantize"]["kernel"] == old:
            call["quantize"]["kernel"] = new
    return changed


def _catalogue(mutants: dict[int, Mutant], folder: Path) -> tuple[Catalogue, dict[int, str]]:
    (folder / "kernels").mkdir(parents=True, exist_ok=True)
    library = read("kernels/aiter.yaml")
    parts = [_dumped({**library, "kernels": kernels()})]
    starts, numbers = [1], [-1]
    line = parts[0].count("\n") + 1
    for number, mutant in mutants.items():
        if mutant.kernel is not None:
            text = _dumped({f"{mutant.kernel}_{_label(number)}": mutant.yaml})
            parts.append("".join(f"  {each}" for each in text.splitlines(keepends=True)))
            starts.append(line)
            numbers.append(number)
            line += text.count("\n")
    (folder / "kernels" / "aiter.yaml").write_text("".join(parts))
    for each, data in _schemes(mutants):
        (folder / f"{each.name}.yaml").write_text(_dumped(data))
    catalogue, problems = resolve(read_folder(folder, shipped_schemes()))

    def owner(place: Place) -> int:
        if place.file.endswith("kernels/aiter.yaml"):
            return numbers[bisect_right(starts, place.line) - 1]
        found = re.search(r"_mutant(\d+)", place.file)
        return -1 if found is None else int(found[1])

    found: dict[int, str] = {}
    for problem in problems:
        number = owner(problem.place)
        if number < 0:
            raise AssertionError(f"the shipped YAML does not compile: {problem}")
        found.setdefault(number, problem.message)
    return catalogue, found


def _dumped(data: dict[str, Any]) -> str:
    return yaml.safe_dump(data, sort_keys=False, width=1000)
