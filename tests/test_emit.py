"""The catalogue becomes files: goldens of a case with every feature, and Python that is sound whatever the YAML says."""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from folders import CASES, EVERY_FEATURE, compiled, edited, goldens

from qscheme.compiler.generated_names import TAKEN, in_small_letters
from qscheme.compiler.kernel_text import source
from qscheme.compiler.kernels import VIEW
from qscheme.compiler.output import MARK, is_marked, write
from qscheme.tables import load
from qscheme.types import Call, Device, Form, Operand, Rule, TunedTable

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = "qscheme_generated"
GENERATED = Path(__file__).resolve().parent.parent / "generated" / PACKAGE


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that Python imports from; what a test imports from it is forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("their_tables"):
            del sys.modules[name]


@pytest.mark.parametrize("case", sorted(CASES.iterdir()), ids=lambda case: case.name)
def test_a_case_compiles_to_its_goldens(case: Path) -> None:
    """After a change that is wanted: `python tests/folders.py`, and read the difference."""
    files = {name: text for name, text in compiled(case / "schemes").items() if not name.endswith(".schema.json")}

    assert goldens(case) == files


def test_every_python_file_is_python() -> None:
    for name, text in compiled(EVERY_FEATURE).items():
        if name.endswith(".py"):
            compile(text, name, "exec")  # finds more than ast.parse does: a parameter that is there twice


def test_every_file_is_marked_and_ends_with_one_line_break() -> None:
    for name, text in compiled(EVERY_FEATURE).items():
        assert is_marked(text), name
        assert text.endswith("\n"), name
        assert not text.endswith("\n\n"), name


def test_files_are_sorted_and_stand_under_the_package() -> None:
    files = compiled(EVERY_FEATURE, "their_tables")

    assert sorted(files) == list(files)
    assert {"their_tables"} == {name.partition("/")[0] for name in files if name.endswith((".py", "py.typed"))}


def test_every_scheme_is_a_word_of_the_literal() -> None:
    index = compiled(EVERY_FEATURE)[f"{PACKAGE}/__init__.py"]

    assert 'SchemeName: TypeAlias = Literal["four_bits", "one_scale"]' in index
    assert 'SCHEMES: Final[tuple[SchemeName, ...]] = (\n    "four_bits",\n    "one_scale",\n)' in index


@pytest.mark.parametrize(
    "value",
    [
        Rule("amax_div", 127.0),
        Rule("even", 6.0, round="truncate", apply="multiply_reciprocal", floor=0.0, fnuz_max=240.0),
        Operand("fp8_e4m3", "1x128", "fp32", Rule("amax_div", 448.0), "dynamic"),
        Form(("a.b", "c.d"), 2, ("x", "y"), "v1.2", None, ("a.f",)),
        Device("gfx950", "amd", "cdna4", "fn", True, True, 64, (256,)),
        TunedTable("t", "aiter", "json", ("a'\"\\{n}",), None, (("gfx950", "MI350X"),)),
        Call("M <= 31", "a.b", "c.d", max_m=31),
        (),
        (1,),
        ("it's", 'a "word"', "\\", None, 1e-12, True),
    ],
)
def test_emitted_data_reads_back_as_itself(value: object) -> None:
    names = {kind.__name__: kind for kind in (Rule, Operand, Form, Device, TunedTable, Call)}

    assert value == eval(source(value), {"__builtins__": {}, **names})


def test_generated_modules_import_and_hold_what_the_yaml_says(importable: Path) -> None:
    write(compiled(EVERY_FEATURE, "their_tables"), importable)

    four_bits = importlib.import_module("their_tables.four_bits").SCHEME
    machines = importlib.import_module("their_tables.machines")
    kernels = importlib.import_module("their_tables.kernels_fast")

    assert ["fast", "reference"] == [backend.name for backend in four_bits.backends]
    assert 'Four bits, "packed" \\ with Final and cast in the title' == four_bits.title
    assert [(0, None), (0, 31), (32, 64), (65, None)] == [(c.min_m, c.max_m) for c in four_bits.backends[0].calls]
    assert ("fnuz", "fn", None) == tuple(machines.DEVICES[arch].fp8 for arch in ("alpha", "beta", "gamma"))
    assert ("v1.2", "v3.0") == (kernels.SMALL_PRODUCT.forms[0].since, kernels.SMALL_PRODUCT.forms[0].until)
    assert ("m", "rows", "out") == kernels.SMALL_PRODUCT.forms[1].keywords


