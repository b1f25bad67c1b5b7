"""Words of integer codes, zero points and scales against sums of their parts in whole numbers of any size."""

from __future__ import annotations

import pytest
import torch

from qscheme import packing
from qscheme.words import WORDS, codes_together, zero_points_shape

EVEN_FIRST = (0, 2, 4, 6, 1, 3, 5, 7)
STORED = [("int4", word) for word in WORDS] + [("int8", word) for word in ("int32_columns", "gptq", "gptq_v2")]
every_packing = pytest.mark.parametrize(("element", "word"), STORED)
TOGETHER = {"int4": 8, "int8": 4}


def integers(element, *shape):
    half = {"int4": 8, "int8": 128}[element]
    return torch.randint(-half, half, shape, dtype=torch.int8)


def word_of(codes, element, word="int32_columns", less=0):
    """One word of neighbours, as a signed number of 32 bits."""
    bits = 32 // TOGETHER[element]
    places = EVEN_FIRST if word in ("awq", "quark") else range(len(codes))
    raised = [code % 2**bits if word == "quark" else code + 2 ** (bits - 1) for code in codes]
    unsigned = sum((raised[place] - less) * 2 ** (bits * part) for part, place in enumerate(places)) % 2**32
    return unsigned - 2**32 if unsigned >= 2**31 else unsigned


def words_of(rows, element, word="int32_columns", less=0):
    """The words of each row, of neighbours in it."""
    together = TOGETHER[element]
    return torch.tensor(
        [
            [word_of(row[first : first + together], element, word, less) for first in range(0, len(row), together)]
            for row in rows.tolist()
        ],
        dtype=torch.int32,
    )


# --- codes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "k"), [(8, 8), (24, 40), (16, 64)])
@every_packing
def test_codes_are_in_the_words_that_the_producer_writes(element, word, n, k):
    codes = integers(element, n, k)
    if word in ("awq", "quark"):
        expected = words_of(codes.t(), element, word)
    else:
        expected = words_of(codes, element)
        expected = expected.t() if word.startswith("gptq") else expected
    stored = packing.pack_integers(codes, element, word)
    assert stored.dtype == torch.int32
    assert stored.is_contiguous()
    assert torch.equal(expected, stored)
    assert torch.equal(codes, packing.unpack_integers(stored, element, word))
    assert (n, k) == packing.stored_sizes(stored, element, word)


@every_packing
def test_a_view_with_strides_unpacks_like_its_copy(element, word):
    codes = integers(element, 16, 32)
    stored = packing.pack_integers(codes, element, word)
    strided = torch.stack((stored, stored), dim=2)[:, :, 1]
    assert torch.equal(codes, packing.unpack_integers(strided, element, word))


def test_the_words_of_two_packings_are_never_the_same():
    codes = integers("int4", 64, 64)
    stored = {word: packing.pack_integers(codes, "int4", word) for word in WORDS if word != "gptq_v2"}
    for word, words in stored.items():
        assert [word] == [other for other, those in stored.items() if torch.equal(words, those)]


def test_plain_codes_and_zero_points_are_stored_one_to_a_byte():
    codes = integers("int4", 3, 5)
    assert torch.equal(codes, packing.pack_integers(codes, "int4", "plain"))
    assert torch.equal(codes, packing.unpack_integers(codes, "int4", "plain"))
    assert torch.equal(codes, packing.pack_zero_points(codes, "int4", "plain"))
    assert torch.equal(codes, packing.unpack_zero_points(codes, "int4", "plain", 3))


@every_packing
def test_a_side_that_does_not_fill_its_words_is_refused(element, word):
    together = TOGETHER[element]
    n, k = (12, 16) if word in ("awq", "quark") else (16, together + 2)
    needs = rf"{word} needs a multiple of {together}, found {min(n, k)} in \[{n}, {k}\]"
    with pytest.raises(ValueError, match=needs):
        packing.pack_integers(integers(element, n, k), element, word)


@every_packing
def test_the_sizes_that_can_be_stored_are_those_that_are_stored(element, word):
    n, k = codes_together(element, word)
    codes = integers(element, 3 * n, 5 * k)
    zero_points = integers(element, 3 * n, 2)
    assert torch.equal(codes, packing.unpack_integers(packing.pack_integers(codes, element, word), element, word))
    stored = packing.pack_zero_points(zero_points, element, word)
    assert torch.equal(zero_points, packing.unpack_zero_points(stored, element, word, 3 * n))
    assert (TOGETHER[element] if word != "int32_columns" else 1) == n


@every_packing
def test_a_weight_is_repacked_for_a_kernel_and_back(element, word):
    codes = integers(element, 24, 40)
    stored = packing.pack_integers(codes, element, word)
    assert torch.equal(codes, packing.repacked(stored, element, word, "plain"))
    columns = packing.repacked(stored, element, word, "int32_columns")
    assert torch.equal(words_of(codes, element), columns)
    assert torch.equal(stored, packing.repacked(columns, element, "int32_columns", word))


# --- zero points ---------------------------------------------------------------------------------


@every_packing
def test_zero_points_are_in_the_words_that_the_producer_writes(element, word):
    zero_points = integers(element, 24, 5)
    if word == "int32_columns":
        expected = words_of(zero_points.t(), element).t()
    else:
        expected = words_of(zero_points.t(), element, word, less=int(word == "gptq"))
    stored = packing.pack_zero_points(zero_points, element, word)
    assert stored.dtype == torch.int32
    assert torch.equal(expected, stored)
    assert zero_points_shape(24, 5, element, word) == tuple(stored.shape)
    assert torch.equal(zero_points, packing.unpack_zero_points(stored, element, word, 24))


def test_zero_points_of_compressed_tensors_end_in_a_word_that_is_not_full():
    zero_points = integers("int4", 11, 3)
    stored = packing.pack_zero_points(zero_points, "int4", "int32_columns")
    padded = torch.cat((zero_points, torch.full((5, 3), -8, dtype=torch.int8)))  # -8 is stored as 0
    assert torch.equal(words_of(padded.t(), "int4").t(), stored)
    assert torch.equal(zero_points, packing.unpack_zero_points(stored, "int4", "int32_columns", 11))


def test_the_first_gptq_format_stores_each_zero_point_less_one():
    middle = torch.zeros(8, 1, dtype=torch.int8)
    assert [[0x77777777]] == packing.pack_zero_points(middle, "int4", "gptq").tolist()
    assert [[0x88888888 - 2**32]] == packing.pack_zero_points(middle, "int4", "gptq_v2").tolist()
    assert [[0x7F7F7F7F]] == packing.pack_zero_points(middle[:4], "int8", "gptq").tolist()


def test_the_first_gptq_format_is_the_second_less_one_in_every_nibble_also_where_it_borrows():
    zero_points = integers("int4", 64, 7)
    zero_points[::3] = -8  # stored as 0, from which 1 cannot be taken
    first = packing.pack_zero_points(zero_points, "int4", "gptq")
    assert torch.equal(packing.pack_zero_points(zero_points, "int4", "gptq_v2"), first + 0x11111111)
    assert torch.equal(zero_points, packing.unpack_zero_points(first, "int4", "gptq", 64))


def test_every_word_of_zero_points_can_be_read():
    stored = torch.randint(-(2**31), 2**31, (3, 4), dtype=torch.int64).to(torch.int32)
    for word in ("awq", "quark", "gptq", "gptq_v2"):
        zero_points = packing.unpack_zero_points(stored, "int4", word, 32)
        assert torch.equal(stored, packing.pack_zero_points(zero_points, "int4", word))
