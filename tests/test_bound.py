"""A bound function calls its kernels as their release takes them, keeps its storage, and leaves everything else alone."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import paper_aiter
import pytest
import torch
from bindable import ALL, Case, K, N, machines, named
from float64_layers import KINDS, codes_for, example, random_x, relative_error
from paper_aiter import PaperAiter

import qscheme
from qscheme import BindFailed, Facts, InvalidInput, InvalidLayer
from qscheme.binding import Bound
from qscheme.tables import load

ROWS = (1, 31, 32, 64, 65, 200)

EVERY = [case for case in ALL if case.scheme in KINDS]
OF_AITER = [case for case in EVERY if case.backend.startswith("aiter")]
HERE = [case for case in EVERY if case.runs_here and not case.backend.startswith("aiter")]
QUANTIZED = [case for case in OF_AITER if load().scheme(case.scheme).activation is not None]
every_backend = pytest.mark.parametrize("case", EVERY, ids=named)
every_backend_here = pytest.mark.parametrize("case", HERE, ids=named)
every_aiter_backend = pytest.mark.parametrize("case", OF_AITER, ids=named)
every_quantizing_backend = pytest.mark.parametrize("case", QUANTIZED, ids=named)

Install = Callable[..., PaperAiter]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a release of AITER on paper in place."""
    return lambda *release, **changed: paper_aiter.install(monkeypatch, *release, **changed)


quantized_once = lru_cache(example)


def made_for(case: Case, **options: Any) -> SimpleNamespace:
    """A layer of the size and output dtype of the case, whose tensors no other test has."""
    made = quantized_once(case.scheme, case.n, case.k, out_dtype=case.out_dtype, **options).layer
    kept = {name: v.clone() if isinstance(v, torch.Tensor) else v for name, v in vars(made).items()}
    return SimpleNamespace(**kept)


def bind_layer(layer: SimpleNamespace, case: Case, **options: Any) -> Bound:
    facts = replace(case.facts)  # what was loaded for other facts is not used again
    return qscheme.dispatch(layer, facts, backend=case.backend, **options)


def bind(case: Case, **options: Any) -> tuple[Bound, SimpleNamespace]:
    layer = made_for(case, **options)
    return bind_layer(layer, case), layer


def gemms(paper: PaperAiter) -> list[str]:
    return [name for name in paper.called if "quant" not in name and name != "_get_config"]


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)


def same_bytes(bound: Bound, other: Bound) -> bool:
    """Whether two bound functions read tensors of the same bytes."""
    pairs = zip(bound.tensors(), other.tensors(), strict=True)
    return all(torch.equal(bytes_of(a), bytes_of(b)) for a, b in pairs)


def storage(bound: Bound) -> list[int]:
    return [tensor.data_ptr() for tensor in bound.tensors()]


# --- calls ---------------------------------------------------------------------------------------------------------


def test_every_backend_of_the_tables_runs_on_some_machine() -> None:
    every = {(scheme, backend.name) for scheme in load().schemes for backend in load().scheme(scheme).backends}
    assert every == {case[:2] for case in ALL}


@pytest.mark.parametrize("release", paper_aiter.telling_releases())
def test_every_release_is_called_in_a_form_that_it_takes(release: str, install: Install) -> None:
    paper = install(release)
    arches = dict.fromkeys(case.facts.arch for case in OF_AITER)
    for invariant in (False, True):
        known = machines(arches, release, batch_invariant=invariant)
        able = [found for case in ALL if case.backend.startswith("aiter") and (found := case.on(known))]
        assert able or invariant, "some backend works with every release"
        for case in able:
            bound, _ = bind(case, bias=torch.bfloat16)
            for rows in (1, 31, 32, 65):
                paper.calls.clear()
                y = bound(random_x(rows, case.k))
                assert ((rows, case.n), case.out_dtype) == (tuple(y.shape), y.dtype)
                assert 1 == len(gemms(paper)), (case[:2], paper.called)


