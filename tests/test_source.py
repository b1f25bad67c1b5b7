"""YAML text becomes plain data with the place of every value, or mistakes with a place and a cure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from qscheme.compiler.source import DEEPEST, LARGEST, Document, Place, Problem, SourceError, read, read_file

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLE = """\
# one scheme
scheme: fp8_blockscale
weight: {format: fp8_e4m3, granularity: 128x128}
backends:
  - name: aiter_ck
    needs:
      arch: [gfx942, gfx950]
  - name: "reference"
"""


def data(text: str) -> object:
    return read(text, "x.yaml").data


def mistakes(text: str) -> list[str]:
    """Every mistake in the text as `line:column: message`."""
    with pytest.raises(SourceError) as caught:
        read(text, "x.yaml")
    return [str(problem).removeprefix("x.yaml:") for problem in caught.value.problems]


def test_mappings_become_dicts_and_lists_become_tuples() -> None:
    assert {
        "scheme": "fp8_blockscale",
        "weight": {"format": "fp8_e4m3", "granularity": "128x128"},
        "backends": ({"name": "aiter_ck", "needs": {"arch": ("gfx942", "gfx950")}}, {"name": "reference"}),
    } == data(EXAMPLE)


def test_mappings_keep_the_order_of_their_keys() -> None:
    assert "{'z': 1, 'a': 2, 'm': 3}" == str(data("z: 1\na: 2\nm: 3"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("null", None),
        ("", None),
        ("true", True),
        ("false", False),
        ("0", 0),
        ("16", 16),
        ("-7", -7),
        ("999999999999999", 999999999999999),
        ("1e-12", 1e-12),
        ("1e-3", 1e-3),
        ("1E3", 1000.0),
        ("1e+3", 1000.0),
        ("9e4", 90000.0),
        ("1.0e-3", 1.0e-3),
        ("-0.5", -0.5),
        (".5", 0.5),
        ("448.", 448.0),
        ("7.10", 7.1),
        ("0e5", 0.0),
    ],
)
def test_unquoted_words_and_numbers_have_their_meaning(text: str, value: object) -> None:
    found = data(f"- {text}")

    assert (value,) == found
    assert str((value,)) == str(found)


@pytest.mark.parametrize(
    "text",
    [
        *("yes", "no", "on", "off", "Yes", "NO", "ON", "Off", "y", "n", "True", "FALSE", "Null", "NULL", "~", "None"),
        *("1x128", "128x128", "1 x 128", "1:32", "1:128", "01:32", "2:4", "12:30:45"),
        *("012", "-012", "00", "0o12", "0x80", "0b11", "1_28", "1_0.5", "01.5", "+5", "1000000000000000"),
        *(".inf", "-.inf", ".nan", "inf", "nan", "e5", "1e", "1e-", ".", "-.e1", "1.2.3", "0.1.7.post2.dev18"),
        *("2026-01-01", "2026-01-01 10:00:00", "gfx942:sramecc+:xnack-", "gfx950", "=", "<<", "٣", "1٣", "µ"),
    ],
)
def test_all_other_unquoted_text_stays_text(text: str) -> None:
    assert {"a": (text,)} == data(f"a:\n  - {text}\n")


@pytest.mark.parametrize("word", ["null", "true", "16", "7.10", "1e-3", ""])
@pytest.mark.parametrize("quote", ["'", '"'])
def test_quoted_text_is_always_text(word: str, quote: str) -> None:
    assert {"a": word} == data(f"a: {quote}{word}{quote}")


def test_block_text_is_always_text() -> None:
    assert {"a": "16\n", "b": "true"} == data("a: |\n  16\nb: >-\n  true\n")


def test_unquoted_decimals_keep_their_text() -> None:
    document = read("rocm: 7.10\nmin_version: [0.30, '0.30', 16]\n", "x.yaml")

    assert "7.10" == document.raw(("rocm",))
    assert "0.30" == document.raw(("min_version", 0))
    assert "0.30" == document.raw(("min_version", 1))
    assert "16" == document.raw(("min_version", 2))


def test_mappings_and_lists_have_no_raw_text() -> None:
    document = read("a: {b: [1]}", "x.yaml")

    assert document.raw(()) is None
    assert document.raw(("a",)) is None
    assert document.raw(("a", "b")) is None
    assert document.raw(("a", "missing")) is None


def test_raw_text_is_found_under_parts_that_the_file_does_not_have() -> None:
    assert "7.10" == read("rocm: 7.10", "x.yaml").raw(("rocm", "str"))


@pytest.mark.parametrize(
    ("path", "line", "column"),
    [
        ((), 2, 1),
        (("scheme",), 2, 9),
        (("weight",), 3, 9),
        (("weight", "format"), 3, 18),
        (("weight", "granularity"), 3, 41),
        (("backends",), 5, 3),
        (("backends", 0), 5, 5),
        (("backends", 0, "needs", "arch"), 7, 13),
        (("backends", 0, "needs", "arch", 1), 7, 22),
        (("backends", 1, "name"), 8, 11),
    ],
)
def test_every_value_has_a_place(path: tuple[str | int, ...], line: int, column: int) -> None:
    assert Place("x.yaml", line, column) == read(EXAMPLE, "x.yaml").places[path]


def test_every_key_has_a_place() -> None:
    assert {
        ("scheme",): (2, 1),
        ("weight",): (3, 1),
        ("weight", "format"): (3, 10),
        ("weight", "granularity"): (3, 28),
        ("backends",): (4, 1),
        ("backends", 0, "name"): (5, 5),
        ("backends", 0, "needs"): (6, 5),
        ("backends", 0, "needs", "arch"): (7, 7),
        ("backends", 1, "name"): (8, 5),
    } == {path: (place.line, place.column) for path, place in read(EXAMPLE, "x.yaml").key_places.items()}


def test_a_value_left_out_has_the_place_after_its_colon() -> None:
    assert Place("x.yaml", 1, 3) == read("a:\nb: 1", "x.yaml").place_of(("a",))


def test_columns_count_characters() -> None:
    assert Place("x.yaml", 1, 12) == read("µ😀: [é, b: 1]", "x.yaml").place_of(("µ😀", 1, "b"))


def test_the_place_of_something_missing_is_that_of_its_deepest_ancestor() -> None:
    document = read(EXAMPLE, "x.yaml")

    assert document.places[("backends", 1)] == document.place_of(("backends", 1, "needs", "arch"))
    assert document.places[()] == document.place_of(("title",))


def test_parts_that_the_file_does_not_have_are_skipped() -> None:
    document = read("weight:\n  granularity: {kind: per_group, size: 0}\n", "x.yaml")

    assert Place("x.yaml", 2, 40) == document.place_of(("weight", "granularity", "per_group", "size"))
    assert Place("x.yaml", 2, 34) == document.key_place_of(("weight", "granularity", "per_group", "size"))


def test_list_items_and_the_root_stand_for_a_key_that_they_lack() -> None:
    document = read("a: [1, 2]", "x.yaml")

    assert Place("x.yaml", 1, 8) == document.key_place_of(("a", 1))
    assert Place("x.yaml", 1, 1) == document.key_place_of(("missing",))


def test_places_and_problems_read_as_compilers_write_them() -> None:
    place = Place("schemes/x.yaml", 12, 7)

    assert "schemes/x.yaml:12:7" == str(place)
    assert "schemes/x.yaml:12:7: unknown" == str(Problem(place, "unknown"))


def test_problems_sort_by_file_line_and_column() -> None:
    places = [Place("b", 1, 1), Place("a", 10, 1), Place("a", 9, 3), Place("a", 9, 20)]

    assert [Place("a", 9, 3), Place("a", 9, 20), Place("a", 10, 1), Place("b", 1, 1)] == [
        problem.place for problem in sorted(Problem(place, "") for place in places)
    ]


def test_windows_line_ends_change_nothing() -> None:
    assert read(EXAMPLE, "x.yaml") == read(EXAMPLE.replace("\n", "\r\n"), "x.yaml")
    assert {"a": "b\nc\n"} == data("a: |\r\n  b\r\n  c\r\n")


def test_a_byte_order_mark_changes_nothing() -> None:
    assert read(EXAMPLE, "x.yaml") == read("\ufeff" + EXAMPLE, "x.yaml")


def test_any_value_may_be_the_root() -> None:
    assert "" == data("''")
    assert None is data("null")
    assert ("a",) == data("- a")


def test_one_document_may_be_opened_and_closed_explicitly() -> None:
    assert {"a": 1} == data("---\na: 1\n...\n")


def test_a_key_given_twice_is_refused_with_both_places() -> None:
    assert [
        "5:1: found the key 'fp8_1x128' a second time; the first is at x.yaml:1:1, remove one of them",
    ] == mistakes("fp8_1x128:\n  backends: 1\nint8:\n  backends: 2\nfp8_1x128:\n  backends: 3\n")


def test_a_key_given_twice_is_found_at_any_depth_and_under_any_spelling() -> None:
    assert ["2:22", "2:30"] == [mistake[:4] for mistake in mistakes("a:\n  - b: {c: 1, d: {}, 'c': 2, \"c\": 3}\n")]


def test_the_same_key_in_two_mappings_is_no_repetition() -> None:
    assert {"a": {"c": 1}, "b": {"c": 2}} == data("a: {c: 1}\nb: {c: 2}\n")


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("a: &x 1", "1:4: found the anchor &x; anchors are not part of the language, remove it"),
        ("&x a: 1", "1:1: found the anchor &x; anchors are not part of the language, remove it"),
        ("a: *x", "1:4: found the alias *x; aliases are not part of the language, write the value out"),
        ("*x : 1", "1:1: found the alias *x; aliases are not part of the language, write the value out"),
        ("<<: {a: 1}", "1:1: found the merge key <<; merge keys are not part of the language, write the keys out"),
        ("? [a]\n: 1", "1:3: found a mapping or list as a key; keys are text"),
        ("{{a: 1}: 2}", "1:2: found a mapping or list as a key; keys are text"),
        ("950: 1", "1:1: found the key 950, which is not text; quote it: '950'"),
        ("7.10: 1", "1:1: found the key 7.10, which is not text; quote it: '7.10'"),
        ("true: 1", "1:1: found the key true, which is not text; quote it: 'true'"),
        ("null: 1", "1:1: found the key null, which is not text; quote it: 'null'"),
        ("{? : 1}", "1:3: found a value without a key; write the key before the colon"),
        ("a: 1\n---\nb: 2", "2:1: found a second document; give it a file of its own"),
        ("a: 1\n---\n", "2:1: found a second document; give it a file of its own"),
        ("%YAML 1.1\n---\na: 1", "1:1: found % at the start of a line; directives are not part of the language"),
        ("%FOO\n---\na: 1", "1:1: found % at the start of a line; directives are not part of the language"),
        ("a: 1e400", "1:4: found 1e400, which is beyond the range of a number; write one within, or quote it"),
        ("a: -1e400", "1:4: found -1e400, which is beyond the range of a number; write one within, or quote it"),
        ("a: 1e-400", "1:4: found 1e-400, which is beyond the range of a number; write one within, or quote it"),
        ("", "1:1: the file is empty; write a mapping"),
        ("# nothing\n\n", "1:1: the file is empty; write a mapping"),
        ("---\n...\n", "2:1: the file is empty; write a mapping"),
        ("---\n# nothing\n", "3:1: the file is empty; write a mapping"),
    ],
)
def test_what_the_language_lacks_is_refused_with_a_place_and_a_cure(text: str, mistake: str) -> None:
    assert [mistake] == [found[: len(mistake)] for found in mistakes(text)]


@pytest.mark.parametrize(
    "tag", ["!!str", "!!python/object/apply:os.system", "!local", "!", "!<tag:yaml.org,2002:int>", "!!merge"]
)
@pytest.mark.parametrize("value", ["1", "[1]", "{b: 1}", "'x'"])
def test_tags_are_refused(tag: str, value: str) -> None:
    (mistake,) = mistakes(f"a: {tag} {value}")

    assert mistake.startswith("1:4: found the tag ")
    assert mistake.endswith("; tags are not part of the language, remove it or quote the text")


@pytest.mark.parametrize(
    ("text", "place", "cure"),
    [
        ("\ta: 1", "1:1", "found a tab; use spaces, or write \\t in double-quoted text"),
        ("a:\n\tb: 1", "2:1", "found a tab; use spaces"),
        ("a:\n  \tb: 1", "2:3", "found a tab; use spaces"),
        ("a: 1\t# aligned", "1:5", "found a tab; use spaces"),
        ("a: |\n  x\ty", "2:4", "found a tab; use spaces"),
        ("a: 'x\0'", "1:6", "found U+0000 (a control character or one without a name)"),
        ("a: \x1b[0m", "1:4", "found U+001B"),
        ("a: 1\rb: 2", "1:5", "found U+000D"),
        ("a: x\x85b: 1", "1:5", "found U+0085"),
        ("a: x\u2028b: 1", "1:5", "found U+2028 (LINE SEPARATOR), which does not show in an editor; remove it"),
        ("a:\u00a01", "1:3", "found U+00A0 (NO-BREAK SPACE), which does not show in an editor; use a space"),
        ("a: b\u200bc", "1:5", "found U+200B (ZERO WIDTH SPACE)"),
        ("# \u202e", "1:3", "found U+202E (RIGHT-TO-LEFT OVERRIDE)"),
        ("a: 1\nb: \ufeff", "2:4", "found U+FEFF (ZERO WIDTH NO-BREAK SPACE)"),
        ("a: \ud800", "1:4", "found U+D800"),
        ("a: \uffff", "1:4", "found U+FFFF"),
        ('a: "x\\0"', "1:4", "found U+0000"),
        ('a: "\\ud800"', "1:4", "found U+D800"),
        ('"\\u200b": 1', "1:1", "found U+200B"),
    ],
)
def test_characters_that_do_not_show_are_refused(text: str, place: str, cure: str) -> None:
    (mistake,) = mistakes(text)

    assert f"{place}: {cure}" == mistake[: len(f"{place}: {cure}")]


def test_line_breaks_and_tabs_may_be_written_as_escapes() -> None:
    assert {"a": "x\ty\nz"} == data('a: "x\\ty\\nz"')


@pytest.mark.parametrize("escape", ["\\UFFFFFFFF", "\\U00110000"])
def test_escapes_beyond_unicode_are_refused(escape: str) -> None:
    assert ["1:7: the escape names no Unicode character; mend its digits"] == mistakes(f'a: "{escape}"')


@pytest.mark.parametrize(
    ("text", "place", "cure"),
    [
        ("a: b: c", "1:5", "quote text that has ': ' in it, or indent the line as its neighbours"),
        ("a: 1\n b: 2", "2:3", "quote text that has ': ' in it, or indent the line as its neighbours"),
        ("a:\n  b: 1\n c: 2", "3:2", "indent the line as its neighbours, and quote text with special characters"),
        ("a: @x", "1:4", "quote the text"),
        ("a: `x`", "1:4", "quote the text"),
        ("a: [1, 2", "1:9", "separate items by commas, and close every bracket"),
        ("a: {b: 1, c: 2]", "1:15", "separate items by commas, and close every bracket"),
        ("a: 'x", "1:6", "close the quotation marks"),
        ('a: "\\q"', "1:6", "double the backslash, or use single quotation marks"),
        ("a: 1\nb\nc: 2", "3:1", "write `key: value`, and quote text of several lines"),
        ("a: !foo!b c", "1:4", "tags are not part of the language, quote the text"),
        ("a: 1\n...\nb: 2", "3:1", "write one document, without `...`"),
    ],
)
def test_syntax_errors_have_a_place_and_a_cure(text: str, place: str, cure: str) -> None:
    (mistake,) = mistakes(text)

    assert mistake.startswith(f"{place}: ")
    assert mistake.endswith(f"; {cure}")


def test_a_syntax_error_names_the_line_where_the_broken_thing_starts() -> None:
    (mistake,) = mistakes("a: 1\nb: [1,\n  2\nc: 3")

    assert mistake.startswith(
        "4:2: expected ',' or ']', but got ':' while parsing a flow sequence that starts at line 2"
    )


def test_several_mistakes_are_reported_at_once_in_the_order_of_the_file() -> None:
    text = "a: *x\nb: &y 1\na: 2\n7: 2\nc: d: e"

    assert ["1:4", "2:4", "3:1", "4:1", "5:5"] == [mistake[:3] for mistake in mistakes(text)]


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ("{a: ", "}")])
def test_nesting_has_a_limit(opening: str, closing: str) -> None:
    read(opening * DEEPEST + "1" + closing * DEEPEST, "x.yaml")

    (mistake,) = mistakes(opening * (DEEPEST + 1) + "1" + closing * (DEEPEST + 1))

    column = len(opening) * DEEPEST + 1
    assert f"1:{column}: found more than 20 levels of mappings and lists; use fewer" == mistake


def test_absurd_nesting_is_refused_too() -> None:
    assert ["1:21: found more than 20 levels of mappings and lists; use fewer"] == mistakes("[" * 100_000)


def test_a_file_is_read_under_the_name_that_errors_show(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(b"\xef\xbb\xbfa: 1\r\nb: \xc2\xb5\r\n")

    document = read_file(tmp_path / "x.yaml", "schemes/x.yaml")

    assert {"a": 1, "b": "µ"} == document.data
    assert "schemes/x.yaml:2:4" == str(document.place_of(("b",)))


def refusal(path: Path) -> str:
    with pytest.raises(SourceError) as caught:
        read_file(path, "schemes/x.yaml")
    return str(caught.value)


def test_a_file_that_does_not_exist_is_a_mistake_without_its_absolute_path(tmp_path: Path) -> None:
    assert "schemes/x.yaml:1:1: cannot be read: No such file or directory" == refusal(tmp_path / "x.yaml")


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    assert "schemes/x.yaml:1:1: cannot be read: Is a directory" == refusal(tmp_path)


def test_a_name_that_no_file_can_have_is_a_mistake(tmp_path: Path) -> None:
    assert "schemes/x.yaml:1:1: cannot be read: embedded null byte" == refusal(tmp_path / "x\0.yaml")


def test_bytes_that_are_not_utf8_are_refused_at_their_place(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes("\ufeffa: 1\r\nµ: b".encode() + b"\xe9\n")

    assert "schemes/x.yaml:2:5: byte 0xe9 is not UTF-8; save the file as UTF-8" == refusal(tmp_path / "x.yaml")


def test_utf16_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes("a: 1\n".encode("utf-16"))

    assert "schemes/x.yaml:1:1: byte 0xff is not UTF-8; save the file as UTF-8" == refusal(tmp_path / "x.yaml")


def test_files_have_a_largest_size(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(b"a: 1\n" + b"#" * (LARGEST - 5))
    assert isinstance(read_file(tmp_path / "x.yaml", "schemes/x.yaml"), Document)

    (tmp_path / "x.yaml").write_bytes(b"a: 1\n" + b"#" * (LARGEST - 4))
    assert "schemes/x.yaml:1:1: the file has more than 1048576 bytes; split it" == refusal(tmp_path / "x.yaml")


def test_texts_have_the_same_largest_size() -> None:
    assert ["1:1: the file has more than 1048576 bytes; split it"] == mistakes("#" * (LARGEST + 1))
