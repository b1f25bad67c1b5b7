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

E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
E4M3 = np.array(
    [2.0**-9 * byte if byte < 8 else 2.0 ** (byte // 8 - 7) * (1 + byte % 8 / 8) for byte in range(127)]
)  # every magnitude of E4M3FN, by its byte


@dataclass(frozen=True)
class Quantized:
    """Codes as stored, scales in the shape of their granularity, and what both stand for."""

    codes: torch.Tensor
    scale: torch.Tensor
    values: Array


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
        y = quantized(values, self.scheme.activation, given).values @ self.stored.T
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
    stored = quantized(rotated(weight) if rotation else weight, known.weight)
    layer = SimpleNamespace(
        scheme=scheme,
        weight=stored.codes,
        weight_scale=stored.scale,
        input_scale=torch.tensor(INPUT_SCALE) if known.activation.mode == "static" else None,
        bias=None if bias is None else torch.from_numpy(draw.standard_normal(n)).to(bias),
        out_dtype=out_dtype,
        name="model.layers.0.mlp.up_proj",
        rotation=rotation,
        **attributes,
    )
    return Example(layer, known, weight, stored.values)


def quantized(x: Array, operand: Operand, given: float | None = None) -> Quantized:
    """x [R, K] by the rule of an operand, or under a given scale for the whole of it."""
    rows, columns = x.shape
    high, wide = tile(operand.granularity, rows, columns)
    filled = np.pad(np.abs(x), ((0, -rows % high), (0, -columns % wide)))
    amax = filled.reshape(-(-rows // high), high, -(-columns // wide), wide).max(axis=(1, 3), initial=0.0)
    grid = scale_of(amax, operand) if given is None else np.full_like(amax, given)
    spread = np.repeat(np.repeat(grid, high, axis=0), wide, axis=1)[:rows, :columns]
    codes, values = coded(x / spread, operand)
    return Quantized(codes, stored_scale(grid, operand), values * spread)


def tile(granularity: Granularity, rows: int, columns: int) -> tuple[int, int]:
    if granularity == "per_tensor":
        return max(rows, 1), columns
    if granularity in ("per_token", "per_channel"):
        return 1, columns
    high, _, wide = granularity.partition("x")
    return int(high), int(wide)


def scale_of(amax: Array, operand: Operand) -> Array:
    """The scales of tiles by their largest magnitudes, as near as the format of the scales has them."""
    rule: Rule = operand.rule
    if rule.scale == "amax_div":
        return (np.maximum(amax, rule.floor) / rule.max).astype(np.float32).astype(np.float64)
    assert rule.scale == "even" and operand.format == "fp4_e2m1" and operand.scale == "e8m0"
    fraction, power = np.frexp(amax)  # amax = fraction * 2**power, with 0.5 <= fraction < 1
    # The exponent of amax once it is rounded to the one bit of mantissa that an element has, less that of 4 = 2**2.
    exponent = np.where(amax > 0, power - 1 + (fraction >= 0.875) - 2, -127)
    return np.exp2(np.clip(exponent, -127, 127).astype(np.float64))


def stored_scale(grid: Array, operand: Operand) -> torch.Tensor:
    if operand.scale == "e8m0":
        return torch.from_numpy((np.log2(grid) + 127).astype(np.uint8))
    scale = torch.from_numpy(grid.astype(np.float32))
    return scale.reshape(1) if operand.granularity == "per_tensor" else scale


def coded(scaled: Array, operand: Operand) -> tuple[torch.Tensor, Array]:
    """Codes as they are stored, and the values of the codes."""
    assert operand.rule.round == "rne"
    if operand.format == "int8":
        values = np.clip(np.rint(scaled), -127, 127)
        return torch.from_numpy(values.astype(np.int8)), values
    magnitudes = E2M1 if operand.format == "fp4_e2m1" else E4M3
    index = nearest(np.abs(scaled), magnitudes)
    values = np.where(np.signbit(scaled), -magnitudes[index], magnitudes[index])
    sign = np.signbit(scaled).astype(np.uint8)
    if operand.format == "fp4_e2m1":
        nibbles = index.astype(np.uint8) | sign << 3
        return torch.from_numpy(nibbles[:, ::2] | nibbles[:, 1::2] << 4), values
    return torch.from_numpy(index.astype(np.uint8) | sign << 7).view(torch.float8_e4m3fn), values


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
