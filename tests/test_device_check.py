"""The command that checks backends on a device: on the CPU, and that it sees what is wrong."""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from qscheme import numerics
from qscheme.decision import Activation
from qscheme.tables import load

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "benchmarks"))

import aiter_on_nvidia  # noqa: E402
import device_errors  # noqa: E402
import device_model  # noqa: E402

MODELLED = [name for name in load().schemes if device_model.unmodelled(load().scheme(name)) is None]
SCHEMES = [name for name in MODELLED if load().scheme(name).activation is not None]


def activation(scheme: str) -> Activation:
    operand = load().scheme(scheme).activation
    dtypes = {"int8": torch.int8, "fp4_e2m1": torch.uint8, "fp8_e4m3": torch.float8_e4m3fn}
    return Activation(
        operand.format, operand.granularity, operand.scale, operand.rule, dtypes[operand.format], ((None, "row_major"),)
    )


def judgement(y: torch.Tensor, right: device_model.Expected, slack: bool = False) -> list[str]:
    found: dict[str, Any] = {"failures": []}
    device_errors.judged(found, "here", y, right, slack)
    return found["failures"]


def right_answer(scheme: str, m: int = 7, n: int = 48, k: int = 160) -> device_model.Expected:
    found = load().scheme(scheme)
    layer = device_model.random_layer(found, n, k, True, torch.bfloat16)
    x = device_model.random_x(found, m, k)
    return device_model.expected(x, layer, found.activation, activation(scheme))


def test_the_command_runs_every_backend_of_a_cpu_and_writes_what_it_found(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    command = [sys.executable, "-W", "ignore", str(ROOT / "benchmarks" / "device_check.py"), "--device", "cpu"]
    command += ["--quick", "--scheme", "int8_ptpc", "--seed", "3", "--json", str(file)]
    path = os.pathsep.join((str(ROOT), str(ROOT / "generated")))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert 0 == done.returncode, done.stdout + done.stderr
    assert "everything that ran is right" in done.stdout
    found = json.loads(file.read_text())
    assert ["torch_int_mm", "reference"] == [row["backend"] for row in found["backends"]]
    assert ["aiter_asm", "aiter_ck", "aiter_triton"] == [row["backend"] for row in found["refused"]]
    assert [] == found["failures"]
    for row in found["backends"]:
        (shape,) = row["shapes"]
        assert ["1", "3", "17", "65"] == list(shape["rows"])
        assert all(error["x"]["row"] < 0.005 and error["full"] < 0.03 for error in shape["rows"].values())
        assert ["200", "17", "3"] == list(row["compile"]["rows"])
    assert "cpu" == found["device"]["arch"]
    assert torch.__version__ == found["versions"]["torch"]
    assert str(ROOT) not in file.read_text()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_result_of_one_rounding_passes(scheme: str) -> None:
    right = right_answer(scheme)
    assert [] == judgement(right.y.to(torch.bfloat16), right)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_one_wrong_row_fails(scheme: str) -> None:
    right = right_answer(scheme)
    y = right.y.clone()
    y[2] *= 1.01
    (text,) = judgement(y, right)
    assert "row 2" in text


@pytest.mark.parametrize("nonsense", [math.nan, math.inf])
def test_an_element_that_is_not_finite_never_passes(nonsense: float) -> None:
    right = right_answer("int8_ptpc")
    y = right.y.clone()
    y[0, 0] = nonsense
    assert 1 == len(judgement(y, right, slack=True))


def test_another_shape_never_passes() -> None:
    right = right_answer("int8_ptpc")
    assert 1 == len(judgement(right.y[:-1], right, slack=True))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("m", "k"), [(1, 40), (5, 160), (17, 272)])
