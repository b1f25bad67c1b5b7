"""Facts are probed without side effects or given as plain data, and each one knows where it came from."""

from __future__ import annotations

import importlib
import multiprocessing
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from typing import TYPE_CHECKING

import pytest
import torch
import yaml

from qscheme import facts as probing
from qscheme.errors import QschemeError, UnknownFact, UnknownSwitch
from qscheme.facts import Facts, parse_switch
from qscheme.tables import Tables, shipped_schemes
from qscheme.types import Device, Kernel, LibrarySource, Switch, TunedTable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def shipped_machines() -> Tables:
    """The devices and switches that qscheme ships, with the libraries of this test."""
    devices = yaml.safe_load((shipped_schemes() / "devices.yaml").read_text())["devices"]
    switches = yaml.safe_load((shipped_schemes() / "switches.yaml").read_text())["switches"]
    return Tables(
        package="stand_in",
        schemes=(),
        devices={
            name: Device(
                name, **{**facts, "fp8": None if facts["fp8"] == "none" else facts["fp8"],
                         "compute_units": tuple(facts["compute_units"])}
            )
            for name, facts in devices.items()
        },
        switches={
            name: Switch(name, switch["default"], tuple(switch["variables"]), switch["meaning"])
            for name, switch in switches.items()
        },
        libraries={
            "aiter": LibrarySource("aiter", ("amd-aiter", "aiter"), "aiter.json"),
            "torch": LibrarySource("torch", ("torch",)),
        },
        tuned={"a4w4": TunedTable("a4w4", "aiter", "csv", ("configs/a4w4.csv",), variable="A4W4_FILES")},
    )  # fmt: skip


TABLES = shipped_machines()
SWITCH_VARIABLES = [variable for switch in TABLES.switches.values() for variable in switch.variables]
VISIBILITY = ["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION"]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in SWITCH_VARIABLES + VISIBILITY:
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An import name that no package has, in a folder at the head of the path."""
    monkeypatch.syspath_prepend(tmp_path)
    return f"stand_in_library_{tmp_path.name}"


def source(name: str, releases: str | None = None) -> LibrarySource:
    return LibrarySource(name, (f"{name}-wheel", name), releases)


def install(
    root: Path, name: str, distribution: str, version: str, text: str = "raise RuntimeError('imported')"
) -> None:
    """A package, and the metadata of a distribution that owns it."""
    (root / name).mkdir(exist_ok=True)
    (root / name / "__init__.py").write_text(text)
    info = root / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    importlib.invalidate_caches()


def kfd_node(sysfs: Path, number: int, version: int, simds: int, **more: int) -> None:
    """A node as the driver lists it; a CPU has no SIMDs."""
    folder = sysfs / str(number)
    folder.mkdir(parents=True)
    values = {"cpu_cores_count": 0, "simd_count": simds, "simd_per_cu": 4, "gfx_target_version": version, **more}
    (folder / "properties").write_text("".join(f"{name} {value}\n" for name, value in values.items()))


@pytest.fixture
def eight_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CPU node, then GPUs of 304 compute units, one of 80, and one of another architecture; torch is no CUDA build."""
    monkeypatch.setattr(torch.version, "cuda", None)
    sysfs = tmp_path / "nodes"
    kfd_node(sysfs, 0, 0, 0, cpu_cores_count=96)
    for number in range(1, 7):
        kfd_node(sysfs, number, 90402, 304 * 4, unique_id=number)
    kfd_node(sysfs, 7, 90402, 80 * 4, unique_id=0xABC)
    kfd_node(sysfs, 10, 90500, 256 * 4, unique_id=10)
    return sysfs


def gpus(sysfs: Path, **environment: str) -> list[str]:
    found, _ = probing._visible(probing._kfd_gpus(sysfs, environment), environment, rocm=True)
    return [gpu.origin.removeprefix("KFD topology node ") for gpu in found]


# switches


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None), (" \t", None), ("0", False), ("1", True), ("true", True), ("TRUE", True), ("False", False),
        ("yes", True), ("no", False), ("On", True), ("off", False), (" 1 ", True), ("\t0\n", False),
    ],
)  # fmt: skip
def test_a_switch_word_is_on_off_or_nothing(text: str, value: bool | None) -> None:
    assert value is parse_switch("QSCHEME_AITER", text)


