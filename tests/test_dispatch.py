"""A layer gets the first backend that nothing speaks against, the same one in every thread and process, and says why."""

from __future__ import annotations

import logging
import multiprocessing
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from float64_layers import example, random_x

import qscheme
from qscheme import Facts, UnknownBackend, UnknownFact, UnknownScheme, Unsupported, selection
from qscheme.tables import load

if TYPE_CHECKING:
    from pathlib import Path

CPU = Facts.simulate("cpu")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """What is logged by a process that has not warned yet."""
    monkeypatch.setattr(selection, "_warned", set())
    caplog.set_level(logging.DEBUG, "qscheme")
    return caplog


def layer(scheme: str = "int8_ptpc", n: int = 64, k: int = 256, **attributes: Any) -> SimpleNamespace:
    return example(scheme, n, k, **attributes).layer


# --- names ---------------------------------------------------------------------------------------------------------


def test_an_unknown_scheme_is_told_with_a_suggestion() -> None:
    changed = layer()
    changed.scheme = "int8_ptcp"
    for ask in (qscheme.dispatch, qscheme.explain):
        with pytest.raises(UnknownScheme, match=r"unknown scheme 'int8_ptcp'; did you mean 'int8_ptpc'\?"):
            ask(changed, CPU)


@pytest.mark.parametrize("scheme", [None, 8, "", "quark"])
def test_a_scheme_that_is_like_none_is_told_with_all_there_are(scheme: object) -> None:
    changed = layer()
    changed.scheme = scheme
    with pytest.raises(
        UnknownScheme, match=r"unknown scheme .*; known: amdfp4, fp8_block128, .*int8_ptpc, int8_tensor_static, .*mxfp4"
    ):
        qscheme.dispatch(changed, CPU)
    del changed.scheme
    with pytest.raises(UnknownScheme):
        qscheme.dispatch(changed, CPU)


@pytest.mark.parametrize(
    "asked", [{"backend": "aiter_kc"}, {"disabled": ["aiter_kc"]}, {"disabled": "aiter_kc"}], ids=str
)
def test_an_unknown_backend_is_told_with_a_suggestion(asked: dict[str, Any]) -> None:
    for ask in (qscheme.dispatch, qscheme.explain):
        with pytest.raises(UnknownBackend, match=r"int8_ptpc has no backend 'aiter_kc'; did you mean 'aiter_ck'\?"):
            ask(layer(), CPU, **asked)


# --- the choice ----------------------------------------------------------------------------------------------------


def test_the_decision_is_kept_with_every_refusal() -> None:
    decision = qscheme.dispatch(layer(), CPU).decision
    assert ("int8_ptpc", "model.layers.0.mlp.up_proj", "torch_int_mm") == decision[:3]
    assert ["aiter_asm", "aiter_ck", "aiter_triton"] == [refusal.backend for refusal in decision.refused]
    assert all(refusal.reasons for refusal in decision.refused)
    assert decision == qscheme.explain(layer(), CPU)


def test_a_forced_backend_is_the_only_one_considered() -> None:
    assert "reference" == qscheme.dispatch(layer(), CPU, backend="reference").backend
    with pytest.raises(Unsupported) as raised:
        qscheme.dispatch(layer(), CPU, backend="aiter_ck")
    decision = raised.value.decision
    assert decision.chosen is None
    assert {"aiter_asm", "aiter_ck", "aiter_triton", "torch_int_mm", "reference"} == {
        one.backend for one in decision.refused
    }
    assert "aiter_ck: needs gfx942 or gfx950, found cpu" in str(raised.value)
    assert "reference: needs reference asked for, found only aiter_ck asked for" in str(raised.value)


