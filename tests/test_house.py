"""The rules of the house: tools are content, imports run one way, facts stay out of Python."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = sorted((ROOT / "qscheme").rglob("*.py"))
GENERATED = sorted((ROOT / "generated").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
TEXTS = [
    path
    for pattern in (
        "*.md",
        "*.toml",
        "*.txt",
        "Makefile",
        ".ci/*",
        "*/**/*.py",
        "*/**/*.jinja",
        "*/**/*.yaml",
        "*/**/*.md",
    )
    for path in sorted(ROOT.glob(pattern))
    if path.is_file() and not any(part.startswith(".") and part != ".ci" for part in path.relative_to(ROOT).parts)
]
LINES = 320
LONGER = {
    "facts.py": "the only file that asks the machine",
}
HEAVY = {"aiter", "jinja2", "pydantic", "rich", "triton", "typer", "yaml"}
IMPORTED_AITER, STARTED_CUDA = 97, 98


def run(*command: str | Path, cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command with an environment of its own: nothing that is set for qscheme, Python or a terminal comes along."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("QSCHEME_", "VLLM_", "PYTHON", "PYRIGHT_", "MYPY"))
    }
    return subprocess.run(command, cwd=cwd, env={**kept, **variables}, capture_output=True, text=True, timeout=600)


def content(*command: str | Path) -> None:
    """The command has nothing to say against the checkout."""
    done = run(*command)
    assert 0 == done.returncode, f"{' '.join(map(str, command[1:]))}\n{done.stdout}{done.stderr}"


def tool(name: str) -> tuple[str, str, str]:
    return sys.executable, "-m", name


def test_ruff_finds_nothing() -> None:
    content(*tool("ruff"), "check", "--no-cache", ".")


def test_everything_is_formatted() -> None:
    content(*tool("ruff"), "format", "--no-cache", "--check", "--diff", ".")


def test_mypy_is_content_with_library_and_generated_code() -> None:
    content(*tool("mypy"))


def test_pyright_is_content_with_library_and_generated_code() -> None:
    content(*tool("pyright"), "--pythonpath", sys.executable)


def test_imports_keep_the_contracts() -> None:
    content(
        sys.executable, "-c", "from importlinter.cli import lint_imports_command as command; command()", "--no-cache"
    )


def test_generated_files_are_what_the_schemes_say() -> None:
    content(*tool("qscheme.cli"), "generate", "--check")


def test_the_shipped_schemes_have_nothing_to_report() -> None:
    content(*tool("qscheme.cli"), "lint")


def test_importing_qscheme_adds_nothing_heavy() -> None:
    done = run(sys.executable, "-X", "importtime", "-c", "import qscheme")
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}

    assert 0 == done.returncode and "qscheme" in imported
    assert set() == {name for name in imported if name.partition(".")[0] in HEAVY | {"numpy", "torch"}}


def test_importing_the_compiler_imports_no_kernel_library() -> None:
    done = run(
        sys.executable, "-c",
        "import sys, qscheme.compiler.emit, qscheme.compiler.resolve, qscheme.compiler.folder, qscheme.compiler.output\n"
        "print(*sorted({'aiter', 'numpy', 'torch', 'triton'} & set(sys.modules)))",
    )  # fmt: skip

    assert (0, "") == (done.returncode, done.stdout.strip()), done.stderr


END_TO_END = f"""
import sys, torch
before = set(sys.modules)
import qscheme
facts = qscheme.Facts.of_this_machine("cpu")
for scheme in ("int8_ptpc", "int8_tensor_static", "fp8_block128", "mxfp4"):
    layer = qscheme.quantize(torch.nn.Linear(160, 96), scheme, input_scale=0.05 if "static" in scheme else None)
    assert qscheme.explain(layer, facts).chosen == qscheme.dispatch(layer, facts).backend
    assert (3, 96) == qscheme.dispatch(layer, facts)(torch.randn(3, 160)).shape
print(*sorted({{name.partition(".")[0] for name in set(sys.modules) - before}} & {HEAVY!r}))
"""


def test_running_a_layer_imports_nothing_of_the_compiler() -> None:
    done = run(sys.executable, "-c", END_TO_END)

    assert (0, "") == (done.returncode, done.stdout.strip()), done.stderr


def test_the_demo_stays_within_its_bounds() -> None:
    content(sys.executable, "examples/demo.py")


GUARD = f"""
import json, os, sys, torch
def started(*arguments, **keywords):
    os._exit({STARTED_CUDA})
for name in ("_lazy_init", "init", "is_available", "device_count", "current_device", "get_device_properties"):
    setattr(torch.cuda, name, started)
torch._C._cuda_init = torch._C._cuda_getDeviceCount = started
from qscheme.cli import main
for words in json.loads(sys.argv[1]):
    print(*words, file=sys.stderr, flush=True)
    sys.argv = ["qscheme", *words]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
