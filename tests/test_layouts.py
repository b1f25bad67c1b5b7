"""Layout steps against index formulas, their inverses and AITER's own shuffles."""

from __future__ import annotations

import importlib.util
import math
import sys
import types
from pathlib import Path

import pytest
import torch

from qscheme import layouts, numerics

FN, FNUZ = torch.float8_e4m3fn, torch.float8_e4m3fnuz
ONE_BYTE = (torch.uint8, torch.int8, FN, FNUZ)
SCALE_SHAPES = ((1, 1), (1, 5), (7, 1), (31, 8), (32, 11), (33, 4), (257, 16), (300, 9), (0, 3))


def random_bytes(*shape):
    return torch.randint(0, 256, shape, dtype=torch.int32).to(torch.uint8)


def all_bytes():
    return torch.arange(256, dtype=torch.int32).to(torch.uint8)


def same_bytes(expected, actual):
    shaped = expected.dtype == actual.dtype and expected.shape == actual.shape
    return shaped and torch.equal(expected.contiguous().view(torch.uint8), actual.contiguous().view(torch.uint8))


@pytest.fixture(scope="module")
def aiter_root():
    spec = importlib.util.find_spec("aiter")
    assert spec is not None, "these tests compare with AITER: pip install amd-aiter"
    return Path(next(iter(spec.submodule_search_locations)))


