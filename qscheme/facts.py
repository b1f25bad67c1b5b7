"""What a machine is: the only file that asks the driver, the installed libraries or the environment."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import re
import sys
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast
from urllib.parse import unquote, urlsplit

from qscheme import machine
from qscheme.errors import UnknownFact, UnknownSwitch, suggestion
from qscheme.machine import Library
from qscheme.releases import parsed, read_history
from qscheme.signatures import ReleaseOffers, is_library
from qscheme.tables import load, shipped_schemes
from qscheme.tuned import ALL_TUNED, NOTHING_TUNED, TunedFiles, TunedLibraries, read_tuned
from qscheme.types import TOOLCHAIN, Device, LibrarySource

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from types import ModuleType

    import torch

    from qscheme.machine import Tuned
    from qscheme.releases import History
    from qscheme.tables import Tables
    from qscheme.types import Switch

_KFD = Path("/sys/class/kfd/kfd/topology/nodes")
_OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"
_BLANKS = " \t\n\v\f\r"
_RUNTIMES = {"rocm": ("amd", "hip"), "cuda": ("nvidia", "cuda")}
"""The tools that torch is built for: the vendor of their devices, and the word of `torch.version`."""
_ON = frozenset({"1", "true", "yes", "on"})
_OFF = frozenset({"0", "false", "no", "off"})

_machines: dict[tuple[Tables, str, int | None], Facts] = {}


class _Properties(Protocol):
    major: int
    minor: int
    multi_processor_count: int
    gcnArchName: str  # noqa: N815


class _Cuda(Protocol):
    """The part of `torch.cuda` that is asked here."""

    def is_initialized(self) -> bool: ...
    def is_available(self) -> bool: ...
    def device_count(self) -> int: ...
    def current_device(self) -> int: ...
    def get_device_properties(self, device: int) -> _Properties: ...


@dataclass(frozen=True, slots=True)
class _Gpu:
    """A GPU as one source describes it."""

    arch: str
    compute_units: int | None
    identity: str
    origin: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Facts(machine.Facts):
    """What is known about a machine, probed or given.

    origins says where each fact came from: `device`, `compute_units`, `tuned`, `switch NAME`, `library NAME` and
    `toolchain NAME`.
    Facts may be pickled, and read from many threads and from forked or spawned workers.
    """

    @classmethod
    def of_this_machine(
        cls,
        device: torch.device | str | int | None = None,
        tables: ModuleType | str | Tables | None = None,
        *,
        refresh: bool = False,
    ) -> Facts:
        """The facts of one device of this machine; probed once for each device, and again with `refresh`.

        device: as torch names it, a number for a GPU, or None for the GPU that torch would use, else the CPU. A device
        speaks for itself alone: a machine with two kinds of GPUs has two sets of facts.
        The architecture is asked of the system (the KFD topology on ROCm, NVML on CUDA), which starts no GPU context
        and leaves the process free to fork; of torch only if its CUDA is already running, or if a GPU was named and
        the system does not tell. No kernel library is imported. Environment variables are read here and nowhere else.

        Raises UnknownFact for a device that is not there, UnknownSwitch for an environment variable of a switch that
        holds neither an on nor an off word, and StaleTables.
        """
        known = load(tables)
        kind, index = _named(device)
        key = (known, kind, index)
        if refresh or key not in _machines:
            facts = cls._probed(known, kind, index)
            if refresh:
                _machines[key] = facts
            return _machines.setdefault(key, facts)
        return _machines[key]

    @classmethod
    def simulate(
        cls,
        arch: str,
        *,
        switches: Mapping[str, bool] | None = None,
        tuned: str | Path | Tuned = "none",
        compute_units: int | None = None,
        tables: ModuleType | str | Tables | None = None,
        **libraries: str | None,
    ) -> Facts:
        """The facts of a machine that need not exist; nothing is asked of this one but its versions.

        arch: an architecture, suffixes such as `:sramecc+` are dropped; one that the tables do not know has no matrix
        units, and a note. switches: those that differ from their defaults. tuned: `none`, `all`, a CSV file (see
        `tuned.read_tuned`) or any object with `untuned`. compute_units: the first of the architecture's unless given.
        libraries: releases by name, with or without a `v`; None or `none` means absent. One that is not named is there
        in the newest release of its history, or in the version that is installed here. `rocm`, `cuda` and `triton` are
        given in the same way; one that is not named is of an unknown version, which breaks no limit, and absent on a
        device of another vendor.

        Raises UnknownFact for a library, release or number that cannot be, UnknownSwitch, and StaleTables.
        """
        known = load(tables)
        found, notes = _device(arch, known)
        chosen = _given_switches(switches or {}, known.switches)
        given = {name: _given(name, text, known) for name, text in libraries.items()}
        held = {name: given[name] if name in given else _assumed(source) for name, source in known.libraries.items()}
        tools = {name: given.get(name) or _unnamed(name, found) for name in TOOLCHAIN if name not in held}
        origins = {_origin(name, tools): "given" if name in given else "default" for name in (*held, *tools)}
        held |= tools
        units = compute_units if compute_units is not None else next(iter(found.compute_units), None)
        if units is not None and units < 1:
            raise UnknownFact(f"compute_units needs a positive number, found {units}")
        origins |= {"device": "given", "tuned": "given"}
        if units is not None:
            origins["compute_units"] = "default: a whole device" if compute_units is None else "given"
        origins |= {f"switch {name}": "given" if name in chosen else "default" for name in known.switches}
        return cls(
            device=found,
            libraries=held,
            switches={name: chosen.get(name, switch.default) for name, switch in known.switches.items()},
            offers=ReleaseOffers(held, shipped_schemes() / "releases"),
            tuned=_given_tuned(tuned, known),
            compute_units=units,
            notes=(*notes, *_between_releases(given, known)),
            origins=origins,
        )

    @classmethod
    def _probed(cls, known: Tables, kind: str, index: int | None) -> Facts:
        gpu, place, seen = _find(kind, index, os.environ, _KFD)
        device, notes = _device(gpu.arch, known)
        switches, switch_origins = _switches(known.switches, os.environ)
        libraries = {name: _installed(source) for name, source in known.libraries.items()}
        tools = _tools(known)
        libraries |= tools
        origins = {"device": gpu.origin, "tuned": "files of the installed libraries", **switch_origins}
        if gpu.compute_units is not None:
            origins["compute_units"] = gpu.origin
        origins |= {_origin(name, tools): library.location or "not found" for name, library in libraries.items()}
        return cls(
            device=device,
            libraries=libraries,
            switches=switches,
            offers=ReleaseOffers(libraries, shipped_schemes() / "releases"),
            tuned=TunedLibraries(
                {
                    name: TunedFiles(library.location, _overrides(name, known, os.environ))
                    for name, library in libraries.items()
                    if library.location is not None and library.absence is None
                }
            ),
            index=place,
            compute_units=gpu.compute_units,
            notes=(*seen, *gpu.notes, *notes),
            origins=origins,
        )


def _device(arch: str, known: Tables) -> tuple[Device, tuple[str, ...]]:
    """What the tables say of an architecture, and a note if that is nothing."""
    name = arch.strip(_BLANKS).partition(":")[0]
    if not name:
        raise UnknownFact(f"needs the name of an architecture, found {arch!r}")
    if name in known.devices:
        return known.devices[name], ()
    device = Device(name, "unknown", "unknown", fp8=None, mx=False, int8=False, wave=0)
    of = _sold_as(name, known)
    hint = f"; {of[1]} is {of[0]}" if of else suggestion(name, known.devices)
    return device, (f"unknown architecture {name!r}{hint}",)


def _sold_as(name: str, known: Tables) -> tuple[str, str] | None:
    """The architecture and the product in a name such as `mi300x` or `AMD Instinct MI300X`; None if there is none."""

    def words(text: str) -> str:
        return f" {' '.join(re.findall('[a-z0-9]+', text.lower()))} "

    asked = words(name)
    held = [
        (len(product), arch, product)
        for arch, device in known.devices.items()
        for product in device.products
        if words(product) in asked or words(product).replace(" ", "") == asked.strip()
    ]
    return max(held)[1:] if held else None


def parse_switch(variable: str, text: str) -> bool | None:
    """What an environment variable says: on, off, or None if it is empty.

    On: 1, true, yes, on. Off: 0, false, no, off. Capitals do not matter, nor do ASCII blanks around the word.
    Raises UnknownSwitch for any other text.
    """
    word = text.strip(_BLANKS).lower()
    if word in _ON or word in _OFF:
        return word in _ON
    if word:
        raise UnknownSwitch(f"{variable} needs one of 1, true, yes, on, 0, false, no, off; found {text!r}")
    return None


def _switches(switches: Mapping[str, Switch], environment: Mapping[str, str]) -> tuple[dict[str, bool], dict[str, str]]:
    """Every switch, and where its value came from."""
    values = {name: switch.default for name, switch in switches.items()}
    origins = {f"switch {name}": "default" for name in switches}
    for name, switch in switches.items():
        said = {variable: parse_switch(variable, environment.get(variable, "")) for variable in switch.variables}
        for variable, value in reversed(said.items()):
            if value is not None:
                values[name], origins[f"switch {name}"] = value, f"{variable}={environment[variable]}"
    return values, origins


def _given_switches(given: Mapping[str, bool], known: Mapping[str, Switch]) -> dict[str, bool]:
    for name, value in given.items():
        if name not in known:
            raise UnknownSwitch(f"unknown switch {name!r}{suggestion(name, known)}")
        if value is not True and value is not False:
            raise UnknownSwitch(f"switch {name} needs True or False, found {value!r}")
    return dict(given)


def _given_tuned(tuned: str | Path | Tuned, known: Tables) -> Tuned:
    if tuned in ("none", "all"):
        return NOTHING_TUNED if tuned == "none" else ALL_TUNED
    return read_tuned(tuned, known.tuned) if isinstance(tuned, (str, Path)) else tuned


def _overrides(library: str, known: Tables, environment: Mapping[str, str]) -> dict[str, str]:
    variables = {table.variable for table in known.tuned.values() if table.library == library and table.variable}
    return {variable: environment[variable] for variable in sorted(variables) if variable in environment}


def _given(name: str, release: str | None, known: Tables) -> Library:
    """A library as a simulation names it."""
    if name not in known.libraries and name not in TOOLCHAIN:
        raise UnknownFact(f"unknown library {name!r}{suggestion(name, (*known.libraries, *TOOLCHAIN))}")
    if release is None or release == "none":
        return Library(name, absence="given as absent")
    if parsed(release) is None:
        raise UnknownFact(f"{name} needs a release such as 0.1.20, none or nothing, found {release!r}")
    return Library(name, version=release.removeprefix("v"))


def _assumed(source: LibrarySource) -> Library:
    """A library that a simulation does not name."""
    history = _history(source)
    if history is not None:
        return Library(source.name, version=history.releases[-1].removeprefix("v"))
    return Library(source.name, version=_version_here(source, tuple(sys.path)))


@lru_cache(maxsize=64)
def _version_here(source: LibrarySource, path: tuple[str, ...]) -> str | None:
    """The version of what is installed on this path (sys.path), read once: simulated machines are made often."""
    return next((owner.version for owner in _distributions(source)), None)


def _history(source: LibrarySource) -> History | None:
    file = shipped_schemes() / "releases" / (source.releases or "none")
    return read_history(file) if file.is_file() else None


def _between_releases(libraries: Mapping[str, Library], known: Tables) -> tuple[str, ...]:
    """A note for each given release that its history does not have."""
    notes: list[str] = []
    for name, library in libraries.items():
        source = known.libraries.get(name)
        history, version = None if source is None else _history(source), parsed(library.version)
        if history is not None and version is not None and version not in map(parsed, history.releases):
            place = history.nearest(library.version)
            nearest = "none of them" if place is None else history.releases[place].removeprefix("v")
            notes.append(f"{name} {library.version} is not among the known releases; taken for {nearest}")
    return tuple(notes)


def _origin(name: str, tools: Collection[str]) -> str:
    return f"toolchain {name}" if name in tools else f"library {name}"


def _unnamed(tool: str, device: Device) -> Library:
    """A tool that a simulation does not name."""
    vendor, _ = _RUNTIMES.get(tool, (device.vendor, ""))
    foreign = device.vendor not in (vendor, "unknown")
    return Library(tool, absence=f"none, on a device of {device.vendor}" if foreign else None)


def _tools(known: Tables) -> dict[str, Library]:
    """What torch is built for, and the installed Triton where the tables have no kernels in it.

    Only the numbers of a version count, not what follows them.
    """
    import torch

    found: dict[str, Library] = {}
    for tool, (_, word) in _RUNTIMES.items():
        text = cast("str | None", getattr(torch.version, word))
        numbers = re.match(r"\d+(\.\d+)*", text or "")
        absence = None if text else f"none, torch {torch.__version__} is built without it"
        found[tool] = Library(tool, numbers and numbers[0], f"torch.version.{word}", absence)
    for tool in TOOLCHAIN:
        if tool not in found and tool not in known.libraries:
            found[tool] = _installed(LibrarySource(tool, (tool,)))
    return {tool: library for tool, library in found.items() if tool not in known.libraries}


def _distributions(source: LibrarySource) -> list[metadata.Distribution]:
    """The installed ones of the distributions that may own a library's import name, in order."""
    installed = {
        distribution: next(iter(metadata.distributions(name=distribution)), None)
        for distribution in source.distributions
    }
    return [distribution for distribution in installed.values() if distribution is not None]


