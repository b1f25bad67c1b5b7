"""What test_emulation.py runs in child processes: AITER's own wrappers, called directly, against float64."""

from __future__ import annotations

from typing import Any

import aiter  # noqa: A004
import torch
from aiter import dtypes
from aiter.ops.shuffle import shuffle_weight
from aiter.utility.fp4_utils import e8m0_shuffle

from .device import CALLS
from .reference import (
    dequantized,
    random_fp4,
    random_fp8,
    random_int8,
    random_scales,
    refusal,
    relative_error,
    values_of_scales,
)

BF16 = torch.bfloat16


def activation(rows: int, columns: int) -> torch.Tensor:
    """Return a bf16 activation whose rows have very different sizes."""
    return (torch.randn(rows, columns) * torch.logspace(-2, 2, rows).view(-1, 1)).to(BF16)


def padded(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Return fp8 codes whose rows are 64 apart from dense."""
    return torch.cat((random_fp8(rows, columns, dtype), random_fp8(rows, 64, dtype)), dim=1)[:, :columns]


def rowwise() -> dict[str, Any]:
    """Per-token times per-channel GEMMs."""
    found: dict[str, Any] = {}
    for name, m, n, k in [
        ("untuned", 5, 96, 272),
        ("tuned", 35, 192, 1024),
        ("one_row", 1, 64, 512),
        ("tall", 65, 72, 1040),
    ]:
        for kind, x, w in [
            ("int8", random_int8(m, k), random_int8(n, k)),
            ("fp8", random_fp8(m, k, dtypes.fp8), random_fp8(n, k, dtypes.fp8)),
        ]:
            xs, ws = random_scales(m, 1), random_scales(n, 1)
            expected = dequantized(x, xs, 1, k) @ dequantized(w, ws, 1, k).T
            bias = torch.randn(n, dtype=BF16)
            y = aiter.gemm_a8w8_CK(x, w, xs, ws, bias=None, dtype=BF16)
            found[f"{kind}_{name}"] = relative_error(y, expected)
            found[f"{name}_kernel"] = CALLS[-1][1]
            y = aiter.gemm_a8w8_CK(XQ=x, WQ=w, x_scale=xs, w_scale=ws.view(1, n), bias=bias, dtype=BF16)
            found[f"{kind}_{name}_bias"] = relative_error(y, expected + bias.double())
    m, n, k = 5, 96, 272
    x, w, xs, ws = random_int8(m, k), random_int8(n, k), random_scales(m, 1), random_scales(n, 1)
    expected = dequantized(x, xs, 1, k) @ dequantized(w, ws, 1, k).T
    wide = torch.cat((x, random_int8(m, k)), dim=1)[:, :k]
    bias = torch.randn(n) * expected.abs().mean().float()
    found["int8_strided_x"] = relative_error(aiter.gemm_a8w8(wide, w, xs, ws), expected)
    found["int8_swapped_scales"] = refusal(lambda: aiter.gemm_a8w8(x, w, ws, xs))
    found["int8_one_scale"] = refusal(lambda: aiter.gemm_a8w8(x, w, torch.ones(1), ws))
    found["int8_expanded_scale"] = refusal(lambda: aiter.gemm_a8w8(x, w, torch.ones(1, 1).expand(m, 1), ws))
    found["fp32_bias"] = refusal(lambda: aiter.gemm_a8w8(x, w, xs, ws, bias, BF16))
    found["fp32_output"] = refusal(lambda: aiter.gemm_a8w8(x, w, xs, ws, None, torch.float32))
    found["odd_k"] = refusal(lambda: aiter.gemm_a8w8(random_int8(m, 264), random_int8(n, 264), xs, ws))
    found["odd_n"] = refusal(lambda: aiter.gemm_a8w8(x, random_int8(n + 1, k), xs, random_scales(n + 1, 1)))
    other = torch.float8_e4m3fn if dtypes.fp8 == torch.float8_e4m3fnuz else torch.float8_e4m3fnuz
    found["other_fp8"] = refusal(lambda: aiter.gemm_a8w8(random_fp8(m, k, other), random_fp8(n, k, other), xs, ws))
    split = aiter.gemm_a8w8(x, w, xs, ws, bias.to(BF16), BF16, 1)
    found["split_bias_twice"] = relative_error(split, expected + 2 * bias.to(BF16).double())
    xq, wq = random_fp8(7, 1024, dtypes.fp8), random_fp8(192, 1024, dtypes.fp8)
    xs, ws = random_scales(7, 1), random_scales(192, 1)
    expected = dequantized(xq, xs, 1, 1024) @ dequantized(wq, ws, 1, 1024).T
    y = aiter.gemm_a8w8_bpreshuffle(xq, shuffle_weight(wq, (16, 16)), xs, ws, dtype=torch.float16)
    found["bpreshuffle"] = relative_error(y, expected)
    found["bpreshuffle_unshuffled"] = relative_error(aiter.gemm_a8w8_bpreshuffle(xq, wq, xs, ws), expected)
    return found


def blockscale() -> dict[str, Any]:
    """Block-scaled GEMMs."""
    found: dict[str, Any] = {}
    for name, m, n, k in [("tuned", 35, 192, 1024), ("odd", 33, 200, 384), ("one_row", 1, 256, 640)]:
        x, w = padded(m, k, dtypes.fp8), random_fp8(n, k, dtypes.fp8)
        xs, ws = random_scales(m, k // 128), random_scales(-(-n // 128), k // 128)
        expected = dequantized(x, xs, 1, 128) @ dequantized(w, ws, 128, 128).T
        y = aiter.gemm_a8w8_blockscale(x, w, xs, ws, dtype=BF16)
        found[name] = relative_error(y, expected)
        found[f"{name}_kernel"] = CALLS[-1][1]
        major = xs.t().contiguous().view(m, k // 128)
        found[f"{name}_k_major"] = relative_error(aiter.gemm_a8w8_blockscale(x, w, major, ws), expected)
        if n % 16 == 0:
            shuffled = shuffle_weight(w, (16, 16))
            call = aiter.gemm_a8w8_blockscale_bpreshuffle
            found[f"{name}_preshuffled"] = relative_error(call(x, shuffled, major, ws, BF16), expected)
            found[f"{name}_preshuffled_row_major"] = relative_error(call(x, shuffled, xs, ws, BF16), expected)
            found[f"{name}_unshuffled"] = relative_error(call(x, w, major, ws, BF16), expected)
            found[f"{name}_strided_scale"] = relative_error(
                call(x, shuffled, xs.t().contiguous().t(), ws, BF16), expected
            )
    x, w = random_fp8(7, 384, dtypes.fp8), random_fp8(192, 384, dtypes.fp8)
    ws = random_scales(2, 3)
    found["few_scales"] = refusal(lambda: aiter.gemm_a8w8_blockscale(x, w, torch.ones(7, 1), ws))
    found["e8m0_scales"] = refusal(lambda: aiter.gemm_a8w8_blockscale(x, w, torch.ones(7, 3).to(BF16), ws.to(BF16)))
    return found


def quantizers() -> dict[str, Any]:
    """Quantizers with float32 scales."""
    found: dict[str, Any] = {}
    x = activation(5, 384)
    for kind, dtype, largest in [("int8", torch.int8, 127), ("fp8", dtypes.fp8, torch.finfo(dtypes.fp8).max)]:
        codes, scales = aiter.per_token_quant_hip(x, quant_dtype=dtype)
        found[f"{kind}_token_form"] = [str(codes.dtype), list(scales.shape), list(scales.stride()), str(scales.dtype)]
        found[f"{kind}_token_error"] = relative_error(dequantized(codes, scales, 1, 384), x.double())
        amax = x.double().abs().amax(dim=1, keepdim=True)
        found[f"{kind}_token_scale"] = relative_error(scales, amax / largest)
        codes, scales = aiter.per_tensor_quant_hip(x, quant_dtype=dtype)
        found[f"{kind}_tensor_form"] = [
            list(scales.shape),
            relative_error(scales.view(1, 1), x.double().abs().amax().view(1, 1) / largest),
        ]
        given = torch.tensor([0.5])
        codes, scales = aiter.per_tensor_quant_hip(x, scale=given, quant_dtype=dtype)
        found[f"{kind}_static_largest"] = float(codes.double().abs().max())
        codes, scales = aiter.per_token_quant_hip(torch.zeros(2, 256, dtype=BF16), quant_dtype=dtype)
        found[f"{kind}_zero_row"] = [float(codes.double().abs().max()), float(scales.max())]
    codes, scales = aiter.per_token_quant_hip(x, quant_dtype=torch.int8)
    below = (x.double() / scales.double()).abs() - codes.double().abs()
    found["int8_truncates"] = [float(below.min()) > -1e-4, float(below.max()) > 0.9]
    codes, _ = aiter.per_tensor_quant_hip(
        torch.full((1, 4), 130.0, dtype=BF16), scale=torch.ones(1), quant_dtype=torch.int8
    )
    found["int8_wraps"] = codes.tolist()
    for kind, dtype in [("int8", torch.int8), ("fp8", dtypes.fp8)]:
        plain, rows = aiter.per_group_quant_hip(x, quant_dtype=dtype, group_size=128)
        major, columns = aiter.per_group_quant_hip(x, quant_dtype=dtype, group_size=128, transpose_scale=True)
        found[f"{kind}_group_form"] = [list(rows.shape), list(columns.shape), list(columns.stride())]
        found[f"{kind}_group_error"] = relative_error(dequantized(plain, rows, 1, 128), x.double())
        found[f"{kind}_group_transposed"] = torch.equal(columns.flatten().view(3, 5).T, rows)
        found[f"{kind}_group_not_transposed"] = torch.equal(columns, rows)
        found[f"{kind}_same_codes"] = torch.equal(plain.view(torch.uint8), major.view(torch.uint8))
    wide = activation(5, 512)[:, :384]
    found["strided"] = refusal(lambda: aiter.per_token_quant_hip(wide, quant_dtype=torch.int8))
    found["fp32_input"] = refusal(lambda: aiter.per_token_quant_hip(x.float(), quant_dtype=torch.int8))
    found["k_not_4"] = refusal(lambda: aiter.per_token_quant_hip(activation(3, 254), quant_dtype=torch.int8))
    found["static_token"] = refusal(
        lambda: aiter.per_token_quant_hip(x, scale=torch.ones(5, 1), quant_dtype=torch.int8)
    )
    return found


def multiplied(
    codes: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, weight_scales: torch.Tensor
) -> torch.Tensor:
    """Multiply with gemm_a4w4 into an output with whole groups of 32 rows, and return the rows that count."""
    rows = codes.shape[0]
    out = torch.empty(-(-rows // 32) * 32, weight.shape[0], dtype=BF16)
    aiter.gemm_a4w4(
        codes, weight.view(dtypes.fp4x2), scales, weight_scales.view(dtypes.fp8_e8m0), out, bpreshuffle=True
    )
    return out[:rows]


def fp4_shape(m: int, n: int, k: int) -> dict[str, Any]:
    """FP4 quantizer and GEMM of one shape."""
    found: dict[str, Any] = {}
    x = activation(m, k)
    codes, scales = aiter.per_1x32_f4_quant_hip(x, quant_dtype=dtypes.fp4x2, shuffle=False)
    swizzled_codes, swizzled = aiter.per_1x32_f4_quant_hip(x, quant_dtype=dtypes.fp4x2, shuffle=True)
    found["form"] = [str(codes.dtype), str(scales.dtype), list(scales.shape), list(swizzled.shape)]
    found["quantizer_error"] = relative_error(dequantized(codes, scales, 1, 32), x.double())
    found["same_codes"] = torch.equal(codes.view(torch.uint8), swizzled_codes.view(torch.uint8))
    padding = torch.full((-(-m // 256) * 256, -(-(k // 32) // 8) * 8), 0xAA, dtype=torch.uint8)
    padding[:m, : k // 32] = scales.view(torch.uint8)
    found["swizzle"] = torch.equal(e8m0_shuffle(padding), swizzled.view(torch.uint8))
    weight, weight_scales = random_fp4(n, k)
    shuffled, prepared = shuffle_weight(weight, (16, 16)), e8m0_shuffle(weight_scales)
    plain = torch.zeros_like(prepared)
    plain[:n, : k // 32] = weight_scales
    expected = dequantized(codes, scales, 1, 32) @ dequantized(weight, weight_scales, 1, 32).T
    found["gemm"] = relative_error(multiplied(codes, shuffled, swizzled, prepared), expected)
    found["kernel"] = list(CALLS[-1])
    found["unshuffled_weight"] = relative_error(multiplied(codes, weight, swizzled, prepared), expected)
    found["plain_weight_scales"] = relative_error(multiplied(codes, shuffled, swizzled, plain), expected)
    found["unswizzled_scales"] = refusal(multiplied, codes, shuffled, scales, prepared)
    found["bytes_as_input"] = refusal(multiplied, codes.view(torch.uint8), shuffled, swizzled, prepared)
    operands = (codes, shuffled.view(dtypes.fp4x2), swizzled, prepared.view(dtypes.fp8_e8m0))
    found["small_output"] = refusal(aiter.gemm_a4w4, *operands, torch.empty(m, n, dtype=BF16))
    found["half"] = refusal(aiter.gemm_a4w4, *operands, torch.empty(-(-m // 32) * 32, n, dtype=torch.float16))
    return found


def fp4() -> dict[str, Any]:
    """FP4 quantizer and GEMM."""
    found: dict[str, Any] = {
        "untuned": fp4_shape(5, 128, 512),
        "tuned": fp4_shape(35, 192, 1024),
        "tuned_ck": fp4_shape(3, 512, 7168),
    }
    codes, swizzled = aiter.per_1x32_f4_quant_hip(activation(5, 512), shuffle=True)
    weight, weight_scales = random_fp4(96, 512)
    found["n_96"] = refusal(multiplied, codes, shuffle_weight(weight), swizzled, e8m0_shuffle(weight_scales))
    found["k_480"] = refusal(aiter.per_1x32_f4_quant_hip, activation(3, 480))
    found["k_480_swizzled"] = refusal(lambda: aiter.per_1x32_f4_quant_hip(activation(3, 480), shuffle=True))
    found["zero_block"] = values_of_scales(aiter.per_1x32_f4_quant_hip(torch.zeros(1, 32, dtype=BF16))[1]).tolist()
    largest = torch.zeros(4, 32, dtype=BF16)
    largest[:, 0] = torch.tensor([1.0, 1.4921875, 1.5, 1.75])
    found["exponents"] = aiter.per_1x32_f4_quant_hip(largest)[1].view(torch.uint8).flatten().tolist()
    return found


def on_gfx942() -> dict[str, Any]:
    """Everything that gfx942 can do, and FP4, which it cannot."""
    x = activation(3, 512)
    fp4x2, e8m0 = torch.zeros(32, 256, dtype=torch.uint8).view(dtypes.fp4x2), torch.zeros(256, 16, dtype=torch.uint8)
    out = torch.empty(32, 32, dtype=BF16)
    return {
        "fp8": str(dtypes.fp8),
        "rowwise": rowwise(),
        "blockscale": blockscale(),
        "quantizers": quantizers(),
        "fp4_quantizer": refusal(lambda: aiter.per_1x32_f4_quant_hip(x)),
        "fp4_gemm": refusal(lambda: aiter.gemm_a4w4(fp4x2, fp4x2, e8m0, e8m0, out)),
        "unknown_module": refusal(lambda: aiter.gemm_a8w8_ASM(x, x, x, x, x)),
    }


def on_gfx950() -> dict[str, Any]:
    """Everything that gfx950 can do with compiled kernels."""
    return {
        "fp8": str(dtypes.fp8),
        "rowwise": rowwise(),
        "blockscale": blockscale(),
        "quantizers": quantizers(),
        "fp4": fp4(),
    }
