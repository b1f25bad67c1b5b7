"""The one place that touches torch.library: kernels as custom ops, registered once per process, with their fakes."""

from __future__ import annotations

import inspect
import threading
from functools import partial
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_registered: dict[tuple[str, int], tuple[object, Callable[..., object]]] = {}
_lock = threading.Lock()


def opaque(
    name: str,
    schema: str,
    kernel: Callable[..., object],
    fake: Callable[..., object],
    positional: int = 0,
    fixed: Mapping[str, object] | None = None,
) -> Callable[..., object]:
    """A kernel as the custom op `qscheme::name`, which torch.compile and CUDA graphs take as one step.

    schema: the op's arguments and results in torch's schema language, without a name; its arguments have the names
    of the fake's. fake: makes results of the right shape, dtype and strides without running the kernel. positional:
    how many arguments the kernel takes by position; the rest go by keyword. fixed: keywords that the kernel always
    gets, of types that a schema does not have; a call may pass them, and they are ignored. A second function of the
    same name gets an op of its own, so that two builds of a library can live in one process.
    """
    with _lock:
        key = (name, id(kernel))
        if key not in _registered:
            count = sum(1 for known, _ in _registered if known == name)
            function = partial(kernel, **fixed) if fixed else kernel
            op = _register(f"qscheme::{name}{f'_{count}' if count else ''}", schema, function, fake, positional)
            if fixed:
                op = _without(tuple(fixed), op)
            # The kernel is kept beside its op, so that its id is never that of another one.
            _registered[key] = (kernel, op)
        return _registered[key][1]


def changed_config(found: object, **values: int) -> dict[str, object]:
    """A copy of a tile configuration with some values set.

    found: what a library's look-up returned, the configuration itself or a tuple that begins with it.
    """
    config = cast("tuple[object, ...]", found)[0] if isinstance(found, tuple) else found
    return {**cast("Mapping[str, object]", config), **values}


def _without(names: tuple[str, ...], op: Callable[..., object]) -> Callable[..., object]:
    """An op that may be given some keywords more than it takes."""

    def call(*arguments: object, **keywords: object) -> object:
        return op(*arguments, **{name: value for name, value in keywords.items() if name not in names})

    return call


def _register(
    name: str, schema: str, kernel: Callable[..., object], fake: Callable[..., object], positional: int
) -> Callable[..., object]:
    names = list(inspect.signature(fake).parameters)

    def run(*arguments: object, **keywords: object) -> object:
        given = dict(zip(names, arguments, strict=False)) | keywords
        by_position = [given.pop(key) for key in names[:positional]]
        results = kernel(*by_position, **given)
        # An op may not return what it was given, and some kernels hand a static scale back.
        tensors = [value for value in (*by_position, *given.values()) if isinstance(value, Tensor)]
        if isinstance(results, Tensor):
            return _own(results, tensors)
        return tuple(_own(result, tensors) for result in cast("Iterable[Tensor]", results))

    op = torch.library.custom_op(name, run, mutates_args=(), schema=schema)
    cast("Callable[..., object]", vars(torch.library)["register_fake"])(op, fake)
    return cast("Callable[..., object]", op)


def _own(result: Tensor, given: list[Tensor]) -> Tensor:
    storage = result.untyped_storage().data_ptr()
    shared = any(tensor.untyped_storage().data_ptr() == storage for tensor in given if tensor.numel())
    return result.clone() if shared else result
