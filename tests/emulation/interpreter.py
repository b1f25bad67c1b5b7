"""Repair what Triton 3.9's CPU interpreter gets wrong about narrow floating point, so that kernels round as on a GPU.

It stores bfloat16 as integers: arithmetic, comparisons, products and conversions of integers then work on the bits, so
that adding a bfloat16 bias gives nonsense. It converts float32 to bfloat16 and to fp8 by cutting bits off, where GPUs round to nearest even.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .device import CALLS

if TYPE_CHECKING:
    from collections.abc import Callable

TORCH = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e4b8": torch.float8_e4m3fnuz,
    "fp8e5": torch.float8_e5m2,
    "fp8e5b16": torch.float8_e5m2fnuz,
}


def repair() -> None:
    """Make conversions round to nearest even, and bfloat16 arithmetic and products go through float32."""
    interpreter = importlib.import_module("triton.runtime.interpreter")
    language = importlib.import_module("triton.language")
    cut = interpreter._convert_float
    toward_zero = interpreter._ir.ROUNDING_MODE.RTZ

    def convert(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        if rounding == toward_zero or source.name not in TORCH or target.name not in TORCH:
            return cut(data, source, target, rounding)
        values = torch.from_numpy(np.array(data, order="C").view(f"int{source.primitive_bitwidth}")).view(
            TORCH[source.name]
        )
        bits = values.to(TORCH[target.name]).view(getattr(torch, f"int{target.primitive_bitwidth}"))
        return bits.numpy().view(f"uint{target.primitive_bitwidth}")

    interpreter._convert_float = convert
    builder = interpreter.InterpreterBuilder

    def through_float32(operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *arguments: Any) -> Any:
            *handles, function = arguments
            if not any(handle.dtype.scalar == language.bfloat16 for handle in handles):
                return operation(self, *arguments)
            wide = [
                self.cast_impl(handle, language.float32) if handle.dtype.scalar == language.bfloat16 else handle
                for handle in handles
            ]
            outcome = operation(self, *wide, function)
            return outcome if outcome.data.dtype == np.bool_ else self.cast_impl(outcome, language.bfloat16)

        return call

    for name in ("unary_op", "binary_op", "ternary_op"):
        setattr(builder, name, through_float32(getattr(builder, name)))
    cast, dot = builder.cast_impl, builder.create_dot

    def cast_whole(self: Any, source: Any, target: Any) -> Any:
        kinds = source.dtype.scalar, target.scalar
        if language.bfloat16 in kinds and language.float32 not in kinds:
            return cast(self, cast(self, source, language.float32), target)
        return cast(self, source, target)

    def dot_of_values(self: Any, first: Any, second: Any, *rest: Any) -> Any:
        wide = [
            cast(self, operand, language.float32) if operand.dtype.scalar == language.bfloat16 else operand
            for operand in (first, second)
        ]
        return dot(self, *wide, *rest)

    builder.cast_impl, builder.create_dot = cast_whole, dot_of_values


def record() -> None:
    """Add every launch of an interpreted kernel to CALLS, with its split along K if it has one."""
    function = importlib.import_module("triton.runtime.interpreter").InterpretedFunction
    run = function.run

    def recorded(self: Any, *arguments: Any, **keywords: Any) -> Any:
        split = keywords.get("NUM_KSPLIT")
        CALLS.append((self.__name__, "" if split is None else f"NUM_KSPLIT={split}"))
        return run(self, *arguments, **keywords)

    function.run = recorded
