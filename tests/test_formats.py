"""Every code of every element and scale format by its formula, rounding against exact rationals, and packing."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from qscheme import formats
from qscheme.formats import E2M1, E2M3, E3M2, E4M3, E5M3
from qscheme.types import Operand, Rule

FN, FNUZ = torch.float8_e4m3fn, torch.float8_e4m3fnuz
SIGNED = {"fp4_e2m1": E2M1, "fp6_e2m3": E2M3, "fp6_e3m2": E3M2}
ROUNDINGS = ("rne", "half_away", "truncate", "ties_to_zero")


def all_bytes():
    return torch.arange(256, dtype=torch.int32).to(torch.uint8)


def same_bits(expected, actual):
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[expected.element_size()]
    return expected.dtype == actual.dtype and torch.equal(expected.view(integers), actual.view(integers))


def magnitude(code, form):
    """The value of a code without its sign, by IEEE 754's formula with the format's widths."""
    exponent, mantissa = code >> form.mantissa_bits, Fraction(code % 2**form.mantissa_bits, 2**form.mantissa_bits)
    bias = 2 ** (form.exponent_bits - 1) - 1
    return mantissa * Fraction(2) ** (1 - bias) if exponent == 0 else (1 + mantissa) * Fraction(2) ** (exponent - bias)


def operand(element, packing="plain", largest=None, rounding="rne"):
    largest = largest or {"int8": 127, "int4": 7.5, "fp8_e4m3": 448}.get(element) or SIGNED[element].largest
    return Operand(element, "per_tensor", "fp32", Rule("amax_div", largest, rounding), packing=packing)


# --- small floats --------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [E2M1, E2M3, E3M2])
def test_every_code_of_a_signed_format_decodes_by_its_formula(form):
    half = 2 ** (form.exponent_bits + form.mantissa_bits)
    expected = [float(magnitude(code, form)) for code in range(half)]
    actual = formats.decode_float(all_bytes()[: 2 * half], form)
    assert same_bits(torch.tensor(expected + [-value for value in expected]), actual)
    assert form.largest == max(expected)


def test_every_e5m3_byte_decodes_by_its_formula_without_a_sign():
    actual = formats.decode_e5m3(all_bytes())
    assert actual[:255].tolist() == [float(magnitude(code, E5M3)) for code in range(255)]
    assert actual[255].isnan()
    assert actual[254].item() == E5M3.largest == 114688.0


def test_every_e4m3_code_decodes_as_torch_does():
    actual = formats.decode_float(all_bytes()[:127], E4M3)
    assert torch.equal(all_bytes()[:127].view(FN).float(), actual)


@pytest.mark.parametrize(("form", "exponent"), [(E2M1, 2), (E2M3, 2), (E3M2, 4), (E4M3, 8), (E5M3, 16)])
def test_the_largest_exponent_is_the_one_of_the_largest_value(form, exponent):
    assert form.largest_exponent == exponent


@pytest.mark.parametrize("form", [E2M1, E2M3, E3M2])
def test_every_code_survives_decoding_and_encoding(form):
    codes = all_bytes()[: 2 ** (1 + form.exponent_bits + form.mantissa_bits)]
    assert torch.equal(codes, formats.encode_float(formats.decode_float(codes, form), form))


@functools.cache
def magnitudes(form):
    codes = range(2 ** (form.exponent_bits + form.mantissa_bits))
    return [value for value in (magnitude(code, form) for code in codes) if value <= form.largest]


def nearest_code(value, form, rounding):
    table, wanted = magnitudes(form), min(Fraction(abs(value)), Fraction(form.largest))
    below = bisect.bisect_right(table, wanted) - 1
    above = min(below + 1, len(table) - 1)
    if rounding == "truncate" or wanted - table[below] < table[above] - wanted:
        return below
    if wanted - table[below] > table[above] - wanted:
        return above
    return {"rne": min(below + below % 2, above), "half_away": above, "ties_to_zero": below}[rounding]


def values_near_ties(form):
    table = magnitudes(form)
    ties = [float((low + high) / 2) for low, high in itertools.pairwise(table)]
    exact = [float(entry) for entry in table]
    near = [float(np.nextafter(np.float32(v), np.float32(to))) for v in ties + exact for to in (-math.inf, math.inf)]
    spread = np.exp2(np.random.default_rng().uniform(-20, 20, 300)).tolist()
    return [abs(value) for value in [*ties, *exact, *near, *spread, 1e-45, 1e-38, 3e38, math.inf]]


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("form", [E2M1, E2M3, E3M2, E5M3])
def test_values_get_the_code_that_exact_arithmetic_gives(form, rounding):
    values = torch.tensor(values_near_ties(form))
    finite = [min(value, 3.4e38) for value in values.tolist()]
    expected = [nearest_code(value, form, rounding) for value in finite]
    assert expected == formats.encode_float(values, form, rounding).tolist()
    if form is not E5M3:
        sign = 2 ** (form.exponent_bits + form.mantissa_bits)
        assert [sign + code for code in expected] == formats.encode_float(-values, form, rounding).tolist()


@pytest.mark.parametrize("form", [E2M1, E2M3, E3M2])
def test_nan_becomes_code_zero_and_minus_zero_keeps_its_sign(form):
    codes = formats.encode_float(torch.tensor([math.nan, -math.nan, -0.0, -1e-30, 0.0]), form)
    sign = 2 ** (form.exponent_bits + form.mantissa_bits)
    assert codes.tolist() == [0, 0, sign, sign, 0]


@pytest.mark.parametrize("form", [E2M1, E2M3, E3M2])
def test_magnitudes_over_a_given_largest_become_it(form):
    codes = formats.encode_float(torch.tensor([100.0, -100.0, 1.0]), form, largest=1.5)
    assert formats.decode_float(codes, form).tolist() == [1.5, -1.5, 1.0]


def test_float_formats_have_the_words_of_the_vocabulary():
    assert {"fp4_e2m1": E2M1, "fp6_e2m3": E2M3, "fp6_e3m2": E3M2, "fp8_e4m3": E4M3} == formats.FLOAT_FORMATS


# --- whole numbers -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rounding", "expected"),
    [
        ("rne", [0, 2, 2, 0, -2, -2]),
        ("half_away", [1, 2, 3, -1, -2, -3]),
        ("truncate", [0, 1, 2, 0, -1, -2]),
        ("ties_to_zero", [0, 1, 2, 0, -1, -2]),
    ],
)
def test_ties_between_whole_numbers_go_where_the_rounding_says(rounding, expected):
    values = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, -2.5])
    assert expected == formats.round_whole(values, rounding).tolist()


@pytest.mark.parametrize(
    ("element", "largest", "expected"),
    [("int8", 127, (-127, 127)), ("int8", 127.5, (-128, 127)), ("int4", 7, (-8, 7)), ("int4", 7.5, (-8, 7))],
)
def test_integers_reach_the_codes_that_their_rule_aims_at(element, largest, expected):
    assert expected == formats.integer_range(element, largest)
    values = torch.tensor([[-1e9, -math.inf, math.nan, math.inf, 1e9, 0.4, -0.6, 1.0]])
    codes = formats.encode(values, operand(element, largest=largest), largest, FN)
    lowest, highest = expected
    assert codes.tolist() == [[lowest, lowest, 0, highest, highest, 0, -1, 1]]


# --- packing -------------------------------------------------------------------------------------


def test_packing_puts_the_even_column_in_the_low_nibble():
    packed = formats.pack_e2m1(torch.tensor([[1, 15, 2, 0]], dtype=torch.uint8))
    assert packed.tolist() == [[0xF1, 0x02]]


def test_every_e2m1_byte_decodes_low_nibble_first():
    values = [float(magnitude(code, E2M1)) for code in range(8)]
    table = [*values, *(-value for value in values)]
    expected = torch.tensor([[table[byte & 15], table[byte >> 4]] for byte in range(256)]).reshape(16, 32)
    assert same_bits(expected, formats.unpack_e2m1(all_bytes().reshape(16, 16)))


def test_float4_bytes_unpack_like_uint8():
    stored = all_bytes().reshape(8, 32)
    assert same_bits(formats.unpack_e2m1(stored), formats.unpack_e2m1(stored.view(torch.float4_e2m1fn_x2)))


@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize("columns", [4, 12, 100])
def test_four_6_bit_codes_are_three_little_endian_bytes(rows, columns):
    codes = torch.randint(0, 64, (rows, columns), dtype=torch.uint8)
    expected = [
        [
            byte
            for first in range(0, columns, 4)
            for byte in sum(code << (6 * i) for i, code in enumerate(row[first : first + 4])).to_bytes(3, "little")
        ]
        for row in codes.tolist()
    ]
    stored = formats.pack_fp6(codes)
    assert (torch.uint8, (rows, 3 * columns // 4)) == (stored.dtype, tuple(stored.shape))
    assert expected == stored.tolist()
    assert torch.equal(codes, formats.unpack_fp6(stored))


def test_columns_that_do_not_fill_a_unit_are_refused():
    with pytest.raises(ValueError, match="pack_e2m1: needs an even number of columns, found 3"):
        formats.pack_e2m1(torch.zeros(2, 3, dtype=torch.uint8))
    with pytest.raises(ValueError, match="pack_fp6: needs a multiple of 4 columns, found 6"):
        formats.pack_fp6(torch.zeros(2, 6, dtype=torch.uint8))
    with pytest.raises(ValueError, match="unpack_fp6: needs a multiple of 3 columns, found 4"):
        formats.unpack_fp6(torch.zeros(2, 4, dtype=torch.uint8))


@pytest.mark.parametrize(
    "chosen",
    [
        operand("int8"),
        operand("fp8_e4m3"),
        operand("fp4_e2m1"),
        operand("fp6_e2m3"),
        operand("fp6_e3m2"),
        operand("int4"),
        *(operand("int4", packing) for packing in ("int32_columns", "awq", "quark", "gptq", "gptq_v2")),
        *(operand("int8", packing) for packing in ("int32_columns", "gptq", "gptq_v2")),
    ],
)
def test_what_is_encoded_decodes_to_the_same_values(chosen):
    largest = chosen.rule.max
    scaled = torch.randn(16, 24) * largest / 2
    values = formats.decode(formats.encode(scaled, chosen, largest, FN), chosen)
    assert (torch.float32, scaled.shape) == (values.dtype, values.shape)
    assert torch.equal(values, formats.decode(formats.encode(values, chosen, largest, FN), chosen))
    step = 0.5 if chosen.format.startswith("int") else largest / 12
    assert (values - scaled.clamp(-8 if chosen.format == "int4" else -largest, largest)).abs().max() <= step + 0.5


# --- scale formats -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e8m0fnu])
def test_every_e8m0_byte_decodes_by_its_formula(dtype):
    actual = formats.decode_e8m0(all_bytes().view(dtype)).double()
    assert actual[:255].tolist() == [2.0 ** (byte - 127) for byte in range(255)]
    assert actual[255].isnan()


def test_every_e8m0_byte_survives_decoding_and_encoding():
    assert torch.equal(all_bytes(), formats.encode_e8m0(formats.decode_e8m0(all_bytes())))


def test_zero_encodes_as_the_smallest_e8m0_and_infinity_as_nan():
    assert formats.encode_e8m0(torch.tensor([0.0, math.inf, math.nan])).tolist() == [0, 255, 255]


def test_scales_keep_between_the_smallest_and_the_largest_of_their_format():
    scales = torch.tensor([0.0, 1e-30, 1.0, 1e30, math.inf, math.nan])
    e4m3 = formats.encode_scale(scales, "e4m3")
    assert e4m3.dtype == FN
    assert e4m3.float()[:5].tolist() == [2.0**-9, 2.0**-9, 1.0, 448.0, 448.0]
    e5m3 = formats.encode_scale(scales, "e5m3")
    assert e5m3.dtype == torch.uint8
    assert formats.decode_e5m3(e5m3)[:5].tolist() == [2.0**-17, 2.0**-17, 1.0, 114688.0, 114688.0]
    fp32 = formats.encode_scale(scales, "fp32")
    assert fp32[[0, 1, 2, 4]].tolist() == [2.0**-126, scales[1].item(), 1.0, math.inf]
    assert all(stored[5].float().isnan() for stored in (e4m3, fp32))
    assert e5m3[5].item() == 255


@pytest.mark.parametrize(("word", "form"), [("e4m3", E4M3), ("e5m3", E5M3)])
def test_scales_round_to_the_nearest_of_their_format(word, form):
    scales = torch.tensor(values_near_ties(form)[:-1]).clamp(2.0**-9 if word == "e4m3" else 2.0**-17)
    scales = scales[scales <= form.largest]
    stored = formats.encode_scale(scales, word).view(torch.uint8)
    assert [nearest_code(value, form, "rne") for value in scales.tolist()] == stored.tolist()


def test_an_e8m0_scale_has_no_rounding_of_its_own():
    with pytest.raises(ValueError, match="needs an exponent rule for an e8m0 scale"):
        formats.encode_scale(torch.ones(1), "e8m0")
