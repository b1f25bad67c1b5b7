"""An unquoted YAML scalar -> its meaning, and the characters that no text may have."""

from __future__ import annotations

import math
import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_WORDS: Mapping[str, bool | None] = {"": None, "null": None, "true": True, "false": False}
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,14})")
# A dot or an exponent makes a decimal; no leading zeros, underscores, signs of plus, inf or nan.
_DECIMAL = re.compile(r"-?(?=[0-9]*[.eE])((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")


def plain(text: str) -> bool | int | float | str | None:
    """What an unquoted scalar means."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return float(text)
    return text


def out_of_range(value: float, text: str) -> bool:
    """Whether a decimal became infinite, or became 0 although it is not."""
    return math.isinf(value) or (not value and re.match("-?[0.]*[1-9]", text) is not None)


def unprintable(text: str, allowed: str) -> int | None:
    """The position of the first character that would be invisible or misleading in an editor, if there is one."""
    if text.translate(dict.fromkeys(map(ord, allowed))).isprintable():
        return None
    return next(
        position for position, character in enumerate(text) if not (character.isprintable() or character in allowed)
    )


def refused_character(character: str) -> str:
    """What is wrong with a character that `unprintable` found."""
    if character == "\t":
        return "found a tab; use spaces, or write \\t in double-quoted text"
    name = unicodedata.name(character, "a control character or one without a name")
    cure = "use a space" if unicodedata.category(character) == "Zs" else "remove it"
    return f"found U+{ord(character):04X} ({name}), which does not show in an editor; {cure}"
