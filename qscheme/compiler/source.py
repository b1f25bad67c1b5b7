"""YAML text -> plain data and the place of every value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, cast

import yaml

from qscheme.compiler.libyaml import LibyamlEvents, Unlike
from qscheme.compiler.pyyaml import events_of, fault_of
from qscheme.compiler.scalars import out_of_range, plain, refused_character, unprintable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from qscheme.compiler.pyyaml import Events

KeyPath: TypeAlias = tuple[str | int, ...]
"""The keys and list positions that lead from the root to a value."""

DEEPEST = 20
"""How many mappings and lists may stand inside each other."""

LARGEST = 1 << 20
"""How many bytes a file may have."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where something stands in a file; line and column count characters from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """A mistake and its place."""

    place: Place
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


class SourceError(Exception):
    """One or more mistakes in one file, sorted by place."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(problems))
        super().__init__("\n".join(map(str, self.problems)))


@dataclass(frozen=True, slots=True)
class Document:
    """What one file says, and where.

    data: mappings are dict with str keys, lists are tuple; else None, bool, int, float or str.
    places: the place of every value, the root under ().
    key_places: the place of the key of every value that has one.
    texts: every scalar as written, without quotes and escapes.
    unquoted: every scalar and key without quotes, as (path, whether it is a key).
    """

    file: str
    data: object
    places: Mapping[KeyPath, Place]
    key_places: Mapping[KeyPath, Place]
    texts: Mapping[KeyPath, str]
    unquoted: tuple[tuple[KeyPath, bool], ...] = ()

    def place_of(self, path: KeyPath) -> Place:
        """The place of the value at the path, or of its deepest ancestor that the file has; other parts are skipped."""
        return self.places[self._known(path)]

    def key_place_of(self, path: KeyPath) -> Place:
        """Like `place_of`, but the place of the key where the value has one."""
        known = self._known(path)
        return self.key_places.get(known, self.places[known])

    def raw(self, path: KeyPath) -> str | None:
        """The text of the scalar at the path (`7.10` where the data says 7.1); None where a mapping or list stands."""
        return self.texts.get(self._known(path))

    def _known(self, path: KeyPath) -> KeyPath:
        known: KeyPath = ()
        for part in path:
            if (*known, part) in self.places:
                known = (*known, part)
        return known


