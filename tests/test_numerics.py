"""Reference arithmetic against exact rationals and float64; `test_second_opinions` has other implementations."""

from __future__ import annotations

import math
from fractions import Fraction

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


def mxfp6(element, rule="rceil"):
    return Operand(element, "1x32", "e8m0", Rule(rule, 7.5 if element == "fp6_e2m3" else 28.0, floor=0.0))


def int4(granularity, rule, packing="plain"):
    return Operand("int4", granularity, "fp32", rule, packing=packing)


def asymmetric(element, granularity, largest):
    return Operand(element, granularity, "fp32", Rule("amax_div", largest), symmetric=False)


def nvfp4(direction="divide"):
    return Operand("fp4_e2m1", "1x16", "e4m3", Rule("amax_div", 6.0, floor=0.0), global_scale=direction)


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
    centres = np.array([s * 2.0**e for s in significands for e in (-90, -12, 0, 9, 120)], np.float32)
    near = [centres]
    for direction in (np.float32(0), np.float32(np.inf)):
        step = centres
        for _ in range(3):
            step = np.nextafter(step, direction)
            near.append(step)
    spread = np.exp2(np.random.default_rng().uniform(-100, 127, 100)).astype(np.float32)
    return np.concatenate([*near, spread]).tolist()


FORMATS = [
    ("fp4_e2m1", FN, 6.0, 2, 1, 6.0),
    ("fp8_e4m3", FN, 448.0, 8, 3, 448.0),
    ("fp8_e4m3", FNUZ, 240.0, 7, 3, 240.0),
    ("fp8_e4m3", FNUZ, 448.0, 7, 3, 224.0),
    ("fp6_e2m3", FN, 7.5, 2, 3, 7.5),
    ("fp6_e3m2", FN, 28.0, 4, 2, 28.0),
    ("fp6_e3m2", FNUZ, 28.0, 4, 2, 28.0),
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


# --- FP6 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("element", "largest"), [("fp6_e2m3", 7.5), ("fp6_e3m2", 28.0)])
@pytest.mark.parametrize("rule", ["rceil", "even", "floor"])
def test_fp6_values_are_the_nearest_multiples_of_their_step(element, largest, rule):
    operand = mxfp6(element, rule)
    x = torch.randn(37, 96) * torch.logspace(-5, 5, 37)[:, None]
    codes, scale = numerics.quantize(x, operand)
    assert (codes.dtype, tuple(codes.shape)) == (torch.uint8, (37, 72))
    power = np.exp2(scale.numpy().astype(np.float64) - 127).repeat(32, axis=1)
    scaled = np.clip(x.double().numpy() / power, -largest, largest)
    lowest, mantissa_bits = (0, 3) if element == "fp6_e2m3" else (-2, 2)
    exponent = np.maximum(np.floor(np.log2(np.maximum(np.abs(scaled), 1e-300))), lowest)
    step = np.exp2(exponent - mantissa_bits)
    expected = np.rint(scaled / step) * step * power
    assert np.array_equal(expected, numerics.dequantize(codes, scale, operand).double().numpy())


def test_fp6_needs_a_multiple_of_four_columns():
    with pytest.raises(ValueError, match="pack_fp6: needs a multiple of 4 columns, found 34"):
        numerics.quantize(torch.ones(2, 34), mxfp6("fp6_e2m3"))


# --- INT4 ----------------------------------------------------------------------------------------


PACKINGS = ("plain", "int32_columns", "awq", "quark", "gptq", "gptq_v2")


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("largest", [7.0, 7.5])
def test_int4_codes_equal_those_of_numpy_in_every_packing(packing, largest):
    operand = int4("1x128", Rule("amax_div", largest, floor=0.0), packing)
    x = torch.randn(24, 320)
    codes, scale = numerics.quantize(x, operand)
    columns = np.array([0, 128, 256])
    expected_scale = np.maximum.reduceat(np.abs(x.numpy()), columns, axis=1) / np.float32(largest)
    assert np.array_equal(expected_scale, scale.numpy())
    spread = expected_scale[:, np.arange(320) // 128]
    whole = np.clip(np.rint(x.numpy() / spread), -8, 7)
    shapes = {"plain": (24, 320), "int32_columns": (24, 40), "gptq": (40, 24), "gptq_v2": (40, 24)}
    assert shapes.get(packing, (320, 3)) == tuple(codes.shape)
    assert np.array_equal(whole * spread, numerics.dequantize(codes, scale, operand).numpy())


def test_int4_reaches_minus_eight_under_a_given_scale_for_both_divisors():
    for largest in (7.0, 7.5):
        operand = int4("per_tensor", Rule("amax_div", largest))
        codes = numerics.quantize(torch.tensor([[-9.0, 9.0, -7.6, 0.4]]), operand, scale=torch.ones(1))[0]
        assert codes.tolist() == [[-8, 7, -8, 0]]


def test_an_exponent_rule_for_int4_is_refused():
    with pytest.raises(ValueError, match="needs amax_div for int4, found even"):
        numerics.quantize(torch.ones(1, 32), int4("1x32", Rule("even", 7)))


# --- zero points ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("element", "granularity", "largest"),
    [
        ("int8", "per_token", 127.5),
        ("int8", "per_tensor", 127.5),
        ("int8", "1x128", 127.5),
        ("int8", "per_token", 127.0),
        ("int4", "1x32", 7.5),
        ("int4", "1x128", 7.5),
    ],
)
@pytest.mark.parametrize("shift", [0.0, 3.0, -40.0])
def test_codes_with_a_zero_point_equal_those_of_numpy(element, granularity, largest, shift):
    operand = asymmetric(element, granularity, largest)
    x = torch.randn(13, 320) + shift
    codes, scale, zero_point = numerics.quantize_asymmetric(x, operand)
    assert scale.shape == zero_point.shape == numerics.scale_shape(13, 320, granularity)
    assert (torch.float32, torch.int32) == (scale.dtype, zero_point.dtype)
    rows, columns = tile_by_hand(granularity, 13, 320)
    plain, lowest, highest = x.numpy(), -math.ceil(largest), math.floor(largest)
    for r in range(0, 13, rows):
        for c in range(0, 320, columns):
            part = plain[r : r + rows, c : c + columns]
            low, high = min(part.min(), np.float32(0)), max(part.max(), np.float32(0))
            step = np.float32(np.float32(high - low) / np.float32(2 * largest))
            zero = np.clip(np.rint(np.float32(lowest) - low / step), lowest, highest)
            index = 0 if granularity == "per_tensor" else (r // rows, c // columns)
            assert (step, zero) == (scale[index].item(), zero_point[index].item())
            expected = np.clip(np.rint(part / step) + zero, lowest, highest)
            assert np.array_equal(expected, codes[r : r + rows, c : c + columns].numpy())


def test_zero_has_an_exact_code_and_values_are_within_half_a_step():
    operand = asymmetric("int8", "per_token", 127.5)
    x = torch.rand(9, 257) * 5 + torch.linspace(-8, 8, 9)[:, None]
    x[:, 3] = 0.0
    codes, scale, zero_point = numerics.quantize_asymmetric(x, operand)
    values = numerics.dequantize(codes, scale, operand, zero_point=zero_point)
    assert torch.equal(torch.zeros(9), values[:, 3])
    assert ((values - x).abs() <= 1.001 * scale).all()


def test_a_tile_with_a_zero_point_spans_at_least_twice_the_floor():
    operand = asymmetric("int8", "per_token", 127.5)._replace(rule=Rule("amax_div", 127.5, floor=0.5))
    scale = numerics.quantize_asymmetric(torch.tensor([[0.0, 0.0], [0.25, -0.5], [2.0, -1.0]]), operand)[1]
    assert scale.tolist() == [[float(np.float32(reach) / np.float32(255))] for reach in (1.0, 1.0, 3.0)]


def test_a_given_scale_and_zero_point_are_used_as_they_are():
    operand = asymmetric("int8", "per_tensor", 127.5)
    scale, zero_point = torch.tensor([0.5]), torch.tensor([-100], dtype=torch.int8)
    codes, same_scale, same_zero = numerics.quantize_asymmetric(
        torch.tensor([[-20.0, 0.0, 0.25, 3.0, 200.0]]), operand, scale, zero_point
    )
    assert codes.tolist() == [[-128, -100, -100, -94, 127]]
    assert (same_scale.tolist(), same_zero.tolist()) == ([0.5], [-100])


@pytest.mark.parametrize(("element", "largest"), [("int8", 127.5), ("int4", 7.5)])
def test_zero_nan_and_infinite_rows_with_a_zero_point_leave_their_neighbours_alone(element, largest):
    operand = asymmetric(element, "per_token", largest)
    x = torch.randn(5, 64)
    x[1] = 0.0
    x[2, 7] = math.nan
    x[3, 9] = -math.inf
    codes, scale, zero_point = numerics.quantize_asymmetric(x, operand)
    values = numerics.dequantize(codes, scale, operand, zero_point=zero_point)
    assert torch.equal(torch.zeros(64), values[1])
    assert values[2].isnan().all()
    assert values[3, 9] < -1e38
    assert values.isfinite().all(dim=1).tolist() == [True, True, False, True, True]
    alone = numerics.quantize_asymmetric(x[[0, 4]], operand)
    assert torch.equal(alone[0], codes[[0, 4]])
    assert torch.equal(alone[2], zero_point[[0, 4]])


def test_packed_codes_with_a_zero_point_dequantize_like_plain_ones():
    plain = asymmetric("int4", "1x128", 7.5)
    x = torch.randn(16, 256) + 1
    codes, scale, zero_point = numerics.quantize_asymmetric(x, plain)
    expected = numerics.dequantize(codes, scale, plain, zero_point=zero_point)
    for packing in PACKINGS[1:]:
        packed = plain._replace(packing=packing)
        codes = numerics.quantize_asymmetric(x, packed)[0]
        assert codes.dtype == torch.int32
        assert torch.equal(expected, numerics.dequantize(codes, scale, packed, zero_point=zero_point.to(torch.int8)))


def test_zero_points_are_asked_for_just_where_the_operand_has_them():
    x = torch.ones(2, 32)
    with pytest.raises(ValueError, match="needs a symmetric operand, found one with a zero point"):
        numerics.quantize(x, asymmetric("int8", "per_token", 127.5))
    for operand in (int8(), fp8()._replace(symmetric=False)):
        with pytest.raises(ValueError, match="needs int8 or int4 with a zero point"):
            numerics.quantize_asymmetric(x, operand)
    codes, scale = numerics.quantize(x, int8())
    with pytest.raises(ValueError, match="needs no zero point for int8, found one"):
        numerics.dequantize(codes, scale, int8(), zero_point=torch.zeros(2, 1))
    with pytest.raises(ValueError, match="needs a zero point for int8, found none"):
        numerics.dequantize(codes, scale, asymmetric("int8", "per_token", 127.5))


# --- two levels of scales ------------------------------------------------------------------------


def e4m3_by_hand(values):
    """Values of the nearest E4M3 codes of float64 magnitudes, none under zero or over 448."""
    table = np.array([e4m3_value(byte, FN) for byte in range(127)])
    ties = (table[1:] + table[:-1]) / 2
    upper = np.searchsorted(ties, values, side="left")
    tied = (upper < 126) & (ties[np.minimum(upper, 125)] == values) & (upper % 2 == 1)
    return table[np.minimum(upper + tied, 126)]


@pytest.mark.parametrize("direction", ["divide", "multiply"])
@pytest.mark.parametrize("columns", [16, 128, 200])
def test_two_level_scales_equal_those_of_numpy(direction, columns):
    operand = nvfp4(direction)
    x = torch.randn(23, columns) * torch.logspace(-2, 1, 23)[:, None]
    global_scale = numerics.find_global_scale(x, operand)
    amax, reach = np.float32(x.abs().max()), np.float32(6 * 448)
    assert [reach / amax if direction == "divide" else amax / reach] == global_scale.tolist()
    codes, scale = numerics.quantize(x, operand, global_scale=global_scale)
    assert (scale.dtype, tuple(scale.shape)) == (FN, (23, -(-columns // 16)))
    outer = global_scale.numpy()
    tiles = np.maximum.reduceat(np.abs(x.numpy()), np.arange(0, columns, 16), axis=1)
    local = tiles / np.float32(6) * outer if direction == "divide" else tiles / (np.float32(6) * outer)
    stored = e4m3_by_hand(local.astype(np.float64)).astype(np.float32)
    assert np.array_equal(stored, scale.float().numpy())
    effective = (stored / outer if direction == "divide" else stored * outer)[:, np.arange(columns) // 16]
    expected = [[e2m1_value(v, "rne") for v in row] for row in (x.numpy() / effective).tolist()]
    values = numerics.dequantize(codes, scale, operand, global_scale)
    assert np.array_equal(np.array(expected, np.float32) * effective, values.numpy())


def test_the_two_directions_are_each_others_reciprocal():
    x = torch.randn(8, 64)
    divide, multiply = (numerics.find_global_scale(x, nvfp4(direction)) for direction in ("divide", "multiply"))
    torch.testing.assert_close(divide, multiply.reciprocal(), rtol=1e-6, atol=0)
    values = [
        numerics.dequantize(*numerics.quantize(x, nvfp4(word), global_scale=g), nvfp4(word), g)
        for word, g in (("divide", divide), ("multiply", multiply))
    ]
    torch.testing.assert_close(values[0], values[1], rtol=1e-6, atol=0)


@pytest.mark.parametrize("direction", ["divide", "multiply"])
def test_a_tensor_of_zeros_has_the_global_scale_one(direction):
    operand = nvfp4(direction)
    for x in (torch.zeros(3, 32), torch.zeros(0, 32), torch.full((1, 16), 1e-39), torch.full((1, 16), math.nan)):
        assert numerics.find_global_scale(x, operand).tolist() == [1.0]
    codes, scale = numerics.quantize(torch.zeros(3, 32), operand, global_scale=torch.ones(1))
    assert torch.equal(torch.zeros(3, 32), numerics.dequantize(codes, scale, operand, torch.ones(1)))


@pytest.mark.parametrize(("direction", "zeros", "tiny"), [("divide", 0.125, 0.125), ("multiply", 1.0, 2.0**-9)])
def test_tiles_whose_scale_rounds_to_zero_get_the_one_of_their_producer(direction, zeros, tiny):
    operand = nvfp4(direction)
    x = torch.zeros(1, 48)
    x[0, 0], x[0, 16] = 1.0, 1e-7
    codes, scale = numerics.quantize(x, operand, global_scale=numerics.find_global_scale(x, operand))
    assert scale.float().tolist() == [[448.0, tiny, zeros]]
    values = numerics.dequantize(codes, scale, operand, numerics.find_global_scale(x, operand))
    assert (values[0, 0].item(), values[0, 32:].abs().max().item()) == (pytest.approx(1.0), 0.0)
    assert (values - x).abs().max() <= 2e-7


def test_half_of_the_smallest_e4m3_scale_still_rounds_to_zero():
    x = torch.zeros(1, 32)
    x[0, 0], x[0, 16] = 6 * 2.0**-10, float(np.nextafter(np.float32(6 * 2.0**-10), np.float32(1)))
    scale = numerics.quantize(x, nvfp4("divide"), global_scale=torch.ones(1))[1]
    assert scale.float().tolist() == [[0.125, 2.0**-9]]


def test_nan_in_a_tile_makes_its_e4m3_scale_nan():
    x = torch.randn(2, 48)
    x[1, 20] = math.nan
    for direction in ("divide", "multiply"):
        codes, scale = numerics.quantize(x, nvfp4(direction), global_scale=torch.ones(1))
        values = numerics.dequantize(codes, scale, nvfp4(direction), torch.ones(1))
        assert values.isnan().any(dim=0).reshape(3, 16).all(dim=1).tolist() == [False, True, False]
        assert not values[0].isnan().any()


def test_one_global_scale_per_row_serves_the_parts_of_a_fused_layer():
    first, second = torch.randn(5, 64), 30 * torch.randn(3, 64)
    for direction in ("divide", "multiply"):
        operand = nvfp4(direction)
        outer = [numerics.find_global_scale(part, operand) for part in (first, second)]
        parts = [
            numerics.dequantize(*numerics.quantize(part, operand, global_scale=g), operand, g)
            for part, g in zip((first, second), outer, strict=True)
        ]
        rows = torch.cat((outer[0].expand(5), outer[1].expand(3)))
        codes, scale = numerics.quantize(torch.cat((first, second)), operand, global_scale=rows)
        assert torch.equal(torch.cat(parts), numerics.dequantize(codes, scale, operand, rows))


def test_e4m3_scales_read_alike_as_uint8_and_as_float8():
    x, outer = torch.randn(5, 64), torch.tensor([3.0])
    codes, scale = numerics.quantize(x, nvfp4(), global_scale=outer)
    expected = numerics.dequantize(codes, scale, nvfp4(), outer)
    for form in (scale, scale.view(torch.uint8), scale.float()):
        assert torch.equal(expected, numerics.dequantize(codes, form, nvfp4(), outer))
        again, given = numerics.quantize(x, nvfp4(), scale=form, global_scale=outer)
        assert torch.equal(codes, again)
        assert torch.equal(scale.float(), given.float())


def test_e4m3_scales_do_without_a_global_one():
    operand = nvfp4(None)
    x = torch.randn(5, 64)
    codes, scale = numerics.quantize(x, operand)
    expected = e4m3_by_hand(x.abs().reshape(5, 4, 16).amax(dim=2).numpy() / np.float32(6))
    assert np.array_equal(expected, scale.double().numpy())
    assert (numerics.dequantize(codes, scale, operand) - x).norm() <= 0.2 * x.norm()


def test_a_global_scale_multiplies_float32_scales_too():
    operand = int8("per_channel")._replace(global_scale="multiply")
    x, outer = torch.randn(7, 33), torch.tensor(0.25)
    codes, scale = numerics.quantize(x, operand, global_scale=outer)
    plain_codes, plain_scale = numerics.quantize(x, int8("per_channel"))
    assert torch.equal(plain_codes, codes)
    assert torch.equal(4 * plain_scale, scale)
    assert torch.equal(
        numerics.dequantize(plain_codes, plain_scale, int8("per_channel")),
        numerics.dequantize(codes, scale, operand, outer),
    )


def test_a_global_scale_is_asked_for_just_where_the_operand_has_one():
    x, one = torch.ones(2, 32), torch.ones(1)
    with pytest.raises(ValueError, match="global scale: needs one that divides, found none"):
        numerics.quantize(x, nvfp4("divide"))
    with pytest.raises(ValueError, match="global scale: needs none, found one"):
        numerics.quantize(x, mxfp4(), global_scale=one)
    with pytest.raises(ValueError, match=r"global scale: needs 1 or 2 elements, found shape \[3\]"):
        numerics.quantize(x, nvfp4(), global_scale=torch.ones(3))
    for operand in (mxfp4(), int8()._replace(global_scale="multiply")):
        with pytest.raises(ValueError, match="needs an operand that divides or multiplies e4m3 or e5m3 scales"):
            numerics.find_global_scale(x, operand)
    with pytest.raises(ValueError, match="needs amax_div for e4m3 and global scales, found even"):
        numerics.quantize(x, nvfp4()._replace(rule=Rule("even", 6.0)), global_scale=one)


# --- E5M3 ----------------------------------------------------------------------------------------


def test_e5m3_scales_are_the_nearest_ones():
    operand = Operand("fp4_e2m1", "1x16", "e5m3", Rule("amax_div", 6.0, floor=0.0))
    x = torch.randn(9, 80) * torch.logspace(-4, 5, 9)[:, None]
    x[4, :16] = 0.0
    codes, scale = numerics.quantize(x, operand)
    assert (scale.dtype, tuple(scale.shape)) == (torch.uint8, (9, 5))
    bytes_ = np.arange(255)
    table = np.where(bytes_ < 8, bytes_ / 8 * 2.0**-14, (1 + bytes_ % 8 / 8) * 2.0 ** (bytes_ // 8 - 15.0))
    wanted = x.abs().reshape(9, 5, 16).amax(dim=2).numpy() / np.float32(6)
    distance = np.abs(table - np.clip(wanted.astype(np.float64), 2.0**-17, 114688)[..., None])
    assert np.array_equal(distance.argmin(axis=2), scale.numpy())
    values = numerics.dequantize(codes, scale, operand)
    assert torch.equal(torch.zeros(16), values[4, :16])
    assert (values[2:] - x[2:]).norm() <= 0.2 * x[2:].norm()


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


def test_a_weight_only_layer_multiplies_x_itself():
    weight_operand = int4("1x128", Rule("amax_div", 7.5), "int32_columns")
    weight, weight_scale = numerics.quantize(torch.randn(24, 256), weight_operand)
    bias = torch.randn(24)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        x = torch.randn(5, 256).to(dtype)
        actual = numerics.reference_linear(x, None, weight, weight_scale, bias, None, weight_operand, torch.float32)
        w = numerics.dequantize(weight, weight_scale, weight_operand).double()
        torch.testing.assert_close(actual.double(), x.double() @ w.T + bias.double(), rtol=1e-5, atol=1e-4)


def test_global_scales_and_zero_points_reach_both_operands_of_the_linear():
    activation, weight_operand = nvfp4("divide"), nvfp4("multiply")
    x, w = torch.randn(5, 64), torch.randn(7, 64)
    x_global = numerics.find_global_scale(x, activation)
    weight_global = numerics.find_global_scale(w, weight_operand)
    codes, x_scale = numerics.quantize(x, activation, global_scale=x_global)
    weight, weight_scale = numerics.quantize(w, weight_operand, global_scale=weight_global)
    actual = numerics.reference_linear(
        codes, x_scale, weight, weight_scale, None, activation, weight_operand, torch.float32, weight_global, x_global
    )
    left = numerics.dequantize(codes, x_scale, activation, x_global)
    right = numerics.dequantize(weight, weight_scale, weight_operand, weight_global)
    torch.testing.assert_close(actual.double(), left.double() @ right.double().T, rtol=1e-5, atol=1e-5)

    activation, weight_operand = asymmetric("int8", "per_token", 127.5), asymmetric("int4", "1x32", 7.5)
    codes, x_scale, x_zero = numerics.quantize_asymmetric(x + 1, activation)
    weight, weight_scale, weight_zero = numerics.quantize_asymmetric(w, weight_operand)
    actual = numerics.reference_linear(
        codes,
        x_scale,
        weight,
        weight_scale,
        None,
        activation,
        weight_operand,
        torch.float32,
        weight_zero_point=weight_zero,
        x_zero_point=x_zero,
    )
    left = (codes.double() - x_zero) * x_scale.double()
    right = (weight.double() - weight_zero.repeat_interleave(32, 1)) * weight_scale.double().repeat_interleave(32, 1)
    torch.testing.assert_close(actual.double(), left @ right.T, rtol=1e-5, atol=1e-4)


def test_an_activation_without_its_scale_is_refused():
    weight, weight_scale = numerics.quantize(torch.ones(2, 32), int8("per_channel"))
    with pytest.raises(ValueError, match="x_scale: needs the scale of int8 activations, found None"):
        numerics.reference_linear(weight, None, weight, weight_scale, None, int8(), int8("per_channel"), torch.float32)


def test_a_per_tensor_scale_may_be_expanded_to_rows():
    weight = torch.randint(-127, 128, (6, 20), dtype=torch.int8)
    rows = torch.tensor([0.5, 0.5, 2.0, 2.0, 2.0, 4.0])
    for scale in (rows, rows[:, None]):
        actual = numerics.dequantize(weight, scale, int8("per_tensor"))
        assert torch.equal(weight * rows[:, None], actual)
        again, same = numerics.quantize(actual, int8("per_tensor"), scale=scale)
        assert torch.equal(weight, again)
        assert torch.equal(rows, same)


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
        traced = torch.compile(round_trip, fullgraph=True, backend="eager")
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
    traced = torch.compile(lambda x: numerics.quantize(x, mxfp4(rule, "half_away")), fullgraph=True, backend="eager")
    for expected, actual in zip(numerics.quantize(x, mxfp4(rule, "half_away")), traced(x), strict=True):
        assert torch.equal(expected, actual)


def every_new_operand():
    x = torch.randn(8, 64)
    for operand in (mxfp6("fp6_e2m3"), mxfp6("fp6_e3m2", "even"), nvfp4(), nvfp4("multiply")):
        outer = None if operand.global_scale is None else numerics.find_global_scale(x, operand)
        yield operand, outer
    for packing in ("plain", "int32_columns", "awq"):
        yield int4("1x32", Rule("amax_div", 7.5), packing), None
    yield Operand("fp4_e2m1", "1x16", "e5m3", Rule("amax_div", 6.0)), None


@pytest.mark.parametrize("index", range(8))
def test_quantizing_every_format_traces_as_one_graph(index):
    operand, outer = list(every_new_operand())[index]

    def both(x):
        codes, scale = numerics.quantize(x, operand, global_scale=outer)
        return codes, scale, numerics.dequantize(codes, scale, operand, outer)

    torch.compiler.reset()
    x = torch.randn(8, 64)
    for expected, actual in zip(both(x), torch.compile(both, fullgraph=True, backend="aot_eager")(x), strict=True):
        assert same_bits(expected, actual)


def test_zero_points_and_global_scales_trace_as_one_graph():
    operand = asymmetric("int8", "per_token", 127.5)

    def both(x):
        codes, scale, zero = numerics.quantize_asymmetric(x, operand)
        return (
            codes,
            scale,
            zero,
            numerics.find_global_scale(x, nvfp4()),
            numerics.dequantize(codes, scale, operand, None, zero),
        )

    torch.compiler.reset()
    x = torch.randn(5, 300)
    for expected, actual in zip(both(x), torch.compile(both, fullgraph=True, backend="aot_eager")(x), strict=True):
        assert same_bits(expected, actual)


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


# --- global scales after the product -------------------------------------------------------------


@pytest.mark.parametrize(("one", "other"), [("divide", "divide"), ("multiply", "divide"), ("multiply", "multiply")])
def test_a_product_is_scaled_by_both_levels_and_rounded_once(one, other):
    y = torch.randn(5, 7).to(torch.bfloat16)
    levels = torch.tensor([37.5]), torch.tensor([0.003])
    actual = numerics.scale_levels(y, nvfp4(one), nvfp4(other), *levels)
    expected = y.double()
    for word, level in zip((one, other), levels, strict=True):
        expected = expected / level.double() if word == "divide" else expected * level.double()
    assert actual.dtype == torch.bfloat16
    assert float(((actual.double() - expected).abs() / expected.abs()).max()) <= 2**-8 * 1.001


def test_a_level_that_is_not_there_scales_nothing():
    y = torch.randn(3, 5)
    assert torch.equal(y, numerics.scale_levels(y, None, nvfp4(None), None, None))
    assert torch.equal(y * 2, numerics.scale_levels(y, None, nvfp4("multiply"), None, torch.tensor([2.0])))