def module_from(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def aiter_shuffle(aiter_root):
    return module_from(aiter_root / "ops" / "shuffle.py", "aiter_shuffle_reference").shuffle_weight


@pytest.fixture(scope="module")
def aiter_e8m0_shuffle(aiter_root):
    """The function from its file; the package itself cannot be imported without ROCm."""
    package, dtypes = types.ModuleType("aiter_layouts"), types.ModuleType("aiter_layouts.dtypes")
    package.__path__ = []
    package.dtypes = dtypes
    sys.modules.update({"aiter_layouts": package, "aiter_layouts.dtypes": dtypes})
    yield module_from(aiter_root / "utility" / "fp4_utils.py", "aiter_layouts.fp4_utils").e8m0_shuffle
    for name in ("aiter_layouts", "aiter_layouts.dtypes"):
        del sys.modules[name]


# --- weights -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ONE_BYTE)
@pytest.mark.parametrize(("n", "k"), [(16, 32), (48, 96), (272, 160)])
def test_shuffled_weights_equal_aiter_byte_for_byte(aiter_shuffle, dtype, n, k):
    weight = random_bytes(n, k).view(dtype)
    assert same_bytes(aiter_shuffle(weight, (16, 16)), layouts.shuffle_16x16(weight))


def test_shuffled_float4_weights_equal_aiter_byte_for_byte(aiter_shuffle):
    weight = random_bytes(48, 64).view(torch.float4_e2m1fn_x2)
    assert same_bytes(aiter_shuffle(weight, (16, 16)), layouts.shuffle_16x16(weight))


def test_a_shuffled_byte_lies_where_the_formula_says():
    n, k = 48, 96
    weight = random_bytes(n, k)
    stored = layouts.shuffle_16x16(weight).reshape(-1)
    for row in range(n):
        for column in range(k):
            tile = (row // 16 * (k // 32) + column // 32) * 2 + column // 16 % 2
            assert weight[row, column] == stored[tile * 256 + row % 16 * 16 + column % 16]


@pytest.mark.parametrize("dtype", [*ONE_BYTE, torch.float4_e2m1fn_x2])
@pytest.mark.parametrize(("n", "k"), [(0, 32), (16, 32), (48, 96), (272, 160)])
def test_unshuffling_undoes_shuffling(dtype, n, k):
    weight = random_bytes(n, k).view(dtype)
    assert same_bytes(weight, layouts.unshuffle_16x16(layouts.shuffle_16x16(weight)))


def test_shuffling_a_strided_weight_shuffles_its_values():
    weight = random_bytes(32, 200)[:, 3:67]
    assert same_bytes(layouts.shuffle_16x16(weight.contiguous()), layouts.shuffle_16x16(weight))


@pytest.mark.parametrize("step", [layouts.shuffle_16x16, layouts.unshuffle_16x16])
def test_weights_that_do_not_tile_are_refused(step):
    with pytest.raises(ValueError, match="needs N % 16 == 0 and K % 32 == 0 in bytes, found N 24 and K 32"):
        step(random_bytes(24, 32))
    with pytest.raises(ValueError, match="found N 16 and K 48"):
        step(random_bytes(16, 48))
    with pytest.raises(ValueError, match=r"needs one-byte elements, found torch\.bfloat16"):
        step(torch.zeros(16, 32, dtype=torch.bfloat16))


# --- E8M0 scales ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "columns"), SCALE_SHAPES)
def test_swizzled_scales_equal_aiter_outside_its_padding(aiter_e8m0_shuffle, rows, columns):
    scale = random_bytes(rows, columns)
    expected, actual = aiter_e8m0_shuffle(scale), layouts.swizzle_e8m0_256x8(scale)
    real = layouts.swizzle_e8m0_256x8(torch.ones_like(scale)).bool()
    assert int(real.sum()) == scale.numel()
    assert expected.shape == actual.shape
    assert torch.equal(expected[real], actual[real])


@pytest.mark.parametrize(("rows", "columns"), SCALE_SHAPES)
@pytest.mark.parametrize(("swizzle", "multiple"), [(layouts.swizzle_e8m0_32x8, 32), (layouts.swizzle_e8m0_256x8, 256)])
def test_a_swizzled_byte_lies_where_the_formula_says_and_padding_is_zero(rows, columns, swizzle, multiple):
    scale = random_bytes(rows, columns) | 1
    stored = swizzle(scale)
    padded_rows, padded_columns = -(-rows // multiple) * multiple, -(-columns // 8) * 8
    expected = torch.zeros(padded_rows * padded_columns, dtype=torch.uint8)
    r, c = torch.arange(rows)[:, None], torch.arange(columns)[None, :]
    tile = (r // 32 * (padded_columns // 8) + c // 8) * 4 + c % 4
    expected[tile * 64 + r % 16 * 4 + c // 4 % 2 * 2 + r // 16 % 2] = scale
    assert torch.equal(expected.reshape(padded_rows, padded_columns), stored)


@pytest.mark.parametrize(("rows", "columns", "stored"), [(257, 11, (512, 16)), (3, 4, (256, 8)), (256, 8, (256, 8))])
def test_scale_geometry_is_padded_to_whole_tiles(rows, columns, stored):
    assert tuple(layouts.swizzle_e8m0_256x8(random_bytes(rows, columns)).shape) == stored


def test_the_second_tile_row_starts_at_the_padded_width():
    scale = torch.zeros(64, 11, dtype=torch.uint8)
    scale[32, 0] = 200
    assert layouts.swizzle_e8m0_32x8(scale).reshape(-1).nonzero().tolist() == [[32 * 16]]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e8m0fnu])
@pytest.mark.parametrize(("rows", "columns"), SCALE_SHAPES)
@pytest.mark.parametrize("swizzle", [layouts.swizzle_e8m0_32x8, layouts.swizzle_e8m0_256x8])
def test_unswizzling_undoes_swizzling(dtype, rows, columns, swizzle):
    scale = random_bytes(rows, columns).view(dtype)
    assert same_bytes(scale, layouts.unswizzle_e8m0_32x8(swizzle(scale), rows, columns))


def test_a_transposed_view_swizzles_like_its_values():
    scale = random_bytes(11, 70).t()
    assert same_bytes(layouts.swizzle_e8m0_32x8(scale.contiguous()), layouts.swizzle_e8m0_32x8(scale))


def test_unswizzling_what_is_not_whole_tiles_is_refused():
    with pytest.raises(ValueError, match="needs multiples of 32 rows and 8 columns that hold 33 x 4, found 32 x 8"):
        layouts.unswizzle_e8m0_32x8(random_bytes(32, 8), 33, 4)
    with pytest.raises(ValueError, match="found 32 x 12"):
        layouts.unswizzle_e8m0_32x8(random_bytes(32, 12), 32, 12)


# --- scales of torch's block-scaled products ------------------------------------------------------

BLOCK_SHAPES = ((1, 1), (1, 5), (31, 8), (128, 4), (129, 3), (257, 16), (300, 9), (0, 3))


@pytest.mark.parametrize(("rows", "columns"), BLOCK_SHAPES)
def test_a_byte_of_a_128_by_4_tile_lies_where_the_formula_says_and_padding_is_zero(rows, columns):
    scale = random_bytes(rows, columns) | 1
    stored = layouts.swizzle_32_4_4(scale)
    padded_rows, padded_columns = -(-rows // 128) * 128, -(-columns // 4) * 4
    expected = torch.zeros(padded_rows * padded_columns, dtype=torch.uint8)
    r, c = torch.arange(rows)[:, None], torch.arange(columns)[None, :]
    tile = r // 128 * (padded_columns // 4) + c // 4
    expected[tile * 512 + r % 32 * 16 + r // 32 % 4 * 4 + c % 4] = scale
    assert torch.equal(expected.reshape(padded_rows, padded_columns), stored)


@pytest.mark.parametrize(("rows", "columns"), [shape for shape in BLOCK_SHAPES if shape[0]])
def test_tiles_of_128_by_4_are_those_of_torchao(rows, columns):
    blocked = importlib.import_module("torchao.prototype.mx_formats.utils")
    scale = random_bytes(rows, columns)
    assert torch.equal(blocked.to_blocked(scale), layouts.swizzle_32_4_4(scale).reshape(-1))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e8m0fnu, FN])
@pytest.mark.parametrize(("rows", "columns"), BLOCK_SHAPES)
def test_unswizzling_128_by_4_undoes_swizzling(dtype, rows, columns):
    scale = random_bytes(rows, columns).view(dtype)
    assert same_bytes(scale, layouts.unswizzle_32_4_4(layouts.swizzle_32_4_4(scale), rows, columns))


def test_unswizzling_what_is_not_whole_tiles_of_128_by_4_is_refused():
    with pytest.raises(ValueError, match="needs multiples of 128 rows and 4 columns that hold 129 x 4, found 128 x 4"):
        layouts.unswizzle_32_4_4(random_bytes(128, 4), 129, 4)
    with pytest.raises(ValueError, match="found 128 x 6"):
        layouts.unswizzle_32_4_4(random_bytes(128, 6), 128, 6)


# --- scale layouts -------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "groups"), SCALE_SHAPES)
def test_k_major_keeps_the_shape_and_stores_the_transpose(rows, groups):
    scale = torch.randn(rows, groups)
    stored = layouts.k_major(scale)
    assert stored.shape == scale.shape
    assert stored.is_contiguous()
    assert torch.equal(scale.t().reshape(-1), stored.reshape(-1))
    assert torch.equal(scale, layouts.from_k_major(stored))


@pytest.mark.parametrize(("rows", "groups"), SCALE_SHAPES)
def test_column_major_keeps_the_values_under_transposed_strides(rows, groups):
    scale = torch.randn(rows, groups)
    stored = layouts.column_major(scale)
    assert torch.equal(scale, stored)
    assert stored.stride() == (1, max(rows, 1))
    back = layouts.from_column_major(stored)
    assert torch.equal(scale, back)
    assert back.is_contiguous()


@pytest.mark.parametrize(("rows", "groups"), [(1, 1), (3, 4), (5, 3), (2, 57)])
def test_padded_column_major_is_what_torch_wants_of_a_128x128_weight_scale(rows, groups):
    scale = torch.randn(rows, groups)
    stored = layouts.column_major_padded(scale, 4)
    length = math.ceil(groups / 4) * 4
    assert tuple(stored.shape) == (length, rows)
    assert stored.stride() == (1, length)
    assert torch.equal(scale.t(), stored[:groups])
    assert not stored[groups:].any()
    assert torch.equal(scale, layouts.from_column_major_padded(stored, groups))


# --- one scale for many rows ---------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_one_scale_is_expanded_to_every_row(shape, rows):
    expanded = layouts.expand_rows(torch.full(shape, 0.75, dtype=torch.bfloat16), rows)
    assert torch.equal(torch.full((rows, 1), 0.75), expanded)
    assert expanded.is_contiguous()


@pytest.mark.parametrize("shape", [(7,), (7, 1), (1, 7)])
def test_a_scale_for_each_row_keeps_its_order(shape):
    scale = torch.randn(7)
    assert torch.equal(scale[:, None], layouts.expand_rows(scale.reshape(shape), 7))


def test_expanding_a_strided_scale_makes_it_contiguous():
    scale = torch.randn(7, 3)[:, 1:2]
    expanded = layouts.expand_rows(scale, 7)
    assert torch.equal(scale, expanded)
    assert expanded.stride() == (1, 1)


def test_expanding_a_wrong_number_of_scales_is_refused():
    with pytest.raises(ValueError, match=r"expand_rows: needs 1 or 4 elements, found shape \[3\]"):
        layouts.expand_rows(torch.ones(3), 4)
    with pytest.raises(
        ValueError, match=r"expand_widths: needs 1 or 2 elements, one for each width, found shape \[3\]"
    ):
        layouts.expand_widths(torch.ones(3), (4, 4))


@pytest.mark.parametrize("shape", [(3,), (3, 1), (1, 3)])
def test_each_part_of_a_fused_layer_keeps_its_own_scale(shape):
    expanded = layouts.expand_widths(torch.tensor([0.5, 1.0, 0.25]).reshape(shape), (64, 16, 16))
    expected = [0.5] * 64 + [1.0] * 16 + [0.25] * 16
    assert expected == expanded.reshape(-1).tolist()
    assert (tuple(expanded.shape), expanded.is_contiguous()) == ((96, 1), True)


def test_one_scale_holds_for_every_part_of_a_fused_layer():
    assert torch.equal(torch.full((9, 1), 3.0), layouts.expand_widths(torch.tensor(3.0), (4, 5)))


# --- fnuz ----------------------------------------------------------------------------------------


def test_fnuz_weights_are_half_of_fn_weights_for_every_byte():
    weight = all_bytes().view(FN).reshape(16, 16)
    converted = layouts.fnuz_weight(weight)
    expected, actual = weight.double() / 2, converted.double()
    assert converted.dtype == FNUZ
    assert torch.equal(expected.isnan(), actual.isnan())
    assert torch.equal(expected.nan_to_num(nan=0.0), actual.nan_to_num(nan=0.0))


def test_fnuz_weights_and_scales_give_the_same_product():
    weight = torch.randn(33, 70).to(FN)
    for scale in (torch.rand(33, 1) + 0.1, random_bytes(33, 1).clamp(60, 190)):
        expected = weight.double() * layouts.e8m0_to_fp32(scale).double()
        actual = layouts.fnuz_weight(weight).double() * layouts.e8m0_to_fp32(layouts.fnuz_scale(scale)).double()
        assert torch.equal(expected, actual)


def test_every_fn_value_survives_fnuz_and_back():
    weight = all_bytes().view(FN).reshape(16, 16)
    back = layouts.from_fnuz_weight(layouts.fnuz_weight(weight))
    assert back.dtype == FN
    assert torch.equal(weight.float().isnan(), back.float().isnan())
    assert torch.equal(weight.float().nan_to_num(nan=0.0), back.float().nan_to_num(nan=0.0))


def test_the_largest_fnuz_values_saturate_in_fn():
    weight = torch.tensor([[240.0, -240.0, 224.0]]).to(FNUZ)
    assert layouts.from_fnuz_weight(weight).float().tolist() == [[448.0, -448.0, 448.0]]


def test_converting_the_wrong_flavour_is_refused():
    with pytest.raises(ValueError, match=r"fnuz_weight: needs float8_e4m3fn, found torch\.float8_e4m3fnuz"):
        layouts.fnuz_weight(torch.zeros(1, 1).to(FNUZ))
    with pytest.raises(ValueError, match=r"from_fnuz_weight: needs float8_e4m3fnuz, found torch\.float8_e4m3fn"):
        layouts.from_fnuz_weight(torch.zeros(1, 1).to(FN))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e8m0fnu])
def test_e8m0_scales_double_without_reaching_nan(dtype):
    scale = all_bytes().view(dtype)
    doubled = layouts.fnuz_scale(scale).view(torch.uint8).tolist()
    assert doubled == [*range(1, 255), 254, 255]
    halved = layouts.from_fnuz_scale(scale).view(torch.uint8).tolist()
    assert halved == [0, *range(254), 255]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_float_scales_double_as_float32_and_back(dtype):
    scale = torch.rand(7, 3).to(dtype)
    doubled = layouts.fnuz_scale(scale)
    assert torch.equal(2 * scale.float(), doubled)
    assert torch.equal(scale.float(), layouts.from_fnuz_scale(doubled))


# --- dtypes, rows, views -------------------------------------------------------------------------


def test_stored_scales_become_float32():
    stored = all_bytes()[:255]
    expected = [2.0 ** (byte - 127) for byte in range(255)]
    assert expected == layouts.e8m0_to_fp32(stored).double().tolist()
    assert expected == layouts.e8m0_to_fp32(stored.view(torch.float8_e8m0fnu)).double().tolist()
    assert layouts.e8m0_to_fp32(torch.tensor([255], dtype=torch.uint8)).isnan().all()
    assert torch.equal(stored, numerics.encode_e8m0(layouts.e8m0_to_fp32(stored)))


def test_float_scales_are_upcast_and_float32_stays_itself():
    scale = torch.rand(5, 1)
    assert layouts.e8m0_to_fp32(scale) is scale
    assert torch.equal(scale.bfloat16().float(), layouts.e8m0_to_fp32(scale.bfloat16()))


@pytest.mark.parametrize("dtype", [*ONE_BYTE, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rows", [0, 1, 5, 17])
def test_rows_are_padded_with_zeros_and_cut_again(dtype, rows):
    x = (torch.rand(rows, 7) * 100).to(torch.float32).to(dtype)
    padded = layouts.pad_rows(x, 17)
    assert (tuple(padded.shape), padded.dtype) == ((17, 7), dtype)
    assert not padded[rows:].float().any()
    assert same_bytes(x, layouts.cut_rows(padded, rows))


def test_enough_rows_are_not_copied():
    x = torch.randn(18, 7)
    assert layouts.pad_rows(x, 17) is x


@pytest.mark.parametrize(("rows", "count"), [(0, 16), (16, 16), (96, 32), (7, 1)])
def test_folding_rows_is_a_view_and_unfolding_undoes_it(rows, count):
    x = random_bytes(rows, 9)
    folded = layouts.fold_rows(x, count)
    assert tuple(folded.shape) == (rows // count, 9 * count)
    assert folded.data_ptr() == x.data_ptr()
    assert torch.equal(x, layouts.unfold_rows(folded, count))


def test_folding_what_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="needs rows that are a multiple of 16, found 24"):
        layouts.fold_rows(random_bytes(24, 9), 16)
    with pytest.raises(ValueError, match="needs columns that are a multiple of 16, found 9"):
        layouts.unfold_rows(random_bytes(24, 9), 16)


@pytest.mark.parametrize("dtype", ONE_BYTE)
def test_views_share_memory_and_have_inverses(dtype):
    x = random_bytes(5, 9).view(dtype)
    assert same_bytes(x, layouts.transpose(layouts.transpose(x)))
    assert tuple(layouts.transpose(x).shape) == (9, 5)
    assert layouts.bytes_of(x).dtype == torch.uint8
    assert layouts.bytes_of(x).data_ptr() == x.data_ptr()
    assert same_bytes(x, layouts.from_bytes(layouts.bytes_of(x), dtype))


# --- torch.compile -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "operand"),
    [
        (layouts.shuffle_16x16, random_bytes(32, 64)),
        (layouts.unshuffle_16x16, random_bytes(32, 64)),
        (layouts.swizzle_e8m0_32x8, random_bytes(33, 9)),
        (layouts.swizzle_e8m0_256x8, random_bytes(33, 9)),
        (lambda x: layouts.unswizzle_e8m0_32x8(x, 33, 9), random_bytes(64, 16)),
        (layouts.swizzle_32_4_4, random_bytes(33, 9)),
        (lambda x: layouts.unswizzle_32_4_4(x, 33, 9), random_bytes(128, 12)),
        (layouts.k_major, torch.randn(5, 3)),
        (layouts.from_k_major, torch.randn(5, 3)),
        (layouts.column_major, torch.randn(1, 3)),
        (lambda x: layouts.column_major_padded(x, 4), torch.randn(5, 3)),
        (lambda x: layouts.expand_rows(x, 5), torch.randn(1)),
        (lambda x: layouts.expand_widths(x, (2, 3)), torch.randn(2)),
        (layouts.fnuz_weight, random_bytes(5, 9).view(FN)),
        (layouts.from_fnuz_weight, random_bytes(5, 9).view(FNUZ)),
        (layouts.fnuz_scale, random_bytes(5, 9)),
        (layouts.from_fnuz_scale, random_bytes(5, 9)),
        (layouts.e8m0_to_fp32, random_bytes(5, 9)),
        (lambda x: layouts.pad_rows(x, 17), random_bytes(5, 9).view(FN)),
        (lambda x: layouts.fold_rows(x, 2), torch.randn(6, 3)),
        (lambda x: layouts.unfold_rows(x, 3), torch.randn(6, 3)),
    ],
)
def test_steps_trace_as_one_graph(step, operand):
    torch.compiler.reset()
    expected, actual = step(operand), torch.compile(step, fullgraph=True, backend="aot_eager")(operand)
    assert same_bytes(expected, actual)
    assert expected.stride() == actual.stride()
