"""Generated tables are found, checked and imported only when they are asked for."""

from __future__ import annotations

import importlib
import itertools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from qscheme import tables
from qscheme.errors import QschemeError, StaleTables, UnknownScheme
from qscheme.types import INTERFACE

if TYPE_CHECKING:
    from collections.abc import Callable

MACHINES = """
from qscheme.types import Device, LibrarySource, Switch, TunedTable

DEVICES = {"gfx942": Device("gfx942", "amd", "cdna3", "fnuz", mx=False, int8=True, wave=64)}
SWITCHES = {"aiter": Switch("aiter", True, ("QSCHEME_AITER",), "AITER's kernels may be chosen")}
LIBRARIES = {"aiter": LibrarySource("aiter", ("amd-aiter",))}
TUNED = {"rows": TunedTable("rows", "aiter", "csv", ("configs/rows.csv",))}
"""

SCHEME = """
from qscheme.types import Operand, Rule, Scheme

_int8 = Operand("int8", "per_token", "fp32", Rule("amax_div", 127.0))
SCHEME = Scheme(
    name={name!r}, title="A stand-in", activation=_int8, weight=_int8, stored_scales=("fp32",), backends=()
)
"""

_numbers = itertools.count()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Writes a generated package and returns its name; no two tests share one."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(interface: str = f"INTERFACE = {INTERFACE}", machines: str = MACHINES, **schemes: str) -> str:
        name = f"stand_in_tables_{next(_numbers)}"
        folder = tmp_path / name
        folder.mkdir()
        (folder / "__init__.py").write_text(f"{interface}\nSCHEMES = {tuple(schemes)!r}\n")
        (folder / "machines.py").write_text(machines)
        for scheme, text in schemes.items():
            (folder / f"{scheme}.py").write_text(text)
        importlib.invalidate_caches()
        return name

    return write


def test_a_package_is_loaded_by_name(package: Callable[..., str]) -> None:
    name = package(int8_ptpc=SCHEME.format(name="int8_ptpc"))
    loaded = tables.load(name)
    assert (name, ("int8_ptpc",)) == (loaded.package, loaded.schemes)
    assert (list(loaded.devices), list(loaded.switches)) == (["gfx942"], ["aiter"])
    assert (list(loaded.libraries), list(loaded.tuned)) == (["aiter"], ["rows"])


def test_a_package_may_be_given_as_a_module(package: Callable[..., str]) -> None:
    name = package()
    assert tables.load(importlib.import_module(name)) is tables.load(name)


def test_loaded_tables_are_taken_as_they_are(package: Callable[..., str]) -> None:
    loaded = tables.load(package())
    assert loaded is tables.load(loaded)


def test_a_package_that_was_imported_anew_is_read_anew(package: Callable[..., str]) -> None:
    name = package()
    before = tables.load(name)
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        del sys.modules[module]
    assert before is not tables.load(name)


def test_a_scheme_is_imported_when_it_is_asked_for_and_no_other(package: Callable[..., str]) -> None:
    name = package(good=SCHEME.format(name="good"), broken="raise RuntimeError('imported')")
    loaded = tables.load(name)
    assert f"{name}.good" not in sys.modules
    assert loaded.scheme("good").name == "good"
    assert f"{name}.broken" not in sys.modules


def test_an_unknown_scheme_is_named_with_a_suggestion(package: Callable[..., str]) -> None:
    loaded = tables.load(package(int8_ptpc=SCHEME.format(name="int8_ptpc")))
    with pytest.raises(UnknownScheme, match=r"unknown scheme 'int8_ptcp'; did you mean 'int8_ptpc'\?"):
        loaded.scheme("int8_ptcp")


@pytest.mark.parametrize("name", ["os", "machines", "..machines", ""])
def test_only_listed_names_are_imported(package: Callable[..., str], name: str) -> None:
    with pytest.raises(UnknownScheme):
        tables.load(package(good=SCHEME.format(name="good"))).scheme(name)


def test_a_missing_package_names_the_cure() -> None:
    with pytest.raises(StaleTables, match=r"there is no module no_such_tables; run `qscheme generate`"):
        tables.load("no_such_tables")


@pytest.mark.parametrize(("interface", "found"), [(f"INTERFACE = {INTERFACE + 1}", INTERFACE + 1), ("", None)])
def test_another_interface_is_refused_with_both_numbers(
    package: Callable[..., str], interface: str, found: int | None
) -> None:
    with pytest.raises(StaleTables, match=rf"need runtime interface {found}, this qscheme has {INTERFACE}; run `qsch"):
        tables.load(package(interface=interface))


