"""Reference arithmetic against exact rationals, float64 and AITER's own torch references."""

from __future__ import annotations

import ast
import functools
import importlib.util
import math
import sys
import types
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
import torch._dynamo.testing

from qscheme import numerics
from qscheme.types import Operand, Rule

FN, FNUZ = torch.float8_e4m3fn, torch.float8_e4m3fnuz
GRANULARITIES = ("per_tensor", "per_token", "per_channel", "1x128", "128x128", "1x32", "1x16", "32x32")
EXPONENT_RULES = ("floor", "even", "even175", "rceil", "ceil", "nearest15", "log_nearest")
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
SHAPES = ((1, 32), (3, 300), (129, 258), (257, 34), (5, 2))

INT8 = Rule("amax_div", 127)
FP8 = Rule("amax_div", 448)


def int8(granularity="per_token", rule=INT8):
    return Operand("int8", granularity, "fp32", rule)


def fp8(granularity="per_token", rule=FP8, scale="fp32"):
    return Operand("fp8_e4m3", granularity, scale, rule)


def mxfp8(rule="rceil", largest=448.0, granularity="1x32"):
    return Operand("fp8_e4m3", granularity, "e8m0", Rule(rule, largest))


def mxfp4(rule="even", rounding="rne", granularity="1x32", floor=1e-10):
    return Operand("fp4_e2m1", granularity, "e8m0", Rule(rule, 6, rounding, floor=floor))


def every_operand(granularity):
    return (int8(granularity), fp8(granularity), mxfp8("rceil", 448.0, granularity), mxfp4("even", "rne", granularity))


def same_bits(expected, actual):
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[expected.element_size()]
    return expected.dtype == actual.dtype and torch.equal(expected.view(integers), actual.view(integers))


def all_bytes():
    return torch.arange(256, dtype=torch.int32).to(torch.uint8)


# --- formats, by formula -------------------------------------------------------------------------


def e4m3_value(byte, flavour):
    sign, exponent, mantissa = (-1) ** (byte >> 7), (byte >> 3) & 15, byte & 7
    if flavour == FN and byte & 127 == 127:
        return math.nan
    if flavour == FNUZ and byte == 128:
        return math.nan
    bias = 7 if flavour == FN else 8
    return sign * (mantissa / 8 * 2.0 ** (1 - bias) if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - bias))


@pytest.mark.parametrize("flavour", [FN, FNUZ])
def test_every_fp8_byte_dequantizes_by_its_formula(flavour):
    codes = all_bytes().view(flavour).reshape(2, 128)
    actual = numerics.dequantize(codes, torch.ones(1), fp8("per_tensor")).double().reshape(-1)
    expected = torch.tensor([e4m3_value(byte, flavour) for byte in range(256)], dtype=torch.float64)
    assert torch.equal(expected.isnan(), actual.isnan())
    assert torch.equal(expected.nan_to_num(nan=0.0), actual.nan_to_num(nan=0.0))
    assert torch.equal(expected[~expected.isnan()].signbit(), actual[~expected.isnan()].signbit())


def test_byte_0x80_is_nan_in_fnuz_and_minus_zero_in_fn():
    byte = torch.tensor([[0x80]], dtype=torch.uint8)
    assert numerics.dequantize(byte.view(FNUZ), torch.ones(1), fp8()).isnan().all()
    value = numerics.dequantize(byte.view(FN), torch.ones(1), fp8())
    assert value.item() == 0.0
    assert value.signbit().item()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e8m0fnu])
def test_every_e8m0_byte_decodes_by_its_formula(dtype):
    actual = numerics.decode_e8m0(all_bytes().view(dtype)).double()
    assert actual[:255].tolist() == [2.0 ** (byte - 127) for byte in range(255)]
    assert actual[255].isnan()


def test_every_e8m0_byte_survives_decoding_and_encoding():
    assert torch.equal(all_bytes(), numerics.encode_e8m0(numerics.decode_e8m0(all_bytes())))


def test_zero_encodes_as_the_smallest_e8m0_and_infinity_as_nan():
    assert numerics.encode_e8m0(torch.tensor([0.0, math.inf, math.nan])).tolist() == [0, 255, 255]


def test_every_e2m1_byte_decodes_low_nibble_first():
    table = [*E2M1_VALUES, *(-value for value in E2M1_VALUES)]
    expected = torch.tensor([[table[byte & 15], table[byte >> 4]] for byte in range(256)]).reshape(16, 32)
    actual = numerics.unpack_e2m1(all_bytes().reshape(16, 16))
    assert same_bits(expected, actual)


def test_packing_puts_the_even_column_in_the_low_nibble():
    packed = numerics.pack_e2m1(torch.tensor([[1, 15, 2, 0]], dtype=torch.uint8))
    assert packed.tolist() == [[0xF1, 0x02]]


def test_float4_bytes_unpack_like_uint8():
    stored = all_bytes().reshape(8, 32)
    assert same_bits(numerics.unpack_e2m1(stored), numerics.unpack_e2m1(stored.view(torch.float4_e2m1fn_x2)))


def test_packing_an_odd_number_of_columns_is_refused():
    with pytest.raises(ValueError, match="needs an even number of columns, found 3"):
        numerics.pack_e2m1(torch.zeros(2, 3, dtype=torch.uint8))


# --- scale rules, against exact rationals --------------------------------------------------------


