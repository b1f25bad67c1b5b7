"""torch's NVFP4 product, whose operands have two scales each: torch takes both in a list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SCALES = [functional.ScalingType.BlockWise1x16, functional.ScalingType.TensorWise]
SWIZZLES = [functional.SwizzleType.SWIZZLE_32_4_4, functional.SwizzleType.NO_SWIZZLE]


def scaled_mm_two_level(
    x: Tensor,
    weight: Tensor,
    x_scale: Tensor,
    weight_scale: Tensor,
    input_global_scale: Tensor,
    weight_global_scale: Tensor,
    output_dtype: torch.dtype,
    divide: bool,
) -> Tensor:
    """y [M, N] of E2M1 codes [M, K/2] and [K/2, N], float4_e2m1fn_x2, the second with K in its rows.

    x_scale, weight_scale: E4M3, one for 16 elements, in the layout `swizzle_32_4_4`. Global scales: float32 [1], which
    multiply the others; with `divide` they divide them, and torch is given their reciprocals. torch multiplies y by the
    product of the two (`_scaled_nvfp4_nvfp4` of ScaledBlas.cpp, torch 2.10).
    """
    outer = [input_global_scale, weight_global_scale]
    outer_x, outer_weight = [scale.reciprocal() for scale in outer] if divide else outer
    return functional.scaled_mm(
        x,
        weight,
        scale_a=[x_scale, outer_x],
        scale_recipe_a=SCALES,
        scale_b=[weight_scale, outer_weight],
        scale_recipe_b=SCALES,
        swizzle_a=SWIZZLES,
        swizzle_b=SWIZZLES,
        output_dtype=output_dtype,
    )
