"""Finds the generated tables, devices and switches included, and imports them when they are first asked for."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, cast

from qscheme.errors import QschemeError, StaleTables, UnknownScheme
from qscheme.types import INTERFACE, Scheme

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qscheme.types import Device, LibrarySource, Switch, TunedTable

GENERATED = "qscheme_generated"
"""The package that `qscheme generate` writes from the shipped schemes."""

_CURE = "run `qscheme generate`"


class _Names(Protocol):
    SCHEMES: tuple[str, ...]


class _Machines(Protocol):
    DEVICES: Mapping[str, Device]
    SWITCHES: Mapping[str, Switch]
    LIBRARIES: Mapping[str, LibrarySource]
    TUNED: Mapping[str, TunedTable]


_loaded: dict[str, tuple[ModuleType, Tables]] = {}


@dataclass(slots=True, eq=False, repr=False, match_args=False)
class Tables:
    """Generated tables: the names of the schemes, and everything that is known about machines.

    package: the importable package the tables stand in. Schemes are imported one by one, by `scheme`.
    """

    package: str
    schemes: tuple[str, ...]
    devices: Mapping[str, Device]
    switches: Mapping[str, Switch]
    libraries: Mapping[str, LibrarySource]
    tuned: Mapping[str, TunedTable]

    def scheme(self, name: str) -> Scheme:
        """The scheme called `name`; imports its module and no other.

        Raises UnknownScheme for a name that is not in `schemes`, StaleTables if its module does not fit this library.
        """
        if name not in self.schemes:
            raise UnknownScheme(name, self.schemes)
        module = _import(f"{self.package}.{name}")
        scheme: object = getattr(module, "SCHEME", None)
        if not isinstance(scheme, Scheme):
            raise StaleTables(f"{module.__name__}.SCHEME is no scheme; {_CURE}")
        return scheme


def load(tables: ModuleType | str | Tables | None = None) -> Tables:
    """The tables of a generated package, given as a module or by name; None means the package of the shipped schemes.

    Loaded once for each package. Safe to call from many threads: all of them get the same object.
    Raises StaleTables if the package is missing or was made for another runtime interface.
    """
    if isinstance(tables, Tables):
        return tables
    given = tables if isinstance(tables, ModuleType) else None
    name = given.__name__ if given else str(GENERATED if tables is None else tables)
    known = _loaded.get(name)
    if known is not None and known[0] is (given or sys.modules.get(name)):
        return known[1]
    module = given or _import(name)  # which may be in sys.modules and not ready, while another thread imports it
    found = _read(module)
    if known is None:
        return _loaded.setdefault(name, (module, found))[1]
    _loaded[name] = (module, found)
    return found


def shipped_schemes() -> Path:
    """The folder of the YAML files that qscheme ships: inside the package in a wheel, beside it in a checkout.

    Raises QschemeError if neither is there.
    """
    return _schemes_of(Path(__file__).resolve().parent)


def _schemes_of(package: Path) -> Path:
    places = (package / "shipped_schemes", package.parent / "schemes")
    for place in places:
        if (place / "devices.yaml").is_file():
            return place
    raise QschemeError(
        f"the schemes that qscheme ships are missing: no devices.yaml in {places[0]} or {places[1]}; "
        "install qscheme again"
    )


def _read(module: ModuleType) -> Tables:
    interface = getattr(module, "INTERFACE", None)
    if interface != INTERFACE:
        raise StaleTables(
            f"the tables in {module.__name__} need runtime interface {interface}, this qscheme has {INTERFACE}; {_CURE}"
        )
    names = cast("_Names", module)
    machines = cast("_Machines", _import(f"{module.__name__}.machines"))
    try:
        return Tables(
            package=module.__name__,
            schemes=names.SCHEMES,
            devices=machines.DEVICES,
            switches=machines.SWITCHES,
            libraries=machines.LIBRARIES,
            tuned=machines.TUNED,
        )
    except AttributeError as error:
        raise StaleTables(f"the tables in {module.__name__} are incomplete: {error}; {_CURE}") from error


def _import(name: str) -> ModuleType:
    """Import a generated module; what generated code cannot find of itself or of qscheme makes the tables stale."""
    package = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if (
            isinstance(error, ModuleNotFoundError)
            and error.name is not None
            and f"{name}.".startswith(f"{error.name}.")
        ):
            raise StaleTables(f"the generated tables are missing: there is no module {error.name}; {_CURE}") from error
        if missing in ("qscheme", package):
            raise StaleTables(f"the generated module {name} does not fit this qscheme: {error}; {_CURE}") from error
        raise
