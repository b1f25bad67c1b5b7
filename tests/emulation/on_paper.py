"""AITER's functions of any release as arithmetic on the bytes that they are given, by the names of their parameters.

The functions themselves, with the exact parameters of a release, are those of paper_aiter.py.
"""

from __future__ import annotations

from typing import Any

import torch

from . import layers
from .compiled_gemm import unshuffled
from .compiled_gemm_fp4 import decode_codes, decode_scales, swizzled_places
from .device import CALLS, DEVICE, check
from .memory import fill_with_garbage, read, write_at

NAMES = {
    "x": ("XQ", "A", "x", "x_fp4"),
    "weight": ("WQ", "B", "w", "w_preshuf", "w_shuffled"),
    "x_scale": ("x_scale", "A_scale", "x_scales", "ScaleA"),
    "weight_scale": ("w_scale", "B_scale", "w_scales", "ScaleB"),
}
"""What releases call each operand."""


def quantize(name: str, given: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of a quantizer, as it lays them out."""
    x = given["x"]
    check(x.is_contiguous(), "dense rows are read")
    if name == "per_token_quant_hip":
        check(given["quant_dtype"] in (torch.int8, DEVICE.fp8), "int8 or the device's fp8")
        rows = layers.int8_truncated if given["quant_dtype"] == torch.int8 else layers.fp8_rows(DEVICE.fp8)
        return rows(x)
    if name == "per_tensor_quant_hip":
        check(given["quant_dtype"] == DEVICE.fp8, "the device's fp8")
        scale = read(given["scale"], 1, torch.float32, "scale")
        largest = layers.LARGEST_FP8[DEVICE.fp8]
        return (x.float() * (1 / scale)).clamp(-largest, largest).to(DEVICE.fp8), scale
    if name == "per_group_quant_hip":
        check(given["group_size"] == 128 and given["quant_dtype"] == DEVICE.fp8, "groups of 128 in the device's fp8")
        if given.get("scale_type") == torch.float8_e8m0fnu:
            check(not given["transpose_scale"], "powers of two are not transposed here")
            codes, scale = layers.fp8_powers(DEVICE.fp8, stored=True)(x)
            return codes, scale.view(torch.float8_e8m0fnu)
        codes, scale = layers.fp8_groups(DEVICE.fp8)(x)
        return codes, scale.t().contiguous().view(scale.shape) if given["transpose_scale"] else scale
    if name == "dynamic_mxfp4_quant":
        codes, scale = layers.fp4_blocks(1.75, ties_away=True)(x)
        return codes, scale.t().contiguous().t()
    if name == "dynamic_mxfp8_quant":
        check(given["quant_dtype"] == torch.float8_e4m3fn, "the OCP fp8")
        return layers.mxfp8_blocks(x)
    if name == "per_1x32_mx_quant_hip":
        check(given["quant_dtype"] == DEVICE.fp8 and not given["shuffle"], "the device's fp8 with scales row by row")
        check(given["scale_type"] == torch.float8_e8m0fnu, "scales as E8M0; None gives float32")
        codes, scale = layers.fp8_powers(DEVICE.fp8, 32, stored=True)(x)
        return codes, scale.view(torch.float8_e8m0fnu)
    even = name == "quant_mxfp4_hip"
    if even:
        others = ("a16w4_shuffle", "gate_up", "shuffle_weight")
        check(given["group_size"] == 32 and not any(given[other] for other in others), "plain codes in blocks of 32")
        rounds = {0: 2.0, 1: 1.5, 2: 1.75}
        codes, scale = layers.fp4_blocks(rounds[given["round_mode"]])(x)
    else:
        codes, scale = layers.fp4_blocks(1.5)(x)
    if given["e8m0_shuffle" if even else "shuffle"]:
        rows, columns = scale.shape
        stored = torch.empty(-(-rows // 256) * 256, -(-columns // 8) * 8, dtype=torch.uint8)
        fill_with_garbage(stored)
        write_at(stored, swizzled_places(rows, columns, stored.shape[1]), scale, "scales")
        scale = stored
    return codes.view(torch.float4_e2m1fn_x2), scale.view(torch.float8_e8m0fnu)


def multiply(name: str, given: dict[str, Any]) -> torch.Tensor:
    """y of a GEMM; the bytes of each operand are read in the layout that the function documents."""
    split = (given.get("config") or {"NUM_KSPLIT": "looked up"})["NUM_KSPLIT"]
    CALLS.append((name, f"NUM_KSPLIT={split}" if "config" in given else ""))
    x, weight, x_scale, weight_scale = (
        next((given[name] for name in names if name in given), None) for names in NAMES.values()
    )
    if name in MIXED:
        product = MIXED[name](given, x, weight, x_scale, weight_scale)
    elif given.get("apreshuffle") or given.get("a_preshuffle") is not None:
        product = _tiled(name, given, x, weight, x_scale, weight_scale)
    elif "fp4" in name or name == "gemm_a4w4":
        product = _fp4(name, given, x, weight, x_scale, weight_scale)
    elif "blockscale" in name:
        product = _blockscale(name, given, x, weight, x_scale, weight_scale)
    else:
        (m, k), n = x.shape, weight.shape[0]
        check(x.dtype == weight.dtype and x.dtype in (torch.int8, DEVICE.fp8), "int8 or fp8 of the device")
        shuffled = name in ("gemm_a8w8_bpreshuffle", "gemm_a8w8_ASM")
        codes = unshuffled(weight, n, k).view(weight.dtype).double() if shuffled else _dense(weight, n, k)
        values = _dense(x, m, k) @ codes.T
        rows, columns = read(x_scale, m, torch.float32, "x_scale"), read(weight_scale, n, torch.float32, "w_scale")
        product = values * rows.view(m, 1).double() * columns.double()
    bias = given.get("bias")
    if name == "gemm_a8w8_ASM":
        check(bias is not None and bias.dtype == torch.float32, "a bias in float32 is needed")
        check(x.dtype == torch.int8 and given["dtype"] == torch.bfloat16, "int8 gives bf16")
        product = product + read(bias, weight.shape[0], torch.float32, "bias").double()
    elif bias is not None:
        check(bias.dtype == given["dtype"], "the bias has the dtype of the output")
        product = product + bias.double()
    if "y" in given and given["y"] is not None:
        check(given["y"].dtype == given["dtype"] and given["y"].is_contiguous(), "an output of the dtype that is told")
        given["y"].copy_(product)
        return torch.empty(0)  # the function returns nothing
    out = given.get("out")
    if out is None:
        return product.to(given["dtype"])
    check(out.shape[0] % 32 == 0 and out.dtype == torch.bfloat16, "the output has whole groups of 32 rows in bf16")
    out.fill_(torch.nan)
    out[: product.shape[0]] = product
    return out


def _dense(tensor: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    return read(tensor, rows * columns, tensor.dtype, "operand").view(rows, columns).double()


def _blockscale(
    name: str,
    given: dict[str, Any],
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scale: torch.Tensor,
    weight_scale: torch.Tensor,
) -> torch.Tensor:
    check(x.dtype == weight.dtype == DEVICE.fp8, "fp8 of the device")
    check(x_scale.dtype == weight_scale.dtype == torch.float32, "float32 scales")
    (m, k), n = x.shape, weight.shape[0]
    blocks = k // 128
    flat = name == "flatmm_a8w8_blockscale_ASM"
    transposed = name.endswith("_bpreshuffle") or flat
    if flat:
        check(given["dtype"] == torch.float16 and n % 256 == 0, "whole tiles of 256 columns in fp16")
    if name == "gemm_a8w8_blockscale_preshuffle":
        check(weight.shape[1] == k * 16, "rows of the weight are folded by 16")
        n, transposed = n * 16, given["is_x_scale_tranposed"]
    codes = _dense(weight, n, k) if name == "gemm_a8w8_blockscale" else unshuffled(weight, n, k).double()
    dense = read(x_scale, m * blocks, torch.float32, "x_scale")
    rows = dense.view(blocks, m).T if transposed else dense.view(m, blocks)
    tiles = read(weight_scale, -(-n // 128) * blocks, torch.float32, "w_scale").double()
    tiles = tiles.view(blocks, -1).T if flat else tiles.view(-1, blocks)
    wide = tiles.repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)
    return (_dense(x, m, k) * rows.double().repeat_interleave(128, 1)) @ (codes * wide).T


def _fp4(
    name: str,
    given: dict[str, Any],
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scale: torch.Tensor,
    weight_scale: torch.Tensor,
) -> torch.Tensor:
    packed = torch.float4_e2m1fn_x2 if name == "gemm_a4w4" else torch.uint8
    stored = torch.float8_e8m0fnu if name == "gemm_a4w4" else torch.uint8
    check(x.dtype == weight.dtype == packed, f"codes as {packed}")
    check(x_scale.dtype == weight_scale.dtype == stored, f"scales as {stored}")
    (m, width), n = x.shape, weight.shape[0]
    columns = width // 16
    codes = read(x, m * width, torch.uint8, "x").view(m, width)
    if name == "gemm_afp4wfp4":
        return _decoded(codes, x_scale) @ _decoded(weight, weight_scale).T
    if name == "gemm_a4w4":
        check(given["bpreshuffle"], "a shuffled weight")
    else:
        check(weight.shape[1] == width * 16, "rows of the weight are folded by 16")
        check(tuple(weight_scale.shape) == (n * 16 // 32, columns * 32), "rows of its scales are folded by 32")
        n *= 16
    tiles = read(weight, n * width, torch.uint8, "weight").view(n // 16, width // 16, 16, 16)
    plain = tiles.permute(0, 2, 1, 3).reshape(n, width)
    swizzled = name == "gemm_a4w4" or m >= 32
    if swizzled and name != "gemm_a4w4":
        check(x_scale.shape[1] == columns * 32, "rows of the scales of x are folded by 32")
    rows = _swizzled(x_scale, m, columns) if swizzled else read(x_scale, m * columns, torch.uint8, "s").view(m, columns)
    return _decoded(codes, rows) @ _decoded(plain, _swizzled(weight_scale, n, columns)).T


def _tiled(
    name: str,
    given: dict[str, Any],
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scale: torch.Tensor,
    weight_scale: torch.Tensor,
) -> torch.Tensor:
    """The kernels of gfx1250, which read every operand in tiles."""
    check(bool(given.get("apreshuffle", given.get("a_preshuffle"))), "no kernel is shipped for an x row by row")
    check(given["dtype"] == torch.bfloat16, "the output is bf16")
    (m, width), n = x.shape, weight.shape[0]
    whole = m % 1024 == 0 and n % 1024 == 0
    if name in ("gemm_a8w8_mxfp8", "gemm_a8w4_mxfp8"):
        check(whole or n % 2048 == 0, "cannot get heuristic kernel")
        check(x.dtype == torch.float8_e4m3fn and width % 128 == 0, "E4M3 in tiles of 128 columns")
        codes = _whole(x, m, width, 2, 128).view(torch.float8_e4m3fn).double()
        columns = width // 32
    else:
        check(whole and width % 128 == 0, "cannot get heuristic kernel")
        check(x.dtype == weight.dtype == torch.float4_e2m1fn_x2, "packed codes")
        codes = decode_codes(_whole(x, m, width, 16, 16)).double()
        columns = width // (8 if "nvfp4" in name else 16)
    bytes_of_weight = _whole(weight, n, weight.shape[1], 16, 16)
    if name == "gemm_a8w8_mxfp8":
        values = bytes_of_weight.view(torch.float8_e4m3fn).double()
    else:
        values = decode_codes(bytes_of_weight).double()
    across = 8 if "nvfp4" in name else 4
    scales = [
        _whole(scale, -(-rows // 32) * 32, columns, 32, across)[:rows]
        for scale, rows in ((x_scale, m), (weight_scale, n))
    ]
    if "nvfp4" in name:
        check(x_scale.dtype == weight_scale.dtype == torch.float8_e4m3fn, "scales in E4M3")
        factors = [scale.view(torch.float8_e4m3fn).double().repeat_interleave(16, dim=1) for scale in scales]
        factors[0] = factors[0] * given["GlobalScaleA"] * given["GlobalScaleB"]
    else:
        stored = torch.float8_e8m0fnu if name == "gemm_a4w4" else torch.uint8
        check(x_scale.dtype == weight_scale.dtype == stored, f"scales as {stored}")
        check(name != "gemm_a8w4_mxfp8" or weight.dtype == torch.uint8, "packed codes as bytes")
        factors = [decode_scales(scale).double().repeat_interleave(32, dim=1) for scale in scales]
    return (codes * factors[0]) @ (values * factors[1]).T


def _whole(stored: torch.Tensor, rows: int, columns: int, tile_rows: int, tile_columns: int) -> torch.Tensor:
    """Bytes [rows, columns] that lie tile after tile, in tiles of rows that follow each other."""
    check(rows % tile_rows == 0 and columns % tile_columns == 0, "whole tiles")
    row, column = torch.arange(rows).view(-1, 1), torch.arange(columns)
    tile = row // tile_rows * (columns // tile_columns) + column // tile_columns
    places = (tile * tile_rows + row % tile_rows) * tile_columns + column % tile_columns
    return read(stored, rows * columns, torch.uint8, "tiles")[places]


def _swizzled(scale: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    places = swizzled_places(rows, columns, -(-columns // 8) * 8)
    return read(scale, int(places.max()) + 1, torch.uint8, "scales")[places]


def _decoded(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return decode_codes(codes).double() * decode_scales(scale).double().repeat_interleave(32, dim=1)


def _a8wfp4(given: dict[str, Any], x: Any, weight: Any, x_scale: Any, weight_scale: Any) -> torch.Tensor:
    (m, k), n = x.shape, weight.shape[0]
    check(x.dtype == torch.float8_e4m3fn and weight.dtype == torch.uint8, "the OCP fp8, and packed bytes")
    check(tuple(weight_scale.shape) == (n, k // 32) and weight_scale.dtype == torch.uint8, "scales [N, K/32] in bytes")
    check(tuple(x_scale.shape) == (m, 1) and x_scale.dtype == torch.float32, "scales of x [M, 1] in float32")
    check(given["y"] is not None and tuple(given["y"].shape) == (m, n), "an output [M, N] of the caller")
    return (x.double() * x_scale.double()) @ _decoded(weight, weight_scale).T


def _a16wfp4(given: dict[str, Any], x: Any, weight: Any, x_scale: Any, weight_scale: Any) -> torch.Tensor:
    check(x.dtype in (torch.bfloat16, torch.float16), "x as it is")
    check(weight.dtype == weight_scale.dtype == torch.uint8, "codes and scales in bytes")
    check(tuple(weight_scale.shape) == (weight.shape[0], x.shape[1] // 32), "scales [N, K/32]")
    return _decoded(*layers.fp4_blocks(1.75, ties_away=True)(x)) @ _decoded(weight, weight_scale).T


def _a16w8(given: dict[str, Any], x: Any, weight: Any, x_scale: Any, weight_scale: Any) -> torch.Tensor:
    check(x.dtype in (torch.bfloat16, torch.float16) and weight.dtype == DEVICE.fp8, "x as it is, fp8 of the device")
    check(not given.get("prequant", given.get("pre_quant")), "x is multiplied as it is")
    check(weight_scale.dtype == torch.float32, "float32 scales")
    return x.double() @ _of_tiles(weight, weight_scale.double(), *weight.shape).T


def _a16w8_shuffled(given: dict[str, Any], x: Any, weight: Any, x_scale: Any, weight_scale: Any) -> torch.Tensor:
    k, n = x.shape[1], weight.shape[0] * 16
    check(weight.shape[1] == k * 16, "rows of the weight are folded by 16")
    return _a16w8(given, x, unshuffled(weight, n, k), x_scale, weight_scale)


def _afp8wfp8(given: dict[str, Any], x: Any, weight: Any, x_scale: Any, weight_scale: Any) -> torch.Tensor:
    check(x.dtype == weight.dtype == torch.float8_e4m3fn, "the OCP fp8")
    check(x_scale.dtype == weight_scale.dtype == torch.uint8, "scales in bytes")
    (n, k), rows = weight.shape, decode_scales(x_scale).double()
    check(rows.shape[1] == k // 32, "scales of x [M, K/32]")
    wide = rows.repeat_interleave(32, dim=1)
    return (x.double() * wide) @ _of_tiles(weight, decode_scales(weight_scale).double(), n, k).T


def _afp8wfp8_shuffled(given: dict[str, Any], x: Any, weight: Any, x_scale: Any, weight_scale: Any) -> torch.Tensor:
    check(weight.shape[1] == x.shape[1], "rows of the weight are not folded")
    check(weight.dtype == torch.float8_e4m3fn, "the OCP fp8")
    plain = unshuffled(weight, *weight.shape).view(weight.dtype)
    return _afp8wfp8(given, x, plain, x_scale, weight_scale)


def _of_tiles(weight: torch.Tensor, scale: torch.Tensor, n: int, k: int) -> torch.Tensor:
    check(tuple(scale.shape) == (-(-n // 128), -(-k // 128)), "a scale for each tile of 128x128")
    return weight.double() * scale.repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]


MIXED = {
    "gemm_a8wfp4": _a8wfp4,
    "gemm_a16wfp4": _a16wfp4,
    "gemm_a16w8_blockscale": _a16w8,
    "gemm_a16w8_blockscale_preshuffle": _a16w8_shuffled,
    "gemm_afp8wfp8": _afp8wfp8,
    "gemm_afp8wfp8_preshuffle": _afp8wfp8_shuffled,
}
"""GEMMs whose x has another format than the weight, or scales of other tiles."""
