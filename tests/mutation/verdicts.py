"""What becomes of each mutant when it is bound and called: caught, equal byte for byte, or survived."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import paper_aiter
import pytest
from emulation import on_paper
from emulation.bindings import Case, machine, outcome
from emulation.device import DEVICE

from qscheme import Facts
from qscheme.tables import load

from .compilation import Mutated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from qscheme import machine

LARGEST_ERROR = 0.005

SHAPES = {
    ("int8_ptpc", "aiter_ck"): (96, 272, (33,)),
    ("int8_ptpc", "aiter_triton"): (48, 96, (17,)),
    ("int8_tensor_static", "aiter_ck"): (96, 272, (33,)),
    ("int8_tensor_static", "aiter_triton"): (48, 96, (17,)),
    ("int8_ptpc", "aiter_asm"): (128, 384, (33,)),
    ("fp8_block128", "aiter_ck_preshuffle"): (192, 256, (5,)),
    ("fp8_block128", "aiter_asm_flatmm"): (256, 384, (5,)),
    ("fp8_block128", "aiter_triton"): (144, 512, (5,)),
    ("fp8_block128", "aiter_triton_tuned"): (144, 512, (5,)),
    ("fp8_block128", "aiter_triton_rdna4"): (144, 1024, (5,)),
    ("fp8_token_x_tensor", "aiter_ck_preshuffle"): (64, 1536, (17,)),
    ("fp8_tensor_static", "aiter_ck"): (96, 272, (17,)),
    ("mxfp4", "aiter_asm"): (128, 256, (5, 33, 65)),
    ("mxfp4", "aiter_asm_even"): (128, 256, (5, 33, 65)),
    ("mxfp4", "aiter_f4gemm"): (1024, 256, (3,)),
    ("mxfp8", "aiter_asm"): (2048, 256, (3,)),
    ("mxfp4_a_mxfp8", "aiter_asm"): (2048, 256, (3,)),
    ("nvfp4", "aiter_asm"): (1024, 256, (3,)),
    ("mxfp4", "aiter_triton"): (48, 512, (33,)),
    ("mxfp4", "aiter_triton_tuned"): (48, 512, (33, 65)),
    ("mxfp4_a_fp8_tensor", "aiter_triton"): (41, 96, (17,)),
    ("fp8_w8a16_block128", "aiter_triton"): (144, 1024, (5,)),
    ("fp8_w8a16_block128", "aiter_triton_preshuffle"): (144, 1024, (5,)),
    ("fp8_block128_a_mxfp8", "aiter_triton_preshuffle"): (192, 384, (5,)),
}
SPLIT = 5
"""A number of rows for which the configuration of the FP4 GEMM has a split along K."""


def cases(scheme: str, backend: str) -> list[Case]:
    """Small layers that show every operand of a backend."""
    n, k, rows = SHAPES.get((scheme, backend), (144, 256, (5,)))
    how = {"codes": rows, "x": rows, "invariant": (SPLIT,)}
    if load().scheme(scheme).activation is None:
        del how["codes"]
    dtype = "fp16" if backend == "aiter_asm_flatmm" else "bf16"
    found = [Case(scheme, backend, n, k, each, bias=True, dtype=dtype, how=word) for word, each in how.items()]
    return [*found, Case(scheme, backend, n, k, rows)] if (scheme, backend) == ("int8_ptpc", "aiter_asm") else found


def emulated(entries: list[dict[str, Any]], folder: str, package: str) -> dict[int, dict[str, str]]:
    """Verdicts of mutants in a child process with the installed AITER, for backends that it and the device have."""
    sys.path.insert(0, folder)
    return verdicts([Mutated(**entry) for entry in entries], package, lambda invariant: machine(True, invariant))


def on_paper_of(arch: str, release: str, entries: list[Mutated], package: str) -> dict[int, dict[str, str]]:
    """Verdicts of mutants with the functions of a release on paper, in this process."""
    switches = dict.fromkeys(load().switches, True)

    def facts(invariant: bool) -> machine.Facts:
        return Facts.simulate(arch, switches=switches | {"batch_invariant": invariant}, tuned="all", aiter=release)

    with _paper(arch, release):
        return verdicts(entries, package, facts)


@contextmanager
def _paper(arch: str, release: str) -> Iterator[None]:
    before = DEVICE.arch
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paper_aiter, "quantize", on_paper.quantize)
        patch.setattr(paper_aiter, "multiply", on_paper.multiply)
        paper_aiter.install(patch, release)
        DEVICE.arch = "gfx942" if arch == "gfx942" else "gfx950"
        yield
    DEVICE.arch = before


def verdicts(entries: list[Mutated], package: str, facts: Callable[[bool], machine.Facts]) -> dict[int, dict[str, str]]:
    """For each mutant {"caught": why} or {"equal" or "survived": what was compared}; nothing where no backend ran."""
    known = {invariant: facts(invariant) for invariant in (False, True)}
    shipped: dict[tuple[str, Case], dict[str, Any]] = {}
    names = {(entry.scheme, entry.backend): entry.name for entry in entries if entry.mutant < 0}
    found: dict[int, dict[str, str]] = {}
    for entry in entries:
        if entry.mutant < 0 or "caught" in found.get(entry.mutant, {}):
            continue
        for case in cases(entry.scheme, entry.backend):
            key = (names[entry.scheme, entry.backend], case)
            if key not in shipped:
                shipped[key] = _tried(case, package, key[0], known[case.how == "invariant"])
            if "error" in shipped[key]:
                if not shipped[key]["error"].startswith("Unsupported: "):
                    raise AssertionError(f"{case} as shipped: {shipped[key]['error']}")
                continue
            result = _tried(case, package, entry.name, known[case.how == "invariant"])
            before = found.get(entry.mutant, {})
            found[entry.mutant] = verdict = _verdict(case, result, shipped[key], before)
            if "caught" in verdict:
                break
    return found


def _tried(case: Case, package: str, name: str, facts: machine.Facts) -> dict[str, Any]:
    try:
        found = outcome(case, package, name, facts)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    split = [detail for each in found["kernels"] for _, detail in each if detail.startswith("NUM_KSPLIT=")]
    if case.how == "invariant" and any(detail != "NUM_KSPLIT=1" for detail in split):
        return {"error": f"a split along K in batch-invariant mode, {', '.join(split)}"}
    return found


def _verdict(case: Case, result: dict[str, Any], shipped: dict[str, Any], before: dict[str, str]) -> dict[str, str]:
    if "error" in result:
        return {"caught": result["error"]}
    wrong = [(rows, error) for rows, error in zip(case.rows, result["errors"], strict=True) if error > LARGEST_ERROR]
    if wrong:
        rows, error = wrong[0]
        return {"caught": f"an error of {error:.2g} for {rows} rows ({case.how})"}
    names, usual = ([[list(one) for one in each] for each in found["kernels"]] for found in (result, shipped))
    if names != usual:
        return {"caught": f"kernels {names} ({case.how})"}
    compared = f"{case.backend} ({case.how})"
    same = result["digests"] == shipped["digests"] and "survived" not in before
    return {"equal" if same else "survived": ", ".join((*before.values(), compared))}
