"""What a YAML file may say of a kernel library: pydantic models, strict and closed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag

from qscheme.compiler.model import ALLOWED, NOTHING_NEEDED, AllowModel, Needs, RuleModel, Versions
from qscheme.compiler.words import (
    FILE,
    Closed,
    Count,
    Filled,
    Float,
    GemmRole,
    Holds,
    Keyword,
    Layout,
    Multiple,
    QuantizerRole,
    Release,
    Rows,
    ScaleLayout,
    Storage,
    Symbol,
    Symbols,
    Text,
    Word,
    either,
)
from qscheme.types import Format, GlobalScale, Granularity, ScaleFormat


class LayoutUntil(Closed):
    """A layout that an operand has up to some M."""

    max_m: Rows | None = Field(default=None, description="the largest M; absent in the last row")
    is_: ScaleLayout = Field(alias="is")
    fold_rows: Multiple | None = Field(default=None, description="this many rows are passed as one")


class Packings(Filled):
    """The words in which a kernel reads integer codes of a format; absent for a code to a byte."""

    int4: Literal["int32_columns"] | None = None
    int8: Literal["int32_columns"] | None = None


class OperandModel(Closed):
    """How a kernel takes one operand."""

    as_: Keyword | None = Field(default=None, alias="as", description="the keyword it is passed by")
    position: Annotated[int, Field(ge=0, le=20)] | None = Field(default=None, description="its place, from 0")
    layout: Annotated[
        Annotated[Layout, Tag("text")] | Annotated[tuple[LayoutUntil, ...], Field(min_length=1), Tag("list")],
        either("a layout, or a list of layouts with max_m"),
    ] = Field(default="row_major", description="how the kernel reads it; one for each range of M where it changes")
    granularity: tuple[Granularity, ...] = Field(
        default=(), min_length=1, description="of a scale: the tiles that the kernel is right for; absent for any"
    )
    formats: tuple[ScaleFormat, ...] = Field(
        default=(), min_length=1, description="of a scale: the formats that the kernel is right for; absent for any"
    )
    applies: GlobalScale | None = Field(
        default=None, description="of a global scale: what the kernel does with it; absent if it follows the scheme"
    )
    packing: Packings | None = Field(
        default=None, description="of an integer weight: the words that the kernel reads; absent for a code to a byte"
    )
    dtype: Literal["bytes", "fp4x2", "e8m0", "fp32", "any"] | None = Field(
        default=None, description="how its bytes are viewed; of a bias, what it is cast to, any for not at all"
    )
    required: Holds | None = Field(default=None, description="of a bias: zeros are passed where the layer has none")
    fold_rows: Multiple | None = Field(default=None, description="this many rows are passed as one")


class Imported(Closed):
    """A constant that is imported by its dotted name."""

    import_: Symbol = Field(alias="import")


class Config(Closed):
    """A tile configuration that is looked up, changed and passed on."""

    as_: Keyword = Field(alias="as", description="the keyword it is passed by")
    from_: tuple[Symbol, ...] = Field(
        alias="from", min_length=1, description="the function that looks it up by M, N and K; tried in order"
    )
    set: dict[Keyword, int] = Field(min_length=1, description="the entries that are changed")


class ScaleOption(Closed):
    """An on-off keyword of a quantizer, and the layout of its scales when it is on."""

    as_: Keyword = Field(alias="as")
    layout: ScaleLayout


class QuantizerScale(Closed):
    """How a quantizer writes its scales; layout is the one without the option."""

    layout: ScaleLayout
    dtype: Storage | None = Field(default=None, description="absent for float32")
    option: ScaleOption | None = None


class RowsPadded(Filled):
    """What the number of rows is padded to."""

    minimum: Count = Field(default=1, description="the fewest rows that the kernel takes")
    multiple: Count = Field(default=1, description="the number that the rows must be a multiple of")
    versions: Versions | None = Field(default=None, description="where rows must be padded; absent for everywhere")


class Accumulators(Closed):
    """A product that is not scaled yet."""

    accumulators: Literal["int32"]


class Out(Closed):
    """An output that the caller allocates."""

    as_: Keyword = Field(alias="as", description="the keyword it is passed by; what the function returns is not used")
    rows: Count = Field(default=1, description="its rows are a multiple of this")


class Quantizes(Closed):
    """What a GEMM makes of x before it multiplies."""

    format: Format
    granularity: Granularity
    scale: ScaleFormat = Field(default="fp32", description="the format of its scales")
    rules: tuple[RuleModel, ...] = Field(min_length=1, description="its arithmetic, the newest release first")


class OlderQuantizer(Filled):
    """How an older release of a quantizer is called, where it differs."""

    symbol: tuple[Symbol, ...] = Field(default=(), min_length=1)
    without: tuple[QuantizerRole, ...] = Field(default=(), min_length=1, description="operands that it does not take")


class OlderGemm(Filled):
    """How an older release of a GEMM is called, where it differs."""

    symbol: tuple[Symbol, ...] = Field(default=(), min_length=1)
    without: tuple[GemmRole, ...] = Field(default=(), min_length=1, description="operands that it does not take")
    out: Out | None = Field(default=None, description="the output that the caller allocates, where that differs")


class KnownBad(Closed):
    """Where a kernel is known to be wrong although everything that it needs is there."""

    arch: tuple[Word, ...] = Field(default=(), min_length=1, description="architectures; absent for every one")
    versions: Versions = Field(description="the versions with which it is wrong, all of them together")
    because: Text = Field(description="what goes wrong")
    source: Text = Field(description="where that is reported in public, such as owner/project#1")


class KernelModel(Closed):
    """A function of a kernel library."""

    like: Word | None = Field(
        default=None, description="another kernel of this file, which has every key that is not stated here"
    )
    symbol: Symbols = Field(description="its dotted name, or several for the releases that moved it, the newest first")
    since: Release | None = Field(
        default=None, description="the first release that is right, where its signature fits older ones"
    )
    until: Release | None = Field(default=None, description="the last release that is right, likewise")
    formats: tuple[Format, ...] = Field(
        default=(), min_length=1, description="element formats it is right for; absent if every one"
    )
    constants: dict[
        Keyword,
        Annotated[
            Annotated[bool, Tag("truth value")]
            | Annotated[int, Tag("integer")]
            | Annotated[float, Tag("decimal")]
            | Annotated[Text, Tag("text")]
            | Annotated[Imported, Tag("mapping")],
            either("true, false, a number, text or {import: NAME}"),
        ],
    ] = Field(default_factory=dict, description="keywords that are always passed with the same value")
    traceable: bool | None = Field(
        default=None, description="false if torch.compile cannot look into it, although it can into its library"
    )
    needs: Needs = Field(default=NOTHING_NEEDED, description="what must hold whatever the scheme")
    known_bad: tuple[KnownBad, ...] = Field(default=(), min_length=1, description="where it is known to be wrong")
    allow: tuple[AllowModel, ...] = Field(default=(), min_length=1, description=ALLOWED)


class QuantizerModel(KernelModel):
    """A kernel that makes codes and scales of the activation."""

    does: Literal["quantize"]
    granularity: Granularity | None = Field(default=None, description="of its scales; absent if it serves every one")
    asymmetric: bool = Field(default=False, description="true if it returns zero points beside codes and scales")
    operands: dict[QuantizerRole, OperandModel] = Field(description="what it is given, and how")
    inputs: tuple[Float, ...] = Field(default=(), min_length=1, description="dtypes of x; absent for any floating one")
    rotate: Keyword | None = Field(default=None, description="optional keyword that rotates blocks of 32")
    codes: Storage | None = Field(default=None, description="how it returns packed codes; absent for one code a byte")
    scale: QuantizerScale | None = None
    rules: tuple[RuleModel, ...] = Field(
        default=(),
        min_length=1,
        description="its arithmetic, the newest release first; absent if it follows the scheme",
    )
    older: tuple[OlderQuantizer, ...] = Field(default=(), min_length=1, description="older forms, the newest first")


class GemmModel(KernelModel):
    """A kernel that multiplies codes by the weight."""

    does: Literal["gemm"]
    operands: dict[GemmRole, OperandModel] = Field(description="what it is given, and how")
    weight_formats: tuple[Format, ...] = Field(
        default=(), min_length=1, description="formats of the weight, where `formats` are the activation's alone"
    )
    inputs: tuple[Float, ...] = Field(
        default=(), min_length=1, description="dtypes of an x that is not quantized; absent where x is codes"
    )
    quantizes: Quantizes | None = Field(default=None, description="what it makes of x; absent if nothing")
    config: Config | None = None
    out: Out | None = Field(default=None, description="the output, where the caller allocates it")
    rows: RowsPadded | None = None
    output: Annotated[
        Annotated[tuple[Float, ...], Field(min_length=1), Tag("list")] | Annotated[Accumulators, Tag("mapping")],
        either("a list of dtypes, or {accumulators: int32}"),
    ] = Field(description="the dtypes that it writes")
    global_scales: Literal["after"] | None = Field(
        default=None, description="after: it knows none, and its product is scaled by those of both operands"
    )
    fp8: Literal["device", "checkpoint"] = Field(default="device", description="the E4M3 flavour of its FP8 operands")
    batch_invariant: bool = Field(
        default=True, description="false if a row's result depends on how many rows there are"
    )
    older: tuple[OlderGemm, ...] = Field(default=(), min_length=1, description="older forms, the newest first")


class TunedKernel(Closed):
    """The kernels that a row of a CSV table may name."""

    name: Text = Field(description="a pattern: * is anything, {k} the number that is the tile along K")
    splits: Literal["log2"] | None = Field(default=None, description="log2: the split of a row is that of the slices")


class TunedEntries(Filled):
    """What the entries of a configuration in a JSON file are called."""

    k: Keyword | None = Field(default=None, description="the tile along K")
    splits: Keyword | None = Field(default=None, description="the number of slices along K")


class TunedTableModel(Closed):
    """A table of tuned shapes; see `qscheme.types.TunedTable`."""

    kind: Literal["csv", "json"]
    files: tuple[Text, ...] = Field(min_length=1, description="paths in the library's package, tried in order")
    variable: Keyword | None = Field(default=None, description="the environment variable that replaces CSV files")
    products: dict[Word, Text] = Field(default_factory=dict, description="marketing names in old file names")
    key: tuple[Keyword, ...] = Field(default=(), min_length=1, description="further columns that tell rows apart")
    kernels: tuple[TunedKernel, ...] = Field(default=(), min_length=1, description="the kernels that rows may name")
    entries: TunedEntries | None = Field(default=None, description="what `qscheme check` looks at in a JSON file")
    rows: dict[Keyword, Annotated[tuple[Text, ...], Field(min_length=1)]] = Field(
        default_factory=dict, description="columns of a CSV file, and what a row must have there to count"
    )


class KernelFile(Closed):
    """schemes/kernels/LIBRARY.yaml"""

    library: Word = Field(
        description="the package that the symbols are imported from, or that those of qscheme.kernels need"
    )
    distributions: tuple[Text, ...] = Field(min_length=1, description="who may own that name on a package index")
    releases: Annotated[str, StringConstraints(pattern=FILE, max_length=80)] | None = Field(
        default=None, description="the file under releases/ that says what each release offers"
    )
    traceable: bool = Field(default=False, description="true if torch.compile can look into its kernels")
    allow: tuple[AllowModel, ...] = Field(default=(), min_length=1, description=ALLOWED)
    tuned_tables: dict[Word, TunedTableModel] = Field(default_factory=dict)
    kernels: dict[Word, Annotated[QuantizerModel | GemmModel, Discriminator("does")]] = Field(min_length=1)
