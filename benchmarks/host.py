"""What qscheme costs on the host, on a CPU alone, as ratios measured in one run.

    python benchmarks/host.py [--json] [--foreign MODULE:FUNCTION]

Kernels are replaced by stubs that return ready tensors, so that only Python is timed, in processor time, which does not
count what else the machine does. Four things are counted:

call      the bound function against a hand-written closure with the same guarantees (any rank, check of K, M = 0,
          contiguity) over the same stubs; at most 1.05 times its time plus 250 ns, in the median
dispatch  dispatch of 10,000 layers with given facts on a backend that prepares nothing; under 50 us a layer
import    `import qscheme` and the tables of four schemes, in a process that has imported torch already; at most
          15 ms. The tables of a scheme are imported when it is first asked for; those of all are reported too
generate  `qscheme generate` from a cold start, under 3 s, and `--check`, under 2 s

--foreign adds a column to the first table: MODULE:FUNCTION is called with (scheme, backend, n, k, kernels) and returns
an apply function over x, an engine's own path say, or None; `kernels` are the same stubs by name.
The cost of the custom ops that stand in for kernels under torch.compile is printed apart.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

import qscheme
from qscheme import layouts
from qscheme.tables import load

N, K = 512, 1024
TURNS = 25
Apply = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """One row of the first table: a backend of a scheme, at one M, and how a careful engineer would write it."""

    scheme: str
    backend: str
    arch: str
    m: int
    by_hand: Callable[[object], Callable[[Tensor], Tensor]]


class Stubs:
    """AITER's functions by dotted name, each returning what it made for the first call of a shape."""

    def __init__(self) -> None:
        self.ready: dict[tuple[str, int], object] = {}

    def quantizer(self, name: str, codes: torch.dtype, packed: int, scale: Callable[[int, bool], Tensor]) -> Callable:
        ready = self.ready

        def quantize(x: Tensor, **keywords: object) -> object:
            key = (name, x.shape[0])
            if key not in ready:
                made = torch.empty(x.shape[0], x.shape[1] // packed, dtype=torch.uint8).view(codes)
                on = bool(keywords.get("shuffle") or keywords.get("transpose_scale"))
                ready[key] = made, scale(x.shape[0], on)
            return ready[key]

        return quantize

    def gemm(self, name: str, first: str | int) -> Callable:
        ready = self.ready

        def multiply(*operands: Tensor, **keywords: object) -> object:
            x = operands[0] if first == 0 else keywords[first]
            key = (name, x.shape[0])
            if key not in ready:
                ready[key] = torch.empty(x.shape[0], N, dtype=torch.bfloat16)
            return ready[key]

        return multiply


def install(stubs: Stubs) -> dict[str, Callable]:
    """Put the stubs where AITER's functions are imported from."""
    fp4, e8m0 = torch.float4_e2m1fn_x2, torch.float8_e8m0fnu

    def swizzled(m: int, on: bool) -> Tensor:
        rows, columns = layouts.swizzled_shape(m, K // 32) if on else (m, K // 32)
        return torch.empty(rows, columns, dtype=torch.uint8).view(e8m0)

    def per_group(m: int, on: bool) -> Tensor:
        return torch.empty(m, K // 128)

    kernels = {
        "aiter.per_token_quant_hip": stubs.quantizer("token", torch.int8, 1, lambda m, on: torch.empty(m, 1)),
        "aiter.per_group_quant_hip": stubs.quantizer("group", torch.float8_e4m3fn, 1, per_group),
        "aiter.per_1x32_f4_quant_hip": stubs.quantizer("fp4", fp4, 2, swizzled),
        "aiter.gemm_a8w8_CK": stubs.gemm("ck", "XQ"),
        "aiter.gemm_a8w8_blockscale": stubs.gemm("blockscale", "XQ"),
        "aiter.gemm_a8w8_blockscale_bpreshuffle": stubs.gemm("bpreshuffle", "XQ"),
        "aiter.gemm_a4w4": stubs.gemm("a4w4", "A"),
        "aiter.ops.triton.quant.quant.dynamic_mxfp4_quant": stubs.quantizer(
            "mxfp4", torch.uint8, 2, lambda m, on: torch.empty(K // 32, m, dtype=torch.uint8).t()
        ),
        "aiter.ops.triton.gemm.basic.gemm_a8w8.gemm_a8w8": stubs.gemm("triton", "x"),
        "aiter.ops.triton.gemm.basic.gemm_a8w8_blockscale.gemm_a8w8_blockscale": stubs.gemm("triton_block", "x"),
        "aiter.ops.triton.gemm.basic.gemm_afp4wfp4.gemm_afp4wfp4": stubs.gemm("fp4_gemm", "x"),
        "aiter.ops.triton.gemm.basic.gemm_afp4wfp4.gemm_afp4wfp4_preshuffle": stubs.gemm("fp4_preshuffle", 0),
    }
    for module in ("gemm_a8w8_blockscale", "gemm_afp4wfp4"):
        kernels[f"aiter.ops.triton.gemm.basic.{module}._get_config"] = lambda m, n, k: ({}, True)
    for name, function in kernels.items():
        parts = name.split(".")
        for depth in range(1, len(parts)):
            sys.modules.setdefault(".".join(parts[:depth]), types.ModuleType(".".join(parts[:depth])))
        setattr(sys.modules[".".join(parts[:-1])], parts[-1], function)
    return kernels


def guarded(k: int, n: int, rows_of: Apply) -> Apply:
    """The guarantees of a bound function around a function over rows, written out as one would by hand."""

    def apply(x: Tensor) -> Tensor:
        shape = x.shape
        if shape[-1] != k:
            raise ValueError(f"needs K = {k}, found {shape[-1]}")
        if len(shape) != 2:
            return apply(x.reshape(-1, k)).reshape(*shape[:-1], n)
        if shape[0] == 0:
            return x.new_empty((0, n), dtype=torch.bfloat16)
        return rows_of(x if x.is_contiguous() else x.contiguous())

    return apply


def by_hand(scheme: str, backend: str, kernels: dict[str, Callable], bound: qscheme.binding.Bound) -> Apply:
    """The closure that one would write by hand over the same kernels and the same prepared tensors."""
    prepared = bound.tensors()
    weight, weight_scale = prepared[0], prepared[1]
    bf16, uint8 = torch.bfloat16, torch.uint8
    if backend == "aiter_ck" and scheme == "int8_ptpc":
        quantize, gemm = kernels["aiter.per_token_quant_hip"], kernels["aiter.gemm_a8w8_CK"]

        def rows(x: Tensor) -> Tensor:
            codes, scale = quantize(x, quant_dtype=torch.int8)
            return gemm(XQ=codes, WQ=weight, x_scale=scale, w_scale=weight_scale, dtype=bf16)
    elif scheme == "fp8_block128" and backend in ("aiter_ck", "aiter_ck_preshuffle"):
        turned = backend == "aiter_ck_preshuffle"
        quantize = kernels["aiter.per_group_quant_hip"]
        gemm = kernels["aiter.gemm_a8w8_blockscale" + ("_bpreshuffle" if turned else "")]
        fp8 = torch.float8_e4m3fn

        def rows(x: Tensor) -> Tensor:
            codes, scale = quantize(x, quant_dtype=fp8, transpose_scale=turned, group_size=128)
            return gemm(XQ=codes, WQ=weight, x_scale=scale, w_scale=weight_scale, dtype=bf16)
    elif scheme == "fp8_block128":
        quantize = kernels["aiter.per_group_quant_hip"]
        gemm = kernels["aiter.ops.triton.gemm.basic.gemm_a8w8_blockscale.gemm_a8w8_blockscale"]
        fp8 = torch.float8_e4m3fn

        def rows(x: Tensor) -> Tensor:
            codes, scale = quantize(x, quant_dtype=fp8, transpose_scale=False, group_size=128)
            return gemm(x=codes, w=weight, x_scale=scale, w_scale=weight_scale, dtype=bf16)
    elif backend == "aiter_asm":
        quantize, gemm = kernels["aiter.per_1x32_f4_quant_hip"], kernels["aiter.gemm_a4w4"]
        small = kernels["aiter.ops.triton.gemm.basic.gemm_afp4wfp4.gemm_afp4wfp4_preshuffle"]
        by_16, by_32 = weight.view(N // 16, -1), weight_scale.view(N // 32, -1)
        fp4_weight, e8m0_scale = weight.view(torch.float4_e2m1fn_x2), weight_scale.view(torch.float8_e8m0fnu)

        def rows(x: Tensor) -> Tensor:
            m = x.shape[0]
            if m <= 31:
                codes, scale = quantize(x, shuffle=False)
                return small(codes.view(uint8), by_16, x_scales=scale.view(uint8), w_scales=by_32, dtype=bf16)
            codes, scale = quantize(x, shuffle=True)
            if m <= 64:
                folded = scale.view(uint8).view(scale.shape[0] // 32, -1)
                return small(codes.view(uint8), by_16, x_scales=folded, w_scales=by_32, dtype=bf16)
            return gemm(A=codes, B=fp4_weight, A_scale=scale, B_scale=e8m0_scale, dtype=bf16, bpreshuffle=True)
    elif scheme == "mxfp4" and backend == "aiter_triton":
        quantize = kernels["aiter.ops.triton.quant.quant.dynamic_mxfp4_quant"]
        gemm = kernels["aiter.ops.triton.gemm.basic.gemm_afp4wfp4.gemm_afp4wfp4"]

        def rows(x: Tensor) -> Tensor:
            codes, scale = quantize(x)
            return gemm(x=codes, w=weight, x_scales=scale, w_scales=weight_scale, dtype=bf16)
    else:
        quantize = load().scheme(scheme).activation
        from qscheme.numerics import quantize as reference_quantize

        gemm = kernels["aiter.gemm_a8w8_CK"]
        given = prepared[2]

        def rows(x: Tensor) -> Tensor:
            codes, scale = reference_quantize(x, quantize, scale=given)
            scale = layouts.expand_rows(scale, x.shape[0])
            return gemm(XQ=codes, WQ=weight, x_scale=scale, w_scale=weight_scale, dtype=bf16)

    return guarded(K, N, rows)


ROWS = [
    ("int8_ptpc", "aiter_ck", "gfx942", (16,)),
    ("int8_tensor_static", "aiter_ck", "gfx942", (16,)),
    ("fp8_block128", "aiter_ck", "gfx950", (16,)),
    ("fp8_block128", "aiter_ck_preshuffle", "gfx950", (16,)),
    ("fp8_block128", "aiter_triton_tuned", "gfx950", (16,)),
    ("mxfp4", "aiter_asm", "gfx950", (16, 48, 128)),
    ("mxfp4", "aiter_triton", "gfx950", (16,)),
]


def times_ns(functions: list[Callable[[], object]], loops: int = 150, rounds: int = 60) -> list[float]:
    """The median time of a call of each function, in ns, taken in turns so that noise falls on all alike."""
    samples: list[list[float]] = [[] for _ in functions]
    for function in functions:
        for _ in range(200):
            function()
    for _ in range(rounds):
        for index, function in enumerate(functions):
            start = time.process_time_ns()
            for _ in range(loops):
                function()
            samples[index].append((time.process_time_ns() - start) / loops)
    return [statistics.median(sample) for sample in samples]


def calls(foreign: str | None) -> list[dict[str, object]]:
    kernels = install(Stubs())
    other = None
    if foreign:
        module, _, function = foreign.partition(":")
        other = getattr(importlib.import_module(module), function)
    subjects: list[tuple[str, str, int, list[Callable[[], object]]]] = []
    for scheme, backend, arch, ms in ROWS:
        layer = qscheme.quantize(
            nn.Linear(K, N, bias=False, dtype=torch.bfloat16), scheme, input_scale=0.05 if "static" in scheme else None
        )
        facts = qscheme.Facts.simulate(
            arch, tuned="all", aiter="0.1.20", switches={"aiter_preshuffled_blockscale": True}
        )
        bound = qscheme.dispatch(layer, facts, backend=backend)
        hand = by_hand(scheme, backend, kernels, bound)
        theirs = other(scheme, backend, N, K, kernels) if other else None
        for m in ms:
            x = torch.randn(m, K, dtype=torch.bfloat16)
            functions = [partial(function, x) for function in (hand, bound, theirs) if function is not None]
            subjects.append((scheme, backend, m, functions))
    # A clock that is slowed for a while, by heat or by a neighbour on the core, makes every ns two. Each row is taken
    # several times, some seconds apart, and told by the turn in which the closure by hand was fastest.
    turns = [
        [times_ns(functions, loops=30 if "static" in scheme else 150) for scheme, _, _, functions in subjects]
        for _ in range(TURNS)
    ]
    rows = []
    for (scheme, backend, m, _), times in zip(subjects, map(min, zip(*turns, strict=True)), strict=True):
        by_hand_ns, bound_ns, *foreign_ns = times
        row = {
            "scheme": scheme, "backend": backend, "m": m,
            "bound_ns": round(bound_ns), "by_hand_ns": round(by_hand_ns),
            "ratio": round(bound_ns / by_hand_ns, 3), "extra_ns": round(bound_ns - by_hand_ns),
            "within": bound_ns <= 1.05 * by_hand_ns + 250,
        }  # fmt: skip
        if foreign_ns:
            row["foreign_ratio"] = round(foreign_ns[0] / by_hand_ns, 3)
        rows.append(row)
    return rows


def opaque_cost() -> dict[str, object]:
    """One kernel called directly and through its custom op, outside of any graph."""
    kernels = install(Stubs())
    gemm = kernels["aiter.gemm_a8w8_CK"]
    kernel = importlib.import_module("qscheme_generated.kernels_aiter").GEMM_A8W8_CK
    op = kernel.opaque(gemm)
    codes, weight = torch.empty(16, K, dtype=torch.int8), torch.empty(N, K, dtype=torch.int8)
    operands = {
        "XQ": codes, "WQ": weight, "x_scale": torch.ones(16, 1), "w_scale": torch.ones(N, 1),
        "dtype": torch.bfloat16,
    }  # fmt: skip
    direct, through = times_ns([lambda: gemm(**operands), lambda: op(**operands)])
    return {"direct_ns": round(direct), "custom_op_ns": round(through), "extra_ns": round(through - direct)}


def dispatching(count: int = 10_000) -> dict[str, object]:
    plain = nn.Linear(K, N, bias=False, dtype=torch.bfloat16)
    layer = qscheme.quantize(plain, "mxfp4", name="model.layers.0.mlp.down_proj")
    facts = qscheme.Facts.simulate("cpu")
    qscheme.dispatch(layer, facts)
    turns = []
    for _ in range(TURNS):
        start = time.process_time()
        for _ in range(count):
            qscheme.dispatch(layer, facts)
        turns.append((time.process_time() - start) / count * 1e6)
    us = min(turns)  # as in the first table, the turn at full speed
    return {"layers": count, "us_per_layer": round(us, 2), "within": us < 50}


def importing(rounds: int = 15) -> dict[str, object]:
    """The import of qscheme with the tables of four schemes, and with those of all, which no process needs at once."""
    script = (
        "import time, torch; t = time.process_time(); import qscheme; from qscheme.tables import load; tables = load();"
        "[tables.scheme(name) for name in ('fp8_block128', 'int8_ptpc', 'int8_tensor_static', 'mxfp4')];"
        "some = time.process_time() - t; [tables.scheme(name) for name in tables.schemes];"
        "print(some * 1e3, (time.process_time() - t) * 1e3)"
    )
    with tempfile.TemporaryDirectory() as bytecode:
        # Installed packages have their bytecode beside them; so has this one, after the first round.
        environment = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = bytecode
        command = [sys.executable, "-c", script]
        times = [
            [float(word) for word in done.stdout.split()]
            for _ in range(rounds + 1)
            for done in [subprocess.run(command, capture_output=True, text=True, check=True, env=environment)]
        ]
    some, every = (min(column) for column in zip(*times[1:], strict=True))  # at full speed, as above
    return {"four_schemes_ms": round(some, 2), "all_schemes_ms": round(every, 2), "within": some <= 15}


def generating(rounds: int = 3) -> dict[str, object]:
    root = Path(__file__).parents[1]
    times: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as out:
        for name, extra in (("generate", ["--out", out]), ("check", ["--check"])):
            command = [sys.executable, "-m", "qscheme.cli", "generate", *extra]
            samples = []
            for _ in range(rounds):
                start = time.perf_counter()
                subprocess.run(command, cwd=root, check=True, capture_output=True)
                samples.append(time.perf_counter() - start)
            times[name] = statistics.median(samples)
    return {
        "generate_s": round(times["generate"], 2), "check_s": round(times["check"], 2),
        "within": times["generate"] < 3 and times["check"] < 2,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--foreign", metavar="MODULE:FUNCTION")
    options = parser.parse_args()
    report = {
        "call": calls(options.foreign),
        "custom_op": opaque_cost(),
        "dispatch": dispatching(),
        "import": importing(),
        "generate": generating(),
    }
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        for row in report["call"]:
            words = f"{row['scheme']:20} {row['backend']:20} M={row['m']:<4}"
            words += f" {row['ratio']:.3f}x by hand, {row['extra_ns']:+} ns"
            print(
                words
                + (f", foreign {row['foreign_ratio']:.3f}x" if "foreign_ratio" in row else "")
                + ("" if row["within"] else "  TOO SLOW")
            )
        for name in ("custom_op", "dispatch", "import", "generate"):
            print(name, report[name])
    within = all(row["within"] for row in report["call"]) and all(
        report[name]["within"] for name in ("dispatch", "import", "generate")
    )
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
