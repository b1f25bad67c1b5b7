"""What the tests of bindings run in child processes: AITER's backends, bound by qscheme, against float64."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

import qscheme
from qscheme.tables import load
from qscheme.tuned import ALL_TUNED

from . import layers
from .device import CALLS, DEVICE
from .reference import refusal

if TYPE_CHECKING:
    from qscheme import types
    from qscheme.binding import Bound

    from .layers import Layer


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer of a scheme on a backend, and the numbers of rows it is called with.

    scales: how the checkpoint stores the weight's scales. tuned: whether every shape passes for tuned, or those of the
    installed tables. how: "x", "codes" (quantized by the test), "rotated", "refreshed" (bound to another layer
    first), "strided" (x of three dimensions that is not dense), "invariant" (batch-invariant mode).
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


def machine(every_shape_tuned: bool = True, batch_invariant: bool = False) -> types.Facts:
    """The facts of this machine with its AITER, but for the GPU, which is the one that the stand-ins pretend."""
    facts = qscheme.Facts.of_this_machine("cpu")
    return dataclasses.replace(
        facts,
        device=load().devices[DEVICE.arch],
        compute_units=DEVICE.compute_units,
        tuned=ALL_TUNED if every_shape_tuned else facts.tuned,
        switches={**facts.switches, "batch_invariant": batch_invariant},
    )


def quantizer(scheme: str, backend: str, layer: Layer) -> Any:
    """The rule that a backend's quantizer has in the installed release."""
    if scheme == "int8_tensor_static":
        assert layer.input_scale is not None
        return layers.int8_under(layer.input_scale)
    return {
        ("int8_ptpc", "aiter_ck"): layers.int8_truncated,
        ("int8_ptpc", "aiter_triton"): layers.int8_nearest,
        ("mxfp4", "aiter_asm"): layers.fp4_blocks(1.5),
        ("mxfp4", "aiter_triton"): layers.fp4_blocks(1.75),
    }.get((scheme, backend)) or layers.fp8_groups(DEVICE.fp8)


def outcome(case: Case, tables: str | None = None) -> dict[str, Any]:
    """Bind and call a case: for each number of rows the largest error of a row, and the kernels that ran, in order."""
    torch.manual_seed(case.n * case.k + len(case.rows))
    new = partial(layers.random_layer, case.scheme, case.n, case.k, case.bias, case.dtype, case.scales)
    layer = new()
    layer.rotation = 32 if case.how == "rotated" else None
    layer.prequantized = case.how == "codes"
    facts = machine(case.tuned, case.how == "invariant")
    bound = qscheme.dispatch(layer, facts=facts, tables=tables, backend=case.backend)
    if case.how == "refreshed":
        layer = new()
        bound.refresh(layer)
    found: dict[str, Any] = {"errors": [], "kernels": []}
    for rows in case.rows:
        error, kernels = _called(case, bound, layer, rows)
        found["errors"].append(error)
        found["kernels"].append(kernels)
    return found


def _called(case: Case, bound: Bound, layer: Layer, rows: int) -> tuple[float, list[str]]:
    x = layers.random_input(case.scheme, rows, case.k, case.dtype)
    codes, scale = quantizer(case.scheme, case.backend, layer)(layers.rotated(x) if case.how == "rotated" else x)
    expected = layers.product(layer, codes, scale)
    start = len(CALLS)
    if case.how == "codes":
        y = bound(codes, x_scale=scale)
    elif case.how == "strided":
        wide = torch.cat((x, x), dim=1).view(1, rows, -1)[:, :, : case.k]
        y = bound(wide).view(rows, -1)
    else:
        y = bound(x)
    assert y.dtype == layer.out_dtype
    return layers.largest_row_error(y, expected), [function for function, _ in CALLS[start:]]


def outcomes(cases: list[dict[str, Any]], tables: str | None = None) -> list[dict[str, Any]]:
    """The outcome of every case, or {"refused": error}."""
    return [_outcome_or_refusal(Case(**{**case, "rows": tuple(case["rows"])}), tables) for case in cases]


def _outcome_or_refusal(case: Case, tables: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    said = refusal(lambda: found.update(outcome(case, tables)))
    return found if said == "returned" else {"refused": said}
