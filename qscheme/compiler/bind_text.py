"""The calls of a backend -> the lines of the function that binds it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from qscheme.compiler.ir import Imported
from qscheme.compiler.kernel_functions import STORAGE
from qscheme.compiler.prepare_text import SCALE_STEPS, levels, levels_after, padded_rows
from qscheme.compiler.versions import asked

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from qscheme.compiler import ir

ROW_SCALE_STEPS = {**SCALE_STEPS, "swizzle_e8m0_32x8": "swizzle_e8m0_256x8"}
"""The same for scales of activations, whose rows are padded further."""


def bind_lines(scheme: ir.Scheme, backend: ir.Backend) -> Iterable[str]:
    body: list[str] = []
    special = [call for call in backend.calls if call.batch_invariant is not False]
    usual = [call for call in backend.calls if call.batch_invariant is not True]
    modes = any(call.batch_invariant is not None for call in backend.calls)
    if modes:
        body.append("if facts.batch_invariant:")
        body += [f"    {line}" for line in _functions(scheme, _reached(special), "_batch_invariant")]
    body += _functions(scheme, _reached(usual), "")
    text = "\n".join(body)
    yield from dict.fromkeys(line for name, line in _locals(scheme, backend) if _uses(text, name))
    yield ""
    yield from body


def _reached(calls: list[ir.Call]) -> list[ir.Call]:
    """The calls up to the first that takes every remaining M."""
    last = next((index for index, call in enumerate(calls) if call.max_m is None), len(calls) - 1)
    return calls[: last + 1]


def _locals(scheme: ir.Scheme, backend: ir.Backend) -> Iterable[tuple[str, str]]:
    """What is settled once, as (name, assignment)."""
    yield "dtype", "dtype = layer.out_dtype"
    yield "batch_invariant", "batch_invariant = facts.batch_invariant"
    if any(call.gemm.fp8 == "device" for call in backend.calls):
        yield "fp8", 'fp8 = torch.float8_e4m3fnuz if facts.device.fp8 == "fnuz" else torch.float8_e4m3fn'
    else:
        yield "fp8", "fp8 = torch.float8_e4m3fn"
    yield "input_scale", "input_scale = weights.static_scale"
    yield "bias", "bias = weights.bias"
    for name, _ in levels(scheme):
        yield name, f"{name} = weights.{name}"
    for word, dtype in STORAGE.items():
        yield _dtype_name(word), f"{_dtype_name(word)} = {dtype}"
    for kernel in backend.kernels:
        if kernel.does == "gemm":
            for role in ("weight", "weight_scale"):
                name = _weight_name(scheme, kernel, role)
                yield name, f"{name} = {_viewed(scheme, kernel, role)}"
        if kernel.padded_in:
            tests = " and ".join(asked("within", one) for one in kernel.padded_in)
            yield f"{kernel.name}_padded", f"{kernel.name}_padded = {tests}"
        for name, value in kernel.constants:
            if isinstance(value, Imported):
                yield f"{kernel.name}_{name}", f"{kernel.name}_{name} = {value.name}"


def _dtype_name(word: str) -> str:
    """The local name of the dtype of a storage word, so that a call looks up no module."""
    return STORAGE[word].rpartition(".")[2]


def _view(scheme: ir.Scheme, kernel: ir.Kernel, role: str) -> tuple[str | None, int | None]:
    """How a kernel wants a weight operand viewed: a storage word other than the stored one, and rows passed as one."""
    use = kernel.operand(role)
    if use is None:
        return None, None
    stored_as_bytes = (scheme.weight.format == "fp4_e2m1") if role == "weight" else (scheme.weight.scale == "e8m0")
    word = use.dtype if stored_as_bytes and use.dtype in STORAGE and use.dtype != "bytes" else None
    return word, use.layouts[0].fold


def _weight_name(scheme: ir.Scheme, kernel: ir.Kernel, role: str) -> str:
    """`weight`, or a name that says how the kernel wants it viewed."""
    word, fold = _view(scheme, kernel, role)
    return "_".join([role, *([word] if word else []), *([f"by_{fold}"] if fold else [])])


def _viewed(scheme: ir.Scheme, kernel: ir.Kernel, role: str) -> str:
    word, fold = _view(scheme, kernel, role)
    text = f"weights.{role}.view({STORAGE[word]})" if word else f"weights.{role}"
    return f"fold_rows({text}, {fold})" if fold else text


def _functions(scheme: ir.Scheme, calls: list[ir.Call], suffix: str) -> list[str]:
    """`apply` and `apply_quantized` for one mode, and the return of both."""
    lines = [f"def apply{suffix}(x: Tensor) -> Tensor:"]
    lines += [f"    {line}" for line in _body(scheme, calls, quantized=False)]
    if scheme.activation is None or not scheme.activation.symmetric:
        return [*lines, "", f"return apply{suffix}, None"]
    lines += ["", f"def apply_quantized{suffix}(codes: Tensor, scale: Tensor) -> Tensor:"]
    lines += [f"    {line}" for line in _body(scheme, calls, quantized=True)]
    return [*lines, "", f"return apply{suffix}, apply_quantized{suffix}"]


def _body(scheme: ir.Scheme, calls: list[ir.Call], *, quantized: bool) -> list[str]:
    lines: list[str] = []
    for call in calls:
        if quantized and call.gemm.quantizes is not None:
            continue  # its M is taken by a call below
        block = _quantize(scheme, call) if not quantized else []
        block += _multiply(scheme, call, quantized=quantized)
        if call.max_m is not None:
            lines.append(f"if m <= {call.max_m}:")
            lines += [f"    {line}" for line in block]
        else:
            lines += block
    if _uses("\n".join(lines), "m"):
        lines.insert(0, f"m = {'codes' if quantized else 'x'}.shape[0]")
    return lines


def _quantize(scheme: ir.Scheme, call: ir.Call) -> list[str]:
    kernel, activation = call.quantize, scheme.activation
    if kernel is None or activation is None:
        return []
    given = {
        "x": "x",
        "codes_dtype": "torch.int8" if activation.format == "int8" else "fp8",
        "fp8_dtype": "fp8" if activation.format == "fp8_e4m3" else None,
        "input_scale": "input_scale" if activation.mode == "static" else None,
        "input_global_scale": "input_global_scale" if activation.global_scale else None,
        "activation": "ACTIVATION",
    }
    found = "codes, scale" if activation.symmetric else "codes, scale, zero_point"
    return [f"{found} = {kernel.name}({_arguments(kernel, given, call.options)})"]


def _multiply(scheme: ir.Scheme, call: ir.Call, *, quantized: bool) -> list[str]:
    gemm = call.gemm
    lines: list[str] = []
    padded = gemm.minimum_rows > 1 or gemm.multiple_rows > 1
    layout = "row_major" if quantized else call.quantized_layout
    activation = scheme.activation if gemm.quantizes is None else None
    plain = quantized or call.quantize is None
    stored_codes = "bytes" if plain or call.quantize is None else call.quantize.codes
    stored_scale = "bytes" if plain or call.quantize is None else call.quantize.scale_dtype
    if (
        not plain
        and call.quantize
        and call.quantize.scale_dtype == "e8m0"
        and activation
        and activation.scale == "fp32"
    ):
        lines.append("scale = e8m0_to_fp32(scale)")
    codes, scale = ("x" if activation is None else "codes"), "scale"
    if padded:
        lines.append(f"rows = {padded_rows(gemm)}")
        lines.append(f"{codes} = pad_rows({codes}, rows)")
        if not gemm.accumulators and activation is not None and activation.granularity != "per_tensor":
            lines.append("scale = pad_rows(scale, rows)")
    if layout != call.x_scale.layout and activation is not None:
        lines += _relay(scheme, call, "rows" if padded else "m")
    x, x_scale = gemm.operand("x"), gemm.operand("x_scale")
    if x and x.layouts[0].layout != "row_major":
        lines.append(f"codes = {x.layouts[0].layout}(codes)")
    if (
        x
        and activation is not None
        and activation.format == "fp4_e2m1"
        and x.dtype in STORAGE
        and x.dtype != stored_codes
    ):
        codes = f"codes.view({_dtype_name(x.dtype or '')})"
    if (
        x_scale
        and activation is not None
        and activation.scale == "e8m0"
        and x_scale.dtype in STORAGE
        and x_scale.dtype != stored_scale
    ):
        scale = f"scale.view({_dtype_name(x_scale.dtype or '')})"
    if call.x_scale.fold:
        scale = f"{scale}.view(scale.shape[0] // {call.x_scale.fold}, -1)"
    fused = gemm.operand("bias") is not None
    given = {
        "x": codes,
        "weight": _weight_name(scheme, gemm, "weight"),
        "x_scale": "None" if activation is None else scale,
        "weight_scale": _weight_name(scheme, gemm, "weight_scale"),
        "bias": "bias",
        "output_dtype": "dtype",
        "activation": "None" if activation is None else "ACTIVATION",
        "weight_operand": "WEIGHT",
        "weight_format": repr(scheme.weight.format),
        "weight_granularity": repr(scheme.weight.granularity),
        "weight_scale_format": repr(scheme.weight.scale),
        "weight_global_scale_applies": repr(scheme.weight.global_scale) if scheme.weight.global_scale else None,
        "batch_invariant": "batch_invariant",
        "x_zero_point": None if activation is None or activation.symmetric else "zero_point",
        **{name: name if has else None for name, has in levels(scheme)},
    }
    product = f"{gemm.name}({_arguments(gemm, given)})"
    if gemm.accumulators:
        cut = "[:m]" if padded else ""
        return [*lines, f"return scale_accumulators({product}{cut}, scale, weight_scale, bias, dtype)"]
    if fused and not padded:
        return [*lines, f"return {product}"]
    lines.append(f"y = {product}")
    if fused:
        return [*lines, "return y[:m]"]
    if padded:
        lines.append("y = y[:m]")
    if gemm.global_scales_after:
        lines.append(f"y = scale_levels(y, {given['activation']}, WEIGHT, {levels_after(scheme)})")
    return [*lines, "return y if bias is None else y + bias"]


def _relay(scheme: ir.Scheme, call: ir.Call, rows: str) -> list[str]:
    """From the plain layout of scales to the one that the GEMM reads."""
    if call.x_scale.layout == "per_row":
        return (
            []
            if scheme.activation and scheme.activation.granularity == "per_token"
            else [f"scale = expand_rows(scale, {rows})"]
        )
    return [f"scale = {ROW_SCALE_STEPS[call.x_scale.layout]}(scale)"]


def _arguments(kernel: ir.Kernel, given: Mapping[str, str | None], options: tuple[tuple[str, bool], ...] = ()) -> str:
    positional = sorted((use for use in kernel.operands if use.position is not None), key=lambda use: use.position or 0)
    shown = [given[use.role] or "" for use in positional]
    shown += [
        f"{use.keyword}={given[use.role]}" for use in kernel.operands if use.keyword and given[use.role] is not None
    ]
    shown += [f"{name}={value}" for name, value in options]
    for name, value in kernel.constants:
        shown.append(f"{name}={f'{kernel.name}_{name}' if isinstance(value, Imported) else repr(value)}")
    return ", ".join(shown)


def _uses(text: str, name: str) -> bool:
    """Whether Python text reads a name, keywords of calls and attributes aside."""
    return re.search(rf"(?<![\w.]){name}\b(?!=[^=])", text) is not None
