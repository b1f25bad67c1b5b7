"""The bindings of torch's block-scaled products, which run on no CPU: called on paper, against float64."""

from __future__ import annotations

from types import SimpleNamespace

import paper_torch
import pytest
import torch
from float64_catalogue import Example, as_float64, example, random_x, relative_error

import qscheme
from qscheme import Facts

CASES = [
    ("mxfp8", "torch_scaled_mm_mxfp8", ("sm_100", "sm_103", "sm_120"), (176, 224)),
    ("mxfp8", "torch_scaled_mm_mxfp8_plain_scales", ("gfx950",), (160, 384)),
    ("mxfp4", "torch_scaled_mm_mxfp4", ("sm_100", "sm_103"), (176, 224)),
    ("mxfp4", "torch_scaled_mm_mxfp4_plain_scales", ("gfx950",), (160, 384)),
    ("nvfp4", "torch_scaled_mm_nvfp4", ("sm_100", "sm_103", "sm_120"), (176, 224)),
    ("nvfp4_modelopt", "torch_scaled_mm_nvfp4_multiplied", ("sm_100", "sm_103", "sm_120"), (176, 224)),
]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case[1])
ROWS = (1, 17, 33, 130)
ROUNDING = 0.005


def machine(arch: str, **libraries: str) -> Facts:
    return Facts.simulate(arch, aiter="none", **libraries)


def vendor(arch: str) -> str:
    return "amd" if arch.startswith("gfx") else "nvidia"


def made(scheme: str, shape: tuple[int, int], **attributes: object) -> Example:
    return example(scheme, *shape, bias=torch.float32, **attributes)


@every_case
def test_a_layer_computes_what_its_rules_say(
    case: tuple[str, str, tuple[str, ...], tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheme, backend, arches, shape = case
    layer = made(scheme, shape)
    for arch in arches:
        paper = paper_torch.install(monkeypatch, vendor(arch))
        bound = qscheme.dispatch(layer.layer, machine(arch))
        assert backend == bound.backend
        for rows in ROWS:
            x = random_x(rows, bound.k, seed=rows)
            assert ROUNDING > relative_error(bound(x), layer.of(x)), (arch, rows)
        assert len(ROWS) == len(paper.calls)


@every_case
def test_codes_and_plain_scales_give_what_x_gives(
    case: tuple[str, str, tuple[str, ...], tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheme, _, arches, shape = case
    layer = made(scheme, shape, prequantized=True)
    paper_torch.install(monkeypatch, vendor(arches[0]))
    bound = qscheme.dispatch(layer.layer, machine(arches[0]))
    x = random_x(33, bound.k)
    ready = layer.activation(as_float64(x))
    assert ROUNDING > relative_error(bound(ready.codes, x_scale=ready.scale), layer.of(x))


@every_case
def test_new_weights_go_to_the_same_storage(
    case: tuple[str, str, tuple[str, ...], tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheme, _, arches, shape = case
    paper_torch.install(monkeypatch, vendor(arches[0]))
    old, new = made(scheme, shape), made(scheme, shape, seed=7)
    kept = {name: v.clone() if isinstance(v, torch.Tensor) else v for name, v in vars(old.layer).items()}
    bound = qscheme.dispatch(SimpleNamespace(**kept), machine(arches[0]))
    where = [tensor.data_ptr() for tensor in bound.tensors()]
    bound.refresh(new.layer)
    assert where == [tensor.data_ptr() for tensor in bound.tensors()]
    x = random_x(17, bound.k)
    assert ROUNDING > relative_error(bound(x), new.of(x))


@every_case
def test_scales_of_a_padded_weight_are_made_dense(
    case: tuple[str, str, tuple[str, ...], tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheme, _, arches, (n, k) = case
    paper_torch.install(monkeypatch, vendor(arches[0]))
    layer = made(scheme, (n, k))
    padded = {"weight": pad(layer.layer.weight), "weight_scale": pad(layer.layer.weight_scale)}
    stored = SimpleNamespace(**{**vars(layer.layer), **padded, "out_features": n, "in_features": k})
    if scheme.endswith("8"):
        stored.weight = pad(layer.layer.weight, layer.layer.weight_scale.shape[1] * 32)
    else:
        group = 32 if scheme == "mxfp4" else 16
        stored.weight = pad(layer.layer.weight, layer.layer.weight_scale.shape[1] * group // 2)
    bound = qscheme.dispatch(stored, machine(arches[0]))
    x = random_x(17, bound.k)
    assert ROUNDING > relative_error(bound(x), layer.of(x))


def pad(stored: torch.Tensor, columns: int | None = None) -> torch.Tensor:
    """Twice as many columns, of bytes that stand for something."""
    wide = torch.full((stored.shape[0], 2 * (columns or stored.shape[1])), 3, dtype=torch.uint8)
    wide[:, : stored.shape[1]] = stored.view(torch.uint8)
    return wide.view(stored.dtype)


REFUSED = [
    ("mxfp8", "sm_90", {}, {}, "needs sm_100, sm_103 or sm_120, found sm_90", 0),
    ("mxfp8", "sm_100", {"n": 168}, {}, "needs N a multiple of 16, found N = 168", 0),
    ("mxfp8", "gfx950", {"k": 320}, {}, "needs K a multiple of 128, found K = 320", 1),
    ("mxfp8", "gfx950", {}, {"torch": "2.14.0"}, "torch.nn.functional.scaled_mm of torch v2.13.99 and earlier", 1),
    ("mxfp4", "sm_120", {}, {}, "needs sm_100 or sm_103, found sm_120", 0),
    ("mxfp4", "sm_100", {"dtype": torch.float16}, {}, "needs output in bf16, found fp16", 0),
    ("nvfp4", "gfx950", {}, {}, "needs sm_100, sm_103 or sm_120, found gfx950", 0),
]


@pytest.mark.parametrize(("scheme", "arch", "shape", "libraries", "said", "place"), REFUSED)
def test_what_the_source_refuses_is_refused_before(
    scheme: str, arch: str, shape: dict[str, object], libraries: dict[str, str], said: str, place: int
) -> None:
    layer = SimpleNamespace(
        scheme=scheme, weight=None, weight_scale=None, input_scale=None, bias=None, name="",
        out_features=shape.get("n", 160), in_features=shape.get("k", 384),
        out_dtype=shape.get("dtype", torch.bfloat16),
    )  # fmt: skip
    backends = [case[1] for case in CASES if case[0] == scheme]
    decision = qscheme.explain(layer, machine(arch, **libraries))
    assert "reference" == decision.chosen
    (refusal,) = [refusal for refusal in decision.refused if refusal.backend == backends[place]]
    assert any(said in reason.text for reason in refusal.reasons), refusal


def test_a_plain_scale_in_the_place_of_a_swizzled_one_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper function reads by place: what the step does not move, it takes for another element's scale."""
    paper_torch.install(monkeypatch, "nvidia")
    layer = made("mxfp8", (128, 128))
    bound = qscheme.dispatch(layer.layer, machine("sm_100"))
    prepared = bound.tensors()[1]
    prepared.copy_(layer.layer.weight_scale.reshape(prepared.shape))
    x = random_x(17, bound.k)
    assert 0.1 < relative_error(bound(x), layer.of(x))
