"""What two catalogues state differently of what both have: calls, kernels, rules, devices, switches and tables."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple, cast

from qscheme.compiler.scheme_text import when_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from qscheme.compiler import ir

_SHORT = 90
"""How long the two sides of a change may be on one line, together."""

_LISTED = "listed"
"""Whether a side has a device, switch or table at all."""

_NOT_TOLD = frozenset({"name", "library", "place", "meaning"})
"""Fields that no decision, call or number depends on."""

_FOR_PEOPLE = frozenset({"because", "source"})
"""The same inside of a field, where a name is that of something else."""


class Changed(NamedTuple):
    """A fact that both sides state, differently: how a backend is called, how a kernel rounds, what a device is."""

    subject: str
    field: str
    before: str
    after: str

    @property
    def text(self) -> str:
        """One line, or three where both sides are long."""
        if self.field == _LISTED:
            return f"{self.subject}: {'added' if self.after == _text(True) else 'removed'}"
        if len(self.before) + len(self.after) > _SHORT:
            return f"{self.subject}: {self.field}:\n  before: {self.before}\n  after:  {self.after}"
        return f"{self.subject}: {self.field}: {self.before} -> {self.after}"


def changes(old: ir.Catalogue, new: ir.Catalogue, schemes: Iterable[tuple[ir.Scheme, ir.Scheme]]) -> Iterator[Changed]:
    """Every fact of two catalogues that differs. schemes: those that both have."""
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
            yield Changed(f"{what} {name}", _LISTED, _text(name in old), _text(name in new))
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
        return " ".join(f"{name}={_text(item)}" for name, item in named if item not in (None, (), _usual(value, name)))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(_text, cast("tuple[object, ...]", value))) or "none"
    return "none" if value is None else str(value)


def _fields(value: object) -> list[tuple[str, object]]:
    """The fields of a named tuple or a dataclass, nothing of anything else."""
    names = cast("tuple[str, ...]", getattr(value, "_fields", ()) or getattr(value, "__dataclass_fields__", ()))
    return [(name, cast("object", getattr(value, name))) for name in names if name not in _FOR_PEOPLE]


def _usual(value: object, name: str) -> object:
    """What a field of a dataclass is where nobody says it."""
    fields = cast("Mapping[str, dataclasses.Field[object]]", getattr(value, "__dataclass_fields__", {}))
    return fields[name].default if name in fields else None
