"""Each single change that is made to the YAML of a kernel of AITER, or to the calls of a backend."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from qscheme.tables import shipped_schemes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LAYOUTS = {
    "weight": ("row_major", "transposed", "shuffle_16x16"),
    "x_scale": ("row_major", "per_row", "k_major", "column_major", "padded_column_major", "swizzle_e8m0_32x8"),
}
LAYOUTS["weight_scale"] = LAYOUTS["x_scale"]
TILES = {"x": ("row_major", "shuffle_16x16", "tiles_2x128"), "x_scale": ("tiles_32x4", "tiles_32x8")}
TILES["weight_scale"] = TILES["x_scale"]
"""Further layouts, for the operands of kernels that read some of them in tiles."""
LIMITS = ("needs", "rows", "batch_invariant")
"""What does not change a call."""
STORAGES = ("bytes", "fp4x2", "e8m0", None)


SCHEMES = ("fp8_block128", "int8_ptpc", "int8_tensor_static", "mxfp4")
FURTHER = (
    ("fp8_token_x_tensor", "aiter_ck_preshuffle"), ("fp8_tensor_static", "aiter_ck"),
    ("fp8_w8a16_block128", "aiter_triton_preshuffle"), ("fp8_w8a16_block128", "aiter_triton"),
    ("fp8_block128_a_mxfp8", "aiter_triton_preshuffle"), ("fp8_block128_a_mxfp8", "aiter_triton"),
    ("mxfp4_a_fp8_tensor", "aiter_triton"), ("fp8_block128_ue8m0", "aiter_ck_e8m0"), ("mxfp8", "aiter_asm"),
    ("mxfp4_a_mxfp8", "aiter_asm"), ("nvfp4", "aiter_asm"),
)  # fmt: skip
"""Every backend of these schemes, and further backends whose kernels no other has, are mutated."""


@dataclass(frozen=True)
class Mutant:
    """One change. kernel: the YAML of the changed kernel, or None. backend: of one scheme, with the change in it."""

    kind: str
    change: str
    kernel: str | None
    yaml: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.change} ({self.kind})"


def kernels() -> dict[str, dict[str, Any]]:
    """The kernels of AITER as their YAML says."""
    found: dict[str, dict[str, Any]] = read("kernels/aiter.yaml")["kernels"]
    return found


def backends() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every (scheme, YAML of a backend) whose GEMM is AITER's and that is mutated."""
    for path in sorted(shipped_schemes().glob("*.yaml")):
        for backend in read(path.name).get("backends", ()):
            mutated = path.stem in SCHEMES or (path.stem, backend["name"]) in FURTHER
            if mutated and any(call["gemm"].startswith("aiter.") for call in backend.get("calls", [backend])):
                yield path.stem, backend


@cache
def read(name: str) -> dict[str, Any]:
    """A shipped YAML file, which nobody may change, with every kernel stated whole."""
    found: dict[str, Any] = yaml.safe_load(Path(shipped_schemes(), name).read_text())
    entries = found.get("kernels", {})
    for entry in entries.values():
        if "like" in entry:
            stated = dict(entry)
            entry.clear()
            entry.update(copy.deepcopy({**entries[stated.pop("like")], **stated}))
    return found


def mutants_of_kernel(name: str) -> Iterator[Mutant]:
    """Every mutant of one kernel."""
    original = kernels()[name]

    def changed(kind: str, change: str, make: Callable[[dict[str, Any]], object]) -> Mutant:
        mutant = copy.deepcopy(original)
        make(mutant)
        return Mutant(kind, f"{name}: {change}", name, mutant)

    yield from _operands(original, changed)
    yield from _constants(original, changed)
    yield from _quantizer(original, changed)
    yield from _forms(name, original, changed)


def _operands(original: dict[str, Any], changed: Callable[..., Mutant]) -> Iterator[Mutant]:
    operands = original["operands"]
    for role, use in operands.items():
        if "as" in use:
            yield changed("keyword renamed", f"{role} as {use['as']}_", _set("operands", role, "as", f"{use['as']}_"))
        layout = use.get("layout", "row_major")
        if isinstance(layout, str):
            tiled = "layout" in operands["x"]
            for other in (*LAYOUTS.get(role, ()), *(TILES.get(role, ()) if tiled else ())):
                if other != layout:
                    yield changed("layout", f"{role} {other}, not {layout}", _set("operands", role, "layout", other))
        else:
            yield from _ranges(role, layout, changed)
        if "fold_rows" in use:
            yield changed("fold", f"{role} not folded", _drop("operands", role, "fold_rows"))
            yield changed("fold", f"{role} folded by 32", _set("operands", role, "fold_rows", 48 - use["fold_rows"]))
        if use.get("dtype") in STORAGES and "dtype" in use:
            for other in STORAGES:
                if other != use["dtype"]:
                    make = _drop("operands", role, "dtype") if other is None else _set("operands", role, "dtype", other)
                    yield changed("dtype view", f"{role} as {other}, not {use['dtype']}", make)
        for key in ("dtype", "required"):
            if role == "bias" and key in use:
                yield changed("bias", f"bias without {key}", _drop("operands", role, key))
        if role == "output_dtype":
            yield changed("operand removed", f"{role} not passed", _drop("operands", role))
    for one, other in combinations(operands, 2):
        if sorted(operands[one].keys() & {"as", "position"}) == sorted(operands[other].keys() & {"as", "position"}):
            yield changed("keywords swapped", f"{one} and {other} swapped", _swap(one, other))


