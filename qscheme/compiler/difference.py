"""What a change of YAML changes: which backend runs where, and how those that stay are called and rounded."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from qscheme.compiler.changes import changes
from qscheme.compiler.cubes import covering, joined, overlap
from qscheme.compiler.region_text import region_data, region_text
from qscheme.compiler.space import Decided, Side, Space
from qscheme.compiler.timelines import versions_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from qscheme.compiler import ir
    from qscheme.compiler.changes import Changed
from qscheme.compiler.cubes import Cube

NO_BACKEND = "no backend"


class Moved(NamedTuple):
    """Points of a scheme whose backend changes; None for no backend.

    cubes: exactly those points, without one in common. told: the same points in few cubes, together with points where
    one of the backends of `better` runs before and after. unset: the switches whose default alone makes the change, for
    whoever does not set them; empty for a change at the points themselves.
    """

    scheme: str
    space: Space
    before: str | None
    after: str | None
    cubes: tuple[Cube, ...]
    told: tuple[tuple[Cube, tuple[str, ...]], ...]
    unset: tuple[str, ...] = ()

    @property
    def change(self) -> str:
        """`aiter_ck -> aiter_triton`."""
        switches = f", where the switch {' or '.join(self.unset)} is not set" if self.unset else ""
        return f"{self.before or NO_BACKEND} -> {self.after or NO_BACKEND}{switches}"

    def regions(self, defaults: Mapping[str, bool]) -> tuple[str, ...]:
        """Where it is, in words."""
        return tuple(
            region_text(self.space, cube, defaults) + (f", unless {' or '.join(better)} runs" if better else "")
            for cube, better in self.told
        )


class Difference(NamedTuple):
    """Everything that differs between two catalogues; false if nothing does."""

    defaults: Mapping[str, bool]
    added: tuple[ir.Scheme, ...]
    removed: tuple[ir.Scheme, ...]
    moved: tuple[Moved, ...]
    changed: tuple[Changed, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.moved or self.changed)

    def lines(self) -> Iterator[str]:
        """The difference in words, decisions first; schemes that change alike are told together."""
        for word, schemes in (("added", self.added), ("removed", self.removed)):
            for scheme in schemes:
                yield f"{scheme.name}: {word}, with {', '.join(backend.name for backend in scheme.backends)}"
        alike: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for move in self.moved:
            alike.setdefault((move.change, move.regions(self.defaults)), []).append(move.scheme)
        for (change, regions), names in alike.items():
            yield f"{', '.join(names)}: {change}"
            yield from (f"  {region}" for region in regions)
        yield from (change.text for change in self.changed)

    def data(self) -> dict[str, object]:
        """The difference as JSON; `exact` has regions without a point in common, `regions` those of `lines`."""
        return {
            "changed": bool(self),
            "schemes": {
                "added": [scheme.name for scheme in self.added],
                "removed": [scheme.name for scheme in self.removed],
            },
            "decisions": [
                {
                    "scheme": move.scheme,
                    "before": move.before,
                    "after": move.after,
                    "unset": list(move.unset),
                    "regions": [
                        {
                            "text": region_text(move.space, cube, self.defaults),
                            "where": region_data(move.space, cube),
                            "unless": list(better),
                        }
                        for cube, better in move.told
                    ],
                    "exact": [region_data(move.space, cube) for cube in move.cubes],
                }
                for move in self.moved
            ],
            "facts": [{**change._asdict(), "text": change.text} for change in self.changed],
        }


def difference(old: ir.Catalogue, new: ir.Catalogue) -> Difference:
    """Compare two catalogues over every point that either of them tells apart."""
    versions = versions_of(old, new)
    one, other = Side.of(old, versions), Side.of(new, versions)
    before, after = ({scheme.name: scheme for scheme in catalogue.schemes} for catalogue in (old, new))
    both = [name for name in after if name in before]
    moved = [move for name in both for move in _moves((one, before[name]), (other, after[name]))]
    known = {switch.name: switch.default for switch in old.switches}
    turned = {switch.name for switch in new.switches if known.get(switch.name, switch.default) != switch.default}
    moved += [move for name in both for move in _by_default((one, before[name]), (other, after[name]), turned)]
    switches = {switch.name: switch.default for switch in new.switches}
    was = {switch.name: switch.default for switch in old.switches}
    return Difference(
        {name: default for name, default in switches.items() if was.get(name, default) == default},
        tuple(after[name] for name in after if name not in before),
        tuple(before[name] for name in before if name not in after),
        tuple(moved),
        tuple(changes(old, new, [(before[name], after[name]) for name in both])),
    )


def _moves(before: tuple[Side, ir.Scheme], after: tuple[Side, ir.Scheme]) -> Iterator[Moved]:
    """What changes in one scheme."""
    space = Space.of(before, after)
    yield from _between_decisions(after[1].name, space, space.decisions(*before), space.decisions(*after))


def _by_default(
    before: tuple[Side, ir.Scheme], after: tuple[Side, ir.Scheme], turned: Iterable[str]
) -> Iterator[Moved]:
    """What other defaults of switches change in one scheme, as it is to be, for whoever does not set them."""
    space, defaults = Space.of(before, after), {switch.name: switch.default for switch in after[0].catalogue.switches}
    asked = {name: defaults[name] for name in sorted(turned) if ("switch", name) in space.places}
    if asked:
        decided = space.decisions(*after)
        there = space.cube(*(space.flag("switch", name, not default) for name, default in asked.items()))
        here = space.cube(*(space.flag("switch", name, default) for name, default in asked.items()))
        old, new = ([_unset(space, found, side, asked) for found in decided] for side in (there, here))
        yield from _between_decisions(after[1].name, space, old, new, tuple(asked))


def _unset(space: Space, found: Decided, here: Cube, switches: Iterable[str]) -> Decided:
    """The points of a cube where a backend is chosen, and those that differ from them in some switches alone."""
    free = {space.places["switch", name] for name in switches}
    inside = overlap(found.cubes, [here])
    freed = (tuple(full if at in free else c[at] for at, full in enumerate(space.full)) for c in inside)
    return Decided(found.backend, joined(freed))


def _between_decisions(
    scheme: str, space: Space, old: Sequence[Decided], new: Sequence[Decided], unset: tuple[str, ...] = ()
) -> Iterator[Moved]:
    """The points whose backend is another one in the second of two lists of decisions."""
    if list(old) == list(new):
        return
    kept = {
        was.backend: both
        for was in old
        for now in new
        if was.backend is not None and was.backend == now.backend and (both := joined(overlap(was.cubes, now.cubes)))
    }
    either = tuple(at for at, axis in enumerate(space.axes) if axis.kind in ("fused", "tuned", "switch"))
    for was in old:
        for now in new:
            if was.backend == now.backend:
                continue
            cubes = joined(overlap(was.cubes, now.cubes))
            if cubes:
                better = {
                    name: kept[name]
                    for name in _above(was.backend, old)
                    if name in _above(now.backend, new) and name in kept
                }
                found = covering(cubes, [cube for free in better.values() for cube in free], either)
                told = [(cube, tuple(name for name, free in better.items() if overlap([cube], free))) for cube in found]
                yield Moved(scheme, space, was.backend, now.backend, cubes, tuple(told), unset)


def _above(backend: str | None, decided: Sequence[Decided]) -> list[str]:
    """The backends that come before one."""
    names = [found.backend for found in decided]
    return [name for name in names[: names.index(backend)] if name is not None]
