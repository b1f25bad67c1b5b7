"""Findings about the calls of a backend: those that are never made, and neighbours that are one call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qscheme.compiler.lint_rules import finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qscheme.compiler import ir
    from qscheme.compiler.lint_rules import Finding
    from qscheme.compiler.lint_subject import Subject
    from qscheme.compiler.source import KeyPath


def call_findings(subject: Subject, index: int) -> Iterator[Finding]:
    """Calls that no M reaches in any mode that the backend runs in, and neighbours that are one call."""
    backend = subject.backends[index]
    modes = (False,) if backend.needs.varies_with_m else (False, True)
    end: dict[bool, int | None] = dict.fromkeys(modes, 0)
    before: ir.Call | None = None
    for row, call in enumerate(backend.calls):
        path: KeyPath = ("backends", index, "calls", row)
        reached = False
        for mode in modes:
            start = end[mode]
            if start is None or call.batch_invariant not in (None, mode):
                continue
            reached = reached or call.max_m is None or call.max_m >= max(start, 1)
            end[mode] = None if call.max_m is None else max(start, call.max_m + 1)
        if not reached:
            refused = call.batch_invariant is not False and bool(backend.needs.varies_with_m)
            varying = " and ".join(backend.needs.varies_with_m)
            why = f"batch-invariant mode refuses {backend.name}, for {varying}" if refused else "M = 0 needs no kernel"
            span = f"{call.min_m} to {'any' if call.max_m is None else call.max_m}"
            witness: tuple[tuple[str, str], ...] = (("M", span),)
            if refused:
                witness = (("switch batch_invariant", "on"), *witness)
            yield finding("QS110", subject.file, path, f"never made: {why}", "remove the call", witness)
        elif before is not None and _one_call(before, call):
            message = f"runs what the call above it runs: {', '.join(kernel.name for kernel in call.kernels)}"
            witness = (("M", f"{before.min_m} to {'any' if call.max_m is None else call.max_m}"),)
            yield finding("QS111", subject.file, path, message, "make one call of both", witness)
        before = call if reached else before


def _one_call(one: ir.Call, two: ir.Call) -> bool:
    """Whether neighbouring calls run the same, and their ranges join in one mode or are the same in both."""
    same = (one.quantize, one.options, one.gemm, one.x_scale) == (two.quantize, two.options, two.gemm, two.x_scale)
    return same and (one.batch_invariant == two.batch_invariant or one.max_m == two.max_m)
