"""qscheme's bindings of AITER's real Triton kernels, run by Triton's interpreter, agree with float64 and each other.

What is expected comes from codes of each kernel's own rule, in float64. GEMM_ONLY says which backends have a compiled
quantizer in front of the Triton GEMM: a stand-in of the same rule takes its place, and the row proves the GEMM alone.
"""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import paper_torch
import pytest
from emulation.bindings import Case
from emulation.run_in_process import in_process

ROUNDING = 0.005

INT8 = [
    Case("int8_ptpc", "aiter_triton", 41, 131, (1, 3, 33), True),
    Case("int8_ptpc", "aiter_triton", 96, 272, (17, 65), False, "fp16"),
    Case("int8_ptpc", "aiter_triton", 48, 96, (5,), True, how="rotated"),
    Case("int8_ptpc", "aiter_triton", 48, 80, (5,), True, how="codes"),
    Case("int8_tensor_static", "aiter_triton", 56, 144, (1, 33), True),
    Case("int8_tensor_static", "aiter_triton", 56, 144, (5,), False, how="codes"),
]
FP8 = [
    Case("fp8_block128", "aiter_triton", 200, 512, (1, 33), True),
    Case("fp8_block128", "aiter_triton", 129, 512, (3, 65), False, "fp16", "e8m0"),
    Case("fp8_block128", "aiter_triton", 136, 512, (5,), True, how="rotated"),
    Case("fp8_block128", "aiter_triton", 136, 512, (5,), True, how="codes"),
    Case("fp8_block128", "aiter_triton", 136, 512, (17,), True, how="invariant"),
    Case("fp8_block128", "aiter_triton", 136, 512, (5,), True, how="refreshed"),
]
FP8_IN_ONE_SPLIT = [
    Case("fp8_block128", "aiter_triton_one_split", 200, 384, (1, 33), True),
    Case("fp8_block128", "aiter_triton_one_split", 129, 256, (65,), False, "fp16", "e8m0"),
    Case("fp8_block128", "aiter_triton_one_split", 136, 128, (5,), True, how="codes"),
    Case("fp8_block128", "aiter_triton_one_split", 136, 256, (5,), True, how="refreshed"),
    Case("fp8_block128_ue8m0", "aiter_triton_one_split", 136, 256, (5,), True),
]
FP8_ROWS = [
    Case("fp8_ptpc", "aiter_triton", 41, 131, (1, 3, 33), True),
    Case("fp8_ptpc", "aiter_triton", 48, 96, (5,), False, "fp16", how="codes"),
    Case("fp8_token_x_tensor", "aiter_triton", 48, 96, (5,), True),
    Case("fp8_tensor_static", "aiter_triton", 56, 144, (1, 33), True),
    Case("fp8_tensor_dynamic", "aiter_triton", 56, 144, (5,), True),
    Case("fp8_block128_ue8m0", "aiter_triton", 136, 512, (5,), True),
]
FP8_TUNED = [
    Case("fp8_block128", "aiter_triton_tuned", 200, 512, (5,), True),
    Case("fp8_block128", "aiter_triton_tuned", 200, 512, (5,), True, how="codes"),
    Case("fp8_block128", "aiter_triton_tuned", 7168, 2048, (), tuned=False),
]
FP8_TUNED_WITH_SPLIT = Case("fp8_block128", "aiter_triton", 1024, 8192, (3,), how="invariant")
FP8_WEIGHTS = [
    Case("fp8_w8a16_block128", "aiter_triton", 200, 1024, (1, 33), True),
    Case("fp8_w8a16_block128", "aiter_triton", 129, 1024, (3, 65), False, "fp16", "e8m0"),
    Case("fp8_w8a16_block128", "aiter_triton", 40, 1024, (5,), True, how="strided"),
    Case("fp8_w8a16_block128", "aiter_triton", 136, 1024, (17,), True, how="invariant"),
    Case("fp8_w8a16_block128", "aiter_triton", 136, 1024, (5,), True, how="refreshed"),
]
FP8_WEIGHTS_IN_ONE_SPLIT = Case("fp8_w8a16_block128", "aiter_triton_one_split", 136, 384, (1, 17), True)
FP8_WEIGHTS_TUNED = Case("fp8_w8a16_block128", "aiter_triton", 7168, 2048, (3,), tuned=False)
FP4_SHUFFLED = [
    Case("mxfp4", "aiter_asm", 96, 256, (1, 3, 17, 31), True),
    Case("mxfp4", "aiter_asm", 96, 512, (32, 33, 64), True),
    Case("mxfp4", "aiter_asm", 160, 256, (5, 40), False, how="codes"),
    Case("mxfp4", "aiter_asm", 160, 256, (5, 40), False, how="rotated"),
    Case("mxfp4", "aiter_asm", 160, 256, (5, 40), True, how="refreshed"),
]
FP4 = [
    Case("mxfp4", "aiter_triton", 96, 512, (1, 17, 33), True),
    Case("mxfp4", "aiter_triton", 41, 256, (3, 65), False, "fp16"),
    Case("mxfp4", "aiter_triton", 41, 768, (5,), False, how="codes"),
    Case("mxfp4", "aiter_triton", 48, 256, (5,), True, how="rotated"),
    Case("mxfp4", "aiter_triton", 48, 256, (5,), True, how="refreshed"),
    Case("mxfp4", "aiter_triton", 96, 512, (1, 17), True, how="invariant"),
]
RAGGED = Case("mxfp4", "aiter_triton", 48, 480, (5,))
CASES = {
    "gfx942": [INT8[0], *FP8, FP8_WEIGHTS[0], FP4[0]],
    "gfx950": [
        *INT8,
        *FP8,
        *FP8_IN_ONE_SPLIT,
        *FP8_ROWS,
        *FP8_TUNED,
        FP8_TUNED_WITH_SPLIT,
        *FP8_WEIGHTS,
        FP8_WEIGHTS_IN_ONE_SPLIT,
        FP8_WEIGHTS_TUNED,
        *FP4_SHUFFLED,
        *FP4,
        RAGGED,
    ],
}
RUN = [
    (arch, case)
    for arch, cases in CASES.items()
    for case in cases
    if case != RAGGED and (arch, case) != ("gfx942", FP4[0])
]

