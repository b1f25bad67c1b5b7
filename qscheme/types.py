"""The vocabulary of qscheme, as frozen data: formats, granularities, rules, kernels, layers, facts, decisions.

Plain data are named tuples, which cost an import a tenth of what frozen dataclasses do; what is known by its identity
(a kernel, a backend, a scheme, the facts of a machine) is a dataclass without equality.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch
    from torch import Tensor

INTERFACE = 2
"""The runtime interface that generated tables are made for; another number is refused."""

Format: TypeAlias = Literal["int8", "fp8_e4m3", "fp4_e2m1", "fp6_e2m3", "fp6_e3m2", "int4"]
ScaleFormat: TypeAlias = Literal["fp32", "e8m0", "e4m3", "e5m3"]
GlobalScale: TypeAlias = Literal["divide", "multiply"]
Packing: TypeAlias = Literal["plain", "int32_columns", "int32_rows"]
Granularity: TypeAlias = Literal["per_tensor", "per_token", "per_channel", "1x128", "128x128", "1x32", "1x16", "32x32"]
Mode: TypeAlias = Literal["dynamic", "static"]
ScaleRule: TypeAlias = Literal["amax_div", "floor", "even", "even175", "rceil", "ceil", "nearest15", "log_nearest"]
Rounding: TypeAlias = Literal["rne", "half_away", "truncate", "ties_to_zero"]
Applying: TypeAlias = Literal["divide", "multiply_reciprocal"]
ReasonKind: TypeAlias = Literal["hardware", "library", "symbol", "layer", "tuned", "switch", "disabled"]
OnUse: TypeAlias = Literal["quiet", "warn"]

BATCH_INVARIANT = "batch_invariant"
"""The switch that asks for results that do not depend on M."""

REASON_ORDER: tuple[ReasonKind, ...] = ("hardware", "library", "symbol", "layer", "tuned", "switch", "disabled")


class Rule(NamedTuple):
    """How a tile of values becomes codes and one scale.

    scale: how the scale is found from the tile's largest magnitude (amax).
    max: the largest code that the scale aims at (448, 240 or 224 for FP8, 127 or 127.5 for INT8, 6 for E2M1).
    round: how a scaled value becomes a code.
    apply: whether values are divided by the scale or multiplied by its reciprocal.
    floor: the smallest amax; tiles under it, all-zero ones included, get the scale of this amax.
    fnuz_max: the largest code on a device whose FP8 is E4M3FNUZ; half of max where it is not stated, which keeps the
    grid of E4M3FN codes.
    """

    scale: ScaleRule
    max: float
    round: Rounding = "rne"
    apply: Applying = "divide"
    floor: float = 1e-10
    fnuz_max: float | None = None


class Operand(NamedTuple):
    """What an activation or a weight is: element format, tile that shares a scale, scale format, rule.

    symmetric: false where codes have a zero point. global_scale: whether a tile's scale is divided or multiplied by
    one more scale of the whole tensor, None where there is none. packing: how a checkpoint stores INT4 codes:
    `plain` one to a byte, `int32_columns` eight columns of a row to an int32 (CT), `int32_rows` eight rows (AWQ).
    """

    format: Format
    granularity: Granularity
    scale: ScaleFormat
    rule: Rule
    mode: Mode = "static"
    symmetric: bool = True
    global_scale: GlobalScale | None = None
    packing: Packing = "plain"


class Reason(NamedTuple):
    """One condition that does not hold: what is needed and what was found."""

    kind: ReasonKind
    needs: str
    found: str

    @property
    def text(self) -> str:
        return f"needs {self.needs}, found {self.found}"


class Refusal(NamedTuple):
    """A backend that was not chosen, with every reason; empty reasons mean that a better backend came first."""

    backend: str
    reasons: tuple[Reason, ...]


class Mismatch(NamedTuple):
    """A numeric rule that a kernel applies and the scheme's producer does not."""

    backend: str
    kernel: str
    field: str
    scheme: str
    found: str

    @property
    def text(self) -> str:
        return f"{self.backend}: {self.kernel} has {self.field} {self.found}, the scheme's rule has {self.scheme}"


