"""A layer's tensors against its scheme: checked, in logical N and K, with scales in one shape per granularity."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qscheme.errors import InvalidLayer
from qscheme.formats import PACKED, packed_columns
from qscheme.layer import Given, LayerFacts, Operands
from qscheme.layouts import expand_rows, expand_widths
from qscheme.numerics import scale_shape
from qscheme.packed_operands import check_groups, check_words, scale_of_words, zero_point_of
from qscheme.packing import stored_sizes
from qscheme.tiles import tile
from qscheme.words import k_first

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qscheme.types import GlobalScale, Layer, Scheme

DTYPES: dict[torch.dtype, str] = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
"""The words that schemes use for output dtypes."""

OUT_DTYPES = {word: dtype for dtype, word in DTYPES.items()}

CODES: dict[str, torch.dtype] = {
    "int8": torch.int8, "int4": torch.int8, "fp8_e4m3": torch.float8_e4m3fn,
    "fp6_e2m3": torch.uint8, "fp6_e3m2": torch.uint8, "fp4_e2m1": torch.uint8,
}  # fmt: skip
"""The dtype in which a checkpoint stores each format."""

ROTATION = 32
"""The block size of a Hadamard rotation; no other is known."""

TENSORS = Given._fields[1:9]
"""The attributes of a layer that are tensors, its weight first."""

FLOATS = (torch.float32, torch.bfloat16, torch.float16)

_STORED_SCALES = {
    "fp32": "float32, bfloat16 or float16",
    "e8m0": "uint8 with E8M0 bytes",
    "e4m3": "float8_e4m3fn",
    "e5m3": "uint8 with E5M3 bytes",
}


def read(layer: Layer) -> Given:
    """What a layer says of itself, not judged yet.

    Attributes of a torch module are slow to read, so each is read here and nowhere else.
    """
    name = str(getattr(layer, "name", "") or "")
    return Given._make([name, *[getattr(layer, word, None) for word in Given._fields[1:]]])


def layer_facts(layer: Given, scheme: Scheme) -> LayerFacts:
    """What conditions may ask about a layer; its weight may be absent if out_features and in_features are given.

    Raises InvalidLayer.
    """
    n, k = _logical_shape(layer, scheme)
    rotation, prequantized = layer.rotation, bool(layer.prequantized)
    activation, granularity = scheme.activation, scheme.weight.granularity
    if prequantized and (activation is None or not activation.symmetric):
        why = "not quantized" if activation is None else "asymmetric"
        raise InvalidLayer(layer.name, "prequantized", f"False, as the activation is {why}", "True")
    if rotation is not None:
        if rotation != ROTATION:
            raise InvalidLayer(layer.name, "rotation", f"None or {ROTATION}", str(rotation))
        if prequantized:
            raise InvalidLayer(layer.name, "rotation", "None, as the layer is prequantized", str(rotation))
        if k % rotation:
            raise InvalidLayer(layer.name, "rotation", f"K a multiple of {rotation}", f"K = {k}")
    word = None if layer.out_dtype is None else DTYPES.get(layer.out_dtype)
    if word is None:
        needs = "torch.bfloat16, torch.float16 or torch.float32"
        raise InvalidLayer(layer.name, "out_dtype", needs, str(layer.out_dtype))
    return LayerFacts(
        n=n,
        k=k,
        out_dtype=word,
        has_bias=layer.bias is not None,
        rotation=rotation,
        prequantized=prequantized,
        fused=_is_fused(layer, scheme),
        full_n=_whole(layer.name, "full_out_features", layer.full_out_features, "N", n),
        full_k=_whole(layer.name, "full_in_features", layer.full_in_features, "K", k),
        widths=tuple(_widths(layer, n) or ()) if tile(granularity, 1, 1)[0] > 1 else (),
    )


def operands_of(layer: Given, scheme: Scheme, facts: LayerFacts) -> Operands:
    """The layer's tensors, checked. Raises InvalidLayer that names the operand, what it needs and what was found."""
    n, k, activation = facts.n, facts.k, scheme.activation
    layer = _with_tensors(layer)
    weight = layer.weight
    if weight is None:
        raise InvalidLayer(layer.name, "weight", f"a tensor of N = {n} and K = {k}", "none")
    check_groups(layer.name, layer.g_idx, scheme.weight, k)
    return Operands(
        name=layer.name,
        n=n,
        k=k,
        weight=_weight(layer, scheme, weight, n, k),
        weight_scale=_weight_scale(layer, scheme, weight, n, k),
        input_scale=_input_scale(layer, scheme),
        bias=_bias(layer, n),
        out_dtype=OUT_DTYPES[facts.out_dtype],
        weight_global_scale=_one_value(
            layer.name, "weight_global_scale", layer.weight_global_scale, scheme.weight.global_scale
        ),
        weight_zero_point=zero_point_of(layer.name, layer.weight_zero_point, scheme.weight, n, k),
        input_global_scale=_one_value(
            layer.name, "input_global_scale", layer.input_global_scale, activation.global_scale if activation else None
        ),
    )


