"""Writes docs/proof.md: for each backend which rungs of proof hold, from their results.

    python benchmarks/proof.py [--check]

It runs the tests of the second and third rung and refuses to write if one of them fails, checks every call against the
releases of AITER, and reads the results of `benchmarks/device_check.py` from docs/proof/*.json. --check runs nothing: it
compares the page with what the present tables and results say and exits 1 where they differ.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from qscheme.compiler.folder import read_folder
from qscheme.compiler.ranges import ranges
from qscheme.compiler.resolve import resolve
from qscheme.compiler.verify import against

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "proof.md"
EMULATED, INTERPRETED, ON_PAPER = "test_bindings_emulated", "test_bindings_interpreted", "test_bindings_releases"
TORCH, WEIGHT_ONLY = "test_torch_on_paper", "test_weight_only"
Key = tuple[str, str]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if not options.check:
        modules = [f"tests/{name}.py" for name in (EMULATED, INTERPRETED, ON_PAPER, TORCH, WEIGHT_ONLY)]
        found = subprocess.run([sys.executable, "-m", "pytest", *modules, "-p", "no:cacheprovider"], cwd=ROOT)
        if found.returncode:
            print("a rung does not hold; docs/proof.md is left as it is", file=sys.stderr)
            return 1
    text = page()
    if options.check:
        same = PAGE.read_text() == text
        print("docs/proof.md is up to date" if same else "docs/proof.md is stale; run python benchmarks/proof.py")
        return 0 if same else 1
    PAGE.write_text(text)
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


WHOLE_RUN = "AITER on NVIDIA: "
"""How a failure begins that is of a whole run and of no backend."""


def page() -> str:
    catalogue, problems = resolve(read_folder(ROOT / "schemes", ROOT / "schemes"))
    assert not problems, problems
    of_releases = releases(catalogue)
    emulated, interpreted = cases(EMULATED), cases(INTERPRETED)
    later, papers, own = of_later_releases(), on_paper(), of_our_own()
    devices = newest([json.loads(path.read_text()) for path in sorted((ROOT / "docs" / "proof").glob("*.json"))])
    lines = [INTRODUCTION.rstrip(), ""]
    lines += [
        "| scheme | backend | 1 releases of AITER | 2 AITER's Python | 3 interpreter | 4 GPU |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for scheme in catalogue.schemes:
        for backend in scheme.backends:
            key = (scheme.name, backend.name)
            of_aiter = any(kernel.symbols[0].startswith("aiter.") for kernel in backend.kernels)
            row = [
                of_releases.get(key, "not AITER's") if of_aiter else "not AITER's",
                "; ".join(filter(None, (counted(emulated.get(key)), later.get(key)))) or "no"
                if of_aiter
                else papers.get(key, "not AITER's"),
                counted(interpreted.get(key)) or "no" if of_aiter else own.get(key, "not AITER's"),
                "; ".join(filter(None, (on_gpu(device, key) for device in devices))) or "no",
            ]
            lines.append(f"| {scheme.name} | {backend.name} | {' | '.join(row)} |")
    for device in devices:
        lines += ["", *gpu_section(device)]
    return "\n".join(lines) + "\n"


def newest(reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One report for each device, with the newest run of every scheme and the failures of that run."""
    devices: dict[str, dict[str, Any]] = {}
    for report in sorted(reports, key=lambda report: str(report["date"])):
        device = devices.setdefault(
            report["device"]["name"],
            {
                "device": report["device"],
                "runs": [],
                "backends": [],
                "times": [],
                "failed_runs": [],
                "aiter_on_nvidia": {"backends": []},
            },
        )
        versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items() if version)
        device["runs"].append(f"{report['date'][:16].replace('T', ' ')}, {versions}")
        parts = ((device, report, ("backends", "times")), (device["aiter_on_nvidia"], of_aiter(report), ("backends",)))
        for into, part, names in parts:
            schemes = {row["scheme"] for row in (*part.get("backends", ()), *part.get("refused", ()))}
            for name in names:
                kept = [row for row in into[name] if row["scheme"] not in schemes]
                into[name] = sorted([*kept, *part.get(name, ())], key=lambda row: str(row["scheme"]))
        told = [failure for failure in report["failures"] if failure.startswith(WHOLE_RUN)]
        device["failed_runs"] += [f"{report['date'][:16].replace('T', ' ')}: {failure}" for failure in told]
    for device in devices.values():
        device["failures"] = device.pop("failed_runs") + [
            f"{whose}{row['scheme']} {row['backend']}: {text}"
            for whose, part in (("", device), ("AITER ", device["aiter_on_nvidia"]))
            for row in part["backends"]
            for text in row["failures"]
        ]
    return list(devices.values())


def of_aiter(report: dict[str, Any]) -> dict[str, Any]:
    """What a run found of AITER's Triton kernels, nothing where it was not asked."""
    return report.get("aiter_on_nvidia") or {}


def releases(catalogue: Any) -> dict[Key, str]:
    """The releases each backend works with, in the words of the matrix."""
    found: dict[Key, str] = {}
    for history in catalogue.histories:
        matrix = against(catalogue, history)
        for fit in matrix.backends:
            works = [cell != "does not" for cell in fit.cells]
            found[fit.scheme, fit.backend.name] = ranges(matrix.names, works)
    return found


def cases(module: str) -> dict[Key, list[Any]]:
    """The cases of a test module by scheme and backend; those that must be refused are left out."""
    sys.path.insert(0, str(ROOT / "tests"))
    loaded = importlib.import_module(module)
    found: dict[Key, list[Any]] = {}
    for arch, case in loaded.RUN:
        found.setdefault((case.scheme, case.backend), []).append((arch, case))
    return found


