"""The needs of a backend and of its kernels, merged into one list of conditions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from qscheme.compiler import ir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from qscheme.compiler import model
    from qscheme.compiler.source import KeyPath


def merged_needs(
    backend: model.BackendModel, kernels: list[tuple[ir.Kernel, model.Needs]], calls: tuple[ir.Call, ...]
) -> ir.Needs:
    """Lists of devices are intersected, multiples become common ones, minima the largest, all else is joined."""
    needs = [backend.needs, *(kernel_needs for _, kernel_needs in kernels)]
    arch = intersection([need.arch or None for need in needs])
    where = [
        ir.WhereNeed(
            tuple(name for name in row.arch if arch is None or name in arch),
            row.vendor,
            kernel.package if kernel else None,
            row.since,
            row.multiple_of.n if row.multiple_of else None,
            row.multiple_of.k if row.multiple_of else None,
            row.before,
        )
        for kernel, need in [(None, backend.needs), *kernels]
        for row in need.where
    ]
    return ir.Needs(
        arch=arch,
        vendor=intersection([need.vendor or None for need in needs]),
        mx=any(need.mx for need in needs) or None,
        int8=any(need.int8 for need in needs) or None,
        one_scale=any(need.one_scale for need in needs) or None,
        n=_folded([need.multiple_of.n for need in needs if need.multiple_of], math.lcm),
        k=_folded([need.multiple_of.k for need in needs if need.multiple_of], math.lcm),
        min_n=_folded([need.minimum.n for need in needs if need.minimum], max),
        min_k=_folded([need.minimum.k for need in needs if need.minimum], max),
        output=intersection([call.gemm.output for call in calls]) or (),
        inputs=intersection([_inputs(call) for call in calls]) or (),
        tuned=tuple(dict.fromkeys(ir.TunedNeed(row.table, row.m) for need in needs for row in need.tuned)),
        switches=tuple(dict.fromkeys(switch for need in needs for switch in need.switches)),
        where=tuple(dict.fromkeys(row for row in where if row.arch or row.vendor)),
        varies_with_m=_varying(calls),
    )


def nothing_in_common(
    backend: model.BackendModel, kernels: list[tuple[ir.Kernel, model.Needs]], calls: tuple[ir.Call, ...]
) -> Iterator[str]:
    """What is wrong where lists that must agree have no word in common."""
    needs = [backend.needs, *(kernel_needs for _, kernel_needs in kernels)]
    lists: dict[str, list[tuple[str, ...] | None]] = {
        "architecture": [need.arch or None for need in needs],
        "vendor": [need.vendor or None for need in needs],
        "output dtype": [call.gemm.output for call in calls],
        "dtype of x": [_inputs(call) for call in calls],
    }
    for what, words in lists.items():
        if intersection(words) == ():
            given = " and ".join(dict.fromkeys(f"[{', '.join(some)}]" for some in words if some))
            yield f"no {what} is left: {given} have none in common"


def misplaced(needs: model.Needs) -> Iterator[tuple[KeyPath, str]]:
    """Rows of `where` that say nothing, with the key path in the needs."""
    for position, row in enumerate(needs.where):
        if bool(row.arch) == bool(row.vendor):
            yield ("where", position), "needs either `arch` or `vendor`"
        if row.since is None and row.multiple_of is None:
            yield ("where", position), "says nothing; write `since` or `multiple_of`"
        elif row.before is not None and row.multiple_of is None:
            yield ("where", position, "before"), "belongs to `multiple_of`; write it beside"
        for place, name in enumerate(row.arch):
            if needs.arch and name not in needs.arch:
                yield ("where", position, "arch", place), f"{name} is not among the architectures of `arch` beside it"


def intersection(lists: list[tuple[str, ...] | None]) -> tuple[str, ...] | None:
    """The words that every given list has, in the order of the first; None if no list is given."""
    given = [words for words in lists if words is not None]
    if not given:
        return None
    return tuple(word for word in given[0] if all(word in words for words in given[1:]))


def _inputs(call: ir.Call) -> tuple[str, ...] | None:
    """The dtypes of x that a call takes, None for any."""
    return (call.quantize or call.gemm).inputs or None


def _varying(calls: tuple[ir.Call, ...]) -> tuple[str, ...]:
    """The GEMMs whose sums depend on M among the calls that batch-invariant mode would make."""
    reached: list[ir.Call] = []
    for call in calls:
        if call.batch_invariant is not False:
            reached.append(call)
            if call.max_m is None:
                break
    return tuple(dict.fromkeys(call.gemm.name for call in reached if not call.gemm.batch_invariant))


def _folded(numbers: Iterable[int | None], fold: Callable[[int, int], int]) -> int | None:
    folded: int | None = None
    for number in numbers:
        if number is not None:
            folded = number if folded is None else fold(folded, number)
    return folded
