"""Random layers and inputs of each scheme, and what a kernel's own rule makes of an input, in float64 at the end."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .compiled_gemm_fp4 import encode_codes
from .reference import FP4, dequantized, random_fp4

if TYPE_CHECKING:
    from collections.abc import Callable

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
LARGEST_FP8 = {torch.float8_e4m3fn: 448.0, torch.float8_e4m3fnuz: 240.0}
TILES = {
    "int8_ptpc": (1, None),
    "int8_tensor_static": (None, None),
    "fp8_block128": (128, 128),
    "fp8_block128_ue8m0": (128, 128),
    "fp8_ptpc": (1, None),
    "fp8_token_x_tensor": (None, None),
    "fp8_tensor_static": (None, None),
    "fp8_tensor_dynamic": (None, None),
    "fp8_w8a16_block128": (128, 128),
    "fp8_block128_a_mxfp8": (128, 128),
    "mxfp4": (1, 32),
    "mxfp4_a_fp8_tensor": (1, 32),
    "mxfp4_a_fp8_token": (1, 32),
    "mxfp8": (1, 32),
    "mxfp4_a_mxfp8": (1, 32),
    "nvfp4": (1, 16),
    "nvfp4_modelopt": (1, 16),
}
"""Rows and columns of a weight that share a scale; None for all of them."""
FP4_ACTIVATIONS = ("mxfp4", "nvfp4", "nvfp4_modelopt")

ACTIVATIONS = {"fp8_block128_a_mxfp8": 32, "mxfp4_a_fp8_tensor": None, "mxfp4_a_fp8_token": None}
"""Columns of x that share a scale, where they are not those of the weight."""


@dataclass
class Layer:
    """What a checkpoint stores, with the attributes that qscheme reads; kind is the scheme whatever it is called."""

    kind: str
    scheme: str
    weight: torch.Tensor
    weight_scale: torch.Tensor
    input_scale: torch.Tensor | None
    bias: torch.Tensor | None
    out_dtype: torch.dtype
    name: str = "layer"
    rotation: int | None = None
    prequantized: bool = False
    weight_global_scale: torch.Tensor | None = None
    input_global_scale: torch.Tensor | None = None

    def values(self) -> torch.Tensor:
        """The weight [N, K] in float64."""
        n, k = self.weight.shape[0], self.weight.shape[1] * (2 if self.kind.startswith(("mxfp4", "nvfp4")) else 1)
        rows, columns = TILES[self.kind]
        scale = self.weight_scale.reshape(-1, self.weight_scale.shape[-1]) if columns else self.weight_scale.view(-1, 1)
        return self.level(self.weight_global_scale) * dequantized(self.weight, scale, rows or n, columns or k)

    def level(self, global_scale: torch.Tensor | None) -> float:
        """What a global scale multiplies values by."""
        if global_scale is None:
            return 1.0
        return 1 / float(global_scale) if self.kind == "nvfp4" else float(global_scale)


def random_layer(scheme: str, n: int, k: int, bias: bool, out_dtype: str, stored_scales: str = "fp32") -> Layer:
    """Return a layer with scales that differ much from tile to tile."""
    dtype = DTYPES[out_dtype]
    added = (torch.randn(n) * 3).to(dtype) if bias else None
    if scheme.startswith("mxfp4"):
        weight, scale = random_fp4(n, k)
        given = torch.tensor([0.01]) if scheme == "mxfp4_a_fp8_tensor" else None
        return Layer(scheme, scheme, weight, scale, given, added, dtype)
    if scheme == "mxfp8":
        scale = torch.randint(108, 118, (n, k // 32), dtype=torch.uint8)
        return Layer(scheme, scheme, _random_fp8_bytes(n, k), scale, None, added, dtype)
    if scheme.startswith("nvfp4"):
        weight, scale = random_fp4(n, k)[0], torch.randint(0x20, 0x70, (n, k // 16), dtype=torch.uint8)
        levels = [torch.tensor([value if scheme == "nvfp4" else 1 / value]) for value in (1500.0, 70.0)]
        return Layer(
            scheme, scheme, weight, scale.view(torch.float8_e4m3fn), None, added, dtype,
            weight_global_scale=levels[0], input_global_scale=levels[1],
        )  # fmt: skip
    if "_block128" in scheme:
        weight = _random_fp8_bytes(n, k)
        scale = _spread(-(-n // 128), -(-k // 128)) * 2e-4
        if stored_scales == "e8m0" or scheme == "fp8_block128_a_mxfp8":
            scale = torch.randint(110, 116, scale.shape, dtype=torch.uint8)
        return Layer(scheme, scheme, weight, scale, None, added, dtype)
    if scheme.startswith("fp8"):
        scale = _spread(n, 1) * 2e-4 if scheme == "fp8_ptpc" else torch.tensor([2e-4])
        given = torch.tensor([0.01]) if scheme == "fp8_tensor_static" else None
        return Layer(scheme, scheme, _random_fp8_bytes(n, k), scale, given, added, dtype)
    weight = torch.randint(-127, 128, (n, k), dtype=torch.int8)
    if scheme == "int8_tensor_static":
        return Layer(scheme, scheme, weight, torch.tensor([7e-4]), torch.tensor([0.02]), added, dtype)
    return Layer(scheme, scheme, weight, _spread(n, 1) * 7e-4, None, added, dtype)


def random_input(scheme: str, m: int, k: int, dtype: str) -> torch.Tensor:
    """Return x [M, K] whose rows and blocks of 32 columns have very different sizes; the last of many rows is zero."""
    x = torch.randn(m, k)
    if ("_tensor_" not in scheme and scheme != "mxfp4_a_fp8_tensor") or scheme == "fp8_token_x_tensor":
        rows = torch.logspace(-1, 1, m)[torch.randperm(m)].view(m, 1)
        x = x * rows * _spread(m, -(-k // 32)).repeat_interleave(32, dim=1)[:, :k]
        if m > 2:
            x[-1] = 0
    return x.to(DTYPES[dtype])


def _spread(rows: int, columns: int) -> torch.Tensor:
    return torch.exp2(torch.rand(rows, columns) * 6 - 3)


def _random_fp8_bytes(rows: int, columns: int) -> torch.Tensor:
    magnitudes = torch.randint(0, 0x7F, (rows, columns), dtype=torch.uint8)
    return (magnitudes | torch.randint(0, 2, (rows, columns), dtype=torch.uint8) << 7).view(torch.float8_e4m3fn)


def rotated(x: torch.Tensor) -> torch.Tensor:
    """Return x with each block of 32 columns times the orthonormal Hadamard matrix, in the dtype of x.

    In float32, as qscheme says that it rotates: a code may flip where a last bit of the rotated value does.
    """
    matrix = torch.ones(1, 1)
    for _ in range(5):
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)), 0)
    blocks = x.float().view(x.shape[0], -1, 32) @ (matrix * (1 / math.sqrt(32)))
    return blocks.view(x.shape).to(x.dtype)


Quantized = tuple[torch.Tensor, torch.Tensor]


def int8_truncated(x: torch.Tensor) -> Quantized:
    """AITER's compiled quantizer: amax times 1/127, values times the reciprocal of the scale, cut toward zero."""
    scale = x.float().abs().amax(1, keepdim=True) * torch.tensor(1 / 127)
    codes = (x.float() * (1 / scale)).nan_to_num(0).trunc()
    return codes.to(torch.int8), scale


