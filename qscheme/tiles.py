"""How a matrix falls into the tiles that share a scale."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor

from qscheme.types import Granularity


def _sides(granularity: str) -> tuple[int, int]:
    """The rows and columns of a tile, from a word like 1x32."""
    rows, _, columns = granularity.partition("x")
    if not (rows.isdecimal() and columns.isdecimal() and int(rows) and int(columns)):
        raise ValueError(f"granularity: needs per_tensor, per_token, per_channel or RxC, found {granularity!r}")
    return int(rows), int(columns)


TILES = {word: _sides(word) for word in get_args(Granularity) if "x" in word}
"""The sides of the tiles that schemes have, as every layer is asked for them."""


def tile(granularity: Granularity, rows: int, columns: int) -> tuple[int, int]:
    """How many rows and columns of a [rows, columns] matrix share one scale; 1 where the matrix has none.

    Raises ValueError for a word that is neither per_tensor, per_token, per_channel nor rows x columns like 1x32.
    """
    if granularity in TILES:
        return TILES[granularity]
    if granularity == "per_tensor":
        return max(rows, 1), max(columns, 1)
    if granularity in ("per_token", "per_channel"):
        return 1, max(columns, 1)
    return _sides(granularity)


def scale_shape(rows: int, columns: int, granularity: Granularity) -> tuple[int, int] | tuple[int]:
    """The shape of the scale of a [rows, columns] matrix: [1] per tensor, else [tiles along rows, tiles along columns].

    Ragged tiles at the end count as tiles.
    """
    return (1,) if granularity == "per_tensor" else tile_grid(rows, columns, granularity)


def tile_grid(rows: int, columns: int, granularity: Granularity) -> tuple[int, int]:
    if granularity == "per_tensor":
        return 1, 1
    if granularity in ("per_token", "per_channel"):
        return rows, 1
    tile_rows, tile_columns = tile(granularity, rows, columns)
    return -(-rows // tile_rows), -(-columns // tile_columns)


def tiled(x: Tensor, granularity: Granularity) -> Tensor:
    """x [R, K] as [grid rows, tile rows, grid columns, tile columns], ragged tiles filled with zeros."""
    rows, columns = x.shape
    tile_rows, tile_columns = tile(granularity, rows, columns)
    grid_rows, grid_columns = tile_grid(rows, columns, granularity)
    below, right = grid_rows * tile_rows - rows, grid_columns * tile_columns - columns
    if below or right:
        x = torch.nn.functional.pad(x, (0, right, 0, below))
    return x.reshape(grid_rows, tile_rows, grid_columns, tile_columns)


def untiled(tiles: Tensor, rows: int, columns: int) -> Tensor:
    """The inverse of `tiled`, a view where nothing was filled."""
    grid_rows, tile_rows, grid_columns, tile_columns = tiles.shape
    return tiles.reshape(grid_rows * tile_rows, grid_columns * tile_columns)[:rows, :columns]
