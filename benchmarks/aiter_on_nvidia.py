"""AITER's own Triton kernels, from its wheel, compiled for an NVIDIA GPU and called by the generated binders.

Made for amd-aiter 0.1.7.post2.dev18, the release with Triton kernels for gfx950 on PyPI. The wrappers, their argument
checks, look-ups and tuned tables and the kernels run as shipped. What stands in:

- for the ROCm probes at import: small `hipconfig` and `rocminfo` scripts, the enums of the one compiled module that the
  import needs, and a Triton driver that says gfx950, which is taken away after the import;
- `arch_info.get_arch`, which then says gfx950 while Triton compiles for the real GPU;
- nothing for the launch options of AMD's compiler (waves_per_eu, matrix_instr_nonkdim, kpack): they are dropped, and a
  tile whose buffers do not fit is pipelined in fewer stages;
- qscheme's own `quantize` for compiled quantizers, by the rule of the one replaced, and for dynamic_mxfp4_quant;
- precompiled AMD binaries: gemm_afp4wfp4_preshuffled_weight_scales is told not to look for them.

Compiled GEMMs are not there: a backend that calls one is called for the numbers of rows before it only.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import importlib
import logging
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from device_errors import check, every_backend, reasons_here
from device_model import dequantized, whole_error

import qscheme
from qscheme import layouts, numerics
from qscheme.tables import load
from qscheme.tuned import ALL_TUNED
from qscheme.types import Operand

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qscheme.machine import Facts
    from qscheme.types import Backend, Kernel, Rule

ARCH, COMPUTE_UNITS = "gfx950", 256
AMD_OPTIONS = ("waves_per_eu", "matrix_instr_nonkdim", "kpack")
NOTE = "GEMM only where a compiled quantizer is replaced by qscheme's own of the same rule"
ENUMS = """from enum import IntEnum


class ActivationType(IntEnum):
    \"\"\"Members: as in aiter_enum.h.\"\"\"

    No, Silu, Gelu, Swiglu = range(-1, 3)


class QuantType(IntEnum):
    \"\"\"Members: as in aiter_enum.h.\"\"\"

    No, per_Tensor, per_Token, per_1x32, per_1x128, per_128x128 = range(6)
"""


def checked(source: str, schemes: Sequence[str], device: torch.device, quick: bool) -> dict[str, Any]:
    """Every backend whose GEMM is one of AITER's Triton kernels, against float64; and its MXFP4 quantizer as it is."""
    install(source)
    real = qscheme.Facts.of_this_machine(device, refresh=True)
    facts = dataclasses.replace(
        real, device=load().devices[ARCH], compute_units=COMPUTE_UNITS, tuned=ALL_TUNED, index=None
    )
    measured = mxfp4_quantizer(device)
    rows: list[dict[str, Any]] = []
    refused: list[dict[str, Any]] = []
    for scheme, backend in every_backend(schemes):
        if all(kernel.library != "aiter" for kernel in backend.kernels):
            continue
        reasons = reasons_here(scheme, backend, facts)
        largest = 0 if reasons else largest_rows(backend, facts)
        if not reasons and largest == 0:
            reasons = ["its GEMM is a compiled kernel, which has no CUDA version"]
        if reasons:
            refused.append({"scheme": scheme.name, "backend": backend.name, "reasons": reasons})
            continue
        replaced = [kernel.name for kernel in backend.quantizers if replace_quantizer(kernel, facts)]
        row = check(scheme, backend, facts, device, quick, min(largest, 1024), most_shapes=2)
        rows.append({**row, "replaced_quantizers": replaced, "largest_rows": largest})
        print(f"  AITER {scheme.name} {backend.name}: {'; '.join(row['failures']) or 'right'}", flush=True)
    return {
        "aiter": real.libraries["aiter"].version,
        "arch": ARCH,
        "note": NOTE,
        "backends": rows,
        "refused": refused,
        "dynamic_mxfp4_quant": measured,
    }


