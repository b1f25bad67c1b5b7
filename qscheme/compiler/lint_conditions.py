"""Findings about conditions that say nothing: repeated, implied, out of reach, or written twice."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

from qscheme.compiler.lint_rules import finding
from qscheme.compiler.lint_space import UNKNOWN
from qscheme.releases import parsed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from qscheme.compiler import model
    from qscheme.compiler.lint_choices import Subject
    from qscheme.compiler.lint_rules import AnyFile, Finding
    from qscheme.compiler.source import KeyPath
    from qscheme.types import Device

Hardware = dict[str, frozenset[str]]
"""The architectures on which each hardware condition of an entry holds; `?` is one that devices.yaml does not have."""


def entry_findings(file: AnyFile, path: KeyPath, needs: model.Needs, devices: Iterable[Device]) -> Iterator[Finding]:
    """What is redundant among the needs of a kernel, or of a backend by itself. path: that of the needs."""
    known = (*devices, UNKNOWN)
    hardware = hardware_of(needs, known)
    every = frozenset(device.arch for device in known)
    for word, holds in hardware.items():
        rest = _all(every, [other for name, other in hardware.items() if name != word])
        if rest <= holds:
            beside = " and ".join(name for name in hardware if name != word)
            message = f"`{word}` holds on every architecture that {f'`{beside}` leaves' if beside else 'there is'}"
            yield finding("QS113", file, (*path, word), message, "remove it", _sample(rest), key=True)
    left = _all(every, hardware.values())
    for position, arch in enumerate(needs.arch):
        if left and arch not in left:
            message = f"{arch} does not meet the conditions beside it"
            why = tuple((name, "no") for name, holds in hardware.items() if arch not in holds)
            yield finding("QS103", file, (*path, "arch", position), message, "remove the word", (("arch", arch), *why))
    yield from _lengths(file, path, needs)
    for row, where in enumerate(needs.where):
        scope = _scope(where, known)
        at: KeyPath = (*path, "where", row)
        if not scope & left:
            words = ", ".join(where.arch or where.vendor)
            yield finding("QS115", file, at, f"no device is left to which {words} belongs", "remove the row")
        elif any(
            _repeats(where, other, scope & left, known)
            and not (at_ > row and _repeats(other, where, _scope(other, known) & left, known))
            for at_, other in enumerate(needs.where)
            if at_ != row
        ):
            yield finding("QS113", file, at, "another row asks for the same or more there", "remove it", _sample(scope))
    for row, tuned in enumerate(needs.tuned):
        if any(
            _within(tuned, other) and not (at_ > row and _within(other, tuned))
            for at_, other in enumerate(needs.tuned)
            if at_ != row
        ):
            message = f"another row asks {tuned.table} for the same M"
            yield finding("QS113", file, (*path, "tuned", row), message, "remove it", (("M", str(tuned.m[0])),))


def backend_findings(subject: Subject, index: int) -> Iterator[Finding]:
    """What a backend says again although its kernels say it, and what they imply."""
    own, path = subject.own(index), ("backends", index, "needs")
    kernels = [needs for _, needs in subject.kernels(index)]
    known = (*subject.space.devices, UNKNOWN)
    every = frozenset(device.arch for device in known)
    theirs = _all(every, [holds for needs in kernels for holds in hardware_of(needs, known).values()])
    for word, holds in hardware_of(own, known).items():
        if theirs <= holds:
            message = f"`{word}` repeats what its kernels need"
            yield finding("QS112", subject.file, (*path, word), message, "remove it", _sample(theirs), key=True)
            continue
        beside = _all(every, [other for name, other in hardware_of(own, known).items() if name != word])
        if beside & theirs <= holds and not beside <= holds:
            message = f"`{word}` holds wherever its kernels and the conditions beside it do"
            yield finding(
                "QS113", subject.file, (*path, word), message, "remove it", _sample(beside & theirs), key=True
            )
    for word in ("n", "k"):
        multiple = math.lcm(*(_multiple(needs, word) for needs in kernels), subject.space.unit if word == "k" else 1)
        least = max((_least(needs, word) for needs in kernels), default=1)
        witness = ((word.upper(), str(max(multiple, least))),)
        if _multiple(own, word) > 1 and multiple % _multiple(own, word) == 0:
            message = f"{word.upper()} is a multiple of {multiple} for its kernels already"
            at: KeyPath = (*path, "multiple_of", word)
            yield finding("QS112", subject.file, at, message, "remove it", witness, key=True)
        if 1 < _least(own, word) <= max(least, multiple):
            message = f"{word.upper()} is at least {max(least, multiple)} for its kernels already"
            yield finding("QS112", subject.file, (*path, "minimum", word), message, "remove it", witness, key=True)
    for position, switch in enumerate(own.switches):
        if any(switch in needs.switches for needs in kernels):
            message = f"its kernels need the switch {switch} already"
            yield finding("QS112", subject.file, (*path, "switches", position), message, "remove it")
    for row, tuned in enumerate(own.tuned):
        if any(_within(tuned, other) for needs in kernels for other in needs.tuned):
            message = f"its kernels ask {tuned.table} for these M already"
            yield finding("QS112", subject.file, (*path, "tuned", row), message, "remove it")
    for name, limits in (own.versions or {}).items():
        asked = [needs.versions[name] for needs in kernels if needs.versions and name in needs.versions]
        if any(_narrower(one, limits) for one in asked):
            message = f"its kernels need such a version of {name} already"
            yield finding("QS112", subject.file, (*path, "versions", name), message, "remove it", key=True)
    for row, where in enumerate(own.where):
        scope = _scope(where, known) & theirs
        if any(_repeats(where, other, scope, known) for needs in kernels for other in needs.where) or (
            scope and _general(where, kernels)
        ):
            message = "repeats what its kernels need there"
            yield finding("QS112", subject.file, (*path, "where", row), message, "remove it", _sample(scope))
    if own.one_scale:
        if any(needs.one_scale for needs in kernels):
            message = "`one_scale` repeats what its kernels need"
            yield finding("QS112", subject.file, (*path, "one_scale"), message, "remove it", key=True)
        elif (granularity := subject.space.scheme.weight.granularity) != "per_tensor":
            message = f"`one_scale` holds for every weight with {granularity} scales"
            yield finding("QS113", subject.file, (*path, "one_scale"), message, "remove it", key=True)


def hardware_of(needs: model.Needs, known: Iterable[Device]) -> Hardware:
    """The architectures on which each hardware condition holds."""
    found: Hardware = {}
    if needs.arch:
        found["arch"] = frozenset(needs.arch)
    if needs.vendor:
        found["vendor"] = frozenset(device.arch for device in known if device.vendor in needs.vendor)
    if needs.mx:
        found["mx"] = frozenset(device.arch for device in known if device.mx)
    if needs.int8:
        found["int8"] = frozenset(device.arch for device in known if device.int8)
    return found


def twice(file: AnyFile) -> Iterator[Finding]:
    """Words and numbers that stand twice in a list."""
    for path, items in _lists((), file.document.data):
        seen: list[object] = []
        for position, item in enumerate(items):
            if isinstance(item, str | int | float) and item in seen:
                message = f"{item} stands twice in the list"
                yield finding("QS114", file, (*path, position), message, "remove one, or write the word that is meant")
            seen.append(item)


def _lists(path: KeyPath, value: object) -> Iterator[tuple[KeyPath, tuple[object, ...]]]:
    if isinstance(value, dict):
        for key, inner in cast("Mapping[str, object]", value).items():
            yield from _lists((*path, key), inner)
    elif isinstance(value, tuple):
        items = cast("tuple[object, ...]", value)
        yield path, items
        for position, inner in enumerate(items):
            yield from _lists((*path, position), inner)


def _lengths(file: AnyFile, path: KeyPath, needs: model.Needs) -> Iterator[Finding]:
    for word in ("n", "k"):
        multiple, least = _multiple(needs, word), _least(needs, word)
        if 1 < least <= multiple:
            message = f"every multiple of {multiple} is at least {least}"
            at: KeyPath = (*path, "minimum", word)
            yield finding("QS113", file, at, message, "remove it", ((word.upper(), str(multiple)),), key=True)
        for row, where in enumerate(needs.where):
            asked = getattr(where.multiple_of, word, None) if where.multiple_of else None
            if asked is not None and multiple % asked == 0:
                message = f"{word.upper()} is a multiple of {multiple} everywhere"
                at = (*path, "where", row, "multiple_of", word)
                yield finding("QS113", file, at, message, "remove it", ((word.upper(), str(multiple)),), key=True)


def _multiple(needs: model.Needs, word: str) -> int:
    return cast("int | None", getattr(needs.multiple_of, word, None)) or 1


def _least(needs: model.Needs, word: str) -> int:
    return cast("int | None", getattr(needs.minimum, word, None)) or 1


def _scope(where: model.Where, known: Iterable[Device]) -> frozenset[str]:
    if where.arch:
        return frozenset(where.arch)
    return frozenset(device.arch for device in known if device.vendor in where.vendor)


def _repeats(where: model.Where, other: model.Where, scope: frozenset[str], known: Iterable[Device]) -> bool:
    """Whether another row asks for as much wherever a row applies; of two alike, the second repeats the first."""
    if not scope or not scope <= _scope(other, known) or not _not_later(where, other):
        return False
    n, k = (_part(where, word) for word in ("n", "k"))
    other_n, other_k = (_part(other, word) for word in ("n", "k"))
    return other_n % n == 0 and other_k % k == 0 and (where.before == other.before or other.before is None)


def _not_later(where: model.Where, other: model.Where) -> bool:
    """Whether a row's `since` is none, or no later than another's."""
    first, last = parsed(where.since), parsed(other.since)
    return first is None or (last is not None and first <= last)


def _narrower(one: model.VersionRange, other: model.VersionRange) -> bool:
    """Whether every version of one range is in another."""
    first, since, before, last = map(parsed, (one.since, other.since, other.before, one.before))
    return (since is None or (first is not None and since <= first)) and (
        before is None or (last is not None and last <= before)
    )


def _general(where: model.Where, kernels: Iterable[model.Needs]) -> bool:
    """Whether a row asks for multiples alone, and kernels for the same everywhere."""
    n, k = (math.lcm(1, *(_multiple(needs, word) for needs in kernels)) for word in ("n", "k"))
    return where.since is None and n % _part(where, "n") == 0 and k % _part(where, "k") == 0


def _part(where: model.Where, word: str) -> int:
    return cast("int | None", getattr(where.multiple_of, word, None)) or 1


def _within(tuned: model.TunedRow, other: model.TunedRow) -> bool:
    return tuned.table == other.table and set(tuned.m) <= set(other.m)


def _all(every: frozenset[str], sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return every.intersection(*sets)


def _sample(architectures: frozenset[str]) -> tuple[tuple[str, str], ...]:
    return (("arch", ", ".join(sorted(architectures - {UNKNOWN.arch})) or UNKNOWN.arch),)