def test_the_model_and_the_library_quantize_alike(scheme: str, m: int, k: int) -> None:
    found = load().scheme(scheme)
    layer = device_model.random_layer(found, 16, k, False, torch.bfloat16)
    x = device_model.random_x(found, m, k)
    right = device_model.expected(x, layer, found.activation, activation(scheme))
    codes, scale = numerics.quantize(x, found.activation, scale=layer.input_scale)
    assert torch.equal(right.codes.view(torch.uint8), codes.view(torch.uint8))
    assert torch.allclose(right.scale.flatten().float(), scale.flatten().float(), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_model_and_the_library_read_weights_alike(scheme: str) -> None:
    found = load().scheme(scheme)
    layer = device_model.random_layer(found, 136, 288, False, torch.bfloat16)
    values = numerics.dequantize(layer.weight, layer.weight_scale, found.weight)
    assert torch.allclose(layer.values, values.double(), rtol=1e-6, atol=0.0)


def test_only_powers_of_two_leave_no_slack() -> None:
    slack = {scheme: float(right_answer(scheme, k=8192).slack.max()) for scheme in SCHEMES}
    divided = [scheme for scheme in SCHEMES if load().scheme(scheme).activation.rule.scale == "amax_div"]
    assert [0.0] * (len(SCHEMES) - len(divided)) == [slack[scheme] for scheme in SCHEMES if scheme not in divided]
    assert max(slack[scheme] for scheme in divided) > 0


class _NoRoomError(Exception):
    """What a launch raises if its buffers do not fit."""


def test_launches_lose_amd_options_and_stages_until_they_fit() -> None:
    seen: list[dict[str, Any]] = []

    def run(kernel: object, *arguments: object, **keywords: Any) -> str:
        seen.append(keywords)
        if keywords["num_stages"] > 1:
            raise _NoRoomError
        return "launched"

    launch = aiter_on_nvidia.launching(run, _NoRoomError)
    kernel = SimpleNamespace()
    options = {"BLOCK_SIZE_M": 64, "num_stages": 3, "waves_per_eu": 2, "matrix_instr_nonkdim": 16, "kpack": 1}
    assert ["launched", "launched"] == [launch(kernel, 1, **options) for _ in range(2)]
    assert [3, 2, 1, 1] == [keywords["num_stages"] for keywords in seen]
    assert {"BLOCK_SIZE_M", "num_stages"} == set(seen[0])


def test_a_launch_that_never_fits_says_so() -> None:
    def run(*arguments: object, **keywords: object) -> None:
        raise _NoRoomError

    with pytest.raises(_NoRoomError):
        aiter_on_nvidia.launching(run, _NoRoomError)(SimpleNamespace(), num_stages=2)


def test_a_folder_without_aiter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="needs a wheel of amd-aiter or a folder with aiter/ in it"):
        aiter_on_nvidia.install(str(tmp_path))


def test_the_page_of_proof_has_the_newest_run_of_each_scheme_and_every_run_that_failed() -> None:
    def run(date: str, own: list[str], of_aiter: list[str], failures: list[str]) -> dict[str, object]:
        own_rows, aiter_rows = (
            [{"scheme": name, "backend": date, "failures": [date] if name == "bad" else []} for name in names]
            for names in (own, of_aiter)
        )
        return {
            "date": date, "device": {"name": "GPU"}, "versions": {}, "backends": own_rows, "refused": [], "times": own_rows,
            "aiter_on_nvidia": {"backends": aiter_rows, "refused": []} if aiter_rows else None, "failures": failures,
        }  # fmt: skip

    newest = importlib.import_module("proof").newest
    first = run("2026-01-01T10:00", ["a", "bad"], ["a", "c"], ["AITER on NVIDIA: RuntimeError: no wheel"])
    (device,) = newest([run("2026-01-02T10:00", ["a"], [], []), first])

    rows = {part: [(row["scheme"], row["backend"][:10]) for row in found["backends"]]
            for part, found in (("own", device), ("aiter", device["aiter_on_nvidia"]))}  # fmt: skip
    assert {
        "own": [("a", "2026-01-02"), ("bad", "2026-01-01")], "aiter": [("a", "2026-01-01"), ("c", "2026-01-01")],
    } == rows  # fmt: skip
    assert [
        "2026-01-01 10:00: AITER on NVIDIA: RuntimeError: no wheel", "bad 2026-01-01T10:00: 2026-01-01T10:00",
    ] == device["failures"]  # fmt: skip
