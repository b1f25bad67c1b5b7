"""PyYAML's pure Python parser without directives, and what is used of it and of others."""

from __future__ import annotations

from typing import Protocol, cast

import yaml


class Events(Protocol):
    """What we use of a parser."""

    def get_event(self) -> yaml.Event: ...

    def check_event(self, choice: type[yaml.Event], /) -> bool: ...


class Marked(Events, Protocol):
    """What we use of a PyYAML loader, with the types that it lacks."""

    def get_mark(self) -> yaml.Mark: ...


class Loader(yaml.SafeLoader):
    """PyYAML's pure Python parser, without directives."""

    def fetch_directive(self) -> None:
        """Refuse `%YAML` and `%TAG`, which could change what later text means."""
        raise yaml.MarkedYAMLError(
            problem="found % at the start of a line; directives are not part of the language, quote the text",
            problem_mark=cast("Marked", self).get_mark(),
        )
