"""Reference arithmetic of quantized linear layers in plain torch: quantize, dequantize, the linear product."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qscheme.formats import (
    E4M3,
    E5M3,
    decode,
    decode_e5m3,
    decode_e8m0,
    encode,
    encode_e8m0,
    integer_range,
    pack_codes,
    pack_e2m1,
    round_whole,
    unpack_e2m1,
)
from qscheme.rotation import rotate_hadamard
from qscheme.scale_rules import LARGEST_FLOAT32, largest_code, scale_of
from qscheme.tiles import scale_shape, tile, tile_grid, tiled, untiled
from qscheme.words import INTEGER_BITS

if TYPE_CHECKING:
    from qscheme.types import Applying, Operand

__all__ = [
    "decode_e8m0",
    "dequantize",
    "encode_e8m0",
    "find_global_scale",
    "pack_e2m1",
    "quantize",
    "quantize_asymmetric",
    "reference_linear",
    "rotate_hadamard",
    "scale_accumulators",
    "scale_levels",
    "scale_shape",
    "tile",
    "unpack_e2m1",
]

_SMALLEST_NORMAL = 2.0**-126


def quantize(
    x: Tensor,
    operand: Operand,
    fp8: torch.dtype = torch.float8_e4m3fn,
    scale: Tensor | None = None,
    global_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Codes and scale of x [R, K], where rows are tokens or output channels.

    Codes: FP8 [R, K] in dtype `fp8`; E2M1 uint8 [R, K/2] with the even column in the low nibble; FP6 uint8 [R, 3 K/4];
    INT8 and INT4 int8 [R, K], or int32 in the operand's packing.
    Scale, in the shape of `scale_shape`: float32, uint8 bytes of E8M0 or E5M3, or float8_e4m3fn, as the operand says.
    An exponent rule for a float32 scale gives the power of two as float32. A given `scale` is used as it is, and comes
    back in that shape. Everything is computed in float32; ragged tiles look at real elements only.

    global_scale: float32, one element (or one per row of scales), for an operand that has one: `find_global_scale`.
    FP8 maximum: 224 and 240 are taken as they stand, on both flavours of E4M3. One over 240 is halved on fnuz, 448
    becoming 224: a byte means half as much there, so the codes are those of 448 on fn, under twice the scale.
    INT8 codes reach from -127 to 127, and from -128 for a maximum over 127; INT4 codes from -8 to 7. Scales are never
    under 2**-126 (float32) or 2**-127 (E8M0).

    NaN: an FP8 element stays NaN and does not count for the scale. The others have no NaN, so there a NaN makes the
    scale of its tile NaN (byte 255) and the tile's codes 0: the whole tile dequantizes to NaN. Under a given scale it
    becomes code 0. Infinity: counts as the largest finite float32 and becomes the largest code.

    Raises ValueError for what the formats do not define: K that does not fill a byte or word of codes, FP8 with a
    rounding other than rne, integers with an exponent rule, amax_div for an E8M0 scale, a given scale with a wrong
    number of elements, a global scale where the operand has none or none where it has one, an asymmetric operand.
    """
    if not operand.symmetric:
        raise ValueError("quantize: needs a symmetric operand, found one with a zero point: use quantize_asymmetric")
    rows, columns = x.shape
    tiles = tiled(x.to(torch.float32), operand.granularity)
    outer = _global_grid(global_scale, operand, rows)
    stored = scale_of(tiles, operand, fp8, outer) if scale is None else _given_scale(scale, operand)
    grid = _effective(_scale_grid(stored, operand, rows, columns), operand, outer)
    scaled = untiled(_unscaled(tiles, grid, operand.rule.apply), rows, columns)
    codes = encode(scaled, operand, largest_code(operand, fp8), fp8)
    shape = (-1,) if operand.granularity == "per_tensor" else scale_shape(rows, columns, operand.granularity)
    return codes.contiguous(), stored.reshape(shape)


