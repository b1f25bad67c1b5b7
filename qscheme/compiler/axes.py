"""What decisions depend on, and the values of each that some catalogues tell apart."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from packaging.version import Version

from qscheme.compiler.kernel_text import forms_of
from qscheme.releases import parsed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from qscheme.compiler import ir


Kind: TypeAlias = Literal["arch", "library", "size", "output", "fused", "tuned", "switch"]
Value: TypeAlias = "str | int | None"

UNKNOWN = "unknown"
"""Stands for every architecture that the tables do not know."""

OUTPUTS = ("bf16", "fp16", "fp32")

PRESENT = ("qscheme", "torch")
"""The libraries without which nothing asks for a decision; any other may be absent."""


class Axis(NamedTuple):
    """One thing that decisions depend on, with every value that they tell apart.

    values: architectures; versions of a library, the oldest first, None where it is absent; for N and K the smallest
    number of each class; output dtypes; 1 and 0 for what holds or does not. multiples, minima: what tells sizes apart.
    rows: the M for which a table must have rows, for `tuned`; they are asked for together or not at all.
    """

    kind: Kind
    name: str
    values: tuple[Value, ...]
    multiples: tuple[int, ...] = ()
    minima: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()

    @property
    def full(self) -> int:
        """The mask of every value."""
        return (1 << len(self.values)) - 1

    @property
    def table(self) -> str:
        """The tuned table of a `tuned` axis."""
        return self.name.partition(" ")[0]

    def mask(self, holds: Callable[[Value], bool]) -> int:
        """The values for which something holds."""
        return sum(1 << at for at, value in enumerate(self.values) if holds(value))

    def sizes(self, multiple: int = 1, least: int = 1) -> int:
        """The sizes that are a multiple of a number and large enough."""
        return self.mask(lambda size: isinstance(size, int) and size % multiple == 0 and size >= least)

    def chosen(self, mask: int) -> tuple[Value, ...]:
        """The values of a mask."""
        return tuple(value for at, value in enumerate(self.values) if mask >> at & 1)


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


def axes_of(catalogues: Sequence[ir.Catalogue]) -> tuple[Axis, ...]:
    """Every axis that the conditions of some catalogues need: architecture, libraries, N, K, output and the flags."""
    archs = dict.fromkeys(device.arch for catalogue in catalogues for device in catalogue.devices)
    libraries = sorted({library.name for catalogue in catalogues for library in catalogue.libraries})
    needs = [backend.needs for c in catalogues for scheme in c.schemes for backend in scheme.backends]
    switches = sorted({switch.name for catalogue in catalogues for switch in catalogue.switches})
    return (
        Axis("arch", "arch", (*archs, UNKNOWN)),
        *(Axis("library", name, tuple(_versions(name, catalogues))) for name in libraries),
        _sizes("n", [(need.n, *(row.n for row in need.where)) for need in needs], [need.min_n for need in needs]),
        _sizes("k", [(need.k, *(row.k for row in need.where)) for need in needs], [need.min_k for need in needs]),
        Axis("output", "output", OUTPUTS),
        Axis("fused", "fused", (1, 0)),
        *(Axis("tuned", f"{table} {rows[0]}", (1, 0), rows=rows) for table, rows in _tuned(needs)),
        *(Axis("switch", name, (1, 0)) for name in switches),
    )


def place_of(axis: Axis, point: Point) -> int:
    """Which value of an axis a point has."""
    value: Value
    match axis.kind:
        case "arch":
            value = point.arch if point.arch in axis.values else UNKNOWN
        case "library":
            version = point.releases[axis.name]
            if version is None:
                return axis.values.index(None)
            asked = parsed(version)
            older = [
                at for at, known in enumerate(axis.values) if known is not None and asked and _not_newer(known, asked)
            ]
            return max(older, default=next(at for at, known in enumerate(axis.values) if known is not None))
        case "size":
            size = point.n if axis.name == "n" else point.k
            value = next(known for known in axis.values if isinstance(known, int) and _alike(known, size, axis))
        case "output":
            value = point.output
        case "fused":
            value = int(point.fused)
        case "tuned":
            value = int(all((axis.table, m) in point.tuned for m in axis.rows))
        case "switch":
            value = int(point.switches[axis.name])
    return axis.values.index(value)


def _versions(library: str, catalogues: Iterable[ir.Catalogue]) -> Iterator[str | None]:
    """Every version that a history or a limit tells apart from the one before it, and None where it may be absent."""
    if library not in PRESENT:
        yield None
    catalogues = tuple(catalogues)
    known = {
        release
        for c in catalogues
        for history in c.histories
        if history.library == library
        for release in history.releases
    }
    found = {parsed(release) for release in known} or {Version("0")}
    for catalogue in catalogues:
        rows = [row for scheme in catalogue.schemes for backend in scheme.backends for row in backend.needs.where]
        found |= {parsed(limit) for row in rows if row.library == library for limit in (row.since, row.before)}
        for kernel in catalogue.kernels:
            if kernel.package == library:
                for form in forms_of(kernel):
                    found |= {parsed(form.since), _after(parsed(form.until))}
    yield from (f"v{version}" for version in sorted(version for version in found if version is not None))


def _after(version: Version | None) -> Version | None:
    """The first version that is later than one and its local versions, up to the next post release."""
    if version is None:
        return None
    if version.post is None:
        return Version(f"{version.public}.post0")
    return Version(f"{version.public.rpartition('.post')[0]}.post{version.post + 1}")


def _tuned(needs: Iterable[ir.Needs]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Each tuned table with the M that conditions ask for together."""
    asked = sorted({(row.table, row.every) for need in needs for row in need.tuned})
    together: dict[tuple[str, tuple[bool, ...]], list[int]] = {}
    for table, m in sorted({(table, m) for table, every in asked for m in every}):
        together.setdefault((table, tuple(m in every for named, every in asked if named == table)), []).append(m)
    for (table, _), rows in together.items():
        yield table, tuple(rows)


def _sizes(name: str, multiples: Iterable[Iterable[int | None]], minima: Iterable[int | None]) -> Axis:
    """The axis of N or K. Two sizes are alike if they have the same common divisor with every multiple, and minima."""
    numbers = sorted({number for every in multiples for number in every if number is not None})
    floors = sorted({least for least in minima if least is not None and least > 1})
    whole = math.lcm(*numbers)
    found: dict[tuple[int, ...], int] = {}
    ends: list[int | None] = [*floors, None]
    for start, end in zip((1, *floors), ends, strict=True):
        for divisor in (d for d in range(1, whole + 1) if whole % d == 0):
            size = -(-start // divisor) * divisor
            while math.gcd(size, whole) != divisor and (end is None or size < end):
                size += divisor
            if end is None or size < end:
                found.setdefault((start, *(size % number == 0 for number in numbers)), size)
    return Axis("size", name, tuple(sorted(found.values())), tuple(numbers), tuple(floors))


def _alike(one: int, other: int, axis: Axis) -> bool:
    divides = all((one % number == 0) == (other % number == 0) for number in axis.multiples)
    return divides and all((one >= least) == (other >= least) for least in axis.minima)


def _not_newer(known: Value, asked: Version) -> bool:
    version = parsed(known) if isinstance(known, str) else None
    return version is not None and version <= asked
