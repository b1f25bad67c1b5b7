"""Findings about releases: limits that none feels, paths and older forms that none needs, rules that differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qscheme.compiler.kernel_text import forms_of
from qscheme.compiler.lint_rules import finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qscheme.compiler import ir
    from qscheme.compiler.folder import File
    from qscheme.compiler.kernel_model import KernelFile
    from qscheme.compiler.lint_rules import Finding
    from qscheme.compiler.lint_subject import Subject
    from qscheme.compiler.source import KeyPath
    from qscheme.compiler.timelines import Releases
    from qscheme.types import Rule


def form_findings(file: File[KernelFile], kernel: ir.Kernel, releases: Releases) -> Iterator[Finding]:
    """What no known release needs of a kernel; nothing where the releases of its library are not known."""
    present = releases.present(kernel)
    if releases.timeline(kernel).history is None or not present:
        return
    timeline, forms, path = releases.timeline(kernel), forms_of(kernel), ("kernels", kernel.name)
    library, chosen = timeline.library, releases.chosen(kernel)
    for word, limit, free in (
        ("since", kernel.since, (forms[0]._replace(since=None), *forms[1:])),
        ("until", kernel.until, (forms[0]._replace(until=None), *forms[1:])),
    ):
        if limit is not None and timeline.chosen(free) == chosen:
            message = f"`{word}: {limit}` changes nothing: the signature fits the same releases without it"
            yield finding("QS116", file, (*path, word), message, "remove it", _span(releases, kernel, chosen[0]))
    left = present
    for row, (since, _) in enumerate(kernel.rules):
        older = left & timeline.before(since) if since is not None else 0
        if since is not None and not older:
            at: KeyPath = (*path, "rules", row, "since")
            message = f"every release with {kernel.name} is {since} or later, so the rules below are never followed"
            yield finding("QS116", file, at, message, "remove them and the `since`", _span(releases, kernel, present))
            break
        left = older
    for row, where in enumerate(file.model.kernels[kernel.name].needs.where):
        for word, limit in (("since", where.since), ("before", where.before)):
            if limit is not None and not present & timeline.before(limit):
                at = (*path, "needs", "where", row, word)
                message = f"every release with {kernel.name} is {limit} or later"
                cure = "remove it" if word == "since" else "remove the row"
                yield finding("QS116", file, at, message, cure, _span(releases, kernel, present))
    for path_, symbols in _paths(kernel, file):
        needed = _first_found(symbols, releases, kernel)
        for position, symbol in enumerate(symbols):
            if symbol not in needed:
                message = f"no release of {library} needs {symbol}: where it is, a path above it is too"
                at = (*path, *path_, position)
                yield finding("QS117", file, at, message, "remove the path", (("paths in use", ", ".join(needed)),))
    for row, mask in enumerate(chosen[1:]):
        if not mask:
            message = f"no release needs this older form of {kernel.name}: a newer one fits wherever it does"
            at = (*path, "older", row)
            yield finding("QS118", file, at, message, "remove it", _span(releases, kernel, present))


def rule_findings(subject: Subject, index: int) -> Iterator[Finding]:
    """Quantizers that find scales or round otherwise than the scheme says."""
    backend, activation = subject.backends[index], subject.scheme.activation
    if activation is None:
        return
    seen: set[str] = set()
    for row, call in enumerate(backend.calls):
        kernel = call.gemm if call.gemm.quantizes else call.quantize
        if kernel is None or kernel.name in seen:
            continue
        seen.add(kernel.name)
        differing = [(since, field) for since, rule in kernel.rules for field in _fields(activation.rule, rule)]
        if differing:
            said = bool(subject.file.model.backends[index].calls)
            word = "gemm" if kernel.quantizes else "quantize"
            path: KeyPath = ("backends", index, *(("calls", row) if said else ()), word)
            words = [
                f"{field} {value}{f' from {since} on' if since else ''} (the scheme: {getattr(activation.rule, field)})"
                for since, (field, value) in differing
            ]
            message = f"{kernel.name} has {' and '.join(words)}"
            witness = tuple((field, value) for _, (field, value) in differing)
            cure = "use a quantizer with the scheme's rule, or say with `allow` why another is right"
            yield finding("QS152", subject.file, path, message, cure, witness)


def _fields(wanted: Rule, found: Rule) -> Iterator[tuple[str, str]]:
    for field in ("scale", "round"):
        if getattr(wanted, field) != getattr(found, field):
            yield field, str(getattr(found, field))


def _span(releases: Releases, kernel: ir.Kernel, mask: int) -> tuple[tuple[str, str], ...]:
    """The first and the last real release of a set, as a witness."""
    timeline = releases.timeline(kernel)
    named = [name for at, name in enumerate(timeline.names) if (mask & timeline.released) >> at & 1]
    return (("releases", "none" if not named else named[0] if len(named) == 1 else f"{named[0]} to {named[-1]}"),)


def _paths(kernel: ir.Kernel, file: File[KernelFile]) -> Iterator[tuple[KeyPath, tuple[str, ...]]]:
    """The lists of symbol paths that a kernel's entry has."""
    if not isinstance(file.model.kernels[kernel.name].symbol, str):
        yield ("symbol",), kernel.symbols
    if kernel.config is not None:
        yield ("config", "from"), kernel.config.symbols
    for row, older in enumerate(kernel.older):
        if older.symbols != kernel.symbols:
            yield ("older", row, "symbol"), older.symbols


def _first_found(symbols: tuple[str, ...], releases: Releases, kernel: ir.Kernel) -> dict[str, None]:
    """The paths that are the first one there in some release."""
    history = releases.timeline(kernel).history
    found: dict[str, None] = {}
    for place in range(len(history.releases)) if history else ():
        offer = history.at(place) if history else None
        first = next((symbol for symbol in symbols if offer and offer.parameters(symbol) is not None), None)
        if first is not None:
            found[first] = None
    return found
