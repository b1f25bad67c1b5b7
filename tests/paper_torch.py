"""torch.nn.functional.scaled_mm of block scales on paper: the checks of its source, then float64 from the bytes it gets.

The checks are those of _scaled_mxfp8_mxfp8, _scaled_mxfp4_mxfp4 and _scaled_nvfp4_nvfp4 in ScaledBlas.cpp, on CUDA and on
ROCm; scales are read by the index formula of the cuBLAS documentation.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional
from torch.nn.functional import ScalingType, SwizzleType

if TYPE_CHECKING:
    import pytest

REAL = inspect.signature(functional.scaled_mm)
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
FP4, FP8 = torch.float4_e2m1fn_x2, torch.float8_e4m3fn
RECIPES = {
    ScalingType.BlockWise1x32: (32, torch.float8_e8m0fnu),
    ScalingType.BlockWise1x16: (16, torch.float8_e4m3fn),
}


@dataclass
class PaperTorch:
    """A scaled_mm of one vendor, and the arguments of each call."""

    vendor: str
    calls: list[dict[str, Any]] = field(default_factory=list)

    def scaled_mm(self, *arguments: Any, **keywords: Any) -> torch.Tensor:
        bound = REAL.bind(*arguments, **keywords)
        bound.apply_defaults()
        given = bound.arguments
        self.calls.append(given)
        check(given["contraction_dim"] == () and not given["use_fast_accum"], "defaults")
        a, b = given["mat_a"], given["mat_b"]
        check(a.dtype == b.dtype and a.dtype in (FP4, FP8), "operands of one format")
        check(a.stride(1) == 1 and b.stride(0) == 1, "the first operand in rows, the second in columns")
        check(a.shape[1] == b.shape[0], "one K")
        (m, width), n = a.shape, b.shape[1]
        k = width * (2 if a.dtype == FP4 else 1)
        check(k % 16 == 0 and n % 16 == 0, "multiples of 16")
        check(width % 16 == 0, "rows of whole 16 bytes")
        out = given["output_dtype"]
        if self.vendor == "amd":
            check(m % 32 == 0 and n % 32 == 0 and width % 32 == 0 and k % 128 == 0, "multiples of 32, K of 128")
            check(out in (torch.bfloat16, torch.float16), "bf16 or fp16 output")
        elif a.dtype == FP4 and listed(given["scale_recipe_a"])[0] == ScalingType.BlockWise1x32:
            check(out == torch.bfloat16 and given["bias"] is None, "MXFP4 writes bf16 and drops a bias")
        x = self.decoded(a, *(given[f"{word}_a"] for word in ("scale", "scale_recipe", "swizzle")), rows=m)
        w = self.decoded(b.t(), *(given[f"{word}_b"] for word in ("scale", "scale_recipe", "swizzle")), rows=n)
        y = torch.from_numpy(x @ w.T)
        check(given["bias"] is None, "the bindings add the bias")
        return y.to(out)

    def decoded(self, codes: torch.Tensor, scale: Any, recipe: Any, swizzle: Any, rows: int) -> np.ndarray[Any, Any]:
        """The values [rows, K] of one operand."""
        (inner, *outer), (kind, *above), (how, *rest) = listed(scale), listed(recipe), listed(swizzle)
        group, dtype = RECIPES[kind]
        check((kind == ScalingType.BlockWise1x16) <= (self.vendor == "nvidia"), "NVFP4 on CUDA alone")
        check((kind == ScalingType.BlockWise1x16) == bool(outer), "two scales for NVFP4, one for MX")
        check(inner.dtype == dtype and inner.is_contiguous(), f"dense scales in {dtype}")
        stored = codes.contiguous().view(torch.uint8).numpy()
        values = (
            np.stack((E2M1[stored & 15], E2M1[stored >> 4]), axis=2).reshape(rows, -1)
            if codes.dtype == FP4
            else codes.contiguous().double().numpy()
        )
        columns = -(-values.shape[1] // group)
        flat = inner.view(torch.uint8).reshape(-1)
        if self.vendor == "amd":
            check(how == SwizzleType.NO_SWIZZLE and flat.numel() == rows * columns, "plain scales")
            places = np.arange(rows * columns).reshape(rows, columns)
        else:
            padded = -(-columns // 4) * 4
            check(how == SwizzleType.SWIZZLE_32_4_4, "swizzled scales")
            check(flat.numel() == -(-rows // 128) * 128 * padded, "scales of whole tiles")
            r, c = np.arange(rows)[:, None], np.arange(columns)[None, :]
            places = (r // 128 * (padded // 4) + c // 4) * 512 + r % 32 * 16 + r // 32 % 4 * 4 + c % 4
        picked = flat[torch.from_numpy(places)]
        factors = (
            np.exp2(picked.numpy().astype(np.float64) - 127)
            if dtype == torch.float8_e8m0fnu
            else picked.view(torch.float8_e4m3fn).double().numpy()
        )
        if outer:
            check(above == [ScalingType.TensorWise] and rest == [SwizzleType.NO_SWIZZLE], "one further scale")
            check(outer[0].dtype == torch.float32 and outer[0].numel() == 1, "one float32")
            factors = factors * float(outer[0])
        return values * factors.repeat(group, axis=1)[:, : values.shape[1]]


def listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def check(holds: bool, needs: str) -> None:
    if not holds:
        raise ValueError(f"scaled_mm needs {needs}")


def install(monkeypatch: pytest.MonkeyPatch, vendor: str) -> PaperTorch:
    """Put the paper function in the place of torch's; the former is back at the end of the test."""
    paper = PaperTorch(vendor)
    monkeypatch.setattr(functional, "scaled_mm", paper.scaled_mm)
    return paper
