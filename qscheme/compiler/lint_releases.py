"""The versions of each kernel library in classes that no limit and no signature tells apart, as bits of integers."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from qscheme.compiler.kernel_text import forms_of
from qscheme.releases import parsed
from qscheme.signatures import fits_signature

if TYPE_CHECKING:
    from collections.abc import Iterable

    from packaging.version import Version

    from qscheme.compiler import ir
    from qscheme.releases import History
    from qscheme.types import Form

OWN = "qscheme"
"""The library that is always there, in the release that decides."""


class Timeline:
    """The versions of one library: older than all, each release or limit, and what lies between.

    A set of versions is an integer with one bit for each. nearest: the release that a version offers, by its place.
    A version that is not known is taken for the newest, and breaks no limit; nothing is said of it here.
    """

    def __init__(self, history: History | None, limits: Iterable[str]) -> None:
        self.history = history
        names = [*(history.releases if history else ()), *limits]
        points: dict[Version, str] = {}
        for name in names:
            version = parsed(name)
            if version is not None:
                points.setdefault(version, name)
        self.points = sorted(points)
        self.named = [points[point] for point in self.points]
        released = set(history.releases) if history else {*names}
        self.labels: list[str] = []
        self.nearest: list[int | None] = []
        self.released: list[bool] = []
        self._add(f"older than {self.named[0]}" if self.named else "any version", None, False)
        place: int | None = None
        for at, name in enumerate(self.named):
            if history and name in released:
                place = history.releases.index(name)
            self._add(name, place, name in released)
            following = self.named[at + 1 :]
            self._add(f"between {name} and {following[0]}" if following else f"newer than {name}", place, False)
        self.all = (1 << len(self.labels)) - 1

    def _add(self, label: str, nearest: int | None, released: bool) -> None:
        self.labels.append(label)
        self.nearest.append(nearest)
        self.released.append(released)

    def older(self, limit: str | None) -> int:
        """The versions before a release."""
        version = parsed(limit)
        return 0 if version is None else (1 << (2 * self.points.index(version) + 1)) - 1

    def newer(self, limit: str | None) -> int:
        """The versions after a release."""
        version = parsed(limit)
        return 0 if version is None else self.all & ~self.older(limit) & ~(1 << (2 * self.points.index(version) + 1))

    def fitting(self, form: Form) -> int:
        """The versions whose signatures a form fits, whatever its limits say."""
        if self.history is None:
            return self.all
        fit = [fits_signature(form, self.history.at(place)) for place in range(len(self.history.releases))]
        return sum(1 << at for at, place in enumerate(self.nearest) if place is not None and fit[place])

    def within(self, form: Form) -> int:
        """The versions that the limits of a form allow."""
        return self.all & ~self.older(form.since) & ~self.newer(form.until)

    def preferred(self) -> list[int]:
        """Every version, real releases first and the newest of them first."""
        newest_first = range(len(self.labels) - 1, -1, -1)
        return sorted(newest_first, key=lambda at: not self.released[at])


class Releases:
    """What every version of every library offers."""

    def __init__(self, catalogue: ir.Catalogue) -> None:
        histories = {history.library: history for history in catalogue.histories}
        limits: dict[str, dict[str, None]] = {library.name: {} for library in catalogue.libraries}
        for kernel in catalogue.kernels:
            of = limits.setdefault(kernel.package, {})
            dated = (kernel.since, kernel.until, *(since for since, _ in kernel.rules))
            of.update(dict.fromkeys(limit for limit in dated if limit))
        for scheme in catalogue.schemes:
            for backend in scheme.backends:
                for row in backend.needs.where:
                    if row.library is not None:
                        of = limits.setdefault(row.library, {})
                        of.update(dict.fromkeys(limit for limit in (row.since, row.before) if limit))
        self.timelines = {name: Timeline(histories.get(name), of) for name, of in limits.items()}
        self._forms: dict[Form, int] = {}
        self._chosen: dict[tuple[str, str], tuple[int, ...]] = {}
        self._present: dict[tuple[str, str], int] = {}

    def timeline(self, kernel: ir.Kernel) -> Timeline:
        return self.timelines[kernel.package]

    def known(self, kernel: ir.Kernel) -> bool:
        """Whether the releases of the kernel's library are known."""
        return self.timeline(kernel).history is not None

    def fitting(self, form: Form, timeline: Timeline) -> int:
        """The versions whose signatures a form fits."""
        bare = form._replace(since=None, until=None)
        if bare not in self._forms:
            self._forms[bare] = timeline.fitting(bare)
        return self._forms[bare]

    def chosen(self, kernel: ir.Kernel) -> tuple[int, ...]:
        """For each form of a kernel, the versions in which it is called."""
        key = (kernel.library, kernel.name)
        if key not in self._chosen:
            self._chosen[key] = self.chosen_of(forms_of(kernel), self.timeline(kernel))
            self._present[key] = _union(self._chosen[key])
        return self._chosen[key]

    def chosen_of(self, forms: Iterable[Form], timeline: Timeline) -> tuple[int, ...]:
        """The same for forms that no kernel has yet."""
        left, found = timeline.all, list[int]()
        for form in forms:
            found.append(left & self.fitting(form, timeline) & timeline.within(form))
            left &= ~found[-1]
        return tuple(found)

    def present(self, kernel: ir.Kernel) -> int:
        """The versions that have a kernel in any form; every one for a kernel of qscheme itself."""
        if kernel.package == OWN:
            return 1
        key = (kernel.library, kernel.name)
        if key not in self._present:
            self.chosen(kernel)
        return self._present[key]

    def older(self, library: str, limit: str) -> int:
        """The versions of a library before a release."""
        return 0 if library == OWN else self.timelines[library].older(limit)

    def label(self, library: str, version: int) -> str:
        return self.timelines[library].labels[version]

    def newest(self, library: str) -> int:
        """The newest release of a library, or a version beyond every limit where releases are not known."""
        timeline = self.timelines[library]
        return len(timeline.labels) - 1 if timeline.history is None else timeline.preferred()[0]

    def representatives(self, library: str, masks: tuple[int, ...]) -> tuple[int, ...]:
        """One version for each class that these sets tell apart, real releases preferred, the newest first."""
        return _representatives(self.timelines[library], masks)


@lru_cache(maxsize=4096)
def _representatives(timeline: Timeline, masks: tuple[int, ...]) -> tuple[int, ...]:
    seen: dict[tuple[int, ...], int] = {}
    for version in timeline.preferred():
        seen.setdefault(tuple(mask >> version & 1 for mask in masks), version)
    return tuple(seen.values())


def _union(masks: Iterable[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found