COMPILED = {"dynamic_per_token_scaled_quant", "dynamic_per_group_scaled_quant_fp4", "gemm_a4w4_asm"}
GEMM_ONLY = {
    **{name: {"fp8_block128"} for name in ("aiter_triton", "aiter_triton_tuned", "aiter_triton_one_split")},
    "aiter_asm": {"mxfp4"},
}
"""Backends, by name and scheme, whose quantizer is compiled; the other 8-bit ones have qscheme's own."""

GEMMS = {
    "int8_ptpc": "_gemm_a8w8_kernel",
    "int8_tensor_static": "_gemm_a8w8_kernel",
    "fp8_block128": "_gemm_a8w8_blockscale_kernel",
    "fp8_block128_ue8m0": "_gemm_a8w8_blockscale_kernel",
    "fp8_ptpc": "_gemm_a8w8_kernel",
    "fp8_token_x_tensor": "_gemm_a8w8_kernel",
    "fp8_tensor_static": "_gemm_a8w8_kernel",
    "fp8_tensor_dynamic": "_gemm_a8w8_kernel",
    "fp8_w8a16_block128": "_gemm_a16w8_blockscale_kernel",
    "mxfp4": "_gemm_afp4_wfp4_kernel",
}
SPLIT_OFF = [case for case in (*FP8, FP8_TUNED_WITH_SPLIT, *FP8_WEIGHTS, *FP4) if case.how == "invariant"]


def run(arch: str) -> list[dict[str, Any]]:
    given = {"cases": [dataclasses.asdict(case) for case in CASES[arch]]}
    found: list[dict[str, Any]] = in_process(arch, "emulation.bindings:outcomes", interpret=True, arguments=given)
    return found