def test_an_older_gemm_a4w4_gets_its_output_in_rows_of_32(install: Install) -> None:
    paper = install("v0.1.8")
    facts = Facts.simulate("gfx950", aiter="0.1.8", tuned="all")
    bound = qscheme.dispatch(example("mxfp4", N, K).layer, facts, backend="aiter_asm")
    y = bound(random_x(65, K))
    name, given = paper.calls[-1]
    assert ("gemm_a4w4", (96, N), torch.bfloat16) == (name, tuple(given["out"].shape), given["out"].dtype)
    assert given["out"].data_ptr() == y.data_ptr()
    assert (65, N) == y.shape


def test_the_newest_gemm_a4w4_makes_its_output_itself(install: Install) -> None:
    paper = install("v0.1.20")
    facts = Facts.simulate("gfx950", aiter="0.1.20", tuned="all")
    qscheme.dispatch(example("mxfp4", N, K).layer, facts, backend="aiter_asm")(random_x(65, K))
    name, given = paper.calls[-1]
    assert ("gemm_a4w4", torch.bfloat16, True) == (name, given["dtype"], given["bpreshuffle"])
    assert "out" not in given


@pytest.mark.parametrize(
    ("release", "kernel"),
    [
        ("v0.1.7.post2", "gemm_afp4wfp4_preshuffled_weight_scales"),
        ("v0.1.8", "gemm_afp4wfp4_preshuffle"),
        ("v0.1.20", "gemm_afp4wfp4_preshuffle"),
    ],
)
def test_the_preshuffled_gemm_is_found_under_the_name_of_its_release(
    release: str, kernel: str, install: Install
) -> None:
    paper = install(next(at for at in paper_aiter.telling_releases()[::-1] if not older(release, at)))
    facts = Facts.simulate("gfx950", aiter=release, tuned="all")
    qscheme.dispatch(example("mxfp4", N, K).layer, facts, backend="aiter_asm")(random_x(3, K))
    assert [kernel] == gemms(paper)


def older(release: str, than: str) -> bool:
    releases = paper_aiter.history().releases
    return releases.index(release) < releases.index(than)


