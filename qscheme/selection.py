"""Layer, facts and scheme -> a bound function, or every reason why not."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from qscheme.binding import OPERANDS, Bound, bind, calls_of
from qscheme.decision import Decision, Mismatch, Refusal
from qscheme.errors import UnknownBackend, UnknownFact, Unsupported
from qscheme.facts import Facts
from qscheme.layer import shard_text
from qscheme.operands import layer_facts, operands_of, read
from qscheme.self_test import self_test as compare
from qscheme.tables import Tables, load
from qscheme.tiles import tile
from qscheme.types import BATCH_INVARIANT, REASON_ORDER, Reason

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from types import ModuleType

    from qscheme import machine
    from qscheme.layer import LayerFacts
    from qscheme.types import Backend, Call, Layer, Rule, Scheme

logger = logging.getLogger("qscheme")

_warned: set[str] = set()
_lock = threading.Lock()


def dispatch(
    layer: Layer,
    facts: machine.Facts | None = None,
    tables: Tables | ModuleType | str | None = None,
    backend: str | None = None,
    disabled: Collection[str] = (),
    *,
    consume: bool = False,
    self_test: bool = False,
) -> Bound:
    """Bind a layer to the first backend of its scheme that nothing speaks against.

    layer: any object with the attributes of `qscheme.types.Layer`. facts: the machine to decide for, this one if None;
    given facts are believed. tables: a generated package, its name, or None for the shipped one. backend: the only
    backend to consider. disabled: backends not to consider. consume: release the layer's own tensors once they are
    in the backend's layout, so that both never stand side by side for longer than one layer. self_test: run the bound
    function and the scheme's backend `reference` on a few rows and compare, see `qscheme.self_test`.

    Raises UnknownScheme, UnknownBackend, InvalidLayer, Unsupported (with every reason), BindFailed or SelfTestFailed.
    """
    found, scheme = _scheme(layer, tables)
    given = read(layer)
    about = layer_facts(given, scheme)
    operands = operands_of(given, scheme, about)
    known = facts if facts is not None else Facts.of_this_machine(operands.weight.device, tables=found)
    choice = _decide(found, scheme, known, about, backend, _names(disabled))
    decision = choice.decision if not operands.name else choice.decision._replace(layer=operands.name)
    if choice.backend is None:
        raise Unsupported(decision)
    if choice.backend.on_use == "warn":
        _warn_once(choice, operands.name)
    bound = bind(scheme, choice.backend, known, operands, about, decision)
    if self_test:
        # The reference is an oracle here, and need not give the same bits for every number of rows.
        free = replace(known, switches={**known.switches, BATCH_INVARIANT: False})
        reference = _decide(found, scheme, free, about, "reference", ())
        if reference.backend is None:
            raise Unsupported(reference.decision._replace(layer=operands.name))
        expected = bind(scheme, reference.backend, free, operands, about, reference.decision)
        compare(bound, expected, scheme, choice.backend, operands, about)
    if consume:
        _release(layer, bound)
    return bound


def explain(
    layer: Layer,
    facts: machine.Facts | None = None,
    tables: Tables | ModuleType | str | None = None,
    backend: str | None = None,
    disabled: Collection[str] = (),
    m: int | None = None,
) -> Decision:
    """The decision that `dispatch` would make, without loading or preparing anything.

    The layer's weight may be None, before loading, if it has out_features and in_features; what loaded tensors must
    be is then taken as met and listed in `assumed`. m: keep only the calls for this many rows. Never raises
    Unsupported: a decision with `chosen` None carries every reason.
    """
    found, scheme = _scheme(layer, tables)
    given = read(layer)
    about = layer_facts(given, scheme)
    device = None if given.weight is None else given.weight.device
    known = facts if facts is not None else Facts.of_this_machine(device, tables=found)
    decision = _decide(found, scheme, known, about, backend, _names(disabled)).decision
    assumed = tuple(_assumed(scheme, about)) if given.weight is None else ()
    calls = decision.calls
    if m is not None:
        calls = tuple(call for call in calls if call.runs(batch_invariant=known.batch_invariant, m=m))[:1]
    return decision._replace(layer=given.name, assumed=assumed, calls=calls)


def _scheme(layer: Layer, tables: Tables | ModuleType | str | None) -> tuple[Tables, Scheme]:
    found = tables if isinstance(tables, Tables) else load(tables)
    return found, _scheme_named(found, str(getattr(layer, "scheme", "")))


@lru_cache(maxsize=4096)
def _scheme_named(tables: Tables, name: str) -> Scheme:
    return tables.scheme(name)


def _names(disabled: Collection[str]) -> tuple[str, ...]:
    return (disabled,) if isinstance(disabled, str) else tuple(disabled)


class _Choice(NamedTuple):
    """A decision about any layer with the same facts, the backend it chose, and the decision in words."""

    decision: Decision
    backend: Backend | None
    text: str


@lru_cache(maxsize=4096)
def _decide(
    tables: Tables,
    scheme: Scheme,
    facts: machine.Facts,
    layer: LayerFacts,
    backend: str | None,
    disabled: tuple[str, ...],
) -> _Choice:
    names = [candidate.name for candidate in scheme.backends]
    for name in (*disabled, *(() if backend is None else (backend,))):
        if name not in names:
            raise UnknownBackend(name, scheme.name, names)
    _same_tables(tables, facts)
    refused: list[Refusal] = []
    for candidate in scheme.backends:
        reasons = _reasons(candidate, facts, layer, tuple(_misfits(scheme, layer)))
        if candidate.name in disabled:
            reasons.append(Reason("disabled", f"{candidate.name} enabled", "disabled by the caller"))
        if backend is not None and candidate.name != backend:
            reasons.append(Reason("disabled", f"{candidate.name} asked for", f"only {backend} asked for"))
        if reasons:
            refused.append(Refusal(candidate.name, tuple(reasons)))
            continue
        calls = tuple(calls_of(candidate, facts))
        decision = Decision(
            scheme=scheme.name,
            layer="",
            chosen=candidate.name,
            calls=calls,
            refused=tuple(refused),
            mismatches=tuple(_mismatches(scheme, candidate, calls, facts)),
            rotates_input=layer.rotation is not None,
            traits=(*_traits(scheme, candidate, facts), *_layer_traits(layer)),
            rests_on=tuple(_rests_on(candidate, facts, layer)),
        )
        return _Choice(decision, candidate, decision.text())
    traits = (*_operand_traits(scheme), *_layer_traits(layer))
    return _Choice(Decision(scheme.name, "", None, (), tuple(refused), traits=traits), None, "")


@lru_cache(maxsize=4096)
def _traits(scheme: Scheme, backend: Backend, facts: machine.Facts) -> tuple[tuple[str, str], ...]:
    """What a backend's results depend on: operands, the flavour of FP8, calls, and each kernel's form and rule."""
    operands = (scheme.weight,) if scheme.activation is None else (scheme.activation, scheme.weight)
    traits = [*_operand_traits(scheme), ("backend", backend.name)]
    if any(operand.format == "fp8_e4m3" for operand in operands):
        traits.append(("fp8", str(facts.device.fp8) if backend.fp8 == "device" else "fn"))
    called: set[str | None] = set()
    for call in calls_of(backend, facts):
        called |= {call.quantize, call.gemm}
        last = "any" if call.max_m is None else call.max_m
        words = f"{call.quantize}, {call.gemm}, scales {call.scale_layout}"
        traits.append((f"call for M from {call.min_m} to {last}", words))
    for kernel in backend.kernels:
        if kernel.name in called:
            form = facts.offers.form(kernel)
            shape = kernel.forms[form] if isinstance(form, int) else form
            traits += [(f"form of {kernel.name}", str(shape)), (f"rule of {kernel.name}", str(facts.rule(kernel)))]
    return tuple(traits)


def _operand_traits(scheme: Scheme) -> list[tuple[str, str]]:
    return [("activation", str(scheme.activation)), ("weight", str(scheme.weight))]


def _layer_traits(layer: LayerFacts) -> list[tuple[str, str]]:
    return [("output", layer.out_dtype), ("rotation", str(layer.rotation))]


def _same_tables(tables: Tables, facts: machine.Facts) -> None:
    """Facts answer for the switches and libraries of the tables that they were made with."""
    for word, named, known in (
        ("switch", tables.switches, facts.switches),
        ("library", tables.libraries, facts.libraries),
    ):
        for name in named:
            if name not in known:
                raise UnknownFact(
                    f"{word} {name}: needs facts made for the tables {tables.package}, found facts without it; "
                    f"pass tables={tables.package!r} where the facts are made"
                )


def _reasons(backend: Backend, facts: machine.Facts, layer: LayerFacts, misfits: tuple[Reason, ...]) -> list[Reason]:
    """Every reason, hardware first; tables and switches are not blamed on hardware that cannot run the kernel."""
    found = [*misfits, *backend.why_not(facts, layer)]
    reasons = sorted(found, key=lambda reason: REASON_ORDER.index(reason.kind))
    if reasons and reasons[0].kind == "hardware":
        return [reason for reason in reasons if reason.kind not in ("tuned", "switch")]
    return reasons


def _rests_on(backend: Backend, facts: machine.Facts, layer: LayerFacts) -> Iterator[str]:
    source = facts.origins.get("tuned")
    for table, every in backend.tuned:
        rows = ", ".join(map(str, every))
        words = f"tuned table {table.name}: N = {layer.n}, K = {layer.k}, M = {rows} on {facts.arch}"
        yield f"{words} ({source})" if source else words


def _misfits(scheme: Scheme, layer: LayerFacts) -> Iterator[Reason]:
    """Why the tiles of the weight's scales do not fall into shards and parts, whatever the backend.

    The tiles of a stored weight begin at multiples of their size. Where the layer is whole, each part must begin a
    tile, and the last one may be ragged. Where it is a shard, every shard of every part must, so that each has a
    multiple of the tile.
    """
    rows, columns = tile(scheme.weight.granularity, 1, 1)
    tiles = f"as tiles of {scheme.weight.granularity} have"
    if layer.full_n in (None, layer.n):
        begins = [sum(layer.widths[:part]) for part in range(len(layer.widths))]
        for part, begin in enumerate(begins):
            if begin % rows:
                yield Reason(
                    "layer", f"parts that begin at multiples of {rows} rows, {tiles}", f"part {part + 1} at {begin}"
                )
    else:
        for part, width in enumerate(layer.widths or (layer.n,)):
            if width % rows:
                shards, left = divmod(layer.whole_n, layer.n)
                found = shard_text("N", width, None if left else width * shards, rows)
                which = f" in part {part + 1}" if layer.widths else ""
                yield Reason("layer", f"N of each shard{which} a multiple of {rows} rows, {tiles}", found)
    if layer.full_k not in (None, layer.k) and layer.k % columns:
        yield Reason("layer", f"K of each shard a multiple of {columns} columns, {tiles}", layer.found_k(columns))


def _mismatches(scheme: Scheme, backend: Backend, calls: tuple[Call, ...], facts: machine.Facts) -> Iterator[Mismatch]:
    used = {name for call in calls for name in (call.quantize, call.gemm)}
    if scheme.activation is None:
        return
    fnuz = facts.device.fp8 == "fnuz" and scheme.activation.format == "fp8_e4m3"
    for kernel in backend.quantizers:
        rule = facts.rule(kernel)
        if rule is None or kernel.name not in used:
            continue
        for field in ("scale", "max", "round", "apply", "floor"):
            if field == "apply" and scheme.activation.scale == "e8m0":
                continue  # dividing by a power of two and multiplying by its reciprocal are the same
            wanted, found = _value(scheme.activation.rule, field, fnuz), _value(rule, field, fnuz)
            if wanted != found:
                yield Mismatch(backend.name, kernel.name, field, str(wanted), str(found))


def _value(rule: Rule, field: str, fnuz: bool) -> object:
    if field == "max" and fnuz:
        return rule.max / 2 if rule.fnuz_max is None else rule.fnuz_max
    return getattr(rule, field)


def _assumed(scheme: Scheme, layer: LayerFacts) -> Iterator[str]:
    """What the loaded tensors must be, in words."""
    yield f"weight is {scheme.weight.format}, N = {layer.n}, K = {layer.k}"
    yield f"weight_scale is {' or '.join(scheme.stored_scales)}, {scheme.weight.granularity}"
    if scheme.activation is not None and scheme.activation.mode == "static":
        yield "input_scale is one value"


def _warn_once(choice: _Choice, layer: str) -> None:
    """Say that a fallback is used, once for each scheme, backend and set of reasons."""
    with _lock:
        if choice.text in _warned:
            return
        _warned.add(choice.text)
    logger.warning("a fallback is used, first for %s", choice.decision._replace(layer=layer).text())


def _release(layer: Layer, bound: Bound) -> None:
    """Drop the layer's tensors that the bound function does not hold itself."""
    held = {tensor.untyped_storage().data_ptr() for tensor in bound.tensors()}
    for name in (*OPERANDS, "g_idx"):
        tensor = getattr(layer, name, None)
        if tensor is not None and tensor.untyped_storage().data_ptr() not in held:
            setattr(layer, name, None)
