"""The events of libyaml's parser, for the texts that it and PyYAML's own parser read alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

import yaml

if TYPE_CHECKING:
    from collections.abc import Callable

_DIFFERENT = frozenset("%?")
"""Directives and complex keys: libyaml takes a question mark inside text in brackets, and PyYAML refuses it."""


class Unlike(Exception):
    """A text has something that the two parsers do not read alike, or that only one of them takes."""


class LibyamlEvents:
    """Events of a text, ten times as fast as PyYAML's; raises Unlike where they could differ, mistakes included.

    The two differ in where they place a value that is absent, and in what may follow the sign of a block of text.
    """

    def __init__(self, text: str) -> None:
        parser = _parser()
        if parser is None or not _DIFFERENT.isdisjoint(text):
            raise Unlike
        self._events = parser(text)

    def get_event(self) -> yaml.Event:
        """The next event."""
        try:
            event = self._events.get_event()
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            raise Unlike from error
        if isinstance(event, yaml.ScalarEvent) and (event.style in ("|", ">") or not (event.style or event.value)):
            raise Unlike
        return event

    def check_event(self, choice: type[yaml.Event], /) -> bool:
        """Whether the next event is of a kind."""
        try:
            return self._events.check_event(choice)
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            raise Unlike from error


class _Parser(Protocol):
    """What we use of libyaml's parser."""

    def get_event(self) -> yaml.Event: ...

    def check_event(self, choice: type[yaml.Event], /) -> bool: ...


def _parser() -> Callable[[str], _Parser] | None:
    """libyaml's parser, None where PyYAML was built without it."""
    try:
        from yaml._yaml import CParser
    except ImportError:
        return None
    return cast("Callable[[str], _Parser]", CParser)
