"""What the tests of bindings run in child processes: AITER's backends, bound by qscheme, against float64."""

from __future__ import annotations

import dataclasses
import hashlib
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

import qscheme
from qscheme.machine import Library
from qscheme.signatures import ReleaseOffers
from qscheme.tables import load, shipped_schemes
from qscheme.tuned import ALL_TUNED

from . import layers
from .device import CALLS, DEVICE
from .reference import refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from qscheme import machine
    from qscheme.binding import Bound

    from .layers import Layer, Quantized


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer of a scheme on a backend, and the numbers of rows it is called with.

    scales: how the checkpoint stores the weight's scales. tuned: whether every shape passes for tuned, or only those
    of the installed tables. how: "x", "codes" (quantized by the test), "rotated", "refreshed" (bound to another layer
    first), "strided" (x has three dimensions and is not dense), "invariant" (batch-invariant mode).
    """

    scheme: str
    backend: str
    n: int
    k: int
    rows: tuple[int, ...]
    bias: bool = False
    dtype: str = "bf16"
    scales: str = "fp32"
    tuned: bool = True
    how: str = "x"

    def __str__(self) -> str:
        words = [self.scheme, self.backend, f"{self.n}x{self.k}", self.dtype, self.how]
        words += ["bias"] * self.bias + ["e8m0"] * (self.scales == "e8m0") + ["table"] * (not self.tuned)
        return "-".join(words)


def machine(every_shape_tuned: bool = True, batch_invariant: bool = False) -> machine.Facts:
    """The facts of this machine with its AITER, but for the GPU that the stand-ins pretend, its ROCm, and switches on."""
    facts = qscheme.Facts.of_this_machine("cpu")
    libraries = {**facts.libraries, "rocm": Library("rocm", version="7.3")}
    return dataclasses.replace(
        facts,
        libraries=libraries,
        offers=ReleaseOffers(libraries, shipped_schemes() / "releases"),
        device=load().devices[DEVICE.arch],
        compute_units=DEVICE.compute_units,
        tuned=ALL_TUNED if every_shape_tuned else facts.tuned,
        switches=dict.fromkeys(facts.switches, True) | {"batch_invariant": batch_invariant},
    )


def rule_of(scheme: str, backend: str, layer: Layer) -> Callable[[torch.Tensor], Quantized]:
    """The rule that a backend's quantizer has in the installed release."""
    if scheme == "int8_tensor_static":
        assert layer.input_scale is not None
        return layers.int8_under(layer.input_scale)
    if scheme == "fp8_tensor_static":
        assert layer.input_scale is not None
        return layers.fp8_under(layer.input_scale, DEVICE.fp8, divide=backend != "aiter_ck")
    if scheme == "fp8_tensor_dynamic":
        return layers.fp8_rows(DEVICE.fp8, divide=True, every_row=True)
    if scheme in ("fp8_ptpc", "fp8_token_x_tensor"):
        return layers.fp8_rows(DEVICE.fp8, divide=not backend.startswith("aiter_ck"))
    if scheme == "fp8_block128_ue8m0":
        return layers.fp8_powers(DEVICE.fp8)
    if scheme in ("mxfp8", "mxfp4_a_mxfp8"):
        return layers.fp8_powers(DEVICE.fp8, 32, stored=True)
    if scheme.startswith("nvfp4"):
        return layers.fp4_levels(layer.level(layer.input_global_scale))
    if scheme == "fp8_block128":
        return layers.fp8_groups(DEVICE.fp8, divide=backend.startswith("aiter_triton_rdna4"))
    if scheme == "fp8_w8a16_block128":
        return layers.as_it_is
    if scheme == "fp8_block128_a_mxfp8":
        return layers.mxfp8_blocks
    if scheme == "mxfp4_a_fp8_tensor":
        assert layer.input_scale is not None
        return layers.fp8_under(layer.input_scale, torch.float8_e4m3fn, divide=True)
    if scheme == "mxfp4_a_fp8_token":
        return layers.fp8_rows(torch.float8_e4m3fn)
    return {
        ("int8_ptpc", "aiter_asm"): layers.int8_truncated,
        ("int8_ptpc", "aiter_ck"): layers.int8_truncated,
        ("int8_ptpc", "aiter_triton"): layers.int8_nearest,
        ("mxfp4", "aiter_f4gemm"): layers.fp4_blocks(1.75),
        ("mxfp4", "aiter_asm_even"): layers.fp4_blocks(1.75),
        ("mxfp4", "aiter_asm"): layers.fp4_blocks(1.5),
        ("mxfp4", "aiter_triton"): layers.fp4_blocks(1.75, ties_away=True),
        ("mxfp4", "aiter_triton_tuned"): layers.fp4_blocks(1.75, ties_away=True),
    }[scheme, backend]


