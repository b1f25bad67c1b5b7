"""Findings about what the folder declares and nothing uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qscheme.compiler.lint_rules import finding
from qscheme.compiler.support import runs_on
from qscheme.types import BATCH_INVARIANT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from qscheme.compiler import ir
    from qscheme.compiler.folder import File, Folder
    from qscheme.compiler.kernel_model import KernelFile
    from qscheme.compiler.lint_rules import Finding
    from qscheme.compiler.lint_subject import Subject


def unused_findings(folder: Folder, catalogue: ir.Catalogue, subjects: Sequence[Subject]) -> Iterator[Finding]:
    """Kernels, options, layouts, switches, tables, products and devices that decide nothing."""
    backends = [backend for scheme in catalogue.schemes for backend in scheme.backends]
    calls: dict[tuple[str, str], list[ir.Call]] = {}
    for backend in backends:
        for call in backend.calls:
            for kernel in call.kernels:
                calls.setdefault((kernel.library, kernel.name), []).append(call)
    kernels = {(kernel.library, kernel.name): kernel for kernel in catalogue.kernels}
    asked = [needs for file in folder.kernels for kernel in file.model.kernels.values() for needs in (kernel.needs,)]
    asked += [backend.needs for file in folder.schemes for backend in file.model.backends]
    switches = {name for needs in asked for name in needs.switches} | {BATCH_INVARIANT}
    tables = {row.table for needs in asked for row in needs.tuned}
    for file in folder.kernels:
        for name in file.model.kernels:
            used = calls.get((file.stem, name))
            if used is None:
                cure = "use it, or remove it"
                yield finding("QS120", file, ("kernels", name), f"no backend uses {file.stem}.{name}", cure, key=True)
            else:
                yield from _kernel(file, kernels[file.stem, name], used)
        for name in file.model.tuned_tables:
            if name not in tables:
                yield finding("QS122", file, ("tuned_tables", name), f"nothing asks for {name}", "remove it", key=True)
            else:
                yield from _products(file, name, catalogue)
    for name in folder.switches.model.switches if folder.switches else ():
        if name not in switches and folder.switches:
            message, cure = f"nothing needs the switch {name}", "remove it, or name it in the needs of a backend"
            yield finding("QS121", folder.switches, ("switches", name), message, cure, key=True)
    known = _told_apart(subjects)
    for at, device in enumerate(catalogue.devices if folder.devices else ()):
        if device.fp8 is None and not known >> at & 1 and folder.devices:
            message = f"no backend tells {device.arch} from an architecture that is not listed"
            cure = "name it at the kernels that run there, or remove it"
            yield finding("QS124", folder.devices, ("devices", device.arch), message, cure, key=True)


def _told_apart(subjects: Sequence[Subject]) -> int:
    """The devices, as bits, that a condition of some backend tells from an unknown architecture, which is the last."""
    found = 0
    for subject in subjects:
        full = subject.space.axes[0].full
        for box in (box for held in subject.accepted for box in (held.cube, *held.refused)):
            found |= full & ~box[0] if box[0] > full >> 1 else box[0]
    return found


def _kernel(file: File[KernelFile], kernel: ir.Kernel, calls: list[ir.Call]) -> Iterator[Finding]:
    """An option that no call turns on, and layouts of x_scale that no call passes."""
    option, path = kernel.scale_option, ("kernels", kernel.name)
    if option is not None and not any(value for call in calls for _, value in call.options):
        message = f"no call turns on {option[0]} of {kernel.name}, so it never writes {option[1]}"
        yield finding("QS125", file, (*path, "scale", "option"), message, "remove the option", key=True)
    use = kernel.operand("x_scale")
    for row, layout in enumerate(use.layouts if use and len(use.layouts) > 1 else ()):
        if not any(call.x_scale == layout for call in calls):
            low = 0 if not row or not use else (use.layouts[row - 1].max_m or 0) + 1
            high = "any" if layout.max_m is None else layout.max_m
            message = f"no call of {kernel.name} passes {layout.layout} scales"
            at = (*path, "operands", "x_scale", "layout", row)
            yield finding("QS126", file, at, message, "remove the row", (("M", f"{low} to {high}"),))


def _products(file: File[KernelFile], name: str, catalogue: ir.Catalogue) -> Iterator[Finding]:
    """Product names on architectures where nothing asks for the table."""
    asking = [
        backend
        for scheme in catalogue.schemes
        for backend in scheme.backends
        if any(row.table == name for row in backend.needs.tuned)
    ]
    devices = {device.arch: device for device in catalogue.devices}
    for arch in file.model.tuned_tables[name].products:
        if not any(runs_on(backend, devices[arch]) for backend in asking):
            message = f"no backend that asks for {name} runs on {arch}"
            path = ("tuned_tables", name, "products", arch)
            yield finding("QS123", file, path, message, "remove the product", (("arch", arch),), key=True)
