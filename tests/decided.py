"""The compiler's account of decisions against the generated code, at points drawn from its decision space."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import qscheme
from qscheme import Facts
from qscheme.compiler.folder import read_folder
from qscheme.compiler.points import Point, locate
from qscheme.compiler.resolve import resolve
from qscheme.compiler.space import Side, Space, backend_at
from qscheme.operands import DTYPES
from qscheme.tiles import tile

if TYPE_CHECKING:
    from qscheme.compiler import ir
    from qscheme.compiler.axes import Axis
    from qscheme.compiler.cubes import Cube
    from qscheme.tables import Tables
    from qscheme.types import Device, TunedTable

FLOATS = {word: dtype for dtype, word in DTYPES.items()}


class SomeTuned:
    """Takes the given (table, M) pairs for tuned, whatever N and K."""

    def __init__(self, pairs: frozenset[tuple[str, int]]) -> None:
        self.pairs = pairs

    def untuned(
        self, table: TunedTable, device: Device, compute_units: int | None, n: int, k: int, every: tuple[int, ...]
    ) -> str | None:
        return None if all((table.name, m) in self.pairs for m in every) else "no row"


def catalogue_of(folder: Path, shipped: Path | None = None) -> ir.Catalogue:
    catalogue, problems = resolve(read_folder(folder, shipped or folder), ("triton",))
    assert [] == list(map(str, problems))
    return catalogue


def explained(scheme: str, point: Point, tables: Tables) -> str | None:
    """What the generated code decides at a point."""
    facts = Facts.simulate(
        point.arch, switches=point.switches, tuned=SomeTuned(point.tuned), tables=tables, **point.releases
    )
    layer: Any = SimpleNamespace(
        scheme=scheme, weight=None, weight_scale=None, input_scale=None, bias=None, name="", out_dtype=FLOATS[point.output],
        out_features=point.n, in_features=point.k, logical_widths=[1, point.n - 1] if point.fused else None,
        full_out_features=point.full_n, full_in_features=point.full_k,
    )  # fmt: skip
    return qscheme.explain(layer, facts, tables).chosen


def later(release: str) -> str:
    return release if ".post" in release else f"{release}.post7"


def random_point(space: Space, draw: random.Random, inside: Cube) -> Point:
    """A point of a cube, with sizes and releases that stand for themselves or for their class."""
    values = {
        (axis.kind, axis.name): draw.choice(axis.chosen(mask)) for axis, mask in zip(space.axes, inside, strict=True)
    }
    names = {kind: [axis.name for axis in space.axes if axis.kind == kind] for kind in ("library", "switch")}
    releases: dict[str, str | None] = {}
    for name in names["library"]:
        value = values["library", name]
        assert value is None or isinstance(value, str)
        releases[name] = draw.choice([value, value and f"{value}+rocm7", value and later(value)])
    sizes = {axis.name: int(values["size", axis.name] or 0) * draw.choice([1, 5, 4, 16]) for axis in sized(space)}
    for axis in sized(space):
        sizes[axis.name] = axis.reaching(sizes[axis.name], sizes[axis.name.removeprefix("full_")])
    return Point(
        arch=str(values["arch", "arch"]),
        releases=releases,
        n=sizes["n"],
        k=sizes["k"],
        output=str(values["output", "output"]),
        fused=bool(values.get(("fused", "fused"))),
        tuned=frozenset(
            (a.table, m) for a in space.axes for m in a.rows if values[a.kind, a.name] or draw.random() < 0.1
        ),
        switches={name: bool(values["switch", name]) for name in names["switch"]},
        full_n=sizes.get("full_n"),
        full_k=sizes.get("full_k"),
    )


def sized(space: Space) -> list[Axis]:
    return [axis for axis in space.axes if axis.kind == "size"]


def possible(point: Point, scheme: ir.Scheme) -> Point:
    """A point without what no backend of a scheme takes: scales of parts beside tiles, shards that cut tiles."""
    rows, columns = tile(scheme.weight.granularity, 1, 1)
    return point._replace(
        fused=point.fused and scheme.weight.granularity == "per_tensor",
        full_n=None if point.n % rows else point.full_n,
        full_k=None if point.k % columns else point.full_k,
    )


def compare(catalogue: ir.Catalogue, tables: Tables, points: int) -> Counter[tuple[str, str | None]]:
    """The number of points for each decision: some anywhere, some in every region and some beside it."""
    side, draw, seen = Side.of(catalogue), random.Random(7), Counter[tuple[str, str | None]]()
    for scheme in catalogue.schemes:
        space = Space.of((side, scheme))
        decided = space.decisions(side, scheme)
        regions = [draw.choice(found.cubes) for found in decided if found.cubes for _ in range(points)]
        beside = [
            tuple(full if draw.random() < 0.1 else mask for full, mask in zip(space.full, c, strict=True))
            for c in regions
        ]
        for cube in (*regions, *beside, *[space.full] * points):
            asked = possible(random_point(space, draw, cube), scheme)
            expected = explained(scheme.name, asked, tables)
            assert expected == backend_at(decided, locate(space, asked)), (scheme.name, asked)
            seen[scheme.name, expected] += 1
    return seen
