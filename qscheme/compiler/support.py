"""The catalogue -> the support matrix in Markdown: which backends each scheme has on each architecture, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qscheme.compiler.conditions import CONDITIONS
from qscheme.compiler.output import MARK
from qscheme.compiler.release_text import releases_section
from qscheme.compiler.scheme_text import when_text
from qscheme.compiler.verify import against

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from qscheme.compiler import ir
    from qscheme.types import Device


def support_text(catalogue: ir.Catalogue) -> str:
    """support.md: the catalogue, the matrix, the conditions of each scheme, the releases of each library."""
    lines = [
        f"<!-- {MARK} from schemes/. Edit those files instead. -->",
        "# What runs where",
        "",
        *catalogue_table(catalogue),
        "",
        "## By architecture",
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


def catalogue_table(catalogue: ir.Catalogue) -> Iterable[str]:
    """One row for each scheme in Markdown: what it is, who writes it, and its backends by family, best first.

    An architecture stands alone where its family has other backends. A backend marked `*` needs a tuned shape.
    """
    yield "| scheme | what it is | written by | runs on |"
    yield "| --- | --- | --- | --- |"
    for scheme in catalogue.schemes:
        producers = ", ".join(scheme.producers)
        cells = (f"`{scheme.name}`", scheme.title, producers, _runs(scheme, catalogue.devices))
        yield f"| {' | '.join(cell.replace('<', '&lt;') for cell in cells)} |".replace("|  |", "| |")


def _runs(scheme: ir.Scheme, devices: Sequence[Device]) -> str:
    """`cdna3, cdna4: aiter_ck, aiter_triton; everywhere: reference`, or `reference only`."""
    if len(scheme.backends) == 1 and all(runs_on(scheme.backends[0], device) for device in devices):
        return f"{scheme.backends[0].name} only"
    common = [backend for backend in scheme.backends if all(runs_on(backend, device) for device in devices)]
    own = {d.arch: _names(b for b in scheme.backends if b not in common and runs_on(b, d)) for d in devices}
    places: dict[str, list[str]] = {}
    for device in devices:
        alike = [own[other.arch] for other in devices if other.family == device.family]
        place = device.family if set(alike) == {own[device.arch]} else device.arch
        if own[device.arch] and place not in places.setdefault(own[device.arch], []):
            places[own[device.arch]].append(place)
    cells = [f"{', '.join(where)}: {names}" for names, where in places.items()]
    return "; ".join([*cells, f"everywhere: {_names(common)}"] if common else cells)


def _names(backends: Iterable[ir.Backend]) -> str:
    return ", ".join(backend.name + (r"\*" if backend.needs.tuned else "") for backend in backends)


def _matrix(catalogue: ir.Catalogue) -> Iterable[str]:
    names = [scheme.name for scheme in catalogue.schemes]
    yield f"| architecture | {' | '.join(names)} |"
    yield f"| --- |{' --- |' * len(names)}"
    for device in catalogue.devices:
        cells = [_cell(scheme, device) for scheme in catalogue.schemes]
        yield f"| {device.arch} | {' | '.join(cells)} |"


def _cell(scheme: ir.Scheme, device: Device) -> str:
    return _names(backend for backend in scheme.backends if runs_on(backend, device))


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
