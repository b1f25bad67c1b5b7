"""qscheme's own Triton kernels in Triton's interpreter, against float64."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import yaml
from emulation.run_in_process import in_process
from float64_catalogue import E2M1, E4M3, as_float64, columns, example, random_x, relative_error, rows, tile, words_of

import qscheme
from qscheme import Facts, numerics
from qscheme.tables import load, shipped_schemes
from qscheme.types import Operand, Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

BACKEND = "triton_weight_only"
SCHEMES = [name for name in load().schemes if BACKEND in [backend.name for backend in load().scheme(name).backends]]


def told(scheme: str) -> tuple[object, ...]:
    """What the kernel is told of the weight, whichever words its checkpoints are stored in."""
    weight = load().scheme(scheme).weight
    return weight.format, weight.granularity, weight.scale, weight.global_scale, weight.symmetric


FIRST = list({told(scheme): scheme for scheme in reversed(SCHEMES)}.values())
"""One scheme for each weight that the kernel is told of; the others differ from it in how their weight is stored."""

CASES = (
    (75, 290, 3, "bf16", "bf16"),
    (33, 520, 17, "fp16", "fp16"),
    (136, 264, 70, "bf16", "fp32"),
    (17, 136, 5, "fp32", "fp32"),
    (9, 8, 1, "fp16", "fp32"),
    (72, 290, 40, "fp16", "bf16"),
)
"""N, K, M, the dtype of x and that of y."""

ROUNDING = {"bf16": 0.005, "fp16": 0.0005, "fp32": 1e-6}
ENTRY = "triton.weight_only"
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def machine(invariant: bool = False) -> Facts:
    return Facts.simulate("sm_90", switches={"batch_invariant": invariant})


def cases_of(scheme: str) -> tuple[tuple[int, int, int, str, str], ...]:
    return CASES if scheme in FIRST else CASES[:2]


def errors(scheme: str) -> dict[str, float]:
    """The error of each case over what is allowed; the bias has a dtype of its own."""
    found: dict[str, float] = {}
    for n, k, m, given, word in cases_of(scheme):
        made = example(scheme, rows(scheme, n), columns(scheme, k), bias=torch.float16, out_dtype=DTYPES[word], seed=m)
        bound = qscheme.dispatch(made.layer, machine(), backend=BACKEND)
        x = random_x(m, bound.k, dtype=DTYPES[given], seed=m)
        found[f"{n}x{k} M={m} {given} to {word}"] = relative_error(bound(x), made.of(x)) / ROUNDING[word]
    return found


def in_parts(scheme: str) -> dict[str, Any]:
    """A long K that is split, twice; the launches of the program that adds up its parts."""
    from emulation.device import CALLS

    made = example(scheme, 40, 1152, bias=torch.bfloat16, out_dtype=torch.float32)
    bound = qscheme.dispatch(made.layer, machine(), backend=BACKEND)
    x = random_x(5, 1152)
    y = bound(x)
    launched = [name for name, _ in CALLS]
    return {"error": relative_error(y, made.of(x)), "same": torch.equal(y, bound(x)), "launched": launched}


def invariant(scheme: str) -> list[int]:
    """The numbers of rows for which a row has other bits than among many, in batch-invariant mode."""
    made = example(scheme, 40, 264)
    bound = qscheme.dispatch(made.layer, machine(invariant=True))
    assert BACKEND == bound.backend
    x = random_x(66, 264)
    y = bound(x)
    assert relative_error(y, made.of(x)) < ROUNDING["bf16"]
    return [m for m in (1, 17, 64) if not torch.equal(bound(x[:m]), y[:m])]


def refreshed(scheme: str) -> dict[str, Any]:
    """The error under new weights, which are in the storage of the old ones."""
    old, new = (example(scheme, 40, 264, bias=torch.bfloat16, seed=seed) for seed in (1, 2))
    kept = {name: v.clone() if isinstance(v, torch.Tensor) else v for name, v in vars(old.layer).items()}
    bound = qscheme.dispatch(SimpleNamespace(**kept), machine(), backend=BACKEND)
    x, where = random_x(5, 264), [tensor.data_ptr() for tensor in bound.tensors()]
    before = relative_error(bound(x), old.of(x))
    bound.refresh(new.layer)
    same = where == [tensor.data_ptr() for tensor in bound.tensors()]
    return {"errors": [before, relative_error(bound(x), new.of(x))], "same": same}


def every_code(scheme: str) -> dict[str, bool]:
    """Whether a row of x with a single one gives the weight's own values, NaN included, for every code and scale byte."""
    operand = load().scheme(scheme).weight
    k = 128
    made = example(scheme, 64, k, out_dtype=torch.float32)
    layer: SimpleNamespace = made.layer
    stored = layer.weight.contiguous().view(torch.uint8)
    stored.copy_(torch.arange(stored.numel()).reshape(stored.shape).to(torch.uint8))
    if operand.format == "fp8_e4m3":  # NaN in some rows of the weight
        stored[4:][stored[4:] & 0x7F == 0x7F] = 1
    scale = layer.weight_scale
    if scale.element_size() == 1:
        scale.view(torch.uint8).copy_(torch.arange(scale.numel()).reshape(scale.shape).to(torch.uint8))
    layer.weight = stored.view(layer.weight.dtype).reshape(layer.weight.shape)
    bound = qscheme.dispatch(layer, machine(), backend=BACKEND)
    outer, zero = layer.weight_global_scale, bound._prepared.weight_zero_point
    if scale.element_size() > 1:  # as it is read, whichever way it is stored
        scale = bound._prepared.weight_scale
    wanted = numerics.dequantize(layer.weight, scale, operand, outer, zero).T
    found: dict[str, bool] = {}
    for word, dtype in DTYPES.items():
        y = torch.cat([bound(ones) for ones in torch.eye(k, dtype=dtype).split(64)])
        finite = wanted.isfinite().all(0)  # elsewhere 0 times NaN or infinity is added
        near = torch.isclose(y, wanted, rtol=1e-6, atol=1e-37)[:, finite].all()
        found[word] = bool(near) and bool((~y[:, ~finite].isfinite()).any(0).all()) and bool(finite.any())
    return found


