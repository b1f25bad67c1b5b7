"""The stand-ins behave as the kernels whose place they take: right layouts give right numbers, wrong ones do not."""

from __future__ import annotations

from typing import Any

import pytest
from emulation.run_in_process import ProcessFailedError, in_process

ROUNDING = 0.005
WRONG = 0.1


@pytest.fixture(scope="module")
def gfx942() -> dict[str, Any]:
    return in_process("gfx942", "emulation.own_checks:on_gfx942")


@pytest.fixture(scope="module")
def gfx950() -> dict[str, Any]:
    return in_process("gfx950", "emulation.own_checks:on_gfx950")


@pytest.fixture(scope="module")
def both(gfx942: dict[str, Any], gfx950: dict[str, Any]) -> list[dict[str, Any]]:
    return [gfx942, gfx950]


@pytest.fixture(scope="module")
def interpreted942() -> dict[str, Any]:
    return in_process("gfx942", "emulation.own_checks_triton:on_gfx942", interpret=True)


@pytest.fixture(scope="module")
def interpreted950() -> dict[str, Any]:
    return in_process("gfx950", "emulation.own_checks_triton:on_gfx950", interpret=True)


def inaccurate(errors: dict[str, Any], *names: str) -> dict[str, float]:
    return {name: errors[name] for name in names if not errors[name] <= ROUNDING}


def test_each_architecture_has_its_own_fp8(gfx942: dict[str, Any], gfx950: dict[str, Any]) -> None:
    assert ["torch.float8_e4m3fnuz", "torch.float8_e4m3fn"] == [gfx942["fp8"], gfx950["fp8"]]


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_rowwise_gemms_match_float64_with_and_without_bias(both: list[dict[str, Any]], kind: str) -> None:
    names = [f"{kind}_{shape}{bias}" for shape in ("untuned", "tuned", "one_row", "tall") for bias in ("", "_bias")]
    assert [{}, {}] == [inaccurate(found["rowwise"], *names) for found in both]


def test_a_tuned_row_decides_the_kernel_on_the_device_it_was_tuned_for(both: list[dict[str, Any]]) -> None:
    tuned = "a8w8_rowwise_64x16x16x64_16x16_1x1_4x16x1_4x16x1_1x16x1x4_4x4x1_1x1_interwave_v2"
    assert [False, True] == [found["rowwise"]["tuned_kernel"] == tuned for found in both]
    tuned = "a8w8_blockscale_1x128x128_256x16x64x256_16x16_16x16_16x16x1_16x16x1_1x16x1x16_4_1x1_intrawave_v1"
    assert [False, True] == [found["blockscale"]["tuned_kernel"] == tuned for found in both]


def test_the_rowwise_gemm_ignores_strides(both: list[dict[str, Any]]) -> None:
    assert all(found["rowwise"]["int8_strided_x"] > WRONG for found in both)


@pytest.mark.parametrize("name", ["int8_one_scale", "int8_expanded_scale", "int8_swapped_scales"])
def test_too_few_scales_are_read_out_of_bounds(both: list[dict[str, Any]], name: str) -> None:
    assert all(found["rowwise"][name].startswith("OutOfBoundsError: ") for found in both)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fp32_bias", "RuntimeError: Out amd bias should have the same dtype!"),
        ("fp32_output", "RuntimeError: Unsupported scales/output dtype!"),
        ("odd_k", "RuntimeError: This GEMM is not supported!"),
        ("odd_n", "RuntimeError: This GEMM is not supported!"),
        ("other_fp8", "RuntimeError: Weights and activations should both be int8/fp8!"),
    ],
)
def test_the_rowwise_gemm_checks_its_arguments(both: list[dict[str, Any]], name: str, message: str) -> None:
    assert [message, message] == [found["rowwise"][name] for found in both]


def test_a_split_k_adds_the_bias_once_per_slice(both: list[dict[str, Any]]) -> None:
    assert [{}, {}] == [inaccurate(found["rowwise"], "split_bias_twice") for found in both]


