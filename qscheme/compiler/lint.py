"""Static analysis of a folder that compiles: findings, each with an id, a place, a witness and a cure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from qscheme.compiler.lint_calls import call_findings
from qscheme.compiler.lint_choices import choice_findings
from qscheme.compiler.lint_conditions import backend_findings, kernel_findings, twice
from qscheme.compiler.lint_forms import form_findings, rule_findings
from qscheme.compiler.lint_names import name_findings, naming_words, scheme_findings, twin_findings, word_findings
from qscheme.compiler.lint_rules import FIXED, RULES, Finding, finding
from qscheme.compiler.lint_subject import Subject, stated
from qscheme.compiler.lint_unused import unused_findings
from qscheme.compiler.mistakes import unknown
from qscheme.compiler.space import Side

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qscheme.compiler import ir
    from qscheme.compiler.folder import File, Folder
    from qscheme.compiler.kernel_model import KernelFile
    from qscheme.compiler.lint_rules import AnyFile
    from qscheme.compiler.model import AllowModel
    from qscheme.compiler.source import KeyPath, Problem


@dataclass(frozen=True, slots=True)
class _Allow:
    """A finding that an entry of a file allows. entry: the keys that lead to it; path: those to the `allow` itself."""

    file: AnyFile
    entry: KeyPath
    path: KeyPath
    says: AllowModel

    def suppresses(self, found: Finding) -> bool:
        inside = found.place.file == self.file.document.file and found.path[: len(self.entry)] == self.entry
        return inside and found.id == self.says.id and found.id not in FIXED


def lint(folder: Folder, catalogue: ir.Catalogue) -> tuple[Finding, ...]:
    """Every finding in the files of a folder, sorted by place; shipped files that it borrows are not judged."""
    allows = list(_allows(folder))
    used: set[tuple[str, KeyPath]] = set()
    kept: list[Finding] = []
    for found in _findings(folder, catalogue):
        covering = [allow for allow in allows if allow.suppresses(found)]
        used.update((allow.file.document.file, allow.path) for allow in covering)
        if not covering:
            kept.append(found)
    for allow in allows:
        path, word = (*allow.path, "id"), allow.says.id
        if word not in RULES:
            kept.append(finding("QS190", allow.file, path, unknown(word, RULES, "id"), "see `qscheme lint --explain`"))
        elif word in FIXED:
            kept.append(finding("QS190", allow.file, path, f"{word} cannot be allowed", "mend what it names"))
        elif (allow.file.document.file, allow.path) not in used:
            message = f"there is no {word} ({RULES[word].title}) here"
            kept.append(finding("QS191", allow.file, path, message, "remove the `allow`"))
        if allow.says.because is None:
            kept.append(
                finding("QS192", allow.file, allow.path, f"{word} is allowed without a reason", "write `because`")
            )
    # What kernels have of each other is found for each of them, and told once.
    return tuple({str(found): found for found in sorted(kept, reverse=True)}.values())[::-1]


def refusal(problem: Problem) -> Finding:
    """A mistake that the compiler found, as a finding."""
    message, _, cure = problem.message.partition("; ")
    return Finding(problem.place, "QS100", message, (), cure, ())


def _findings(folder: Folder, catalogue: ir.Catalogue) -> Iterator[Finding]:
    side = Side.of(catalogue)
    kernels = {(kernel.library, kernel.name): kernel for kernel in catalogue.kernels}
    needs = {(f.stem, name): kernel.needs for f in folder.kernels for name, kernel in f.model.kernels.items()}
    entries = {key: (said, stated(said, kernels[key])) for key, said in needs.items()}
    words = naming_words(catalogue)
    subjects = [
        Subject(file, scheme, side, entries) for file, scheme in zip(folder.schemes, catalogue.schemes, strict=True)
    ]
    for subject in subjects:
        yield from choice_findings(subject)
        yield from name_findings(subject, words)
        for index in range(len(subject.backends)):
            yield from backend_findings(subject, index)
            yield from rule_findings(subject, index)
            yield from call_findings(subject, index)
    shared: list[Iterator[Finding]] = [
        unused_findings(folder, catalogue, subjects),
        twin_findings(folder, catalogue),
        scheme_findings(folder, catalogue),
    ]
    for kernel_file in _own_kernels(folder):
        for name, model in kernel_file.model.kernels.items():
            kernel = kernels[kernel_file.stem, name]
            shared.append(kernel_findings(kernel_file, kernel, model.needs, side))
            shared.append(form_findings(kernel_file, kernel, side.releases))
    for any_file in _files(folder):
        if not _borrowed(any_file):
            shared += [word_findings(any_file), twice(any_file)]
    for group in shared:
        yield from (found for found in group if not found.place.file.startswith(BORROWED))


BORROWED = "shipped/"
"""How the places of files begin that a folder borrows from the shipped one."""


def _borrowed(file: AnyFile) -> bool:
    return file.document.file.startswith(BORROWED)


def _own_kernels(folder: Folder) -> list[File[KernelFile]]:
    return [file for file in folder.kernels if not _borrowed(file)]


def _files(folder: Folder) -> Iterator[AnyFile]:
    yield from folder.schemes
    yield from folder.kernels
    if folder.devices:
        yield folder.devices
    if folder.switches:
        yield folder.switches


def _allows(folder: Folder) -> Iterator[_Allow]:
    for file in _files(folder):
        if not _borrowed(file):
            for row, says in enumerate(file.model.allow):
                yield _Allow(file, (), ("allow", row), says)
    for scheme in folder.schemes:
        for at, backend in enumerate(scheme.model.backends):
            for row, says in enumerate(backend.allow):
                yield _Allow(scheme, ("backends", at), ("backends", at, "allow", row), says)
    for kernels in _own_kernels(folder):
        for name, kernel in kernels.model.kernels.items():
            for row, says in enumerate(kernel.allow):
                yield _Allow(kernels, ("kernels", name), ("kernels", name, "allow", row), says)
