"""Reads tables of tuned shapes as kernel libraries ship them, without importing the libraries."""

from __future__ import annotations

import csv
import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from qscheme.errors import QschemeError, suggestion

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from qscheme.types import Device, TunedTable

_Row = tuple[str | None, int, int, int, int]
"""architecture (None where a file has no such column), compute units, M, N, K."""

_Simulated = tuple[str, str, int | None, int, int, int]
"""table, architecture, compute units (None for any), M, N, K."""

COLUMNS = ("cu_num", "M", "N", "K")
"""The columns of a CSV file that say for which machine and shape a row is."""

_HEADER = ("table", "arch", "cu_num", "M", "N", "K")
NOTHING: tuple[int, list[str]] = (1, [])


class UnreadableError(Exception):
    """A file that cannot be read as a table; the text says where and why."""


SIZES = {"small": (0, 31), "medium": (32, 128), "large": (129, 256), "xlarge": (257, sys.maxsize)}
ROWS = re.compile(rf"any|M_(LEQ|GEQ)_(\d+)|({'|'.join(SIZES)})(?:_M(\d+))?")
"""A key of a JSON file: the numbers of rows that its configuration is for. Words stand for the first and the last M in
releases before AITER v0.1.8, with `_M32` for those of which 32 is the next power of two."""


@dataclass(frozen=True, slots=True)
class AllTuned:
    """Takes every shape for tuned."""

    def untuned(
        self, table: TunedTable, device: Device, compute_units: int | None, n: int, k: int, every: tuple[int, ...]
    ) -> str | None:
        """None: nothing is untuned."""
        return None


@dataclass(frozen=True, slots=True)
class NothingTuned:
    """Takes no shape for tuned."""

    def untuned(
        self, table: TunedTable, device: Device, compute_units: int | None, n: int, k: int, every: tuple[int, ...]
    ) -> str | None:
        """That the tables were given as none."""
        return "no row, tuned tables were given as none"


ALL_TUNED, NOTHING_TUNED = AllTuned(), NothingTuned()


@dataclass(frozen=True, slots=True)
class TunedRows:
    """Tuned shapes that were given as rows (table, arch, compute units or None for any, M, N, K)."""

    rows: frozenset[_Simulated]
    origin: str

    def untuned(
        self, table: TunedTable, device: Device, compute_units: int | None, n: int, k: int, every: tuple[int, ...]
    ) -> str | None:
        """The M in `every` that no row has."""

        def has(m: int, units: int | None) -> bool:
            return (table.name, device.arch, units, m, n, k) in self.rows

        missing = [m for m in every if not has(m, None) and (compute_units is None or not has(m, compute_units))]
        return _no_row(missing, n, k, device, compute_units, self.origin) if missing else None


