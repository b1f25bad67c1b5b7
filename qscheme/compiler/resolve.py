"""Models of all files -> the catalogue they mean, and everything that needs more than one file to check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from qscheme.compiler import ir
from qscheme.compiler.calls import resolve_calls
from qscheme.compiler.conditions import checks_of
from qscheme.compiler.generated_names import TAKEN
from qscheme.compiler.kernels import resolve_kernel, rule_of, table_problems
from qscheme.compiler.mistakes import unknown
from qscheme.compiler.needs import merged_needs, misplaced, nothing_in_common
from qscheme.compiler.operands import operand_problems
from qscheme.compiler.source import Problem
from qscheme.compiler.versions import kernel_problems, needs_problems
from qscheme.types import Device, LibrarySource, Operand, Switch, TunedTable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qscheme.compiler import model
    from qscheme.compiler.folder import File, Folder
    from qscheme.compiler.kernel_model import KernelFile
    from qscheme.compiler.source import Place

    AnyFile: TypeAlias = File[KernelFile] | File[model.SchemeFile]

TRUSTED = ("aiter", "torch", "triton", "qscheme")
"""Libraries whose symbols a kernel file may name without being told so at generation."""


def resolve(folder: Folder, trusted: Iterable[str] = ()) -> tuple[ir.Catalogue, tuple[Problem, ...]]:
    """The catalogue of a folder, and every problem that was found; the catalogue is whole only if there is none."""
    resolver = _Resolver(folder, (*TRUSTED, *trusted))
    return resolver.catalogue(), tuple(sorted({*folder.problems, *resolver.problems}))


class _Resolver:
    """Collects problems while it goes from files to the catalogue.

    broken: kernels with a problem, as LIBRARY.NAME. The backends that use them are left out without another word.
    """

    def __init__(self, folder: Folder, trusted: tuple[str, ...]) -> None:
        self.folder = folder
        self.trusted = trusted
        self.problems: list[Problem] = []
        self.devices = folder.devices.model.devices if folder.devices else None
        switches = folder.switches.model.switches if folder.switches else {}
        self.switches = {
            name: Switch(name, switch.default, switch.variables, switch.meaning) for name, switch in switches.items()
        }
        self.libraries: dict[str, tuple[LibrarySource, Place]] = {}
        self.tables: dict[str, tuple[TunedTable, Place]] = {}
        self.kernels: dict[str, tuple[ir.Kernel, model.Needs]] = {}
        self.broken: set[str] = set()

    def catalogue(self) -> ir.Catalogue:
        for file in self.folder.kernels:
            self.library(file)
        for file in self.folder.kernels:
            self.library_kernels(file)
        self.switch_variables_are_unique()
        schemes = [self.scheme(file) for file in self.folder.schemes]
        return ir.Catalogue(
            schemes=tuple(schemes),
            kernels=tuple(kernel for kernel, _ in self.kernels.values()),
            libraries=tuple(library for library, _ in self.libraries.values()),
            tables=tuple(table for _, (table, _) in sorted(self.tables.items())),
            devices=tuple(_device(name, device) for name, device in sorted((self.devices or {}).items())),
            switches=tuple(switch for _, switch in sorted(self.switches.items())),
            histories=self.folder.histories,
        )

    def report(self, place: Place, message: str) -> None:
        self.problems.append(Problem(place, message))

    def switch_variables_are_unique(self) -> None:
        owners: dict[str, str] = {}
        for name, switch in self.switches.items():
            for position, variable in enumerate(switch.variables):
                owner = owners.setdefault(variable, name)
                if owner != name and self.folder.switches:
                    place = self.folder.switches.place("switches", name, "variables", position)
                    self.report(place, f"{variable} already sets the switch {owner!r}")

    # --- kernels ---------------------------------------------------------------------------------------------------

    def library(self, file: File[KernelFile]) -> None:
        says = file.model
        if says.library not in self.trusted:
            self.report(
                file.place("library"),
                f"library {says.library!r} is not trusted; pass --trust-library {says.library} to load its symbols",
            )
        source = LibrarySource(says.library, says.distributions, says.releases)
        first, place = self.libraries.setdefault(says.library, (source, file.place("library")))
        if first != source:
            message = f"the library {says.library!r} has other distributions or releases at {place}"
            self.report(file.place("library"), message)
        for name, table in says.tuned_tables.items():
            place = file.key_place("tuned_tables", name)
            if name in self.tables:
                message = f"the tuned table {name!r} is defined twice, first at {self.tables[name][1]}"
                self.report(place, message)
                continue
            if name in TAKEN:
                self.report(place, f"the generated code uses the name {name!r} itself; choose another")
            for path, message in table_problems(table):
                self.report(file.place("tuned_tables", name, *path), message)
            products = tuple(sorted(table.products.items()))
            for arch in table.products:
                self.arch_is_known(arch, file, file.key_place("tuned_tables", name, "products", arch))
            kernels = tuple((kernel.name, kernel.splits) for kernel in table.kernels)
            entries = tuple(sorted(table.entries.model_dump(exclude_none=True).items())) if table.entries else ()
            self.tables[name] = (
                TunedTable(
                    name, says.library, table.kind, table.files, table.variable, products,
                    rows=tuple(sorted(table.rows.items())), key=table.key, kernels=kernels, entries=entries,
                ),
                place,
            )  # fmt: skip

    def library_kernels(self, file: File[KernelFile]) -> None:
        for name, kernel in file.model.kernels.items():
            before = len(self.problems)
            if name in self.tables:
                place = file.key_place("kernels", name)
                self.report(place, f"a tuned table is called {name!r} too, at {self.tables[name][1]}; rename one")
            self.needs_are_known(kernel.needs, file, ("kernels", name, "needs"))
            for row, bad in enumerate(kernel.known_bad):
                for position, arch in enumerate(bad.arch):
                    self.arch_is_known(arch, file, file.place("kernels", name, "known_bad", row, "arch", position))
            for inner, message in kernel_problems(kernel, self.libraries):
                self.report(file.place("kernels", name, *inner), message)
            self.kernels[f"{file.stem}.{name}"] = resolve_kernel(name, kernel, file, self.report), kernel.needs
            if len(self.problems) > before:
                self.broken.add(f"{file.stem}.{name}")

    def arch_is_known(self, arch: str, file: AnyFile, place: Place) -> None:
        """A shipped file may name architectures that a folder with devices of its own has not."""
        if self.devices is not None and arch not in self.devices and not file.shipped:
            self.report(place, unknown(arch, self.devices, "architecture"))

    def needs_are_known(self, needs: model.Needs, file: AnyFile, path: tuple[str | int, ...]) -> None:
        for position, arch in enumerate(needs.arch):
            self.arch_is_known(arch, file, file.place(*path, "arch", position))
        for row, where in enumerate(needs.where):
            for position, arch in enumerate(where.arch):
                self.arch_is_known(arch, file, file.place(*path, "where", row, "arch", position))
        for position, switch in enumerate(needs.switches):
            if self.folder.switches and switch not in self.switches:
                self.report(file.place(*path, "switches", position), unknown(switch, self.switches, "switch"))
        for position, tuned in enumerate(needs.tuned):
            if tuned.table not in self.tables and not self.folder.unread:
                place = file.place(*path, "tuned", position, "table")
                self.report(place, unknown(tuned.table, self.tables, "tuned table"))
        for inner, message in (*misplaced(needs), *needs_problems(needs, self.libraries)):
            self.report(file.place(*path, *inner), message)

    # --- schemes ---------------------------------------------------------------------------------------------------

    def scheme(self, file: File[model.SchemeFile]) -> ir.Scheme:
        says = file.model
        if says.scheme != file.stem:
            self.report(file.place("scheme"), f"the scheme is named {says.scheme!r}, but its file {file.stem!r}")
        if says.scheme == "machines" or says.scheme.startswith("kernels_"):
            self.report(file.place("scheme"), f"a generated module is called {says.scheme!r} already; choose another")
        for path, message in operand_problems(says):
            self.report(file.place(*path), message)
        for position, arch in enumerate(says.claims.arch if says.claims else ()):
            self.arch_is_known(arch, file, file.place("claims", "arch", position))
        activation, weight = _activation(says.activation), _weight(says.weight)
        seen: dict[str, Place] = {}
        backends: list[ir.Backend] = []
        for position, backend in enumerate(says.backends):
            place = file.place("backends", position, "name")
            if backend.name in seen:
                self.report(place, f"the backend {backend.name!r} is defined twice, first at {seen[backend.name]}")
            seen.setdefault(backend.name, place)
            resolved = self.backend(backend, activation, weight, file, position)
            if resolved is not None:
                backends.append(resolved)
        self.kernels_have_names_of_their_own(backends)
        stored = says.weight.stored_scales or (says.weight.scale,)
        return ir.Scheme(
            says.scheme, says.title, file.place("scheme"), activation, weight, stored, tuple(backends), says.producers
        )

    def kernels_have_names_of_their_own(self, backends: list[ir.Backend]) -> None:
        """One generated module imports the kernels of all backends by name."""
        owners: dict[str, str] = {}
        for backend in backends:
            for kernel in backend.kernels:
                owner = owners.setdefault(kernel.name, kernel.library)
                if owner != kernel.library:
                    twins = f"{kernel.library}.{kernel.name} and {owner}.{kernel.name}"
                    self.report(backend.place, f"one scheme cannot use both {twins}; rename one of them")

    def backend(
        self,
        backend: model.BackendModel,
        activation: Operand | None,
        weight: Operand,
        file: File[model.SchemeFile],
        position: int,
    ) -> ir.Backend | None:
        path = ("backends", position)
        before = len(self.problems)
        self.needs_are_known(backend.needs, file, (*path, "needs"))
        for row, where in enumerate(backend.needs.where):
            for key, release in (("since", where.since), ("before", where.before)):
                if release is not None:
                    self.report(file.place(*path, "needs", "where", row, key), "belongs to the needs of a kernel")
        known = {name: None if name in self.broken else kernel for name, (kernel, _) in self.kernels.items()}
        calls = resolve_calls(backend, activation, weight, known, self.folder.unread, file, path, self.report)
        if not calls or len(self.problems) > before:
            return None
        used = {f"{k.library}.{k.name}" for call in calls for k in call.kernels}
        kernels = [self.kernels[name] for name in sorted(used)]
        for message in nothing_in_common(backend, kernels, calls):
            self.report(file.place(*path), message)
        if len(self.problems) > before or not all(switch in self.switches for switch in backend.needs.switches):
            return None
        needs = merged_needs(backend, kernels, calls)
        gemm = calls[0].gemm
        return ir.Backend(
            name=backend.name,
            place=file.place(*path),
            calls=calls,
            checks=checks_of(needs, self.switches),
            needs=needs,
            on_use=backend.on_use,
            inputs=needs.inputs,
            weight_layout=_layout(gemm, "weight"),
            weight_scale_layout=_layout(gemm, "weight_scale"),
        )


def _device(name: str, device: model.DeviceModel) -> Device:
    fp8 = None if device.fp8 == "none" else device.fp8
    return Device(
        name, device.vendor, device.family, fp8, device.mx, device.int8, device.wave, device.compute_units,
        device.products,
    )  # fmt: skip


def _activation(says: Literal["none"] | model.ActivationModel) -> Operand | None:
    if isinstance(says, str):
        return None
    rule = rule_of(says.rule)
    return Operand(says.format, says.granularity, says.scale, rule, says.mode, says.symmetric, says.global_scale)


def _weight(says: model.WeightModel) -> Operand:
    rule = rule_of(says.rule)
    return Operand(
        says.format, says.granularity, says.scale, rule, "static", says.symmetric, says.global_scale, says.packing
    )


def _layout(kernel: ir.Kernel, role: str) -> str:
    use = kernel.operand(role)
    return use.layouts[0].layout if use else "row_major"
