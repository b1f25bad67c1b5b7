"""The decision space of a scheme: every machine, release, switch, tuned row, shape and dtype, in finitely many classes.

For one architecture and one release of each library, a backend is a conjunction of facts that can each only help: a
switch that is on, a row that is tuned, a multiple, a minimum, an output dtype. Whether backends leave anything to
another is then decided at the point where that one has all that it needs and nothing more.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from qscheme.compiler.lint_releases import OWN, Releases
from qscheme.compiler.support import runs_on
from qscheme.compiler.versions import limits_in, ranges_in
from qscheme.types import BATCH_INVARIANT, Device
from qscheme.words import codes_together

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from qscheme.compiler import ir

UNKNOWN = Device("unknown", "unknown", "unknown", None, False, False, 0)
"""An architecture that devices.yaml does not have."""

OUTPUTS = ("bf16", "fp16", "fp32")
UNITS = {"fp4_e2m1": 2, "fp6_e2m3": 4, "fp6_e3m2": 4}
"""What K is always a multiple of, by the weight's format: codes that share bytes."""

Versions: TypeAlias = "tuple[int | None, ...]"
"""For each library of a scheme the place of its version in the library's timeline, None where it is absent."""


class Box(NamedTuple):
    """When a backend runs on one architecture with one release of each library.

    atoms: the facts that must hold, as bits. outputs: dtypes as bits. n, k: what N and K must be multiples of.
    """

    atoms: int
    outputs: int
    n: int
    k: int
    least_n: int
    least_k: int

    def holds(self, output: int, n: int, k: int) -> bool:
        """Whether the layer's part of the conditions holds."""
        lengths_hold = n % self.n == 0 and k % self.k == 0 and n >= self.least_n and k >= self.least_k
        return lengths_hold and bool(self.outputs & output)

    def covers(self, other: Box) -> bool:
        """Whether each condition is one of the other's, or implied by one."""
        return (
            not self.atoms & ~other.atoms
            and not other.outputs & ~self.outputs
            and other.n % self.n == 0
            and other.k % self.k == 0
            and self.least_n <= other.least_n
            and self.least_k <= other.least_k
        )


class Point(NamedTuple):
    """One layer on one machine; atoms: the facts that hold."""

    device: Device
    versions: Versions
    atoms: int
    output: int
    n: int
    k: int