class Form(NamedTuple):
    """One way to call a kernel.

    symbols: dotted names of one function, tried in order. positional: how many operands are passed by position.
    keywords: every keyword passed. since, until: releases (inclusive) outside which the form must not be used though
    its signature fits, None where the signature tells. config: dotted names of the function that looks up a tile
    configuration, tried in order, for a kernel that is given one.
    """

    symbols: tuple[str, ...]
    positional: int
    keywords: tuple[str, ...]
    since: str | None = None
    until: str | None = None
    config: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A function of a kernel library, and how to call it in every release that has it.

    forms: the newest first. adapt: (index of the form, its loaded function, and its configuration function if it has
    one) -> a callable in the newest form. opaque: the same callable as a custom op, for torch.compile; None where
    torch can trace it. rules: (first release, rule) pairs, the newest first, of a quantizer. rotate: the optional
    keyword that makes a quantizer rotate its input.
    """

    name: str
    library: str
    forms: tuple[Form, ...]
    adapt: Callable[[int, tuple[object, ...]], Callable[..., object]]
    opaque: Callable[[Callable[..., object]], Callable[..., object]] | None = None
    rules: tuple[tuple[str | None, Rule], ...] = ()
    rotate: str | None = None


class Device(NamedTuple):
    """What an architecture is. fp8: the E4M3 flavour of its kernels, None if it has no FP8 matrix units."""

    arch: str
    vendor: Literal["amd", "nvidia", "cpu", "unknown"]
    family: str
    fp8: Literal["fn", "fnuz"] | None
    mx: bool
    int8: bool
    wave: int
    compute_units: tuple[int, ...] = ()


class Library(NamedTuple):
    """A kernel library as found or as given. absence says why it cannot be used; None if it can."""

    name: str
    version: str | None = None
    location: str | None = None
    absence: str | None = None


class LibrarySource(NamedTuple):
    """Where a kernel library comes from.

    distributions: who may own its import name. releases: the file under `schemes/releases/` that says what each
    release offers, None where no such history is kept.
    """

    name: str
    distributions: tuple[str, ...]
    releases: str | None = None


class Switch(NamedTuple):
    """An on-off switch. variables: environment variables that set it, the first one that is set wins."""

    name: str
    default: bool
    variables: tuple[str, ...]
    meaning: str


class TunedTable(NamedTuple):
    """A table of tuned shapes of a kernel library: which files hold it and how a row is found.

    files: paths relative to the library's package, tried in order; CSV ones may hold `*`, JSON ones may hold `{arch}`,
    `{product}`, `{n}` and `{k}`. variable: the environment variable that replaces the CSV files. products: the
    marketing names that old file names use instead of architectures. The K of a row is the logical K.
    """

    name: str
    library: str
    kind: Literal["csv", "json"]
    files: tuple[str, ...]
    variable: str | None = None
    products: tuple[tuple[str, str], ...] = ()


class Offers(Protocol):
    """What the kernel libraries of these facts offer."""

    def form(self, kernel: Kernel) -> int | Reason:
        """The first form of `kernel` that fits, or why none does."""
        ...

    def accepts(self, kernel: Kernel, keyword: str) -> bool:
        """Whether the fitting form of `kernel` takes an optional keyword."""
        ...

    def older(self, library: str, release: str) -> bool:
        """Whether the library is older than a release; False where its version is unknown."""
        ...


class Tuned(Protocol):
    """Which shapes are tuned."""

    def untuned(
        self, table: TunedTable, device: Device, compute_units: int | None, n: int, k: int, every: tuple[int, ...]
    ) -> str | None:
        """What was found instead of a row for each M in `every`; None if every one is tuned."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """What is known about a machine, as plain data that may be given instead of probed.

    Two sets of facts are different objects even if equal; decisions are cached per object.
    """

    device: Device
    libraries: Mapping[str, Library]
    switches: Mapping[str, bool]
    offers: Offers
    tuned: Tuned
    index: int | None = None
    compute_units: int | None = None
    notes: tuple[str, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def arch(self) -> str:
        return self.device.arch

    def on(self, switch: str) -> bool:
        """Whether a switch is on."""
        return self.switches[switch]

    def version(self, library: str) -> str:
        """A library's version, in words where it is not known."""
        return self.libraries[library].version or "an unknown version"

    def older(self, library: str, release: str) -> bool:
        """Whether a library is older than a release."""
        return self.offers.older(library, release)

    def untuned(self, table: TunedTable, n: int, k: int, every: tuple[int, ...]) -> str | None:
        """What was found instead of a tuned row for N, K and each M in `every`; None if every one is tuned."""
        return self.tuned.untuned(table, self.device, self.compute_units, n, k, every)

    @property
    def batch_invariant(self) -> bool:
        """Whether a row's result must not depend on how many rows there are."""
        return self.switches.get(BATCH_INVARIANT, False)

    def rule(self, kernel: Kernel) -> Rule | None:
        """The rule of a quantizer in the release at hand; None for one that follows the scheme's own."""
        for since, rule in kernel.rules:
            if since is None or not self.older(kernel.library, since):
                return rule
        return None

    def lacks(self, *kernels: Kernel) -> list[Reason]:
        """Why these kernels cannot be loaded: the library first, then each symbol that is missing or does not fit."""
        for kernel in kernels:
            absence = self.libraries[kernel.library].absence
            if absence is not None:
                return [Reason("library", kernel.library, absence)]
        forms = [self.offers.form(kernel) for kernel in kernels]
        return list(dict.fromkeys(form for form in forms if isinstance(form, Reason)))