class TunedFiles:
    """The tables that an installed kernel library carries, read when they are first asked for.

    root: the folder of the library's package. overrides: values of environment variables that replace a table's files,
    by name, each one path or several joined by `os.pathsep`; those that do not exist count only if none does.

    A CSV table (one row for each architecture, number of compute units, M, N and K) has a shape if a row is there for
    exactly this architecture, this number of compute units, M, N and K. Files of releases before AITER v0.1.12.post2
    have no column for the architecture; there the compute units alone tell. AITER itself looks three times: for M, for
    M rounded up to 16, 32, 64 or 128 (the larger M, the coarser), and for the next power of two, or 8192 where M is
    over 8192 and N over 4096. All are M itself for a power of two from 16 to 8192, which conditions ask for. For any
    other M this answers "no row" where AITER may take the row of a larger one.
    A row that stands twice, in one file or in several, counts once. Rows that have another value than the table asks
    for in a column (AITER keeps INT8 and FP8 rows in one file, told apart by q_dtype_w) do not count.

    A JSON table (one file for each N and K, a key for each range of M) has a shape if the file for exactly N and K is
    there and a key (see `ROWS`) other than `any` covers M. AITER calls a configuration tuned by the same test. Of the
    places where releases keep that file the first one that has it counts.

    A file that cannot be read makes every shape of its table untuned, and is told. Files are read once (twice if two
    threads race), and not again when they change.
    """

    __slots__ = ("_keys", "_rows", "overrides", "root")

    def __init__(self, root: str | Path, overrides: Mapping[str, str] | None = None) -> None:
        self.root = Path(root)
        self.overrides = dict(overrides or {})
        self._rows: dict[str, frozenset[_Row] | str] = {}
        self._keys: dict[Path, tuple[str, ...] | str | None] = {}

    def __reduce__(self) -> tuple[type[TunedFiles], tuple[Path, dict[str, str]]]:
        return TunedFiles, (self.root, self.overrides)

    def __repr__(self) -> str:
        return f"TunedFiles({str(self.root)!r}, {self.overrides!r})"

    def untuned(
        self, table: TunedTable, device: Device, compute_units: int | None, n: int, k: int, every: tuple[int, ...]
    ) -> str | None:
        """What was found instead of a row for each M in `every`, for logical N and K; None if each one is there."""
        if table.kind == "json":
            return self._json(table, device, n, k, every)
        return self._csv(table, device, compute_units, n, k, every)

    def _csv(
        self, table: TunedTable, device: Device, units: int | None, n: int, k: int, every: tuple[int, ...]
    ) -> str | None:
        rows = self._rows.get(table.name)
        if rows is None:
            try:
                rows = frozenset(row for path in self._files(table) for row in _rows(path, table.rows))
            except UnreadableError as problem:
                rows = str(problem)
            rows = self._rows.setdefault(table.name, rows)
        if isinstance(rows, str):
            return rows
        if units is None:
            return f"an unknown number of compute units of {device.arch}"
        missing = [m for m in every if (device.arch, units, m, n, k) not in rows and (None, units, m, n, k) not in rows]
        return _no_row(missing, n, k, device, units, table.name) if missing else None

    def _files(self, table: TunedTable) -> list[Path]:
        """The CSV files of a table, sorted by path within each pattern."""
        override = self.overrides.get(table.variable or "", "")
        if override:
            paths = [Path(part) for part in override.split(os.pathsep) if Path(part).is_file()]
            if not paths:
                raise UnreadableError(f"{table.variable}={override}, which is no file")
            return paths
        paths = [path for pattern in table.files for path in sorted(self.root.glob(pattern)) if path.is_file()]
        if not paths:
            raise UnreadableError(f"no file {' or '.join(table.files)} in the installed {table.library}")
        return list(dict.fromkeys(paths))

    def _json(self, table: TunedTable, device: Device, n: int, k: int, every: tuple[int, ...]) -> str | None:
        products = dict(table.products)
        for pattern in table.files:
            if "{product}" in pattern and device.arch not in products:
                continue
            name = pattern.format(arch=device.arch, product=products.get(device.arch, ""), n=n, k=k)
            path = self.root / name
            if path not in self._keys:
                self._keys.setdefault(path, _keys(path))
            keys = self._keys[path]
            if isinstance(keys, str):
                return keys
            if keys is not None:
                missing = [m for m in every if not any(_covers(key, m) for key in keys)]
                return f"{path.name} without a key for M={_words(missing)}" if missing else None
        return f"no file of {table.name} for N={n} and K={k} on {device.arch}"


@dataclass(frozen=True, slots=True)
class TunedLibraries:
    """The tables of several installed kernel libraries, by name of the library."""

    libraries: Mapping[str, TunedFiles]

    def untuned(
        self, table: TunedTable, device: Device, compute_units: int | None, n: int, k: int, every: tuple[int, ...]
    ) -> str | None:
        """What the table's library says; where it is not installed, that it is not."""
        if table.library not in self.libraries:
            return f"no installed {table.library}"
        return self.libraries[table.library].untuned(table, device, compute_units, n, k, every)


def read_tuned(path: str | Path, known: Iterable[str] | None = None) -> TunedRows:
    """Tuned shapes for a simulation, from a CSV file with the header `table,arch,cu_num,M,N,K`.

    Each row says that a table has the shape. `cu_num` may be empty: any number of compute units. K is logical, not
    halved for packed FP4. Blank lines and lines that start with `#` are skipped; a row may stand twice.
    known: the names of the tables there are, None to take any.
    Raises QschemeError with every mistake, each as `file:line: message`.
    """
    path = Path(path)
    rows: set[_Simulated] = set()
    problems: list[str] = []
    names = None if known is None else frozenset(known)
    try:
        for line, cells in _under(path, _HEADER):
            found = _simulated(cells, names)
            if isinstance(found, str):
                problems.append(f"{path}:{line}: {found}")
            else:
                rows.add(found)
    except UnreadableError as problem:
        problems.append(str(problem))
    if problems:
        raise QschemeError("\n".join(problems))
    return TunedRows(frozenset(rows), str(path))