"""


def guarded(folder: Path, *commands: str) -> None:
    """Run commands in a process that ends at once if aiter is imported or CUDA is asked for anything."""
    trap = folder / "trap" / "aiter"
    trap.mkdir(parents=True)
    (trap / "__init__.py").write_text(f"import os\nos._exit({IMPORTED_AITER})\n")
    (folder / "guard.py").write_text(GUARD)
    words = json.dumps([command.split() for command in commands])

    done = run(sys.executable, folder / "guard.py", words, PYTHONPATH=str(trap.parent))

    meaning = {IMPORTED_AITER: "aiter was imported", STARTED_CUDA: "CUDA was asked"}
    assert 0 == done.returncode, meaning.get(done.returncode, "") + done.stdout + done.stderr


def test_compiling_neither_imports_aiter_nor_starts_a_gpu(tmp_path: Path) -> None:
    guarded(tmp_path, f"generate --out {tmp_path / 'out'}", "generate --check", "lint")


def test_asking_about_other_machines_neither_imports_aiter_nor_starts_a_gpu(tmp_path: Path) -> None:
    machines = ("gfx942", "gfx950 --tuned all", "gfx1250 --tuned all", "sm_90", "cpu", "gfx9999")
    schemes = ("int8_ptpc", "int8_tensor_static", "fp8_block128", "mxfp4")
    guarded(
        tmp_path, "list", "list --json",
        *(f"explain {scheme} -n 512 -k 512 --arch {machine}" for scheme in schemes for machine in machines),
    )  # fmt: skip


def test_generated_code_uses_few_modules_of_the_library() -> None:
    allowed = {"__future__", "collections.abc", "typing", "torch"}
    words = ("layer", "layouts", "machine", "numerics", "ops", "packing", "tilings", "types")
    allowed |= {f"qscheme.{name}" for name in words}
    used = {
        (path.name, name)
        for path in GENERATED
        for node in ast.walk(ast.parse(path.read_text()))
        for name in (
            [alias.name for alias in node.names] if isinstance(node, ast.Import)
            else [node.module or "."] if isinstance(node, ast.ImportFrom) and node.level == 0
            else []
        )
    }  # fmt: skip

    assert GENERATED
    assert set() == {(file, name) for file, name in used if name not in allowed}


def code(path: Path) -> str:
    """A module without its comments and docstrings."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        for block in ("body", "orelse", "finalbody"):
            statements = getattr(node, block, None)
            if isinstance(statements, list):
                kept = [statement for statement in statements if not is_text(statement)]
                setattr(node, block, kept or [ast.Pass()])
    return ast.unparse(tree)


def is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def found(pattern: str, texts: dict[str, str]) -> dict[str, list[str]]:
    """The places that match, by file."""
    matches = {name: [match.group() for match in re.finditer(pattern, text)] for name, text in texts.items()}
    return {name: places for name, places in matches.items() if places}


def relative(paths: list[Path]) -> dict[str, str]:
    return {str(path.relative_to(ROOT)): path.read_text(errors="replace") for path in paths}


def python_code() -> dict[str, str]:
    return {str(path.relative_to(ROOT)): code(path) for path in LIBRARY}


def test_the_library_names_no_architecture() -> None:
    assert {} == found(r"\b(gfx\d\w*|sm_\d+)", python_code())


def test_the_library_names_no_environment_variable_of_a_switch() -> None:
    assert {} == found(r"\b(VLLM|SGLANG|QSCHEME)_[A-Z]\w*", python_code())


def test_the_library_names_no_function_of_a_kernel_library() -> None:
    names = r"\b(gemm_a\d\w*|aiter\.(?!json\b)\w+|(dynamic_)?per_\w+_quant\w*|get_hip_quant)"
    examples = r"such as [\w.]+"  # in messages
    assert {} == found(names, {path: re.sub(examples, "", text) for path, text in python_code().items()})


def test_modules_start_with_a_sentence() -> None:
    documented = {path: ast.get_docstring(ast.parse(path.read_text())) or " " for path in [*LIBRARY, *GENERATED]}
    assert {} == {path: text for path, text in documented.items() if not re.match(r"\S.*[.]$", text.splitlines()[0])}


def test_modules_fit_on_a_few_screens() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in LIBRARY}
    assert {} == {name: length for name, length in lengths.items() if length > LINES and name not in LONGER}


def test_types_are_never_ignored() -> None:
    assert {} == found(r"#\s*type:\s*ignore|#\s*pyright:\s*\w+", relative([*LIBRARY, *GENERATED]))


def test_no_file_knows_a_machine() -> None:
    rooms = "work|root|home|opt|mnt|srv|Users"
    assert {} == found(rf"(?<![\w.~$}})*/-])/({rooms})/[\w.-]+|\.\./shared\b", relative(TEXTS))


def test_addresses_are_of_specifications_and_projects() -> None:
    """Registries and mirrors differ from machine to machine: pip's configuration names them, no file here does."""
    known = r"(www\.)?(apache\.org|arxiv\.org|github\.com|json-schema\.org|keepachangelog\.com|opencompute\.org|semver\.org)"
    assert {} == found(rf"https?://(?!{known}[/\s)\"'>])[\w.-]+", relative(TEXTS))


def test_every_test_runs() -> None:
    assert {} == found(r"\b(pytest\.|mark\.)(skip\w*|xfail|importorskip)\b|\bunittest\.skip", relative(TESTS))
