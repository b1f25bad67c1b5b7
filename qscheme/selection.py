"""Layer, facts and scheme -> a bound function, or every reason why not."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import TYPE_CHECKING

from qscheme.binding import Bound, bind
from qscheme.errors import UnknownBackend, Unsupported
from qscheme.facts import Facts
from qscheme.operands import layer_facts, operands_of
from qscheme.tables import Tables, load
from qscheme.types import Decision, Mismatch, Reason, Refusal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from types import ModuleType

    from qscheme import types
    from qscheme.types import Backend, Call, Layer, LayerFacts, Rule, Scheme

logger = logging.getLogger("qscheme")

_warned: set[str] = set()


def dispatch(
    layer: Layer,
    facts: types.Facts | None = None,
    tables: Tables | ModuleType | str | None = None,
    backend: str | None = None,
    disabled: Collection[str] = (),
    *,
    consume: bool = False,
) -> Bound:
    """Bind a layer to the first backend of its scheme that nothing speaks against.

    layer: any object with the attributes of `qscheme.types.Layer`. facts: the machine to decide for, this one if None;
    given facts are believed. tables: a generated package, its name, or None for the shipped one. backend: the only
    backend to consider. disabled: backends not to consider. consume: release the layer's own tensors once they are
    in the backend's layout, so that both never stand side by side for longer than one layer.

    Raises UnknownScheme, UnknownBackend, InvalidLayer, Unsupported (with every reason) or BindFailed.
    """
    found, scheme = _scheme(layer, tables)
    known = facts if facts is not None else Facts.of_this_machine(layer.weight.device, tables=found)
    about = layer_facts(layer, scheme)
    operands = operands_of(layer, scheme, about)
    decision = _named(_decide(scheme, known, about, backend, tuple(disabled)), operands.name)
    if decision.chosen is None:
        raise Unsupported(decision)
    chosen = next(candidate for candidate in scheme.backends if candidate.name == decision.chosen)
    if chosen.on_use == "warn":
        _warn_once(decision)
    bound = bind(scheme, chosen, known, operands, about, decision)
    if consume:
        _release(layer, bound)
    return bound


def explain(
    layer: Layer,
    facts: types.Facts | None = None,
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
    weight = getattr(layer, "weight", None)
    known = (
        facts if facts is not None else Facts.of_this_machine(None if weight is None else weight.device, tables=found)
    )
    about = layer_facts(layer, scheme)
    decision = _named(_decide(scheme, known, about, backend, tuple(disabled)), str(getattr(layer, "name", "") or ""))
    if weight is None:
        decision = decision._replace(assumed=tuple(_assumed(scheme, about)))
    if m is not None:
        kept = tuple(call for call in decision.calls if call.runs(batch_invariant=known.batch_invariant, m=m))
        decision = decision._replace(calls=kept[:1])
    return decision


def _scheme(layer: Layer, tables: Tables | ModuleType | str | None) -> tuple[Tables, Scheme]:
    found = tables if isinstance(tables, Tables) else load(tables)
    return found, found.scheme(layer.scheme)


def _named(decision: Decision, layer: str) -> Decision:
    return decision._replace(layer=layer) if layer else decision


@lru_cache(maxsize=4096)
def _decide(
    scheme: Scheme, facts: types.Facts, layer: LayerFacts, backend: str | None, disabled: tuple[str, ...]
) -> Decision:
    names = [candidate.name for candidate in scheme.backends]
    for name in (*disabled, *(() if backend is None else (backend,))):
        if name not in names:
            raise UnknownBackend(name, scheme.name, names)
    refused: list[Refusal] = []
    for candidate in scheme.backends:
        reasons = _reasons(candidate, facts, layer)
        if candidate.name in disabled:
            reasons.append(Reason("disabled", f"{candidate.name} enabled", "disabled by the caller"))
        if backend is not None and candidate.name != backend:
            reasons.append(Reason("disabled", f"{candidate.name} asked for", f"only {backend} asked for"))
        if reasons:
            refused.append(Refusal(candidate.name, tuple(reasons)))
            continue
        calls = tuple(_reached(candidate, facts))
        return Decision(
            scheme=scheme.name,
            layer="",
            chosen=candidate.name,
            calls=calls,
            refused=tuple(refused),
            mismatches=tuple(_mismatches(scheme, candidate, calls, facts)),
            rotates_input=layer.rotation is not None,
        )
    return Decision(scheme.name, "", None, (), tuple(refused))


def _reasons(backend: Backend, facts: types.Facts, layer: LayerFacts) -> list[Reason]:
    """Every reason, hardware first; tables and switches are not blamed on hardware that cannot run the kernel."""
    reasons = backend.why_not(facts, layer)
    if any(reason.kind == "hardware" for reason in reasons):
        return [reason for reason in reasons if reason.kind not in ("tuned", "switch")]
    return reasons


def _reached(backend: Backend, facts: types.Facts) -> Iterator[Call]:
    """The calls that a bound function makes in the mode of the facts."""
    for call in backend.calls:
        if call.runs(batch_invariant=facts.batch_invariant):
            yield call
            if call.max_m is None:
                return


def _mismatches(scheme: Scheme, backend: Backend, calls: tuple[Call, ...], facts: types.Facts) -> Iterator[Mismatch]:
    used = {call.quantize for call in calls}
    fnuz = facts.device.fp8 == "fnuz" and scheme.activation.format == "fp8_e4m3"
    for kernel in backend.quantizers:
        rule = facts.rule(kernel)
        if rule is None or kernel.name not in used:
            continue
        for field in ("scale", "max", "round", "apply", "floor"):
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
    if scheme.activation.mode == "static":
        yield "input_scale is one value"


def _warn_once(decision: Decision) -> None:
    text = decision._replace(layer="").text()
    if text not in _warned:
        _warned.add(text)
        logger.warning("a fallback is used, first for %s", decision.text())


def _release(layer: Layer, bound: Bound) -> None:
    """Drop the layer's tensors that the bound function does not hold itself."""
    held = {tensor.untyped_storage().data_ptr() for tensor in bound.tensors()}
    for name in ("weight", "weight_scale", "input_scale", "bias"):
        tensor = getattr(layer, name, None)
        if tensor is not None and tensor.untyped_storage().data_ptr() not in held:
            setattr(layer, name, None)
