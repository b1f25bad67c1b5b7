"""Why a quantizer or a GEMM does not fit what a scheme says of its activation and its weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qscheme.compiler import ir
    from qscheme.types import Operand

PER_ROW = {"activation": ("per_tensor", "per_token"), "weight": ("per_tensor", "per_channel")}
"""The granularities whose scales are one value for each row, or can be expanded to that."""

ROWWISE = ("per_row", "row_vector")
"""The layouts of scales with one value for each row."""


def quantizer_misfit(quantize: ir.Kernel, activation: Operand) -> str | None:
    """Why a quantizer cannot make the scheme's activation."""
    name = quantize.name
    if quantize.formats and activation.format not in quantize.formats:
        return f"{name} makes {' and '.join(quantize.formats)}, and the scheme's activation is {activation.format}"
    if quantize.granularity not in (None, activation.granularity):
        return f"{name} makes {quantize.granularity} scales, and the scheme has {activation.granularity}"
    if quantize.asymmetric == activation.symmetric:
        has, wants = ("zero points", "none") if quantize.asymmetric else ("no zero points", "them")
        return f"{name} makes {has}, and the scheme's activation has {wants}"
    if (activation.global_scale is not None) and quantize.operand("input_global_scale") is None:
        return f"{name} takes no global scale, and the scheme's activation has one"
    if activation.mode == "static" and quantize.operand("input_scale") is None:
        return f"{name} takes no given scale, and the scheme's activation is static"
    if quantize.granularity is None:
        return None
    if activation.mode == "dynamic" and quantize.operand("input_scale") is not None:
        return f"{name} takes a given scale, and the scheme's activation is dynamic"
    if activation.format != "fp8_e4m3" and quantize.operand("fp8_dtype") is not None:
        return f"{name} takes an FP8 dtype, and the scheme's activation is {activation.format}"
    if (activation.format == "fp4_e2m1") != (quantize.codes is not None):
        does = "packs two codes in a byte" if quantize.codes else "writes one code in a byte"
        return f"{name} {does}, and the scheme's activation is {activation.format}"
    decoded = quantize.scale_dtype == "e8m0" and activation.scale == "fp32" and activation.rule.scale != "amax_div"
    if (activation.scale == "e8m0") != (quantize.scale_dtype is not None) and not decoded:
        stored = quantize.scale_dtype or "float32"
        return f"{name} writes its scales as {stored}, and the scheme's are {activation.scale}"
    return None


def gemm_misfit(gemm: ir.Kernel, activation: Operand | None, weight: Operand) -> str | None:
    """Why a GEMM cannot multiply the scheme's operands."""
    of_weight = gemm.weight_formats or gemm.formats
    if of_weight and weight.format not in of_weight:
        what = " weights" if gemm.weight_formats else ""
        return f"{gemm.name} takes {' and '.join(of_weight)}{what}, and the scheme has {weight.format}"
    if activation is None:
        if gemm.quantizes is not None:
            return f"{gemm.name} quantizes x to {gemm.quantizes.format}, and the scheme's activation is none"
        if gemm.takes_codes and gemm.formats:
            return f"{gemm.name} takes a quantized activation, and the scheme's is none"
    elif gemm.quantizes is not None:
        misfit = _quantizing_misfit(gemm.name, gemm.quantizes, activation)
        if misfit is not None:
            return misfit
    elif not gemm.takes_codes:
        return f"{gemm.name} multiplies x as it is, and the scheme's activation is {activation.format}"
    elif gemm.formats:
        if activation.format not in gemm.formats:
            return f"{gemm.name} takes {' and '.join(gemm.formats)}, and the scheme has {activation.format}"
        if not gemm.weight_formats and activation.format != weight.format:
            return (
                f"{gemm.name} takes operands of one format, and the scheme has {activation.format} and {weight.format}"
            )
    for what, given, role in (("activation", activation, "x_scale"), ("weight", weight, "weight_scale")):
        if given is None:
            continue
        operand, use = given, gemm.operand(role)
        layouts = {part.layout for part in use.layouts} if use else set[str]()
        rowwise = gemm.accumulators or not layouts.isdisjoint(ROWWISE)
        allowed = PER_ROW[what] if rowwise else use.granularity if use else ()
        if allowed and operand.granularity not in allowed:
            scales = f"{' and '.join(allowed)} scales of the {what}"
            return f"{gemm.name} takes {scales}, and the scheme has {operand.granularity}"
        if use and use.formats and operand.scale not in use.formats:
            return f"{gemm.name} takes scales in {' and '.join(use.formats)}, and the scheme's are {operand.scale}"
        misfit = _global_scale_misfit(gemm, operand, what)
        if misfit is not None:
            return misfit
    if weight.packing == "plain" and gemm.reads(weight) != "plain":
        return f"{gemm.name} reads the weight in {gemm.reads(weight)}, and the scheme's K need not fill the words"
    if not weight.symmetric and gemm.operand("weight_zero_point") is None:
        return f"{gemm.name} takes no zero points, and the scheme has them"
    return None


def _global_scale_misfit(gemm: ir.Kernel, operand: Operand, what: str) -> str | None:
    """Why a GEMM does not apply the global scale of the activation or the weight as the scheme does."""
    if gemm.global_scales_after:
        return None
    outer = gemm.operand("input_global_scale" if what == "activation" else "weight_global_scale")
    if operand.global_scale is not None and outer is None:
        return f"{gemm.name} takes no global scale of the {what}, and the scheme's {operand.global_scale}s"
    if outer is not None and outer.applies not in (None, operand.global_scale):
        does = f"{operand.global_scale}s" if operand.global_scale else "has none"
        return f"{gemm.name} {outer.applies}s a global scale of the {what}, and the scheme's {does}"
    return None


def _quantizing_misfit(name: str, quantizes: ir.Quantizes, activation: Operand) -> str | None:
    """Why a GEMM that quantizes x does not make the scheme's activation of it."""
    made = (quantizes.format, quantizes.granularity, quantizes.scale)
    wanted = (activation.format, activation.granularity, activation.scale)
    if made != wanted:
        makes, has = (f"{form} with {scale} scales of {tile}" for form, tile, scale in (made, wanted))
        return f"{name} quantizes x to {makes}, and the scheme's activation is {has}"
    if activation.mode == "static" or not activation.symmetric or activation.global_scale is not None:
        return f"{name} finds the scales of x itself, and the scheme's activation has more than them"
    return None
