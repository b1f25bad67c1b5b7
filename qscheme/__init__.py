"""Quantized linear layers as data: schemes in YAML, compiled to dispatch tables, bound to kernels at run time."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qscheme.agreement import agree
    from qscheme.errors import (
        BindFailed,
        Disagreement,
        InvalidInput,
        InvalidLayer,
        QschemeError,
        SelfTestFailed,
        StaleTables,
        UnknownBackend,
        UnknownFact,
        UnknownScheme,
        UnknownSwitch,
        Unsupported,
    )
    from qscheme.facts import Facts
    from qscheme.linear import Linear, quantize
    from qscheme.selection import dispatch, explain

_HOMES = {
    "agree": "agreement",
    "dispatch": "selection",
    "explain": "selection",
    "quantize": "linear",
    "Linear": "linear",
    "Facts": "facts",
    "QschemeError": "errors",
    "BindFailed": "errors",
    "Disagreement": "errors",
    "InvalidInput": "errors",
    "InvalidLayer": "errors",
    "SelfTestFailed": "errors",
    "StaleTables": "errors",
    "UnknownBackend": "errors",
    "UnknownFact": "errors",
    "UnknownScheme": "errors",
    "UnknownSwitch": "errors",
    "Unsupported": "errors",
}

__all__ = [
    "BindFailed",
    "Disagreement",
    "Facts",
    "InvalidInput",
    "InvalidLayer",
    "Linear",
    "QschemeError",
    "SelfTestFailed",
    "StaleTables",
    "UnknownBackend",
    "UnknownFact",
    "UnknownScheme",
    "UnknownSwitch",
    "Unsupported",
    "agree",
    "dispatch",
    "explain",
    "quantize",
]


def __getattr__(name: str) -> object:
    """Public names, loaded on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