def floor_log2(value):
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    return exponent if Fraction(2) ** exponent <= value else exponent - 1


def ceil_log2(value):
    exponent = floor_log2(value)
    return exponent if Fraction(2) ** exponent == value else exponent + 1


def exact_exponent(rule, amax, emax, mantissa_bits, largest):
    a = Fraction(amax)
    ratio = a / Fraction(largest)
    power = floor_log2(a)
    significand = a / Fraction(2) ** power
    exponent = {
        "floor": lambda: power - emax,
        "even": lambda: power - emax + (significand >= 2 - Fraction(1, 2 ** (mantissa_bits + 1))),
        "even175": lambda: power - emax + (significand >= Fraction(7, 4)),
        "rceil": lambda: ceil_log2(ratio),
        "ceil": lambda: ceil_log2(a) - emax,
        "nearest15": lambda: power - emax + (significand >= Fraction(3, 2)),
        "log_nearest": lambda: (floor_log2(ratio**2) + 1) // 2,
    }[rule]()
    return max(-127, min(127, exponent))


def exponents(operand, amax, flavour=FN):
    x = torch.zeros(len(amax), 32)
    x[:, 7] = torch.as_tensor(amax)
    return (numerics.quantize(x, operand, flavour)[1].int() - 127).reshape(-1).tolist()


def interesting_magnitudes():
    significands = [1.0, 1.5, 1.75, 1.875, 1.9375, math.sqrt(2), 1.5 * math.sqrt(2) / 2, 1.75 * math.sqrt(2) / 2]
    centres = np.array([s * 2.0**e for s in significands for e in (-90, -30, -12, -3, 0, 2, 8, 9, 30, 120)], np.float32)
    near = [centres]
    for direction in (np.float32(0), np.float32(np.inf)):
        step = centres
        for _ in range(3):
            step = np.nextafter(step, direction)
            near.append(step)
    spread = np.exp2(np.random.default_rng().uniform(-100, 127, 500)).astype(np.float32)
    return np.concatenate([*near, spread]).tolist()


FORMATS = [
    ("fp4_e2m1", FN, 6.0, 2, 1, 6.0),
    ("fp8_e4m3", FN, 448.0, 8, 3, 448.0),
    ("fp8_e4m3", FNUZ, 240.0, 7, 3, 240.0),
    ("fp8_e4m3", FNUZ, 448.0, 7, 3, 224.0),
]


@pytest.mark.parametrize("rule", EXPONENT_RULES)
@pytest.mark.parametrize(("element", "flavour", "rule_max", "emax", "mantissa_bits", "largest"), FORMATS)
def test_exponents_equal_those_of_exact_arithmetic(rule, element, flavour, rule_max, emax, mantissa_bits, largest):
    operand = Operand(element, "1x32", "e8m0", Rule(rule, rule_max, floor=0.0))
    amax = interesting_magnitudes()
    expected = [exact_exponent(rule, a, emax, mantissa_bits, largest) for a in amax]
    assert expected == exponents(operand, amax, flavour)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("floor", [0, 0, 0, 0, 0, 1]),
        ("even", [0, 0, 0, 0, 1, 1]),
        ("even175", [0, 0, 0, 0, 1, 1]),
        ("rceil", [0, 0, 0, 1, 1, 1]),
        ("ceil", [0, 1, 1, 1, 1, 1]),
        ("nearest15", [0, 0, 1, 1, 1, 1]),
        ("log_nearest", [-1, 0, 0, 0, 0, 0]),
    ],
)
def test_fp4_rules_agree_with_the_worked_table(rule, expected):
    assert expected == exponents(mxfp4(rule), [4.0, 4.5, 6.0, 6.1, 7.0, 8.0])


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("floor", [0, 0, 0, 0, 0, 1]),
        ("even", [0, 0, 0, 0, 1, 1]),
        ("even175", [0, 1, 1, 1, 1, 1]),
        ("rceil", [0, 0, 1, 1, 1, 1]),
        ("ceil", [1, 1, 1, 1, 1, 1]),
        ("nearest15", [0, 1, 1, 1, 1, 1]),
        ("log_nearest", [-1, 0, 0, 0, 0, 0]),
    ],
)
def test_fp8_rules_agree_with_the_worked_table(rule, expected):
    assert expected == exponents(mxfp8(rule), [300.0, 448.0, 450.0, 480.0, 496.0, 512.0])


@pytest.mark.parametrize(
    ("amax", "floor", "even", "rceil"),
    [(6.0, 127, 127, 127), (6.5, 127, 127, 128), (7.0, 127, 128, 128), (4.0, 127, 127, 127), (3.0, 126, 126, 126)],
)
def test_three_legal_mxfp4_rules_differ_just_where_they_should(amax, floor, even, rceil):
    assert [floor, even, rceil] == [127 + exponents(mxfp4(rule), [amax])[0] for rule in ("floor", "even", "rceil")]


def test_the_exponent_comes_from_float32_and_not_from_a_rounded_value():
    assert exponents(mxfp4("floor"), [3.9999, 4.0]) == [-1, 0]


def test_an_exponent_rule_for_a_float32_scale_gives_the_same_power_as_float32():
    x = torch.randn(5, 300)
    powers = numerics.quantize(x, fp8("1x128", Rule("rceil", 448)))
    stored = numerics.quantize(x, fp8("1x128", Rule("rceil", 448), "e8m0"))
    assert torch.equal(numerics.decode_e8m0(stored[1]), powers[1])
    assert same_bits(stored[0], powers[0])


