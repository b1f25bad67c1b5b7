"""A scheme of the catalogue -> the pieces of Python that its generated module is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from qscheme.compiler.bind_text import bind_lines
from qscheme.compiler.kernel_text import source
from qscheme.compiler.parameters import constant_name, protocol_name
from qscheme.compiler.prepare_text import prepare_lines
from qscheme.types import Call

if TYPE_CHECKING:
    from qscheme.compiler import ir


@dataclass(frozen=True, slots=True)
class BackendText:
    """What the template prints for one backend."""

    name: str
    before_symbols: tuple[ir.Check, ...]
    kernels: tuple[str, ...]
    after_symbols: tuple[ir.Check, ...]
    prepare: tuple[str, ...]
    bind_parameters: str
    bind_prose: str
    bind: tuple[str, ...]
    data: str


def backend_text(scheme: ir.Scheme, backend: ir.Backend) -> BackendText:
    """All the text of one backend."""
    kernels = backend.kernels
    return BackendText(
        name=backend.name,
        before_symbols=tuple(check for check in backend.checks if check.kind in ("hardware", "library")),
        kernels=tuple(constant_name(kernel) for kernel in kernels),
        after_symbols=tuple(check for check in backend.checks if check.kind not in ("hardware", "library")),
        prepare=tuple(prepare_lines(scheme, backend)),
        bind_parameters=", ".join(f"{kernel.name}: {protocol_name(kernel)}" for kernel in kernels),
        bind_prose=_bind_prose(backend),
        bind=tuple(bind_lines(scheme, backend)),
        data=_data(backend),
    )


def when_text(call: ir.Call) -> str:
    """When a call is used, in words: `M <= 31`, `32 <= M <= 64`, `batch_invariant on`, `always`."""
    words: list[str] = []
    if call.min_m and call.max_m is not None:
        words.append(f"{call.min_m} <= M <= {call.max_m}")
    elif call.max_m is not None:
        words.append(f"M <= {call.max_m}")
    elif call.min_m:
        words.append(f"M >= {call.min_m}")
    if call.batch_invariant is not None:
        words.append(f"batch_invariant {'on' if call.batch_invariant else 'off'}")
    return ", ".join(words) or "always"


def _bind_prose(backend: ir.Backend) -> str:
    return f"`{backend.name}` over rows of x, and over rows that are quantized already where it takes them."


def _data(backend: ir.Backend) -> str:
    calls = tuple(
        Call(
            when=when_text(call),
            quantize=f"{call.quantize.library}.{call.quantize.name}" if call.quantize else None,
            gemm=f"{call.gemm.library}.{call.gemm.name}",
            min_m=call.min_m,
            max_m=call.max_m,
            batch_invariant=call.batch_invariant,
            scale_layout=call.x_scale.layout,
        )
        for call in backend.calls
    )
    kernels = ", ".join(constant_name(kernel) for kernel in backend.kernels)
    quantizers = "".join(
        f"{constant_name(kernel)}, " for kernel in backend.kernels if kernel.does == "quantize" or kernel.quantizes
    )
    fields = [
        f"name={backend.name!r}",
        f"why_not=why_not_{backend.name}",
        f"prepare=prepare_{backend.name}",
        f"bind=bind_{backend.name}",
        f"kernels=({kernels},)",
        f"quantizers=({quantizers})",
        f"calls={source(calls)}",
    ]
    if backend.inputs:
        fields.append(f"inputs={source(backend.inputs)}")
    if backend.calls[0].gemm.fp8 != "device":
        fields.append(f"fp8={backend.calls[0].gemm.fp8!r}")
    if backend.needs.tuned:
        rows = ", ".join(f"({tuned.table.upper()}, {tuned.every!r})" for tuned in backend.needs.tuned)
        fields.append(f"tuned=({rows},)")
    if backend.on_use != "quiet":
        fields.append(f"on_use={backend.on_use!r}")
    return ", ".join(fields)
