"""What a YAML file may say of schemes, devices and switches: pydantic models, strict and closed."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, Tag

from qscheme.compiler.words import (
    Closed,
    Count,
    Filled,
    Float,
    Holds,
    Keyword,
    Multiple,
    Release,
    Rows,
    Symbol,
    Text,
    Vendor,
    Word,
    either,
)
from qscheme.types import Format, GlobalScale, Granularity, Packing, ScaleFormat


class MultipleOf(Filled):
    """Dimensions that must be multiples of a number."""

    n: Multiple | None = Field(default=None, description="N, the number of output features")
    k: Multiple | None = Field(default=None, description="K, the number of input features")


class LayerMultipleOf(MultipleOf):
    """Dimensions that must be multiples of a number; those of this shard unless they say `full`."""

    full_n: Multiple | None = Field(default=None, description="the N of the whole layer, of which this may be a shard")
    full_k: Multiple | None = Field(default=None, description="the K of the whole layer")


class Minimum(Filled):
    """The smallest dimensions."""

    n: Count | None = Field(default=None, description="N, the number of output features")
    k: Count | None = Field(default=None, description="K, the number of input features")


class VersionRange(Filled):
    """A range of versions; they are compared part by part, so that v7.10 is newer than v7.3."""

    since: Release | None = Field(default=None, description="the first version of the range")
    before: Release | None = Field(default=None, description="the first version after the range")


Versions: TypeAlias = Annotated[dict[Word, VersionRange], Field(min_length=1)]
"""Ranges by name: `rocm`, `cuda`, `triton` or the library of a kernel file."""


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
    before: Release | None = Field(
        default=None, description="the first release of the kernel's library that does not need `multiple_of` there"
    )
    multiple_of: MultipleOf | None = None


class Needs(Filled):
    """What must hold for a kernel or a backend to run a layer."""

    arch: tuple[Word, ...] = Field(default=(), min_length=1, description="architectures of devices.yaml")
    vendor: tuple[Vendor, ...] = Field(default=(), min_length=1, description="who made the device")
    mx: Holds | None = Field(default=None, description="the device has MX matrix units")
    int8: Holds | None = Field(default=None, description="the device has INT8 matrix units")
    one_scale: Holds | None = Field(default=None, description="the layer has one weight scale, not one for each part")
    versions: Versions | None = Field(default=None, description="what the toolchain and libraries must be")
    multiple_of: LayerMultipleOf | None = Field(default=None, description="what N and K must be multiples of")
    minimum: Minimum | None = Field(default=None, description="the smallest N and K")
    tuned: tuple[TunedRow, ...] = Field(default=(), min_length=1, description="tables that must have the shape")
    switches: tuple[Word, ...] = Field(
        default=(), min_length=1, description="switches of switches.yaml that must be on"
    )
    where: tuple[Where, ...] = Field(default=(), min_length=1, description="conditions on some devices only")


ALLOWED = "findings of `qscheme lint` in this entry that are meant"

NOTHING_NEEDED = Needs.model_construct()


class AllowModel(Closed):
    """A finding of `qscheme lint` that is meant."""

    id: Text = Field(description="the id of the finding, such as QS152")
    because: Text | None = Field(default=None, description="why it is right")


class ClaimsModel(Filled):
    """What a scheme without an unconditional backend serves."""

    arch: tuple[Word, ...] = Field(default=(), min_length=1, description="architectures of devices.yaml; every one")
    output: tuple[Float, ...] = Field(default=(), min_length=1, description="output dtypes; absent for every one")
    multiple_of: MultipleOf | None = Field(default=None, description="what N and K are multiples of")
    minimum: Minimum | None = Field(default=None, description="the smallest N and K")


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


class ActivationModel(Closed):
    """What the activation becomes."""

    format: Format = Field(description="the codes; fp8_e4m3 is fn or fnuz as the device says")
    granularity: Granularity = Field(description="which elements share a scale")
    scale: ScaleFormat = Field(default="fp32", description="the format of its scales")
    symmetric: bool = Field(default=True, description="false if codes have a zero point")
    global_scale: GlobalScale | None = Field(default=None, description="how one more scale of the tensor is applied")
    mode: Literal["dynamic", "static"] = Field(description="whether scales are found per call or given by the layer")
    rule: RuleModel = Field(description="the arithmetic that the checkpoint's producer used")


class WeightModel(Closed):
    """What the weight is."""

    format: Format = Field(description="the codes, as checkpoints store them")
    granularity: Granularity = Field(description="which elements share a scale")
    scale: ScaleFormat = Field(default="fp32", description="the format of its scales")
    symmetric: bool = Field(default=True, description="false if codes have a zero point")
    global_scale: GlobalScale | None = Field(default=None, description="how one more scale of the tensor is applied")
    packing: Packing = Field(default="plain", description="how integer codes, zero points and scales are stored")
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


ALWAYS = When.model_construct()


class Optioned(Closed):
    """A quantizer with its options."""

    kernel: Symbol = Field(description="LIBRARY.KERNEL")
    options: dict[Keyword, bool] = Field(description="its on-off keywords")


Quantizer: TypeAlias = Annotated[
    Annotated[Symbol, Tag("text")] | Annotated[Optioned, Tag("mapping")],
    either("LIBRARY.KERNEL, or {kernel: LIBRARY.KERNEL, options: ...}"),
]


class CallModel(Closed):
    """A quantizer and a GEMM, used for some M."""

    when: When = Field(default=ALWAYS, description="absent for every M that is left")
    quantize: Quantizer | None = Field(default=None, description="LIBRARY.KERNEL of the quantizer")
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
    allow: tuple[AllowModel, ...] = Field(default=(), min_length=1, description=ALLOWED)


class SchemeFile(Closed):
    """schemes/SCHEME.yaml"""

    scheme: Word = Field(description="the name of the scheme and of its file")
    title: Text = Field(description="one line for people, without a full stop")
    producers: tuple[Text, ...] = Field(default=(), min_length=1, description="who writes such checkpoints, as what")
    activation: Annotated[
        Annotated[Literal["none"], Tag("text")] | Annotated[ActivationModel, Tag("mapping")],
        either("none, for an x that is multiplied as it is, or what the activation becomes"),
    ]
    weight: WeightModel
    claims: ClaimsModel | None = Field(default=None, description="what it serves; absent for every layer")
    allow: tuple[AllowModel, ...] = Field(default=(), min_length=1, description=ALLOWED)
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
    products: tuple[Text, ...] = Field(default=(), min_length=1, description="names in shops")


class DeviceFile(Closed):
    """schemes/devices.yaml"""

    allow: tuple[AllowModel, ...] = Field(default=(), min_length=1, description=ALLOWED)
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

    allow: tuple[AllowModel, ...] = Field(default=(), min_length=1, description=ALLOWED)
    switches: dict[Word, SwitchModel]
