"""The command line: compile schemes, look at tables, ask what would run where and why not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qscheme.errors import QschemeError, SchemeFileError

if TYPE_CHECKING:
    from qscheme.compiler.ir import Catalogue
    from qscheme.tables import Tables

app = typer.Typer(
    name="qscheme", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich",
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
    try:
        app()
    except SchemeFileError as error:
        print(error, file=sys.stderr)
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

    if not package.isidentifier():
        raise typer.BadParameter(f"{package!r} is not a Python identifier", param_hint="--package")
    files = _compiled(schemes, package, trust)
    differences = compare(files, out) if check else write(files, out)
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
def lint(schemes: Schemes = Path("schemes"), trust: Trust = None, as_json: Json = False) -> None:
    """Check scheme files without writing anything."""
    try:
        _catalogue(schemes, trust)
    except SchemeFileError as error:
        if as_json:
            _print_json({"problems": list(error.problems)})
        else:
            print(error)
        raise typer.Exit(1) from None
    if as_json:
        _print_json({"problems": []})
    else:
        print(f"nothing to report in {schemes}")


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
    n: Annotated[int, typer.Option("-n", help="Output features.", min=1)],
    k: Annotated[int, typer.Option("-k", help="Input features.", min=1)],
    m: Annotated[int | None, typer.Option("-m", help="Rows of x; shows only the call for them.", min=0)] = None,
    arch: Annotated[str | None, typer.Option("--arch", help="Architecture; this machine's if absent.")] = None,
    out_dtype: Annotated[str, typer.Option("--out-dtype", help="bf16, fp16 or fp32.")] = "bf16",
    bias: Annotated[bool, typer.Option("--bias", help="The layer has a bias.")] = False,
    rotation: Annotated[int | None, typer.Option("--rotation", help="Block size of a Hadamard rotation: 32.")] = None,
    aiter: Annotated[  # noqa: A002
        str | None, typer.Option("--aiter", help="AITER's release, or none.", metavar="0.1.20|none")
    ] = None,
    torch: Annotated[str | None, typer.Option("--torch", help="torch's release, or none.")] = None,
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
    libraries = {name: given for name, given in (("aiter", aiter), ("torch", torch)) if given is not None}
    facts, decision = decide(
        found, scheme, n=n, k=k, m=m, arch=arch, out_dtype=out_dtype, bias=bias, rotation=rotation, switches=switches,
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


def _compiled(schemes: Path, package: str, trust: list[str] | None) -> dict[str, str]:
    from qscheme.compiler.emit import emit

    return emit(_catalogue(schemes, trust), package)


def _catalogue(schemes: Path, trust: list[str] | None) -> Catalogue:
    from qscheme.compiler.folder import read_folder
    from qscheme.compiler.resolve import resolve
    from qscheme.tables import shipped_schemes

    if not schemes.is_dir():
        raise typer.BadParameter(f"there is no folder {schemes}", param_hint="--schemes")
    catalogue, problems = resolve(read_folder(schemes, shipped_schemes()), trust or ())
    if problems:
        raise SchemeFileError(str(problem) for problem in problems)
    return catalogue


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
