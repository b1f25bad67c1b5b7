"""The int32 words in which each producer of checkpoints stores integer codes, zero points and scales, as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from qscheme.types import Format, Packing

INTEGER_BITS: dict[Format, int] = {"int8": 8, "int4": 4}

IN_ORDER = (0, 1, 2, 3, 4, 5, 6, 7)
EVEN_FIRST = (0, 2, 4, 6, 1, 3, 5, 7)


class Words(NamedTuple):
    """Codes in int32 words, and what stands beside them.

    along: whether the codes of one word are neighbours in K or in N. k_first: whether the words of the weight, its
    zero points [K/G, N / codes of a word] and its scales [K/G, N] have K in their rows; zero points are then neighbours
    in N. order: which of its neighbours a word has in its parts, the lowest first. signed: whether codes are in two's
    complement, or moved up by half of their range. less_one: whether zero points are stored minus 1. scales: the dtype
    of the scales, None for the model's.
    """

    along: str
    k_first: bool = False
    order: tuple[int, ...] = IN_ORDER
    signed: bool = False
    less_one: bool = False
    scales: Literal["float16", "bfloat16"] | None = None


WORDS: dict[Packing, Words] = {
    "int32_columns": Words("k"),
    "awq": Words("n", k_first=True, order=EVEN_FIRST, scales="float16"),
    "quark": Words("n", k_first=True, order=EVEN_FIRST, signed=True, scales="bfloat16"),
    "gptq": Words("k", k_first=True, less_one=True, scales="float16"),
    "gptq_v2": Words("k", k_first=True, scales="float16"),
}
"""Every packing but `plain`: compressed-tensors 0.20 `pack-quantized`, AutoAWQ 0.2.9 `gemm`, AMD Quark 0.13 `reorder`,
AutoGPTQ 0.7 and GPTQModel with `checkpoint_format: gptq`, GPTQModel with `gptq_v2`."""

ALONG_K = tuple(packing for packing, words in WORDS.items() if words.along == "k")
"""Packings whose words of the weight are the same, but for which way they lie."""


def codes_together(element: Format, packing: Packing) -> tuple[int, int]:
    """What N and K are multiples of where the weight and its zero points are stored as this packing says.

    K fills its words in every packing: AWQ's run along N, and its K is a multiple of the group.
    """
    if packing == "plain":
        return 1, 1
    together = 32 // INTEGER_BITS[element]
    return together if WORDS[packing].k_first else 1, together


def k_first(packing: Packing) -> bool:
    """Whether scales are stored as [K/G, N]."""
    return packing != "plain" and WORDS[packing].k_first


def zero_points_shape(n: int, groups: int, element: Format, packing: Packing) -> tuple[int, int]:
    """The shape in which zero points [n, groups] are stored."""
    if packing == "plain":
        return n, groups
    together = 32 // INTEGER_BITS[element]
    return (groups, -(-n // together)) if WORDS[packing].k_first else (-(-n // together), groups)
