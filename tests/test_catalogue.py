"""Every scheme of the catalogue computes what its rules say, says how it quantizes, and takes new weights in place."""

from __future__ import annotations

from functools import lru_cache
from types import SimpleNamespace
from typing import TYPE_CHECKING

import paper_aiter
import pytest
import torch
from bindable import ALL, Case, named
from float64_catalogue import CODES_TOGETHER, as_float64, columns, example, random_x, relative_error, rows

import qscheme
from qscheme import Facts, InvalidInput, InvalidLayer
from qscheme.formats import packed_columns
from qscheme.tables import load
from qscheme.tiles import scale_shape

if TYPE_CHECKING:
    from qscheme.binding import Bound

CPU = Facts.simulate("cpu")
ROUNDING = 0.005
"""How far a result may be from the float64 model of the same rules: float32 sums and an output in bf16."""

ROWS = (0, 1, 17)
SHAPES = ((75, 290, None), (33, 515, torch.float32), (260, 131, torch.bfloat16), (1, 1, None))
"""N, K and the dtype of the bias."""

SCHEMES = load().schemes
WEIGHT_ONLY = [name for name in SCHEMES if load().scheme(name).activation is None]
QUANTIZING = [name for name in SCHEMES if name not in WEIGHT_ONLY]
every_scheme = pytest.mark.parametrize("scheme", SCHEMES)


every_backend = pytest.mark.parametrize("case", ALL, ids=named)
every_quantizing_backend = pytest.mark.parametrize(
    "case", [case for case in ALL if case.scheme in QUANTIZING], ids=named
)

quantized_once = lru_cache(example)


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch) -> paper_aiter.PaperAiter:
    """AITER's newest release on paper."""
    return paper_aiter.install(monkeypatch)


def made_for(case: Case, seed: int = 0) -> SimpleNamespace:
    """A layer of the size and output dtype of the case, whose tensors no other test has."""
    made = quantized_once(case.scheme, case.n, case.k, bias=torch.bfloat16, out_dtype=case.out_dtype, seed=seed)
    kept = vars(made.layer).items()
    return SimpleNamespace(**{name: v.clone() if isinstance(v, torch.Tensor) else v for name, v in kept})


def bind_layer(layer: SimpleNamespace, case: Case) -> Bound:
    return qscheme.dispatch(layer, case.facts, backend=case.backend)


def bind(case: Case) -> Bound:
    return bind_layer(made_for(case), case)


# --- what is computed ----------------------------------------------------------------------------------------------


def test_the_catalogue_has_the_schemes_in_use() -> None:
    assert len(SCHEMES) >= 26


@every_scheme
@pytest.mark.parametrize(("n", "k", "bias"), SHAPES, ids=str)
def test_a_layer_is_near_the_float64_model_of_its_rules(scheme: str, n: int, k: int, bias: torch.dtype | None) -> None:
    n = rows(scheme, n)
    made = example(scheme, n, columns(scheme, k), bias=bias, seed=n)
    for backend in load().scheme(scheme).backends:
        if qscheme.explain(made.layer, CPU, backend=backend.name).chosen is None:
            continue
        bound = qscheme.dispatch(made.layer, CPU, backend=backend.name)
        for m in ROWS:
            x = random_x(m, bound.k, seed=m)
            y = bound(x)
            assert ((m, n), torch.bfloat16) == (tuple(y.shape), y.dtype)
            if m:
                assert ROUNDING > relative_error(y, made.of(x)), (backend.name, m)


@every_scheme
def test_the_float64_model_is_near_the_product_of_what_was_never_quantized(scheme: str) -> None:
    """Of the formats' own size: a model that agrees with a wrong kernel would not be."""
    made = example(scheme, 96, 512)
    bits = {"int8": 0.02, "fp8_e4m3": 0.05, "fp6_e2m3": 0.06, "fp6_e3m2": 0.09, "int4": 0.14, "fp4_e2m1": 0.2}
    formats = [operand.format for operand in (made.scheme.activation, made.scheme.weight) if operand is not None]
    x = random_x(64, 512, dtype=torch.float32)
    error = relative_error(torch.from_numpy(made.of(x)), made.exact(x))
    assert 0.1 * max(bits[word] for word in formats) < error < max(bits[word] for word in formats)