def _ranges(role: str, layout: list[dict[str, Any]], changed: Callable[..., Mutant]) -> Iterator[Mutant]:
    for place, part in enumerate(layout):
        for other in LAYOUTS[role]:
            if other != part["is"]:
                say = f"{role} {other}, not {part['is']} in range {place}"
                yield changed("layout", say, _set("operands", role, "layout", place, "is", other))
        if "fold_rows" in part:
            yield changed(
                "fold", f"{role} not folded in range {place}", _drop("operands", role, "layout", place, "fold_rows")
            )
        if "max_m" in part:
            for bound in (part["max_m"] * 2 + 1, part["max_m"] // 2):
                say = f"layout of {role} changes after M = {bound}, not {part['max_m']}"
                yield changed("bound of M", say, _set("operands", role, "layout", place, "max_m", bound))
    yield changed("layout", f"{role} always as in the first range", _set("operands", role, "layout", layout[0]["is"]))


def _constants(original: dict[str, Any], changed: Callable[..., Mutant]) -> Iterator[Mutant]:
    for key, value in original.get("constants", {}).items():
        other: object = value + 1.5 if isinstance(value, float) else not value
        if isinstance(value, dict):
            other = {"import": "torch.float32"}
        elif isinstance(value, int) and not isinstance(value, bool):
            other = value // 2
        yield changed("constant", f"{key} {other}, not {value}", _set("constants", key, other))
        yield changed("constant", f"{key} not passed", _drop("constants", key))


def _quantizer(original: dict[str, Any], changed: Callable[..., Mutant]) -> Iterator[Mutant]:
    scale = original.get("scale")
    if scale is None:
        return
    for other in LAYOUTS["x_scale"]:
        if other != scale["layout"]:
            say = f"scales written {other}, not {scale['layout']}"
            yield changed("quantizer's scales", say, _set("scale", "layout", other))
    for other in STORAGES:
        if other != scale.get("dtype"):
            make = _drop("scale", "dtype") if other is None else _set("scale", "dtype", other)
            yield changed("dtype view", f"scales written as {other}, not {scale.get('dtype')}", make)
    if "codes" in original:
        other = "bytes" if original["codes"] == "fp4x2" else "fp4x2"
        yield changed("dtype view", f"codes written as {other}", _set("codes", other))
    if "option" in scale:
        word, layout = scale["option"]["as"], scale["option"]["layout"]
        yield changed("keyword renamed", f"option as {word}_", _set("scale", "option", "as", f"{word}_"))
        for other in LAYOUTS["x_scale"]:
            if other != layout:
                say = f"scales written {other}, not {layout}, with the option"
                yield changed("quantizer's scales", say, _set("scale", "option", "layout", other))


def _forms(name: str, original: dict[str, Any], changed: Callable[..., Mutant]) -> Iterator[Mutant]:
    if original["does"] == "gemm" and original["formats"] == ["fp8_e4m3"]:
        if original.get("fp8") == "checkpoint":
            yield changed("fp8 flavour", "FP8 as the device has it", _drop("fp8"))
        else:
            yield changed("fp8 flavour", "FP8 as the checkpoint has it", _set("fp8", "checkpoint"))
    if "out" in original:
        yield changed("output", "output not passed", _drop("out"))
        yield changed("output", "output as out", _set("out", "as", "out"))
    if "quantizes" in original:
        yield changed("quantizes", "x multiplied as it is", _drop("quantizes"))
        yield changed("quantizes", "x quantized to fp8_e4m3", _set("quantizes", "format", "fp8_e4m3"))
    for key in ("weight_formats", "global_scales"):
        if key in original:
            yield changed("operands of the scheme", f"{key} not said", _drop(key))
    if original.get("rows"):
        yield changed("rows", "rows not padded", _drop("rows"))
    for other, found in kernels().items():
        if found["does"] == original["does"] and found["symbol"] != original["symbol"]:
            yield changed("wrong symbol", f"the function of {other}", _set("symbol", found["symbol"]))
    if "config" in original:
        yield changed("configuration", "NUM_KSPLIT 2, not 1", _set("config", "set", "NUM_KSPLIT", 2))
        yield changed("configuration", "passed as configuration", _set("config", "as", "configuration"))
        yield changed("configuration", "not passed", _drop("config"))
        for other, found in kernels().items():
            if "config" in found and other != name:
                say = f"looked up as for {other}"
                yield changed("configuration", say, _set("config", "from", found["config"]["from"]))
    for place, older in enumerate(original.get("older", ())):
        yield changed("older form", f"older form {place} removed", _drop("older", place))
        for key in older:
            yield changed("older form", f"older form {place} without {key}", _drop("older", place, key))
        if "out" in older:
            yield changed("older form", "rows of the output not padded", _set("older", place, "out", "rows", 1))
            yield changed("older form", "output as y", _set("older", place, "out", "as", "y"))


def mutants_of_backend(scheme: str, backend: dict[str, Any]) -> Iterator[Mutant]:
    """Every mutant of the calls of one backend."""

    def changed(kind: str, change: str, make: Callable[[dict[str, Any]], object]) -> Mutant:
        mutant = copy.deepcopy(backend)
        make(mutant)
        return Mutant(kind, f"{scheme} {backend['name']}: {change}", None, mutant)

    calls = backend.get("calls", [backend])
    for place, call in enumerate(calls):
        path = ("calls", place) if "calls" in backend else ()
        quantizer = call.get("quantize", "")
        name = quantizer if isinstance(quantizer, str) else quantizer["kernel"]
        option = kernels().get(name.partition(".")[2], {}).get("scale", {}).get("option")
        if option is not None:
            given = {} if isinstance(quantizer, str) else quantizer["options"]
            flipped = {"kernel": name, "options": {option["as"]: not given.get(option["as"], False)}}
            say = f"{option['as']} flipped in call {place}"
            yield changed("quantizer's option", say, _set(*path, "quantize", flipped))
        bound = call.get("when", {}).get("m", {}).get("max")
        if bound is not None:
            for other in (bound * 2 + 1, bound // 2):
                say = f"call {place} until M = {other}, not {bound}"
                yield changed("bound of M", say, _set(*path, "when", "m", "max", other))
        for other in calls:
            if other["gemm"] != call["gemm"]:
                yield changed("wrong GEMM", f"call {place} with {other['gemm']}", _set(*path, "gemm", other["gemm"]))
    for place in range(len(calls) - 1):
        yield changed("call removed", f"call {place} removed", _drop("calls", place))


def _set(*path: Any) -> Callable[[dict[str, Any]], object]:
    *way, key, value = path

    def change(data: Any) -> None:
        for step in way:
            data = data[step]
        data[key] = value

    return change


def few(mutants: list[Mutant]) -> list[Mutant]:
    """The first mutant of each kind for each operand of each kernel, and for each backend.

    Of a kernel that is given a configuration only what concerns that: its operands are those of the one without.
    """
    chosen: dict[tuple[str, ...], Mutant] = {}
    for mutant in mutants:
        if mutant.kernel is not None and "config" in kernels()[mutant.kernel] and mutant.kind != "configuration":
            continue
        chosen.setdefault((mutant.kind, *mutant.change.split()[: 2 if mutant.kernel else 3]), mutant)
    return list(chosen.values())


def every() -> list[Mutant]:
    """Every mutant of every kernel and backend; of kernels that differ in their limits alone, those of the first."""
    calls = {
        name: {key: value for key, value in kernel.items() if key not in LIMITS} for name, kernel in kernels().items()
    }
    first = [name for name in calls if name == next(other for other in calls if calls[other] == calls[name])]
    found = [mutant for name in first for mutant in mutants_of_kernel(name)]
    return found + [mutant for scheme, backend in backends() for mutant in mutants_of_backend(scheme, backend)]


def _drop(*path: Any) -> Callable[[dict[str, Any]], object]:
    *way, key = path

    def change(data: Any) -> None:
        holders = [data]
        for step in way:
            holders.append(holders[-1][step])
        del holders[-1][key]
        for holder, step in zip(holders[-2::-1], way[::-1], strict=True):
            if not holder[step]:
                del holder[step]

    return change


def _swap(one: str, other: str) -> Callable[[dict[str, Any]], object]:
    def change(data: dict[str, Any]) -> None:
        first, second = data["operands"][one], data["operands"][other]
        for key in ("as", "position"):
            if key in first:
                first[key], second[key] = second[key], first[key]

    return change
