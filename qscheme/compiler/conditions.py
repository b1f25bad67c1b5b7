"""Each capability condition in one row: its YAML word, its phase, the test that fails, the reason, the prose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from qscheme.compiler.ir import Check
from qscheme.compiler.versions import asked, words_inside, words_outside
from qscheme.types import REASON_ORDER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from qscheme.compiler.ir import Needs, WhereNeed
    from qscheme.types import Switch

Phase: TypeAlias = Literal["environment", "layer", "weights", "call"]


@dataclass(frozen=True, slots=True)
class Condition:
    """One kind of condition. checks is None where the generated call itself makes the test, once per call."""

    word: str
    phase: Phase
    prose: str
    checks: Callable[[Needs, Mapping[str, Switch]], Iterator[Check]] | None


def checks_of(needs: Needs, switches: Mapping[str, Switch]) -> tuple[Check, ...]:
    """Every check of a backend, hardware first."""
    checks = [check for row in CONDITIONS if row.checks for check in row.checks(needs, switches)]
    return tuple(sorted(checks, key=lambda check: REASON_ORDER.index(check.kind)))


def any_of(words: tuple[str, ...]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _arch(needs: Needs, switches: Mapping[str, Switch]) -> Iterator[Check]:
    if needs.arch is not None:
        yield Check("hardware", _not_in("facts.arch", needs.arch), any_of(needs.arch), "facts.arch", any_of(needs.arch))


def _vendor(needs: Needs, switches: Mapping[str, Switch]) -> Iterator[Check]:
    if needs.vendor is not None:
        words = f"a device of {any_of(needs.vendor)}"
        yield Check("hardware", _not_in("facts.device.vendor", needs.vendor), words, "facts.arch", words)


def _mx(needs: Needs, switches: Mapping[str, Switch]) -> Iterator[Check]:
    if needs.mx:
        words = "a device with MX matrix units"
        yield Check("hardware", "not facts.device.mx", words, "facts.arch", words)


def _int8(needs: Needs, switches: Mapping[str, Switch]) -> Iterator[Check]:
    if needs.int8:
        words = "a device with INT8 matrix units"
        yield Check("hardware", "not facts.device.int8", words, "facts.arch", words)


def _multiple_of(needs: Needs, switches: Mapping[str, Switch]) -> Iterator[Check]:
    yield from _multiples("", needs.n, needs.k, "")
    for name, multiple in (("n", needs.full_n), ("k", needs.full_k)):
        if multiple is not None:
            words = f"{name.upper()} of the whole layer a multiple of {multiple}"
            found = f'f"{name.upper()} = {{layer.whole_{name}}}"'
            yield Check("layer", f"layer.whole_{name} % {multiple} != 0", words, found, words)


def _minimum(needs: Needs, switches: Mapping[str, Switch]) -> Iterator[Check]:
    for name, least in (("n", needs.min_n), ("k", needs.min_k)):
        if least is not None:
            words = f"{name.upper()} of at least {least}"
            found = f'f"{name.upper()} = {{layer.{name}}}"'
            yield Check("layer", f"layer.{name} < {least}", words, found, words)


def _one_scale(needs: Needs, switches: Mapping[str, Switch]) -> Iterator[Check]:
    if needs.one_scale:
        words = "one scale for the whole weight"
        yield Check("layer", "layer.fused", words, "'one for each part'", words)


def _output(needs: Needs, switches: Mapping[str, Switch]) -> Iterator[Check]:
    if needs.output and set(needs.output) != {"bf16", "fp16", "fp32"}:
        words = f"output in {any_of(needs.output)}"
        yield Check("layer", _not_in("layer.out_dtype", needs.output), words, "layer.out_dtype", words)


def _where(needs: Needs, switches: Mapping[str, Switch]) -> Iterator[Check]:
    for where in needs.where:
        test, words = _scope(where)
        if where.since is not None:
            yield Check(
                "library",
                f"{test} and facts.older({where.library!r}, {where.since!r})",
                f"{where.library} {where.since} or later on {words}",
                f"facts.version({where.library!r})",
                f"{where.library} {where.since} or later on {words}",
            )
        if where.before is not None:
            test = f"{test} and facts.older({where.library!r}, {where.before!r})"
            words = f"{words} with {where.library} before {where.before}"
        yield from _multiples(f"{test} and ", where.n, where.k, f" on {words}")


def _versions(needs: Needs, switches: Mapping[str, Switch]) -> Iterator[Check]:
    for one in needs.versions:
        words = words_inside(one)
        yield Check("library", asked("outside", one), words, f"facts.version({one.name!r})", words)


def _known_bad(needs: Needs, switches: Mapping[str, Switch]) -> Iterator[Check]:
    for row in needs.known_bad:
        tests = [_in("facts.arch", row.arch)] * bool(row.arch) + [asked("within", one) for one in row.versions]
        found = ", ".join(f"{one.name} {{facts.version({one.name!r})}}" for one in row.versions)
        where = f", on {any_of(row.arch)}" if row.arch else ""
        words = f"{' or '.join(map(words_outside, row.versions))}{where}, for {row.kernel}"
        words = f"{words} ({row.because}; {row.source})"
        yield Check("library", " and ".join(tests), words, f'f"{found}"', words)


def _tuned(needs: Needs, switches: Mapping[str, Switch]) -> Iterator[Check]:
    for tuned in needs.tuned:
        ms = any_of(tuple(map(str, tuned.every))).replace(" or ", " and ")
        words = f"N and K tuned in {tuned.table} for M = {ms}"
        yield Check(
            "tuned",
            f"(untuned := facts.untuned({tuned.table.upper()}, layer.n, layer.k, {tuned.every!r})) is not None",
            words,
            "untuned",
            words,
        )


def _switches(needs: Needs, switches: Mapping[str, Switch]) -> Iterator[Check]:
    for name in needs.switches:
        cure = any_of(tuple(f"{variable}=1" for variable in switches[name].variables))
        words = f"switch {name} on ({cure})"
        yield Check("switch", f"not facts.on({name!r})", words, "'off'", f"switch {name}")


def _batch_invariant(needs: Needs, switches: Mapping[str, Switch]) -> Iterator[Check]:
    if needs.varies_with_m:
        words = f"switch batch_invariant off (the sums of {' and '.join(needs.varies_with_m)} depend on M)"
        yield Check("switch", "facts.batch_invariant", words, "'on'", "not batch invariant")


def _multiples(scope: str, n: int | None, k: int | None, where: str) -> Iterator[Check]:
    for name, multiple in (("n", n), ("k", k)):
        if multiple is not None:
            words = f"{name.upper()} a multiple of {multiple}{where}"
            found = f"layer.found_{name}({multiple})"
            yield Check("layer", f"{scope}layer.{name} % {multiple} != 0", words, found, words)


def _not_in(fact: str, words: tuple[str, ...]) -> str:
    return f"{fact} != {words[0]!r}" if len(words) == 1 else f"{fact} not in {words!r}"


def _in(fact: str, words: tuple[str, ...]) -> str:
    return f"{fact} == {words[0]!r}" if len(words) == 1 else f"{fact} in {words!r}"


def _scope(where: WhereNeed) -> tuple[str, str]:
    if where.arch:
        return _in("facts.arch", where.arch), any_of(where.arch)
    return _in("facts.device.vendor", where.vendor), f"a device of {any_of(where.vendor)}"


CONDITIONS: tuple[Condition, ...] = (
    Condition("arch", "environment", "the architecture is one of a list", _arch),
    Condition("vendor", "environment", "the device is of a vendor", _vendor),
    Condition("mx", "environment", "the device has MX matrix units", _mx),
    Condition("int8", "environment", "the device has INT8 matrix units", _int8),
    Condition("versions", "environment", "versions of the toolchain and of libraries are in ranges", _versions),
    Condition(
        "known_bad", "environment", "no kernel is known to be wrong on the architecture with these versions", _known_bad
    ),
    Condition("multiple_of", "layer", "N and K are multiples, of this shard or of the whole layer", _multiple_of),
    Condition("minimum", "layer", "N and K are large enough", _minimum),
    Condition("one_scale", "weights", "the layer has one weight scale, not one for each part", _one_scale),
    Condition("output", "layer", "the kernel writes the layer's output dtype", _output),
    Condition("where", "layer", "a condition on some architectures only", _where),
    Condition("tuned", "layer", "N and K are tuned for every M of a list", _tuned),
    Condition("switches", "environment", "switches are on", _switches),
    Condition(
        "batch_invariant", "environment", "no kernel's sums depend on M in batch-invariant mode", _batch_invariant
    ),
    Condition("m", "call", "M is in a range", None),
    Condition("rows", "call", "rows are padded to what the kernel takes, in the versions that need it", None),
    Condition("inputs", "call", "the quantizer takes the dtype of x", None),
)
"""Every condition; what a loaded weight must be (dtype, shape, layout) is checked against the scheme itself."""
