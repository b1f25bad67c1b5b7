"""Bit-exact comparison with independent implementations; where one differs, the test says by which rule and how much.

torchao 0.18, ml_dtypes and the torch references of the installed AITER are called. compressed-tensors 0.20, AMD Quark
0.13, ModelOpt 0.47, AutoAWQ 0.2.9 and the references of AITER 0.1.20.post1 are recordings in `opinions/`.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import os
import sys
import types
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

from qscheme import formats, numerics, packing
from qscheme.formats import E2M1, E2M3, E3M2, E5M3
from qscheme.types import Operand, Rule

os.environ.setdefault("TORCHAO_FORCE_SKIP_LOADING_SO_FILES", "1")

from torchao.prototype.mx_formats import constants as torchao_words
from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx
from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale
from torchao.quantization import quant_primitives as torchao_affine

FN, FNUZ = torch.float8_e4m3fn, torch.float8_e4m3fnuz
LARGEST = {"fp4_e2m1": 6.0, "fp6_e2m3": 7.5, "fp6_e3m2": 28.0, "fp8_e4m3": 448.0}


def mx(element, rule, largest=None):
    return Operand(element, "1x32", "e8m0", Rule(rule, largest or LARGEST[element], floor=0.0))


def nvfp4(direction, apply="divide"):
    return Operand("fp4_e2m1", "1x16", "e4m3", Rule("amax_div", 6.0, "rne", apply, 0.0), global_scale=direction)


def row(element, largest, granularity="per_channel", symmetric=True, rounding="rne", apply="divide"):
    rule = Rule("amax_div", largest, rounding, apply)
    return Operand(element, granularity, "fp32", rule, symmetric=symmetric)


def same_bits(expected, actual):
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[expected.element_size()]
    return expected.dtype == actual.dtype and torch.equal(expected.view(integers), actual.view(integers))


def scale_bytes(amax, operand, flavour=FN):
    x = torch.zeros(len(amax), 32)
    x[:, 7] = amax
    return numerics.quantize(x, operand, flavour)[1].reshape(-1)


@functools.cache
def recorded(name):
    stored = json.loads((Path(__file__).parent / "opinions" / f"{name}.json").read_text())
    return {case: types.SimpleNamespace(**{k: tensor(v) for k, v in c.items()}) for case, c in stored["cases"].items()}


def tensor(field):
    plain = torch.frombuffer(bytearray.fromhex(field["hex"]), dtype=torch.uint8)
    return plain.view(getattr(torch, field["dtype"])).reshape(field["shape"])


# --- compressed-tensors 0.20 ---------------------------------------------------------------------


# MXFP8 is rounded with the one mantissa bit of E2M1, so by even175; Quark and torchao call another rule `even` there.
CT_MX = [(4, "fp4_e2m1", "even"), (6, "fp6_e2m3", "even"), (8, "fp8_e4m3", "even175")]


@pytest.mark.parametrize(("bits", "element", "rule"), CT_MX)
def test_mx_scales_and_codes_equal_those_of_compressed_tensors(bits, element, rule):
    case = recorded("compressed_tensors")[f"exponents_{bits}"]
    assert torch.equal(case.byte, scale_bytes(case.amax, mx(element, rule)))
    case = recorded("compressed_tensors")[f"mxfp{bits}"]
    codes, scale = numerics.quantize(case.x, mx(element, rule))
    assert torch.equal(case.scale, scale)
    assert torch.equal(case.codes, codes.view(torch.uint8))


def test_mxfp8_of_compressed_tensors_is_not_the_even_rule_of_its_element():
    case = recorded("compressed_tensors")["exponents_8"]
    assert 0.05 <= (case.byte != scale_bytes(case.amax, mx("fp8_e4m3", "even"))).float().mean() <= 0.3


def test_nvfp4_that_divides_equals_compressed_tensors_down_to_tiles_of_zeros():
    case, operand = recorded("compressed_tensors")["nvfp4"], nvfp4("divide")
    assert torch.equal(case.global_scale, numerics.find_global_scale(case.x, operand))
    codes, scale = numerics.quantize(case.x, operand, global_scale=case.global_scale)
    assert torch.equal(case.scale, scale.view(torch.uint8))
    assert torch.equal(case.codes, codes)
    assert scale[5].tolist() == [0.125] * 4
    zeros = recorded("compressed_tensors")["nvfp4_zeros"].global_scale
    assert torch.equal(zeros, numerics.find_global_scale(torch.zeros(1, 32), operand))


@pytest.mark.parametrize(
    ("case", "operand"),
    [
        ("int8_row", row("int8", 127.5)),
        ("int4_group", row("int4", 7.5, "1x32")),
        ("fp8_row", row("fp8_e4m3", 448.0)),
    ],
)
def test_float32_scales_and_codes_equal_those_of_compressed_tensors(case, operand):
    case = recorded("compressed_tensors")[case]
    codes, scale = numerics.quantize(case.x, operand)
    assert torch.equal(case.scale.reshape(scale.shape), scale)
    assert torch.equal(case.codes.view(codes.dtype), codes)


@pytest.mark.parametrize(
    ("case", "operand"),
    [
        ("int8_row_asymmetric", row("int8", 127.5, symmetric=False)),
        ("int4_group_asymmetric", row("int4", 7.5, "1x32", symmetric=False)),
    ],
)
def test_zero_points_and_codes_equal_those_of_compressed_tensors(case, operand):
    # It rounds x / scale + zero, where qscheme adds the zero point to a whole number: none of these 512 is such a tie.
    case = recorded("compressed_tensors")[case]
    codes, scale, zero_point = numerics.quantize_asymmetric(case.x, operand)
    assert torch.equal(case.scale.reshape(scale.shape), scale)
    assert torch.equal(case.zero_point.reshape(zero_point.shape).to(torch.int32), zero_point)
    assert torch.equal(case.codes, codes)


def test_adding_the_zero_point_before_rounding_moves_ties_alone_and_by_one_code():
    operand = row("int8", 127.5, symmetric=False)
    x = torch.randn(500, 512).bfloat16().float() + 0.5
    codes, scale, zero_point = numerics.quantize_asymmetric(x, operand)
    differ = codes != (x / scale + zero_point).round().clamp(-128, 127)
    fraction = (x / scale).abs().frac()[differ]
    assert ((fraction - 0.5).abs() <= 1e-4).all()
    assert (codes - (x / scale + zero_point).round().clamp(-128, 127)).abs().max() <= 1
    assert differ.float().mean() <= 3e-3


@pytest.mark.parametrize("case", ["int4_group", "int4_group_asymmetric"])
def test_int32_columns_are_the_words_of_compressed_tensors(case):
    case = recorded("compressed_tensors")[case]
    assert torch.equal(case.packed, packing.pack_integers(case.codes, "int4", "int32_columns"))
    assert torch.equal(case.codes, packing.unpack_integers(case.packed, "int4", "int32_columns"))
    zero_point = packing.unpack_zero_points(case.packed_zero_point, "int4", "int32_columns", 8)
    assert torch.equal(case.zero_point, zero_point)
    assert torch.equal(case.packed_zero_point, packing.pack_zero_points(zero_point, "int4", "int32_columns"))


# --- AMD Quark 0.13 ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "element"),
    [("fp4", "fp4_e2m1"), ("fp6_e2m3", "fp6_e2m3"), ("fp6_e3m2", "fp6_e3m2"), ("fp8_e4m3", "fp8_e4m3")],
)
def test_the_even_rule_equals_that_of_quark(case, element):
    case = recorded("quark")[f"even_{case}"]
    assert torch.equal(case.byte, scale_bytes(case.amax, mx(element, "even")))


def test_e5m3_equals_that_of_quark():
    case = recorded("quark")["e5m3"]
    assert torch.equal(case.bytes, formats.encode_float(case.scales, E5M3))
    values = formats.decode_e5m3(torch.arange(256).to(torch.uint8))
    assert torch.equal(case.values[:255], values[:255])
    assert case.values[255].isnan()
    assert values[255].isnan()


def test_packed_e3m2_equals_that_of_quark():
    case = recorded("quark")["fp6_e3m2"]
    assert torch.equal(case.packed, formats.pack_fp6(formats.encode_float(case.values, E3M2)))
    assert torch.equal(case.values, formats.decode_float(formats.unpack_fp6(case.packed), E3M2))


def test_int4_words_of_quark_are_those_of_awq_with_the_sign_bits_flipped():
    case = recorded("quark")["int4_reordered"]
    assert torch.equal(case.codes, packing.unpack_integers(case.packed, "int4", "quark"))
    assert torch.equal(case.packed, packing.pack_integers(case.codes, "int4", "quark"))
    flipped = case.packed ^ torch.tensor(0x88888888 - 2**32, dtype=torch.int32)
    assert torch.equal(case.codes, packing.unpack_integers(flipped, "int4", "awq"))
    wrong = packing.unpack_integers(case.packed, "int4", "awq")
    assert torch.equal(torch.full_like(wrong, 8), (wrong - case.codes).abs())


# --- ModelOpt 0.47 -------------------------------------------------------------------------------


def test_nvfp4_that_multiplies_equals_modelopt_down_to_tiles_of_zeros():
    case, operand = recorded("modelopt")["nvfp4"], nvfp4("multiply")
    assert torch.equal(case.global_scale, numerics.find_global_scale(case.x, operand))
    codes, scale = numerics.quantize(case.x, operand, global_scale=case.global_scale)
    assert torch.equal(case.scale, scale.view(torch.uint8))
    assert torch.equal(case.codes, codes)
    assert scale.float()[5].tolist() == [2.0**-9, 2.0**-9, 1.0, 1.0]


def test_modelopt_and_compressed_tensors_make_the_same_values_but_for_rounding():
    case = recorded("modelopt")["nvfp4"]
    x = case.x[:5]
    outer = numerics.find_global_scale(x, nvfp4("divide"))
    ours = numerics.dequantize(*numerics.quantize(x, nvfp4("divide"), global_scale=outer), nvfp4("divide"), outer)
    theirs = numerics.dequantize(case.codes, case.scale, nvfp4("multiply"), case.global_scale)[:5]
    torch.testing.assert_close(theirs, ours, rtol=1e-6, atol=0)


# --- AutoAWQ 0.2.9 -------------------------------------------------------------------------------


def test_awq_words_are_those_of_autoawq_and_dequantize_alike():
    case = recorded("autoawq")["gemm"]
    codes = packing.unpack_integers(case.packed, "int4", "awq")
    zero_point = packing.unpack_zero_points(case.packed_zero_point, "int4", "awq", 24)
    assert torch.equal(case.codes, codes.t() + 8)
    assert torch.equal(case.zero_point, zero_point.t() + 8)
    assert torch.equal(case.packed, packing.pack_integers(codes, "int4", "awq"))
    assert torch.equal(case.packed_zero_point, packing.pack_zero_points(zero_point, "int4", "awq"))
    operand = Operand("int4", "1x8", "fp32", Rule("amax_div", 7.5), symmetric=False, packing="awq")
    actual = numerics.dequantize(case.packed, case.scales.t(), operand, zero_point=zero_point)
    assert torch.equal(case.weight.t(), actual)


# --- AITER 0.1.20.post1 --------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["floor", "rceil", "even", "ceil"])
@pytest.mark.parametrize(
    ("case", "element", "flavour", "largest"),
    [
        ("fp4_e2m1", "fp4_e2m1", FN, 6.0),
        ("fp8_e4m3", "fp8_e4m3", FN, 448.0),
        ("fp8_e4m3_fnuz", "fp8_e4m3", FNUZ, 240.0),
    ],
)
def test_scale_rules_equal_those_of_a_newer_aiter(rule, case, element, flavour, largest):
    case = recorded("amd_aiter")[f"{rule}_{case}"]
    assert torch.equal(case.byte, scale_bytes(case.amax, mx(element, rule, largest), flavour))


def test_the_default_rule_of_a_newer_aiter_is_rceil():
    case = recorded("amd_aiter")["default"]
    assert torch.equal(case.byte, scale_bytes(case.amax, mx("fp4_e2m1", "rceil")))


# --- AITER as installed --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def aiter_reference():
    """Functions of the installed AITER, taken from its files; the package itself cannot be imported without ROCm."""
    spec = importlib.util.find_spec("aiter")
    assert spec is not None, "these tests compare with AITER: pip install amd-aiter"
    root = Path(next(iter(spec.submodule_search_locations)))
    package, dtypes = types.ModuleType("aiter_references"), types.ModuleType("aiter_references.dtypes")
    package.__path__ = []
    dtypes.fp4x2, dtypes.fp8_e8m0, dtypes.fp32 = torch.float4_e2m1fn_x2, torch.float8_e8m0fnu, torch.float32
    dtypes.i8 = torch.int8
    package.dtypes = dtypes
    names = ("aiter_references", "aiter_references.dtypes", "aiter_references.fp4_utils")
    sys.modules.update({names[0]: package, names[1]: dtypes})
    path = root / "utility" / "fp4_utils.py"
    fp4_spec = importlib.util.spec_from_file_location(names[2], path)
    fp4 = importlib.util.module_from_spec(fp4_spec)
    sys.modules[names[2]] = fp4
    fp4_spec.loader.exec_module(fp4)
    tree = ast.parse((root / "ops" / "quant.py").read_text())
    wanted = ("get_dtype_max", "pertoken_quant", "per_1x32_f4_quant", "per_tensor_quant")
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in wanted]
    namespace = {"torch": torch, "dtypes": dtypes, "fp4_utils": fp4, "functools": functools}
    exec(compile(tree, "quant.py", "exec"), namespace)
    yield types.SimpleNamespace(fp4=fp4, **{name: namespace[name] for name in wanted})
    for name in names:
        del sys.modules[name]


def test_int8_per_token_truncated_equals_aiter(aiter_reference):
    x = torch.randn(67, 1030)
    expected = aiter_reference.pertoken_quant(x, quant_dtype=torch.int8)
    actual = numerics.quantize(x, row("int8", 127, rounding="truncate"))
    assert same_bits(expected[0], actual[0])
    assert same_bits(expected[1], actual[1])


@pytest.mark.parametrize(("flavour", "largest"), [(FN, 448), (FNUZ, 240)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fp8_per_token_equals_aiter(aiter_reference, flavour, largest, dtype):
    x = torch.randn(67, 1030).to(dtype)
    expected = aiter_reference.pertoken_quant(x, quant_dtype=flavour)
    actual = numerics.quantize(x, row("fp8_e4m3", largest), flavour)
    assert same_bits(expected[0], actual[0])
    assert same_bits(expected[1], actual[1])


def test_fp8_per_tensor_equals_aiter(aiter_reference):
    x = torch.randn(67, 1030)
    expected = aiter_reference.per_tensor_quant(x, quant_dtype=FN)
    actual = numerics.quantize(x, row("fp8_e4m3", 448, "per_tensor"))
    assert same_bits(expected[0], actual[0])
    assert same_bits(expected[1], actual[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mxfp4_with_nearest15_equals_aiter(aiter_reference, dtype):
    x = (torch.randn(131, 352) * torch.logspace(-4, 4, 131)[:, None]).to(dtype)
    codes, scale = aiter_reference.per_1x32_f4_quant(x)
    actual = numerics.quantize(x, mx("fp4_e2m1", "nearest15"))
    assert torch.equal(codes.view(torch.uint8), actual[0])
    assert torch.equal(scale.view(torch.uint8), actual[1])


def test_decoding_equals_that_of_aiter(aiter_reference):
    stored = torch.arange(256, dtype=torch.int32).to(torch.uint8).reshape(8, 32)
    assert same_bits(aiter_reference.fp4.mxfp4_to_f32(stored), formats.unpack_e2m1(stored))
    expected, actual = (
        aiter_reference.fp4.e8m0_to_f32(stored.clone()).reshape(-1),
        formats.decode_e8m0(stored).reshape(-1),
    )
    assert torch.equal(expected[:255], actual[:255])
    assert expected[255].isnan()
    assert actual[255].isnan()


# --- torchao 0.18 --------------------------------------------------------------------------------


TORCHAO = {
    "fp4_e2m1": torch.float4_e2m1fn_x2,
    "fp6_e2m3": torchao_words.DTYPE_FP6_E2M3,
    "fp6_e3m2": torchao_words.DTYPE_FP6_E3M2,
    "fp8_e4m3": FN,
}


@pytest.mark.parametrize("rule", ["floor", "even", "ceil", "rceil"])
@pytest.mark.parametrize("element", list(TORCHAO))
def test_mx_scales_and_codes_equal_those_of_torchao(element, rule):
    wide = torch.randn(150, 320) * torch.logspace(-30, 30, 150)[:, None]
    for x in (wide, torch.randn(150, 320).bfloat16().float()):
        expected_scale, expected = to_mx(x, TORCHAO[element], 32, ScaleCalculationMode(rule))
        codes, scale = numerics.quantize(x, mx(element, rule))
        assert torch.equal(expected_scale.view(torch.uint8), scale)
        codes = formats.unpack_fp6(codes) if element.startswith("fp6") else codes.view(torch.uint8)
        assert torch.equal(expected.view(torch.uint8), codes)


def test_torchao_rceil_takes_a_rounded_logarithm_that_comes_out_one_low_just_over_a_power_of_two():
    exponents = torch.arange(-100, 100)
    for ulps, smallest in ((0, None), (1, 4), (3, 8), (9, 32)):
        amax = ((torch.exp2(exponents.float()) * 6).view(torch.int32) + ulps).view(torch.float32)
        x = torch.zeros(200, 32)
        x[:, 0] = amax
        scale = to_mx(x, TORCHAO["fp4_e2m1"], 32, ScaleCalculationMode.RCEIL)[0].view(torch.uint8).reshape(-1)
        exact = scale_bytes(amax, mx("fp4_e2m1", "rceil"))
        differs = exact != scale
        assert torch.equal(exact[differs], scale[differs] + 1)
        assert (exponents[differs].abs().min().item() if differs.any() else None) == smallest


def test_torchao_does_not_divide_by_the_smallest_e8m0_scales():
    # Byte 0, 2**-127, is a subnormal float32: FLOOR divides by 2**-126 and RCEIL multiplies by 1 instead.
    x = torch.zeros(1, 32)
    x[0, 0] = 2.0**-125
    for rule in ("floor", "rceil"):
        scale, expected = to_mx(x, TORCHAO["fp4_e2m1"], 32, ScaleCalculationMode(rule))
        codes, ours = numerics.quantize(x, mx("fp4_e2m1", rule))
        assert (scale.view(torch.uint8).item(), ours.item()) == (0, 0)
        value = formats.unpack_e2m1(expected.view(torch.uint8))[0, 0].item()
        assert value == {"floor": 2.0, "rceil": 0.0}[rule]
        assert numerics.dequantize(codes, ours, mx("fp4_e2m1", rule))[0, 0] == 2.0**-125


def test_nvfp4_equals_torchao_where_the_tile_scale_is_a_normal_e4m3():
    # torchao raises every tile scale to 2**-6, the smallest normal one; the others go on to 2**-9.
    operand = nvfp4("multiply", "multiply_reciprocal")
    for x in (torch.randn(200, 320), torch.randn(200, 320) * torch.logspace(-5, 1, 200)[:, None]):
        outer = numerics.find_global_scale(x, operand)
        assert per_tensor_amax_to_scale(x.abs().max()).reshape(1).tolist() == outer.tolist()
        expected_scale, expected = nvfp4_quantize(x, 16, outer)
        codes, scale = numerics.quantize(x, operand, global_scale=outer)
        small = scale.float() < 2.0**-6
        assert (expected_scale.float()[small] == 2.0**-6).all()
        assert torch.equal(expected_scale[~small].float(), scale[~small].float())
        everywhere = small.repeat_interleave(8, 1)
        # (1 / G) / s and 1 / (s G) round differently.
        assert (expected[~everywhere] != codes[~everywhere]).float().mean() <= 1e-3


def test_nvfp4_without_a_global_scale_equals_torchao_where_the_tile_scale_is_a_normal_e4m3():
    operand = nvfp4(None, "multiply_reciprocal")
    x = torch.randn(200, 320)
    expected_scale, expected = nvfp4_quantize(x, 16)
    codes, scale = numerics.quantize(x, operand)
    assert same_bits(expected_scale, scale)
    assert torch.equal(expected, codes)


@pytest.mark.parametrize(("element", "largest", "lowest"), [("int8", 127.5, -128), ("int4", 7.5, -8)])
@pytest.mark.parametrize(("granularity", "block"), [("per_token", (1, 320)), ("1x32", (1, 32))])
@pytest.mark.parametrize("symmetric", [True, False])
def test_integers_equal_those_of_torchao(element, largest, lowest, granularity, block, symmetric):
    x = torch.randn(100, 320) + 0.3
    mapping = torchao_affine.MappingType.SYMMETRIC if symmetric else torchao_affine.MappingType.ASYMMETRIC
    limits = (torch.int8, lowest, -lowest - 1)
    expected_scale, expected_zero = torchao_affine.choose_qparams_affine(
        x, mapping, block, *limits, scale_dtype=torch.float32, zero_point_dtype=torch.int32
    )
    expected = torchao_affine.quantize_affine(x, block, expected_scale, expected_zero, *limits)
    operand = row(element, largest, granularity, symmetric, apply="multiply_reciprocal")
    if symmetric:
        codes, scale = numerics.quantize(x, operand)
    else:
        codes, scale, zero_point = numerics.quantize_asymmetric(x, operand)
        # It subtracts a rounded min / scale, where qscheme rounds lowest - min / scale.
        assert (expected_zero.reshape(zero_point.shape) - zero_point).abs().max() <= 1
    assert torch.equal(expected_scale.reshape(scale.shape), scale)
    assert (expected != codes).float().mean() <= (0.0 if symmetric else 1e-3)


@pytest.mark.parametrize(
    ("granularity", "block"), [("per_token", (1, 320)), ("1x32", (1, 32)), ("per_tensor", (100, 320))]
)
def test_fp8_equals_torchao(granularity, block):
    x = torch.randn(100, 320)
    expected_scale = torchao_affine._choose_scale_float8(x, list(block))
    expected = torchao_affine._quantize_affine_float8(x, expected_scale)
    codes, scale = numerics.quantize(x, row("fp8_e4m3", 448.0, granularity))
    assert torch.equal(expected_scale.reshape(scale.shape), scale)
    assert same_bits(expected, codes)


def test_log_nearest_equals_the_power_of_two_scales_of_torchao():
    x = torch.randn(300, 320) * torch.logspace(-25, 25, 300)[:, None]
    expected = torchao_affine._choose_scale_float8(x, [1, 32], scale_dtype=torch.float8_e8m0fnu)
    operand = Operand("fp8_e4m3", "1x32", "fp32", Rule("log_nearest", 448.0, floor=0.0))
    assert torch.equal(expected, numerics.quantize(x, operand)[1])


# --- ml_dtypes -----------------------------------------------------------------------------------


ML_DTYPES = [(E2M1, ml_dtypes.float4_e2m1fn), (E2M3, ml_dtypes.float6_e2m3fn), (E3M2, ml_dtypes.float6_e3m2fn)]


@pytest.mark.parametrize(("form", "dtype"), ML_DTYPES)
def test_small_floats_round_and_decode_as_in_ml_dtypes(form, dtype):
    values = np.concatenate([np.arange(-4096, 4096) / 64, np.random.default_rng().standard_normal(50000) * 3])
    values = values.astype(np.float32)
    expected = values.astype(dtype).view(np.uint8)
    assert np.array_equal(expected, formats.encode_float(torch.from_numpy(values), form).numpy())
    codes = np.arange(2 ** (1 + form.exponent_bits + form.mantissa_bits), dtype=np.uint8)
    decoded = formats.decode_float(torch.from_numpy(codes), form).numpy()
    assert np.array_equal(codes.view(dtype).astype(np.float32), decoded)


@pytest.mark.parametrize(
    ("flavour", "dtype", "largest"),
    [(FN, ml_dtypes.float8_e4m3fn, 448.0), (FNUZ, ml_dtypes.float8_e4m3fnuz, 240.0)],
)
def test_fp8_codes_round_as_in_ml_dtypes(flavour, dtype, largest):
    values = np.concatenate([np.arange(-28672, 28672) / 64, np.random.default_rng().standard_normal(50000)])
    values = np.clip(values, -largest, largest).astype(np.float32)
    operand = row("fp8_e4m3", largest, "per_tensor")
    codes = numerics.quantize(torch.from_numpy(values)[None], operand, flavour, torch.ones(1))[0]
    assert np.array_equal(values.astype(dtype).view(np.uint8), codes.view(torch.uint8)[0].numpy())


def test_e8m0_bytes_decode_as_in_ml_dtypes():
    stored = np.arange(255, dtype=np.uint8)
    expected = stored.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    assert np.array_equal(expected, formats.decode_e8m0(torch.from_numpy(stored)).numpy())


def test_an_e8m0_cast_rounds_to_the_nearest_power_and_so_is_nearest15():
    amax = torch.exp2(torch.rand(5000) * 200 - 100)
    expected = (amax / 4).numpy().astype(ml_dtypes.float8_e8m0fnu).view(np.uint8)
    assert np.array_equal(expected, scale_bytes(amax, mx("fp4_e2m1", "nearest15")).numpy())