def test_machines_without_devices_are_stale(package: Callable[..., str]) -> None:
    with pytest.raises(StaleTables, match=r"no attribute 'DEVICES'; run `qscheme generate`"):
        tables.load(package(machines=""))


@pytest.mark.parametrize(
    "text", ["", "SCHEME = 1", "from qscheme.types import NoSuchThing", "import qscheme.no_such_module"]
)
def test_a_scheme_that_does_not_fit_this_library_is_stale(package: Callable[..., str], text: str) -> None:
    loaded = tables.load(package(odd=text))
    with pytest.raises(StaleTables, match="run `qscheme generate`"):
        loaded.scheme("odd")


def test_a_listed_scheme_without_a_module_is_stale(package: Callable[..., str], tmp_path: Path) -> None:
    name = package(gone=SCHEME.format(name="gone"))
    (tmp_path / name / "gone.py").unlink()
    with pytest.raises(StaleTables, match=rf"there is no module {name}\.gone"):
        tables.load(name).scheme("gone")


def test_a_library_that_generated_code_cannot_import_keeps_its_error(package: Callable[..., str]) -> None:
    loaded = tables.load(package(odd="import no_such_library"))
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        loaded.scheme("odd")


def test_many_threads_get_the_same_tables(package: Callable[..., str]) -> None:
    name = package(good=SCHEME.format(name="good"))
    with ThreadPoolExecutor(16) as pool:
        loaded = list(pool.map(lambda _: tables.load(name), range(64)))
        schemes = list(pool.map(lambda one: one.scheme("good"), loaded))
    assert (len({id(one) for one in loaded}), len({id(one) for one in schemes})) == (1, 1)


def test_the_shipped_schemes_of_a_checkout_are_beside_the_package() -> None:
    assert Path(tables.__file__).resolve().parent.parent / "schemes" == tables.shipped_schemes()


def test_the_shipped_schemes_of_a_wheel_are_inside_the_package(tmp_path: Path) -> None:
    inside, beside = tmp_path / "qscheme" / "shipped_schemes", tmp_path / "schemes"
    for folder in (inside, beside):
        folder.mkdir(parents=True)
        (folder / "devices.yaml").touch()
    assert inside == tables._schemes_of(tmp_path / "qscheme")


def test_a_folder_of_that_name_without_devices_is_not_taken_for_the_shipped_schemes(tmp_path: Path) -> None:
    (tmp_path / "schemes").mkdir()
    with pytest.raises(QschemeError, match=r"no devices\.yaml in .*install qscheme again"):
        tables._schemes_of(tmp_path / "qscheme")


def test_importing_tables_imports_no_torch_and_no_yaml() -> None:
    program = "import sys, qscheme.tables; print(sorted({'torch', 'yaml', 'pydantic', 'aiter'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip() == "[]"


def test_every_shipped_device_says_everything() -> None:
    devices = yaml.safe_load((tables.shipped_schemes() / "devices.yaml").read_text())["devices"]
    keys = ["compute_units", "family", "fp8", "int8", "mx", "vendor", "wave"]
    assert dict.fromkeys(devices, keys) == {name: sorted({*device} - {"products"}) for name, device in devices.items()}


def test_no_two_architectures_are_sold_under_one_name() -> None:
    devices = yaml.safe_load((tables.shipped_schemes() / "devices.yaml").read_text())["devices"]
    sold = [product for device in devices.values() for product in device.get("products", ())]
    assert sorted(set(sold)) == sorted(sold)
    assert {"MI300X", "MI325X"} < set(devices["gfx942"]["products"])


@pytest.mark.parametrize(
    ("fact", "value", "those"),
    [
        ("fp8", "fnuz", {"gfx940", "gfx941", "gfx942"}),
        ("fp8", "none", {"gfx90a", "gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151", "sm_75", "sm_80",
                         "sm_86", "cpu"}),
        ("mx", True, {"gfx950", "gfx1250", "sm_100", "sm_103", "sm_120"}),
        ("wave", 64, {"gfx90a", "gfx940", "gfx941", "gfx942", "gfx950"}),
    ],
)  # fmt: skip
def test_a_fact_holds_for_exactly_these_devices(fact: str, value: object, those: set[str]) -> None:
    devices = yaml.safe_load((tables.shipped_schemes() / "devices.yaml").read_text())["devices"]
    assert those == {name for name, device in devices.items() if device[fact] == value}


def test_no_two_switches_share_a_variable() -> None:
    switches = yaml.safe_load((tables.shipped_schemes() / "switches.yaml").read_text())["switches"]
    variables = [variable for switch in switches.values() for variable in switch["variables"]]
    assert len(variables) == len(set(variables))
