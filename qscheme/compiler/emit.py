"""The catalogue -> {path: text}; touches no disk but a temporary folder for the formatter."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import jinja2

from qscheme.compiler.generated_names import IMPORTABLE
from qscheme.compiler.imports import imports_of
from qscheme.compiler.kernel_text import kernel_text, source
from qscheme.compiler.output import MARK
from qscheme.compiler.parameters import constant_name, protocol_name
from qscheme.compiler.schemas import SCHEMAS, schema_text
from qscheme.compiler.scheme_text import backend_text
from qscheme.compiler.support import support_text
from qscheme.types import INTERFACE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from qscheme.compiler import ir

_IMPORTS = "# the imports, once it is known what they are"


def emit(catalogue: ir.Catalogue, package: str = "qscheme_generated") -> dict[str, str]:
    """Every generated file of a catalogue, by its path under the output folder, sorted."""
    modules = {
        "__init__": _render(
            "index",
            origin="schemes/*.yaml",
            count=len(catalogue.schemes),
            interface=INTERFACE,
            names=[scheme.name for scheme in catalogue.schemes],
        ),
        "machines": _machines(catalogue),
        **{f"kernels_{library}": _kernels(library, kernels) for library, kernels in _by_library(catalogue).items()},
        **{scheme.name: _scheme(scheme, catalogue) for scheme in catalogue.schemes},
    }
    files = {f"{package}/{name}.py": text for name, text in _formatted(modules).items()}
    files[f"{package}/py.typed"] = f"# {MARK}\n"
    files["support.md"] = support_text(catalogue)
    files |= {f"{name}.schema.json": schema_text(name) for name in SCHEMAS}
    return dict(sorted(files.items()))


def _scheme(scheme: ir.Scheme, catalogue: ir.Catalogue) -> str:
    fields = {
        "scheme": scheme,
        "activation": source(scheme.activation) if scheme.activation is not None else "",
        "weight": source(scheme.weight),
        "stored_scales": source(scheme.stored_scales),
        "producers": source(scheme.producers),
        "backends": [backend_text(scheme, backend) for backend in scheme.backends],
        "origin": f"schemes/{scheme.name}.yaml",
    }
    siblings = {".machines": {table.name.upper() for table in catalogue.tables}}
    for kernel in (kernel for backend in scheme.backends for kernel in backend.kernels):
        siblings.setdefault(f".kernels_{kernel.library}", set()).update((constant_name(kernel), protocol_name(kernel)))
    return _with_imports("scheme", fields, siblings)


def _kernels(library: str, kernels: list[ir.Kernel]) -> str:
    origin = f"schemes/kernels/{library}.yaml"
    fields = {"library": library, "kernels": [kernel_text(kernel) for kernel in kernels], "origin": origin}
    return _with_imports("kernels", fields)


def _machines(catalogue: ir.Catalogue) -> str:
    fields = {
        "tables": [{"name": t.name, "constant": t.name.upper(), "data": source(t)} for t in catalogue.tables],
        "devices": [{"name": device.arch, "data": source(device)} for device in catalogue.devices],
        "switches": [{"name": switch.name, "data": source(switch)} for switch in catalogue.switches],
        "libraries": [{"name": library.name, "data": source(library)} for library in catalogue.libraries],
        "origin": "schemes/devices.yaml, schemes/switches.yaml and schemes/kernels/*.yaml",
    }
    return _with_imports("machines", fields)


def _with_imports(
    template: str, fields: Mapping[str, object], siblings: Mapping[str, Iterable[str]] | None = None
) -> str:
    """A module with the imports that its text uses."""
    text = _render(template, imports=_IMPORTS, **fields)
    imports = imports_of(text, {**IMPORTABLE, **(siblings or {})})
    ast.parse(imports)
    return text.replace(_IMPORTS, imports, 1)


def _by_library(catalogue: ir.Catalogue) -> dict[str, list[ir.Kernel]]:
    libraries: dict[str, list[ir.Kernel]] = {}
    for kernel in catalogue.kernels:
        libraries.setdefault(kernel.library, []).append(kernel)
    return libraries


def _render(template: str, **fields: object) -> str:
    return _environment().get_template(f"{template}.py.jinja").render(mark=MARK, **fields)


@cache
def _environment() -> jinja2.Environment:
    # Python is emitted, not HTML; every value from YAML is a checked identifier, a checked dotted name or a repr.
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=False,
        undefined=jinja2.StrictUndefined,
        line_statement_prefix="#%",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["repr"] = repr
    environment.filters["docstring"] = _docstring
    return environment


def _docstring(text: str) -> str:
    """A text inside triple quotes, before a full stop."""
    return text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')


def _formatted(modules: Mapping[str, str]) -> dict[str, str]:
    """The modules as ruff formats them, with options that no configuration file can change.

    One run for all of them, in a folder of its own: a process for each costs more than the rest of the compiler.
    """
    with TemporaryDirectory(prefix="qscheme-") as made:
        paths = {name: Path(made, f"{name}.py") for name in modules}
        for name, path in paths.items():
            path.write_text(modules[name], encoding="utf-8", newline="\n")
        options = ("--isolated", "--no-cache", "--quiet", "--line-length", "120", "--target-version", "py310")
        subprocess.run([*_ruff(), "format", *options, made], capture_output=True, check=True)
        return {name: path.read_text(encoding="utf-8") for name, path in paths.items()}


@cache
def _ruff() -> tuple[str, ...]:
    beside = Path(sys.executable).with_name("ruff")
    return (str(beside),) if beside.exists() else (sys.executable, "-m", "ruff")
