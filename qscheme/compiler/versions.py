"""Ranges of versions of the toolchain and of libraries: what they mean, in words, and what is wrong with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import Version

from qscheme.compiler import ir
from qscheme.compiler.kernel_model import GemmModel
from qscheme.compiler.mistakes import unknown
from qscheme.types import TOOLCHAIN

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from qscheme.compiler.kernel_model import QuantizerModel
    from qscheme.compiler.model import Needs, Versions
    from qscheme.compiler.source import KeyPath


def ranges_of(versions: Versions | None) -> tuple[ir.VersionRange, ...]:
    """The ranges that a YAML mapping means, sorted by name."""
    return tuple(ir.VersionRange(name, one.since, one.before) for name, one in sorted((versions or {}).items()))


def known_bad_of(name: str, kernel: QuantizerModel | GemmModel) -> tuple[ir.KnownBad, ...]:
    """Where a kernel is known to be wrong."""
    return tuple(
        ir.KnownBad(name, row.arch, ranges_of(row.versions), row.because, row.source) for row in kernel.known_bad
    )


def words_inside(one: ir.VersionRange) -> str:
    """`rocm v7.0 or later and before v7.3`."""
    limits = [f"{one.since} or later"] * bool(one.since) + [f"before {one.before}"] * bool(one.before)
    return f"{one.name} {' and '.join(limits)}"


def words_outside(one: ir.VersionRange) -> str:
    """`rocm before v7.0, or v7.3 or later`."""
    limits = [f"before {one.since}"] * bool(one.since) + [f"{one.before} or later"] * bool(one.before)
    return f"{one.name} {', or '.join(limits)}"


def asked(method: str, one: ir.VersionRange) -> str:
    """The Python of `facts.within` or `facts.outside` for a range."""
    return f"facts.{method}({one.name!r}, {one.since!r}, {one.before!r})"


def ranges_in(needs: ir.Needs) -> tuple[ir.VersionRange, ...]:
    """Every range of versions that a backend's conditions ask for."""
    return (*needs.versions, *(one for row in needs.known_bad for one in row.versions))


def limits_in(needs: ir.Needs, library: str) -> tuple[str, ...]:
    """Every release of a library, or version of a tool, at which a backend's conditions change."""
    rows = [(row.since, row.before) for row in needs.where if row.library == library]
    rows += [(one.since, one.before) for one in ranges_in(needs) if one.name == library]
    return tuple(limit for row in rows for limit in row if limit is not None)


def needs_problems(needs: Needs, libraries: Collection[str]) -> Iterator[tuple[KeyPath, str]]:
    """What is wrong with the ranges of some needs, each with the key path in them."""
    yield from _problems(("versions",), needs.versions, libraries)


def kernel_problems(kernel: QuantizerModel | GemmModel, libraries: Collection[str]) -> Iterator[tuple[KeyPath, str]]:
    """What is wrong with the ranges of a kernel beside its needs, each with the key path in the kernel."""
    for position, row in enumerate(kernel.known_bad):
        yield from _problems(("known_bad", position, "versions"), row.versions, libraries)
        for place, name in enumerate(row.arch):
            if kernel.needs.arch and name not in kernel.needs.arch:
                path = ("known_bad", position, "arch", place)
                yield path, f"{name} is not among the architectures that the kernel needs"
    if isinstance(kernel, GemmModel) and kernel.rows and kernel.rows.versions:
        yield from _problems(("rows", "versions"), kernel.rows.versions, libraries)
        if kernel.rows.minimum == kernel.rows.multiple == 1:
            yield ("rows", "versions"), "says nothing; write `minimum` or `multiple` beside it"


def _problems(path: KeyPath, versions: Versions | None, libraries: Collection[str]) -> Iterator[tuple[KeyPath, str]]:
    known = {*TOOLCHAIN, *libraries}
    for name, one in (versions or {}).items():
        if name not in known:
            yield (*path, name), unknown(name, known, "tool or library")
        if one.since and one.before and Version(one.before) <= Version(one.since):
            yield (*path, name, "before"), f"{one.before} is not later than since, {one.since}"
