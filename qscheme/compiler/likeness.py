"""A kernel that is stated by what differs from another of its file -> the whole of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar, cast

from qscheme.compiler.mistakes import unknown
from qscheme.compiler.source import Problem, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from qscheme.compiler.source import Document, KeyPath

T = TypeVar("T")

KERNELS, LIKE = "kernels", "like"


def completed(document: Document) -> Document:
    """A kernel file in which each kernel with `like: OTHER` has the keys of the other that it does not state itself.

    Keys are taken whole, with their places, so that a mistake in one is told where it stands. Raises SourceError for
    an OTHER that the file does not have, or that is like another one itself.
    """
    said = document.data
    root = cast("dict[str, object]", said) if isinstance(said, dict) else {}
    kernels = cast("dict[str, object]", root[KERNELS]) if isinstance(root.get(KERNELS), dict) else {}
    entries = {name: cast("dict[str, object]", entry) for name, entry in kernels.items() if isinstance(entry, dict)}
    likes = {name: entry[LIKE] for name, entry in entries.items() if LIKE in entry}
    problems = list(_problems(document, entries, likes))
    if problems:
        raise SourceError(problems)
    taken: dict[KeyPath, KeyPath] = {
        (KERNELS, name, key): (KERNELS, str(other), key)
        for name, other in likes.items()
        for key in entries[str(other)].keys() - entries[name].keys()
    }
    if not likes:
        return document
    whole = {name: {**entries[str(other)], **entries[name]} for name, other in likes.items()}
    return replace(
        document,
        data={**root, KERNELS: {**kernels, **whole}},
        places=_with(document.places, taken),
        key_places=_with(document.key_places, taken),
        texts=_with(document.texts, taken),
    )


def _problems(
    document: Document, entries: Mapping[str, Mapping[str, object]], likes: Mapping[str, object]
) -> Iterator[Problem]:
    for name, other in likes.items():
        path = (KERNELS, name, LIKE)
        subject = f"{KERNELS}.{name}.{LIKE}: "
        if not isinstance(other, str):
            message = f"needs the name of another kernel of this file, found {document.raw(path) or 'no text'}"
        elif other == name:
            message = "a kernel that is like itself; name another one"
        elif other not in entries:
            message = unknown(other, entries.keys() - {name}, "kernel of this file")
        elif other in likes:
            message = f"{other} is itself like {likes[other]}; name that one, and state what differs from it"
        else:
            continue
        yield Problem(document.place_of(path), subject + message)


def _with(facts: Mapping[KeyPath, T], taken: Mapping[KeyPath, KeyPath]) -> dict[KeyPath, T]:
    """What is known by key path, and the same by the paths of keys that were taken."""
    by_key: dict[KeyPath, list[KeyPath]] = {}
    for path in facts:
        by_key.setdefault(path[:3], []).append(path)
    return {**facts, **{(*new, *path[3:]): facts[path] for new, old in taken.items() for path in by_key.get(old, ())}}
