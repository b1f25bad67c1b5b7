"""Stand-ins for the compiled 8-bit GEMMs: they read bytes as the wheel's source does, and compute in float32."""

from __future__ import annotations

import torch

from .device import CALLS, DEVICE, Tile, check, compiled, next_power_of_two, padded_m, tuned_kernels
from .memory import read, read_rows, write

SIGNATURE = "(XQ: torch.Tensor, WQ: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor, Out: torch.Tensor"
HALVES = (torch.float16, torch.bfloat16)


@compiled("get_padded_m(M: int, N: int, K: int, gl: int) -> int")
def get_padded_m(M: int, N: int, K: int, gl: int) -> int:
    """Round M as the tuned tables are searched."""
    return padded_m(M, N, K, gl)


def _rowwise_heuristic(m: int, n: int, k: int) -> str:
    if k < 512:
        return "a8w8_rowwise_256x256x128x64_32x32_4x2_4x64x1_4x64x1_1x32x1x8_8x8x1_1x1_interwave_v1"
    if m < 64:
        if k < 2048 and n >= 2048:
            return "a8w8_rowwise_128x16x32x128_16x16_1x1_8x16x1_8x16x1_1x16x1x8_4x4x1_1x1_intrawave_v2"
        if k >= 2048 and n < 2048:
            return "a8w8_rowwise_128x32x16x128_16x16_1x1_8x16x1_8x16x1_1x16x1x8_2x2x1_1x1_interwave_v2"
        if n > 2048 and k > 2048:
            return "a8w8_rowwise_64x16x16x256_16x16_1x1_16x4x1_16x4x1_1x16x1x4_4x4x1_1x1_intrawave_v1"
        return "a8w8_rowwise_64x16x16x128_16x16_1x1_8x8x1_8x8x1_1x16x1x4_4x4x1_1x1_interwave_v2"
    if k < 1024:
        return "a8w8_rowwise_256x128x128x128_32x32_2x2_8x32x1_8x32x1_1x32x1x8_8x8x1_1x1_interwave_v1"
    if m < 1024:
        return "a8w8_rowwise_256x128x128x128_32x32_2x2_8x32x1_8x32x1_1x32x1x8_8x8x1_1x1_intrawave_v3"
    if n >= 1024:
        return "a8w8_rowwise_256x256x128x64_32x32_4x2_4x64x1_4x64x1_1x32x1x8_8x8x1_1x1_interwave_v1"
    return "a8w8_rowwise_256x224x256x128_16x16_7x8_8x32x1_8x32x1_1x32x1x8_8x8x1_1x2_intrawave_v3"


def _rowwise_kernel(m: int, n: int, k: int) -> str:
    tuned = tuned_kernels("AITER_CONFIG_GEMM_A8W8_FILE")
    rounded = 16 if 1 < m <= 16 else next_power_of_two(m) if m <= 16384 else 20480 if m <= 20480 else m
    return tuned.get((m, n, k)) or tuned.get((rounded, n, k)) or _rowwise_heuristic(m, n, k)


def _bpreshuffle_heuristic(m: int, n: int, k: int) -> str:
    check(
        k >= 512 or (k >= 192 and k % 64 == 0),
        f"Unsupported K for heuristic dispatch: {k}. Supported K greater than 192 and K % 64 == 0.",
    )
    if k >= 1536 and m < 256 and k % 512 == 0:
        if n < 1536:
            return "a8w8_bpreshuffle_128x16x32x512_16x16_16x16_32x4x1_32x4x1_1x16x1x8_4x4x1_1x1_intrawave_v1"
        return "a8w8_bpreshuffle_256x16x64x512_16x16_16x16_32x8x1_32x8x1_1x16x1x16_4x4x1_1x1_intrawave_v1"
    if k >= 1536:
        if n < 1536 or n % 128:
            return "a8w8_bpreshuffle_256x128x64x128_16x16_16x16_8x32x1_8x32x1_1x32x1x8_8x8x1_2x1_intrawave_v3"
        return "a8w8_bpreshuffle_256x128x128x128_16x16_16x16_8x32x1_8x32x1_1x32x1x8_8x8x1_2x1_intrawave_v3"
    if k >= 512 and m < 64:
        return "a8w8_bpreshuffle_128x16x32x128_16x16_16x16_8x16x1_8x16x1_1x16x1x8_4x4x1_1x1_intrawave_v1"
    if k >= 512 and m <= 256:
        return "a8w8_bpreshuffle_256x128x64x128_16x16_16x16_8x32x1_8x32x1_1x32x1x8_8x8x1_2x1_intrawave_v3"
    if k < 512 and m < 128:
        return "a8w8_bpreshuffle_128x16x256x64_16x16_16x16_4x16x1_4x32x1_1x16x1x8_8x8x1_1x2_intrawave_v1"
    if k < 512 and m <= 256:
        return "a8w8_bpreshuffle_256x32x256x64_16x16_16x16_4x32x1_4x64x1_1x32x1x8_8x8x1_2x1_intrawave_v1"
    return "a8w8_bpreshuffle_256x128x128x64_16x16_16x16_4x64x1_4x64x1_1x32x1x8_8x8x1_2x1_intrawave_v3"


