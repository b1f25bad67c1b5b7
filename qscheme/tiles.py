"""How a matrix falls into the tiles that share a scale."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor

from qscheme.types import Granularity

TILES: dict[str, tuple[int, int]] = {
    word: (int(word.partition("x")[0]), int(word.partition("x")[2])) for word in get_args(Granularity) if "x" in word
}
"""The rows and columns of a tile, for each granularity that is a tile."""


def tile(granularity: Granularity, rows: int, columns: int) -> tuple[int, int]:
    """How many rows and columns of a [rows, columns] matrix share one scale; 1 where the matrix has none.

    Raises ValueError for a word that is no granularity.
    """
    if granularity in TILES:
        return TILES[granularity]
    if granularity == "per_tensor":
        return max(rows, 1), max(columns, 1)
    if granularity in ("per_token", "per_channel"):
        return 1, max(columns, 1)
    raise ValueError(f"granularity: needs {', '.join(get_args(Granularity))}, found {granularity!r}")


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
