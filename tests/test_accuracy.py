"""Every backend that runs on a CPU computes what its scheme says, for any x."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from float64_layers import KINDS, Example, as_float64, example, quantized, random_x, relative_error, rotated

import qscheme
from qscheme import Facts
from qscheme.binding import Bound
from qscheme.tables import load

CPU = Facts.simulate("cpu")

ROUNDING = 0.005
"""How far a result may be from the float64 model of the same rules: float32 sums and an output in bf16."""

QUANTIZATION = {
    "int8": 0.02, "int4": 0.10, "fp8_e4m3": 0.05, "fp6_e2m3": 0.06, "fp6_e3m2": 0.10, "fp4_e2m1": 0.20,
}  # fmt: skip
"""How far a result may be from the product of unquantized x and weight, for normally distributed values."""

ROWS = (0, 1, 3, 17, 64, 200)
N, K = 88, 296  # multiples of 8 alone: eight INT4 codes fill a word, along N or K
FLOATS = (torch.bfloat16, torch.float16, torch.float32)


def on_a_cpu() -> list[tuple[str, str]]:
    """Every scheme and backend that nothing speaks against on a CPU, asked of the tables."""
    every = [(scheme, backend.name) for scheme in load().schemes for backend in load().scheme(scheme).backends]
    return [
        (scheme, backend)
        for scheme, backend in every
        if qscheme.explain(example(scheme, N, K).layer, CPU, backend=backend).chosen is not None
    ]


RUNNABLE = on_a_cpu()
OF_EACH_KIND = [case for case in RUNNABLE if case[0] in KINDS]
every_case = pytest.mark.parametrize("case", RUNNABLE, ids="-".join)


def written_by(case: tuple[str, str]) -> list[torch.dtype]:
    """The output dtypes that a backend writes."""
    layers = ((dtype, example(case[0], N, K, out_dtype=dtype).layer) for dtype in FLOATS)
    return [dtype for dtype, layer in layers if qscheme.explain(layer, CPU, backend=case[1]).chosen]


def takes_codes(case: tuple[str, str]) -> bool:
    """Whether a bound function of the scheme takes codes and scales in place of x."""
    activation = load().scheme(case[0]).activation
    return activation is not None and activation.symmetric


of_codes = pytest.mark.parametrize("case", [case for case in RUNNABLE if takes_codes(case)], ids="-".join)


def unaware_of_others(case: tuple[str, str]) -> bool:
    """Whether a row's result does not depend on the other rows, as it does under one scale for all of them."""
    activation = load().scheme(case[0]).activation
    return activation is None or (activation.granularity, activation.mode) != ("per_tensor", "dynamic")


of_single_rows = pytest.mark.parametrize("case", [case for case in RUNNABLE if unaware_of_others(case)], ids="-".join)


def bound_to(case: tuple[str, str], n: int = N, k: int = K, **options: Any) -> tuple[Bound, Example]:
    made = example(case[0], n, k, **options)
    return qscheme.dispatch(made.layer, CPU, backend=case[1]), made


def test_every_scheme_has_a_backend_that_runs_on_a_cpu() -> None:
    assert set(load().schemes) == {scheme for scheme, _ in RUNNABLE}
    assert {"reference"} <= {backend for _, backend in RUNNABLE}


@every_case
def test_every_scheme_is_near_its_float64_model(case: tuple[str, str]) -> None:
    bound, made = bound_to(case, bias=torch.bfloat16)
    for rows in (1, 17):
        x = random_x(rows, K, seed=rows)
        y = bound(x)
        assert ((rows, N), torch.bfloat16) == (tuple(y.shape), y.dtype)
        assert ROUNDING > relative_error(y, made.of(x)), rows


