"""A chosen backend -> the function over x of any rank, with its weights prepared once."""

from __future__ import annotations

import importlib
import threading
from contextlib import nullcontext
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor

from qscheme.decision import Activation
from qscheme.errors import BindFailed, InvalidInput, InvalidLayer
from qscheme.formats import packed_columns
from qscheme.numerics import rotate_hadamard, scale_shape
from qscheme.operands import CODES, DTYPES, OUT_DTYPES, layer_facts, operands_of, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from qscheme.decision import Decision
    from qscheme.layer import LayerFacts, Operands
    from qscheme.machine import Facts
    from qscheme.types import Backend, Call, Kernel, Layer, Prepared, QuantizedRows, Rows, Scheme

OPERANDS = (
    "weight", "weight_scale", "input_scale", "bias", "weight_global_scale", "weight_zero_point", "input_global_scale",
)  # fmt: skip
"""The prepared tensors, by name."""

_adapted: dict[tuple[Kernel, int, int, bool], tuple[object, Callable[..., object]]] = {}
_lock = threading.Lock()

is_compiling, is_dynamo_compiling = torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling


class Bound:
    """A layer bound to a backend: `y = bound(x)`, or `y = bound(codes, x_scale=scales)`.

    x: [..., K], any rank from 1, any strides, any number of rows from 0, in a dtype that the backend's quantizer
    takes. y: [..., N] in the layer's out_dtype. codes: [..., K] in `activation.codes_dtype`, E2M1 as uint8
    [..., K/2]. scales: plain, in the shape that the activation's granularity says for the flattened rows; the
    backend's own layout is made from them.

    backend: its name. decision: why it was chosen. activation: what its quantizer does. Raises InvalidInput. An error
    that a kernel raises when it runs is passed on as it is: nothing is tried again, and no other backend is taken.
    """

    __slots__ = (
        "_about",
        "_compiled",
        "_compiled_quantized",
        "_eager",
        "_eager_quantized",
        "_facts",
        "_inputs",
        "_prepared",
        "_scheme",
        "activation",
        "backend",
        "decision",
        "k",
        "n",
        "name",
        "out_dtype",
    )

    def __init__(
        self,
        scheme: Scheme,
        backend: Backend,
        facts: Facts,
        about: LayerFacts,
        operands: Operands,
        decision: Decision,
        prepared: Prepared,
        functions: tuple[tuple[Rows, QuantizedRows], tuple[Rows, QuantizedRows]],
        activation: Activation | None,
        inputs: tuple[torch.dtype, ...],
    ) -> None:
        self.backend = backend.name
        self.decision = decision
        self.activation = activation
        self.name, self.n, self.k, self.out_dtype = operands.name, operands.n, operands.k, operands.out_dtype
        self._scheme, self._facts, self._about, self._prepared = scheme, facts, about, prepared
        self._inputs = inputs
        (self._eager, self._eager_quantized), (self._compiled, self._compiled_quantized) = functions

    def __call__(self, x: Tensor, x_scale: Tensor | None = None) -> Tensor:
        shape = x.shape
        if len(shape) != 2 or x_scale is not None:
            return self._from_any(x, x_scale)
        if shape[1] != self.k or x.dtype not in self._inputs:
            raise self._refused(x)
        if shape[0] == 0:
            return x.new_empty((0, self.n), dtype=self.out_dtype)
        if not x.is_contiguous():
            x = x.contiguous()
        if is_dynamo_compiling() or type(x) is not Tensor:
            return self._compiled(x) if is_compiling() else self._eager(x)
        return self._eager(x)

    def refresh(self, layer: Layer) -> None:
        """Prepare new weights into the storage of the old ones, so that captured graphs see them.

        The layer must have the scheme, shape and dtypes of the one that was bound; its device may be another one. A
        backend that needs no other layout reads the first layer's own storage, which is then what is written. Raises
        InvalidLayer, with nothing written.
        """
        if layer.scheme != self._scheme.name:
            raise InvalidLayer(self.name, "scheme", self._scheme.name, layer.scheme)
        given = read(layer)
        about = layer_facts(given, self._scheme)
        if about != self._about:
            raise InvalidLayer(self.name, "layer", f"the one that was bound, {self._about}", str(about))
        operands = operands_of(given, self._scheme, about)
        backend = next(found for found in self._scheme.backends if found.name == self.backend)
        pairs = [*_pairs(self._prepared, backend.prepare(operands, self._facts))]
        for operand, old, new in pairs:
            if old.dtype != new.dtype or old.shape != new.shape:
                needs, found = (f"{tensor.dtype} of shape {list(tensor.shape)}" for tensor in (old, new))
                raise InvalidLayer(self.name, operand, f"{needs}, as when it was bound", found)
        with torch.inference_mode():
            for _, old, new in pairs:
                if old.device != new.device or old.data_ptr() != new.data_ptr():
                    old.copy_(new)

    def tensors(self) -> tuple[Tensor, ...]:
        """The prepared tensors that the function reads."""
        return tuple(tensor for _, tensor, _ in _pairs(self._prepared, self._prepared))

    def __repr__(self) -> str:
        return f"Bound({self.name or 'unnamed'}: {self._scheme.name} on {self.backend}, N = {self.n}, K = {self.k})"

    def _from_any(self, x: Tensor, x_scale: Tensor | None) -> Tensor:
        """The same for an x that is not [M, K], or for codes."""
        if x_scale is not None:
            return self._from_codes(x, x_scale)
        shape = x.shape
        if not shape or shape[-1] != self.k:
            raise self._refused(x)
        return self(x.reshape(-1, self.k)).reshape(*shape[:-1], self.n)

    def _from_codes(self, codes: Tensor, x_scale: Tensor) -> Tensor:
        shape, activation = codes.shape, self.activation
        run = self._compiled_quantized if is_compiling() else self._eager_quantized
        if run is None or activation is None:
            raise InvalidInput(self.name, "an x that is not quantized, as the scheme asks", "codes and scales")
        if self._about.rotation is not None:
            raise InvalidInput(self.name, "an x that is not quantized, as the layer rotates it", "codes and scales")
        if codes.dtype != activation.codes_dtype:
            raise InvalidInput(self.name, f"codes in {activation.codes_dtype}", str(codes.dtype))
        columns = packed_columns(activation.format, self.k)
        if not shape or shape[-1] != columns:
            raise InvalidInput(self.name, f"codes [..., {columns}]", f"shape {list(shape)}")
        rows = codes.reshape(-1, shape[-1]).contiguous()
        m = rows.shape[0]
        wanted = scale_shape(m, self.k, activation.granularity)
        if x_scale.dtype == torch.float8_e8m0fnu:
            x_scale = x_scale.view(torch.uint8)
        dtype = {"fp32": torch.float32, "e4m3": torch.float8_e4m3fn}.get(activation.scale, torch.uint8)
        flat = wanted[-1] == 1 and x_scale.dim() < 2
        count = wanted[0] * wanted[-1]  # also where it is one value of shape [1]
        if x_scale.dtype != dtype or x_scale.numel() != count or not (flat or x_scale.shape[-1] == wanted[-1]):
            found = f"{list(x_scale.shape)} in {x_scale.dtype}"
            raise InvalidInput(self.name, f"x_scale {list(wanted)} in {dtype}", found)
        if x_scale.device != codes.device:
            raise InvalidInput(self.name, f"x_scale on {codes.device}, as the codes are", str(x_scale.device))
        if m == 0:
            return codes.new_empty((*shape[:-1], self.n), dtype=self.out_dtype)
        return run(rows, x_scale.reshape(wanted).contiguous()).reshape(*shape[:-1], self.n)

    def _refused(self, x: Tensor) -> InvalidInput:
        if x.dim() == 0 or x.shape[-1] != self.k:
            return InvalidInput(self.name, f"shape [..., {self.k}]", f"shape {list(x.shape)}")
        if self.activation is not None and x.dtype == self.activation.codes_dtype:
            return InvalidInput(self.name, "x_scale beside quantized codes", "none")
        return InvalidInput(self.name, f"a dtype of {', '.join(map(str, self._inputs))}", str(x.dtype))