@pytest.mark.parametrize("text", ["2", "-1", "\u00a01", "1\u2009", "y", "enable", "None", "1,0", "\uff11", "tru e"])
def test_any_other_switch_word_is_an_error_that_names_the_variable(text: str) -> None:
    with pytest.raises(UnknownSwitch, match=r"^QSCHEME_AITER needs one of 1, true, yes, on, 0, false, no, off; found "):
        parse_switch("QSCHEME_AITER", text)


def test_a_wrong_word_in_the_environment_stops_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ROCM_USE_AITER", "maybe")
    with pytest.raises(UnknownSwitch, match=r"VLLM_ROCM_USE_AITER .* found 'maybe'"):
        Facts.of_this_machine("cpu", TABLES, refresh=True)


@pytest.mark.parametrize(
    ("environment", "value", "origin"),
    [
        ({}, True, "default"),
        ({"VLLM_ROCM_USE_AITER": "0"}, False, "VLLM_ROCM_USE_AITER=0"),
        ({"QSCHEME_AITER": "no", "VLLM_ROCM_USE_AITER": "1"}, False, "QSCHEME_AITER=no"),
        ({"QSCHEME_AITER": "", "VLLM_ROCM_USE_AITER": "off"}, False, "VLLM_ROCM_USE_AITER=off"),
    ],
)
def test_the_first_variable_that_says_something_wins(
    monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str], value: bool, origin: str
) -> None:
    for variable, text in environment.items():
        monkeypatch.setenv(variable, text)
    facts = Facts.of_this_machine("cpu", TABLES, refresh=True)
    assert (value, origin) == (facts.on("aiter"), facts.origins["switch aiter"])


def test_two_settings_of_a_switch_live_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QSCHEME_AITER", "1")
    before = Facts.of_this_machine("cpu", TABLES, refresh=True)
    monkeypatch.setenv("QSCHEME_AITER", "0")
    assert before is Facts.of_this_machine("cpu", TABLES)
    after = Facts.of_this_machine("cpu", TABLES, refresh=True)
    assert [before.on("aiter"), after.on("aiter")] == [True, False]
    assert after is Facts.of_this_machine("cpu", TABLES)


# simulated machines


@pytest.mark.parametrize("arch", sorted(TABLES.devices))
def test_every_shipped_architecture_can_be_simulated(arch: str) -> None:
    facts = Facts.simulate(arch, tables=TABLES)
    assert (TABLES.devices[arch], ()) == (facts.device, facts.notes)


@pytest.mark.parametrize("arch", ["gfx950:sramecc+:xnack+", "gfx950:sramecc+", " gfx950 "])
def test_features_behind_an_architecture_do_not_matter(arch: str) -> None:
    assert TABLES.devices["gfx950"] == Facts.simulate(arch, tables=TABLES).device


def test_an_unknown_architecture_has_no_matrix_units_and_a_note() -> None:
    facts = Facts.simulate("gfx951", tables=TABLES)
    assert Device("gfx951", "unknown", "unknown", None, mx=False, int8=False, wave=0) == facts.device
    assert facts.notes == ("unknown architecture 'gfx951'; did you mean 'gfx950'?",)


@pytest.mark.parametrize(
    ("asked", "note"),
    [
        ("mi300x", "unknown architecture 'mi300x'; MI300X is gfx942"),
        ("AMD Instinct MI355X", "unknown architecture 'AMD Instinct MI355X'; MI355X is gfx950"),
        ("gh200", "unknown architecture 'gh200'; GH200 is sm_90"),
        ("RX-7900-XTX", "unknown architecture 'RX-7900-XTX'; RX 7900 XTX is gfx1100"),
        ("sm90", "unknown architecture 'sm90'; did you mean 'sm_90'?"),
    ],
)
def test_a_product_is_told_its_architecture_and_stays_unknown(asked: str, note: str) -> None:
    facts = Facts.simulate(asked)
    assert (facts.notes, facts.device.vendor) == ((note,), "unknown")


