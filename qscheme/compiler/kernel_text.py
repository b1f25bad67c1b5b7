"""A kernel of the catalogue -> the pieces of Python that its generated module is made of."""

from __future__ import annotations

import dataclasses
import itertools
import re
from typing import TYPE_CHECKING, NamedTuple, cast

from qscheme.compiler.ir import Imported
from qscheme.types import Form

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qscheme.compiler import ir

TYPES = {
    "bias": "Tensor | None",
    "output_dtype": "torch.dtype",
    "codes_dtype": "torch.dtype",
    "fp8_dtype": "torch.dtype",
    "activation": "Operand",
    "weight_operand": "Operand",
}
"""The Python type of an operand's role; every other is a Tensor."""

SCHEMA = {
    "Tensor": "Tensor",
    "Tensor | None": "Tensor?",
    "torch.dtype": "ScalarType",
    "bool": "bool",
    "int": "int",
    "float": "float",
    "str": "str",
}
"""The type in a custom op's schema of each Python type."""

DTYPE_CONSTANT = re.compile(r"torch\.(b?float|u?int|half|double|short|long|bool)\w*")
"""Imported constants that are dtypes, which a custom op can be given; other objects it cannot."""

STORAGE = {"bytes": "torch.uint8", "fp4x2": "torch.float4_e2m1fn_x2", "e8m0": "torch.float8_e8m0fnu"}
"""The torch dtype of each storage word."""


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a kernel's Protocol; name is the keyword, or the role of a positional one."""

    name: str
    type: str
    positional: bool
    optional: bool


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
    opaque: bool
    data: str


def kernel_text(kernel: ir.Kernel) -> KernelText:
    """All the text of one kernel."""
    opaque = not kernel.traceable
    parameters = parameters_of(kernel)
    returns = "Tensor" if kernel.does == "gemm" else "tuple[Tensor, Tensor]"
    return KernelText(
        name=kernel.name,
        full_name=f"{kernel.library}.{kernel.name}",
        constant=constant_name(kernel),
        protocol=protocol_name(kernel),
        prose=_prose(kernel),
        signature=_signature(parameters),
        returns=returns,
        adapt=tuple(_adapt(kernel, parameters)),
        fake=tuple(_fake(kernel, parameters)) if opaque else (),
        plain_signature=", ".join(f"{parameter.name}: {parameter.type}" for parameter in parameters),
        schema=_schema(parameters, kernel),
        op=f"{kernel.library}_{kernel.name}",
        positional=f", positional={count}" if (count := sum(p.positional for p in parameters)) else "",
        opaque=opaque,
        data=_data(kernel, opaque),
    )


def protocol_name(kernel: ir.Kernel) -> str:
    """The name of the Protocol of a kernel."""
    return class_name(kernel.name)


def class_name(name: str) -> str:
    """gemm_a8w8_ck -> GemmA8w8Ck"""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def constant_name(kernel: ir.Kernel) -> str:
    """gemm_a8w8_ck -> GEMM_A8W8_CK"""
    return kernel.name.upper()


def parameters_of(kernel: ir.Kernel) -> list[Parameter]:
    """The parameters of a kernel's newest form: positional ones in order, keywords, constants."""
    positional = sorted((use for use in kernel.operands if use.position is not None), key=lambda use: use.position or 0)
    generic = kernel.does == "quantize" and kernel.granularity is None
    found = [Parameter(use.role, TYPES.get(use.role, "Tensor"), True, False) for use in positional]
    for use in kernel.operands:
        if use.keyword is not None:
            optional = generic and use.role in ("fp8_dtype", "input_scale")
            found.append(Parameter(use.keyword, TYPES.get(use.role, "Tensor"), False, optional))
    if kernel.scale_option is not None:
        found.append(Parameter(kernel.scale_option[0], "bool", False, False))
    for name, value in kernel.constants:
        found.append(Parameter(name, _constant_type(value), False, False))
    return found


