"""Decisions, facts and schemes as plain data for JSON, and as text for a terminal."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from rich.console import Console
from rich.table import Table

from qscheme.errors import UnknownFact, UnknownSwitch, suggestion
from qscheme.facts import Facts, parse_switch
from qscheme.operands import DTYPES
from qscheme.selection import explain
from qscheme.types import BATCH_INVARIANT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from qscheme.decision import Decision
    from qscheme.tables import Tables
    from qscheme.types import Layer, Operand


def words_of_switches(words: Sequence[str], *, batch_invariant: bool) -> dict[str, bool]:
    """`NAME=on` and `NAME=off` as a mapping."""
    switches: dict[str, bool] = {BATCH_INVARIANT: True} if batch_invariant else {}
    for word in words:
        name, _, text = word.partition("=")
        value = parse_switch(f"--switch {name}", text)
        if value is None:
            raise UnknownSwitch(f"--switch {word}: needs NAME=on or NAME=off")
        if switches.get(name, value) != value:
            raise UnknownSwitch(f"--switch {name} is both on and off; choose one")
        switches[name] = value
    return switches


def decide(
    tables: Tables,
    scheme: str,
    *,
    n: int,
    k: int,
    full_n: int | None,
    full_k: int | None,
    m: int | None,
    arch: str | None,
    out_dtype: str,
    bias: bool,
    rotation: int | None,
    switches: Mapping[str, bool],
    tuned: str | None,
    compute_units: int | None,
    backend: str | None,
    disabled: Sequence[str],
    libraries: Mapping[str, str],
) -> tuple[Facts, Decision]:
    """What would run a layer of this shape; with an architecture nothing of this machine is asked."""
    dtypes = {word: dtype for dtype, word in DTYPES.items()}
    if out_dtype not in dtypes:
        raise UnknownFact(f"unknown output dtype {out_dtype!r}{suggestion(out_dtype, dtypes)}")
    layer = SimpleNamespace(
        scheme=scheme, weight=None, weight_scale=None, input_scale=None, name="",
        bias=True if bias else None,
        out_dtype=dtypes[out_dtype], out_features=n, in_features=k, rotation=rotation,
        full_out_features=full_n, full_in_features=full_k,
    )  # fmt: skip
    if arch is None:
        given = {
            "--aiter, --torch, --rocm, --cuda or --triton": libraries,
            "--switch": switches,
            "--tuned": tuned,
            "--compute-units": compute_units,
        }
        for option, value in given.items():
            if value:
                raise UnknownFact(f"{option} describes another machine; it needs --arch beside it")
        facts = Facts.of_this_machine(tables=tables)
    else:
        facts = Facts.simulate(
            arch, switches=switches, tuned=tuned or "none", compute_units=compute_units, tables=tables, **libraries
        )
    decision = explain(cast("Layer", layer), facts, tables, backend, disabled, m)
    if arch is not None:
        asks = any(backend.tuned for backend in tables.scheme(scheme).backends)
        silent = (*(["no shape is tuned (--tuned none)"] if asks and tuned is None else []), *_taken(facts))
        decision = decision._replace(assumed=(*decision.assumed, *silent))
    return facts, decision


def _taken(facts: Facts) -> Iterator[str]:
    """The sizes and versions that were taken of a simulated machine, as nothing was said of them."""
    if facts.origins.get("compute_units", "").startswith("default"):
        yield f"{facts.compute_units} compute units"
    silent = [
        f"{name} {library.version}"
        for name, library in sorted(facts.libraries.items())
        if library.version is not None
        and library.absence is None
        and facts.origins.get(_label(facts, name)) == "default"
    ]
    if silent:
        yield f"versions: {', '.join(silent)}"


def decision_data(facts: Facts, decision: Decision) -> dict[str, object]:
    """A decision as JSON: scheme, facts, chosen with its calls or null, refused with reasons, mismatches."""
    chosen = {
        "backend": decision.chosen,
        "calls": [{"when": call.when, "quantize": call.quantize, "gemm": call.gemm} for call in decision.calls],
    }
    return {
        "scheme": decision.scheme,
        "facts": facts_data(facts),
        "chosen": chosen if decision.chosen else None,
        "refused": [
            {
                "backend": refusal.backend,
                "reasons": [
                    {"kind": reason.kind, "needs": reason.needs, "found": reason.found, "text": reason.text}
                    for reason in refusal.reasons
                ],
            }
            for refusal in decision.refused
        ],
        "mismatches": [{**mismatch._asdict(), "text": mismatch.text} for mismatch in decision.mismatches],
        "assumed": list(decision.assumed),
        "rests_on": list(decision.rests_on),
    }


def facts_data(facts: Facts) -> dict[str, object]:
    """Facts as JSON, each with where it came from under `origins`."""
    return {
        "arch": facts.arch,
        "device": facts.device._asdict(),
        "index": facts.index,
        "compute_units": facts.compute_units,
        "libraries": {name: library._asdict() for name, library in sorted(facts.libraries.items())},
        "switches": dict(sorted(facts.switches.items())),
        "notes": list(facts.notes),
        "origins": dict(sorted(facts.origins.items())),
    }


def scheme_data(tables: Tables) -> dict[str, object]:
    """Every scheme as JSON: its name, title, operands and backends."""
    return {
        "schemes": [
            {
                "scheme": scheme.name,
                "title": scheme.title,
                "activation": None if scheme.activation is None else _operand_data(scheme.activation),
                "weight": _operand_data(scheme.weight),
                "backends": [backend.name for backend in scheme.backends],
                "producers": list(scheme.producers),
            }
            for scheme in map(tables.scheme, tables.schemes)
        ]
    }


def scheme_table(data: Mapping[str, object]) -> None:
    """Print the schemes."""
    rows = cast("list[dict[str, object]]", data["schemes"])
    body = [(str(row["scheme"]), str(row["title"]), ", ".join(cast("list[str]", row["backends"]))) for row in rows]
    _print(("scheme", "title", "backends, best first"), body)


def facts_table(facts: Facts) -> None:
    """Print the facts, and where each came from."""
    device, origins = facts.device, facts.origins
    units = "unknown" if facts.compute_units is None else str(facts.compute_units)
    rows = [
        ("architecture", f"{device.arch} ({device.vendor}, {device.family})", origins.get("device", "")),
        ("FP8 flavour", device.fp8 or "no FP8 matrix units", "devices.yaml"),
        ("MX matrix units", "yes" if device.mx else "no", "devices.yaml"),
        ("INT8 matrix units", "yes" if device.int8 else "no", "devices.yaml"),
        ("compute units", units, origins.get("compute_units", "")),
    ]
    for name, library in sorted(facts.libraries.items()):
        found = library.absence or f"{library.version or 'unknown version'}"
        label = _label(facts, name)
        rows.append((label, found, origins.get(label, "")))
    for name, on in sorted(facts.switches.items()):
        rows.append((f"switch {name}", "on" if on else "off", origins.get(f"switch {name}", "")))
    _print(("fact", "value", "from"), rows)
    for note in facts.notes:
        print(f"note: {note}")


def _label(facts: Facts, name: str) -> str:
    """The words under which facts say where a version comes from."""
    return f"toolchain {name}" if f"toolchain {name}" in facts.origins else f"library {name}"


def print_decision(facts: Facts, decision: Decision) -> None:
    """Print what runs, why each better backend does not, and where the numerics differ."""
    print(f"{decision.scheme} on {facts.arch}: {decision.chosen or 'no backend can run it'}")
    for call in decision.calls:
        print(f"  {call.when}: {f'{call.quantize}, then ' if call.quantize else ''}{call.gemm}")
    for refusal in decision.refused:
        print(f"  not {refusal.backend}:")
        for reason in refusal.reasons:
            print(f"    [{reason.kind}] {reason.text}")
    for mismatch in decision.mismatches:
        print(f"  numerics: {mismatch.text}")
    for row in decision.rests_on:
        print(f"  rests on: {row}")
    for assumed in decision.assumed:
        print(f"  assumed: {assumed}")


def _operand_data(operand: Operand) -> dict[str, object]:
    return {
        "format": operand.format,
        "granularity": operand.granularity,
        "scale": operand.scale,
        "mode": operand.mode,
        "rule": operand.rule._asdict(),
    }


def _print(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on a terminal; aligned text of any width elsewhere."""
    console = Console()
    if console.is_terminal:
        table = Table(*header)
        for row in rows:
            table.add_row(*row)
        console.print(table)
        return
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for row in (header, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
