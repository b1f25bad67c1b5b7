"""The wheel alone, in an environment of its own outside the checkout, does all that a user needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from qscheme.tables import shipped_schemes

ROOT = Path(__file__).resolve().parent.parent

OWN_SCHEME = """\
scheme: acme_int8
title: INT8 as Acme's checkpoints have it, on torch's own kernel or the reference
activation:
  format: int8
  granularity: per_token
  mode: dynamic
  rule: {scale: amax_div, max: 127, round: rne, apply: divide, floor: 1.0e-10}
weight:
  format: int8
  granularity: per_channel
  rule: {scale: amax_div, max: 127, round: rne, apply: divide, floor: 1.0e-10}

backends:
  - name: torch_int_mm
    quantize: reference.quantize
    gemm: torch.int_mm
  - name: reference
    quantize: reference.quantize
    gemm: reference.reference_linear
    on_use: warn
"""

RUN_OWN = """
import json, torch, qscheme, my_tables
dense = torch.nn.Linear(136, 72)
layer = qscheme.quantize(dense, "acme_int8", tables="my_tables")
bound = qscheme.dispatch(layer, tables="my_tables")
x = torch.randn(5, 136)
wanted = x.double() @ dense.weight.double().T + dense.bias.double()
error = (bound(x).double() - wanted).norm() / wanted.norm()
print(json.dumps({"backend": bound.backend, "error": float(error), "schemes": my_tables.SCHEMES}))
"""

RUN_SHIPPED = """
import json, torch, qscheme
found = {}
for scheme, static in (("int8_ptpc", None), ("int8_tensor_static", 0.03), ("fp8_block128", None), ("mxfp4", None)):
    dense = torch.nn.Linear(256, 96)
    bound = qscheme.dispatch(qscheme.quantize(dense, scheme, input_scale=static))
    x = torch.randn(7, 256)
    wanted = dense(x).detach().double()
    found[scheme] = float((bound(x).double() - wanted).norm() / wanted.norm())
print(json.dumps(found))
"""


def run(*command: str | Path, cwd: Path, code: int = 0, **variables: str) -> str:
    """What a command prints; nothing that is set for Python or qscheme comes along."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "QSCHEME_", "VLLM_"))}
    done = subprocess.run(command, cwd=cwd, env={**kept, **variables}, capture_output=True, text=True, timeout=300)
    assert code == done.returncode, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def build(kind: str, source: Path, folder: Path) -> Path:
    run(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", folder, cwd=source)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python whose own qscheme is the wheel, and which borrows all that qscheme depends on from this one."""
    environment = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=environment)
    python = environment / "bin" / "python"
    install = ("install", "--quiet", "--no-index", "--no-deps", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "--python", python, *install, wheel, cwd=environment)
    (packages,) = environment.glob("lib/python*/site-packages")
    # A plain path file: the path files of the borrowed packages, the checkout's among them, are not read.
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (environment / "bin" / "ruff").symlink_to(Path(sysconfig.get_path("scripts")) / "ruff")
    return python


