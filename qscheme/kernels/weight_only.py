"""y = x @ dequantize(weight).T by Triton, for every weight that is quantized under an activation that is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from qscheme.kernels.programs import weight_only as programs

if TYPE_CHECKING:
    from collections.abc import Callable


class Program(Protocol):
    """A Triton program: of a grid, the function that launches it."""

    def __getitem__(self, grid: tuple[int, int]) -> Callable[..., object]: ...


multiply = cast("Program", vars(programs)["multiply"])
add_up = cast("Program", vars(programs)["add_up"])


class Tile(NamedTuple):
    """The tile of a program for M up to `rows` (None: any), and how many warps and loads in flight it has.

    deep: columns of K; where sums are scaled by groups, no more than one group.
    """

    rows: int | None
    high: int
    wide: int
    deep: int
    warps: int
    stages: int


TILES = (
    Tile(16, 16, 64, 128, 4, 3),
    Tile(32, 32, 64, 128, 4, 3),
    Tile(64, 64, 64, 64, 4, 3),
    Tile(None, 128, 128, 64, 8, 2),
)
"""By M, the first that fits. None needs more than 64 KiB of shared memory, which every GPU has."""

SAME_TILE = Tile(None, 64, 64, 64, 4, 3)
"""For every M, so that a row's sum does not depend on how many rows there are."""

FLOAT32_TILE = Tile(None, 32, 64, 32, 4, 2)
"""For x in float32, which is multiplied exactly, without matrix units."""

PROGRAMS = 256
"""How many programs keep a large GPU busy; fewer tiles than that are split along K."""

NEIGHBOURS = 8
FLOATS = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp16"}
"""The float that codes are decoded to for each dtype of x; both hold every code exactly."""
PACKED = ("fp4_e2m1", "int4")


def weight_only(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    output_dtype: torch.dtype,
    codes: str,
    scale: str,
    group: int,
    rows_of_scale: int,
    same_tile: bool,
    global_scale: str = "none",
    weight_global_scale: Tensor | None = None,
    weight_zero_point: Tensor | None = None,
) -> Tensor:
    """y [M, N] in `output_dtype` of x [M, K] in bf16, fp16 or fp32 and codes [N, K]; sums and bias in float32.

    weight: bytes of E4M3 (OCP, on every device) or int8 [N, K]; E2M1 uint8 [N, K/2]; INT4 int32 [N, K/8], nibbles of
    code + 8, the lowest first. weight_scale: float32, or bytes of E8M0 or E4M3, one for `rows_of_scale` x `group`
    elements, or [N, 1] float32 where group is 0. weight_zero_point: integers in the shape of the scales.
    weight_global_scale: [1] float32, which divides or multiplies as global_scale says.

    The products of x and codes are exact in float32. same_tile: rows do not depend on M. The same M, N and K give the
    same bits every time.
    """
    (m, k), n = x.shape, weight.shape[0]
    tile = _tile(m, x.dtype, same_tile)
    place = _place(group, scale, x.dtype)
    deep = min(group, tile.deep) if place == "sum" else tile.deep
    tiles = -(-m // tile.high) * -(-n // tile.wide)
    steps = -(-k // deep)
    parts = 1 if same_tile else max(1, min(PROGRAMS // tiles, steps // 4))
    part = -(-steps // parts) * deep
    parts = -(-k // part)
    y = x.new_empty((m, n), dtype=output_dtype)
    zero = None if weight_zero_point is None else weight_zero_point.contiguous()
    sums = y if parts == 1 else x.new_empty((parts, m, n), dtype=torch.float32)
    multiply[tiles, parts](
        x, weight.view(torch.uint8), _bytes(weight_scale), zero, weight_global_scale, bias, sums,
        m, n, k, part,
        CODES=codes, SCALE=scale, GROUP=group, TALL=rows_of_scale, PLACE=place,
        PACKED=codes in PACKED, ZERO=weight_zero_point is not None, OUTER=global_scale, BIAS=bias is not None,
        PARTIAL=parts > 1, DECODED=FLOATS[x.dtype], EVEN_K=k % deep == 0,
        BLOCK_M=tile.high, BLOCK_N=tile.wide, BLOCK_K=deep, NEIGHBOURS=NEIGHBOURS,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if parts > 1:
        add_up[m, -(-n // 1024)](
            sums, weight_global_scale, bias, y, m, n, parts,
            OUTER=global_scale, BIAS=bias is not None, BLOCK=1024, num_warps=4,
        )  # fmt: skip
    return y


def _tile(m: int, dtype: torch.dtype, same_tile: bool) -> Tile:
    if dtype == torch.float32:
        return FLOAT32_TILE
    return SAME_TILE if same_tile else next(tile for tile in TILES if tile.rows is None or m <= tile.rows)


def _place(group: int, scale: str, dtype: torch.dtype) -> str:
    """Where scales are applied without a rounding: float16 holds E4M3 times E2M1, but not every power of two."""
    if not group:
        return "row"
    exact = scale == "e4m3" or (scale == "e8m0" and dtype != torch.float16)
    return "weight" if exact else "sum"


def _bytes(scale: Tensor) -> Tensor:
    dense = scale.contiguous()
    return dense if dense.dtype == torch.float32 else dense.view(torch.uint8)