def test_an_architecture_without_a_name_is_an_error() -> None:
    with pytest.raises(UnknownFact, match="needs the name of an architecture, found ':xnack'"):
        Facts.simulate(":xnack", tables=TABLES)


def test_a_capability_of_one_vendor_says_nothing_about_another() -> None:
    fp8 = {arch: Facts.simulate(arch, tables=TABLES).device.fp8 for arch in ("gfx90a", "sm_90")}
    assert fp8 == {"gfx90a": None, "sm_90": "fn"}
    mx = {arch: Facts.simulate(arch, tables=TABLES).device.mx for arch in ("gfx1201", "sm_120")}
    assert mx == {"gfx1201": False, "sm_120": True}


@pytest.mark.parametrize("units", [304, 80, 38, 20])
def test_compute_units_change_nothing_but_themselves(units: int) -> None:
    facts = Facts.simulate("gfx942", compute_units=units, tables=TABLES)
    assert (TABLES.devices["gfx942"], units) == (facts.device, facts.compute_units)


def test_a_simulated_device_is_whole_unless_said_otherwise() -> None:
    whole, cpu = Facts.simulate("gfx942", tables=TABLES), Facts.simulate("cpu", tables=TABLES)
    assert (whole.compute_units, whole.origins["compute_units"]) == (304, "default: a whole device")
    assert (cpu.compute_units, "compute_units" in cpu.origins) == (None, False)


def test_compute_units_are_positive() -> None:
    with pytest.raises(UnknownFact, match="compute_units needs a positive number, found 0"):
        Facts.simulate("gfx942", compute_units=0, tables=TABLES)


def test_switches_are_given_by_name() -> None:
    facts = Facts.simulate("gfx942", switches={"batch_invariant": True}, tables=TABLES)
    defaults = {name: switch.default for name, switch in TABLES.switches.items()}
    assert facts.switches == {**defaults, "batch_invariant": True} != defaults
    assert (facts.origins["switch batch_invariant"], facts.origins["switch aiter"]) == ("given", "default")


def test_a_simulation_reads_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in SWITCH_VARIABLES:
        monkeypatch.setenv(variable, "neither")
    monkeypatch.setenv("HSA_OVERRIDE_GFX_VERSION", "12.0.1")
    facts = Facts.simulate("gfx942", tables=TABLES)
    assert (facts.arch, facts.on("aiter")) == ("gfx942", True)


def test_unknown_names_are_errors_with_a_suggestion() -> None:
    with pytest.raises(UnknownSwitch, match=r"unknown switch 'aiter_liner'; did you mean 'aiter_linear'\?"):
        Facts.simulate("gfx942", switches={"aiter_liner": True}, tables=TABLES)
    with pytest.raises(UnknownFact, match=r"unknown library 'aitr'; did you mean 'aiter'\?"):
        Facts.simulate("gfx942", aitr="0.1.20", tables=TABLES)


def test_a_switch_is_given_as_a_boolean() -> None:
    wrong: Mapping[str, bool] = {"aiter": "0"}  # a word, as from an environment
    with pytest.raises(UnknownSwitch, match="switch aiter needs True or False, found '0'"):
        Facts.simulate("gfx942", switches=wrong, tables=TABLES)


def test_a_release_may_have_a_v() -> None:
    versions = [
        Facts.simulate("gfx942", aiter=text, tables=TABLES).libraries["aiter"].version for text in ("v0.1.9", "0.1.9")
    ]
    assert versions == ["0.1.9", "0.1.9"]


@pytest.mark.parametrize("text", [None, "none"])
def test_a_library_may_be_given_as_absent(text: str | None) -> None:
    facts = Facts.simulate("gfx942", aiter=text, tables=TABLES)
    assert (facts.libraries["aiter"].absence, facts.origins["library aiter"]) == ("given as absent", "given")


def test_a_kernel_of_an_absent_library_is_lacking() -> None:
    kernel = Kernel("gemm", "aiter", (), adapt=lambda index, symbols: print)
    reasons = Facts.simulate("gfx942", aiter=None, tables=TABLES).lacks(kernel)
    assert [(reason.kind, reason.text) for reason in reasons] == [("library", "needs aiter, found given as absent")]