@pytest.fixture
def qscheme(python: Path) -> Path:
    return python.with_name("qscheme")


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def contents(archive: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(archive) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def test_the_wheel_holds_library_tables_and_schemes(wheel: Path) -> None:
    expected = {f"qscheme/{name}": text for name, text in files(ROOT / "qscheme").items()}
    expected |= {f"qscheme/shipped_schemes/{name}": text for name, text in files(ROOT / "schemes").items()}
    expected |= {
        f"qscheme_generated/{name}": text for name, text in files(ROOT / "generated" / "qscheme_generated").items()
    }
    held = {name: text for name, text in contents(wheel).items() if ".dist-info/" not in name}

    assert expected == held
    for name in ("qscheme/py.typed", "qscheme_generated/py.typed", "qscheme/compiler/templates/scheme.py.jinja"):
        assert name in held


def test_the_source_archive_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    archive = build("sdist", ROOT, tmp_path / "archive")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")

    rebuilt = build("wheel", tmp_path / archive.name.removesuffix(".tar.gz"), tmp_path / "rebuilt")

    assert wheel.name == rebuilt.name
    assert contents(wheel) == contents(rebuilt)


def test_a_checkout_finds_the_schemes_beside_the_library() -> None:
    assert ROOT / "schemes" == shipped_schemes()


def test_an_installed_library_finds_the_schemes_inside(python: Path, tmp_path: Path) -> None:
    script = "import qscheme, qscheme.tables as t; print(qscheme.__file__); print(t.shipped_schemes())"
    library, schemes = map(Path, run(python, "-c", script, cwd=tmp_path).split())

    assert library.is_relative_to(python.parent.parent)
    assert library.parent / "shipped_schemes" == schemes
    assert files(ROOT / "schemes") == files(schemes)


def test_shipped_tables_need_no_generation(python: Path, qscheme: Path, tmp_path: Path) -> None:
    listed = json.loads(run(qscheme, "list", "--json", cwd=tmp_path))
    asked = ("explain", "mxfp4", "--arch", "gfx950", "-n", "7168", "-k", "2048", "--tuned", "all", "--json")
    decision = json.loads(run(qscheme, *asked, cwd=tmp_path))
    errors = json.loads(run(python, "-c", RUN_SHIPPED, cwd=tmp_path))

    assert {"fp8_block128", "int8_ptpc", "int8_tensor_static", "mxfp4"} <= {row["scheme"] for row in listed["schemes"]}
    assert "aiter_asm" == decision["chosen"]["backend"]
    assert {"int8_ptpc", "int8_tensor_static", "fp8_block128", "mxfp4"} == set(errors)
    assert {} == {
        scheme: error for scheme, error in errors.items() if not error < (0.25 if scheme == "mxfp4" else 0.06)
    }


def test_own_schemes_on_shipped_kernels_are_compiled_and_used(python: Path, qscheme: Path, tmp_path: Path) -> None:
    (tmp_path / "schemes").mkdir()
    (tmp_path / "schemes" / "acme_int8.yaml").write_text(OWN_SCHEME)
    generate = (qscheme, "generate", "--out", ".", "--package", "my_tables")

    run(*generate, "--check", cwd=tmp_path, code=1)
    run(*generate, cwd=tmp_path)
    run(*generate, "--check", cwd=tmp_path)
    outcome = json.loads(run(python, "-c", RUN_OWN, cwd=tmp_path))

    assert ["acme_int8"] == outcome["schemes"]
    assert "torch_int_mm" == outcome["backend"]
    assert outcome["error"] < 0.02


def test_a_mistake_in_an_own_scheme_has_a_place_and_a_cure(qscheme: Path, tmp_path: Path) -> None:
    (tmp_path / "schemes").mkdir()
    (tmp_path / "schemes" / "acme_int8.yaml").write_text(OWN_SCHEME.replace("gemm: torch.int_mm", "gemm: torch.int_m"))

    done = subprocess.run([qscheme, "lint"], cwd=tmp_path, capture_output=True, text=True, timeout=60)

    assert 1 == done.returncode
    assert "schemes/acme_int8.yaml:16:" in done.stdout and "torch.int_mm" in done.stdout


def test_the_shipped_schemes_compile_from_the_wheel_to_the_shipped_tables(
    python: Path, qscheme: Path, tmp_path: Path
) -> None:
    script = "import qscheme.tables; print(qscheme.tables.shipped_schemes())"
    schemes = run(python, "-c", script, cwd=tmp_path).strip()

    run(qscheme, "generate", "--schemes", schemes, "--out", tmp_path / "out", cwd=tmp_path)

    assert files(ROOT / "generated" / "qscheme_generated") == files(tmp_path / "out" / "qscheme_generated")
