"""What a YAML file may say: pydantic models, strict and closed, one for each kind of file."""

from __future__ import annotations

import keyword
from typing import Annotated, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

NAME = r"^[a-z][a-z0-9_]*$"
DOTTED = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+$"
IDENTIFIER = r"^[A-Za-z_][A-Za-z0-9_]*$"
RELEASE = r"^v[0-9]+(\.[0-9]+)+(\.?(post|rc|dev)[0-9]+)?$"
PRINTABLE = r"^[ -~]+$"
FILE = r"^[A-Za-z0-9_-]+\.json$"

WRITTEN = {
    NAME: "a name of small letters, digits and _, such as gemm_a8w8",
    DOTTED: "a dotted name, such as aiter.gemm_a4w4",
    IDENTIFIER: "a Python name",
    RELEASE: "a release as its library tags it, such as v0.1.16",
    PRINTABLE: "ASCII text",
    FILE: "the name of a .json file",
}
"""What each pattern asks for, in words."""


def _not_a_word_of_python(name: str) -> str:
    for part in name.split("."):
        if keyword.iskeyword(part) or part.startswith("__"):
            raise PydanticCustomError("word_of_python", "{part} is a word of Python; a name is needed", {"part": part})
    return name


def _form(value: object) -> str | None:
    """Which form of a union a value has."""
    match value:
        case bool():
            return "truth value"
        case int():
            return "integer"
        case float():
            return "decimal"
        case str():
            return "text"
        case tuple():
            return "list"
        case dict() | BaseModel():
            return "mapping"
        case _:
            return None


def _either(forms: str) -> Discriminator:
    return Discriminator(_form, custom_error_type="form", custom_error_message=f"needs {forms}")


_python = AfterValidator(_not_a_word_of_python)

Word: TypeAlias = Annotated[str, StringConstraints(pattern=NAME, max_length=80), _python]
Symbol: TypeAlias = Annotated[str, StringConstraints(pattern=DOTTED, max_length=200), _python]
Keyword: TypeAlias = Annotated[str, StringConstraints(pattern=IDENTIFIER, max_length=80), _python]
Release: TypeAlias = Annotated[str, StringConstraints(pattern=RELEASE, max_length=40)]
Text: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=PRINTABLE)]
Float: TypeAlias = Literal["bf16", "fp16", "fp32"]
Vendor: TypeAlias = Literal["amd", "nvidia", "cpu"]
Format: TypeAlias = Literal["int8", "fp8_e4m3", "fp4_e2m1"]
ScaleFormat: TypeAlias = Literal["fp32", "e8m0"]
Granularity: TypeAlias = Literal["per_tensor", "per_token", "per_channel", "1x128", "128x128", "1x32", "1x16", "32x32"]
Storage: TypeAlias = Literal["bytes", "fp4x2", "e8m0"]
ScaleLayout: TypeAlias = Literal[
    "row_major", "per_row", "k_major", "column_major", "padded_column_major", "swizzle_e8m0_32x8"
]
Layout: TypeAlias = Literal[
    "row_major", "transposed", "shuffle_16x16",
    "per_row", "k_major", "column_major", "padded_column_major", "swizzle_e8m0_32x8",
]  # fmt: skip
QuantizerRole: TypeAlias = Literal["x", "codes_dtype", "fp8_dtype", "input_scale", "activation"]
GemmRole: TypeAlias = Literal[
    "x", "weight", "x_scale", "weight_scale", "bias", "output_dtype", "activation", "weight_operand"
]
Multiple: TypeAlias = Annotated[int, Field(ge=2, le=65536)]
Count: TypeAlias = Annotated[int, Field(ge=1, le=65536)]
Rows: TypeAlias = Annotated[int, Field(ge=0, le=1 << 30)]
Symbols: TypeAlias = Annotated[
    Annotated[Symbol, Tag("text")] | Annotated[tuple[Symbol, ...], Field(min_length=1), Tag("list")],
    _either("a dotted name or a list of them"),
]