@pytest.fixture(scope="module")
def outcomes() -> dict[tuple[str, Case], dict[str, Any]]:
    with ThreadPoolExecutor(len(CASES)) as pool:
        results = dict(zip(CASES, pool.map(run, CASES), strict=True))
    return {
        (arch, case): result for arch, cases in CASES.items() for case, result in zip(cases, results[arch], strict=True)
    }


@pytest.mark.parametrize(("arch", "case"), RUN, ids=str)
def test_a_bound_layer_is_near_float64(outcomes: dict[tuple[str, Case], dict[str, Any]], arch: str, case: Case) -> None:
    found = outcomes[arch, case]
    assert {} == {rows: error for rows, error in zip(case.rows, found["errors"], strict=True) if not error <= ROUNDING}


def test_a_backend_reaches_its_triton_kernel(outcomes: dict[tuple[str, Case], dict[str, Any]]) -> None:
    for arch, case in [(arch, case) for arch, case in RUN if case.backend != "aiter_asm"]:
        for launched in outcomes[arch, case]["kernels"]:
            assert GEMMS[case.scheme] in [name for name, _ in launched]


def test_few_rows_of_the_assembly_backend_run_in_the_shuffled_triton_kernel(
    outcomes: dict[tuple[str, Case], dict[str, Any]],
) -> None:
    for case in FP4_SHUFFLED:
        launched = [each[-1][0] for each in outcomes["gfx950", case]["kernels"]]
        assert ["_gemm_afp4_wfp4_kernel_preshuffled_weight_scales"] * len(case.rows) == launched


def test_a_quantizer_is_compiled_where_the_table_says_gemm_only(
    outcomes: dict[tuple[str, Case], dict[str, Any]],
) -> None:
    for (_, case), found in outcomes.items():
        if found.get("kernels") and case.how != "codes":
            compiled = {name for each in found["kernels"] for name, _ in each} & COMPILED
            assert bool(compiled) == (case.scheme in GEMM_ONLY.get(case.backend, set()))


def test_fp4_quantizes_in_triton(outcomes: dict[tuple[str, Case], dict[str, Any]]) -> None:
    assert "_dynamic_mxfp4_quant_kernel" == outcomes["gfx950", FP4[0]]["kernels"][0][0][0]


def test_a_configuration_with_a_split_along_k_is_used(outcomes: dict[tuple[str, Case], dict[str, Any]]) -> None:
    details = [detail for name, detail in outcomes["gfx950", FP4[0]]["kernels"][0] if name == GEMMS["mxfp4"]]
    assert ["NUM_KSPLIT=16"] == details


def test_the_tuned_tile_of_fp8_weights_splits_k_where_the_mode_allows_it(
    outcomes: dict[tuple[str, Case], dict[str, Any]],
) -> None:
    split, one = (outcomes["gfx950", case]["kernels"][0][0] for case in (FP8_WEIGHTS_TUNED, FP8_WEIGHTS_IN_ONE_SPLIT))
    assert [GEMMS["fp8_w8a16_block128"], "NUM_KSPLIT=8"] == list(split)
    assert [GEMMS["fp8_w8a16_block128"], "NUM_KSPLIT=1"] == list(one)


def test_a_k_that_splits_would_cut_is_not_split(outcomes: dict[tuple[str, Case], dict[str, Any]]) -> None:
    for case in FP8_IN_ONE_SPLIT:
        details = {detail for each in outcomes["gfx950", case]["kernels"] for name, detail in each if "gemm" in name}
        assert {"NUM_KSPLIT=1"} == details


@pytest.mark.parametrize("case", SPLIT_OFF, ids=str)
def test_batch_invariant_mode_splits_nothing(outcomes: dict[tuple[str, Case], dict[str, Any]], case: Case) -> None:
    for launched in outcomes["gfx950", case]["kernels"]:
        assert [(GEMMS[case.scheme], "NUM_KSPLIT=1")] == [tuple(each) for each in launched if each[1]]


