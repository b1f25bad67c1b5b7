"""qscheme's bindings of AITER's compiled kernels give what the kernels' own rules say, on each architecture.

AITER 0.1.7.post2.dev18 runs for real, its compiled modules apart, whose stand-ins read bytes as the kernels do. What is
expected is computed in float64 from the layer and from codes of the kernel's own rule; the largest error of a row is
what counts, so that small rows matter as much as large ones.
"""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from emulation.bindings import Case
from emulation.run_in_process import in_process

from qscheme.tables import load

ROUNDING = 0.005
ROWS = (1, 3, 17, 31, 32, 33, 64, 65, 200)
HOW = ("x", "codes", "strided", "refreshed")

INT8 = [
    *(
        Case("int8_ptpc", "aiter_ck", 96, 272, ROWS, bias, dtype)
        for bias in (False, True)
        for dtype in ("bf16", "fp16")
    ),
    *(Case("int8_ptpc", "aiter_ck", 96, 384, (1, 3, 33, 200), True, how=how) for how in ("rotated", *HOW[1:])),
    Case("int8_ptpc", "aiter_ck", 192, 1024, (33, 64, 65)),
    Case("int8_ptpc", "aiter_ck", 64, 1040, (1, 65)),
]
INT8_STATIC = [
    *(Case("int8_tensor_static", "aiter_ck", 96, 272, ROWS, bias) for bias in (False, True)),
    *(Case("int8_tensor_static", "aiter_ck", 80, 384, (1, 33), True, "fp16", how=how) for how in ("rotated", *HOW)),
]
FP8 = [
    *(
        Case("fp8_block128", "aiter_ck", 200, 384, ROWS, bias, dtype, scales)
        for bias, dtype, scales in ((False, "bf16", "fp32"), (True, "fp16", "fp32"), (True, "bf16", "e8m0"))
    ),
    *(Case("fp8_block128", "aiter_ck", 200, 384, (1, 3, 33, 200), True, how=how) for how in ("rotated", *HOW[1:])),
    Case("fp8_block128", "aiter_ck", 192, 1024, (33, 64, 65)),
    Case("fp8_block128", "aiter_ck", 64, 128, (1, 5)),
]
FP8_SHUFFLED = [
    *(
        Case("fp8_block128", "aiter_ck_preshuffle", 192, 384, ROWS, bias, scales=scales)
        for bias, scales in ((False, "fp32"), (True, "e8m0"))
    ),
    *(
        Case("fp8_block128", "aiter_ck_preshuffle", 192, 384, (1, 3, 33, 200), True, how=how)
        for how in ("rotated", *HOW[1:])
    ),
]
FP8_FLAT = [
    *(Case("fp8_block128", "aiter_asm_flatmm", 512, 384, (1, 3, 128, 200), bias, "fp16") for bias in (False, True)),
    Case("fp8_block128", "aiter_asm_flatmm", 256, 128, (5,), scales="e8m0", dtype="fp16"),
    *(
        Case("fp8_block128", "aiter_asm_flatmm", 256, 384, (1, 33), True, "fp16", how=how)
        for how in ("rotated", *HOW[1:])
    ),
    Case("fp8_block128", "aiter_asm_flatmm", 256, 384, (33,), True, "fp16", how="invariant"),
]
FP8_SHUFFLED_TUNED = Case("fp8_block128", "aiter_ck_preshuffle", 7168, 256, (65,), tuned=False)
FP8_POWERS = [
    Case("fp8_block128_ue8m0", "aiter_ck", 200, 384, (1, 3, 33), True, scales=scales) for scales in ("fp32", "e8m0")
]
FP8_ROWS = [
    *(Case("fp8_ptpc", "aiter_ck", 96, 272, ROWS, bias, dtype) for bias, dtype in ((False, "bf16"), (True, "fp16"))),
    *(Case("fp8_ptpc", "aiter_ck", 96, 384, (1, 3, 33), True, how=how) for how in ("rotated", *HOW[1:])),
    Case("fp8_ptpc", "aiter_ck_untuned", 96, 272, (1, 33), True, tuned=False),
    *(
        Case(scheme, backend, n, k, (1, 33, 63, 64, 256, 257), bias, dtype)
        for scheme in ("fp8_ptpc", "fp8_token_x_tensor")
        for backend, n, k in (("aiter_ck_preshuffle", 64, 1664), ("aiter_ck_preshuffle_short", 128, 640))
        for bias, dtype in ((False, "bf16"), (True, "fp16"))
    ),
    Case("fp8_ptpc", "aiter_ck_preshuffle", 1536, 1536, (1, 255, 256)),
    *(Case("fp8_ptpc", "aiter_ck_preshuffle", 64, 1536, (1, 3, 33), True, how=how) for how in ("rotated", *HOW[1:])),
    Case("fp8_token_x_tensor", "aiter_ck", 96, 272, (1, 33), True),
    Case("fp8_token_x_tensor", "aiter_ck_untuned", 96, 272, (1, 33), True, tuned=False),
]
FP8_TENSOR = [
    *(
        Case("fp8_tensor_static", "aiter_ck", 96, 272, ROWS, bias, dtype)
        for bias, dtype in ((False, "bf16"), (True, "fp16"))
    ),
    *(Case("fp8_tensor_static", "aiter_ck", 80, 384, (1, 33), True, how=how) for how in ("rotated", *HOW[1:])),
    Case("fp8_tensor_dynamic", "aiter_ck", 96, 272, (1, 33), True),
    Case("fp8_tensor_dynamic", "aiter_ck", 96, 272, (1, 33), True, how="codes"),
]
FP4 = [
    *(Case("mxfp4", "aiter_asm", 128, 512, (65, 96, 200), bias) for bias in (False, True)),
    *(Case("mxfp4", "aiter_asm", 256, 768, (65, 130), True, how=how) for how in ("rotated", *HOW[1:])),
]
FP4_BY_COMPOSABLE_KERNEL = Case("mxfp4", "aiter_asm", 512, 7168, (65,))
FP4_TUNED = Case("mxfp4", "aiter_asm", 8192, 1024, (65,), tuned=False)