def quantize_asymmetric(
    x: Tensor, operand: Operand, scale: Tensor | None = None, zero_point: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scale and zero point of x [R, K] for an INT8 or INT4 operand with a zero point: x = (code - zero) * scale.

    Codes as `quantize` gives them; scale float32 and zero point int32, both in the shape of `scale_shape`. The zero
    point is on the scale of the codes: the code of 0, -128..127 for INT8 and -8..7 for INT4, also where checkpoints
    store it as 0..15. scale = (max - min) / (2 rule.max), the tile's range made to include 0 and at least 2 floor;
    zero = round(lowest - min / scale); code = round(x / scale) + zero, each clamped to the codes that the rule reaches.
    A given scale and zero point are used as they are. As compressed-tensors 0.20, but that it
    rounds x / scale + zero.

    A NaN makes the scale of its tile NaN, the tile's codes and zero point 0. Raises ValueError for other formats and
    for rules other than amax_div.
    """
    rule = operand.rule
    if operand.symmetric or operand.format not in INTEGER_BITS or rule.scale != "amax_div" or operand.scale != "fp32":
        found = f"{operand.format}, symmetric {operand.symmetric}, {rule.scale}, {operand.scale}"
        raise ValueError(f"quantize_asymmetric: needs int8 or int4 with a zero point, amax_div, fp32, found {found}")
    rows, columns = x.shape
    lowest, highest = integer_range(operand.format, rule.max)
    tiles = tiled(x.to(torch.float32).clamp(-LARGEST_FLOAT32, LARGEST_FLOAT32), operand.granularity)
    low, high = tiles.amin(dim=(1, 3), keepdim=True).clamp(max=0), tiles.amax(dim=(1, 3), keepdim=True).clamp(min=0)
    if scale is None:
        reach = (high - low).clamp(2 * rule.floor, LARGEST_FLOAT32)
        grid = (reach / torch.full_like(reach, 2 * rule.max)).clamp(min=_SMALLEST_NORMAL)
    else:
        grid = _scale_grid(scale, operand, rows, columns)
    if zero_point is None:
        zero = round_whole(lowest - low / grid, rule.round).clamp(lowest, highest)
        zero = torch.where(zero.isnan(), 0.0, zero)
    else:
        zero = _scale_grid(zero_point.to(torch.float32), operand, rows, columns)
    whole = round_whole(_unscaled(tiles, grid, rule.apply), rule.round) + zero
    whole = untiled(whole.clamp(lowest, highest), rows, columns)
    codes = pack_codes(torch.where(whole.isnan(), 0.0, whole).to(torch.int8), operand.format, operand.packing)
    shape = scale_shape(rows, columns, operand.granularity)
    return codes.contiguous(), grid.reshape(shape), zero.to(torch.int32).reshape(shape)


def find_global_scale(x: Tensor, operand: Operand) -> Tensor:
    """The global scale float32 [1] of x [R, K] that lets the scales of its tiles use all of E4M3 (or E5M3).

    divide: 448 * 6 / amax, as compressed-tensors 0.20 stores it for NVFP4. multiply: amax / (448 * 6), as ModelOpt
    0.47 and AMD Quark 0.13 do. 1 where that is no normal float32 or the amax is NaN: an all-zero x, say. 6 stands for
    the rule's maximum. Raises ValueError for an operand without a global scale or with scales of another format.
    """
    if operand.global_scale is None or operand.scale not in ("e4m3", "e5m3"):
        found = f"{operand.global_scale} over {operand.scale}"
        raise ValueError(
            f"global scale: needs an operand that divides or multiplies e4m3 or e5m3 scales, found {found}"
        )
    amax = tiled(x.to(torch.float32), "per_tensor").abs().amax().clamp(max=LARGEST_FLOAT32).reshape(1)
    reach = torch.full_like(amax, (E4M3 if operand.scale == "e4m3" else E5M3).largest * operand.rule.max)
    found_scale = reach / amax if operand.global_scale == "divide" else amax / reach
    usable = (found_scale >= _SMALLEST_NORMAL) & (found_scale <= LARGEST_FLOAT32)
    return torch.where(usable, found_scale, 1.0)


def dequantize(
    codes: Tensor,
    scale: Tensor,
    operand: Operand,
    global_scale: Tensor | None = None,
    zero_point: Tensor | None = None,
) -> Tensor:
    """The values [R, K] in float32 of codes as `quantize` gives them, times their scale.

    scale: any shape with one element per tile in row-major order of the tiles ([N], [N, 1] and [1, N] are alike per
    channel); float32, bf16, fp16, E8M0 as uint8 or float8_e8m0fnu, E4M3 as uint8 or float8_e4m3fn, E5M3 as uint8. Bytes
    are E4M3 or E5M3 where the operand says so and E8M0 elsewhere. An E8M0 byte 0 is 2**-127, 255 is NaN.
    global_scale: the scale is divided or multiplied by it first, in float32. zero_point: subtracted from the codes
    first; any integer or float dtype, one element per tile like the scale.
    The element dtype says which E4M3 flavour the codes have. Raises ValueError for a wrong number of scales, for a
    global scale or a zero point that the operand has and the call does not, and the other way round.
    """
    if operand.symmetric != (zero_point is None):
        needs, found = ("no zero point", "one") if operand.symmetric else ("a zero point", "none")
        raise ValueError(f"zero point: needs {needs} for {operand.format}, found {found}")
    values = decode(codes, operand)
    rows, columns = values.shape
    tiles = tiled(values, operand.granularity)
    if zero_point is not None:
        tiles = tiles - _scale_grid(zero_point.to(torch.float32), operand, rows, columns)
    grid = _effective(_scale_grid(scale, operand, rows, columns), operand, _global_grid(global_scale, operand, rows))
    scaled = _shifted(tiles, grid, 1) if grid.dtype == torch.uint8 else tiles * grid
    return untiled(scaled, rows, columns).contiguous()


def reference_linear(
    codes: Tensor,
    x_scale: Tensor | None,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    activation: Operand | None,
    weight_operand: Operand,
    out_dtype: torch.dtype,
    weight_global_scale: Tensor | None = None,
    x_global_scale: Tensor | None = None,
    weight_zero_point: Tensor | None = None,
    x_zero_point: Tensor | None = None,
) -> Tensor:
    """y [M, N] = x [M, K] @ w [N, K].T + bias [N] of dequantized operands, in float32 until the one cast at the end.

    activation None: a weight-only layer; codes is x itself in any floating dtype, and it has no scale. Raises
    ValueError where `dequantize` does, and for an activation without its scale.
    """
    if activation is None:
        x = codes.to(torch.float32)
    elif x_scale is None:
        raise ValueError(f"x_scale: needs the scale of {activation.format} activations, found None")
    else:
        x = dequantize(codes, x_scale, activation, x_global_scale, x_zero_point)
    y = x @ dequantize(weight, weight_scale, weight_operand, weight_global_scale, weight_zero_point).t()
    return (y if bias is None else y + bias.to(torch.float32)).to(out_dtype)


def scale_accumulators(
    accumulators: Tensor, x_scale: Tensor, weight_scale: Tensor, bias: Tensor | None, out_dtype: torch.dtype
) -> Tensor:
    """y [M, N] of integer sums [M, N]: times x_scale, times weight_scale, plus bias [N], in float32 and cast once.

    x_scale: [M, 1] or [1]. weight_scale: [N, 1] or [1].
    """
    y = accumulators.to(torch.float32) * x_scale.to(torch.float32).reshape(-1, 1)
    y = y * weight_scale.to(torch.float32).reshape(1, -1)
    return (y if bias is None else y + bias.to(torch.float32)).to(out_dtype)


def scale_levels(
    y: Tensor,
    activation: Operand | None,
    weight: Operand,
    x_global_scale: Tensor | None,
    weight_global_scale: Tensor | None,
) -> Tensor:
    """A product y [M, N] without global scales under those of both operands, in float32 and cast back once.

    Each global scale, one value or None, multiplies or divides as its operand says.
    """
    scaled = y.to(torch.float32)
    for operand, level in ((activation, x_global_scale), (weight, weight_global_scale)):
        if operand is not None and level is not None:
            scaled = scaled / level if operand.global_scale == "divide" else scaled * level
    return scaled.to(y.dtype)


def _scale_grid(scale: Tensor, operand: Operand, rows: int, columns: int) -> Tensor:
    """A stored scale as [grid rows, 1, grid columns, 1]: E8M0 as uint8, all else as float32."""
    grid_rows, grid_columns = tile_grid(rows, columns, operand.granularity)
    if scale.dtype == torch.uint8 and operand.scale == "e5m3":
        scale = decode_e5m3(scale)
    elif scale.dtype == torch.uint8 and operand.scale == "e4m3":
        scale = scale.view(torch.float8_e4m3fn).to(torch.float32)
    else:
        scale = _given_scale(scale, operand)
        scale = scale if scale.dtype == torch.uint8 else scale.to(torch.float32)
    if operand.granularity == "per_tensor" and scale.numel() == rows:
        # One scale for each part of a fused layer, expanded to rows; the single tile is [1, rows, 1, columns].
        scale = decode_e8m0(scale) if scale.dtype == torch.uint8 else scale
        return scale.reshape(1, rows, 1, 1)
    if scale.numel() != grid_rows * grid_columns:
        needs = f"{grid_rows} x {grid_columns} elements for {operand.granularity} of [{rows}, {columns}]"
        raise ValueError(f"scale: needs {needs}, found shape {list(scale.shape)}")
    return scale.reshape(grid_rows, 1, grid_columns, 1)


def _given_scale(scale: Tensor, operand: Operand) -> Tensor:
    """A given scale in the dtype in which `quantize` returns it: bytes of E8M0 and E5M3, float8_e4m3fn, float32."""
    if scale.dtype == torch.float8_e8m0fnu:
        return scale.view(torch.uint8)
    if scale.dtype == torch.uint8:
        return scale.view(torch.float8_e4m3fn) if operand.scale == "e4m3" else scale
    return scale if scale.dtype == torch.float8_e4m3fn else scale.to(torch.float32)


def _global_grid(global_scale: Tensor | None, operand: Operand, rows: int) -> Tensor | None:
    """A global scale as [1 or grid rows, 1, 1, 1] in float32; None for an operand without one."""
    if (global_scale is None) != (operand.global_scale is None):
        needs = f"one that {operand.global_scale}s" if operand.global_scale else "none"
        raise ValueError(f"global scale: needs {needs}, found {'none' if global_scale is None else 'one'}")
    if global_scale is None:
        return None
    grid_rows = tile_grid(rows, 1, operand.granularity)[0]
    if global_scale.numel() not in (1, grid_rows):
        raise ValueError(f"global scale: needs 1 or {grid_rows} elements, found shape {list(global_scale.shape)}")
    return global_scale.to(torch.float32).reshape(-1, 1, 1, 1)


def _effective(grid: Tensor, operand: Operand, outer: Tensor | None) -> Tensor:
    """The scales that multiply codes: those of tiles, over or times the global one."""
    if outer is None:
        return grid
    grid = decode_e8m0(grid) if grid.dtype == torch.uint8 else grid
    return grid / outer if operand.global_scale == "divide" else grid * outer


def _unscaled(tiles: Tensor, grid: Tensor, apply: Applying) -> Tensor:
    """Values over their scale, in the way the rule says; powers of two are exact either way."""
    if grid.dtype == torch.uint8:
        return _shifted(tiles, grid, -1)
    return tiles / grid if apply == "divide" else tiles * grid.reciprocal()


def _shifted(values: Tensor, stored: Tensor, sign: int) -> Tensor:
    """values * 2**(sign * (byte - 127)), in two exact steps: 2**-127 is subnormal, and some devices take it as 0."""
    byte = stored.to(torch.int32)
    exponent = sign * (byte - 127)
    half = exponent >> 1
    first = ((half + 127) << 23).view(torch.float32)
    second = ((exponent - half + 127) << 23).view(torch.float32)
    return torch.where(byte == 255, math.nan, values * first * second)