def int8_nearest(x: torch.Tensor) -> Quantized:
    """The scheme's rule: amax over 127, values over the scale, to the nearest, ties to even."""
    scale = x.float().abs().amax(1, keepdim=True).clamp(min=1e-10) / 127
    return (x.float() / scale).round().clamp(-127, 127).to(torch.int8), scale


def int8_under(scale: torch.Tensor) -> Callable[[torch.Tensor], Quantized]:
    """The scheme's rule under a given scale."""
    return lambda x: ((x.float() / scale).round().clamp(-127, 127).to(torch.int8), scale)


def fp8_rows(fp8: torch.dtype, divide: bool = False, every_row: bool = False) -> Callable[[torch.Tensor], Quantized]:
    """AITER's compiled quantizer: for each row, amax times the reciprocal of the largest code, and no floor.

    The scheme's rule divides instead, and has a floor; it may have one scale for every row.
    """

    def quantize(x: torch.Tensor) -> Quantized:
        single = x.float()
        amax = single.abs().amax().view(1, 1) if every_row else single.abs().amax(1, keepdim=True)
        if divide:
            # 448 is half as much in E4M3FNUZ, where every code has half the value.
            scale = amax.clamp(min=1e-10) / (224.0 if fp8 == torch.float8_e4m3fnuz else 448.0)
            scaled = single / scale
        else:
            scale = amax * torch.tensor(1 / LARGEST_FP8[fp8])
            scaled = (single * (1 / scale)).nan_to_num(nan=-LARGEST_FP8[fp8])
        codes = scaled.clamp(-LARGEST_FP8[fp8], LARGEST_FP8[fp8]).to(fp8)
        return codes, scale.view(1) if every_row else scale

    return quantize


