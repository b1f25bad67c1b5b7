"""A kernel that is stated by what differs from another of its file -> the whole of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar, cast

from qscheme.compiler.mistakes import unknown
from qscheme.compiler.source import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from qscheme.compiler.source import Document, KeyPath

T = TypeVar("T")

KERNELS, LIKE = "kernels", "like"


def completed(document: Document) -> tuple[Document, list[Problem]]:
    """A kernel file in which each kernel with `like: OTHER` has the keys of the other that it does not state itself.

    Keys are taken whole, with their places, so that a mistake in one is told where it stands. A kernel that is like one
    that the file does not have, or that is like another one itself, is left out and told.
    """
    said = document.data
    root = cast("dict[str, object]", said) if isinstance(said, dict) else {}
    kernels = cast("dict[str, object]", root[KERNELS]) if isinstance(root.get(KERNELS), dict) else {}
    entries = {name: cast("dict[str, object]", entry) for name, entry in kernels.items() if isinstance(entry, dict)}
    likes = {name: entry[LIKE] for name, entry in entries.items() if LIKE in entry}
    if not likes:
        return document, []
    mistakes = dict(_mistakes(document, kernels, entries, likes))
    right = {name: str(other) for name, other in likes.items() if name not in mistakes}
    taken: dict[KeyPath, KeyPath] = {
        (KERNELS, name, key): (KERNELS, other, key)
        for name, other in right.items()
        for key in entries[other].keys() - entries[name].keys()
    }
    whole = {name: {**entries[other], **entries[name]} for name, other in right.items()}
    texts = _with(document.texts, taken)
    completed = replace(
        document,
        data={**root, KERNELS: {name: whole.get(name, kernels[name]) for name in kernels if name not in mistakes}},
        places=_with(document.places, taken),
        key_places=_with(document.key_places, taken),
        texts={path: text for path, text in texts.items() if path[1:2] not in {(name,) for name in mistakes}},
    )
    return completed, list(mistakes.values())


def _mistakes(
    document: Document,
    kernels: Mapping[str, object],
    entries: Mapping[str, Mapping[str, object]],
    likes: Mapping[str, object],
) -> Iterator[tuple[str, Problem]]:
    for name, other in likes.items():
        path = (KERNELS, name, LIKE)
        if not isinstance(other, str):
            message = f"needs the name of another kernel of this file, found {document.raw(path) or 'no text'}"
        elif other == name:
            message = "a kernel that is like itself; name another one"
        elif other not in kernels:
            message = unknown(other, kernels.keys() - {name}, "kernel of this file")
        elif other not in entries:
            message = f"{other} has no keys"
        elif other in likes:
            message = f"{other} is itself like {likes[other]}; name that one, and state what differs from it"
        else:
            continue
        yield name, Problem(document.place_of(path), f"{KERNELS}.{name}.{LIKE}: {message}")


def _with(facts: Mapping[KeyPath, T], taken: Mapping[KeyPath, KeyPath]) -> dict[KeyPath, T]:
    """What is known by key path, and the same by the paths of keys that were taken."""
    by_key: dict[KeyPath, list[KeyPath]] = {}
    for path in facts:
        by_key.setdefault(path[:3], []).append(path)
    return {**facts, **{(*new, *path[3:]): facts[path] for new, old in taken.items() for path in by_key.get(old, ())}}
