"""A package `aiter` with the signatures of any release, whose kernels are plain torch and keep a record of their calls."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from qscheme.layouts import swizzled_shape
from qscheme.releases import History, read_history
from qscheme.tables import load, shipped_schemes

if TYPE_CHECKING:
    import pytest

    from qscheme.bindings import Parameters
    from qscheme.types import Kernel

NEWEST = "v0.1.20"
TILE = {"BLOCK_SIZE_M": 16, "NUM_KSPLIT": 4}

DTYPES = SimpleNamespace(
    i8=torch.int8,
    bf16=torch.bfloat16,
    fp16=torch.float16,
    fp32=torch.float32,
    fp8=torch.float8_e4m3fn,
    fp4x2=torch.float4_e2m1fn_x2,
    fp8_e8m0=torch.float8_e8m0fnu,
)


def history() -> History:
    return read_history(shipped_schemes() / "releases" / "aiter.json")


def kernels() -> list[Kernel]:
    """Every kernel of AITER that a shipped scheme uses."""
    schemes = [load().scheme(name) for name in load().schemes]
    used = [kernel for scheme in schemes for backend in scheme.backends for kernel in backend.kernels]
    return [kernel for kernel in dict.fromkeys(used) if kernel.library == "aiter"]


def symbols(release: str) -> dict[str, Parameters]:
    """The symbols that a release has of those that the kernels may be loaded from, with their parameters."""
    known = history()
    offer = known.at(known.releases.index(release))
    names = [name for kernel in kernels() for form in kernel.forms for name in (*form.symbols, *form.config)]
    return {name: found for name in names if (found := offer.parameters(name)) is not None}


def telling_releases() -> list[str]:
    """The first release of each run of releases that have the same symbols with the same parameters."""
    releases = history().releases
    return [
        now for last, now in zip(("", *releases), releases, strict=False) if not last or symbols(last) != symbols(now)
    ]


@dataclass
class PaperAiter:
    """The calls that the kernels got, as (function, arguments by name), in order; arguments left out are not in it."""

    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    @property
    def called(self) -> list[str]:
        return [name for name, _ in self.calls]

    def function(self, name: str, parameters: Parameters) -> Any:
        """A function with exactly these parameters."""
        words = [word for word in parameters if not word.startswith("-> ")]
        names = [word.partition("=")[0] for word in words]
        given = ", ".join(f"{word}={word}" for word in names)
        scope: dict[str, Any] = {"torch": torch, "dtypes": DTYPES, "run": self._run, "returns": parameters[-1]}
        scope["MX_DEFAULT_ROUND_MODE"] = 1
        exec(f"def {name}({', '.join(words)}):\n    return run({name!r}, returns, dict({given}))", scope)
        return scope[name]

    def _run(self, name: str, returns: str, given: dict[str, Any]) -> Any:
        self.calls.append((name, given))
        if name == "_get_config":
            return (dict(TILE), True) if returns == "-> tuple" else dict(TILE)
        return quantize(name, given) if "quant" in name else multiply(name, given)


def quantize(name: str, given: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of the shape, dtype and strides that AITER's quantizers give, with values that follow x."""
    x = given["x"]
    assert x.is_contiguous() and x.dim() == 2 and x.shape[0], "the kernels read dense rows"
    m, k = x.shape
    if name == "per_token_quant_hip":
        largest = 127 if given["quant_dtype"] == torch.int8 else torch.finfo(given["quant_dtype"]).max
        scale = x.abs().amax(1, keepdim=True).float().clamp(min=1e-10) / largest
        return (x / scale).clamp(-largest, largest).to(given["quant_dtype"]), scale
    if name == "per_tensor_quant_hip":
        largest = torch.finfo(given["quant_dtype"]).max
        return (x / given["scale"]).clamp(-largest, largest).to(given["quant_dtype"]), given["scale"].view(1)
    if name == "per_group_quant_hip":
        scale = torch.ones(m, k // given["group_size"])
        return x.to(given["quant_dtype"]), scale.to(given.get("scale_type", torch.float32))
    if name == "dynamic_mxfp8_quant":
        return x.to(given["quant_dtype"]), torch.full((m, k // 32), 127, dtype=torch.uint8)
    if name == "per_1x32_mx_quant_hip" and given["quant_dtype"] != torch.float4_e2m1fn_x2:
        return x.to(given["quant_dtype"]), torch.ones(m, k // 32).to(given["scale_type"])
    codes = x.view(torch.uint8)[:, : k // 2].clone()
    if name == "dynamic_mxfp4_quant":
        return codes, torch.full((k // 32, m), 127, dtype=torch.uint8).t()
    shuffled = given["e8m0_shuffle"] if name == "quant_mxfp4_hip" else given["shuffle"]
    shape = swizzled_shape(m, k // 32) if shuffled else (m, k // 32)
    scale = torch.full(shape, 128 if given.get("hadamard_rotate") else 127, dtype=torch.uint8)
    return codes.view(torch.float4_e2m1fn_x2), scale.view(torch.float8_e8m0fnu)


def multiply(name: str, given: dict[str, Any]) -> torch.Tensor:
    """y [M, N] whose rows follow the row of x, and which changes with every operand."""
    x, weight, *scales = [value for value in given.values() if isinstance(value, torch.Tensor) and value.dim() == 2][:4]
    folded = 16 if "preshuffle" in name and "bpreshuffle" not in name and "afp8wfp8" not in name else 1
    of_weight = scales[1:] if "a16w" not in name else scales[:1]  # an x as it is has no scales
    told = sum(int(operand.contiguous().view(torch.uint8).sum()) for operand in (weight, *of_weight))
    rows = x.contiguous().view(torch.uint8).float().mean(1, keepdim=True)
    y = (rows + told % 251).expand(x.shape[0], weight.shape[0] * folded)
    bias = given.get("bias")
    y = y if bias is None else y + bias
    out: torch.Tensor | None = given.get("out", given.get("y"))
    if out is None:
        return y.to(given["dtype"], memory_format=torch.contiguous_format)
    out[: len(y)] = y
    return out


def install(
    monkeypatch: pytest.MonkeyPatch, release: str = NEWEST, **changed: Parameters | BaseException
) -> PaperAiter:
    """Put AITER as of a release in the place of whatever is imported; removed again at the end of the test.

    changed: other parameters of a function, by its name, or what the import of its module raises.
    """
    paper = PaperAiter()
    for name in [name for name in sys.modules if name.partition(".")[0] == "aiter"]:
        monkeypatch.delitem(sys.modules, name)
    packages: dict[str, ModuleType] = {}

    def module(path: str) -> ModuleType:
        if path not in packages:
            packages[path] = ModuleType(path)
            packages[path].__path__ = []
            if "." in path:
                above, _, name = path.rpartition(".")
                setattr(module(above), name, packages[path])
        return packages[path]

    module("aiter")
    for symbol, parameters in symbols(release).items():
        path, _, name = symbol.rpartition(".")
        change = changed.get(name, parameters)
        if isinstance(change, BaseException):
            vars(module(path))["__getattr__"] = raising(change)
        else:
            setattr(module(path), name, paper.function(name, change))
    for path, found in packages.items():
        monkeypatch.setitem(sys.modules, path, found)
    return paper


def raising(error: BaseException) -> Any:
    def raise_it(name: str) -> None:
        raise error

    return raise_it
