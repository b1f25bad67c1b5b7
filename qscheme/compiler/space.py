"""The decision space: every machine, release, switch, tuned row, shape and dtype, in finitely many points.

What decides has one axis each, and an axis one value for each class that no condition tells apart. A backend then is a
set of points: a box, less the boxes that conditions on some architectures take away. Sets are computed exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from qscheme.compiler.axes import OUTPUTS, Axis, arch_axis, flag_axis, library_axis, size_axes, tuned_axes
from qscheme.compiler.cubes import joined, overlap, without
from qscheme.compiler.support import meets
from qscheme.compiler.timelines import OWN, Releases
from qscheme.compiler.versions import ranges_in
from qscheme.types import BATCH_INVARIANT, Device
from qscheme.words import codes_together

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from qscheme.compiler import ir
    from qscheme.compiler.axes import Kind
    from qscheme.compiler.cubes import Cube
    from qscheme.types import Operand

UNITS = {"fp4_e2m1": 2, "fp6_e2m3": 4, "fp6_e3m2": 4}
"""How many codes share bytes along K, by the weight's format."""

_OUTPUT = Axis("output", "output", OUTPUTS)


class Side(NamedTuple):
    """A catalogue and what each version of its libraries offers."""

    catalogue: ir.Catalogue
    releases: Releases
    devices: Mapping[str, Device]

    @classmethod
    def of(cls, catalogue: ir.Catalogue, versions: Mapping[str, tuple[str, ...]] | None = None) -> Side:
        """A catalogue by itself, or over the versions of several that are to be compared."""
        devices = {device.arch: device for device in catalogue.devices}
        return cls(catalogue, Releases(catalogue, versions), devices)


class Held(NamedTuple):
    """The points where some conditions hold: those of one cube, less those of others. A mask of 0 leaves none."""

    cube: Cube
    refused: tuple[Cube, ...] = ()

    def also(self, other: Held) -> Held:
        """The points where both hold."""
        return Held(tuple(a & b for a, b in zip(self.cube, other.cube, strict=True)), (*self.refused, *other.refused))

    def cubes(self) -> tuple[Cube, ...]:
        """The points as cubes without one in common."""
        return without([self.cube] if all(self.cube) else [], self.refused)

    def within(self, other: Held) -> bool:
        """Whether the other holds wherever these do."""
        for axis, mask in enumerate(other.cube):
            outside = self.cube[axis] & ~mask
            if outside and Held((*self.cube[:axis], outside, *self.cube[axis + 1 :]), self.refused).cubes():
                return False
        return not any(self.also(Held(cube)).cubes() for cube in other.refused)


