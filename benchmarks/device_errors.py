"""What is checked of one backend: its errors against float64, graphs, torch.compile, batch-invariant mode."""

from __future__ import annotations

import dataclasses
import math
import random
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from device_model import (
    FULL,
    dequantized,
    expected,
    product,
    random_layer,
    random_x,
    row_errors,
    unmodelled,
    whole_error,
)

import qscheme
from qscheme.layer import LayerFacts
from qscheme.tables import load
from qscheme.types import BATCH_INVARIANT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from device_model import Expected, RandomLayer

    from qscheme.binding import Bound
    from qscheme.machine import Facts
    from qscheme.types import Backend, Reason, Scheme

QUANTIZED = 0.005
"""What the error against the float64 product of the quantized operands may be; bf16 output alone makes 0.0017."""

ROWS = (1, 3, 16, 17, 31, 32, 64, 65, 200, 1024)
QUICK_ROWS = (1, 3, 17, 65)
RAGGED = ((17, 40), (33, 96), (96, 272), (520, 1000), (96, 512), (200, 640), (1056, 1408), (384, 1280), (2112, 7168))
"""N and K to draw from, odd ones first."""

SERVED = (
    (4096, 7168), (7168, 2048), (2112, 7168), (7168, 18432), (24576, 1536), (3072, 1536), (512, 7168), (7168, 256),
    (4608, 7168), (1280, 8192), (8192, 1024), (8192, 8192), (8192, 28672), (57344, 8192), (10240, 8192), (7168, 8192),
    (16384, 16384), (18432, 16384), (106496, 16384), (16384, 53248), (1536, 7168), (36864, 7168), (5120, 8192),
)  # fmt: skip
"""N and K that models have and that kernel libraries tune; the first that suits a scheme is timed."""

Result = dict[str, Any]


def every_backend(schemes: Sequence[str]) -> list[tuple[Scheme, Backend]]:
    """Every backend of these schemes of the shipped tables, with its scheme."""
    found = [load().scheme(name) for name in schemes]
    return [(scheme, backend) for scheme in found for backend in scheme.backends]


def reasons_here(scheme: Scheme, backend: Backend, facts: Facts) -> list[str]:
    """Why a backend cannot be checked here, whatever the layer's shape."""
    unknown = unmodelled(scheme)
    if unknown:
        return [unknown]
    reasons = backend.why_not(facts, LayerFacts(n=4096, k=8192))
    return [reason.text for reason in reasons if reason.kind not in ("layer", "tuned")]


def check(
    scheme: Scheme,
    backend: Backend,
    facts: Facts,
    device: torch.device,
    quick: bool,
    largest: int = max(ROWS),
    most_shapes: int = 3,
) -> Result:
    """One backend on random layers of a few shapes. largest: of the numbers of rows that it may be called with."""
    shapes, unsuited = suitable(backend, facts, 1 if quick else most_shapes)
    found: Result = {"scheme": scheme.name, "backend": backend.name, "shapes": [], "unsuited": unsuited, "failures": []}
    if not shapes:
        found["failures"].append(f"no shape suits it: {unsuited}")
    rows = [m for m in (QUICK_ROWS if quick else ROWS) if m <= largest]
    small = [m for m in (3, 17, 200) if m <= largest]
    for index, (n, k) in enumerate(shapes):
        given = (scheme, backend, facts, device, n, k)
        wanted = torch.float16 if index == 2 and takes(backend, facts, n, k, "fp16") else torch.bfloat16
        steps = {"errors": partial(errors, *given, index % 2 == 1, wanted, rows, found)}
        if index == 0:
            steps["compile"] = partial(compiles, *given, small, found)
            steps["invariance"] = partial(invariant, *given, rows, found)
            if device.type == "cuda":
                steps["graph"] = partial(graphs, *given, small[-1], found)
        for name, step in steps.items():
            failed = guarded(step)
            if failed:
                found["failures"].append(f"{name}, N={n} K={k}: {failed}")
    return found


def guarded(step: Callable[[], None]) -> str | None:
    """Run a step; the error that it raises, of any kind, in a line."""
    try:
        step()
    except Exception as error:
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"
    return None


