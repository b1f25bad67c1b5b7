"""Faults that users of other systems reported, with the very inputs of the reports where no other file has them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from float64_layers import example, random_x, relative_error

import qscheme
from qscheme import Facts, InvalidLayer, UnknownSwitch, numerics
from qscheme.compiler.folder import read_folder
from qscheme.compiler.resolve import resolve
from qscheme.layouts import fnuz_scale, fnuz_weight
from qscheme.tables import load, shipped_schemes
from qscheme.types import Rule

ARCHES = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1151", "gfx1200", "gfx1201", "gfx1250", "unknown")


def shape(scheme: str, n: int, k: int) -> Any:
    """A layer of which only the shape is known."""
    return SimpleNamespace(
        scheme=scheme, weight=None, out_features=n, in_features=k, out_dtype=torch.bfloat16, name="reported"
    )


def chosen(scheme: str, n: int, k: int, facts: Facts, **more: Any) -> str | None:
    return qscheme.explain(shape(scheme, n, k), facts, **more).chosen


def test_the_same_number_of_two_vendors_gives_their_own_decisions() -> None:
    found = {arch: chosen("fp8_block128", 4096, 4096, Facts.simulate(arch)) for arch in ("gfx90a", "sm_90")}
    assert {"gfx90a": "reference", "sm_90": "torch_scaled_mm"} == found
    tuned = {
        arch: chosen("fp8_block128", 4096, 4096, Facts.simulate(arch, tuned="all")) for arch in ("gfx1201", "sm_120")
    }
    assert {"gfx1201": "aiter_triton_rdna4", "sm_120": "reference"} == tuned


def test_a_gpu_without_fp8_multiplies_floats_and_calls_no_product_of_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*arguments: object, **keywords: object) -> torch.Tensor:
        raise RuntimeError("this device has no FP8 product")

    monkeypatch.setattr(torch, "_scaled_mm", missing)
    monkeypatch.setattr(torch.nn.functional, "scaled_mm", missing)
    made = example("fp8_tensor_dynamic", 96, 160)
    bound = qscheme.dispatch(made.layer, Facts.simulate("sm_75"))
    x = random_x(5, 160)
    assert ("reference", True) == (bound.backend, relative_error(bound(x), made.of(x)) < 0.01)


def test_rdna4_gets_a_triton_kernel_tuned_or_not_and_the_ocp_flavour() -> None:
    for tuned in ("all", "none"):
        facts = Facts.simulate("gfx1201", tuned=tuned)
        assert ("aiter_triton_rdna4", "fn") == (chosen("fp8_block128", 5120, 5120, facts), facts.device.fp8)


def test_every_list_of_architectures_holds_on_its_own_and_on_no_other() -> None:
    catalogue, problems = resolve(read_folder(shipped_schemes(), shipped_schemes()))
    assert () == problems
    facts = {arch: Facts.simulate(arch) for arch in ARCHES}
    for scheme in catalogue.schemes:
        refused = {
            arch: qscheme.explain(shape(scheme.name, 512, 512), facts[arch], backend="reference").refused
            for arch in ARCHES
        }
        for backend in (one for one in scheme.backends if one.needs.arch and one.name != "reference"):
            for arch in ARCHES:
                (told,) = [one.reasons for one in refused[arch] if one.backend == backend.name]
                listed = not any(reason.kind == "hardware" and reason.found == arch for reason in told)
                assert listed == (arch in (backend.needs.arch or ())), (scheme.name, backend.name, arch)


@pytest.mark.parametrize(
    ("amax", "rule", "flavour", "scale"),
    [
        (240.0, Rule("amax_div", 448, fnuz_max=240), torch.float8_e4m3fnuz, 1.0),
        (240.0, Rule("amax_div", 448, fnuz_max=224), torch.float8_e4m3fnuz, 1.0714286),
        (240.0, Rule("amax_div", 448), torch.float8_e4m3fnuz, 1.0714286),
        (448.0, Rule("amax_div", 448, fnuz_max=240), torch.float8_e4m3fn, 1.0),
    ],
)
def test_the_maximum_of_fnuz_is_that_of_the_policy_and_never_that_of_gfx950(
    amax: float, rule: Rule, flavour: torch.dtype, scale: float
) -> None:
    for operand in ("activation", "weight"):
        given = getattr(load().scheme("fp8_ptpc"), operand)._replace(rule=rule)
        found = numerics.quantize(torch.tensor([[amax, -1.0]]), given, flavour)[1]
        assert scale == pytest.approx(found.item(), rel=1e-7)


SWITCH = {
    None: True, "": True, "0": False, "1": True, "true": True, "TRUE": True, "False": False, "yes": True, " 1 ": True,
    "2": None, "\u00a01": None,
}  # fmt: skip


@pytest.mark.parametrize("text", SWITCH)
def test_a_variable_is_on_off_its_default_or_an_error_that_names_it(
    text: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QSCHEME_AITER", raising=False)
    monkeypatch.delenv("VLLM_ROCM_USE_AITER", raising=False)
    if text is not None:
        monkeypatch.setenv("VLLM_ROCM_USE_AITER", text)
    if SWITCH[text] is None:
        with pytest.raises(UnknownSwitch, match="VLLM_ROCM_USE_AITER needs one of"):
            Facts.of_this_machine("cpu", refresh=True)
    else:
        assert SWITCH[text] == Facts.of_this_machine("cpu", refresh=True).on("aiter")
    monkeypatch.undo()
    Facts.of_this_machine("cpu", refresh=True)


def test_on_hardware_without_fp8_no_variable_is_named() -> None:
    decision = qscheme.explain(shape("fp8_ptpc", 4096, 4096), Facts.simulate("gfx90a", switches={"aiter": False}))
    assert "reference" == decision.chosen
    assert all("gfx90a" in line and "AITER=" not in line for line in decision.text().splitlines()[1:])


def test_the_number_of_compute_units_changes_no_kernel_and_no_numerics() -> None:
    units = (304, 80, 38, 20)
    for scheme in ("fp8_block128", "fp8_ptpc", "int8_ptpc"):
        found = {
            qscheme.explain(shape(scheme, 4096, 4096), Facts.simulate("gfx942", compute_units=n)).fingerprint
            for n in units
        }
        assert 1 == len(found)


def test_fn_bytes_become_fnuz_bytes_of_half_the_value_with_twice_the_scale() -> None:
    stored = torch.tensor([[0x40, 0x7E, 0x80, 0x7F]], dtype=torch.uint8)
    turned, scale = fnuz_weight(stored.view(torch.float8_e4m3fn)), fnuz_scale(torch.tensor([0.5]))
    assert ([[0x40, 0x7E, 0x00, 0x80]], [1.0]) == (turned.view(torch.uint8).tolist(), scale.tolist())
    values = (turned.double() * scale.double()).tolist()[0]
    assert ([1.0, 224.0, 0.0], True) == (values[:3], values[3] != values[3])


@pytest.mark.parametrize(("n", "k", "grid"), [(576, 2048, (5, 16)), (4544, 256, (36, 2))])
def test_a_size_that_is_no_multiple_of_a_block_has_a_ragged_last_block(n: int, k: int, grid: tuple[int, int]) -> None:
    made = example("fp8_block128", n, k)
    assert grid == tuple(made.layer.weight_scale.shape)
    x = random_x(2, k)
    assert 0.01 > relative_error(qscheme.dispatch(made.layer, Facts.simulate("cpu"))(x), made.of(x))
    for rows in (grid[0] - 1, grid[0] + 1):
        made.layer.weight_scale = torch.ones(rows, grid[1])
        with pytest.raises(
            InvalidLayer, match=rf"needs shape \[{grid[0]}, {grid[1]}\].*found shape \[{rows}, {grid[1]}\]"
        ):
            qscheme.dispatch(made.layer, Facts.simulate("cpu"))


def test_a_k_that_a_preshuffled_kernel_cannot_take_is_refused_and_not_padded() -> None:
    facts = Facts.simulate("gfx950", tuned="all", switches={"aiter_preshuffled_blockscale": True}, rocm="7.3")
    decision = qscheme.explain(shape("fp8_block128", 512, 10944), facts)
    told = {refusal.backend: [reason.text for reason in refusal.reasons] for refusal in decision.refused}
    assert ["needs K a multiple of 128, found K = 10944"] == told["aiter_ck_preshuffle"]
    assert "aiter_ck_preshuffle" == chosen("fp8_block128", 512, 11008, facts, disabled=["aiter_triton_tuned"])


def test_a_float_scale_is_never_rounded_to_a_power_of_two() -> None:
    layer = example("mxfp4", 64, 64).layer
    layer.weight_scale = torch.full((64, 2), 0.75)
    with pytest.raises(InvalidLayer, match=r"weight_scale: needs uint8 with E8M0 bytes, found torch.float32"):
        qscheme.dispatch(layer, Facts.simulate("cpu"))


@pytest.mark.parametrize("scheme", ["int8_ptpc", "fp8_ptpc", "fp8_block128", "mxfp4"])
def test_the_bias_of_one_of_four_ranks_is_in_their_sum_once(scheme: str) -> None:
    made = [example(scheme, 96, 128, bias=None if rank else torch.bfloat16, seed=rank) for rank in range(4)]
    bias = made[0].layer.bias
    for backend in load().scheme(scheme).backends:
        if chosen(scheme, 96, 128, Facts.simulate("cpu"), backend=backend.name):
            x = torch.zeros(3, 128, dtype=torch.bfloat16)
            total = sum(qscheme.dispatch(one.layer, Facts.simulate("cpu"), backend=backend.name)(x) for one in made)
            assert torch.equal(bias.to(torch.bfloat16).expand(3, 96), total)


@pytest.mark.parametrize("scheme", ["fp8_ptpc", "fp8_tensor_dynamic"])
@pytest.mark.parametrize("flavour", [torch.float8_e4m3fn, torch.float8_e4m3fnuz])
def test_a_tensor_has_one_scale_as_a_weight_and_as_an_activation(scheme: str, flavour: torch.dtype) -> None:
    known = load().scheme(scheme)
    assert known.activation is not None
    x = random_x(7, 96).float()
    scales = [numerics.quantize(x, operand, flavour)[1] for operand in (known.activation, known.weight)]
    assert torch.equal(*scales)


def test_a_zero_tile_under_a_small_global_scale_gives_no_nan_scale() -> None:
    x = random_x(8, 64, dtype=torch.float32)
    x = x / x.abs().max() * 1e-3
    x[2, 16:32] = 0
    operand = load().scheme("nvfp4").weight
    scale = numerics.quantize(x, operand, global_scale=numerics.find_global_scale(x, operand))[1]
    assert torch.float8_e4m3fn == scale.dtype
    assert 0x7F not in scale.view(torch.uint8).flatten().tolist()


def test_block_scales_of_torch_need_the_cuda_that_has_them() -> None:
    for cuda, expected in (("12.8", "reference"), ("12.9", "torch_scaled_mm"), ("13.0", "torch_scaled_mm")):
        assert expected == chosen("fp8_block128", 4096, 4096, Facts.simulate("sm_90", cuda=cuda))
