"""A Linear is a torch module over a bound function, and quantize makes one from a float layer."""

from __future__ import annotations

import copy
import importlib
import io
from typing import Any

import float64_catalogue
import numpy as np
import pytest
import torch
from float64_layers import (
    Quantized,
    as_float64,
    example,
    quantized,
    random_x,
    relative_error,
    rotated,
    static_scale,
)
from torch import nn

import qscheme
from qscheme import Facts, InvalidLayer, Linear, UnknownScheme, Unsupported
from qscheme.formats import decode
from qscheme.tables import load
from qscheme.types import Layer

CPU = Facts.simulate("cpu")
SCHEMES = [
    name
    for name in load().schemes
    if (operand := load().scheme(name).activation) and operand.symmetric and operand.global_scale is None
]
"""Every scheme whose activation is quantized in one level."""

WORDS = [name for name in load().schemes if load().scheme(name).weight.packing != "plain"]
"""Every scheme whose weight is stored in int32 words."""


def float_layer(n: int = 48, k: int = 96, bias: bool = True, dtype: torch.dtype = torch.bfloat16) -> nn.Linear:
    torch.manual_seed(n * k)
    return nn.Linear(k, n, bias=bias, dtype=dtype)


def with_the_flips_of(made: Linear, stored: Quantized, weight: Any) -> Any:
    """The stored values, with the codes of a module where the last bit of its rotation decides between two.

    An INT4 scale is the largest value over 7.5, so that value is halfway between -7 and -8 where it is negative.
    """
    scale, operand = as_float64(stored.scale), load().scheme(made.scheme).weight
    codes = as_float64(decode(made.weight, operand))
    flipped = as_float64(decode(stored.codes, operand)) != codes
    assert 1e-5 > np.abs(np.where(flipped, weight / scale + 7.5, 0)).max()
    assert {-7, -8} >= set(codes[flipped].tolist())
    return np.where(flipped, codes * scale, stored.values)


def quantize(layer: nn.Linear, scheme: str, **options: object) -> Linear:
    activation = load().scheme(scheme).activation
    given = static_scale(activation) if activation and activation.mode == "static" else None
    return qscheme.quantize(layer, scheme, input_scale=given, **options)


@pytest.mark.parametrize("scheme", SCHEMES)
class TestEveryScheme:
    def test_weights_are_quantized_by_the_schemes_rule(self, scheme: str) -> None:
        made = quantize(float_layer(), scheme)
        expected = quantized(as_float64(float_layer().weight), load().scheme(scheme).weight)
        assert torch.equal(expected.codes.view(torch.uint8), made.weight.view(torch.uint8))
        assert torch.equal(expected.scale, made.weight_scale)

    def test_the_module_is_near_the_float_layer(self, scheme: str) -> None:
        layer = float_layer()
        x = random_x(7, 96)
        y = quantize(layer, scheme)(x)
        assert (7, 48) == y.shape
        assert torch.bfloat16 == y.dtype
        assert 0.2 > relative_error(y, as_float64(x) @ as_float64(layer.weight).T + as_float64(layer.bias))

    def test_a_rotated_weight_is_rotated_before_it_is_quantized(self, scheme: str) -> None:
        layer = float_layer(dtype=torch.float32)
        made = quantize(layer, scheme, rotation=32)
        weight = load().scheme(scheme).weight
        stored = quantized(rotated(as_float64(layer.weight)), weight)
        values = stored.values
        if weight.format == "int4":
            values = with_the_flips_of(made, stored, rotated(as_float64(layer.weight)))
        x = random_x(7, 96, dtype=torch.float32)
        static = None if made.input_scale is None else float(made.input_scale)
        ready = quantized(rotated(as_float64(x)), load().scheme(scheme).activation, static)
        expected = ready.values @ values.T + as_float64(layer.bias)
        assert 0.005 > relative_error(made(x), expected)

    def test_the_float_layer_is_not_changed(self, scheme: str) -> None:
        layer = float_layer()
        weight, bias = layer.weight.clone(), layer.bias.clone()
        made = quantize(layer, scheme)
        made(random_x(2, 96))
        assert torch.equal(weight, layer.weight)
        assert torch.equal(bias, layer.bias)
        assert layer.bias.data_ptr() != made.bias.data_ptr()

    def test_a_module_takes_codes_and_scales(self, scheme: str) -> None:
        made = quantize(float_layer(), scheme)
        x = random_x(3, 96)
        static = None if made.input_scale is None else float(made.input_scale)
        ready = quantized(as_float64(x), load().scheme(scheme).activation, static)
        assert 0.005 > relative_error(made(ready.codes, ready.scale), as_float64(made(x)))

    def test_its_state_loads_into_another_one_which_binds_again(self, scheme: str) -> None:
        first, second = quantize(float_layer(), scheme), quantize(float_layer(48, 96), scheme)
        second.weight.view(torch.uint8).zero_()
        x = random_x(3, 96)
        before = second(x)
        second.load_state_dict(first.state_dict())
        assert not torch.equal(before, second(x))
        assert torch.equal(first(x), second(x))

    @pytest.mark.parametrize("how", ["deepcopy", "save"])
    def test_a_copy_binds_itself_to_its_own_tensors(self, scheme: str, how: str) -> None:
        made = quantize(float_layer(), scheme)
        x = random_x(3, 96)
        expected = made(x)
        if how == "deepcopy":
            other = copy.deepcopy(made)
        else:
            stored = io.BytesIO()
            torch.save(made, stored)
            stored.seek(0)
            other = torch.load(stored, weights_only=False)
        assert torch.equal(expected, other(x))
        other.weight.view(torch.uint8).zero_()
        other.bind()
        assert not torch.equal(expected, other(x))
        assert torch.equal(expected, made(x))


