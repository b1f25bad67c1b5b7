"""Named layout steps on weights, scales and activations, each with its inverse."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qscheme.numerics import decode_e8m0

if TYPE_CHECKING:
    from collections.abc import Sequence

ALIGNMENT = 16
"""The bytes that a tensor's address must be a multiple of for kernels that load several elements at once."""


def shuffle_16x16(weight: Tensor) -> Tensor:
    """A weight [N, K] of one-byte elements in tiles of 16 rows by 16 bytes, in the same shape and dtype.

    Byte (n, k) goes to flat position
    ((n // 16 * (K // 32) + k // 32) * 2 + k // 16 % 2) * 256 + n % 16 * 16 + k % 16.
    E2M1 bytes count as bytes, so K is then the logical K / 2. Source: shuffle_weight(layout=(16, 16)) of AITER.
    Raises ValueError unless N % 16 == 0, K % 32 == 0 and an element is one byte.
    """
    rows, columns = _sixteens("shuffle_16x16", weight)
    tiles = weight.view(torch.uint8).reshape(rows // 16, 16, columns // 32, 2, 16)
    return tiles.permute(0, 2, 3, 1, 4).reshape(rows, columns).view(weight.dtype)


def unshuffle_16x16(stored: Tensor) -> Tensor:
    """The inverse of `shuffle_16x16`, with the same conditions."""
    rows, columns = _sixteens("unshuffle_16x16", stored)
    tiles = stored.view(torch.uint8).reshape(rows // 16, columns // 32, 2, 16, 16)
    return tiles.permute(0, 3, 1, 2, 4).reshape(rows, columns).view(stored.dtype)


def swizzle_e8m0_32x8(scale: Tensor) -> Tensor:
    """E8M0 bytes [R, C] in tiles of 32 rows by 8 columns: [R up to a multiple of 32, C up to a multiple of 8].

    Byte (r, c) goes to flat position
    ((r // 32 * (columns // 8) + c // 8) * 4 + c % 4) * 64 + r % 16 * 4 + c // 4 % 2 * 2 + r // 16 % 2,
    where columns is the padded number. Padding is byte 0, 2**-127. Takes uint8 or float8_e8m0fnu and returns the same.
    Source: e8m0_shuffle of AITER, whose padding is not initialised.
    """
    return _swizzled(scale, 32)


def swizzle_e8m0_256x8(scale: Tensor) -> Tensor:
    """`swizzle_e8m0_32x8` with rows padded to a multiple of 256, as AITER's own quantizers store activation scales."""
    return _swizzled(scale, 256)


def unswizzle_e8m0_32x8(stored: Tensor, rows: int, columns: int) -> Tensor:
    """The scale [rows, columns] of `swizzle_e8m0_32x8` or `swizzle_e8m0_256x8`; drops the padding.

    Raises ValueError unless `stored` is whole tiles that hold rows x columns.
    """
    padded_rows, padded_columns = stored.shape
    if padded_rows % 32 or padded_columns % 8 or padded_rows < rows or padded_columns < columns:
        needs = f"multiples of 32 rows and 8 columns that hold {rows} x {columns}"
        raise ValueError(f"unswizzle_e8m0_32x8: needs {needs}, found {padded_rows} x {padded_columns}")
    tiles = stored.view(torch.uint8).reshape(padded_rows // 32, padded_columns // 8, 4, 16, 2, 2)
    plain = tiles.permute(0, 5, 3, 1, 4, 2).reshape(padded_rows, padded_columns)
    return plain[:rows, :columns].contiguous().view(stored.dtype)


def swizzle_32_4_4(scale: Tensor) -> Tensor:
    """One-byte scales [R, C] in tiles of 128 rows by 4 columns: [R up to a multiple of 128, C up to a multiple of 4].

    Byte (r, c) goes to flat position
    (r // 128 * (columns // 4) + c // 4) * 512 + r % 32 * 16 + r // 32 % 4 * 4 + c % 4,
    where columns is the padded number. Padding is byte 0. Takes any dtype of one byte and returns the same. Source:
    "1D Block Scaling Factors Layout" of the cuBLAS documentation, SWIZZLE_32_4_4 of torch 2.10.
    """
    rows, columns = scale.shape
    stored = torch.nn.functional.pad(scale.view(torch.uint8), (0, -columns % 4, 0, -rows % 128))
    rows, columns = stored.shape
    tiles = stored.reshape(rows // 128, 4, 32, columns // 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).reshape(rows, columns).view(scale.dtype)


def unswizzle_32_4_4(stored: Tensor, rows: int, columns: int) -> Tensor:
    """The scale [rows, columns] of `swizzle_32_4_4`; drops the padding.

    Raises ValueError unless `stored` is whole tiles that hold rows x columns.
    """
    padded_rows, padded_columns = stored.shape
    if padded_rows % 128 or padded_columns % 4 or padded_rows < rows or padded_columns < columns:
        needs = f"multiples of 128 rows and 4 columns that hold {rows} x {columns}"
        raise ValueError(f"unswizzle_32_4_4: needs {needs}, found {padded_rows} x {padded_columns}")
    tiles = stored.view(torch.uint8).reshape(padded_rows // 128, padded_columns // 4, 32, 4, 4)
    plain = tiles.permute(0, 3, 2, 1, 4).reshape(padded_rows, padded_columns)
    return plain[:rows, :columns].contiguous().view(stored.dtype)


def k_major(scale: Tensor) -> Tensor:
    """A scale [M, G] with the bytes of its transpose [G, M] under the shape [M, G]: flat position g * M + m."""
    return scale.t().contiguous().view(scale.shape)


def from_k_major(stored: Tensor) -> Tensor:
    """The inverse of `k_major`."""
    rows, groups = stored.shape
    return stored.reshape(groups, rows).t().contiguous()


def column_major(scale: Tensor) -> Tensor:
    """The same values [M, G] with strides (1, M), also where M or G is 1; the 1x128 scale of torch's scaled_mm."""
    return scale.t().clone(memory_format=torch.contiguous_format).t()


def from_column_major(stored: Tensor) -> Tensor:
    """The inverse of `column_major`: the same values, row-major."""
    return stored.contiguous()


def column_major_padded(scale: Tensor, multiple: int) -> Tensor:
    """A weight scale [N tiles, K tiles] as [L, N tiles] with strides (1, L), where L is K tiles up to a `multiple`.

    Element (k, n) is scale (n, k), or 0 in the padding. With multiple 4 it is the BlockWise128x128 scale of the second
    operand of torch.nn.functional.scaled_mm (torch 2.10, ScaledBlas.cpp).
    """
    below = -scale.shape[1] % multiple
    return torch.nn.functional.pad(scale, (0, below)).clone(memory_format=torch.contiguous_format).t()


def from_column_major_padded(stored: Tensor, columns: int) -> Tensor:
    """The inverse of `column_major_padded` for a scale [N tiles, columns]."""
    return stored.t()[:, :columns].contiguous()


def expand_rows(scale: Tensor, rows: int) -> Tensor:
    """A scale with one element, or one for each row, as [rows, 1], contiguous, float32.

    Takes [], [1], [1, 1], [rows], [rows, 1] and [1, rows]. Raises ValueError for any other number of elements.
    """
    if scale.numel() not in (1, rows):
        raise ValueError(f"expand_rows: needs 1 or {rows} elements, found shape {list(scale.shape)}")
    if scale.numel() != rows:
        scale = scale.reshape(1, 1).expand(rows, 1)
    return scale.to(torch.float32).reshape(rows, 1).contiguous()


def expand_widths(scale: Tensor, widths: Sequence[int]) -> Tensor:
    """One scale for each part of a fused layer as one for each channel: [sum(widths), 1], contiguous, float32.

    widths: the N of each part, in order. A single scale holds for every part. Raises ValueError for any other number.
    """
    if scale.numel() not in (1, len(widths)):
        found = f"shape {list(scale.shape)}"
        raise ValueError(f"expand_widths: needs 1 or {len(widths)} elements, one for each width, found {found}")
    parts = scale.to(torch.float32).reshape(-1, 1).expand(len(widths), 1)
    return torch.cat([parts[index].expand(width, 1) for index, width in enumerate(widths)])


def fnuz_weight(weight: Tensor) -> Tensor:
    """An e4m3fn weight as e4m3fnuz of half its value; `fnuz_scale` doubles the scale to match.

    Bytes are kept but for 0x80, -0 in e4m3fn and NaN in e4m3fnuz, which becomes 0, and for the NaNs 0x7F and 0xFF,
    which become 0x80. Raises ValueError for another dtype.
    """
    if weight.dtype != torch.float8_e4m3fn:
        raise ValueError(f"fnuz_weight: needs float8_e4m3fn, found {weight.dtype}")
    byte = weight.view(torch.uint8)
    positive = torch.where(byte == 0x80, 0, byte)
    return torch.where((byte & 0x7F) == 0x7F, 0x80, positive).view(torch.float8_e4m3fnuz)


def from_fnuz_weight(weight: Tensor) -> Tensor:
    """The inverse of `fnuz_weight`: every value back, -0 as 0, NaN as 0x7F.

    +-240, which no e4m3fn weight gives, would be +-480 and becomes the largest e4m3fn, +-448. Raises ValueError for
    another dtype than float8_e4m3fnuz.
    """
    if weight.dtype != torch.float8_e4m3fnuz:
        raise ValueError(f"from_fnuz_weight: needs float8_e4m3fnuz, found {weight.dtype}")
    byte = weight.view(torch.uint8)
    finite = torch.where((byte & 0x7F) == 0x7F, byte - 1, byte)
    return torch.where(byte == 0x80, 0x7F, finite).view(torch.float8_e4m3fn)


def fnuz_scale(scale: Tensor) -> Tensor:
    """Twice a scale: float32 of a floating scale, E8M0 bytes plus 1 and at most 254; byte 255 stays NaN."""
    if not _is_e8m0(scale):
        return scale.to(torch.float32) * 2.0
    byte = scale.view(torch.uint8)
    return torch.where(byte < 254, byte + 1, byte).view(scale.dtype)


def from_fnuz_scale(scale: Tensor) -> Tensor:
    """Half a scale, the inverse of `fnuz_scale` but for byte 254, which comes from 253 and 254; at least byte 0."""
    if not _is_e8m0(scale):
        return scale.to(torch.float32) * 0.5
    byte = scale.view(torch.uint8)
    return torch.where((byte > 0) & (byte < 255), byte - 1, byte).view(scale.dtype)


def e8m0_to_fp32(scale: Tensor) -> Tensor:
    """Any stored scale as float32: E8M0 bytes decoded (0 is 2**-127, 255 NaN), floats upcast, float32 as it is.

    `numerics.encode_e8m0` is the inverse for E8M0 bytes.
    """
    return decode_e8m0(scale) if _is_e8m0(scale) else scale.to(torch.float32)


def pad_rows(x: Tensor, minimum: int) -> Tensor:
    """x [R, C] with zero rows added until there are `minimum`; x itself where there are as many."""
    missing = minimum - x.shape[0]
    if missing <= 0:
        return x
    if x.element_size() > 1:
        return torch.nn.functional.pad(x, (0, 0, 0, missing))
    return torch.nn.functional.pad(x.view(torch.uint8), (0, 0, 0, missing)).view(x.dtype)


def cut_rows(x: Tensor, rows: int) -> Tensor:
    """The first `rows` rows, the inverse of `pad_rows`; a view."""
    return x[:rows]


def fold_rows(x: Tensor, count: int) -> Tensor:
    """Contiguous x [R, C] under the shape [R / count, C * count]; a view. Raises ValueError unless R % count == 0."""
    rows, columns = x.shape
    if rows % count:
        raise ValueError(f"fold_rows: needs rows that are a multiple of {count}, found {rows}")
    return x.view(rows // count, columns * count)


def unfold_rows(x: Tensor, count: int) -> Tensor:
    """The inverse of `fold_rows`; a view. Raises ValueError unless the columns are a multiple of `count`."""
    rows, columns = x.shape
    if columns % count:
        raise ValueError(f"unfold_rows: needs columns that are a multiple of {count}, found {columns}")
    return x.view(rows * count, columns // count)


def transpose(x: Tensor) -> Tensor:
    """x [R, C] as [C, R], its own inverse; a view."""
    return x.t()


def bytes_of(x: Tensor) -> Tensor:
    """The bytes of x as uint8, in the same shape for one-byte elements; a view."""
    return x.view(torch.uint8)


def from_bytes(stored: Tensor, dtype: torch.dtype) -> Tensor:
    """The inverse of `bytes_of`; a view."""
    return stored.view(dtype)


def _sixteens(step: str, weight: Tensor) -> tuple[int, int]:
    rows, columns = weight.shape
    if weight.element_size() != 1:
        raise ValueError(f"{step}: needs one-byte elements, found {weight.dtype}")
    if rows % 16 or columns % 32:
        raise ValueError(f"{step}: needs N % 16 == 0 and K % 32 == 0 in bytes, found N {rows} and K {columns}")
    return rows, columns


def _swizzled(scale: Tensor, row_multiple: int) -> Tensor:
    rows, columns = scale.shape
    padding = (0, -columns % 8, 0, -rows % row_multiple)
    stored = torch.nn.functional.pad(scale.view(torch.uint8), padding)
    rows, columns = stored.shape
    tiles = stored.reshape(rows // 32, 2, 16, columns // 8, 2, 4)
    return tiles.permute(0, 3, 5, 2, 4, 1).reshape(rows, columns).view(scale.dtype)


def _is_e8m0(scale: Tensor) -> bool:
    return scale.dtype in (torch.uint8, torch.float8_e8m0fnu)


def row_major(x: Tensor) -> Tensor:
    """x [R, C] with its rows one after the other, at a multiple of ALIGNMENT bytes; a copy only if it is not so."""
    rows = x.contiguous()
    return rows if rows.data_ptr() % ALIGNMENT == 0 else rows.clone()


def transposed(weight: Tensor) -> Tensor:
    """weight [N, K] as a view [K, N] of rows that stand one after the other."""
    return row_major(weight).t()


def padded_column_major(scale: Tensor) -> Tensor:
    """scale [R, C] as torch takes the scales of 128x128 weights: see `column_major_padded`, in fours."""
    return column_major_padded(scale, 4)


def as_dtype(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """x in a dtype, None for None."""
    return None if x is None else x.to(dtype)


def bias_or_zeros(bias: Tensor | None, n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A bias [N] in a dtype, zeros for None."""
    return torch.zeros(n, dtype=dtype, device=device) if bias is None else bias.to(dtype)


def swizzled_shape(rows: int, columns: int) -> tuple[int, int]:
    """The shape of scales [rows, columns] after `swizzle_e8m0_256x8`."""
    return -(-rows // 256) * 256, -(-columns // 8) * 8


def row_vector(scale: Tensor, columns: int) -> Tensor:
    """A scale with one element, or one for each of `columns`, as [1, columns], contiguous, float32."""
    return expand_rows(scale, columns).reshape(1, columns)