def suitable(backend: Backend, facts: Facts, count: int) -> tuple[list[tuple[int, int]], dict[str, list[str]]]:
    """Shapes that a backend takes, ragged ones in random order before those of models; why it takes no others."""
    found: list[tuple[int, int]] = []
    unsuited: dict[str, list[str]] = {}
    for n, k in [*random.sample(RAGGED, len(RAGGED)), *SERVED]:
        reasons = reasons_against(backend, facts, n, k)
        if reasons:
            unsuited.setdefault(reasons[0].text, []).append(f"{n}x{k}")
        elif len(found) < count:
            found.append((n, k))
        if len(found) == count and (n, k) not in RAGGED:
            break
    return found, unsuited


def reasons_against(backend: Backend, facts: Facts, n: int, k: int, out_dtype: str = "bf16") -> list[Reason]:
    """Why a backend does not take a layer without bias."""
    return backend.why_not(facts, LayerFacts(n=n, k=k, out_dtype=out_dtype))


def takes(backend: Backend, facts: Facts, n: int, k: int, out_dtype: str) -> bool:
    """Whether a backend writes an output dtype."""
    return not reasons_against(backend, facts, n, k, out_dtype)


def bound_to(layer: RandomLayer, backend: Backend, facts: Facts) -> Bound:
    return qscheme.dispatch(layer, facts, backend=backend.name)


def exact(backend: Backend) -> bool:
    """Whether a backend quantizes by qscheme's own arithmetic, which divides exactly if it is not compiled."""
    return all(kernel.library == "qscheme" for kernel in backend.quantizers)


def few(samples: int) -> float:
    """By what a bound for the mean of many squares grows for so few: three standard deviations, at most twice."""
    return min(2, 1 + 3 / math.sqrt(2 * samples))


def judged(found: Result, what: str, y: torch.Tensor, right: Expected, slack: bool) -> dict[str, float]:
    """The error of the whole and of its worst row; a failure if they are over what is allowed, slack included."""
    rows, whole = row_errors(y, right.y), whole_error(y, right.y)
    size = right.y.norm(dim=1)
    loose = right.slack if slack else torch.zeros_like(size)
    allowed = QUANTIZED * few(right.y.numel()) + float((loose * size).norm()) / (float(size.norm()) or 1.0)
    of_row = QUANTIZED * few(right.y.shape[1])
    over = rows - of_row - loose
    if not whole <= allowed or not bool((over <= 0).all()):
        worst = int(over.argmax())
        found["failures"].append(
            f"{what}: error {whole:.4g}, allowed {allowed:.4g}; "
            f"row {worst} {float(rows[worst]):.4g}, allowed {of_row + float(loose[worst]):.4g}"
        )
    return {"whole": whole, "row": float(rows.max()), "allowed": allowed}


def errors(
    scheme: Scheme, backend: Backend, facts: Facts, device: torch.device, n: int, k: int, bias: bool,
    dtype: torch.dtype, rows: Sequence[int], found: Result,
) -> None:  # fmt: skip
    """The errors of one layer for each number of rows: of x, of codes, and against the x that was not quantized."""
    layer = random_layer(scheme, n, k, bias, dtype)
    bound = bound_to(layer.to(device), backend, facts)
    activation, allowed = bound.activation, QUANTIZED
    if scheme.activation is not None and activation is not None:
        allowed = FULL[scheme.activation.format] * (2 if activation.rule.round == "truncate" else 1)
        if activation.rule.scale != "amax_div" and scheme.activation.format == "fp8_e4m3":
            allowed *= 1.25  # small x of a tile whose power of two is up to twice its scale are subnormal more often
        found["rule"] = list(activation.rule)
    shape: Result = {"n": n, "k": k, "bias": bias, "dtype": str(dtype), "allowed_full": allowed, "rows": {}}
    found["shapes"].append(shape)
    loose = not exact(backend)
    for m in rows:
        failed = guarded(partial(one_error, scheme, layer, bound, device, m, loose, shape, found))
        if failed:
            found["failures"].append(f"N={n} K={k} M={m}: {failed}")


