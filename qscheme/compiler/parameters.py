"""The names and the parameters that a kernel has in generated code."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from qscheme.compiler.ir import Imported

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qscheme.compiler import ir

TYPES = {
    "bias": "Tensor | None",
    "output_dtype": "torch.dtype",
    "codes_dtype": "torch.dtype",
    "fp8_dtype": "torch.dtype",
    "activation": "Operand | None",
    "weight_operand": "Operand",
    "weight_global_scale": "Tensor | None",
    "input_global_scale": "Tensor | None",
    "weight_zero_point": "Tensor | None",
    "x_zero_point": "Tensor | None",
    "weight_format": "str",
    "weight_granularity": "str",
    "weight_scale_format": "str",
    "weight_global_scale_applies": "str | None",
    "batch_invariant": "bool",
}
"""The Python type of an operand's role; every other is a Tensor."""

OPTIONAL = (
    "fp8_dtype", "input_scale", "input_global_scale", "weight_global_scale", "x_zero_point", "weight_zero_point",
    "weight_global_scale_applies",
)  # fmt: skip
"""Operands that only some schemes have; a kernel that takes one has a default for it, unless it says how it `applies`
a global scale, which all of its schemes then have."""

DTYPE_CONSTANT = re.compile(r"torch\.(b?float|u?int|half|double|short|long|bool)\w*")
"""Imported constants that are dtypes, which a custom op can be given; other objects it cannot."""


OBJECT = "object"
"""The Python type of any other imported constant."""


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a kernel's Protocol; name is the keyword, or the role of a positional one."""

    name: str
    type: str
    positional: bool
    optional: bool


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
            optional = use.role in OPTIONAL and use.applies is None and (kernel.does == "gemm" or generic)
            # A kernel that is told what the activation is takes one that is not quantized too.
            absent = use.role == "x_scale" and any(other.role == "activation" for other in kernel.operands)
            type_ = "Tensor | None" if absent else TYPES.get(use.role, "Tensor")
            found.append(Parameter(use.keyword, type_, False, optional))
    if kernel.scale_option is not None:
        found.append(Parameter(kernel.scale_option[0], "bool", False, False))
    for name, value in kernel.constants:
        found.append(Parameter(name, _constant_type(value), False, False))
    return found


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


def signature(parameters: list[Parameter]) -> str:
    """The parameters of a method as it defines them, `self` first."""
    shown = ["self"]
    shown += [f"{p.name}: {p.type}" for p in parameters if p.positional]
    if any(p.positional for p in parameters):
        shown.append("/")
    keywords = [f"{p.name}: {p.type}{' = ...' if p.optional else ''}" for p in parameters if not p.positional]
    return ", ".join([*shown, *(["*", *keywords] if keywords else [])])


def passed(parameters: Iterable[Parameter], without: Iterable[str] = ()) -> str:
    """The arguments by which a function with these parameters calls another one."""
    gone = set(without)
    return ", ".join(p.name if p.positional else f"{p.name}={p.name}" for p in parameters if p.name not in gone)


def _constant_type(value: ir.Constant) -> str:
    if isinstance(value, Imported):
        return "torch.dtype" if DTYPE_CONSTANT.fullmatch(value.name) else OBJECT
    return type(value).__name__
