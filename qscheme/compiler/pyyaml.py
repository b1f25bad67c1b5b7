"""PyYAML's own parser, in pure Python, whose account of mistakes in syntax is the one that is shown."""

from __future__ import annotations

from typing import Protocol, cast

import yaml


class Events(Protocol):
    """What is used of a parser."""

    def get_event(self) -> yaml.Event:
        """The next event, which is taken."""
        ...

    def check_event(self, choice: type[yaml.Event], /) -> bool:
        """Whether the next event is of a class."""
        ...


class MarkedEvents(Events, Protocol):
    """What is used of a PyYAML loader, with the types that it lacks."""

    def get_mark(self) -> yaml.Mark:
        """How far the parser is."""
        ...


class _Loader(yaml.SafeLoader):
    """The parser without directives."""

    def fetch_directive(self) -> None:
        """Refuse `%YAML` and `%TAG`, which could change what later text means."""
        raise yaml.MarkedYAMLError(
            problem="found % at the start of a line; directives are not part of the language, quote the text",
            problem_mark=cast("MarkedEvents", self).get_mark(),
        )


def events_of(text: str) -> MarkedEvents:
    """The events of a text."""
    return cast("MarkedEvents", _Loader(text))


def fault_of(error: Exception, events: MarkedEvents) -> tuple[yaml.Mark, str]:
    """Where a mistake in syntax is, and what it is."""
    if isinstance(error, yaml.MarkedYAMLError):
        return error.problem_mark or events.get_mark(), _message(error)
    return events.get_mark(), "the escape names no Unicode character; mend its digits"


_CURES = (
    ("mapping values are not allowed", "quote text that has ': ' in it, or indent the line as its neighbours"),
    ("cannot start any token", "quote the text"),
    ("could not find expected ':'", "write `key: value`, and quote text of several lines"),
    ("expected <block end>", "indent the line as its neighbours, and quote text with special characters"),
    ("expected ',' or", "separate items by commas, and close every bracket"),
    ("unexpected end of stream", "close the quotation marks"),
    ("expected '<document start>'", "write one document, without `...`"),
    ("undefined tag handle", "tags are not part of the language, quote the text"),
    ("unknown escape", "double the backslash, or use single quotation marks"),
)


def _message(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or "not YAML"
    context = ""
    if error.context and error.context_mark is not None:
        context = f" {error.context} that starts at line {error.context_mark.line + 1}"
    cure = next((f"; {cure}" for words, cure in _CURES if words in problem), "")
    return f"{problem}{context}{cure}"