def _installed(source: LibrarySource) -> Library:
    """A kernel library as it is installed, found without importing it."""
    name, owners = source.name, _distributions(source)
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:
        return Library(name, absence=f"a module named {name} that was made without a file is in its place")
    if spec is None:
        broken = "".join(f", although there is a distribution {owner.name} {owner.version}" for owner in owners[:1])
        return Library(name, absence=f"not installed{broken}")
    if spec.origin is None:
        place = next(iter(spec.submodule_search_locations or ()), "an unknown place")
        return Library(name, location=place, absence=f"a directory named {name} at {place} shadows the package")
    folder = Path(spec.origin).parent
    version = next((owner.version for owner in owners if _owns(owner, name, folder)), None)
    absence = None
    history = _history(source)
    if history is not None and not is_library(folder, history.symbols, name):
        label = f"{name} {version}" if version else f"{name} at {folder}"
        absence = f"package {label} is another one of that name (none of the kernels are there)"
    return Library(name, version, str(folder), absence)


def _owns(distribution: metadata.Distribution, name: str, folder: Path) -> bool:
    """Whether a distribution installed this package folder, or is an editable installation of its checkout."""
    if Path(str(distribution.locate_file(name))).resolve() == folder.resolve():
        return True
    source = cast("dict[str, object]", json.loads(distribution.read_text("direct_url.json") or "{}"))
    folders, url = source.get("dir_info"), source.get("url")
    if not isinstance(folders, dict) or not isinstance(url, str):
        return False
    editable = cast("dict[str, object]", folders).get("editable") is True
    return editable and Path(unquote(urlsplit(url).path)).resolve() in folder.resolve().parents


