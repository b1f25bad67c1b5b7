"""Findings about words: names that become one, names that say another kernel, words that other readers mistake."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from qscheme.compiler.lint_rules import finding
from qscheme.compiler.parameters import class_name
from qscheme.compiler.scalars import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from qscheme.compiler import ir
    from qscheme.compiler.folder import Folder
    from qscheme.compiler.lint_rules import AnyFile, Finding
    from qscheme.compiler.lint_subject import Subject
    from qscheme.compiler.source import KeyPath

_YAML_1_1 = (
    ("a boolean", re.compile(r"yes|no|on|off|true|false|Yes|No|On|Off|True|False|YES|NO|ON|OFF|TRUE|FALSE")),
    ("nothing", re.compile(r"~|null|Null|NULL|")),
    ("a whole number", re.compile(r"[-+]?(0b[01_]+|0[0-7_]*|[1-9][0-9_]*|0x[0-9a-fA-F_]+)")),
    ("a number in base 60", re.compile(r"[-+]?[1-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")),
    ("a decimal", re.compile(r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+][0-9]+)?")),
    ("a decimal", re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")),
    ("a date", re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ].*)?")),
    ("an operator", re.compile(r"=|<<")),
)  # fmt: skip
"""What YAML 1.1 takes unquoted text for, as PyYAML 6 resolves it: y and n are text, an exponent has a sign."""

_VERSION = re.compile(r"[0-9]+\.[0-9]*[1-9]0+")


def word_findings(file: AnyFile) -> Iterator[Finding]:
    """Unquoted words that a YAML 1.1 reader takes for something else, and decimals that look like versions."""
    document = file.document
    for path, is_key in document.unquoted:
        text = str(path[-1]) if is_key else document.texts[path]
        ours, theirs = _kind(text), yaml_1_1(text)
        witness = (("text", text), ("here", "text" if is_key else ours), ("YAML 1.1", theirs))
        if theirs != ours:
            what = "key" if is_key else "word"
            cure = f"quote it: '{text}'" if ours == "text" else "write a dot and the sign of the exponent, as in 1.0e+3"
            message = f"the {what} {text} is {theirs} for readers of YAML 1.1"
            yield finding("QS140", file, path, message, cure, witness, key=is_key)
        elif not is_key and ours == "a decimal" and _VERSION.fullmatch(text):
            message, cure = f"{text} is the number {plain(text)}", f"quote it if it is a version: '{text}'"
            yield finding("QS140", file, path, message, cure, witness)


@lru_cache(maxsize=4096)
def yaml_1_1(text: str) -> str:
    """What YAML 1.1 takes an unquoted scalar for."""
    return next((kind for kind, pattern in _YAML_1_1 if pattern.fullmatch(text)), "text")


@lru_cache(maxsize=4096)
def _kind(text: str) -> str:
    match plain(text):
        case bool():
            return "a boolean"
        case None:
            return "nothing"
        case int():
            return "a whole number"
        case float():
            return "a decimal"
        case _:
            return "text"


def twin_findings(folder: Folder, catalogue: ir.Catalogue) -> Iterator[Finding]:
    """Names of one kind that differ in underscores alone, and variables that mean two things."""
    named: dict[str, list[tuple[AnyFile, KeyPath, str]]] = {
        "scheme": [(file, ("scheme",), file.model.scheme) for file in folder.schemes],
        "switch": [(f, ("switches", name), name) for f in (folder.switches,) if f for name in f.model.switches],
        "architecture": [(f, ("devices", name), name) for f in (folder.devices,) if f for name in f.model.devices],
        "tuned table": [(f, ("tuned_tables", name), name) for f in folder.kernels for name in f.model.tuned_tables],
    }
    for what, names in named.items():
        yield from _twins(what, names)
    for file, scheme in zip(folder.schemes, catalogue.schemes, strict=True):
        backends = [(file, ("backends", at, "name"), backend.name) for at, backend in enumerate(scheme.backends)]
        yield from _twins("backend", backends)
        yield from _twin_kernels(file, scheme)
    owners: dict[str, str] = {}
    parts: dict[str, tuple[str, ...]] = {}
    for switch in folder.switches.model.switches.items() if folder.switches else ():
        owners |= dict.fromkeys(switch[1].variables, f"the switch {switch[0]}")
    for kernels in folder.kernels:
        for name, table in kernels.model.tuned_tables.items():
            owner = owners.setdefault(table.variable, f"the tuned table {name}") if table.variable else None
            # Two tables may be rows of the same files, which the variable replaces together.
            same = table.rows and parts.setdefault(str(table.variable), table.files) == table.files
            if owner is not None and owner != f"the tuned table {name}" and not same:
                path = ("tuned_tables", name, "variable")
                message = f"{table.variable} sets {owner} too"
                witness = (("variable", str(table.variable)),)
                yield finding("QS131", kernels, path, message, "name a variable of its own", witness)


def _twins(what: str, names: Iterable[tuple[AnyFile, KeyPath, str]]) -> Iterator[Finding]:
    first: dict[str, str] = {}
    for file, path, name in names:
        other = first.setdefault(class_name(name).lower(), name)
        if other != name:
            message = f"the {what} {name} differs from {other} in underscores alone"
            witness = (("as a class", class_name(name)),)
            yield finding("QS130", file, path, message, "rename one", witness, key=len(path) == 2)


def _twin_kernels(file: AnyFile, scheme: ir.Scheme) -> Iterator[Finding]:
    """Kernels of two libraries that have one class name in the scheme's generated module."""
    first: dict[str, ir.Kernel] = {}
    for at, backend in enumerate(scheme.backends):
        for kernel in backend.kernels:
            other = first.setdefault(class_name(kernel.name), kernel)
            if other.library != kernel.library:
                twins = f"{kernel.library}.{kernel.name} and {other.library}.{other.name}"
                message = f"{twins} are one class in generated code"
                witness = (("class", class_name(kernel.name)),)
                yield finding("QS130", file, ("backends", at, "name"), message, "rename one kernel", witness)


