"""The versions of each kernel library that anything tells apart, and which of them have a kernel, as bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import Version

from qscheme.compiler.kernel_text import forms_of
from qscheme.compiler.versions import limits_in, ranges_in
from qscheme.releases import parsed
from qscheme.signatures import fits_signature

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from qscheme.compiler import ir
    from qscheme.releases import History
    from qscheme.types import Form

OWN = "qscheme"
"""The library whose source is at hand: always there, in the release that decides."""

FIRST = "v0"
"""Stands for the versions before every limit of a library whose releases are not known."""


def versions_of(*catalogues: ir.Catalogue) -> Mapping[str, tuple[str, ...]]:
    """For each library the versions at which something changes, the oldest first.

    These are the releases of its history, every `since` and `before`, and what follows an `until`. Each stands for
    itself and for all versions up to the next one: no condition tells them apart. Tools that conditions name are
    libraries here.
    """
    points: dict[str, set[Version | None]] = {}
    for catalogue in catalogues:
        for library in catalogue.libraries:
            points.setdefault(library.name, set())
        for history in catalogue.histories:
            points.setdefault(history.library, set()).update(map(parsed, history.releases))
        for kernel in catalogue.kernels:
            found = points.setdefault(kernel.package, set())
            found.update(parsed(since) for since, _ in kernel.rules)
            for form in forms_of(kernel):
                found |= {parsed(form.since), _after(parsed(form.until))}
        for scheme in catalogue.schemes:
            for needs in (backend.needs for backend in scheme.backends):
                named = [row.library for row in needs.where if row.library]
                for name in (*named, *(one.name for one in ranges_in(needs))):
                    points.setdefault(name, set()).update(map(parsed, limits_in(needs, name)))
    known = {history.library for catalogue in catalogues for history in catalogue.histories}
    for name in points.keys() - known:
        points[name].add(parsed(FIRST))
    return {
        library: tuple(f"v{version}" for version in sorted(version for version in found if version is not None))
        for library, found in points.items()
    }


class Timeline:
    """The versions of one library; a set of them is an integer with one bit for each.

    A version that is not known is taken for the newest and breaks no limit: nothing is said of it here. One older than
    every release of a history offers nothing, like a library that is absent.
    """

    def __init__(self, library: str, names: tuple[str, ...], history: History | None) -> None:
        self.library = library
        self.names = names
        self.history = history
        self.all = (1 << len(names)) - 1
        released = {parsed(release) for release in history.releases} if history else set[Version | None]()
        self.released = sum(1 << at for at, name in enumerate(names) if parsed(name) in released)
        self._places = [history.nearest(name) if history else None for name in names]
        self._forms: dict[Form, int] = {}

    def before(self, limit: str | None) -> int:
        """The versions before a release; none if there is no limit."""
        first = parsed(limit)
        if first is None:
            return 0
        return sum(1 << at for at, name in enumerate(self.names) if (version := parsed(name)) and version < first)

    def fitting(self, form: Form) -> int:
        """The versions whose signatures a form fits, whatever its limits say."""
        bare = form._replace(since=None, until=None)
        if self.history is None:
            return self.all
        if bare not in self._forms:
            fit = [fits_signature(bare, self.history.at(place)) for place in range(len(self.history.releases))]
            self._forms[bare] = sum(
                1 << at for at, place in enumerate(self._places) if place is not None and fit[place]
            )
        return self._forms[bare]

    def chosen(self, forms: Iterable[Form]) -> tuple[int, ...]:
        """For each form of a kernel, the versions in which it is called."""
        left, found = self.all, list[int]()
        for form in forms:
            after = _after(parsed(form.until))
            late = self.all & ~self.before(f"v{after}") if after else 0
            found.append(left & self.fitting(form) & ~self.before(form.since) & ~late)
            left &= ~found[-1]
        return tuple(found)


class Releases:
    """What every version of every library offers to the kernels of one catalogue.

    versions: what `versions_of` says; that of several catalogues if they are to be compared.
    """

    def __init__(self, catalogue: ir.Catalogue, versions: Mapping[str, tuple[str, ...]] | None = None) -> None:
        histories = {history.library: history for history in catalogue.histories}
        named = versions_of(catalogue) if versions is None else versions
        self.timelines = {name: Timeline(name, names, histories.get(name)) for name, names in named.items()}
        self._chosen: dict[tuple[str, str], tuple[int, ...]] = {}
        self._present: dict[tuple[str, str], int] = {}

    def timeline(self, kernel: ir.Kernel) -> Timeline:
        """The timeline of a kernel's library."""
        return self.timelines[kernel.package]

    def chosen(self, kernel: ir.Kernel) -> tuple[int, ...]:
        """For each form of a kernel, the versions in which it is called."""
        key = (kernel.library, kernel.name)
        if key not in self._chosen:
            self._chosen[key] = self.timeline(kernel).chosen(forms_of(kernel))
        return self._chosen[key]

    def present(self, kernel: ir.Kernel) -> int:
        """The versions that have a kernel in any form."""
        key = (kernel.library, kernel.name)
        if key not in self._present:
            self._present[key] = sum(self.chosen(kernel))  # no version is in two
        return self._present[key]


def _after(version: Version | None) -> Version | None:
    """The first version that is later than one and its local versions, up to the next post release."""
    if version is None:
        return None
    if version.post is None:
        return Version(f"{version.public}.post0")
    return Version(f"{version.public.rpartition('.post')[0]}.post{version.post + 1}")