def _cuda() -> _Cuda:
    import torch

    return cast("_Cuda", torch.cuda)


def _named(device: torch.device | str | int | None) -> tuple[str, int | None]:
    """The kind of a device and its number, an empty kind for whatever there is; starts nothing."""
    import torch

    cuda = _cuda()
    current = cuda.current_device() if cuda.is_initialized() else None
    if device is None:
        return ("", None) if current is None else ("cuda", current)
    try:
        named = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except RuntimeError as error:
        raise UnknownFact(f"no device {device!r}: {str(error).splitlines()[0]}") from None
    index = cast("int | None", named.index)
    if named.type != "cuda":
        return named.type, None
    return "cuda", index if index is not None else current or 0


def _find(
    kind: str, index: int | None, environment: Mapping[str, str], sysfs: Path
) -> tuple[_Gpu, int | None, tuple[str, ...]]:
    """The GPU of that number, its number, and notes; the CPU if none is asked for and none can be used."""
    if kind not in ("", "cuda"):
        return _Gpu(kind, None, "", "given"), None, ()
    import torch

    amd = _kfd_gpus(sysfs, environment) if torch.version.cuda is None else []
    present = amd or (_nvml_gpus() if torch.version.hip is None else [])
    gpus, notes = _visible(present, environment, rocm=bool(amd))
    unordered = not amd and len({gpu.arch for gpu in gpus}) > 1 and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
    build = f"torch {torch.__version__}"
    if index is not None and (_cuda().is_initialized() or unordered or not present):
        gpu = _torch_gpu(index, build)
        if gpus and gpu.arch not in {other.arch for other in gpus}:
            others = ", ".join(sorted({f"{other.arch} ({other.origin})" for other in gpus}))
            notes = (*notes, f"torch says {gpu.arch}, the system says {others}; torch is believed")
        return gpu, index, notes
    if index is not None:
        if index >= len(gpus):
            raise UnknownFact(f"no device cuda:{index}: {len(gpus)} of {len(present)} GPUs are visible")
        return gpus[index], index, notes
    if unordered:
        kinds = ", ".join(sorted({gpu.arch for gpu in gpus}))
        raise UnknownFact(f"this machine has different GPUs ({kinds}) in an order that only CUDA knows; name a device")
    if gpus and (torch.version.hip or torch.version.cuda):
        return gpus[0], 0, notes
    if gpus:
        notes = (*notes, f"a {gpus[0].arch} is there ({gpus[0].origin}), but {build} is built for CPUs only")
    elif not present and (torch.version.hip or torch.version.cuda):
        notes = (*notes, f"{build} is built for GPUs, but the system shows none; taken for a CPU")
    return _Gpu("cpu", None, "", "no GPU in use"), None, notes


