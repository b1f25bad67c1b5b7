"""The command line: compile schemes, look at tables, ask what would run where and why not."""

from __future__ import annotations

import keyword
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from qscheme import cli_releases
from qscheme.cli_input import (
    Json,
    Schemes,
    TablesName,
    Trust,
    catalogue_of,
    here_or_shipped,
    print_json,
    read,
    tables_of,
)
from qscheme.errors import OutputError, QschemeError, SchemeFileError

app = typer.Typer(
    name="qscheme", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    # Where there is no terminal, nothing is put in boxes, wrapped or cut.
    rich_markup_mode="rich" if sys.stderr.isatty() else None,
    context_settings={} if sys.stderr.isatty() else {"terminal_width": 10_000, "max_content_width": 10_000},
    help="Quantized linear layers as data.",
)  # fmt: skip


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
    from qscheme.compiler.emit import emit
    from qscheme.compiler.output import compare, write

    if not (package.isascii() and package.isidentifier()) or keyword.iskeyword(package) or package == "qscheme":
        raise typer.BadParameter(f"{package!r} cannot be the name of a generated package", param_hint="--package")
    try:
        files = emit(catalogue_of(schemes, trust), package)
    except SchemeFileError as error:
        if as_json:
            print_json({"problems": list(error.problems)})
        raise
    # Another package of ours may stand beside this one: it is not looked into.
    differences = compare(files, out, (package,)) if check else write(files, out, (package,))
    changes = {
        "changed": differences.changed, "missing": differences.missing,
        "stale": differences.stale, "foreign": differences.foreign,
    }  # fmt: skip
    if as_json:
        print_json({name: list(paths) for name, paths in changes.items()})
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
            print_json([rule._asdict() for rule in shown])
        else:
            print("\n\n".join(map(explanation, shown)))
        return
    folder, catalogue, problems = read(schemes, trust)
    findings = tuple(map(refusal, problems)) if problems else lint(folder, catalogue)
    if as_json:
        print_json({"problems": [str(problem) for problem in problems], "findings": [f.data() for f in findings]})
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
            *(catalogue_of(at, trust, at if complete(at) else shipped_schemes()) for at in (before, after))
        )
    if as_json:
        print_json(found.data())
    else:
        print(*(found.lines() if found else (f"no decision differs between {old} and {new}",)), sep="\n")
    if found:
        raise typer.Exit(1)


@app.command("list")
def list_schemes(
    tables: TablesName = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the catalogue of the scheme files here, as a table for a README.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the schemes and their backends."""
    from qscheme.report import scheme_data, scheme_table

    if markdown:
        from qscheme.compiler.support import catalogue_table

        print(*catalogue_table(catalogue_of(here_or_shipped(), None)), sep="\n")
        return

    data = scheme_data(tables_of(tables))
    if as_json:
        print_json(data)
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

    found = Facts.of_this_machine(device, tables=tables_of(tables))
    if as_json:
        print_json(facts_data(found))
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

    found = tables_of(tables)
    switches = words_of_switches(switch or [], batch_invariant=batch_invariant)
    libraries = {name: given for name, given in (("aiter", aiter), ("torch", torch)) if given is not None}
    facts, decision = decide(
        found, scheme, n=n, k=k, m=m, arch=arch, out_dtype=out_dtype, bias=bias, rotation=rotation, switches=switches,
        tuned=tuned, compute_units=compute_units, backend=backend, disabled=disable or [], libraries=libraries,
    )  # fmt: skip
    for note in facts.notes:
        print(f"note: {note}", file=sys.stderr)
    if as_json:
        print_json(decision_data(facts, decision))
    else:
        print_decision(facts, decision)
    if decision.chosen is None:
        raise typer.Exit(1)


app.command()(cli_releases.verify)
app.command("scan-aiter")(cli_releases.scan_aiter)


if __name__ == "__main__":
    main()
