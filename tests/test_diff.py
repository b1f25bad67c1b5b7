"""`qscheme diff` says exactly where another backend runs, in words, and what else of a decision changes."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from folders import EVERY_FEATURE

from qscheme.cli import main
from qscheme.compiler.axes import Axis
from qscheme.compiler.cubes import overlap, without
from qscheme.compiler.difference import Difference, difference
from qscheme.compiler.folder import read_folder
from qscheme.compiler.region_text import axis_text
from qscheme.compiler.resolve import resolve
from qscheme.compiler.space import Side, Space, backend_at
from qscheme.compiler.timelines import versions_of
from qscheme.tables import shipped_schemes

if TYPE_CHECKING:
    from qscheme.compiler import ir

SHIPPED = shipped_schemes()


def catalogue_of(folder: Path, shipped: Path = SHIPPED) -> ir.Catalogue:
    catalogue, problems = resolve(read_folder(folder, shipped), ("triton",))
    assert () == problems
    return catalogue


BEFORE = catalogue_of(SHIPPED)


def edited(folder: Path, *edits: tuple[str, str, str], of: Path = SHIPPED) -> Path:
    """A copy of some schemes in `folder`, where in each file named every occurrence of a text is replaced."""
    copy = folder / "schemes"
    shutil.copytree(of, copy)
    for name, old, new in edits:
        path = copy / f"{name}.yaml"
        text = path.read_text()
        assert old in text, f"{old!r} is not in {name}"
        path.write_text(text.replace(old, new))
    return copy


def lines(tmp_path: Path, *edits: tuple[str, str, str]) -> list[str]:
    return list(difference(BEFORE, catalogue_of(edited(tmp_path, *edits))).lines())


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object) -> tuple[object, str, str]:
    """The exit code of `qscheme diff`, what it prints and what it says."""
    monkeypatch.setattr(sys, "argv", ["qscheme", "diff", *map(str, words)])
    with pytest.raises(SystemExit) as left:
        main()
    out, err = capsys.readouterr()
    return left.value.code or 0, out, err


# --- where another backend runs ------------------------------------------------------------------------------------


BLOCK_CK = """  - name: aiter_ck
    needs: {switches: [aiter, aiter_linear]}
    quantize: aiter.per_group_quant_hip
    gemm: aiter.gemm_a8w8_blockscale_ck