KERNELS = {
    ("int8_ptpc", "aiter_ck"): ("dynamic_per_token_scaled_quant", "gemm_a8w8"),
    ("int8_tensor_static", "aiter_ck"): (None, "gemm_a8w8"),
    ("fp8_block128", "aiter_ck"): ("dynamic_per_token_scaled_quant", "gemm_a8w8_blockscale"),
    ("fp8_block128", "aiter_ck_preshuffle"): ("dynamic_per_token_scaled_quant", "gemm_a8w8_blockscale_bpreshuffle"),
    ("fp8_block128", "aiter_asm_flatmm"): ("dynamic_per_token_scaled_quant", "flatmm_a8w8_blockscale_asm"),
    ("fp8_block128_ue8m0", "aiter_ck"): (None, "gemm_a8w8_blockscale"),
    **{
        (scheme, backend): ("dynamic_per_token_scaled_quant", gemm)
        for scheme in ("fp8_ptpc", "fp8_token_x_tensor")
        for backend, gemm in (
            ("aiter_ck", "gemm_a8w8"),
            ("aiter_ck_untuned", "gemm_a8w8"),
            ("aiter_ck_preshuffle", "gemm_a8w8_bpreshuffle"),
            ("aiter_ck_preshuffle_short", "gemm_a8w8_bpreshuffle"),
        )
    },
    ("fp8_tensor_static", "aiter_ck"): ("static_per_tensor_quant", "gemm_a8w8"),
    ("fp8_tensor_dynamic", "aiter_ck"): (None, "gemm_a8w8"),
    ("mxfp4", "aiter_asm"): ("dynamic_per_group_scaled_quant_fp4", "gemm_a4w4_asm"),
}
"""The compiled quantizer and GEMM that each backend reaches."""

