"""Findings about what is chosen: shadowed and contradictory backends, gaps, fallbacks above better ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qscheme.compiler.cubes import overlap, without
from qscheme.compiler.lint_rules import finding
from qscheme.compiler.space import first
from qscheme.compiler.versions import words_inside
from qscheme.types import BATCH_INVARIANT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from qscheme.compiler import ir
    from qscheme.compiler.axes import Kind
    from qscheme.compiler.cubes import Cube
    from qscheme.compiler.lint_rules import Finding
    from qscheme.compiler.lint_subject import Subject
    from qscheme.compiler.source import KeyPath


_NAMED = 3
"""How many architectures a message names."""


def choice_findings(subject: Subject) -> Iterator[Finding]:
    """Everything about which backend is chosen when."""
    for index, backend in enumerate(subject.backends):
        path = ("backends", index, "name")
        point = subject.space.sample(subject.able[index])
        if point is None:
            message = f"{backend.name} can never run: {_contradiction(subject, index)}"
            yield finding("QS102", subject.file, path, message, "mend its conditions, or remove it")
        elif not subject.chosen[index]:
            takers = _takers(subject, index, subject.able[index])
            message = (
                f"{backend.name} is never chosen: {takers} above it take{'s' * (' ' not in takers)} all that it could"
            )
            cure = "move it up, narrow what stands above it, or remove it"
            taker = _taker(subject, point)
            yield finding(
                "QS101", subject.file, path, message, cure, subject.witness(point, index, taker, chosen=taker)
            )
        else:
            yield from _vain_architectures(subject, index)
            yield from _switches(subject, index)
            yield from _shapes(subject, index)
    yield from _gaps(subject)
    yield from _misplaced(subject)


def _taker(subject: Subject, point: Cube) -> int:
    """The backend that is chosen at a point."""
    return next(index for index, able in enumerate(subject.able) if overlap([point], able))


def _takers(subject: Subject, index: int, cubes: Iterable[Cube]) -> str:
    """The backends above one that are chosen at some of these points."""
    cubes = tuple(cubes)
    return subject.names(above for above in range(index) if overlap(cubes, subject.chosen[above]))


def _contradiction(subject: Subject, index: int) -> str:
    """Why no machine and no release meets the conditions of a backend, in words."""
    backend, space = subject.backends[index], subject.space
    for axis, mask in zip(space.axes, subject.accepted[index].cube, strict=True):
        if mask:
            continue
        if axis.kind == "library":
            kernels = [kernel.name for kernel in backend.kernels if kernel.package == axis.name]
            ranges = [one for one in backend.needs.versions if one.name == axis.name]
            has = [f"has {' and '.join(kernels)}"] * bool(kernels)
            meets = [f"is {' and '.join(map(words_inside, ranges))}"] * bool(ranges)
            return f"no release of {axis.name} {' and '.join([*has, *meets])}"
        if axis.kind == "switch":
            varying = " and ".join(backend.needs.varies_with_m)
            return f"it needs the switch {axis.name}, in which {varying} is refused"
        return "no architecture meets its hardware conditions and those of its kernels"
    archs = map(str, space.axes[0].chosen(subject.accepted[index].cube[0]))
    return f"no release works on {' or '.join(archs)}"


def _vain_architectures(subject: Subject, index: int) -> Iterator[Finding]:
    """Architectures that a backend names itself and is never chosen on."""
    backend, space, archs = subject.backends[index], subject.space, subject.space.axes[0]
    for position, arch in enumerate(subject.own(index).arch):
        there = space.cube((0, archs.among([arch])))
        if overlap([there], subject.chosen[index]):
            continue
        able = overlap([there], subject.able[index])
        point = space.sample(able)
        if point is not None:
            taker = _taker(subject, point)
            why = f"{_takers(subject, index, able)} above it takes every layer there"
            witness = subject.witness(point, index, taker, chosen=taker)
        elif not overlap([there], [subject.accepted[index].cube]):
            continue  # its hardware conditions alone show it
        else:
            why, witness = "no release that works there has its kernels", (("arch", arch),)
        path: KeyPath = ("backends", index, "needs", "arch", position)
        message = f"{backend.name} names {arch} in vain: {why}"
        yield finding("QS103", subject.file, path, message, "remove the word, or what excludes it", witness)


def _gaps(subject: Subject) -> Iterator[Finding]:
    """Layers that the scheme claims and nothing runs; batch-invariant mode refuses on purpose."""
    space, claimed = subject.space, subject.claimed
    everyone = range(len(subject.backends))
    if claimed is None:
        point = space.sample(first(subject.able, len(subject.able), (space.cube(*_mode_off(subject)),)))
        if point is not None:
            name = subject.backends[-1].name
            message = f"nothing is left where {name}, the last backend, is refused"
            cure = "end with an unconditional backend, or state `claims`"
            path: KeyPath = ("backends", len(subject.backends) - 1, "name")
            yield finding("QS104", subject.file, path, message, cure, subject.witness(point, *everyone))
        return
    asked = space.holds(subject.side, claimed).cubes()
    usual = space.cube(*_usual(subject, ("library", "switch", "tuned")))
    gap = first(subject.able, len(subject.able), overlap(asked, [usual]))
    archs: dict[Cube, list[str]] = {}
    for at, arch in enumerate(subject.side.devices):
        point = space.sample(overlap(gap, [space.cube((0, 1 << at))]))
        if point is not None:
            archs.setdefault(point[1:], []).append(arch)
    for layer, there in archs.items():
        point = (1 << space.axes[0].values.index(there[0]), *layer)
        more = f" and {len(there) - _NAMED} more" * (len(there) > _NAMED)
        message = f"claims {', '.join(there[:_NAMED])}{more}, and no backend runs this layer there"
        cure = "add a backend, or narrow the claim"
        yield finding("QS104", subject.file, ("claims",), message, cure, subject.witness(point, *everyone), key=True)


def _misplaced(subject: Subject) -> Iterator[Finding]:
    """Weight-only kernels above native ones, and fallbacks above backends that are none."""
    for above, backend in enumerate(subject.backends):
        for below in range(above + 1, len(subject.backends)):
            other = subject.backends[below]
            slow = _dequantizes(subject, backend) and not _dequantizes(subject, other)
            if not slow and (backend.on_use, other.on_use) != ("warn", "quiet"):
                continue
            point = subject.space.sample(overlap(subject.chosen[above], subject.able[below]))
            if point is None:
                continue
            what = "dequantizes its weight" if slow else "is a fallback"
            message = f"{backend.name} {what} and stands above {other.name}, which could run the same layer"
            witness = subject.witness(point, above, below, chosen=above)
            rule = "QS105" if slow else "QS106"
            path = ("backends", above, "name")
            yield finding(rule, subject.file, path, message, f"move it below {other.name}", witness)
            break


def _dequantizes(subject: Subject, backend: ir.Backend) -> bool:
    gemms = [call.gemm for call in backend.calls]
    return subject.scheme.activation is not None and all(
        gemm.operand("weight_operand") is not None or not (gemm.takes_codes or gemm.quantizes) for gemm in gemms
    )


def _switches(subject: Subject, index: int) -> Iterator[Finding]:
    """Switches that are off by default, and leave layers to a fallback."""
    space, backend, own = subject.space, subject.backends[index], subject.own(index)
    if backend.on_use == "warn":
        return
    off = {switch.name for switch in subject.side.catalogue.switches if not switch.default} - {BATCH_INVARIANT}
    for name in backend.needs.switches:
        if name not in off:
            continue
        at = space.places["switch", name]
        lacking = space.flag("switch", name, holds=False)
        held = subject.accepted[index]
        without_it = held._replace(cube=(*held.cube[:at], space.axes[at].full, *held.cube[at + 1 :]))
        wanted = overlap(without_it.cubes(), [space.cube(*_ready(subject, index, but=name), lacking)])
        found = _fallback(subject, index, wanted)
        if found is not None:
            said = name in own.switches
            path: KeyPath = ("needs", "switches", own.switches.index(name)) if said else ("name",)
            message = f"{backend.name} waits for the switch {name}, which is off by default; a fallback runs instead"
            cure = "turn the default on, or add a quiet backend without the switch"
            yield finding("QS107", subject.file, ("backends", index, *path), message, cure, found)


def _shapes(subject: Subject, index: int) -> Iterator[Finding]:
    """Shapes and tuned rows that a backend asks for beyond its kernels, and that leave layers to a fallback."""
    own, backend = subject.own(index), subject.backends[index]
    for key in ("multiple_of", "minimum", "tuned", "where"):
        if not getattr(own, key) or backend.on_use == "warn":
            continue
        looser = subject.loosened(index, own.model_copy(update={key: () if key in ("tuned", "where") else None}))
        ready = [subject.space.cube(*_ready(subject, index))]
        wanted = without(overlap(looser.cubes(), ready), subject.able[index])
        found = _fallback(subject, index, wanted)
        if found is not None:
            message = f"{backend.name} asks for `{key}` beyond its kernels, and a fallback runs the rest"
            cure = "drop the condition, or add a quiet backend for the rest"
            path: KeyPath = ("backends", index, "needs", key)
            yield finding("QS108", subject.file, path, message, cure, found, key=True)


def _fallback(subject: Subject, index: int, wanted: tuple[Cube, ...]) -> tuple[tuple[str, str], ...] | None:
    """A witness that a fallback below a backend runs one of these points, None if none does."""
    for below in range(index + 1, len(subject.backends)):
        if subject.backends[below].on_use == "warn":
            point = subject.space.sample(overlap(wanted, subject.chosen[below]))
            if point is not None:
                return subject.witness(point, index, chosen=below)
    return None


def _usual(subject: Subject, kinds: tuple[Kind, ...]) -> Iterator[tuple[int, int]]:
    """The newest release of each library, switches at their defaults, no tuned row: those of some kinds of axes."""
    for at, axis in enumerate(subject.space.axes):
        if axis.kind in kinds:
            yield at, 1 << axis.best(axis.full)[1]


def _ready(subject: Subject, index: int, but: str | None = None) -> Iterator[tuple[int, int]]:
    """The newest releases, and switches at their defaults but for those that a backend needs."""
    needed = subject.backends[index].needs.switches
    for at, bound in _usual(subject, ("library", "switch")):
        axis = subject.space.axes[at]
        if axis.name != but:
            yield subject.space.flag("switch", axis.name, holds=True) if axis.name in needed else (at, bound)


def _mode_off(subject: Subject) -> Iterator[tuple[int, int]]:
    if ("switch", BATCH_INVARIANT) in subject.space.places:
        yield subject.space.flag("switch", BATCH_INVARIANT, holds=False)
