"""Every scheme of the catalogue computes what its rules say, says how it quantizes, and takes new weights in place."""

from __future__ import annotations

from functools import lru_cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import paper_aiter
import pytest
import torch
from float64_catalogue import CODES_TOGETHER, Example, as_float64, columns, example, random_x, relative_error

import qscheme
from qscheme import Facts, InvalidInput, InvalidLayer
from qscheme.tables import load
from qscheme.tiles import scale_shape
from qscheme.types import BATCH_INVARIANT

if TYPE_CHECKING:
    from collections.abc import Callable

    from qscheme.binding import Bound

CPU = Facts.simulate("cpu")
ROUNDING = 0.005
"""How far a result may be from the float64 model of the same rules: float32 sums and an output in bf16."""

ROWS = (0, 1, 17)
SHAPES = ((75, 290), (33, 515), (260, 131), (1, 1))
N, K = 128, 256  # what every kernel takes

SCHEMES = load().schemes
WEIGHT_ONLY = [name for name in SCHEMES if load().scheme(name).activation is None]
QUANTIZING = [name for name in SCHEMES if name not in WEIGHT_ONLY]
every_scheme = pytest.mark.parametrize("scheme", SCHEMES)


def machines() -> list[Facts]:
    """One machine of each architecture, where everything is tuned and everything that can be asked for is asked for."""
    switches = {name: name != BATCH_INVARIANT for name in load().switches}
    return [Facts.simulate(arch, aiter=paper_aiter.NEWEST, tuned="all", switches=switches) for arch in load().devices]


@lru_cache
def layers(scheme: str) -> list[Example]:
    """A layer of the scheme with one weight scale, and one of parts if it may have a scale for each."""
    made = [example(scheme, N, K, bias=torch.bfloat16)]
    if load().scheme(scheme).weight.granularity == "per_tensor":
        parts = example(scheme, N, K, bias=torch.bfloat16, logical_widths=[96, 32])
        parts.layer.weight_scale = torch.tensor([0.5, 2.0])
        made.append(parts)
    return made


def every_case() -> list[tuple[str, str, Facts, int]]:
    """Every scheme and backend, a machine that can run it, and which of the scheme's layers it takes there."""
    found: list[tuple[str, str, Facts, int]] = []
    known = machines()
    for scheme in SCHEMES:
        for backend in load().scheme(scheme).backends:
            able = (
                (scheme, backend.name, facts, number)
                for number, made in enumerate(layers(scheme))
                for facts in known
                if qscheme.explain(made.layer, facts, backend=backend.name).chosen
            )
            found += [case for case in (next(able, None),) if case is not None]
    return found


EVERY = every_case()
every_backend = pytest.mark.parametrize("case", EVERY, ids=lambda case: "-".join(case[:2]))


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch) -> paper_aiter.PaperAiter:
    """AITER's newest release on paper."""
    return paper_aiter.install(monkeypatch)


def bind(case: tuple[str, str, Facts, int]) -> Bound:
    scheme, backend, facts, number = case
    kept = vars(layers(scheme)[number].layer).items()
    layer = SimpleNamespace(**{name: v.clone() if isinstance(v, torch.Tensor) else v for name, v in kept})
    return qscheme.dispatch(layer, facts, backend=backend)


# --- what is computed ----------------------------------------------------------------------------------------------


def test_the_catalogue_has_the_schemes_in_use() -> None:
    assert len(SCHEMES) >= 26
    assert {(name, backend.name) for name in SCHEMES for backend in load().scheme(name).backends} == {
        c[:2] for c in EVERY
    }


@every_scheme
@pytest.mark.parametrize("bias", [None, torch.float32], ids=["plain", "bias"])
@pytest.mark.parametrize(("n", "k"), SHAPES, ids=str)
def test_a_layer_is_near_the_float64_model_of_its_rules(scheme: str, n: int, k: int, bias: torch.dtype | None) -> None:
    made = example(scheme, n, columns(scheme, k), bias=bias, seed=n)
    for backend in load().scheme(scheme).backends:
        if qscheme.explain(made.layer, CPU, backend=backend.name).chosen is None:
            continue
        bound = qscheme.dispatch(made.layer, CPU, backend=backend.name)
        for rows in ROWS:
            x = random_x(rows, bound.k, seed=rows)
            y = bound(x)
            assert ((rows, n), torch.bfloat16) == (tuple(y.shape), y.dtype)
            if rows:
                assert ROUNDING > relative_error(y, made.of(x)), (backend.name, rows)


