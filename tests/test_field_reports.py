"""Faults that users of other systems reported and that no other file tests here."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import paper_aiter
import pytest
import torch
from float64_layers import example, random_x
from folders import compiled, edited, problems

import qscheme
from qscheme import Facts, InvalidLayer, Unsupported
from qscheme.compiler.emit import emit
from qscheme.compiler.folder import read_folder
from qscheme.compiler.resolve import resolve
from qscheme.compiler.source import read_file
from qscheme.tables import Tables, load

# --- releases ------------------------------------------------------------------------------------------------------


def test_a_release_without_the_preshuffled_product_gets_the_plain_one_and_a_plain_weight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paper = paper_aiter.install(monkeypatch, "v0.1.5")
    layer = example("fp8_block128", 128, 256).layer
    facts = Facts.simulate("gfx950", aiter="0.1.5", tuned="all", switches={"aiter_preshuffled_blockscale": True})
    bound = qscheme.dispatch(layer, facts, disabled=["aiter_triton_tuned"])
    bound(random_x(3, 256))
    name, given = paper.calls[-1]
    assert ("aiter_ck", "gemm_a8w8_blockscale") == (bound.backend, name)
    assert torch.equal(layer.weight.view(torch.uint8), given["WQ"].view(torch.uint8))
    (shuffled,) = [refusal for refusal in bound.decision.refused if refusal.backend == "aiter_ck_preshuffle"]
    assert "found aiter 0.1.5" in shuffled.reasons[0].text


# --- platforms -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", [">=alpha", "alpha+", "ALPHA", "alpha:sramecc+"])
def test_architectures_are_listed_and_never_compared(arch: str, tmp_path: Path) -> None:
    (problem,) = problems(edited(tmp_path, kernels__fast=("arch: [beta, alpha]", f"arch: [beta, '{arch}']")))
    assert re.match(rf"kernels/fast.yaml:59:20: .*arch\[1\]: .*'{re.escape(arch)}'", problem)


D5 = {"7.0": False, "7.2": False, "7.2.26015": False, "6.4": True, "7.3": True, "7.10": True}


@pytest.mark.parametrize("rocm", D5)
def test_a_kernel_is_refused_where_its_entry_says_that_it_is_wrong_and_the_plain_one_is_taken(rocm: str) -> None:
    layer = SimpleNamespace(
        scheme="fp8_block128", weight=None, out_features=512, in_features=512, out_dtype=torch.bfloat16, name="up"
    )
    switches = {"aiter_preshuffled_blockscale": True}
    facts = Facts.simulate("gfx950", rocm=rocm, tuned="all", switches=switches)
    found = qscheme.explain(layer, facts, disabled=["aiter_triton_tuned"])
    assert ("aiter_ck_preshuffle" if D5[rocm] else "aiter_ck") == found.chosen
    told = {refusal.backend: [reason.text for reason in refusal.reasons] for refusal in found.refused}
    words = (
        "needs rocm before v7.0, or v7.3 or later, on gfx950, for gemm_a8w8_blockscale_bpreshuffle (a small error in "
        f"every layer, with the compiler of this ROCm; sgl-project/sglang#28685), found rocm {rocm}"
    )
    assert [words] * (not D5[rocm]) == told.get("aiter_ck_preshuffle", [])


def test_a_kernel_that_is_known_to_be_wrong_says_so_before_its_shape_and_its_switch() -> None:
    layer = SimpleNamespace(
        scheme="fp8_block128", weight=None, out_features=520, in_features=512, out_dtype=torch.bfloat16, name="up"
    )
    found = qscheme.explain(layer, Facts.simulate("gfx950", rocm="7.2"))
    (told,) = [refusal.reasons for refusal in found.refused if refusal.backend == "aiter_ck_preshuffle"]
    assert ["library", "layer", "tuned", "switch"] == [reason.kind for reason in told]


def tables_of(folder: Path, package: str, monkeypatch: pytest.MonkeyPatch) -> Tables:
    """The tables that a folder of schemes compiles to, importable while the test runs."""
    for name, text in compiled(folder, package).items():
        path = folder.parent / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(folder.parent)
    return load(package)


@pytest.mark.parametrize("version", ["12.8", "12.9.1", "13.0", "13.1", "9.9"])
def test_a_kernel_that_the_toolchain_cannot_build_is_refused_and_the_next_one_taken(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = "backends:\n  - name: torch_scaled_mm\n    needs: {versions: {cuda: {since: v13.0}}}\n"
    folder = edited(tmp_path, one_scale=("backends:\n  - name: torch_scaled_mm\n", needs))
    tables = tables_of(folder, "tables_with_a_toolchain", monkeypatch)
    layer = SimpleNamespace(
        scheme="one_scale", weight=None, out_features=32, in_features=32, out_dtype=torch.bfloat16, name=""
    )
    found = qscheme.explain(layer, Facts.simulate("alpha", cuda=version, triton="9.9", tables=tables), tables)
    assert ("torch_scaled_mm" if version.startswith("13") else "torch_int_mm") == found.chosen, found.text()
    told = [reason.text for refusal in found.refused for reason in refusal.reasons if "cuda" in reason.text]
    assert [f"needs cuda v13.0 or later, found {version}"] * (not version.startswith("13")) == told


@pytest.mark.parametrize("release", ["2.3.9", "2.4", "2.5.0", "2.5.1", "2.10"])
def test_rows_are_padded_in_the_releases_that_need_it_and_no_guard_behind_them_is_read(
    release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "rows: {multiple: 256, versions: {torch: {since: v2.4, before: v2.5.1}}}"
    folder = edited(tmp_path, kernels__torch=("rows: {minimum: 17}", rows))
    tables = tables_of(folder, "tables_with_rows_of_a_release", monkeypatch)
    generator = torch.Generator().manual_seed(int(release.replace(".", "")))
    layer = SimpleNamespace(
        scheme="one_scale", weight=torch.randint(-127, 128, (40, 64), dtype=torch.int8, generator=generator),
        weight_scale=torch.rand(40, 1, generator=generator) + 0.5, input_scale=torch.tensor([0.25]), bias=None,
        out_dtype=torch.float32, name="",
    )  # fmt: skip
    given: list[int] = []
    product = torch._int_mm

    def recorded(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        given.append(x.shape[0])
        return product(x, weight)

    monkeypatch.setattr(torch, "_int_mm", recorded)
    bound = qscheme.dispatch(layer, Facts.simulate("alpha", torch=release, tables=tables), tables, "torch_int_mm")
    numbers = (1, 15, 16, 17, 255, 256, 257, 8352)
    for m in numbers:
        guarded = torch.full((m + 300, 64), float("nan"))
        guarded[:m] = torch.randn(m, 64, generator=generator) * 9
        x = guarded[:m]
        codes = (x.double() / 0.25).round().clamp(-127, 127)
        expected = codes @ layer.weight.double().t() * 0.25 * layer.weight_scale.double().t()
        assert torch.allclose(expected, bound(x).double(), rtol=1e-5, atol=1e-5)
    bad = release in {"2.4", "2.5.0"}
    assert [-(-m // 256) * 256 if bad else m for m in numbers] == given


def test_a_kernel_that_aims_at_another_fp8_maximum_is_reported() -> None:
    layer = SimpleNamespace(
        scheme="fp8_block128", weight=None, out_features=512, in_features=512, out_dtype=torch.bfloat16, name="up"
    )
    told = {
        arch: [one.text for one in qscheme.explain(layer, Facts.simulate(arch)).mismatches if one.field == "max"]
        for arch in ("gfx942", "gfx950")
    }
    assert {
        "gfx942": ["aiter_ck: aiter.per_group_quant_hip has max 240.0, the scheme's rule has 224.0"],
        "gfx950": [],
    } == told


# --- shards and parts ----------------------------------------------------------------------------------------------


def unloaded(scheme: str, n: int, k: int, **more: object) -> Any:
    """A layer of which only the shape is known."""
    sizes = {"out_features": n, "in_features": k, "out_dtype": torch.bfloat16, "name": "merged", **more}
    return SimpleNamespace(scheme=scheme, weight=None, **sizes)


def told(layer: Any, arch: str = "gfx942") -> set[str]:
    """The reasons that every backend has in common, empty if one can run the layer."""
    refused = qscheme.explain(layer, Facts.simulate(arch)).refused
    every = [{reason.text for reason in refusal.reasons if reason.kind == "layer"} for refusal in refused]
    return set.intersection(*every) if qscheme.explain(layer, Facts.simulate(arch)).chosen is None else set()


PARTS: list[tuple[list[int], int | None, set[str]]] = [
    ([256, 192], None, set()),
    ([256, 192], 448, set()),
    ([192, 256], None, {"needs parts that begin at multiples of 128 rows, as tiles of 128x128 have, found part 2 at 192"}),
    ([128, 96], 448, {"needs N of each shard in part 2 a multiple of 128 rows, as tiles of 128x128 have, found N = 96 = 192 / 2; the whole 192 is no multiple either"}),
    ([128, 128], 512, set()),
    ([64, 128], 384, {
        "needs N of each shard in part 1 a multiple of 128 rows, as tiles of 128x128 have, "
        "found N = 64 = 128 / 2; the whole 128 = 1 x 128 would do",
    }),
]  # fmt: skip


@pytest.mark.parametrize(("widths", "full", "expected"), PARTS)
def test_parts_and_shards_of_parts_begin_a_tile_of_the_weights_scales(
    widths: list[int], full: int | None, expected: set[str]
) -> None:
    layer = unloaded("fp8_block128", sum(widths), 256, logical_widths=widths, full_out_features=full)
    assert expected == told(layer)


@pytest.mark.parametrize(("widths", "full", "expected"), PARTS)
def test_a_merged_layer_is_bound_only_where_its_parts_begin_a_tile(
    widths: list[int], full: int | None, expected: set[str]
) -> None:
    layer = example("fp8_block128", sum(widths), 256).layer
    layer.logical_widths, layer.full_out_features = widths, full
    if expected:
        with pytest.raises((InvalidLayer, Unsupported)):
            qscheme.dispatch(layer, Facts.simulate("cpu"))
    else:
        assert (3, sum(widths)) == qscheme.dispatch(layer, Facts.simulate("cpu"))(random_x(3, 256)).shape


def test_a_shard_is_refused_with_the_arithmetic_and_the_number_of_shards_that_would_do() -> None:
    layer = unloaded("fp8_block128", 576, 7168, full_out_features=18432)
    words = "as tiles of 128x128 have, found N = 576 = 18432 / 32; 16 shards of 1152 = 9 x 128 would do"
    assert {f"needs N of each shard a multiple of 128 rows, {words}"} == told(layer)
    assert set() == told(unloaded("fp8_block128", 1152, 7168, full_out_features=18432))
    assert set() == told(unloaded("fp8_block128", 576, 2048)), "a whole layer may have a ragged last tile"
    assert set() == told(unloaded("fp8_block128", 4544, 2048, full_out_features=4544))


@pytest.mark.parametrize(
    ("scheme", "k", "full", "words"),
    [
        ("fp8_block128", 192, 1536, "128 columns, as tiles of 128x128 have, found K = 192 = 1536 / 8; 4 shards of 384 = 3 x 128"),
        ("mxfp4", 48, 192, "32 columns, as tiles of 1x32 have, found K = 48 = 192 / 4; 2 shards of 96 = 3 x 32"),
        ("mxfp4", 96, 192, None),
        ("int8_ptpc", 7, 21, None),
    ],
)  # fmt: skip
def test_shards_along_k_begin_a_tile_of_the_weights_scales(scheme: str, k: int, full: int, words: str | None) -> None:
    expected = set() if words is None else {f"needs K of each shard a multiple of {words} would do"}
    assert expected == told(unloaded(scheme, 512, k, full_in_features=full))


def test_a_condition_of_a_kernel_tells_the_arithmetic_of_a_shard() -> None:
    layer = unloaded("int8_ptpc", 36, 7168, full_out_features=4608)
    (found,) = [r.reasons for r in qscheme.explain(layer, Facts.simulate("gfx942")).refused if r.backend == "aiter_ck"]
    assert ["needs N a multiple of 16, found N = 36 = 4608 / 128; 32 shards of 144 = 9 x 16 would do"] == [
        reason.text for reason in found
    ]


# --- numerics ------------------------------------------------------------------------------------------------------


def test_each_block_along_k_has_its_own_scale() -> None:
    layer = example("fp8_block128", 128, 512, out_dtype=torch.float32).layer
    layer.weight = torch.ones(128, 512).to(torch.float8_e4m3fn)
    layer.weight_scale = torch.tensor([[1.0, 3.0, 5.0, 7.0]])
    y = qscheme.dispatch(layer, Facts.simulate("cpu"))(torch.ones(256, 512))
    assert (256, 128) == y.shape
    assert 1e-5 > (y / 2048 - 1).abs().max()


@pytest.mark.parametrize("rows", [1, 16, 17, 32])
def test_int8_products_of_few_rows_are_exact_and_rows_and_channels_keep_their_scales(rows: int) -> None:
    layer = example("int8_ptpc", 40, 48, out_dtype=torch.float32).layer
    layer.weight_scale = torch.arange(100.0, 140.0).view(40, 1)
    bound = qscheme.dispatch(layer, Facts.simulate("cpu"), backend="torch_int_mm")
    codes = torch.randint(-127, 128, (rows, 48), dtype=torch.int8, generator=torch.Generator().manual_seed(rows))
    scale = torch.arange(1.0, rows + 1).view(rows, 1)
    expected = (codes.long() @ layer.weight.long().t()).double() * scale * layer.weight_scale.t()
    assert torch.allclose(expected, bound(codes, x_scale=scale).double(), rtol=1e-6, atol=0)


# --- the language --------------------------------------------------------------------------------------------------


def keys(value: Any, *path: str | int) -> Iterator[tuple[str | int, ...]]:
    """The path of every key in plain data."""
    found = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    for name, below in found:
        if isinstance(name, str):
            yield (*path, name)
        yield from keys(below, *path, name)


def other(value: Any, path: tuple[str | int, ...]) -> Any:
    """The same data with one more at a key with a number, and without any other key."""
    changed = copy.deepcopy(value)
    place = changed
    for part in path[:-1]:
        place = place[part]
    if type(place[path[-1]]) is int:
        place[path[-1]] += 1
    else:
        del place[path[-1]]
    return changed


def meaning(folder: Path) -> tuple[str, ...]:
    """The problems in a folder, or every file that it compiles to."""
    catalogue, found = resolve(read_folder(folder, folder))
    return tuple(map(str, found)) or tuple(emit(catalogue).values())


def test_every_key_has_an_effect(tmp_path: Path) -> None:
    folder = edited(tmp_path)
    files = {
        name: folder / f"{name}.yaml" for name in ("one_scale", "four_bits", "kernels/fast", "devices", "switches")
    }
    found = {name: json.loads(json.dumps(read_file(file, name).data)) for name, file in files.items()}
    for name, file in files.items():
        file.write_text(json.dumps(found[name]))
    expected = meaning(folder)
    every: set[str] = set()
    effective: set[str] = set()
    for name, file in files.items():
        for path in keys(found[name]):
            word = str(path[-1])
            every.add(word)
            if word not in effective:
                file.write_text(json.dumps(other(found[name], path)))
                effective |= {word} if meaning(folder) != expected else set()
        file.write_text(json.dumps(found[name]))
    assert {"scheme", "rotate", "older", "granularity", "batch_invariant", "on_use"} <= every
    assert set() == every - effective
