"""The vocabulary of qscheme, as frozen data: formats, granularities, rules, kernels, layers, backends, schemes.

Plain data are named tuples; what is known by its identity (a kernel, a backend, a scheme) is a dataclass without
equality. All this is part of every import: the classes are of the kinds that are made fastest, and
annotations are evaluated, as each one that is a string is compiled when its class is made.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from qscheme.layer import LayerFacts, Operands
    from qscheme.machine import Facts

INTERFACE = 2
"""The runtime interface that generated tables are made for; another number is refused."""

Format: TypeAlias = Literal["int8", "fp8_e4m3", "fp4_e2m1", "fp6_e2m3", "fp6_e3m2", "int4"]
ScaleFormat: TypeAlias = Literal["fp32", "e8m0", "e4m3", "e5m3"]
GlobalScale: TypeAlias = Literal["divide", "multiply"]
Packing: TypeAlias = Literal["plain", "int32_columns", "awq", "quark", "gptq", "gptq_v2"]
Granularity: TypeAlias = Literal[
    "per_tensor", "per_token", "per_channel", "1x128", "128x128", "1x64", "1x32", "1x16", "32x32"
]
Mode: TypeAlias = Literal["dynamic", "static"]
ScaleRule: TypeAlias = Literal["amax_div", "floor", "even", "even175", "rceil", "ceil", "nearest15", "log_nearest"]
Rounding: TypeAlias = Literal["rne", "half_away", "truncate", "ties_to_zero"]
Applying: TypeAlias = Literal["divide", "multiply_reciprocal"]
ReasonKind: TypeAlias = Literal["hardware", "library", "symbol", "layer", "tuned", "switch", "disabled"]
OnUse: TypeAlias = Literal["quiet", "warn"]

TOOLCHAIN = ("rocm", "cuda", "triton")
"""What kernels are compiled with and run on; its versions stand among those of libraries."""

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
    one more scale of the whole tensor, None where there is none. packing: how a checkpoint stores the
    codes of an integer weight, its zero points and scales: `plain` one code to a byte, and the others as
    `qscheme.packing` says, `int32_columns` being compressed-tensors' `pack-quantized`.
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


@dataclass(slots=True, eq=False, repr=False, match_args=False)
class Kernel:
    """A function of a kernel library, and how to call it in every release that has it.

    forms: the newest first. adapt: (index of the form, its loaded function, and its configuration function if it has
    one) -> a callable in the newest form. opaque: the same callable as a custom op, for torch.compile; None where
    torch can trace it. rules: (first release, rule) pairs, the newest first, of what quantizes x. rotate: the optional
    keyword that makes a quantizer rotate its input.
    """

    name: str
    library: str
    forms: tuple[Form, ...]
    adapt: Callable[[int, tuple[object, ...]], Callable[..., object]]
    opaque: Callable[[Callable[..., object]], Callable[..., object]] | None = None
    rules: tuple[tuple[str | None, Rule], ...] = ()
    rotate: str | None = None

    def __repr__(self) -> str:
        return f"Kernel({self.name})"


class Device(NamedTuple):
    """What an architecture is. fp8: the E4M3 flavour of its kernels, None if it has no FP8 matrix units.

    products: names in shops, for those who ask by one; nothing is chosen by a product.
    """

    arch: str
    vendor: Literal["amd", "nvidia", "cpu", "unknown"]
    family: str
    fp8: Literal["fn", "fnuz"] | None
    mx: bool
    int8: bool
    wave: int
    compute_units: tuple[int, ...] = ()
    products: tuple[str, ...] = ()


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
    marketing names that old file names use instead of architectures. rows: columns of a CSV file and what a row must
    have in each to count, wherever the file has that column. The K of a row is the logical K.

    What `qscheme check` asks of rows: key: further columns that tell the rows of a shape apart. kernels: patterns of
    the names of kernels, `{k}` standing for the tile along K, each with `log2` where a row's split is the logarithm of
    the number of slices. entries: the entries of a JSON configuration that are the tile along K (`k`) and the number of
    slices (`splits`).
    """

    name: str
    library: str
    kind: Literal["csv", "json"]
    files: tuple[str, ...]
    variable: str | None = None
    products: tuple[tuple[str, str], ...] = ()
    rows: tuple[tuple[str, tuple[str, ...]], ...] = ()
    key: tuple[str, ...] = ()
    kernels: tuple[tuple[str, str | None], ...] = ()
    entries: tuple[tuple[str, str], ...] = ()


