"""What contradicts itself in a GEMM or a quantizer of a YAML file, apart from its names and single operands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import Version

from qscheme.compiler.parameters import OPTIONAL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qscheme.compiler import model
    from qscheme.compiler.kernel_model import GemmModel, QuantizerModel
    from qscheme.compiler.source import KeyPath


def gemm_problems(kernel: GemmModel) -> Iterator[tuple[KeyPath, str]]:
    """What is wrong with a GEMM, each with the key path in it."""
    needed: tuple[str, ...] = ("x", "weight")
    if isinstance(kernel.output, tuple):
        needed = ("x", "weight", "weight_scale") if kernel.inputs else ("x", "weight", "x_scale", "weight_scale")
        if "output_dtype" not in kernel.operands and len(kernel.output) > 1:
            yield ("operands",), "needs the operand output_dtype, or one dtype of output"
    else:
        for role in kernel.operands:
            if role not in needed:
                yield ("operands", role), f"accumulators are scaled afterwards; the kernel takes no {role}"
    for word in needed:
        if word not in kernel.operands:
            unless = ", or `inputs` if x is not quantized before it" if word == "x_scale" else ""
            yield ("operands",), f"a GEMM needs the operand {word}{unless}"
    if kernel.inputs and ("x_scale" in kernel.operands or not isinstance(kernel.output, tuple)):
        yield ("inputs",), "belongs to a GEMM that is given x as it is; this one is given codes"
    if kernel.quantizes:
        if not kernel.inputs:
            yield ("quantizes",), "a GEMM that quantizes x is given it as it is: name its dtypes with `inputs`"
        yield from ((("quantizes", *path), message) for path, message in _rule_problems(kernel.quantizes.rules))
    for role, use in kernel.operands.items():
        if role in OPTIONAL and use.position is not None and use.applies is None:
            yield ("operands", role), f"{role} is not passed in every scheme; name its keyword with `as`"
    if "batch_invariant" in kernel.operands and not kernel.batch_invariant:
        yield ("batch_invariant",), "a kernel that is told of the mode follows it; leave this key out"
    if kernel.weight_formats and not (kernel.formats and "x_scale" in kernel.operands):
        yield ("weight_formats",), "belongs beside the `formats` of codes; without codes `formats` are the weight's"


def quantizer_problems(kernel: QuantizerModel, *, opaque: bool) -> Iterator[tuple[KeyPath, str]]:
    """What is wrong with a quantizer, each with the key path in it."""
    if "x" not in kernel.operands:
        yield ("operands",), "a quantizer needs the operand x"
    if opaque and kernel.granularity is None:
        yield (), "a quantizer that torch.compile cannot look into needs its granularity"
    if opaque and kernel.codes is None and "codes_dtype" not in kernel.operands and kernel.formats != ("int8",):
        yield (), "needs the operand codes_dtype, `codes` or `formats: [int8]`, to tell the dtype of its codes"
    if kernel.granularity is None:
        for role in ("fp8_dtype", "input_scale"):
            use = kernel.operands.get(role)
            if use and use.position is not None:
                yield ("operands", role), f"{role} is not passed in every scheme; name its keyword with `as`"
    yield from _rule_problems(kernel.rules)


def _rule_problems(rules: tuple[model.RuleModel, ...]) -> Iterator[tuple[KeyPath, str]]:
    releases = [rule.since for rule in rules]
    dated = [Version(release) for release in releases[:-1] if release is not None]
    if releases and (None in releases[:-1] or releases[-1] is not None or dated != sorted(set(dated), reverse=True)):
        yield ("rules",), "needs a falling since in every rule but the last, which has none"