def bind(
    scheme: Scheme, backend: Backend, facts: Facts, operands: Operands, about: LayerFacts, decision: Decision
) -> Bound:
    """Load the backend's kernels, prepare the weights, and close over both. Raises BindFailed."""
    rotated = about.rotation is not None
    try:
        loaded = _load(scheme, backend, facts, rotated)
    except _NotLoadedError as error:
        raise BindFailed(operands.name, backend.name, str(error)) from error.__cause__
    # What is prepared outlives the mode that it was prepared in.
    with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext():
        prepared = backend.prepare(operands, facts)
        eager = backend.bind(operands, prepared, facts, *loaded.eager)
        compiled = backend.bind(operands, prepared, facts, *loaded.compiled) if loaded.compiled else eager
    if rotated and not loaded.rotates:
        eager, compiled = (_rotating(eager[0]), eager[1]), (_rotating(compiled[0]), compiled[1])
    functions = (eager, compiled)
    return Bound(
        scheme, backend, facts, about, operands, decision, prepared, functions, loaded.activation, loaded.inputs
    )


def calls_of(backend: Backend, facts: Facts) -> Iterator[Call]:
    """The calls that a bound function makes in the mode of the facts."""
    for call in backend.calls:
        if call.runs(batch_invariant=facts.batch_invariant):
            yield call
            if call.max_m is None:
                return


