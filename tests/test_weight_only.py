"""qscheme's own Triton kernels in Triton's interpreter, against float64."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from emulation.run_in_process import in_process
from float64_catalogue import columns, example, random_x, relative_error, rows

import qscheme
from qscheme import Facts, numerics
from qscheme.tables import load

BACKEND = "triton_weight_only"
SCHEMES = [name for name in load().schemes if BACKEND in [backend.name for backend in load().scheme(name).backends]]


def gemm_of(scheme: str) -> str:
    """The kernel that runs a scheme for any M, whichever words its checkpoints are stored in."""
    return next(backend for backend in load().scheme(scheme).backends if backend.name == BACKEND).calls[-1].gemm


FIRST = list({gemm_of(scheme): scheme for scheme in reversed(SCHEMES)}.values())
"""One scheme for each kernel; the others differ from it in how their weight is stored."""

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
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def machine(invariant: bool = False) -> Facts:
    return Facts.simulate("sm_90", switches={"batch_invariant": invariant})


def errors(scheme: str) -> dict[str, float]:
    """The error of each case over what is allowed; the bias has a dtype of its own."""
    found: dict[str, float] = {}
    for n, k, m, given, word in CASES if scheme in FIRST else CASES[:2]:
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


def everything() -> dict[str, dict[str, Any]]:
    steps = (errors, in_parts, invariant, refreshed, every_code, compiled)
    return {
        scheme: {step.__name__: step(scheme) for step in (steps if scheme in FIRST else steps[:1])}
        for scheme in SCHEMES
    }


@pytest.fixture(scope="module")
def outcomes() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = in_process("gfx950", everything, interpret=True)
    return found


every_scheme = pytest.mark.parametrize("scheme", SCHEMES)
every_kernel = pytest.mark.parametrize("scheme", FIRST)


def test_every_weight_only_scheme_of_eight_and_four_bits_has_the_backend() -> None:
    weight_only = {name for name in load().schemes if load().scheme(name).activation is None}
    assert {"mxfp6_e2m3_w6a16"} == weight_only - set(SCHEMES)


@every_scheme
def test_a_layer_is_near_float64(outcomes: dict[str, dict[str, Any]], scheme: str) -> None:
    assert {} == {case: error for case, error in outcomes[scheme]["errors"].items() if not error <= 1}


@every_kernel
def test_a_long_k_is_added_up_from_parts_with_the_same_bits_every_time(
    outcomes: dict[str, dict[str, Any]], scheme: str
) -> None:
    found = outcomes[scheme]["in_parts"]
    assert ROUNDING["fp32"] >= found["error"]
    assert found["same"]
    assert ["multiply", "add_up"] == found["launched"][-2:]


@every_kernel
def test_a_row_has_the_same_bits_among_any_number_in_batch_invariant_mode(
    outcomes: dict[str, dict[str, Any]], scheme: str
) -> None:
    assert [] == outcomes[scheme]["invariant"]


@every_kernel
def test_new_weights_are_read_from_the_storage_of_the_old_ones(
    outcomes: dict[str, dict[str, Any]], scheme: str
) -> None:
    found = outcomes[scheme]["refreshed"]
    assert ROUNDING["bf16"] >= max(found["errors"])
    assert found["same"]


@every_kernel
def test_every_code_is_decoded_exactly(outcomes: dict[str, dict[str, Any]], scheme: str) -> None:
    assert dict.fromkeys(DTYPES, True) == outcomes[scheme]["every_code"]


@every_kernel
def test_the_kernel_is_one_step_of_a_compiled_graph(outcomes: dict[str, dict[str, Any]], scheme: str) -> None:
    assert ROUNDING["bf16"] >= outcomes[scheme]["compiled"]
