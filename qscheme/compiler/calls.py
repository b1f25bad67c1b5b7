"""The calls of one backend: which quantizer and GEMM for which M, and whether they fit the scheme and each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from qscheme.compiler import ir
from qscheme.compiler.misfits import gemm_misfit, quantizer_misfit
from qscheme.compiler.mistakes import unknown
from qscheme.compiler.model import ALWAYS, Optioned

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from qscheme.compiler import model
    from qscheme.compiler.folder import File
    from qscheme.compiler.source import KeyPath, Place
    from qscheme.types import Operand


@dataclass(frozen=True, slots=True)
class _Written:
    """A call as the YAML has it; a backend without `calls` is one call."""

    when: model.When
    quantize: str | None
    options: Mapping[str, bool]
    gemm: str
    path: KeyPath


@dataclass(frozen=True, slots=True)
class _Range:
    """The M of a call; last is None where there is no end."""

    first: int
    last: int | None
    batch_invariant: bool | None


class _Codes:
    """Which M of codes that come quantized each call takes: its own, and those of the calls above that take none."""

    def __init__(self) -> None:
        self.left: dict[bool, tuple[int, KeyPath]] = {}

    def taken(self, rows: _Range, path: KeyPath, *, itself: bool) -> _Range:
        """The M of a call in turn; itself: whether its GEMM quantizes x, and takes no codes."""
        modes = (True, False) if rows.batch_invariant is None else (rows.batch_invariant,)
        if itself:
            for mode in modes:
                self.left.setdefault(mode, (rows.first, path))
            return rows
        first = min([rows.first, *(self.left.pop(mode)[0] for mode in modes if mode in self.left)])
        return _Range(first, rows.last, rows.batch_invariant)

    def refused(self) -> tuple[KeyPath, ...]:
        """The calls whose M no call below takes."""
        return tuple(dict.fromkeys(path for _, path in self.left.values()))


def resolve_calls(
    backend: model.BackendModel,
    activation: Operand | None,
    weight: Operand,
    kernels: Mapping[str, ir.Kernel | None],
    unread: Collection[str],
    file: File[model.SchemeFile],
    path: KeyPath,
    report: Callable[[Place, str], None],
) -> tuple[ir.Call, ...]:
    """The calls in order, with whole M ranges; problems are reported, and a backend with one has no calls.

    kernels: by LIBRARY.NAME, None for one with a problem. unread: libraries whose file has a problem.
    """
    problems: list[tuple[KeyPath, str]] = []

    def found(problem: str | None, where: KeyPath) -> bool:
        if problem is not None:
            problems.append((where, problem))
        return problem is not None

    if bool(backend.calls) == (backend.quantize is not None or backend.gemm is not None):
        found("needs either `quantize` and `gemm`, or `calls`", path)
    elif not backend.calls and backend.gemm is None:
        found("needs the key 'gemm' too", path)
    for call in _written(backend, path):
        if call.quantize is not None and activation is None:
            found("the activation is none: no `quantize`", call.path)
    for where, message in problems:
        report(file.place(*where), message)
        return ()
    written = list(_written(backend, path))
    ranges = _ranges(written, path, problems)
    whole = True
    calls: list[ir.Call] = []
    codes = _Codes()
    for call, rows in zip(written, ranges, strict=True):
        quantize = None
        if call.quantize is not None:
            quantize = _kernel(call.quantize, "quantize", kernels, unread, (*call.path, "quantize"), problems)
        gemm = _kernel(call.gemm, "gemm", kernels, unread, (*call.path, "gemm"), problems)
        if (quantize is None and call.quantize is not None) or gemm is None or rows is None:
            whole = False
            continue
        has = (quantize.scale_option[0],) if quantize is not None and quantize.scale_option else ()
        for option in call.options:
            if option not in has and quantize is not None:
                found(unknown(option, has, f"option of {quantize.name}"), (*call.path, "quantize", "options", option))
        misfit = gemm_misfit(gemm, activation, weight)
        if activation is not None and quantize is None and gemm.quantizes is None:
            misfit = misfit or "needs the key 'quantize' too"
        if quantize is not None and activation is not None:
            misfit = quantizer_misfit(quantize, activation) or misfit
            if gemm.quantizes is not None:
                misfit = misfit or f"{gemm.name} quantizes x itself: no `quantize`"
        read = codes.taken(rows, call.path, itself=gemm.quantizes is not None)
        x_scale = _x_scale_layout(gemm, read)
        if found(misfit, call.path) or x_scale is None:
            if x_scale is None:
                text = f"M = {read.first} to {'any' if read.last is None else read.last}"
                found(f"{text} crosses a layout change of x_scale of {gemm.name}; split the call", call.path)
            continue
        options = tuple((option, call.options.get(option, False)) for option in has)
        made = ir.Call(quantize, options, gemm, rows.first, rows.last, rows.batch_invariant, x_scale)
        if quantize is not None and made.quantized_layout not in (x_scale.layout, "row_major"):
            layouts = f"writes its scales {made.quantized_layout}, and {gemm.name} reads them {x_scale.layout}"
            found(f"{quantize.name} {layouts}", call.path)
        calls.append(made)
    for where in codes.refused():
        found("no call below it takes codes that come quantized; give the backend one that does", where)
    if len({_weights(call.gemm) for call in calls}) > 1:
        message = "its GEMMs read the weight or its scales in different layouts; make a backend of each"
        found(message, path)
    if weight.format == "fp8_e4m3" and len({call.gemm.fp8 for call in calls}) > 1:
        found("its GEMMs read FP8 in different flavours; make a backend of each", path)
    file_of_gemm = written[0].gemm.partition(".")[0] if written else None
    libraries = {file_of_gemm, *(call.gemm.symbols[0].partition(".")[0] for call in calls[:1])}
    if file_of_gemm and not any(f"{backend.name}_".startswith(f"{library}_") for library in libraries):
        message = f"a backend's name starts with the library of its GEMM: {file_of_gemm}_{backend.name}"
        found(message, (*path, "name"))
    for where, message in problems:
        report(file.place(*where), message)
    return () if problems or not whole else tuple(calls)


def _written(backend: model.BackendModel, path: KeyPath) -> Iterator[_Written]:
    rows = [(call.when, call.quantize, call.gemm, (*path, "calls", row)) for row, call in enumerate(backend.calls)]
    if not rows and backend.gemm is not None:
        rows = [(ALWAYS, backend.quantize, backend.gemm, path)]
    for when, quantize, gemm, where in rows:
        named, options = (quantize.kernel, quantize.options) if isinstance(quantize, Optioned) else (quantize, {})
        yield _Written(when, named, options, gemm, where)


def _ranges(written: list[_Written], path: KeyPath, problems: list[tuple[KeyPath, str]]) -> list[_Range | None]:
    """The M of each call, None where it is never used; together they must take every M in both modes."""
    ranges: list[_Range | None] = []
    left: dict[bool, int | None] = {True: 0, False: 0}
    for call in written:
        mode, rows = call.when.batch_invariant, call.when.m
        modes = (True, False) if mode is None else (mode,)
        last = rows.max if rows else None
        starts = [start for start in (left[m] for m in modes) if start is not None and (last is None or start <= last)]
        if not starts:
            problems.append((call.path, "never used: the calls above it take every M of it"))
            ranges.append(None)
            continue
        first = min(starts)
        if rows and rows.min is not None and rows.min != first:
            message = f"must begin at M = {first}, where the calls above it end, found {rows.min}"
            problems.append(((*call.path, "when", "m", "min"), message))
        for m in modes:
            start = left[m]
            if start is not None:
                left[m] = None if last is None else max(start, last + 1)
        ranges.append(_Range(first, last, mode))
    for mode, start in left.items():
        if start is not None and written and not problems:
            message = f"with batch_invariant {'on' if mode else 'off'}, no call takes M = {start} and more"
            problems.append((path, message))
    return ranges


def _kernel(
    name: str,
    does: str,
    kernels: Mapping[str, ir.Kernel | None],
    unread: Collection[str],
    path: KeyPath,
    problems: list[tuple[KeyPath, str]],
) -> ir.Kernel | None:
    if name not in kernels:
        if name.partition(".")[0] not in unread:
            problems.append((path, unknown(name, kernels, "kernel")))
        return None
    kernel = kernels[name]
    if kernel is not None and kernel.does != does:
        problems.append((path, f"{name} is a {kernel.does} kernel, needs a {does} kernel"))
        return None
    return kernel


def _x_scale_layout(gemm: ir.Kernel, rows: _Range) -> ir.LayoutRange | None:
    """The layout of x_scale for a range of M, None if the range crosses a change."""
    use = gemm.operand("x_scale")
    if use is None:
        return ir.LayoutRange(None, "row_major", None)
    low = 0
    for part in use.layouts:
        if part.max_m is None or rows.first <= part.max_m:
            inside = rows.first >= low and (part.max_m is None or (rows.last is not None and rows.last <= part.max_m))
            return part if inside else None
        low = part.max_m + 1
    return None


def _weights(gemm: ir.Kernel) -> tuple[object, ...]:
    uses = gemm.operand("weight"), gemm.operand("weight_scale")
    weight, scale = (use.layouts[0].layout if use else "row_major" for use in uses)
    return weight, scale, uses[0].packing if uses[0] else ()
