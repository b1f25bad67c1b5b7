"""The main job on a CPU: which kernels would run where and why, a real result, and an edit of a scheme."""

from __future__ import annotations

import argparse
import difflib
import logging
import math
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import nn

import qscheme
from qscheme.numerics import dequantize, quantize
from qscheme.tables import load, shipped_schemes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qscheme.decision import Decision, Mismatch, Refusal
    from qscheme.types import Call, Layer

N, K = 7168, 2048
ARITHMETIC = 0.005
"""The largest relative error against float64 over the same codes and scales: what rounding a result to bf16 costs."""


@dataclass(frozen=True)
class Seed:
    """A scheme, its activation's static scale if it has one, and what its formats may lose of N(0, 1) inputs."""

    scheme: str
    loses: float
    input_scale: float | None = None


SEEDS = (
    Seed("fp8_block128", 0.05),
    Seed("int8_ptpc", 0.02),
    Seed("int8_tensor_static", 0.03, input_scale=5.5 / 127),
    Seed("mxfp4", 0.22),
)

console = Console()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31), help="of the random layers and inputs")
    seed: int = parser.parse_args().seed
    # Every fallback is in the tables below, with the reasons against what is better.
    logging.getLogger("qscheme").setLevel(logging.ERROR)
    machines = {
        "gfx942": qscheme.Facts.simulate("gfx942"),
        "gfx950, nothing tuned": qscheme.Facts.simulate("gfx950"),
        "gfx950, all tuned": qscheme.Facts.simulate("gfx950", tuned="all"),
        "this machine": qscheme.Facts.of_this_machine("cpu"),
    }
    heading(f"1. Which kernels would run a layer of N = {N}, K = {K} in bf16, and why not better ones")
    for choice in SEEDS:
        layer = shape(choice.scheme)
        show(choice.scheme, {name: qscheme.explain(layer, facts) for name, facts in machines.items()})

    random.seed(seed)
    torch.manual_seed(seed)
    heading(f"2. What this machine computes: ragged random x in bf16, against float64 (--seed {seed})")
    fine = [measure(choice) for choice in SEEDS]

    heading("3. Edit a scheme, generate, and another backend is chosen")
    with tempfile.TemporaryDirectory() as folder:
        fine.append(edit(Path(folder)))
    return 0 if all(fine) else 1


def heading(text: str) -> None:
    console.print(f"\n{text}", style="bold", highlight=False, soft_wrap=True)


