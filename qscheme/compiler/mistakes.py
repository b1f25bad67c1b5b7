"""What pydantic finds wrong with a document -> problems with a place, in our own words, one for each mistake."""

from __future__ import annotations

import difflib
import types
import typing
from typing import TYPE_CHECKING, cast

from pydantic import BaseModel, Tag

from qscheme.compiler.source import Problem
from qscheme.compiler.words import WRITTEN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pydantic_core import ErrorDetails

    from qscheme.compiler.source import Document, KeyPath

KINDS = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a number",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
"""What pydantic's types of errors ask for, where that is a kind of value."""


def unknown(word: str, known: Iterable[str], what: str) -> str:
    """`unknown WHAT 'word', did you mean 'x'?`, or the known words where none is close."""
    words = sorted(known)
    close = difflib.get_close_matches(word, words, n=1)
    cure = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(words) or 'none'}"
    return f"unknown {what} {word!r}, {cure}"


def problems_of(errors: Sequence[ErrorDetails], document: Document, model: type[BaseModel]) -> Iterator[Problem]:
    """One problem for each mistake; a key or an item without a value is one, as the language has no null."""
    empty = [path for path in document.texts if _at(document, path) is None]
    meant = {(error["loc"][:-1], _closest(error, model)) for error in errors if error["type"] == "extra_forbidden"}
    for error in errors:
        path = error["loc"]
        known = _known_path(document, path)
        if error["type"] == "extra_forbidden":
            empty = [other for other in empty if other[: len(known)] != known]
        elif error["type"] == "missing":
            if (path[:-1], str(path[-1])) in meant:
                continue
        elif known in empty or (error["type"] == "too_short" and error["input"]):
            continue
        at_key = error["type"] == "extra_forbidden" or path[-1:] == ("[key]",)
        if error["type"] == "union_tag_invalid":
            path = (*path, _tag_key(error))
        place = document.key_place_of(path) if at_key else document.place_of(path)
        yield Problem(place, _message(error, document, model))
    for path in empty:
        yield Problem(document.key_place_of(path), f"{_subject(path)}has no value; write one, or remove it")


def _message(error: ErrorDetails, document: Document, model: type[BaseModel]) -> str:
    path = error["loc"]
    context = cast("Mapping[str, object]", error.get("ctx", {}))
    known = _known_path(document, path)
    subject = _subject(known)
    value: object = error["input"]
    found = _found(value, document.raw(path))
    match error["type"]:
        case "extra_forbidden":
            return _subject(known[:-1]) + unknown(str(path[-1]), _keys_at(model, path[:-1]), "key")
        case "missing":
            return f"{subject}needs the key {path[-1]!r}"
        case "union_tag_not_found":
            return f"{subject}needs the key {_tag_key(error)!r}"
        case "union_tag_invalid":
            return f"{subject}{unknown(str(context['tag']), _quoted(str(context['expected_tags'])), 'word')}"
        case "literal_error":
            return subject + _literal(value, str(context["expected"]), found)
        case "string_type":
            return f"{subject}needs text, found {found}" + _quote(value, document.raw(path))
        case "string_pattern_mismatch":
            return f"{subject}needs {WRITTEN[str(context['pattern'])]}, found {found}"
        case "string_too_short" | "too_short":
            return f"{subject}needs at least one {'character' if error['type'] == 'string_too_short' else 'entry'}"
        case "string_too_long":
            return f"{subject}needs at most {context['max_length']} characters, found {len(str(error['input']))}"
        case "greater_than" | "greater_than_equal" | "less_than_equal":
            words = {"greater_than": "more than", "greater_than_equal": "at least", "less_than_equal": "at most"}
            limit = cast("float", next(iter(context.values())))
            return f"{subject}needs {words[error['type']]} {limit:g}, found {found.removeprefix('the number ')}"
        case "form":
            return f"{subject}{error['msg']}, found {found}"
        case kind if kind in KINDS:
            return f"{subject}needs {KINDS[kind]}, found {found}" + _unquote(kind, value)
        case _:
            return f"{subject}{error['msg']}"