def fp8_under(scale: torch.Tensor, fp8: torch.dtype, divide: bool = False) -> Callable[[torch.Tensor], Quantized]:
    """The scheme's rule under a given scale, or AITER's, which multiplies by the reciprocal.

    Codes of E4M3FNUZ stand for half of what those of E4M3FN do, so the scale is doubled for them.
    """
    doubled = scale * (2 if fp8 == torch.float8_e4m3fnuz else 1)
    largest = LARGEST_FP8[fp8]

    def quantize(x: torch.Tensor) -> Quantized:
        scaled = x.float() / doubled if divide else x.float() * (1 / doubled)
        return scaled.clamp(-largest, largest).to(fp8), doubled

    return quantize


def fp8_powers(fp8: torch.dtype, size: int = 128, stored: bool = False) -> Callable[[torch.Tensor], Quantized]:
    """In groups of 128 the least power of two that amax over the largest code does not exceed; stored: as E8M0."""

    def quantize(x: torch.Tensor) -> Quantized:
        groups = x.float().view(x.shape[0], -1, size)
        amax = groups.abs().amax(2).clamp(min=1e-10)
        largest = 224.0 if fp8 == torch.float8_e4m3fnuz else 448.0
        mantissa, exponent = torch.frexp(amax.double() / largest)
        scale = torch.exp2((exponent - (mantissa == 0.5).to(torch.int32)).double()).float()
        codes = (groups / scale.unsqueeze(2)).clamp(-largest, largest).view(x.shape).to(fp8)
        return codes, (scale.log2() + 127).to(torch.uint8) if stored else scale

    return quantize


def fp4_levels(level: float) -> Callable[[torch.Tensor], Quantized]:
    """NVFP4: in blocks of 16 amax over 6 and over a level, in E4M3; codes to the nearest, ties to even.

    level: what the global scale multiplies scales by.
    """

    def quantize(x: torch.Tensor) -> Quantized:
        blocks = x.float().view(x.shape[0], -1, 16)
        scale = (blocks.abs().amax(2) / 6 / level).clamp(max=448).to(torch.float8_e4m3fn)
        grid = (scale.float() * level).unsqueeze(2)
        scaled = torch.where(grid == 0, 0.0, blocks / grid)
        return encode_codes(scaled.view(x.shape)), scale

    return quantize


