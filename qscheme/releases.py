"""What each release of a library offers: a history, written from scans, kept as JSON, asked by version."""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias, TypedDict, cast

from qscheme.errors import SchemeFileError
from qscheme.scanning import VALUE, ScanPlan, Survey, all_tags, scan_tags

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from packaging.version import Version

    from qscheme.bindings import Parameters

_Changes: TypeAlias = "Mapping[str, Sequence[tuple[int, Parameters | str | None]]]"
_Listed: TypeAlias = "dict[str, list[tuple[str, list[str] | str | None]]]"


class _Document(TypedDict):
    """The file of a history; `scan` is a ScanPlan."""

    library: str
    scan: dict[str, list[str] | dict[str, list[str]]]
    releases: list[str]
    aliases: _Listed
    symbols: _Listed


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """What each release of a library offers.

    releases: the oldest first. symbols: dotted path where a symbol is defined -> (place in `releases`, parameters from
    then on, None once it is gone). aliases: other paths to symbols and modules, in the same way.
    """

    library: str
    plan: ScanPlan
    releases: tuple[str, ...]
    symbols: _Changes
    aliases: _Changes

    @classmethod
    def of(cls, library: str, plan: ScanPlan, surveys: Iterable[tuple[str, Survey]]) -> History:
        """The history of (release, survey) pairs, the oldest first."""
        kept = list(surveys)
        releases = tuple(release for release, _ in kept)
        symbols = _changes([survey.symbols for _, survey in kept])
        return cls(library, plan, releases, symbols, _changes([survey.aliases for _, survey in kept]))

    def at(self, place: int) -> Recorded:
        """The offer of `releases[place]`."""
        return Recorded(self, place)

    def survey(self, place: int) -> Survey:
        """What the scan of `releases[place]` found."""
        offer = self.at(place)
        symbols = {name: found for name in self.symbols if isinstance(found := offer.state(name), tuple)}
        aliases = {name: home for name in self.aliases if isinstance(home := offer.home(name), str)}
        return Survey(symbols, aliases)

    def nearest(self, version: str | None) -> int | None:
        """The place of the newest release that is not newer than a version, the last one if the version is unknown.

        None if the version is older than every release.
        """
        known = parsed(version)
        if known is None:
            return len(self.releases) - 1
        place = bisect_right(self.releases, known, key=_known) - 1
        return place if place >= 0 else None

    def text(self) -> str:
        """The history as JSON, one line for each symbol; `read_history` reads it."""
        plan = self.plan
        scan = {"modules": plan.modules, "helpers": plan.helpers, "skip": plan.skip, "values": plan.values}
        head = [
            f'"library": {json.dumps(self.library)}',
            '"scan": {\n'
            + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in scan.items())
            + f',\n  "enums": {json.dumps(dict(plan.enums))}\n }}',
            f'"releases": {json.dumps(self.releases)}',
        ]
        for name, changes in (("aliases", self.aliases), ("symbols", self.symbols)):
            lines = [
                f"  {json.dumps(symbol)}: {json.dumps([(self.releases[at], form) for at, form in every])}"
                for symbol, every in sorted(changes.items())
            ]
            head.append(f'"{name}": {{\n' + ",\n".join(lines) + "\n }")
        return "{\n " + ",\n ".join(head) + "\n}\n"


@dataclass(frozen=True, slots=True)
class Recorded:
    """The offer of one release of a history."""

    history: History
    place: int

    def parameters(self, symbol: str) -> Parameters | None:
        """The parameters of a dotted name, under any path that leads to it; None if this release does not have it."""
        names = symbol.split(".")
        for cut in range(len(names), 0, -1):
            home = self.home(".".join(names[:cut]))
            if home is not None:
                return self.parameters(".".join((home, *names[cut:])))
        return self.state(symbol)

    def state(self, symbol: str) -> Parameters | None:
        """The parameters of a symbol under the path that defines it."""
        found = self._now(self.history.symbols, symbol)
        return None if isinstance(found, str) else found

    def home(self, alias: str) -> str | None:
        """Where a path leads that defines nothing itself."""
        found = self._now(self.history.aliases, alias)
        return found if isinstance(found, str) else None

    def _now(self, changes: _Changes, name: str) -> Parameters | str | None:
        every = changes.get(name, ())
        return next((form for at, form in reversed(every) if at <= self.place), None)