@pytest.mark.parametrize("text", ["newest", "", "0.1.x"])
def test_a_release_is_a_version(text: str) -> None:
    with pytest.raises(UnknownFact, match="aiter needs a release such as"):
        Facts.simulate("gfx942", aiter=text, tables=TABLES)


def test_the_running_torch_is_assumed() -> None:
    assert metadata.version("torch") == Facts.simulate("gfx942", tables=TABLES).libraries["torch"].version


def test_the_newest_known_release_is_assumed() -> None:
    facts = Facts.simulate("gfx942", tables=TABLES)
    version = facts.libraries["aiter"].version
    assert version is not None and not version.startswith("v")
    assert not facts.offers.older("aiter", "v0.1.20.post1")


@pytest.mark.parametrize(
    ("hip", "cuda", "rocm_is", "cuda_is"),
    [
        ("7.2.26015-fc0010cf6a", None, ("7.2.26015", None), (None, "none, torch {} is built without it")),
        (None, "12.8", (None, "none, torch {} is built without it"), ("12.8", None)),
    ],
)
def test_the_versions_of_rocm_and_cuda_are_those_that_torch_is_built_for(
    hip: str | None,
    cuda: str | None,
    rocm_is: tuple[str | None, str | None],
    cuda_is: tuple[str | None, str | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.version.hip", hip)
    monkeypatch.setattr("torch.version.cuda", cuda)
    facts = Facts.of_this_machine("cpu", TABLES, refresh=True)
    monkeypatch.undo()
    Facts.of_this_machine("cpu", TABLES, refresh=True)
    for name, (version, absence) in (("rocm", rocm_is), ("cuda", cuda_is)):
        found = facts.libraries[name]
        expected = absence and absence.format(metadata.version("torch"))
        assert (version, expected) == (found.version, found.absence)
        assert facts.origins[f"toolchain {name}"] == f"torch.version.{'hip' if name == 'rocm' else 'cuda'}"


def test_the_installed_triton_is_found_without_importing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    facts = Facts.of_this_machine("cpu", TABLES, refresh=True)
    assert (metadata.version("triton"), False) == (facts.libraries["triton"].version, "triton" in sys.modules)
    assert facts.origins["toolchain triton"].endswith("triton")


def test_a_toolchain_that_is_not_named_is_of_an_unknown_version_on_devices_of_its_vendor_and_absent_elsewhere() -> None:
    found = {
        arch: [Facts.simulate(arch, tables=TABLES).version(name) for name in ("rocm", "cuda", "triton")]
        for arch in ("gfx942", "sm_90", "cpu")
    }
    unknown, absent = "an unknown version", "none, on a device of {}"
    assert {
        "gfx942": [unknown, absent.format("amd"), unknown],
        "sm_90": [absent.format("nvidia"), unknown, unknown],
        "cpu": [absent.format("cpu"), absent.format("cpu"), unknown],
    } == found


def test_a_release_that_no_history_knows_is_noted() -> None:
    notes = [Facts.simulate("gfx942", aiter=text, tables=TABLES).notes for text in ("0.1.20", "0.1.20.post77")]
    assert (
        notes[0],
        notes[1],
    ) == ((), ("aiter 0.1.20.post77 is not among the known releases; taken for 0.1.20.post1",))


@pytest.mark.parametrize(("tuned", "found"), [("none", "no row, tuned tables were given as none"), ("all", None)])
def test_tuned_tables_may_be_given_as_none_or_all(tuned: str, found: str | None) -> None:
    facts = Facts.simulate("gfx950", tuned=tuned, tables=TABLES)
    assert found == facts.tuned.untuned(TABLES.tuned["a4w4"], facts.device, facts.compute_units, 512, 768, (1024,))


def test_tuned_tables_may_be_given_as_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("table,arch,cu_num,M,N,K\na4w4,gfx950,256,1024,512,768\n")
    for given in (path, str(path)):
        facts = Facts.simulate("gfx950", tuned=given, tables=TABLES)
        ask = facts.tuned.untuned(TABLES.tuned["a4w4"], facts.device, facts.compute_units, 512, 768, (1024,))
        assert ask is None


def test_a_file_of_tuned_rows_names_known_tables(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("table,arch,cu_num,M,N,K\na4w5,gfx950,256,1024,512,768\n")
    with pytest.raises(QschemeError, match=r":2: unknown table 'a4w5'; did you mean 'a4w4'\?"):
        Facts.simulate("gfx950", tuned=path, tables=TABLES)


# installed libraries


def test_an_installed_library_is_found_without_importing_it(tmp_path: Path, library: str) -> None:
    install(tmp_path, library, f"{library}-wheel", "1.2.3")
    found = probing._installed(source(library))
    assert ("1.2.3", str(tmp_path / library), None) == (found.version, found.location, found.absence)
    assert library not in sys.modules


def test_a_library_that_raises_on_import_is_still_found(tmp_path: Path, library: str) -> None:
    install(tmp_path, library, library, "1", "raise RuntimeError('Unknown GPU architecture: gfx1201')")
    assert probing._installed(source(library)).absence is None


def test_a_library_that_is_not_there_is_not_installed(library: str) -> None:
    found = probing._installed(source(library))
    assert (found.absence, found.location) == ("not installed", None)


def test_a_distribution_without_its_package_is_said(tmp_path: Path, library: str) -> None:
    install(tmp_path, library, f"{library}-wheel", "1.2.3")
    (tmp_path / library / "__init__.py").unlink()
    (tmp_path / library).rmdir()
    importlib.invalidate_caches()
    expected = f"not installed, although there is a distribution {library}-wheel 1.2.3"
    assert expected == probing._installed(source(library)).absence


def test_a_bare_directory_does_not_pass_for_the_package(tmp_path: Path, library: str) -> None:
    (tmp_path / library).mkdir()
    importlib.invalidate_caches()
    expected = f"a directory named {library} at {tmp_path / library} shadows the package"
    assert expected == probing._installed(source(library)).absence


def test_another_project_of_that_name_does_not_pass_for_the_library(tmp_path: Path, library: str) -> None:
    install(
        tmp_path,
        library,
        library,
        "0.13.20191203",
        "async def anext(iterator):\n    return await iterator.__anext__()\n",
    )
    found = probing._installed(source(library, "aiter.json"))
    expected = f"package {library} 0.13.20191203 is another one of that name (none of the kernels are there)"
    assert (expected, False) == (found.absence, library in sys.modules)


def test_the_version_is_that_of_the_distribution_that_owns_the_package(tmp_path: Path, library: str) -> None:
    install(tmp_path, library, library, "2.0")
    other = tmp_path / "other"
    other.mkdir()
    install(other, library, f"{library}-wheel", "1.0")
    sys.path.append(str(other))
    try:
        importlib.invalidate_caches()
        assert probing._installed(source(library)).version == "2.0"
    finally:
        sys.path.remove(str(other))


def test_the_first_of_several_owners_gives_the_version(tmp_path: Path, library: str) -> None:
    install(tmp_path, library, library, "2.0")
    install(tmp_path, library, f"{library}-wheel", "1.0")
    assert probing._installed(source(library)).version == "1.0"


def test_an_editable_installation_owns_the_package_of_its_checkout(tmp_path: Path, library: str) -> None:
    checkout, site = tmp_path / "a checkout", tmp_path / "site"
    (checkout / library).mkdir(parents=True)
    (checkout / library / "__init__.py").touch()
    site.mkdir()
    install(site, "unrelated", f"{library}-wheel", "3.1")
    info = site / f"{library}_wheel-3.1.dist-info"
    (info / "direct_url.json").write_text(f'{{"url": "{checkout.as_uri()}", "dir_info": {{"editable": true}}}}')
    sys.path[:0] = [str(checkout), str(site)]
    try:
        importlib.invalidate_caches()
        assert probing._installed(source(library)).version == "3.1"
    finally:
        del sys.path[:2]


def test_a_package_without_metadata_has_no_version_but_is_there(tmp_path: Path, library: str) -> None:
    (tmp_path / library).mkdir()
    (tmp_path / library / "__init__.py").touch()
    importlib.invalidate_caches()
    found = probing._installed(source(library))
    assert (None, None, str(tmp_path / library)) == (found.version, found.absence, found.location)


# devices


def test_the_architecture_of_a_kfd_node_is_its_target_version(tmp_path: Path) -> None:
    versions = {
        90010: "gfx90a",
        90402: "gfx942",
        90500: "gfx950",
        110501: "gfx1151",
        120001: "gfx1201",
        120500: "gfx1250",
    }
    for number, version in enumerate(versions):
        kfd_node(tmp_path, number, version, 8)
    assert list(versions.values()) == [gpu.arch for gpu in probing._kfd_gpus(tmp_path, {})]


def test_each_gpu_speaks_for_itself(eight_gpus: Path) -> None:
    found = [(gpu.arch, gpu.compute_units) for gpu in probing._kfd_gpus(eight_gpus, {})]
    assert [*[("gfx942", 304)] * 6, ("gfx942", 80), ("gfx950", 256)] == found


def test_a_named_gpu_is_the_one_that_is_asked(eight_gpus: Path) -> None:
    found = [probing._find("cuda", index, {}, eight_gpus)[:2] for index in (0, 6, 7)]
    assert [(gpu.arch, gpu.compute_units, place) for gpu, place in found] == [
        ("gfx942", 304, 0),
        ("gfx942", 80, 6),
        ("gfx950", 256, 7),
    ]


def test_a_gpu_that_is_not_there_is_an_error(eight_gpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownFact, match="no device cuda:8: 8 of 8 GPUs are visible"):
        probing._find("cuda", 8, {}, eight_gpus)
    with pytest.raises(UnknownFact, match="no device cuda:1: 1 of 8 GPUs are visible"):
        probing._find("cuda", 1, {"HIP_VISIBLE_DEVICES": "7"}, eight_gpus)


@pytest.mark.parametrize(
    ("environment", "nodes"),
    [
        ({"ROCR_VISIBLE_DEVICES": "6,0"}, ["7", "1"]),
        ({"HIP_VISIBLE_DEVICES": "7"}, ["10"]),
        ({"CUDA_VISIBLE_DEVICES": " 7 , 1 "}, ["10", "2"]),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "7"}, ["2"]),
        ({"ROCR_VISIBLE_DEVICES": "6,7", "HIP_VISIBLE_DEVICES": "1"}, ["10"]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-0000000000000abc"}, ["7"]),
        ({"HIP_VISIBLE_DEVICES": "0,8,1"}, ["1"]),
        ({"HIP_VISIBLE_DEVICES": "0,-1,1"}, ["1"]),
        ({"HIP_VISIBLE_DEVICES": ""}, []),
        ({}, ["1", "2", "3", "4", "5", "6", "7", "10"]),
    ],
)
def test_environment_variables_choose_and_order_gpus(
    eight_gpus: Path, environment: dict[str, str], nodes: list[str]
) -> None:
    assert nodes == gpus(eight_gpus, **environment)


def test_a_variable_that_hides_gpus_is_noted(eight_gpus: Path) -> None:
    notes = probing._find("cuda", 0, {"HIP_VISIBLE_DEVICES": "7,1"}, eight_gpus)[2]
    assert notes == ("HIP_VISIBLE_DEVICES=7,1 leaves 2 of 8 GPUs",)


@pytest.mark.parametrize("variable", ["HSA_OVERRIDE_GFX_VERSION", "HSA_OVERRIDE_GFX_VERSION_1"])
def test_an_overridden_architecture_is_taken_and_noted(tmp_path: Path, variable: str) -> None:
    kfd_node(tmp_path, 1, 110501, 160)
    (gpu,) = probing._kfd_gpus(tmp_path, {variable: "12.0.1"})
    assert ("gfx1201", variable) == (gpu.arch, gpu.origin)
    assert (f"{variable}=12.0.1 makes a gfx1151 pass for a gfx1201",) == gpu.notes


def test_an_override_of_another_node_or_of_nonsense_changes_nothing(tmp_path: Path) -> None:
    kfd_node(tmp_path, 1, 110501, 160)
    for environment in ({"HSA_OVERRIDE_GFX_VERSION_2": "12.0.1"}, {"HSA_OVERRIDE_GFX_VERSION": "gfx1201"}):
        (gpu,) = probing._kfd_gpus(tmp_path, environment)
        assert (gpu.arch, gpu.notes) == ("gfx1151", ())


def test_nodes_that_cannot_be_read_are_other_peoples(tmp_path: Path) -> None:
    (tmp_path / "1" / "properties").mkdir(parents=True)
    kfd_node(tmp_path, 2, 90402, 8)
    (tmp_path / "3").mkdir()
    (tmp_path / "notes").mkdir()
    assert [gpu.origin for gpu in probing._kfd_gpus(tmp_path, {})] == ["KFD topology node 2"]


def test_a_machine_without_a_topology_has_no_amd_gpus(tmp_path: Path) -> None:
    assert probing._kfd_gpus(tmp_path / "gone", {}) == []


def test_a_gpu_that_this_torch_cannot_use_is_noted(eight_gpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.version, "cuda", None)
    gpu, place, notes = probing._find("", None, {}, eight_gpus)
    assert (gpu.arch, place, len(notes)) == ("cpu", None, 1)
    assert notes[0].startswith("a gfx942 is there (KFD topology node 1), but torch ")


def test_a_rocm_torch_uses_the_first_gpu_without_starting_it(eight_gpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.1")
    monkeypatch.setattr(torch.version, "cuda", None)
    gpu, place, notes = probing._find("", None, {"HIP_VISIBLE_DEVICES": "7"}, eight_gpus)
    assert (gpu.arch, gpu.compute_units, place, len(notes)) == ("gfx950", 256, 0, 1)
    assert not torch.cuda.is_initialized()


def test_a_rocm_torch_without_a_gpu_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.1")
    monkeypatch.setattr(torch.version, "cuda", None)
    gpu, _, notes = probing._find("", None, {}, tmp_path)
    assert (
        gpu.arch,
        notes[0].endswith("is built for GPUs, but the system shows none; taken for a CPU"),
    ) == ("cpu", True)


def test_gpus_that_are_all_hidden_leave_the_cpu(eight_gpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.1")
    monkeypatch.setattr(torch.version, "cuda", None)
    gpu, place, notes = probing._find("", None, {"HIP_VISIBLE_DEVICES": ""}, eight_gpus)
    assert (gpu.arch, place, notes) == ("cpu", None, ("HIP_VISIBLE_DEVICES= leaves 0 of 8 GPUs",))


def test_gpus_of_two_kinds_in_an_unknown_order_must_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cards = [probing._Gpu(arch, None, f"GPU-{arch}", "NVML device") for arch in ("sm_89", "sm_86")]
    monkeypatch.setattr(probing, "_nvml_gpus", lambda: cards)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    with pytest.raises(UnknownFact, match=r"different GPUs \(sm_86, sm_89\) in an order that only CUDA knows"):
        probing._find("", None, {}, tmp_path)
    ordered = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert [probing._find("cuda", index, ordered, tmp_path)[0].arch for index in (0, 1)] == ["sm_89", "sm_86"]
    assert probing._find("", None, {"CUDA_VISIBLE_DEVICES": "GPU-sm_86"}, tmp_path)[0].arch == "sm_86"


def test_the_cpu_is_a_device_like_any_other() -> None:
    facts = Facts.of_this_machine("cpu", TABLES)
    assert (TABLES.devices["cpu"], None, None) == (facts.device, facts.index, facts.compute_units)
    assert facts is Facts.of_this_machine(torch.device("cpu"), TABLES)


def test_a_kind_of_device_that_no_table_knows_is_unknown_and_noted() -> None:
    facts = Facts.of_this_machine("meta", TABLES)
    assert (facts.device.vendor, facts.notes[0].startswith("unknown architecture 'meta'")) == ("unknown", True)


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cpu:cpu"])
def test_a_device_that_torch_cannot_read_is_an_error(device: str) -> None:
    with pytest.raises(UnknownFact, match=f"no device '{device}'"):
        Facts.of_this_machine(device, TABLES)


def test_every_fact_says_where_it_came_from() -> None:
    names = {"device", "tuned", *(f"switch {name}" for name in TABLES.switches)}
    names |= {f"library {name}" for name in TABLES.libraries} | {
        f"toolchain {name}" for name in ("rocm", "cuda", "triton")
    }
    probed, given = Facts.of_this_machine("cpu", TABLES), Facts.simulate("gfx942", tables=TABLES)
    assert (names, names | {"compute_units"}) == (set(probed.origins), set(given.origins))


def test_files_that_replace_tuned_tables_are_taken_from_the_environment(
    tmp_path: Path, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, library, library, "1.0")
    table = TunedTable("rows", library, "csv", ("rows.csv",), variable="STAND_IN_ROWS")
    tables = Tables("stand_in", (), TABLES.devices, {}, {library: source(library)}, {"rows": table})
    own = tmp_path / "own.csv"
    own.write_text("cu_num,M,N,K\n256,1024,512,768\n")
    monkeypatch.setenv("STAND_IN_ROWS", str(own))
    facts = Facts.of_this_machine("cpu", tables)
    monkeypatch.delenv("STAND_IN_ROWS")
    assert facts.tuned.untuned(table, TABLES.devices["gfx950"], 256, 512, 768, (1024,)) is None


# processes and threads


def test_many_threads_get_the_same_facts() -> None:
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda _: Facts.of_this_machine("cpu", TABLES), range(64)))
    assert len({id(facts) for facts in found}) == 1


def test_two_sets_of_facts_are_different_however_equal() -> None:
    one, other = (Facts.simulate("gfx942", tables=TABLES) for _ in range(2))
    assert (len({one, other}), one != other) == (2, True)


@pytest.mark.parametrize("probed", [True, False])
def test_facts_survive_pickling(probed: bool) -> None:
    facts = Facts.of_this_machine("cpu", TABLES) if probed else Facts.simulate("gfx942", aiter="0.1.9", tables=TABLES)
    again = pickle.loads(pickle.dumps(facts))
    assert (Facts, facts.device, facts.libraries) == (type(again), again.device, again.libraries)
    assert (facts.switches, facts.notes, facts.origins) == (again.switches, again.notes, again.origins)
    assert again.offers.older("aiter", "v99")


def _told(facts: Facts) -> tuple[str, bool, str | None]:
    return facts.arch, facts.on("batch_invariant"), facts.libraries["aiter"].version


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_facts_mean_the_same_in_workers(method: str) -> None:
    facts = Facts.simulate("gfx950", aiter="0.1.9", switches={"batch_invariant": True}, tables=TABLES)
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert ("gfx950", True, "0.1.9") == _told(facts) == pool.apply(_told, (facts,))


def test_probing_imports_no_kernel_library_and_starts_no_gpu(tmp_path: Path) -> None:
    install(tmp_path, "aiter", "amd-aiter", "0.1.20")
    program = f"""
import os, sys
sys.path.insert(0, {str(tmp_path)!r})
from qscheme.facts import Facts
from qscheme.tables import Tables
from qscheme.types import Device, LibrarySource
cpu = Device("cpu", "cpu", "cpu", None, mx=False, int8=True, wave=1)
libraries = {{"aiter": LibrarySource("aiter", ("amd-aiter",))}}
facts = Facts.of_this_machine(None, Tables("stand_in", (), {{"cpu": cpu}}, {{}}, libraries, {{}}))
import torch
print(facts.libraries["aiter"].version, torch.cuda.is_initialized())
print({{"aiter", "triton", "qscheme_generated"}} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("0.1.20 False\nset()\n", "")


def test_a_simulation_imports_no_torch_and_no_kernel_library() -> None:
    program = """
import sys
from qscheme.facts import Facts
from qscheme.tables import Tables
from qscheme.types import LibrarySource
libraries = {"aiter": LibrarySource("aiter", ("amd-aiter",)), "torch": LibrarySource("torch", ("torch",))}
facts = Facts.simulate("gfx942", tables=Tables("stand_in", (), {}, {}, libraries, {}))
print(facts.libraries["torch"].version, sorted({"torch", "aiter", "triton", "yaml", "pydantic"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert f"{metadata.version('torch')} []\n" == done.stdout
