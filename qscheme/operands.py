"""A layer's tensors against its scheme: checked, in logical N and K, with scales in one shape per granularity."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from qscheme.errors import InvalidLayer
from qscheme.formats import PACKED, packed_columns
from qscheme.layouts import expand_rows, expand_widths
from qscheme.numerics import scale_shape
from qscheme.packed_operands import check_groups, check_words, scale_of_words, zero_point_of
from qscheme.packing import stored_sizes
from qscheme.tiles import tile
from qscheme.types import LayerFacts, Operands
from qscheme.words import k_first

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qscheme.types import Layer, Scheme

T = TypeVar("T")

DTYPES: dict[torch.dtype, str] = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
"""The output dtypes, by the words that schemes use."""

CODES: dict[str, torch.dtype] = {
    "int8": torch.int8, "int4": torch.int8, "fp8_e4m3": torch.float8_e4m3fn,
    "fp6_e2m3": torch.uint8, "fp6_e3m2": torch.uint8, "fp4_e2m1": torch.uint8,
}  # fmt: skip
"""The dtype in which a checkpoint stores each format."""

ROTATION = 32
"""The block size of a Hadamard rotation; no other is known."""

FLOATS = (torch.float32, torch.bfloat16, torch.float16)

_STORED_SCALES = {
    "fp32": "float32, bfloat16 or float16",
    "e8m0": "uint8 with E8M0 bytes",
    "e4m3": "float8_e4m3fn",
    "e5m3": "uint8 with E5M3 bytes",
}


def layer_facts(layer: Layer, scheme: Scheme) -> LayerFacts:
    """What conditions may ask about a layer; its weight may be absent if out_features and in_features are given.

    Raises InvalidLayer.
    """
    n, k = _logical_shape(layer, scheme)
    rotation = _optional(layer, "rotation", None)
    prequantized = bool(_optional(layer, "prequantized", False))
    activation = scheme.activation
    if prequantized and (activation is None or not activation.symmetric):
        why = "not quantized" if activation is None else "asymmetric"
        raise InvalidLayer(_name(layer), "prequantized", f"False, as the activation is {why}", "True")
    if rotation is not None:
        if rotation != ROTATION:
            raise InvalidLayer(_name(layer), "rotation", f"None or {ROTATION}", str(rotation))
        if prequantized:
            raise InvalidLayer(_name(layer), "rotation", "None, as the layer is prequantized", str(rotation))
        if k % rotation:
            raise InvalidLayer(_name(layer), "rotation", f"K a multiple of {rotation}", f"K = {k}")
    out_dtype: torch.dtype | None = _optional(layer, "out_dtype", None)
    word = None if out_dtype is None else DTYPES.get(out_dtype)
    if word is None:
        raise InvalidLayer(_name(layer), "out_dtype", "torch.bfloat16, torch.float16 or torch.float32", str(out_dtype))
    return LayerFacts(
        n=n,
        k=k,
        out_dtype=word,
        has_bias=_optional(layer, "bias", None) is not None,
        rotation=rotation,
        prequantized=prequantized,
        fused=_is_fused(layer, scheme),
        full_n=_whole(layer, "full_out_features", "N", n),
        full_k=_whole(layer, "full_in_features", "K", k),
        widths=tuple(_widths(layer, n) or ()) if tile(scheme.weight.granularity, 1, 1)[0] > 1 else (),
    )


def operands_of(layer: Layer, scheme: Scheme, facts: LayerFacts) -> Operands:
    """The layer's tensors, checked. Raises InvalidLayer that names the operand, what it needs and what was found."""
    n, k = facts.n, facts.k
    weight = _tensor(layer, "weight")
    if weight is None:
        raise InvalidLayer(_name(layer), "weight", f"a tensor of N = {n} and K = {k}", "none")
    check_groups(_name(layer), _tensor(layer, "g_idx", weight), scheme.weight, k)
    return Operands(
        name=_name(layer),
        n=n,
        k=k,
        weight=_weight(layer, scheme, weight, n, k),
        weight_scale=_weight_scale(layer, scheme, weight, n, k),
        input_scale=_input_scale(layer, scheme, weight),
        bias=_bias(layer, weight, n),
        out_dtype=layer.out_dtype,
        weight_global_scale=_one_value(layer, "weight_global_scale", scheme.weight.global_scale is not None, weight),
        weight_zero_point=zero_point_of(_name(layer), _tensor(layer, "weight_zero_point", weight), scheme.weight, n, k),
        input_global_scale=_one_value(
            layer, "input_global_scale", bool(scheme.activation and scheme.activation.global_scale), weight
        ),
    )


def _whole(layer: Layer, word: str, name: str, size: int) -> int | None:
    """A size of the whole layer, None if nobody said that this is a shard of it."""
    full: int | None = _optional(layer, word, None)
    if full is not None and full < size:
        raise InvalidLayer(_name(layer), word, f"at least the {name} = {size} of this shard", str(full))
    return full


