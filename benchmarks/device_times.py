"""The time of each backend, from CUDA graphs of calls over rotating copies of the weight."""

from __future__ import annotations

import statistics
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from device_errors import SERVED, Result, bound_to, guarded, reasons_against, reasons_here
from device_model import random_layer, random_x

from qscheme.tables import load

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qscheme.binding import Bound
    from qscheme.machine import Facts
    from qscheme.types import Backend, Scheme

TIMED_ROWS = (1, 16, 64, 128, 512, 4096)
COLD = 200_000_000 if torch.version.hip is None else 800_000_000
"""Bytes of weights to rotate through: three times the last cache (60 MB on an H200, 256 MB on an MI300X)."""


def timed(schemes: Sequence[str], facts: Facts, device: torch.device, quick: bool) -> list[Result]:
    """The time of every backend of each scheme that more than the reference runs here, and of bf16
    torch.nn.functional.linear beside it."""
    found: list[Result] = []
    bf16: dict[tuple[int, int, int], float] = {}
    for name in schemes:
        scheme = load().scheme(name)
        here = [backend for backend in scheme.backends if not reasons_here(scheme, backend, facts)]
        if all(backend.on_use == "warn" for backend in here):
            continue  # a fallback alone, which nobody takes for its speed
        for place, (n, k) in enumerate(timed_shapes(here, facts)[: 1 if quick else 2] if here else ()):
            runs = [backend for backend in here if not reasons_against(backend, facts, n, k)]
            layer = random_layer(scheme, n, k, False, torch.bfloat16)
            size = layer.weight.numel() * layer.weight.element_size()
            bounds: dict[str, list[Bound]] = {}
            for backend in runs:
                bounds[backend.name] = [
                    bound_to(layer.to(device), backend, facts) for _ in range(max(4, -(-COLD // size)))
                ]
            for m in TIMED_ROWS[::2] if quick else TIMED_ROWS:
                x = random_x(scheme, m, k).to(device)
                if (n, k, m) not in bf16:
                    copies = range(max(4, -(-COLD // (2 * n * k))))
                    weights = [torch.randn(n, k, device=device, dtype=x.dtype) for _ in copies]
                    bf16[n, k, m] = graph_us([partial(_linear, weight) for weight in weights], x)
                us: Result = {}
                for backend_name, calls in bounds.items():
                    failed = guarded(lambda: us.update({backend_name: graph_us(calls, x)}))  # noqa: B023
                    if failed:
                        us[backend_name] = failed
                found.append({"scheme": name, "n": n, "k": k, "m": m, "us": us, "bf16_us": bf16[n, k, m]})
            if quick or place:
                continue
            for backend in runs:
                if backend.on_use == "quiet":
                    rows = [row for row in found if (row["scheme"], row["n"], row["k"]) == (name, n, k)]
                    guarded(partial(compiled_us, scheme, bounds[backend.name], rows, device))
    return found


def _linear(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, weight)


def compiled_us(scheme: Scheme, calls: Sequence[Bound], rows: Sequence[Result], device: torch.device) -> None:
    """Add the time under torch.compile, which fuses what it can look into, for more than one row.

    All copies are compiled in one graph, each with an x of its own, so that nothing can be shared between them.
    """
    torch._dynamo.reset()
    compiled = torch.compile(lambda inputs: [call(x) for call, x in zip(calls, inputs, strict=True)], dynamic=True)
    for row in reversed(rows):
        if row["m"] > 1:
            inputs = [random_x(scheme, row["m"], row["k"]).to(device) for _ in calls]
            us = graph_us([compiled], inputs) / len(calls)
            row.setdefault("compiled_us", {})[calls[0].backend] = us


def timed_shapes(here: Sequence[Backend], facts: Facts) -> list[tuple[int, int]]:
    """The shapes of models that most of these backends take, in order."""

    def count(shape: tuple[int, int]) -> int:
        return sum(not reasons_against(backend, facts, *shape) for backend in here)

    return sorted(SERVED, key=count, reverse=True)


def graph_us(calls: Sequence[Callable[[Any], Any]], x: Any) -> float:
    """The median time of a call in us: a graph of one call for each copy of the weight, replayed."""
    for call in calls[:2]:
        call(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call(x)
    samples: list[float] = []
    for index in range(12):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        if index >= 2:
            samples.append(start.elapsed_time(end) * 1e3 / len(calls))
        if index >= 6 and sum(samples) * len(calls) > 2e5:
            break
    return statistics.median(samples)
