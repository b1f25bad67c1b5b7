"""The calls of one backend: which quantizer and GEMM for which M, and whether their layouts fit together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qscheme.compiler import ir
from qscheme.compiler.folder import unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from qscheme.compiler import model
    from qscheme.compiler.folder import File
    from qscheme.compiler.source import Place
    from qscheme.types import Operand

ROLES = {
    "quantize": ("x", "codes_dtype", "fp8_dtype", "input_scale", "activation"),
    "gemm": ("x", "weight", "x_scale", "weight_scale", "bias", "output_dtype", "activation", "weight_operand"),
}
"""The operands that each kind of kernel may have."""


def resolve_calls(
    backend: model.BackendModel,
    activation: Operand,
    weight: Operand,
    kernels: Mapping[str, ir.Kernel],
    file: File[model.SchemeFile],
    path: tuple[str | int, ...],
    report: Callable[[Place, str], None],
) -> tuple[ir.Call, ...]:
    """The calls in order, with whole M ranges; problems are reported, and a call with one is left out."""
    if bool(backend.calls) == (backend.quantize is not None or backend.gemm is not None):
        report(file.place(*path), "needs either `quantize` and `gemm`, or `calls`")
        return ()
    written: list[tuple[model.When | None, str | model.Optioned, str, tuple[str | int, ...]]] = [
        (call.when, call.quantize, call.gemm, (*path, "calls", position)) for position, call in enumerate(backend.calls)
    ]
    if not written:
        if backend.quantize is None or backend.gemm is None:
            report(file.place(*path), "needs both `quantize` and `gemm`")
            return ()
        written = [(None, backend.quantize, backend.gemm, path)]
    calls: list[ir.Call] = []
    next_m: dict[bool, int | None] = {True: 0, False: 0}
    for when, quantize_name, gemm_name, where in written:
        named = quantize_name if isinstance(quantize_name, str) else quantize_name.kernel
        asked = {} if isinstance(quantize_name, str) else quantize_name.options
        quantize = _kernel(named, "quantize", kernels, file.place(*where, "quantize"), report)
        gemm = _kernel(gemm_name, "gemm", kernels, file.place(*where, "gemm"), report)
        if quantize is None or gemm is None:
            continue
        mode = when.batch_invariant if when else None
        modes = (True, False) if mode is None else (mode,)
        starts = {next_m[m] for m in modes if next_m[m] is not None}
        if not starts:
            report(file.place(*where), "never used: the calls above it take every M")
            continue
        start = min(s for s in starts if s is not None)
        first = when.m.min if when and when.m and when.m.min is not None else start
        last = when.m.max if when and when.m else None
        if first != start:
            report(
                file.place(*where, "when"), f"must begin at M = {start}, where the call above it ends, found {first}"
            )
        if last is not None and last < first:
            report(file.place(*where, "when"), f"takes no M: {first} to {last}")
        for m in modes:
            next_m[m] = None if last is None else last + 1
        problem = _misfit(quantize, gemm, activation, weight)
        if problem:
            report(file.place(*where), problem)
            continue
        x_scale = _x_scale_layout(gemm, first, last)
        if x_scale is None:
            report(
                file.place(*where),
                f"M = {first} to {'any' if last is None else last} crosses a layout change of x_scale of {gemm.name}; "
                "split the call",
            )
            continue
        has = (quantize.scale_option[0],) if quantize.scale_option else ()
        for option in asked:
            if option not in has:
                report(file.place(*where, "quantize", "options", option), unknown(option, has, "option"))
        options = tuple((option, asked.get(option, False)) for option in has)
        call = ir.Call(quantize, options, gemm, first, last, mode, x_scale)
        if call.quantized_layout not in (x_scale.layout, "row_major"):
            report(
                file.place(*where),
                f"{quantize.name} writes its scales {call.quantized_layout}, "
                f"and {gemm.name} reads them {x_scale.layout}",
            )
            continue
        calls.append(call)
    for m, rest in next_m.items():
        if rest is not None and calls:
            mode_text = "on" if m else "off"
            report(file.place(*path), f"with batch_invariant {mode_text}, no call takes M = {rest} and more")
    if len({_weights(call.gemm) for call in calls}) > 1:
        report(
            file.place(*path), "its GEMMs read the weight or its scales in different layouts; make two backends of it"
        )
    if calls and not backend.name.startswith(calls[0].gemm.library):
        library = calls[0].gemm.library
        report(
            file.place(*path, "name"), f"a backend's name starts with the library of its GEMM: {library}_{backend.name}"
        )
    return tuple(calls)


def _kernel(
    name: str, does: str, kernels: Mapping[str, ir.Kernel], place: Place, report: Callable[[Place, str], None]
) -> ir.Kernel | None:
    kernel = kernels.get(name)
    if kernel is None:
        report(place, unknown(name, kernels, "kernel"))
    elif kernel.does != does:
        report(place, f"{name} is a {kernel.does} kernel, needs a {does} kernel")
        return None
    else:
        for use in kernel.operands:
            if use.role not in ROLES[does]:
                report(kernel.place, f"a {does} kernel has no operand {use.role!r}")
                return None
    return kernel


def _misfit(quantize: ir.Kernel, gemm: ir.Kernel, activation: Operand, weight: Operand) -> str | None:
    """Why these kernels cannot serve these operands."""
    for kernel, operand in ((quantize, activation), (gemm, weight)):
        if kernel.formats and operand.format not in kernel.formats:
            return f"{kernel.name} takes {' and '.join(kernel.formats)}, and the scheme has {operand.format}"
    if quantize.granularity not in (None, activation.granularity):
        return f"{quantize.name} makes {quantize.granularity} scales, and the scheme has {activation.granularity}"
    if activation.mode == "static" and quantize.operand("input_scale") is None:
        return f"{quantize.name} takes no given scale, and the scheme's activation is static"
    return None


def _x_scale_layout(gemm: ir.Kernel, first: int, last: int | None) -> ir.LayoutRange | None:
    """The layout of x_scale for a range of M, None if the range crosses a change."""
    use = gemm.operand("x_scale")
    if use is None:
        return ir.LayoutRange(None, "row_major", None)
    low = 0
    for part in use.layouts:
        if part.max_m is None or first <= part.max_m:
            inside = first >= low and (part.max_m is None or (last is not None and last <= part.max_m))
            return part if inside else None
        low = part.max_m + 1
    return None


def _weights(gemm: ir.Kernel) -> tuple[str, str]:
    uses = gemm.operand("weight"), gemm.operand("weight_scale")
    weight, scale = (use.layouts[0].layout if use else "row_major" for use in uses)
    return weight, scale
