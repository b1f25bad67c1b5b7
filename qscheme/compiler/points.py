"""One point of the decision space: a machine and a layer, where it is, and in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from qscheme.compiler.axes import UNKNOWN
from qscheme.compiler.timelines import FIRST
from qscheme.releases import parsed

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping

    from packaging.version import Version

    from qscheme.compiler.axes import Axis, Kind, Value
    from qscheme.compiler.cubes import Cube
    from qscheme.compiler.space import Held, Space


class Point(NamedTuple):
    """A machine and a layer. releases: versions by library, None for an absent one. tuned: (table, M) pairs."""

    arch: str
    releases: Mapping[str, str | None]
    n: int
    k: int
    output: str
    fused: bool
    tuned: frozenset[tuple[str, int]]
    switches: Mapping[str, bool]
    full_n: int | None = None
    full_k: int | None = None

    def size(self, name: str) -> int:
        """`n`, `k`, `full_n` or `full_k`; a layer that is no shard is the whole."""
        sizes = {"n": self.n, "k": self.k, "full_n": self.full_n or self.n, "full_k": self.full_k or self.k}
        return sizes[name]


def locate(space: Space, point: Point) -> Cube:
    """The smallest cube that a point is in: one value of each axis."""
    return tuple(1 << place_of(axis, point) for axis in space.axes)


def point_at(space: Space, cube: Cube) -> Point:
    """The point of a cube of one value on each axis. A library is not named where it may have any version."""
    values = {(axis.kind, axis.name): axis.chosen(mask)[0] for axis, mask in zip(space.axes, cube, strict=True)}
    libraries = {name: str(value) if value else None for (kind, name), value in values.items() if kind == "library"}
    sizes = dict(_sizes(space, cube))
    return Point(
        arch=str(values["arch", "arch"]),
        releases=libraries,
        n=sizes["n"],
        k=sizes["k"],
        output=str(values["output", "output"]),
        fused=bool(values.get(("fused", "fused"))),
        tuned=frozenset((axis.table, m) for axis in space.axes for m in axis.rows if values[axis.kind, axis.name]),
        switches={name: bool(value) for (kind, name), value in values.items() if kind == "switch"},
        full_n=sizes.get("full_n"),
        full_k=sizes.get("full_k"),
    )


def _sizes(space: Space, cube: Cube) -> Iterator[tuple[str, int]]:
    """Sizes of the classes of a cube, those of the whole layer no smaller than those of its shard."""
    least: dict[str, int] = {}
    for axis, mask in zip(space.axes, cube, strict=True):
        value = axis.chosen(mask)[0]
        if axis.kind == "size" and isinstance(value, int):
            part = axis.name.removeprefix("full_")
            least[part] = axis.reaching(value, least.get(part, value))
            yield axis.name, least[part]


def place_of(axis: Axis, point: Point) -> int:
    """Which value of an axis a point has."""
    value: Value
    match axis.kind:
        case "arch":
            value = point.arch if point.arch in axis.values else UNKNOWN
        case "library":
            return _version(axis, parsed(point.releases.get(axis.name)))
        case "size":
            size = point.size(axis.name)
            value = next(known for known in axis.values if isinstance(known, int) and axis.alike(known, size))
        case "output":
            value = point.output
        case "fused":
            value = int(point.fused)
        case "tuned":
            value = int(all((axis.table, m) in point.tuned for m in axis.rows))
        case "switch":
            value = int(point.switches[axis.name])
    return axis.values.index(value)


LAYER: tuple[Kind, ...] = ("arch", "library", "output", "size")
"""What every layer on every machine has."""


def words(space: Space, cube: Cube, asking: Iterable[Held]) -> tuple[tuple[str, str], ...]:
    """A point as (what, value) pairs: what some conditions ask for, and all else that is not as usual.

    What is not told is the default of a switch, an untuned row, one scale: so the pairs say all that decides.
    """
    usual = tuple(1 << axis.best(axis.full)[1] for axis in space.axes)
    told = {at for at, axis in enumerate(space.axes) if cube[at] != usual[at] or axis.kind in LAYER}
    return _pairs(space, cube, told | _asked(space, asking))


def asked_words(space: Space, cube: Cube, condition: Held) -> tuple[tuple[str, str], ...]:
    """What one condition asks for at a point, as (what, value) pairs."""
    return _pairs(space, cube, _asked(space, [condition]))


def _asked(space: Space, asking: Iterable[Held]) -> set[int]:
    full = space.full
    boxes = [box for held in asking for box in (held.cube, *held.refused)]
    return {at for box in boxes for at, mask in enumerate(box) if mask != full[at]}


def _pairs(space: Space, cube: Cube, told: Container[int]) -> tuple[tuple[str, str], ...]:
    sizes = dict(_sizes(space, cube))
    return tuple(
        pair
        for at, (axis, mask) in enumerate(zip(space.axes, cube, strict=True))
        if at in told
        for pair in _words(axis, sizes.get(axis.name, axis.chosen(mask)[0]))
    )


def _words(axis: Axis, value: Value) -> Iterator[tuple[str, str]]:
    match axis.kind:
        case "library" if len(axis.values) == 1:
            pass  # there is nothing to tell
        case "library":
            yield axis.name, "absent" if value is None else _label(axis, str(value))
        case "size":
            yield axis.word, str(value)
        case "output":
            yield "out_dtype", str(value)
        case "fused":
            yield "scales of the weight", "one for each part" if value else "one"
        case "tuned":
            yield from ((f"{axis.table} tuned for M {m}", "yes" if value else "no") for m in axis.rows)
        case "switch":
            yield f"switch {axis.name}", "on" if value else "off"
        case _:
            yield axis.name, str(value)


def _label(axis: Axis, version: str) -> str:
    if version != FIRST:
        return version
    return "any version" if axis.values[-1] == FIRST else f"older than {axis.values[axis.values.index(FIRST) + 1]}"


def _version(axis: Axis, asked: Version | None) -> int:
    """The last version that is not newer; absence for one that is older than all, and for none."""
    known = [at for at, name in enumerate(axis.values) if name is not None]
    inside = [at for at in known if asked is not None and not _newer(str(axis.values[at]), asked)]
    return max(inside, default=0)


def _newer(name: str, asked: Version) -> bool:
    version = parsed(name)
    return version is not None and version > asked