def one_error(
    scheme: Scheme, layer: RandomLayer, bound: Bound, device: torch.device, m: int, loose: bool, shape: Result,
    found: Result,
) -> None:  # fmt: skip
    """The errors for one number of rows, added to those of the shape."""
    n, k, allowed, dtype = shape["n"], shape["k"], shape["allowed_full"], layer.out_dtype
    at = f"N={n} K={k} M={m}"
    x = random_x(scheme, m, k, dtype)
    right = expected(x, layer, scheme.activation, bound.activation)
    poison(m, n, device, dtype)
    y = bound(x.to(device))
    poison(m, n, device, dtype)
    full = whole_error(y, product(x.double(), layer))
    shape["rows"][m] = {"x": judged(found, at, y, right, loose), "full": full}
    of_codes = y
    if scheme.activation is not None:
        of_codes = bound(right.codes.to(device), x_scale=right.scale.to(device))
        shape["rows"][m]["codes"] = judged(found, f"{at}, quantized codes", of_codes, right, slack=False)
    allowed *= few(m * min(n, k))
    shape["rows"][m]["allowed_full"] = allowed
    if not full <= allowed:
        found["failures"].append(f"{at}: {full:.4g} off the x that was not quantized, allowed {allowed:.4g}")
    if y.dtype != dtype or of_codes.dtype != dtype:
        found["failures"].append(f"{at}: {y.dtype} and {of_codes.dtype} instead of {dtype}")


def poison(m: int, n: int, device: torch.device, dtype: torch.dtype) -> None:
    """Leave NaN in the memory that the next output is likely to get."""
    torch.full((m, n), math.nan, device=device, dtype=dtype)


def graphs(
    scheme: Scheme, backend: Backend, facts: Facts, device: torch.device, n: int, k: int, m: int, found: Result
) -> None:
    """Capture once; replay with another x, and again after the layer's weights were replaced."""
    layer, other = (random_layer(scheme, n, k, False, torch.bfloat16) for _ in range(2))
    if layer.weight_scale.dtype != other.weight_scale.dtype:
        other = dataclasses.replace(other, weight_scale=layer.weight_scale)
        other.values = dequantized(other.weight, other.weight_scale, scheme.weight.granularity)
    bound = bound_to(layer.to(device), backend, facts)
    x = random_x(scheme, m, k).to(device)
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(3):
            bound(x)
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = bound(x)
    found["graph"] = {}
    for name, now in (("x", layer), ("refresh", other)):
        if now is other:
            bound.refresh(other.to(device))
        new = random_x(scheme, m, k)
        x.copy_(new)
        y.fill_(math.nan)
        graph.replay()
        torch.cuda.synchronize(device)
        right = expected(new, now, scheme.activation, bound.activation)
        found["graph"][name] = judged(found, f"graph replayed after another {name}", y, right, not exact(backend))


def compiles(
    scheme: Scheme, backend: Backend, facts: Facts, device: torch.device, n: int, k: int, rows: Sequence[int],
    found: Result,
) -> None:  # fmt: skip
    """torch.compile in one graph, for every number of rows."""
    layer = random_layer(scheme, n, k, True, torch.bfloat16)
    bound = bound_to(layer.to(device), backend, facts)
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    compiled = torch.compile(
        lambda x: bound(x), fullgraph=True, backend="inductor" if device.type == "cuda" else "aot_eager"
    )
    found["compile"] = {"rows": {}}
    for m in sorted(rows, reverse=True):
        x = random_x(scheme, m, k)
        given = x.to(device)
        torch._dynamo.mark_dynamic(given, 0)
        right = expected(x, layer, scheme.activation, bound.activation)
        found["compile"]["rows"][m] = judged(found, f"compiled, M={m}", compiled(given), right, slack=True)
    found["compile"]["graphs"] = counters["stats"]["unique_graphs"]


def invariant(
    scheme: Scheme, backend: Backend, facts: Facts, device: torch.device, n: int, k: int, rows: Sequence[int],
    found: Result,
) -> None:  # fmt: skip
    """Whether a row has the same bits however many rows there are, if the backend runs in batch-invariant mode."""
    mode = dataclasses.replace(facts, switches={**facts.switches, BATCH_INVARIANT: True})
    reasons = reasons_against(backend, mode, n, k)
    if reasons:
        found["batch_invariant"] = "; ".join(reason.text for reason in reasons)
        return
    layer = random_layer(scheme, n, k, False, torch.bfloat16)
    bound = bound_to(layer.to(device), backend, mode)
    x = random_x(scheme, max(rows), k).to(device)
    y = bound(x)
    differing = [m for m in rows if not torch.equal(bound(x[:m]), y[:m])]
    right = expected(x, layer, scheme.activation, bound.activation)
    found["batch_invariant"] = {
        "differing_rows": differing,
        **judged(found, "batch-invariant mode", y, right, not exact(backend)),
    }
    if differing:
        found["failures"].append(f"batch-invariant mode: other bits for M of {differing}")