class _NotLoadedError(Exception):
    """Why a kernel could not be loaded; the library's own error is its cause."""


class _Loaded(NamedTuple):
    """The kernels of a backend, in their newest form: as they are, and as custom ops if torch cannot trace them."""

    eager: tuple[Callable[..., object], ...]
    compiled: tuple[Callable[..., object], ...]
    rotates: bool
    activation: Activation | None
    inputs: tuple[torch.dtype, ...]


@lru_cache(maxsize=4096)
def _load(scheme: Scheme, backend: Backend, facts: Facts, rotated: bool) -> _Loaded:
    fused = [kernel.rotate is not None and facts.offers.accepts(kernel, kernel.rotate) for kernel in backend.quantizers]
    rotates = rotated and bool(fused) and all(fused)  # where x is multiplied as it is, no quantizer rotates it
    eager = tuple(_adapt(kernel, facts, rotates and kernel in backend.quantizers) for kernel in backend.kernels)
    opaque = tuple(
        kernel.opaque(function) if kernel.opaque else function
        for kernel, function in zip(backend.kernels, eager, strict=True)
    )
    compiled = opaque if any(kernel.opaque for kernel in backend.kernels) else ()
    inputs = tuple(OUT_DTYPES[word] for word in backend.inputs) or tuple(DTYPES)
    return _Loaded(eager, compiled, rotates, _activation(scheme, backend, facts), inputs)


def _adapt(kernel: Kernel, facts: Facts, fused: bool) -> Callable[..., object]:
    """A kernel as its newest form is called, and told to rotate its input if it is fused with that."""
    index = facts.offers.form(kernel)
    if not isinstance(index, int):
        raise _NotLoadedError(index.text)
    form = kernel.forms[index]
    symbols = [_import(names) for names in (form.symbols, form.config) if names]
    with _lock:
        key = (kernel, index, id(symbols[0]), fused)
        if key not in _adapted:
            function = kernel.adapt(index, tuple(symbols))
            if fused and kernel.rotate is not None:
                function = partial(function, **{kernel.rotate: True})
            # The symbol is kept beside what was made of it, so that its id is never that of another one.
            _adapted[key] = (symbols[0], function)
        return _adapted[key][1]


def _import(names: tuple[str, ...]) -> object:
    """The first of these dotted names that can be imported."""
    failures: list[BaseException] = []
    for name in names:
        module, _, attribute = name.rpartition(".")
        try:
            return cast("object", getattr(importlib.import_module(module), attribute))
        except (Exception, SystemExit) as error:  # a library's import may raise anything, and some of them exit
            failures.append(error)
    told = (f"{name}: {type(error).__name__}: {error}" for name, error in zip(names, failures, strict=True))
    # A path of another release is merely not there; an error of any other kind says what is broken.
    broken = (error for error in failures if not isinstance(error, ModuleNotFoundError))
    raise _NotLoadedError("; ".join(told)) from next(broken, failures[0])


def _rotating(rows: Rows) -> Rows:
    """The same function with a rotation step before it."""

    def apply(x: Tensor) -> Tensor:
        return rows(rotate_hadamard(x))

    return apply


def _activation(scheme: Scheme, backend: Backend, facts: Facts) -> Activation | None:
    if scheme.activation is None:
        return None
    calls = tuple(calls_of(backend, facts))
    quantizer = next(kernel for kernel in backend.quantizers if kernel.name in (calls[0].quantize, calls[0].gemm))
    operand = scheme.activation
    codes = CODES[operand.format]
    if operand.format == "fp8_e4m3":
        native = backend.fp8 == "device" and facts.device.fp8 == "fnuz"
        codes = torch.float8_e4m3fnuz if native else torch.float8_e4m3fn
    return Activation(
        format=operand.format,
        granularity=operand.granularity,
        scale=operand.scale,
        rule=facts.rule(quantizer) or operand.rule,
        codes_dtype=codes,
        scale_layouts=tuple((call.max_m, call.scale_layout) for call in calls),
    )


def _pairs(old: Prepared, new: Prepared) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Each operand that both have, by name."""
    for name in OPERANDS:
        first, second = cast("Tensor | None", getattr(old, name)), cast("Tensor | None", getattr(new, name))
        if first is not None and second is not None:
            yield name, first, second