@pytest.mark.parametrize("disabled", [["torch_int_mm"], ("torch_int_mm",), {"torch_int_mm"}, "torch_int_mm"], ids=str)
def test_disabled_backends_are_not_chosen_and_are_told(disabled: Any) -> None:
    decision = qscheme.dispatch(layer(), CPU, disabled=disabled).decision
    assert "reference" == decision.chosen
    assert "torch_int_mm: needs torch_int_mm enabled, found disabled by the caller" in decision.text()


def test_nothing_left_raises_with_every_reason() -> None:
    every = [backend.name for backend in load().scheme("mxfp4").backends]
    with pytest.raises(Unsupported) as raised:
        qscheme.dispatch(layer("mxfp4"), CPU, disabled=every)
    text = str(raised.value)
    assert text.startswith("layer model.layers.0.mlp.up_proj: scheme mxfp4: no backend can run it\n")
    assert all(f"\n  {name}: needs " in text for name in every)
    assert qscheme.explain(layer("mxfp4"), CPU, disabled=every) == raised.value.decision


def test_a_forced_backend_that_is_disabled_raises() -> None:
    with pytest.raises(Unsupported, match="reference: needs reference enabled, found disabled by the caller"):
        qscheme.dispatch(layer(), CPU, backend="reference", disabled=["reference"])


def test_given_facts_are_believed() -> None:
    decision = qscheme.explain(layer(), Facts.simulate("gfx942"))
    assert ("aiter_ck", ["aiter_asm"]) == (decision.chosen, [refusal.backend for refusal in decision.refused])


def test_a_layer_may_be_explained_before_it_is_loaded() -> None:
    empty = SimpleNamespace(
        scheme="int8_tensor_static", weight=None, weight_scale=None, input_scale=None, bias=None, name="up",
        out_dtype=torch.bfloat16, out_features=64, in_features=256,
    )  # fmt: skip
    decision = qscheme.explain(empty, CPU)
    assert "torch_int_mm" == decision.chosen
    assumed = ("weight is int8, N = 64, K = 256", "weight_scale is fp32, per_tensor", "input_scale is one value")
    assert assumed == decision.assumed
    assert () == qscheme.explain(layer("int8_tensor_static"), CPU).assumed


def test_explain_does_not_judge_tensors_that_are_not_there_yet() -> None:
    loaded = layer("int8_ptpc")
    meta = SimpleNamespace(
        scheme="int8_ptpc", weight=loaded.weight.to("meta"), weight_scale=loaded.weight_scale, input_scale=None,
        bias=True, name="up", out_dtype=torch.bfloat16, g_idx=[], weight_zero_point=0,
    )  # fmt: skip
    assert "torch_int_mm" == qscheme.explain(meta, CPU).chosen
    with pytest.raises(qscheme.InvalidLayer, match="weight_scale: needs the weight's device meta, found cpu"):
        qscheme.dispatch(meta, CPU)


def test_explain_keeps_the_call_of_one_m() -> None:
    facts = Facts.simulate("gfx950", tuned="all")
    whens = [[call.when for call in qscheme.explain(layer("mxfp4"), facts, m=m).calls] for m in (1, 32, 65, None)]
    assert [["M <= 31"], ["32 <= M <= 64"], ["M >= 65"], ["M <= 31", "32 <= M <= 64", "M >= 65"]] == whens


def test_explain_tells_how_a_kernels_numbers_differ_from_the_schemes() -> None:
    texts = [found.text for found in qscheme.explain(layer(), Facts.simulate("gfx942")).mismatches]
    assert "aiter_ck: aiter.per_token_quant_hip has round truncate, the scheme's rule has rne" in texts
    assert () == qscheme.explain(layer(), CPU).mismatches


def test_facts_made_for_other_tables_are_refused() -> None:
    facts = Facts.simulate("cpu")
    fewer = {name: on for name, on in facts.switches.items() if name != "aiter_linear"}
    with pytest.raises(UnknownFact, match="switch aiter_linear: needs facts made for the tables qscheme_generated"):
        qscheme.dispatch(layer(), replace(facts, switches=fewer))
    fewer_libraries = {name: found for name, found in facts.libraries.items() if name != "aiter"}
    with pytest.raises(UnknownFact, match="library aiter: needs facts made for the tables qscheme_generated"):
        qscheme.explain(layer(), replace(facts, libraries=fewer_libraries))