def _with_tensors(layer: Given) -> Given:
    """The layer with its tensors as they are read: without their history of gradients, on the device of its weight."""
    tensors: list[Tensor | None] = []
    device = layer.weight.device if isinstance(layer.weight, Tensor) else None
    for operand, value in zip(TENSORS, layer[1:], strict=False):
        found = _tensor(layer.name, operand, value)
        if found is not None:
            if device is not None and found.device != device:
                raise InvalidLayer(layer.name, operand, f"the weight's device {device}", str(found.device))
            found = found.detach() if found.requires_grad else found
        tensors.append(found)
    return Given._make([layer.name, *tensors, *layer[len(tensors) + 1 :]])


def _tensor(layer: str, operand: str, value: object) -> Tensor | None:
    if value is not None and not isinstance(value, Tensor):
        raise InvalidLayer(layer, operand, "a torch tensor", type(value).__name__)
    return value


def _whole(layer: str, word: str, full: int | None, name: str, size: int) -> int | None:
    """A size of the whole layer, None if nobody said that this is a shard of it."""
    if full is not None and full < size:
        raise InvalidLayer(layer, word, f"at least the {name} = {size} of this shard", str(full))
    return full


def _is_fused(layer: Given, scheme: Scheme) -> bool:
    """Whether the layer has one weight scale for each of its parts, where the scheme has one for the tensor."""
    scale = _tensor(layer.name, "weight_scale", layer.weight_scale)
    if scale is None:
        widths = layer.logical_widths
        return scheme.weight.granularity == "per_tensor" and widths is not None and len(widths) > 1
    return scheme.weight.granularity == "per_tensor" and scale.numel() > 1


def _one_value(layer: str, operand: str, scale: Tensor | None, wanted: GlobalScale | None) -> Tensor | None:
    """A scale of the whole tensor, for schemes that have one."""
    if scale is None:
        if wanted is None:
            return None
        raise InvalidLayer(layer, operand, "one value, as the scheme has two levels of scales", "none")
    if wanted is None:
        raise InvalidLayer(layer, operand, "None, as the scheme has no such scale", "a tensor")
    if scale.numel() != 1 or scale.dtype not in FLOATS:
        raise InvalidLayer(layer, operand, "one float value", f"{scale.dtype} of shape {list(scale.shape)}")
    return scale.reshape(1).float()


def _stored_shape(weight: Tensor, scheme: Scheme) -> tuple[int, int]:
    """The N and K of a weight as it is stored, several codes in a byte or a word."""
    if scheme.weight.packing != "plain":
        return stored_sizes(weight, scheme.weight.format, scheme.weight.packing)
    rows, columns = weight.shape
    codes, size = PACKED.get(scheme.weight.format, (1, 1))
    return rows, columns // size * codes


def _logical_shape(layer: Given, scheme: Scheme) -> tuple[int, int]:
    weight = _tensor(layer.name, "weight", layer.weight)
    if weight is not None and (weight.dim() != 2 or 0 in weight.shape):
        found = f"shape {list(weight.shape)}"
        raise InvalidLayer(layer.name, "weight", "two dimensions [N, K], neither of them 0", found)
    rows, columns = (None, None) if weight is None else _stored_shape(weight, scheme)
    n = _logical(layer.name, "out_features", layer.out_features, rows)
    k = _logical(layer.name, "in_features", layer.in_features, columns)
    codes, size = PACKED.get(scheme.weight.format, (1, 1))
    if k % codes:
        several = f"K a multiple of {codes}, which share {size} bytes"
        needs = "an even K, as two codes share a byte" if codes == 2 else several
        raise InvalidLayer(layer.name, "in_features", needs, str(k))
    check_words(layer.name, scheme.weight, n, k)
    return n, k


def _logical(layer: str, word: str, said: int | None, stored: int | None) -> int:
    """A logical size, which is the stored one unless the layer says that the weight is padded."""
    logical = stored if said is None else said
    if logical is None:
        raise InvalidLayer(layer, "weight", "a tensor, or out_features and in_features", "neither")
    if logical < 1 or (stored is not None and logical > stored):
        needs = "a positive number" if stored is None else f"1 to {stored}, which the weight has"
        raise InvalidLayer(layer, word, needs, str(logical))
    return logical


