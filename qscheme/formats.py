"""Element and scale formats in plain torch: codes, the float32 values that they stand for, and their packing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from qscheme.packing import pack_integers, unpack_integers
from qscheme.words import INTEGER_BITS

if TYPE_CHECKING:
    from qscheme.types import Format, Operand, Packing, Rounding, ScaleFormat

_SMALLEST_NORMAL = 2.0**-126


class FloatFormat(NamedTuple):
    """A small binary float: its widths, and its largest value; the bias is 2**(exponent_bits - 1) - 1."""

    exponent_bits: int
    mantissa_bits: int
    largest: float

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def largest_exponent(self) -> int:
        """The exponent of the largest value, which OCP MX v1.0 calls emax."""
        return math.frexp(self.largest)[1] - 1


E2M1 = FloatFormat(2, 1, 6.0)
E2M3 = FloatFormat(2, 3, 7.5)
E3M2 = FloatFormat(3, 2, 28.0)
E4M3 = FloatFormat(4, 3, 448.0)
E5M3 = FloatFormat(5, 3, 114688.0)
"""Without a sign, as AMD Quark 0.13 scales AMDFP4: byte 255 is NaN, byte 254 is 114688, byte 1 is 2**-17."""

PACKED: dict[str, tuple[int, int]] = {"fp4_e2m1": (2, 1), "fp6_e2m3": (4, 3), "fp6_e3m2": (4, 3)}
"""Formats whose codes share bytes: how many codes stand in how many bytes."""

FLOAT_FORMATS: dict[Format, FloatFormat] = {"fp4_e2m1": E2M1, "fp6_e2m3": E2M3, "fp6_e3m2": E3M2, "fp8_e4m3": E4M3}
"""Of elements. E4M3FNUZ has the exponent bias 8, the largest value 240 and no -0; a torch dtype tells the two apart."""


def integer_range(element: Format, largest: float) -> tuple[int, int]:
    """The lowest and the highest code under a rule that aims at `largest`.

    INT8 reaches -128 only where largest is over 127 (127.5); INT4 always reaches -8, the divisor being 7 or 7.5.
    """
    highest = (1 << (INTEGER_BITS[element] - 1)) - 1
    reached = min(math.floor(largest), highest)
    return (-highest - 1 if element == "int4" or largest > highest else -reached), reached


def encode(scaled: Tensor, operand: Operand, largest: float, fp8: torch.dtype) -> Tensor:
    """What is stored for scaled values float32 [R, K] of an operand's format, clamped to `largest`.

    int8, int4: int8 [R, K], or int32 as `pack_integers` says. fp8_e4m3: dtype `fp8` [R, K].
    fp4_e2m1: uint8 [R, K/2]. fp6: uint8 [R, 3 K/4]. NaN stays NaN in FP8 and becomes code 0 elsewhere.
    """
    rounding = operand.rule.round
    if operand.format == "fp8_e4m3":
        if rounding != "rne":
            raise ValueError(f"fp8 rounding: needs rne, found {rounding}")
        return scaled.clamp(-largest, largest).to(fp8)
    if operand.format in INTEGER_BITS:
        lowest, highest = integer_range(operand.format, largest)
        whole = round_whole(scaled, rounding).clamp(lowest, highest)
        return pack_codes(torch.where(whole.isnan(), 0.0, whole).to(torch.int8), operand.format, operand.packing)
    return pack_codes(encode_float(scaled, FLOAT_FORMATS[operand.format], rounding, largest), operand.format)


def decode(stored: Tensor, operand: Operand) -> Tensor:
    """The values float32 [R, K] that stored codes stand for, before any scale; the inverse of `encode`.

    The dtype of FP8 codes says which E4M3 flavour they have. E2M1 may come as uint8 or float4_e2m1fn_x2.
    """
    if operand.format == "fp4_e2m1":
        return unpack_e2m1(stored)
    if operand.format in ("fp6_e2m3", "fp6_e3m2"):
        return decode_float(unpack_fp6(stored), FLOAT_FORMATS[operand.format])
    if operand.format in INTEGER_BITS:
        stored = unpack_integers(stored, operand.format, operand.packing)
    return stored.to(torch.float32)


def round_whole(values: Tensor, rounding: Rounding) -> Tensor:
    """Whole numbers, in the dtype of `values`; only ties differ between rne, half_away and ties_to_zero."""
    if rounding == "rne":
        return values.round()
    whole = values.trunc()
    if rounding == "truncate":
        return whole
    rest = (values - whole).abs()
    return whole + torch.where(rest >= 0.5 if rounding == "half_away" else rest > 0.5, values.sign(), 0.0)


def encode_float(values: Tensor, form: FloatFormat, rounding: Rounding = "rne", largest: float | None = None) -> Tensor:
    """Codes uint8 of float32 values, one to a byte, the sign above the exponent; magnitudes over `largest` become it.

    Exact for every float32. A value that becomes zero keeps its sign; NaN becomes code 0.
    """
    magnitude = values.abs().clamp(max=form.largest if largest is None else largest)
    exponent = ((magnitude.view(torch.int32) >> 23) - 127).clamp(1 - form.bias, form.largest_exponent)
    per_step = ((127 + form.mantissa_bits - exponent) << 23).view(torch.float32)
    steps = round_whole(magnitude * per_step, rounding)
    # A mantissa that rounds up to the next power of two carries into the exponent by itself.
    codes = ((exponent + (form.bias - 1)) << form.mantissa_bits) + steps.to(torch.int32)
    codes = codes | (values.signbit().to(torch.int32) << (form.exponent_bits + form.mantissa_bits))
    return torch.where(values.isnan(), 0, codes).to(torch.uint8)


def decode_float(codes: Tensor, form: FloatFormat) -> Tensor:
    """float32 of codes uint8, one to a byte: every code is finite, also those that a format calls NaN."""
    codes = codes.to(torch.int32)
    sign = 1 << (form.exponent_bits + form.mantissa_bits)
    magnitude = codes & (sign - 1)
    normal = ((magnitude << (23 - form.mantissa_bits)) + ((127 - form.bias) << 23)).view(torch.float32)
    subnormal = magnitude * 2.0 ** (1 - form.bias - form.mantissa_bits)
    values = torch.where(magnitude < 1 << form.mantissa_bits, subnormal, normal)
    return torch.where(codes >= sign, -values, values)


def pack_codes(codes: Tensor, element: Format, packing: Packing = "plain") -> Tensor:
    """Codes [R, K], one to a byte, as checkpoints store that format; FP8 codes are stored as they are."""
    if element == "fp4_e2m1":
        return pack_e2m1(codes)
    if element in INTEGER_BITS:
        return pack_integers(codes, element, packing)
    return pack_fp6(codes) if element in ("fp6_e2m3", "fp6_e3m2") else codes


def pack_e2m1(codes: Tensor) -> Tensor:
    """Bytes uint8 [R, K/2] of 4-bit codes uint8 [R, K], the even column in the low nibble; ValueError for odd K."""
    if codes.shape[1] % 2:
        raise ValueError(f"pack_e2m1: needs an even number of columns, found {codes.shape[1]}")
    return codes[:, ::2] | (codes[:, 1::2] << 4)


def unpack_e2m1(stored: Tensor) -> Tensor:
    """Values float32 [R, 2 C] of E2M1 bytes [R, C], uint8 or float4_e2m1fn_x2; code 8 is -0."""
    return decode_float(_nibbles(stored.view(torch.uint8)), E2M1)


def pack_fp6(codes: Tensor) -> Tensor:
    """Bytes uint8 [R, 3 K/4] of 6-bit codes uint8 [R, K]: four codes, the first lowest, are three little-endian bytes.

    As compressed-tensors 0.20 and AMD Quark 0.13 store them. Raises ValueError unless K is a multiple of 4.
    """
    rows, columns = codes.shape
    if columns % 4:
        raise ValueError(f"pack_fp6: needs a multiple of 4 columns, found {columns}")
    first, second, third, fourth = codes.to(torch.int32).reshape(rows, columns // 4, 4).unbind(2)
    word = first | (second << 6) | (third << 12) | (fourth << 18)
    stored = torch.stack((word & 255, (word >> 8) & 255, word >> 16), dim=2)
    return stored.reshape(rows, 3 * (columns // 4)).to(torch.uint8)


def unpack_fp6(stored: Tensor) -> Tensor:
    """Codes uint8 [R, 4 C/3], one to a byte, of bytes uint8 [R, C]; ValueError unless C is a multiple of 3."""
    rows, columns = stored.shape
    if columns % 3:
        raise ValueError(f"unpack_fp6: needs a multiple of 3 columns, found {columns}")
    low, middle, high = stored.to(torch.int32).reshape(rows, columns // 3, 3).unbind(2)
    word = low | (middle << 8) | (high << 16)
    codes = torch.stack((word & 63, (word >> 6) & 63, (word >> 12) & 63, word >> 18), dim=2)
    return codes.reshape(rows, 4 * (columns // 3)).to(torch.uint8)


def encode_scale(scales: Tensor, form: ScaleFormat) -> Tensor:
    """Positive float32 scales in their storage format, rounded to nearest even and clamped to its largest value.

    fp32: as they are, at least 2**-126. e4m3: dtype float8_e4m3fn. e5m3: uint8. A scale that rounds to zero becomes the
    smallest one, 2**-9 and 2**-17. NaN stays NaN. Raises ValueError for e8m0, whose rounding an exponent rule names.
    """
    if form == "fp32":
        return scales.clamp(min=_SMALLEST_NORMAL)
    if form == "e4m3":
        return scales.clamp(2.0**-9, E4M3.largest).to(torch.float8_e4m3fn)
    if form == "e5m3":
        codes = encode_float(scales, E5M3).clamp(min=1)
        return torch.where(scales.isnan(), 255, codes).to(torch.uint8)
    raise ValueError("scale rule: needs an exponent rule for an e8m0 scale, found amax_div")


def decode_e5m3(stored: Tensor) -> Tensor:
    """float32 of E5M3 bytes uint8; 255 is NaN."""
    return torch.where(stored == 255, math.nan, decode_float(stored, E5M3))


def decode_e8m0(stored: Tensor) -> Tensor:
    """float32 of E8M0 bytes, uint8 or float8_e8m0fnu (OCP MX v1.0): 2**(byte - 127), so 0 is 2**-127; 255 is NaN."""
    byte = stored.view(torch.uint8).to(torch.int32)
    bits = torch.where(byte == 0, 0x00400000, byte << 23)
    return torch.where(byte == 255, 0x7FC00000, bits).view(torch.float32)


def encode_e8m0(powers: Tensor) -> Tensor:
    """E8M0 bytes uint8 of float32 powers of two from 2**-127 to 2**127; NaN and infinity give 255, zero gives 0."""
    return ((powers.to(torch.float32).view(torch.int32) >> 23) & 255).to(torch.uint8)


def _nibbles(stored: Tensor) -> Tensor:
    """4-bit codes uint8 [R, 2 C] of bytes uint8 [R, C], the low nibble first."""
    return torch.stack((stored & 15, stored >> 4), dim=2).reshape(stored.shape[0], 2 * stored.shape[1])


def packed_columns(element: str, k: int) -> int:
    """How many bytes hold K codes of a row."""
    codes, size = PACKED.get(element, (1, 1))
    return k // codes * size