@pytest.mark.parametrize("given", ["qscheme_generated", load(), None], ids=["name", "tables", "none"])
def test_tables_are_given_in_any_form(given: Any) -> None:
    assert "torch_int_mm" == qscheme.dispatch(layer(), CPU, given).backend


# --- warnings ------------------------------------------------------------------------------------------------------


def test_a_fallback_is_logged_once_with_the_reasons_against_the_better_ones(log: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        qscheme.dispatch(layer("mxfp4"), CPU)
    qscheme.dispatch(layer("mxfp4"), Facts.simulate("cpu"))
    (record,) = log.records
    assert ("qscheme", logging.WARNING) == (record.name, record.levelno)
    expected = "a fallback is used, first for layer model.layers.0.mlp.up_proj: scheme mxfp4: runs on reference"
    lines = record.getMessage().splitlines()
    assert expected == lines[0]
    assert "  aiter_triton: needs gfx950 or gfx1250, found cpu" in lines


def test_a_fallback_with_other_reasons_is_logged_too(log: pytest.LogCaptureFixture) -> None:
    qscheme.dispatch(layer("mxfp4"), CPU)
    qscheme.dispatch(layer("mxfp4"), Facts.simulate("gfx942"))
    qscheme.dispatch(layer("fp8_block128"), CPU)
    lines = [record.getMessage().splitlines()[1] for record in log.records]
    assert ["cpu", "gfx942", "cpu"] == [line.partition("found ")[2].partition(";")[0] for line in lines]


def test_a_backend_that_is_no_fallback_is_not_logged(log: pytest.LogCaptureFixture) -> None:
    qscheme.dispatch(layer(), CPU)
    qscheme.explain(layer("mxfp4"), CPU)
    assert [] == log.records


def test_many_threads_log_a_fallback_once(log: pytest.LogCaptureFixture) -> None:
    made = layer("mxfp4")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: qscheme.dispatch(made, CPU), range(32)))
    assert 1 == len(log.records)


# --- processes -----------------------------------------------------------------------------------------------------

MACHINES = [("gfx942", "none"), ("gfx950", "all"), ("gfx1201", "none"), ("sm_90", "none"), ("cpu", "none")]


def decisions() -> list[str]:
    """Every decision of this process, in words."""
    machines = [Facts.simulate(arch, tuned=tuned) for arch, tuned in MACHINES]
    return [qscheme.explain(layer(scheme), facts).text() for scheme in load().schemes for facts in machines]


def results(scheme: str) -> list[float]:
    return [float(value) for value in qscheme.dispatch(layer(scheme), CPU)(random_x(3, 256)).flatten()]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_process_decides_and_computes_as_its_parent_does(method: str) -> None:
    expected = [decisions(), results("int8_ptpc"), results("mxfp4")]
    with multiprocessing.get_context(method).Pool(1) as pool:
        found = [pool.apply(decisions), pool.apply(results, ("int8_ptpc",)), pool.apply(results, ("mxfp4",))]
    assert expected == found


def test_many_threads_decide_as_one_does() -> None:
    expected = decisions()
    with ThreadPoolExecutor(8) as pool:
        assert [expected] * 16 == list(pool.map(lambda _: decisions(), range(16)))


def test_two_machines_give_two_decisions_side_by_side() -> None:
    first, second = Facts.simulate("gfx942"), Facts.simulate("gfx950", tuned="all")
    chosen = [qscheme.explain(layer("mxfp4"), facts).chosen for facts in (first, second, first, second)]
    assert ["reference", "aiter_asm"] * 2 == chosen


