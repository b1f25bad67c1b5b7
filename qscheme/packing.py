"""Integer codes and their zero points, packed into int32 words as each producer of checkpoints does, and unpacked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qscheme.words import ALONG_K, IN_ORDER, INTEGER_BITS, WORDS, k_first

if TYPE_CHECKING:
    from qscheme.types import Format, Packing
    from qscheme.words import Words


def stored_sizes(stored: Tensor, element: Format, packing: Packing) -> tuple[int, int]:
    """The N and K of a weight in words."""
    words, together = WORDS[packing], 32 // INTEGER_BITS[element]
    rows, columns = stored.shape
    if not words.k_first:
        return rows, columns * together
    return (columns, rows * together) if words.along == "k" else (columns * together, rows)


def pack_integers(codes: Tensor, element: Format, packing: Packing) -> Tensor:
    """INT4 and INT8 codes int8 [N, K] as checkpoints store them; a code is moved up by 8 or 128 unless said otherwise.

    plain: the codes themselves. int32_columns: int32 [N, K/8] (INT8: [N, K/4]), column 8 j + i in part i of word j.
    gptq, gptq_v2: the same words, transposed: int32 [K/8, N] (INT8: [K/4, N]). awq: int32 [K, N/8], rows
    8 j + (0, 2, 4, 6, 1, 3, 5, 7) in the nibbles of word j. quark: likewise, in two's complement, which is bit 3 of
    every nibble flipped. Raises ValueError unless the packed side fills its words.
    """
    if packing == "plain":
        return codes
    words, bits = WORDS[packing], INTEGER_BITS[element]
    side = codes.shape[1 if words.along == "k" else 0]
    if side % (32 // bits):
        needs = f"{packing} needs a multiple of {32 // bits}, found {side} in {list(codes.shape)}"
        raise ValueError(f"pack_integers: {needs}")
    values = _raised(codes, words, bits)
    packed = _pack(values if words.along == "k" else values.t(), bits, words.order)
    return packed.t().contiguous() if words.k_first and words.along == "k" else packed


def unpack_integers(stored: Tensor, element: Format, packing: Packing) -> Tensor:
    """Codes int8 [N, K] of what `pack_integers` stores."""
    if packing == "plain":
        return stored
    words, bits = WORDS[packing], INTEGER_BITS[element]
    transposed = words.k_first and words.along == "k"
    codes = _lowered(_unpack(stored.t() if transposed else stored, bits, words.order), words, bits)
    return codes if words.along == "k" else codes.t().contiguous()


def repacked(weight: Tensor, element: Format, stored: Packing, read: Packing) -> Tensor:
    """INT4 or INT8 codes of a weight in the packing that a kernel reads, from the one that the checkpoint stores.

    See `pack_integers`. Repacked the other way round, it is the weight again.
    """
    if {stored, read} <= {*ALONG_K} and k_first(stored) != k_first(read):
        return weight.t().contiguous()
    return pack_integers(unpack_integers(weight, element, stored), element, read)


def pack_zero_points(zero_points: Tensor, element: Format, packing: Packing) -> Tensor:
    """Zero points [N, K/G] on the scale of the codes, in any integer dtype, as checkpoints store them beside the codes.

    plain: as they are. int32_columns: int32 [ceil(N/8), K/G] (INT8: N/4), row 8 j + i in part i, what is missing from
    the last word 0. awq, quark: int32 [K/G, N/8], in the order of the codes. gptq_v2: int32 [K/G, N/8] (INT8: N/4),
    row 8 j + i in part i. gptq: the words of gptq_v2 minus 0x11111111 (INT8: 0x01010101), that is, each zero point
    minus one; one that is stored as 0 borrows from the part above it, as in GPTQModel.
    """
    if packing == "plain":
        return zero_points
    words, bits = WORDS[packing], INTEGER_BITS[element]
    values = _raised(zero_points, words, bits).t()
    packed = _pack(torch.nn.functional.pad(values, (0, -values.shape[1] % (32 // bits))), bits, words.order)
    packed = packed - _ones(bits) if words.less_one else packed
    return packed if words.k_first else packed.t().contiguous()


def unpack_zero_points(stored: Tensor, element: Format, packing: Packing, n: int) -> Tensor:
    """Zero points int8 [n, K/G] of what `pack_zero_points` stores."""
    if packing == "plain":
        return stored
    words, bits = WORDS[packing], INTEGER_BITS[element]
    packed = stored if words.k_first else stored.t()
    packed = packed + _ones(bits) if words.less_one else packed
    return _lowered(_unpack(packed, bits, words.order), words, bits)[:, :n].t().contiguous()


def _raised(codes: Tensor, words: Words, bits: int) -> Tensor:
    """Codes as parts of a word, from 0 on."""
    return codes.to(torch.int32) & ((1 << bits) - 1) if words.signed else codes.to(torch.int32) + (1 << (bits - 1))


def _lowered(parts: Tensor, words: Words, bits: int) -> Tensor:
    """The inverse of `_raised`, as int8."""
    half = 1 << (bits - 1)
    return ((parts ^ half if words.signed else parts) - half).to(torch.int8)


def _pack(parts: Tensor, bits: int, order: tuple[int, ...]) -> Tensor:
    """Words [R, C / together] of parts [R, C]."""
    rows, columns = parts.shape
    together = 32 // bits
    neighbours = parts.reshape(rows, columns // together, together)
    if order != IN_ORDER:
        neighbours = neighbours[:, :, list(order)]
    return (neighbours << _shifts(parts, bits)).sum(dim=2, dtype=torch.int32)


def _unpack(stored: Tensor, bits: int, order: tuple[int, ...]) -> Tensor:
    """Parts [R, C] of words [R, C / together]."""
    parts = (stored[:, :, None] >> _shifts(stored, bits)) & ((1 << bits) - 1)
    if order != IN_ORDER:
        parts = parts[:, :, [order.index(i) for i in range(len(order))]]
    return parts.reshape(stored.shape[0], -1)


def _shifts(like: Tensor, bits: int) -> Tensor:
    """Where the parts of an int32 begin."""
    return torch.arange(0, 32, bits, dtype=torch.int32, device=like.device)


def _ones(bits: int) -> int:
    """A 1 in every part of a word."""
    return 0x11111111 if bits == 4 else 0x01010101
