"""What the YAML means: frozen, resolved over all files, still located."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from qscheme.compiler.source import Place
    from qscheme.releases import History
    from qscheme.types import (
        Device,
        LibrarySource,
        Operand,
        Packing,
        ReasonKind,
        Rule,
        ScaleFormat,
        Switch,
        TunedTable,
    )

Constant: TypeAlias = "bool | int | float | str | Imported"


@dataclass(frozen=True, slots=True)
class Imported:
    """A constant given by its dotted name."""

    name: str


@dataclass(frozen=True, slots=True)
class Check:
    """One condition as generated code tests it.

    test: a Python expression over `facts` and `layer` that is true when the condition does not hold. needs: words.
    found: a Python expression that gives the words for what was found. prose: the condition for people.
    """

    kind: ReasonKind
    test: str
    needs: str
    found: str
    prose: str


@dataclass(frozen=True, slots=True)
class TunedNeed:
    """Rows that a tuned table must have: one for every M of a list."""

    table: str
    every: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class VersionRange:
    """Versions of a tool or a library: not older than `since`, older than `before`; None where there is no limit."""

    name: str
    since: str | None
    before: str | None


@dataclass(frozen=True, slots=True)
class KnownBad:
    """Where a kernel is wrong: on these architectures, every one if there are none, and in all of these versions."""

    kernel: str
    arch: tuple[str, ...]
    versions: tuple[VersionRange, ...]
    because: str
    source: str


@dataclass(frozen=True, slots=True)
class WhereNeed:
    """Conditions on some architectures or vendors only; since belongs to `library`.

    before: the release of `library` from which on n and k do not matter, None if they always do.
    """

    arch: tuple[str, ...]
    vendor: tuple[str, ...]
    library: str | None = None
    since: str | None = None
    n: int | None = None
    k: int | None = None
    before: str | None = None


@dataclass(frozen=True, slots=True)
class Needs:
    """Everything that must hold for one backend: its own needs and those of its kernels, merged.

    n, k: what the N and K of this shard are multiples of; full_n, full_k: those of the whole layer.
    """

    arch: tuple[str, ...] | None = None
    vendor: tuple[str, ...] | None = None
    mx: bool | None = None
    int8: bool | None = None
    one_scale: bool | None = None
    n: int | None = None
    k: int | None = None
    min_n: int | None = None
    min_k: int | None = None
    output: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    tuned: tuple[TunedNeed, ...] = ()
    switches: tuple[str, ...] = ()
    where: tuple[WhereNeed, ...] = ()
    varies_with_m: tuple[str, ...] = ()
    versions: tuple[VersionRange, ...] = ()
    known_bad: tuple[KnownBad, ...] = ()
    full_n: int | None = None
    full_k: int | None = None


@dataclass(frozen=True, slots=True)
class OperandUse:
    """How a kernel takes one operand: by keyword or position, in which layout, viewed how.

    granularity, formats: the tiles and the formats that a scale may have, empty for any. required: whether zeros stand
    in for a missing bias. applies: what the kernel does with a global scale, None for what the scheme says. packing:
    how it reads the codes of a weight, by format; those of a format that is missing are `plain`.
    """

    role: str
    keyword: str | None
    position: int | None
    layouts: tuple[LayoutRange, ...]
    dtype: str | None
    granularity: tuple[str, ...] = ()
    required: bool = False
    formats: tuple[str, ...] = ()
    applies: str | None = None
    packing: tuple[tuple[str, Packing], ...] = ()


@dataclass(frozen=True, slots=True)
class LayoutRange:
    """A layout up to some M, None for any; fold: how many rows are passed as one."""

    max_m: int | None
    layout: str
    fold: int | None


@dataclass(frozen=True, slots=True)
class OlderForm:
    """How an older release is called. out: keyword and row multiple of the output that the caller allocates."""

    symbols: tuple[str, ...]
    without: tuple[str, ...]
    out: tuple[str, int] | None


@dataclass(frozen=True, slots=True)
class Quantizes:
    """What a GEMM that is given x as it is makes of it before it multiplies."""

    format: str
    granularity: str
    scale: str


@dataclass(frozen=True, slots=True)
class ConfigUse:
    """A tile configuration: the keyword it is passed by, where it is looked up, what is set in it."""

    keyword: str
    symbols: tuple[str, ...]
    values: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function of a kernel library. library: the stem of its file. package: what must be installed to import it.

    formats: of all operands, or of the activation where `weight_formats` has those of the weight. out: of a GEMM, the
    keyword and row multiple of the output that the caller allocates. quantizes: of a GEMM that is given x as it is.
    """

    name: str
    library: str
    package: str
    place: Place
    does: Literal["quantize", "gemm"]
    symbols: tuple[str, ...]
    since: str | None
    until: str | None
    formats: tuple[str, ...]
    weight_formats: tuple[str, ...]
    granularity: str | None
    asymmetric: bool
    operands: tuple[OperandUse, ...]
    constants: tuple[tuple[str, Constant], ...]
    config: ConfigUse | None
    rotate: str | None
    inputs: tuple[str, ...]
    codes: str | None
    scale_layout: str
    scale_option: tuple[str, str] | None
    scale_dtype: str | None
    rules: tuple[tuple[str | None, Rule], ...]
    minimum_rows: int
    multiple_rows: int
    padded_in: tuple[VersionRange, ...]
    output: tuple[str, ...]
    accumulators: bool
    out: tuple[str, int] | None
    quantizes: Quantizes | None
    global_scales_after: bool
    fp8: Literal["device", "checkpoint"]
    batch_invariant: bool
    older: tuple[OlderForm, ...]
    traceable: bool
    known_bad: tuple[KnownBad, ...] = ()

    def operand(self, role: str) -> OperandUse | None:
        """How the kernel takes an operand, None if it does not."""
        return next((use for use in self.operands if use.role == role), None)

    @property
    def takes_codes(self) -> bool:
        """Whether it is a GEMM of codes, and not of x as it is."""
        return self.accumulators or self.operand("x_scale") is not None

    def reads(self, weight: Operand) -> Packing:
        """The packing in which this GEMM reads a weight: the stored one if it is told what the weight is."""
        use = self.operand("weight")
        if use is None or self.operand("weight_operand"):
            return weight.packing
        return dict(use.packing).get(weight.format, "plain")


