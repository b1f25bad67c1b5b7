"""Tiles against index formulas, their inverses, and bytes that AITER's own functions gave."""

from __future__ import annotations

import hashlib

import pytest
import torch

from qscheme import tilings

STEPS = {
    "2x128": (tilings.tiles_2x128, tilings.from_tiles_2x128, 2, 128),
    "32x4": (tilings.tiles_32x4, lambda stored: tilings.from_tiles_32x4(stored, stored.shape[0]), 32, 4),
    "32x8": (tilings.tiles_32x8, tilings.from_tiles_32x8, 32, 8),
}

AITER = {
    ("shuffle_mxfp8fp4_a", "2x128", 6, 384): "49095a7888f90e6d13af2ae4eacc75f8ad044bfd557e259c461ef7a6e10e7866",
    ("shuffle_mxfp8fp4_scale", "32x4", 50, 12): "2d580e70e087c14f344bc4a12eac2417851f26ea6eb7784cabb7f0e3bba7b67f",
    ("shuffle_scale_f4(intype=7)", "32x4", 64, 20): "8f52d024337a4e2de0282e9608dcc27d703d6ce2e1bed9f272755729dfa9afa7",
    ("shuffle_scale_f4(intype=8)", "32x8", 96, 24): "45836df7d836e7a485c7ef3096124b9892781c26ad1d43c04bd9218847b679ce",
}
"""The SHA-256 of what functions of AITER v0.1.20.post1 make of `counted` bytes of a shape."""


def counted(rows: int, columns: int) -> torch.Tensor:
    """Bytes [rows, columns] that differ from their neighbours and seldom repeat."""
    places = torch.arange(rows * columns, dtype=torch.int64)
    return ((places * 167 + places // 251) % 256).to(torch.uint8).view(rows, columns)


@pytest.mark.parametrize("known", AITER, ids=lambda known: known[0])
def test_tiles_equal_those_of_aiter_byte_for_byte(known: tuple[str, str, int, int]) -> None:
    _, step, rows, columns = known
    stored = STEPS[step][0](counted(rows, columns))
    assert AITER[known] == hashlib.sha256(stored.contiguous().numpy().tobytes()).hexdigest()


@pytest.mark.parametrize("step", STEPS)
def test_a_byte_goes_where_the_formula_says(step: str) -> None:
    tiled, _, tile_rows, tile_columns = STEPS[step]
    rows, columns = tile_rows * 3, tile_columns * 5
    x = counted(rows, columns)
    expected = torch.zeros(rows * columns, dtype=torch.uint8)
    for row in range(rows):
        for column in range(columns):
            tile = row // tile_rows * 5 + column // tile_columns
            place = tile * tile_rows * tile_columns + row % tile_rows * tile_columns + column % tile_columns
            expected[place] = x[row, column]
    assert torch.equal(expected.view(rows, columns), tiled(x))


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e4m3fn, torch.float8_e8m0fnu])
def test_the_inverse_gives_every_byte_back(step: str, dtype: torch.dtype) -> None:
    tiled, whole, tile_rows, tile_columns = STEPS[step]
    x = torch.randint(0, 256, (tile_rows * 2, tile_columns * 3), dtype=torch.int32).to(torch.uint8).view(dtype)
    stored = tiled(x)
    assert (x.dtype, x.shape) == (stored.dtype, stored.shape)
    assert torch.equal(x.view(torch.uint8), whole(stored).view(torch.uint8))
    transposed = torch.cat((x.view(torch.uint8).t(), x.view(torch.uint8).t()), dim=1)[:, : x.shape[0]].t()
    assert torch.equal(stored.view(torch.uint8), tiled(transposed.view(dtype)).view(torch.uint8))


@pytest.mark.parametrize(("rows", "padded"), [(1, 32), (31, 32), (32, 32), (33, 64), (0, 0)])
def test_scales_are_padded_with_one_to_whole_tiles(rows: int, padded: int) -> None:
    scale = torch.full((rows, 8), 120, dtype=torch.uint8)
    stored = tilings.tiles_32x4(scale)
    assert (padded, 8) == tuple(stored.shape)
    assert [(padded - rows) * 8, rows * 8] == [int((stored == byte).sum()) for byte in (127, 120)]
    assert torch.equal(scale, tilings.from_tiles_32x4(stored, rows))


@pytest.mark.parametrize("step", STEPS)
def test_what_is_no_whole_tile_is_refused(step: str) -> None:
    tiled, whole, tile_rows, tile_columns = STEPS[step]
    for function, rows, columns in (
        (tiled, tile_rows, tile_columns + 1),
        (whole, tile_rows + 1, tile_columns),
        (whole, tile_rows, tile_columns - 1),
    ):
        with pytest.raises(ValueError, match=f"a multiple of {tile_rows} and columns of {tile_columns}"):
            function(torch.zeros(rows, columns, dtype=torch.uint8))
    with pytest.raises(ValueError, match="needs one-byte elements"):
        whole(torch.zeros(tile_rows, tile_columns))


@pytest.mark.parametrize("step", STEPS)
def test_tiles_trace_as_one_graph(step: str) -> None:
    tiled, _, tile_rows, tile_columns = STEPS[step]
    x = counted(tile_rows * 2, tile_columns)
    torch.compiler.reset()
    assert torch.equal(tiled(x), torch.compile(tiled, fullgraph=True, backend="aot_eager")(x))
