"""What decisions depend on, one axis each, with the finitely many values that some conditions tell apart."""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from qscheme.compiler import ir


Kind: TypeAlias = Literal["arch", "library", "size", "output", "fused", "tuned", "switch"]
Value: TypeAlias = "str | int | None"

UNKNOWN = "unknown"
"""Stands for every architecture that the tables do not know."""

OUTPUTS = ("bf16", "fp16", "fp32")

PRESENT = ("torch",)
"""The libraries without which nothing asks for a decision; any other may be absent."""


class Axis(NamedTuple):
    """One thing that decisions depend on, with every value that they tell apart.

    values: architectures; versions of a library, the oldest first, None where it is absent; for N and K the smallest
    number of each class; output dtypes; 1 and 0 for what holds or does not. multiples, minima: what tells sizes apart.
    rows: the M for which a table must have rows, for `tuned`; they are asked for together or not at all. order: the
    positions of values, those that an example had better have first.
    """

    kind: Kind
    name: str
    values: tuple[Value, ...]
    multiples: tuple[int, ...] = ()
    minima: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    order: tuple[int, ...] = ()

    @property
    def full(self) -> int:
        """The mask of every value."""
        return (1 << len(self.values)) - 1

    @property
    def word(self) -> str:
        """How a size is told: `N`, `full N`."""
        return f"{self.name[:-1].replace('_', ' ')}{self.name[-1].upper()}"

    @property
    def table(self) -> str:
        """The tuned table of a `tuned` axis."""
        return self.name.partition(" ")[0]

    def mask(self, holds: Callable[[Value], bool]) -> int:
        """The values for which something holds."""
        return sum(1 << at for at, value in enumerate(self.values) if holds(value))

    def among(self, values: Iterable[Value]) -> int:
        """Those values that are among some."""
        known = frozenset(values)
        return self.mask(lambda value: value in known)

    def sizes(self, multiple: int = 1, least: int = 1) -> int:
        """The sizes that are a multiple of a number and large enough."""
        return self.mask(lambda size: isinstance(size, int) and size % multiple == 0 and size >= least)

    def alike(self, one: int, other: int) -> bool:
        """Whether no condition tells two sizes apart."""
        divides = all((one % number == 0) == (other % number == 0) for number in self.multiples)
        return divides and all((one >= least) == (other >= least) for least in self.minima)

    def reaching(self, size: int, least: int) -> int:
        """A size that no condition tells apart from one, and that is large enough: the least if it will do."""
        step = math.lcm(*self.multiples)
        return least if self.alike(size, least) else size + -(-max(least - size, 0) // step) * step

    def chosen(self, mask: int) -> tuple[Value, ...]:
        """The values of a mask."""
        return tuple(value for at, value in enumerate(self.values) if mask >> at & 1)

    def best(self, mask: int) -> tuple[int, int]:
        """The value of a mask that an example had better have: its rank and its position."""
        order = self.order or range(len(self.values))
        return next((rank, at) for rank, at in enumerate(order) if mask >> at & 1)


def arch_axis(archs: Iterable[str]) -> Axis:
    """The architectures of some devices, an unknown one last."""
    return Axis("arch", "arch", (*dict.fromkeys(archs), UNKNOWN))


def library_axis(name: str, versions: Sequence[str], released: int) -> Axis:
    """The versions of a library, and its absence where it may be absent; released: those that are real releases."""
    absent = () if name in PRESENT else (None,)
    ranked = sorted(range(len(versions)), key=lambda at: (not released >> at & 1, -at))
    order = (*(at + len(absent) for at in ranked), *range(len(absent)))
    return Axis("library", name, (*absent, *versions), order=order)


def size_axes(needs: Sequence[ir.Needs], unit: tuple[int, int]) -> Iterator[Axis]:
    """N and K, and those of the whole layer where a condition asks for them. unit: what N and K are multiples of."""
    n = {number for need in needs for number in (need.n, *(row.n for row in need.where)) if number}
    k = {number for need in needs for number in (need.k, *(row.k for row in need.where)) if number}
    yield _sizes("n", frozenset(n), frozenset(need.min_n or 1 for need in needs), unit[0])
    yield _sizes("k", frozenset(k), frozenset(need.min_k or 1 for need in needs), unit[1])
    whole = {"full_n": {need.full_n for need in needs}, "full_k": {need.full_k for need in needs}}
    for name, numbers in whole.items():
        asked = {number for number in numbers if number}
        if asked:
            yield _sizes(name, frozenset(asked), frozenset[int](), 1)


def tuned_axes(needs: Iterable[ir.Needs]) -> Iterator[Axis]:
    """Each tuned table with the M that conditions ask for together."""
    asked = sorted({(row.table, row.every) for need in needs for row in need.tuned})
    together: dict[tuple[str, tuple[bool, ...]], list[int]] = {}
    for table, m in sorted({(table, m) for table, every in asked for m in every}):
        together.setdefault((table, tuple(m in every for named, every in asked if named == table)), []).append(m)
    for (table, _), rows in together.items():
        yield Axis("tuned", f"{table} {rows[0]}", (1, 0), rows=tuple(rows), order=(1, 0))


def flag_axis(kind: Kind, name: str, usual: bool) -> Axis:
    """What holds or does not."""
    return Axis(kind, name, (1, 0), order=(0, 1) if usual else (1, 0))


@lru_cache(maxsize=4096)
def _sizes(name: str, multiples: frozenset[int], minima: frozenset[int], unit: int) -> Axis:
    """The smallest size of each class: those that are multiples of the same numbers, and reach the same minima.

    The numbers that a size can be a multiple of, and of no others, are those that divide a common multiple of some of
    them. So between two minima each such common multiple is tried, times 1, 2, 3 and so on, until nothing else divides.
    """
    numbers = tuple(sorted(number for number in multiples if unit % number))
    floors = tuple(sorted(least for least in minima if least > unit))
    common = {unit}
    for number in numbers:
        common |= {math.lcm(other, number) for other in common}
    found: list[int] = []
    for low, high in zip((unit, *floors), (*floors, None), strict=True):
        for product in common:
            alone = [number for number in numbers if product % number == 0]
            for size in itertools.count(-(-low // product) * product, product):
                if high is not None and size >= high:
                    break
                if [number for number in numbers if size % number == 0] == alone:
                    found.append(size)
                    break
    return Axis("size", name, tuple(sorted(found)), numbers, floors)
