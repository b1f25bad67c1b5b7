"""The table of the catalogue has every scheme once, with the places where each of its backends can run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from folders import EVERY_FEATURE

from qscheme.cli import main
from qscheme.compiler.folder import read_folder
from qscheme.compiler.resolve import resolve
from qscheme.compiler.support import catalogue_table, runs_on, support_text
from qscheme.tables import shipped_schemes

ROOT = Path(__file__).resolve().parent.parent
SHIPPED, _ = resolve(read_folder(shipped_schemes(), shipped_schemes()))


def rows() -> dict[str, list[str]]:
    """The cells of each row after its name."""
    lines = list(catalogue_table(SHIPPED))[2:]
    return {
        cells[1].strip(" `"): [cell.strip() for cell in cells[2:-1]] for cells in (line.split("|") for line in lines)
    }


def test_every_scheme_has_a_row_in_order() -> None:
    assert [scheme.name for scheme in SHIPPED.schemes] == list(rows())


def test_a_row_has_the_title_and_the_producers() -> None:
    for scheme in SHIPPED.schemes:
        title, producers, _ = rows()[scheme.name]
        assert (scheme.title, ", ".join(scheme.producers)) == (title, producers)


def test_every_backend_is_told_exactly_where_the_hardware_can_run_it() -> None:
    families = {
        device.family: [d.arch for d in SHIPPED.devices if d.family == device.family] for device in SHIPPED.devices
    }
    everywhere = [device.arch for device in SHIPPED.devices]
    for scheme in SHIPPED.schemes:
        *_, runs = rows()[scheme.name]
        told = {(arch, name) for arch in everywhere for name in [runs.removesuffix(" only")] if runs.endswith(" only")}
        for cell in runs.split("; ") if not told else ():
            places, names = cell.split(": ")
            archs = [
                arch
                for place in places.split(", ")
                for arch in (everywhere if place == "everywhere" else families.get(place, [place]))
            ]
            told |= {(arch, name.removesuffix(r"\*")) for arch in archs for name in names.split(", ")}
        assert {(d.arch, b.name) for d in SHIPPED.devices for b in scheme.backends if runs_on(b, d)} == told


def test_what_only_one_backend_runs_everywhere_is_said_so() -> None:
    assert "reference only" == rows()["amdfp4"][-1]


def test_backends_that_need_a_tuned_shape_are_marked() -> None:
    assert r"cdna4: aiter_asm_even\*, aiter_asm\*, aiter_triton" in rows()["mxfp4"][-1]


def test_the_readme_holds_the_table() -> None:
    _, _, after = (ROOT / "README.md").read_text().partition("<!-- catalogue -->\n")
    assert [*catalogue_table(SHIPPED)] == after.partition("<!-- end of catalogue -->")[0].splitlines()


def test_the_support_matrix_begins_with_the_table() -> None:
    text = support_text(SHIPPED)
    assert "\n".join(catalogue_table(SHIPPED)) in text.partition("## By architecture")[0]


def test_a_backend_that_some_device_cannot_run_is_told_by_family() -> None:
    catalogue, _ = resolve(read_folder(EVERY_FEATURE, EVERY_FEATURE), ("triton",))
    lines = list(catalogue_table(catalogue))
    assert lines[-1].endswith(" | first, second: torch_int_mm; everywhere: torch_scaled_mm |")


def test_the_command_prints_the_table(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["qscheme", "list", "--markdown"])
    with pytest.raises(SystemExit):
        main()
    assert [*catalogue_table(SHIPPED)] == capsys.readouterr().out.splitlines()