def _weight(layer: Given, scheme: Scheme, weight: Tensor, n: int, k: int) -> Tensor:
    stored = CODES[scheme.weight.format] if scheme.weight.packing == "plain" else torch.int32
    if weight.dtype != stored:
        if scheme.weight.format != "fp4_e2m1" or weight.dtype != torch.float4_e2m1fn_x2:
            raise InvalidLayer(layer.name, "weight", f"{stored} for {scheme.weight.format}", str(weight.dtype))
        weight = weight.view(torch.uint8)
    if scheme.weight.packing != "plain":
        if _stored_shape(weight, scheme) != (n, k):
            found = f"N = {n}, K = {k}"
            raise InvalidLayer(layer.name, "out_features", "all of the weight, which is packed in words", found)
        return weight
    columns = packed_columns(scheme.weight.format, k)
    return weight if weight.shape == (n, columns) else weight[:n, :columns]


def _weight_scale(layer: Given, scheme: Scheme, weight: Tensor, n: int, k: int) -> Tensor:
    granularity = scheme.weight.granularity
    shape, widths = scale_shape(n, k, granularity), _widths(layer, n)
    scale = layer.weight_scale
    if scale is None:
        raise InvalidLayer(layer.name, "weight_scale", f"a scale of shape {list(shape)}", "none")
    scale = _scale_dtype(layer, scheme, scale)
    if k_first(scheme.weight.packing):
        scale = scale_of_words(layer.name, scale, scheme.weight, n, k)
    found = tuple(scale.shape)
    padded = shape if found == shape else scale_shape(*_stored_shape(weight, scheme), granularity)
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
    raise InvalidLayer(layer.name, "weight_scale", needs + fused, f"shape {list(found)}")


def _widths(layer: Given, n: int) -> Sequence[int] | None:
    """The N of each part of a fused layer."""
    widths = layer.logical_widths
    if widths is not None and (sum(widths) != n or min(widths) < 0):
        raise InvalidLayer(layer.name, "logical_widths", f"widths that add up to N = {n}", f"{list(widths)}")
    return widths


def _tiles_begin_with_parts(layer: Given, scheme: Scheme, widths: Sequence[int] | None) -> None:
    """Parts that were quantized one by one have their own tiles, which is the grid of the whole weight only if each
    part begins a tile. The last part may be ragged."""
    rows, _ = tile(scheme.weight.granularity, 1, 1)
    begin = 0
    for width in widths or ():
        if begin % rows:
            needs = f"parts that begin at multiples of {rows}, as tiles of {scheme.weight.granularity} do; leave it out"
            raise InvalidLayer(
                layer.name, "logical_widths", f"{needs} if the whole weight was quantized at once", f"one at {begin}"
            )
        begin += width


def _scale_dtype(layer: Given, scheme: Scheme, scale: Tensor) -> Tensor:
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
    raise InvalidLayer(layer.name, "weight_scale", needs, str(scale.dtype))


def _input_scale(layer: Given, scheme: Scheme) -> Tensor | None:
    scale = layer.input_scale
    if scheme.activation is None or scheme.activation.mode == "dynamic":
        if scale is not None:
            why = "dynamic" if scheme.activation else "not quantized"
            raise InvalidLayer(layer.name, "input_scale", f"None, as the activation is {why}", "a tensor")
        return None
    if scale is None:
        raise InvalidLayer(layer.name, "input_scale", "one value, as the activation is static", "none")
    if scale.numel() != 1 or scale.dtype not in FLOATS:
        found = f"{scale.dtype} of shape {list(scale.shape)}"
        raise InvalidLayer(layer.name, "input_scale", "one float value", found)
    if scale.device.type != "meta" and not 0 < float(scale) < float("inf"):
        raise InvalidLayer(layer.name, "input_scale", "a finite scale above zero", str(float(scale)))
    return scale.reshape(1).float()


def _bias(layer: Given, n: int) -> Tensor | None:
    bias = layer.bias
    if bias is None:
        return None
    if tuple(bias.shape) != (n,):
        raise InvalidLayer(layer.name, "bias", f"shape [{n}]", f"shape {list(bias.shape)}")
    if bias.dtype not in FLOATS:
        raise InvalidLayer(layer.name, "bias", "float32, bfloat16 or float16", str(bias.dtype))
    return bias
