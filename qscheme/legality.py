"""Which rows of a library's tables of tuned shapes cannot be right, without importing the library."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

from qscheme.errors import UnknownFact, suggestion
from qscheme.tuned import COLUMNS, NOTHING, ROWS, UnreadableError, lines_of, positive

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from qscheme.types import TunedTable

_Seen: TypeAlias = "dict[tuple[str, ...], tuple[str, str]]"
"""Each shape, with the place and the choice of its first row."""

KERNEL, SPLIT = "kernelName", "splitK"
"""The columns of a CSV file that say which kernel a shape takes, and how K is split."""


class Illegal(NamedTuple):
    """A row that cannot be right. place: the file with the line, or with the key of a JSON file."""

    table: str
    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


def tables_of(path: Path, tables: Mapping[str, TunedTable], name: str | None = None) -> list[TunedTable]:
    """The tables that a file belongs to, by the names of their files; or the one that is named.

    Two tables may share files and count different rows of them. Raises UnknownFact for a file or a name that no table
    has.
    """
    if name is not None:
        if name not in tables:
            raise UnknownFact(f"unknown tuned table {name!r}{suggestion(name, tables)}")
        return [tables[name]]
    found = [
        table
        for table in tables.values()
        if any(fnmatchcase(path.name, re.sub(r"\{\w+\}", "*", one).rpartition("/")[2]) for one in table.files)
    ]
    if found:
        return found
    raise UnknownFact(f"{path} has the name of no tuned table; name the table: {', '.join(sorted(tables))}")


def files_of(path: Path, tables: Mapping[str, TunedTable], name: str | None = None) -> list[tuple[Path, TunedTable]]:
    """A file with its table, or every file of every table in the folder of a library's package, sorted by path.

    Raises UnknownFact for a path that is not there, and what `tables_of` raises.
    """
    if path.is_file():
        return [(path, table) for table in tables_of(path, tables, name)]
    if not path.is_dir():
        raise UnknownFact(f"there is no file or folder {path}")
    patterns = [(table, re.sub(r"\{\w+\}", "*", pattern)) for table in tables.values() for pattern in table.files]
    found = {(file, table) for table, pattern in patterns if name in (None, table.name) for file in path.glob(pattern)}
    if not found:
        raise UnknownFact(f"{path} has no file of a tuned table; give the folder of the library's package, or a file")
    return sorted(found, key=lambda item: (item[0], item[1].name))


def illegal_rows(files: Iterable[tuple[Path, TunedTable]]) -> tuple[int, int, tuple[Illegal, ...]]:
    """The number of rows, of those that no table counts, and the illegal ones; of two rows for one shape, the second.

    A row of a CSV file is for an architecture, a number of compute units, M, N, K and the columns of the table's `key`.
    Its kernel must be one that the table knows; the kernel's tile along K must not be longer than K; a split along K
    must divide it, and leave each slice a tile. A key of a JSON file must stand for some M and no key twice; its tile
    and its split are held to the same. What another file repeats word for word is fine. Nothing is run: a legal row may
    still be slow or wrong.
    """
    found: list[Illegal] = []
    count = 0
    seen: _Seen = {}
    counted: set[str] = set()
    passed: set[str] = set()
    for path, table in files:
        rows = _json(path, table) if table.kind == "json" else _csv(path, table, seen)
        try:
            for place, messages in rows:
                if messages is None:
                    passed.add(place)
                    continue
                count += 1
                counted.add(place)
                found += [Illegal(table.name, place, message) for message in messages]
        except UnreadableError as problem:
            found.append(Illegal(table.name, *_parted(str(problem), path)))
    told_once = tuple({(one.place, one.message): one for one in reversed(found)}.values())[::-1]
    return count, len(passed - counted), told_once


def _parted(problem: str, path: Path) -> tuple[str, str]:
    """The place and the message of a problem that a reader told as one text."""
    place = re.match(rf"{re.escape(str(path))}(:\d+)?", problem)
    return (place[0], problem[place.end() + 2 :]) if place else (str(path), problem)


def _csv(
    path: Path, table: TunedTable, seen: dict[tuple[str, ...], tuple[str, str]]
) -> Iterator[tuple[str, list[str] | None]]:
    lines = lines_of(path)
    line, header = next(lines, NOTHING)
    absent = [name for name in (*COLUMNS, KERNEL, SPLIT) if name not in header]
    if absent:
        raise UnreadableError(f"{path}:{line}: needs the column {absent[0]}, found {', '.join(header) or 'nothing'}")
    for line, cells in lines:
        place = f"{path}:{line}"
        if len(cells) != len(header):
            yield place, [f"needs {len(header)} cells, found {len(cells)}"]
            continue
        row = dict(zip(header, cells, strict=True))
        if any(row.get(column, values[0]) not in values for column, values in table.rows):
            yield place, None  # a row of another table in the same file, or of none
            continue
        try:
            k = [positive(name, row[name]) for name in COLUMNS][-1]
        except ValueError as problem:
            yield place, [str(problem)]
            continue
        key = (table.name, *(row.get(name, "") for name in ("gfx", *COLUMNS, *table.key)))
        choice = f"{row[KERNEL]} with {SPLIT} {row[SPLIT]}"
        first, chosen = seen.setdefault(key, (place, choice))
        same = first == place or (chosen == choice and not first.startswith(f"{path}:"))
        twice = [] if same else [f"a second row for this shape; the first, at {first}, takes {chosen}"]
        yield place, [*twice, *_kernel_mistakes(row, k, table)]


def _kernel_mistakes(row: Mapping[str, str], k: int, table: TunedTable) -> Iterator[str]:
    name, split = row[KERNEL], row[SPLIT].removesuffix(".0")
    known = next(((found, splits) for pattern, splits in table.kernels if (found := _match(pattern, name))), None)
    if table.kernels and known is None:
        yield f"{KERNEL} {name!r} is no kernel of {table.name}"
    if not split.isdecimal():
        yield f"{SPLIT} needs a whole number, found {row[SPLIT]!r}"
    elif known is not None:
        tile = known[0].groupdict().get("k")
        slices = 1 << min(int(split), 32) if known[1] == "log2" else 1
        yield from _misfits(k, int(tile) if tile else None, slices)


def _match(pattern: str, name: str) -> re.Match[str] | None:
    """A kernel's name against a pattern, in which `*` is anything and `{k}` the number that is its tile along K."""
    text = re.escape(pattern).replace(r"\*", ".*?").replace(r"\{k\}", r"(?P<k>\d+)")
    return re.fullmatch(text, name)


