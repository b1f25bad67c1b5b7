"""A choice among ordered releases, in words."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def ranges(releases: Sequence[str], chosen: Sequence[bool]) -> str:
    """`v1.0 to v1.4`, several joined by `and`, with the gaps between them named; `no release` if none is chosen."""
    runs: list[tuple[bool, str]] = []
    for inside, group in groupby(zip(chosen, releases, strict=True), key=lambda pair: pair[0]):
        names = [name for _, name in group]
        runs.append((inside, names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"))
    inner = runs[1 if runs and not runs[0][0] else 0 : -1 if runs and not runs[-1][0] else None]
    kept = [text for inside, text in inner if inside]
    gaps = [text for inside, text in inner if not inside]
    if not kept:
        return "no release"
    return " and ".join(kept) + (f" (not {', '.join(gaps)})" if gaps else "")
