"""Which backend each scheme takes, exactly, over every machine, release, shape, tuned table and switch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from qscheme.compiler.axes import axes_of, place_of
from qscheme.compiler.cubes import joined, overlap, without
from qscheme.compiler.kernel_text import forms_of
from qscheme.compiler.support import runs_on
from qscheme.releases import parsed
from qscheme.signatures import fits
from qscheme.types import BATCH_INVARIANT, Device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from qscheme.bindings import Parameters
    from qscheme.compiler import ir
    from qscheme.compiler.axes import Axis, Kind, Point, Value
    from qscheme.compiler.cubes import Cube
    from qscheme.releases import History
    from qscheme.types import Form


class Decided(NamedTuple):
    """A backend, None for no backend, and the points where it is chosen, as cubes without a point in common."""

    backend: str | None
    cubes: tuple[Cube, ...]


def backend_at(decided: Iterable[Decided], cube: Cube) -> str | None:
    """The backend that is chosen at the point that `Space.locate` found, None for no backend."""
    return next(found.backend for found in decided if overlap([cube], found.cubes))


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """Every point that the conditions of some catalogues tell apart."""

    axes: tuple[Axis, ...]
    places: Mapping[tuple[Kind, str], int]

    @classmethod
    def of(cls, *catalogues: ir.Catalogue) -> Space:
        """The space in which the catalogues may be compared."""
        axes = axes_of(catalogues)
        return cls(axes, {(axis.kind, axis.name): at for at, axis in enumerate(axes)})

    @property
    def full(self) -> Cube:
        """The cube of every point."""
        return tuple(axis.full for axis in self.axes)

    def accepted(self, catalogue: ir.Catalogue, backend: ir.Backend) -> tuple[Cube, ...]:
        """The points where nothing speaks against a backend, without a point in common."""
        needs = backend.needs
        bounds = [self._on(catalogue, backend), *self._offered(catalogue, backend)]
        bounds += [self._size(name, number) for name, number in (("n", needs.n), ("k", needs.k)) if number]
        for name, least in (("n", needs.min_n), ("k", needs.min_k)):
            if least is not None:
                bounds.append(self._size(name, least=least))
        if needs.one_scale:
            bounds.append(self._flag("fused", "fused", 0))
        if needs.output:
            bounds.append(self._bound("output", "output", _among(needs.output)))
        bounds += [
            self._flag("tuned", axis.name, 1)
            for axis in self.axes
            for row in needs.tuned
            if axis.kind == "tuned" and axis.table == row.table and set(axis.rows) <= set(row.every)
        ]
        bounds += [self._flag("switch", name, 1) for name in needs.switches]
        if needs.varies_with_m and ("switch", BATCH_INVARIANT) in self.places:
            bounds.append(self._flag("switch", BATCH_INVARIANT, 0))
        masks = list(self.full)
        for axis, mask in bounds:
            masks[axis] &= mask
        return without([tuple(masks)] if all(masks) else [], self._refused(catalogue, needs))

    def decisions(self, catalogue: ir.Catalogue, scheme: ir.Scheme) -> tuple[Decided, ...]:
        """Where each backend of a scheme is chosen, in their order, and last where none is; every point is in one."""
        left: tuple[Cube, ...] = (self.full,)
        found: list[Decided] = []
        for backend in scheme.backends:
            accepted = self.accepted(catalogue, backend)
            inside = overlap(left, accepted)
            found.append(Decided(backend.name, joined(inside)))
            left = joined(without(left, accepted))
        return (*found, Decided(None, left))

    def locate(self, point: Point) -> Cube:
        """The smallest cube that a point is in: one value of each axis."""
        return tuple(1 << place_of(axis, point) for axis in self.axes)

    def _bound(self, kind: Kind, name: str, holds: Callable[[Value], bool]) -> tuple[int, int]:
        at = self.places[kind, name]
        return at, self.axes[at].mask(holds)

    def _flag(self, kind: Kind, name: str, value: int) -> tuple[int, int]:
        return self._bound(kind, name, lambda found: found == value)

    def _size(self, name: str, multiple: int = 1, least: int = 1) -> tuple[int, int]:
        at = self.places["size", name]
        return at, self.axes[at].sizes(multiple, least)

    def _on(self, catalogue: ir.Catalogue, backend: ir.Backend) -> tuple[int, int]:
        """The architectures whose hardware can run a backend."""
        devices = {device.arch: device for device in catalogue.devices}
        able = {
            str(arch): runs_on(backend, devices.get(str(arch)) or _unknown(str(arch))) for arch in self.axes[0].values
        }
        return self._bound("arch", "arch", lambda arch: able[str(arch)])

    def _offered(self, catalogue: ir.Catalogue, backend: ir.Backend) -> Iterator[tuple[int, int]]:
        """The releases that have every kernel of a backend, for each of its libraries."""
        for kernel in backend.kernels:
            library = kernel.package
            at = self.places["library", library]
            history = next((known for known in catalogue.histories if known.library == library), None)
            yield at, _fitting(forms_of(kernel), self.axes[at].values, history)

    def _refused(self, catalogue: ir.Catalogue, needs: ir.Needs) -> Iterator[Cube]:
        """The points that conditions on some architectures or vendors take away."""
        vendors = {device.arch: device.vendor for device in catalogue.devices}
        for where in needs.where:
            words = where.arch or tuple(arch for arch, vendor in vendors.items() if vendor in where.vendor)
            scope = self._bound("arch", "arch", _among(words))
            late: list[tuple[int, int]] = []
            if where.library is not None and where.since is not None:
                yield from self._cube(scope, self._bound("library", where.library, _before(where.since)))
            if where.library is not None and where.before is not None:
                late.append(self._bound("library", where.library, _before(where.before)))
            for name, number in (("n", where.n), ("k", where.k)):
                if number is not None:
                    at, fitting = self._size(name, number)
                    yield from self._cube(scope, *late, (at, self.axes[at].full & ~fitting))

    def _cube(self, *bounds: tuple[int, int]) -> Iterator[Cube]:
        masks = list(self.full)
        for axis, mask in bounds:
            masks[axis] &= mask
        if all(masks):
            yield tuple(masks)


def _unknown(arch: str) -> Device:
    return Device(arch, "unknown", "unknown", fp8=None, mx=False, int8=False, wave=0)


def _among(words: Iterable[str]) -> Callable[[Value], bool]:
    known = frozenset(words)
    return lambda value: value in known


def _before(release: str) -> Callable[[Value], bool]:
    """Whether a version is older than a release; an absent library is not."""
    limit = parsed(release)

    def older(version: Value) -> bool:
        known = parsed(version) if isinstance(version, str) else None
        return known is not None and limit is not None and known < limit

    return older


class _Anything:
    """The offer of a library without a history: whatever is called."""

    def parameters(self, symbol: str) -> Parameters:
        return ("*operands", "**keywords")


class _Nothing:
    """The offer of a version that is older than every known release."""

    def parameters(self, symbol: str) -> None:
        return None


@lru_cache(maxsize=4096)
def _fitting(forms: tuple[Form, ...], versions: tuple[Value, ...], history: History | None) -> int:
    """The versions in which a kernel can be called in one of its forms."""
    mask = 0
    for at, version in enumerate(versions):
        if isinstance(version, str):
            place = None if history is None else history.nearest(version)
            offer = _Anything() if history is None else _Nothing() if place is None else history.at(place)
            if any(fits(form, version, offer) for form in forms):
                mask |= 1 << at
    return mask
