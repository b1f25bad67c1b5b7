"""A torch.nn module over a bound function, and the way to one from a float layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import nn

from qscheme.errors import InvalidLayer
from qscheme.numerics import quantize as quantize_rows
from qscheme.numerics import rotate_hadamard
from qscheme.selection import dispatch
from qscheme.tables import Tables, load

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import ModuleType

    from torch import Tensor

    from qscheme.binding import Bound
    from qscheme.types import Facts


class Linear(nn.Module):
    """A quantized linear layer that binds itself to the best backend of its device on first use.

    Its tensors are a checkpoint's (see `qscheme.types.Layer`) and are kept as buffers, so that `state_dict`, `to` and
    `load_state_dict` work; moving the module or loading new tensors is followed by `bind()` again on the next call.
    """

    weight: Tensor
    weight_scale: Tensor
    input_scale: Tensor | None
    bias: Tensor | None

    def __init__(
        self,
        scheme: str,
        weight: Tensor,
        weight_scale: Tensor,
        *,
        input_scale: Tensor | None = None,
        bias: Tensor | None = None,
        out_dtype: torch.dtype = torch.bfloat16,
        name: str = "",
        rotation: int | None = None,
        logical_widths: list[int] | None = None,
        tables: Tables | ModuleType | str | None = None,
    ) -> None:
        super().__init__()
        self.scheme, self.out_dtype, self.name = scheme, out_dtype, name
        self.rotation, self.logical_widths = rotation, logical_widths
        self.register_buffer("weight", weight)
        self.register_buffer("weight_scale", weight_scale)
        self.register_buffer("input_scale", input_scale)
        self.register_buffer("bias", bias)
        self._tables = tables
        self._bound: Bound | None = None
        vars(nn.Module)["register_load_state_dict_post_hook"](self, _unbind)

    def bind(self, facts: Facts | None = None, *, backend: str | None = None, disabled: Collection[str] = ()) -> Bound:
        """Bind now, with the arguments of `qscheme.dispatch`, and use the result from here on."""
        self._bound = dispatch(self, facts, self._tables, backend, disabled)
        return self._bound

    def forward(self, x: Tensor, x_scale: Tensor | None = None) -> Tensor:
        """y [..., N] from x [..., K], or from codes and their scales."""
        bound = self._bound
        if bound is None:
            bound = self.bind()
        return bound(x, x_scale)

    def extra_repr(self) -> str:
        where = self._bound.backend if self._bound else "not bound yet"
        return f"{self.scheme}, weight={list(self.weight.shape)}, {where}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Linear:
        self._bound = None
        return cast("Linear", vars(nn.Module)["_apply"](self, fn, recurse))


def quantize(
    layer: nn.Linear,
    scheme: str,
    *,
    input_scale: Tensor | float | None = None,
    rotation: int | None = None,
    out_dtype: torch.dtype | None = None,
    name: str = "",
    tables: Tables | ModuleType | str | None = None,
) -> Linear:
    """A quantized layer from a float one, by the scheme's own weight rule.

    input_scale: the activation's static scale, for schemes that have one. rotation: 32 to rotate the weight by
    Hadamard blocks of 32 before it is quantized; the bound function rotates x the same way. out_dtype: the float
    layer's dtype if None. Raises UnknownScheme or InvalidLayer.
    """
    found = tables if isinstance(tables, Tables) else load(tables)
    operand = found.scheme(scheme).weight
    mode = found.scheme(scheme).activation.mode
    if mode == "static" and input_scale is None:
        raise InvalidLayer(name, "input_scale", "one value, as the activation is static", "none")
    weight = layer.weight.detach()
    bias = cast("Tensor | None", layer.bias)
    if operand.format == "fp4_e2m1" and weight.shape[1] % 2:
        raise InvalidLayer(name, "weight", "an even K, as two codes share a byte", f"K = {weight.shape[1]}")
    codes, scale = quantize_rows(rotate_hadamard(weight, rotation) if rotation else weight, operand)
    given = None if input_scale is None else torch.as_tensor(input_scale, dtype=torch.float32, device=weight.device)
    return Linear(
        scheme,
        codes,
        scale,
        input_scale=given,
        bias=None if bias is None else bias.detach().clone(),
        out_dtype=out_dtype or weight.dtype,
        name=name,
        rotation=rotation,
        tables=tables,
    )


def _unbind(module: nn.Module, incompatible: object) -> None:
    """Forget what was prepared from tensors that were just loaded over."""
    vars(module)["_bound"] = None
