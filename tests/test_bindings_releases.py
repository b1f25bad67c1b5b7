"""Every backend of AITER, bound and called with the exact signatures of releases that cannot be installed here.

The functions of paper_aiter.py take the parameters of a release and no others; emulation/on_paper.py computes from the
bytes behind each parameter, in the layout that the function documents. An operand at a wrong parameter, or in the
layout of another one, gives wrong numbers.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import paper_aiter
import pytest
import torch
from emulation import on_paper
from emulation.bindings import Case, outcome
from emulation.device import DEVICE
from emulation.layers import random_layer

from qscheme import Facts, explain
from qscheme.tables import load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paper_aiter import PaperAiter

ROUNDING = 0.005
RELEASES = ("v0.1.5", "v0.1.8", "v0.1.12", "v0.1.16", "v0.1.20")
ARCHES: dict[str | tuple[str, str], tuple[str, ...]] = {
    "aiter_triton_preshuffle": ("gfx1250",),
    "aiter_triton_rdna4": ("gfx1201",),
    "aiter_triton_rdna4_one_split": ("gfx1201",),
    "aiter_triton_tuned": ("gfx950",),
    "aiter_triton_one_split": ("gfx950",),
    ("fp8_w8a16_block128", "aiter_triton_preshuffle"): ("gfx942", "gfx950"),
    ("fp8_block128_a_mxfp8", "aiter_triton_preshuffle"): ("gfx942", "gfx950"),
    "aiter_asm_1024": ("gfx1250",),
    "aiter_asm_flatmm": ("gfx942",),
    "aiter_ck_e8m0": ("gfx950",),
    "aiter_f4gemm": ("gfx1250",),
    **{(scheme, "aiter_asm"): ("gfx1250",) for scheme in ("mxfp8", "mxfp4_a_mxfp8", "nvfp4", "nvfp4_modelopt")},
    ("int8_ptpc", "aiter_asm"): ("gfx942", "gfx950"),
}
"""The architectures of a backend, by its name or its scheme and name, where they are not those of its scheme."""
SHAPES: dict[str | tuple[str, str], tuple[int, int, tuple[int, ...]]] = {
    "int8_ptpc": (96, 272, (33,)),
    "int8_tensor_static": (96, 272, (33,)),
    "fp8_block128": (144, 1024, (17,)),
    "fp8_block128_ue8m0": (144, 1024, (17,)),
    "fp8_ptpc": (96, 272, (17,)),
    "fp8_token_x_tensor": (96, 272, (17,)),
    "fp8_tensor_static": (96, 272, (17,)),
    "fp8_tensor_dynamic": (96, 272, (17,)),
    "fp8_w8a16_block128": (144, 1024, (17,)),
    "fp8_block128_a_mxfp8": (192, 256, (17,)),
    "mxfp4_a_fp8_tensor": (41, 96, (17,)),
    "mxfp4_a_fp8_token": (41, 96, (17,)),
    "mxfp4": (32, 512, (31, 64, 65)),
    "mxfp8": (2048, 256, (3, 34)),
    "mxfp4_a_mxfp8": (2048, 256, (3, 34)),
    "nvfp4": (1024, 256, (3,)),
    "nvfp4_modelopt": (1024, 256, (3,)),
    **{(scheme, "aiter_asm_1024"): (1024, 256, (3,)) for scheme in ("mxfp8", "mxfp4_a_mxfp8")},
    ("fp8_block128", "aiter_asm_flatmm"): (256, 384, (17,)),
    ("fp8_block128", "aiter_ck_preshuffle"): (192, 384, (17,)),
    ("int8_ptpc", "aiter_asm"): (128, 384, (33,)),
    ("mxfp4", "aiter_f4gemm"): (1024, 256, (3,)),
    **{(scheme, "aiter_ck_preshuffle"): (64, 1536, (17,)) for scheme in ("fp8_ptpc", "fp8_token_x_tensor")},
    **{(scheme, "aiter_ck_preshuffle_short"): (128, 640, (17,)) for scheme in ("fp8_ptpc", "fp8_token_x_tensor")},
}
"""N, K and numbers of rows of a scheme, or of one of its backends."""
BACKENDS = [
    (scheme, backend.name, arch)
    for scheme in load().schemes
    for backend in load().scheme(scheme).backends
    if backend.name.startswith("aiter")
    for arch in ARCHES.get(
        (scheme, backend.name),
        ARCHES.get(backend.name, ("gfx942", "gfx950") if scheme.startswith("fp8") else ("gfx950",)),
    )
]
FIRST: dict[str | tuple[str, str], str] = {
    "aiter_triton_preshuffle": "v0.1.16",
    "aiter_triton_rdna4": "v0.1.16",
    "aiter_triton_rdna4_one_split": "v0.1.16",
    ("fp8_block128", "aiter_ck_preshuffle"): "v0.1.8",
    ("mxfp4", "aiter_asm"): "v0.1.8",
    ("mxfp4", "aiter_triton_tuned"): "v0.1.8",
    ("fp8_w8a16_block128", "aiter_triton_preshuffle"): "v0.1.12",
    ("fp8_w8a16_block128", "aiter_triton"): "v0.1.8",
    ("fp8_w8a16_block128", "aiter_triton_one_split"): "v0.1.8",
    ("mxfp4_a_fp8_tensor", "aiter_triton"): "v0.1.12",
    ("mxfp4_a_fp8_token", "aiter_triton"): "v0.1.12",
    ("fp8_block128_a_mxfp8", "aiter_triton_preshuffle"): "v0.1.16",
    ("fp8_block128_a_mxfp8", "aiter_triton"): "v0.1.16",
    ("int8_ptpc", "aiter_asm"): "v0.1.12",
    "aiter_asm_even": "v0.1.16",
    "aiter_ck_e8m0": "v0.1.20",
    "aiter_asm_1024": "v0.1.20",
    "aiter_f4gemm": "v0.1.20",
    **{(scheme, "aiter_asm"): "v0.1.20" for scheme in ("mxfp8", "mxfp4_a_mxfp8", "nvfp4", "nvfp4_modelopt")},
}
"""The first of these releases that a backend, by its name or its scheme and name, works with; v0.1.5 if not here."""


@pytest.fixture(autouse=True)
def pretended_device() -> Iterator[None]:
    before = DEVICE.arch
    yield
    DEVICE.arch = before


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, release: str) -> PaperAiter:
    monkeypatch.setattr(paper_aiter, "quantize", on_paper.quantize)
    monkeypatch.setattr(paper_aiter, "multiply", on_paper.multiply)
    return paper_aiter.install(monkeypatch, release)


def machine(arch: str, release: str, batch_invariant: bool = False) -> Facts:
    DEVICE.arch = "gfx942" if arch == "gfx942" else "gfx950"
    switches = dict.fromkeys(load().switches, True) | {"batch_invariant": batch_invariant}
    return Facts.simulate(arch, switches=switches, tuned="all", aiter=release)


def case(scheme: str, backend: str, how: str) -> Case:
    n, k, rows = shape(scheme, backend)
    return Case(scheme, backend, n, k, rows, bias=True, dtype="fp16" if "flatmm" in backend else "bf16", how=how)


def cases(scheme: str, backend: str) -> list[Case]:
    """The layer called with x, and with codes where the scheme has any."""
    ways = ("x",) if load().scheme(scheme).activation is None else ("x", "codes")
    return [case(scheme, backend, how) for how in ways]


def shape(scheme: str, backend: str) -> tuple[int, int, tuple[int, ...]]:
    return SHAPES.get((scheme, backend)) or SHAPES[scheme]


def works(scheme: str, backend: str, release: str) -> bool:
    first = FIRST.get((scheme, backend)) or FIRST.get(backend, RELEASES[0])
    return RELEASES.index(first) <= RELEASES.index(release)


WORKING = [(*backend, release) for backend in BACKENDS for release in RELEASES if works(*backend[:2], release)]
TOO_OLD = [(*backend, release) for backend in BACKENDS for release in RELEASES if not works(*backend[:2], release)]


@pytest.mark.parametrize(("scheme", "backend", "arch", "release"), WORKING)
def test_every_operand_stands_at_its_parameter(
    installed: PaperAiter, scheme: str, backend: str, arch: str, release: str
) -> None:
    facts = machine(arch, release)
    for wanted in cases(scheme, backend):
        errors = outcome(wanted, facts=facts)["errors"]
        assert {} == {rows: error for rows, error in zip(wanted.rows, errors, strict=True) if not error <= ROUNDING}


@pytest.mark.parametrize(("scheme", "backend", "arch", "release"), TOO_OLD)
def test_a_release_without_the_kernel_is_refused_by_name(scheme: str, backend: str, arch: str, release: str) -> None:
    n, k, _ = shape(scheme, backend)
    decision = explain(random_layer(scheme, n, k, False, "bf16"), facts=machine(arch, release), backend=backend)
    assert decision.chosen is None
    [refusal] = [refusal for refusal in decision.refused if refusal.backend == backend]
    assert {"symbol", "library"} >= {reason.kind for reason in refusal.reasons}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("scheme", "backend", "gemm"),
    [("fp8_block128", "aiter_triton", "gemm_a8w8_blockscale"), ("mxfp4", "aiter_triton", "gemm_afp4wfp4")],
)
def test_batch_invariant_mode_passes_a_changed_copy_of_the_tuned_tile(
    installed: PaperAiter, scheme: str, backend: str, gemm: str, release: str
) -> None:
    wanted = case(scheme, backend, "invariant")
    found = outcome(wanted, facts=machine("gfx950", release, batch_invariant=True))
    assert {True} == {error <= ROUNDING for error in found["errors"]}
    looked_up = [given for name, given in installed.calls if name == "_get_config"]
    columns = wanted.k // 2 if scheme == "mxfp4" else wanted.k
    assert [(m, wanted.n, columns) for m in wanted.rows] == [
        (given["M"], given["N"], given["K"]) for given in looked_up
    ]
    configurations = [given["config"] for name, given in installed.calls if name == gemm]
    assert [{**paper_aiter.TILE, "NUM_KSPLIT": 1}] * len(wanted.rows) == configurations


@pytest.mark.parametrize(("release", "allocated"), [("v0.1.8", True), ("v0.1.12", False), ("v0.1.20", False)])
def test_gemm_a4w4_gets_an_output_in_the_releases_that_want_one(
    installed: PaperAiter, release: str, allocated: bool
) -> None:
    outcome(case("mxfp4", "aiter_asm", "x"), facts=machine("gfx950", release))
    [given] = [given for name, given in installed.calls if name == "gemm_a4w4"]
    assert allocated == (given.get("out") is not None)


def test_a_layer_without_a_bias_gives_zeros_where_the_kernel_must_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    paper = paper_aiter.install(monkeypatch, "v0.1.20")
    monkeypatch.setattr(paper_aiter, "quantize", on_paper.quantize)
    monkeypatch.setattr(paper_aiter, "multiply", on_paper.multiply)
    wanted = dataclasses.replace(case("int8_ptpc", "aiter_asm", "x"), bias=False)
    errors = outcome(wanted, facts=machine("gfx942", "v0.1.20"))["errors"]
    assert {True} == {error <= ROUNDING for error in errors}
    [given] = [given for name, given in paper.calls if name == "gemm_a8w8_ASM"]
    assert (torch.float32, [0.0] * wanted.n) == (given["bias"].dtype, given["bias"].tolist())


@pytest.mark.parametrize(("scheme", "padded"), [("mxfp8", 34), ("nvfp4", 1024)])
def test_kernels_that_compute_whole_groups_of_rows_get_them(
    monkeypatch: pytest.MonkeyPatch, scheme: str, padded: int
) -> None:
    paper = paper_aiter.install(monkeypatch, "v0.1.20")
    monkeypatch.setattr(paper_aiter, "quantize", on_paper.quantize)
    monkeypatch.setattr(paper_aiter, "multiply", on_paper.multiply)
    wanted = dataclasses.replace(case(scheme, "aiter_asm", "x"), rows=(33,))
    outcome(wanted, facts=machine("gfx1250", "v0.1.20"))
    [given] = [given for _, given in paper.calls if "ScaleA" in given]
    assert padded == given["A"].shape[0]
