"""The command line: compile schemes, look at tables, ask what would run where and why not."""

from __future__ import annotations

import keyword
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qscheme.errors import OutputError, QschemeError, SchemeFileError

if TYPE_CHECKING:
    from qscheme.compiler.folder import Folder
    from qscheme.compiler.ir import Catalogue
    from qscheme.compiler.source import Problem
    from qscheme.tables import Tables

app = typer.Typer(
    name="qscheme", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    # Where there is no terminal, nothing is put in boxes, wrapped or cut.
    rich_markup_mode="rich" if sys.stderr.isatty() else None,
    context_settings={} if sys.stderr.isatty() else {"terminal_width": 10_000, "max_content_width": 10_000},
    help="Quantized linear layers as data.",
)  # fmt: skip

Schemes = Annotated[Path, typer.Option("--schemes", help="Folder of scheme files.", metavar="DIR")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON alone.")]
Trust = Annotated[
    list[str] | None, typer.Option("--trust-library", help="A further library that symbols may name.", metavar="NAME")
]
TablesName = Annotated[
    str | None, typer.Option("--tables", help="Generated package to read, not the shipped one.", metavar="PACKAGE")
]


def main() -> None:
    """Run the command line: 0 done, 1 the answer is no, 2 wrong use."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except SchemeFileError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
    except OutputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except QschemeError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)


@app.command()
def generate(
    schemes: Schemes = Path("schemes"),
    out: Annotated[Path, typer.Option("--out", help="Output folder.", metavar="DIR")] = Path("generated"),
    package: Annotated[str, typer.Option("--package", help="Name of the generated package.")] = "qscheme_generated",
    check: Annotated[bool, typer.Option("--check", help="Write nothing; show what is stale and exit 1.")] = False,
    trust: Trust = None,
    as_json: Json = False,
) -> None:
    """Compile schemes into typed dispatch tables."""
    from qscheme.compiler.output import compare, write

    if not (package.isascii() and package.isidentifier()) or keyword.iskeyword(package) or package == "qscheme":
        raise typer.BadParameter(f"{package!r} cannot be the name of a generated package", param_hint="--package")
    try:
        files = _compiled(schemes, package, trust)
    except SchemeFileError as error:
        if as_json:
            _print_json({"problems": list(error.problems)})
        raise
    # Another package of ours may stand beside this one: it is not looked into.
    differences = compare(files, out, (package,)) if check else write(files, out, (package,))
    changes = {
        "changed": differences.changed, "missing": differences.missing,
        "stale": differences.stale, "foreign": differences.foreign,
    }  # fmt: skip
    if as_json:
        _print_json({name: list(paths) for name, paths in changes.items()})
    elif check and differences:
        print(differences.diff(), end="")
        print(f"generated files in {out} are stale; run `qscheme generate`", file=sys.stderr)
    else:
        done = sum(map(len, changes.values()))
        print(f"{len(files)} files in {out}: " + (f"{done} written or deleted" if done else "all up to date"))
    if check and differences:
        raise typer.Exit(1)


@app.command()
def lint(
    schemes: Schemes = Path("schemes"),
    trust: Trust = None,
    explain_id: Annotated[
        str | None, typer.Option("--explain", help="Explain one kind of finding; `all` for every one.", metavar="ID")
    ] = None,
    as_json: Json = False,
) -> None:
    """Find what the compiler accepts and a reviewer would not: dead backends, gaps, conditions that say nothing."""
    from qscheme.compiler.lint import lint, refusal
    from qscheme.compiler.lint_rules import RULES, explanation
    from qscheme.errors import suggestion

    if explain_id is not None:
        if explain_id not in (*RULES, "all"):
            raise typer.BadParameter(f"no finding {explain_id}{suggestion(explain_id, RULES)}", param_hint="--explain")
        shown = RULES.values() if explain_id == "all" else (RULES[explain_id],)
        if as_json:
            _print_json([rule._asdict() for rule in shown])
        else:
            print("\n\n".join(map(explanation, shown)))
        return
    folder, catalogue, problems = _read(schemes, trust)
    findings = tuple(map(refusal, problems)) if problems else lint(folder, catalogue)
    if as_json:
        _print_json({"problems": [str(problem) for problem in problems], "findings": [f.data() for f in findings]})
    elif findings:
        print(*findings, sep="\n")
    else:
        print(f"nothing to report in {schemes}")
    if findings:
        raise typer.Exit(1)


@app.command()
def diff(
    old: Annotated[str, typer.Argument(help="Folder of scheme files, or git:REV or git:REV:FOLDER.", metavar="OLD")],
    new: Annotated[str, typer.Argument(help="The same, as it is to be.", metavar="NEW")],
    trust: Trust = None,
    as_json: Json = False,
) -> None:
    """Say what a change of YAML changes: which backend runs where, how it is called, how it rounds."""
    from qscheme.compiler.difference import difference
    from qscheme.compiler.revision import complete, schemes_at
    from qscheme.tables import shipped_schemes

    with schemes_at(old) as before, schemes_at(new) as after:
        found = difference(
            *(_catalogue(at, trust, at if complete(at) else shipped_schemes()) for at in (before, after))
        )
    if as_json:
        _print_json(found.data())
    else:
        print(*(found.lines() if found else (f"no decision differs between {old} and {new}",)), sep="\n")
    if found:
        raise typer.Exit(1)


@app.command("list")
def list_schemes(tables: TablesName = None, as_json: Json = False) -> None:
    """List the schemes and their backends."""
    from qscheme.report import scheme_data, scheme_table

    data = scheme_data(_tables(tables))
    if as_json:
        _print_json(data)
    else:
        scheme_table(data)


@app.command()
def doctor(
    device: Annotated[
        str | None, typer.Option("--device", help="cpu, cuda:0, ...; this machine's accelerator if absent.")
    ] = None,
    tables: TablesName = None,
    as_json: Json = False,
) -> None:
    """Show the facts of this machine, and where each came from."""
    from qscheme.facts import Facts
    from qscheme.report import facts_data, facts_table

    found = Facts.of_this_machine(device, tables=_tables(tables))
    if as_json:
        _print_json(facts_data(found))
    else:
        facts_table(found)


@app.command()
def explain(
    scheme: Annotated[str, typer.Argument(help="Scheme of the layer.")],
    n: Annotated[int, typer.Option("-n", help="Output features of this rank's shard.", min=1)],
    k: Annotated[int, typer.Option("-k", help="Input features of this rank's shard.", min=1)],
    full_n: Annotated[
        int | None, typer.Option("--full-n", help="Output features of all shards (column parallel).", min=1)
    ] = None,
    full_k: Annotated[
        int | None, typer.Option("--full-k", help="Input features of all shards (row parallel).", min=1)
    ] = None,
    m: Annotated[int | None, typer.Option("-m", help="Rows of x; shows only the call for them.", min=0)] = None,
    arch: Annotated[str | None, typer.Option("--arch", help="Architecture; this machine's if absent.")] = None,
    out_dtype: Annotated[str, typer.Option("--out-dtype", help="bf16, fp16 or fp32.")] = "bf16",
    bias: Annotated[bool, typer.Option("--bias", help="The layer has a bias.")] = False,
    rotation: Annotated[int | None, typer.Option("--rotation", help="Block size of a Hadamard rotation: 32.")] = None,
    aiter: Annotated[  # noqa: A002
        str | None, typer.Option("--aiter", help="AITER's release, or none.", metavar="0.1.20|none")
    ] = None,
    torch: Annotated[str | None, typer.Option("--torch", help="torch's release, or none.")] = None,
    rocm: Annotated[str | None, typer.Option("--rocm", help="ROCm's version, or none.", metavar="7.2|none")] = None,
    cuda: Annotated[str | None, typer.Option("--cuda", help="CUDA's version, or none.", metavar="12.8|none")] = None,
    triton: Annotated[
        str | None, typer.Option("--triton", help="Triton's version, or none.", metavar="3.4|none")
    ] = None,
    switch: Annotated[
        list[str] | None, typer.Option("--switch", help="NAME=on or NAME=off.", metavar="NAME=on|off")
    ] = None,
    tuned: Annotated[
        str | None, typer.Option("--tuned", help="all, none, or a CSV file.", metavar="all|none|FILE")
    ] = None,
    compute_units: Annotated[int | None, typer.Option("--compute-units", help="For tuned tables.", min=1)] = None,
    backend: Annotated[str | None, typer.Option("--backend", help="Consider this backend only.")] = None,
    disable: Annotated[list[str] | None, typer.Option("--disable", help="Do not consider this backend.")] = None,
    batch_invariant: Annotated[bool, typer.Option("--batch-invariant", help="Rows must not depend on M.")] = False,
    tables: TablesName = None,
    as_json: Json = False,
) -> None:
    """Say which backend would run a layer, and why each better one would not."""
    from qscheme.report import decide, decision_data, print_decision, words_of_switches

    found = _tables(tables)
    switches = words_of_switches(switch or [], batch_invariant=batch_invariant)
    named = {"aiter": aiter, "torch": torch, "rocm": rocm, "cuda": cuda, "triton": triton}
    libraries = {name: given for name, given in named.items() if given is not None}
    facts, decision = decide(
        found, scheme, n=n, k=k, full_n=full_n, full_k=full_k, m=m, arch=arch, out_dtype=out_dtype, bias=bias,
        rotation=rotation, switches=switches,
        tuned=tuned, compute_units=compute_units, backend=backend, disabled=disable or [], libraries=libraries,
    )  # fmt: skip
    for note in facts.notes:
        print(f"note: {note}", file=sys.stderr)
    if as_json:
        _print_json(decision_data(facts, decision))
    else:
        print_decision(facts, decision)
    if decision.chosen is None:
        raise typer.Exit(1)


@app.command()
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

    known = _tables(tables).tuned
    files = [found for path in paths for found in files_of(path, known, table)]
    count, illegal = illegal_rows(files)
    if as_json:
        _print_json({"files": len(files), "rows": count, "illegal": [one._asdict() for one in illegal]})
    else:
        print(*illegal, f"{len(illegal)} mistakes in {count} rows of {len(files)} files", sep="\n")
    if illegal:
        raise typer.Exit(1)


@app.command()
def verify(
    schemes: Annotated[
        Path | None, typer.Option("--schemes", help="Folder of scheme files; here or shipped.", metavar="DIR")
    ] = None,
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
    from qscheme.tables import shipped_schemes

    if sum((release is not None, all_releases, folder is not None, installed)) > 1:
        raise typer.BadParameter("choose one of --release, --all-releases, --aiter and --installed")
    asked = schemes or (here if (here := Path("schemes")).is_dir() else shipped_schemes())
    catalogue = _catalogue(asked, trust)
    shown = matrices(catalogue, release=release, folder=folder, installed=installed)
    problems, notes = check(catalogue, asked)
    if as_json:
        _print_json({"matrices": list(map(matrix_data, shown)), "problems": problems, "notes": notes})
    else:
        for matrix in shown:
            print(*matrix_lines(matrix), "", sep="\n")
        print(*(f"note: {note}" for note in notes), *problems, sep="\n")
    if problems:
        raise typer.Exit(1)


@app.command("scan-aiter")
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
            _print_json(found)
        else:
            span = f"{len(history.releases)} releases, {history.releases[0]} to {history.releases[-1]}"
            print(f"{span}, in {target}: {'written' if changed else 'up to date'}")
        return
    offer = scan(package_folder(path, known.library), known.plan, known.library)
    if out is not None:
        out.write_text(json.dumps(offer, indent=1) + "\n", encoding="utf-8")
    elif as_json:
        _print_json(offer)
    else:
        newest = flattened(known.survey(len(known.releases) - 1))
        changes = api_changes(newest, offer)
        print(*(changes or ("nothing changed",)), sep="\n")
        print(f"{len(changes)} differences from {known.library} {known.releases[-1]}", file=sys.stderr)


def _compiled(schemes: Path, package: str, trust: list[str] | None) -> dict[str, str]:
    from qscheme.compiler.emit import emit

    return emit(_catalogue(schemes, trust), package)


def _catalogue(schemes: Path, trust: list[str] | None, shipped: Path | None = None) -> Catalogue:
    _, catalogue, problems = _read(schemes, trust, shipped)
    if problems:
        raise SchemeFileError(str(problem) for problem in problems)
    return catalogue


def _read(
    schemes: Path, trust: list[str] | None, shipped: Path | None = None
) -> tuple[Folder, Catalogue, tuple[Problem, ...]]:
    from qscheme.compiler.folder import read_folder
    from qscheme.compiler.resolve import resolve
    from qscheme.tables import shipped_schemes

    if not schemes.is_dir():
        raise typer.BadParameter(f"there is no folder {schemes}", param_hint="--schemes")
    folder = read_folder(schemes, shipped or shipped_schemes())
    return folder, *resolve(folder, trust or ())


def _tables(package: str | None) -> Tables:
    from qscheme.tables import load

    if package is not None and "" not in sys.path:
        sys.path.insert(0, "")
    return load(package)


def _print_json(data: object) -> None:
    import json

    print(json.dumps(data, indent=2))


if __name__ == "__main__":
    main()
