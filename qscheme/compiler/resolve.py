"""Models of all files -> the catalogue they mean, and everything that needs more than one file to check."""

from __future__ import annotations

import keyword
from typing import TYPE_CHECKING, TypeAlias

from qscheme.compiler import ir
from qscheme.compiler.calls import resolve_calls
from qscheme.compiler.conditions import checks_of
from qscheme.compiler.folder import unknown
from qscheme.compiler.needs import intersection, merged_needs
from qscheme.compiler.source import Problem
from qscheme.types import Device, LibrarySource, Operand, Rule, Switch, TunedTable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qscheme.compiler import model
    from qscheme.compiler.folder import File, Folder
    from qscheme.compiler.source import Place

    AnyFile: TypeAlias = File[model.KernelFile] | File[model.SchemeFile]

TRUSTED = ("aiter", "torch", "triton", "qscheme")
"""Libraries whose symbols a kernel file may name without being told so at generation."""

RESERVED = frozenset((
    "machines", "layer", "weights", "facts", "x", "m", "codes", "scale", "weight", "weight_scale", "input_scale",
    "bias", "dtype", "fp8", "rows", "y", "torch", "reasons", "untuned", "apply", "apply_quantized", "activation", "cast",
))  # fmt: skip
"""Words that generated modules use themselves."""


def resolve(folder: Folder, trusted: Iterable[str] = ()) -> tuple[ir.Catalogue, tuple[Problem, ...]]:
    """The catalogue of a folder, and every problem that was found; the catalogue is whole only if there is none."""
    resolver = _Resolver(folder, (*TRUSTED, *trusted))
    return resolver.catalogue(), tuple(sorted({*folder.problems, *resolver.problems}))


