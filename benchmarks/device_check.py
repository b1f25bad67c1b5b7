"""Run every backend that can run on this machine's device against float64, and time it beside the others.

    python benchmarks/device_check.py [--device cuda] [--json FILE] [--quick] [--aiter-triton WHEEL_OR_FOLDER]

For every scheme and every backend that nothing speaks against: random layers of ragged shapes, with and without bias,
for one to 1024 rows, x and quantized codes; CUDA-graph capture, replayed with another x and after `Bound.refresh`;
torch.compile(fullgraph=True) with a dynamic number of rows; the same bits for any number of rows where the tables
claim that. Then the time of each backend, from CUDA graphs of calls over rotating copies of the weight.

README.md beside this file says what the columns mean. Exits with 1 if a check fails. On ROCm torch.cuda is HIP, and
the same command runs AITER's compiled kernels. A CPU runs the checks that need no GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import logging
import math
import platform
import random
import statistics
import subprocess
import sys
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from device_model import FULL, dequantized, expected, product, random_layer, random_x, row_errors, whole_error

import qscheme
from qscheme.tables import load
from qscheme.types import BATCH_INVARIANT, LayerFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from device_model import Expected, RandomLayer

    from qscheme.binding import Bound
    from qscheme.types import Backend, Facts, Reason, Scheme

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

TIMED_ROWS = (1, 16, 64, 128, 512, 4096)
COLD = 200_000_000 if torch.version.hip is None else 800_000_000
"""Bytes of weights to rotate through: three times the last cache (60 MB on an H200, 256 MB on an MI300X)."""

Result = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", help="as torch names it; the GPU if there is one, else the CPU")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write everything that was found here")
    parser.add_argument("--quick", action="store_true", help="one small shape, few rows, one timed shape")
    parser.add_argument("--seed", type=int, help="of the random layers; drawn if it is not given, and printed")
    parser.add_argument("--aiter-triton", metavar="WHEEL_OR_FOLDER", help="run AITER's Triton kernels on an NVIDIA GPU")
    parser.add_argument("--scheme", action="append", help="this scheme alone; may be given again")
    options = parser.parse_args()
    logging.getLogger("qscheme").setLevel(logging.ERROR)  # fallbacks are checked on purpose here
    schemes = options.scheme or load().schemes
    seed = options.seed if options.seed is not None else random.randrange(2**31)
    random.seed(seed)
    torch.manual_seed(seed)
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    facts = qscheme.Facts.of_this_machine(device)
    report: Result = {"seed": seed, "quick": options.quick, **described(device, facts)}
    print(json.dumps(report, indent=2), flush=True)
    report["backends"], report["refused"] = checked(schemes, facts, device, options.quick)
    print_checks(report["backends"], report["refused"])
    if device.type == "cuda":
        report["times"] = timed(schemes, facts, device, options.quick)
        print_times(report["times"])
    failures = [f"{row['scheme']} {row['backend']}: {text}" for row in report["backends"] for text in row["failures"]]
    written(report, options.json)
    if options.aiter_triton:
        failed = guarded(partial(on_nvidia, options.aiter_triton, schemes, device, options.quick, report))
        rows = report.get("aiter_on_nvidia", {}).get("backends", [])
        failures += [f"AITER on NVIDIA: {failed}"] if failed else []
        failures += [f"AITER {row['scheme']} {row['backend']}: {text}" for row in rows for text in row["failures"]]
    report["failures"] = failures
    written(report, options.json)
    print("\n" + "\n".join(["FAILED", *failures] if failures else ["everything that ran is right"]))
    return 1 if failures else 0


def written(report: Result, file: Path | None) -> None:
    """Write what was found so far, numbers to five digits."""

    def short(value: object) -> object:
        if isinstance(value, dict):
            return {str(key): short(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [short(item) for item in value]
        return float(f"{value:.5g}") if isinstance(value, float) else value

    if file is not None:
        file.write_text(json.dumps(short(report), indent=1) + "\n")


def on_nvidia(source: str, schemes: Sequence[str], device: torch.device, quick: bool, report: Result) -> None:
    """Run AITER's Triton kernels from a wheel, and add what was found to the report."""
    import aiter_on_nvidia

    report["aiter_on_nvidia"] = found = aiter_on_nvidia.checked(source, schemes, device, quick)
    print(f"\nAITER {found['aiter']}: its Triton kernels on this GPU, as on {found['arch']}; {found['note']}")
    print_checks(found["backends"], found["refused"])
    for name, error in found["dynamic_mxfp4_quant"].items():
        print(f"AITER's own dynamic_mxfp4_quant, {name}: {error:.4f} off x")


