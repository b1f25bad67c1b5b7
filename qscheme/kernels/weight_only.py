"""y = x @ dequantize(weight).T by Triton, for every weight that is quantized under an activation that is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from qscheme import tiles
from qscheme.kernels.programs import weight_only as programs

if TYPE_CHECKING:
    from collections.abc import Callable

    from qscheme.types import Format, GlobalScale, Granularity, ScaleFormat


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
    weight_format: Format,
    weight_granularity: Granularity,
    weight_scale_format: ScaleFormat,
    batch_invariant: bool,
    weight_global_scale: Tensor | None = None,
    weight_global_scale_applies: GlobalScale | None = None,
    weight_zero_point: Tensor | None = None,
) -> Tensor:
    """y [M, N] in `output_dtype` of x [M, K] in bf16, fp16 or fp32 and codes [N, K]; sums and bias in float32.

    weight: bytes of E4M3 (OCP, on every device) or int8 [N, K]; E2M1 uint8 [N, K/2]; INT4 int32 [N, K/8], nibbles of
    code + 8, the lowest first. weight_scale: float32, or bytes of E8M0 or E4M3, in the shape that the granularity says;
    per tensor also [N, 1]. weight_zero_point: integers in the shape of the scales. weight_global_scale: [1] float32,
    which divides or multiplies as weight_global_scale_applies says.

    The products of x and codes are exact in float32. batch_invariant: rows do not depend on M. The same M, N and K give
    the same bits every time.
    """
    (m, k), n = x.shape, weight.shape[0]
    tile = _tile(m, x.dtype, batch_invariant)
    tall, group = _shared(weight_granularity, one=weight_scale.numel() == 1)
    zero = None if weight_zero_point is None else weight_zero_point.expand(weight_scale.shape).contiguous()
    within = zero is None and group <= tile.deep
    place = _place(group, weight_format, weight_scale_format, x.dtype, within=within)
    deep = min(group, tile.deep) if place == "sum" else tile.deep
    outer = weight_global_scale_applies or "none"
    count = -(-m // tile.high) * -(-n // tile.wide)
    steps = -(-k // deep)
    parts = 1 if batch_invariant else max(1, min(PROGRAMS // count, steps // 4))
    part = -(-steps // parts) * deep
    parts = -(-k // part)
    y = x.new_empty((m, n), dtype=output_dtype)
    sums = y if parts == 1 else x.new_empty((parts, m, n), dtype=torch.float32)
    multiply[count, parts](
        x, weight.view(torch.uint8), _bytes(weight_scale), zero, weight_global_scale, bias, sums,
        m, n, k, part,
        CODES=weight_format, SCALE=weight_scale_format, GROUP=group, TALL=tall, PLACE=place,
        PACKED=weight_format in PACKED, ZERO=zero is not None, OUTER=outer, BIAS=bias is not None,
        PARTIAL=parts > 1, DECODED=FLOATS[x.dtype], EVEN_K=k % deep == 0,
        BLOCK_M=tile.high, BLOCK_N=tile.wide, BLOCK_K=deep, NEIGHBOURS=NEIGHBOURS,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if parts > 1:
        add_up[m, -(-n // 1024)](
            sums, weight_global_scale, bias, y, m, n, parts,
            OUTER=outer, BIAS=bias is not None, BLOCK=1024, num_warps=4,
        )  # fmt: skip
    return y


def _tile(m: int, dtype: torch.dtype, batch_invariant: bool) -> Tile:
    if dtype == torch.float32:
        return FLOAT32_TILE
    return SAME_TILE if batch_invariant else next(tile for tile in TILES if tile.rows is None or m <= tile.rows)


def _shared(granularity: Granularity, *, one: bool) -> tuple[int, int]:
    """How many rows and columns of the weight share a scale, 0 for all of them; one: whether it has one scale."""
    if granularity in ("per_tensor", "per_channel"):
        return 0 if one else 1, 0
    return tiles.tile(granularity, 0, 0)


def _place(group: int, codes: Format, scale: ScaleFormat, dtype: torch.dtype, *, within: bool) -> str:
    """Where scales are applied without a rounding: float16 holds E4M3 times E2M1, but not every power of two.

    within: whether a tile of the program has whole groups, none of which has a zero point of its own.
    """
    if not group:
        return "row"
    exact = dtype != torch.float16 if scale == "e8m0" else scale == "e4m3" and codes == "fp4_e2m1"
    return "weight" if exact and within else "sum"


def _bytes(scale: Tensor) -> Tensor:
    dense = scale.contiguous()
    return dense if dense.dtype == torch.float32 else dense.view(torch.uint8)