def _misfits(k: int, tile: int | None, slices: int) -> Iterator[str]:
    if tile is not None and tile > k:
        yield f"a tile of {tile} along K is longer than K = {k}"
    if k % slices:
        yield f"a split into {slices} does not divide K = {k}"
    if tile is not None and slices > 1 and slices > (tiles := -(-k // tile)):
        yield f"a split into {slices} leaves slices without a tile: K = {k} has {tiles} of {tile}"


def _json(path: Path, table: TunedTable) -> Iterator[tuple[str, list[str]]]:
    shape = next((found for pattern in table.files if (found := _shape(path.name, pattern))), None)
    if shape is None:
        raise UnreadableError(f"{path}: needs a name with N and K, such as {table.files[0].rpartition('/')[2]}")
    try:
        content: object = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=list)
    except (OSError, ValueError) as problem:
        raise UnreadableError(f"{path}: cannot be read: {problem}") from problem
    seen: set[str] = set()
    for pair in cast("list[object]", content) if isinstance(content, list) else [None]:
        if not isinstance(pair, tuple):
            raise UnreadableError(f"{path}: needs an object with a key for each range of M, found another value")
        key, entries = cast("tuple[str, object]", pair)
        messages = ["stands twice"] if key in seen else []
        seen.add(key)
        if ROWS.fullmatch(key) is None:
            messages.append("stands for no M; write M_LEQ_x, M_GEQ_x or any")
        yield f"{path}: {key}", [*messages, *_entry_mistakes(entries, shape, table)]


def _shape(name: str, pattern: str) -> int | None:
    """The K in the name of a JSON file."""
    text = re.escape(pattern.rpartition("/")[2]).replace(r"\{k\}", r"(?P<k>\d+)").replace(r"\{n\}", r"\d+")
    found = re.fullmatch(re.sub(r"\\\{\w+\\\}", r"[^/]+", text), name)
    return int(found["k"]) if found and "k" in found.groupdict() else None


def _entry_mistakes(entries: object, k: int, table: TunedTable) -> Iterator[str]:
    pairs = cast("list[object]", entries) if isinstance(entries, list) else [None]
    given = dict(cast("tuple[str, object]", pair) for pair in pairs if isinstance(pair, tuple))
    if len(given) != len(pairs):
        yield "needs an object with a tile configuration and no entry twice, found another value"
    numbers: dict[str, int | None] = {}
    for role, entry in table.entries:
        value = given.get(entry)
        numbers[role] = value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
        if value is not None and numbers[role] is None:
            yield f"{entry} needs a positive whole number, found {value!r}"
    yield from _misfits(k, numbers.get("k"), numbers.get("splits") or 1)