@pytest.mark.parametrize("case", OF_EACH_KIND, ids="-".join)
class TestEveryBackend:
    def test_any_number_of_rows_is_near_the_float64_model(self, case: tuple[str, str]) -> None:
        bound, made = bound_to(case)
        for rows in ROWS:
            x = random_x(rows, K, seed=rows)
            y = bound(x)
            assert (rows, N) == y.shape
            assert torch.bfloat16 == y.dtype
            if rows:
                assert ROUNDING > relative_error(y, made.of(x)), rows

    @pytest.mark.parametrize(("n", "k"), [(33, 64), (320, 160), (129, 520), (1, 8)])
    def test_any_shape_of_the_weight_is_near_the_float64_model(self, case: tuple[str, str], n: int, k: int) -> None:
        bound, made = bound_to(case, n, k, bias=torch.float32, out_dtype=written_by(case)[-1])
        x = random_x(18, k)
        assert ROUNDING > relative_error(bound(x), made.of(x))

    def test_the_result_is_near_the_unquantized_product(self, case: tuple[str, str]) -> None:
        bound, made = bound_to(case, bias=torch.bfloat16)
        x = random_x(64, K)
        operands = [operand for operand in (made.scheme.activation, made.scheme.weight) if operand is not None]
        bound_on_error = max(QUANTIZATION[operand.format] for operand in operands)
        assert bound_on_error > relative_error(bound(x), made.exact(x))

    @pytest.mark.parametrize("dtype", FLOATS, ids=str)
    @pytest.mark.parametrize("bias", [None, *FLOATS], ids=str)
    def test_every_dtype_of_x_output_and_bias_is_near_the_float64_model(
        self, case: tuple[str, str], dtype: torch.dtype, bias: torch.dtype | None
    ) -> None:
        x = random_x(5, K, dtype=dtype)
        for out_dtype in written_by(case):
            bound, made = bound_to(case, bias=bias, out_dtype=out_dtype)
            y = bound(x)
            assert out_dtype == y.dtype
            assert ROUNDING > relative_error(y, made.of(x)), out_dtype

    def test_the_bias_is_added_once(self, case: tuple[str, str]) -> None:
        dtype = written_by(case)[-1]
        bound, made = bound_to(case, bias=dtype, out_dtype=dtype)
        assert torch.equal(made.layer.bias.expand(19, N), bound(torch.zeros(19, K)))

    @pytest.mark.parametrize("shape", [(K,), (2, 5, K), (1, 1, K), (2, 3, 4, K)], ids=str)
    def test_any_rank_gives_the_rows_of_the_flat_call(self, case: tuple[str, str], shape: tuple[int, ...]) -> None:
        bound, _ = bound_to(case)
        x = random_x(*shape)
        assert torch.equal(bound(x.reshape(-1, K)).reshape(*shape[:-1], N), bound(x))

    @pytest.mark.parametrize("shape", [(2, 0, K), (0, 3, K), (0, K)], ids=str)
    def test_no_rows_give_no_rows_of_any_rank(self, case: tuple[str, str], shape: tuple[int, ...]) -> None:
        bound, _ = bound_to(case)
        y = bound(random_x(*shape))
        assert ((*shape[:-1], N), torch.bfloat16) == (tuple(y.shape), y.dtype)

    @pytest.mark.parametrize(
        "x",
        [
            random_x(K, 6).t(),
            random_x(6, 2 * K)[:, ::2],
            random_x(12, K)[::2],
            random_x(6, K + 3)[:, 1:-2],
            random_x(2, K, 5).transpose(1, 2),
            random_x(1, K).expand(6, K),
            random_x(3, 2, K).transpose(0, 1),
            random_x(6 * K + 1)[1:].view(6, K),
        ],
        ids=["transposed", "strided", "every_other_row", "cut", "not_viewable", "expanded", "swapped", "offset"],
    )
    def test_any_strides_give_what_a_dense_copy_gives(self, case: tuple[str, str], x: torch.Tensor) -> None:
        bound, _ = bound_to(case)
        assert torch.equal(bound(x.clone(memory_format=torch.contiguous_format)), bound(x))

    def test_x_is_not_changed(self, case: tuple[str, str]) -> None:
        bound, _ = bound_to(case)
        x = random_x(4, K)
        before = x.clone()
        bound(x)
        assert torch.equal(before, x)

    def test_a_rotated_layer_rotates_x(self, case: tuple[str, str]) -> None:
        bound, made = bound_to(case, N, 288, rotation=32)
        x = random_x(17, 288, dtype=torch.float32)
        assert bound.decision.rotates_input
        assert ROUNDING > relative_error(bound(x), made.of(x))
        operands = [operand for operand in (made.scheme.activation, made.scheme.weight) if operand is not None]
        bound_on_error = max(QUANTIZATION[operand.format] for operand in operands)
        assert bound_on_error > relative_error(bound(x), made.exact(x))