@dataclass(frozen=True)
class Space:
    """The classes that decide between the backends of one scheme."""

    scheme: ir.Scheme
    devices: tuple[Device, ...]
    switches: tuple[tuple[str, bool], ...]
    releases: Releases

    @cached_property
    def libraries(self) -> tuple[str, ...]:
        """The libraries that may be absent or of another release."""
        used = [kernel.package for backend in self.scheme.backends for kernel in backend.kernels]
        used += [one.name for backend in self.scheme.backends for one in ranges_in(backend.needs)]
        return tuple(name for name in dict.fromkeys(used) if name != OWN)

    @cached_property
    def atoms(self) -> tuple[str, ...]:
        """The words of each bit of `Box.atoms`."""
        words: dict[str, None] = {}
        for backend in self.scheme.backends:
            words.update(dict.fromkeys(_atoms(backend.needs, self.scheme)))
        return tuple(words)

    @cached_property
    def least(self) -> int:
        """The bits that hold where every switch is off; batch-invariant mode, which refuses on purpose, is off too."""
        return sum(1 << bit for bit, word in enumerate(self.atoms) if word == _VARIES)

    @cached_property
    def defaults(self) -> int:
        """The bits of switches that are on by default, and of what holds unless it is changed: no mode, no parts."""
        on = {f"switch {name}" for name, default in self.switches if default} | {_VARIES, _ONE_SCALE}
        return sum(1 << bit for bit, word in enumerate(self.atoms) if word in on)

    @cached_property
    def classes(self) -> tuple[tuple[Device, ...], ...]:
        """The architectures, an unknown one last, in groups that no backend tells apart."""
        groups: defaultdict[object, list[Device]] = defaultdict(list)
        for device in (*self.devices, UNKNOWN):
            groups[self.device_key(device)].append(device)
        return tuple(map(tuple, groups.values()))

    def device_key(self, device: Device) -> tuple[tuple[bool, ...] | None, ...]:
        """What the backends ask about an architecture."""
        return tuple(
            tuple(_applies(row, device) for row in backend.needs.where) if runs_on(backend, device) else None
            for backend in self.scheme.backends
        )

    @cached_property
    def versions(self) -> tuple[Versions, ...]:
        """One version of each class for each library, the newest first, absence last."""
        every: list[list[int | None]] = []
        for library in self.libraries:
            masks = [self.releases.present(kernel) for kernel in self._kernels if kernel.package == library]
            for backend in self.scheme.backends:
                masks += [self.releases.older(library, limit) for limit in limits_in(backend.needs, library)]
            every.append([*self.releases.representatives(library, tuple(sorted(set(masks)))), None])
        return tuple(itertools.product(*every))

    @cached_property
    def _kernels(self) -> tuple[ir.Kernel, ...]:
        found = [kernel for backend in self.scheme.backends for kernel in backend.kernels]
        return tuple({(kernel.library, kernel.name): kernel for kernel in found}.values())

    @cached_property
    def newest(self) -> Versions:
        """The newest release of each library."""
        return tuple(self.releases.newest(library) for library in self.libraries)

    @cached_property
    def unit(self) -> int:
        """What K is always a multiple of."""
        weight = self.scheme.weight
        return UNITS.get(weight.format, 1) * codes_together(weight.format, weight.packing)[1]

    @cached_property
    def _boxes(self) -> dict[tuple[Device, Versions], tuple[Box | None, ...]]:
        return {}

    def boxes(self, device: Device, versions: Versions) -> tuple[Box | None, ...]:
        """When each backend runs there, None if never."""
        key = (device, versions)
        if key not in self._boxes:
            self._boxes[key] = tuple(self.box(b, b.needs, device, versions) for b in self.scheme.backends)
        return self._boxes[key]

    def box(self, backend: ir.Backend, needs: ir.Needs, device: Device, versions: Versions) -> Box | None:
        """When a backend with these needs runs there, None if never."""
        if not runs_on(backend, device):
            return None
        held = dict(zip(self.libraries, versions, strict=True))
        for kernel in backend.kernels:
            version = held.get(kernel.package, 0)
            if version is None or not self.releases.present(kernel) >> version & 1:
                return None
        if not self.releases.suit(needs, device.arch, held):
            return None
        n, k = needs.n or 1, math.lcm(needs.k or 1, self.unit)
        for row in needs.where:
            if not _applies(row, device):
                continue
            version = held.get(row.library or OWN)
            if row.library and version is not None:
                if row.since and self.releases.older(row.library, row.since) >> version & 1:
                    return None
                if row.before and not self.releases.older(row.library, row.before) >> version & 1:
                    continue
            n, k = math.lcm(n, row.n or 1), math.lcm(k, row.k or 1)
        words = [*_atoms(needs, self.scheme), *implied(self.atoms, n, k)]
        atoms = sum(1 << bit for bit, word in enumerate(self.atoms) if word in words)
        outputs = sum(1 << bit for bit, word in enumerate(OUTPUTS) if word in (needs.output or OUTPUTS))
        return Box(atoms, outputs, n, k, needs.min_n or 1, needs.min_k or 1)

    def chosen(self, index: int, devices: Iterable[Device]) -> Point | None:
        """A layer for which backend number `index` is chosen on one of these architectures, None if there is none."""
        for device in devices:
            for versions in self.versions:
                boxes = self.boxes(device, versions)
                box = boxes[index]
                if box is None:
                    continue
                rivals = [rival for rival in boxes[:index] if rival and not rival.atoms & ~box.atoms]
                if any(rival.covers(box) for rival in rivals):
                    continue
                for output, n, k in cells([box, *rivals], self.unit):
                    if box.holds(output, n, k) and not any(rival.holds(output, n, k) for rival in rivals):
                        return Point(device, versions, box.atoms, output, n, k)
        return None

    def able(self, index: int) -> Iterator[tuple[Point, int]]:
        """A layer of each class for which backend `index` can run, with the backend that is chosen for it."""
        for group in self.classes:
            for versions in self.versions:
                boxes = self.boxes(group[0], versions)
                box = boxes[index]
                rivals = [rival for rival in boxes[:index] if rival and box and not rival.atoms & ~box.atoms]
                for output, n, k in cells([box, *rivals], self.unit) if box else ():
                    point = Point(group[0], versions, box.atoms, output, n, k) if box else None
                    if point and box and box.holds(output, n, k):
                        first = first_of(boxes, point)
                        yield point, index if first is None else first

    def words(self, point: Point, *backends: int) -> tuple[tuple[str, str], ...]:
        """A point as (what, value) pairs: what these backends ask for, or every one if none is named."""
        asking = [self.scheme.backends[index] for index in backends] or self.scheme.backends
        libraries = {kernel.package for backend in asking for kernel in backend.kernels}
        libraries |= {one.name for backend in asking for one in ranges_in(backend.needs)}
        asked = {word for backend in asking for word in _atoms(backend.needs, self.scheme)}
        found = [("arch", point.device.arch)]
        for library, version in zip(self.libraries, point.versions, strict=True):
            if library in libraries:
                found.append((library, "absent" if version is None else self.releases.label(library, version)))
        for bit, word in enumerate(self.atoms):
            holds = bool(point.atoms >> bit & 1)
            if word not in asked:
                continue
            if word == _VARIES:
                found.append((f"switch {BATCH_INVARIANT}", "off" if holds else "on"))
            elif word == _ONE_SCALE:
                found.append(("scales of the weight", "one" if holds else "one for each part"))
            else:
                yes, no = ("on", "off") if word.startswith("switch") else ("yes", "no")
                found.append((word, yes if holds else no))
        output = OUTPUTS[point.output.bit_length() - 1]
        return (*found, ("out_dtype", output), ("N", str(point.n)), ("K", str(point.k)))


