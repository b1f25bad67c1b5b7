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
import datetime
import json
import logging
import platform
import random
import subprocess
import sys
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from device_errors import Result, check, every_backend, guarded, reasons_here
from device_times import timed

import qscheme
from qscheme.tables import load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qscheme.machine import Facts


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
        file.write_text(json.dumps(short(report)) + "\n")


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
        reasons = reasons_here(scheme, backend, facts)
        if reasons:
            refused.append({"scheme": scheme.name, "backend": backend.name, "reasons": reasons})
        else:
            rows.append(check(scheme, backend, facts, device, quick))
            print(f"  {scheme.name} {backend.name}: {'; '.join(rows[-1]['failures']) or 'right'}", flush=True)
    return rows, refused


def print_checks(rows: Sequence[Result], refused: Sequence[Result]) -> None:
    """A line for each backend with its worst errors, and what it was called with."""
    columns = "".join(f"{word:>9}" for word in ("x", "row", "codes", "full", "graph", "refresh", "compile"))
    print(f"\n{'scheme':20} {'backend':24} {columns} same bits")
    for row in rows:
        every = [error for shape in row["shapes"] for error in shape["rows"].values()]
        graph, compiled, mode = row.get("graph", {}), row.get("compile", {}), row.get("batch_invariant")
        worst = [
            max((error["x"]["whole"] for error in every), default=None),
            max((error["x"]["row"] for error in every), default=None),
            max((error["codes"]["row"] for error in every if "codes" in error), default=None),
            max((error["full"] for error in every), default=None),
            graph.get("x", {}).get("row"),
            graph.get("refresh", {}).get("row"),
            max((error["row"] for error in compiled.get("rows", {}).values()), default=None),
        ]
        cells = "".join(f"{'-' if number is None else format(number, '.4f'):>9}" for number in worst)
        same = "-" if not isinstance(mode, dict) else "no" if mode["differing_rows"] else "yes"
        print(f"{row['scheme']:20} {row['backend']:24} {cells}{same:>10}{'  FAILED' if row['failures'] else ''}")
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