def test_no_finite_input_gives_a_nan_scale_byte():
    x = torch.tensor([[torch.finfo(torch.float32).max, 1.0], [1e-45, 0.0], [0.0, 0.0], [-1e-38, 1e-40]])
    for rule in EXPONENT_RULES:
        for operand in (mxfp4(rule), mxfp8(rule)):
            assert numerics.quantize(x, operand)[1].max() < 255


def test_tiles_under_the_floor_get_the_scale_of_the_floor():
    x = torch.tensor([[0.0, 0.0], [1e-12, -1e-11], [1e-6, 0.0]])
    scale = numerics.quantize(x, fp8(rule=Rule("amax_div", 448, floor=1 / 512)))[1]
    assert scale.reshape(-1).tolist() == [float(np.float32(1 / 512) / np.float32(448))] * 3


# --- FP8 -----------------------------------------------------------------------------------------


def nearest_fp8(scaled, flavour, largest):
    """Values of the nearest codes, ties to the even byte, in float64."""
    values = np.array([e4m3_value(byte, flavour) for byte in range(128)])
    bytes_ = np.flatnonzero(values <= largest)
    magnitude = np.minimum(np.abs(scaled.astype(np.float64)), largest)
    distance = np.abs(magnitude[..., None] - values[bytes_])
    near = distance == distance.min(axis=-1, keepdims=True)
    even = near & (bytes_ % 2 == 0)
    chosen = np.where(even.any(axis=-1), even.argmax(axis=-1), near.argmax(axis=-1))
    return np.copysign(values[bytes_][chosen], scaled.astype(np.float64))