def read_file(path: Path, shown: str) -> Document:
    """The document in a file, which errors call `shown`; raises SourceError for every mistake."""
    start = Place(shown, 1, 1)
    try:
        with path.open("rb") as stream:
            content = stream.read(LARGEST + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        cause = error.strerror if isinstance(error, OSError) else error
        raise SourceError([Problem(start, f"cannot be read: {cause}")]) from error
    if len(content) > LARGEST:
        raise SourceError([_too_large(start)])
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8").removeprefix("\ufeff").replace("\r\n", "\n")
        message = f"byte 0x{content[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise SourceError([Problem(_place_after(before, shown), message)]) from error
    return read(text, shown)


def read(text: str, file: str) -> Document:
    """The document in a text, which errors call `file`; raises SourceError for every mistake."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if len(text) > LARGEST:
        raise SourceError([_too_large(Place(file, 1, 1))])
    refused = unprintable(text, allowed="\n")
    if refused is not None:
        raise SourceError([Problem(_place_after(text[:refused], file), refused_character(text[refused]))])
    try:
        return _Reader(LibyamlEvents(text), file).document()
    except (Unlike, SourceError):
        return read_slowly(text, file)


def read_slowly(text: str, file: str) -> Document:
    """The same by PyYAML's own parser, whose account of mistakes is the one that is shown."""
    events = events_of(text)
    reader = _Reader(events, file)
    try:
        return reader.document()
    except (yaml.MarkedYAMLError, ValueError, OverflowError) as error:
        # PyYAML passes the digits of an escape such as "\UFFFFFFFF" to chr() unchecked, hence the last two.
        mark, message = fault_of(error, events)
        syntax = Problem(_place_of_mark(file, mark), message)
    raise SourceError([*reader.problems, syntax])


class _Reader:
    """Builds the data of one document from its events; anchors and tags are gone from nodes, so these are too late."""

    def __init__(self, events: Events, file: str) -> None:
        self.events = events
        self.file = file
        self.problems: list[Problem] = []
        self.places: dict[KeyPath, Place] = {}
        self.key_places: dict[KeyPath, Place] = {}
        self.texts: dict[KeyPath, str] = {}
        self.unquoted: list[tuple[KeyPath, bool]] = []

    def document(self) -> Document:
        self.events.get_event()  # the stream's start
        if self.events.check_event(yaml.StreamEndEvent):
            raise SourceError([Problem(Place(self.file, 1, 1), "the file is empty; write a mapping")])
        self.events.get_event()  # the document's start
        data = self.value((), DEEPEST)
        self.events.get_event()  # the document's end
        if not self.events.check_event(yaml.StreamEndEvent):
            self.refuse(self.events.get_event(), "a second document; give it a file of its own")
        if data is None and self.texts.get(()) == "":
            self.problems.append(Problem(self.places[()], "the file is empty; write a mapping"))
        if self.problems:
            raise SourceError(self.problems)
        return Document(self.file, data, self.places, self.key_places, self.texts, tuple(self.unquoted))

    def value(self, path: KeyPath, levels: int) -> object:
        event = self.events.get_event()
        self.places[path] = self.place(event)
        self.refuse_properties(event)
        match event:
            case yaml.ScalarEvent():
                return self.scalar(event, path)
            case yaml.CollectionStartEvent() if levels == 0:
                self.refuse(event, f"more than {DEEPEST} levels of mappings and lists; use fewer")
                raise SourceError(self.problems)
            case yaml.SequenceStartEvent():
                return self.sequence(path, levels - 1)
            case yaml.MappingStartEvent():
                return self.mapping(path, levels - 1)
            case _:
                return None  # an alias, refused already

    def sequence(self, path: KeyPath, levels: int) -> tuple[object, ...]:
        items: list[object] = []
        while not self.events.check_event(yaml.SequenceEndEvent):
            items.append(self.value((*path, len(items)), levels))
        self.events.get_event()
        return tuple(items)

    def mapping(self, path: KeyPath, levels: int) -> dict[str, object]:
        entries: dict[str, object] = {}
        while not self.events.check_event(yaml.MappingEndEvent):
            event = self.events.get_event()
            key = self.key(event)
            inner = (*path, key)
            if isinstance(event, yaml.ScalarEvent) and not event.style:
                self.unquoted.append((inner, True))
            first = self.key_places.setdefault(inner, self.place(event))
            if key in entries:
                self.refuse(event, f"the key {key!r} a second time; the first is at {first}, remove one of them")
            entries[key] = self.value(inner, levels)
        self.events.get_event()
        return entries

    def key(self, event: yaml.Event) -> str:
        self.refuse_properties(event)
        match event:
            case yaml.ScalarEvent(value=text):
                if event.style:
                    self.refuse_unprintable(event)
                elif text == "<<":
                    self.refuse(event, "the merge key <<; merge keys are not part of the language, write the keys out")
                elif text == "":
                    self.refuse(event, "a value without a key; write the key before the colon")
                elif not isinstance(plain(text), str):
                    self.refuse(event, f"the key {text}, which is not text; quote it: '{text}'")
                return text
            case yaml.AliasEvent(anchor=anchor):
                return f"*{anchor}"
            case _:
                self.refuse(event, "a mapping or list as a key; keys are text")
                raise SourceError(self.problems)

    def scalar(self, event: yaml.ScalarEvent, path: KeyPath) -> bool | int | float | str | None:
        self.texts[path] = event.value
        if event.style:
            self.refuse_unprintable(event)
            return event.value
        self.unquoted.append((path, False))
        value = plain(event.value)
        if isinstance(value, float) and out_of_range(value, event.value):
            self.refuse(event, f"{event.value}, which is beyond the range of a number; write one within, or quote it")
        return value

    def refuse_properties(self, event: yaml.Event) -> None:
        """Refuse aliases, anchors and tags."""
        if isinstance(event, yaml.AliasEvent):
            self.refuse(event, f"the alias *{event.anchor}; aliases are not part of the language, write the value out")
            return
        if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
            self.refuse(event, f"the anchor &{event.anchor}; anchors are not part of the language, remove it")
        if isinstance(event, (yaml.ScalarEvent, yaml.CollectionStartEvent)) and event.tag is not None:
            self.refuse(event, f"the tag {event.tag}; tags are not part of the language, remove it or quote the text")

    def refuse_unprintable(self, event: yaml.ScalarEvent) -> None:
        """Refuse escapes for characters that the file itself may not have; line breaks and tabs may be escaped."""
        refused = unprintable(event.value, allowed="\n\t")
        if refused is not None:
            self.problems.append(Problem(self.place(event), refused_character(event.value[refused])))

    def place(self, event: yaml.Event) -> Place:
        return _place_of_mark(self.file, _mark(event))

    def refuse(self, event: yaml.Event, found: str) -> None:
        self.problems.append(Problem(self.place(event), f"found {found}"))


def _too_large(place: Place) -> Problem:
    return Problem(place, f"the file has more than {LARGEST} bytes; split it")


def _mark(event: yaml.Event) -> yaml.Mark:
    mark = cast("yaml.Mark | None", event.start_mark)
    assert mark is not None, "both parsers mark every event"
    return mark


def _place_of_mark(file: str, mark: yaml.Mark) -> Place:
    return Place(file, mark.line + 1, mark.column + 1)


def _place_after(before: str, file: str) -> Place:
    """The place that follows a text."""
    return Place(file, before.count("\n") + 1, len(before) - before.rfind("\n"))
