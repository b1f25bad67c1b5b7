"""A layer as decisions and backends see it: what it says, what conditions may ask, its tensors after checking."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor


class Given(NamedTuple):
    """The attributes of a `qscheme.types.Layer`, each read once; None where it is absent."""

    name: str
    weight: Tensor | None
    weight_scale: Tensor | None
    input_scale: Tensor | None
    bias: Tensor | None
    weight_global_scale: Tensor | None
    weight_zero_point: Tensor | None
    input_global_scale: Tensor | None
    g_idx: Tensor | None
    out_dtype: torch.dtype | None
    rotation: int | None
    prequantized: bool | None
    logical_widths: Sequence[int] | None
    out_features: int | None
    in_features: int | None
    full_out_features: int | None
    full_in_features: int | None


class LayerFacts(NamedTuple):
    """What conditions may ask about a layer. What its loaded tensors must be is checked against the scheme instead.

    fused: the layer is of several parts, each with a scale of its own where the scheme has one for the tensor.
    n and k are those of this shard; full_n, full_k: those of the whole layer, None where nobody said that it is one of
    several shards. widths: the N of each part of a fused layer, where tiles of its weight have several rows.
    """

    n: int
    k: int
    out_dtype: str = "bf16"
    has_bias: bool = False
    rotation: int | None = None
    prequantized: bool = False
    fused: bool = False
    full_n: int | None = None
    full_k: int | None = None
    widths: tuple[int, ...] = ()

    @property
    def whole_n(self) -> int:
        """The N of the whole layer."""
        return self.full_n or self.n

    @property
    def whole_k(self) -> int:
        """The K of the whole layer."""
        return self.full_k or self.k

    def found_n(self, multiple: int) -> str:
        """N in words, with the arithmetic of a shard that is no multiple of a number."""
        return shard_text("N", self.n, self.full_n, multiple)

    def found_k(self, multiple: int) -> str:
        """K in words, likewise."""
        return shard_text("K", self.k, self.full_k, multiple)


def shard_text(name: str, size: int, full: int | None, multiple: int) -> str:
    """A size in words. Of one of several equal shards, what was divided, and the most shards that would be multiples.

    Only divisors of the number of shards are considered: `N = 576 = 18432 / 32; 16 shards of 1152 = 9 x 128 would do`,
    or `N = 96 = 192 / 2; the whole 192 is no multiple either`.
    """
    if full is None or full == size:
        return f"{name} = {size}"
    if full % size:
        return f"{name} = {size} of {full}"
    shards = full // size
    told = f"{name} = {size} = {full} / {shards}"
    for fewer in range(shards - 1, 0, -1):
        larger = full // fewer
        if shards % fewer == 0 and larger % multiple == 0:
            words = f"{fewer} shards of {larger}" if fewer > 1 else f"the whole {full}"
            return f"{told}; {words} = {larger // multiple} x {multiple} would do"
    return f"{told}; the whole {full} is no multiple either"


class Operands(NamedTuple):
    """A layer's tensors after checking: logical N and K, scales in the shape that the scheme's granularity says."""

    name: str
    n: int
    k: int
    weight: Tensor
    weight_scale: Tensor
    input_scale: Tensor | None
    bias: Tensor | None
    out_dtype: torch.dtype
    weight_global_scale: Tensor | None = None
    weight_zero_point: Tensor | None = None
    input_global_scale: Tensor | None = None
