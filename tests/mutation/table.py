"""Verdicts as data and as text: the score of each kind of mutation, what is equal and why, what survived."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from .run import RUNGS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .run import Verdict


def data(verdicts: list[Verdict], reasons: Mapping[str, str]) -> dict[str, Any]:
    """Counts by kind and rung, the equal mutants with the reason, and those that survived with what was compared."""
    kinds: dict[str, Counter[str]] = {}
    equal: dict[str, str] = {}
    survived: dict[str, str] = {}
    for verdict in verdicts:
        reason = reasons.get(verdict.mutant.change)
        if not verdict.caught and verdict.equal and reason is not None:
            equal[verdict.mutant.change] = reason
        elif not verdict.caught:
            survived[verdict.mutant.change] = f"{'equal in' if verdict.equal else 'near in'} {verdict.words}"
        word = verdict.rung or ("equal" if verdict.mutant.change in equal else "survived")
        kinds.setdefault(verdict.mutant.kind, Counter())[word] += 1
    return {"kinds": {kind: dict(count) for kind, count in sorted(kinds.items())}, "equal": equal, "survived": survived}


def table(found: dict[str, Any]) -> str:
    """The data as lines of text."""
    columns = (*RUNGS, "equal", "survived")
    width = max(map(len, found["kinds"]), default=0)
    lines = [" " * width + "".join(f"  {column}" for column in columns)]
    for kind, count in found["kinds"].items():
        lines.append(
            kind.ljust(width) + "".join(f"  {count.get(column, 0) or '':>{len(column)}}" for column in columns)
        )
    total = sum(sum(count.values()) for count in found["kinds"].values())
    equal, survived = len(found["equal"]), len(found["survived"])
    lines += ["", "equal, byte for byte:", *(f"  {change}: {why}" for change, why in found["equal"].items())]
    if survived:
        lines += ["", "survived:", *(f"  {change}: {words}" for change, words in found["survived"].items())]
    caught = total - equal - survived
    lines += ["", f"{total} mutants: {caught} caught, {equal} equal for a reason, {survived} survived"]
    share = 100.0 * caught / max(caught + survived, 1)
    return "\n".join([*lines, f"score {share:.1f} %"])
