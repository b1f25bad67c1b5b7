"""A torch.nn module over a bound function, and the way to one from a float layer."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, cast

import torch
from torch import nn

from qscheme.errors import InvalidLayer
from qscheme.formats import PACKED
from qscheme.numerics import find_global_scale, quantize_asymmetric, rotate_hadamard
from qscheme.numerics import quantize as quantize_rows
from qscheme.operands import ROTATION
from qscheme.packing import pack_zero_points
from qscheme.selection import dispatch
from qscheme.tables import Tables, load
from qscheme.words import WORDS, codes_together

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from torch import Tensor

    from qscheme.binding import Bound
    from qscheme.machine import Facts
    from qscheme.types import Operand, Scheme

is_dynamo_compiling = torch.compiler.is_dynamo_compiling


class Linear(nn.Module):
    """A quantized linear layer that binds itself to the best backend of its device on first use.

    Its tensors are a checkpoint's (see `qscheme.types.Layer`) and are kept as buffers, so that `state_dict`, `to` and
    `load_state_dict` work; moving the module, loading new tensors or setting one is followed by `bind()` again on the
    next call. One that is written in place is not: call `bind()`, or `refresh` of what it returned.
    A copy, and one that was saved with `torch.save`, binds itself anew. Where torch.compile traces it first, it binds
    itself while it is traced.
    """

    weight: Tensor
    weight_scale: Tensor
    input_scale: Tensor | None
    bias: Tensor | None
    weight_global_scale: Tensor | None
    weight_zero_point: Tensor | None
    input_global_scale: Tensor | None

    def __init__(
        self,
        scheme: str,
        weight: Tensor,
        weight_scale: Tensor,
        *,
        input_scale: Tensor | None = None,
        bias: Tensor | None = None,
        weight_global_scale: Tensor | None = None,
        weight_zero_point: Tensor | None = None,
        input_global_scale: Tensor | None = None,
        out_dtype: torch.dtype = torch.bfloat16,
        name: str = "",
        rotation: int | None = None,
        logical_widths: list[int] | None = None,
        prequantized: bool = False,
        out_features: int | None = None,
        in_features: int | None = None,
        full_out_features: int | None = None,
        full_in_features: int | None = None,
        tables: Tables | ModuleType | str | None = None,
    ) -> None:
        super().__init__()
        self.scheme, self.out_dtype, self.name = scheme, out_dtype, name
        self.rotation, self.logical_widths, self.prequantized = rotation, logical_widths, prequantized
        self.out_features, self.in_features = out_features, in_features
        self.full_out_features, self.full_in_features = full_out_features, full_in_features
        self.register_buffer("weight", weight)
        self.register_buffer("weight_scale", weight_scale)
        self.register_buffer("input_scale", input_scale)
        self.register_buffer("bias", bias)
        self.register_buffer("weight_global_scale", weight_global_scale)
        self.register_buffer("weight_zero_point", weight_zero_point)
        self.register_buffer("input_global_scale", input_global_scale)
        self._tables = tables
        self._bound: Bound | None = None
        vars(nn.Module)["register_load_state_dict_post_hook"](self, _unbind)

    def bind(
        self,
        facts: Facts | None = None,
        *,
        backend: str | None = None,
        disabled: Collection[str] = (),
        self_test: bool = False,
    ) -> Bound:
        """Bind now, with the arguments of `qscheme.dispatch`, and use the result from here on."""
        self._bound = dispatch(self, facts, self._tables, backend, disabled, self_test=self_test)
        return self._bound

    def forward(self, x: Tensor, x_scale: Tensor | None = None) -> Tensor:
        """y [..., N] from x [..., K], or from codes and their scales."""
        if is_dynamo_compiling():
            _bind_while_traced(self)
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
    input_global_scale: Tensor | float | None = None,
    rotation: int | None = None,
    out_dtype: torch.dtype | None = None,
    name: str = "",
    full_out_features: int | None = None,
    full_in_features: int | None = None,
    tables: Tables | ModuleType | str | None = None,
) -> Linear:
    """A quantized layer from a float one, by the scheme's own weight rule, its tensors as checkpoints store them.

    input_scale: the activation's static scale, for schemes that have one. input_global_scale: likewise the scale over
    the activation's own, for schemes with two levels of scales. rotation: 32 to rotate the weight by
    Hadamard blocks of 32 before it is quantized; the bound function rotates x the same way. out_dtype: the float
    layer's dtype if None. full_out_features, full_in_features: the sizes of the whole layer where this one is a shard,
    whose tiles must then begin as those of the whole do. Raises UnknownScheme or InvalidLayer.
    """
    found = (tables if isinstance(tables, Tables) else load(tables)).scheme(scheme)
    operand = found.weight
    weight = layer.weight.detach()
    n, k = weight.shape
    _check_given(found, name, input_scale, input_global_scale)
    _check_sizes(operand, name, n, k)
    if rotation is not None and (rotation != ROTATION or k % rotation):
        needs = f"None or {ROTATION}, and K a multiple of it"
        raise InvalidLayer(name, "rotation", needs, f"{rotation} and K = {k}")
    turned = rotate_hadamard(weight, rotation) if rotation else weight
    outer = None if operand.global_scale is None else find_global_scale(turned, operand)
    codes, scale, zero_point = _stored(turned, operand, outer)
    bias = cast("Tensor | None", layer.bias)
    static, over = (
        None if given is None else torch.as_tensor(given, dtype=torch.float32, device=weight.device)
        for given in (input_scale, input_global_scale)
    )
    return Linear(
        scheme,
        codes,
        scale,
        input_scale=static,
        bias=None if bias is None else bias.detach().clone(),
        weight_global_scale=outer,
        weight_zero_point=zero_point,
        input_global_scale=over,
        out_dtype=out_dtype or weight.dtype,
        name=name,
        rotation=rotation,
        out_features=n,
        in_features=k,
        full_out_features=full_out_features,
        full_in_features=full_in_features,
        tables=tables,
    )


def _stored(weight: Tensor, operand: Operand, outer: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """The codes, scale and zero point of a weight [N, K] as the operand's packing says.

    Where scales are stored in 16 bits, codes are made for the rounded scale, as AutoAWQ and AutoGPTQ do.
    """

    def quantized(scale: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
        if operand.symmetric:
            return *quantize_rows(weight, operand, scale=scale, global_scale=outer), None
        return quantize_asymmetric(weight, operand, scale=scale)

    codes, scale, zero_point = quantized()
    stored = None if operand.packing == "plain" else WORDS[operand.packing].scales
    if stored is not None:
        dtype = {"float16": torch.float16, "bfloat16": torch.bfloat16}[stored]
        rounded = scale.clamp(max=torch.finfo(dtype).max).to(dtype)
        codes, _, zero_point = quantized(rounded.float())
        scale = rounded.t().contiguous()
    if zero_point is not None:
        zero_point = pack_zero_points(zero_point, operand.format, operand.packing)
    return codes, scale, zero_point


def _check_sizes(operand: Operand, name: str, n: int, k: int) -> None:
    """Raises InvalidLayer for a weight that does not fill the bytes or words in which its codes are stored."""
    rows, columns = codes_together(operand.format, operand.packing)
    columns = max(columns, PACKED.get(operand.format, (1, 1))[0])
    for side, length, together in (("N", n, rows), ("K", k, columns)):
        if length % together:
            needs = f"{side} a multiple of {together}, as {together} codes are stored together"
            if together == 2:
                needs = "an even K, as two codes share a byte"
            raise InvalidLayer(name, "weight", needs, f"{side} = {length}")


def _check_given(
    scheme: Scheme, name: str, input_scale: Tensor | float | None, input_global_scale: Tensor | float | None
) -> None:
    """Raises InvalidLayer for a scale of the activation that is needed and not given, or given and not needed."""
    mode = scheme.activation.mode if scheme.activation else "none"
    if (mode == "static") != (input_scale is not None):
        needs = "one value" if input_scale is None else "None"
        given = "none" if input_scale is None else "a value"
        raise InvalidLayer(name, "input_scale", f"{needs}, as the activation is {mode}", given)
    two_levels = bool(scheme.activation and scheme.activation.global_scale)
    if two_levels != (input_global_scale is not None):
        needs = "one value, as the activation has two levels of scales" if two_levels else "None"
        raise InvalidLayer(name, "input_global_scale", needs, "a value" if input_global_scale is not None else "none")


def _bind_while_traced(layer: Linear) -> None:
    """Bind a layer that torch.compile sees before it was bound; run as it is, and never traced."""
    if vars(layer)["_bound"] is None:
        layer.bind()


# What `torch.compiler.assume_constant_result` does; that function imports all of the compiler, which takes a second.
vars(_bind_while_traced)["_dynamo_marked_constant"] = True


def _unbind(module: nn.Module, incompatible: object) -> None:
    """Forget what was prepared from tensors that were just loaded over."""
    vars(module)["_bound"] = None