def scheme_findings(folder: Folder, catalogue: ir.Catalogue) -> Iterator[Finding]:
    """Schemes that have the operands of an earlier one."""
    first: dict[object, str] = {}
    for file, scheme in zip(folder.schemes, catalogue.schemes, strict=True):
        other = first.setdefault((scheme.activation, scheme.weight, scheme.stored_scales), scheme.name)
        if other != scheme.name:
            message = f"{scheme.name} has the activation, weight and stored scales of {other}"
            cure = "merge them, or state what differs"
            yield finding("QS150", file, ("scheme",), message, cure, (("scheme", other),))


def name_findings(subject: Subject, words: dict[str, frozenset[str]]) -> Iterator[Finding]:
    """Backends whose name says another kernel. words: those that backends of each library are named by."""
    for at, backend in enumerate(subject.backends):
        library = backend.calls[0].gemm.library
        said = _words(backend.name)[_length(library) :]
        gemms = [_kernel_words(call.gemm) for call in backend.calls]
        has = {word for kernel in backend.kernels for word in _kernel_words(kernel)}
        wrong = [word for word in said if word not in has]
        common = [word for word in sorted(words.get(library, ())) if all(word in gemm for gemm in gemms)]
        lacking = [word for word in common if word not in said]
        if wrong and lacking:
            kernels = ", ".join(dict.fromkeys(call.gemm.name for call in backend.calls))
            message = f"{backend.name} runs {kernels}: its name says {wrong[0]} and not {lacking[0]}"
            cure = f"rename it, to {library}_{lacking[0]} say"
            yield finding("QS151", subject.file, ("backends", at, "name"), message, cure, (("gemm", kernels),))


def naming_words(catalogue: ir.Catalogue) -> dict[str, frozenset[str]]:
    """The words by which backends of each library are named."""
    found: dict[str, set[str]] = {}
    for scheme in catalogue.schemes:
        for backend in scheme.backends:
            library = backend.calls[0].gemm.library
            found.setdefault(library, set()).update(_words(backend.name)[_length(library) :])
    return {library: frozenset(words) for library, words in found.items()}


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[_.]", name.lower()) if word]


def _length(library: str) -> int:
    return len(_words(library))


def _kernel_words(kernel: ir.Kernel) -> set[str]:
    return {word for name in (kernel.name, *kernel.symbols) for word in _words(name)}
