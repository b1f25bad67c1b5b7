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

if TYPE_CHECKING:
    from qscheme.compiler import ir
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
    point = Point(
        arch=str(values["arch", "arch"]),
        releases=releases,
        n=int(values["size", "n"] or 0) * draw.choice([1, 5, 4, 16]),
        k=int(values["size", "k"] or 0) * draw.choice([1, 5, 4, 16]),
        output=str(values["output", "output"]),
        fused=bool(values.get(("fused", "fused"))),
        tuned=frozenset(
            (a.table, m) for a in space.axes for m in a.rows if values[a.kind, a.name] or draw.random() < 0.1
        ),
        switches={name: bool(values["switch", name]) for name in names["switch"]},
    )
    return point._replace(k=4 * point.k) if point.k % 4 else point  # what any format can pack


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
            point = random_point(space, draw, cube)
            asked = point._replace(fused=point.fused and scheme.weight.granularity == "per_tensor")
            expected = explained(scheme.name, asked, tables)
            assert expected == backend_at(decided, locate(space, asked)), (scheme.name, asked)
            seen[scheme.name, expected] += 1
    return seen
