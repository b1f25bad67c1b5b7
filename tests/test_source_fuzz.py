"""Any text becomes data in which everything has a place, or a located error; nothing else escapes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import cast

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qscheme.compiler.source import Document, KeyPath, SourceError, read, read_file, read_slowly

quickly = settings(max_examples=300, deadline=None, derandomize=True, database=None)

FRAGMENTS = (
    *("a", "b: ", "- ", "\n", "\n  ", "  ", ": ", "? ", "[", "]", "{", "}", ",", "'", '"', "\\", "\\U", "FFFFFFFF"),
    *("\\x", "\\\n", "#", "&x ", "*x", "!", "!!str ", "!<", "!a!", "%", "%YAML ", "---", "...", "|", ">", "|2-\n"),
    *("<<", "=", "~", "null", "1e", "5", ".", "\t", "\r\n", "\r", "\0", "\ufeff", "\u2028", "\x85", "\ud800", "é"),
    *("😀", "@", "`", "1:32", "7.10", "-", "_", "0x", "\n---\n", "\n...\n"),
)


def children(value: object) -> list[tuple[str | int, object]]:
    if isinstance(value, dict):
        return list(cast("dict[str | int, object]", value).items())
    return list(enumerate(cast("tuple[object, ...]", value))) if isinstance(value, tuple) else []


def paths(value: object, path: KeyPath = ()) -> list[KeyPath]:
    """The path of every value inside a value, itself included."""
    assert type(value) in (dict, tuple, str, int, float, bool, type(None))
    return [path, *(inner for part, child in children(value) for inner in paths(child, (*path, part)))]


def check(text: str) -> None:
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    try:
        document = read(text, "x.yaml")
    except SourceError as error:
        assert error.problems
        places = [problem.place for problem in error.problems]
    else:
        assert paths(document.data) == list(document.places)
        assert {path for path in document.places if path and isinstance(path[-1], str)} == set(document.key_places)
        places = [*document.places.values(), *document.key_places.values()]
    for place in places:
        assert "x.yaml" == place.file
        assert 1 <= place.line <= len(lines)
        assert 1 <= place.column <= len(lines[place.line - 1]) + 1


@quickly
@given(st.text())
def test_any_text_is_data_or_a_located_error(text: str) -> None:
    check(text)


@quickly
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=30).map("".join))
def test_any_heap_of_yaml_syntax_is_data_or_a_located_error(text: str) -> None:
    check(text)


@settings(quickly, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary() | st.text().map(str.encode))
def test_any_bytes_are_data_or_a_located_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.yaml").write_bytes(content)
    try:
        assert isinstance(read_file(tmp_path / "x.yaml", "x.yaml"), Document)
    except SourceError as error:
        assert error.problems


printable = st.text(st.characters(codec="utf-8").filter(lambda character: character.isprintable()))
scalars = st.none() | st.booleans() | st.integers(-(10**15) + 1, 10**15 - 1) | printable
numbers = st.floats(allow_nan=False, allow_infinity=False)
trees = st.recursive(
    scalars | numbers, lambda inner: st.lists(inner) | st.dictionaries(printable, inner), max_leaves=20
)


@settings(quickly, max_examples=100)
@given(trees)
def test_json_means_the_same(tree: object) -> None:
    text = json.dumps(tree, ensure_ascii=False)

    assert text == json.dumps(read(text, "x.yaml").data, ensure_ascii=False)


def alike(text: str) -> bool:
    """Whether both parsers say the same; true if the text is a mistake, which one of them alone tells."""
    try:
        slow = read_slowly(text, "x.yaml")
    except SourceError:
        return not reads(text)
    return read(text, "x.yaml") == slow


def reads(text: str) -> bool:
    try:
        read(text, "x.yaml")
    except SourceError:
        return False
    return True


def test_libyaml_reads_as_the_slow_parser_does() -> None:
    shipped = [path.read_text() for path in sorted(Path(__file__).parent.parent.glob("schemes/**/*.yaml"))]
    assert [] == [text[:60] for text in shipped if not alike(text)]
    draw, lines = random.Random(5), [text.split("\n") for text in shipped]
    for _ in range(1500):
        chosen = draw.choice(lines)
        start = draw.randrange(len(chosen))
        text = "\n".join(chosen[start : start + draw.randint(1, 9)])
        for _ in range(draw.randint(1, 3)):
            at, gone = draw.randrange(len(text) + 1), draw.choice((0, 0, 1, 3))
            text = text[:at] + draw.choice((*FRAGMENTS, "", "")) + text[at + gone :]
        text = text.removeprefix("\ufeff").replace("\r\n", "\n")
        if text.isascii() and text.replace("\n", "").isprintable():
            assert alike(text), text
