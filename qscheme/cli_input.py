"""What every command is given and gives: its options, folders of scheme files, generated tables, JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qscheme.errors import SchemeFileError

if TYPE_CHECKING:
    from qscheme.compiler.folder import Folder
    from qscheme.compiler.ir import Catalogue
    from qscheme.compiler.source import Problem
    from qscheme.tables import Tables

Schemes = Annotated[Path, typer.Option("--schemes", help="Folder of scheme files.", metavar="DIR")]
SchemesOrShipped = Annotated[
    Path | None, typer.Option("--schemes", help="Folder of scheme files; here or shipped.", metavar="DIR")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON alone.")]
Trust = Annotated[
    list[str] | None, typer.Option("--trust-library", help="A further library that symbols may name.", metavar="NAME")
]
TablesName = Annotated[
    str | None, typer.Option("--tables", help="Generated package to read, not the shipped one.", metavar="PACKAGE")
]


def read(
    schemes: Path, trust: list[str] | None, shipped: Path | None = None
) -> tuple[Folder, Catalogue, tuple[Problem, ...]]:
    """A folder of scheme files, what it means, and every problem in it."""
    from qscheme.compiler.folder import read_folder
    from qscheme.compiler.resolve import resolve
    from qscheme.tables import shipped_schemes

    if not schemes.is_dir():
        raise typer.BadParameter(f"there is no folder {schemes}", param_hint="--schemes")
    folder = read_folder(schemes, shipped or shipped_schemes())
    return folder, *resolve(folder, trust or ())


def catalogue_of(schemes: Path, trust: list[str] | None, shipped: Path | None = None) -> Catalogue:
    """What a folder of scheme files means. Raises SchemeFileError with every problem in it."""
    _, catalogue, problems = read(schemes, trust, shipped)
    if problems:
        raise SchemeFileError(str(problem) for problem in problems)
    return catalogue


def here_or_shipped() -> Path:
    """The folder `schemes` where the command runs, or the shipped one."""
    from qscheme.tables import shipped_schemes

    return here if (here := Path("schemes")).is_dir() else shipped_schemes()


def tables_of(package: str | None) -> Tables:
    """The generated package of this name, which may stand where the command runs; the shipped one if None."""
    from qscheme.tables import load

    if package is not None and "" not in sys.path:
        sys.path.insert(0, "")
    return load(package)


def print_json(data: object) -> None:
    """JSON, alone."""
    print(json.dumps(data, indent=2))
