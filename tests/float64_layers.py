"""Layers as checkpoints store them, and what they must compute: the rules of a scheme in numpy and float64."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from float64_catalogue import K_FIRST, packed, packed_zero_points

from qscheme.formats import packed_columns
from qscheme.tables import load
from qscheme.tiles import scale_shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from qscheme.binding import Bound
    from qscheme.types import Granularity, Operand, Rule, Scheme

    Array = NDArray[np.float64]

torch.set_num_threads(1)  # the tensors here are small; more threads only wait for each other

INPUT_SCALE = 4.5 / 127
"""The static scale of activations that are drawn from a normal distribution."""

SEEDS = ("fp8_block128", "int8_ptpc", "int8_tensor_static", "mxfp4")
"""The schemes that have kernels of their own for every kind of operand."""

KINDS = (
    *SEEDS,
    "fp8_ptpc", "fp8_tensor_static", "fp8_w8a16_block128", "int4_w4a16_g128_asym", "int8_token_asym", "mxfp6_e2m3",
    "mxfp8", "nvfp4",
)  # fmt: skip
"""One scheme of each kind; the others combine what these have."""


def magnitudes_of(exponent_bits: int, mantissa_bits: int, bias: int, count: int) -> Array:
    """The magnitudes of a small float format, by their codes without the sign."""
    steps = 2**mantissa_bits
    return np.array(
        [
            2.0 ** (1 - bias) * code / steps
            if code < steps
            else 2.0 ** (code // steps - bias) * (1 + code % steps / steps)
            for code in range(count)
        ]
    )


E2M1 = magnitudes_of(2, 1, 1, 8)
E2M3 = magnitudes_of(2, 3, 1, 32)
E3M2 = magnitudes_of(3, 2, 3, 32)
E4M3 = magnitudes_of(4, 3, 7, 127)
E5M3 = magnitudes_of(5, 3, 15, 255)
TABLES = {"fp4_e2m1": E2M1, "fp6_e2m3": E2M3, "fp6_e3m2": E3M2, "fp8_e4m3": E4M3}
MANTISSA_BITS = {"fp4_e2m1": 1, "fp6_e2m3": 3, "fp6_e3m2": 2, "fp8_e4m3": 3}
LARGEST_EXPONENT = {"fp4_e2m1": 2, "fp6_e2m3": 2, "fp6_e3m2": 4, "fp8_e4m3": 8}


@dataclass(frozen=True)
class Quantized:
    """Codes as stored, scales in the shape of their granularity, and what both stand for."""

    codes: torch.Tensor
    scale: torch.Tensor
    values: Array
    zero_point: torch.Tensor | None = None
    global_scale: float | None = None


@dataclass(frozen=True)
class Example:
    """A layer, the float weight that it was made from, and the values that its stored weight stands for."""

    layer: SimpleNamespace
    scheme: Scheme
    weight: Array
    stored: Array

    def of(self, x: torch.Tensor) -> Array:
        """What the layer must compute: x under the scheme's own rule, times the stored weight, plus the bias."""
        given = None if self.layer.input_scale is None else float(self.layer.input_scale)
        rows = x.reshape(-1, x.shape[-1])
        values = rotated(as_float64(rows)) if self.layer.rotation else as_float64(rows)
        activation = self.scheme.activation
        if activation is not None:
            over = getattr(self.layer, "input_global_scale", None)
            values = quantized(values, activation, given, None if over is None else float(over)).values
        y = values @ self.stored.T
        return (y + self.bias).reshape(*x.shape[:-1], -1)

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
    outer = None if known.weight.global_scale is None else global_scale_of(weight, known.weight)
    stored = quantized(rotated(weight) if rotation else weight, known.weight, None, outer)
    activation = known.activation
    over = None
    if activation is not None and activation.global_scale is not None:
        over = torch.tensor(global_scale_of(np.full((1, 1), 4.5), activation), dtype=torch.float32)
    levels = {
        "weight_global_scale": None if outer is None else torch.tensor(outer, dtype=torch.float32),
        "weight_zero_point": stored.zero_point,
        "input_global_scale": over,
    }
    layer = SimpleNamespace(
        scheme=scheme,
        weight=stored.codes,
        weight_scale=stored.scale,
        input_scale=torch.tensor(static_scale(activation)) if activation and activation.mode == "static" else None,
        bias=None if bias is None else torch.from_numpy(draw.standard_normal(n)).to(bias),
        out_dtype=out_dtype,
        name="model.layers.0.mlp.up_proj",
        rotation=rotation,
        **{name: value for name, value in levels.items() if value is not None},
        **attributes,
    )
    return Example(layer, known, weight, stored.values)


