"""What the YAML says about releases of a library, and whether any release bears it out."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

from qscheme.compiler.kernel_text import forms_of, optional_keywords
from qscheme.compiler.ranges import ranges
from qscheme.compiler.source import Problem
from qscheme.compiler.support import support_text
from qscheme.compiler.verify import against
from qscheme.machine import Library
from qscheme.releases import parsed
from qscheme.scanning import Package
from qscheme.signatures import CONFIG_OPERANDS, chosen_form, first_found, fits_signature, takes
from qscheme.types import Form, Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from qscheme.bindings import Parameters
    from qscheme.compiler import ir
    from qscheme.compiler.verify import BackendFit, Edition, KernelFit, Matrix

OWN = "qscheme"
"""The library whose source is at hand."""


def check(catalogue: ir.Catalogue, folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What is wrong and what is worth knowing: every library with a history against all its releases, qscheme's own
    functions against their source, and `generated/support.md` beside the folder of schemes against the catalogue."""
    matrices = [against(catalogue, history) for history in catalogue.histories]
    problems = [*(problem for matrix in matrices for problem in problems_of(matrix)), *_own_problems(catalogue)]
    notes = [note for matrix in matrices for note in notes_of(matrix)]
    checked = {history.library for history in catalogue.histories} | {OWN}
    notes += [
        f"{library}: no history of releases; its calls are checked when a layer is bound"
        for library in dict.fromkeys(kernel.package for kernel in catalogue.kernels)
        if library not in checked
    ]
    file = folder.absolute().parent / "generated" / "support.md"
    stale = file.is_file() and file.read_text(encoding="utf-8") != support_text(catalogue)
    words = [f"{file.parent.name}/{file.name} is stale; run `qscheme generate`"] if stale else []
    return (*map(str, sorted(set(problems))), *words), tuple(notes)


def problems_of(matrix: Matrix) -> tuple[Problem, ...]:
    """Everything that the YAML says and no release of the matrix bears out, sorted by place.

    A symbol, keyword or constant that no release has; a form that cannot be called in any, that its own `since` and
    `until` exclude from all, or that none needs; a rule that none follows; a position where a release takes another
    operand; a backend, or one of its architectures, that is left without a release.
    """
    words = _words(matrix.kernels)
    found: list[Problem] = []
    for kernel in matrix.kernels:
        messages = [*_form_problems(kernel, matrix), *_rule_problems(kernel, matrix)]
        messages += _position_problems(kernel, matrix.editions, words)
        found += [Problem(kernel.kernel.place, message) for message in messages]
    for backend in matrix.backends:
        found += [Problem(backend.backend.place, message) for message in _backend_problems(backend, matrix)]
    return tuple(sorted({*found, *_before_problems(matrix)}))


def notes_of(matrix: Matrix) -> tuple[str, ...]:
    """What is worth knowing and no mistake: optional keywords, defaults relied on, names at positions, what ended."""
    words = _words(matrix.kernels)
    notes = [note for kernel in matrix.kernels for note in _kernel_notes(kernel, matrix, words)]
    notes += [
        f"{fit.scheme} {fit.backend.name} does not work with the newest release, {matrix.names[-1]}"
        for fit in matrix.backends
        if fit.cells[-1] == "does not" and set(fit.cells) != {"does not"}
    ]
    return tuple(dict.fromkeys(notes))


def _own_problems(catalogue: ir.Catalogue) -> Iterator[Problem]:
    offer = Package(Path(__file__).resolve().parent.parent, name=OWN)
    for kernel in catalogue.kernels:
        if kernel.package == OWN:
            fit = chosen_form(forms_of(kernel), Library(OWN, None), offer)
            if isinstance(fit, Reason):
                yield Problem(kernel.place, f"{kernel.name}: {fit.text}")
                continue
            for keyword in optional_keywords(kernel):
                if not takes(forms_of(kernel)[fit], keyword, offer):
                    yield Problem(kernel.place, f"{kernel.name}: {kernel.symbols[0]} takes no keyword {keyword!r}")


