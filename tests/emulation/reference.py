"""Float64 arithmetic on quantized operands, written apart from the stand-ins, to compare kernels with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

FP4 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
FP4_PAIRS = torch.tensor([[FP4[byte & 15], FP4[byte >> 4]] for byte in range(256)], dtype=torch.float64)
"""The two values of each byte."""


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the norm of the difference over that of the expected matrix; infinite if anything is not finite."""
    if found.shape != expected.shape or not bool(found.double().isfinite().all()):
        return float("inf")
    return float((found.double() - expected).norm() / expected.norm())


def refusal(call: Callable[..., object], *arguments: object) -> str:
    """Return "Type: message" of the error that a call raises, or "returned"."""
    try:
        call(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "returned"


def values_of_codes(codes: torch.Tensor) -> torch.Tensor:
    """Return the float64 values of int8, fp8 or packed FP4 codes [rows, K or K/2]."""
    if codes.dtype in (torch.uint8, torch.float4_e2m1fn_x2):
        return FP4_PAIRS[codes.view(torch.uint8).int()].flatten(-2)
    return codes.double()


def values_of_scales(scales: torch.Tensor) -> torch.Tensor:
    """Return the float64 values of float32 scales, or of e8m0 bytes."""
    if scales.dtype in (torch.float32, torch.float8_e4m3fn):
        return scales.double()
    return 2.0 ** (scales.view(torch.uint8).double() - 127)


def dequantized(codes: torch.Tensor, scales: torch.Tensor, rows: int = 1, columns: int = 1) -> torch.Tensor:
    """Return codes times scales, each scale standing for a tile of [rows, columns] values; edges may be cut."""
    values = values_of_codes(codes)
    factors = values_of_scales(scales).repeat_interleave(rows, dim=0).repeat_interleave(columns, dim=1)
    return values * factors[: values.shape[0], : values.shape[1]]


def random_int8(rows: int, columns: int) -> torch.Tensor:
    """Return random int8 codes."""
    return torch.randint(-127, 128, (rows, columns), dtype=torch.int8)


def random_fp8(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Return random fp8 codes of many magnitudes."""
    return (torch.randn(rows, columns) * 20).clamp(-200, 200).to(dtype)


def random_scales(rows: int, columns: int) -> torch.Tensor:
    """Return random float32 scales."""
    return torch.rand(rows, columns) * 0.02 + 0.001


def random_fp4(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random packed FP4 codes [rows, K/2] and e8m0 bytes [rows, K/32]."""
    codes = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8)
    return codes, torch.randint(118, 128, (rows, columns // 32), dtype=torch.uint8)
