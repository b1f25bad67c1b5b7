"""What each named rule of quantization does to codes, scales and values, as the tables of docs/numerics.md.

    python benchmarks/numerics_effects.py

Seeded; takes about a minute on two CPU cores. Values are bf16, 1024 x 1024, from the normal distribution N(0, 1) or
from Student's t with 4 degrees of freedom, whose rare large values are those of activations. SQNR is 10 log10 of the
mean square of the values over that of the errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qscheme.formats import decode
from qscheme.numerics import dequantize, find_global_scale, quantize, quantize_asymmetric
from qscheme.types import Operand, Rule

if TYPE_CHECKING:
    from collections.abc import Iterable

SIZE = 1024
FN, FNUZ = torch.float8_e4m3fn, torch.float8_e4m3fnuz


def samples() -> dict[str, Tensor]:
    torch.manual_seed(0)
    student = torch.distributions.StudentT(4.0).sample((SIZE, SIZE))
    return {"N(0, 1)": torch.randn(SIZE, SIZE).bfloat16().float(), "t(4)": student.bfloat16().float()}


def relative_error(x: Tensor, values: Tensor) -> float:
    """Mean square of the errors over that of the values."""
    return ((values.double() - x.double()).square().sum() / x.double().square().sum()).item()


def sqnr(x: Tensor, values: Tensor) -> str:
    return f"{-10 * torch.tensor(relative_error(x, values)).log10().item():.2f}"


def shrinking(x: Tensor, values: Tensor) -> float:
    """How far magnitudes are off in the mean, relative to their mean."""
    return ((values.abs() - x.abs()).double().mean() / x.abs().double().mean()).item()


def percent(differs: Tensor) -> str:
    share = 100 * differs.double().mean().item()
    return "0" if share == 0 else f"{share:.3g}"


def table(title: str, head: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    head = list(head)
    print(f"### {title}\n\n| {' | '.join(head)} |\n| {' | '.join('---' for _ in head)} |")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    print()


def fp8(x: Tensor) -> None:
    def operand(largest: float = 448.0, apply: str = "divide", floor: float = 1e-10) -> Operand:
        return Operand("fp8_e4m3", "per_token", "fp32", Rule("amax_div", largest, "rne", apply, floor, largest))

    base = quantize(x, operand())
    values = dequantize(*base, operand())

    def row(name: str, changed: Operand, flavour: torch.dtype, scale: Tensor | None = None) -> list[str]:
        codes, used = quantize(x, changed, flavour, scale)
        bytes_ = codes.view(torch.uint8) != base[0].view(torch.uint8)
        other = dequantize(codes, used, changed)
        return [name, percent(bytes_), f"{relative_error(x, other):.3e}", sqnr(x, other)]

    rows = [
        ["max 448 on E4M3FN, divide", "0", f"{relative_error(x, values):.3e}", sqnr(x, values)],
        row("apply multiply_reciprocal", operand(apply="multiply_reciprocal"), FN),
        row("max 224 on E4M3FNUZ", operand(224.0), FNUZ),
        row("max 240 on E4M3FNUZ", operand(240.0), FNUZ),
        row("max 240 on E4M3FN", operand(240.0), FN),
        row("scale rounded to bf16 before it is used", operand(), FN, base[1].bfloat16().float()),
    ]
    rounded = dequantize(base[0], base[1].bfloat16(), operand())
    rows.append(["scale rounded to bf16 afterwards", "0", f"{relative_error(x, rounded):.3e}", sqnr(x, rounded)])
    clipped = dequantize(quantize(x, operand(240.0), FN, base[1])[0], base[1], operand())
    rows.append(["clamped at 240 under the scale of 448", "", f"{relative_error(x, clipped):.3e}", sqnr(x, clipped)])
    small = x * (1e-5 / x.abs().amax(dim=1, keepdim=True))
    for name, floor in (("amax 1e-5, floor 1e-10", 1e-10), ("amax 1e-5, floor 1/512", 1 / 512)):
        other = dequantize(*quantize(small, operand(floor=floor)), operand())
        rows.append([name, "", f"{relative_error(small, other):.3e}", sqnr(small, other)])
    table("FP8, one scale per token, N(0, 1)", ["rule", "% of codes", "relative MSE", "SQNR dB"], rows)


def powers_of_two(every: dict[str, Tensor]) -> None:
    rows = []
    for name, rule in (("amax_div", "amax_div"), ("rceil", "rceil"), ("even", "even"), ("floor", "floor")):
        row = [f"{name}, float32 scale"]
        for x in every.values():
            operand = Operand("fp8_e4m3", "1x128", "fp32", Rule(rule, 448.0))
            row.append(sqnr(x, dequantize(*quantize(x, operand), operand)))
        rows.append(row)
    table("FP8, one scale per 1x128", ["rule", *(f"{name}: SQNR dB" for name in every)], rows)


def int8(x: Tensor) -> None:
    base = None
    rows = []
    for name, largest, rounding, apply in (
        ("127, rne", 127, "rne", "divide"),
        ("127, rne, multiply_reciprocal", 127, "rne", "multiply_reciprocal"),
        ("127, half_away", 127, "half_away", "divide"),
        ("127, ties_to_zero", 127, "ties_to_zero", "divide"),
        ("127, truncate", 127, "truncate", "divide"),
        ("127.5, rne", 127.5, "rne", "divide"),
    ):
        operand = Operand("int8", "per_token", "fp32", Rule("amax_div", largest, rounding, apply))
        codes, scale = quantize(x, operand)
        base = codes if base is None else base
        values = dequantize(codes, scale, operand)
        error, shrunk = relative_error(x, values), shrinking(x, values)
        rows.append([name, percent(codes != base), f"{error:.3e}", sqnr(x, values), f"{shrunk:+.1e}"])
    head = ["rule", "% of codes", "relative MSE", "SQNR dB", "mean magnitude"]
    table("INT8, one scale per token, N(0, 1)", head, rows)


def integers(every: dict[str, Tensor]) -> None:
    shifted = {**every, "N(1, 1)": every["N(0, 1)"] + 1}
    rows = []
    for name, element, granularity, largest, symmetric in (
        ("INT8 per token, 127.5", "int8", "per_token", 127.5, True),
        ("INT8 per token, zero point", "int8", "per_token", 127.5, False),
        ("INT4 1x128, 7", "int4", "1x128", 7.0, True),
        ("INT4 1x128, 7.5", "int4", "1x128", 7.5, True),
        ("INT4 1x128, zero point", "int4", "1x128", 7.5, False),
    ):
        operand = Operand(element, granularity, "fp32", Rule("amax_div", largest), symmetric=symmetric)
        row = [name]
        for x in shifted.values():
            parts = (*quantize(x, operand), None) if symmetric else quantize_asymmetric(x, operand)
            row.append(sqnr(x, dequantize(parts[0], parts[1], operand, zero_point=parts[2])))
        rows.append(row)
    table("Integers, with and without a zero point", ["rule", *(f"{name}: SQNR dB" for name in shifted)], rows)


def mx(every: dict[str, Tensor]) -> None:
    rules = ("rceil", "even", "even175", "floor", "ceil", "nearest15", "log_nearest")
    elements = {"fp4_e2m1": 6.0, "fp6_e2m3": 7.5, "fp6_e3m2": 28.0, "fp8_e4m3": 448.0}
    for element, largest in elements.items():
        rows = []
        none_clips: dict[str, Tensor] = {}
        for rule in rules:  # rceil first: the smallest scale under which nothing clips
            operand = Operand(element, "1x32", "e8m0", Rule(rule, largest, floor=0.0))
            row = [rule]
            for name, x in every.items():
                codes, scale = quantize(x, operand)
                never = none_clips.setdefault(name, scale)
                clips = scale.int() < never.int()
                row += [percent(scale != never), percent(clips), sqnr(x, dequantize(codes, scale, operand))]
            rows.append(row)
        head = [f"{name}: {what}" for name in every for what in ("% of scales", "% that clip", "SQNR dB")]
        table(f"E8M0 scales per 1x32, {element}", ["rule", *head], rows)


def ties(every: dict[str, Tensor]) -> None:
    rows = []
    for rounding in ("rne", "half_away", "ties_to_zero", "truncate"):
        row = [rounding]
        for x in every.values():
            operand = Operand("fp4_e2m1", "1x32", "e8m0", Rule("even", 6.0, rounding, floor=0.0))
            nearest = operand._replace(rule=operand.rule._replace(round="rne"))
            codes, scale = quantize(x, operand)
            differs = decode(codes, operand) != decode(quantize(x, nearest)[0], nearest)
            values = dequantize(codes, scale, operand)
            row += [percent(differs), sqnr(x, values), f"{shrinking(x, values):+.1e}"]
        rows.append(row)
    head = [f"{name}: {what}" for name in every for what in ("% of codes", "SQNR dB", "mean magnitude")]
    table("E2M1 rounding, E8M0 scales per 1x32", ["rule", *head], rows)


def two_levels(every: dict[str, Tensor]) -> None:
    cases = {**every, "N(0, 1) / 10000": every["N(0, 1)"] * 1e-4}
    rows = []
    for name, form, direction in (
        ("float32", "fp32", None),
        ("e4m3, global scale divides", "e4m3", "divide"),
        ("e4m3, global scale multiplies", "e4m3", "multiply"),
        ("e4m3 alone", "e4m3", None),
        ("e5m3 alone", "e5m3", None),
    ):
        operand = Operand("fp4_e2m1", "1x16", form, Rule("amax_div", 6.0, floor=0.0), global_scale=direction)
        row = [name]
        for x in cases.values():
            outer = None if direction is None else find_global_scale(x, operand)
            codes, scale = quantize(x, operand, global_scale=outer)
            row.append(sqnr(x, dequantize(codes, scale, operand, outer)))
        rows.append(row)
    table("E2M1 with one scale per 1x16", ["scale", *(f"{name}: SQNR dB" for name in cases)], rows)
    x = every["N(0, 1)"]
    operand = Operand("fp4_e2m1", "1x16", "e4m3", Rule("amax_div", 6.0, floor=0.0), global_scale="divide")
    outer = find_global_scale(x, operand)
    codes, scale = quantize(x, operand, global_scale=outer)
    right = dequantize(codes, scale, operand, outer)
    wrong = dequantize(codes, scale, operand._replace(global_scale="multiply"), outer)
    factor = (wrong.norm() / right.norm()).item()
    print(f"The global scale of N(0, 1), {outer.item():.0f}, taken the other way: values {factor:.3g} times too large.")


def main() -> None:
    every = samples()
    fp8(every["N(0, 1)"])
    powers_of_two(every)
    int8(every["N(0, 1)"])
    integers(every)
    mx(every)
    ties(every)
    two_levels(every)


if __name__ == "__main__":
    main()
