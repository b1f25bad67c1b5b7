"""One scheme as lint sees it: as its file says it, as it is resolved, and where each backend is accepted and chosen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, cast

from qscheme.compiler import ir, model
from qscheme.compiler.needs import merged_needs
from qscheme.compiler.points import words
from qscheme.compiler.space import Held, Space, first
from qscheme.compiler.words import Filled

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from qscheme.compiler.cubes import Cube
    from qscheme.compiler.folder import File
    from qscheme.compiler.source import KeyPath
    from qscheme.compiler.space import Side

_ROWS = ("switches", "tuned", "where")
"""Needs that are lists of conditions; other lists are words of which one is enough."""


def stated(needs: model.Needs, kernel: ir.Kernel | None = None) -> ir.Needs:
    """What a backend, or a kernel, needs by itself."""
    own = model.BackendModel.model_construct(name="", needs=needs if kernel is None else model.NOTHING_NEEDED)
    return merged_needs(own, [] if kernel is None else [(kernel, needs)], ())


def alone(needs: model.Needs, kernel: ir.Kernel) -> ir.Needs:
    """One condition of a kernel, without what is known to be wrong with it."""
    return replace(stated(needs, kernel), known_bad=())


def parts(needs: model.Needs) -> Iterator[tuple[KeyPath, model.Needs]]:
    """Each condition of some needs by itself, with its keys; hardware first."""
    for word in type(needs).model_fields:
        value = cast("object", getattr(needs, word))
        if word in _ROWS:
            for row, item in enumerate(cast("tuple[object, ...]", value)):
                yield (word, row), _only(word, (item,))
        elif word == "versions" and needs.versions is not None:
            for name, range_ in needs.versions.items():
                for keys, limit in _each(range_):
                    yield (word, name, *keys), _only(word, {name: limit})
        elif isinstance(value, Filled):
            yield from (((word, *keys), _only(word, part)) for keys, part in _each(value))
        elif value:
            yield (word,), _only(word, value)


def _each(filled: Filled) -> Iterator[tuple[KeyPath, Filled]]:
    """Each thing that a mapping says by itself, with its key."""
    inner = {key: found for key, found in filled if found is not None}
    for key in inner:
        yield (key,), filled.model_copy(update={**dict.fromkeys(inner), key: inner[key]})


def _only(word: str, value: object) -> model.Needs:
    return model.NOTHING_NEEDED.model_copy(update={word: value})


@dataclass(frozen=True)
class Subject:
    """One scheme. entries: what kernels need, as their file says it and as it is resolved, by library and name."""

    file: File[model.SchemeFile]
    scheme: ir.Scheme
    side: Side
    entries: Mapping[tuple[str, str], tuple[model.Needs, ir.Needs]]

    @property
    def backends(self) -> tuple[ir.Backend, ...]:
        return self.scheme.backends

    def own(self, index: int) -> model.Needs:
        """The needs that a backend itself states."""
        return self.file.model.backends[index].needs

    def kernels(self, index: int) -> list[tuple[ir.Kernel, model.Needs]]:
        """The kernels of a backend with what they need."""
        return [(kernel, self.entries[kernel.library, kernel.name][0]) for kernel in self.backends[index].kernels]

    @cached_property
    def claimed(self) -> ir.Needs | None:
        """The layers that the scheme claims to serve, as needs; None where it claims every layer."""
        claims = self.file.model.claims
        if claims is None:
            return None
        multiple, least = claims.multiple_of or model.MultipleOf.model_construct(), claims.minimum
        least = least or model.Minimum.model_construct()
        return ir.Needs(
            claims.arch or None, n=multiple.n, k=multiple.k, min_n=least.n, min_k=least.k, output=claims.output
        )

    @cached_property
    def space(self) -> Space:
        """Every point that the conditions of the scheme, of its backends and of their kernels tell apart."""
        also = [self.entries[kernel.library, kernel.name][1] for b in self.backends for kernel in b.kernels]
        also += [stated(self.own(index)) for index in range(len(self.backends))]
        return Space.of((self.side, self.scheme), also=[*also, *([self.claimed] if self.claimed else [])])

    @cached_property
    def accepted(self) -> tuple[Held, ...]:
        """For each backend the points where nothing speaks against it."""
        return tuple(self.space.accepted(self.side, backend) for backend in self.backends)

    @cached_property
    def able(self) -> tuple[tuple[Cube, ...], ...]:
        """The same as cubes."""
        return tuple(held.cubes() for held in self.accepted)

    @cached_property
    def chosen(self) -> tuple[tuple[Cube, ...], ...]:
        """For each backend the points where it is chosen."""
        return tuple(first(self.able, index, able) for index, able in enumerate(self.able))

    def asked_by_kernels(self, index: int) -> Held:
        """The points where the needs of a backend's kernels hold, in whatever release."""
        held = Held(self.space.full)
        for kernel, _ in self.kernels(index):
            held = held.also(self.space.holds(self.side, self.entries[kernel.library, kernel.name][1]))
        return held

    def loosened(self, index: int, own: model.Needs) -> Held:
        """The points where a backend would be accepted if it stated other needs."""
        backend, said = self.backends[index], self.file.model.backends[index]
        needs = merged_needs(said.model_copy(update={"needs": own}), self.kernels(index), backend.calls)
        return self.space.holds(self.side, needs, backend.kernels)

    def witness(self, point: Cube, *backends: int, chosen: int | None = None) -> tuple[tuple[str, str], ...]:
        """A point in words: what these backends ask for, and the one that is chosen there."""
        told = words(self.space, point, [self.accepted[index] for index in backends])
        return told if chosen is None else (*told, ("chosen", self.backends[chosen].name))

    def names(self, indices: Iterable[int]) -> str:
        """Some backends in words."""
        return " and ".join(self.backends[index].name for index in indices)
