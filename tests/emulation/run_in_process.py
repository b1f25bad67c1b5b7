"""Run a function of a test module in a fresh process that has AITER behind the stand-ins, and return its result."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
COMPUTE_UNITS = {"gfx942": 304, "gfx950": 256}
DROPPED = ("TRITON_INTERPRET", "GPU_ARCHS", "CU_NUM", "PYTHONPATH")


class ProcessFailedError(AssertionError):
    """The child did not return a result; the message holds what it printed."""


def in_process(
    arch: str,
    body: Callable[..., Any] | str,
    interpret: bool = False,
    arguments: dict[str, Any] | None = None,
    compute_units: int | None = None,
    timeout: float = 900,
) -> Any:
    """Call `body` (a module-level function or "module:function") behind the stand-ins of `arch`; return its JSON result.

    The child has the repository root, generated/ and tests/ on its path, imports the function's module after AITER,
    and passes `arguments` as keywords. With `interpret`, Triton kernels run in Triton's interpreter. Temporary files
    are gone afterwards.

    Raises:
        ProcessFailedError: the child failed; with its standard error.
    """
    where = body if isinstance(body, str) else f"{body.__module__}:{body.__qualname__}"
    order = {
        "arch": arch,
        "body": where,
        "interpret": interpret,
        "arguments": arguments or {},
        "compute_units": COMPUTE_UNITS[arch] if compute_units is None else compute_units,
    }
    with tempfile.TemporaryDirectory() as folder:
        environment = {name: value for name, value in os.environ.items() if name not in DROPPED}
        environment["PYTHONPATH"] = os.pathsep.join(str(path) for path in (ROOT, ROOT / "generated", ROOT / "tests"))
        environment["TMPDIR"] = folder
        environment["OMP_NUM_THREADS"] = "1"  # the tensors are small: threads cost more than they give
        if interpret:
            environment["TRITON_INTERPRET"] = "1"
        result = Path(folder) / "result.json"
        command = [
            sys.executable,
            "-c",
            f"from {__package__}.run_in_process import child; child()",
            json.dumps(order),
            str(result),
        ]
        done = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, timeout=timeout, check=False
        )
        if done.returncode or not result.exists():
            raise ProcessFailedError(f"{where} on {arch} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
        return json.loads(result.read_text())


def child() -> None:
    """Do what the command line orders, then leave without AITER's noisy end of the interpreter."""
    try:
        order = json.loads(sys.argv[1])
        importlib.import_module(f"{__package__}.stand_ins").install(
            order["arch"], order["compute_units"], order["interpret"]
        )
        module, _, name = order["body"].partition(":")
        outcome = getattr(importlib.import_module(module), name)(**order["arguments"])
        Path(sys.argv[2]).write_text(json.dumps(outcome))
        status = 0
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
