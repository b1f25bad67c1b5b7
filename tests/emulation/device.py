"""The device that the stand-ins pretend to run on, and what it decides: fp8 flavour, tuned rows, tiles."""

from __future__ import annotations

import csv
import functools
import importlib
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

FP8 = {"gfx942": torch.float8_e4m3fnuz, "gfx950": torch.float8_e4m3fn}


@dataclass
class Device:
    """One pretended GPU: architecture, number of compute units."""

    arch: str = ""
    compute_units: int = 0

    @property
    def fp8(self) -> torch.dtype:
        """The e4m3 variant of the hardware."""
        return FP8[self.arch]

    @property
    def has_fp4(self) -> bool:
        """Whether the modules would be built with FP4 (`-D__Float4_e2m1fn_x2`)."""
        return self.arch == "gfx950"


DEVICE = Device()
CALLS: list[tuple[str, str]] = []
"""(function, kernel it would have launched) for every call of a compiled stand-in, in order; interpreted kernels too."""


def check(condition: bool, message: str) -> None:
    """Fail as TORCH_CHECK does."""
    if not condition:
        raise RuntimeError(message)


def compiled(signature: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a stand-in the docstring of pybind11, from which AITER checks argument types, and pybind11's own check."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        parameters = inspect.signature(function)
        tensors = [name for name, each in parameters.parameters.items() if "Tensor" in str(each.annotation)]
        optional = {name for name in tensors if "None" in str(parameters.parameters[name].annotation)}

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            bound = parameters.bind(*args, **kwargs)
            for name in tensors:
                value = bound.arguments.get(name)
                if not isinstance(value, torch.Tensor) and not (value is None and name in optional):
                    raise TypeError(f"{function.__name__}(): incompatible function arguments: {name} is {type(value)}")
            return function(*args, **kwargs)

        call.__doc__ = signature
        return call

    return decorate


def aiter_folder() -> Path:
    """Return the folder above the installed `aiter` package."""
    return Path(str(importlib.import_module("aiter").__file__)).parent.parent


@functools.lru_cache
def tuned_kernels(constant: str) -> dict[tuple[int, int, int], str]:
    """Return (M, N, K) -> kernel name for this device, from the table that a build of the module bakes in."""
    core = importlib.import_module("aiter.jit.core")
    with Path(getattr(core, constant)).open() as file:
        return {
            (int(row["M"]), int(row["N"]), int(row["K"])): row["kernelName"]
            for row in csv.DictReader(file)
            if int(row["cu_num"]) == DEVICE.compute_units
            and row["kernelName"].startswith("a")
            and row.get("q_dtype_w", str(DEVICE.fp8)) == str(DEVICE.fp8)
        }


def padded_m(m: int, n: int, k: int, granularity: int) -> int:
    """Round M up to the row of a tuned table: finely (0) or to a power of two (1)."""
    if granularity == 0:
        step = 16 if m <= 256 else 32 if m <= 1024 else 64 if m <= 4096 else 128
        return -(-m // step) * step
    if granularity == 1:
        return 8192 if m > 8192 and n > 4096 else next_power_of_two(m)
    return m


def next_power_of_two(number: int) -> int:
    """Return the smallest power of two that is not below the number."""
    return 1 if number <= 1 else 1 << (number - 1).bit_length()


@dataclass(frozen=True)
class Tile:
    """What the name of a composable-kernel GEMM says about the shapes it takes."""

    m: int
    n: int
    k: int
    k_vector: int
    n_vector: int
    whole: bool

    @classmethod
    def of(cls, name: str) -> Tile:
        """Read a kernel's name."""
        family = next(prefix for prefix in _FAMILIES if name.startswith(prefix))
        fields = [
            [int(part) for part in field.split("x")]
            for field in name[len(family) :].split("_")[:8]
            if field[0].isdigit()
        ]
        if family.startswith("a8w8_blockscale"):
            fields = fields[1:]
        _, m, n, k = fields[0]
        k_vector = k // fields[3][0] if family == "a8w8_rowwise_" else fields[1][0]
        return cls(m, n, k, max(k_vector, 16), fields[6][0], "bpreshuffle" in family)

    def split(self, m: int, n: int, k: int, parts: int) -> list[tuple[int, int]]:
        """Return the slices of K of a split-K launch, or fail where the kernel does not support the shape."""
        if self.whole:
            check(n % self.n == 0 and k % self.k == 0, "This GEMM is not supported!")
        padded = m % self.m or n % self.n or k % (self.k * parts)
        size = -(-k // (parts * self.k_vector)) * self.k_vector if padded else k // parts
        check(k % self.k_vector == 0 and n % self.n_vector == 0, "This GEMM is not supported!")
        check(parts == 1 or size * (parts - 1) < k, "This GEMM is not supported!")
        return [(start, min(start + size, k)) for start in range(0, k, size)] if k else []


_FAMILIES = (
    "a8w8_rowwise_",
    "a8w8_bpreshuffle_",
    "a8w8_blockscale_bpreshuffle_",
    "a8w8_blockscale_",
    "a4w4_blockscale_",
)
