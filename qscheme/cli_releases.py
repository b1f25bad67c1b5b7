"""The commands about releases of AITER: whether every call fits them, and what a new one offers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from qscheme.cli_input import Json, Schemes, SchemesOrShipped, Trust, catalogue_of, here_or_shipped, print_json


def verify(
    schemes: SchemesOrShipped = None,
    release: Annotated[
        str | None, typer.Option("--release", help="Show one release of AITER.", metavar="v0.1.12")
    ] = None,
    all_releases: Annotated[bool, typer.Option("--all-releases", help="Show every known release (default).")] = False,
    folder: Annotated[
        Path | None, typer.Option("--aiter", help="Show the AITER of a checkout or site-packages.", metavar="PATH")
    ] = None,
    installed: Annotated[bool, typer.Option("--installed", help="Show the installed AITER.")] = False,
    trust: Trust = None,
    as_json: Json = False,
) -> None:
    """Check every call that the schemes can make against AITER's releases, by its source alone."""
    from qscheme.compiler.claims import check
    from qscheme.compiler.release_text import matrix_data, matrix_lines
    from qscheme.compiler.verify import matrices

    if sum((release is not None, all_releases, folder is not None, installed)) > 1:
        raise typer.BadParameter("choose one of --release, --all-releases, --aiter and --installed")
    asked = schemes or here_or_shipped()
    catalogue = catalogue_of(asked, trust)
    shown = matrices(catalogue, release=release, folder=folder, installed=installed)
    problems, notes = check(catalogue, asked)
    if as_json:
        print_json({"matrices": list(map(matrix_data, shown)), "problems": problems, "notes": notes})
    else:
        for matrix in shown:
            print(*matrix_lines(matrix), "", sep="\n")
        print(*(f"note: {note}" for note in notes), *problems, sep="\n")
    if problems:
        raise typer.Exit(1)


def scan_aiter(
    path: Annotated[Path, typer.Argument(help="AITER: a git checkout or mirror, or a package folder.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="File to write; DIR/releases/aiter.json for git.", metavar="FILE")
    ] = None,
    schemes: Schemes = Path("schemes"),
    only_new: Annotated[bool, typer.Option("--only-new", help="Do not scan known releases again.")] = False,
    as_json: Json = False,
) -> None:
    """Write what each release tag of AITER offers; for a package folder, what changed since the newest release."""
    import json

    from qscheme.releases import api_changes, read_history, updated_history
    from qscheme.scanning import flattened, is_git, package_folder, scan
    from qscheme.tables import shipped_schemes

    file = Path("releases", "aiter.json")
    known = read_history(schemes / file if (schemes / file).is_file() else shipped_schemes() / file)
    if is_git(path):
        target = out or schemes / file
        if not target.absolute().parent.is_dir():
            raise typer.BadParameter(f"there is no folder {target.parent}; name a file", param_hint="--out")
        history = updated_history(path, known, only_new)
        text = history.text()
        changed = not target.is_file() or target.read_text(encoding="utf-8") != text
        if changed:
            target.write_text(text, encoding="utf-8")
        found = {"file": str(target), "changed": changed, "releases": history.releases}
        if as_json:
            print_json(found)
        else:
            span = f"{len(history.releases)} releases, {history.releases[0]} to {history.releases[-1]}"
            print(f"{span}, in {target}: {'written' if changed else 'up to date'}")
        return
    offer = scan(package_folder(path, known.library), known.plan, known.library)
    if out is not None:
        out.write_text(json.dumps(offer, indent=1) + "\n", encoding="utf-8")
    elif as_json:
        print_json(offer)
    else:
        newest = flattened(known.survey(len(known.releases) - 1))
        changes = api_changes(newest, offer)
        print(*(changes or ("nothing changed",)), sep="\n")
        print(f"{len(changes)} differences from {known.library} {known.releases[-1]}", file=sys.stderr)
