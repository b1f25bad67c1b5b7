"""Stand-ins for the compiled MXFP4 GEMMs, and FP4 itself: codes, e8m0 scales and where a swizzled scale lies."""

from __future__ import annotations

import csv
import functools
from itertools import pairwise

import torch

from .compiled_gemm import HALVES
from .device import CALLS, DEVICE, Tile, aiter_folder, check, compiled, padded_m, tuned_kernels
from .memory import read, read_rows, write_rows

MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
SIGNED = (*MAGNITUDES, *(-value for value in MAGNITUDES))
PAIRS = torch.tensor([(low, high) for high in SIGNED for low in SIGNED])


def decode_codes(packed: torch.Tensor) -> torch.Tensor:
    """Turn bytes [rows, K/2], even index in the low nibble, into float32 [rows, K]."""
    return PAIRS[packed.int()].flatten(-2)


def encode_codes(values: torch.Tensor) -> torch.Tensor:
    """Round float32 [rows, K] to the nearest FP4 value, ties to even, at most 6; return bytes [rows, K/2]."""
    size = values.abs()
    code = torch.zeros(values.shape, dtype=torch.uint8)
    for upper, (low, high) in enumerate(pairwise(MAGNITUDES), start=1):
        middle = (low + high) / 2
        code += (size >= middle if upper % 2 == 0 else size > middle).to(torch.uint8)
    code |= torch.signbit(values).to(torch.uint8) << 3
    return code[:, ::2] | code[:, 1::2] << 4


def decode_scales(codes: torch.Tensor) -> torch.Tensor:
    """Turn e8m0 bytes into float32; 255 is not a number."""
    powers = torch.exp2(codes.double() - 127).float()
    return torch.where(codes == 255, torch.nan, powers)


def swizzled_places(rows: int, columns: int, padded_columns: int) -> torch.Tensor:
    """Return the byte offset of the scale of every (row, block of 32) in the layout that the assembly kernels read."""
    x = torch.arange(rows).view(-1, 1)
    y = torch.arange(columns).view(1, -1)
    return x // 32 * padded_columns * 32 + y // 8 * 256 + y % 4 * 64 + x % 16 * 4 + y % 8 // 4 * 2 + x % 32 // 16


@functools.lru_cache
def _assembly_kernels() -> dict[str, dict[str, str]]:
    folder = aiter_folder() / "aiter_meta" / "hsa" / DEVICE.arch / "f4gemm"
    with (folder / "f4gemm_bf16_per1x32Fp4.csv").open() as file:
        return {row["knl_name"]: row for row in csv.DictReader(file)}