_VARIES = "sums may vary with M"
_ONE_SCALE = "one scale"


def _atoms(needs: ir.Needs, scheme: ir.Scheme) -> list[str]:
    """Each fact that must hold, in words; a need of several tuned rows is several facts."""
    words = [f"switch {name}" for name in needs.switches]
    words += [f"{row.table} tuned for M {m}" for row in needs.tuned for m in row.every]
    words += [_VARIES] if needs.varies_with_m else []
    multiples = (("N", needs.full_n), ("K", needs.full_k))
    words += [f"whole {name} a multiple of {multiple}" for name, multiple in multiples if multiple]
    return [*words, _ONE_SCALE] if needs.one_scale and scheme.weight.granularity == "per_tensor" else words


def implied(atoms: Iterable[str], n: int, k: int) -> Iterator[str]:
    """The facts about a whole layer that hold where its shards are multiples of these numbers."""
    for word in atoms:
        if word.startswith("whole "):
            number = int(word.rpartition(" ")[2])
            if (n if word.startswith("whole N") else k) % number == 0:
                yield word


def _applies(row: ir.WhereNeed, device: Device) -> bool:
    return device.arch in row.arch if row.arch else device.vendor in row.vendor


def first_of(boxes: Sequence[Box | None], point: Point) -> int | None:
    """The backend that is chosen at a point, None if every one is refused."""
    for index, box in enumerate(boxes):
        if box and not box.atoms & ~point.atoms and box.holds(point.output, point.n, point.k):
            return index
    return None


def cells(boxes: Sequence[Box], unit: int) -> Iterator[tuple[int, int, int]]:
    """An (output, N, K) for each class of layers that these boxes tell apart."""
    ns = lengths(frozenset(box.n for box in boxes), frozenset(box.least_n for box in boxes), 1)
    ks = lengths(frozenset(box.k for box in boxes), frozenset(box.least_k for box in boxes), unit)
    yield from itertools.product((1, 2, 4), ns, ks)


@lru_cache(maxsize=4096)
def lengths(multiples: frozenset[int], least: frozenset[int], unit: int) -> tuple[int, ...]:
    """A length for each set of these conditions that some multiple of `unit` meets and no others, the smallest first.

    Below the largest minimum every length is tried. Above it, the multiples that can be met alone are the divisors of
    a common multiple of some of them, and a prime beyond all of them leads there.
    """
    top = max(least, default=1)
    found: dict[tuple[frozenset[int], int], int] = {}

    def add(length: int) -> None:
        key = frozenset(m for m in multiples if length % m == 0), sum(length >= bound for bound in least)
        found.setdefault(key, length)

    for length in range(unit, top, unit):
        add(length)
    common = {unit}
    for multiple in multiples:
        common |= {math.lcm(other, multiple) for other in common}
    for product in sorted(common):
        alone = frozenset(m for m in multiples if product % m == 0)
        factor = next(f for f in itertools.count(-(-top // product)) if f and _met(product * f, multiples) == alone)
        add(product * factor)
    return tuple(sorted(found.values()))


def _met(length: int, multiples: frozenset[int]) -> frozenset[int]:
    return frozenset(m for m in multiples if length % m == 0)
