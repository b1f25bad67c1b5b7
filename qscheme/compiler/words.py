"""The closed lists of words and the ways of writing that models are made of."""

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
    WithJsonSchema,
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
    PRINTABLE: "one line of ASCII text",
    FILE: "the name of a .json file",
}
"""What each pattern asks for, in words."""


def _not_a_word_of_python(name: str) -> str:
    for part in name.split("."):
        if keyword.iskeyword(part):
            raise PydanticCustomError("word_of_python", "{part} is a word of Python; choose a name", {"part": part})
        if part.startswith("__"):
            raise PydanticCustomError("own_name", "{part} starts with __, as Python's own names do", {"part": part})
    return name


def _must_hold(value: bool) -> bool:
    if not value:
        raise PydanticCustomError("must_hold", "needs true, found false; leave the key out instead")
    return value


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


def either(forms: str) -> Discriminator:
    return Discriminator(_form, custom_error_type="form", custom_error_message=f"needs {forms}")


_python = AfterValidator(_not_a_word_of_python)

Word: TypeAlias = Annotated[str, StringConstraints(pattern=NAME, max_length=80), _python]
Symbol: TypeAlias = Annotated[str, StringConstraints(pattern=DOTTED, max_length=200), _python]
Keyword: TypeAlias = Annotated[str, StringConstraints(pattern=IDENTIFIER, max_length=80), _python]
Release: TypeAlias = Annotated[str, StringConstraints(pattern=RELEASE, max_length=40)]
Text: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=PRINTABLE)]
Float: TypeAlias = Literal["bf16", "fp16", "fp32"]
Vendor: TypeAlias = Literal["amd", "nvidia", "cpu"]
Storage: TypeAlias = Literal["bytes", "fp4x2", "e8m0"]
ScaleLayout: TypeAlias = Literal[
    "row_major", "per_row", "row_vector", "k_major", "column_major", "padded_column_major", "swizzle_e8m0_32x8",
    "tiles_32x4", "tiles_32x8", "swizzle_32_4_4",
]  # fmt: skip
Layout: TypeAlias = Literal[
    "row_major", "transposed", "shuffle_16x16", "tiles_2x128",
    "per_row", "row_vector", "k_major", "column_major", "padded_column_major", "swizzle_e8m0_32x8",
    "tiles_32x4", "tiles_32x8", "swizzle_32_4_4",
]  # fmt: skip
QuantizerRole: TypeAlias = Literal["x", "codes_dtype", "fp8_dtype", "input_scale", "input_global_scale", "activation"]
GemmRole: TypeAlias = Literal[
    "x", "weight", "x_scale", "weight_scale", "bias", "output_dtype", "activation", "weight_operand",
    "input_global_scale", "weight_global_scale", "x_zero_point", "weight_zero_point",
    "weight_format", "weight_granularity", "weight_scale_format", "weight_global_scale_applies", "batch_invariant",
]  # fmt: skip
Holds: TypeAlias = Annotated[bool, AfterValidator(_must_hold), WithJsonSchema({"type": "boolean", "const": True})]
Multiple: TypeAlias = Annotated[int, Field(ge=2, le=65536)]
Count: TypeAlias = Annotated[int, Field(ge=1, le=65536)]
Rows: TypeAlias = Annotated[int, Field(ge=0, le=1 << 30)]
Symbols: TypeAlias = Annotated[
    Annotated[Symbol, Tag("text")] | Annotated[tuple[Symbol, ...], Field(min_length=1), Tag("list")],
    either("a dotted name or a list of them"),
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