def compiled(scheme: str) -> float:
    """The error under torch.compile in one graph."""
    made = example(scheme, 40, 256, bias=torch.bfloat16)
    bound = qscheme.dispatch(made.layer, machine(), backend=BACKEND)
    x = random_x(5, 256)
    torch._dynamo.reset()
    return relative_error(torch.compile(lambda x: bound(x), fullgraph=True, backend="aot_eager")(x), made.of(x))


def random_weight(weight: Operand, n: int, k: int, draw: Any) -> tuple[torch.Tensor, Any]:
    """Codes as the kernel reads them, and what they stand for before zero points and scales."""
    if weight.format in ("int8", "int4"):
        low = {"int8": -128, "int4": -8}[weight.format]
        codes = draw.integers(low, -low, (n, k))
        if weight.format == "int4":
            return words_of(codes, weight, "int32_columns"), codes.astype(np.float64)
        return torch.from_numpy(codes.astype(np.int8)), codes.astype(np.float64)
    table = {"fp4_e2m1": E2M1, "fp8_e4m3": E4M3}[weight.format]
    codes, sign = draw.integers(0, len(table), (n, k)), draw.integers(0, 2, (n, k))
    stored = (codes | sign * {"fp4_e2m1": 8, "fp8_e4m3": 128}[weight.format]).astype(np.uint8)
    if weight.format == "fp4_e2m1":
        return torch.from_numpy(stored[:, ::2] | stored[:, 1::2] << 4), table[codes] * (1 - 2 * sign)
    return torch.from_numpy(stored).view(torch.float8_e4m3fn), table[codes] * (1 - 2 * sign)


def random_scale(weight: Operand, shape: tuple[int, ...], draw: Any) -> tuple[torch.Tensor, Any]:
    """Scales as they are stored, and their values."""
    if weight.scale == "fp32":
        scale = draw.uniform(0.5, 2, shape).astype(np.float32)
        return torch.from_numpy(scale), scale.astype(np.float64)
    codes = draw.integers(*((120, 135) if weight.scale == "e8m0" else (1, len(E4M3))), shape)
    stored = torch.from_numpy(codes.astype(np.uint8))
    if weight.scale == "e8m0":
        return stored, 2.0 ** (codes - 127.0)
    return stored.view(torch.float8_e4m3fn), E4M3[codes]