def _under(path: Path, header: tuple[str, ...]) -> Iterator[tuple[int, list[str]]]:
    """The lines of a CSV file after its header, which must be this one."""
    lines = lines_of(path)
    line, found = next(lines, NOTHING)
    if tuple(found) != header:
        raise UnreadableError(
            f"{path}:{line}: needs the header {','.join(header)}, found {','.join(found) or 'nothing'}"
        )
    yield from lines


def _simulated(cells: list[str], names: frozenset[str] | None) -> _Simulated | str:
    """A row of a simulation, or what is wrong with it."""
    if len(cells) != len(_HEADER):
        return f"needs {len(_HEADER)} cells, found {len(cells)}"
    table, arch, units, *shape = cells
    if names is not None and table not in names:
        return f"unknown table {table!r}{suggestion(table, names)}"
    if not arch:
        return "arch needs the name of an architecture, found nothing"
    try:
        m, n, k = (positive(name, text) for name, text in zip("MNK", shape, strict=True))
        return table, arch.partition(":")[0], positive("cu_num", units) if units else None, m, n, k
    except ValueError as problem:
        return str(problem)


def _rows(path: Path, only: Iterable[tuple[str, tuple[str, ...]]]) -> Iterator[_Row]:
    """The rows of one CSV file of a kernel library; only: the columns and the values in them that count."""
    lines = lines_of(path)
    line, header = next(lines, NOTHING)
    absent = [name for name in COLUMNS if name not in header]
    if absent:
        raise UnreadableError(f"{path}:{line}: needs the column {absent[0]}, found {', '.join(header) or 'nothing'}")
    places = [header.index(name) for name in COLUMNS]
    arch = header.index("gfx") if "gfx" in header else None
    wanted = [(header.index(column), values) for column, values in only if column in header]
    for line, cells in lines:
        if len(cells) != len(header):
            raise UnreadableError(f"{path}:{line}: needs {len(header)} cells, found {len(cells)}")
        try:
            units, m, n, k = (positive(name, cells[place]) for name, place in zip(COLUMNS, places, strict=True))
        except ValueError as problem:
            raise UnreadableError(f"{path}:{line}: {problem}") from None
        if all(cells[place] in values for place, values in wanted):
            yield (None if arch is None else cells[arch], units, m, n, k)


def lines_of(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The lines of a CSV file that say something, each with its number from 1 and its cells trimmed."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            for cells in reader:
                trimmed = [cell.strip() for cell in cells]
                if any(trimmed) and not trimmed[0].startswith("#"):
                    yield reader.line_num, trimmed
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise UnreadableError(f"{path}: cannot be read: {problem}") from problem


def positive(name: str, text: str) -> int:
    """A positive whole number; spreadsheets and data frames may have written it as 16.0."""
    whole = text.removesuffix(".0")
    if not (whole.isascii() and whole.isdigit() and int(whole) > 0):
        raise ValueError(f"{name} needs a positive whole number, found {text!r}")
    return int(whole)


def _keys(path: Path) -> tuple[str, ...] | str | None:
    """The keys of a JSON file; None if it does not exist, a text if it cannot be read."""
    try:
        content: object = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as problem:
        return f"{path}: cannot be read: {problem}"
    if not isinstance(content, dict):
        return f"{path}: needs an object with a key for each range of M, found another value"
    return tuple(str(key) for key in cast("dict[object, object]", content))


def _covers(key: str, m: int) -> bool:
    """Whether a key other than `any` of a JSON file stands for M."""
    found = ROWS.fullmatch(key)
    side, limit, size, bound = found.groups() if found else (None,) * 4
    if limit:
        return m <= int(limit) if side == "LEQ" else m >= int(limit)
    low, high = SIZES.get(size or "", (1, 0))
    return low <= m <= high and (not bound or 1 << max(m - 1, 0).bit_length() == int(bound))


def _no_row(missing: list[int], n: int, k: int, device: Device, units: int | None, place: str) -> str:
    whole = "" if units is None else f" with {units} compute units"
    return f"no row for M={_words(missing)}, N={n}, K={k} on {device.arch}{whole} in {place}"


def _words(numbers: list[int]) -> str:
    return " and ".join(filter(None, (", ".join(map(str, numbers[:-1])), str(numbers[-1]))))
