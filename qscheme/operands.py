"""A layer's tensors against its scheme: checked, in logical N and K, with scales in one shape per granularity."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import torch

from qscheme.errors import InvalidLayer
from qscheme.layouts import expand_rows, expand_widths
from qscheme.numerics import scale_shape
from qscheme.types import LayerFacts, Operands

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from qscheme.types import Layer, Scheme

T = TypeVar("T")

DTYPES: dict[torch.dtype, str] = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
"""The output dtypes, by the words that schemes use."""

CODES: dict[str, torch.dtype] = {"int8": torch.int8, "fp8_e4m3": torch.float8_e4m3fn, "fp4_e2m1": torch.uint8}
"""The dtype in which a checkpoint stores each format."""

ROTATION = 32
"""The block size of a Hadamard rotation; no other is known."""

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def layer_facts(layer: Layer, scheme: Scheme) -> LayerFacts:
    """What conditions may ask about a layer; its weight may be absent if out_features and in_features are given."""
    weight: Tensor | None = _optional(layer, "weight", None)
    n, k = _logical_shape(layer, scheme, weight)
    rotation = _optional(layer, "rotation", None)
    prequantized = bool(_optional(layer, "prequantized", False))
    if rotation is not None and rotation != ROTATION:
        raise InvalidLayer(_name(layer), "rotation", f"None or {ROTATION}", str(rotation))
    if rotation is not None and prequantized:
        raise InvalidLayer(_name(layer), "rotation", "None, as the layer is prequantized", str(rotation))
    if rotation is not None and k % rotation:
        raise InvalidLayer(_name(layer), "rotation", f"K a multiple of {rotation}", f"K = {k}")
    out_dtype = layer.out_dtype
    if out_dtype not in DTYPES:
        raise InvalidLayer(_name(layer), "out_dtype", "torch.bfloat16, torch.float16 or torch.float32", str(out_dtype))
    return LayerFacts(
        n=n,
        k=k,
        out_dtype=DTYPES[out_dtype],
        has_bias=_optional(layer, "bias", None) is not None,
        rotation=rotation,
        prequantized=prequantized,
    )


def operands_of(layer: Layer, scheme: Scheme, facts: LayerFacts) -> Operands:
    """The layer's tensors, checked. Raises InvalidLayer that names the operand, what it needs and what was found."""
    name, n, k = _name(layer), facts.n, facts.k
    weight = _weight(layer, scheme, n, k)
    widths: Sequence[int] | None = _optional(layer, "logical_widths", None)
    if widths is not None and sum(widths) != n:
        raise InvalidLayer(name, "logical_widths", f"widths that add up to N = {n}", f"{list(widths)}")
    return Operands(
        name=name,
        n=n,
        k=k,
        weight=weight,
        weight_scale=_weight_scale(layer, scheme, n, k, widths),
        input_scale=_input_scale(layer, scheme),
        bias=_bias(layer, n),
        out_dtype=layer.out_dtype,
    )


def _name(layer: Layer) -> str:
    return str(getattr(layer, "name", "") or "")


def _optional(layer: Layer, attribute: str, default: T) -> T:
    value = getattr(layer, attribute, default)
    return default if value is None else value


def _logical_shape(layer: Layer, scheme: Scheme, weight: Tensor | None) -> tuple[int, int]:
    n: int | None = _optional(layer, "out_features", None)
    k: int | None = _optional(layer, "in_features", None)
    if weight is None:
        if n is None or k is None:
            raise InvalidLayer(_name(layer), "weight", "a tensor, or out_features and in_features", "neither")
        return n, k
    if weight.dim() != 2:
        raise InvalidLayer(_name(layer), "weight", "two dimensions [N, K]", f"shape {list(weight.shape)}")
    rows, columns = weight.shape
    columns *= 2 if scheme.weight.format == "fp4_e2m1" else 1
    for word, logical, stored in (("out_features", n, rows), ("in_features", k, columns)):
        if logical is not None and not 0 < logical <= stored:
            raise InvalidLayer(_name(layer), word, f"1 to {stored}, which the weight has", str(logical))
    return (rows if n is None else n), (columns if k is None else k)