def _walked_kernel(constant: str, m: int, n: int, k: int) -> str | None:
    tuned = tuned_kernels(constant)
    found = (tuned.get((rows, n, k)) for rows in (m, padded_m(m, n, k, 0), padded_m(m, n, k, 1)))
    return next((name for name in found if name), None)


def unshuffled(weight: torch.Tensor, n: int, k: int) -> torch.Tensor:
    """Read a weight as the preshuffled kernels do: tiles of 16 rows by 16 bytes, K rounded up to 64."""
    row_groups, depth = -(-n // 16), -(-k // 64) * 64
    tiles = read(weight, row_groups * 16 * depth, torch.uint8, "weight").view(row_groups, depth // 16, 16, 16)
    rows = tiles.permute(0, 2, 1, 3).reshape(row_groups * 16, depth)
    return rows[:n, :k].contiguous().view(DEVICE.fp8)


def _check_8bit(
    x: torch.Tensor, weight: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor, out: torch.Tensor
) -> None:
    check(x.dtype == weight.dtype, "Weights and activations should have the same dtype!")
    check(x_scale.dtype == w_scale.dtype, "Scales should have the same dtype!")
    check(x_scale.dtype == torch.float32 and out.dtype in HALVES, "Unsupported scales/output dtype!")


@compiled(f"gemm_a8w8{SIGNATURE}, bias: Optional[torch.Tensor] = None, splitK: int = 0) -> torch.Tensor")
def gemm_a8w8(
    XQ: torch.Tensor,
    WQ: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    Out: torch.Tensor,
    bias: torch.Tensor | None = None,
    splitK: int = 0,
) -> torch.Tensor:
    """Multiply [M, K] by [N, K], both dense; each slice of a split K is scaled, biased, rounded and added."""
    check(
        XQ.dtype in (torch.int8, DEVICE.fp8) and XQ.dtype == WQ.dtype,
        "Weights and activations should both be int8/fp8!",
    )
    check(x_scale.dtype == w_scale.dtype, "Scales should have the same dtype!")
    check(bias is None or bias.dtype == Out.dtype, "Out amd bias should have the same dtype!")
    check(Out.dtype in HALVES, "Unsupported scales/output dtype!")
    m, k = XQ.shape
    n = WQ.shape[0]
    kernel = _rowwise_kernel(m, n, k)
    CALLS.append(("gemm_a8w8", kernel))
    slices = Tile.of(kernel).split(m, n, k, 2**splitK)
    scale_dtype = torch.float32 if x_scale.dtype == torch.float32 else Out.dtype
    x = read(XQ, m * k, XQ.dtype, "XQ").view(m, k).double()
    weight = read(WQ, n * k, WQ.dtype, "WQ").view(n, k).double()
    rows = read(x_scale, m, scale_dtype, "x_scale").float().view(m, 1)
    columns = read(w_scale, n, scale_dtype, "w_scale").float().view(1, n)
    added = 0.0 if bias is None else read(bias, n, Out.dtype, "bias").float().view(1, n)
    total = torch.zeros(m, n, dtype=Out.dtype)
    for start, stop in slices:
        part = (x[:, start:stop] @ weight[:, start:stop].T).float() * columns * rows + added
        total = (total.float() + part.to(Out.dtype).float()).to(Out.dtype)
    write(Out, total, "Out")
    return Out


@compiled(f"gemm_a8w8_bpreshuffle{SIGNATURE}) -> torch.Tensor")
def gemm_a8w8_bpreshuffle(
    XQ: torch.Tensor,
    WQ: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    Out: torch.Tensor,
) -> torch.Tensor:
    """Multiply fp8 [M, K] by a shuffled fp8 weight [N, K] with one scale per row and one per column."""
    _check_8bit(XQ, WQ, x_scale, w_scale, Out)
    m, k = XQ.shape
    n = WQ.shape[0]
    kernel = _walked_kernel("AITER_CONFIG_GEMM_A8W8_BPRESHUFFLE_FILE", m, n, k) or _bpreshuffle_heuristic(m, n, k)
    CALLS.append(("gemm_a8w8_bpreshuffle", kernel))
    Tile.of(kernel).split(m, n, k, 1)
    x = read_rows(XQ, m, k, XQ.stride(-2), DEVICE.fp8, "XQ").float()
    rows = read(x_scale, m, torch.float32, "x_scale").view(m, 1)
    columns = read(w_scale, n, torch.float32, "w_scale").view(1, n)
    write(Out, ((x @ unshuffled(WQ, n, k).float().T) * columns * rows).to(Out.dtype), "Out")
    return Out


def _blockscaled(x: torch.Tensor, weight: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor) -> torch.Tensor:
    (m, k), n = x.shape, weight.shape[0]
    total = torch.zeros(m, n)
    for block in range(-(-k // 128)):
        span = slice(block * 128, min(k, block * 128 + 128))
        columns = w_scale[:, block].repeat_interleave(128)[:n]
        total += (x[:, span].float() @ weight[:, span].float().T) * x_scale[:, block : block + 1] * columns
    return total


@compiled(f"gemm_a8w8_blockscale{SIGNATURE}) -> torch.Tensor")
def gemm_a8w8_blockscale(
    XQ: torch.Tensor,
    WQ: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    Out: torch.Tensor,
) -> torch.Tensor:
    """Multiply fp8 [M, K] by [N, K]; x_scale is dense [M, ceil(K/128)], w_scale dense [ceil(N/128), ceil(K/128)]."""
    _check_8bit(XQ, WQ, x_scale, w_scale, Out)
    m, k = XQ.shape
    n, blocks = WQ.shape[0], -(-k // 128)
    kernel = _walked_kernel("AITER_CONFIG_GEMM_A8W8_BLOCKSCALE_FILE", m, n, k) or (
        "a8w8_blockscale_1x128x128_256x16x128x256_16x16_16x16_16x16x1_16x16x1_1x16x1x16_8_1x2_intrawave_v1"
    )
    CALLS.append(("gemm_a8w8_blockscale", kernel))
    Tile.of(kernel).split(m, n, k, 1)
    x = read_rows(XQ, m, k, XQ.stride(-2), DEVICE.fp8, "XQ")
    weight = read_rows(WQ, n, k, WQ.stride(-2), DEVICE.fp8, "WQ")
    rows = read(x_scale, m * blocks, torch.float32, "x_scale").view(m, blocks)
    tiles = read(w_scale, -(-n // 128) * blocks, torch.float32, "w_scale").view(-1, blocks)
    write(Out, _blockscaled(x, weight, rows, tiles).to(Out.dtype), "Out")
    return Out


@compiled(f"gemm_a8w8_blockscale_bpreshuffle{SIGNATURE}) -> torch.Tensor")
def gemm_a8w8_blockscale_bpreshuffle(
    XQ: torch.Tensor,
    WQ: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    Out: torch.Tensor,
) -> torch.Tensor:
    """Multiply fp8 [M, K] by a shuffled weight; x_scale lies in memory as [ceil(K/128), M]."""
    _check_8bit(XQ, WQ, x_scale, w_scale, Out)
    m, k = XQ.shape
    n, blocks = WQ.shape[0], -(-k // 128)
    kernel = _walked_kernel("AITER_CONFIG_GEMM_A8W8_BLOCKSCALE_BPRESHUFFLE_FILE", m, n, k) or (
        "a8w8_blockscale_bpreshuffle_1x128x128_256x64x64x128_16x16_16x16_8x32x1_8x32x1_1x32x1x8_8_2x1_intrawave_v1"
    )
    CALLS.append(("gemm_a8w8_blockscale_bpreshuffle", kernel))
    Tile.of(kernel).split(m, n, k, 1)
    x = read_rows(XQ, m, k, XQ.stride(-2), DEVICE.fp8, "XQ")
    rows = read(x_scale, m * blocks, torch.float32, "x_scale").view(blocks, m).T
    tiles = read(w_scale, -(-n // 128) * blocks, torch.float32, "w_scale").view(-1, blocks)
    write(Out, _blockscaled(x, unshuffled(WQ, n, k), rows, tiles).to(Out.dtype), "Out")
    return Out


@compiled(
    "flatmm_a8w8_blockscale_asm(XQ: torch.Tensor, WQ: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor, "
    "out: torch.Tensor) -> torch.Tensor"
)
def flatmm_a8w8_blockscale_asm(
    XQ: torch.Tensor,
    WQ: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    out: torch.Tensor,
) -> torch.Tensor:
    """Multiply fp8 [M, K] by a shuffled weight; both scales lie in memory transposed, [K/128, M] and [K/128, N/128]."""
    m, k = XQ.shape
    n, blocks = out.shape[1], k // 128
    check(out.dtype == torch.float16, "flatmm a8w8 blockscale asm only support Half output now!")
    check(n % 256 == 0 and k % 128 == 0, "flatmm a8w8 blockscale asm only support 128x256x128 tile now!")
    check(DEVICE.arch == "gfx942", "stand-in: the package has this kernel for gfx942 alone")
    CALLS.append(("flatmm_a8w8_blockscale_asm", ""))
    x = read(XQ, m * k, DEVICE.fp8, "XQ").view(m, k)
    rows = read(x_scale, m * blocks, torch.float32, "x_scale").view(blocks, m).T
    tiles = read(w_scale, n // 128 * blocks, torch.float32, "w_scale").view(blocks, n // 128).T
    write(out, _blockscaled(x, unshuffled(WQ, n, k), rows, tiles).to(out.dtype), "out")
    return out