class Decided(NamedTuple):
    """A backend, None for no backend, and the points where it is chosen, as cubes without a point in common."""

    backend: str | None
    cubes: tuple[Cube, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """Every point that the conditions of some backends tell apart."""

    axes: tuple[Axis, ...]
    places: Mapping[tuple[Kind, str], int]

    @classmethod
    def of(cls, *asked: tuple[Side, ir.Scheme], also: Sequence[ir.Needs] = ()) -> Space:
        """The space of a scheme, or of several that are to be compared. also: what else is to be told apart in it."""
        backends = [backend for _, scheme in asked for backend in scheme.backends]
        kernels = [kernel for backend in backends for kernel in backend.kernels]
        weights = [scheme.weight for _, scheme in asked]
        units = [_unit(weight) for weight in weights]
        unit = math.gcd(*(n for n, _ in units)), math.gcd(*(k for _, k in units))
        needs = [*(backend.needs for backend in backends), *also]
        fused = any(weight.granularity == "per_tensor" for weight in weights)
        return cls.over([side for side, _ in asked], kernels, needs, unit, fused=fused)

    @classmethod
    def over(
        cls,
        sides: Sequence[Side],
        kernels: Iterable[ir.Kernel],
        needs: Sequence[ir.Needs],
        unit: tuple[int, int],
        *,
        fused: bool,
    ) -> Space:
        """The space of some conditions on some kernels.

        unit: what N and K are always multiples of. fused: whether a weight may have a scale for each part.
        """
        libraries = sorted({kernel.package for kernel in kernels} - {OWN})
        named = {row.library for need in needs for row in need.where if row.library}
        named |= {one.name for need in needs for one in ranges_in(need)}
        libraries += sorted(named - {*libraries, OWN})
        defaults = {switch.name: switch.default for side in reversed(sides) for switch in side.catalogue.switches}
        switches = {name for need in needs for name in need.switches}
        switches |= {BATCH_INVARIANT} if any(need.varies_with_m for need in needs) else set()
        axes = (
            arch_axis(arch for side in sides for arch in side.devices),
            *(_library(name, sides) for name in libraries),
            *size_axes(needs, unit),
            _OUTPUT,
            *([flag_axis("fused", "fused", usual=False)] if fused and any(need.one_scale for need in needs) else ()),
            *tuned_axes(needs),
            *(flag_axis("switch", name, usual=defaults.get(name, False)) for name in sorted(switches)),
        )
        return cls(axes, {(axis.kind, axis.name): at for at, axis in enumerate(axes)})

    @property
    def full(self) -> Cube:
        """The cube of every point."""
        return tuple(axis.full for axis in self.axes)

    def accepted(self, side: Side, backend: ir.Backend) -> Held:
        """The points where nothing speaks against a backend."""
        return self.holds(side, backend.needs, backend.kernels)

    def decisions(self, side: Side, scheme: ir.Scheme) -> tuple[Decided, ...]:
        """Where each backend of a scheme is chosen, in their order, and last where none is; every point is in one."""
        accepted = [self.accepted(side, backend).cubes() for backend in scheme.backends]
        chosen = [
            Decided(backend.name, joined(first(accepted, at, accepted[at])))
            for at, backend in enumerate(scheme.backends)
        ]
        return (*chosen, Decided(None, joined(first(accepted, len(accepted), (self.full,)))))

    def holds(self, side: Side, needs: ir.Needs, kernels: Iterable[ir.Kernel] = ()) -> Held:
        """The points where some needs hold, with a release that has these kernels."""
        masks = list(self.full)
        for axis, mask in (*self._bounds(side, needs), *self._offered(side, kernels)):
            masks[axis] &= mask
        return Held(tuple(masks), tuple(self._refused(side, needs)))

    def cube(self, *bounds: tuple[int, int]) -> Cube:
        """The points whose values on some axes are in a mask."""
        masks = list(self.full)
        for axis, mask in bounds:
            masks[axis] &= mask
        return tuple(masks)

    def flag(self, kind: Kind, name: str, holds: bool) -> tuple[int, int]:
        """The bound that something holds or does not; of no axis that the space lacks."""
        at = self.places[kind, name]
        return at, self.axes[at].among([int(holds)])

    def sample(self, cubes: Iterable[Cube]) -> Cube | None:
        """The point of some cubes that is the best example, None if they have none."""
        ranked = [tuple(axis.best(mask) for axis, mask in zip(self.axes, cube, strict=True)) for cube in cubes]
        if not ranked:
            return None
        least = min(
            ranked, key=lambda ranks: (ranks[0][0] == len(self.axes[0].values) - 1, [rank for rank, _ in ranks])
        )
        return tuple(1 << at for _, at in least)

    def _bounds(self, side: Side, needs: ir.Needs) -> Iterator[tuple[int, int]]:
        if needs.arch is not None or needs.vendor is not None or needs.mx or needs.int8:
            able = enumerate(map(str, self.axes[0].values))
            yield 0, sum(1 << at for at, arch in able if meets(needs, side.devices.get(arch) or unknown(arch)))
        for name, multiple, least in (("n", needs.n, needs.min_n), ("k", needs.k, needs.min_k)):
            if multiple is not None or least is not None:
                yield self._size(name, multiple or 1, least or 1)
        for name, multiple in (("full_n", needs.full_n), ("full_k", needs.full_k)):
            if multiple is not None:
                yield self._size(name, multiple)
        yield from (self._inside(side, one) for one in needs.versions)
        if needs.one_scale and ("fused", "fused") in self.places:
            yield self.flag("fused", "fused", False)
        if needs.output:
            yield self.places["output", "output"], sum(1 << OUTPUTS.index(word) for word in needs.output)
        for row in needs.tuned:
            for axis in self.axes:
                if axis.kind == "tuned" and axis.table == row.table and set(axis.rows) <= set(row.every):
                    yield self.flag("tuned", axis.name, True)
        for name in needs.switches:
            yield self.flag("switch", name, True)
        if needs.varies_with_m:
            yield self.flag("switch", BATCH_INVARIANT, False)

    def _size(self, name: str, multiple: int = 1, least: int = 1) -> tuple[int, int]:
        at = self.places["size", name]
        return at, self.axes[at].sizes(multiple, least)

    def _offered(self, side: Side, kernels: Iterable[ir.Kernel]) -> Iterator[tuple[int, int]]:
        """The releases that have every kernel, for each library."""
        for kernel in kernels:
            if kernel.package != OWN:
                yield self._versions(kernel.package, side.releases.present(kernel))

    def _versions(self, library: str, mask: int) -> tuple[int, int]:
        """The bound of a set of versions on the axis of their library, which may begin with its absence."""
        at = self.places["library", library]
        return at, mask << (self.axes[at].values[0] is None)

    def _inside(self, side: Side, one: ir.VersionRange) -> tuple[int, int]:
        """The bound of a range of versions; what is absent is in none."""
        timeline = side.releases.timelines[one.name]
        late = timeline.all if one.before is None else timeline.before(one.before)
        return self._versions(one.name, late & ~timeline.before(one.since))

    def _refused(self, side: Side, needs: ir.Needs) -> Iterator[Cube]:
        """The points that conditions on some architectures or vendors take away, and known faults of kernels."""
        for row in needs.known_bad:
            there = (0, self.axes[0].among(row.arch) if row.arch else self.axes[0].full)
            yield from self._box(there, *(self._inside(side, one) for one in row.versions))
        for where in needs.where:
            words = where.arch or tuple(d.arch for d in side.catalogue.devices if d.vendor in where.vendor)
            scope = (0, self.axes[0].among(words))
            late: list[tuple[int, int]] = []
            if where.library is not None and where.library != OWN:
                timeline = side.releases.timelines[where.library]
                if where.since is not None:
                    yield from self._box(scope, self._versions(where.library, timeline.before(where.since)))
                if where.before is not None:
                    late.append(self._versions(where.library, timeline.before(where.before)))
            for name, number in (("n", where.n), ("k", where.k)):
                if number is not None:
                    at, fitting = self._size(name, number)
                    yield from self._box(scope, *late, (at, self.axes[at].full & ~fitting))

    def _box(self, *bounds: tuple[int, int]) -> Iterator[Cube]:
        cube = self.cube(*bounds)
        if all(cube):
            yield cube


def _unit(weight: Operand) -> tuple[int, int]:
    """What N and K of a weight are always multiples of."""
    n, k = codes_together(weight.format, weight.packing)
    return n, k * UNITS.get(weight.format, 1)


def _library(name: str, sides: Sequence[Side]) -> Axis:
    timelines = [side.releases.timelines[name] for side in sides]
    released = 0
    for timeline in timelines:
        released |= timeline.released
    return library_axis(name, timelines[0].names, released)


def first(accepted: Sequence[tuple[Cube, ...]], index: int, cubes: tuple[Cube, ...]) -> tuple[Cube, ...]:
    """The points of some cubes that no backend above one takes."""
    above = [cube for taken in accepted[:index] for cube in taken]
    return without(cubes, above) if cubes else ()


def backend_at(decided: Iterable[Decided], cube: Cube) -> str | None:
    """The backend that is chosen at a point, None for no backend."""
    return next(found.backend for found in decided if overlap([cube], found.cubes))


def unknown(arch: str) -> Device:
    """An architecture that the tables do not know."""
    return Device(arch, "unknown", "unknown", fp8=None, mx=False, int8=False, wave=0)
