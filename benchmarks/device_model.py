"""Random quantized layers, and what they compute in float64: written apart from qscheme's own arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from qscheme.decision import Activation
    from qscheme.types import Operand, Rule, Scheme

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
FORMATS = ("int8", "fp8_e4m3", "fp4_e2m1", "int4")
FULL = {"int8": 0.03, "fp8_e4m3": 0.04, "fp4_e2m1": 0.18}
"""What the relative error against the x that was not quantized may be, by the activation's format; a quantizer that
truncates may have twice that."""


@dataclass
class RandomLayer:
    """What a checkpoint stores; `values` [N, K] is the weight in float64, on the CPU like all of the model."""

    scheme: str
    weight: Tensor
    weight_scale: Tensor
    input_scale: Tensor | None
    bias: Tensor | None
    out_dtype: torch.dtype
    values: Tensor
    weight_global_scale: Tensor | None = None
    weight_zero_point: Tensor | None = None
    name: str = "random"

    def to(self, device: torch.device) -> RandomLayer:
        """A copy whose stored tensors have their own memory on a device."""
        moved = {
            name: None if tensor is None else tensor.detach().clone().to(device)
            for name, tensor in vars(self).items()
            if name in ("weight", "weight_scale", "input_scale", "bias", "weight_global_scale", "weight_zero_point")
        }
        return RandomLayer(**{**vars(self), **moved})


def unmodelled(scheme: Scheme) -> str | None:
    """What the model here does not know of a scheme's operands; None if it knows all."""
    activation, weight = scheme.activation, scheme.weight
    if activation is not None:
        known = activation.format in FULL and activation.scale in ("fp32", "e8m0") and activation.symmetric
        if not known:
            return f"the float64 model does not know its activation: {activation.format} with {activation.scale} scales"
    packings = {"int4": ("int32_columns",), "int8": ("plain", "int32_columns")}.get(weight.format, ("plain",))
    scales = ("fp32", "e8m0", "e4m3") if activation is None else ("fp32", "e8m0")
    if weight.format not in FORMATS or weight.scale not in scales or weight.packing not in packings:
        return f"the float64 model does not know its weight: {weight.format} ({weight.packing}), {weight.scale} scales"
    return None


def random_layer(scheme: Scheme, n: int, k: int, bias: bool, out_dtype: torch.dtype) -> RandomLayer:
    """A layer of a scheme whose scales differ by up to 64 times from tile to tile; y is about as large as x."""
    operand = scheme.weight
    codes = _random_codes(operand, n, k)
    plain = values_of(codes, operand.format)
    base = 1 / (float(plain.pow(2).mean().sqrt()) * math.sqrt(k))
    shape = grid(n, k, operand.granularity)
    spread = torch.rand(shape) * 6 - 3 if math.prod(shape) > 1 else torch.zeros(shape)
    stored = scheme.stored_scales[int(torch.randint(len(scheme.stored_scales), ()))]
    if stored == "e8m0":
        scale = (spread + math.log2(base)).round().add(127).clamp(0, 254).to(torch.uint8)
    else:
        scale = torch.exp2(spread) * base
    outer, zero = None, None
    if operand.global_scale is not None:
        outer = torch.tensor([2.0**8 if operand.global_scale == "divide" else 2.0**-8])
        scale = (scale * 2.0**8).to(torch.float8_e4m3fn)
    if not operand.symmetric:
        reach = 8 if operand.format == "int4" else 128
        zero = torch.randint(-reach, reach, shape, dtype=torch.int8)
        plain = plain - tiles(zero.double(), n, k, operand.granularity)
    values = plain * tiles(scale_values(scale), n, k, operand.granularity)
    values = values * 2.0**-8 if outer is not None else values
    added = torch.randn(n) * values.norm(dim=1).mean().float() if bias else None
    given = None
    if scheme.activation is not None and scheme.activation.mode == "static":
        given = torch.tensor([4.0 / scheme.activation.rule.max])
    flat = scale.reshape(1) if operand.granularity == "per_tensor" else scale
    return RandomLayer(
        scheme.name, codes, flat, given, None if added is None else added.to(out_dtype), out_dtype, values, outer, zero
    )


