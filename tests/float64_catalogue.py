"""Layers as checkpoints store them, and what they must compute: the rules of a scheme in numpy and float64."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from qscheme.tables import load

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from qscheme.types import Granularity, Operand, Rule, Scheme

    Array = NDArray[np.float64]

torch.set_num_threads(1)  # the tensors here are small; more threads only wait for each other

INPUT_SCALE = 4.5 / 127
"""The static scale of activations that are drawn from a normal distribution."""

INPUT_AMAX = 4.5
"""The largest magnitude that the global scale of such activations is made for."""


def magnitudes(mantissa_bits: int, bias: int, codes: int) -> Array:
    """The value of each code without a sign: subnormal where its exponent is 0."""
    return np.array(
        [
            code * 2.0 ** (1 - bias - mantissa_bits)
            if code < 1 << mantissa_bits
            else 2.0 ** ((code >> mantissa_bits) - bias) * (1 + code % (1 << mantissa_bits) / (1 << mantissa_bits))
            for code in range(codes)
        ]
    )


E2M1 = magnitudes(1, 1, 8)
E2M3 = magnitudes(3, 1, 32)
E3M2 = magnitudes(2, 3, 32)
E4M3 = magnitudes(3, 7, 127)  # 127 is NaN
E5M3 = magnitudes(3, 15, 255)  # without a sign; 255 is NaN
FLOATS = {"fp4_e2m1": E2M1, "fp6_e2m3": E2M3, "fp6_e3m2": E3M2, "fp8_e4m3": E4M3}
MANTISSA_BITS = {"fp4_e2m1": 1, "fp6_e2m3": 3, "fp6_e3m2": 2, "fp8_e4m3": 3}
EVEN_FIRST = [0, 2, 4, 6, 1, 3, 5, 7]
K_FIRST = {"awq": torch.float16, "quark": torch.bfloat16, "gptq": torch.float16, "gptq_v2": torch.float16}
"""Packings whose scales and zero points have K in their rows, and the dtype of the scales."""

CODES_TOGETHER = {"fp4_e2m1": 2, "fp6_e2m3": 4, "fp6_e3m2": 4}
"""How many codes share bytes."""


@dataclass(frozen=True)
class Quantized:
    """Codes as stored, scales in the shape of their granularity, and what both stand for."""

    codes: torch.Tensor
    scale: torch.Tensor
    values: Array
    zero_point: torch.Tensor | None = None


@dataclass(frozen=True)
class Example:
    """A layer, the float weight that it was made from, and the values that its stored weight stands for."""

    layer: SimpleNamespace
    scheme: Scheme
    weight: Array
    stored: Array

    def of(self, x: torch.Tensor) -> Array:
        """What the layer must compute: x under the scheme's own rule, times the stored weight, plus the bias."""
        rows = as_float64(x.reshape(-1, x.shape[-1]))
        values = rotated(rows) if self.layer.rotation else rows
        values = values if self.scheme.activation is None else self.activation(values).values
        return (values @ self.stored.T + self.bias).reshape(*x.shape[:-1], -1)

    def activation(self, x: Array) -> Quantized:
        """x [M, K] as the scheme quantizes it."""
        assert self.scheme.activation is not None, "the scheme multiplies x as it is"
        given = None if self.layer.input_scale is None else float(self.layer.input_scale)
        outer = None if self.layer.input_global_scale is None else float(self.layer.input_global_scale)
        return quantized(x, self.scheme.activation, given, outer)

    def exact(self, x: torch.Tensor) -> Array:
        """The product of what was never quantized: float x and float weight, plus the bias."""
        return as_float64(x) @ self.weight.T + self.bias

    @property
    def bias(self) -> Any:
        return 0.0 if self.layer.bias is None else as_float64(self.layer.bias)


