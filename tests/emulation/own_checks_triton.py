"""What test_emulation.py runs in a child with Triton's interpreter: AITER's Triton kernels against float64."""

from __future__ import annotations

from typing import Any

import aiter  # noqa: A004
import torch
from aiter import dtypes
from aiter.ops.shuffle import shuffle_weight
from aiter.ops.triton._triton_kernels import gemm_afp4wfp4 as afp4_kernels
from aiter.ops.triton.gemm_a8w8 import gemm_a8w8
from aiter.ops.triton.gemm_a8w8_blockscale import gemm_a8w8_blockscale
from aiter.ops.triton.gemm_a8w8_per_token_scale import gemm_a8w8_per_token_scale
from aiter.ops.triton.gemm_a8wfp4 import gemm_a8wfp4
from aiter.ops.triton.gemm_afp4wfp4 import gemm_afp4wfp4, gemm_afp4wfp4_preshuffled_weight_scales
from aiter.ops.triton.quant import dynamic_mxfp4_quant, dynamic_per_token_quant_fp8_i8
from aiter.utility.fp4_utils import e8m0_shuffle

from .own_checks import BF16, activation
from .reference import dequantized, random_fp4, random_fp8, random_int8, random_scales, refusal, relative_error


def eight_bit() -> dict[str, Any]:
    """8-bit GEMMs and quantizers."""
    found: dict[str, Any] = {}
    for m, n, k in [(5, 96, 272), (65, 40, 131)]:
        x, w, xs, ws = random_int8(m, k), random_int8(n, k), random_scales(m, 1), random_scales(n, 1)
        expected = dequantized(x, xs, 1, k) @ dequantized(w, ws, 1, k).T
        bias = torch.randn(n, dtype=BF16)
        found[f"int8_{m}"] = relative_error(gemm_a8w8(x, w, xs, ws, dtype=BF16), expected)
        found[f"int8_{m}_bias"] = relative_error(gemm_a8w8(x, w, xs, ws, bias, BF16), expected + bias.double())
        x, w = random_fp8(m, k, dtypes.fp8), random_fp8(n, k, dtypes.fp8)
        expected = dequantized(x, xs, 1, k) @ dequantized(w, ws, 1, k).T
        found[f"fp8_{m}"] = relative_error(gemm_a8w8(x, w, xs, ws, dtype=BF16), expected)
        found[f"per_token_{m}"] = relative_error(gemm_a8w8_per_token_scale(x, w, xs, ws, dtype=BF16), expected)
    found["flat_scales"] = refusal(lambda: gemm_a8w8_per_token_scale(x, w, xs.flatten(), ws.flatten(), dtype=BF16))
    for m, n, k in [(5, 200, 384), (33, 72, 256)]:
        x, w = random_fp8(m, k, dtypes.fp8), random_fp8(n, k, dtypes.fp8)
        xs, ws = random_scales(m, k // 128), random_scales(-(-n // 128), k // 128)
        expected = dequantized(x, xs, 1, 128) @ dequantized(w, ws, 128, 128).T
        found[f"blockscale_{m}"] = relative_error(gemm_a8w8_blockscale(x, w, xs, ws, dtype=BF16), expected)
    x = activation(5, 384)
    for kind, dtype in [("int8", torch.int8), ("fp8", dtypes.fp8)]:
        codes, scales = torch.empty(5, 384, dtype=dtype), torch.empty(5, 1)
        dynamic_per_token_quant_fp8_i8(codes, x, scales)
        found[f"{kind}_quantizer"] = relative_error(dequantized(codes, scales, 1, 384), x.double())
    return found


def on_gfx942() -> dict[str, Any]:
    """The 8-bit kernels with fnuz, and FP4, which is refused."""
    codes, scales = random_fp4(32, 256)
    return {**eight_bit(), "fp4": refusal(lambda: gemm_afp4wfp4(codes, codes, scales, scales))}


def on_gfx950() -> dict[str, Any]:
    """The 8-bit kernels with fn, FP4, and a compiled quantizer in front of a Triton GEMM."""
    found = eight_bit()
    for m, n, k in [(5, 64, 512), (16, 96, 256), (33, 96, 512)]:
        x = activation(m, k)
        codes, scales = dynamic_mxfp4_quant(x)
        found[f"mxfp4_form_{m}"] = [str(codes.dtype), str(scales.dtype), list(scales.shape), list(scales.stride())]
        found[f"mxfp4_quantizer_{m}"] = relative_error(dequantized(codes, scales, 1, 32), x.double())
        weight, weight_scales = random_fp4(n, k)
        expected = dequantized(codes, scales, 1, 32) @ dequantized(weight, weight_scales, 1, 32).T
        y = gemm_afp4wfp4(codes, weight, scales, weight_scales, dtype=BF16)
        found[f"afp4wfp4_{m}"] = relative_error(y, expected)
        codes, scales = aiter.per_1x32_f4_quant_hip(x, shuffle=m >= 32)
        plain = aiter.per_1x32_f4_quant_hip(x, shuffle=False)[1]
        expected = dequantized(codes, plain, 1, 32) @ dequantized(weight, weight_scales, 1, 32).T
        folded = e8m0_shuffle(weight_scales)[: -(-n // 32) * 32].view(-1, k)
        row_scales = scales.view(torch.uint8).view(-1, k) if m >= 32 else scales.view(torch.uint8)
        tiles = shuffle_weight(weight, (16, 16)).view(n // 16, -1)

        def multiply(
            x_scales: torch.Tensor, w: torch.Tensor, w_scales: torch.Tensor, x: torch.Tensor = codes
        ) -> torch.Tensor:
            return gemm_afp4wfp4_preshuffled_weight_scales(x.view(torch.uint8), w, x_scales, w_scales, dtype=BF16)

        found[f"preshuffled_{m}"] = relative_error(multiply(row_scales, tiles, folded), expected)
        flat = weight.view(n // 16, -1)
        found[f"preshuffled_{m}_plain_weight"] = relative_error(multiply(row_scales, flat, folded), expected)
    for m, n, k in [(5, 64, 512), (33, 96, 1024), (130, 40, 288)]:
        x, xs = random_fp8(m, k, dtypes.fp8), random_scales(m, 1)
        weight, weight_scales = random_fp4(n, k)
        expected = dequantized(x, xs, 1, k) @ dequantized(weight, weight_scales, 1, 32).T
        y = torch.full((m, n), torch.nan, dtype=BF16)
        returned = gemm_a8wfp4(x=x, w=weight, x_scales=xs, w_scales=weight_scales, dtype=BF16, y=y)
        found[f"a8wfp4_{m}"] = [returned is None, relative_error(y, expected)]
    config = afp4_kernels._get_config(5, 64, 256)
    found["config_keys"] = [type(config).__name__, sorted(config), config is afp4_kernels._get_config(6, 64, 256)]
    found["config_large"] = refusal(lambda: afp4_kernels._get_config(300, 8192, 4096, True))
    own = {**afp4_kernels._get_config(5, 64, 256), "NUM_KSPLIT": 1}
    codes, scales = random_fp4(5, 512)
    weight, weight_scales = random_fp4(64, 512)
    expected = dequantized(codes, scales, 1, 32) @ dequantized(weight, weight_scales, 1, 32).T
    found["afp4wfp4_own_config"] = relative_error(
        gemm_afp4wfp4(codes, weight, scales, weight_scales, config=own), expected
    )
    found["fp4_dtype"] = refusal(lambda: gemm_afp4wfp4(codes.view(dtypes.fp4x2), weight, scales, weight_scales))
    e8m0 = scales.view(dtypes.fp8_e8m0)
    found["e8m0_dtype"] = refusal(lambda: relative_error(gemm_afp4wfp4(codes, weight, e8m0, weight_scales), expected))
    return found