def source(value: object) -> str:
    """The Python text that makes a value; fields of named tuples that have their default are left out."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        record = cast("NamedTuple", value)
        given = {name: item for name, item in record._asdict().items() if record._field_defaults.get(name, ...) != item}
        return f"{type(record).__name__}({', '.join(f'{name}={source(item)}' for name, item in given.items())})"
    if isinstance(value, tuple):
        items = cast("tuple[object, ...]", value)
        return f"({', '.join(map(source, items))}{',' if len(items) == 1 else ''})"
    return repr(value)


def rows_of_weight(kernel: ir.Kernel, weight: str) -> str:
    """N as an expression over the weight that the kernel is given."""
    use = kernel.operand("weight")
    layout = use.layouts[0] if use else None
    if layout and layout.layout == "transposed":
        return f"{weight}.shape[1]"
    return f"{weight}.shape[0] * {layout.fold}" if layout and layout.fold else f"{weight}.shape[0]"


def argument(kernel: ir.Kernel, role: str) -> str:
    """The name of the parameter that takes an operand."""
    use = kernel.operand(role)
    assert use is not None
    return use.keyword or use.role


def _constant_type(value: ir.Constant) -> str:
    if isinstance(value, Imported):
        return "torch.dtype" if DTYPE_CONSTANT.fullmatch(value.name) else "object"
    return type(value).__name__


def _free(word: str, parameters: Iterable[Parameter]) -> str:
    """A name for a local variable that is no parameter's."""
    taken = {parameter.name for parameter in parameters}
    return next(name for count in itertools.count() if (name := word + "_" * count) not in taken)


def _output_dtype(kernel: ir.Kernel) -> str:
    """The dtype that a GEMM writes, as an expression over its parameters."""
    if kernel.accumulators:
        return "torch.int32"
    if kernel.operand("output_dtype") is not None:
        return argument(kernel, "output_dtype")
    return {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}[kernel.output[0]]


def _prose(kernel: ir.Kernel) -> str:
    if kernel.does == "quantize":
        return f"`{kernel.symbols[0]}`: x [M, K] -> codes and scales."
    return f"`{kernel.symbols[0]}`: codes [M, K] and weight [N, K] -> y [M, N]."


def _signature(parameters: list[Parameter]) -> str:
    shown = ["self"]
    shown += [f"{p.name}: {p.type}" for p in parameters if p.positional]
    if any(p.positional for p in parameters):
        shown.append("/")
    keywords = [f"{p.name}: {p.type}{' = ...' if p.optional else ''}" for p in parameters if not p.positional]
    return ", ".join([*shown, *(["*", *keywords] if keywords else [])])


def _schema(parameters: list[Parameter], kernel: ir.Kernel) -> str:
    types = [f"{SCHEMA.get(parameter.type, 'Tensor')} {parameter.name}" for parameter in parameters]
    return f"({', '.join(types)}) -> {'Tensor' if kernel.does == 'gemm' else '(Tensor, Tensor)'}"


def _passed(parameters: Iterable[Parameter], without: Iterable[str] = ()) -> str:
    gone = set(without)
    return ", ".join(p.name if p.positional else f"{p.name}={p.name}" for p in parameters if p.name not in gone)


def _adapt(kernel: ir.Kernel, parameters: list[Parameter]) -> Iterable[str]:
    """The body of the function that makes every form look like the newest."""
    for index, older in enumerate(kernel.older, start=1):
        if older.out is not None or older.without:
            yield f"if form == {index}:"
            yield from (f"    {line}" for line in _adapt_older(kernel, parameters, older))
    if kernel.config is not None:
        yield from _adapt_config(kernel, parameters)
    else:
        yield f'return cast("{protocol_name(kernel)}", functions[0])'


def _adapt_older(kernel: ir.Kernel, parameters: list[Parameter], older: ir.OlderForm) -> Iterable[str]:
    """A function in the newest form that calls an older one: without some operands, or with an output to write to."""
    function = _free("older", parameters)
    returns = "Tensor" if kernel.does == "gemm" else "tuple[Tensor, Tensor]"
    passed = _passed(parameters, [argument(kernel, role) for role in older.without])
    yield f'{function} = cast("Callable[..., {returns if older.out is None else "object"}]", functions[0])'
    yield ""
    yield f"def {kernel.name}({_signature(parameters).removeprefix('self, ')}) -> {returns}:"
    if older.out is None:
        yield f"    return {function}({passed})"
    else:
        keyword, multiple = older.out
        m, rows = _free("m", parameters), _free("rows", parameters)
        x, columns = argument(kernel, "x"), rows_of_weight(kernel, argument(kernel, "weight"))
        yield f"    {m} = {x}.shape[0]"
        yield f"    {rows} = -(-{m} // {multiple}) * {multiple}"
        yield f"    {keyword} = torch.empty(({rows}, {columns}), dtype={_output_dtype(kernel)}, device={x}.device)"
        yield f"    {function}({passed}, {keyword}={keyword})"
        yield f"    return {keyword}[:{m}]"
    yield ""
    yield f"return {kernel.name}"


