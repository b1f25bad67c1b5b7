"""Import the installed AITER (amd-aiter 0.1.7.post2.dev18) for real on a machine without ROCm.

`install` must run in a fresh process, one architecture per process, before triton is imported; with
`interpret_triton` the environment must hold TRITON_INTERPRET=1 before that too (`in_process` of run_in_process.py sees
to both). gfx942 takes fp8 as fnuz and has no FP4, gfx950 takes fp8 as fn.

What is not the package's own, and why:

- `hipconfig` and `rocminfo` are small scripts, first on PATH: the package asks them for the ROCm version, the
  architecture and the number of compute units. ROCM_HOME points at the same folder; GPU_ARCHS, CU_NUM and every
  AITER_CONFIG_* variable are taken out of the environment, so that shipped tables and probes decide.
- AITER_JIT_DIR is a folder of Python modules in place of the compiled ones. `aiter.jit.core.build_module` fails at
  once for every other module: the package would start hipcc and end the process.
- The source of `aiter.jit.core` is loaded with its literal /tmp/ replaced by a private folder: it writes merged tuned
  tables there at import, whatever TMPDIR says, and processes that share the files would race.
- `get_padded_m`, as gemm_op_a8w8 and gemm_op_a4w4 see it, is the stand-in itself: the package's wrapper allocates a
  dummy on "cuda" for a compiled function without tensors. The walk over the tables is unchanged.
- Logger "aiter" gets a handler before the import: without one the package imports torch._dynamo (a second) to have
  its log lines ignored while tracing. (Its plain wrappers cannot be traced in any case: they read tables with pandas.
  Those registered as operators, like `aiter.gemm_a8w8`, can.)
- Triton gets an active driver whose target is (hip, architecture, 64): the package picks configurations by it.
- With `interpret_triton`, `tl.assume` does nothing: the interpreter's evaluates it, and the kernels assume things that
  do not hold (`pid > 0`, `stride > 0` of an unused stride). bfloat16 arithmetic and rounding of the interpreter are
  repaired (interpreter.py).

The package's wrappers, argument checks, table look-ups and tables run as shipped. Under torch 2.13 the interpreter
prints a ValueError of torch.library when it exits: the package registers operators as "aiter::x" in library "aiter".
"""

from __future__ import annotations

import atexit
import importlib
import importlib.machinery
import importlib.util
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from . import interpreter
from .device import DEVICE, FP8

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, ModuleType

MODULES = {
    "module_gemm_common": ("compiled_gemm", "get_padded_m"),
    "module_gemm_a8w8": ("compiled_gemm", "gemm_a8w8"),
    "module_gemm_a8w8_bpreshuffle": ("compiled_gemm", "gemm_a8w8_bpreshuffle"),
    "module_gemm_a8w8_blockscale": ("compiled_gemm", "gemm_a8w8_blockscale"),
    "module_gemm_a8w8_blockscale_bpreshuffle": ("compiled_gemm", "gemm_a8w8_blockscale_bpreshuffle"),
    "module_gemm_a8w8_blockscale_asm": ("compiled_gemm", "flatmm_a8w8_blockscale_asm"),
    "module_gemm_a4w4_asm": ("compiled_gemm_fp4", "gemm_a4w4_asm"),
    "module_gemm_a4w4_blockscale": ("compiled_gemm_fp4", "gemm_a4w4_blockscale"),
    "module_quant": (
        "compiled_quant",
        "static_per_tensor_quant, dynamic_per_tensor_quant, "
        "dynamic_per_token_scaled_quant, dynamic_per_group_scaled_quant_fp4",
    ),
}
ENUMS = '''from enum import IntEnum


class ActivationType(IntEnum):
    """Members: as in aiter_enum.h."""

    No = -1
    Silu = 0
    Gelu = 1
    Swiglu = 2


class QuantType(IntEnum):
    """Members: as in aiter_enum.h."""

    No = 0
    per_Tensor = 1
    per_Token = 2
    per_1x32 = 3
    per_1x128 = 4
    per_128x128 = 5
'''


