"""Reference arithmetic of quantized linear layers: every scale rule, rounding and format, in plain torch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from qscheme.types import Applying, Granularity, Operand, Rounding, ScaleRule

_SMALLEST_NORMAL = 2.0**-126
_LARGEST_FLOAT32 = torch.finfo(torch.float32).max

# Magnitudes of E2M1 from which a value gets the next code; True where the magnitude itself does.
_E2M1_STEPS: dict[Rounding, tuple[tuple[float, bool], ...]] = {
    "rne": ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False)),
    "half_away": ((0.25, True), (0.75, True), (1.25, True), (1.75, True), (2.5, True), (3.5, True), (5.0, True)),
    "ties_to_zero": (
        (0.25, False), (0.75, False), (1.25, False), (1.75, False), (2.5, False), (3.5, False), (5.0, False)
    ),
    "truncate": ((0.5, True), (1.0, True), (1.5, True), (2.0, True), (3.0, True), (4.0, True), (6.0, True)),
}  # fmt: skip

_hadamard_matrices: dict[tuple[int, torch.device], Tensor] = {}


def tile(granularity: Granularity, rows: int, columns: int) -> tuple[int, int]:
    """How many rows and columns of a [rows, columns] matrix share one scale; 1 where the matrix has none.

    Raises ValueError for a word that is neither per_tensor, per_token, per_channel nor rows x columns like 1x32.
    """
    if granularity == "per_tensor":
        return max(rows, 1), max(columns, 1)
    if granularity in ("per_token", "per_channel"):
        return 1, max(columns, 1)
    tile_rows, _, tile_columns = granularity.partition("x")
    if not (tile_rows.isdecimal() and tile_columns.isdecimal() and int(tile_rows) and int(tile_columns)):
        raise ValueError(f"granularity: needs per_tensor, per_token, per_channel or RxC, found {granularity!r}")
    return int(tile_rows), int(tile_columns)


def scale_shape(rows: int, columns: int, granularity: Granularity) -> tuple[int, int] | tuple[int]:
    """The shape of the scale of a [rows, columns] matrix: [1] per tensor, else [tiles along rows, tiles along columns].

    Ragged tiles at the end count as tiles.
    """
    return (1,) if granularity == "per_tensor" else _grid(rows, columns, granularity)


def quantize(
    x: Tensor, operand: Operand, fp8: torch.dtype = torch.float8_e4m3fn, scale: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Codes and scale of x [R, K], where rows are tokens or output channels.

    Codes: int8 [R, K]; FP8 [R, K] in dtype `fp8`; E2M1 uint8 [R, K/2] with the even column in the low nibble.
    Scale, in the shape of `scale_shape`: float32, or uint8 E8M0 bytes where the operand says e8m0. An exponent rule for
    a float32 scale gives the power of two as float32. A given `scale` (float32, bf16, E8M0 bytes) is used as it is, and
    returned in that shape. Everything is computed in float32; ragged tiles look at real elements only.

    FP8 maximum: 224 and 240 are taken as they stand, on both flavours of E4M3. One over 240 is halved on fnuz, 448
    becoming 224: a byte means half as much there, so the codes are those of 448 on fn, under twice the scale.
    INT8 codes reach from -127 to 127, and from -128 for a maximum over 127. Scales are never under 2**-126 (float32) or
    2**-127 (E8M0).

    NaN: an FP8 element stays NaN and does not count for the scale. INT8 and E2M1 have no NaN, so there a NaN makes the
    scale of its tile NaN (byte 255) and the tile's codes 0: the whole tile dequantizes to NaN. Under a given scale it
    becomes code 0. Infinity: counts as the largest finite float32 and becomes the largest code.

    Raises ValueError for what the formats do not define: an odd K for E2M1, FP8 with a rounding other than rne, INT8
    with an exponent rule, amax_div for an E8M0 scale, a given scale with a wrong number of elements.
    """
    rows, columns = x.shape
    rule = operand.rule
    tiles = _tiles(x.to(torch.float32), operand.granularity)
    grid = _scale_of(tiles, operand, fp8) if scale is None else _scale_grid(scale, rows, columns, operand.granularity)
    scaled = _untiled(_unscaled(tiles, grid, rule.apply), rows, columns)
    if operand.format == "int8":
        codes = _to_int8(scaled, rule.round, rule.max)
    elif operand.format == "fp4_e2m1":
        codes = pack_e2m1(_to_e2m1(scaled, rule.round, rule.max))
    else:
        codes = _to_fp8(scaled, rule.round, _largest(operand, fp8), fp8)
    return codes.contiguous(), grid.reshape(scale_shape(rows, columns, operand.granularity))


