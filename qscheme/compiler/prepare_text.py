"""The lines of generated code that lay out the tensors of a layer for a backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qscheme.compiler import ir

WEIGHT_STEPS = {"row_major": "row_major", "transposed": "transposed", "shuffle_16x16": "shuffle_16x16"}
"""The step of `qscheme.layouts` that makes each weight layout."""

X_STEPS = ("shuffle_16x16", "tiles_2x128")
"""The steps of `qscheme.layouts` and `qscheme.tilings` that lay codes of x out for each call."""

SCALE_STEPS = {
    "row_major": "row_major",
    "per_row": "row_major",
    "row_vector": "row_vector",
    "k_major": "k_major",
    "column_major": "column_major",
    "padded_column_major": "padded_column_major",
    "swizzle_e8m0_32x8": "swizzle_e8m0_32x8",
    "tiles_32x4": "tiles_32x4",
    "tiles_32x8": "tiles_32x8",
    "swizzle_32_4_4": "swizzle_32_4_4",
}
"""The step of `qscheme.layouts` or `qscheme.tilings` that makes each layout of weight scales."""


def prepare_lines(scheme: ir.Scheme, backend: ir.Backend) -> Iterable[str]:
    """The body of a function that brings a layer's tensors into the layouts that a backend reads."""
    gemm = backend.calls[0].gemm
    weight, scale, given = "layer.weight", "layer.weight_scale", "layer.input_scale"
    activation = scheme.activation
    if scheme.weight.format == "fp8_e4m3" and gemm.fp8 == "device":
        yield f"weight, weight_scale = {weight}, {scale}"
        static = activation is not None and activation.mode == "static" and activation.format == "fp8_e4m3"
        if static:
            yield f"input_scale = {given}"
            given = "input_scale"
        yield 'if facts.device.fp8 == "fnuz":'
        yield "    weight, weight_scale = fnuz_weight(weight), fnuz_scale(weight_scale)"
        if static:  # codes of half the value reach half as far
            yield "    input_scale = None if input_scale is None else fnuz_scale(input_scale)"
        weight, scale = "weight", "weight_scale"
    if scheme.weight.scale == "fp32":
        scale = f"e8m0_to_fp32({scale})" if "e8m0" in scheme.stored_scales else scale
    if backend.weight_scale_layout == "per_row":
        scale = f"expand_rows({scale}, layer.n)"
    elif backend.weight_scale_layout == "row_vector":
        scale = f"row_vector({scale}, layer.n)"
    elif backend.weight_scale_layout != "row_major":
        scale = f"{SCALE_STEPS[backend.weight_scale_layout]}({scale})"
    elif scale != "layer.weight_scale" or gemm.operand("weight_operand") is None:  # the reference reads any strides
        scale = f"row_major({scale})"
    if (read := gemm.reads(scheme.weight)) != scheme.weight.packing:
        weight = f"repacked({weight}, {scheme.weight.format!r}, {scheme.weight.packing!r}, {read!r})"
    yield "return Prepared("
    yield f"    backend={backend.name!r},"
    yield f"    weight={WEIGHT_STEPS[backend.weight_layout]}({weight}),"
    yield f"    weight_scale={scale},"
    yield f"    input_scale={given},"
    yield f"    bias={_bias(gemm)},"
    for name, has in levels(scheme):
        if has:
            yield f"    {name}=layer.{name},"
    yield ")"


def _bias(gemm: ir.Kernel) -> str:
    """The layer's bias in the dtype in which the GEMM adds it, or in which it is added afterwards."""
    fused = gemm.operand("bias")
    if fused is not None and fused.dtype == "any":
        return "layer.bias"
    dtype = "torch.float32" if fused is not None and fused.dtype == "fp32" else "layer.out_dtype"
    if fused is not None and fused.required:
        return f"bias_or_zeros(layer.bias, layer.n, {dtype}, layer.weight.device)"
    return f"as_dtype(layer.bias, {dtype})"


def levels(scheme: ir.Scheme) -> Iterable[tuple[str, bool]]:
    """The further tensors of a layer, and whether this scheme has them."""
    yield "weight_global_scale", scheme.weight.global_scale is not None
    yield "weight_zero_point", not scheme.weight.symmetric
    yield "input_global_scale", scheme.activation is not None and scheme.activation.global_scale is not None


def levels_after(scheme: ir.Scheme) -> str:
    """The global scales by which a product is scaled where its GEMM knows none, as arguments."""
    found = {name: name if has else "None" for name, has in levels(scheme)}
    return f"{found['input_global_scale']}, {found['weight_global_scale']}"


def padded_rows(gemm: ir.Kernel) -> str:
    """How many rows a GEMM is given for M rows, as an expression over m."""
    rows = gemm.multiple_rows
    padded = f"-(-m // {rows}) * {rows}" if rows > 1 else f"max(m, {gemm.minimum_rows})"
    return f"{padded} if {gemm.name}_padded else m" if gemm.padded_in else padded