@lru_cache(maxsize=16)
def read_history(file: Path) -> History:
    """Reads a history's JSON file. Raises SchemeFileError if the file is not one."""
    try:
        document = cast("_Document", json.loads(file.read_text(encoding="utf-8")))
        scan, places = document["scan"], {release: at for at, release in enumerate(document["releases"])}
        words = {name: tuple(scan[name]) for name in ("modules", "helpers", "skip", "values")}
        enums = cast("dict[str, list[str]]", scan["enums"])
        symbols, aliases = (
            {
                symbol: tuple((places[at], tuple(form) if isinstance(form, list) else form) for at, form in every)
                for symbol, every in listed.items()
            }
            for listed in (document["symbols"], document["aliases"])
        )
    except (ValueError, KeyError, TypeError) as error:
        raise SchemeFileError(
            [f"{file}: not a history of releases: {error}; `qscheme scan-aiter` writes one"]
        ) from error
    plan = ScanPlan(**words, enums={name: tuple(files) for name, files in enums.items()})
    return History(document["library"], plan, tuple(places), symbols, aliases)


@lru_cache(maxsize=1024)
def parsed(version: str | None) -> Version | None:
    """A version, with or without a leading `v`, that can be compared; None for one that cannot."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version) if version else None
    except InvalidVersion:
        return None


def scan_history(git: Path, library: str, plan: ScanPlan, tags: Iterable[str] | None = None) -> History:
    """The history of a library from its git directory (a bare mirror or a checkout), of every release unless told.

    Raises QschemeError where git fails or a tag has no such package.
    """
    return History.of(
        library, plan, scan_tags(git, release_tags(all_tags(git)) if tags is None else tags, library, plan)
    )


def updated_history(git: Path, known: History, only_new: bool = False) -> History:
    """A history with every release tag of a git directory, scanned again or, if told, only where it is not known yet.

    Known releases without a tag there stay as they are. Raises QschemeError where git fails or a tag has no package.
    """
    tags = [tag for tag in release_tags(all_tags(git)) if not (only_new and tag in known.releases)]
    surveys = {release: known.survey(place) for place, release in enumerate(known.releases)}
    surveys |= dict(scan_tags(git, tags, known.library, known.plan))
    return History.of(known.library, known.plan, sorted(surveys.items(), key=lambda pair: _known(pair[0])))


def api_changes(before: Mapping[str, Parameters], after: Mapping[str, Parameters]) -> tuple[str, ...]:
    """What a later offer has more (`+`), no longer (`-`) or in another form (`~`), one line each, by dotted name."""
    lines: list[tuple[str, str]] = []
    for symbol in {**before, **after}:
        old, new = before.get(symbol), after.get(symbol)
        if old is None and new is not None:
            lines.append((symbol, f"+ {symbol}{_shown(new)}"))
        elif new is None and old is not None:
            lines.append((symbol, f"- {symbol}{_shown(old)}"))
        elif old is not None and new is not None and old != new:
            lines.append((symbol, f"~ {symbol}{_shown(old)} is now {_shown(new)}"))
    return tuple(line for _, line in sorted(lines))


def release_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """The tags that name final and post releases, the oldest first."""
    known = [
        (version, tag) for tag in tags if (version := parsed(tag)) and not version.is_prerelease and not version.local
    ]
    return tuple(tag for _, tag in sorted(known))


def _shown(parameters: Parameters) -> str:
    return " = ..." if parameters == VALUE else f"({', '.join(parameters)})"


def _known(release: str) -> Version:
    known = parsed(release)
    if known is None:
        raise SchemeFileError([f"{release!r} is not the name of a release"])
    return known


def _changes(states: Sequence[Mapping[str, Parameters] | Mapping[str, str]]) -> _Changes:
    """The places where each name's state differs from the one before."""
    changes: dict[str, list[tuple[int, Parameters | str | None]]] = {}
    for name in sorted({name for state in states for name in state}):
        before: Parameters | str | None = None
        for place, state in enumerate(states):
            now = state.get(name)
            if now != before:
                changes.setdefault(name, []).append((place, now))
            before = now
    return changes
