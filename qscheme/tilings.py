"""Layout steps that store a matrix tile after tile, each with its inverse."""

from __future__ import annotations

import torch
from torch import Tensor

ONE = 127
"""The E8M0 byte of 1."""


def tiles_2x128(codes: Tensor) -> Tensor:
    """Codes [M, K] of one byte each in tiles of 2 rows by 128 columns, in the same shape and dtype.

    Byte (m, k) goes to flat position (m // 2 * (K // 128) + k // 128) * 256 + m % 2 * 128 + k % 128.
    Source: shuffle_mxfp8fp4_a of AITER. Raises ValueError unless M % 2 == 0 and K % 128 == 0.
    """
    return _tiled("tiles_2x128", codes, 2, 128)


def from_tiles_2x128(stored: Tensor) -> Tensor:
    """The inverse of `tiles_2x128`, with the same conditions."""
    return _whole("from_tiles_2x128", stored, 2, 128)


def tiles_32x4(scale: Tensor) -> Tensor:
    """E8M0 bytes [R, C] in tiles of 32 rows by 4 columns: [R up to a multiple of 32, C].

    Byte (r, c) goes to flat position (r // 32 * (C // 4) + c // 4) * 128 + r % 32 * 4 + c % 4. Padding is byte 127, 1.
    Takes uint8 or float8_e8m0fnu and returns the same. Source: shuffle_mxfp8fp4_scale and, where nothing is padded,
    shuffle_scale_f4 of AITER. Raises ValueError unless C % 4 == 0.
    """
    padded = torch.nn.functional.pad(scale.view(torch.uint8), (0, 0, 0, -scale.shape[0] % 32), value=ONE)
    return _tiled("tiles_32x4", padded, 32, 4).view(scale.dtype)


def from_tiles_32x4(stored: Tensor, rows: int) -> Tensor:
    """The scale [rows, C] of `tiles_32x4`; drops the padding. Raises ValueError unless `stored` is whole tiles."""
    return _whole("from_tiles_32x4", stored, 32, 4)[:rows]


def tiles_32x8(scale: Tensor) -> Tensor:
    """E4M3 scales [R, C] in tiles of 32 rows by 8 columns, in the same shape and dtype.

    Scale (r, c) goes to flat position (r // 32 * (C // 8) + c // 8) * 256 + r % 32 * 8 + c % 8.
    Source: shuffle_scale_f4(intype=8) of AITER. Raises ValueError unless R % 32 == 0 and C % 8 == 0.
    """
    return _tiled("tiles_32x8", scale, 32, 8)


def from_tiles_32x8(stored: Tensor) -> Tensor:
    """The inverse of `tiles_32x8`, with the same conditions."""
    return _whole("from_tiles_32x8", stored, 32, 8)


def _tiled(step: str, x: Tensor, tile_rows: int, tile_columns: int) -> Tensor:
    rows, columns = _tiles(step, x, tile_rows, tile_columns)
    tiles = x.view(torch.uint8).reshape(rows, tile_rows, columns, tile_columns)
    return tiles.permute(0, 2, 1, 3).reshape(x.shape).view(x.dtype)


def _whole(step: str, stored: Tensor, tile_rows: int, tile_columns: int) -> Tensor:
    rows, columns = _tiles(step, stored, tile_rows, tile_columns)
    tiles = stored.view(torch.uint8).reshape(rows, columns, tile_rows, tile_columns)
    return tiles.permute(0, 2, 1, 3).reshape(stored.shape).view(stored.dtype)


def _tiles(step: str, x: Tensor, tile_rows: int, tile_columns: int) -> tuple[int, int]:
    """How many tiles lie along the rows and along the columns."""
    rows, columns = x.shape
    if x.element_size() != 1:
        raise ValueError(f"{step}: needs one-byte elements, found {x.dtype}")
    if rows % tile_rows or columns % tile_columns:
        needs = f"rows a multiple of {tile_rows} and columns of {tile_columns}"
        raise ValueError(f"{step}: needs {needs}, found {rows} x {columns}")
    return rows // tile_rows, columns // tile_columns