def _is_fused(layer: Layer, scheme: Scheme) -> bool:
    """Whether the layer has one weight scale for each of its parts, where the scheme has one for the tensor."""
    scale = _tensor(layer, "weight_scale")
    if scale is None:
        widths: Sequence[int] | None = _optional(layer, "logical_widths", None)
        return scheme.weight.granularity == "per_tensor" and widths is not None and len(widths) > 1
    return scheme.weight.granularity == "per_tensor" and scale.numel() > 1


def _one_value(layer: Layer, operand: str, wanted: bool, weight: Tensor) -> Tensor | None:
    """A scale of the whole tensor, for schemes that have one."""
    scale = _tensor(layer, operand, weight)
    if (scale is not None) != wanted:
        needs = (
            "one value, as the scheme has two levels of scales" if wanted else "None, as the scheme has no such scale"
        )
        raise InvalidLayer(_name(layer), operand, needs, "none" if wanted else "a tensor")
    if scale is None:
        return None
    if scale.numel() != 1 or scale.dtype not in FLOATS:
        raise InvalidLayer(_name(layer), operand, "one float value", f"{scale.dtype} of shape {list(scale.shape)}")
    return scale.reshape(1).float()


def _name(layer: Layer) -> str:
    return str(getattr(layer, "name", "") or "")


def _optional(layer: Layer, attribute: str, default: T) -> T:
    value = getattr(layer, attribute, default)
    return default if value is None else value


def _tensor(layer: Layer, operand: str, weight: Tensor | None = None) -> Tensor | None:
    """An operand of the layer, without its history of gradients; on the device of the weight if that is given."""
    value: object = getattr(layer, operand, None)
    if value is None:
        return None
    if not isinstance(value, Tensor):
        raise InvalidLayer(_name(layer), operand, "a torch tensor", type(value).__name__)
    if weight is not None and value.device != weight.device:
        raise InvalidLayer(_name(layer), operand, f"the weight's device {weight.device}", str(value.device))
    return value.detach() if value.requires_grad else value


def _stored_shape(weight: Tensor, scheme: Scheme) -> tuple[int, int]:
    """The N and K of a weight as it is stored, several codes in a byte or a word."""
    if scheme.weight.packing != "plain":
        return stored_sizes(weight, scheme.weight.format, scheme.weight.packing)
    rows, columns = weight.shape
    codes, size = PACKED.get(scheme.weight.format, (1, 1))
    return rows, columns // size * codes


def _logical_shape(layer: Layer, scheme: Scheme) -> tuple[int, int]:
    weight = _tensor(layer, "weight")
    if weight is not None and (weight.dim() != 2 or 0 in weight.shape):
        found = f"shape {list(weight.shape)}"
        raise InvalidLayer(_name(layer), "weight", "two dimensions [N, K], neither of them 0", found)
    rows, columns = (None, None) if weight is None else _stored_shape(weight, scheme)
    n, k = _logical(layer, "out_features", rows), _logical(layer, "in_features", columns)
    codes, size = PACKED.get(scheme.weight.format, (1, 1))
    if k % codes:
        several = f"K a multiple of {codes}, which share {size} bytes"
        needs = "an even K, as two codes share a byte" if codes == 2 else several
        raise InvalidLayer(_name(layer), "in_features", needs, str(k))
    check_words(_name(layer), scheme.weight, n, k)
    return n, k


def _logical(layer: Layer, word: str, stored: int | None) -> int:
    """A logical size, which is the stored one unless the layer says that the weight is padded."""
    logical: int | None = _optional(layer, word, stored)
    if logical is None:
        raise InvalidLayer(_name(layer), "weight", "a tensor, or out_features and in_features", "neither")
    if logical < 1 or (stored is not None and logical > stored):
        needs = "a positive number" if stored is None else f"1 to {stored}, which the weight has"
        raise InvalidLayer(_name(layer), word, needs, str(logical))
    return logical


def _weight(layer: Layer, scheme: Scheme, weight: Tensor, n: int, k: int) -> Tensor:
    stored = CODES[scheme.weight.format] if scheme.weight.packing == "plain" else torch.int32
    if weight.dtype != stored:
        if scheme.weight.format != "fp4_e2m1" or weight.dtype != torch.float4_e2m1fn_x2:
            raise InvalidLayer(_name(layer), "weight", f"{stored} for {scheme.weight.format}", str(weight.dtype))
        weight = weight.view(torch.uint8)
    if scheme.weight.packing != "plain":
        if _stored_shape(weight, scheme) != (n, k):
            found = f"N = {n}, K = {k}"
            raise InvalidLayer(_name(layer), "out_features", "all of the weight, which is packed in words", found)
        return weight
    columns = packed_columns(scheme.weight.format, k)
    return weight if weight.shape == (n, columns) else weight[:n, :columns]


