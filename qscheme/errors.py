"""Every error that qscheme raises on purpose."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from qscheme.decision import Decision


class QschemeError(Exception):
    """A mistake that qscheme found and can explain; the text says what, where and how to mend it."""


class SchemeFileError(QschemeError):
    """One or more mistakes in YAML files, each as `file:line:col: message`, sorted by place."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class UnknownScheme(QschemeError):
    """A layer names a scheme that the tables do not have."""

    def __init__(self, scheme: str, known: Iterable[str]) -> None:
        self.scheme = scheme
        super().__init__(f"unknown scheme {scheme!r}{suggestion(scheme, known)}")


class UnknownBackend(QschemeError):
    """A caller names a backend that the layer's scheme does not have."""

    def __init__(self, backend: str, scheme: str, known: Iterable[str]) -> None:
        self.backend = backend
        super().__init__(f"scheme {scheme} has no backend {backend!r}{suggestion(backend, known)}")


class UnknownFact(QschemeError):
    """A fact was given under a name, or with a value, that no table knows."""


class UnknownSwitch(UnknownFact):
    """A switch was set under a name that `switches.yaml` does not have, or to a word that is neither on nor off."""


class InvalidLayer(QschemeError):
    """An operand is not what the scheme says; names the layer, the operand, what is needed and what was found."""

    def __init__(self, layer: str, operand: str, needs: str, found: str) -> None:
        self.layer, self.operand, self.needs, self.found = layer, operand, needs, found
        super().__init__(f"layer {layer or '(unnamed)'}: {operand}: needs {needs}, found {found}")


class InvalidInput(QschemeError):
    """An activation that the bound function cannot take; names what is needed and what was found."""

    def __init__(self, layer: str, needs: str, found: str) -> None:
        self.layer, self.needs, self.found = layer, needs, found
        super().__init__(f"layer {layer or '(unnamed)'}: x: needs {needs}, found {found}")


class Unsupported(QschemeError):
    """No backend of the scheme can run the layer; carries the decision with every reason."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        super().__init__(decision.text())


class BindFailed(QschemeError):
    """A chosen backend could not be bound, most often because a symbol could not be imported; never a fallback."""

    def __init__(self, layer: str, backend: str, cause: str) -> None:
        self.layer, self.backend = layer, backend
        super().__init__(
            f"layer {layer or '(unnamed)'}: backend {backend} was chosen but could not be bound: {cause}; "
            f"mend the installation, or pass disabled=({backend!r},) to choose without it"
        )


class SelfTestFailed(QschemeError):
    """A bound function differs from the reference by more than rounding; names the number of rows and the error."""

    def __init__(self, layer: str, backend: str, rows: int, error: float, limit: float) -> None:
        self.layer, self.backend, self.rows, self.error = layer, backend, rows, error
        super().__init__(
            f"layer {layer or '(unnamed)'}: the self-test of backend {backend} needs a relative error of at most "
            f"{limit:.2g} to the reference, found {error:.3g} for M = {rows}; "
            f"pass disabled=({backend!r},) to choose without it, and report it as a known-bad kernel"
        )


class Disagreement(QschemeError):
    """Ranks of a group have different decisions; names each layer, what differs and on which ranks."""

    def __init__(self, layers: Mapping[str, Iterable[str]]) -> None:
        self.layers = {layer: tuple(lines) for layer, lines in layers.items()}
        lines = [f"layer {layer or '(unnamed)'}: {line}" for layer, found in self.layers.items() for line in found]
        super().__init__("\n".join(("the ranks of the group do not agree:", *lines)))


class StaleTables(QschemeError):
    """Generated tables are missing, or were generated for another runtime interface."""


class OutputError(QschemeError):
    """Generated files cannot be compared with the disk or written to it; names the path and the cause."""


def suggestion(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` if a known word is close, else the list of known words."""
    words = sorted(known)
    close = difflib.get_close_matches(str(word), words, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(words)}" if words else ""