def largest_rows(backend: Backend, facts: Facts) -> int:
    """The largest number of rows before a call to a compiled GEMM; 0 if the first call is to one."""
    gemms = {kernel.name: kernel for kernel in backend.kernels}
    largest = 0
    for call in backend.calls:
        if not call.runs(batch_invariant=facts.batch_invariant):
            continue
        if not any(".triton." in symbol for symbol in symbols(gemms[call.gemm], facts)):
            return largest
        largest = 1 << 30 if call.max_m is None else call.max_m
        if call.max_m is None:
            break
    return largest


def symbols(kernel: Kernel, facts: Facts) -> tuple[str, ...]:
    form = facts.offers.form(kernel)
    return kernel.forms[form].symbols if isinstance(form, int) else ()


def replace_quantizer(kernel: Kernel, facts: Facts) -> bool:
    """Put qscheme's quantizer of the same rule in the place of one of AITER's; whether there was one."""
    if kernel.library != "aiter":
        return False
    rule = facts.rule(kernel)
    makers = {"per_token": "per_token", "per_group": "1x128", "1x32": "1x32", "mxfp4": "1x32"}
    granularity = next(tile for word, tile in makers.items() if word in kernel.name)
    for symbol in symbols(kernel, facts):
        module, _, name = symbol.rpartition(".")
        try:
            home = importlib.import_module(module)
        except ModuleNotFoundError:
            continue
        if rule is not None and hasattr(home, name):
            vars(home)[name] = reference_quantizer(granularity, rule, column_major="mxfp4" in kernel.name)
    return True


