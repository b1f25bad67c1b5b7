"""A kernel of the catalogue -> the pieces of Python that its generated module is made of."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple, cast

from qscheme.compiler.ir import Imported
from qscheme.compiler.kernel_functions import adapt_body, fake_body
from qscheme.compiler.parameters import OBJECT, argument, constant_name, parameters_of, protocol_name, signature
from qscheme.types import Form

if TYPE_CHECKING:
    from qscheme.compiler import ir
    from qscheme.compiler.parameters import Parameter

SCHEMA = {
    "Tensor": "Tensor",
    "Tensor | None": "Tensor?",
    "torch.dtype": "ScalarType",
    "bool": "bool",
    "int": "int",
    "float": "float",
    "str": "str",
    "str | None": "str?",
}
"""The type in a custom op's schema of each Python type."""


@dataclasses.dataclass(frozen=True, slots=True)
class KernelText:
    """What the template prints for one kernel."""

    name: str
    full_name: str
    constant: str
    protocol: str
    prose: str
    signature: str
    returns: str
    adapt: tuple[str, ...]
    fake: tuple[str, ...]
    plain_signature: str
    schema: str
    op: str
    positional: str
    fixed: str
    opaque: bool
    data: str


def kernel_text(kernel: ir.Kernel) -> KernelText:
    """All the text of one kernel."""
    opaque = not kernel.traceable
    parameters = parameters_of(kernel)
    stated = [parameter for parameter in parameters if parameter.type != OBJECT]
    stated.sort(key=lambda parameter: parameter.optional)
    returns = "Tensor" if kernel.does == "gemm" else "tuple[Tensor, Tensor]"
    if kernel.asymmetric:
        returns = "tuple[Tensor, Tensor, Tensor]"
    return KernelText(
        name=kernel.name,
        full_name=f"{kernel.library}.{kernel.name}",
        constant=constant_name(kernel),
        protocol=protocol_name(kernel),
        prose=_prose(kernel),
        signature=signature(parameters),
        returns=returns,
        adapt=tuple(adapt_body(kernel, parameters)),
        fake=tuple(fake_body(kernel, parameters)) if opaque else (),
        plain_signature=", ".join(f"{p.name}: {p.type}{' = None' if p.optional else ''}" for p in stated),
        schema=_schema(stated, kernel),
        op=f"{kernel.library}_{kernel.name}",
        positional=f", positional={count}" if (count := sum(p.positional for p in parameters)) else "",
        fixed=f", fixed={{{fixed}}}" if (fixed := _fixed(kernel, parameters)) else "",
        opaque=opaque,
        data=_data(kernel, opaque),
    )


def source(value: object) -> str:
    """The Python text that makes a value; fields of named tuples that have their default are left out."""
    if hasattr(value, "_fields"):
        record = cast("NamedTuple", value)
        given = {name: item for name, item in record._asdict().items() if record._field_defaults.get(name, ...) != item}
        return f"{type(record).__name__}({', '.join(f'{name}={source(item)}' for name, item in given.items())})"
    if isinstance(value, tuple):
        items = cast("tuple[object, ...]", value)
        return f"({', '.join(map(source, items))}{',' if len(items) == 1 else ''})"
    return repr(value)


def _prose(kernel: ir.Kernel) -> str:
    if kernel.does == "quantize":
        return f"`{kernel.symbols[0]}`: x [M, K] -> codes and scales."
    return f"`{kernel.symbols[0]}`: {'codes' if kernel.takes_codes else 'x'} [M, K] and weight [N, K] -> y [M, N]."


def _fixed(kernel: ir.Kernel, parameters: list[Parameter]) -> str:
    """The constants that a schema cannot state, as the items of a dictionary."""
    objects = {parameter.name for parameter in parameters if parameter.type == OBJECT}
    return ", ".join(
        f"{name!r}: {value.name}" for name, value in kernel.constants if name in objects and isinstance(value, Imported)
    )


def _schema(parameters: list[Parameter], kernel: ir.Kernel) -> str:
    types = [f"{SCHEMA.get(p.type, 'Tensor')} {p.name}{'=None' if p.optional else ''}" for p in parameters]
    return f"({', '.join(types)}) -> {'Tensor' if kernel.does == 'gemm' else '(Tensor, Tensor)'}"


def forms_of(kernel: ir.Kernel) -> tuple[Form, ...]:
    """Every way to call a kernel, the newest first."""
    parameters = parameters_of(kernel)
    positional = sum(parameter.positional for parameter in parameters)
    keywords = tuple(p.name for p in parameters if not p.positional and not p.optional)
    config = kernel.config
    further = (*((config.keyword,) if config else ()), *((kernel.out[0],) if kernel.out else ()))
    newest = Form(
        kernel.symbols, positional, (*keywords, *further), kernel.since, kernel.until, config.symbols if config else ()
    )
    forms = [newest]
    for older in kernel.older:
        gone = {argument(kernel, role) for role in older.without}
        kept = tuple(name for name in keywords if name not in gone)
        forms.append(Form(older.symbols, positional, (*kept, older.out[0]) if older.out else kept))
    return tuple(forms)


def optional_keywords(kernel: ir.Kernel) -> tuple[str, ...]:
    """Keywords that some calls of a kernel pass and others do not."""
    return tuple(parameter.name for parameter in parameters_of(kernel) if parameter.optional)


def _data(kernel: ir.Kernel, opaque: bool) -> str:
    fields = [
        f"name={kernel.library + '.' + kernel.name!r}",
        f"library={kernel.package!r}",
        f"forms={source(forms_of(kernel))}",
        f"adapt=adapt_{kernel.name}",
    ]
    if opaque:
        fields.append(f"opaque=opaque_{kernel.name}")
    if kernel.rules:
        fields.append(f"rules={source(kernel.rules)}")
    if kernel.rotate:
        fields.append(f"rotate={kernel.rotate!r}")
    return ", ".join(fields)
