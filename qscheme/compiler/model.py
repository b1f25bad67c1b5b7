"""What a YAML file may say: pydantic models, strict and closed, one for each kind of file."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Word: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$", max_length=80)]
Symbol: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$", max_length=200)]
Keyword: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*$", max_length=80)]
Release: TypeAlias = Annotated[str, StringConstraints(pattern=r"^v\d+(\.\d+)+(\.?(post|rc|dev)\d+)?$")]
Text: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[ -~]+$")]
Float: TypeAlias = Literal["bf16", "fp16", "fp32"]
Vendor: TypeAlias = Literal["amd", "nvidia", "cpu"]
Format: TypeAlias = Literal["int8", "fp8_e4m3", "fp4_e2m1"]
ScaleFormat: TypeAlias = Literal["fp32", "e8m0"]
Granularity: TypeAlias = Literal["per_tensor", "per_token", "per_channel", "1x128", "128x128", "1x32", "1x16", "32x32"]
Storage: TypeAlias = Literal["bytes", "fp4x2", "e8m0"]
WeightLayout: TypeAlias = Literal["row_major", "transposed", "shuffle_16x16"]
ScaleLayout: TypeAlias = Literal[
    "row_major", "per_row", "k_major", "column_major", "padded_column_major", "swizzle_e8m0_32x8"
]
Role: TypeAlias = Literal[
    "x", "weight", "x_scale", "weight_scale", "bias", "output_dtype", "codes_dtype", "fp8_dtype", "input_scale",
    "activation", "weight_operand",
]  # fmt: skip
Multiple: TypeAlias = Annotated[int, Field(ge=2, le=65536)]
Rows: TypeAlias = Annotated[int, Field(ge=0, le=1 << 30)]


class Closed(BaseModel):
    """A mapping with known keys only."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class MultipleOf(Closed):
    """Dimensions that must be multiples."""

    n: Multiple | None = Field(default=None, description="N, the number of output features")
    k: Multiple | None = Field(default=None, description="K, the number of input features")


class TunedRow(Closed):
    """A table of tuned shapes, and the Ms for which it must have a row."""

    table: Word
    m: Annotated[tuple[Rows, ...], Field(min_length=1, description="every M that must be tuned")]


class Where(Closed):
    """Conditions that hold on some architectures only."""

    arch: tuple[Word, ...] = ()
    vendor: tuple[Vendor, ...] = ()
    since: Release | None = Field(
        default=None, description="the first release of the kernel's library that works there"
    )
    multiple_of: MultipleOf | None = None


class Needs(Closed):
    """What must hold for a kernel or a backend to run a layer."""

    arch: tuple[Word, ...] = Field(default=(), description="architectures of devices.yaml")
    vendor: tuple[Vendor, ...] = ()
    mx: bool | None = Field(default=None, description="whether the device has MX matrix units")
    int8: bool | None = Field(default=None, description="whether the device has INT8 matrix units")
    multiple_of: MultipleOf | None = None
    minimum: MultipleOf | None = Field(default=None, description="the smallest N and K")
    tuned: tuple[TunedRow, ...] = ()
    switches: tuple[Word, ...] = Field(default=(), description="switches of switches.yaml that must be on")
    where: tuple[Where, ...] = ()


class RuleModel(Closed):
    """How values become codes and a scale; see `qscheme.types.Rule`."""

    since: Release | None = Field(default=None, description="the first release with this rule; the newest first")
    scale: Literal["amax_div", "floor", "even", "even175", "rceil", "ceil", "nearest15", "log_nearest"]
    max: Annotated[float, Field(gt=0)]
    fnuz_max: Annotated[float, Field(gt=0)] | None = None
    round: Literal["rne", "half_away", "truncate", "ties_to_zero"]
    apply: Literal["divide", "multiply_reciprocal"]
    floor: Annotated[float, Field(ge=0)]


class LayoutUntil(Closed):
    """A layout that an operand has up to some M."""

    max_m: Rows | None = None
    is_: ScaleLayout = Field(alias="is")
    fold_rows: Multiple | None = None


class OperandModel(Closed):
    """How a kernel takes one operand."""

    as_: Keyword | None = Field(default=None, alias="as", description="the keyword it is passed by")
    position: Annotated[int, Field(ge=0, le=20)] | None = None
    layout: WeightLayout | ScaleLayout | Annotated[tuple[LayoutUntil, ...], Field(min_length=1)] = "row_major"
    dtype: Storage | Literal["any"] | None = Field(default=None, description="how its bytes are viewed")
    fold_rows: Multiple | None = Field(default=None, description="this many rows are passed as one")


class Imported(Closed):
    """A constant that lives in the kernel's library."""

    import_: Symbol = Field(alias="import")


class Config(Closed):
    """A tile configuration that is looked up, changed and passed on."""

    as_: Keyword = Field(alias="as")
    from_: tuple[Symbol, ...] = Field(alias="from", min_length=1)
    set: dict[Keyword, int]


class ScaleOption(Closed):
    """An on-off keyword of a quantizer, and the layout of its scales when it is on."""

    as_: Keyword = Field(alias="as")
    layout: ScaleLayout


