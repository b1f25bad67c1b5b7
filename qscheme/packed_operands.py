"""What a checkpoint stores beside the words of an integer weight: checked, in the shape that the granularity says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qscheme.errors import InvalidLayer
from qscheme.packing import unpack_zero_points
from qscheme.tiles import scale_shape, tile
from qscheme.words import codes_together, zero_points_shape

if TYPE_CHECKING:
    from qscheme.types import Operand


def check_words(name: str, weight: Operand, n: int, k: int) -> None:
    """Raises InvalidLayer for an N or a K that does not fill the words of the weight and of its zero points."""
    rows, columns = codes_together(weight.format, weight.packing)
    for operand, side, length, together in (("out_features", "N", n, rows), ("in_features", "K", k, columns)):
        if length % together:
            needs = f"{side} a multiple of {together}, as words of {weight.packing} hold {together} codes"
            raise InvalidLayer(name, operand, needs, str(length))


def check_groups(name: str, groups: Tensor | None, weight: Operand, k: int) -> None:
    """Raises InvalidLayer where columns of K do not share a scale with their neighbours, as under GPTQ's `desc_act`.

    groups: [K], the group of each column, or None; an empty one is none, as in vLLM.
    """
    if groups is None or not groups.numel() or groups.device.type == "meta":
        return
    wide = tile(weight.granularity, 1, k)[1]
    in_order = torch.arange(k, device=groups.device) // wide
    if tuple(groups.shape) != (k,) or not torch.equal(groups.to(torch.int64), in_order):
        needs = f"None, or k // {wide} for each k under {k}; quantize without desc_act, or with static groups"
        raise InvalidLayer(name, "g_idx", needs, "other groups, or another number of them")


def zero_point_of(name: str, stored: Tensor | None, weight: Operand, n: int, k: int) -> Tensor | None:
    """The weight's zero points in the shape of its scales, unpacked; None for a symmetric weight.

    Words are told from codes by their dtype, and read as the packing says, never by their shape.
    """
    if weight.symmetric:
        if stored is not None and stored.device.type != "meta" and bool(stored.any()):
            raise InvalidLayer(name, "weight_zero_point", "None or zeros, as the weight is symmetric", "others")
        return None
    shape = scale_shape(n, k, weight.granularity)
    words = zero_points_shape(shape[0], shape[-1], weight.format, weight.packing)
    packed = weight.packing != "plain"
    needs = f"int32 words of shape {list(words)}" if packed else f"integers of shape {list(shape)}"
    if weight.packing == "int32_columns":
        needs += f" or int8 of shape {list(shape)}"
    if stored is None:
        raise InvalidLayer(name, "weight_zero_point", needs, "none")
    if packed and stored.dtype == torch.int32 and tuple(stored.shape) == words:
        return unpack_zero_points(stored, weight.format, weight.packing, n)
    plain = not packed or (weight.packing == "int32_columns" and stored.dtype == torch.int8)
    if not plain or tuple(stored.shape) != shape or stored.dtype.is_floating_point:
        raise InvalidLayer(name, "weight_zero_point", needs, f"{stored.dtype} of shape {list(stored.shape)}")
    return stored


def scale_of_words(name: str, stored: Tensor, weight: Operand, n: int, k: int) -> Tensor:
    """Scales that are stored with K first, [K/G, N], as [N, K/G]. Their shape never tells which way they lie."""
    wanted = scale_shape(n, k, weight.granularity)[::-1]
    if tuple(stored.shape) != wanted:
        needs = f"shape {list(wanted)} for K = {k} and N = {n} in tiles of {weight.granularity}, K first"
        raise InvalidLayer(name, "weight_scale", needs, f"shape {list(stored.shape)}")
    return stored.t().contiguous()