class Layer(Protocol):
    """A quantized linear layer as a checkpoint stores it; any object with these attributes works.

    weight: int8 and FP8 [N, K], E2M1 uint8 [N, K/2] with the even column in the low nibble, FP6 uint8 [N, 3 K/4], INT4
    int8 [N, K] or int32 [N, K/8] as the scheme's packing says.
    weight_scale: [N, 1] or [N] per channel, one value per tensor, [ceil(N/128), ceil(K/128)] for 128x128,
    uint8 E8M0 [N, K/32] for 1x32. input_scale: one value, for static activations. bias: [N] or None.

    Optional attributes, None when absent: logical_widths (the N of each part of a fused layer), rotation (32 if the
    weight was rotated by Hadamard blocks of 32), prequantized (the layer will be called with codes and scales),
    out_features and in_features (the logical N and K where the weight is padded), weight_global_scale and
    input_global_scale (one value, for schemes with two levels of scales), weight_zero_point (one for each scale, for
    asymmetric weights).
    """

    scheme: str
    weight: Tensor
    weight_scale: Tensor
    input_scale: Tensor | None
    bias: Tensor | None
    out_dtype: torch.dtype
    name: str


class LayerFacts(NamedTuple):
    """What conditions may ask about a layer. What its loaded tensors must be is checked against the scheme instead.

    fused: the layer is of several parts, each with a scale of its own where the scheme has one for the tensor.
    """

    n: int
    k: int
    out_dtype: str = "bf16"
    has_bias: bool = False
    rotation: int | None = None
    prequantized: bool = False
    fused: bool = False


class Operands(NamedTuple):
    """A layer's tensors after checking: logical N and K, scales in the shape that the scheme's granularity says."""

    name: str
    n: int
    k: int
    weight: Tensor
    weight_scale: Tensor
    input_scale: Tensor | None
    bias: Tensor | None
    out_dtype: torch.dtype
    weight_global_scale: Tensor | None = None
    weight_zero_point: Tensor | None = None
    input_global_scale: Tensor | None = None


class Prepared(NamedTuple):
    """Operands in the layout that one backend reads; `backend` is the only one that may read them."""

    backend: str
    weight: Tensor
    weight_scale: Tensor
    input_scale: Tensor | None
    bias: Tensor | None
    weight_global_scale: Tensor | None = None
    weight_zero_point: Tensor | None = None
    input_global_scale: Tensor | None = None

    @property
    def static_scale(self) -> Tensor:
        """The scale of a static activation, which every layer of such a scheme has."""
        assert self.input_scale is not None
        return self.input_scale


Rows: TypeAlias = "Callable[[Tensor], Tensor]"
"""x [M, K] contiguous with M > 0 -> y [M, N]."""

QuantizedRows: TypeAlias = "Callable[[Tensor, Tensor], Tensor] | None"
"""codes [M, K] (packed as the format says) and plain scales, contiguous with M > 0 -> y [M, N]; None if not offered."""