def say(text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def shape(scheme: str) -> Layer:
    """A layer before its tensors are loaded."""
    layer = SimpleNamespace(
        scheme=scheme, weight=None, weight_scale=None, input_scale=None, bias=None, name="",
        out_dtype=torch.bfloat16, out_features=N, in_features=K,
    )  # fmt: skip
    return cast("Layer", layer)


def show(scheme: str, decisions: dict[str, Decision]) -> None:
    """What is chosen on each machine: a table on a terminal, lines elsewhere. Machines that agree share a row."""
    rows: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for machine, decision in decisions.items():
        runs = (*calls(decision.calls), *numerics(decision.mismatches))
        rows.setdefault((decision.chosen or "no backend", runs, refusals(decision.refused)), []).append(machine)
    title = f"{scheme}: {load().scheme(scheme).title}"
    if console.is_terminal:
        table = Table("machine", "runs on", "calls", "why nothing better", title=title, show_lines=True)
        for (chosen, runs, refused), machines in rows.items():
            cells = ("\n".join(machines), chosen, "\n".join(runs), "\n".join(refused))
            table.add_row(*map(escape, cells))
        console.print(table)
        return
    say(f"\n{title}")
    for (chosen, runs, refused), machines in rows.items():
        say(f"  {'; '.join(machines)}: {chosen}")
        for line in (*runs, *refused):
            say(f"      {line}")


def calls(made: Sequence[Call]) -> list[str]:
    return [f"{'any M' if call.when == 'always' else call.when}: {call.quantize}, {call.gemm}" for call in made]


def refusals(refused: Sequence[Refusal]) -> tuple[str, ...]:
    """The first reason against each, which is the one to mend first."""
    return tuple(
        f"not {refusal.backend}: {refusal.reasons[0].text}"
        + (f" (and {len(refusal.reasons) - 1} more)" if len(refusal.reasons) > 1 else "")
        for refusal in refused
    )


def numerics(mismatches: Sequence[Mismatch]) -> list[str]:
    """How each quantizer's rule differs from the scheme's."""
    differences: dict[str, list[str]] = {}
    for mismatch in mismatches:
        words = f"{mismatch.field} {mismatch.found} and not {mismatch.scheme}"
        differences.setdefault(mismatch.kernel, []).append(words)
    return [f"numerics of {kernel}: {', '.join(words)}" for kernel, words in differences.items()]


def measure(seed: Seed) -> bool:
    """A random layer on this machine against float64; whether both errors are in their bounds."""
    n, k = random.randrange(65, 400), 32 * random.randrange(5, 40, 2)
    dense = nn.Linear(k, n, dtype=torch.bfloat16)
    layer = qscheme.quantize(dense, seed.scheme, input_scale=seed.input_scale)
    bound = qscheme.dispatch(layer)
    x = torch.randn(2, random.randrange(2, 40), k, dtype=torch.bfloat16)
    y = bound(x)

    scheme, bias = load().scheme(seed.scheme), dense.bias.detach().double()
    rows = x.reshape(-1, k)
    codes, scales = quantize(rows, scheme.activation, scale=layer.input_scale)
    quantized = dequantize(codes, scales, scheme.activation).double()
    stored = dequantize(layer.weight, layer.weight_scale, scheme.weight).double()
    exact = rows.double() @ dense.weight.detach().double().T + bias
    arithmetic = relative_error(y.reshape(-1, n), quantized @ stored.T + bias)
    total = relative_error(y.reshape(-1, n), exact)
    fine = arithmetic <= ARITHMETIC and total <= seed.loses
    say(
        f"  {seed.scheme:20}{bound.backend:14}x {list(x.shape)!s:14}y {list(y.shape)!s:15}"
        f"arithmetic {arithmetic:.4f} (at most {ARITHMETIC})   "
        f"with quantization {total:.4f} (at most {seed.loses})   {'ok' if fine else 'OUT OF BOUNDS'}"
    )
    return fine


def relative_error(y: torch.Tensor, exact: torch.Tensor) -> float:
    """Of the whole matrix, in the Frobenius norm; infinite where a value is not finite."""
    error = float((y.double() - exact).norm() / exact.norm())
    return error if math.isfinite(error) else math.inf


def edit(folder: Path) -> bool:
    """Move a scheme's last backend to the front of a copy, compile the copy, dispatch with it."""
    scheme = "int8_ptpc"
    file = folder / "schemes" / f"{scheme}.yaml"
    file.parent.mkdir()
    shutil.copy(shipped_schemes() / file.name, file)
    before = file.read_text(encoding="utf-8")
    head, *backends = before.rstrip("\n").split("\n  - name: ")
    blocks = [block.rstrip("\n") for block in (backends[-1], *backends[:-1])]
    after = "\n\n  - name: ".join([head + "\n  - name: " + blocks[0], *blocks[1:]]) + "\n"
    file.write_text(after, encoding="utf-8")
    for line in list(difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm=""))[2:]:
        if not line.startswith("@@") and line[1:].strip():
            say(f"  {line}")

    command = ("generate", "--schemes", str(file.parent), "--out", str(folder), "--package", "edited_tables")
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "qscheme.cli", *command], capture_output=True, text=True)
    if done.returncode:
        say(done.stdout + done.stderr)
        return False
    say(f"  $ qscheme {' '.join(command).replace(str(folder), '...')}   ({time.perf_counter() - start:.1f} s)")

    sys.path.insert(0, str(folder))
    layer = qscheme.quantize(nn.Linear(96, 160), scheme)
    shipped, edited = qscheme.dispatch(layer), qscheme.dispatch(layer, tables="edited_tables")
    x = torch.randn(3, 96)
    difference = relative_error(edited(x), shipped(x).double())
    say(f"  before: {shipped.backend}, after: {edited.backend}; their results differ by {difference:.1e}")
    return edited.backend == "reference" and difference <= ARITHMETIC


if __name__ == "__main__":
    sys.exit(main())