def described(device: torch.device, facts: Facts) -> Result:
    """The device, its driver and the versions of what runs on it."""
    versions: Result = {"python": platform.python_version(), "torch": torch.__version__}
    versions["cuda"], versions["hip"] = torch.version.cuda, torch.version.hip
    for name in ("triton", "pytorch-triton-rocm", "amd-aiter", "aiter", "qscheme"):
        found = next(iter(metadata.distributions(name=name)), None)
        if found is not None:
            versions[name] = found.version
    origins = {name: text for name, text in facts.origins.items() if not name.startswith("library")}
    about: Result = {"arch": facts.arch, "compute_units": facts.compute_units, "origins": origins}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        about |= {"name": properties.name, "memory": properties.total_memory, "driver": _driver()}
        about["compute_units"] = properties.multi_processor_count
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": about,
        "versions": versions,
    }


def _driver() -> str:
    amd = Path("/sys/module/amdgpu/version")
    if amd.is_file():
        return amd.read_text().strip()
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def checked(
    schemes: Sequence[str], facts: Facts, device: torch.device, quick: bool
) -> tuple[list[Result], list[Result]]:
    """Every backend of every scheme: what was found of those that can run, and why the others cannot."""
    rows, refused = [], []
    for scheme, backend in every_backend(schemes):
        reasons = hardware_reasons(backend, facts)
        if reasons:
            refused.append({"scheme": scheme.name, "backend": backend.name, "reasons": reasons})
        else:
            rows.append(check(scheme, backend, facts, device, quick))
            print(f"  {scheme.name} {backend.name}: {'; '.join(rows[-1]['failures']) or 'right'}", flush=True)
    return rows, refused


def every_backend(schemes: Sequence[str]) -> list[tuple[Scheme, Backend]]:
    """Every backend of these schemes of the shipped tables, with its scheme."""
    found = [load().scheme(name) for name in schemes]
    return [(scheme, backend) for scheme in found for backend in scheme.backends]


def hardware_reasons(backend: Backend, facts: Facts) -> list[str]:
    """Why a backend runs no layer here, whatever its shape."""
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


def judged(found: Result, what: str, y: torch.Tensor, right: Expected, slack: bool = True) -> dict[str, float]:
    """The error of the whole and of its worst row; a failure if they are over what is allowed."""
    rows, whole = row_errors(y, right.y), whole_error(y, right.y)
    allowed = QUANTIZED + (right.slack if slack else 0)
    if not whole <= QUANTIZED or not bool((rows <= allowed).all()):
        found["failures"].append(f"{what}: error {whole:.4g}, worst row {float(rows.max()):.4g}, allowed {QUANTIZED}")
    return {"whole": whole, "row": float(rows.max())}


def errors(
    scheme: Scheme, backend: Backend, facts: Facts, device: torch.device, n: int, k: int, bias: bool,
    dtype: torch.dtype, rows: Sequence[int], found: Result,
) -> None:  # fmt: skip
    """The errors of one layer for each number of rows: of x, of codes, and against the x that was not quantized."""
    layer = random_layer(scheme, n, k, bias, dtype)
    bound = bound_to(layer.to(device), backend, facts)
    operand, rule = scheme.activation, bound.activation.rule
    allowed = FULL[operand.format] * (2 if rule.round == "truncate" else 1)
    shape: Result = {"n": n, "k": k, "bias": bias, "dtype": str(dtype), "allowed_full": allowed, "rows": {}}
    found["rule"] = list(rule)
    found["shapes"].append(shape)
    for m in rows:
        at = f"N={n} K={k} M={m}"
        x = random_x(scheme, m, k, dtype)
        right = expected(x, layer, operand, bound.activation)
        poison(m, n, device, dtype)
        y = bound(x.to(device))
        poison(m, n, device, dtype)
        of_codes = bound(right.codes.to(device), x_scale=right.scale.to(device))
        full = whole_error(y, product(x.double(), layer))
        shape["rows"][m] = {
            "x": judged(found, at, y, right),
            "codes": judged(found, f"{at}, quantized codes", of_codes, right, slack=False),
            "full": full,
        }
        if not full <= allowed:
            found["failures"].append(f"{at}: {full:.4g} off the x that was not quantized, allowed {allowed}")
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
        found["graph"][name] = judged(found, f"graph replayed after another {name}", y, right)


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
        found["compile"]["rows"][m] = judged(found, f"compiled, M={m}", compiled(given), right)
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
    found["batch_invariant"] = {"differing_rows": differing, **judged(found, "batch-invariant mode", y, right)}
    if differing:
        found["failures"].append(f"batch-invariant mode: other bits for M of {differing}")


