"""The compiler's own account of decisions is that of the generated code, at every point that was tried."""

from __future__ import annotations

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