def reference_quantizer(granularity: str, rule: Rule, column_major: bool) -> Callable[..., Any]:
    """A function with the keywords of AITER's quantizers that computes with torch."""

    def quantize(
        x: torch.Tensor,
        quant_dtype: torch.dtype = torch.uint8,
        group_size: int = 0,
        transpose_scale: bool = False,
        shuffle: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        element = {torch.int8: "int8", torch.uint8: "fp4_e2m1"}.get(quant_dtype, "fp8_e4m3")
        scale_format = "e8m0" if element == "fp4_e2m1" else "fp32"
        operand = Operand(element, granularity, scale_format, rule, "dynamic")  # type: ignore[arg-type]
        fp8 = quant_dtype if element == "fp8_e4m3" else torch.float8_e4m3fn
        codes, scale = numerics.quantize(x, operand, fp8=fp8)
        if transpose_scale:
            scale = layouts.k_major(scale)
        if shuffle:
            scale = layouts.swizzle_e8m0_256x8(scale)
        return codes, layouts.column_major(scale) if column_major else scale

    return quantize


def mxfp4_quantizer(device: torch.device) -> dict[str, float]:
    """The relative error of AITER's own dynamic_mxfp4_quant for values of unit size, and for 256 times as large ones.

    Under 0.12 is right. It casts a negative exponent to uint8, which NVIDIA's compiler saturates at 0.
    """
    module = importlib.import_module("aiter.ops.triton.quant")
    found = {}
    for factor in (1, 256):
        x = (torch.randn(64, 1024, device=device) * factor).bfloat16()
        codes, scale = module.dynamic_mxfp4_quant(x)
        values = dequantized(codes.view(torch.uint8), scale.view(torch.uint8).contiguous(), "1x32")
        found[f"x times {factor}"] = whole_error(values, x.double().cpu())
    return found


def install(source: str) -> None:
    """Import AITER from a wheel or from the folder that holds its package, behind the stand-ins."""
    folder = Path(tempfile.mkdtemp(prefix="aiter-on-nvidia-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    home = Path(source)
    if home.is_file():
        with zipfile.ZipFile(home) as wheel:
            wheel.extractall(
                folder / "wheel",
                [
                    name
                    for name in wheel.namelist()
                    if ((name.startswith("aiter/") or ".dist-info/" in name) and not name.endswith((".so", ".co")))
                    or (name.startswith("aiter_meta/csrc/") and name.endswith((".py", ".jinja")))
                ],
            )
        home = folder / "wheel"
    if not (home / "aiter" / "__init__.py").is_file():
        raise SystemExit(f"--aiter-triton needs a wheel of amd-aiter or a folder with aiter/ in it, found {source}")
    answers = {
        "hipconfig": "6.4.43484-123eb5128",
        "rocminfo": f"Agent 1\n  Name: {ARCH}\n  Device Type: GPU\n  Compute Unit: {COMPUTE_UNITS}",
    }
    for place in ("bin", "jit"):
        (folder / place).mkdir()
    for name, answer in answers.items():
        program = folder / "bin" / name
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
        program.chmod(0o755)
    (folder / "jit" / "module_aiter_enum.py").write_text(ENUMS)
    for name in [name for name in os.environ if name in ("GPU_ARCHS", "CU_NUM") or name.startswith("AITER_CONFIG_")]:
        del os.environ[name]
    os.environ |= {
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
        "ROCM_HOME": str(folder),
        "AITER_JIT_DIR": str(folder / "jit"),
    }
    sys.path.insert(0, str(home.resolve()))
    logging.getLogger("aiter").addHandler(logging.NullHandler())
    _import_as_on_amd()
    _launch_on_nvidia()


def _import_as_on_amd() -> None:
    """Import the modules that choose by architecture while Triton's driver says gfx950."""
    driver = importlib.import_module("triton.runtime").driver
    target = importlib.import_module("triton.backends.compiler").GPUTarget("hip", ARCH, 64)
    real = driver.active
    driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: target,
            get_current_device=real.get_current_device,
            get_current_stream=real.get_current_stream,
            get_device_interface=real.get_device_interface,
        )
    )
    try:
        for name in (
            "",
            ".ops.triton.gemm_a8w8",
            ".ops.triton.gemm_a8w8_blockscale",
            ".ops.triton.gemm_afp4wfp4",
            ".ops.triton.quant",
        ):
            importlib.import_module(f"aiter{name}")
    finally:
        driver.set_active(real)
    vars(importlib.import_module("aiter.ops.triton.utils._triton.arch_info"))["get_arch"] = lambda: ARCH


def _launch_on_nvidia() -> None:
    """Drop what only AMD's compiler takes, pipeline less where memory runs out, and do without AMD's binaries."""
    function = importlib.import_module("triton.runtime.jit").JITFunction
    function.run = launching(function.run, importlib.import_module("triton.runtime.errors").OutOfResources)
    module = vars(importlib.import_module("aiter.ops.triton.gemm_afp4wfp4"))
    name = "gemm_afp4wfp4_preshuffled_weight_scales"
    module[name] = functools.partial(module[name], use_aot=False)


def launching(run: Callable[..., Any], out_of_resources: type[Exception]) -> Callable[..., Any]:
    """A way to launch kernels with the tiles of an AMD GPU, which has less shared memory but counts it differently.

    A kernel whose buffers do not fit is compiled again with one stage of its software pipeline less, which changes no
    number; what fitted is remembered for its tile.
    """
    fitting: dict[tuple[object, ...], int] = {}

    def launch(self: Any, *arguments: Any, **keywords: Any) -> Any:
        for option in AMD_OPTIONS:
            keywords.pop(option, None)
        stages = keywords.get("num_stages")
        if stages is None:
            return run(self, *arguments, **keywords)
        tile = (id(self), *sorted((name, str(value)) for name, value in keywords.items() if name.isupper()), stages)
        stages = fitting.get(tile, stages)
        while True:
            try:
                found = run(self, *arguments, **{**keywords, "num_stages": stages})
            except out_of_resources:  # noqa: PERF203
                if stages == 1:
                    raise
                stages -= 1
            else:
                fitting[tile] = stages
                return found

    return launch