@dataclass(frozen=True, slots=True)
class Call:
    """A quantizer and a GEMM for one range of M, in one mode or in both.

    quantize: None where the GEMM is given x as it is. x_scale: for every M of codes that come quantized, which are
    those of the calls above too that quantize x in the GEMM.
    """

    quantize: Kernel | None
    options: tuple[tuple[str, bool], ...]
    gemm: Kernel
    min_m: int
    max_m: int | None
    batch_invariant: bool | None
    x_scale: LayoutRange

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The quantizer, if there is one, and the GEMM."""
        return (self.gemm,) if self.quantize is None else (self.quantize, self.gemm)

    @property
    def quantized_layout(self) -> str:
        """The layout in which the quantizer writes its scales."""
        if self.quantize is None:
            return self.x_scale.layout
        option = self.quantize.scale_option
        return option[1] if option is not None and dict(self.options)[option[0]] else self.quantize.scale_layout


@dataclass(frozen=True, slots=True)
class Backend:
    """One way to run a scheme."""

    name: str
    place: Place
    calls: tuple[Call, ...]
    checks: tuple[Check, ...]
    needs: Needs
    on_use: Literal["quiet", "warn"]
    inputs: tuple[str, ...]
    weight_layout: str
    weight_scale_layout: str

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels of all calls, each once, in order of first use."""
        both = [kernel for call in self.calls for kernel in call.kernels]
        return tuple({(kernel.library, kernel.name): kernel for kernel in both}.values())


@dataclass(frozen=True, slots=True)
class Scheme:
    """A quantized linear layer as data."""

    name: str
    title: str
    place: Place
    activation: Operand | None
    weight: Operand
    stored_scales: tuple[ScaleFormat, ...]
    backends: tuple[Backend, ...]
    producers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Everything that a folder of YAML files says."""

    schemes: tuple[Scheme, ...]
    kernels: tuple[Kernel, ...]
    libraries: tuple[LibrarySource, ...]
    tables: tuple[TunedTable, ...]
    devices: tuple[Device, ...]
    switches: tuple[Switch, ...]
    histories: tuple[History, ...] = ()