class Layer(Protocol):
    """A quantized linear layer as a checkpoint stores it; any object with these attributes works.

    weight: FP8 [N, K], E2M1 uint8 [N, K/2] with the even column in the low nibble, FP6 uint8 [N, 3 K/4], INT4 and INT8
    int8 [N, K] or int32 words as the scheme's packing says.
    weight_scale: [N, 1] or [N] per channel, one value per tensor, [ceil(N/128), ceil(K/128)] for 128x128, uint8 E8M0
    [N, K/32] for 1x32; [K/G, N] where the packing is awq, quark, gptq or gptq_v2. input_scale: one value, for static
    activations. bias: [N] or None.

    Optional attributes, None when absent: logical_widths (the N of each part of a fused layer), rotation (32 if the
    weight was rotated by Hadamard blocks of 32), prequantized (the layer will be called with codes and scales),
    out_features and in_features (the logical N and K where the weight is padded), weight_global_scale and
    input_global_scale (one value, for schemes with two levels of scales), weight_zero_point (one for each scale, for
    asymmetric weights, in words like the weight), g_idx (the group of each column of K, which must be k // G),
    full_out_features and full_in_features (the N and K of the whole layer, where tensor parallelism left one shard of
    it here; all else is that of the shard, logical_widths included).
    """

    scheme: str
    weight: "Tensor"
    weight_scale: "Tensor"
    input_scale: "Tensor | None"
    bias: "Tensor | None"
    out_dtype: "torch.dtype"
    name: str


class Prepared(NamedTuple):
    """Operands in the layout that one backend reads; `backend` is the only one that may read them."""

    backend: str
    weight: "Tensor"
    weight_scale: "Tensor"
    input_scale: "Tensor | None"
    bias: "Tensor | None"
    weight_global_scale: "Tensor | None" = None
    weight_zero_point: "Tensor | None" = None
    input_global_scale: "Tensor | None" = None

    @property
    def static_scale(self) -> "Tensor":
        """The scale of a static activation, which every layer of such a scheme has."""
        assert self.input_scale is not None
        return self.input_scale


Rows: TypeAlias = "Callable[[Tensor], Tensor]"
"""x [M, K] contiguous with M > 0 -> y [M, N]."""

QuantizedRows: TypeAlias = "Callable[[Tensor, Tensor], Tensor] | None"
"""codes [M, K] (packed as the format says) and plain scales, contiguous with M > 0 -> y [M, N]; None if not offered."""


class Call(NamedTuple):
    """What runs for one range of M, in words and as data, for `explain`.

    quantize: None where the GEMM is given x as it is, whether it quantizes it or not. scale_layout: of the scales that
    the GEMM reads.
    """

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


@dataclass(slots=True, eq=False, repr=False, match_args=False)
class Backend:
    """One way to run a scheme.

    why_not: every condition that does not hold. prepare: the layer's tensors in this backend's layout.
    bind: (operands, prepared, facts, *kernels) -> the function over rows and the one over quantized rows.
    kernels: what bind is given, in order; those that quantize x, GEMMs among them, are in `quantizers` too.
    inputs: dtypes of x that the quantizer takes; empty for any floating dtype. tuned: the tables in which N and K have
    a row for every M of a list. fp8: whether its FP8 operands are in
    the device's flavour of E4M3 or in the checkpoint's, E4M3FN.
    """

    name: str
    why_not: "Callable[[Facts, LayerFacts], list[Reason]]"
    prepare: "Callable[[Operands, Facts], Prepared]"
    bind: "Callable[..., tuple[Rows, QuantizedRows]]"
    kernels: tuple[Kernel, ...]
    quantizers: tuple[Kernel, ...]
    calls: tuple[Call, ...]
    inputs: tuple[str, ...] = ()
    fp8: Literal["device", "checkpoint"] = "device"
    on_use: OnUse = "quiet"
    tuned: tuple[tuple[TunedTable, tuple[int, ...]], ...] = ()

    def __repr__(self) -> str:
        return f"Backend({self.name})"


@dataclass(slots=True, eq=False, repr=False, match_args=False)
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

    def __repr__(self) -> str:
        return f"Scheme({self.name})"