@of_single_rows
def test_zero_rows_give_the_bias_and_leave_their_neighbours_alone(case: tuple[str, str]) -> None:
    bound, made = bound_to(case, bias=torch.bfloat16)
    x = random_x(20, K)
    before = bound(x)
    x[3] = 0
    y = bound(x)
    assert torch.equal(made.layer.bias, y[3])
    assert torch.equal(before[4:], y[4:])


@of_single_rows
def test_a_nan_in_a_row_stays_in_its_row(case: tuple[str, str]) -> None:
    bound, _ = bound_to(case)
    x = random_x(20, K)
    before = bound(x)
    x[3, 5] = float("nan")
    y = bound(x)
    others = torch.arange(20) != 3
    assert torch.equal(before[others], y[others])


def over_of(made: Example) -> float | None:
    """The scale over the scales of a layer's activation."""
    over = getattr(made.layer, "input_global_scale", None)
    return None if over is None else float(over)


@of_codes
@pytest.mark.parametrize("rows", [1, 3, 64])
def test_codes_and_scales_give_what_x_gives(case: tuple[str, str], rows: int) -> None:
    bound, made = bound_to(case, prequantized=True, bias=torch.bfloat16)
    x = random_x(rows, K, dtype=torch.float32)
    given = None if made.layer.input_scale is None else float(made.layer.input_scale)
    ready = quantized(as_float64(x), made.scheme.activation, given, over_of(made))
    assert bound.activation.codes_dtype == ready.codes.dtype
    assert ROUNDING > relative_error(bound(ready.codes, x_scale=ready.scale), made.of(x))
    assert ROUNDING > relative_error(bound(ready.codes, x_scale=ready.scale), as_float64(bound(x)))


@of_codes
def test_codes_may_have_any_rank_and_no_rows(case: tuple[str, str]) -> None:
    bound, made = bound_to(case)
    given = None if made.layer.input_scale is None else float(made.layer.input_scale)
    ready = quantized(as_float64(random_x(6, K)), made.scheme.activation, given, over_of(made))
    flat = bound(ready.codes, x_scale=ready.scale)
    assert torch.equal(flat.view(2, 3, N), bound(ready.codes.view(2, 3, -1), x_scale=ready.scale))
    scale = ready.scale if ready.scale.dim() < 2 else ready.scale[:0]
    assert (0, N) == bound(ready.codes[:0], x_scale=scale).shape


def test_the_model_agrees_with_itself_under_a_rotation() -> None:
    x = as_float64(random_x(3, 64, dtype=torch.float32))
    assert 1e-12 > abs(rotated(rotated(x)) - x).max()