def dequantize(codes: Tensor, scale: Tensor, operand: Operand) -> Tensor:
    """The values [R, K] in float32 of codes [R, K], or [R, K/2] for E2M1, times their scale.

    scale: any shape with one element per tile in row-major order of the tiles ([N], [N, 1] and [1, N] are alike per
    channel); float32, bf16, fp16, or E8M0 as uint8 or float8_e8m0fnu. An E8M0 byte 0 is 2**-127, 255 is NaN.
    The element dtype says which E4M3 flavour the codes have. Raises ValueError for a wrong number of scales.
    """
    values = unpack_e2m1(codes) if operand.format == "fp4_e2m1" else codes.to(torch.float32)
    rows, columns = values.shape
    tiles = _tiles(values, operand.granularity)
    grid = _scale_grid(scale, rows, columns, operand.granularity)
    scaled = _shifted(tiles, grid, 1) if grid.dtype == torch.uint8 else tiles * grid
    return _untiled(scaled, rows, columns).contiguous()


def reference_linear(
    codes: Tensor,
    x_scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    activation: Operand,
    weight_operand: Operand,
    out_dtype: torch.dtype,
) -> Tensor:
    """y [M, N] = x [M, K] @ w [N, K].T + bias [N] of dequantized operands, in float32 until the one cast at the end."""
    x = dequantize(codes, x_scale, activation)
    y = x @ dequantize(weight, weight_scale, weight_operand).t()
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


def pack_e2m1(codes: Tensor) -> Tensor:
    """Bytes uint8 [R, K/2] of 4-bit codes uint8 [R, K], the even column in the low nibble; ValueError for odd K."""
    if codes.shape[1] % 2:
        raise ValueError(f"pack_e2m1: needs an even number of columns, found {codes.shape[1]}")
    return codes[:, ::2] | (codes[:, 1::2] << 4)


def unpack_e2m1(stored: Tensor) -> Tensor:
    """Values float32 [R, 2 C] of E2M1 bytes [R, C], uint8 or float4_e2m1fn_x2; code 8 is -0."""
    stored = stored.view(torch.uint8)
    codes = torch.stack((stored & 15, stored >> 4), dim=2).reshape(stored.shape[0], 2 * stored.shape[1])
    codes = codes.to(torch.int32)
    magnitude = codes & 7
    normal = (((magnitude >> 1) + 126) << 23 | (magnitude & 1) << 22).view(torch.float32)
    values = torch.where(magnitude < 2, magnitude * 0.5, normal)
    return torch.where(codes > 7, -values, values)


def decode_e8m0(stored: Tensor) -> Tensor:
    """float32 of E8M0 bytes, uint8 or float8_e8m0fnu (OCP MX v1.0): 2**(byte - 127), so 0 is 2**-127; 255 is NaN."""
    byte = stored.view(torch.uint8).to(torch.int32)
    bits = torch.where(byte == 0, 0x00400000, byte << 23)
    return torch.where(byte == 255, 0x7FC00000, bits).view(torch.float32)


def encode_e8m0(powers: Tensor) -> Tensor:
    """E8M0 bytes uint8 of float32 powers of two from 2**-127 to 2**127; NaN and infinity give 255, zero gives 0."""
    return ((powers.to(torch.float32).view(torch.int32) >> 23) & 255).to(torch.uint8)