@pytest.mark.parametrize("scheme", WORDS)
def test_a_weight_in_words_is_made_as_a_checkpoint_stores_it(scheme: str) -> None:
    layer = float_layer(136, 128)
    made = quantize(layer, scheme)
    expected = float64_catalogue.quantized(as_float64(layer.weight), load().scheme(scheme).weight)
    for wanted, found in (
        (expected.codes, made.weight),
        (expected.scale, made.weight_scale),
        (expected.zero_point, made.weight_zero_point),
    ):
        assert (None if wanted is None else wanted.dtype) == (None if found is None else found.dtype)
        assert wanted is None or torch.equal(wanted, found)
    x = random_x(7, 128)
    assert 0.2 > relative_error(made(x), as_float64(x) @ as_float64(layer.weight).T + as_float64(layer.bias))


@pytest.mark.parametrize("scheme", ["int4_awq_g128", "int4_gptq_g128", "int8_gptq_g128", "int4_w4a16_g128_asym"])
def test_a_group_of_zeros_or_of_tiny_values_in_words_stays_finite(scheme: str) -> None:
    layer = float_layer(16, 256, bias=False, dtype=torch.float32)
    with torch.no_grad():
        layer.weight[:4, :128] = 0
        layer.weight[4:8, 128:] *= 1e-12
    made, x = quantize(layer, scheme), random_x(3, 256, dtype=torch.float32)
    y = made(x)
    assert 0.2 > relative_error(y, as_float64(x) @ as_float64(layer.weight).T)


def test_a_linear_is_a_layer() -> None:
    def named(layer: Layer) -> str:
        return layer.name

    assert "up_proj" == named(quantize(float_layer(), "int8_ptpc", name="up_proj"))


def test_it_binds_with_the_arguments_of_dispatch() -> None:
    made = quantize(float_layer(), "int8_ptpc")
    assert "torch_int_mm" == made.bind(CPU).backend
    assert "reference" == made.bind(CPU, backend="reference").backend
    assert "reference" == made.bind(CPU, disabled=["torch_int_mm"]).backend
    with pytest.raises(Unsupported):
        made.bind(CPU, backend="aiter_ck")


def test_it_shows_its_scheme_and_backend() -> None:
    made = quantize(float_layer(), "int8_ptpc")
    assert "Linear(int8_ptpc, weight=[48, 96], not bound yet)" == repr(made)
    made.bind(CPU)
    assert "Linear(int8_ptpc, weight=[48, 96], torch_int_mm)" == repr(made)


def test_it_has_the_sizes_of_the_float_layer() -> None:
    made = quantize(float_layer(48, 96), "mxfp4")
    assert (48, 96, (48, 48)) == (made.out_features, made.in_features, tuple(made.weight.shape))


def test_it_keeps_the_sizes_of_the_layer_that_it_is_a_shard_of() -> None:
    with pytest.raises(Unsupported, match=r"N of each shard a multiple of 128 rows.*found N = 48 = 192 / 4"):
        quantize(float_layer(48, 128), "fp8_block128", full_out_features=192).bind(CPU)
    with pytest.raises(Unsupported, match=r"K of each shard a multiple of 32 columns.*found K = 48 = 96 / 2"):
        quantize(float_layer(48, 48), "mxfp4", full_in_features=96).bind(CPU)
    assert "reference" == quantize(float_layer(48, 128), "fp8_block128", full_in_features=256).bind(CPU).backend


@pytest.mark.parametrize("operand", ["weight", "weight_scale", "bias"])
def test_a_tensor_that_is_set_is_the_one_that_is_used(operand: str) -> None:
    made, x = quantize(float_layer(), "int8_ptpc"), random_x(3, 96)
    before = made(x)
    setattr(made, operand, torch.zeros_like(getattr(made, operand)))
    assert not torch.equal(before, made(x))


