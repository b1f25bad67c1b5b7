"""The generated package: every scheme on every architecture has its reasons, and its modules import what they say."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import qscheme_generated

from qscheme.facts import Facts
from qscheme.layer import LayerFacts
from qscheme.tables import load
from qscheme.types import REASON_ORDER

TABLES = load()
ARCHITECTURES = [*sorted(TABLES.devices), "gfx9999"]
MODULES = sorted(module.name for module in pkgutil.iter_modules(qscheme_generated.__path__))
LAYERS = [
    LayerFacts(4096, 8192),
    LayerFacts(4096, 8192, "fp32", has_bias=True, rotation=32),
    LayerFacts(4096, 8192, "fp16", prequantized=True),
    LayerFacts(1, 1),
    LayerFacts(17, 384, "fp16"),
]
MACHINES = [
    {"aiter": release, "tuned": tuned, "switches": {"aiter": on, "batch_invariant": not on}}
    for release, tuned, on in itertools.product([None, "0.1.1", "0.1.12", "0.1.20"], ["all", "none"], [True, False])
]


@cache
def machines(arch: str) -> list[Facts]:
    return [Facts.simulate(arch, **machine) for machine in MACHINES]


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("scheme", TABLES.schemes)
def test_every_backend_says_why_not_whatever_the_machine_and_the_layer(scheme: str, arch: str) -> None:
    for facts in machines(arch):
        for backend in TABLES.scheme(scheme).backends:
            for layer in LAYERS:
                reasons = backend.why_not(facts, layer)
                order = [REASON_ORDER.index(reason.kind) for reason in reasons]
                assert sorted(order) == order
                for reason in reasons:
                    assert re.fullmatch(r"needs [^\n.][^\n]*, found [^\n]*[^.\n]", reason.text), reason.text
                assert len(set(reasons)) == len(reasons)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("scheme", TABLES.schemes)
def test_the_last_backend_runs_everywhere(scheme: str, arch: str) -> None:
    for layer in LAYERS:
        assert [] == TABLES.scheme(scheme).backends[-1].why_not(Facts.simulate(arch, aiter=None), layer)


@pytest.mark.parametrize("scheme", TABLES.schemes)
def test_backends_begin_with_the_library_of_their_gemm(scheme: str) -> None:
    for backend in TABLES.scheme(scheme).backends:
        assert re.fullmatch(r"(aiter|torch|triton)_\w+|reference", backend.name)
        assert {backend.name.partition("_")[0]} == {call.gemm.partition(".")[0] for call in backend.calls}


@pytest.mark.parametrize("scheme", TABLES.schemes)
@pytest.mark.parametrize("batch_invariant", [True, False])
def test_every_m_has_one_call(scheme: str, batch_invariant: bool) -> None:
    for backend in TABLES.scheme(scheme).backends:
        for m in (0, 1, 31, 32, 64, 65, 1 << 20):
            assert any(call.runs(batch_invariant=batch_invariant, m=m) for call in backend.calls)


@pytest.mark.parametrize("module", MODULES)
def test_every_module_imports(module: str) -> None:
    assert importlib.import_module(f"qscheme_generated.{module}").__doc__


def test_there_is_a_module_for_each_scheme_and_each_kernel_file() -> None:
    assert set(TABLES.schemes) <= set(MODULES)
    assert {"machines", "kernels_aiter", "kernels_reference", "kernels_torch"} <= set(MODULES)


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert 0 == done.returncode, done.stderr
    return done.stdout


def test_importing_every_module_imports_no_kernel_library_and_no_compiler() -> None:
    modules = ", ".join(f"qscheme_generated.{module}" for module in MODULES)
    code = (
        f"import sys, {modules}\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}"
        " & {'aiter', 'triton', 'yaml', 'jinja2', 'pydantic', 'typer', 'rich'}))"
    )

    assert "\n" == run(code)


def test_the_schema_of_every_opaque_kernel_is_one_that_torch_reads() -> None:
    code = (
        "import importlib, pkgutil, qscheme_generated\n"
        "from qscheme.types import Kernel\n"
        "for module in pkgutil.iter_modules(qscheme_generated.__path__):\n"
        "    if module.name.startswith('kernels_'):\n"
        "        found = vars(importlib.import_module(f'qscheme_generated.{module.name}'))\n"
        "        for kernel in found.values():\n"
        "            if isinstance(kernel, Kernel) and kernel.opaque is not None:\n"
        "                kernel.opaque(lambda *a, **k: None)\n"
        "                print(kernel.name)\n"
    )

    names = run(code).split()

    assert {"aiter.gemm_a8w8_ck", "aiter.per_group_quant_hip", "aiter.gemm_afp4wfp4_one_split"} <= set(names)


def test_the_package_is_typed_and_says_so() -> None:
    assert (Path(qscheme_generated.__path__[0]) / "py.typed").is_file()
