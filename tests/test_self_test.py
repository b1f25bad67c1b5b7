"""`dispatch(..., self_test=True)` lets right kernels pass, whatever their rules, and refuses those that are a little wrong."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from float64_layers import KINDS, example

import qscheme
from qscheme import Facts, SelfTestFailed
from qscheme.self_test import LIMIT
from qscheme.tables import load


def cpu() -> Facts:
    """New facts, for which kernels are loaded anew."""
    return Facts.simulate("cpu")


def test_every_backend_of_this_machine_passes() -> None:
    passed: set[str] = set()
    for scheme in KINDS:
        layer = example(scheme, 96, 256).layer
        for backend in load().scheme(scheme).backends:
            if qscheme.explain(layer, cpu(), backend=backend.name).chosen:
                assert backend.name == qscheme.dispatch(layer, cpu(), backend=backend.name, self_test=True).backend
                passed.add(backend.name)
    assert {"reference", "torch_int_mm"} <= passed


def test_a_rotated_layer_passes() -> None:
    layer = qscheme.quantize(torch.nn.Linear(160, 96), "int8_ptpc", rotation=32)
    assert "torch_int_mm" == layer.bind(cpu(), self_test=True).backend


def slightly(y: torch.Tensor) -> torch.Tensor:
    return y + y // 32


def one_row_for_another(y: torch.Tensor) -> torch.Tensor:
    return torch.cat((y[1:], y[:1]))


def one_column_for_another(y: torch.Tensor) -> torch.Tensor:
    return torch.cat((y[:, 1:], y[:, :1]), dim=1)


@pytest.mark.parametrize("fault", [slightly, one_row_for_another, one_column_for_another])
def test_a_kernel_that_is_wrong_is_refused_with_the_error(
    fault: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = example("int8_ptpc", 96, 256).layer
    product = torch._int_mm
    monkeypatch.setattr(torch, "_int_mm", lambda x, weight: fault(product(x, weight)))
    assert "torch_int_mm" == qscheme.dispatch(layer, cpu(), backend="torch_int_mm").backend
    with pytest.raises(SelfTestFailed, match=r"backend torch_int_mm needs a relative error of at most 0.016") as caught:
        qscheme.dispatch(layer, cpu(), backend="torch_int_mm", self_test=True)
    assert caught.value.error > LIMIT
    assert "disabled=('torch_int_mm',)" in str(caught.value)


def test_a_kernel_that_gives_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = SimpleNamespace(**vars(example("int8_ptpc", 96, 256).layer))
    product = torch._int_mm
    monkeypatch.setattr(torch, "_int_mm", lambda x, weight: product(x, weight) / 0)
    with pytest.raises(SelfTestFailed, match=r"found (nan|inf)"):
        qscheme.dispatch(layer, cpu(), backend="torch_int_mm", self_test=True)


def test_the_reference_is_compared_with_even_where_it_is_disabled() -> None:
    layer = example("int8_ptpc", 96, 256).layer
    assert "torch_int_mm" == qscheme.dispatch(layer, cpu(), disabled=["reference"], self_test=True).backend


def test_batch_invariant_mode_does_not_take_the_oracle_away() -> None:
    facts = qscheme.Facts.simulate("cpu", switches={"batch_invariant": True})
    layer = qscheme.quantize(torch.nn.Linear(64, 48, dtype=torch.bfloat16), "int8_ptpc")
    assert "torch_int_mm" == qscheme.dispatch(layer, facts, self_test=True).backend
