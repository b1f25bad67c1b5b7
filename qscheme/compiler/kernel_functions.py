"""A kernel of the catalogue -> the bodies of its functions: one adapts older forms, one tells a custom op's results."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from qscheme.compiler.parameters import argument, passed, protocol_name, rows_of_weight, signature

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qscheme.compiler import ir
    from qscheme.compiler.parameters import Parameter

STORAGE = {"bytes": "torch.uint8", "fp4x2": "torch.float4_e2m1fn_x2", "e8m0": "torch.float8_e8m0fnu"}
"""The torch dtype of each storage word."""


def adapt_body(kernel: ir.Kernel, parameters: list[Parameter]) -> Iterable[str]:
    """The body of the function that makes every form look like the newest."""
    for index, older in enumerate(kernel.older, start=1):
        if older.out != kernel.out or older.without:
            gone = [argument(kernel, role) for role in older.without]
            yield f"if form == {index}:"
            yield from (f"    {line}" for line in _adapted("older", kernel, parameters, older.out, gone))
    if kernel.config is not None or kernel.out is not None:
        yield from _adapted("function", kernel, parameters, kernel.out)
    else:
        yield f'return cast("{protocol_name(kernel)}", functions[0])'


def _adapted(
    word: str, kernel: ir.Kernel, parameters: list[Parameter], out: tuple[str, int] | None, gone: Iterable[str] = ()
) -> Iterable[str]:
    """A function in the newest form around one that takes less, writes to a given output or is given its tile."""
    function, look_up = _free(word, parameters), _free("look_up", parameters)
    returns = "Tensor" if kernel.does == "gemm" else "tuple[Tensor, Tensor]"
    yield f'{function} = cast("Callable[..., {returns if out is None else "object"}]", functions[0])'
    if kernel.config is not None:
        yield f'{look_up} = cast("Callable[[int, int, int], object]", functions[1])'
    yield ""
    yield f"def {kernel.name}({signature(parameters).removeprefix('self, ')}) -> {returns}:"
    given = passed(parameters, gone)
    if kernel.config is not None:
        found, x, keyword = _free("found", parameters), argument(kernel, "x"), kernel.config.keyword
        values = ", ".join(f"{name}={value}" for name, value in kernel.config.values)
        rows = rows_of_weight(kernel, argument(kernel, "weight"))
        yield f"    {found} = {look_up}({x}.shape[0], {rows}, {x}.shape[1])"
        yield f"    {keyword} = changed_config({found}, {values})"
        given = f"{given}, {keyword}={keyword}"
    if out is None:
        yield f"    return {function}({given})"
    else:
        yield from (f"    {line}" for line in _written_to(out, kernel, parameters, f"{function}({given}"))
    yield ""
    yield f"return {kernel.name}"


def _written_to(out: tuple[str, int], kernel: ir.Kernel, parameters: list[Parameter], call: str) -> Iterable[str]:
    """Allocate an output, have a function write to it, and return its rows."""
    (keyword, multiple), x = out, argument(kernel, "x")
    m = rows = f"{x}.shape[0]"
    if multiple > 1:
        m, rows = _free("m", parameters), _free("rows", parameters)
        yield f"{m} = {x}.shape[0]"
        yield f"{rows} = -(-{m} // {multiple}) * {multiple}"
    columns = rows_of_weight(kernel, argument(kernel, "weight"))
    yield f"{keyword} = torch.empty(({rows}, {columns}), dtype={_output_dtype(kernel)}, device={x}.device)"
    yield f"{call}, {keyword}={keyword})"
    yield f"return {keyword}[:{m}]" if multiple > 1 else f"return {keyword}"


def fake_body(kernel: ir.Kernel, parameters: list[Parameter]) -> Iterable[str]:
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