@every_scheme
def test_the_float64_model_is_near_the_product_of_what_was_never_quantized(scheme: str) -> None:
    """Of the formats' own size: a model that agrees with a wrong kernel would not be."""
    made = example(scheme, 96, 512)
    bits = {"int8": 0.02, "fp8_e4m3": 0.05, "fp6_e2m3": 0.06, "fp6_e3m2": 0.09, "int4": 0.13, "fp4_e2m1": 0.2}
    formats = [operand.format for operand in (made.scheme.activation, made.scheme.weight) if operand is not None]
    x = random_x(64, 512, dtype=torch.float32)
    error = relative_error(torch.from_numpy(made.of(x)), made.exact(x))
    assert 0.1 * max(bits[word] for word in formats) < error < max(bits[word] for word in formats)


@pytest.mark.parametrize("scheme", QUANTIZING)
@pytest.mark.parametrize("rows", [1, 17])
def test_codes_and_scales_of_the_model_give_what_x_gives(scheme: str, rows: int) -> None:
    made = example(scheme, 75, columns(scheme, 290), prequantized=True)
    x = random_x(rows, columns(scheme, 290))
    ready = made.activation(as_float64(x))
    if ready.zero_point is not None:  # there is no way to give a zero point of x
        with pytest.raises(InvalidLayer, match="prequantized: needs False, as the activation is asymmetric"):
            qscheme.dispatch(made.layer, CPU)
        return
    bound = qscheme.dispatch(made.layer, CPU)
    assert ROUNDING > relative_error(bound(ready.codes, x_scale=ready.scale), made.of(x))


@pytest.mark.parametrize("scheme", WEIGHT_ONLY)
def test_a_weight_only_layer_takes_no_codes(scheme: str) -> None:
    bound = qscheme.dispatch(example(scheme, 75, columns(scheme, 290)).layer, CPU)
    with pytest.raises(InvalidInput, match="needs an x that is not quantized"):
        bound(torch.zeros(3, bound.k, dtype=torch.int8), x_scale=torch.ones(3, 1))


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if columns(name, 1) > 1])
def test_a_k_that_the_format_cannot_store_is_refused(scheme: str) -> None:
    layer = SimpleNamespace(
        **{**vars(example(scheme, 8, 64).layer), "weight": None, "out_features": 8, "in_features": 63}
    )
    weight = load().scheme(scheme).weight
    if CODES_TOGETHER.get(weight.format, 1) > 1:
        with pytest.raises(InvalidLayer, match=r"in_features: needs .*, found 63"):
            qscheme.explain(layer, CPU)
    else:
        with pytest.raises(InvalidLayer, match=r"weight: needs "):
            qscheme.dispatch(layer, CPU)


# --- what is said of the activation --------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", WEIGHT_ONLY)
def test_a_weight_only_layer_has_no_activation(scheme: str) -> None:
    assert qscheme.dispatch(example(scheme, N, K).layer, CPU).activation is None


@every_backend
def test_every_quantizing_backend_says_how_it_quantizes(
    case: tuple[str, str, Facts, int], paper: paper_aiter.PaperAiter
) -> None:
    bound = bind(case)
    operand, said, facts = load().scheme(case[0]).activation, bound.activation, case[2]
    if operand is None:
        assert said is None
        return
    assert said is not None
    assert (operand.format, operand.granularity, operand.scale) == (said.format, said.granularity, said.scale)
    backend = next(known for known in load().scheme(case[0]).backends if known.name == case[1])
    rules = {facts.rule(kernel) or operand.rule for kernel in backend.quantizers}
    assert said.rule in rules
    dtypes = {"int8": {torch.int8}, "fp8_e4m3": {torch.float8_e4m3fn, torch.float8_e4m3fnuz}}.get(
        operand.format, {torch.uint8}
    )
    assert said.codes_dtype in dtypes
    assert said.scale_layouts[-1][0] is None, "some layout holds for any M"
    ends = [end for end, _ in said.scale_layouts[:-1] if end is not None]
    assert sorted(set(ends)) == ends and len(ends) + 1 == len(said.scale_layouts)