class _Resolver:
    """Collects problems while it goes from files to the catalogue."""

    def __init__(self, folder: Folder, trusted: tuple[str, ...]) -> None:
        self.folder = folder
        self.trusted = trusted
        self.problems: list[Problem] = []
        self.devices = folder.devices.model.devices if folder.devices else {}
        self.switches = {
            name: Switch(name, switch.default, switch.variables, switch.meaning)
            for name, switch in (folder.switches.model.switches if folder.switches else {}).items()
        }
        self.tables: dict[str, TunedTable] = {}
        self.kernels: dict[str, tuple[ir.Kernel, model.Needs]] = {}

    def catalogue(self) -> ir.Catalogue:
        libraries = [self.library(file) for file in self.folder.kernels]
        self.switch_variables_are_unique()
        schemes = [self.scheme(file) for file in self.folder.schemes]
        return ir.Catalogue(
            schemes=tuple(schemes),
            kernels=tuple(kernel for kernel, _ in self.kernels.values()),
            libraries=tuple({library.name: library for library in libraries}.values()),
            tables=tuple(table for _, table in sorted(self.tables.items())),
            devices=tuple(self.device(name, device) for name, device in sorted(self.devices.items())),
            switches=tuple(switch for _, switch in sorted(self.switches.items())),
        )

    def report(self, place: Place, message: str) -> None:
        self.problems.append(Problem(place, message))

    def device(self, name: str, device: model.DeviceModel) -> Device:
        fp8 = None if device.fp8 == "none" else device.fp8
        return Device(
            name, device.vendor, device.family, fp8, device.mx, device.int8, device.wave, device.compute_units
        )

    def switch_variables_are_unique(self) -> None:
        owners: dict[str, str] = {}
        for name, switch in self.switches.items():
            for variable in switch.variables:
                owner = owners.setdefault(variable, name)
                if owner != name and self.folder.switches:
                    place = self.folder.switches.place("switches", name, "variables")
                    self.report(place, f"{variable} already sets the switch {owner!r}")

    # --- kernels ---------------------------------------------------------------------------------------------------

    def library(self, file: File[model.KernelFile]) -> LibrarySource:
        library = file.model.library
        if library not in self.trusted:
            self.report(
                file.place("library"),
                f"library {library!r} is not trusted; pass --trust-library {library} to load its symbols",
            )
        for name, table in file.model.tuned_tables.items():
            if name in self.tables:
                self.report(file.place("tuned_tables", name), f"the tuned table {name!r} is defined twice")
            self.tables[name] = TunedTable(
                name, library, table.kind, table.files, table.variable, tuple(sorted(table.products.items()))
            )
        for name, kernel in file.model.kernels.items():
            self.identifier(name, file.place("kernels", name))
            self.needs_are_known(kernel.needs, file, ("kernels", name, "needs"))
            self.kernels[f"{file.stem}.{name}"] = self.kernel(name, kernel, file), kernel.needs
        return LibrarySource(library, file.model.distributions, file.model.releases)

    def kernel(self, name: str, kernel: model.KernelModel, file: File[model.KernelFile]) -> ir.Kernel:
        symbols = (kernel.symbol,) if isinstance(kernel.symbol, str) else kernel.symbol
        config = kernel.config
        for symbol in (
            *symbols,
            *(config.from_ if config else ()),
            *(s for older in kernel.older for s in older.symbol),
        ):
            if symbol.split(".")[0] != file.model.library:
                place = file.place("kernels", name, "symbol")
                self.report(place, f"the symbol {symbol} is not in the library {file.model.library!r} of this file")
        for role, use in kernel.operands.items():
            if (use.as_ is None) == (use.position is None):
                self.report(file.place("kernels", name, "operands", role), "needs either `as` or `position`")
        positions = sorted(use.position for use in kernel.operands.values() if use.position is not None)
        if positions != list(range(len(positions))):
            self.report(file.place("kernels", name, "operands"), f"positions must be 0, 1, 2, ..., found {positions}")
        return ir.Kernel(
            name=name,
            library=file.stem,
            place=file.place("kernels", name),
            does=kernel.does,
            symbols=symbols,
            since=kernel.since,
            until=kernel.until,
            formats=kernel.formats,
            granularity=kernel.granularity,
            operands=tuple(self.operand(role, use) for role, use in kernel.operands.items()),
            constants=tuple((key, self.constant(value)) for key, value in kernel.constants.items()),
            config=ir.ConfigUse(config.as_, config.from_, tuple(config.set.items())) if config else None,
            rotate=kernel.rotate,
            inputs=kernel.inputs,
            codes=kernel.codes,
            scale_layout=kernel.scale.layout if kernel.scale else "row_major",
            scale_option=(kernel.scale.option.as_, kernel.scale.option.layout)
            if kernel.scale and kernel.scale.option
            else None,
            scale_dtype=kernel.scale.dtype if kernel.scale else None,
            rules=tuple((rule.since, rule_of(rule)) for rule in kernel.rules),
            minimum_rows=kernel.rows.minimum if kernel.rows else 1,
            multiple_rows=kernel.rows.multiple if kernel.rows else 1,
            output=kernel.output if isinstance(kernel.output, tuple) else ("bf16", "fp16", "fp32"),
            accumulators=not isinstance(kernel.output, tuple),
            fp8=kernel.fp8,
            batch_invariant=kernel.batch_invariant,
            older=tuple(
                ir.OlderForm(
                    older.symbol or symbols, older.without, (older.out.as_, older.out.rows) if older.out else None
                )
                for older in kernel.older
            ),
            traceable=file.model.traceable,
        )

    @staticmethod
    def operand(role: str, use: model.OperandModel) -> ir.OperandUse:
        layouts: tuple[ir.LayoutRange, ...]
        if isinstance(use.layout, str):
            layouts = (ir.LayoutRange(None, use.layout, use.fold_rows),)
        else:
            layouts = tuple(ir.LayoutRange(part.max_m, part.is_, part.fold_rows) for part in use.layout)
        return ir.OperandUse(role, use.as_, use.position, layouts, use.dtype)

    @staticmethod
    def constant(value: bool | int | str | model.Imported) -> ir.Constant:
        return value if isinstance(value, bool | int | str) else ir.Imported(value.import_)

    def needs_are_known(self, needs: model.Needs, file: AnyFile, path: tuple[str | int, ...]) -> None:
        for position, arch in enumerate(needs.arch):
            if arch not in self.devices:
                self.report(file.place(*path, "arch", position), unknown(arch, self.devices, "architecture"))
        for row, where in enumerate(needs.where):
            for position, arch in enumerate(where.arch):
                if arch not in self.devices:
                    place = file.place(*path, "where", row, "arch", position)
                    self.report(place, unknown(arch, self.devices, "architecture"))
            if bool(where.arch) == bool(where.vendor):
                self.report(file.place(*path, "where", row), "needs either `arch` or `vendor`")
        for position, switch in enumerate(needs.switches):
            if switch not in self.switches:
                self.report(file.place(*path, "switches", position), unknown(switch, self.switches, "switch"))
        for position, row_needed in enumerate(needs.tuned):
            if row_needed.table not in self.tables:
                place = file.place(*path, "tuned", position, "table")
                self.report(place, unknown(row_needed.table, self.tables, "tuned table"))

    def identifier(self, name: str, place: Place) -> None:
        if keyword.iskeyword(name) or name in RESERVED:
            self.report(place, f"the name {name!r} is a word of Python or of the generated code; choose another")

    # --- schemes ---------------------------------------------------------------------------------------------------

    def scheme(self, file: File[model.SchemeFile]) -> ir.Scheme:
        says = file.model
        if says.scheme != file.stem:
            self.report(file.place("scheme"), f"the scheme is named {says.scheme!r}, but its file {file.stem!r}")
        self.identifier(says.scheme, file.place("scheme"))
        if says.scheme.startswith("kernels_"):
            self.report(file.place("scheme"), "names that start with kernels_ are those of generated modules")
        if says.activation.granularity == "per_channel":
            self.report(
                file.place("activation", "granularity"), "per_channel is for weights; activations have per_token"
            )
        if says.weight.granularity == "per_token":
            self.report(file.place("weight", "granularity"), "per_token is for activations; weights have per_channel")
        activation = Operand(
            says.activation.format,
            says.activation.granularity,
            says.activation.scale,
            rule_of(says.activation.rule),
            says.activation.mode,
        )
        weight = Operand(says.weight.format, says.weight.granularity, says.weight.scale, rule_of(says.weight.rule))
        seen: dict[str, Place] = {}
        backends: list[ir.Backend] = []
        for position, backend in enumerate(says.backends):
            place = file.place("backends", position, "name")
            if backend.name in seen:
                self.report(place, f"the backend {backend.name!r} is defined twice, first at {seen[backend.name]}")
            seen.setdefault(backend.name, place)
            self.identifier(backend.name, place)
            resolved = self.backend(backend, activation, weight, file, position)
            if resolved is not None:
                backends.append(resolved)
        stored = says.weight.stored_scales or (says.weight.scale,)
        return ir.Scheme(says.scheme, says.title, file.place("scheme"), activation, weight, stored, tuple(backends))

    def backend(
        self,
        backend: model.BackendModel,
        activation: Operand,
        weight: Operand,
        file: File[model.SchemeFile],
        position: int,
    ) -> ir.Backend | None:
        path = ("backends", position)
        before = len(self.problems)
        self.needs_are_known(backend.needs, file, (*path, "needs"))
        kernels = {name: kernel for name, (kernel, _) in self.kernels.items()}
        calls = resolve_calls(backend, activation, weight, kernels, file, path, self.report)
        if not calls or len(self.problems) > before:
            return None
        used = {f"{k.library}.{k.name}" for call in calls for k in (call.quantize, call.gemm)}
        needs = merged_needs(backend, [self.kernels[name] for name in sorted(used)], calls)
        if needs.arch == ():
            self.report(file.place(*path), "no architecture is left: its own list and its kernels' have none in common")
        inputs = intersection([call.quantize.inputs or None for call in calls])
        gemm = calls[0].gemm
        return ir.Backend(
            name=backend.name,
            place=file.place(*path),
            calls=calls,
            checks=checks_of(needs, self.switches) if len(self.problems) == before else (),
            needs=needs,
            on_use=backend.on_use,
            inputs=inputs or (),
            weight_layout=_layout(gemm, "weight"),
            weight_scale_layout=_layout(gemm, "weight_scale"),
        )


def rule_of(rule: model.RuleModel) -> Rule:
    """The rule that a YAML mapping means."""
    return Rule(rule.scale, rule.max, rule.round, rule.apply, rule.floor, rule.fnuz_max)


def _layout(kernel: ir.Kernel, role: str) -> str:
    use = kernel.operand(role)
    return use.layouts[0].layout if use else "row_major"