def _weight_scale(layer: Layer, scheme: Scheme, weight: Tensor, n: int, k: int) -> Tensor:
    granularity = scheme.weight.granularity
    shape, widths = scale_shape(n, k, granularity), _widths(layer, n)
    scale = _tensor(layer, "weight_scale", weight)
    if scale is None:
        raise InvalidLayer(_name(layer), "weight_scale", f"a scale of shape {list(shape)}", "none")
    scale = _scale_dtype(layer, scheme, scale)
    if k_first(scheme.weight.packing):
        scale = scale_of_words(_name(layer), scale, scheme.weight, n, k)
    found = tuple(scale.shape)
    padded = scale_shape(*_stored_shape(weight, scheme), granularity)
    if granularity == "per_tensor":
        if scale.numel() == 1:
            return scale.reshape(1)
        needs = "one value"
    elif granularity == "per_channel":
        if found in (shape, shape[:1], padded, padded[:1]):
            return scale[:n].reshape(n, 1)
        if scale.numel() == 1 and widths is not None:
            return expand_rows(scale, n)
        needs = f"shape [{n}, 1] or [{n}]"
    else:
        if found in (shape, padded):
            _tiles_begin_with_parts(layer, scheme, widths)
            return scale if found == shape else scale[: shape[0], : shape[-1]]
        needs = f"shape {list(shape)} for N = {n} and K = {k} in tiles of {granularity}"
        widths = None
    if widths is not None and scale.numel() == len(widths) and scale.dim() <= 2:
        return expand_widths(scale, widths)
    fused = "" if widths is None else f", or one value for each of the {len(widths)} logical widths"
    raise InvalidLayer(_name(layer), "weight_scale", needs + fused, f"shape {list(found)}")


def _widths(layer: Layer, n: int) -> Sequence[int] | None:
    """The N of each part of a fused layer."""
    widths: Sequence[int] | None = _optional(layer, "logical_widths", None)
    if widths is not None and (sum(widths) != n or min(widths) < 0):
        raise InvalidLayer(_name(layer), "logical_widths", f"widths that add up to N = {n}", f"{list(widths)}")
    return widths


def _tiles_begin_with_parts(layer: Layer, scheme: Scheme, widths: Sequence[int] | None) -> None:
    """Parts that were quantized one by one have their own tiles, which is the grid of the whole weight only if each
    part begins a tile. The last part may be ragged."""
    rows, _ = tile(scheme.weight.granularity, 1, 1)
    begin = 0
    for width in widths or ():
        if begin % rows:
            needs = f"parts that begin at multiples of {rows}, as tiles of {scheme.weight.granularity} do; leave it out"
            raise InvalidLayer(
                _name(layer), "logical_widths", f"{needs} if the whole weight was quantized at once", f"one at {begin}"
            )
        begin += width


def _scale_dtype(layer: Layer, scheme: Scheme, scale: Tensor) -> Tensor:
    """Float scales in float32, E8M0 ones as bytes."""
    if scale.dtype in FLOATS and "fp32" in scheme.stored_scales:
        return scale.float()
    if scale.dtype in (torch.uint8, torch.float8_e8m0fnu) and "e8m0" in scheme.stored_scales:
        return scale.view(torch.uint8)
    if scale.dtype in (torch.uint8, torch.float8_e4m3fn) and "e4m3" in scheme.stored_scales:
        return scale.view(torch.float8_e4m3fn)
    if scale.dtype == torch.uint8 and "e5m3" in scheme.stored_scales:
        return scale
    needs = " or ".join(_STORED_SCALES[stored] for stored in scheme.stored_scales)
    raise InvalidLayer(_name(layer), "weight_scale", needs, str(scale.dtype))


def _input_scale(layer: Layer, scheme: Scheme, weight: Tensor) -> Tensor | None:
    scale = _tensor(layer, "input_scale", weight)
    if scheme.activation is None or scheme.activation.mode == "dynamic":
        if scale is not None:
            why = "dynamic" if scheme.activation else "not quantized"
            raise InvalidLayer(_name(layer), "input_scale", f"None, as the activation is {why}", "a tensor")
        return None
    if scale is None:
        raise InvalidLayer(_name(layer), "input_scale", "one value, as the activation is static", "none")
    if scale.numel() != 1 or scale.dtype not in FLOATS:
        found = f"{scale.dtype} of shape {list(scale.shape)}"
        raise InvalidLayer(_name(layer), "input_scale", "one float value", found)
    if scale.device.type != "meta" and not 0 < float(scale) < float("inf"):
        raise InvalidLayer(_name(layer), "input_scale", "a finite scale above zero", str(float(scale)))
    return scale.reshape(1).float()


def _bias(layer: Layer, weight: Tensor, n: int) -> Tensor | None:
    bias = _tensor(layer, "bias", weight)
    if bias is None:
        return None
    if tuple(bias.shape) != (n,):
        raise InvalidLayer(_name(layer), "bias", f"shape [{n}]", f"shape {list(bias.shape)}")
    if bias.dtype not in FLOATS:
        raise InvalidLayer(_name(layer), "bias", "float32, bfloat16 or float16", str(bias.dtype))
    return bias