@pytest.mark.parametrize("scheme", QUANTIZING)
@pytest.mark.parametrize("m", [1, 17])
def test_codes_and_scales_of_the_model_give_what_x_gives(scheme: str, m: int) -> None:
    made = example(scheme, rows(scheme, 75), columns(scheme, 290), prequantized=True)
    x = random_x(m, columns(scheme, 290))
    ready = made.activation(as_float64(x))
    if ready.zero_point is not None:  # there is no way to give a zero point of x
        with pytest.raises(InvalidLayer, match="prequantized: needs False, as the activation is asymmetric"):
            qscheme.dispatch(made.layer, CPU)
        return
    bound = qscheme.dispatch(made.layer, CPU)
    assert ROUNDING > relative_error(bound(ready.codes, x_scale=ready.scale), made.of(x))


@pytest.mark.parametrize("scheme", WEIGHT_ONLY)
def test_a_weight_only_layer_takes_no_codes(scheme: str) -> None:
    bound = qscheme.dispatch(example(scheme, rows(scheme, 75), columns(scheme, 290)).layer, CPU)
    with pytest.raises(InvalidInput, match="needs an x that is not quantized"):
        bound(torch.zeros(3, bound.k, dtype=torch.int8), x_scale=torch.ones(3, 1))


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if columns(name, 1) > 1])
def test_a_k_that_the_format_cannot_store_is_refused(scheme: str) -> None:
    layer = SimpleNamespace(
        **{**vars(example(scheme, 8, 64).layer), "weight": None, "out_features": 8, "in_features": 63}
    )
    weight = load().scheme(scheme).weight
    if CODES_TOGETHER.get(weight.format, 1) > 1 or weight.packing != "plain":
        with pytest.raises(InvalidLayer, match=r"in_features: needs .*, found 63"):
            qscheme.explain(layer, CPU)
    else:
        with pytest.raises(InvalidLayer, match=r"weight: needs "):
            qscheme.dispatch(layer, CPU)


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if rows(name, 1) > 1])
def test_an_n_that_the_words_cannot_store_is_refused(scheme: str) -> None:
    layer = SimpleNamespace(
        **{**vars(example(scheme, 8, 64).layer), "weight": None, "out_features": 63, "in_features": 64}
    )
    together = rows(scheme, 1)
    hold = f"words of {load().scheme(scheme).weight.packing} hold {together} codes"
    needs = f"out_features: needs N a multiple of {together}, as {hold}, found 63"
    with pytest.raises(InvalidLayer, match=needs):
        qscheme.explain(layer, CPU)


# --- what is said of the activation --------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", WEIGHT_ONLY)
def test_a_weight_only_layer_has_no_activation(scheme: str) -> None:
    assert qscheme.dispatch(example(scheme, 128, 256).layer, CPU).activation is None


@every_quantizing_backend
def test_every_quantizing_backend_says_how_it_quantizes(case: Case, paper: paper_aiter.PaperAiter) -> None:
    operand, said = load().scheme(case.scheme).activation, bind(case).activation
    assert said is not None
    assert operand is not None
    assert (operand.format, operand.granularity, operand.scale) == (said.format, said.granularity, said.scale)
    backend = next(known for known in load().scheme(case.scheme).backends if known.name == case.backend)
    rules = {case.facts.rule(kernel) or operand.rule for kernel in backend.quantizers}
    assert said.rule in rules
    dtypes = {"int8": {torch.int8}, "fp8_e4m3": {torch.float8_e4m3fn, torch.float8_e4m3fnuz}}.get(
        operand.format, {torch.uint8}
    )
    assert said.codes_dtype in dtypes
    assert said.scale_layouts[-1][0] is None, "some layout holds for any M"
    ends = [end for end, _ in said.scale_layouts[:-1] if end is not None]
    assert sorted(set(ends)) == ends and len(ends) + 1 == len(said.scale_layouts)


TAKE_CODES = [case for case in ALL if case.scheme in QUANTIZING and load().scheme(case.scheme).activation.symmetric]


@pytest.mark.parametrize("case", [case for case in TAKE_CODES if case.runs_here], ids=named)
def test_every_quantizing_backend_takes_the_codes_that_it_describes(case: Case, paper: paper_aiter.PaperAiter) -> None:
    bound = bind(case)
    said = bound.activation
    assert said is not None
    scales = {"fp32": torch.float32, "e4m3": torch.float8_e4m3fn}.get(said.scale, torch.uint8)
    for m in (0, 1, 40):
        codes = torch.zeros(m, packed_columns(said.format, case.k), dtype=said.codes_dtype)
        scale = torch.ones(scale_shape(m, case.k, said.granularity)).to(scales)
        assert (m, case.n) == bound(codes, x_scale=scale).shape


# --- new weights in the same place ---------------------------------------------------------------------------------