def _kfd_gpus(sysfs: Path, environment: Mapping[str, str]) -> list[_Gpu]:
    """The AMD GPUs of the KFD topology that this process may open, in the order of the driver.

    `gfx_target_version` counts major, minor and stepping in two decimal digits each; an architecture's name has the
    last two as hexadecimal digits. Nodes of GPUs that a container may not use cannot be read.
    """
    gpus: list[_Gpu] = []
    for node in sorted(int(path.name) for path in sysfs.glob("*") if path.name.isdigit()):
        try:
            lines = (sysfs / str(node) / "properties").read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        found = {words[0]: int(words[1]) for words in map(str.split, lines) if len(words) == 2 and words[1].isdigit()}
        version, simds = found.get("gfx_target_version", 0), found.get("simd_count", 0)
        notes: tuple[str, ...] = ()
        if not version or not simds:
            continue
        arch, origin = _gfx(version // 10000, version // 100 % 100, version % 100), f"KFD topology node {node}"
        for variable in (f"{_OVERRIDE}_{node}", _OVERRIDE):
            parts = environment.get(variable, "").split(".")
            if len(parts) == 3 and all(part.isdigit() for part in parts):
                reported = _gfx(*map(int, parts))
                notes = (f"{variable}={environment[variable]} makes a {arch} pass for a {reported}",)
                arch, origin = reported, variable
                break
        units = simds // found["simd_per_cu"] if found.get("simd_per_cu") else None
        gpus.append(_Gpu(arch, units, f"GPU-{found.get('unique_id', 0):016x}", origin, notes))
    return gpus


def _gfx(major: int, minor: int, stepping: int) -> str:
    return f"gfx{major}{minor:x}{stepping:x}"


def _nvml_gpus() -> list[_Gpu]:
    """The NVIDIA GPUs that the management library lists, in the order of the bus."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return []
    if nvml.nvmlInit_v2() != 0:
        return []
    gpus: list[_Gpu] = []
    count, major, minor = ctypes.c_uint(), ctypes.c_int(), ctypes.c_int()
    handle, identity = ctypes.c_void_p(), ctypes.create_string_buffer(96)
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    for number in range(count.value):
        if (
            nvml.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle)) == 0
            and nvml.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor)) == 0
            and nvml.nvmlDeviceGetUUID(handle, identity, len(identity)) == 0
        ):
            arch = f"sm_{major.value}{minor.value}"
            gpus.append(_Gpu(arch, None, identity.value.decode("ascii"), f"NVML device {number}"))
    nvml.nvmlShutdown()
    return gpus


def _torch_gpu(index: int, build: str) -> _Gpu:
    """A GPU as torch describes it; starts torch's CUDA if it is not running."""
    import torch

    cuda = _cuda()
    count = cuda.device_count() if cuda.is_available() else 0
    if index >= count:
        raise UnknownFact(f"no device cuda:{index}: {build} sees {count} GPUs")
    properties = cuda.get_device_properties(index)
    arch = f"sm_{properties.major}{properties.minor}" if torch.version.hip is None else properties.gcnArchName
    notes = tuple(f"{name}={value} is set" for name, value in os.environ.items() if name.startswith(_OVERRIDE))
    return _Gpu(arch.partition(":")[0], properties.multi_processor_count, "", f"torch.cuda device {index}", notes)


def _visible(gpus: list[_Gpu], environment: Mapping[str, str], rocm: bool) -> tuple[list[_Gpu], tuple[str, ...]]:
    """The GPUs that environment variables leave, in the order they ask for, and a note for each variable.

    A list holds numbers or identities and ends at the first one that does not exist. ROCm applies ROCR_VISIBLE_DEVICES
    first and then HIP_VISIBLE_DEVICES, in whose place CUDA_VISIBLE_DEVICES may stand.
    """
    notes: list[str] = []
    hip = "HIP_VISIBLE_DEVICES" if rocm and "HIP_VISIBLE_DEVICES" in environment else "CUDA_VISIBLE_DEVICES"
    for variable in ("ROCR_VISIBLE_DEVICES", hip) if rocm else (hip,):
        if variable not in environment or not gpus:
            continue
        left: list[_Gpu] = []
        for word in environment[variable].split(","):
            gpu = _chosen(word.strip(_BLANKS), gpus)
            if gpu is None:
                break
            left.append(gpu)
        notes.append(f"{variable}={environment[variable]} leaves {len(left)} of {len(gpus)} GPUs")
        gpus = left
    return gpus, tuple(notes)


def _chosen(word: str, gpus: list[_Gpu]) -> _Gpu | None:
    if word.isdigit():
        return gpus[int(word)] if int(word) < len(gpus) else None
    if word.startswith("MIG-") and len({gpu.arch for gpu in gpus}) == 1:
        return replace(gpus[0], compute_units=None)
    return next((gpu for gpu in gpus if word.startswith("GPU-") and gpu.identity.startswith(word)), None)
