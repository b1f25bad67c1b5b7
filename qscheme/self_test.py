"""A bound function against the reference, on rows that every quantizer makes exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from qscheme.errors import SelfTestFailed
from qscheme.numerics import rotate_hadamard
from qscheme.operands import OUT_DTYPES
from qscheme.tiles import tile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from qscheme.binding import Bound
    from qscheme.layer import LayerFacts, Operands
    from qscheme.types import Backend, Call, Scheme

LIMIT = 1 / 64
"""The largest relative error, in the Frobenius norm. Outputs in bfloat16 differ by 1/512 where all else is equal."""

STATIC = 64.4
"""What rows are in units of a static scale: rounded and cut off it is the same code of INT8 and of FP8."""


def self_test(
    bound: Bound, reference: Bound, scheme: Scheme, backend: Backend, operands: Operands, about: LayerFacts
) -> None:
    """Compare y for rows of each range of M. Raises SelfTestFailed with the error that was found.

    Where rules of quantizers differ, so do their results, and a limit that allows for that would hide a kernel that is
    wrong by little. So each row holds 0 and one magnitude, with either sign, for each scale: codes are then 0 and the
    largest one whatever the rule, and what is left is the product. Neighbouring rows and tiles along K have different
    powers of two, to tell their scales apart. Rules of rounding are not tested by this.
    """
    for m in sorted(set(_rows(bound.decision.calls))):
        x = exact_rows(m, scheme, backend, operands, about)
        y, expected = bound(x).double(), reference(x).double()
        distance, size = _norm(y - expected), _norm(expected)
        if not distance <= LIMIT * size:
            raise SelfTestFailed(bound.name, bound.backend, m, distance / size if size else distance, LIMIT)


def exact_rows(m: int, scheme: Scheme, backend: Backend, operands: Operands, about: LayerFacts) -> Tensor:
    """x [M, K] in a dtype that the backend takes, the same in every process."""
    generator = torch.Generator().manual_seed(m)
    x = torch.randint(-1, 2, (m, about.k), generator=generator).float()
    activation = scheme.activation
    if activation is None or activation.granularity != "per_tensor":
        x *= torch.exp2(torch.arange(m) % 5 - 2).unsqueeze(1)
    if activation is not None and activation.granularity not in ("per_tensor", "per_token"):
        _, columns = tile(activation.granularity, m, about.k)
        x *= torch.exp2(torch.arange(about.k) // columns % 3)
    if operands.input_scale is not None:
        x *= STATIC * operands.input_scale.cpu()
    word = "bf16" if "bf16" in (backend.inputs or ("bf16",)) else backend.inputs[0]
    x = x if about.rotation is None else rotate_hadamard(x, about.rotation)
    return x.to(operands.weight.device, OUT_DTYPES[word])


def _norm(y: Tensor) -> float:
    return float(torch.sqrt((y * y).sum()))


def _rows(calls: tuple[Call, ...]) -> Iterator[int]:
    """The smallest M of each call that runs, and one 32 beyond it."""
    for call in calls:
        first = max(call.min_m, 1)
        yield first
        yield first + 32 if call.max_m is None else min(first + 32, call.max_m)