class QuantizerScale(Closed):
    """How a quantizer writes its scales; layout is the one without the option."""

    layout: ScaleLayout
    dtype: Storage | None = None
    option: ScaleOption | None = None


class RowsPadded(Closed):
    """What the number of rows is padded to."""

    minimum: Annotated[int, Field(ge=1)] = 1
    multiple: Annotated[int, Field(ge=1)] = 1


class Accumulators(Closed):
    """A product that is not scaled yet."""

    accumulators: Literal["int32"]


class Out(Closed):
    """An output that the caller allocates."""

    as_: Keyword = Field(alias="as")
    rows: Annotated[int, Field(ge=1)] = Field(default=1, description="its rows are a multiple of this")


class Older(Closed):
    """How an older release is called, where it differs."""

    symbol: tuple[Symbol, ...] = ()
    without: tuple[Role, ...] = ()
    out: Out | None = None


class KernelModel(Closed):
    """A function of a kernel library."""

    does: Literal["quantize", "gemm"]
    symbol: Symbol | Annotated[tuple[Symbol, ...], Field(min_length=1)]
    since: Release | None = None
    until: Release | None = None
    formats: tuple[Format, ...] = Field(default=(), description="element formats it is right for; absent if every one")
    granularity: Granularity | None = Field(default=None, description="of a quantizer; absent if it serves every one")
    operands: dict[Role, OperandModel]
    constants: dict[Keyword, bool | int | str | Imported] = Field(default_factory=dict)
    config: Config | None = None
    rotate: Keyword | None = Field(
        default=None, description="optional keyword of a quantizer that rotates blocks of 32"
    )
    inputs: tuple[Float, ...] = Field(default=(), description="dtypes of x; absent for any floating dtype")
    codes: Storage | None = None
    scale: QuantizerScale | None = None
    rules: tuple[RuleModel, ...] = ()
    rows: RowsPadded | None = None
    output: tuple[Float, ...] | Accumulators = ()
    fp8: Literal["device", "checkpoint"] = Field(default="device", description="the E4M3 flavour of its FP8 operands")
    needs: Needs = Needs()
    batch_invariant: bool = Field(
        default=True, description="false if a row's result depends on how many rows there are"
    )
    older: tuple[Older, ...] = ()


class TunedTableModel(Closed):
    """A table of tuned shapes; see `qscheme.types.TunedTable`."""

    kind: Literal["csv", "json"]
    files: Annotated[tuple[Text, ...], Field(min_length=1)]
    variable: Keyword | None = None
    products: dict[Word, Text] = Field(default_factory=dict)


class KernelFile(Closed):
    """schemes/kernels/LIBRARY.yaml"""

    library: Word
    distributions: Annotated[tuple[Text, ...], Field(min_length=1)]
    releases: Text | None = Field(
        default=None, description="the file under releases/ that says what each release offers"
    )
    traceable: bool = Field(default=False, description="true if torch.compile can look into its kernels")
    tuned_tables: dict[Word, TunedTableModel] = Field(default_factory=dict)
    kernels: dict[Word, KernelModel]


class ActivationModel(Closed):
    """What the activation becomes."""

    format: Format
    granularity: Granularity
    scale: ScaleFormat = "fp32"
    mode: Literal["dynamic", "static"]
    rule: RuleModel


class WeightModel(Closed):
    """What the weight is."""

    format: Format
    granularity: Granularity
    scale: ScaleFormat = "fp32"
    stored_scales: tuple[ScaleFormat, ...] = Field(default=(), description="scale formats that checkpoints store")
    rule: RuleModel


class MRange(Closed):
    """A range of M, both ends included."""

    min: Rows | None = None
    max: Rows | None = None


class When(Closed):
    """When a call is used."""

    m: MRange | None = None
    batch_invariant: bool | None = None


class Optioned(Closed):
    """A quantizer with its options."""

    kernel: Symbol
    options: dict[Keyword, bool]


class CallModel(Closed):
    """A quantizer and a GEMM, used for some M."""

    when: When = When()
    quantize: Symbol | Optioned
    gemm: Symbol


class BackendModel(Closed):
    """One way to run the scheme."""

    name: Word
    quantize: Symbol | Optioned | None = None
    gemm: Symbol | None = None
    calls: tuple[CallModel, ...] = ()
    needs: Needs = Needs()
    on_use: Literal["quiet", "warn"] = "quiet"


class SchemeFile(Closed):
    """schemes/SCHEME.yaml"""

    scheme: Word
    title: Text
    activation: ActivationModel
    weight: WeightModel
    backends: Annotated[tuple[BackendModel, ...], Field(min_length=1)]


class DeviceModel(Closed):
    """What an architecture is."""

    vendor: Vendor
    family: Word
    fp8: Literal["fn", "fnuz", "none"]
    mx: bool
    int8: bool
    wave: int
    compute_units: tuple[int, ...] = ()


class DeviceFile(Closed):
    """schemes/devices.yaml"""

    devices: dict[Word, DeviceModel]


class SwitchModel(Closed):
    """An on-off switch."""

    default: bool
    variables: tuple[Keyword, ...]
    meaning: Text


class SwitchFile(Closed):
    """schemes/switches.yaml"""

    switches: dict[Word, SwitchModel]
