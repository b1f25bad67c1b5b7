"""A fingerprint is the same wherever a layer would compute the same, and ranks that would not are told so by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as distributed
import torch.multiprocessing as processes

import qscheme
from qscheme import Disagreement, Facts, QschemeError
from qscheme.agreement import agree
from qscheme.decision import Decision
from qscheme.tables import load

EVERY_SHAPE = "all"


def decision(scheme: str = "fp8_block128", arch: str = "gfx942", **options: Any) -> Decision:
    """The decision for a layer of 256 x 256 on a machine that need not exist."""
    about = {"name": "proj", "rotation": None, "n": 256, "k": 256, "out_dtype": torch.bfloat16, "m": None}
    given = {name: options.pop(name, default) for name, default in about.items()}
    layer: Any = SimpleNamespace(
        scheme=scheme, weight=None, weight_scale=None, input_scale=None, bias=None, name=given["name"],
        out_features=given["n"], in_features=given["k"], out_dtype=given["out_dtype"], rotation=given["rotation"],
    )  # fmt: skip
    return qscheme.explain(layer, Facts.simulate(arch, **options), m=given["m"])


# --- fingerprints --------------------------------------------------------------------------------------------------


def test_a_fingerprint_begins_with_scheme_and_backend() -> None:
    scheme, backend, digest = decision().fingerprint.split("/")
    assert ("fp8_block128", "aiter_ck", 12) == (scheme, backend, len(digest))


@pytest.mark.parametrize(
    "other",
    [
        {"name": "another"},
        {"n": 512, "k": 1024},
        {"m": 3},
        {"aiter": "0.1.20.post1"},
        {"tuned": EVERY_SHAPE},
        {"compute_units": 80},
        {"switches": {"aiter_preshuffled_blockscale": True}},
    ],
    ids=str,
)
def test_what_changes_no_result_leaves_the_fingerprint_as_it_is(other: dict[str, Any]) -> None:
    assert decision(aiter="0.1.20").fingerprint == decision(**{"aiter": "0.1.20"} | other).fingerprint


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"arch": "gfx950"}),
        ({}, {"out_dtype": torch.float16}),
        ({}, {"switches": {"aiter": False}}),
        ({"arch": "gfx950"}, {"arch": "gfx950", "switches": {"batch_invariant": True}}),
        ({"scheme": "mxfp4", "arch": "gfx950", "tuned": "all", "aiter": "0.1.8"},
         {"scheme": "mxfp4", "arch": "gfx950", "tuned": "all", "aiter": "0.1.20"}),
        ({"scheme": "mxfp4", "arch": "gfx950", "tuned": "all", "aiter": "0.1.14"},
         {"scheme": "mxfp4", "arch": "gfx950", "tuned": "all", "aiter": "0.1.16"}),
        ({"rotation": None}, {"rotation": 32}),
        ({"scheme": "fp8_w8a16_tensor"}, {"scheme": "fp8_w8a16_channel"}),
    ],
    ids=["fp8 flavour", "output", "backend", "mode", "form", "rule", "rotation", "operand"],
)  # fmt: skip
def test_what_changes_results_or_layouts_changes_the_fingerprint(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert decision(**one).fingerprint != decision(**other).fingerprint


def test_the_device_matters_only_where_the_flavour_of_its_fp8_does() -> None:
    assert decision("int8_ptpc", "gfx942").fingerprint == decision("int8_ptpc", "gfx950").fingerprint
    assert decision("fp8_ptpc", "gfx90a").fingerprint == decision("fp8_ptpc", "gfx1100").fingerprint


def test_every_scheme_has_a_fingerprint_of_its_own() -> None:
    prints = [decision(scheme, "cpu").fingerprint for scheme in load().schemes]
    assert len(prints) == len({text.split("/")[2] for text in prints})


def test_a_layer_that_nothing_can_run_has_a_fingerprint_too() -> None:
    nothing = qscheme.explain(
        layer_of("fp8_block128"), Facts.simulate("gfx942"), disabled=every_backend("fp8_block128")
    )
    assert nothing.chosen is None
    assert nothing.fingerprint.startswith("fp8_block128/none/")


def layer_of(scheme: str) -> Any:
    return SimpleNamespace(
        scheme=scheme, weight=None, weight_scale=None, input_scale=None, bias=None, name="", out_features=256,
        in_features=256, out_dtype=torch.bfloat16,
    )  # fmt: skip


def every_backend(scheme: str) -> list[str]:
    return [backend.name for backend in load().scheme(scheme).backends]


def test_every_process_has_the_same_fingerprints_whatever_its_hash_seed() -> None:
    code = (
        "from test_agreement import decision; from qscheme.tables import load; "
        "print(*(decision(scheme, 'gfx950', tuned='all').fingerprint for scheme in load().schemes))"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    here = [decision(scheme, "gfx950", tuned="all").fingerprint for scheme in load().schemes]
    assert here == done.stdout.split()


# --- ranks ---------------------------------------------------------------------------------------------------------


def cases(rank: int) -> dict[str, dict[str, Any]]:
    """What each rank hands to `agree`: the first two agree."""
    other = {} if rank == 0 else {"switches": {"aiter": False}}
    later = {"scheme": "mxfp4", "arch": "gfx950", "tuned": "all", "aiter": "0.1.14" if rank == 0 else "0.1.16"}
    bound = qscheme.dispatch(small_layer(), Facts.simulate("cpu"))
    return {
        "same": {"a": decision(), "b": decision("int8_ptpc")},
        "bound": {"a": bound},
        "backend": {"a": decision(), "b": decision(**other)},
        "rule": {"a": decision(**later)},
        "names": {"a": decision()} | ({"b": decision()} if rank == 0 else {"c": decision()}),
        "bound and decision": {"a": bound if rank == 0 else decision("int8_ptpc", "gfx90a", switches={"aiter": False})},
    }


def small_layer() -> Any:
    return SimpleNamespace(
        scheme="int8_ptpc", weight=torch.ones(8, 8, dtype=torch.int8), weight_scale=torch.ones(8, 1), input_scale=None,
        bias=None, name=f"rank {os.getpid()}", out_dtype=torch.bfloat16,
    )  # fmt: skip


def answer(layers: dict[str, Any]) -> str:
    try:
        agree(layers)
    except Disagreement as error:
        return str(error)
    return "agreed"


def ask(rank: int, folder: str) -> None:
    """One rank: every case in order, then a group of its own, which has nobody to disagree with."""
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    told = {name: answer(layers) for name, layers in cases(rank).items()}
    alone = [distributed.new_group([member]) for member in range(2)]
    agree({"a": decision(**({} if rank == 0 else {"out_dtype": torch.float16}))}, alone[rank])
    agree({"a": decision()}, alone[1 - rank])  # a group that this rank is not in
    told["alone"] = "agreed"
    Path(folder, f"{rank}.json").write_text(json.dumps(told))
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """What each of two ranks was told in each case."""
    folder = tmp_path_factory.mktemp("ranks")
    processes.start_processes(ask, (str(folder),), nprocs=2, start_method="spawn")
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("case", ["same", "bound", "alone"])
def test_ranks_that_decided_alike_agree(case: str, told: list[dict[str, str]]) -> None:
    assert ["agreed", "agreed"] == [rank[case] for rank in told]


def test_a_rank_with_another_backend_is_named_on_every_rank(told: list[dict[str, str]]) -> None:
    lines = told[0]["backend"].splitlines()
    assert "the ranks of the group do not agree:" == lines[0]
    assert "layer b: backend: aiter_ck on rank 0, reference on rank 1" == lines[1]
    assert not any("layer a" in line for line in lines)
    assert told[0]["backend"] == told[1]["backend"]


def test_a_rank_with_another_release_differs_in_the_rule_of_a_kernel(told: list[dict[str, str]]) -> None:
    (_, line) = told[1]["rule"].splitlines()
    assert line.startswith("layer a: rule of aiter.per_1x32_f4_quant_hip: Rule(scale='nearest15', ")
    assert "on rank 0, Rule(scale='rceil', " in line


def test_a_layer_that_a_rank_lacks_is_named(told: list[dict[str, str]]) -> None:
    assert [
        "the ranks of the group do not agree:",
        "layer b: layer: present on rank 0, absent on rank 1",
        "layer c: layer: absent on rank 0, present on rank 1",
    ] == told[0]["names"].splitlines()


def test_a_bound_layer_and_a_decision_are_compared_alike(told: list[dict[str, str]]) -> None:
    assert ["agreed", "agreed"] == [rank["bound and decision"] for rank in told]


def test_without_a_group_there_is_nobody_to_agree_with() -> None:
    with pytest.raises(QschemeError, match=r"^agree: needs a process group, found none; call torch"):
        agree({"a": decision()})


def test_several_ranks_with_the_same_words_are_told_together() -> None:
    from qscheme.agreement import _line

    assert "backend: a on ranks 0, 2 and 3, b on rank 1" == _line("backend", ["a", "b", "a", "a"])
