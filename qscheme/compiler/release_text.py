"""Backends against releases, as lines for a terminal, as data for JSON and as a table in Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from qscheme.compiler.conditions import any_of
from qscheme.compiler.ranges import ranges
from qscheme.releases import parsed
from qscheme.types import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qscheme.compiler.source import Place
    from qscheme.compiler.verify import BackendFit, KernelFit, Matrix


class Finding(NamedTuple):
    """What some releases lack for a kernel or a backend, or which older form of it they are called in."""

    name: str
    place: Place
    releases: str
    text: str


_RANGES = ("scheme", "backend", "works with", "with an older form", "later on")


def matrix_lines(matrix: Matrix) -> Iterator[str]:
    """One line for each backend, and then, kernel by kernel, why a release does not do or which form it needs."""
    names = matrix.names
    rows: list[tuple[str, ...]]
    if len(names) == 1:
        rows = [("scheme", "backend", f"with {names[0]}", "not on")]
        rows += [(*_names(fit), fit.cells[0], _late(fit, matrix)) for fit in matrix.backends]
    else:
        rows = [_RANGES, *(_row(fit, matrix) for fit in matrix.backends)]
        yield f"{matrix.library}: {len(names)} releases, {names[0]} to {names[-1]}"
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    before = ""
    for finding in sorted((*_refusals(matrix), *_older_forms(matrix)), key=lambda finding: finding.place):
        if finding.name != before:
            yield ""
            yield f"{finding.name}, {finding.place}"
            before = finding.name
        yield f"  {finding.releases}: {finding.text}"


def matrix_data(matrix: Matrix) -> dict[str, object]:
    """The matrix as JSON: for each backend the cell of every release and its range, and each finding with its place."""
    return {
        "library": matrix.library,
        "releases": list(matrix.names),
        "backends": [
            {
                "scheme": fit.scheme,
                "backend": fit.backend.name,
                "place": str(fit.backend.place),
                "kernels": [_full_name(kernel) for kernel in fit.kernels],
                "range": ranges(matrix.names, [cell != "does not" for cell in fit.cells]),
                "later_on": dict(fit.late),
                "cells": dict(zip(matrix.names, fit.cells, strict=True)),
            }
            for fit in matrix.backends
        ],
        "older_forms": [{**finding._asdict(), "place": str(finding.place)} for finding in _older_forms(matrix)],
        "refusals": [{**finding._asdict(), "place": str(finding.place)} for finding in _refusals(matrix)],
    }


def releases_section(matrix: Matrix) -> Iterator[str]:
    """A section in Markdown: the releases of a library that each backend works with."""
    names = matrix.names
    yield f"## Releases of {matrix.library}"
    yield ""
    yield f"Read from the source of {len(names)} releases, {names[0]} to {names[-1]}. An older form is another way"
    yield "to make the same call, chosen when the kernel is loaded. Some architectures need a later release."
    yield ""
    for row in (_RANGES, ("---",) * len(_RANGES), *(_row(fit, matrix) for fit in matrix.backends)):
        yield f"| {' | '.join(row)} |".replace("|  |", "| |").replace("|  |", "| |")


def _row(fit: BackendFit, matrix: Matrix) -> tuple[str, ...]:
    return (*_names(fit), _range(fit, matrix, "works"), _range(fit, matrix, "older form"), _late(fit, matrix))


def _names(fit: BackendFit) -> tuple[str, str]:
    return fit.scheme, fit.backend.name


def _range(fit: BackendFit, matrix: Matrix, cell: str) -> str:
    chosen = [found == cell for found in fit.cells]
    return ranges(matrix.names, chosen) if any(chosen) or cell == "works" else ""


def _late(fit: BackendFit, matrix: Matrix) -> str:
    """The architectures that need a later release than the first that works."""
    works = [edition for edition, cell in zip(matrix.editions, fit.cells, strict=True) if cell != "does not"]
    first = parsed(works[0].version) if works else None
    shown = [f"{arch}: {since}" for arch, since in fit.late if first and (limit := parsed(since)) and first < limit]
    return ", ".join(shown)


def _older_forms(matrix: Matrix) -> Iterator[Finding]:
    for kernel in matrix.kernels:
        for index, form in enumerate(kernel.forms[1:], start=1):
            chosen = [fit == index for fit in kernel.fits]
            if any(chosen):
                words = [f"{form.positional} operands"] * bool(form.positional) + list(form.keywords)
                text = f"older form {index}, {form.symbols[0]} called with {', '.join(words)}"
                yield Finding(_full_name(kernel), kernel.kernel.place, ranges(matrix.names, chosen), text)


def _refusals(matrix: Matrix) -> Iterator[Finding]:
    """Each thing that a kernel needs, with what the newest release without it has; then each late backend."""
    for kernel in matrix.kernels:
        last: dict[str, Reason] = {fit.needs: fit for fit in kernel.fits if isinstance(fit, Reason)}
        for needs, reason in last.items():
            lacking = [isinstance(fit, Reason) and fit.needs == needs for fit in kernel.fits]
            yield Finding(_full_name(kernel), kernel.kernel.place, ranges(matrix.names, lacking), reason.text)
    for fit in matrix.backends:
        late = [
            cell == "does not" and not any(isinstance(kernel.fits[place], Reason) for kernel in fit.kernels)
            for place, cell in enumerate(fit.cells)
        ]
        if any(late):
            limits = [f"{since} or later on {arch}" for arch, since in fit.since]
            text = f"needs {matrix.library} {any_of(tuple(limits))}"
            yield Finding(f"{fit.scheme} {fit.backend.name}", fit.backend.place, ranges(matrix.names, late), text)


def _full_name(fit: KernelFit) -> str:
    return f"{fit.kernel.library}.{fit.kernel.name}"