def test_a_title_cannot_run_code(tmp_path: Path, importable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtins, "PWNED", [], raising=False)
    for number, title in enumerate(
        [
            '\'"""\\nPWNED.append(1)\\n"""\'',
            '\'""" + str(PWNED.append(1)) + """\'',
            '\'\\"""; PWNED.append(1) #\'',
            "'{{ PWNED.append(1) }}{% for x in y %}'",
            "'#% for x in PWNED.append(1)'",
            "'<script>PWNED.append(1)</script>'",
        ]
    ):
        folder = edited(tmp_path / f"in{number}", one_scale=("title: INT8 with one given scale", f"title: {title}"))
        package = f"their_tables_{number}"
        write(compiled(folder, package), importable / f"out{number}")
        monkeypatch.syspath_prepend(str(importable / f"out{number}"))

        scheme = importlib.import_module(f"{package}.one_scale").SCHEME

        assert title[1:-1] == scheme.title
    assert [] == vars(builtins)["PWNED"]


def test_a_constant_is_passed_as_it_was_written(tmp_path: Path) -> None:
    folder = edited(tmp_path, kernels__fast=("mode: \"it's", "mode: \"{x} __import__('os') it's"))

    text = compiled(folder)[f"{PACKAGE}/one_scale.py"]

    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    modes = {ast.literal_eval(k.value) for call in calls for k in call.keywords if k.arg == "mode"}
    assert {"{x} __import__('os') it's \"fast\" \\"} == modes


def test_the_import_of_a_name_follows_its_use_in_code_and_not_in_prose() -> None:
    text = compiled(EVERY_FEATURE)[f"{PACKAGE}/four_bits.py"]

    assert "Final and cast in the title" in text
    assert "from typing import TYPE_CHECKING, Final\n" in text


def test_a_user_package_is_clean_for_type_checkers_and_linters(tmp_path: Path) -> None:
    write(compiled(EVERY_FEATURE, "their_tables"), tmp_path)
    root = Path(__file__).resolve().parent.parent

    def run(*command: str) -> str:
        done = subprocess.run([sys.executable, "-m", *command], cwd=tmp_path, capture_output=True, text=True)
        return "" if done.returncode == 0 else done.stdout + done.stderr

    assert "" == run("ruff", "format", "--check", "--isolated", "--line-length", "120", "their_tables")
    assert "" == run("ruff", "check", "--isolated", "--select", "F,E7,E9,B,UP,C4,PIE", "their_tables")
    assert "" == run(
        "mypy",
        "--strict",
        "--python-version",
        "3.10",
        "--cache-dir",
        str(root / ".mypy_cache" / "cases"),
        "their_tables",
    )
    settings = {"typeCheckingMode": "strict", "pythonVersion": "3.10", "include": ["their_tables"]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    assert "" == run("pyright", "--pythonpath", sys.executable)


def test_no_generated_file_speaks_of_time_place_or_versions() -> None:
    for name, text in compiled(EVERY_FEATURE).items():
        for word in (str(EVERY_FEATURE), str(Path.home()), "qscheme 0.", "2026-"):
            assert word not in text, name


def test_the_mark_is_on_the_first_line_of_python() -> None:
    for name, text in compiled(EVERY_FEATURE).items():
        if name.endswith(".py"):
            assert text.startswith(f"# {MARK} from schemes/"), name


def test_no_kernel_can_have_a_name_that_generated_modules_use() -> None:
    """Of the shipped modules of schemes: every name that is bound in them and does not come from a kernel."""
    tables, used = load(), set[str]()
    for scheme in tables.schemes:
        tree = ast.parse((GENERATED / f"{scheme}.py").read_text())
        for node in ast.walk(tree):
            match node:
                case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                    used.add(name)
                case ast.ImportFrom(module=str(module), names=names) if not module.startswith("kernels_"):
                    used |= {alias.name for alias in names} if module != "machines" else set()
                case ast.FunctionDef(name=name) if not name.startswith(("why_not_", "prepare_", "bind_")):
                    used.add(name)
                case _:
                    pass
    backends = [backend for scheme in tables.schemes for backend in tables.scheme(scheme).backends]
    kernels = {kernel.name.rpartition(".")[2] for backend in backends for kernel in backend.kernels}
    free = {in_small_letters(name) for name in used} - TAKEN - kernels
    of_kernels = tuple(f"{kernel}_" for kernel in kernels)
    assert set() == {name for name in free if not VIEW.fullmatch(name) and not name.startswith(of_kernels)}