@pytest.mark.parametrize(
    ("rows", "shuffled", "gemm"),
    [
        (1, False, "gemm_afp4wfp4_preshuffle"),
        (31, False, "gemm_afp4wfp4_preshuffle"),
        (32, True, "gemm_afp4wfp4_preshuffle"),
        (64, True, "gemm_afp4wfp4_preshuffle"),
        (65, True, "gemm_a4w4"),
        (200, True, "gemm_a4w4"),
    ],
)
def test_mxfp4_takes_the_kernel_of_its_number_of_rows(rows: int, shuffled: bool, gemm: str, install: Install) -> None:
    paper = install()
    facts = Facts.simulate("gfx950", tuned="all")
    bound = qscheme.dispatch(example("mxfp4", N, K).layer, facts)
    bound(random_x(rows, K))
    (_, quantizer), (name, _) = paper.calls
    assert ("aiter_asm", shuffled, gemm) == (bound.backend, quantizer["shuffle"], name)
    paper.calls.clear()
    bound(torch.zeros(rows, K // 2, dtype=torch.uint8), x_scale=torch.full((rows, K // 32), 127, dtype=torch.uint8))
    assert [gemm] == paper.called


@pytest.mark.parametrize("scheme", ["mxfp4", "fp8_block128"])
def test_batch_invariance_keeps_the_tile_and_drops_the_split(scheme: str, install: Install) -> None:
    paper = install()
    for invariant, config in ((True, {**paper_aiter.TILE, "NUM_KSPLIT": 1}), (False, None)):
        facts = Facts.simulate("gfx950", switches={"batch_invariant": invariant})
        qscheme.dispatch(example(scheme, N, K).layer, facts, backend="aiter_triton")(random_x(3, K))
        assert config == paper.calls[-1][1]["config"]


@every_quantizing_backend
def test_codes_are_not_quantized_again(case: Case, install: Install) -> None:
    paper = install()
    bound, _ = bind(case)
    for rows in ROWS:
        bound(*codes_for(bound, rows))
    assert len(ROWS) == len(gemms(paper))
    assert [] == [name for name in paper.called if "quant" in name]


@every_quantizing_backend
def test_no_rows_call_no_kernel(case: Case, install: Install) -> None:
    paper = install()
    bound, _ = bind(case, bias=torch.bfloat16)
    for shape in ((0,), (2, 0), (0, 3, 2)):
        assert (*shape, case.n) == bound(random_x(*shape, case.k)).shape
    codes, scale = codes_for(bound, 1)
    assert (0, case.n) == bound(codes[:0], x_scale=scale if scale.dim() == 1 else scale[:0]).shape
    assert [] == paper.called


@every_aiter_backend
def test_x_of_any_strides_reaches_a_kernel_as_dense_rows(case: Case, install: Install) -> None:
    install()
    bound, _ = bind(case)
    for x in (random_x(case.k, 4).t(), random_x(4, 2 * case.k)[:, ::2], random_x(2, case.k, 2).transpose(1, 2)):
        assert torch.equal(bound(x.contiguous()), bound(x))


@every_aiter_backend
def test_the_bias_is_given_to_the_kernel_or_added_but_not_both(case: Case, install: Install) -> None:
    paper = install()
    x = random_x(3, case.k)
    plain, layer = bind(case)
    y = plain(x)
    layer.bias = torch.full((case.n,), 64.0)
    added = bind_layer(layer, case)(x) - y
    assert 1.0 >= (added.float() - 64.0).abs().max()  # bf16 has 8 bits
    given = {(name, given["bias"].dtype) for name, given in paper.calls if given.get("bias") is not None}
    assert given <= {(name, torch.float32 if name == "gemm_a8w8_ASM" else case.out_dtype) for name in paper.called}


# --- rotation ------------------------------------------------------------------------------------------------------

ROTATING = ("x", "scale=None", "quant_dtype=dtypes.fp4x2", "shuffle=False", "hadamard_rotate=False")


class TakesRotation:
    """What the libraries of a machine offer, in a release whose FP4 quantizer can rotate."""

    def __init__(self, facts: Facts) -> None:
        self.form, self.older = facts.offers.form, facts.offers.older

    def accepts(self, kernel: Any, keyword: str) -> bool:
        return (kernel.name, keyword) == ("aiter.per_1x32_f4_quant_hip", "hadamard_rotate")


def rotating_machine() -> Facts:
    known = Facts.simulate("gfx950", tuned="all")
    return Facts(known.device, known.libraries, known.switches, TakesRotation(known), known.tuned)


def test_a_quantizer_that_rotates_is_told_to_and_only_for_a_rotated_layer(install: Install) -> None:
    paper = install(per_1x32_f4_quant_hip=ROTATING)
    x = random_x(70, K)
    for rotation in (32, None):
        paper.calls.clear()
        layer = example("mxfp4", N, K, rotation=rotation).layer
        bound = qscheme.dispatch(layer, rotating_machine(), backend="aiter_asm")
        for rows in (3, 40, 70):
            bound(x[:rows])
        told = [given["hadamard_rotate"] for name, given in paper.calls if "quant" in name]
        assert [rotation == 32] * 3 == told
        seen = [given["x"] for name, given in paper.calls if "quant" in name]
        assert all(torch.equal(x[: len(rows)], rows) for rows in seen), "x is not rotated before"
        assert (rotation == 32) == bound.decision.rotates_input


def test_a_quantizer_that_cannot_rotate_gets_rotated_rows(install: Install) -> None:
    paper = install()
    layer = example("mxfp4", N, K, rotation=32).layer
    bound = qscheme.dispatch(layer, Facts.simulate("gfx950", tuned="all"))
    x = random_x(3, K)
    bound(x)
    name, given = paper.calls[0]
    assert ("aiter_asm", "per_1x32_f4_quant_hip", True) == (bound.backend, name, bound.decision.rotates_input)
    assert "hadamard_rotate" not in given
    blocks = x.double().view(3, -1, 32)
    assert not torch.equal(x, given["x"])
    assert 1e-2 > (given["x"].double().view(3, -1, 32).norm(dim=2) / blocks.norm(dim=2) - 1).abs().max()


def test_whether_x_is_rotated_is_known_before_loading() -> None:
    layer = SimpleNamespace(
        scheme="mxfp4", weight=None, out_features=N, in_features=K, out_dtype=torch.bfloat16, rotation=32, name="up"
    )
    decision = qscheme.explain(layer, Facts.simulate("gfx950", tuned="all"))
    assert ("aiter_asm", True) == (decision.chosen, decision.rotates_input)
    layer.rotation = None
    assert not qscheme.explain(layer, Facts.simulate("gfx950", tuned="all")).rotates_input


def test_a_rotated_layer_does_not_take_codes(install: Install) -> None:
    install()
    bound = qscheme.dispatch(example("mxfp4", N, K, rotation=32).layer, Facts.simulate("gfx950", tuned="all"))
    with pytest.raises(InvalidInput, match="needs an x that is not quantized, as the layer rotates it, found codes"):
        bound(*codes_for(bound, 3))


# --- symbols that are not there ------------------------------------------------------------------------------------


def test_a_symbol_that_cannot_be_loaded_is_bind_failed_with_the_librarys_own_error(install: Install) -> None:
    broken = ImportError("/lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found")
    install(gemm_a8w8_CK=broken)
    with pytest.raises(BindFailed, match=r"aiter_ck was chosen but could not be bound: .*GLIBCXX_3.4.32") as failed:
        qscheme.dispatch(example("int8_ptpc", N, K).layer, Facts.simulate("gfx942"))
    assert broken is failed.value.__cause__
    assert ("model.layers.0.mlp.up_proj", "aiter_ck") == (failed.value.layer, failed.value.backend)
    assert "disabled=('aiter_ck',)" in str(failed.value)


def test_the_cause_is_what_is_broken_and_not_the_path_of_another_release(install: Install) -> None:
    broken = AttributeError("module 'triton.language' has no attribute 'dot_scaled'")
    install("v0.1.8", gemm_afp4wfp4=broken)
    with pytest.raises(BindFailed, match=r"ModuleNotFoundError: .*; .*has no attribute 'dot_scaled'") as failed:
        qscheme.dispatch(example("mxfp4", N, K).layer, Facts.simulate("gfx950", aiter="0.1.8"))
    assert broken is failed.value.__cause__


def test_a_broken_kernel_leaves_the_schemes_that_do_not_need_it_alone(install: Install) -> None:
    install(gemm_afp4wfp4=AttributeError("broken"), dynamic_mxfp4_quant=AttributeError("broken"))
    facts = Facts.simulate("gfx950")
    assert "aiter_ck" == qscheme.dispatch(example("int8_ptpc", N, K).layer, facts).backend
    with pytest.raises(BindFailed):
        qscheme.dispatch(example("mxfp4", N, K).layer, facts)
    without = qscheme.dispatch(example("mxfp4", N, K).layer, facts, disabled=["aiter_triton"])
    assert "torch_scaled_mm_mxfp4_plain_scales" == without.backend


@pytest.mark.parametrize(
    "error", [RuntimeError("Unknown GPU architecture: gfx1201"), SystemExit("no ROCm"), OSError("no such library")]
)
def test_whatever_an_import_raises_is_told(error: BaseException, install: Install) -> None:
    install(gemm_a8w8_CK=error)
    with pytest.raises(BindFailed, match=f"{type(error).__name__}: {error}"):
        qscheme.dispatch(example("int8_ptpc", N, K).layer, Facts.simulate("gfx942"))


def test_an_error_of_a_kernel_is_passed_on_and_nothing_is_tried_again(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    paper = install()
    bound, _ = bind(Case("int8_ptpc", "aiter_ck", Facts.simulate("gfx942")))
    error = ModuleNotFoundError("No module named 'module_gemm_a8w8'")

    def fail(name: str, given: object) -> None:
        raise error

    monkeypatch.setattr(paper_aiter, "multiply", fail)
    for _ in range(2):
        paper.calls.clear()
        with pytest.raises(ModuleNotFoundError) as raised:
            bound(random_x(3, K))
        assert error is raised.value
        assert ["per_token_quant_hip", "gemm_a8w8_CK"] == paper.called


# --- new weights ---------------------------------------------------------------------------------------------------


@every_backend
def test_new_weights_are_read_from_the_storage_of_the_old_ones(case: Case, install: Install) -> None:
    install()
    bound, _ = bind(case, bias=torch.bfloat16)
    second = made_for(case, bias=torch.bfloat16, seed=7)
    if second.input_scale is not None:
        second.input_scale = 2 * second.input_scale
    kept = {name: getattr(second, name).clone() for name in ("weight", "weight_scale", "bias")}
    before, x = storage(bound), random_x(40, case.k)
    captured = bound.__call__
    expected = bind_layer(second, case)
    old = captured(x) if case.runs_here else None
    bound.refresh(second)
    assert before == storage(bound)
    assert same_bytes(expected, bound)
    assert all(torch.equal(bytes_of(value), bytes_of(getattr(second, name))) for name, value in kept.items())
    if old is not None:
        assert torch.equal(expected(x), captured(x))
        assert not torch.equal(old, captured(x))


@every_backend_here
def test_a_weight_that_is_changed_in_place_may_be_refreshed(case: Case) -> None:
    bound, layer = bind(case)
    second = made_for(case, seed=7)
    for name, value in vars(second).items():
        if isinstance(value, torch.Tensor):
            getattr(layer, name).copy_(value)
    bound.refresh(layer)
    x = random_x(4, case.k)
    assert torch.equal(bind_layer(second, case)(x), bound(x))


def test_scales_may_be_stored_in_another_format_when_they_are_refreshed() -> None:
    facts = Facts.simulate("cpu")
    layer = example("fp8_block128", N, K).layer
    bound, x = qscheme.dispatch(layer, facts), random_x(3, K)
    layer.weight_scale = torch.tensor([[126, 128]], dtype=torch.uint8)
    bound.refresh(layer)
    assert torch.equal(qscheme.dispatch(layer, facts)(x), bound(x))


def test_refresh_refuses_another_kind_of_layer_and_writes_nothing() -> None:
    case = Case("fp8_block128", "reference", Facts.simulate("cpu"))
    bound, layer = bind(case, bias=torch.float32)
    x = random_x(3, K)
    before = bound(x)
    other = example("fp8_block128", N, K, bias=torch.float32, seed=7).layer
    for name, value, message in [
        ("scheme", "mxfp4", "scheme: needs fp8_block128, found mxfp4"),
        ("weight", other.weight[:32], "layer: needs the one that was bound, .*n=128.* found .*n=32"),
        ("out_dtype", torch.float16, "out_dtype='bf16'.* found .*out_dtype='fp16'"),
        ("bias", None, "has_bias=True.* found .*has_bias=False"),
        (
            "bias",
            other.bias.half(),
            r"bias: needs torch.float32 of shape \[128\], as when it was bound, found torch.float16",
        ),
        ("weight_scale", torch.ones(1, 3), r"weight_scale: needs shape \[1, 2\]"),
    ]:
        changed = SimpleNamespace(**{**vars(other), name: value})
        with pytest.raises(InvalidLayer, match=message):
            bound.refresh(changed)
        assert torch.equal(before, bound(x))
    assert layer.bias is not None


@every_backend_here
def test_what_was_bound_in_inference_mode_may_be_called_and_refreshed_outside(case: Case) -> None:
    with torch.inference_mode():
        bound, _ = bind(case)
    second = made_for(case, seed=7)
    bound.refresh(second)
    x = random_x(4, case.k)
    assert torch.equal(bind_layer(second, case)(x), bound(x))


@every_backend_here
def test_parameters_leave_no_history_of_gradients(case: Case) -> None:
    layer = made_for(case, bias=torch.float32)
    for name in ("weight", "weight_scale", "bias"):
        value = getattr(layer, name)
        setattr(layer, name, torch.nn.Parameter(value, requires_grad=value.is_floating_point()))
    bound = bind_layer(layer, case)
    assert not any(tensor.requires_grad for tensor in bound.tensors())
    assert not bound(random_x(3, case.k)).requires_grad
    bound.refresh(layer)


# --- the layer's own tensors ---------------------------------------------------------------------------------------


@every_backend
def test_the_layer_is_not_changed_by_binding_and_calling(case: Case, install: Install) -> None:
    install()
    layer = made_for(case, bias=torch.float32)
    held = {name: value for name, value in vars(layer).items() if isinstance(value, torch.Tensor)}
    copies = {name: value.clone() for name, value in held.items()}
    bound = bind_layer(layer, case)
    if case.runs_here:
        bound(random_x(5, case.k))
    assert all(getattr(layer, name) is value for name, value in held.items())
    assert all(torch.equal(bytes_of(copies[name]), bytes_of(value)) for name, value in held.items())


@every_backend
def test_binding_twice_prepares_the_same(case: Case, install: Install) -> None:
    install()
    first, layer = bind(case, bias=torch.bfloat16)
    second = bind_layer(layer, case)
    assert same_bytes(first, second)


@every_backend
def test_consumed_tensors_are_released_unless_they_are_what_the_backend_reads(case: Case, install: Install) -> None:
    install()
    layer = made_for(case)
    weight = weakref.ref(layer.weight)
    expected = bind_layer(layer, case)
    bound = bind_layer(layer, case, consume=True)
    x = random_x(3, case.k)
    if case.runs_here:
        assert torch.equal(expected(x), bound(x))
    read = {tensor.untyped_storage().data_ptr() for tensor in expected.tensors()}
    if layer.weight is None:
        del expected
        assert weight() is None
    else:
        assert layer.weight.untyped_storage().data_ptr() in read


def test_a_consumed_layer_keeps_none_of_its_tensors() -> None:
    layer = example("int8_ptpc", N, K, bias=torch.float32).layer
    layer.g_idx, layer.weight_zero_point = torch.zeros(K), torch.zeros(N, 1)
    qscheme.dispatch(layer, Facts.simulate("cpu"), backend="reference", consume=True)
    assert (None, None) == (layer.g_idx, layer.weight_zero_point)


def test_a_consumed_weight_is_released_where_the_backend_shuffles_it(install: Install) -> None:
    install()
    layer = example("mxfp4", N, K).layer
    qscheme.dispatch(layer, Facts.simulate("gfx950", tuned="all"), consume=True)
    assert (None, None) == (layer.weight, layer.weight_scale)
    with pytest.raises(InvalidLayer, match="weight: needs a tensor, or out_features and in_features, found neither"):
        qscheme.dispatch(layer, Facts.simulate("gfx950", tuned="all"))


def test_weights_with_padded_rows_and_columns_are_read_in_their_logical_shape() -> None:
    facts = Facts.simulate("cpu")
    for scheme, k_of in (("int8_ptpc", 1), ("fp8_block128", 1), ("mxfp4", 2)):
        made = example(scheme, 48, 160)
        x = random_x(5, 160)
        expected = qscheme.dispatch(made.layer, facts)(x)
        wide = torch.zeros(64, 256 // k_of, dtype=torch.uint8)
        wide[:48, : 160 // k_of] = made.layer.weight.view(torch.uint8)
        view = SimpleNamespace(**vars(made.layer))
        view.weight = wide.view(made.layer.weight.dtype)[:48, : 160 // k_of]
        assert not view.weight.is_contiguous()
        assert torch.equal(expected, qscheme.dispatch(view, facts)(x))
        padded = SimpleNamespace(**vars(made.layer), out_features=48, in_features=160)
        padded.weight = wide.view(made.layer.weight.dtype)
        assert torch.equal(expected, qscheme.dispatch(padded, facts)(x))
        rows, columns = made.layer.weight_scale.shape
        whole = {"int8_ptpc": (64, 1), "fp8_block128": (1, 2), "mxfp4": (64, 8)}[scheme]
        scale = torch.zeros(whole, dtype=made.layer.weight_scale.dtype)
        scale[:rows, :columns] = made.layer.weight_scale
        padded.weight_scale = scale
        assert torch.equal(expected, qscheme.dispatch(padded, facts)(x))


@every_backend_here
def test_a_weight_at_an_odd_address_is_read_right(case: Case) -> None:
    layer = made_for(case)
    x = random_x(4, case.k)
    expected = bind_layer(layer, case)(x)
    stored = layer.weight.flatten().view(torch.uint8)
    odd = layer.weight.element_size()  # bytes; torch itself keeps words of several bytes at whole words
    flat = torch.zeros(stored.numel() + odd, dtype=torch.uint8)
    flat[odd:] = stored
    layer.weight = flat[odd:].view(layer.weight.dtype).view(layer.weight.shape)
    bound = bind_layer(layer, case)
    assert 0 == bound.tensors()[0].data_ptr() % 16
    assert torch.equal(expected, bound(x))


@every_backend_here
def test_strides_of_axes_of_length_one_do_not_matter(case: Case) -> None:
    made = example(case.scheme, 32, 32)
    x = random_x(1, 32)
    expected = bind_layer(made.layer, case)(x)
    scale = made.layer.weight_scale
    if scale.dim() == 2:
        made.layer.weight_scale = scale.as_strided(scale.shape, (1, 77) if scale.shape[1] == 1 else (scale.shape[1], 1))
    bound = bind_layer(made.layer, case)
    assert torch.equal(expected, bound(x.as_strided((1, 32), (999, 1))))


# --- the input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(3, K - 1), rf"x: needs shape \[..., {K}\], found shape \[3, {K - 1}\]"),
        (torch.zeros(()), rf"x: needs shape \[..., {K}\], found shape \[\]"),
        (torch.zeros(2, 3, K + 1), rf"x: needs shape \[..., {K}\], found shape \[2, 3, {K + 1}\]"),
        (torch.zeros(3, K, dtype=torch.int8), "x: needs x_scale beside quantized codes, found none"),
        (torch.zeros(3, K, dtype=torch.float64), "x: needs a dtype of torch.bfloat16, .* found torch.float64"),
        (torch.zeros(3, K, dtype=torch.int32), "x: needs a dtype of torch.bfloat16, .* found torch.int32"),
    ],
)
def test_an_x_that_does_not_fit_is_refused(x: torch.Tensor, message: str) -> None:
    bound, _ = bind(Case("int8_ptpc", "torch_int_mm", Facts.simulate("cpu")))
    with pytest.raises(InvalidInput, match=message):
        bound(x)


def test_an_x_that_the_quantizer_does_not_take_is_refused(install: Install) -> None:
    paper = install()
    bound, _ = bind(Case("int8_ptpc", "aiter_ck", Facts.simulate("gfx942")))
    with pytest.raises(InvalidInput, match=r"needs a dtype of torch.bfloat16, torch.float16, found torch.float32"):
        bound(torch.zeros(3, K))
    assert [] == paper.called


CODES = torch.zeros(3, K, dtype=torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("codes", "scale", "message"),
    [
        (CODES, torch.ones(2, 3), r"needs x_scale \[3, 2\] in torch.float32, found \[2, 3\]"),
        (CODES, torch.ones(6), r"needs x_scale \[3, 2\] in torch.float32, found \[6\]"),
        (CODES, torch.ones(3, 1), r"needs x_scale \[3, 2\] in torch.float32, found \[3, 1\]"),
        (CODES, torch.ones(3, 2).half(), r"needs x_scale \[3, 2\] in torch.float32, found .* torch.float16"),
        (CODES, torch.ones(3, 2, device="meta"), "needs x_scale on cpu, as the codes are, found meta"),
        (CODES[:, :-1], torch.ones(3, 2), r"needs codes \[..., 256\], found shape \[3, 255\]"),
        (CODES.view(torch.uint8), torch.ones(3, 2), "needs codes in torch.float8_e4m3fn, found torch.uint8"),
        (CODES[0, 0], torch.ones(1, 2), r"needs codes \[..., 256\], found shape \[\]"),
    ],
)
def test_codes_and_scales_that_do_not_fit_are_refused(codes: torch.Tensor, scale: torch.Tensor, message: str) -> None:
    bound, _ = bind(Case("fp8_block128", "reference", Facts.simulate("cpu")))
    with pytest.raises(InvalidInput, match=message):
        bound(codes, x_scale=scale)


def test_scales_of_tokens_and_tensors_may_leave_out_axes_of_length_one() -> None:
    facts = Facts.simulate("cpu")
    codes = torch.randint(-9, 9, (3, K), dtype=torch.int8)
    bound, _ = bind(Case("int8_ptpc", "reference", facts))
    scale = torch.tensor([0.5, 0.25, 2.0])
    assert torch.equal(bound(codes, x_scale=scale[:, None]), bound(codes, x_scale=scale))
    bound, _ = bind(Case("int8_tensor_static", "reference", facts))
    for shape in ((), (1,), (1, 1)):
        assert torch.equal(bound(codes, x_scale=torch.ones(1)), bound(codes, x_scale=torch.ones(shape)))


def test_fnuz_devices_take_fnuz_codes_but_where_the_reference_runs() -> None:
    layer = example("fp8_block128", N, K).layer
    facts = Facts.simulate("gfx942")
    assert torch.float8_e4m3fn == qscheme.dispatch(layer, facts, backend="reference").activation.codes_dtype


def test_the_activation_says_what_a_fused_quantizer_must_do(install: Install) -> None:
    install()
    facts = Facts.simulate("gfx942", tuned="all", switches={"aiter_preshuffled_blockscale": True})
    bound = qscheme.dispatch(example("fp8_block128", N, K).layer, facts)
    activation = bound.activation
    assert ("fp8_e4m3", "1x128", "fp32", torch.float8_e4m3fnuz) == (*activation[:3], activation.codes_dtype)
    assert ("multiply_reciprocal", 240.0) == (activation.rule.apply, activation.rule.fnuz_max)
    assert ((None, "k_major"),) == activation.scale_layouts
    bound = qscheme.dispatch(example("mxfp4", N, K).layer, Facts.simulate("gfx950", tuned="all"))
    layouts = ((31, "row_major"), (64, "swizzle_e8m0_32x8"), (None, "swizzle_e8m0_32x8"))
    assert layouts == bound.activation.scale_layouts
    assert "rceil" == bound.activation.rule.scale


# --- the hot path --------------------------------------------------------------------------------------------------


class CountingEnvironment(dict[str, str]):
    """An environment that counts how often it is read."""

    reads = 0

    def __getitem__(self, name: str) -> str:
        CountingEnvironment.reads += 1
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        CountingEnvironment.reads += 1
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        CountingEnvironment.reads += 1
        return super().__contains__(name)


@every_backend_here
def test_calling_reads_no_environment(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    bound, _ = bind(case)
    x = random_x(3, case.k)
    bound(x)
    monkeypatch.setattr(os, "environ", CountingEnvironment(os.environ))
    CountingEnvironment.reads = 0
    bound(x)
    bound(x.view(1, 3, case.k))
    assert 0 == CountingEnvironment.reads


@every_backend_here
def test_many_threads_bind_and_call_as_one_does(case: Case) -> None:
    layer = made_for(case)
    x = random_x(6, case.k)
    expected = bind_layer(layer, case)(x)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: bind_layer(layer, case)(x), range(32)))
    assert all(torch.equal(expected, y) for y in results)


def test_threads_load_a_kernel_once(install: Install) -> None:
    paper = install()
    layer, facts = example("mxfp4", N, K).layer, Facts.simulate("gfx950", aiter="0.1.8", tuned="all")
    install("v0.1.8")
    with ThreadPoolExecutor(8) as pool:
        every = list(pool.map(lambda _: qscheme.dispatch(layer, facts), range(16)))
    loaded = {id(closed) for bound in every for closed in closures(bound)}
    assert 3 == len(loaded), "one quantizer and two products"
    assert [] == paper.called


def closures(bound: Bound) -> list[Any]:
    """The kernels that the eager function has closed over."""
    function: Any = bound._eager
    cells = dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))
    return [cell.cell_contents for cell in cells.values() if callable(cell.cell_contents)]


def test_two_machines_live_side_by_side_in_one_process(install: Install) -> None:
    paper = install()
    layer = example("fp8_block128", N, K).layer
    fnuz = qscheme.dispatch(layer, Facts.simulate("gfx942"), backend="aiter_ck")
    fn = qscheme.dispatch(layer, Facts.simulate("gfx950"), backend="aiter_ck")
    for bound, dtype in ((fnuz, torch.float8_e4m3fnuz), (fn, torch.float8_e4m3fn), (fnuz, torch.float8_e4m3fnuz)):
        paper.calls.clear()
        bound(random_x(2, K))
        assert [dtype, dtype] == [paper.calls[0][1]["quant_dtype"], paper.calls[1][1]["WQ"].dtype]


def test_a_bound_function_names_itself() -> None:
    bound, made = bind(Case("int8_ptpc", "reference", Facts.simulate("cpu")))
    expected = "Bound(model.layers.0.mlp.up_proj: int8_ptpc on reference, N = 128, K = 256)"
    assert [expected, made.name, "reference"] == [repr(bound), bound.name, bound.backend]


def test_results_are_near_the_model_after_all_of_this() -> None:
    made = example("int8_ptpc", N, K)
    assert 0.005 > relative_error(
        qscheme.dispatch(made.layer, Facts.simulate("cpu"))(random_x(4, K)), made.of(random_x(4, K))
    )
