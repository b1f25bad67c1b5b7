"""Kernels as custom ops."""

from __future__ import annotations

import torch
from torch import Tensor

from qscheme.ops import opaque


class _Recipe:
    """Something that a schema has no type for."""


def test_an_op_gives_its_kernel_what_a_schema_cannot_state() -> None:
    recipe, seen = _Recipe(), []

    def kernel(*, x: Tensor, recipe: object) -> Tensor:
        seen.append(recipe)
        return x + 1

    def fake(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    op = opaque("test_gives_a_recipe", "(Tensor x) -> Tensor", kernel, fake, fixed={"recipe": recipe})
    compiled = torch.compile(lambda x: op(x=x, recipe=recipe), fullgraph=True, backend="aot_eager")
    assert [1.0, 1.0] == op(x=torch.zeros(2)).tolist()
    assert [2.0, 2.0] == op(x=torch.ones(2), recipe=recipe).tolist()
    assert [3.0, 3.0] == compiled(torch.full((2,), 2.0)).tolist()
    assert [recipe] * 3 == seen