def timed(schemes: Sequence[str], facts: Facts, device: torch.device, quick: bool) -> list[Result]:
    """The time of every backend of every scheme that runs here, and of bf16 torch.nn.functional.linear beside it."""
    found: list[Result] = []
    bf16: dict[tuple[int, int, int], float] = {}
    for name in schemes:
        scheme = load().scheme(name)
        here = [backend for backend in scheme.backends if not hardware_reasons(backend, facts)]
        for place, (n, k) in enumerate(timed_shapes(here, facts)[: 1 if quick else 2]):
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


def print_checks(rows: Sequence[Result], refused: Sequence[Result]) -> None:
    """A line for each backend with its worst errors, and what it was called with."""
    columns = "".join(
        f"{word:>9}" for word in ("x", "row", "codes", "full", "graph", "refresh", "compile", "invariant")
    )
    print(f"\n{'scheme':20} {'backend':24} {columns}")
    for row in rows:
        every = [error for shape in row["shapes"] for error in shape["rows"].values()]
        graph, compiled, mode = row.get("graph", {}), row.get("compile", {}), row.get("batch_invariant")
        worst = [
            max((error["x"]["whole"] for error in every), default=None),
            max((error["x"]["row"] for error in every), default=None),
            max((error["codes"]["row"] for error in every), default=None),
            max((error["full"] for error in every), default=None),
            graph.get("x", {}).get("row"),
            graph.get("refresh", {}).get("row"),
            max((error["row"] for error in compiled.get("rows", {}).values()), default=None),
        ]
        cells = "".join(f"{'-' if number is None else format(number, '.4f'):>9}" for number in worst)
        same = "-" if not isinstance(mode, dict) else "no" if mode["differing_rows"] else "yes"
        print(f"{row['scheme']:20} {row['backend']:24} {cells}{same:>9}{'  FAILED' if row['failures'] else ''}")
        where = ", ".join(f"{shape['n']}x{shape['k']}{'+bias' if shape['bias'] else ''}" for shape in row["shapes"])
        calls = f"torch.compile: {compiled.get('graphs', '-')} graphs for M of {sorted(compiled.get('rows', {}))}"
        print(f"    N x K: {where}; {calls}")
        for reason, shapes in row["unsuited"].items():
            print(f"    not {', '.join(shapes[:4])}{' ...' if len(shapes) > 4 else ''}: {reason}")
        for text in row["failures"]:
            print(f"    FAILED {text}")
    for entry in refused:
        print(f"{entry['scheme']:20} {entry['backend']:24} cannot run here: {entry['reasons'][0]}")


def print_times(rows: Sequence[Result]) -> None:
    title = "us of each backend that runs, in order of preference; gain of the first over the best other, over bf16"
    print(f"\n{'scheme':20} {'N,K':>12} {'M':>5}  {title}")
    for row in rows:
        times = {name: us for name, us in row["us"].items() if isinstance(us, float)}
        if not times:
            continue
        first, *others = times
        best = min(others, key=lambda name: times[name], default=None)
        compiled = row.get("compiled_us", {})
        cells = ", ".join(
            f"{name} {us:.1f}" + (f" (compiled {compiled[name]:.1f})" if name in compiled else "")
            for name, us in times.items()
        )
        gain = f"{times[best] / times[first]:.2f}x {best}" if best else "no other"
        shape = f"{row['n']},{row['k']}"
        print(
            f"{row['scheme']:20} {shape:>12} {row['m']:>5}  {cells}; {gain}, {row['bf16_us'] / times[first]:.2f}x bf16"
        )


if __name__ == "__main__":
    sys.exit(main())
