"""The catalogue -> the support matrix in Markdown: which backends each scheme has on each architecture, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qscheme.compiler.conditions import CONDITIONS
from qscheme.compiler.output import MARK
from qscheme.compiler.release_text import releases_section
from qscheme.compiler.scheme_text import when_text
from qscheme.compiler.verify import against

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qscheme.compiler import ir
    from qscheme.types import Device


def support_text(catalogue: ir.Catalogue) -> str:
    """support.md: a matrix, one table of conditions and calls for each scheme, one of releases for each library."""
    lines = [
        f"<!-- {MARK} from schemes/. Edit those files instead. -->",
        "# What runs where",
        "",
        "Each cell lists the backends that the hardware can run, best first; the first without another reason against",
        "it is used. A backend marked `*` also needs a tuned shape.",
        "",
        *_matrix(catalogue),
    ]
    for scheme in catalogue.schemes:
        lines += ["", f"## {scheme.name}", "", scheme.title.replace("<", "&lt;") + ".", "", *_conditions(scheme)]
    for matrix in (against(catalogue, history) for history in catalogue.histories):
        lines += ["", *releases_section(matrix)] if matrix.backends else []
    lines += ["", "## Conditions", "", "| condition | tested | holds when |", "| --- | --- | --- |"]
    lines += [f"| `{row.word}` | {_phase(row.phase)} | {row.prose} |" for row in CONDITIONS]
    return "\n".join(lines) + "\n"


def runs_on(backend: ir.Backend, device: Device) -> bool:
    """Whether the hardware conditions of a backend hold."""
    return meets(backend.needs, device)


def meets(needs: ir.Needs, device: Device) -> bool:
    """Whether the hardware conditions among some needs hold."""
    return (
        (needs.arch is None or device.arch in needs.arch)
        and (needs.vendor is None or device.vendor in needs.vendor)
        and (not needs.mx or device.mx)
        and (not needs.int8 or device.int8)
    )


def _matrix(catalogue: ir.Catalogue) -> Iterable[str]:
    names = [scheme.name for scheme in catalogue.schemes]
    yield f"| architecture | {' | '.join(names)} |"
    yield f"| --- |{' --- |' * len(names)}"
    for device in catalogue.devices:
        cells = [_cell(scheme, device) for scheme in catalogue.schemes]
        yield f"| {device.arch} | {' | '.join(cells)} |"


def _cell(scheme: ir.Scheme, device: Device) -> str:
    able = [backend for backend in scheme.backends if runs_on(backend, device)]
    return ", ".join(backend.name + (r"\*" if backend.needs.tuned else "") for backend in able)


def _conditions(scheme: ir.Scheme) -> Iterable[str]:
    yield "| backend | needs | calls |"
    yield "| --- | --- | --- |"
    for backend in scheme.backends:
        needs = "; ".join(check.prose for check in backend.checks) or "nothing"
        calls = "; ".join(
            f"{when_text(call)}: {', '.join(f'{kernel.library}.{kernel.name}' for kernel in call.kernels)}"
            for call in backend.calls
        )
        yield f"| {backend.name} | {needs} | {calls} |"


def _phase(phase: str) -> str:
    return {
        "environment": "once per process",
        "layer": "once per layer",
        "weights": "once weights are loaded",
        "call": "per call",
    }[phase]
