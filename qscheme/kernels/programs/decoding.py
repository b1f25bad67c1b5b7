"""Triton functions that decode stored codes and scales in registers, exactly, by moving bits."""

import triton
import triton.language as tl


@triton.jit
def decode(stored, zero, CODES: tl.constexpr, dtype: tl.constexpr):
    """The values of codes uint8, one to a byte (4-bit codes in the low nibble), minus `zero`, in bfloat16 or float16.

    Every code of every format has at most 8 significant bits, so the values are exact. E4M3 (OCP, NaN included) and
    E2M1 have their bits moved to where the wider float has them, which leaves them too small by a power of two.
    Integers are put under the exponent whose last place counts as one, 128 or 1024, which is subtracted again.
    """
    word = stored.to(tl.int16)
    bits: tl.constexpr = 10 if dtype == tl.float16 else 7
    bias: tl.constexpr = 15 if dtype == tl.float16 else 127
    whole: tl.constexpr = 0x6400 if dtype == tl.float16 else 0x4300
    if CODES == "fp8_e4m3":
        moved = ((word & 0x80) << 8) | ((word & 0x7F) << (bits - 3))
        values = moved.to(dtype, bitcast=True) * tl.full((), 2.0 ** (bias - 7), dtype)
        values = tl.where((word & 0x7F) == 0x7F, float("nan"), values).to(dtype)
    elif CODES == "fp4_e2m1":
        moved = ((word & 8) << 12) | ((word & 7) << (bits - 1))
        values = moved.to(dtype, bitcast=True) * tl.full((), 2.0 ** (bias - 1), dtype)
    elif CODES == "int4":
        values = (word | whole).to(dtype, bitcast=True) - tl.full((), 2.0**bits + 8, dtype)
    else:
        tl.static_assert(CODES == "int8", "a format that is known")
        if dtype == tl.float16:
            values = ((word & 0xFF) ^ (whole | 0x80)).to(dtype, bitcast=True) - tl.full((), 1024.0 + 128, dtype)
        else:
            low = (word & 0x7F) | whole
            values = low.to(dtype, bitcast=True) - ((word & 0x80) | whole).to(dtype, bitcast=True)
    return values - zero.to(dtype)


@triton.jit
def decode_scale(stored, SCALE: tl.constexpr):
    """float32 of scales: float32 as they are, bytes of E8M0 (0 is 2**-127, 255 NaN) or of E4M3."""
    if SCALE == "e8m0":
        byte = stored.to(tl.int32)
        word = tl.where(byte == 0, 0x00400000, byte << 23)
        factors = tl.where(byte == 255, 0x7FC00000, word).to(tl.float32, bitcast=True)
    elif SCALE == "e4m3":
        factors = decode(stored, tl.full((), 0, tl.int8), "fp8_e4m3", tl.float16).to(tl.float32)
    else:
        factors = stored
    return factors