def test_the_preshuffled_rowwise_gemm_wants_a_shuffled_weight(both: list[dict[str, Any]]) -> None:
    assert [{}, {}] == [inaccurate(found["rowwise"], "bpreshuffle") for found in both]
    assert all(found["rowwise"]["bpreshuffle_unshuffled"] > WRONG for found in both)


def test_block_scaled_gemms_match_float64(both: list[dict[str, Any]]) -> None:
    names = ("tuned", "odd", "one_row", "tuned_preshuffled", "one_row_preshuffled", "tuned_strided_scale")
    assert [{}, {}] == [inaccurate(found["blockscale"], *names) for found in both]


def test_each_block_scaled_gemm_wants_its_own_scale_order_and_weight_layout(both: list[dict[str, Any]]) -> None:
    names = ("tuned_k_major", "odd_k_major", "tuned_preshuffled_row_major", "tuned_unshuffled", "one_row_unshuffled")
    assert [] == [name for found in both for name in names if found["blockscale"][name] < WRONG]


def test_one_row_has_the_same_scales_in_either_order(both: list[dict[str, Any]]) -> None:
    assert [
        {},
        {},
    ] == [inaccurate(found["blockscale"], "one_row_k_major", "one_row_preshuffled_row_major") for found in both]


def test_the_block_scaled_gemm_wants_all_scales_in_float32(both: list[dict[str, Any]]) -> None:
    for found in both:
        assert found["blockscale"]["few_scales"].startswith("OutOfBoundsError: x_scale")
        assert "RuntimeError: Unsupported scales/output dtype!" == found["blockscale"]["e8m0_scales"]


def test_quantizers_return_float32_scales_of_one_column_or_one_element(both: list[dict[str, Any]]) -> None:
    for found in both:
        results = found["quantizers"]
        assert ["torch.int8", [5, 1], [1, 1], "torch.float32"] == results["int8_token_form"]
        assert [found["fp8"], [5, 1], [1, 1], "torch.float32"] == results["fp8_token_form"]
        assert [[1], [1]] == [results["int8_tensor_form"][0], results["fp8_tensor_form"][0]]


def test_quantizers_scale_by_amax_over_the_largest_code(both: list[dict[str, Any]]) -> None:
    for results in (found["quantizers"] for found in both):
        errors = [results[f"{kind}_token_scale"] for kind in ("int8", "fp8")]
        errors += [results[f"{kind}_tensor_form"][1] for kind in ("int8", "fp8")]
        assert max(errors) < 1e-6


def test_quantized_rows_and_groups_stay_near_their_input(both: list[dict[str, Any]]) -> None:
    for results in (found["quantizers"] for found in both):
        assert max(results["int8_token_error"], results["int8_group_error"]) < 0.025
        assert max(results["fp8_token_error"], results["fp8_group_error"]) < 0.035


def test_int8_codes_are_cut_toward_zero_and_wrap(both: list[dict[str, Any]]) -> None:
    for results in (found["quantizers"] for found in both):
        assert [True, True] == results["int8_truncates"]
        assert [[-126] * 4] == results["int8_wraps"]


def test_fp8_codes_are_clamped_to_the_largest_code_of_the_device(both: list[dict[str, Any]]) -> None:
    assert [240.0, 448.0] == [found["quantizers"]["fp8_static_largest"] for found in both]


def test_a_zero_row_has_scale_zero(both: list[dict[str, Any]]) -> None:
    assert [0.0] * 4 == [found["quantizers"][f"{kind}_zero_row"][1] for found in both for kind in ("int8", "fp8")]