def _subject(path: KeyPath) -> str:
    return f"{_shown(path)}: " if path else ""


def _literal(value: object, expected: str, found: str) -> str:
    words = _quoted(expected)
    if isinstance(value, str):
        return unknown(value, words, "word")
    return f"needs one of {', '.join(sorted(words))}; found {found}"


def _quoted(expected: str) -> list[str]:
    """The words in pydantic's `'a', 'b' or 'c'`."""
    return [word.strip("' ") for word in expected.replace("' or '", "', '").split(", ")]


def _quote(value: object, raw: str | None) -> str:
    if isinstance(value, bool):
        return f"; quote it: '{raw}'"
    if isinstance(value, int | float):
        return f"; quote it, as all version numbers: '{raw}'"
    return ""


def _unquote(kind: str, value: object) -> str:
    if kind == "bool_type" and isinstance(value, str) and value.lower() in ("yes", "on", "no", "off", "true", "false"):
        return f"; write {'true' if value.lower() in ('yes', 'on', 'true') else 'false'}"
    if kind == "tuple_type" and isinstance(value, str):
        return f"; write [{value}]" if len(value) <= 40 else ""
    return ""


def _found(value: object, raw: str | None) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"the number {raw if raw is not None else value}"
        case str():
            return repr(value) if len(value) <= 60 else f"{value[:57]!r}..."
        case tuple():
            return "a list" if value else "an empty list"
        case dict():
            return "a mapping"
        case _:
            return "nothing"


def _tag_key(error: ErrorDetails) -> str:
    return str(cast("Mapping[str, object]", error.get("ctx", {}))["discriminator"]).strip("'")


def _closest(error: ErrorDetails, model: type[BaseModel]) -> str | None:
    """The key that a misspelt one was meant to be."""
    path = error["loc"]
    return next(iter(difflib.get_close_matches(str(path[-1]), sorted(_keys_at(model, path[:-1])), n=1)), None)


def _shown(path: KeyPath) -> str:
    """`backends[0].needs.arch`"""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def _known_path(document: Document, path: KeyPath) -> KeyPath:
    """The part of a validation path that the document has; union tags, which it does not have, are skipped."""
    known: KeyPath = ()
    for part in path:
        if (*known, part) in document.places:
            known = (*known, part)
    return known


def _at(document: Document, path: KeyPath) -> object:
    value = document.data
    for part in _known_path(document, path):
        value = cast("Mapping[str | int, object]", value)[part]
    return value


def _keys_at(model: type[BaseModel], path: KeyPath) -> list[str]:
    """The keys that the mapping at a validation path may have, found by walking the models' annotations."""
    here: list[object] = [model]
    for part in path:
        here = [inner for annotation in here for inner in _step(annotation, part)]
    models = [found for annotation in here for found in _models(annotation)]
    return [field.alias or name for found in models for name, field in found.model_fields.items()]


def _step(annotation: object, part: str | int) -> Iterator[object]:
    """What stands under one part of a validation path: a field, an item, or one member of a union."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        yield from _step(arguments[0], part)
    elif origin in (typing.Union, types.UnionType):
        chosen = [member for member in arguments if part in _tags(member)]
        yield from chosen or [inner for member in arguments for inner in _step(member, part)]
    elif origin is dict:
        yield arguments[1]
    elif origin is tuple:
        yield arguments[0]
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            if part == (field.alias or name):
                yield field.annotation


def _tags(member: object) -> list[object]:
    """The tags under which pydantic reports a member of a union: its Tag, or the word of its discriminating key."""
    marks = [mark.tag for mark in typing.get_args(member)[1:] if isinstance(mark, Tag)]
    words = [
        word for found in _models(member) if (does := found.model_fields.get("does")) is not None
        for word in typing.get_args(does.annotation)
    ]  # fmt: skip
    return [*marks, *words]


def _models(annotation: object) -> list[type[BaseModel]]:
    """The models that a value of this annotation may be."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _models(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return [found for member in arguments for found in _models(member)]
    return [annotation] if isinstance(annotation, type) and issubclass(annotation, BaseModel) else []
