"""A torch.nn module over a bound function, and the way to one from a float layer."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, cast

import torch
from torch import nn

from qscheme.errors import InvalidLayer
from qscheme.numerics import quantize as quantize_rows
from qscheme.numerics import rotate_hadamard
from qscheme.operands import ROTATION
from qscheme.selection import dispatch
from qscheme.tables import Tables, load

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from torch import Tensor

    from qscheme.binding import Bound
    from qscheme.types import Facts


class Linear(nn.Module):
    """A quantized linear layer that binds itself to the best backend of its device on first use.

    Its tensors are a checkpoint's (see `qscheme.types.Layer`) and are kept as buffers, so that `state_dict`, `to` and
    `load_state_dict` work; moving the module, loading new tensors or setting one is followed by `bind()` again on the
    next call. One that is written in place is not: call `bind()`, or `refresh` of what it returned.
    A copy, and one that was saved with `torch.save`, binds itself anew. Call `bind()` before `torch.compile` traces a
    call, which cannot be done inside of it.
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
        prequantized: bool = False,
        out_features: int | None = None,
        in_features: int | None = None,
        tables: Tables | ModuleType | str | None = None,
    ) -> None:
        super().__init__()
        self.scheme, self.out_dtype, self.name = scheme, out_dtype, name
        self.rotation, self.logical_widths, self.prequantized = rotation, logical_widths, prequantized
        self.out_features, self.in_features = out_features, in_features
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

    def __setattr__(self, name: str, value: object) -> None:
        """Sets an attribute; what was prepared from another tensor of that name is forgotten."""
        cast("Callable[..., None]", super().__setattr__)(name, value)
        if name in self._buffers:
            vars(self)["_bound"] = None

    def __getstate__(self) -> dict[str, object]:
        """What a copy starts from: the layer, and not what was prepared from it."""
        tables = self._tables
        return {
            **self.__dict__,
            "_bound": None,
            "_tables": tables.__name__ if isinstance(tables, ModuleType) else tables,
        }

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
    found = (tables if isinstance(tables, Tables) else load(tables)).scheme(scheme)
    operand = found.weight
    weight = layer.weight.detach()
    n, k = weight.shape
    if (found.activation.mode == "static") != (input_scale is not None):
        needs = "one value" if input_scale is None else "None"
        given = "none" if input_scale is None else "a value"
        raise InvalidLayer(name, "input_scale", f"{needs}, as the activation is {found.activation.mode}", given)
    if operand.format == "fp4_e2m1" and k % 2:
        raise InvalidLayer(name, "weight", "an even K, as two codes share a byte", f"K = {k}")
    if rotation is not None and (rotation != ROTATION or k % rotation):
        needs = f"None or {ROTATION}, and K a multiple of it"
        raise InvalidLayer(name, "rotation", needs, f"{rotation} and K = {k}")
    codes, scale = quantize_rows(rotate_hadamard(weight, rotation) if rotation else weight, operand)
    bias = cast("Tensor | None", layer.bias)
    static = None if input_scale is None else torch.as_tensor(input_scale, dtype=torch.float32, device=weight.device)
    return Linear(
        scheme,
        codes,
        scale,
        input_scale=static,
        bias=None if bias is None else bias.detach().clone(),
        out_dtype=out_dtype or weight.dtype,
        name=name,
        rotation=rotation,
        out_features=n,
        in_features=k,
        tables=tables,
    )


def _unbind(module: nn.Module, incompatible: object) -> None:
    """Forget what was prepared from tensors that were just loaded over."""
    vars(module)["_bound"] = None