def test_transposed_group_scales_keep_their_shape_and_are_k_major_for_fp8_alone(both: list[dict[str, Any]]) -> None:
    for results in (found["quantizers"] for found in both):
        assert [[5, 3], [5, 3], [3, 1]] == results["fp8_group_form"] == results["int8_group_form"]
        assert [True, False] == [results["fp8_group_transposed"], results["int8_group_transposed"]]
        assert [False, True] == [results["fp8_group_not_transposed"], results["int8_group_not_transposed"]]
        assert [True, True] == [results["fp8_same_codes"], results["int8_same_codes"]]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("strided", "RuntimeError: Expected input.is_contiguous()"),
        ("fp32_input", 'RuntimeError: "quant_kernel" not implemented for'),
        ("k_not_4", "RuntimeError: stand-in: rows of 254"),
        ("static_token", "ValueError: unsupported: static per token quant"),
    ],
)
def test_quantizers_check_their_arguments(both: list[dict[str, Any]], name: str, message: str) -> None:
    assert [True, True] == [found["quantizers"][name].startswith(message) for found in both]


SHAPES = ["untuned", "tuned", "tuned_ck"]


@pytest.mark.parametrize("shape", SHAPES)
def test_fp4_gemms_match_float64(gfx950: dict[str, Any], shape: str) -> None:
    assert {} == inaccurate(gfx950["fp4"][shape], "gemm")


def test_fp4_shapes_reach_assembly_or_composable_kernel_by_table(gfx950: dict[str, Any]) -> None:
    kernels = [gfx950["fp4"][shape]["kernel"] for shape in SHAPES]
    assert ["gemm_a4w4_asm", "gemm_a4w4_asm", "gemm_a4w4_blockscale"] == [function for function, _ in kernels]
    assert "_ZN5aiter41f4gemm_bf16_per1x32Fp4_BpreShuffle_32x128E" == kernels[1][1]


@pytest.mark.parametrize("shape", SHAPES)
def test_fp4_gemms_want_shuffled_weights_and_swizzled_scales(gfx950: dict[str, Any], shape: str) -> None:
    found = gfx950["fp4"][shape]
    assert found["unshuffled_weight"] > WRONG
    assert found["plain_weight_scales"] > WRONG
    assert found["unswizzled_scales"].startswith("OutOfBoundsError: ")


@pytest.mark.parametrize("shape", SHAPES)
def test_the_fp4_quantizer_swizzles_into_padding_that_it_leaves_unwritten(gfx950: dict[str, Any], shape: str) -> None:
    found = gfx950["fp4"][shape]
    assert [True, True] == [found["same_codes"], found["swizzle"]]
    assert found["quantizer_error"] < 0.13


def test_fp4_codes_and_scales_have_their_own_types(gfx950: dict[str, Any]) -> None:
    expected = ["torch.float4_e2m1fn_x2", "torch.float8_e8m0fnu", [5, 16], [256, 16]]
    assert expected == gfx950["fp4"]["untuned"]["form"]


def test_fp4_scales_round_up_from_one_and_a_half(gfx950: dict[str, Any]) -> None:
    assert [125, 125, 126, 126] == gfx950["fp4"]["exponents"]
    assert [[2.0**-35]] == gfx950["fp4"]["zero_block"]


def test_the_fp4_gemms_check_their_arguments(gfx950: dict[str, Any]) -> None:
    found = gfx950["fp4"]
    assert found["untuned"]["small_output"].startswith("AssertionError: Dim0 of gemm_a4w4_asm output")
    assert found["untuned"]["bytes_as_input"].startswith("RuntimeError: get_cfg Unsupported input_type:torch.uint8")
    assert "RuntimeError: gemm_a4w4_asm only support BFloat16 output now!" == found["untuned"]["half"]
    assert "RuntimeError: get_heuristic_kernel: cannot get heuristic kernel!" == found["n_96"]
    assert ["returned", "returned"] == [found["tuned_ck"]["small_output"], found["tuned_ck"]["half"]]


def test_swizzling_quantizers_write_out_of_bounds_unless_k_is_a_multiple_of_256(gfx950: dict[str, Any]) -> None:
    assert gfx950["fp4"]["k_480_swizzled"].startswith("OutOfBoundsError: out")
    assert "returned" == gfx950["fp4"]["k_480"]