@pytest.mark.parametrize(
    ("flavour", "rule_max", "largest"),
    [(FN, 448, 448), (FN, 240, 240), (FNUZ, 240, 240), (FNUZ, 224, 224), (FNUZ, 448, 224)],
)
@pytest.mark.parametrize("apply", ["divide", "multiply_reciprocal"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_fp8_codes_are_the_nearest_ones(flavour, rule_max, largest, apply, dtype):
    x = (torch.randn(37, 301) * torch.logspace(-3, 3, 37)[:, None]).to(dtype)
    codes, scale = numerics.quantize(x, fp8(rule=Rule("amax_div", rule_max, apply=apply)), flavour)
    plain = x.float().numpy()
    expected_scale = np.abs(plain).max(axis=1, keepdims=True) / np.float32(largest)
    assert np.array_equal(expected_scale, scale.numpy())
    scaled = plain / expected_scale if apply == "divide" else plain * (np.float32(1) / expected_scale)
    assert codes.dtype == flavour
    assert np.array_equal(nearest_fp8(scaled, flavour, largest), codes.double().numpy())


@pytest.mark.parametrize(
    ("amax", "rule_max", "flavour", "expected"),
    [(240.0, 240, FNUZ, 1.0), (240.0, 224, FNUZ, 240 / 224), (448.0, 448, FN, 1.0), (448.0, 448, FNUZ, 2.0)],
)
def test_the_fp8_maximum_is_the_one_that_the_rule_names(amax, rule_max, flavour, expected):
    scale = numerics.quantize(torch.tensor([[1.0, -amax]]), fp8(rule=Rule("amax_div", rule_max)), flavour)[1]
    assert scale.item() == float(np.float32(expected))


def test_a_rule_of_448_gives_fnuz_the_bytes_of_fn_and_twice_the_scale():
    x = torch.rand(33, 130) + 0.01
    codes, scale = numerics.quantize(x, fp8())
    fnuz_codes, fnuz_scale = numerics.quantize(x, fp8(), FNUZ)
    assert torch.equal(codes.view(torch.uint8), fnuz_codes.view(torch.uint8))
    assert torch.equal(2 * scale, fnuz_scale)


@pytest.mark.parametrize(("flavour", "rule_max"), [(FN, 448.0), (FNUZ, 240.0), (FNUZ, 224.0)])
def test_values_beyond_a_static_scale_saturate_and_infinity_too(flavour, rule_max):
    x = torch.tensor([[1e30, -1e30, math.inf, -math.inf, 247.9 * 2]], dtype=torch.bfloat16)
    codes, scale = numerics.quantize(x, fp8("per_tensor", Rule("amax_div", rule_max)), flavour, torch.tensor(1.0))
    assert codes.float().tolist() == [[rule_max, -rule_max, rule_max, -rule_max, rule_max]]
    assert scale.tolist() == [1.0]


def test_fp8_nan_stays_nan_and_leaves_the_scale_alone():
    x = torch.randn(3, 40)
    holed = x.clone()
    holed[1, 5] = math.nan
    x[1, 5] = 0.0
    for flavour in (FN, FNUZ):
        codes, scale = numerics.quantize(holed, fp8(), flavour)
        clean_codes, clean_scale = numerics.quantize(x, fp8(), flavour)
        assert codes.float().isnan().nonzero().tolist() == [[1, 5]]
        assert torch.equal(clean_scale, scale)
        assert same_bits(clean_codes[0], codes[0])


@pytest.mark.parametrize("operand", [int8(), mxfp4(), int8("1x32")])
def test_nan_makes_the_scale_of_its_tile_nan_where_elements_have_none(operand):
    x = torch.randn(4, 64)
    x[2, 3] = math.nan
    codes, scale = numerics.quantize(x, operand)
    values = numerics.dequantize(codes, scale, operand)
    until = 32 if "1x32" in operand.granularity else 64
    assert values[2, :until].isnan().all()
    assert not values[2, until:].isnan().any()
    assert not values[[0, 1, 3]].isnan().any()


def test_nan_becomes_code_zero_under_a_given_scale_where_elements_have_none():
    x = torch.tensor([[math.nan, -math.nan, 1.0, -1.0]])
    assert numerics.quantize(x, int8("per_tensor"), scale=torch.ones(1))[0].tolist() == [[0, 0, 1, -1]]
    codes = numerics.quantize(x, mxfp4(), scale=torch.tensor([[127]], dtype=torch.uint8))[0]
    assert codes.tolist() == [[0x00, 0xA2]]


def test_infinity_counts_as_the_largest_float32():
    x = torch.tensor([[1.0, math.inf], [1.0, -2.0]])
    largest = torch.finfo(torch.float32).max
    for operand in (int8(), fp8(), mxfp8(), mxfp4("rceil")):
        values = numerics.dequantize(*numerics.quantize(x, operand), operand)
        assert values[0, 1] > largest / 2
        assert values[1].tolist() == pytest.approx([1.0, -2.0], rel=0.07)


def test_fp8_knows_no_rounding_but_rne():
    with pytest.raises(ValueError, match="needs rne, found truncate"):
        numerics.quantize(torch.ones(1, 32), fp8(rule=Rule("amax_div", 448, "truncate")))


# --- INT8 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rounding", "expected"),
    [
        ("rne", [0, 2, 2, 0, -2, -2, 0, 1, 127, -127, 3]),
        ("half_away", [1, 2, 3, -1, -2, -3, 0, 1, 127, -127, 3]),
        ("truncate", [0, 1, 2, 0, -1, -2, 0, 0, 127, -127, 2]),
        ("ties_to_zero", [0, 1, 2, 0, -1, -2, 0, 1, 127, -127, 3]),
    ],
)
def test_int8_rounds_as_the_rule_says(rounding, expected):
    below, above = (
        float(np.nextafter(np.float32(0.5), np.float32(0))),
        float(np.nextafter(np.float32(0.5), np.float32(1))),
    )
    x = torch.tensor([[0.5, 1.5, 2.5, -0.5, -1.5, -2.5, below, above, 1e20, -1e20, 2.75]])
    operand = int8("per_tensor", Rule("amax_div", 127, rounding))
    assert numerics.quantize(x, operand, scale=torch.ones(1))[0].tolist() == [expected]


@pytest.mark.parametrize(("largest", "lowest"), [(127, -127), (127.5, -128)])
def test_int8_reaches_minus_128_only_when_aimed_at_127_and_a_half(largest, lowest):
    operand = int8("per_tensor", Rule("amax_div", largest))
    codes, scale = numerics.quantize(torch.tensor([[-1.0, 0.5, 2.0]]), operand)
    assert scale.tolist() == [float(np.float32(2) / np.float32(largest))]
    assert codes.tolist() == [[-64, 32, 127]]
    assert numerics.quantize(torch.tensor([[-129.0]]), operand, scale=torch.ones(1))[0].item() == lowest


@pytest.mark.parametrize("apply", ["divide", "multiply_reciprocal"])
def test_int8_codes_equal_those_of_numpy(apply):
    x = torch.randn(61, 517) * 30
    codes, scale = numerics.quantize(x, int8(rule=Rule("amax_div", 127, apply=apply)))
    plain = x.numpy()
    expected_scale = np.abs(plain).max(axis=1, keepdims=True) / np.float32(127)
    scaled = plain / expected_scale if apply == "divide" else plain * (np.float32(1) / expected_scale)
    assert np.array_equal(expected_scale, scale.numpy())
    assert np.array_equal(np.rint(scaled).astype(np.int8), codes.numpy())


def test_an_exponent_rule_for_int8_is_refused():
    with pytest.raises(ValueError, match="needs amax_div for int8, found even"):
        numerics.quantize(torch.ones(1, 32), int8(rule=Rule("even", 127)))


def test_amax_div_for_an_e8m0_scale_is_refused():
    with pytest.raises(ValueError, match="needs an exponent rule for an e8m0 scale, found amax_div"):
        numerics.quantize(torch.ones(1, 32), mxfp4("amax_div"))


# --- E2M1 ----------------------------------------------------------------------------------------


def e2m1_value(value, rounding):
    """The value of the code of a float, by distance in exact arithmetic."""
    magnitude = min(Fraction(abs(value)), Fraction(6))
    if rounding == "truncate":
        chosen = max(code for code in range(8) if E2M1_VALUES[code] <= magnitude)
    else:
        distance = [abs(Fraction(code) - magnitude) for code in E2M1_VALUES]
        near = [code for code in range(8) if distance[code] == min(distance)]
        chosen = {
            "half_away": near[-1],
            "ties_to_zero": near[0],
            "rne": next((c for c in near if c % 2 == 0), near[0]),
        }[rounding]
    return math.copysign(E2M1_VALUES[chosen], value)


@pytest.mark.parametrize("rounding", ["rne", "half_away", "truncate", "ties_to_zero"])
def test_e2m1_rounds_as_the_rule_says(rounding):
    ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, *E2M1_VALUES]
    near = [float(np.nextafter(np.float32(v), np.float32(d))) for v in ties for d in (0, 9)]
    values = torch.cat([torch.tensor([*ties, *near, 7.9, 1e9, 1e-45]), torch.rand(500) * 8])
    values = torch.cat([values, -values]).reshape(1, -1)
    values = values[:, : values.shape[1] // 32 * 32]
    stored = torch.full((1, values.shape[1] // 32), 127, dtype=torch.uint8)
    codes, scale = numerics.quantize(values, mxfp4("even", rounding), scale=stored)
    expected = torch.tensor([[e2m1_value(value, rounding) for value in values[0].tolist()]])
    assert same_bits(expected, numerics.unpack_e2m1(codes))
    assert torch.equal(stored, scale)


# --- AITER's own torch references -----------------------------------------------------------------


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
    actual = numerics.quantize(x, int8(rule=Rule("amax_div", 127, "truncate")))
    assert same_bits(expected[0], actual[0])
    assert same_bits(expected[1], actual[1])


@pytest.mark.parametrize(("flavour", "largest"), [(FN, 448), (FNUZ, 240)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fp8_per_token_equals_aiter(aiter_reference, flavour, largest, dtype):
    x = torch.randn(67, 1030).to(dtype)
    expected = aiter_reference.pertoken_quant(x, quant_dtype=flavour)
    actual = numerics.quantize(x, fp8(rule=Rule("amax_div", largest)), flavour)
    assert same_bits(expected[0], actual[0])
    assert same_bits(expected[1], actual[1])


def test_fp8_per_tensor_equals_aiter(aiter_reference):
    x = torch.randn(67, 1030)
    expected = aiter_reference.per_tensor_quant(x, quant_dtype=FN)
    actual = numerics.quantize(x, fp8("per_tensor"))
    assert same_bits(expected[0], actual[0])
    assert same_bits(expected[1], actual[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mxfp4_with_nearest15_equals_aiter(aiter_reference, dtype):
    x = (torch.randn(131, 352) * torch.logspace(-4, 4, 131)[:, None]).to(dtype)
    codes, scale = aiter_reference.per_1x32_f4_quant(x)
    actual = numerics.quantize(x, mxfp4("nearest15"))
    assert torch.equal(codes.view(torch.uint8), actual[0])
    assert torch.equal(scale.view(torch.uint8), actual[1])


def test_decoding_equals_aiter(aiter_reference):
    stored = all_bytes().reshape(8, 32)
    assert same_bits(aiter_reference.fp4.mxfp4_to_f32(stored), numerics.unpack_e2m1(stored))
    expected, actual = (
        aiter_reference.fp4.e8m0_to_f32(stored.clone()).reshape(-1),
        numerics.decode_e8m0(stored).reshape(-1),
    )
    assert torch.equal(expected[:255], actual[:255])
    assert expected[255].isnan()
    assert actual[255].isnan()


# --- tiles ---------------------------------------------------------------------------------------


def tile_by_hand(granularity, rows, columns):
    named = {"per_tensor": (rows, columns), "per_token": (1, columns), "per_channel": (1, columns)}
    return named.get(granularity) or tuple(int(side) for side in granularity.split("x"))


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_each_tile_has_the_scale_of_its_own_real_elements(granularity, rows, columns):
    x = torch.randn(rows, columns)
    scale = numerics.quantize(x, fp8(granularity))[1]
    tile_rows, tile_columns = tile_by_hand(granularity, rows, columns)
    magnitudes = np.abs(x.numpy())
    expected = [
        [magnitudes[r : r + tile_rows, c : c + tile_columns].max() for c in range(0, columns, tile_columns)]
        for r in range(0, rows, tile_rows)
    ]
    assert numerics.scale_shape(rows, columns, granularity) == tuple(scale.shape)
    assert (np.array(expected) / np.float32(448)).reshape(scale.shape).tolist() == scale.tolist()


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_dequantizing_multiplies_each_element_by_the_scale_of_its_tile(granularity, rows, columns):
    codes = torch.randint(-127, 128, (rows, columns), dtype=torch.int8)
    scale = torch.rand(numerics.scale_shape(rows, columns, granularity)) + 0.5
    actual = numerics.dequantize(codes, scale, int8(granularity)).double()
    tile_rows, tile_columns = tile_by_hand(granularity, rows, columns)
    grid = scale.double().reshape(-(-rows // tile_rows), -(-columns // tile_columns))
    r, c = torch.arange(rows) // tile_rows, torch.arange(columns) // tile_columns
    expected = codes.double() * grid[r][:, c]
    torch.testing.assert_close(actual, expected, rtol=1e-7, atol=0)


@pytest.mark.parametrize("rows", [576, 1000])
def test_the_last_row_of_a_full_tile_uses_that_tiles_scale(rows):
    codes = torch.ones(rows, 130, dtype=torch.int8)
    scale = torch.arange(1.0, 1 + 2 * -(-rows // 128)).reshape(-1, 2)
    values = numerics.dequantize(codes, scale, int8("128x128"))
    assert values[[0, 120, 127], 0].tolist() == [1.0, 1.0, 1.0]
    assert values[[128, rows - 1], 129].tolist() == [4.0, scale[-1, 1].item()]


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_dequantized_values_are_near_the_originals(granularity, rows, columns):
    x = torch.randn(rows, columns)
    for operand, bound in zip(every_operand(granularity), (0.03, 1 / 14, 1 / 14, 1 / 3), strict=True):
        values = numerics.dequantize(*numerics.quantize(x, operand), operand)
        assert values.dtype == torch.float32
        assert (values - x).norm() <= bound * x.norm()


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_zero_rows_are_accepted(granularity):
    for operand in every_operand(granularity):
        codes, scale = numerics.quantize(torch.zeros(0, 300), operand)
        assert tuple(codes.shape) == (0, 150 if operand.format == "fp4_e2m1" else 300)
        assert tuple(scale.shape) == numerics.scale_shape(0, 300, granularity)
        assert tuple(numerics.dequantize(codes, scale, operand).shape) == (0, 300)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_all_zero_input_dequantizes_to_zero_under_a_finite_scale(granularity):
    for operand in every_operand(granularity):
        codes, scale = numerics.quantize(torch.zeros(130, 300), operand)
        assert torch.equal(torch.zeros(130, 300), numerics.dequantize(codes, scale, operand))
        assert scale.float().isfinite().all()


@pytest.mark.parametrize("floor", [0.0, 1e-10])
@pytest.mark.parametrize("apply", ["divide", "multiply_reciprocal"])
def test_zero_and_subnormal_rows_leave_their_neighbours_alone(floor, apply):
    x = torch.randn(7, 300)
    x[3] = 0.0
    x[5] = 1e-40
    operands = (
        int8(rule=Rule("amax_div", 127, apply=apply, floor=floor)),
        fp8(rule=Rule("amax_div", 448, apply=apply, floor=floor)),
        fp8("1x128", Rule("amax_div", 448, apply=apply, floor=floor)),
        mxfp4(floor=floor),
    )
    others = [0, 1, 2, 4, 6]
    for operand in operands:
        codes, scale = numerics.quantize(x, operand)
        values = numerics.dequantize(codes, scale, operand)
        assert values.isfinite().all()
        assert torch.equal(torch.zeros(300), values[3])
        assert values[5].abs().max() <= 2e-40
        without = numerics.quantize(x[others], operand)
        assert same_bits(without[0], codes[others])
        assert torch.equal(without[1], scale[others])


def test_a_zero_tile_leaves_its_neighbours_alone():
    x = torch.randn(257, 300)
    x[:128, :128] = 0.0
    values = numerics.dequantize(*numerics.quantize(x, fp8("128x128")), fp8("128x128"))
    assert torch.equal(torch.zeros(128, 128), values[:128, :128])
    alone = numerics.dequantize(*numerics.quantize(x[128:], fp8("128x128")), fp8("128x128"))
    assert torch.equal(alone, values[128:])


def test_strided_input_gives_what_contiguous_input_gives():
    x = torch.randn(300, 37).t()
    for operand in every_operand("1x32"):
        strided, plain = numerics.quantize(x, operand), numerics.quantize(x.contiguous(), operand)
        assert same_bits(plain[0], strided[0])
        assert torch.equal(plain[1], strided[1])
        assert strided[0].is_contiguous()


def test_an_unknown_granularity_is_refused():
    for word in ("1x", "0x32", "per_row", "1x128x2"):
        with pytest.raises(ValueError, match="granularity: needs"):
            numerics.tile(word, 4, 4)


# --- stored scales -------------------------------------------------------------------------------


def test_one_scale_per_channel_scales_rows_in_every_shape():
    codes = torch.randint(-127, 128, (256, 256), dtype=torch.int8)
    scale = torch.rand(256) + 0.5
    expected = codes.double() * scale.double()[:, None]
    for shape in ((256,), (256, 1), (1, 256)):
        actual = numerics.dequantize(codes, scale.reshape(shape), int8("per_channel"))
        torch.testing.assert_close(actual.double(), expected, rtol=1e-7, atol=0)


def test_a_scalar_scale_means_the_same_in_every_shape():
    codes = torch.randint(-127, 128, (3, 5), dtype=torch.int8)
    results = [numerics.dequantize(codes, torch.full(shape, 0.37), int8("per_tensor")) for shape in ((), (1,), (1, 1))]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_a_scale_with_a_wrong_number_of_elements_is_refused():
    with pytest.raises(
        ValueError, match=r"scale: needs 5 x 3 elements for 128x128 of \[576, 300\], found shape \[5, 2\]"
    ):
        numerics.dequantize(torch.zeros(576, 300, dtype=torch.int8), torch.ones(5, 2), int8("128x128"))


def test_a_bf16_scale_equals_the_same_values_in_float32():
    codes, scale = numerics.quantize(torch.randn(130, 300), fp8("128x128"))
    rounded = scale.to(torch.bfloat16)
    expected = numerics.dequantize(codes, rounded.float(), fp8("128x128"))
    assert torch.equal(expected, numerics.dequantize(codes, rounded, fp8("128x128")))


def test_e8m0_scales_read_alike_as_uint8_and_as_float8():
    operand = mxfp4()
    codes, scale = numerics.quantize(torch.randn(33, 96), operand)
    expected = numerics.dequantize(codes, scale, operand)
    assert torch.equal(expected, numerics.dequantize(codes, scale.view(torch.float8_e8m0fnu), operand))
    assert torch.equal(expected, numerics.dequantize(codes, numerics.decode_e8m0(scale), operand))


def test_e8m0_extremes_scale_every_e2m1_value_exactly():
    codes = numerics.pack_e2m1(torch.tensor([[0, 1, 7, 15]], dtype=torch.uint8)).repeat(5, 1)
    stored = torch.tensor([[0], [1], [127], [254], [255]], dtype=torch.uint8)
    values = numerics.dequantize(codes, stored, mxfp4()).double()
    for row, byte in enumerate((0, 1, 127)):
        assert values[row].tolist() == [element * 2.0 ** (byte - 127) for element in (0.0, 0.5, 6.0, -6.0)]
    assert values[3].tolist() == [0.0, 2.0**126, math.inf, -math.inf]
    assert values[4].isnan().all()


@pytest.mark.parametrize("byte", [0, 1, 127, 253, 254])
def test_a_given_e8m0_scale_divides_exactly(byte):
    values = torch.tensor([[0.0, 0.5, -1.0, 1.5, -2.0, 3.0, 4.0, -3.0]])
    x = (values.double() * 2.0 ** (byte - 127)).float()
    stored = torch.tensor([[byte]], dtype=torch.uint8)
    representable = x.isfinite()
    for operand in (mxfp4(), mxfp8()):
        codes = numerics.quantize(x, operand, scale=stored)[0]
        actual = numerics.dequantize(codes, torch.tensor([[127]], dtype=torch.uint8), operand)
        assert torch.equal(values[representable], actual[representable])


def test_small_and_large_scales_survive_because_products_are_float32():
    codes = torch.tensor([[2.0**-9, 448.0]]).to(FN)
    for factor in (1e-5, 1e-4, 300.0):
        expected = np.array([[2.0**-9, 448.0]], np.float32) * np.float32(factor)
        assert expected.tolist() == numerics.dequantize(codes, torch.tensor(factor), fp8("per_tensor")).tolist()


# --- linear --------------------------------------------------------------------------------------


LINEAR = [
    (int8("per_token"), int8("per_channel")),
    (int8("per_tensor"), int8("per_channel")),
    (fp8("per_token"), fp8("per_channel")),
    (fp8("per_tensor"), fp8("per_tensor")),
    (fp8("1x128"), fp8("128x128")),
    (mxfp8(), mxfp8("rceil", 448.0, "32x32")),
    (mxfp4("rceil"), mxfp4("even")),
    (mxfp8(), mxfp4("even")),
]


@pytest.mark.parametrize(("activation", "weight_operand"), LINEAR)
@pytest.mark.parametrize(("m", "n", "k"), [(0, 17, 34), (1, 130, 300), (37, 29, 258)])
def test_reference_linear_equals_float64_on_the_same_codes(activation, weight_operand, m, n, k):
    codes, x_scale = numerics.quantize(torch.randn(m, k), activation)
    weight, weight_scale = numerics.quantize(torch.randn(n, k), weight_operand)
    bias = torch.randn(n)
    actual = numerics.reference_linear(
        codes, x_scale, weight, weight_scale, bias, activation, weight_operand, torch.float32
    )
    x = numerics.dequantize(codes, x_scale, activation).double()
    w = numerics.dequantize(weight, weight_scale, weight_operand).double()
    torch.testing.assert_close(actual.double(), x @ w.T + bias.double(), rtol=1e-5, atol=1e-4)


def test_zero_activations_give_exactly_the_bias():
    codes, x_scale = numerics.quantize(torch.zeros(3, 128), fp8())
    weight, weight_scale = numerics.quantize(torch.randn(5, 128), fp8("per_channel"))
    bias = torch.randn(5, dtype=torch.bfloat16)
    y = numerics.reference_linear(codes, x_scale, weight, weight_scale, bias, fp8(), fp8("per_channel"), torch.bfloat16)
    assert same_bits(bias.expand(3, 5).contiguous(), y)


def test_bias_is_added_before_the_one_rounding_to_the_output():
    one, scale = torch.ones(1, 1, dtype=torch.int8), torch.ones(1)
    bias = torch.tensor([2.0**-9])
    y = numerics.scale_accumulators(torch.tensor([[257]], dtype=torch.int32), scale, scale, bias, torch.bfloat16)
    assert y.item() == 258.0
    linear = numerics.reference_linear(
        one, 257 * scale, one, scale, bias, int8("per_tensor"), int8("per_tensor"), torch.bfloat16
    )
    assert linear.item() == 258.0


def test_nan_stays_nan_through_the_linear_and_stays_in_its_row():
    x = torch.randn(4, 64)
    x[2, 9] = math.nan
    weight, weight_scale = numerics.quantize(torch.randn(6, 64), fp8("per_channel"))
    codes, x_scale = numerics.quantize(x, fp8())
    y = numerics.reference_linear(codes, x_scale, weight, weight_scale, None, fp8(), fp8("per_channel"), torch.bfloat16)
    assert y.isnan().any(dim=1).tolist() == [False, False, True, False]


def test_accumulators_are_scaled_by_row_and_by_column():
    accumulators = torch.randint(-(2**22), 2**22, (5, 7), dtype=torch.int32)
    x_scale, weight_scale = torch.arange(1.0, 6.0).reshape(5, 1), torch.arange(100.0, 107.0).reshape(7, 1)
    bias = torch.randn(7)
    expected = accumulators.double() * torch.arange(1.0, 6.0)[:, None] * torch.arange(100.0, 107.0) + bias.double()
    actual = numerics.scale_accumulators(accumulators, x_scale, weight_scale, bias, torch.float32)
    torch.testing.assert_close(actual.double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("m", [0, 1, 3])
def test_accumulators_take_scalar_scales(m):
    accumulators = torch.randint(-9, 9, (m, 4), dtype=torch.int32)
    actual = numerics.scale_accumulators(accumulators, torch.tensor([0.5]), torch.tensor([4.0]), None, torch.float16)
    assert torch.equal((2 * accumulators).half(), actual)


# --- Hadamard ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 32, 64])
def test_rotation_is_a_product_with_the_sylvester_matrix_in_each_block(size):
    x = torch.randn(5, 3, 192)
    signs = [[(-1) ** (i & j).bit_count() for j in range(size)] for i in range(size)]
    matrix = torch.tensor(signs, dtype=torch.float64) / math.sqrt(size)
    expected = (x.double().reshape(5, 3, 192 // size, size) @ matrix).reshape(5, 3, 192)
    torch.testing.assert_close(numerics.rotate_hadamard(x, size).double(), expected, rtol=1e-5, atol=1e-5)


def test_rotating_both_operands_leaves_their_product_alone():
    x, weight = torch.randn(7, 96), torch.randn(5, 96)
    rotated = numerics.rotate_hadamard(x).double() @ numerics.rotate_hadamard(weight).double().T
    torch.testing.assert_close(rotated, x.double() @ weight.double().T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_rotation_keeps_shape_and_dtype(dtype, rows):
    x = torch.randn(rows, 64).to(dtype)
    y = numerics.rotate_hadamard(x)
    assert (tuple(y.shape), y.dtype) == ((rows, 64), dtype)


def test_rotating_fake_tensors_leaves_real_ones_working():
    with torch._subclasses.FakeTensorMode():
        assert tuple(numerics.rotate_hadamard(torch.empty(3, 16), 16).shape) == (3, 16)
    x = torch.randn(3, 16)
    torch.testing.assert_close(numerics.rotate_hadamard(numerics.rotate_hadamard(x, 16), 16), x)


def test_a_rotation_that_does_not_fit_is_refused():
    for columns, size in ((33, 32), (96, 48), (32, 0)):
        with pytest.raises(ValueError, match="rotate_hadamard: needs"):
            numerics.rotate_hadamard(torch.zeros(1, columns), size)


# --- torch.compile -------------------------------------------------------------------------------


def round_trip(x, operand):
    codes, scale = numerics.quantize(numerics.rotate_hadamard(x, 4), operand)
    return codes, scale, numerics.dequantize(codes, scale, operand)


@pytest.mark.parametrize("granularity", ["per_tensor", "per_token", "1x128", "128x128", "1x32"])
def test_quantizing_and_dequantizing_trace_as_one_graph(granularity):
    x = torch.randn(5, 300)
    for operand in every_operand(granularity):
        torch.compiler.reset()
        traced = torch.compile(round_trip, fullgraph=True, backend="aot_eager")
        for expected, actual in zip(round_trip(x, operand), traced(x, operand), strict=True):
            assert same_bits(expected, actual)


@pytest.mark.parametrize("granularity", ["per_tensor", "per_token", "1x128"])
def test_one_graph_serves_every_number_of_tokens(granularity):
    for operand in (int8(granularity), fp8(granularity)):
        torch.compiler.reset()
        counter = torch._dynamo.testing.CompileCounter()
        traced = torch.compile(round_trip, fullgraph=True, backend=counter)
        for rows in (3, 5, 130):
            x = torch.randn(rows, 300)
            torch._dynamo.mark_dynamic(x, 0)
            for expected, actual in zip(round_trip(x, operand), traced(x, operand), strict=True):
                assert same_bits(expected, actual)
        assert counter.frame_count == 1


@pytest.mark.parametrize("rule", EXPONENT_RULES)
def test_every_rule_traces_as_one_graph(rule):
    torch.compiler.reset()
    x = torch.randn(3, 64)
    traced = torch.compile(
        lambda x: numerics.quantize(x, mxfp4(rule, "half_away")), fullgraph=True, backend="aot_eager"
    )
    for expected, actual in zip(numerics.quantize(x, mxfp4(rule, "half_away")), traced(x), strict=True):
        assert torch.equal(expected, actual)


def test_a_static_linear_traces_as_one_graph():
    torch.compiler.reset()
    activation, weight_operand = fp8("per_tensor"), fp8("128x128")
    weight, weight_scale = numerics.quantize(torch.randn(130, 300), weight_operand)
    bias = torch.randn(130)

    def linear(x, input_scale):
        codes, x_scale = numerics.quantize(x, activation, FN, input_scale)
        return numerics.reference_linear(
            codes, x_scale, weight, weight_scale, bias, activation, weight_operand, torch.bfloat16
        )

    traced = torch.compile(linear, fullgraph=True, backend="aot_eager")
    x, input_scale = torch.randn(7, 300), torch.tensor([0.01])
    assert torch.equal(linear(x, input_scale), traced(x, input_scale))