def test_facts_with_another_switch_are_other_facts() -> None:
    facts = Facts.simulate("gfx942")
    off = replace(facts, switches={**facts.switches, "aiter": False})
    assert ["aiter_ck", "torch_int_mm", "aiter_ck"] == [
        qscheme.explain(layer(), one).chosen for one in (facts, off, facts)
    ]


LAYER = """
import torch
from types import SimpleNamespace as Layer
codes, scale = torch.ones(64, 256, dtype=torch.int8), torch.ones(64, 1)
layer = Layer(scheme="int8_ptpc", weight=codes, weight_scale=scale, out_dtype=torch.bfloat16, name="up")
"""


def run(code: str, folder: Path) -> str:
    """What a fresh process prints that has a layer, and a folder before all others on its path."""
    code = f"import sys; sys.path.insert(0, {str(folder)!r})\n{LAYER}{textwrap.dedent(code)}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr
    return done.stdout


@pytest.fixture
def broken_aiter(tmp_path: Path) -> Path:
    """A folder with an AITER that cannot be imported."""
    (tmp_path / "aiter" / "ops").mkdir(parents=True)
    (tmp_path / "aiter" / "__init__.py").write_text(
        "from .ops.gemm_op_a8w8 import *\nraise RuntimeError('Unknown GPU architecture: gfx1201')\n"
    )
    (tmp_path / "aiter" / "ops" / "gemm_op_a8w8.py").write_text(
        "def gemm_a8w8_CK(XQ, WQ, x_scale, w_scale, bias=None, dtype=None, splitK=None): ...\n"
    )
    return tmp_path


def test_nothing_but_binding_a_kernel_of_aiter_imports_it(broken_aiter: Path) -> None:
    printed = run(
        """
        import qscheme
        from qscheme.tables import load
        found = qscheme.Facts.of_this_machine("cpu")
        for scheme in load().schemes:
            load().scheme(scheme)
        for arch in load().devices:
            facts = qscheme.Facts.simulate(arch, tuned="all")
            qscheme.explain(layer, facts)
            qscheme.dispatch(layer, facts, backend="reference")(torch.ones(2, 256))
        print(qscheme.dispatch(layer).backend, "aiter" in sys.modules, torch.cuda.is_initialized())
        """,
        broken_aiter,
    )
    assert "torch_int_mm False False" == printed.strip()


def test_what_an_import_of_aiter_raises_is_told_when_it_is_bound_and_not_before(broken_aiter: Path) -> None:
    printed = run(
        """
        import qscheme
        off = qscheme.Facts.simulate("gfx1201", switches={"aiter": False})
        print(qscheme.dispatch(layer, off).backend)
        try:
            qscheme.dispatch(layer, qscheme.Facts.simulate("gfx942"))
        except qscheme.BindFailed as error:
            print(type(error.__cause__).__name__, error)
        """,
        broken_aiter,
    )
    chosen, told = printed.strip().split("\n")
    assert "torch_int_mm" == chosen
    assert told.startswith("RuntimeError layer up: backend aiter_ck was chosen but could not be bound: ")
    assert "RuntimeError: Unknown GPU architecture: gfx1201" in told


def test_the_variables_of_switches_are_read_when_a_machine_is_probed_and_never_after(tmp_path: Path) -> None:
    printed = run(
        """
        import os, qscheme
        facts = qscheme.Facts.of_this_machine("cpu")
        os.environ["QSCHEME_AITER"] = "maybe"
        print(qscheme.dispatch(layer, facts).backend, qscheme.dispatch(layer).backend)
        try:
            qscheme.Facts.of_this_machine("cpu", refresh=True)
        except qscheme.UnknownSwitch as error:
            print(error)
        """,
        tmp_path,
    )
    first, second = printed.strip().split("\n")
    assert "torch_int_mm torch_int_mm" == first
    assert second.startswith("QSCHEME_AITER needs one of 1, true, yes, on, 0, false, no, off; found 'maybe'")
