"""Findings about what is chosen: shadowed and contradictory backends, gaps, fallbacks above better ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from qscheme.compiler.lint_conditions import hardware_of
from qscheme.compiler.lint_rules import finding
from qscheme.compiler.lint_space import OUTPUTS, UNKNOWN, Box, Point, cells, first_of
from qscheme.compiler.needs import merged_needs
from qscheme.compiler.support import runs_on

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qscheme.compiler import ir, model
    from qscheme.compiler.folder import File
    from qscheme.compiler.lint_rules import Finding
    from qscheme.compiler.lint_space import Space
    from qscheme.compiler.model import SchemeFile
    from qscheme.compiler.source import KeyPath
    from qscheme.types import Device


@dataclass(frozen=True, slots=True)
class Subject:
    """One scheme as its file says it and as it is resolved; needs: those of kernels, by LIBRARY.NAME."""

    file: File[SchemeFile]
    space: Space
    needs: dict[str, model.Needs]

    @property
    def backends(self) -> tuple[ir.Backend, ...]:
        return self.space.scheme.backends

    def own(self, index: int) -> model.Needs:
        """The needs that a backend itself states."""
        return self.file.model.backends[index].needs

    def kernels(self, index: int) -> list[tuple[ir.Kernel, model.Needs]]:
        """The kernels of a backend with what they need."""
        return [(kernel, self.needs[f"{kernel.library}.{kernel.name}"]) for kernel in self.backends[index].kernels]


def choice_findings(subject: Subject) -> Iterator[Finding]:
    """Everything about which backend is chosen when."""
    dead: set[int] = set()
    for index, backend in enumerate(subject.backends):
        path = ("backends", index, "name")
        if subject.space.chosen(index, [group[0] for group in subject.space.classes]) is not None:
            yield from _vain_architectures(subject, index)
            continue
        dead.add(index)
        able = list(subject.space.able(index))
        if not able:
            message = f"{backend.name} can never run: {_contradiction(subject, index)}"
            yield finding("QS102", subject.file, path, message, "mend its conditions, or remove it")
            continue
        point, _ = able[0]
        takers = _names(subject, sorted({taker for _, taker in able}))
        message = f"{backend.name} is never chosen: {takers} above it take{'s' * (' ' not in takers)} all that it could"
        cure = "move it up, narrow what stands above it, or remove it"
        witness = (*subject.space.words(point, index, able[0][1]), ("chosen", subject.backends[able[0][1]].name))
        yield finding("QS101", subject.file, path, message, cure, witness)
    yield from _gaps(subject)
    yield from _misplaced(subject, dead)
    for index in range(len(subject.backends)):
        if index not in dead:
            yield from _switches(subject, index)
            yield from _shapes(subject, index)


def _names(subject: Subject, indices: list[int]) -> str:
    return " and ".join(subject.backends[index].name for index in indices)


def _contradiction(subject: Subject, index: int) -> str:
    """Why no machine and no release meets the conditions of a backend, in words."""
    backend, space = subject.backends[index], subject.space
    able = [device for device in (*space.devices, UNKNOWN) if runs_on(backend, device)]
    if not able:
        return "no architecture meets its hardware conditions and those of its kernels"
    for library in space.libraries:
        kernels = [kernel for kernel in backend.kernels if kernel.package == library]
        mask = space.releases.timelines[library].all
        for kernel in kernels:
            mask &= space.releases.present(kernel)
        if kernels and not mask:
            return f"no release of {library} has {' and '.join(kernel.name for kernel in kernels)}"
    return f"no release works on {' or '.join(device.arch for device in able)}"


def _vain_architectures(subject: Subject, index: int) -> Iterator[Finding]:
    """Architectures that a backend names itself and is never chosen on."""
    backend, space = subject.backends[index], subject.space
    own = subject.own(index)
    beside = [holds for word, holds in hardware_of(own, space.devices).items() if word != "arch"]
    for position, arch in enumerate(own.arch):
        if any(arch not in holds for holds in beside):
            continue  # its entry alone shows it
        group = next(group for group in space.classes if arch in (device.arch for device in group))
        if space.chosen(index, group[:1]) is not None:
            continue
        path: KeyPath = ("backends", index, "needs", "arch", position)
        taken = [(point, taker) for point, taker in space.able(index) if point.device == group[0]]
        if taken:
            point, taker = taken[0]
            point = point._replace(device=next(device for device in group if device.arch == arch))
            why = f"{_names(subject, sorted({taker for _, taker in taken}))} above it takes every layer there"
            witness = (*space.words(point, index, taker), ("chosen", subject.backends[taker].name))
        else:
            why, witness = "its other conditions or its kernels exclude it", (("arch", arch),)
        message = f"{backend.name} names {arch} in vain: {why}"
        yield finding("QS103", subject.file, path, message, "remove the word, or what excludes it", witness)


def _gaps(subject: Subject) -> Iterator[Finding]:
    """Layers that the scheme claims and nothing runs."""
    space, claims = subject.space, subject.file.model.claims
    last: KeyPath = ("backends", len(subject.backends) - 1, "name")
    if claims is None:
        point = _uncovered_anywhere(space)
        if point is not None:
            name = subject.backends[-1].name
            message = f"nothing is left where {name}, the last backend, is refused"
            cure = "end with an unconditional backend, or state `claims`"
            yield finding("QS104", subject.file, last, message, cure, space.words(point))
        return
    n, k = (claims.multiple_of.n or 1, claims.multiple_of.k or 1) if claims.multiple_of else (1, 1)
    least_n, least_k = (claims.minimum.n or 1, claims.minimum.k or 1) if claims.minimum else (1, 1)
    claimed = [device for device in space.devices if not claims.arch or device.arch in claims.arch]
    for device in claimed:
        boxes = space.boxes(device, space.newest)
        asked = _claimed_box(n, k, least_n, least_k)
        for output, a, b in cells([asked, *(box for box in boxes if box)], space.unit):
            point = Point(device, space.newest, space.defaults, output, a, b)
            wanted = not claims.output or OUTPUTS[output.bit_length() - 1] in claims.output
            if wanted and asked.holds(output, a, b) and first_of(boxes, point) is None:
                message = f"claims {device.arch}, and no backend runs this layer there"
                cure = "add a backend, or narrow the claim"
                yield finding("QS104", subject.file, ("claims",), message, cure, space.words(point), key=True)
                break


def _claimed_box(n: int, k: int, least_n: int, least_k: int) -> Box:
    return Box(0, 7, n, k, least_n, least_k)


def _uncovered_anywhere(space: Space) -> Point | None:
    """A layer that every backend refuses: on a known machine with the newest releases, if there is one."""
    for device, versions, atoms in (
        *((group[0], space.newest, space.defaults) for group in space.classes),
        *((group[0], versions, space.least) for group in space.classes for versions in space.versions),
    ):
        boxes = space.boxes(device, versions)
        present = [box for box in boxes if box and not box.atoms & ~atoms]
        if any(box.n == 1 and box.k == space.unit and box.outputs == 7 and box[4:] == (1, 1) for box in present):
            continue
        for output, n, k in cells(present or [_claimed_box(1, 1, 1, 1)], space.unit):
            point = Point(device, versions, atoms, output, n, k)
            if first_of(boxes, point) is None:
                return point
    return None


def _misplaced(subject: Subject, dead: set[int]) -> Iterator[Finding]:
    """Weight-only kernels above native ones, and fallbacks above backends that are none."""
    for above, backend in enumerate(subject.backends):
        for below in range(above + 1, len(subject.backends)):
            other = subject.backends[below]
            slow = _dequantizes(subject, backend) and not _dequantizes(subject, other)
            warned = backend.on_use == "warn" and other.on_use == "quiet"
            if above in dead or not (slow or warned):
                continue
            point = _shared(subject.space, above, below)
            if point is None:
                continue
            what = "dequantizes its weight" if slow else "is a fallback"
            message = f"{backend.name} {what} and stands above {other.name}, which could run the same layer"
            witness = (*subject.space.words(point, above, below), ("chosen", backend.name))
            rule = "QS105" if slow else "QS106"
            path = ("backends", above, "name")
            yield finding(rule, subject.file, path, message, f"move it below {other.name}", witness)
            break


def _dequantizes(subject: Subject, backend: ir.Backend) -> bool:
    gemms = [call.gemm for call in backend.calls]
    return subject.space.scheme.activation is not None and all(
        gemm.operand("weight_operand") is not None or (gemm.operand("x_scale") is None and not gemm.accumulators)
        for gemm in gemms
    )


def _shared(space: Space, above: int, below: int) -> Point | None:
    """A layer that both backends can run."""
    for group in space.classes:
        for versions in space.versions:
            boxes = space.boxes(group[0], versions)
            one, two = boxes[above], boxes[below]
            if one and two:
                for output, n, k in cells([one, two], space.unit):
                    if one.holds(output, n, k) and two.holds(output, n, k):
                        return Point(group[0], versions, one.atoms | two.atoms, output, n, k)
    return None


def _switches(subject: Subject, index: int) -> Iterator[Finding]:
    """Switches that are off by default, and leave layers to a fallback."""
    space, own = subject.space, subject.own(index)
    off = {name for name, default in space.switches if not default}
    for position, name in enumerate(own.switches):
        if name not in off or subject.backends[index].on_use == "warn":
            continue
        bit = 1 << space.atoms.index(f"switch {name}")
        for device in (group[0] for group in space.classes):
            boxes = space.boxes(device, space.newest)
            box = boxes[index]
            point = None if box is None else _fallback(subject, boxes, box, device, (space.defaults | box.atoms) & ~bit)
            if point is not None:
                path: KeyPath = ("backends", index, "needs", "switches", position)
                message = f"{subject.backends[index].name} waits for the switch {name}, which is off by default"
                witness = (*space.words(point, index), ("chosen", _chosen_name(subject, boxes, point)))
                cure = "turn the default on, or add a quiet backend without the switch"
                yield finding("QS107", subject.file, path, f"{message}; a fallback runs instead", cure, witness)
                break


def _shapes(subject: Subject, index: int) -> Iterator[Finding]:
    """Shapes and tuned rows that a backend asks for beyond its kernels, and that leave layers to a fallback."""
    space, own, backend = subject.space, subject.own(index), subject.backends[index]
    said = subject.file.model.backends[index]
    for key in ("multiple_of", "minimum", "tuned"):
        if not getattr(own, key) or backend.on_use == "warn":
            continue
        looser_own = own.model_copy(update={key: () if key == "tuned" else None})
        kernels = sorted(subject.kernels(index), key=lambda pair: f"{pair[0].library}.{pair[0].name}")
        looser = merged_needs(said.model_copy(update={"needs": looser_own}), kernels, backend.calls)
        for device in (group[0] for group in space.classes):
            boxes = space.boxes(device, space.newest)
            box = boxes[index]
            wider = space.box(backend, looser, device, space.newest)
            if box is None or wider is None or wider == box:
                continue
            point = _fallback(subject, boxes, wider, device, space.defaults | wider.atoms, box)
            if point is not None:
                message = f"{backend.name} asks for `{key}` beyond its kernels, and a fallback runs the rest"
                witness = (*space.words(point, index), ("chosen", _chosen_name(subject, boxes, point)))
                cure = "drop the condition, or add a quiet backend for the rest"
                path: KeyPath = ("backends", index, "needs", key)
                yield finding("QS108", subject.file, path, message, cure, witness, key=True)
                break


def _fallback(
    subject: Subject, boxes: tuple[Box | None, ...], wanted: Box, device: Device, atoms: int, not_in: Box | None = None
) -> Point | None:
    """A layer in `wanted`, and not in `not_in`, that a fallback runs with these facts."""
    space = subject.space
    for output, n, k in cells([wanted, *(box for box in boxes if box)], space.unit):
        point = Point(device, space.newest, atoms, output, n, k)
        if not wanted.holds(output, n, k):
            continue
        if not_in and not not_in.atoms & ~atoms and not_in.holds(output, n, k):
            continue
        first = first_of(boxes, point)
        if first is not None and subject.backends[first].on_use == "warn":
            return point
    return None


def _chosen_name(subject: Subject, boxes: tuple[Box | None, ...], point: Point) -> str:
    first = first_of(boxes, point)
    return "none" if first is None else subject.backends[first].name