def static_scale(activation: Operand) -> float:
    """A static scale for activations that are drawn from a normal distribution."""
    return INPUT_SCALE * 127 / activation.rule.max


def global_scale_of(x: Array, operand: Operand) -> float:
    """The scale over the scales of tiles that lets them use all of their format."""
    reach = (448.0 if operand.scale == "e4m3" else 122880.0) * operand.rule.max
    amax = np.abs(x).max()
    return float(np.float32(reach / amax if operand.global_scale == "divide" else amax / reach))


def quantized(x: Array, operand: Operand, given: float | None = None, outer: float | None = None) -> Quantized:
    """x [R, K] by the rule of an operand, or under a given scale for the whole of it; outer: its global scale."""
    rows, columns = x.shape
    high, wide = tile(operand.granularity, rows, columns)

    def over_tiles(values: Array, reduce: str) -> Array:
        filled = np.pad(values, ((0, -rows % high), (0, -columns % wide)))
        tiles = filled.reshape(-(-rows // high), high, -(-columns // wide), wide)
        return np.asarray(getattr(tiles, reduce)(axis=(1, 3), initial=0.0))

    def spread(grid: Array) -> Array:
        return np.repeat(np.repeat(grid, high, axis=0), wide, axis=1)[:rows, :columns]

    if not operand.symmetric:
        return shifted(x, operand, over_tiles(x, "min"), over_tiles(x, "max"), spread)
    amax = over_tiles(np.abs(x), "max")
    grid = scale_of(amax, operand, outer) if given is None else np.full_like(amax, given)
    effective = grid if outer is None else grid / outer if operand.global_scale == "divide" else grid * outer
    effective = effective.astype(np.float32).astype(np.float64)
    # A rule divides in float32, where values of few bits over a scale may be exactly halfway between two codes.
    scaled = x.astype(np.float32) / spread(effective).astype(np.float32)
    codes, values = coded(scaled.astype(np.float64), operand)
    return Quantized(codes, stored_scale(grid, operand), values * spread(effective))


def shifted(x: Array, operand: Operand, low: Array, high: Array, spread: Any) -> Quantized:
    """x by a rule with a zero point: the range of each tile, zero included, over all codes."""
    lowest, highest = (-128, 127) if operand.format == "int8" else (-8, 7)
    grid = (np.maximum(high - low, 2 * operand.rule.floor) / (2 * operand.rule.max)).astype(np.float32)
    if operand.packing in K_FIRST:
        grid = torch.from_numpy(grid).to(K_FIRST[operand.packing]).float().numpy()
    zero = np.clip(np.rint(lowest - low / grid), lowest, highest)
    codes = np.clip(np.rint(x.astype(np.float32) / spread(grid)) + spread(zero), lowest, highest)
    values = (codes - spread(zero)) * spread(grid)
    scale = stored_scale(grid, operand)
    return Quantized(packed(codes.astype(np.int8), operand), scale, values, packed_zero_points(zero, operand))


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
        plain = (np.maximum(amax, rule.floor) / rule.max).astype(np.float32).astype(np.float64)
        if operand.scale == "fp32":
            return plain
        table = E4M3 if operand.scale == "e4m3" else E5M3
        local = plain if outer is None else plain * outer if operand.global_scale == "divide" else plain / outer
        return table[np.maximum(nearest(local, table), 1)]
    fraction, power = np.frexp(np.maximum(amax, rule.floor))  # amax = fraction * 2**power, with 0.5 <= fraction < 1
    if rule.scale in ("even", "even175"):
        # The exponent of amax once it is rounded to the mantissa bits of an element, less that of the largest element.
        up = fraction >= 1 - 2.0 ** -((1 if rule.scale == "even175" else MANTISSA_BITS[operand.format]) + 2)
        exponent = power - 1 + up - LARGEST_EXPONENT[operand.format]
    else:
        assert rule.scale == "rceil"
        with np.errstate(divide="ignore"):
            exponent = np.ceil(np.log2(np.maximum(amax, rule.floor)) - np.log2(rule.max))
    exponent = np.where(np.maximum(amax, rule.floor) > 0, exponent, -127)
    return np.exp2(np.clip(exponent, -127, 127).astype(np.float64))


def stored_scale(grid: Array, operand: Operand) -> torch.Tensor:
    if operand.scale == "e8m0":
        return torch.from_numpy((np.log2(grid) + 127).astype(np.uint8))
    if operand.scale == "e4m3":
        return torch.from_numpy(nearest(grid, E4M3).astype(np.uint8)).view(torch.float8_e4m3fn)
    if operand.scale == "e5m3":
        return torch.from_numpy(nearest(grid, E5M3).astype(np.uint8))
    scale = torch.from_numpy(grid.astype(np.float32))
    if operand.packing in K_FIRST:
        return scale.t().contiguous().to(K_FIRST[operand.packing])
    return scale.reshape(1) if operand.granularity == "per_tensor" else scale


def coded(scaled: Array, operand: Operand) -> tuple[torch.Tensor, Array]:
    """Codes as they are stored, and the values of the codes."""
    assert operand.rule.round == "rne"
    if operand.format in ("int8", "int4"):
        most = int(operand.rule.max)
        values = np.clip(np.rint(scaled), -most - (most != operand.rule.max), most)
        stored = values.astype(np.int8)
        return packed(stored, operand), values
    magnitudes = TABLES[operand.format]
    index = nearest(np.abs(scaled), magnitudes)
    values = np.where(np.signbit(scaled), -magnitudes[index], magnitudes[index])
    sign = np.signbit(scaled).astype(np.uint8)
    if operand.format == "fp4_e2m1":
        nibbles = index.astype(np.uint8) | sign << 3
        return torch.from_numpy(nibbles[:, ::2] | nibbles[:, 1::2] << 4), values
    if operand.format.startswith("fp6"):
        quads = (index.astype(np.int64) | sign.astype(np.int64) << 5).reshape(len(index), -1, 4)
        words = (quads << (6 * np.arange(4))).sum(axis=2)
        stored = np.stack([words & 255, words >> 8 & 255, words >> 16], axis=2)
        return torch.from_numpy(stored.reshape(len(index), -1).astype(np.uint8)), values
    return torch.from_numpy(index.astype(np.uint8) | sign << 7).view(torch.float8_e4m3fn), values


def nearest(magnitudes: Array, table: Array) -> NDArray[np.int64]:
    """The index of the nearest entry, ties to the even one, the last one for all that is larger."""
    middles = (table[1:] + table[:-1]) / 2
    index = np.searchsorted(middles, magnitudes, side="left")
    tied = (index < len(middles)) & (magnitudes == middles[np.minimum(index, len(middles) - 1)])
    return index + (tied & (index % 2 == 1))


def codes_for(bound: Bound, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Any codes, and scales in the shape and format that a bound function takes them in."""
    activation = bound.activation
    assert activation is not None
    columns = packed_columns(activation.format, bound.k)
    codes = torch.randint(0, 100, (rows, columns), dtype=torch.uint8).view(activation.codes_dtype)
    shape = scale_shape(rows, bound.k, activation.granularity)
    if activation.scale == "e4m3":
        return codes, torch.ones(shape).to(torch.float8_e4m3fn)
    if activation.scale != "fp32":
        return codes, torch.full(shape, 127, dtype=torch.uint8)
    return codes, torch.tensor([0.5]) if activation.granularity == "per_tensor" else torch.rand(shape) + 0.5


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
