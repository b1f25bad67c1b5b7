"""Cubes of the decision space in words and as data: `on gfx950 with aiter v0.1.10 or later, N % 16 = 0`."""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations, groupby
from typing import TYPE_CHECKING

from qscheme.compiler.axes import UNKNOWN
from qscheme.compiler.conditions import any_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from qscheme.compiler.axes import Axis
    from qscheme.compiler.cubes import Cube
    from qscheme.compiler.space import Space

_OTHERS = 4
"""Up to how many architectures are told as exceptions where most of them are meant."""


def region_text(space: Space, cube: Cube, defaults: Mapping[str, bool]) -> str:
    """Where a cube is, in words. A switch that must stand as it does by default is not told."""
    words = dict[str, list[str]]()
    for axis, mask in zip(space.axes, cube, strict=True):
        usual = axis.kind == "switch" and defaults.get(axis.name) == bool(axis.chosen(mask)[0])
        if mask != axis.full and not usual:
            words.setdefault(axis.kind, []).append(axis_text(axis, mask))
    machine = [f"on {words['arch'][0]}"] if "arch" in words else ["on every architecture"]
    machine += [" and ".join(words["library"])] if "library" in words else []
    layer = [word for kind in ("size", "output", "fused", "tuned", "switch") for word in words.get(kind, ())]
    return ", ".join([" ".join(machine), *layer])


def region_data(space: Space, cube: Cube) -> dict[str, object]:
    """Where a cube is, as JSON: values of each axis that matters, sizes in words."""
    found: dict[str, object] = {}
    for axis, mask in zip(space.axes, cube, strict=True):
        if mask == axis.full:
            continue
        values = axis.chosen(mask)
        match axis.kind:
            case "size":
                found[axis.name] = axis_text(axis, mask)
            case "library":
                found[f"library {axis.name}"] = {"text": axis_text(axis, mask), "releases": list(values)}
            case "fused" | "tuned" | "switch":
                name = f"tuned {axis.table}" if axis.kind == "tuned" else axis.name
                name = f"switch {axis.name}" if axis.kind == "switch" else name
                held: object = {"m": list(axis.rows), "is": bool(values[0])} if axis.rows else bool(values[0])
                found[name] = held
            case _:
                found[axis.name] = list(values)
    return found


def axis_text(axis: Axis, mask: int) -> str:
    """What the values of a mask have in common."""
    values = axis.chosen(mask)
    match axis.kind:
        case "arch":
            return _archs(axis, mask)
        case "library":
            return _releases(axis, mask)
        case "size":
            return _sizes(axis, mask)
        case "output":
            return f"output in {any_of(tuple(map(str, values)))}"
        case "fused":
            return "a scale for each part of the weight" if values == (1,) else "one scale for the whole weight"
        case "tuned":
            rows = any_of(tuple(map(str, axis.rows))).replace(" or ", " and ")
            return f"{'' if values == (1,) else 'not '}tuned in {axis.table} for M = {rows}"
        case "switch":
            return f"switch {axis.name} {'on' if values == (1,) else 'off'}"


def _archs(axis: Axis, mask: int) -> str:
    names = [str(arch) for arch in axis.chosen(mask)]
    missing = [str(arch) for arch in axis.chosen(axis.full & ~mask)]
    if not missing:
        return "every architecture"
    if len(missing) <= _OTHERS < len(names):
        return f"every architecture but {any_of(tuple(missing)).replace(UNKNOWN, 'unknown ones')}"
    return any_of(tuple("an unknown architecture" if name == UNKNOWN else name for name in names))


def _releases(axis: Axis, mask: int) -> str:
    """`with aiter v0.1.5 to v0.1.9`, `without aiter or with it before v0.1.5`."""
    inside = [bool(mask >> at & 1) for at in range(len(axis.values))]
    known = [(str(value), held) for value, held in zip(axis.values, inside, strict=True) if value is not None]
    absent = any(held for value, held in zip(axis.values, inside, strict=True) if value is None)
    runs: list[str] = []
    at = 0
    for held, group in groupby(known, key=lambda pair: pair[1]):
        names = [name for name, _ in group]
        first, last = at == 0, at + len(names) == len(known)
        at += len(names)
        if held and not (first and last):
            if first:
                runs.append(f"before {known[at][0]}")
            elif last:
                runs.append(f"{names[0]} or later")
            else:
                runs.append(_run(names, known[at][0]))
    if not any(held for _, held in known):
        return f"without {axis.name}"
    told = f"with {axis.name}{' ' if runs else ''}{any_of(tuple(runs)) if runs else ''}"
    return f"without {axis.name} or {told.replace(axis.name, 'it', 1)}" if absent else told


def _run(names: Sequence[str], after: str) -> str:
    """Some versions that follow each other; one that stands for whatever follows a limit is not named as the last."""
    if names[-1].endswith(".post0"):
        return f"{names[0]} to before {after}"
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


@lru_cache(maxsize=1024)
def _sizes(axis: Axis, mask: int) -> str:
    """The shortest conjunction of tests of N or K that has exactly these classes, else several with `or`."""
    literals = list(_literals(axis))
    for count in range(1, 4):
        for chosen in combinations(literals, count):
            if _both(chosen, axis.full) == mask:
                return " and ".join(words for words, _ in chosen)
    for (first, held), (second, other) in combinations(literals, 2):
        if held | other == mask:
            return f"{first} or {second}"
    classes = [_class_text(literals, 1 << at, axis.full) for at in range(len(axis.values)) if mask >> at & 1]
    return classes[0] if len(classes) == 1 else " or ".join(f"({words})" for words in classes)


def _class_text(literals: Sequence[tuple[str, int]], mask: int, full: int) -> str:
    """The tests that one class of sizes passes, without those that follow from the others."""
    kept = [literal for literal in literals if literal[1] & mask]
    for literal in reversed(kept):
        rest = [other for other in kept if other != literal]
        if _both(rest, full) == mask:
            kept = rest
    return " and ".join(words for words, _ in kept)


def _both(literals: Iterable[tuple[str, int]], mask: int) -> int:
    """The classes of a mask that pass every test."""
    for _, held in literals:
        mask &= held
    return mask


def _literals(axis: Axis) -> Iterator[tuple[str, int]]:
    name, full = axis.word, axis.full
    yield from ((f"{name} % {number} = 0", axis.sizes(number)) for number in reversed(axis.multiples))
    yield from ((f"{name} >= {least}", axis.sizes(least=least)) for least in axis.minima)
    yield from ((f"{name} % {number} != 0", full & ~axis.sizes(number)) for number in axis.multiples)
    yield from ((f"{name} < {least}", full & ~axis.sizes(least=least)) for least in axis.minima)