def _form_problems(fit: KernelFit, matrix: Matrix) -> Iterator[str]:
    name, library, editions = fit.kernel.name, matrix.library, matrix.editions
    whole = True
    for index, form in enumerate(fit.forms):
        lookup = Form(form.config, CONFIG_OPERANDS, ())
        missing = [message for part in (form, lookup) for message in _symbol_problems(part.symbols, matrix)]
        missing += _keyword_problems(form, () if index else optional_keywords(fit.kernel), matrix)
        yield from (f"{name}: {message}" for message in missing)
        signatures = [fits_signature(form, edition.offer) for edition in editions]
        which = f"the older form {index}" if index else "the newest form"
        if missing:
            whole = False
        elif not any(signatures):
            whole = False
            last = next(edition for edition in reversed(editions) if first_found(form.symbols, edition.offer))
            reason = chosen_form([form._replace(since=None, until=None)], Library(library, last.version), last.offer)
            assert isinstance(reason, Reason)
            yield f"{name}: {which} can be called in no release of {library}: {reason.text}"
        elif not any(ok and _within(form, edition) for ok, edition in zip(signatures, editions, strict=True)):
            whole = False
            stated = [f"since {form.since}"] * bool(form.since) + [f"until {form.until}"] * bool(form.until)
            yield (
                f"{name}: {' and '.join(stated)} leaves no release; "
                f"its signature fits {ranges(matrix.names, signatures)}"
            )
        elif whole and index and index not in fit.fits:
            yield f"{name}: {which} is needed by no release: a newer one fits wherever it does"


def _symbol_problems(symbols: tuple[str, ...], matrix: Matrix) -> Iterator[str]:
    """Paths that lead nowhere in every release, and paths that another one always precedes."""
    reached: set[str] = set()
    there: set[str] = set()
    for edition in matrix.editions:
        present = [symbol for symbol in symbols if edition.offer.parameters(symbol) is not None]
        there.update(present)
        reached.update(present[:1])
    for symbol in symbols:
        if symbol not in there:
            close = difflib.get_close_matches(symbol, [*matrix.history.symbols, *matrix.history.aliases], n=1)
            cure = f", did you mean {close[0]!r}?" if close else ""
            yield f"no release of {matrix.library} has {symbol}{cure}"
        elif symbol not in reached:
            yield f"{symbol} is never used: wherever it is, a path above it is too"


def _keyword_problems(form: Form, optional: tuple[str, ...], matrix: Matrix) -> Iterator[str]:
    """Keywords that the function has in no release."""
    known: dict[str, None] = {}
    for edition in matrix.editions:
        parameters = first_found(form.symbols, edition.offer) or ()
        known |= dict.fromkeys(_names(parameters))
        if any(word.startswith("**") for word in parameters):
            return
    for keyword in (*form.keywords, *optional) if known else ():
        if keyword not in known:
            close = difflib.get_close_matches(keyword, known, n=1)
            cure = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
            yield f"no release of {form.symbols[0]} takes the keyword {keyword!r}, {cure}"


def _rule_problems(fit: KernelFit, matrix: Matrix) -> Iterator[str]:
    """Rules that no release with this quantizer follows."""
    open_editions = [
        edition for edition, form in zip(matrix.editions, fit.fits, strict=True) if not isinstance(form, Reason)
    ]
    for since, rule in fit.kernel.rules if open_editions else ():
        followed = [edition for edition in open_editions if since is None or not _older(edition.version, since)]
        if not followed:
            yield f"{fit.kernel.name}: no release with it follows the rule {rule.scale} since {since}"
        open_editions = [edition for edition in open_editions if edition not in followed]


def _position_problems(fit: KernelFit, editions: Sequence[Edition], words: dict[str, frozenset[str]]) -> Iterator[str]:
    """Positions at which a release takes another operand, by the names that operands have elsewhere in the file."""
    for role, name, edition in _positions(fit, editions):
        owners = _owners(name, words)
        if owners and role not in owners:
            yield (
                f"{fit.kernel.name}: position of {role}: {edition.name} calls it {name!r}, "
                f"which is {' or '.join(sorted(owners))} elsewhere"
            )


def _backend_problems(fit: BackendFit, matrix: Matrix) -> Iterator[str]:
    every = [all(isinstance(form, Reason) for form in kernel.fits) for kernel in fit.kernels]
    works = [cell != "does not" for cell in fit.cells]
    name = fit.backend.name
    if not any(works) and not any(every):
        parts = [
            f"{kernel.kernel.name} works with "
            f"{ranges(matrix.names, [not isinstance(form, Reason) for form in kernel.fits])}"
            for kernel in fit.kernels
        ]
        yield f"{name}: no release of {matrix.library} has all of its kernels: {'; '.join(parts)}"
    for where in fit.backend.needs.where if any(works) else ():
        if where.library == matrix.library and where.since is not None:
            left = [ok and not _older(e.version, where.since) for ok, e in zip(works, matrix.editions, strict=True)]
            if not any(left):
                on = ", ".join(where.arch or where.vendor)
                found = ranges(matrix.names, works)
                yield f"{name}: since {where.since} on {on} leaves no release; it works with {found}"