def of_later_releases() -> dict[Key, str]:
    """The backends of AITER that are called on paper, with the signatures of each of some releases."""
    loaded = importlib.import_module(ON_PAPER)
    found: dict[Key, list[Any]] = {}
    for scheme, backend, arch, _ in loaded.WORKING:
        found.setdefault((scheme, backend), []).extend((arch, case) for case in loaded.cases(scheme, backend))
    return {key: f"on paper, {counted(rows)}" for key, rows in found.items()}


def on_paper() -> dict[Key, str]:
    """The backends of torch that are called on paper."""
    loaded = importlib.import_module(TORCH)
    return {
        (scheme, backend): f"torch on paper, {', '.join(arches)}: {calls(len(arches) * len(loaded.ROWS))}"
        for scheme, backend, arches, _ in loaded.CASES
    }


def of_our_own() -> dict[Key, str]:
    """The backends of our own Triton kernels."""
    loaded = importlib.import_module(WEIGHT_ONLY)
    return {(scheme, loaded.BACKEND): f"our own: {len(loaded.cases_of(scheme))} calls" for scheme in loaded.SCHEMES}


def counted(rows: list[Any] | None) -> str | None:
    if not rows:
        return None
    return f"{', '.join(sorted({arch for arch, _ in rows}))}: {calls(sum(len(case.rows) for _, case in rows))}"


def calls(count: int) -> str:
    return f"{count} call" + "s" * (count != 1)


def on_gpu(device: dict[str, Any], key: Key) -> str | None:
    name = device["device"]["name"]
    for part, note in ((device, ""), (device["aiter_on_nvidia"], ", AITER's Triton kernels, some GEMM only")):
        for row in part["backends"]:
            if (row["scheme"], row["backend"]) == key:
                return f"{name}{note}" + (", with failures told below" if row["failures"] else "")
    return None


def gpu_section(device: dict[str, Any]) -> list[str]:
    lines = [f"## {device['device']['name']}", "", "The newest run of each scheme; runs:", ""]
    lines += [f"- {run}" for run in device["runs"]]
    lines += [
        "",
        "| scheme | backend | largest error against the float64 model | against unquantized x |",
        "| --- | --- | --- | --- |",
    ]
    for part in (device, device["aiter_on_nvidia"]):
        for row in part["backends"]:
            checks = [check for shape in row.get("shapes", ()) for check in shape.get("rows", {}).values()]
            if checks:
                whole = max(check["x"]["whole"] for check in checks)
                full = max(check["full"] for check in checks)
                lines.append(f"| {row['scheme']} | {row['backend']} | {whole:.4f} | {full:.4f} |")
    lines += ["", "Time of a whole call in a CUDA graph over cold weights, us (in brackets under torch.compile):", ""]
    lines += ["| scheme | N, K | M | each backend | bf16 F.linear |", "| --- | --- | --- | --- | --- |"]
    for row in device["times"]:
        compiled = row.get("compiled_us") or {}
        each = ", ".join(
            f"{name} {us:.1f}" + (f" ({compiled[name]:.1f})" if compiled.get(name) else "")
            for name, us in row["us"].items()
            if us
        )
        lines.append(f"| {row['scheme']} | {row['n']}, {row['k']} | {row['m']} | {each} | {row['bf16_us']:.1f} |")
    if device["failures"]:
        lines += ["", "What failed there:", "", *(f"- {failure}" for failure in device["failures"])]
    return lines


INTRODUCTION = """
# How the bindings are proven

No AMD GPU was at hand. Four rungs stand in for one, each a command; this page is written by `python benchmarks/proof.py` from
their results.

1. **Static.** `qscheme verify --all-releases`: every call that the YAML can make against the API of 53 AITER releases, by ast.
2. **AITER's own Python on the CPU.** `python -m pytest tests/test_bindings_emulated.py`: the real package amd-aiter 0.1.7.post2.dev18 with
   stand-ins for the ROCm probes and the compiled modules alone, which compute in float32 from the bytes they are given. A missing shuffle, a transposed
   scale or a swapped argument gives wrong numbers: `python -m tests.mutation` flips each of them, one at a time, and shows that each is caught or
   equal byte for byte. Releases that PyPI does not have are called on paper,
   by fakes with their exact signatures: `python -m pytest tests/test_bindings_releases.py`.
3. **AITER's real Triton kernels in Triton's CPU interpreter.** `python -m pytest tests/test_bindings_interpreted.py`. Where a backend's quantizer is compiled, the
   reference quantizer of the same rule takes its place ("GEMM only"). qscheme's own Triton kernels run there too, every code and scale byte included:
   `python -m pytest tests/test_weight_only.py`.
4. **The same Triton kernels, and every other backend that can run there, on a GPU.** `python benchmarks/device_check.py`.
   A compiled or AITER quantizer may divide approximately, so codes that stand between two values may go either way: a row's bound grows by what they
   can change. Where AITER's default tile exceeds the GPU's shared memory, its kernel is run with fewer pipeline stages.

torch's block-scaled products run on Blackwell and gfx950 alone. `python -m pytest tests/test_torch_on_paper.py` calls their bindings with a function of the
same signature, which makes the checks of torch's source and computes in float64 from the bytes it is given, scales read by the formula of the cuBLAS
documentation; the layout step is compared with torchao's.

None of them runs AITER's compiled HIP, CK and assembly kernels on an MI300X or MI355X. On such a machine the fourth command does. Model accuracy (gsm8k)
and throughput (tokens a second) were not measured.

The cells name the architectures and how many calls were compared with float64, each within 0.005.
"""


if __name__ == "__main__":
    sys.exit(main())
