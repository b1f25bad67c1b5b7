"""Stand-ins for the compiled quantizers, with the rules of their source: reciprocal, truncation, clamp, layouts."""

from __future__ import annotations

import torch

from .compiled_gemm_fp4 import encode_codes, swizzled_places
from .device import CALLS, DEVICE, check, compiled
from .memory import fill_with_garbage, read, read_rows, write, write_at

HALVES = (torch.float16, torch.bfloat16)
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0, torch.float8_e4m3fnuz: 240.0}
SMALLEST_AMAX = 1e-10


def _check_types(out: torch.Tensor, source: torch.Tensor, scale: torch.Tensor, function: str) -> None:
    check(out.dtype in (torch.int8, DEVICE.fp8), f"{function} not support output type: {out.dtype}")
    check(source.dtype in HALVES, f"\"quant_kernel\" not implemented for '{source.dtype}'")
    check(scale.dtype == torch.float32, f"expected scalar type Float but found {scale.dtype}")


def _reciprocal_of_largest(dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(1.0 / LARGEST[dtype], dtype=torch.float32)


def _codes(values: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    scaled = values * (1.0 / scale)
    if dtype == torch.int8:
        whole = torch.nan_to_num(scaled, nan=0.0, posinf=2.0**31 - 128, neginf=-(2.0**31)).trunc()
        return whole.clamp(-(2.0**31), 2.0**31 - 128).to(torch.int32).to(torch.int8)
    largest = LARGEST[dtype]
    return torch.where(scaled.isnan(), -largest, scaled.clamp(-largest, largest)).to(dtype)


def _dense(source: torch.Tensor, columns: int) -> torch.Tensor:
    check(
        columns % 4 == 0,
        f"stand-in: rows of {columns} one-byte codes share a 4-byte word, which two blocks would race to write",
    )
    rows = source.numel() // columns
    return read(source, rows * columns, source.dtype, "input").view(rows, columns).float()


@compiled("static_per_tensor_quant(out: torch.Tensor, input: torch.Tensor, scale: torch.Tensor) -> None")
def static_per_tensor_quant(out: torch.Tensor, input: torch.Tensor, scale: torch.Tensor) -> None:  # noqa: A002
    """Quantize dense memory with one given scale; int8 codes out of range wrap."""
    _check_types(out, input, scale, "static_per_tensor_quant")
    CALLS.append(("static_per_tensor_quant", ""))
    values = _dense(input, input.shape[-1])
    write(out, _codes(values, read(scale, 1, torch.float32, "scale"), out.dtype), "out")


@compiled("dynamic_per_tensor_quant(out: torch.Tensor, input: torch.Tensor, scale: torch.Tensor) -> None")
def dynamic_per_tensor_quant(out: torch.Tensor, input: torch.Tensor, scale: torch.Tensor) -> None:  # noqa: A002
    """Quantize dense memory with one scale, amax times the reciprocal of the largest code."""
    _check_types(out, input, scale, "dynamic_per_tensor_quant")
    CALLS.append(("dynamic_per_tensor_quant", ""))
    values = _dense(input, input.shape[-1])
    found = values.abs().amax().view(1) * _reciprocal_of_largest(out.dtype)
    write(scale, found, "scale")
    write(out, _codes(values, found, out.dtype), "out")


@compiled(
    "dynamic_per_token_scaled_quant(out: torch.Tensor, input: torch.Tensor, scales: torch.Tensor, "
    "scale_ub: Optional[torch.Tensor] = None, shuffle_scale: bool = False, num_rows: Optional[torch.Tensor] = None, "
    "num_rows_factor: int = 1) -> None"
)
def dynamic_per_token_scaled_quant(
    out: torch.Tensor,
    input: torch.Tensor,  # noqa: A002
    scales: torch.Tensor,
    scale_ub: torch.Tensor | None = None,
    shuffle_scale: bool = False,
    num_rows: torch.Tensor | None = None,
    num_rows_factor: int = 1,
) -> None:
    """Quantize each row; rows of 32, 64 or 128 are groups: amax floor, scales transposed on request (fp8)."""
    check(input.is_contiguous(), "Expected input.is_contiguous() to be true, but got false.")
    check(out.is_contiguous(), "Expected out.is_contiguous() to be true, but got false.")
    _check_types(out, input, scales, "dynamic_per_token_scaled_quant")
    check(num_rows is None, "stand-in: num_rows is not stood in for")
    CALLS.append(("dynamic_per_token_scaled_quant", ""))
    columns = input.shape[-1]
    values = _dense(input, columns)
    amax = values.abs().amax(dim=1) if values.numel() else values.new_zeros(values.shape[0])
    grouped = columns in (32, 64, 128)
    if grouped:
        amax = amax.clamp(min=SMALLEST_AMAX)
    found = amax * _reciprocal_of_largest(out.dtype)
    write(out, _codes(values, found.view(-1, 1), out.dtype), "out")
    if grouped and shuffle_scale and out.dtype == DEVICE.fp8:
        found = found.view(-1, out.shape[-1] // columns).T
    write(scales, found, "scales")


@compiled(
    "dynamic_per_group_scaled_quant_fp4(out: torch.Tensor, input: torch.Tensor, scales: torch.Tensor, "
    "group_size: Optional[int] = 32, shuffle_scale: bool = True, num_rows: Optional[torch.Tensor] = None, "
    "num_rows_factor: int = 1) -> None"
)
def dynamic_per_group_scaled_quant_fp4(
    out: torch.Tensor,
    input: torch.Tensor,  # noqa: A002
    scales: torch.Tensor,
    group_size: int = 32,
    shuffle_scale: bool = True,
    num_rows: torch.Tensor | None = None,
    num_rows_factor: int = 1,
) -> None:
    """Quantize groups to FP4 with e8m0 scales; what the kernel leaves unwritten holds 0xAA."""
    check(group_size in (32, 64, 128), "dynamic_per_group_scaled_quant_fp4 only support group_size [32, 64 , 128]")
    check(out.is_contiguous(), "Expected out.is_contiguous() to be true, but got false.")
    columns = input.shape[-1]
    check(columns % group_size == 0, "dynamic_per_group_scaled_quant_fp4 cols is not divisible by group_size")
    check(DEVICE.has_fp4, "dynamic_per_group_scaled_quant_fp4 device not support Float4_e2m1fn_x2 dtype")
    check(input.dtype in HALVES, f"\"dynamic_per_group_scaled_quant_kernel\" not implemented for '{input.dtype}'")
    check(num_rows is None, "stand-in: num_rows is not stood in for")
    CALLS.append(("dynamic_per_group_scaled_quant_fp4", ""))
    rows, groups = input.numel() // max(columns, 1), columns // group_size
    padded_groups = -(-groups // 8) * 8 if shuffle_scale else groups
    fill_with_garbage(scales)
    values = read_rows(input, rows, columns, input.stride(-2), input.dtype, "input").float()
    blocks = values.view(rows * groups, group_size)
    if not blocks.numel():
        return
    exponents = _nearest_exponents(blocks.abs().amax(dim=1).clamp(min=SMALLEST_AMAX)) - 2
    codes = encode_codes(blocks / torch.exp2(exponents.double() - 127).float().view(-1, 1))
    group = torch.arange(rows).view(-1, 1) * padded_groups + torch.arange(groups).view(1, -1)
    starts = group.view(-1, 1) * (group_size // 2) + torch.arange(group_size // 2).view(1, -1)
    write_at(out, starts, codes, "out (codes of a row are written as if K were a multiple of 256)")
    places = swizzled_places(rows, groups, padded_groups) if shuffle_scale else group
    write_at(scales, places, exponents.to(torch.uint8), "scales")


def _nearest_exponents(amax: torch.Tensor) -> torch.Tensor:
    bits = amax.view(torch.int32)
    exponent = bits >> 23 & 0xFF
    return exponent + (bits >> 22 & 1)