"""


def test_the_points_of_a_removed_backend_go_to_the_next_one(tmp_path: Path) -> None:
    assert [
        "fp8_block128: aiter_ck -> aiter_triton",
        "  on gfx942 with aiter v0.1.5 or later, N % 8 = 0, K % 128 = 0, output in bf16 or fp16, "
        "unless aiter_ck_preshuffle or aiter_asm_flatmm runs",
        "  on gfx950 with aiter v0.1.5 or later, N % 8 = 0, K % 512 = 0, output in bf16 or fp16, "
        "unless aiter_triton_tuned or aiter_ck_preshuffle runs",
        "  on gfx950 with aiter v0.1.18 or later, N % 8 = 0, K % 128 = 0 and K % 512 != 0, output in bf16 or fp16, "
        "unless aiter_triton_tuned or aiter_ck_preshuffle runs",
        "fp8_block128: aiter_ck -> aiter_triton_one_split",
        "  on gfx950 with aiter v0.1.5 to v0.1.17, N % 8 = 0, K % 128 = 0 and K % 512 != 0, output in bf16 or fp16, "
        "unless aiter_ck_preshuffle runs",
    ] == lines(tmp_path, ("fp8_block128", BLOCK_CK, ""))


def test_a_stricter_multiple_moves_the_sizes_between(tmp_path: Path) -> None:
    sizes = "  on every architecture but cpu or unknown ones, N % 8 = 0 and N % 16 != 0, K % 8 = 0"
    assert [
        "int8_ptpc, int8_tensor_static: torch_int_mm -> reference",
        f"{sizes}, unless aiter_triton runs",
        "int8_ptpc, int8_tensor_static: torch_int_mm -> no backend",
        f"{sizes}, switch batch_invariant on",
    ] == lines(tmp_path, ("kernels/torch", "multiple_of: {n: 8, k: 8}}", "multiple_of: {n: 16, k: 8}}"))


def test_a_later_release_moves_the_releases_before_it(tmp_path: Path) -> None:
    found = lines(tmp_path, ("kernels/torch", "{vendor: [cpu], since: v2.12}", "{vendor: [cpu], since: v2.14}"))
    at = found.index("  on cpu with torch v2.12 to before v2.14, output in bf16")
    assert found[at - 1].startswith("fp8_ptpc, ")
    assert found[at - 1].endswith(": torch_scaled_mm_rowwise -> reference")


def test_a_switch_that_is_asked_for_is_told_where_it_is_not_the_default(tmp_path: Path) -> None:
    reference = "  - name: reference\n    quantize: reference.quantize\n"
    needs = f"{reference}    needs: {{switches: [aiter, aiter_preshuffled_blockscale]}}\n"
    assert [
        "amdfp4: reference -> no backend",
        "  on every architecture, switch aiter off",
        "  on every architecture",
    ] == lines(tmp_path, ("amdfp4", reference, needs))


def test_another_default_tells_what_runs_where_the_switch_is_not_set(tmp_path: Path) -> None:
    default = "aiter_preshuffled_blockscale:\n    default: "
    assert [
        "fp8_block128: aiter_ck -> aiter_ck_preshuffle, where the switch aiter_preshuffled_blockscale is not set",
        "  on gfx942 with aiter v0.1.5.post3 or later, N % 64 = 0, K % 128 = 0, output in bf16, "
        "tuned in a8w8_blockscale_bpreshuffle for M = 1024 and 8192",
        "  on gfx950 with aiter v0.1.5.post3 or later and without rocm or with it before v7.0 or v7.3 or later, "
        "N % 64 = 0, K % 128 = 0, output in bf16, "
        "tuned in a8w8_blockscale_bpreshuffle for M = 1024 and 8192, unless aiter_triton_tuned runs",
        "switch aiter_preshuffled_blockscale: default: no -> yes",
    ] == lines(tmp_path, ("switches", f"{default}false", f"{default}true"))


def test_two_backends_that_change_places_change_where_both_run(tmp_path: Path) -> None:
    path = edited(tmp_path) / "fp8_block128_ue8m0.yaml"
    text = path.read_text()
    start, second, third = (
        text.index(f"  - name: {name}") for name in ("aiter_ck ", "aiter_triton", "torch_scaled_mm")
    )
    path.write_text(text[:start] + text[second:third] + text[start:second] + text[third:])
    moved = difference(BEFORE, catalogue_of(path.parent)).moved
    assert [("fp8_block128_ue8m0", "aiter_ck", after) for after in ("aiter_triton", "aiter_triton_one_split")] == [
        (move.scheme, move.before, move.after) for move in moved
    ]


EDITS: dict[str, list[tuple[str, str, str]]] = {
    "a backend less": [("fp8_block128", BLOCK_CK, "")],
    "other tables": [("fp8_ptpc", "tuned: [{table: a8w8, m: [1024, 8192]}]", "tuned: [{table: a8w8, m: [1024]}]")],
    "another multiple": [("kernels/torch", "multiple_of: {n: 16, k: 16}", "multiple_of: {n: 32, k: 48}")],
    "another release": [("kernels/torch", "since: v2.12", "since: v2.11.1")],
    "a device less": [("devices", "fp8: fn, mx: true, int8: true, wave: 64", "fp8: fn, mx: false, int8: true, wave: 64")],
    "a switch less": [("int8_ptpc", "switches: [aiter, aiter_linear]", "switches: [aiter]")],
    "an architecture more": [("fp8_block128", "arch: [gfx942, gfx950, gfx1250]", "arch: [gfx942, gfx950]")],
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_every_point_moves_as_the_decisions_on_both_sides_say(name: str, tmp_path: Path) -> None:
    old, new = BEFORE, catalogue_of(edited(tmp_path, *EDITS[name]))
    found, draw = difference(old, new), random.Random(3)
    assert found.moved or found.changed
    after = {scheme.name: scheme for scheme in new.schemes}
    versions = versions_of(old, new)
    for scheme in old.schemes:
        one, other = (Side.of(old, versions), scheme), (Side.of(new, versions), after[scheme.name])
        space = Space.of(one, other)
        moves = [move for move in found.moved if move.scheme == scheme.name]
        was, now = space.decisions(*one), space.decisions(*other)
        starts = [space.full] * 20 + [draw.choice(move.cubes) for move in moves for _ in range(40)]
        for start in starts:
            loose = tuple(full if draw.random() < 0.15 else mask for full, mask in zip(space.full, start, strict=True))
            cube = tuple(1 << draw.choice([at for at in range(64) if mask >> at & 1]) for mask in loose)
            moved = {(move.before, move.after) for move in moves if overlap([cube], move.cubes)}
            before, chosen = backend_at(was, cube), backend_at(now, cube)
            assert ({(before, chosen)} if before != chosen else set()) == moved
        for move in moves:
            better = [
                c for decided in was if decided.backend in {n for _, b in move.told for n in b} for c in decided.cubes
            ]
            told = [cube for cube, _ in move.told]
            assert () == without(move.cubes, told)
            assert () == without(without(told, move.cubes), better)


def test_a_region_names_the_better_backends_that_run_inside_it_and_no_others(tmp_path: Path) -> None:
    found = difference(BEFORE, catalogue_of(edited(tmp_path, *EDITS["a backend less"])))
    assert len(found.moved) == 2
    for move in found.moved:
        decided = move.space.decisions(Side.of(BEFORE), BEFORE.schemes[1])
        for cube, better in move.told:
            inside = {d.backend for d in decided if overlap([cube], d.cubes)}
            assert {"aiter_ck", *better} == inside
            assert move.space.full != cube


def test_every_mask_of_an_axis_has_words_of_its_own() -> None:
    every_size = Axis("size", "n", (1, 3, 8, 16, 24, 48), (3, 8, 16))
    with_least = Axis("size", "k", (1, 8, 16, 32, 33, 40), (8, 16), (32,))
    releases = Axis("library", "aiter", (None, "v1", "v2", "v3", "v4"))
    for axis in (every_size, with_least, releases, Axis("arch", "arch", ("cpu", "gfx942", "unknown"))):
        words = {axis_text(axis, mask) for mask in range(1, axis.full + 1)}
        assert axis.full == len(words)


@pytest.mark.parametrize(
    ("chosen", "text"),
    [
        ([None], "without aiter"),
        (["v1", "v2", "v3", "v4"], "with aiter"),
        (["v3", "v4"], "with aiter v3 or later"),
        (["v1", "v2"], "with aiter before v3"),
        ([None, "v1"], "without aiter or with it before v2"),
        (["v2", "v3"], "with aiter v2 to v3"),
        (["v1", "v4"], "with aiter before v2 or v4 or later"),
    ],
)
def test_releases_are_told_as_ranges(chosen: list[str | None], text: str) -> None:
    axis = Axis("library", "aiter", (None, "v1", "v2", "v3", "v4"))
    assert text == axis_text(axis, axis.mask(lambda value: value in chosen))


# --- what else changes ---------------------------------------------------------------------------------------------


def test_a_scheme_that_is_new_or_gone_is_named(tmp_path: Path) -> None:
    folder = edited(tmp_path, ("mxfp8", "scheme: mxfp8\n", "scheme: mxfp8_again\n"))
    (folder / "mxfp8.yaml").rename(folder / "mxfp8_again.yaml")
    found = difference(BEFORE, catalogue_of(folder))
    (names,) = [", ".join(b.name for b in scheme.backends) for scheme in BEFORE.schemes if scheme.name == "mxfp8"]
    assert [f"mxfp8_again: added, with {names}", f"mxfp8: removed, with {names}"] == list(found.lines())


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (("int8_ptpc", "mode: dynamic\n  rule: {scale: amax_div, max: 127,", "mode: dynamic\n  rule: {scale: amax_div, max: 127.5,"),
         "int8_ptpc: activation rule max: 127.0 -> 127.5"),
        (("mxfp4", "m: {max: 64}", "m: {max: 80}"), "mxfp4 aiter_asm: calls:\n"),
        (("fp8_block128", "quantize: {kernel: aiter.per_group_quant_hip, options: {transpose_scale: true}}\n    gemm: aiter.gemm_a8w8_blockscale_bpreshuffle",
          "quantize: aiter.per_group_quant_hip\n    gemm: aiter.gemm_a8w8_blockscale_bpreshuffle"), "fp8_block128 aiter_ck_preshuffle: calls:\n"),
        (("amdfp4", "on_use: warn", "on_use: quiet"), "amdfp4 reference: on_use: warn -> quiet"),
        (("kernels/aiter", "max: 127, round: truncate", "max: 127, round: rne"), "kernel aiter.per_token_quant_hip: rule:\n"),
        (("kernels/torch", "rows: {minimum: 17}", "rows: {minimum: 16}"), "kernel torch.int_mm: minimum_rows: 17 -> 16"),
        (("kernels/torch", "x: {position: 0}\n      weight: {position: 1, layout: transposed}", "x: {as: mat1}\n      weight: {as: mat2, layout: transposed}"),
         "kernel torch.int_mm: operand x: role=x position=0 layouts=layout=row_major -> role=x keyword=mat1 layouts=layout=row_major"),
        (("devices", "wave: 64, compute_units: [110, 104]", "wave: 64, compute_units: [104]"), "device gfx90a: compute_units: 110, 104 -> 104"),
        (("switches", "default: false\n    variables: [QSCHEME_BATCH", "default: true\n    variables: [QSCHEME_BATCH"), "switch batch_invariant: default: no -> yes"),
        (("kernels/aiter", "variable: AITER_CONFIG_GEMM_A8W8\n", "variable: AITER_A8W8\n"), "tuned table a8w8: variable: AITER_CONFIG_GEMM_A8W8 -> AITER_A8W8"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)  # fmt: skip
def test_a_fact_that_changes_is_told_with_both_values(
    edit: tuple[str, str, str], expected: str, tmp_path: Path
) -> None:
    found = lines(tmp_path, edit)
    assert any(line.startswith(expected) for line in found), found


def test_words_for_people_change_nothing(tmp_path: Path) -> None:
    edits = [
        ("switches", "meaning: AITER's kernels may", "meaning: Kernels of AITER may"),
        ("mxfp4", "scheme: mxfp4\n", "\n\nscheme: mxfp4\n"),
    ]
    assert [] == lines(tmp_path, *edits)
    assert not difference(BEFORE, catalogue_of(tmp_path / "schemes"))


# --- the command ---------------------------------------------------------------------------------------------------


def test_the_command_says_that_nothing_differs(monkeypatch: Any, capsys: Any) -> None:
    text = f"no decision differs between {SHIPPED} and {SHIPPED}\n"
    assert (0, text, "") == run(monkeypatch, capsys, SHIPPED, SHIPPED)


def test_the_command_fails_where_something_differs(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    folder = edited(tmp_path, *EDITS["a backend less"])
    code, out, err = run(monkeypatch, capsys, SHIPPED, folder)
    assert (1, 6, "") == (code, len(out.splitlines()), err)
    code, out, err = run(monkeypatch, capsys, SHIPPED, folder, "--json")
    found = json.loads(out)
    assert (1, True, []) == (code, found["changed"], found["schemes"]["added"])
    move, _ = found["decisions"]
    assert ("fp8_block128", "aiter_ck", "aiter_triton") == (move["scheme"], move["before"], move["after"])
    assert {"arch": ["gfx942"], "k": "K % 128 = 0"}.items() <= move["regions"][0]["where"].items()
    assert all("aiter" in str(exact["library aiter"]["text"]) for exact in move["exact"])


def test_the_other_way_round_before_and_after_change_places(tmp_path: Path) -> None:
    old, new = BEFORE, catalogue_of(edited(tmp_path, *EDITS["other tables"]))
    there, back = difference(old, new), difference(new, old)
    assert {(m.scheme, m.before, m.after) for m in there.moved} == {(m.scheme, m.after, m.before) for m in back.moved}


def test_a_folder_with_its_own_devices_may_be_compared(tmp_path: Path) -> None:
    folder = edited(tmp_path, ("switches", "default: false", "default: true"), of=EVERY_FEATURE)
    found = difference(*(catalogue_of(at, at) for at in (EVERY_FEATURE, folder)))
    assert isinstance(found, Difference)
    assert "switch fast: default: no -> yes" == list(found.lines())[-1]


def test_a_revision_of_git_is_a_folder_of_its_time(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    folder = edited(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    for command in ("init -q", "add .", "-c user.name=a -c user.email=a@example.org commit -q -m one"):
        subprocess.run(("git", *command.split()), check=True)
    assert 0 == run(monkeypatch, capsys, "git:HEAD", folder)[0]
    path = folder / "amdfp4.yaml"
    path.write_text(path.read_text().replace("on_use: warn", "on_use: quiet"))
    assert (1, "amdfp4 reference: on_use: warn -> quiet\n") == run(monkeypatch, capsys, "git:HEAD:schemes", folder)[:2]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere", "error: there is no folder nowhere; name one, or a revision of git as git:REV or git:REV:FOLDER"),
        ("git:", "error: git:: needs a revision of git"),
        ("git:--output=x", "error: git:--output=x: needs a revision of git"),
        ("git:HEAD:nowhere", "error: git:HEAD:nowhere: git archive failed: "),
    ],
)
def test_what_is_not_there_is_wrong_use(name: str, words: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    subprocess.run(("git", "init", "-q"), check=True)
    code, out, err = run(monkeypatch, capsys, name, SHIPPED)
    assert (2, "") == (code, out)
    assert err.startswith(words), err


def test_mistakes_in_a_revision_have_their_place_in_it(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    edited(tmp_path, ("amdfp4", "scheme: amdfp4", "schemes: amdfp4"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    for command in ("init -q", "add .", "-c user.name=a -c user.email=a@example.org commit -q -m one"):
        subprocess.run(("git", *command.split()), check=True)
    code, _, err = run(monkeypatch, capsys, "git:HEAD", SHIPPED)
    assert 1 == code
    assert "HEAD:schemes/amdfp4.yaml:3:1: " in err