def other(case: Case) -> SimpleNamespace:
    """A layer of the same shapes with other values everywhere."""
    given = made_for(case, seed=9)
    given.bias = 2 * given.bias + 1
    for name in ("weight_scale", "input_scale", "weight_global_scale", "input_global_scale"):
        value = getattr(given, name)
        if value is not None and value.dtype == torch.float32:
            setattr(given, name, value * 2)
        elif value is not None and value.dtype == torch.uint8:
            setattr(given, name, value + 1)  # twice as much, in powers of two
    return given


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)


def storage(bound: Bound) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    return [(tensor.data_ptr(), tuple(tensor.shape), tensor.stride()) for tensor in bound.tensors()]


@every_backend
def test_refresh_writes_what_binding_would_prepare_into_the_same_storage(
    case: Case, paper: paper_aiter.PaperAiter
) -> None:
    refreshed_as_bound(bind(case), other(case), case)


def of_parts(layer: SimpleNamespace, case: Case, *scales: float) -> SimpleNamespace:
    """The layer as if it was fused from two, each with a scale of its own."""
    layer.logical_widths, layer.weight_scale = [case.n // 4 * 3, case.n // 4], torch.tensor(scales)
    return layer


ONE_SCALE = [case for case in ALL if load().scheme(case.scheme).weight.granularity == "per_tensor"]
TAKE_PARTS = [case for case in ONE_SCALE if case.takes(of_parts(made_for(case), case, 0.5, 2.0))]


def test_a_layer_of_parts_is_refused_where_the_kernel_reads_one_scale() -> None:
    refusing = {case[:2] for case in ONE_SCALE} - {case[:2] for case in TAKE_PARTS}
    assert {("fp8_tensor_dynamic", "torch_scaled_mm"), ("fp8_tensor_static", "torch_scaled_mm")} == refusing


@pytest.mark.parametrize("case", TAKE_PARTS, ids=named)
def test_refresh_writes_the_scale_of_each_part(case: Case, paper: paper_aiter.PaperAiter) -> None:
    bound = bind_layer(of_parts(made_for(case), case, 0.5, 2.0), case)
    refreshed_as_bound(bound, of_parts(other(case), case, 0.25, 3.0), case)


def refreshed_as_bound(bound: Bound, new: SimpleNamespace, case: Case) -> None:
    before, where = [bytes_of(tensor) for tensor in bound.tensors()], storage(bound)
    bound.refresh(new)
    expected = bind_layer(new, case).tensors()
    assert where == storage(bound)
    for old, tensor, wanted in zip(before, bound.tensors(), expected, strict=True):
        assert torch.equal(bytes_of(wanted), bytes_of(tensor))
        assert not torch.equal(old, bytes_of(tensor)), "every operand has other values"


@every_scheme
def test_a_refreshed_layer_computes_with_the_new_weights(scheme: str) -> None:
    old, new = (
        example(scheme, rows(scheme, 75), columns(scheme, 290)),
        example(scheme, rows(scheme, 75), columns(scheme, 290), seed=5),
    )
    for name in ("weight", "weight_scale"):
        setattr(old.layer, name, getattr(old.layer, name).clone())
    bound = qscheme.dispatch(old.layer, CPU)
    x = random_x(17, bound.k)
    first = bound(x)
    bound.refresh(new.layer)
    assert ROUNDING > relative_error(bound(x), new.of(x))
    assert not torch.equal(first, bound(x))


def missing_columns(layer: SimpleNamespace) -> dict[str, object]:
    return {"weight": layer.weight[:, : layer.weight.shape[1] // 2]}


def missing_rows(layer: SimpleNamespace) -> dict[str, object]:
    half = len(layer.bias) // 2
    return {"weight": layer.weight[:half], "bias": layer.bias[:half], "weight_scale": layer.weight_scale[:1]}


def missing_bias(layer: SimpleNamespace) -> dict[str, object]:
    return {"bias": None}


def another_scheme(layer: SimpleNamespace) -> dict[str, object]:
    return {"scheme": "another"}


def another_scale(layer: SimpleNamespace) -> dict[str, object]:
    return {"weight_scale": torch.ones(7, 3)}


@every_backend
def test_refresh_refuses_another_layer_and_writes_nothing(case: Case, paper: paper_aiter.PaperAiter) -> None:
    bound = bind(case)
    before = [bytes_of(tensor) for tensor in bound.tensors()]
    for change in (missing_columns, missing_rows, missing_bias, another_scheme, another_scale):
        new = other(case)
        with pytest.raises(InvalidLayer):
            bound.refresh(SimpleNamespace(**{**vars(new), **change(new)}))
        assert all(torch.equal(old, bytes_of(now)) for old, now in zip(before, bound.tensors(), strict=True)), change