def _weight(layer: Layer, scheme: Scheme, n: int, k: int) -> Tensor:
    weight, stored = layer.weight, CODES[scheme.weight.format]
    if weight.dtype != stored:
        if scheme.weight.format == "fp4_e2m1" and weight.dtype == getattr(torch, "float4_e2m1fn_x2", None):
            weight = weight.view(torch.uint8)
        else:
            raise InvalidLayer(_name(layer), "weight", f"{stored} for {scheme.weight.format}", str(weight.dtype))
    columns = -(-k // 2) if scheme.weight.format == "fp4_e2m1" else k
    return weight if weight.shape == (n, columns) else weight[:n, :columns]


def _weight_scale(layer: Layer, scheme: Scheme, n: int, k: int, widths: Sequence[int] | None) -> Tensor:
    scale: Tensor | None = _optional(layer, "weight_scale", None)
    granularity = scheme.weight.granularity
    shape = scale_shape(n, k, granularity)
    if scale is None:
        raise InvalidLayer(_name(layer), "weight_scale", f"a scale of shape {list(shape)}", "none")
    _same_device(layer, "weight_scale", scale)
    scale = _scale_dtype(layer, scheme, scale)
    if granularity in ("per_channel", "per_tensor"):
        if widths is not None and len(widths) > 1 and scale.numel() == len(widths) and scale.dim() <= 2:
            return expand_widths(scale, list(widths))
        if scale.numel() == 1 and (granularity == "per_tensor" or widths is not None or n == 1):
            return scale.reshape(1) if granularity == "per_tensor" else expand_rows(scale, n)
        if granularity == "per_channel" and tuple(scale.shape) in ((n, 1), (n,)):
            return scale.reshape(n, 1)
        needs = "one value" if granularity == "per_tensor" else f"shape [{n}, 1] or [{n}]"
        fused = "" if widths is None else f", or one value for each of the {len(widths)} logical widths"
        raise InvalidLayer(_name(layer), "weight_scale", needs + fused, f"shape {list(scale.shape)}")
    if tuple(scale.shape) != shape:
        rows, columns = shape[0], shape[-1]
        padded = scale.dim() == 2 and scale.shape[0] >= rows and scale.shape[1] >= columns and _is_padded(layer)
        if not padded:
            needs = f"shape {list(shape)} for N = {n} and K = {k} in tiles of {granularity}"
            raise InvalidLayer(_name(layer), "weight_scale", needs, f"shape {list(scale.shape)}")
        scale = scale[:rows, :columns]
    return scale


def _is_padded(layer: Layer) -> bool:
    return _optional(layer, "out_features", None) is not None or _optional(layer, "in_features", None) is not None


def _scale_dtype(layer: Layer, scheme: Scheme, scale: Tensor) -> Tensor:
    """Float scales in float32, E8M0 ones as bytes."""
    if scale.dtype in FLOATS and "fp32" in scheme.stored_scales:
        return scale.float()
    if scale.dtype in (torch.uint8, getattr(torch, "float8_e8m0fnu", None)) and "e8m0" in scheme.stored_scales:
        return scale.view(torch.uint8)
    words = {"fp32": "float32, bfloat16 or float16", "e8m0": "uint8 with E8M0 bytes"}
    needs = " or ".join(words[stored] for stored in scheme.stored_scales)
    raise InvalidLayer(_name(layer), "weight_scale", needs, str(scale.dtype))


def _input_scale(layer: Layer, scheme: Scheme) -> Tensor | None:
    scale: Tensor | None = _optional(layer, "input_scale", None)
    if scheme.activation.mode == "dynamic":
        if scale is not None:
            raise InvalidLayer(_name(layer), "input_scale", "None, as the activation is dynamic", "a tensor")
        return None
    if scale is None:
        raise InvalidLayer(_name(layer), "input_scale", "one value, as the activation is static", "none")
    _same_device(layer, "input_scale", scale)
    if scale.numel() != 1 or scale.dtype not in FLOATS:
        raise InvalidLayer(
            _name(layer), "input_scale", "one float value", f"{scale.dtype} of shape {list(scale.shape)}"
        )
    if scale.device.type != "meta" and not 0 < float(scale) < float("inf"):
        raise InvalidLayer(_name(layer), "input_scale", "a finite scale above zero", str(float(scale)))
    return scale.reshape(1).float()


def _bias(layer: Layer, n: int) -> Tensor | None:
    bias: Tensor | None = _optional(layer, "bias", None)
    if bias is None:
        return None
    _same_device(layer, "bias", bias)
    if tuple(bias.shape) != (n,):
        raise InvalidLayer(_name(layer), "bias", f"shape [{n}]", f"shape {list(bias.shape)}")
    if not bias.dtype.is_floating_point:
        raise InvalidLayer(_name(layer), "bias", "a floating dtype", str(bias.dtype))
    return bias.detach()


def _same_device(layer: Layer, operand: str, tensor: Tensor) -> None:
    if tensor.device != layer.weight.device:
        raise InvalidLayer(_name(layer), operand, f"the weight's device {layer.weight.device}", str(tensor.device))