def weights() -> Iterator[tuple[str, Operand]]:
    """Every weight that the kernel's entry takes, with dtypes of x and uses of a global scale in turn."""
    entry = yaml.safe_load((shipped_schemes() / "kernels" / "triton.yaml").read_text())["kernels"]["weight_only"]
    scales = entry["operands"]["weight_scale"]
    words = product(entry["formats"], scales["granularity"], scales["formats"])
    for index, (element, granularity, scale) in enumerate(words):
        dtype, outer = [*DTYPES][(index + index // 3) % 3], (None, "divide", "multiply")[index // 9 % 3]
        for symmetric in (True, False) if element in ("int8", "int4") else (True,):
            yield dtype, Operand(element, granularity, scale, Rule("amax_div", 1.0), "static", symmetric, outer)


def errors_of_weights() -> dict[str, float]:
    """The error of a product with each weight, over what is allowed."""
    from qscheme.kernels.weight_only import weight_only

    found: dict[str, float] = {}
    n, k, m = 40, 136, 3
    for index, (dtype, weight) in enumerate(weights()):
        draw = np.random.default_rng(index)
        stored, values = random_weight(weight, n, k, draw)
        high, wide = tile(weight.granularity, n, k)
        grid = (-(-n // high), -(-k // wide))
        scale, factors = random_scale(weight, grid, draw)
        zero = np.zeros(grid, np.int8) if weight.symmetric else draw.integers(-8, 8, grid).astype(np.int8)
        spread, shift = (np.kron(part, np.ones((high, wide)))[:n, :k] for part in (factors, zero))
        outer = {None: 1.0, "divide": 1 / 0.75, "multiply": 0.75}[weight.global_scale]
        x = random_x(m, k, dtype=DTYPES[dtype], seed=index)
        y = weight_only(
            x, stored, scale, None, torch.float32, weight.format, weight.granularity, weight.scale, bool(index % 2),
            weight_global_scale=torch.tensor([0.75]) if weight.global_scale else None,
            weight_global_scale_applies=weight.global_scale,
            weight_zero_point=None if weight.symmetric else torch.from_numpy(zero),
        )  # fmt: skip
        expected = as_float64(x) @ ((values - shift) * spread * outer).T
        words = (dtype, weight.format, weight.granularity, weight.scale, weight.global_scale, weight.symmetric)
        found[" ".join(map(str, words))] = relative_error(y, expected) / ROUNDING["fp32"]
    return found


def everything(names: list[str]) -> dict[str, dict[str, Any]]:
    steps = (errors, in_parts, invariant, refreshed, every_code, compiled)
    return {
        name: errors_of_weights()
        if name == ENTRY
        else {step.__name__: step(name) for step in (steps if name in FIRST else steps[:1])}
        for name in names
    }


@pytest.fixture(scope="module")
def outcomes() -> dict[str, dict[str, Any]]:
    """What two children find, each for every second name."""
    names = [*FIRST, *sorted({*SCHEMES} - {*FIRST}), ENTRY]

    def half(part: list[str]) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = in_process("gfx950", everything, True, {"names": part})
        return found

    with ThreadPoolExecutor(2) as pool:
        return {name: found for part in pool.map(half, (names[::2], names[1::2])) for name, found in part.items()}


every_scheme = pytest.mark.parametrize("scheme", SCHEMES)
every_weight = pytest.mark.parametrize("scheme", FIRST)


def test_every_weight_only_scheme_of_eight_and_four_bits_has_the_backend() -> None:
    weight_only = {name for name in load().schemes if load().scheme(name).activation is None}
    assert {"mxfp6_e2m3_w6a16"} == weight_only - set(SCHEMES)


@every_scheme
def test_a_layer_is_near_float64(outcomes: dict[str, dict[str, Any]], scheme: str) -> None:
    assert {} == {case: error for case, error in outcomes[scheme]["errors"].items() if not error <= 1}


@every_weight
def test_a_long_k_is_added_up_from_parts_with_the_same_bits_every_time(
    outcomes: dict[str, dict[str, Any]], scheme: str
) -> None:
    found = outcomes[scheme]["in_parts"]
    assert ROUNDING["fp32"] >= found["error"]
    assert found["same"]
    assert ["multiply", "add_up"] == found["launched"][-2:]


@every_weight
def test_a_row_has_the_same_bits_among_any_number_in_batch_invariant_mode(
    outcomes: dict[str, dict[str, Any]], scheme: str
) -> None:
    assert [] == outcomes[scheme]["invariant"]


@every_weight
def test_new_weights_are_read_from_the_storage_of_the_old_ones(
    outcomes: dict[str, dict[str, Any]], scheme: str
) -> None:
    found = outcomes[scheme]["refreshed"]
    assert ROUNDING["bf16"] >= max(found["errors"])
    assert found["same"]


@every_weight
def test_every_code_is_decoded_exactly(outcomes: dict[str, dict[str, Any]], scheme: str) -> None:
    assert dict.fromkeys(DTYPES, True) == outcomes[scheme]["every_code"]


@every_weight
def test_the_kernel_is_one_step_of_a_compiled_graph(outcomes: dict[str, dict[str, Any]], scheme: str) -> None:
    assert ROUNDING["bf16"] >= outcomes[scheme]["compiled"]


def test_every_weight_that_the_entry_takes_is_near_float64(outcomes: dict[str, dict[str, Any]]) -> None:
    assert 144 == len(outcomes[ENTRY])
    assert {} == {weight: error for weight, error in outcomes[ENTRY].items() if not error <= 1}
