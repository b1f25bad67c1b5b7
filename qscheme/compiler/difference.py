"""What a change of YAML changes: which backend runs where, and how those that stay are called and rounded."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple, cast

from qscheme.compiler.cubes import covering, joined, overlap
from qscheme.compiler.region_text import region_data, region_text
from qscheme.compiler.scheme_text import when_text
from qscheme.compiler.space import Side, Space
from qscheme.compiler.timelines import versions_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from qscheme.compiler import ir
    from qscheme.compiler.cubes import Cube
    from qscheme.compiler.space import Decided

NO_BACKEND = "no backend"

_SHORT = 90
"""How long the two sides of a change may be on one line, together."""

_NOT_TOLD = frozenset({"name", "library", "place", "meaning"})
"""Fields that no decision, call or number depends on."""


class Moved(NamedTuple):
    """Points of a scheme whose backend changes; None for no backend.

    cubes: exactly those points, without one in common. told: the same points in few cubes, together with points where
    one of the backends of `better` runs before and after.
    """

    scheme: str
    space: Space
    before: str | None
    after: str | None
    cubes: tuple[Cube, ...]
    told: tuple[tuple[Cube, tuple[str, ...]], ...]


class Changed(NamedTuple):
    """A fact that both sides state, differently: how a backend is called, how a kernel rounds, what a device is."""

    subject: str
    field: str
    before: str
    after: str

    @property
    def text(self) -> str:
        """One line, or three where both sides are long."""
        if len(self.before) + len(self.after) > _SHORT:
            return f"{self.subject}: {self.field}:\n  before: {self.before}\n  after:  {self.after}"
        return f"{self.subject}: {self.field}: {self.before} -> {self.after}"


class Difference(NamedTuple):
    """Everything that differs between two catalogues; false if nothing does."""

    defaults: Mapping[str, bool]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    moved: tuple[Moved, ...]
    changed: tuple[Changed, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.moved or self.changed)

    def lines(self) -> Iterator[str]:
        """The difference in words, decisions first."""
        yield from (f"{scheme}: added" for scheme in self.added)
        yield from (f"{scheme}: removed" for scheme in self.removed)
        for move in self.moved:
            for cube, better in move.told:
                unless = f", unless {' or '.join(better)} runs" if better else ""
                where = region_text(move.space, cube, self.defaults)
                yield f"{move.scheme} {where}{unless}: {move.before or NO_BACKEND} -> {move.after or NO_BACKEND}"
        yield from (change.text for change in self.changed)

    def data(self) -> dict[str, object]:
        """The difference as JSON; `exact` has regions without a point in common, `regions` those of `lines`."""
        return {
            "changed": bool(self),
            "schemes": {"added": list(self.added), "removed": list(self.removed)},
            "decisions": [
                {
                    "scheme": move.scheme,
                    "before": move.before,
                    "after": move.after,
                    "regions": [
                        {
                            "text": region_text(move.space, cube, self.defaults),
                            "where": region_data(move.space, cube),
                            "unless": list(better),
                        }
                        for cube, better in move.told
                    ],
                    "exact": [region_data(move.space, cube) for cube in move.cubes],
                }
                for move in self.moved
            ],
            "facts": [{**change._asdict(), "text": change.text} for change in self.changed],
        }


def difference(old: ir.Catalogue, new: ir.Catalogue) -> Difference:
    """Compare two catalogues over every point that either of them tells apart."""
    versions = versions_of(old, new)
    one, other = Side.of(old, versions), Side.of(new, versions)
    before, after = ({scheme.name: scheme for scheme in catalogue.schemes} for catalogue in (old, new))
    both = [name for name in after if name in before]
    moved = [move for name in both for move in _moves((one, before[name]), (other, after[name]))]
    switches = {switch.name: switch.default for switch in new.switches}
    was = {switch.name: switch.default for switch in old.switches}
    return Difference(
        {name: default for name, default in switches.items() if was.get(name, default) == default},
        tuple(name for name in after if name not in before),
        tuple(name for name in before if name not in after),
        tuple(moved),
        tuple(_changes(old, new, [(before[name], after[name]) for name in both])),
    )


def _moves(before: tuple[Side, ir.Scheme], after: tuple[Side, ir.Scheme]) -> Iterator[Moved]:
    """What changes in one scheme."""
    space = Space.of(before, after)
    old, new = space.decisions(*before), space.decisions(*after)
    if old == new:
        return
    kept = {
        was.backend: both
        for was in old
        for now in new
        if was.backend is not None and was.backend == now.backend and (both := joined(overlap(was.cubes, now.cubes)))
    }
    either = tuple(at for at, axis in enumerate(space.axes) if axis.kind in ("fused", "tuned", "switch"))
    for was in old:
        for now in new:
            if was.backend == now.backend:
                continue
            cubes = joined(overlap(was.cubes, now.cubes))
            if cubes:
                better = {
                    name: kept[name]
                    for name in _above(was.backend, old)
                    if name in _above(now.backend, new) and name in kept
                }
                found = covering(cubes, [cube for free in better.values() for cube in free], either)
                told = [(cube, tuple(name for name, free in better.items() if overlap([cube], free))) for cube in found]
                yield Moved(after[1].name, space, was.backend, now.backend, cubes, tuple(told))


def _above(backend: str | None, decided: Sequence[Decided]) -> list[str]:
    """The backends that come before one."""
    names = [found.backend for found in decided]
    return [name for name in names[: names.index(backend)] if name is not None]


def _changes(old: ir.Catalogue, new: ir.Catalogue, schemes: Iterable[tuple[ir.Scheme, ir.Scheme]]) -> Iterator[Changed]:
    kernels: dict[str, tuple[ir.Kernel, ir.Kernel]] = {}
    for was, now in schemes:
        for what in ("activation", "weight", "stored_scales"):
            yield from _between(now.name, was, now, what)
        known = {backend.name: backend for backend in was.backends}
        used = {f"{kernel.library}.{kernel.name}": kernel for backend in was.backends for kernel in backend.kernels}
        for backend in now.backends:
            if backend.name in known:
                subject, before = f"{now.name} {backend.name}", known[backend.name]
                if (one := _calls(before)) != (other := _calls(backend)):
                    yield Changed(subject, "calls", one, other)
                yield from _between(subject, before, backend, "inputs")
                yield from _between(subject, before, backend, "on_use")
            for kernel in backend.kernels:
                name = f"{kernel.library}.{kernel.name}"
                if name in used:
                    kernels[name] = used[name], kernel
    for name, (one_kernel, other_kernel) in sorted(kernels.items()):
        for field in dataclasses.fields(other_kernel):
            yield from _between(f"kernel {name}", one_kernel, other_kernel, field.name)
    yield from _named("device", {device.arch: device for device in old.devices}, {d.arch: d for d in new.devices})
    yield from _named("switch", {switch.name: switch for switch in old.switches}, {s.name: s for s in new.switches})
    yield from _named("tuned table", {table.name: table for table in old.tables}, {t.name: t for t in new.tables})


def _calls(backend: ir.Backend) -> str:
    calls: list[str] = []
    for call in backend.calls:
        options = "".join(f" {name}={_text(value)}" for name, value in call.options)
        steps = [f"{kernel.library}.{kernel.name}" for kernel in call.kernels]
        steps[0] += options
        calls.append(f"{when_text(call)}: {', '.join(steps)}")
    return "; ".join(calls)


def _named(
    what: str, old: Mapping[str, tuple[object, ...]], new: Mapping[str, tuple[object, ...]]
) -> Iterator[Changed]:
    """Named tuples by name: those that one side lacks, and fields that differ."""
    for name in sorted({**old, **new}):
        if name not in old or name not in new:
            yield Changed(f"{what} {name}", "listed", _text(name in old), _text(name in new))
        else:
            for field in cast("NamedTuple", new[name])._fields:
                yield from _between(f"{what} {name}", old[name], new[name], field)


def _between(subject: str, old: object, new: object, field: str) -> Iterator[Changed]:
    """One field of two objects of a class; of a list or of an operand, its parts that differ."""
    one, other = cast("object", getattr(old, field)), cast("object", getattr(new, field))
    if field in _NOT_TOLD or one == other:
        return
    before, after = _parts(field, one), _parts(field, other)
    for part in {**before, **after}:
        if before.get(part) != after.get(part):
            yield Changed(subject, part, before.get(part, "none"), after.get(part, "none"))


def _parts(field: str, value: object) -> dict[str, str]:
    """What a field says, by the names of its parts."""
    if field == "operands":
        return {f"operand {use.role}": _text(use) for use in cast("tuple[ir.OperandUse, ...]", value)}
    if field == "rules":
        rules = cast("tuple[tuple[str | None, object], ...]", value)
        return {f"rule{f' since {since}' if since else ''}": _text(rule) for since, rule in rules}
    named = _fields(value)
    if named:
        return {f"{field} {part}": text for name, item in named for part, text in _parts(name, item).items()}
    return {field: _text(value)}


def _text(value: object) -> str:
    named = _fields(value)
    if named:
        return " ".join(f"{name}={_text(item)}" for name, item in named if item is not None and item != ())
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(_text, cast("tuple[object, ...]", value))) or "none"
    return "none" if value is None else str(value)


def _fields(value: object) -> list[tuple[str, object]]:
    """The fields of a named tuple or a dataclass, nothing of anything else."""
    names = cast("tuple[str, ...]", getattr(value, "_fields", ()) or getattr(value, "__dataclass_fields__", ()))
    return [(name, cast("object", getattr(value, name))) for name in names]