LATER = {
    ("int8_ptpc", "aiter_asm"),
    ("fp8_block128_ue8m0", "aiter_ck_e8m0"),
    ("mxfp4", "aiter_asm_even"),
    *((scheme, backend) for scheme in ("mxfp8", "mxfp4_a_mxfp8") for backend in ("aiter_asm", "aiter_asm_1024")),
    *((scheme, "aiter_asm") for scheme in ("nvfp4", "nvfp4_modelopt")),
}
"""The backends whose kernels later releases have; test_bindings_releases.py calls them on paper."""

REFUSED = [
    Case("fp8_block128", "aiter_ck_preshuffle", 192, 384, (1,), dtype="fp16"),
    Case("fp8_block128", "aiter_ck_preshuffle", 192, 384, (1,), tuned=False),
    Case("fp8_block128", "aiter_triton_preshuffle", 192, 384, (1,)),
    Case("mxfp4", "aiter_asm", 128, 512, (65,), dtype="fp16"),
    Case("mxfp4", "aiter_asm", 128, 512, (65,), tuned=False),
    Case("int8_ptpc", "aiter_ck", 96, 272, (1,), how="invariant"),
    Case("fp8_block128", "aiter_ck_preshuffle", 208, 384, (1,)),
    Case("fp8_ptpc", "aiter_ck_preshuffle", 96, 1536, (1,)),
    Case("fp8_ptpc", "aiter_ck_preshuffle", 128, 1408, (1,)),
    Case("fp8_ptpc", "aiter_ck_preshuffle_short", 192, 640, (1,)),
    Case("fp8_block128", "aiter_asm_flatmm", 256, 384, (1,)),
    Case("int8_ptpc", "aiter_asm", 128, 384, (1,)),
]
ON_BOTH = [*INT8, *INT8_STATIC, *FP8, *FP8_SHUFFLED, *FP8_POWERS, *FP8_ROWS, *FP8_TENSOR]
CASES = {
    "gfx942": [*ON_BOTH, *FP8_FLAT, *REFUSED, FP4[0], FP8_SHUFFLED_TUNED],
    "gfx950": [*ON_BOTH, *FP4, FP4_BY_COMPOSABLE_KERNEL, FP8_SHUFFLED_TUNED, FP4_TUNED, *REFUSED],
}
RUN = [("gfx942", case) for case in (*ON_BOTH, *FP8_FLAT)] + [
    ("gfx950", case) for case in (*ON_BOTH, *FP4, FP4_BY_COMPOSABLE_KERNEL, FP8_SHUFFLED_TUNED, FP4_TUNED)
]


def run(arch: str) -> list[dict[str, Any]]:
    given = {"cases": [dataclasses.asdict(case) for case in CASES[arch]]}
    found: list[dict[str, Any]] = in_process(arch, "emulation.bindings:outcomes", arguments=given)
    return found


@pytest.fixture(scope="module")
def outcomes() -> dict[tuple[str, Case], dict[str, Any]]:
    with ThreadPoolExecutor(len(CASES)) as pool:
        results = dict(zip(CASES, pool.map(run, CASES), strict=True))
    return {
        (arch, case): result for arch, cases in CASES.items() for case, result in zip(cases, results[arch], strict=True)
    }


@pytest.mark.parametrize(("arch", "case"), RUN, ids=str)
def test_a_bound_layer_is_near_float64_for_every_number_of_rows(
    outcomes: dict[tuple[str, Case], dict[str, Any]], arch: str, case: Case
) -> None:
    found = outcomes[arch, case]
    assert {} == {rows: error for rows, error in zip(case.rows, found["errors"], strict=True) if not error <= ROUNDING}


def test_every_backend_with_a_compiled_kernel_is_bound() -> None:
    compiled = {
        (scheme, backend.name)
        for scheme in load().schemes
        for backend in load().scheme(scheme).backends
        if backend.name.startswith(("aiter_ck", "aiter_asm"))
    }
    assert compiled == set(KERNELS) | LATER
    assert set() == set(KERNELS) & LATER