def example(
    scheme: str,
    n: int,
    k: int,
    *,
    bias: torch.dtype | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    rotation: int | None = None,
    seed: int = 0,
    **attributes: object,
) -> Example:
    """A layer with a random weight, quantized here by the scheme's rule, as a checkpoint stores it."""
    draw = np.random.default_rng(seed)
    known = load().scheme(scheme)
    weight = draw.standard_normal((n, k)) / np.sqrt(k)
    turned = rotated(weight) if rotation else weight
    outer = global_scale(float(np.abs(turned).max()), known.weight)
    stored = quantized(turned, known.weight, outer=outer)
    static = known.activation is not None and known.activation.mode == "static"
    layer = SimpleNamespace(
        scheme=scheme,
        weight=stored.codes,
        weight_scale=stored.scale,
        input_scale=torch.tensor(INPUT_SCALE) if static else None,
        bias=None if bias is None else torch.from_numpy(draw.standard_normal(n)).to(bias),
        out_dtype=out_dtype,
        name="model.layers.0.mlp.up_proj",
        rotation=rotation,
        weight_global_scale=None if outer is None else torch.tensor([outer]),
        weight_zero_point=stored.zero_point,
        input_global_scale=None,
        **attributes,
    )
    if known.activation is not None and known.activation.global_scale is not None:
        layer.input_global_scale = torch.tensor([global_scale(INPUT_AMAX, known.activation)])
    return Example(layer, known, weight, stored.values)