def _adapt_config(kernel: ir.Kernel, parameters: list[Parameter]) -> Iterable[str]:
    config = kernel.config
    assert config is not None
    function, look_up, found = (_free(word, parameters) for word in ("function", "look_up", "found"))
    x, weight = argument(kernel, "x"), argument(kernel, "weight")
    values = ", ".join(f"{name}={value}" for name, value in config.values)
    yield f'{function} = cast("Callable[..., Tensor]", functions[0])'
    yield f'{look_up} = cast("Callable[[int, int, int], object]", functions[1])'
    yield ""
    yield f"def {kernel.name}({_signature(parameters).removeprefix('self, ')}) -> Tensor:"
    yield f"    {found} = {look_up}({x}.shape[0], {rows_of_weight(kernel, weight)}, {x}.shape[1])"
    yield f"    {config.keyword} = changed_config({found}, {values})"
    yield f"    return {function}({_passed(parameters)}, {config.keyword}={config.keyword})"
    yield ""
    yield f"return {kernel.name}"


def _fake(kernel: ir.Kernel, parameters: list[Parameter]) -> Iterable[str]:
    """The body of the function that says what a custom op returns without running it."""
    x = argument(kernel, "x")
    if kernel.does == "gemm":
        columns = rows_of_weight(kernel, argument(kernel, "weight"))
        yield f"return {x}.new_empty(({x}.shape[0], {columns}), dtype={_output_dtype(kernel)})"
        return
    m, k, codes = (_free(word, parameters) for word in ("m", "k", "codes"))
    yield f"{m}, {k} = {x}.shape"
    if kernel.codes is not None:
        yield f"{codes} = {x}.new_empty(({m}, {k} // 2), dtype={STORAGE[kernel.codes]})"
    else:
        stated = kernel.operand("codes_dtype") is not None
        codes_dtype = argument(kernel, "codes_dtype") if stated else "torch.int8"
        yield f"{codes} = {x}.new_empty(({m}, {k}), dtype={codes_dtype})"
    shape = f"scale_shape({m}, {k}, {kernel.granularity!r})"
    dtype = STORAGE[kernel.scale_dtype] if kernel.scale_dtype else "torch.float32"
    plain = _fake_scale(kernel.scale_layout, shape, x, dtype)
    if kernel.scale_option is not None and (other := _fake_scale(kernel.scale_option[1], shape, x, dtype)) != plain:
        yield f"if {kernel.scale_option[0]}:"
        yield f"    return {codes}, {other}"
    yield f"return {codes}, {plain}"


def _fake_scale(layout: str, shape: str, x: str, dtype: str) -> str:
    match layout:
        case "swizzle_e8m0_32x8":
            return f"{x}.new_empty(swizzled_shape(*{shape}), dtype={dtype})"
        case "column_major":
            return f"{x}.new_empty({shape}[::-1], dtype={dtype}).t()"
        case _:
            return f"{x}.new_empty({shape}, dtype={dtype})"


def forms_of(kernel: ir.Kernel) -> tuple[Form, ...]:
    """Every way to call a kernel, the newest first."""
    parameters = parameters_of(kernel)
    positional = sum(parameter.positional for parameter in parameters)
    keywords = tuple(p.name for p in parameters if not p.positional and not p.optional)
    config = kernel.config
    newest = Form(
        kernel.symbols, positional, (*keywords, config.keyword) if config else keywords, kernel.since, kernel.until,
        config.symbols if config else (),
    )  # fmt: skip
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
        f"library={kernel.symbols[0].split('.')[0]!r}",
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
