"""What a scheme says of its activation and weight -> what contradicts itself in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qscheme.compiler.model import ActivationModel, SchemeFile, WeightModel
    from qscheme.compiler.source import KeyPath


def operand_problems(scheme: SchemeFile) -> Iterator[tuple[KeyPath, str]]:
    """Every contradiction, with its key path."""
    activation, weight = scheme.activation, scheme.weight
    if weight.granularity == "per_token":
        yield ("weight", "granularity"), "per_token is for activations; weights have per_channel"
    if weight.scale == "e8m0" and "fp32" in weight.stored_scales:
        position = weight.stored_scales.index("fp32")
        yield ("weight", "stored_scales", position), "an e8m0 scale cannot be made from a stored fp32 one"
    yield from _packing_problems(weight)
    yield from _rule_problems("weight", weight)
    if isinstance(activation, str):
        return
    if activation.granularity == "per_channel":
        yield ("activation", "granularity"), "per_channel is for weights; activations have per_token"
    elif activation.granularity in ("128x128", "32x32"):
        message = (
            f"a scale of {activation.granularity} spans rows that do not belong together; an activation's spans one"
        )
        yield ("activation", "granularity"), message
    if activation.mode == "static" and (activation.granularity != "per_tensor" or activation.scale != "fp32"):
        yield ("activation", "mode"), "a static activation has one fp32 scale: granularity per_tensor, scale fp32"
    yield from _rule_problems("activation", activation)


def _packing_problems(weight: WeightModel) -> Iterator[tuple[KeyPath, str]]:
    """What a word for the way that codes are stored cannot say."""
    path, packing = ("weight", "packing"), weight.packing
    if packing == "plain":
        return
    formats = ("int4",) if packing in ("awq", "quark") else ("int4", "int8")
    if weight.format not in formats:
        yield path, f"{packing} stores {' and '.join(formats)} codes, not {weight.format}"
    if packing in ("awq", "gptq", "gptq_v2") and weight.symmetric:
        yield path, f"{packing} stores zero points, which a symmetric weight has not; say symmetric: false"
    if weight.granularity != "per_channel" and not weight.granularity.startswith("1x"):
        yield path, f"{packing} stores scales per_channel or of tiles in one row, not {weight.granularity}"


def _rule_problems(name: str, operand: ActivationModel | WeightModel) -> Iterator[tuple[KeyPath, str]]:
    rule, path = operand.rule, (name, "rule")
    if rule.since is not None:
        yield (*path, "since"), "a scheme's rule has no release; remove the key"
    if rule.fnuz_max is not None and operand.format != "fp8_e4m3":
        yield (*path, "fnuz_max"), f"only fp8_e4m3 has a fnuz flavour, not {operand.format}"
    if operand.scale == "e8m0" and rule.scale == "amax_div":
        yield (*path, "scale"), "amax_div gives no power of two, which an e8m0 scale is; name a rule that does"
    if operand.format in ("int8", "int4") and (rule.scale != "amax_div" or operand.scale == "e8m0"):
        at = (*path, "scale") if rule.scale != "amax_div" else (name, "scale")
        yield at, f"an {operand.format} operand has fp32 scales of the rule amax_div"
    if not operand.symmetric and operand.format not in ("int8", "int4"):
        yield (name, "symmetric"), f"only int8 and int4 codes have a zero point, not {operand.format}"
    if (operand.global_scale is not None) and operand.scale not in ("e4m3", "e5m3"):
        yield (name, "global_scale"), f"stands over scales in e4m3 or e5m3, not {operand.scale}"
    if operand.format == "fp8_e4m3" and rule.round != "rne":
        yield (*path, "round"), f"fp8_e4m3 is rounded to nearest even (rne), found {rule.round}"