def columns(scheme: str, k: int) -> int:
    """The first number of columns from k on that the formats of a scheme can store."""
    known = load().scheme(scheme)
    together = [CODES_TOGETHER.get(operand.format, 1) for operand in (known.activation, known.weight) if operand]
    if known.weight.packing != "plain":
        together.append(codes_of_a_word(known.weight))
    return -(-k // max(together)) * max(together)


def rows(scheme: str, n: int) -> int:
    """The first number of rows from n on that a scheme can store: zero points share words along N beside K first."""
    weight = load().scheme(scheme).weight
    together = codes_of_a_word(weight) if weight.packing in K_FIRST else 1
    return -(-n // together) * together


def codes_of_a_word(operand: Operand) -> int:
    return {"int4": 8, "int8": 4}[operand.format]


def global_scale(amax: float, operand: Operand) -> float | None:
    """The scale of a whole tensor that lets the scales of its tiles use all of E4M3, in float32."""
    if operand.global_scale is None:
        return None
    reach = 448.0 * operand.rule.max
    return float(np.float32(reach / amax if operand.global_scale == "divide" else amax / reach))


def quantized(x: Array, operand: Operand, given: float | None = None, outer: float | None = None) -> Quantized:
    """x [R, K] by the rule of an operand, or under a given scale for the whole of it; outer: its global scale."""
    rows, width = x.shape
    high, wide = tile(operand.granularity, rows, width)
    filled = np.pad(x, ((0, -rows % high), (0, -width % wide)))
    tiles = filled.reshape(-(-rows // high), high, -(-width // wide), wide)
    low, amax = tiles.min(axis=(1, 3), initial=0.0), np.abs(tiles).max(axis=(1, 3), initial=0.0)
    if operand.symmetric:
        grid = scale_of(amax, operand, outer) if given is None else np.full_like(amax, given)
        zero = np.zeros_like(grid)
    else:
        reach = tiles.max(axis=(1, 3), initial=0.0) - low
        grid = as_float32(np.maximum(reach, 2 * operand.rule.floor) / (2 * operand.rule.max))
        zero = zero_of(low, grid, operand)
    if operand.packing in K_FIRST:
        # Codes are made for the scales that are stored, in 16 bits.
        grid = as_float64(torch.from_numpy(grid).to(torch.float32).to(K_FIRST[operand.packing]))
        zero = zero if operand.symmetric else zero_of(low, grid, operand)
    scale = grid
    if outer is not None:
        scale = as_float32(grid / outer if operand.global_scale == "divide" else grid * outer)
    spread, shift = (np.repeat(np.repeat(part, high, axis=0), wide, axis=1)[:rows, :width] for part in (scale, zero))
    codes, values = coded(as_float32(x / spread), operand, shift)
    stored_zero = None if operand.symmetric else packed_zero_points(zero, operand)
    return Quantized(codes, stored_scale(grid, operand), values * spread, stored_zero)


def zero_of(low: Array, grid: Array, operand: Operand) -> Array:
    """The zero points of tiles by their lowest values; in float32, where halves are met often."""
    exact = as_float32(lowest(operand) - as_float32(low / grid))
    return np.clip(np.rint(exact), lowest(operand), highest(operand))


def tile(granularity: Granularity, rows: int, columns: int) -> tuple[int, int]:
    if granularity == "per_tensor":
        return max(rows, 1), columns
    if granularity in ("per_token", "per_channel"):
        return 1, columns
    high, _, wide = granularity.partition("x")
    return int(high), int(wide)


def scale_of(amax: Array, operand: Operand, outer: float | None = None) -> Array:
    """The scales of tiles by their largest magnitudes, as near as the format of the scales has them."""
    rule: Rule = operand.rule
    if rule.scale == "amax_div":
        exact = as_float32(np.maximum(amax, rule.floor) / rule.max)
        if operand.scale == "fp32":
            return exact
        if operand.global_scale == "divide":
            exact = as_float32(exact * outer)
            exact = np.where(exact <= 2.0**-10, 0.125, exact)  # what compressed-tensors does where E4M3 has no scale
        elif operand.global_scale == "multiply":
            exact = as_float32(amax / as_float32(rule.max * np.float64(outer)))
            exact = np.where(exact == 0, 1.0, exact)
        table = E4M3 if operand.scale == "e4m3" else E5M3
        return np.maximum(table[nearest(exact, table)], table[1])
    amax = np.maximum(amax, rule.floor)
    bits, largest = MANTISSA_BITS[operand.format], FLOATS[operand.format][-1]
    if rule.scale in ("even", "even175"):
        bits = 1 if rule.scale == "even175" else bits
        # The exponent of amax once it is rounded to as many bits as an element has, less that of the largest element.
        fraction, power = np.frexp(amax)  # amax = fraction * 2**power, with 0.5 <= fraction < 1
        exponent = power - 1 + (fraction >= 1 - 2.0 ** -(bits + 2)) - np.floor(np.log2(largest))
    else:
        assert rule.scale == "rceil"
        fraction, power = np.frexp(amax / rule.max)
        exponent = power - (fraction == 0.5)
    return np.exp2(np.clip(np.where(amax > 0, exponent, -127.0), -127, 127).astype(np.float64))


def stored_scale(grid: Array, operand: Operand) -> torch.Tensor:
    if operand.scale == "e8m0":
        return torch.from_numpy((np.log2(grid) + 127).astype(np.uint8))
    if operand.scale in ("e4m3", "e5m3"):
        table = E4M3 if operand.scale == "e4m3" else E5M3
        stored = torch.from_numpy(nearest(grid, table).astype(np.uint8))
        return stored.view(torch.float8_e4m3fn) if operand.scale == "e4m3" else stored
    scale = torch.from_numpy(grid.astype(np.float32))
    if operand.packing in K_FIRST:
        return scale.t().contiguous().to(K_FIRST[operand.packing])
    return scale.reshape(1) if operand.granularity == "per_tensor" else scale


def lowest(operand: Operand) -> int:
    """The lowest code of an integer format: the divisors 127.5 and those of INT4 reach one code further."""
    return {"int8": -128 if operand.rule.max > 127 else -127, "int4": -8}[operand.format]


def highest(operand: Operand) -> int:
    return {"int8": 127, "int4": 7}[operand.format]


def coded(scaled: Array, operand: Operand, shift: Array) -> tuple[torch.Tensor, Array]:
    """Codes as they are stored, and the values of the codes without their zero point."""
    assert operand.rule.round == "rne"
    if operand.format in ("int8", "int4"):
        codes = np.clip(np.rint(scaled) + shift, lowest(operand), highest(operand))
        return packed(codes.astype(np.int8), operand), codes - shift
    table = FLOATS[operand.format]
    index = nearest(np.abs(scaled), table)
    values = np.where(np.signbit(scaled), -table[index], table[index])
    sign = np.signbit(scaled).astype(np.uint8)
    bit = {"fp4_e2m1": 3, "fp6_e2m3": 5, "fp6_e3m2": 5, "fp8_e4m3": 7}[operand.format]
    return packed(index.astype(np.uint8) | sign << bit, operand), values


def packed(codes: NDArray[Any], operand: Operand) -> torch.Tensor:
    """Codes [R, K], one to a byte, as checkpoints store them."""
    rows, width = codes.shape
    if operand.format == "fp4_e2m1":
        return torch.from_numpy(codes[:, ::2] | codes[:, 1::2] << 4)
    if operand.format.startswith("fp6"):
        words = (codes.reshape(rows, width // 4, 4).astype(np.int64) << np.array([0, 6, 12, 18])).sum(2)
        split = words[:, :, None] >> np.array([0, 8, 16]) & 255
        return torch.from_numpy(split.astype(np.uint8).reshape(rows, -1))
    if operand.packing in ("awq", "quark"):
        return words_of(codes.T, operand, operand.packing)
    if operand.packing != "plain":
        words = words_of(codes, operand, operand.packing)
        return words.t().contiguous() if operand.packing in K_FIRST else words
    stored = torch.from_numpy(codes)
    return stored.view(torch.float8_e4m3fn) if operand.format == "fp8_e4m3" else stored


def packed_zero_points(zero: Array, operand: Operand) -> torch.Tensor:
    """Zero points [N, K/G] as checkpoints store them."""
    whole = zero.astype(np.int64)
    if operand.packing == "plain":
        return torch.from_numpy(whole.astype(np.int32))
    if operand.packing == "int32_columns":
        together = codes_of_a_word(operand)
        return words_of(np.pad(whole, ((0, -len(whole) % together), (0, 0))).T, operand, "int32_columns").t()
    return words_of(whole.T, operand, operand.packing, less=operand.packing == "gptq")


def words_of(codes: NDArray[Any], operand: Operand, packing: str, less: bool = False) -> torch.Tensor:
    """Words [R, C / together] of codes [R, C]: each a sum of its parts, in whole numbers of any size."""
    together = codes_of_a_word(operand)
    bits = 32 // together
    order = EVEN_FIRST if packing in ("awq", "quark") else range(together)
    parts = codes.astype(np.int64) % 2**bits if packing == "quark" else codes.astype(np.int64) + 2 ** (bits - 1)
    parts = parts.reshape(len(codes), -1, together)
    words = sum((parts[:, :, place] - less) * 2 ** (bits * part) for part, place in enumerate(order))
    return torch.from_numpy((words % 2**32).astype(np.uint32).view(np.int32))


def as_float32(values: Array) -> Array:
    """Rounded to float32, in which scales are found."""
    return np.asarray(values).astype(np.float32).astype(np.float64)


def nearest(magnitudes: Array, table: Array) -> NDArray[np.int64]:
    """The index of the nearest entry, ties to the even one, the last one for all that is larger."""
    middles = (table[1:] + table[:-1]) / 2
    index = np.searchsorted(middles, magnitudes, side="left")
    tied = (index < len(middles)) & (magnitudes == middles[np.minimum(index, len(middles) - 1)])
    return index + (tied & (index % 2 == 1))


def rotated(x: Array, size: int = 32) -> Array:
    """Each block of `size` columns times the orthonormal Hadamard matrix of Sylvester."""
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return (x.reshape(len(x), -1, size) @ (matrix / np.sqrt(size))).reshape(x.shape)


def as_float64(x: torch.Tensor) -> Array:
    return x.detach().to(torch.float64).numpy()


def random_x(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 1) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).to(dtype)


def relative_error(y: torch.Tensor, expected: Array) -> float:
    """The Frobenius norm of the difference over that of what is expected."""
    return float(np.linalg.norm(as_float64(y) - expected) / np.linalg.norm(expected))
