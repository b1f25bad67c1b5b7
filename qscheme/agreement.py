"""Whether the ranks of a group decided alike, before a collective would mix results that differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

import torch.distributed as distributed

from qscheme.decision import Decision
from qscheme.errors import Disagreement, QschemeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from qscheme.binding import Bound

    Traits: TypeAlias = Mapping[str, str] | None


class _Collectives(Protocol):
    """The part of `torch.distributed` that torch leaves untyped."""

    def all_gather_object(
        self, object_list: list[object], obj: object, group: distributed.ProcessGroup | None = None
    ) -> None: ...


_ABSENT = "absent"
"""Stands for what a rank does not have."""


def agree(layers: Mapping[str, Bound | Decision], group: distributed.ProcessGroup | None = None) -> None:
    """Compare the decisions of every rank of a group, and refuse a difference by name.

    layers: the same names on every rank, such as the names of the modules. group: the default group if None; a process
    that is not in it returns at once. A collective call: every rank of the group must make it, and each raises the
    same Disagreement if the fingerprints of a layer differ or a rank lacks it. It says which trait differs (backend,
    call, form or rule of a kernel, FP8 flavour, output) with its words on each rank; ranks are those of the group.

    Raises QschemeError if torch.distributed has no process group.
    """
    if not distributed.is_available() or not distributed.is_initialized():
        raise QschemeError("agree: needs a process group, found none; call torch.distributed.init_process_group first")
    if distributed.get_rank(group) < 0:
        return
    decisions = {name: layer if isinstance(layer, Decision) else layer.decision for name, layer in layers.items()}
    prints = cast(
        "list[dict[str, str]]", _gathered({name: found.fingerprint for name, found in decisions.items()}, group)
    )
    names = dict.fromkeys(name for known in prints for name in known)
    differing = [name for name in names if len({known.get(name) for known in prints}) > 1]
    if not differing:
        return
    mine = {name: _traits(decisions[name]) for name in differing if name in decisions}
    traits = cast("list[dict[str, dict[str, str]]]", _gathered(mine, group))
    raise Disagreement({name: _differences([known.get(name) for known in traits]) for name in differing})


def _gathered(mine: object, group: distributed.ProcessGroup | None) -> list[object]:
    """An object of every rank, in the order of ranks."""
    every: list[object] = [None] * distributed.get_world_size(group)
    cast("_Collectives", distributed).all_gather_object(every, mine, group)
    return every


def _traits(decision: Decision) -> dict[str, str]:
    return {"scheme": decision.scheme, "backend": decision.chosen or "none", **dict(decision.traits)}


def _differences(ranks: Sequence[Traits]) -> Iterator[str]:
    """One line for each trait that is not the same on every rank that has the layer, or for the ranks without it."""
    if any(rank is None for rank in ranks):
        yield _line("layer", [_ABSENT if rank is None else "present" for rank in ranks])
    known = [rank for rank in ranks if rank is not None]
    for trait in dict.fromkeys(trait for rank in known for trait in rank):
        words = [_ABSENT if rank is None else rank.get(trait, _ABSENT) for rank in ranks]
        if len({rank.get(trait, _ABSENT) for rank in known}) > 1:
            yield _line(trait, words)


def _line(trait: str, words: Sequence[str]) -> str:
    """`backend: aiter_ck on ranks 0 and 2, aiter_triton on rank 1`."""
    told: list[str] = []
    for word in dict.fromkeys(words):
        ranks = [str(rank) for rank, said in enumerate(words) if said == word]
        last = f" and {ranks.pop()}" if len(ranks) > 1 else ""
        told.append(f"{word} on rank{'s' * bool(last)} {', '.join(ranks)}{last}")
    return f"{trait}: {', '.join(told)}"