def install(arch: str, compute_units: int, interpret_triton: bool) -> ModuleType:
    """Set the stand-ins up, import AITER and return its module; `compute_units` (256, 304, 80) picks tuned rows."""
    if arch not in FP8:
        raise ValueError(f"arch: one of {sorted(FP8)} is stood in for, found {arch!r}")
    early = sorted({"aiter", "triton"} & sys.modules.keys())
    if early:
        raise RuntimeError(f"install needs a fresh process, found {', '.join(early)} imported already")
    if interpret_triton != (os.environ.get("TRITON_INTERPRET") == "1"):
        raise RuntimeError(
            "TRITON_INTERPRET must be 1 in the environment if Triton is to be interpreted, and absent if not"
        )
    DEVICE.arch, DEVICE.compute_units = arch, compute_units
    folder = Path(tempfile.mkdtemp(prefix="aiter-stand-ins-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _write_probes(folder, arch, compute_units)
    _write_modules(folder / "jit")
    logging.getLogger("aiter").addHandler(logging.NullHandler())
    _set_triton_up(arch, interpret_triton)
    sys.meta_path.insert(0, _PrivateTables(folder / "tables"))
    package = importlib.import_module("aiter")
    _replace_unusable(package)
    return package


def _write_probes(folder: Path, arch: str, compute_units: int) -> None:
    answers = {
        "hipconfig": "6.4.43484-123eb5128",
        "rocminfo": f"Agent 1\n  Name: {arch}\n  Device Type: GPU\n  Compute Unit: {compute_units}",
    }
    programs = folder / "bin"
    programs.mkdir()
    for name, answer in answers.items():
        program = programs / name
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
        program.chmod(0o755)
    for name in [name for name in os.environ if name in ("GPU_ARCHS", "CU_NUM") or name.startswith("AITER_CONFIG_")]:
        del os.environ[name]
    os.environ["PATH"] = f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"
    os.environ["ROCM_HOME"] = str(folder)


def _write_modules(folder: Path) -> None:
    folder.mkdir()
    (folder / "module_aiter_enum.py").write_text(ENUMS)
    for module, (home, names) in MODULES.items():
        (folder / f"{module}.py").write_text(f"from {__package__}.{home} import {names}\n")
    os.environ["AITER_JIT_DIR"] = str(folder)


def _set_triton_up(arch: str, interpret: bool) -> None:
    language = importlib.import_module("triton.language")
    target = importlib.import_module("triton.backends.compiler").GPUTarget("hip", arch, 64)
    driver = SimpleNamespace(
        get_current_target=lambda: target,
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        get_device_interface=lambda: None,
    )
    importlib.import_module("triton.runtime").driver.set_active(driver)
    if interpret:
        vars(language)["assume"] = lambda condition, **rest: None
        interpreter.repair()
        interpreter.record()


class _PrivateTables:
    """Finds aiter.jit.core, and nothing else, to be loaded with a private folder for its merged tables."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if name != "aiter.jit.core":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin is None:
            return None
        return importlib.util.spec_from_file_location(name, spec.origin, loader=_Loader(name, spec.origin, self.folder))


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, folder: Path) -> None:
        super().__init__(name, path)
        self.folder = folder

    def get_code(self, fullname: str) -> CodeType:
        source = Path(self.path).read_text()
        if source.count('f"/tmp/') != 1:
            raise RuntimeError(f"{self.path} is not the release these stand-ins are made for")
        return compile(source.replace('f"/tmp/', f'f"{self.folder}/'), self.path, "exec", dont_inherit=True)


def _replace_unusable(package: ModuleType) -> None:
    get_padded_m = importlib.import_module("module_gemm_common").get_padded_m

    def build_module(name: str, *rest: object, **named: object) -> None:
        raise NotImplementedError(f"{name} is a compiled module without a stand-in")

    for module in (package, sys.modules["aiter.ops.gemm_op_a8w8"], sys.modules["aiter.ops.gemm_op_a4w4"]):
        vars(module)["get_padded_m"] = get_padded_m
    vars(sys.modules["aiter.jit.core"])["build_module"] = build_module