def test_gfx942_has_no_fp4(gfx942: dict[str, Any], interpreted942: dict[str, Any]) -> None:
    assert gfx942["fp4_quantizer"].endswith("device not support Float4_e2m1fn_x2 dtype")
    assert gfx942["fp4_gemm"].startswith("RuntimeError: A4W4 GEMM kernel is not supported on gfx942")
    assert "AssertionError: MXFP4 is not available on your device" == interpreted942["fp4"]


def test_a_compiled_module_without_stand_in_says_so(gfx942: dict[str, Any]) -> None:
    assert (
        "NotImplementedError: module_gemm_a8w8_asm is a compiled module without a stand-in" == gfx942["unknown_module"]
    )


def test_interpreted_8_bit_gemms_match_float64(interpreted942: dict[str, Any], interpreted950: dict[str, Any]) -> None:
    names = [f"{kind}_{m}" for m in (5, 65) for kind in ("int8", "fp8", "per_token")]
    names += ["int8_5_bias", "int8_65_bias", "blockscale_5", "blockscale_33"]
    assert [{}, {}] == [inaccurate(found, *names) for found in (interpreted942, interpreted950)]


def test_interpreted_quantizers_stay_near_their_input(
    interpreted942: dict[str, Any], interpreted950: dict[str, Any]
) -> None:
    for found in (interpreted942, interpreted950):
        assert found["int8_quantizer"] < 0.025
        assert found["fp8_quantizer"] < 0.035


def test_interpreted_per_token_gemm_wants_two_dimensional_scales(interpreted950: dict[str, Any]) -> None:
    assert interpreted950["flat_scales"].startswith("IndexError: ")


@pytest.mark.parametrize("rows", [5, 16, 33])
def test_interpreted_fp4_gemms_match_float64(interpreted950: dict[str, Any], rows: int) -> None:
    assert {} == inaccurate(interpreted950, f"afp4wfp4_{rows}", f"preshuffled_{rows}", "afp4wfp4_own_config")
    assert interpreted950[f"preshuffled_{rows}_plain_weight"] > WRONG


@pytest.mark.parametrize("rows", [5, 33, 130])
def test_interpreted_gemm_of_fp8_and_fp4_writes_to_its_output_and_returns_nothing(
    interpreted950: dict[str, Any], rows: int
) -> None:
    nothing, error = interpreted950[f"a8wfp4_{rows}"]
    assert nothing
    assert error < ROUNDING


def test_interpreted_fp4_quantizer_returns_bytes_and_transposed_scales(interpreted950: dict[str, Any]) -> None:
    assert ["torch.uint8", "torch.uint8", [5, 16], [1, 5]] == interpreted950["mxfp4_form_5"]
    assert interpreted950["mxfp4_quantizer_5"] < 0.13


def test_interpreted_fp4_gemms_take_bytes_alone(interpreted950: dict[str, Any]) -> None:
    assert ["KeyError: 'float4_e2m1fn_x2'", "KeyError: 'float8_e8m0fnu'"] == [
        interpreted950["fp4_dtype"],
        interpreted950["e8m0_dtype"],
    ]


def test_the_fp4_configuration_is_a_dictionary_with_the_split(interpreted950: dict[str, Any]) -> None:
    kind, keys, kept = interpreted950["config_keys"]
    assert ["dict", True, False] == [kind, "NUM_KSPLIT" in keys, kept]


def rounded_rows(rows: int) -> list[int]:
    import aiter  # noqa: A004

    return [aiter.get_cu_num(), aiter.get_padded_m(rows, 512, 512, 0), aiter.get_padded_m(rows, 512, 512, 1)]


def test_a_function_of_a_test_module_runs_in_a_child_with_its_arguments() -> None:
    assert [80, 288, 512] == in_process("gfx942", rounded_rows, arguments={"rows": 270}, compute_units=80)


def test_a_failing_child_reports_its_error_output() -> None:
    with pytest.raises(
        ProcessFailedError, match=r"(?s)on gfx950 ended with 1.*ModuleNotFoundError: No module named 'absent'"
    ):
        in_process("gfx950", "absent:function")