def outcome(
    case: Case, tables: str | None = None, name: str | None = None, facts: machine.Facts | None = None
) -> dict[str, Any]:
    """Bind and call a case: for each number of rows the largest error of a row, the kernels in order, and y's digest.

    tables, name: the generated package and the scheme in it, the shipped ones if None. facts: `machine` if None.
    """
    torch.manual_seed(case.n * case.k)
    new = partial(layers.random_layer, case.scheme, case.n, case.k, case.bias, case.dtype, case.scales)
    layer = new()
    layer.scheme = name or case.scheme
    layer.rotation = 32 if case.how == "rotated" else None
    layer.prequantized = case.how == "codes"
    known = facts or machine(case.tuned, case.how == "invariant")
    bound = qscheme.dispatch(layer, facts=known, tables=tables, backend=case.backend)
    if case.how == "refreshed":
        layer = new()
        layer.scheme = name or case.scheme
        bound.refresh(layer)
    found: dict[str, Any] = {"errors": [], "kernels": [], "digests": []}
    for rows in case.rows:
        start = len(CALLS)
        y, expected = _called(case, bound, layer, rows)
        assert y.dtype == layer.out_dtype
        found["errors"].append(layers.largest_row_error(y, expected))
        found["kernels"].append(CALLS[start:])
        found["digests"].append(hashlib.sha256(y.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest())
    return found


def _called(case: Case, bound: Bound, layer: Layer, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = layers.random_input(case.scheme, rows, case.k, case.dtype)
    codes, scale = rule_of(case.scheme, case.backend, layer)(layers.rotated(x) if case.how == "rotated" else x)
    expected = layers.product(layer, codes, scale)
    if case.how == "codes":
        return bound(codes, x_scale=scale), expected
    if case.how == "strided":
        return bound(torch.cat((x, x), dim=1)[:, : case.k].view(1, rows, case.k)).view(rows, -1), expected
    return bound(x), expected


def outcomes(cases: list[dict[str, Any]], tables: str | None = None) -> list[dict[str, Any]]:
    """The outcome of every case, or {"refused": error}."""
    return [_outcome_or_refusal(Case(**{**case, "rows": tuple(case["rows"])}), tables) for case in cases]


def _outcome_or_refusal(case: Case, tables: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    said = refusal(lambda: found.update(outcome(case, tables)))
    return found if said == "returned" else {"refused": said}


def agreement(scheme: str, n: int, k: int, rows: int) -> dict[str, float]:
    """How far every backend that runs a layer is from the reference (or the first), for the same codes and scales."""
    torch.manual_seed(n * k)
    layer = layers.random_layer(scheme, n, k, True, "bf16")
    layer.prequantized = True
    x = layers.random_input(scheme, rows, k, "bf16")
    bounds = [_bound_or_none(layer, backend) for backend in [b.name for b in load().scheme(scheme).backends][::-1]]
    found: dict[str, float] = {}
    first: torch.Tensor | None = None
    rule = rule_of(scheme, "aiter_triton", layer)
    for bound in bounds:
        codes, scale = rule(x)
        if bound is None or (codes.dtype == torch.float8_e4m3fnuz and bound.activation.codes_dtype != codes.dtype):
            continue
        y = bound(codes, x_scale=scale)
        if first is None:
            first = y.double()
        found[bound.backend] = layers.largest_row_error(y, first)
    return found


def difference_of_rules(scheme: str, backend: str, n: int, k: int, rows: int) -> dict[str, Any]:
    """How far a backend is from the reference for the same x, over all rows, and the mismatches that are said."""
    torch.manual_seed(n * k)
    layer = layers.random_layer(scheme, n, k, False, "bf16")
    x = layers.random_input(scheme, rows, k, "bf16")
    facts = machine()
    bound = qscheme.dispatch(layer, facts=facts, backend=backend)
    y, expected = (found(x).double() for found in (bound, qscheme.dispatch(layer, facts=facts, backend="reference")))
    size = expected.norm(dim=1)
    return {
        "difference": float(((y - expected).norm(dim=1) / size)[size > 0].mean()),
        "said": sorted(mismatch.field for mismatch in bound.decision.mismatches),
    }


def _bound_or_none(layer: Layer, backend: str) -> Bound | None:
    try:
        return qscheme.dispatch(layer, facts=machine(), backend=backend)
    except qscheme.Unsupported:
        return None