def test_fp4_is_refused_on_gfx942(outcomes: dict[tuple[str, Case], dict[str, Any]]) -> None:
    assert "aiter_triton: needs gfx950 or gfx1250, found gfx942" in outcomes["gfx942", FP4[0]]["refused"]


def test_fp4_needs_whole_tiles_in_releases_that_read_scales_behind_the_last(
    outcomes: dict[tuple[str, Case], dict[str, Any]],
) -> None:
    said = outcomes["gfx950", RAGGED]["refused"]
    assert "aiter_triton: needs K a multiple of 256 on gfx950 with aiter before v0.1.12, found K = 480" in said


def agreements(shapes: dict[str, list[int]]) -> dict[str, dict[str, float]]:
    """torch's block-scaled products, which run on no CPU, are called on paper."""
    from emulation.bindings import agreement

    with pytest.MonkeyPatch.context() as patch:
        paper_torch.install(patch, "amd")
        return {scheme: agreement(scheme, *shape) for scheme, shape in shapes.items()}


SHAPES = {"int8_ptpc": [96, 272, 33], "int8_tensor_static": [96, 272, 33], "fp8_block128": [256, 512, 33]}


@pytest.mark.parametrize(
    ("arch", "shapes", "expected"),
    [
        (
            "gfx942",
            SHAPES,
            {
                "int8_ptpc": ["aiter_ck", "aiter_triton", "reference", "torch_int_mm"],
                "int8_tensor_static": ["aiter_ck", "aiter_triton", "reference", "torch_int_mm"],
                "fp8_block128": ["aiter_ck", "aiter_ck_preshuffle", "aiter_triton"],
            },
        ),
        (
            "gfx950",
            {"fp8_block128": [256, 512, 33], "mxfp4": [128, 512, 40]},
            {
                "fp8_block128": [
                    *(
                        "aiter_ck",
                        "aiter_ck_preshuffle",
                        "aiter_triton",
                        "aiter_triton_one_split",
                        "aiter_triton_tuned",
                    ),
                    "reference",
                ],
                "mxfp4": ["aiter_asm", "aiter_triton", "reference", "torch_scaled_mm_mxfp4_plain_scales"],
            },
        ),
    ],
)
def test_backends_agree_on_the_same_codes_and_scales(
    arch: str, shapes: dict[str, list[int]], expected: dict[str, list[str]]
) -> None:
    found = in_process(arch, agreements, interpret=True, arguments={"shapes": shapes})
    assert expected == {scheme: sorted(errors) for scheme, errors in found.items()}
    assert {} == {scheme: errors for scheme, errors in found.items() if not max(errors.values()) <= ROUNDING}


def differences() -> dict[str, dict[str, Any]]:
    from emulation.bindings import difference_of_rules

    return {
        "truncated": difference_of_rules("int8_ptpc", "aiter_ck", 256, 512, 40),
        "by_reciprocal": difference_of_rules("fp8_block128", "aiter_ck", 256, 512, 40),
        "up_from_1.5": difference_of_rules("mxfp4", "aiter_asm", 128, 512, 20),
        "ties_away": difference_of_rules("mxfp4", "aiter_triton", 128, 512, 20),
    }


@pytest.fixture(scope="module")
def rules() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = in_process("gfx950", differences, interpret=True)
    return found


@pytest.mark.parametrize(
    ("rule", "said", "least", "most"),
    [
        ("truncated", ["apply", "floor", "round"], 0.005, 0.05),
        ("by_reciprocal", ["apply"], 0.0, 0.005),
        ("up_from_1.5", ["scale"], 0.02, 0.2),
        ("ties_away", ["round"], 0.02, 0.2),
    ],
)
def test_a_kernel_whose_rule_differs_from_the_schemes_is_named_and_near_the_reference(
    rules: dict[str, dict[str, Any]], rule: str, said: list[str], least: float, most: float
) -> None:
    assert said == rules[rule]["said"]
    assert least <= rules[rule]["difference"] <= most
