"""The names that generated modules import and use, so that no kernel, table or parameter takes one of them."""

from __future__ import annotations

import re

IMPORTABLE = {
    "collections.abc": ("Callable", "Mapping"),
    "typing": ("Final", "Literal", "Protocol", "TypeAlias", "cast"),
    "torch": ("Tensor",),
    "qscheme.layer": ("LayerFacts", "Operands"),
    "qscheme.layouts": (
        "as_dtype", "bias_or_zeros", "column_major", "e8m0_to_fp32", "expand_rows", "fnuz_scale", "fnuz_weight",
        "fold_rows", "k_major", "pad_rows", "padded_column_major", "row_major", "row_vector",
        "shuffle_16x16", "swizzle_32_4_4", "swizzle_e8m0_256x8", "swizzle_e8m0_32x8", "swizzled_shape", "transposed",
    ),
    "qscheme.machine": ("Facts",),
    "qscheme.numerics": ("scale_accumulators", "scale_levels", "scale_shape"),
    "qscheme.ops": ("changed_config", "opaque"),
    "qscheme.packing": ("repacked",),
    "qscheme.tilings": ("tiles_2x128", "tiles_32x4", "tiles_32x8"),
    "qscheme.types": (
        "Backend", "Call", "Device", "Form", "Kernel", "LibrarySource", "Operand", "Prepared", "QuantizedRows",
        "Reason", "Rows", "Rule", "Scheme", "Switch", "TunedTable",
    ),
}  # fmt: skip
"""What generated code may import, by module."""


def in_small_letters(name: str) -> str:
    """`QuantizedRows` as `quantized_rows`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


TAKEN = frozenset((
    "activation", "annotations", "apply", "apply_batch_invariant", "apply_quantized",
    "apply_quantized_batch_invariant", "batch_invariant", "bias", "codes", "devices", "dtype", "facts", "fp8",
    "input_scale", "input_global_scale", "layer", "libraries", "m", "reasons", "rows", "scale", "schemes", "switches",
    "torch", "tuned", "type_checking", "untuned", "weight", "weight_global_scale", "weight_scale", "weight_zero_point",
    "weights", "x", "y", "uint8", "float4_e2m1fn_x2", "float8_e8m0fnu", "scheme_name", "interface", "zero_point",
    *(in_small_letters(name) for names in IMPORTABLE.values() for name in names),
))  # fmt: skip
"""Names that generated modules use themselves, in small letters; no kernel and no tuned table may have one."""