@every_backend
def test_every_quantizing_backend_takes_the_codes_that_it_describes(
    case: tuple[str, str, Facts, int], paper: paper_aiter.PaperAiter
) -> None:
    bound = bind(case)
    operand, said = load().scheme(case[0]).activation, bound.activation
    if said is None or operand is None or not operand.symmetric or case[1] == "torch_scaled_mm":
        return
    scales = {"fp32": torch.float32, "e4m3": torch.float8_e4m3fn}.get(said.scale, torch.uint8)
    bytes_of_a_row = {"fp4_e2m1": K // 2, "fp6_e2m3": 3 * K // 4, "fp6_e3m2": 3 * K // 4}.get(said.format, K)
    for rows in (0, 1, 40):
        codes = torch.zeros(rows, bytes_of_a_row, dtype=said.codes_dtype)
        scale = torch.ones(scale_shape(rows, K, said.granularity)).to(scales)
        assert (rows, N) == bound(codes, x_scale=scale).shape


# --- new weights in the same place ---------------------------------------------------------------------------------


@lru_cache
def others(scheme: str) -> Example:
    return example(scheme, N, K, bias=torch.bfloat16, seed=9)


def other(scheme: str, number: int) -> SimpleNamespace:
    """A layer of the same shapes with other values everywhere."""
    made = others(scheme).layer
    given = {**vars(made), "bias": 2 * made.bias + 1}
    if number:
        given |= {"weight_scale": torch.tensor([0.25, 3.0]), "logical_widths": [96, 32]}
    for name in ("weight_scale", "input_scale", "weight_global_scale", "input_global_scale"):
        if given[name] is not None and given[name].dtype == torch.float32:
            given[name] = given[name] * 2
    return SimpleNamespace(**given)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)


def storage(bound: Bound) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    return [(tensor.data_ptr(), tuple(tensor.shape), tensor.stride()) for tensor in bound.tensors()]


@every_backend
def test_refresh_writes_what_binding_would_prepare_into_the_same_storage(
    case: tuple[str, str, Facts, int], paper: paper_aiter.PaperAiter
) -> None:
    bound = bind(case)
    before, where = [bytes_of(tensor) for tensor in bound.tensors()], storage(bound)
    new = other(case[0], case[3])
    bound.refresh(new)
    expected = qscheme.dispatch(new, case[2], backend=case[1]).tensors()
    assert where == storage(bound)
    for old, tensor, wanted in zip(before, bound.tensors(), expected, strict=True):
        assert torch.equal(bytes_of(wanted), bytes_of(tensor))
        assert not torch.equal(old, bytes_of(tensor)), "every operand has other values"


@every_scheme
def test_a_refreshed_layer_computes_with_the_new_weights(scheme: str) -> None:
    old, new = example(scheme, 75, columns(scheme, 290)), example(scheme, 75, columns(scheme, 290), seed=5)
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
    return {"weight": layer.weight[: N // 2], "bias": layer.bias[: N // 2], "weight_scale": layer.weight_scale[:1]}


def missing_bias(layer: SimpleNamespace) -> dict[str, object]:
    return {"bias": None}


def another_scheme(layer: SimpleNamespace) -> dict[str, object]:
    return {"scheme": "another"}


def another_scale(layer: SimpleNamespace) -> dict[str, object]:
    return {"weight_scale": torch.ones(7, 3)}


@every_backend
@pytest.mark.parametrize("change", [missing_columns, missing_rows, missing_bias, another_scheme, another_scale])
def test_refresh_refuses_another_layer_and_writes_nothing(
    case: tuple[str, str, Facts, int], change: Callable[[Any], dict[str, object]], paper: paper_aiter.PaperAiter
) -> None:
    bound = bind(case)
    before = [bytes_of(tensor) for tensor in bound.tensors()]
    new = other(case[0], case[3])
    with pytest.raises(InvalidLayer):
        bound.refresh(SimpleNamespace(**{**vars(new), **change(new)}))
    assert all(torch.equal(old, bytes_of(now)) for old, now in zip(before, bound.tensors(), strict=True))