@pytest.mark.parametrize(("scheme", "backend"), KERNELS)
def test_a_backend_reaches_its_kernels_and_no_others(
    outcomes: dict[tuple[str, Case], dict[str, Any]], scheme: str, backend: str
) -> None:
    quantizer, gemm = KERNELS[scheme, backend]
    for (_, case), found in outcomes.items():
        if (case.scheme, case.backend) == (scheme, backend) and "kernels" in found and case != FP4_BY_COMPOSABLE_KERNEL:
            expected = [gemm] if case.how == "codes" or quantizer is None else [quantizer, gemm]
            assert [expected] * len(case.rows) == [[name for name, _ in each] for each in found["kernels"]]


def test_the_table_of_the_wheel_names_the_fp8_kernel(outcomes: dict[tuple[str, Case], dict[str, Any]]) -> None:
    (_, kernel) = outcomes["gfx950", FP8_SHUFFLED_TUNED]["kernels"][0][-1]
    heuristic = outcomes["gfx950", FP8_SHUFFLED[0]]["kernels"][-1][-1][1]
    assert kernel.startswith("a8w8_blockscale_bpreshuffle_")
    assert heuristic != kernel


def test_the_table_of_the_wheel_names_the_assembly_kernel(outcomes: dict[tuple[str, Case], dict[str, Any]]) -> None:
    name, kernel = outcomes["gfx950", FP4_TUNED]["kernels"][0][-1]
    assert ("gemm_a4w4_asm", "_ZN5aiter41f4gemm_bf16_per1x32Fp4_BpreShuffle_32x128E") == (name, kernel)


def test_a_tuned_row_may_lead_to_a_composable_kernel(outcomes: dict[tuple[str, Case], dict[str, Any]]) -> None:
    assert "gemm_a4w4_blockscale" == outcomes["gfx950", FP4_BY_COMPOSABLE_KERNEL]["kernels"][0][-1][0]


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (REFUSED[0], "needs output in bf16, found fp16"),
        (REFUSED[1], "needs N and K tuned in a8w8_blockscale_bpreshuffle for M = 1024 and 8192, found no row"),
        (REFUSED[2], "needs gfx1250, found gfx950"),
        (REFUSED[2], "gemm_a8w8_blockscale_preshuffle (v0.1.10 and later), found aiter 0.1.7.post2.dev18"),
        (REFUSED[3], "needs output in bf16, found fp16"),
        (REFUSED[4], "needs N and K tuned in a4w4_blockscale for M = 1024 and 8192, found no row"),
        (REFUSED[5], "needs switch batch_invariant off"),
        (REFUSED[6], "needs N a multiple of 64, found N = 208"),
        (REFUSED[7], "needs N a multiple of 64, found N = 96"),
        (REFUSED[8], "needs K of at least 1536, found K = 1408"),
        (REFUSED[9], "needs N a multiple of 128, found N = 192"),
        (REFUSED[10], "needs gfx942, found gfx950"),
        (REFUSED[10], "needs output in fp16, found bf16"),
        (REFUSED[11], "gemm_a8w8_ASM of aiter v0.1.12 and later, found aiter 0.1.7.post2.dev18"),
    ],
    ids=str,
)
def test_what_a_kernel_cannot_do_is_refused_before_it_is_loaded(
    outcomes: dict[tuple[str, Case], dict[str, Any]], case: Case, reason: str
) -> None:
    said = outcomes["gfx950", case]["refused"]
    assert said.startswith("Unsupported: ")
    assert reason in said


def test_fp4_is_refused_on_gfx942(outcomes: dict[tuple[str, Case], dict[str, Any]]) -> None:
    assert "aiter_asm: needs gfx950, found gfx942" in outcomes["gfx942", FP4[0]]["refused"]


def test_a_table_of_another_device_does_not_count(outcomes: dict[tuple[str, Case], dict[str, Any]]) -> None:
    assert "on gfx942 with 304 compute units" in outcomes["gfx942", FP8_SHUFFLED_TUNED]["refused"]
