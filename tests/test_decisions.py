"""The compiler's own account of decisions is that of the generated code, at every point that was tried."""

from __future__ import annotations

import ast
import random
import sys
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from decided import catalogue_of, compare
from folders import EVERY_FEATURE, compiled

from qscheme.compiler.cubes import common, covering, joined, minus, overlap, without
from qscheme.compiler.space import Side, Space
from qscheme.tables import load, shipped_schemes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qscheme.compiler.axes import Kind
    from qscheme.compiler.cubes import Cube


def test_the_shipped_schemes_decide_as_their_generated_code_does() -> None:
    catalogue = catalogue_of(shipped_schemes())
    seen = compare(catalogue, load(), 12)
    missed = {(s.name, b.name) for s in catalogue.schemes for b in s.backends} - set(seen)
    assert set() == missed


def test_every_feature_decides_as_its_generated_code_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in compiled(EVERY_FEATURE, "tables_of_every_feature").items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    catalogue = catalogue_of(EVERY_FEATURE)
    try:
        seen = compare(catalogue, load("tables_of_every_feature"), 300)
    finally:
        for name in [name for name in sys.modules if name.startswith("tables_of_every_feature")]:
            del sys.modules[name]
    assert {("four_bits", "fast"), ("one_scale", None)} <= set(seen)


def test_whatever_the_generated_code_asks_has_an_axis() -> None:
    catalogue, asked = catalogue_of(shipped_schemes()), dict.fromkeys(AXES, 0)
    side = Side.of(catalogue)
    for scheme in catalogue.schemes:
        places = Space.of((side, scheme)).places
        for fact, words in facts_asked(scheme.name):
            kind, name = AXES[fact]
            if fact == "facts.untuned":
                assert any(of == kind and axis.startswith(f"{words[0].lower()} ") for of, axis in places), words
            elif fact == "facts.lacks":
                used = [kernel for backend in scheme.backends for kernel in backend.kernels]
                packages = {kernel.package for kernel in used if kernel.name.upper() in words} - {"qscheme"}
                assert packages <= {axis for of, axis in places if of == kind}
            else:
                assert (kind, name or words[0]) in places, (scheme.name, fact, words)
            asked[fact] += 1
    unasked = {fact for fact, times in asked.items() if not times}
    assert unasked <= {"layer.whole_n", "layer.whole_k", "facts.device.mx"}


AXES: dict[str, tuple[Kind, str]] = {
    "facts.arch": ("arch", "arch"),
    "facts.device.vendor": ("arch", "arch"),
    "facts.device.mx": ("arch", "arch"),
    "facts.device.int8": ("arch", "arch"),
    "facts.older": ("library", ""),
    "facts.within": ("library", ""),
    "facts.outside": ("library", ""),
    "facts.lacks": ("library", ""),
    "layer.n": ("size", "n"),
    "layer.k": ("size", "k"),
    "layer.whole_n": ("size", "full_n"),
    "layer.whole_k": ("size", "full_k"),
    "layer.out_dtype": ("output", "output"),
    "layer.fused": ("fused", "fused"),
    "facts.untuned": ("tuned", ""),
    "facts.on": ("switch", ""),
    "facts.batch_invariant": ("switch", "batch_invariant"),
}
"""What generated conditions may ask, and the kind and name of the axis that stands for it; no name: the first word."""


def facts_asked(scheme: str) -> Iterator[tuple[str, list[str]]]:
    """Everything that the conditions of a scheme's generated module ask, with the words in its brackets."""
    source = (Path(__file__).parent.parent / "generated" / "qscheme_generated" / f"{scheme}.py").read_text()
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    for statement in (part for f in functions if f.name.startswith("why_not_") for part in f.body):
        test = statement.test if isinstance(statement, ast.If) else statement
        called = {id(node.func): node for node in ast.walk(test) if isinstance(node, ast.Call)}
        inner = {id(node.value) for node in ast.walk(test) if isinstance(node, ast.Attribute)}
        for node in ast.walk(test):
            if isinstance(node, ast.Attribute) and id(node) not in inner and not ast.unparse(node).endswith(".append"):
                arguments = called[id(node)].args if id(node) in called else []
                yield ast.unparse(node), [ast.unparse(argument).strip("'") for argument in arguments]


@pytest.mark.parametrize("folder", [shipped_schemes(), EVERY_FEATURE], ids=["shipped", "every_feature"])
def test_every_point_has_one_decision(folder: Path) -> None:
    catalogue = catalogue_of(folder)
    side = Side.of(catalogue)
    for scheme in catalogue.schemes:
        space = Space.of((side, scheme))
        cubes = [cube for decided in space.decisions(side, scheme) for cube in decided.cubes]
        assert () == without([space.full], cubes), scheme.name
        assert volume(space.full) == sum(map(volume, cubes)), scheme.name


def volume(cube: Cube) -> int:
    size = 1
    for mask in cube:
        size *= mask.bit_count()
    return size


# --- cubes ---------------------------------------------------------------------------------------------------------

WIDTHS = (3, 2, 4, 1)


def members(cubes: tuple[Cube, ...] | list[Cube]) -> set[tuple[int, ...]]:
    """The points of cubes, one by one."""
    spread = [product(*([at for at in range(8) if mask >> at & 1] for mask in cube)) for cube in cubes]
    return {point for points in spread for point in points}


def random_cubes(draw: random.Random, most: int = 5) -> list[Cube]:
    return [tuple(draw.randint(1, (1 << width) - 1) for width in WIDTHS) for _ in range(draw.randint(0, most))]


@pytest.mark.parametrize("seed", range(40))
def test_cubes_are_sets_of_points(seed: int) -> None:
    draw = random.Random(seed)
    some, others, full = random_cubes(draw), random_cubes(draw), tuple((1 << width) - 1 for width in WIDTHS)
    assert members(some) & members(others) == members(overlap(some, others))
    assert members(some) - members(others) == members(without(some, others))
    assert members(some) == members(joined(some))
    for one, other in product(some, others):
        pieces = list(minus(one, other))
        assert members([one]) - members([other]) == members(pieces)
        assert sum(map(volume, pieces)) == len(members(pieces))
        assert (common(one, other) is None) == (not members([one]) & members([other]))
    free = list(without(others, some))
    found = covering(some, free, either=(1,))
    assert members(some) <= members(found) <= members(some) | members(free)
    assert len(members([full])) == volume(full)
