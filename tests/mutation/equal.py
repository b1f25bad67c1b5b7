"""Mutants that change no byte of any result, each with the reason."""

from __future__ import annotations

_BYTES = "the operand is stored as bytes, and bytes viewed as bytes are the same"
_VIEWED = "both words lead to a view as what the GEMM takes"
_ONE_COLUMN = "one column has one order"
_RELAID = "the binder lays scales out itself where the quantizer does not, so the same bytes arrive"

REASONS = {
    "per_group_quant_hip_e8m0: group_size not passed": "128 is the function's default in every release",
    "per_1x32_mx_quant_hip: scales written as fp4x2, not e8m0": _VIEWED,
    "quant_mxfp4_hip: scales written as fp4x2, not e8m0": _VIEWED,
    **{
        f"gemm_a8w8_asm: {role} {layout}, not per_row": _ONE_COLUMN
        for role in ("x_scale", "weight_scale")
        for layout in ("row_major", "k_major", "column_major")
    },
    **{f"gemm_a8w8_bpreshuffle: x_scale {layout}, not per_row": _ONE_COLUMN for layout in ("k_major", "column_major")},
    **{
        f"{kernel}: output_dtype not passed": "the only output is the function's default"
        for kernel in (
            "gemm_a8w8_asm",
            "flatmm_a8w8_blockscale_asm",
            "gemm_a8w8_mxfp8",
            "gemm_a8w4_mxfp8",
            "gemm_nvfp4_asm",
            "gemm_a4w4_apreshuffle",
        )
    },
    "flatmm_a8w8_blockscale_asm: weight_scale column_major, not k_major": "the same bytes under another shape",
    **{
        f"{kernel}: a_preshuffle not passed": "true is the function's default"
        for kernel in ("gemm_a8w8_mxfp8", "gemm_a8w4_mxfp8", "gemm_nvfp4_asm")
    },
    **{
        f"{kernel}: FP8 as the checkpoint has it": "it runs on gfx1250, where FP8 is as the checkpoint has it"
        for kernel in ("gemm_a8w8_mxfp8", "gemm_a8w4_mxfp8")
    },
    "gemm_a8w8_mxfp8: weight_scale as None, not bytes": _BYTES,
    "gemm_a8w4_mxfp8: weight_scale as None, not bytes": _BYTES,
    "gemm_a8w4_mxfp8: weight as None, not bytes": _BYTES,
    "fp8_block128 aiter_asm_flatmm: transpose_scale flipped in call 0": _RELAID,
    "mxfp4 aiter_asm_even: e8m0_shuffle flipped in call 1": _RELAID,
    "mxfp4 aiter_asm_even: e8m0_shuffle flipped in call 2": _RELAID,
    "per_token_quant_hip: scales written per_row, not row_major": "one column has one order",
    "per_token_quant_hip_fp8: scales written per_row, not row_major": "one column has one order",
    "gemm_a8w8_bpreshuffle: x_scale row_major, not per_row": "one column has one order",
    "per_group_quant_hip: group_size not passed": "128 is the function's default in every release",
    "per_1x32_f4_quant_hip: scales written as fp4x2, not e8m0": "both words lead to a view as what the GEMM takes",
    "dynamic_mxfp4_quant: scales written row_major, not column_major": "laid out once more, in the order they have",
    "dynamic_mxfp4_quant: scales written as fp4x2, not bytes": _BYTES,
    "dynamic_mxfp4_quant: scales written as e8m0, not bytes": _BYTES,
    "dynamic_mxfp4_quant: codes written as fp4x2": _BYTES,
    "gemm_a8w8_blockscale_bpreshuffle: output_dtype not passed": "bf16, the only output, is the function's default",
    "triton_gemm_a8w8_blockscale_preshuffle: is_x_scale_tranposed not passed": "true is the function's default",
    "triton_gemm_a8w8_blockscale_preshuffle: FP8 as the checkpoint has it": "its one backend runs on gfx1250, where "
    "FP8 is as the checkpoint has it",
    "gemm_a4w4: bpreshuffle not passed": "true is the function's default",
    "gemm_afp4wfp4_preshuffle: weight as None, not bytes": _BYTES,
    "gemm_afp4wfp4_preshuffle: weight_scale as None, not bytes": _BYTES,
    **{
        f"{kernel}: {role} as None, not bytes": _BYTES
        for kernel in ("gemm_afp4wfp4", "gemm_afp4wfp4_one_split")
        for role in ("x", "weight", "x_scale", "weight_scale")
    },
    **{
        f"{kernel}: looked up as for {other}": "a tile changes speed alone where it fits the shape"
        for kernel, other in (
            ("triton_gemm_a8w8_blockscale_one_split", "triton_gemm_a16w8_blockscale_one_split"),
            ("triton_gemm_a16w8_blockscale_one_split", "triton_gemm_a8w8_blockscale_one_split"),
            ("gemm_afp4wfp4_one_split", "triton_gemm_a8w8_blockscale_one_split"),
            ("gemm_afp4wfp4_one_split", "triton_gemm_a16w8_blockscale_one_split"),
            ("gemm_afp8wfp8_one_split", "triton_gemm_a8w8_blockscale_one_split"),
            ("gemm_afp8wfp8_one_split", "triton_gemm_a16w8_blockscale_one_split"),
            ("gemm_afp8wfp8_one_split", "gemm_afp4wfp4_one_split"),
        )
    },
    **{
        f"{kernel}: {role} as None, not bytes": _BYTES
        for kernel, roles in (
            ("gemm_afp8wfp8", ("x_scale", "weight_scale")),
            ("gemm_afp8wfp8_one_split", ("x_scale", "weight_scale")),
            ("gemm_afp8wfp8_preshuffle", ("x_scale", "weight_scale")),
            ("gemm_a16wfp4", ("weight", "weight_scale")),
            ("gemm_a8wfp4", ("weight", "weight_scale")),
        )
        for role in roles
    },
    **{
        f"{kernel}: {role} {layout}, not row_major": "the function follows the strides of its scales"
        for kernel, role, layout in (
            ("triton_gemm_a16w8_blockscale_preshuffle", "weight_scale", "column_major"),
            ("gemm_afp8wfp8", "x_scale", "column_major"),
            ("gemm_afp8wfp8_one_split", "x_scale", "column_major"),
            ("gemm_afp8wfp8_preshuffle", "x_scale", "column_major"),
            ("gemm_afp8wfp8_preshuffle", "weight_scale", "column_major"),
            ("gemm_a8wfp4", "weight_scale", "column_major"),
        )
    },
    "dynamic_mxfp8_quant: scales written as e8m0, not bytes": _BYTES,
    "dynamic_mxfp8_quant: scales written as fp4x2, not bytes": _BYTES,
    "gemm_a8wfp4: FP8 as the device has it": "it runs on devices alone whose FP8 is as the checkpoint has it",
    "fp8_block128 aiter_triton_preshuffle: transpose_scale flipped in call 0": _RELAID,
    "fp8_block128 aiter_ck_preshuffle: transpose_scale flipped in call 0": _RELAID,
    "mxfp4 aiter_asm: shuffle flipped in call 1": _RELAID,
    "mxfp4 aiter_asm: shuffle flipped in call 2": _RELAID,
}
"""The change of each such mutant."""
