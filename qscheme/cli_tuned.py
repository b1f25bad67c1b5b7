"""The command that looks at tables of tuned shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qscheme.cli_input import Json, TablesName, print_json, tables_of


def check(
    paths: Annotated[
        list[Path], typer.Argument(help="Files, or the folder of a library's package.", metavar="TABLE...")
    ],
    table: Annotated[
        str | None, typer.Option("--table", help="The tuned table they belong to; told by their names if absent.")
    ] = None,
    tables: TablesName = None,
    as_json: Json = False,
) -> None:
    """Find rows of tuned tables that cannot be right: a tile beyond K, a split that does not divide, a shape twice."""
    from qscheme.legality import files_of, illegal_rows

    known = tables_of(tables).tuned
    files = [found for path in paths for found in files_of(path, known, table)]
    count, passed, illegal = illegal_rows(files)
    number = len({path for path, _ in files})
    if as_json:
        rows = [one._asdict() for one in illegal]
        print_json({"files": number, "rows": count, "rows_of_no_table": passed, "illegal": rows})
    else:
        rest = f"; {passed} rows that no backend asks for were passed over" if passed else ""
        print(*illegal, f"{len(illegal)} mistakes in {count} rows of {number} files{rest}", sep="\n")
    if illegal:
        raise typer.Exit(1)