def test_a_module_that_is_moved_binds_again() -> None:
    made = quantize(float_layer(), "int8_ptpc")
    made.bind(CPU)
    assert "not bound yet" in repr(made.to("meta"))
    assert torch.device("meta") == made.weight.device


def test_it_works_inside_of_a_model_and_under_inference_mode() -> None:
    model = nn.Sequential(quantize(float_layer(64, 96), "int8_ptpc"), nn.ReLU(), quantize(float_layer(32, 64), "mxfp4"))
    x = random_x(3, 96)
    expected = model(x)
    with torch.inference_mode():
        assert torch.equal(expected, copy.deepcopy(model)(x))
    assert {"0.weight", "0.weight_scale", "0.bias", "2.weight", "2.weight_scale", "2.bias"} == set(model.state_dict())
    assert [] == list(model.parameters())


def test_a_layer_without_bias_has_none() -> None:
    made = quantize(float_layer(bias=False), "int8_ptpc")
    assert made.bias is None
    assert torch.equal(torch.zeros(2, 48, dtype=torch.bfloat16), made(torch.zeros(2, 96)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_output_has_the_float_layers_dtype_unless_told(dtype: torch.dtype) -> None:
    layer = float_layer(dtype=dtype)
    assert dtype == quantize(layer, "int8_ptpc")(random_x(2, 96)).dtype
    assert torch.float16 == quantize(layer, "int8_ptpc", out_dtype=torch.float16)(random_x(2, 96)).dtype


def test_the_static_scale_may_be_a_number_or_a_tensor() -> None:
    x = random_x(3, 96)
    results = [
        qscheme.quantize(float_layer(), "int8_tensor_static", input_scale=scale)(x)
        for scale in (0.03, torch.tensor(0.03), torch.tensor([0.03]))
    ]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("tables", ["qscheme_generated", "module", "tables"])
def test_tables_are_given_in_any_form_and_kept_by_a_copy(tables: str) -> None:
    given = {"module": importlib.import_module("qscheme_generated"), "tables": load()}.get(tables, tables)
    made = quantize(float_layer(), "int8_ptpc", tables=given)
    stored = io.BytesIO()
    torch.save(made, stored)
    stored.seek(0)
    x = random_x(3, 96)
    assert torch.equal(made(x), torch.load(stored, weights_only=False)(x))


def test_mistakes_are_told_when_a_layer_is_quantized() -> None:
    with pytest.raises(UnknownScheme, match=r"unknown scheme 'int8_ptcp'; did you mean 'int8_ptpc'\?"):
        qscheme.quantize(float_layer(), "int8_ptcp")
    with pytest.raises(InvalidLayer, match="layer up: input_scale: needs one value, as the activation is static"):
        qscheme.quantize(float_layer(), "int8_tensor_static", name="up")
    with pytest.raises(InvalidLayer, match="input_scale: needs None, as the activation is dynamic, found a value"):
        qscheme.quantize(float_layer(), "int8_ptpc", input_scale=0.5)
    with pytest.raises(InvalidLayer, match="weight: needs an even K, as two codes share a byte, found K = 95"):
        qscheme.quantize(float_layer(48, 95), "mxfp4")
    with pytest.raises(InvalidLayer, match="K a multiple of 4, as 4 codes are stored together, found K = 94"):
        qscheme.quantize(float_layer(48, 94), "mxfp6_e2m3_w6a16")
    with pytest.raises(InvalidLayer, match="K a multiple of 8, as 8 codes are stored together, found K = 92"):
        qscheme.quantize(float_layer(48, 92), "int4_w4a16_g128")
    with pytest.raises(InvalidLayer, match="K a multiple of 4, as 4 codes are stored together, found K = 94"):
        qscheme.quantize(float_layer(48, 94), "int8_gptq_g128")
    with pytest.raises(InvalidLayer, match="N a multiple of 8, as 8 codes are stored together, found N = 44"):
        qscheme.quantize(float_layer(44, 96), "int4_awq_g128")
    with pytest.raises(InvalidLayer, match="rotation: needs None or 32, and K a multiple of it, found 64 and K = 128"):
        qscheme.quantize(float_layer(48, 128), "mxfp4", rotation=64)
    with pytest.raises(InvalidLayer, match="rotation: needs None or 32, and K a multiple of it, found 32 and K = 80"):
        qscheme.quantize(float_layer(48, 80), "mxfp4", rotation=32)


def test_a_checkpoints_tensors_may_be_given_directly() -> None:
    made = example("fp8_block128", 130, 260, bias=torch.bfloat16)
    layer = made.layer
    module = Linear(
        layer.scheme, layer.weight, layer.weight_scale, bias=layer.bias, out_dtype=layer.out_dtype, name=layer.name
    )
    x = random_x(3, 260)
    assert torch.equal(qscheme.dispatch(layer, CPU)(x), module(x))