def random_x(scheme: Scheme, m: int, k: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """x [M, K] whose rows and blocks of 32 differ in size where scales can follow; the last of many rows is zero."""
    x = torch.randn(m, k)
    if scheme.activation is not None and scheme.activation.granularity != "per_tensor":
        x = x * torch.pow(10.0, torch.rand(m, 1) * 2 - 1)
        x = x * torch.exp2(torch.rand(m, -(-k // 32)) * 3 - 1.5).repeat_interleave(32, dim=1)[:, :k]
    if m > 2:
        x[-1] = 0
    return x.to(dtype)


@dataclass(frozen=True)
class Expected:
    """What a layer makes of x: codes and plain scales by a rule, their product [M, N] in float64, and slack [M].

    slack: what the codes that stand between two values may add to the relative error of a row. A quotient within 2**-20
    of a tie becomes one code or the other by its last bit, which compilers and devices find in different ways; three
    standard deviations of that, the signs being random. Powers of two are exact, so there it is zero.
    """

    codes: Tensor
    scale: Tensor
    y: Tensor
    slack: Tensor


def expected(x: Tensor, layer: RandomLayer, operand: Operand | None, activation: Activation | None) -> Expected:
    """What a layer makes of x [M, K] by the rule that a bound function says its quantizer has, or of x as it is."""
    if operand is None or activation is None:
        y = product(x.detach().cpu().double(), layer)
        return Expected(x, torch.ones(()), y, torch.zeros(len(x), dtype=torch.float64))
    rule, fnuz = activation.rule, activation.codes_dtype == torch.float8_e4m3fnuz
    given = layer.input_scale
    largest = _largest(rule, operand.format, fnuz)
    rows, columns = x.shape
    single = x.detach().cpu().float()
    if given is not None:
        scale = given.detach().cpu().double().reshape(grid(rows, columns, operand.granularity))
    else:
        scale = _scale(_tile_maxima(single.double().abs(), operand.granularity), rule, operand, largest, fnuz)
    factors = tiles(scale, rows, columns, operand.granularity)
    if rule.scale != "amax_div":
        scaled = single.double() / factors
    elif rule.apply == "divide":
        scaled = (single / factors.float()).double()
    else:
        scaled = (single * (1 / factors.float())).double()
    codes = _codes(scaled, operand.format, rule, largest, activation.codes_dtype)
    stored = (scale.log2().round() + 127).to(torch.uint8) if operand.scale == "e8m0" else scale.float()
    plain = stored.reshape(1) if operand.granularity == "per_tensor" else stored
    y = product(dequantized(codes, plain, operand.granularity), layer)
    slack = torch.zeros(rows, dtype=torch.float64)
    if rule.scale == "amax_div":
        above, below = (
            values_of(_codes(scaled * (1 + sign * 2.0**-20), operand.format, rule, largest, activation.codes_dtype))
            for sign in (1, -1)
        )
        flips = ((above - below) * factors).pow(2) @ layer.values.pow(2).sum(dim=0)
        slack = torch.where(flips == 0, 0.0, 3 * flips.sqrt() / y.norm(dim=1))
    return Expected(codes, plain, y, slack)


def dequantized(codes: Tensor, scale: Tensor, granularity: str) -> Tensor:
    """The float64 values of codes [R, K] or [R, K/2] under plain scales."""
    values = values_of(codes)
    rows, columns = values.shape
    factors = scale_values(scale).reshape(grid(rows, columns, granularity))
    return values * tiles(factors, rows, columns, granularity)


def product(x: Tensor, layer: RandomLayer) -> Tensor:
    """y [M, N] of values [M, K] in float64, bias included."""
    y = x @ layer.values.T
    return y if layer.bias is None else y + layer.bias.detach().cpu().double()


def row_errors(found: Tensor, right: Tensor) -> Tensor:
    """For each row the norm of the difference over that of the expected row; infinite for nonsense."""
    found = found.detach().cpu().double()
    if found.shape != right.shape:
        return torch.full((max(len(right), 1),), math.inf)
    difference, size = (found - right).norm(dim=1), right.norm(dim=1)
    return torch.where(difference == 0, 0.0, difference / size).nan_to_num(nan=math.inf)


def whole_error(found: Tensor, right: Tensor) -> float:
    """The norm of the difference over that of the expected matrix; infinite for nonsense."""
    found = found.detach().cpu().double()
    if found.shape != right.shape or not bool(found.isfinite().all()):
        return math.inf
    return float((found - right).norm()) / (float(right.norm()) or 1.0)


def values_of(codes: Tensor, element: str = "") -> Tensor:
    """float64 of INT8, FP8, packed E2M1 or packed INT4 codes; the first column is in the lowest bits."""
    codes = codes.detach().cpu()
    if element == "int4":
        stored = codes.view(torch.uint8)
        return torch.stack((stored & 15, stored >> 4), dim=-1).flatten(-2).double() - 8
    if codes.dtype == torch.int32:
        return codes.view(torch.uint8).double() - 128
    if codes.dtype != torch.uint8:
        return codes.double()
    table = torch.tensor([*E2M1, *(-value for value in E2M1)], dtype=torch.float64)
    return torch.stack((table[(codes & 15).long()], table[(codes >> 4).long()]), dim=-1).flatten(-2)


def scale_values(scale: Tensor) -> Tensor:
    """float64 of float scales, or of E8M0 bytes."""
    scale = scale.detach().cpu()
    return torch.exp2(scale.double() - 127) if scale.dtype == torch.uint8 else scale.double()


def grid(rows: int, columns: int, granularity: str) -> tuple[int, int]:
    """How many scales a matrix has, along its rows and along its columns."""
    high, wide = _tile(rows, columns, granularity)
    return -(-rows // high), -(-columns // wide)


def tiles(scale: Tensor, rows: int, columns: int, granularity: str) -> Tensor:
    """One scale for each element [rows, columns], from one for each tile; edges may be cut."""
    high, wide = _tile(rows, columns, granularity)
    wide_scale = scale.reshape(grid(rows, columns, granularity)).repeat_interleave(high, dim=0)[:rows]
    return wide_scale.repeat_interleave(wide, dim=1)[:, :columns]


def _tile(rows: int, columns: int, granularity: str) -> tuple[int, int]:
    if granularity == "per_tensor":
        return rows, columns
    if granularity in ("per_token", "per_channel"):
        return 1, columns
    high, _, wide = granularity.partition("x")
    return int(high), int(wide)


def _tile_maxima(magnitudes: Tensor, granularity: str) -> Tensor:
    rows, columns = magnitudes.shape
    high, wide = _tile(rows, columns, granularity)
    padded = torch.nn.functional.pad(magnitudes, (0, -columns % wide, 0, -rows % high))
    down, across = grid(rows, columns, granularity)
    return padded.view(down, high, across, wide).amax(dim=(1, 3))


def _random_codes(operand: Operand, n: int, k: int) -> Tensor:
    element = operand.format
    if element == "int8" and operand.packing == "plain":
        return torch.randint(-127, 128, (n, k), dtype=torch.int8)
    if element == "int8":
        return torch.randint(0, 256, (n, k), dtype=torch.uint8).view(torch.int32)
    if element in ("fp4_e2m1", "int4"):
        stored = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
        return stored.view(torch.int32) if element == "int4" else stored
    magnitudes = torch.randint(0, 0x7F, (n, k), dtype=torch.uint8)
    return (magnitudes | torch.randint(0, 2, (n, k), dtype=torch.uint8) << 7).view(torch.float8_e4m3fn)


def _largest(rule: Rule, element: str, fnuz: bool) -> float:
    if element != "fp8_e4m3" or not fnuz:
        return rule.max
    return rule.fnuz_max if rule.fnuz_max is not None else rule.max / 2 if rule.max > 240 else rule.max


def _scale(amax: Tensor, rule: Rule, operand: Operand, largest: float, fnuz: bool) -> Tensor:
    """One scale for each tile; float32 ones are rounded to float32."""
    amax = amax.clamp(min=rule.floor)
    if rule.scale == "amax_div":
        return (amax / largest).float().clamp(min=2.0**-126).double()
    element_bits = 1 if operand.format == "fp4_e2m1" else 3
    largest_exponent = 2 if operand.format == "fp4_e2m1" else 7 if fnuz else 8
    mantissa, exponent = torch.frexp(amax)
    mantissa, exponent = mantissa * 2, exponent - 1
    ratio = torch.log2(amax / largest)
    power = {
        "floor": exponent - largest_exponent,
        "ceil": exponent - largest_exponent + (mantissa > 1),
        "even": exponent - largest_exponent + (mantissa >= 2 - 2.0 ** -(element_bits + 1)),
        "even175": exponent - largest_exponent + (mantissa >= 1.75),
        "nearest15": exponent - largest_exponent + (mantissa >= 1.5),
        "rceil": ratio.ceil(),
        "log_nearest": ratio.round(),
    }[rule.scale].double()
    return torch.exp2(torch.where(amax == 0, -127.0, power).clamp(-127, 127))


def _nearest(values: Tensor, mantissa_bits: int, smallest_exponent: int, largest: float, rule: Rule) -> Tensor:
    """The numbers with so many mantissa bits, no larger than `largest`, that the rule rounds values to."""
    clamped = values.clamp(-largest, largest)
    _, exponent = torch.frexp(clamped)
    step = torch.exp2((exponent - 1).clamp(min=smallest_exponent).double() - mantissa_bits)
    return _whole(clamped / step, rule) * step


def _codes(scaled: Tensor, element: str, rule: Rule, largest: float, fp8: torch.dtype) -> Tensor:
    """Values over their scale as int8, FP8 in a flavour, or packed E2M1."""
    if element == "int8":
        lowest, highest = (-128, 127) if largest > 127 else (-largest, largest)
        return _whole(scaled, rule).clamp(lowest, highest).to(torch.int8)
    if element == "fp8_e4m3":
        return _nearest(scaled, 3, -7 if fp8 == torch.float8_e4m3fnuz else -6, largest, rule).to(fp8)
    near = _nearest(scaled, 1, 0, largest, rule)
    index = torch.searchsorted(torch.tensor(E2M1, dtype=torch.float64), near.abs().contiguous())
    code = (index + 8 * near.signbit()).to(torch.uint8)
    return code[:, ::2] | code[:, 1::2] << 4


def _whole(scaled: Tensor, rule: Rule) -> Tensor:
    if rule.round == "truncate":
        return scaled.trunc()
    if rule.round == "half_away":
        return scaled.sign() * (scaled.abs() + 0.5).floor()
    if rule.round == "ties_to_zero":
        return scaled.sign() * (scaled.abs() - 0.5).ceil()
    return scaled.round()
