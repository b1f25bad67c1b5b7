"""Sets of points of a finite space as cubes: for each axis the values that a point may have, as bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Cube: TypeAlias = tuple[int, ...]
"""One bit mask for each axis; a point is in the cube if each of its values is. No mask is 0."""


def common(one: Cube, other: Cube) -> Cube | None:
    """The points that are in both cubes, None if there are none."""
    both = tuple(a & b for a, b in zip(one, other, strict=True))
    return both if all(both) else None


def minus(cube: Cube, other: Cube) -> Iterator[Cube]:
    """The points of a cube that are not in another one, as cubes that have no point in common."""
    if common(cube, other) is None:
        yield cube
        return
    left = list(cube)
    for axis, mask in enumerate(other):
        outside = left[axis] & ~mask
        if outside:
            yield (*left[:axis], outside, *left[axis + 1 :])
            left[axis] &= mask


def without(cubes: Iterable[Cube], others: Iterable[Cube]) -> tuple[Cube, ...]:
    """The points of some cubes that are in none of others, without a point in common if `cubes` have none."""
    left = list(cubes)
    for other in others:
        left = [piece for cube in left for piece in minus(cube, other)]
        if not left:
            break
    return tuple(left)


def overlap(cubes: Iterable[Cube], others: Sequence[Cube]) -> tuple[Cube, ...]:
    """The points that are in both of two sets."""
    return tuple(both for cube in cubes for other in others if (both := common(cube, other)) is not None)


def joined(cubes: Iterable[Cube]) -> tuple[Cube, ...]:
    """The same points in fewer cubes: those that differ along one axis only become one."""
    left = list(dict.fromkeys(cubes))
    while True:
        before = len(left)
        for axis in range(len(left[0]) if left else 0):
            masks: dict[Cube, int] = {}
            for cube in left:
                rest = (*cube[:axis], *cube[axis + 1 :])
                masks[rest] = masks.get(rest, 0) | cube[axis]
            left = [(*rest[:axis], mask, *rest[axis:]) for rest, mask in masks.items()]
        if len(left) == before:
            return tuple(left)


def covering(cubes: Sequence[Cube], free: Sequence[Cube], either: Sequence[int]) -> tuple[Cube, ...]:
    """Few large cubes that have every point of `cubes` and no point but theirs and those of `free`.

    either: the axes along which a cube may grow into points that are all of `free`. The last axis grows first.
    """
    allowed, left, found = joined([*cubes, *free]), list(joined(cubes)), list[Cube]()
    blocks = [_blocks([cube[axis] for cube in allowed]) for axis in range(len(allowed[0]) if allowed else 0)]
    while left:
        grown = _grown(max(left, key=_size), left, allowed, blocks, either)
        found.append(grown)
        left = list(joined(without(left, [grown])))
    return tuple(found)


def _grown(
    cube: Cube, wanted: Sequence[Cube], allowed: Sequence[Cube], blocks: list[list[int]], either: Sequence[int]
) -> Cube:
    for axis in reversed(range(len(cube))):
        for block in blocks[axis]:
            slab = (*cube[:axis], block & ~cube[axis], *cube[axis + 1 :])
            if not slab[axis] or (axis not in either and not overlap([slab], wanted)):
                continue
            if not without([slab], allowed):
                cube = (*cube[:axis], cube[axis] | block, *cube[axis + 1 :])
    return cube


def _blocks(masks: list[int]) -> list[int]:
    """The values of an axis in groups that no mask tells apart."""
    blocks = [0]
    for mask in dict.fromkeys(masks):
        blocks[0] |= mask
    for mask in dict.fromkeys(masks):
        blocks = [part for block in blocks for part in (block & mask, block & ~mask) if part]
    return blocks


def _size(cube: Cube) -> int:
    size = 1
    for mask in cube:
        size *= mask.bit_count()
    return size