@pytest.mark.parametrize("scales", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_stored_scales_of_any_float_dtype_mean_the_same(scales: torch.dtype) -> None:
    layer = example("fp8_block128", 130, 256).layer
    layer.weight_scale = torch.tensor([[0.5, 2.0], [0.25, 1.0]]).to(scales)
    y = qscheme.dispatch(layer, CPU)(random_x(3, 256))
    layer.weight_scale = layer.weight_scale.float()
    assert torch.equal(qscheme.dispatch(layer, CPU)(random_x(3, 256)), y)


def test_e8m0_scales_of_blocks_are_powers_of_two() -> None:
    layer = example("fp8_block128", 130, 256).layer
    layer.weight_scale = torch.tensor([[126, 128], [125, 127]], dtype=torch.uint8)
    y = qscheme.dispatch(layer, CPU)(random_x(3, 256))
    layer.weight_scale = layer.weight_scale.view(torch.float8_e8m0fnu)
    assert torch.equal(qscheme.dispatch(layer, CPU)(random_x(3, 256)), y)
    layer.weight_scale = torch.tensor([[0.5, 2.0], [0.25, 1.0]])
    assert torch.equal(qscheme.dispatch(layer, CPU)(random_x(3, 256)), y)


def test_a_ragged_last_tile_has_its_own_scale_and_rows_keep_theirs() -> None:
    layer = example("fp8_block128", 576, 130).layer
    layer.weight = torch.ones(576, 130).to(torch.float8_e4m3fn)
    layer.weight_scale = torch.arange(1.0, 11.0).view(5, 2)
    layer.out_dtype = torch.float32
    y = qscheme.dispatch(layer, CPU)(torch.ones(1, 130))[0]
    rows = torch.arange(576) // 128
    expected = 128 * (2.0 * rows + 1) + 2 * (2.0 * rows + 2)
    assert 1e-5 > ((y - expected) / expected).abs().max()


WIDTHS, SCALES = [64, 16, 16], torch.tensor([0.5, 1.0, 0.25])


def fused(case: tuple[str, str]) -> Example:
    """A layer of three parts with one scale each."""
    made = example(case[0], 96, 64, out_dtype=written_by(case)[-1], logical_widths=WIDTHS)
    made.layer.weight_scale = SCALES
    return made


def may_be_fused(case: tuple[str, str]) -> bool:
    """Whether a checkpoint may have one scale for each part of the weight, whose codes this file can read."""
    weight = load().scheme(case[0]).weight
    return weight.granularity in ("per_channel", "per_tensor") and weight.packing == "plain"


def takes_fused(case: tuple[str, str]) -> bool:
    """Whether parts of a layer may have a scale of their own, and the backend runs such a layer."""
    return may_be_fused(case) and qscheme.explain(fused(case).layer, CPU, backend=case[1]).chosen is not None


TAKE_FUSED = [case for case in RUNNABLE if takes_fused(case)]


def test_one_scale_for_each_part_is_refused_only_where_a_kernel_takes_one_for_all() -> None:
    every = {case for case in RUNNABLE if may_be_fused(case)}
    one_scale = {("fp8_tensor_dynamic", "torch_scaled_mm"), ("fp8_tensor_static", "torch_scaled_mm")}
    assert one_scale == every - set(TAKE_FUSED)


@pytest.mark.parametrize("case", TAKE_FUSED, ids="-".join)
@pytest.mark.parametrize("shape", [(3,), (3, 1)], ids=str)
def test_a_fused_layer_has_one_scale_for_each_part(case: tuple[str, str], shape: tuple[int, ...]) -> None:
    made, widths, scales = fused(case), WIDTHS, SCALES
    made.layer.weight_scale = scales.reshape(shape)
    channels = torch.repeat_interleave(scales, torch.tensor(widths))
    stored = as_float64(made.layer.weight) * as_float64(channels)[:, None]
    x = random_x(5, 64)
    y = qscheme.dispatch(made.layer, CPU, backend=case[1])(x)
    assert ROUNDING > relative_error(y, replace(made, stored=stored).of(x))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
def test_one_scale_may_have_any_shape(shape: tuple[int, ...]) -> None:
    layer = example("int8_tensor_static", 24, 64).layer
    x = random_x(5, 64)
    expected = qscheme.dispatch(layer, CPU)(x)
    layer.weight_scale, layer.input_scale = layer.weight_scale.reshape(shape), layer.input_scale.reshape(shape)
    assert torch.equal(expected, qscheme.dispatch(layer, CPU)(x))
    fused = example("int8_ptpc", 24, 64, logical_widths=[16, 8]).layer
    fused.weight_scale = torch.full(shape, 0.5)
    y = qscheme.dispatch(fused, CPU)(x)
    fused.weight_scale = torch.full((24, 1), 0.5)
    assert torch.equal(y, qscheme.dispatch(fused, CPU)(x))


def test_a_channel_scale_of_one_dimension_belongs_to_rows_also_where_n_is_k() -> None:
    layer = example("int8_ptpc", 64, 64).layer
    x = random_x(3, 64)
    expected = qscheme.dispatch(layer, CPU)(x)
    layer.weight_scale = layer.weight_scale.reshape(64)
    assert torch.equal(expected, qscheme.dispatch(layer, CPU)(x))