def rotate_hadamard(x: Tensor, size: int = 32) -> Tensor:
    """x [..., K] with each block of `size` columns times the orthonormal Sylvester Hadamard matrix.

    Computed in float32, returned in the dtype of x. The matrix is symmetric and its own inverse: rotating twice gives
    x back within rounding. Raises ValueError unless size is a power of two that divides K.
    """
    columns = x.shape[-1]
    if size < 1 or size & (size - 1) or columns % size:
        raise ValueError(f"rotate_hadamard: needs K as a multiple of a power of two, found K {columns} and size {size}")
    blocks = x.to(torch.float32).reshape(*x.shape[:-1], columns // size, size)
    return (blocks @ _hadamard(size, x)).reshape(x.shape).to(x.dtype)


def _hadamard(size: int, like: Tensor) -> Tensor:
    """The matrix on the device of `like`: kept between eager calls, part of the graph when traced."""
    if torch.compiler.is_compiling() or type(like) is not Tensor:
        return _sylvester(size, like.device)
    matrix = _hadamard_matrices.get((size, like.device))
    if matrix is None:
        with torch.inference_mode(False):
            matrix = _sylvester(size, like.device)
        if like.device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
            _hadamard_matrices[size, like.device] = matrix
    return matrix


def _sylvester(size: int, device: torch.device) -> Tensor:
    """[size, size] with entry (i, j) = (-1)**(bits that i and j share) / sqrt(size)."""
    index = torch.arange(size, device=device)
    shared = index[:, None] & index[None, :]
    for shift in (16, 8, 4, 2, 1):
        shared = shared ^ (shared >> shift)
    return (1 - 2 * (shared & 1)).to(torch.float32) * (1.0 / math.sqrt(size))


def _grid(rows: int, columns: int, granularity: Granularity) -> tuple[int, int]:
    if granularity == "per_tensor":
        return 1, 1
    if granularity in ("per_token", "per_channel"):
        return rows, 1
    tile_rows, tile_columns = tile(granularity, rows, columns)
    return -(-rows // tile_rows), -(-columns // tile_columns)


def _tiles(x: Tensor, granularity: Granularity) -> Tensor:
    """x [R, K] as [grid rows, tile rows, grid columns, tile columns], ragged tiles filled with zeros."""
    rows, columns = x.shape
    tile_rows, tile_columns = tile(granularity, rows, columns)
    grid_rows, grid_columns = _grid(rows, columns, granularity)
    below, right = grid_rows * tile_rows - rows, grid_columns * tile_columns - columns
    if below or right:
        x = torch.nn.functional.pad(x, (0, right, 0, below))
    return x.reshape(grid_rows, tile_rows, grid_columns, tile_columns)


def _untiled(tiles: Tensor, rows: int, columns: int) -> Tensor:
    """The inverse of `_tiles`, a view where nothing was filled."""
    grid_rows, tile_rows, grid_columns, tile_columns = tiles.shape
    return tiles.reshape(grid_rows * tile_rows, grid_columns * tile_columns)[:rows, :columns]


def _scale_grid(scale: Tensor, rows: int, columns: int, granularity: Granularity) -> Tensor:
    """A stored scale as [grid rows, 1, grid columns, 1]: E8M0 as uint8, all else as float32."""
    grid_rows, grid_columns = _grid(rows, columns, granularity)
    if granularity == "per_tensor" and scale.numel() == rows:
        # One scale for each part of a fused layer, expanded to rows; the single tile is [1, rows, 1, columns].
        return scale.to(torch.float32).reshape(1, rows, 1, 1)
    if scale.numel() != grid_rows * grid_columns:
        needs = f"{grid_rows} x {grid_columns} elements for {granularity} of [{rows}, {columns}]"
        raise ValueError(f"scale: needs {needs}, found shape {list(scale.shape)}")
    exponents = scale.dtype in (torch.uint8, torch.float8_e8m0fnu)
    scale = scale.view(torch.uint8) if exponents else scale.to(torch.float32)
    return scale.reshape(grid_rows, 1, grid_columns, 1)


def _largest(operand: Operand, fp8: torch.dtype) -> float:
    """The rule's maximum in the values of the codes: its fnuz_max on fnuz, or half of a max that is meant for fn."""
    rule = operand.rule
    if operand.format != "fp8_e4m3" or fp8 != torch.float8_e4m3fnuz:
        return rule.max
    if rule.fnuz_max is not None:
        return rule.fnuz_max
    return rule.max / 2 if rule.max > torch.finfo(fp8).max else rule.max


def _scale_of(tiles: Tensor, operand: Operand, fp8: torch.dtype) -> Tensor:
    """The scale [grid rows, 1, grid columns, 1] that the operand's rule finds."""
    rule = operand.rule
    magnitudes = tiles.abs()
    if operand.format == "fp8_e4m3":
        magnitudes = torch.where(magnitudes.isnan(), 0.0, magnitudes)
    amax = magnitudes.amax(dim=(1, 3), keepdim=True).clamp(rule.floor, _LARGEST_FLOAT32)
    largest = _largest(operand, fp8)
    if rule.scale == "amax_div":
        if operand.scale == "e8m0":
            raise ValueError("scale rule: needs an exponent rule for an e8m0 scale, found amax_div")
        # The divisor is a tensor because CUDA multiplies by the rounded reciprocal of a Python number.
        return (amax / torch.full_like(amax, largest)).clamp(min=_SMALLEST_NORMAL)
    if operand.format == "int8":
        raise ValueError(f"scale rule: needs amax_div for int8, found {rule.scale}")
    fnuz = fp8 == torch.float8_e4m3fnuz
    emax, mantissa_bits = (2, 1) if operand.format == "fp4_e2m1" else (7 if fnuz else 8, 3)
    exponent = _exponent(amax, rule.scale, emax, mantissa_bits, largest).clamp(-127, 127)
    stored = torch.where(amax.isnan(), 255, exponent + 127).to(torch.uint8)
    return stored if operand.scale == "e8m0" else decode_e8m0(stored)


def _exponent(amax: Tensor, rule: ScaleRule, emax: int, mantissa_bits: int, largest: float) -> Tensor:
    """The exponent int32 of the scale of float32 amax, exact, from its bits; anything under -127 for subnormal amax.

    floor: floor(log2(amax)) - emax, OCP MX v1.0 section 6.3. even: the same once amax has as many mantissa bits as an
    element, AMD Quark 0.13. even175: with the one bit of E2M1 for every element, compressed-tensors 0.20. rceil:
    ceil(log2(amax / largest)), AITER since 0.1.16. log_nearest: round(log2(amax / largest)), torchao 0.18. ceil:
    ceil(log2(amax)) - emax. nearest15: amax rounded to a power of two, up from 1.5, AITER until 0.1.15.
    """
    bits = amax.view(torch.int32)
    if rule == "even":
        return ((bits + (1 << (22 - mantissa_bits))) >> 23) - 127 - emax
    if rule == "even175":
        return ((bits + 0x200000) >> 23) - 127 - emax
    exponent, mantissa = (bits >> 23) - 127, bits & 0x7FFFFF
    if rule == "ceil":
        return exponent - emax + (mantissa > 0)
    if rule == "nearest15":
        return exponent - emax + (mantissa >= 0x400000)
    if rule == "floor":
        return exponent - emax
    fraction, power = math.frexp(largest)
    significand = round(fraction * 2**24)
    exponent = exponent - (power - 1)
    if rule == "rceil":
        return exponent + (mantissa + 0x800000 > significand)
    # log2 of the significands' ratio rounds at sqrt(2) and sqrt(1/2); the roots are irrational, so there are no ties.
    above = math.isqrt(2 * significand**2)
    below = math.isqrt((significand**2 - 1) // 2)
    return exponent + (mantissa + 0x800000 > above).to(torch.int32) - (mantissa + 0x800000 <= below).to(torch.int32)


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


def _to_int8(scaled: Tensor, rounding: Rounding, largest: float) -> Tensor:
    if rounding == "rne":
        whole = scaled.round()
    else:
        whole = scaled.trunc()
        rest = (scaled - whole).abs()
        if rounding == "half_away":
            whole = whole + torch.where(rest >= 0.5, scaled.sign(), 0.0)
        elif rounding == "ties_to_zero":
            whole = whole + torch.where(rest > 0.5, scaled.sign(), 0.0)
    lowest = -128.0 if largest > 127 else -math.floor(largest)
    whole = whole.clamp(lowest, min(math.floor(largest), 127))
    return torch.where(whole.isnan(), 0.0, whole).to(torch.int8)


def _to_fp8(scaled: Tensor, rounding: Rounding, largest: float, fp8: torch.dtype) -> Tensor:
    if rounding != "rne":
        raise ValueError(f"fp8 rounding: needs rne, found {rounding}")
    return scaled.clamp(-largest, largest).to(fp8)


def _to_e2m1(scaled: Tensor, rounding: Rounding, largest: float) -> Tensor:
    """Codes 0..15, uint8; the sign of a value that becomes zero is kept."""
    magnitude = scaled.abs().clamp(max=largest)
    codes = scaled.signbit().to(torch.uint8) << 3
    for step, inclusive in _E2M1_STEPS[rounding]:
        codes = codes + (magnitude >= step if inclusive else magnitude > step).to(torch.uint8)
    return torch.where(scaled.isnan(), 0, codes)