def _operand(codes: torch.Tensor, scales: torch.Tensor, shuffled: bool, name: str) -> torch.Tensor:
    rows, width = codes.shape
    stride = codes.stride(-2)
    if shuffled:
        tiles = read_rows(codes, rows // 16, width * 16, stride * 16, torch.uint8, name)
        packed = tiles.view(rows // 16, width // 16, 16, 16).permute(0, 2, 1, 3).reshape(-1, width)
        check(
            rows % 16 == 0 and width % 16 == 0, f"{name}: a shuffled operand holds whole tiles of 16 rows by 16 bytes"
        )
    else:
        packed = read_rows(codes, rows, width, stride, torch.uint8, name)
    places = swizzled_places(rows, width // 16, scales.stride(-2))
    factors = read(scales, int(places.max()) + 1 if places.numel() else 0, torch.uint8, f"{name} scales")[places]
    return decode_codes(packed) * decode_scales(factors).repeat_interleave(32, dim=1)


def _product(
    a: torch.Tensor,
    b: torch.Tensor,
    slices: list[tuple[int, int]],
    added: torch.Tensor | float,
    alpha: float,
    dtype: torch.dtype,
) -> torch.Tensor:
    total = torch.zeros(a.shape[0], b.shape[0], dtype=dtype)
    for start, stop in slices:
        part = alpha * (a[:, start:stop] @ b[:, start:stop].T) + added
        total = (total.float() + part.to(dtype).float()).to(dtype)
    return total


@compiled(
    "gemm_a4w4_asm(A: torch.Tensor, B: torch.Tensor, A_scale: torch.Tensor, B_scale: torch.Tensor, out: torch.Tensor, "
    "kernelName: str, bias: Optional[torch.Tensor] = None, alpha: Optional[float] = 1.0, beta: Optional[float] = 0.0, "
    "bpreshuffle: Optional[bool] = True, log2_k_split: Optional[int] = None) -> torch.Tensor"
)
def gemm_a4w4_asm(
    A: torch.Tensor,
    B: torch.Tensor,
    A_scale: torch.Tensor,
    B_scale: torch.Tensor,
    out: torch.Tensor,
    kernelName: str,
    bias: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    bpreshuffle: bool | None = True,
    log2_k_split: int | None = None,
) -> torch.Tensor:
    """Multiply FP4 [M, K/2] by a shuffled weight; output rows from M to the next multiple of 32 are nonsense."""
    check(out.dtype == torch.bfloat16, "gemm_a4w4_asm only support BFloat16 output now!")
    check(A.dtype == torch.float4_e2m1fn_x2, f"get_cfg Unsupported input_type:{A.dtype}, out_type:{out.dtype}")
    check(DEVICE.has_fp4, "gemm_a4w4_asm no kernel support a4w4 for this gpu arch")
    (m, width), n = A.shape, B.shape[0]
    kernels = _assembly_kernels()
    if not kernelName:
        splits = {"0"} if log2_k_split == 0 else {"1"} if log2_k_split else {"0", "1"}
        fitting = [
            name
            for name, row in kernels.items()
            if row["bpreshuffle"] == "1" and row["splitK"] in splits and n % int(row["tile_n"]) == 0
        ]
        check(bool(fitting), "get_heuristic_kernel: cannot get heuristic kernel!")
        kernelName = fitting[0]
    check(kernelName in kernels, f"gemm_a4w4_asm not find kernel {kernelName}")
    CALLS.append(("gemm_a4w4_asm", kernelName))
    row = kernels[kernelName]
    k = width * 2
    parts = 2 ** (log2_k_split or 0) if row["splitK"] == "1" else 1
    check(k % parts == 0, "gemm_a4w4_asm Kdim % (1 << args.log2_k_split) != 0 !")
    step = -(-(k // parts) // 256) * 256 if parts > 1 else max(k, 1)
    slices = [(start, min(start + step, k)) for start in range(0, k, step)]
    added = beta * read_rows(bias, m, n, out.stride(0), torch.float32, "bias") if bias is not None and beta else 0.0
    a = _operand(A, A_scale, False, "A")
    b = _operand(B, B_scale, row["bpreshuffle"] == "1", "B")
    written = torch.full((-(-m // 32) * 32, n), torch.nan, dtype=torch.bfloat16)
    written[:m] = _product(a, b, slices, added, alpha, torch.bfloat16)
    write_rows(out, written, out.stride(0), "out")
    return out


@compiled(
    "gemm_a4w4_blockscale(XQ: torch.Tensor, WQ: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor, "
    "Out: torch.Tensor, splitK: int = 0) -> torch.Tensor"
)
def gemm_a4w4_blockscale(
    XQ: torch.Tensor,
    WQ: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    Out: torch.Tensor,
    splitK: int = 0,
) -> torch.Tensor:
    """Multiply FP4 [M, K/2] by a shuffled weight with composable kernels: whole K tiles, bf16 or fp16."""
    check(XQ.dtype == WQ.dtype, "Weights and activations should have the same dtype!")
    check(x_scale.dtype == w_scale.dtype, "Scales should have the same dtype!")
    check(Out.dtype in HALVES, "Unsupported scales/output dtype!")
    m, k, n = XQ.shape[0], XQ.shape[1] * 2, WQ.shape[0]
    tuned = tuned_kernels("AITER_CONFIG_GEMM_A4W4_FILE")
    found = (tuned.get((rows, n, k)) for rows in (m, padded_m(m, n, k, 0), padded_m(m, n, k, 1)))
    kernel = next((name for name in found if name), None) or (
        "a4w4_blockscale_256x64x128x128_16x16_16x16_8x32x1_8x32x1_1x32x1x8_8_2x2_intrawave_v3"
    )
    CALLS.append(("gemm_a4w4_blockscale", kernel))
    check(DEVICE.has_fp4, "This GEMM is not supported!")
    check(k % (Tile.of(kernel).k * 2**splitK) == 0, "This GEMM is not supported!")
    slices = Tile.of(kernel).split(m, n, k, 2**splitK)
    a = _operand(XQ, x_scale, False, "XQ")
    b = _operand(WQ, w_scale, True, "WQ")
    write_rows(Out, _product(a, b, slices, 0.0, 1.0, Out.dtype), Out.stride(-2), "Out")
    return Out
