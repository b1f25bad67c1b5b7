"""Findings about conditions that say nothing: repeated, implied, out of reach, or written twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from qscheme.compiler.cubes import overlap
from qscheme.compiler.lint_rules import finding
from qscheme.compiler.lint_subject import alone, parts, stated
from qscheme.compiler.points import asked_words
from qscheme.compiler.space import Held, Space

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from qscheme.compiler import ir, model
    from qscheme.compiler.lint_rules import AnyFile, Finding
    from qscheme.compiler.lint_subject import Subject
    from qscheme.compiler.source import KeyPath
    from qscheme.compiler.space import Side


class Entry(NamedTuple):
    """The needs of a kernel or of a backend. path: their keys. beside: what the kernels of a backend ask for."""

    file: AnyFile
    path: KeyPath
    needs: model.Needs
    space: Space
    side: Side
    beside: Held | None


def kernel_findings(file: AnyFile, kernel: ir.Kernel, needs: model.Needs, side: Side) -> Iterator[Finding]:
    """What is redundant among the needs of a kernel."""
    every = [(keys, alone(part, kernel)) for keys, part in parts(needs)]
    if every:
        space = Space.over([side], [kernel], [condition for _, condition in every], (1, 1), fused=True)
        entry = Entry(file, ("kernels", kernel.name, "needs"), needs, space, side, None)
        yield from _findings(entry, [(keys, space.holds(side, condition)) for keys, condition in every])


def backend_findings(subject: Subject, index: int) -> Iterator[Finding]:
    """What is redundant among the needs of a backend, and what its kernels need already."""
    own, space, side, path = subject.own(index), subject.space, subject.side, ("backends", index, "needs")
    held = [(keys, space.holds(side, stated(part))) for keys, part in parts(own)]
    if held:
        yield from _findings(Entry(subject.file, path, own, space, side, subject.asked_by_kernels(index)), held)


def _findings(entry: Entry, held: list[tuple[KeyPath, Held]]) -> Iterator[Finding]:
    """What is redundant among some conditions, each with its keys: every finding stands with those after it mended."""
    everything = Held(entry.space.full)
    kernels = everything if entry.beside is None else entry.beside
    together = _all(kernels, (condition for _, condition in held))
    if not together.cube[0]:
        return
    yield from _vain(entry, held, together.cube[0])
    left = list(held)
    for keys, condition in reversed(held):
        at, key = (*entry.path, *keys), isinstance(keys[-1], str)
        rest = [pair for pair in left if pair[0] != keys]
        if (row := _out_of_reach(entry, keys, together.cube[0])) is not None:
            message = f"no device is left to which {', '.join(row.arch or row.vendor)} belongs"
            yield finding("QS115", entry.file, at, message, "remove the row")
        elif everything.within(condition):
            if keys[0] == "where" and entry.needs.where[int(keys[1])].since is not None:
                continue  # its releases say nothing, which is another finding
            where = "everywhere" if entry.beside is None else "for every layer of the scheme"
            yield finding("QS113", entry.file, at, f"{_word(entry, keys)} holds {where}", "remove it", key=key)
        elif entry.beside is not None and kernels.within(condition):
            message, witness = (
                f"{_word(entry, keys)} repeats what its kernels need",
                _witness(entry, kernels, condition),
            )
            yield finding("QS112", entry.file, at, message, "remove it", witness, key=key)
        elif (others := _all(kernels, (also for _, also in rest))).within(condition):
            theirs = "" if entry.beside is None else " and those of its kernels"
            message = f"{_word(entry, keys)} holds wherever the conditions beside it{theirs} do"
            witness = _witness(entry, others, condition)
            yield finding("QS113", entry.file, at, message, "remove it", witness, key=key)
        else:
            continue
        left = rest


def _vain(entry: Entry, held: Iterable[tuple[KeyPath, Held]], left: int) -> Iterator[Finding]:
    """Architectures that are named, and that the other hardware conditions exclude."""
    values = entry.space.axes[0].values
    for position, arch in enumerate(entry.needs.arch):
        bit = 1 << values.index(arch) if arch in values else 0
        if bit and not bit & left:
            why = [(".".join(map(str, keys)), "no") for keys, condition in held if not bit & condition.cube[0]]
            what = "the conditions beside it" if why else "the conditions of its kernels"
            message = f"{arch} does not meet {what}"
            at = (*entry.path, "arch", position)
            yield finding("QS103", entry.file, at, message, "remove the word", (("arch", arch), *why))


def _out_of_reach(entry: Entry, keys: KeyPath, left: int) -> model.Where | None:
    """The row of `where` with these keys, if no architecture is left to which it belongs."""
    if keys[0] != "where":
        return None
    row = entry.needs.where[int(keys[1])]
    archs = row.arch or tuple(arch for arch, device in entry.side.devices.items() if device.vendor in row.vendor)
    return None if any(left >> at & 1 for at, arch in enumerate(entry.space.axes[0].values) if arch in archs) else row


def _word(entry: Entry, keys: KeyPath) -> str:
    if keys[0] == "switches":
        return f"the switch `{entry.needs.switches[int(keys[1])]}`"
    return f"this row of `{keys[0]}`" if keys[0] in ("where", "tuned") else f"`{'.'.join(map(str, keys))}`"


def _all(held: Held, others: Iterable[Held]) -> Held:
    for other in others:
        held = held.also(other)
    return held


def _witness(entry: Entry, held: Held, condition: Held) -> tuple[tuple[str, str], ...]:
    """An example of where some conditions hold, and with them a further one: the facts that it asks for."""
    scope = 0
    for cube in condition.refused:
        scope |= cube[0]
    cubes = held.cubes()
    point = entry.space.sample(overlap(cubes, [entry.space.cube((0, scope))]) if scope else cubes)
    return () if point is None else asked_words(entry.space, point, condition)


def twice(file: AnyFile) -> Iterator[Finding]:
    """Words and numbers that stand twice in a list."""
    for path, items in _lists((), file.document.data):
        seen: list[object] = []
        for position, item in enumerate(items):
            if isinstance(item, str | int | float) and item in seen:
                message = f"{item} stands twice in the list"
                yield finding("QS114", file, (*path, position), message, "remove one, or write the word that is meant")
            seen.append(item)


def _lists(path: KeyPath, value: object) -> Iterator[tuple[KeyPath, tuple[object, ...]]]:
    if isinstance(value, dict):
        for key, inner in cast("Mapping[str, object]", value).items():
            yield from _lists((*path, key), inner)
    elif isinstance(value, tuple):
        items = cast("tuple[object, ...]", value)
        yield path, items
        for position, inner in enumerate(items):
            yield from _lists((*path, position), inner)