class Call(NamedTuple):
    """What runs for one range of M, in words and as data, for `explain`."""

    when: str
    quantize: str | None
    gemm: str
    min_m: int = 0
    max_m: int | None = None
    batch_invariant: bool | None = None
    scale_layout: str = "row_major"

    def runs(self, *, batch_invariant: bool, m: int | None = None) -> bool:
        """Whether this call may run in a mode, for a given M if one is given."""
        if self.batch_invariant is not None and self.batch_invariant != batch_invariant:
            return False
        return m is None or (self.min_m <= m and (self.max_m is None or m <= self.max_m))


@dataclass(frozen=True, slots=True, eq=False)
class Backend:
    """One way to run a scheme.

    why_not: every condition that does not hold. prepare: the layer's tensors in this backend's layout.
    bind: (operands, prepared, facts, *kernels) -> the function over rows and the one over quantized rows.
    kernels: what bind is given, in order; those of the quantizers are listed in `quantizers` too.
    inputs: dtypes of x that the quantizer takes; empty for any floating dtype. fp8: whether its FP8 operands are in
    the device's flavour of E4M3 or in the checkpoint's, E4M3FN.
    """

    name: str
    why_not: Callable[[Facts, LayerFacts], list[Reason]]
    prepare: Callable[[Operands, Facts], Prepared]
    bind: Callable[..., tuple[Rows, QuantizedRows]]
    kernels: tuple[Kernel, ...]
    quantizers: tuple[Kernel, ...]
    calls: tuple[Call, ...]
    inputs: tuple[str, ...] = ()
    fp8: Literal["device", "checkpoint"] = "device"
    on_use: OnUse = "quiet"


@dataclass(frozen=True, slots=True, eq=False)
class Scheme:
    """A quantized linear layer as data, and its backends in order of preference.

    activation: None where x is multiplied as it is. stored_scales: the formats in which checkpoints store the
    weight's scales. producers: who writes such checkpoints, and under which name.
    """

    name: str
    title: str
    activation: Operand | None
    weight: Operand
    stored_scales: tuple[ScaleFormat, ...]
    backends: tuple[Backend, ...]
    producers: tuple[str, ...] = ()


class Activation(NamedTuple):
    """What a bound function's own quantizer does, so that a fused kernel may do it instead.

    rule: the quantizer's own rule, not the scheme's. scale_layouts: (largest M, layout of the scales that the GEMM
    reads) pairs in order, None for any M; a bound function takes plain scales and makes the layout itself.
    """

    format: Format
    granularity: Granularity
    scale: ScaleFormat
    rule: Rule
    codes_dtype: torch.dtype
    scale_layouts: tuple[tuple[int | None, str], ...]


class Decision(NamedTuple):
    """Which backend runs a layer, why the others do not, and what differs from the scheme's numerics.

    traits: (name, words) pairs of all that the layouts and the results of the bound function depend on.
    """

    scheme: str
    layer: str
    chosen: str | None
    calls: tuple[Call, ...]
    refused: tuple[Refusal, ...]
    mismatches: tuple[Mismatch, ...] = ()
    assumed: tuple[str, ...] = ()
    rotates_input: bool = False
    traits: tuple[tuple[str, str], ...] = ()

    @property
    def fingerprint(self) -> str:
        """SCHEME/BACKEND/DIGEST of the traits: equal in every process that would compute the same, whatever the layer.

        The layer's name, its shape, the architecture and the release count only as far as they change a trait.
        """
        from hashlib import sha256

        told = "\n".join(f"{name}: {words}" for name, words in self.traits)
        return f"{self.scheme}/{self.chosen or 'none'}/{sha256(told.encode()).hexdigest()[:12]}"

    def text(self) -> str:
        """The decision in words, one line for each backend."""
        head = f"layer {self.layer or '(unnamed)'}: scheme {self.scheme}: "
        lines = [head + (f"runs on {self.chosen}" if self.chosen else "no backend can run it")]
        for refusal in self.refused:
            why = "; ".join(reason.text for reason in refusal.reasons)
            lines.append(f"  {refusal.backend}: {why}")
        return "\n".join(lines)
