"""Scale rules in plain torch: the scale of a tile from its largest magnitude, in the format that stores it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qscheme.formats import FLOAT_FORMATS, decode_e8m0, encode_scale
from qscheme.words import INTEGER_BITS

if TYPE_CHECKING:
    from qscheme.types import Operand, ScaleRule

LARGEST_FLOAT32 = torch.finfo(torch.float32).max


def largest_code(operand: Operand, fp8: torch.dtype) -> float:
    """The rule's maximum in the values of the codes: its fnuz_max on fnuz, or half of a max that is meant for fn."""
    rule = operand.rule
    if operand.format != "fp8_e4m3" or fp8 != torch.float8_e4m3fnuz:
        return rule.max
    if rule.fnuz_max is not None:
        return rule.fnuz_max
    return rule.max / 2 if rule.max > torch.finfo(fp8).max else rule.max


def scale_of(tiles: Tensor, operand: Operand, fp8: torch.dtype, outer: Tensor | None) -> Tensor:
    """The scale [grid rows, 1, grid columns, 1] that the operand's rule finds, in its storage format."""
    rule = operand.rule
    magnitudes = tiles.abs()
    if operand.format == "fp8_e4m3":
        magnitudes = torch.where(magnitudes.isnan(), 0.0, magnitudes)
    amax = magnitudes.amax(dim=(1, 3), keepdim=True).clamp(rule.floor, LARGEST_FLOAT32)
    largest = largest_code(operand, fp8)
    if rule.scale == "amax_div":
        return encode_scale(_quotient(amax, largest, operand, outer), operand.scale)
    if operand.format in INTEGER_BITS:
        raise ValueError(f"scale rule: needs amax_div for {operand.format}, found {rule.scale}")
    if outer is not None or operand.scale not in ("fp32", "e8m0"):
        raise ValueError(f"scale rule: needs amax_div for {operand.scale} and global scales, found {rule.scale}")
    form = FLOAT_FORMATS[operand.format]
    emax = form.largest_exponent - (fp8 == torch.float8_e4m3fnuz and operand.format == "fp8_e4m3")
    exponent = _exponent(amax, rule.scale, emax, form.mantissa_bits, largest).clamp(-127, 127)
    stored = torch.where(amax.isnan(), 255, exponent + 127).to(torch.uint8)
    return stored if operand.scale == "e8m0" else decode_e8m0(stored)


def _quotient(amax: Tensor, largest: float, operand: Operand, outer: Tensor | None) -> Tensor:
    """amax / largest, in float32 and in the units of the global scale, before its storage format rounds it.

    The divisor is a tensor because CUDA multiplies by the rounded reciprocal of a Python number. A global scale that
    divides: (amax / 6) * G, and 0.125 where E4M3 would round that to zero, as compressed-tensors 0.20. One that
    multiplies: amax / (6 * G), and 1 for a tile of zeros, as ModelOpt 0.47.
    """
    divisor = torch.full_like(amax, largest)
    if operand.global_scale == "multiply" and outer is not None:
        local = amax / (divisor * outer)
        return torch.where(local == 0, 1.0, local) if operand.scale == "e4m3" else local
    local = amax / divisor if outer is None else (amax / divisor) * outer
    return torch.where(local <= 2.0**-10, 0.125, local) if operand.scale == "e4m3" else local


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