def mxfp8_blocks(x: torch.Tensor) -> Quantized:
    """AITER's Triton quantizer: in blocks of 32 the exponent of amax, one more from a mantissa of 1.75 on, less 8."""
    blocks = x.double().view(x.shape[0], -1, 32)
    mantissa, exponent = torch.frexp(blocks.abs().amax(2))
    exponent = torch.where(mantissa == 0, -127, exponent - 9 + (mantissa * 2 >= 1.75).to(torch.int32))
    codes = (blocks / torch.exp2(exponent.double()).unsqueeze(2)).float()
    return codes.view(x.shape).to(torch.float8_e4m3fn), (exponent + 127).to(torch.uint8)


def as_it_is(x: torch.Tensor) -> Quantized:
    """An x that is not quantized, and the scale that changes nothing."""
    return x, torch.ones(1)


def fp8_groups(fp8: torch.dtype, divide: bool = False) -> Callable[[torch.Tensor], Quantized]:
    """AITER's compiled quantizer: in groups of 128, amax of at least 1e-10 times the reciprocal of the largest code.

    The scheme's rule divides instead.
    """

    def quantize(x: torch.Tensor) -> Quantized:
        groups = x.float().view(x.shape[0], -1, 128)
        amax = groups.abs().amax(2).clamp(min=1e-10)
        scale = amax / LARGEST_FP8[fp8] if divide else amax * torch.tensor(1 / LARGEST_FP8[fp8])
        scaled = groups / scale.unsqueeze(2) if divide else groups * (1 / scale).unsqueeze(2)
        codes = scaled.clamp(-LARGEST_FP8[fp8], LARGEST_FP8[fp8])
        return codes.view(x.shape).to(fp8), scale

    return quantize


BETWEEN = (torch.tensor(FP4[:7], dtype=torch.float64) + torch.tensor(FP4[1:8], dtype=torch.float64)) / 2
"""The values in the middle of two that FP4 has: ties."""


def fp4_blocks(rounds_up_from: float, ties_away: bool = False) -> Callable[[torch.Tensor], Quantized]:
    """MXFP4 in blocks of 32: the exponent of amax, one more from a mantissa on, less 2; codes to the nearest.

    AITER's compiled quantizer of this release rounds exponents up from 1.5 and ties of codes to even, its Triton
    quantizer exponents from 1.75 and ties away from zero.
    """

    def quantize(x: torch.Tensor) -> Quantized:
        blocks = x.double().view(x.shape[0], -1, 32)
        amax = blocks.abs().amax(2).clamp(min=2.0**-125)
        mantissa, exponent = torch.frexp(amax)
        exponent = exponent - 3 + (mantissa * 2 >= rounds_up_from).to(torch.int32)
        scaled = blocks / torch.exp2(exponent.double()).unsqueeze(2)
        size = scaled.abs().contiguous()
        lower, upper = torch.bucketize(size, BETWEEN), torch.bucketize(size, BETWEEN, right=True)
        code = (upper if ties_away else torch.where(lower % 2 == 1, upper, lower)) + 8 * (scaled < 0)
        code = code.to(torch.uint8).view(x.shape)
        return code[:, ::2] | code[:, 1::2] << 4, (exponent + 127).to(torch.uint8)

    return quantize


def product(layer: Layer, codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The layer of quantized rows [M, K] in float64 [M, N], bias included."""
    columns = ACTIVATIONS.get(layer.kind, TILES[layer.kind][1])
    k = codes.shape[1] * (2 if layer.kind in FP4_ACTIVATIONS else 1)
    scales = scale.view(-1, 1) if scale.dim() == 1 else scale
    columns = k if scales.shape[1] == 1 else columns
    x = dequantized(codes, scales.expand(codes.shape[0], scales.shape[1]), 1, columns or k)
    y = layer.level(layer.input_global_scale) * x @ layer.values().T
    return y if layer.bias is None else y + layer.bias.double()


def largest_row_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest over the rows of the norm of the difference over the norm of the expected row; inf for nonsense."""
    if found.shape != expected.shape or not bool(found.double().isfinite().all()):
        return math.inf
    difference, size = (found.double() - expected).norm(dim=1), expected.norm(dim=1)
    error = torch.where(difference == 0, 0.0, difference / size)
    return float(error.max())