def _before_problems(matrix: Matrix) -> Iterator[Problem]:
    """Conditions on releases before one, where every backend that has them works with later releases alone."""
    rows: dict[ir.WhereNeed, list[BackendFit]] = {}
    for fit in matrix.backends:
        for where in fit.backend.needs.where:
            if where.library == matrix.library and where.before is not None:
                rows.setdefault(where, []).append(fit)
    for where, having in rows.items():
        cells = [cell for fit in having for cell in zip(fit.cells, matrix.editions, strict=True)]
        if not any(cell != "does not" and _older(edition.version, where.before) for cell, edition in cells):
            message = f"before {where.before} on {', '.join(where.arch or where.vendor)} holds for no release"
            yield Problem(having[0].backend.place, f"{having[0].backend.name}: {message}")


def _kernel_notes(fit: KernelFit, matrix: Matrix, words: dict[str, frozenset[str]]) -> Iterator[str]:
    called = [
        (edition, fit.forms[form])
        for edition, form in zip(matrix.editions, fit.fits, strict=True)
        if not isinstance(form, Reason)
    ]
    name = f"{fit.kernel.library}.{fit.kernel.name}"
    if fit.kernel.rotate is not None:
        taking = {edition.name for edition, form in called if takes(form, fit.kernel.rotate, edition.offer)}
        found = ranges(matrix.names, [edition in taking for edition in matrix.names])
        offered = f"is offered by {found}" if taking else "is offered by no release yet"
        yield f"{name}: the optional keyword {fit.kernel.rotate} {offered}"
    defaults: dict[str, dict[str, set[str]]] = {}
    for edition, form in called:
        for word in (first_found(form.symbols, edition.offer) or ())[form.positional :]:
            parameter, has_default, default = word.partition("=")
            if has_default and parameter not in form.keywords:
                defaults.setdefault(parameter, {}).setdefault(default, set()).add(edition.name)
    for parameter, values in defaults.items():
        if len(values) > 1:
            shown = [
                f"{value} in {ranges(matrix.names, [e in at for e in matrix.names])}" for value, at in values.items()
            ]
            yield f"{name} relies on the default of {parameter}, which changed: {'; '.join(shown)}"
    for role, parameter, _ in _positions(fit, [edition for edition, _ in called]):
        if not _owners(parameter, words):
            yield f"{name}: position of {role}: called {parameter!r}, a name that no operand has elsewhere"


def _positions(fit: KernelFit, editions: Iterable[Edition]) -> Iterator[tuple[str, str, Edition]]:
    """(role, the parameter's name, the first edition with that name) for each operand that is passed by position."""
    uses = [use for use in fit.kernel.operands if use.position is not None]
    seen: set[tuple[str, str]] = set()
    for edition in editions:
        for form in fit.forms:
            names = _names(first_found(form.symbols, edition.offer) or ())
            for use in uses:
                if use.position is not None and use.position < len(names):
                    key = (use.role, names[use.position])
                    if key not in seen and fits_signature(form, edition.offer):
                        seen.add(key)
                        yield (*key, edition)


def _words(kernels: Iterable[KernelFit]) -> dict[str, frozenset[str]]:
    """The parameter names that are known of operands, and the roles that have them."""
    found: dict[str, set[str]] = {}
    for fit in kernels:
        for use in fit.kernel.operands:
            for word in (use.role, use.keyword):
                if word:
                    found.setdefault(word, set()).add(use.role)
        for older in fit.kernel.older:
            if older.out:
                found.setdefault(older.out[0], set()).add("output")
        for word, _ in fit.kernel.constants:
            found.setdefault(word, set()).add("constant")
        if fit.kernel.config:
            found.setdefault(fit.kernel.config.keyword, set()).add("constant")
    return {word: frozenset(roles) for word, roles in found.items()}


def _owners(name: str, words: dict[str, frozenset[str]]) -> frozenset[str]:
    """The roles of the longest known word that a parameter's name is or begins with, as `x_fp4` does with `x`."""
    known = [word for word in words if name == word or name.startswith(f"{word}_")]
    return words[max(known, key=len)] if known else frozenset()


def _names(parameters: Parameters) -> list[str]:
    return [word.partition("=")[0] for word in parameters if word[0] not in "*/" and not word.startswith("-> ")]


def _within(form: Form, edition: Edition) -> bool:
    version, until = parsed(edition.version), parsed(form.until)
    return not _older(edition.version, form.since) and not (version and until and version > until)


def _older(version: str | None, limit: str | None) -> bool:
    known, first = parsed(version), parsed(limit)
    return known is not None and first is not None and known < first
