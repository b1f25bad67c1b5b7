"""A layer whose tensors are not its scheme's is refused when it is bound, with the operand, what it needs and what was found."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from float64_layers import KINDS, example, relative_error

import qscheme
from qscheme import Facts, InvalidLayer, QschemeError
from qscheme.operands import layer_facts, operands_of, read
from qscheme.packing import unpack_zero_points
from qscheme.tables import load

CPU = Facts.simulate("cpu")
FLOAT8 = torch.float8_e4m3fn


def refused(message: str, scheme: str, n: int = 64, k: int = 64, **changes: Any) -> None:
    """Assert that a good layer with some attributes changed is refused with a message about them."""
    layer = example(scheme, n, k).layer
    vars(layer).update(changes)
    with pytest.raises(InvalidLayer) as raised:
        qscheme.dispatch(layer, CPU)
    assert message == str(raised.value).removeprefix("layer model.layers.0.mlp.up_proj: ")


# --- weight --------------------------------------------------------------------------------------------------------


def test_a_weight_of_another_dtype_is_refused() -> None:
    refused("weight: needs torch.int8 for int8, found torch.uint8", "int8_ptpc", weight=torch.zeros(64, 64).byte())
    refused(
        "weight: needs torch.int8 for int8, found torch.bfloat16", "int8_ptpc", weight=torch.zeros(64, 64).bfloat16()
    )
    fnuz = torch.zeros(64, 64).to(torch.float8_e4m3fnuz)
    refused(f"weight: needs {FLOAT8} for fp8_e4m3, found torch.float8_e4m3fnuz", "fp8_block128", weight=fnuz)
    refused("weight: needs torch.uint8 for fp4_e2m1, found torch.int8", "mxfp4", weight=torch.zeros(64, 32).char())


@pytest.mark.parametrize("shape", [(64,), (2, 64, 64), (0, 64), (64, 0)], ids=str)
def test_a_weight_that_is_no_matrix_is_refused(shape: tuple[int, ...]) -> None:
    weight = torch.zeros(shape, dtype=torch.int8)
    refused(
        f"weight: needs two dimensions [N, K], neither of them 0, found shape {list(shape)}", "int8_ptpc", weight=weight
    )


def test_a_weight_that_is_missing_or_no_tensor_is_refused() -> None:
    refused("weight: needs a tensor, or out_features and in_features, found neither", "int8_ptpc", weight=None)
    refused(
        "weight: needs a tensor of N = 64 and K = 32, found none",
        "int8_ptpc",
        weight=None,
        out_features=64,
        in_features=32,
    )
    refused("weight: needs a torch tensor, found ndarray", "int8_ptpc", weight=np.zeros((64, 64), dtype=np.int8))


def test_logical_sizes_that_the_weight_does_not_have_are_refused() -> None:
    refused("out_features: needs 1 to 64, which the weight has, found 65", "int8_ptpc", out_features=65)
    refused("in_features: needs 1 to 64, which the weight has, found 66", "mxfp4", in_features=66)


def test_a_whole_layer_is_no_smaller_than_its_shard() -> None:
    refused("full_out_features: needs at least the N = 64 of this shard, found 63", "int8_ptpc", full_out_features=63)
    refused("full_in_features: needs at least the K = 64 of this shard, found 32", "int8_ptpc", full_in_features=32)
    refused("in_features: needs 1 to 64, which the weight has, found 0", "int8_ptpc", in_features=0)
    refused("in_features: needs an even K, as two codes share a byte, found 63", "mxfp4", in_features=63)


def test_packed_weights_may_have_torchs_own_dtype() -> None:
    layer = example("mxfp4", 64, 64).layer
    x = torch.randn(3, 64)
    expected = qscheme.dispatch(layer, CPU)(x)
    layer.weight = layer.weight.view(torch.float4_e2m1fn_x2)
    layer.weight_scale = layer.weight_scale.view(torch.float8_e8m0fnu)
    assert torch.equal(expected, qscheme.dispatch(layer, CPU)(x))


# --- weight scale --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "shape"),
    [("int8_ptpc", [64, 1]), ("int8_tensor_static", [1]), ("fp8_block128", [1, 1]), ("mxfp4", [64, 2])],
)
def test_a_missing_scale_is_refused_with_its_shape(scheme: str, shape: list[int]) -> None:
    refused(f"weight_scale: needs a scale of shape {shape}, found none", scheme, weight_scale=None)
    layer = example(scheme, 64, 64).layer
    del layer.weight_scale
    with pytest.raises(InvalidLayer, match=r"weight_scale: needs a scale of shape .*, found none"):
        qscheme.dispatch(layer, CPU)


@pytest.mark.parametrize("shape", [(1, 64), (64, 64), (32,), (32, 1), (64, 1, 1), (1,), (), (65, 1)], ids=str)
def test_a_channel_scale_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    needs = f"weight_scale: needs shape [64, 1] or [64], found shape {list(shape)}"
    refused(needs, "int8_ptpc", 64, 32, weight_scale=torch.ones(shape))


def test_a_channel_scale_along_k_is_refused() -> None:
    refused(
        "weight_scale: needs shape [64, 1] or [64], found shape [32]", "int8_ptpc", 64, 32, weight_scale=torch.ones(32)
    )
    needs = "weight_scale: needs shape [64, 1] or [64], found shape [1, 64]"
    refused(needs, "int8_ptpc", 64, 64, weight_scale=torch.ones(1, 64))


def test_one_scale_for_each_channel_of_a_tensor_scheme_is_refused() -> None:
    refused("weight_scale: needs one value, found shape [64, 1]", "int8_tensor_static", weight_scale=torch.ones(64, 1))


@pytest.mark.parametrize("shape", [(3, 5), (6, 3), (5, 4), (4, 3), (5, 2), (15,), (5, 3, 1), (1, 1)], ids=str)
def test_a_block_scale_of_another_shape_is_refused_with_both_counts(shape: tuple[int, ...]) -> None:
    needs = "weight_scale: needs shape [5, 3] for N = 576 and K = 300 in tiles of 128x128"
    refused(f"{needs}, found shape {list(shape)}", "fp8_block128", 576, 300, weight_scale=torch.ones(shape))


def test_more_scales_than_tiles_are_refused_also_where_the_layer_states_its_sizes() -> None:
    needs = "weight_scale: needs shape [1, 1] for N = 64 and K = 64 in tiles of 128x128, found shape [2, 1]"
    refused(needs, "fp8_block128", out_features=64, in_features=64, weight_scale=torch.ones(2, 1))


def test_a_transposed_mxfp4_scale_is_refused() -> None:
    scale = torch.zeros(2, 64, dtype=torch.uint8)
    refused(
        "weight_scale: needs shape [64, 2] for N = 64 and K = 64 in tiles of 1x32, found shape [2, 64]",
        "mxfp4",
        weight_scale=scale,
    )


def test_a_scale_of_another_format_is_refused() -> None:
    floats = "float32, bfloat16 or float16"
    refused(f"weight_scale: needs {floats}, found torch.uint8", "int8_ptpc", weight_scale=torch.ones(64, 1).byte())
    refused(f"weight_scale: needs {floats}, found torch.float64", "int8_ptpc", weight_scale=torch.ones(64, 1).double())
    refused("weight_scale: needs uint8 with E8M0 bytes, found torch.float32", "mxfp4", weight_scale=torch.ones(64, 2))
    refused(
        f"weight_scale: needs {floats} or uint8 with E8M0 bytes, found torch.int64",
        "fp8_block128",
        weight_scale=torch.ones(1, 1).long(),
    )
    refused("weight_scale: needs a torch tensor, found float", "int8_tensor_static", weight_scale=0.5)


def test_logical_widths_must_be_those_of_the_weight() -> None:
    refused("logical_widths: needs widths that add up to N = 64, found [32, 16]", "int8_ptpc", logical_widths=[32, 16])
    refused(
        "logical_widths: needs widths that add up to N = 64, found [80, -16]", "int8_ptpc", logical_widths=[80, -16]
    )
    needs = "weight_scale: needs shape [64, 1] or [64], or one value for each of the 3 logical widths, found shape [2]"
    refused(needs, "int8_ptpc", logical_widths=[32, 16, 16], weight_scale=torch.ones(2))
    needs = "weight_scale: needs one value, or one value for each of the 3 logical widths, found shape [2]"
    refused(needs, "int8_tensor_static", logical_widths=[32, 16, 16], weight_scale=torch.ones(2))


def test_the_grid_of_a_fused_layer_is_that_of_the_whole_weight() -> None:
    given = read(example("fp8_block128", 448, 256, logical_widths=[256, 192]).layer)
    scheme = load().scheme("fp8_block128")
    assert [4, 2] == list(operands_of(given, scheme, layer_facts(given, scheme)).weight_scale.shape)


# --- words -----------------------------------------------------------------------------------------------------------


def test_the_words_of_a_packing_say_which_way_scales_lie_also_where_n_is_the_number_of_groups() -> None:
    x = torch.randn(5, 1024)
    made = example("int4_gptq_g128", 8, 1024)
    assert (8, 8) == tuple(made.layer.weight_scale.shape)
    assert 0.005 > relative_error(qscheme.dispatch(made.layer, CPU)(x), made.of(x))
    made.layer.weight_scale = made.layer.weight_scale.t()
    assert 0.1 < relative_error(qscheme.dispatch(made.layer, CPU)(x), made.of(x))
    plain = example("int4_w4a16_g128", 8, 1024)
    assert 0.005 > relative_error(qscheme.dispatch(plain.layer, CPU)(x), plain.of(x))


@pytest.mark.parametrize("scheme", ["int4_awq_g128", "int4_gptq_g128", "int4_quark_g128", "int4_gptq_v2_g128"])
def test_scales_that_are_not_k_first_are_refused(scheme: str) -> None:
    needs = "weight_scale: needs shape [3, 64] for K = 384 and N = 64 in tiles of 1x128, K first"
    for shape in ((64, 3), (3, 63), (64,), (192,), (3, 64, 1)):
        refused(f"{needs}, found shape {list(shape)}", scheme, 64, 384, weight_scale=torch.ones(shape))


def test_scales_of_channels_that_are_not_k_first_are_refused() -> None:
    needs = "weight_scale: needs shape [1, 64] for K = 96 and N = 64 in tiles of per_channel, K first"
    for shape in ((64, 1), (64,), (1, 1)):
        found = f"found shape {list(shape)}"
        refused(f"{needs}, {found}", "int4_gptq_channel", 64, 96, weight_scale=torch.ones(shape))


@pytest.mark.parametrize(
    ("scheme", "shape"),
    [
        ("int4_awq_g128", [3, 8]),
        ("int4_gptq_g128", [3, 8]),
        ("int8_gptq_g128", [3, 16]),
        ("int4_gptq_channel", [1, 8]),
        ("int4_w4a16_g128_asym", [8, 3]),
    ],
)
def test_zero_points_in_other_words_are_refused(scheme: str, shape: list[int]) -> None:
    needs = f"weight_zero_point: needs int32 words of shape {shape}"
    if scheme.startswith("int4_w4a16"):
        needs += " or int8 of shape [64, 3]"
    refused(f"{needs}, found none", scheme, 64, 384, weight_zero_point=None)
    for other in (shape[::-1], [64, 3], [3, 64], [8 * shape[0], shape[1]]):
        words = torch.zeros(other, dtype=torch.int32)
        refused(f"{needs}, found torch.int32 of shape {other}", scheme, 64, 384, weight_zero_point=words)
    floats = torch.zeros(shape)
    refused(f"{needs}, found torch.float32 of shape {shape}", scheme, 64, 384, weight_zero_point=floats)


def test_zero_points_of_compressed_tensors_may_be_unpacked_and_end_in_part_of_a_word() -> None:
    made, x = example("int4_w4a16_g128_asym", 59, 264), torch.randn(3, 264)
    expected = qscheme.dispatch(made.layer, CPU)(x)
    assert 0.005 > relative_error(expected, made.of(x))
    assert (8, 3) == tuple(made.layer.weight_zero_point.shape)
    zero_point = unpack_zero_points(made.layer.weight_zero_point, "int4", "int32_columns", 59)
    made.layer.weight_zero_point = zero_point
    assert torch.equal(expected, qscheme.dispatch(made.layer, CPU)(x))


def test_zero_points_of_a_symmetric_weight_must_be_zeros() -> None:
    for scheme in ("int4_quark_g128", "int8_ptpc", "int4_w4a16_g128"):
        made, x = example(scheme, 64, 256), torch.randn(3, 256)
        made.layer.weight_zero_point = torch.zeros(2, 8, dtype=torch.int32)
        assert 0.01 > relative_error(qscheme.dispatch(made.layer, CPU)(x), made.of(x))
        others = torch.tensor([[0, 8]])
        refused(
            "weight_zero_point: needs None or zeros, as the weight is symmetric, found others",
            scheme,
            weight_zero_point=others,
        )


def test_groups_of_columns_are_in_order_or_refused() -> None:
    for scheme, wide in (("int4_gptq_g128", 128), ("int8_gptq_channel", 384), ("int4_w4a16_g32", 32)):
        made, x = example(scheme, 64, 384), torch.randn(3, 384)
        expected = qscheme.dispatch(made.layer, CPU)(x)
        in_order = torch.arange(384) // wide
        for groups in (in_order.int(), in_order, torch.empty(0, dtype=torch.int32)):
            made.layer.g_idx = groups
            assert torch.equal(expected, qscheme.dispatch(made.layer, CPU)(x))
        moved = in_order.clone()
        moved[[3, 300]] = moved[[300, 3]] if wide < 384 else torch.tensor([1, 0])
        needs = (
            f"g_idx: needs None, or k // {wide} for each k under 384; quantize without desc_act, or with static groups"
        )
        for groups in (moved, in_order[:-1], in_order.flip(0) + 1):
            refused(f"{needs}, found other groups, or another number of them", scheme, 64, 384, g_idx=groups)


def test_a_weight_in_words_is_whole_and_of_int32() -> None:
    refused(
        "weight: needs torch.int32 for int8, found torch.int8",
        "int8_w8a16_g128",
        weight=torch.zeros(64, 64, dtype=torch.int8),
    )
    needs = "out_features: needs all of the weight, which is packed in words, found N = 56, K = 64"
    refused(needs, "int4_awq_g128", out_features=56)
    needs = "out_features: needs N a multiple of 8, as words of gptq hold 8 codes, found 60"
    refused(needs, "int4_gptq_g128", out_features=60)
    needs = "in_features: needs K a multiple of 4, as words of int32_columns hold 4 codes, found 62"
    refused(needs, "int8_w8a16_channel", in_features=62)


# --- the other operands --------------------------------------------------------------------------------------------


def test_a_static_scale_that_cannot_be_one_is_refused() -> None:
    scheme = "int8_tensor_static"
    refused("input_scale: needs one value, as the activation is static, found none", scheme, input_scale=None)
    for value in (0.0, -1.0, float("nan"), float("inf")):
        refused(f"input_scale: needs a finite scale above zero, found {value}", scheme, input_scale=torch.tensor(value))
    refused("input_scale: needs one float value, found torch.float32 of shape [2]", scheme, input_scale=torch.ones(2))
    refused(
        "input_scale: needs one float value, found torch.int32 of shape []", scheme, input_scale=torch.tensor(1).int()
    )
    refused("input_scale: needs a torch tensor, found float", scheme, input_scale=0.5)


@pytest.mark.parametrize("scheme", ["int8_ptpc", "fp8_block128", "mxfp4"])
def test_a_static_scale_of_a_dynamic_activation_is_refused(scheme: str) -> None:
    refused("input_scale: needs None, as the activation is dynamic, found a tensor", scheme, input_scale=torch.ones(1))


@pytest.mark.parametrize("shape", [(63,), (64, 1), (1, 64), (), (32,)], ids=str)
def test_a_bias_of_another_length_is_refused(shape: tuple[int, ...]) -> None:
    refused(f"bias: needs shape [64], found shape {list(shape)}", "int8_ptpc", 64, 32, bias=torch.zeros(shape))


def test_a_bias_that_is_no_float_is_refused() -> None:
    refused("bias: needs float32, bfloat16 or float16, found torch.int8", "int8_ptpc", bias=torch.zeros(64).char())
    refused("bias: needs a torch tensor, found list", "int8_ptpc", bias=[0.0] * 64)


@pytest.mark.parametrize("operand", ["weight_scale", "bias", "input_scale"])
def test_operands_on_different_devices_are_refused(operand: str) -> None:
    layer = example("int8_tensor_static", 64, 64, bias=torch.float32).layer
    elsewhere = {operand: getattr(layer, operand).to("meta")}
    refused(f"{operand}: needs the weight's device cpu, found meta", "int8_tensor_static", **elsewhere)


@pytest.mark.parametrize("value", [torch.float64, torch.int8, None, "bf16"], ids=str)
def test_an_output_dtype_that_no_kernel_writes_is_refused(value: Any) -> None:
    needs = f"out_dtype: needs torch.bfloat16, torch.float16 or torch.float32, found {value}"
    refused(needs, "int8_ptpc", out_dtype=value)


@pytest.mark.parametrize("rotation", [16, 64, 1, 0, -32])
def test_a_rotation_of_another_size_is_refused(rotation: int) -> None:
    refused(f"rotation: needs None or 32, found {rotation}", "mxfp4", rotation=rotation)


def test_a_rotation_needs_whole_blocks_and_an_x_that_is_not_quantized() -> None:
    refused("rotation: needs K a multiple of 32, found K = 80", "mxfp4", 64, 80, rotation=32)
    refused("rotation: needs None, as the layer is prequantized, found 32", "mxfp4", rotation=32, prequantized=True)


def test_codes_cannot_be_announced_to_a_scheme_that_takes_none() -> None:
    for scheme, why in (("fp8_w8a16_block128", "not quantized"), ("int8_token_asym", "asymmetric")):
        refused(f"prequantized: needs False, as the activation is {why}, found True", scheme, prequantized=True)


def test_optional_attributes_may_be_absent() -> None:
    made = example("int8_ptpc", 64, 64).layer
    layer = SimpleNamespace(
        scheme=made.scheme, weight=made.weight, weight_scale=made.weight_scale, out_dtype=made.out_dtype
    )
    x = torch.randn(3, 64)
    assert torch.equal(qscheme.dispatch(made, CPU)(x), qscheme.dispatch(layer, CPU)(x))
    layer.weight = None
    with pytest.raises(InvalidLayer, match=r"layer \(unnamed\): weight: needs"):
        qscheme.dispatch(layer, CPU)


def test_the_error_carries_its_parts() -> None:
    layer = example("int8_ptpc", 64, 64).layer
    layer.bias = torch.zeros(63)
    with pytest.raises(InvalidLayer) as raised:
        qscheme.dispatch(layer, CPU)
    error = raised.value
    assert isinstance(error, QschemeError)
    assert (layer.name, "bias", "shape [64]", "shape [63]") == (error.layer, error.operand, error.needs, error.found)


@pytest.mark.parametrize("scheme", (*KINDS, "int4_gptq_g128"))
def test_any_single_change_of_a_shape_is_an_error_of_qscheme_or_right(scheme: str) -> None:
    """No shape of an operand ends in an error of torch."""
    for operand in ("weight", "weight_scale", "bias", "input_scale"):
        for shape in (
            (),
            (1,),
            (2,),
            (0,),
            (64,),
            (1, 1),
            (1, 64),
            (64, 1),
            (63, 64),
            (64, 63),
            (2, 2),
            (0, 64),
            (2, 3, 4),
        ):
            layer = example(scheme, 64, 64, bias=torch.float32).layer
            old = getattr(layer, operand)
            setattr(layer, operand, torch.ones(shape).to(torch.float32 if old is None else old.dtype))
            try:
                bound = qscheme.dispatch(layer, CPU)
            except QschemeError:
                continue
            assert (2, bound.n) == bound(torch.randn(2, bound.k)).shape


@pytest.mark.parametrize("scheme", (*KINDS, "int4_gptq_g128"))
@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.uint8, torch.int64, torch.bool, torch.float64, torch.complex64, torch.float8_e5m2]
)
def test_any_single_change_of_a_dtype_is_an_error_of_qscheme_or_right(scheme: str, dtype: torch.dtype) -> None:
    """No dtype of an operand ends in an error of torch."""
    for operand in ("weight", "weight_scale", "bias", "input_scale"):
        layer = example(scheme, 64, 64, bias=torch.float32).layer
        old = getattr(layer, operand)
        if old is None or old.dtype == dtype:
            continue
        setattr(layer, operand, torch.ones(old.shape).to(dtype))
        try:
            qscheme.dispatch(layer, CPU)
        except QschemeError:
            continue
        assert (operand, dtype) == ("weight_scale", torch.uint8)
        assert {"e8m0", "e4m3"} & set(load().scheme(scheme).stored_scales)