class Closed(BaseModel):
    """A mapping with known keys only."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Filled(Closed):
    """A mapping with known keys only, and at least one of them."""

    @model_validator(mode="after")
    def _is_filled(self) -> Filled:
        if not self.model_fields_set:
            keys = ", ".join(field.alias or name for name, field in type(self).model_fields.items())
            raise PydanticCustomError(
                "empty", "says nothing; write one of its keys ({keys}), or remove it", {"keys": keys}
            )
        return self


class MultipleOf(Filled):
    """Dimensions that must be multiples of a number."""

    n: Multiple | None = Field(default=None, description="N, the number of output features")
    k: Multiple | None = Field(default=None, description="K, the number of input features")


class Minimum(Filled):
    """The smallest dimensions."""

    n: Count | None = Field(default=None, description="N, the number of output features")
    k: Count | None = Field(default=None, description="K, the number of input features")


class TunedRow(Closed):
    """A table of tuned shapes, and the Ms for which it must have a row."""

    table: Word = Field(description="one of the tuned_tables of a kernel library")
    m: tuple[Rows, ...] = Field(min_length=1, description="every M that must be tuned")


class Where(Closed):
    """Conditions that hold on some architectures, or on the devices of some vendors, only."""

    arch: tuple[Word, ...] = Field(default=(), min_length=1, description="architectures of devices.yaml")
    vendor: tuple[Vendor, ...] = Field(default=(), min_length=1)
    since: Release | None = Field(
        default=None, description="the first release of the kernel's library that works there"
    )
    multiple_of: MultipleOf | None = None


class Needs(Filled):
    """What must hold for a kernel or a backend to run a layer."""

    arch: tuple[Word, ...] = Field(default=(), min_length=1, description="architectures of devices.yaml")
    vendor: tuple[Vendor, ...] = Field(default=(), min_length=1, description="who made the device")
    mx: Literal[True] | None = Field(default=None, description="the device has MX matrix units")
    int8: Literal[True] | None = Field(default=None, description="the device has INT8 matrix units")
    multiple_of: MultipleOf | None = Field(default=None, description="what N and K must be multiples of")
    minimum: Minimum | None = Field(default=None, description="the smallest N and K")
    tuned: tuple[TunedRow, ...] = Field(default=(), min_length=1, description="tables that must have the shape")
    switches: tuple[Word, ...] = Field(
        default=(), min_length=1, description="switches of switches.yaml that must be on"
    )
    where: tuple[Where, ...] = Field(default=(), min_length=1, description="conditions on some devices only")


NOTHING_NEEDED = Needs.model_construct()


class RuleModel(Closed):
    """How a tile of values becomes codes and one scale; see `qscheme.types.Rule`."""

    since: Release | None = Field(
        default=None, description="the first release with this rule of a quantizer; the newest first"
    )
    scale: Literal["amax_div", "floor", "even", "even175", "rceil", "ceil", "nearest15", "log_nearest"] = Field(
        description="how the scale is found from the largest magnitude: amax_div divides it by max, the others give "
        "a power of two"
    )
    max: float = Field(gt=0, description="the code that the largest magnitude becomes")
    fnuz_max: float | None = Field(default=None, gt=0, description="the same on devices whose FP8 is fnuz")
    round: Literal["rne", "half_away", "truncate", "ties_to_zero"] = Field(description="how a value becomes a code")
    apply: Literal["divide", "multiply_reciprocal"] = Field(description="how values are scaled")
    floor: float = Field(ge=0, description="the smallest magnitude that a scale is made for")


class LayoutUntil(Closed):
    """A layout that an operand has up to some M."""

    max_m: Rows | None = Field(default=None, description="the largest M; absent in the last row")
    is_: ScaleLayout = Field(alias="is")
    fold_rows: Multiple | None = Field(default=None, description="this many rows are passed as one")


class OperandModel(Closed):
    """How a kernel takes one operand."""

    as_: Keyword | None = Field(default=None, alias="as", description="the keyword it is passed by")
    position: Annotated[int, Field(ge=0, le=20)] | None = Field(default=None, description="its place, from 0")
    layout: Annotated[
        Annotated[Layout, Tag("text")] | Annotated[tuple[LayoutUntil, ...], Field(min_length=1), Tag("list")],
        _either("a layout, or a list of layouts with max_m"),
    ] = Field(default="row_major", description="how the kernel reads it; one for each range of M where it changes")
    granularity: tuple[Granularity, ...] = Field(
        default=(), min_length=1, description="of a scale: the tiles that the kernel is right for; absent for any"
    )
    dtype: Storage | Literal["any"] | None = Field(default=None, description="how its bytes are viewed")
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


class Accumulators(Closed):
    """A product that is not scaled yet."""

    accumulators: Literal["int32"]


class Out(Closed):
    """An output that the caller allocates."""

    as_: Keyword = Field(alias="as")
    rows: Count = Field(default=1, description="its rows are a multiple of this")


class OlderQuantizer(Closed):
    """How an older release of a quantizer is called, where it differs."""

    symbol: tuple[Symbol, ...] = Field(default=(), min_length=1)
    without: tuple[QuantizerRole, ...] = Field(default=(), min_length=1, description="operands that it does not take")


class OlderGemm(Closed):
    """How an older release of a GEMM is called, where it differs."""

    symbol: tuple[Symbol, ...] = Field(default=(), min_length=1)
    without: tuple[GemmRole, ...] = Field(default=(), min_length=1, description="operands that it does not take")
    out: Out | None = None


class KernelModel(Closed):
    """A function of a kernel library."""

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
            _either("true, false, a number, text or {import: NAME}"),
        ],
    ] = Field(default_factory=dict, description="keywords that are always passed with the same value")
    needs: Needs = Field(default=NOTHING_NEEDED, description="what must hold whatever the scheme")


class QuantizerModel(KernelModel):
    """A kernel that makes codes and scales of the activation."""

    does: Literal["quantize"]
    granularity: Granularity | None = Field(default=None, description="of its scales; absent if it serves every one")
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
    config: Config | None = None
    rows: RowsPadded | None = None
    output: Annotated[
        Annotated[tuple[Float, ...], Field(min_length=1), Tag("list")] | Annotated[Accumulators, Tag("mapping")],
        _either("a list of dtypes, or {accumulators: int32}"),
    ] = Field(description="the dtypes that it writes")
    fp8: Literal["device", "checkpoint"] = Field(default="device", description="the E4M3 flavour of its FP8 operands")
    batch_invariant: bool = Field(
        default=True, description="false if a row's result depends on how many rows there are"
    )
    older: tuple[OlderGemm, ...] = Field(default=(), min_length=1, description="older forms, the newest first")


class TunedTableModel(Closed):
    """A table of tuned shapes; see `qscheme.types.TunedTable`."""

    kind: Literal["csv", "json"]
    files: tuple[Text, ...] = Field(min_length=1, description="paths in the library's package, tried in order")
    variable: Keyword | None = Field(default=None, description="the environment variable that replaces CSV files")
    products: dict[Word, Text] = Field(default_factory=dict, description="marketing names in old file names")


class KernelFile(Closed):
    """schemes/kernels/LIBRARY.yaml"""

    library: Word = Field(description="the package that the symbols are imported from")
    distributions: tuple[Text, ...] = Field(min_length=1, description="who may own that name on a package index")
    releases: Annotated[str, StringConstraints(pattern=FILE, max_length=80)] | None = Field(
        default=None, description="the file under releases/ that says what each release offers"
    )
    traceable: bool = Field(default=False, description="true if torch.compile can look into its kernels")
    tuned_tables: dict[Word, TunedTableModel] = Field(default_factory=dict)
    kernels: dict[Word, Annotated[QuantizerModel | GemmModel, Discriminator("does")]] = Field(min_length=1)


class ActivationModel(Closed):
    """What the activation becomes."""

    format: Format = Field(description="the codes; fp8_e4m3 is fn or fnuz as the device says")
    granularity: Granularity = Field(description="which elements share a scale")
    scale: ScaleFormat = Field(default="fp32", description="the format of its scales")
    mode: Literal["dynamic", "static"] = Field(description="whether scales are found per call or given by the layer")
    rule: RuleModel = Field(description="the arithmetic that the checkpoint's producer used")


class WeightModel(Closed):
    """What the weight is."""

    format: Format = Field(description="the codes, as checkpoints store them")
    granularity: Granularity = Field(description="which elements share a scale")
    scale: ScaleFormat = Field(default="fp32", description="the format of its scales")
    stored_scales: tuple[ScaleFormat, ...] = Field(
        default=(), min_length=1, description="scale formats that checkpoints store; absent for the scale's own"
    )
    rule: RuleModel = Field(description="the arithmetic that the checkpoint's producer used")


class MRange(Filled):
    """A range of M, both ends included."""

    min: Rows | None = None
    max: Rows | None = None


class When(Filled):
    """When a call is used."""

    m: MRange | None = Field(default=None, description="for these numbers of rows")
    batch_invariant: bool | None = Field(default=None, description="with the switch batch_invariant on, or off")


class Optioned(Closed):
    """A quantizer with its options."""

    kernel: Symbol = Field(description="LIBRARY.KERNEL")
    options: dict[Keyword, bool] = Field(description="its on-off keywords")


Quantizer: TypeAlias = Annotated[
    Annotated[Symbol, Tag("text")] | Annotated[Optioned, Tag("mapping")],
    _either("LIBRARY.KERNEL, or {kernel: LIBRARY.KERNEL, options: ...}"),
]


class CallModel(Closed):
    """A quantizer and a GEMM, used for some M."""

    when: When = Field(default=When.model_construct(), description="absent for every M that is left")
    quantize: Quantizer = Field(description="LIBRARY.KERNEL of the quantizer")
    gemm: Symbol = Field(description="LIBRARY.KERNEL of the GEMM")


class BackendModel(Closed):
    """One way to run the scheme."""

    name: Word = Field(description="starts with the library of its GEMM")
    quantize: Quantizer | None = Field(default=None, description="LIBRARY.KERNEL of the quantizer")
    gemm: Symbol | None = Field(default=None, description="LIBRARY.KERNEL of the GEMM")
    calls: tuple[CallModel, ...] = Field(
        default=(), min_length=1, description="where kernels change with M or the mode"
    )
    needs: Needs = Field(default=NOTHING_NEEDED, description="what must hold beyond the needs of its kernels")
    on_use: Literal["quiet", "warn"] = Field(default="quiet", description="warn: say once that a fallback runs")


class SchemeFile(Closed):
    """schemes/SCHEME.yaml"""

    scheme: Word = Field(description="the name of the scheme and of its file")
    title: Text = Field(description="one line for people, without a full stop")
    activation: ActivationModel
    weight: WeightModel
    backends: tuple[BackendModel, ...] = Field(min_length=1, description="the first that fits is used")


class DeviceModel(Closed):
    """What an architecture is."""

    vendor: Vendor
    family: Word = Field(description="the vendor's name of the generation")
    fp8: Literal["fn", "fnuz", "none"] = Field(description="the E4M3 flavour of its matrix units")
    mx: bool = Field(description="whether its matrix units take block scales")
    int8: bool = Field(description="whether its matrix units take INT8")
    wave: Count = Field(description="threads that run in lockstep")
    compute_units: tuple[Count, ...] = Field(default=(), description="of its products, the common whole device first")


class DeviceFile(Closed):
    """schemes/devices.yaml"""

    devices: dict[Word, DeviceModel] = Field(min_length=1)


class SwitchModel(Closed):
    """An on-off switch."""

    default: bool
    variables: tuple[Keyword, ...] = Field(
        min_length=1, description="environment variables; the first that is set wins"
    )
    meaning: Text = Field(description="what may happen when it is on")


class SwitchFile(Closed):
    """schemes/switches.yaml"""

    switches: dict[Word, SwitchModel]
