"""Every backend of the tables, with a machine and a layer that it runs: what tests of bindings go through."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple

import paper_aiter
import torch

import qscheme
from qscheme import Facts
from qscheme.tables import load
from qscheme.types import BATCH_INVARIANT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from qscheme.decision import Decision

N, K = 128, 256
SIZES = (
    (N, K, torch.bfloat16),
    (128, 512, torch.bfloat16),
    (128, 1024, torch.bfloat16),
    (64, 1536, torch.bfloat16),
    (256, 128, torch.float16),
    (1024, 256, torch.bfloat16),
    (2048, 128, torch.bfloat16),
)
"""N, K and the dtype of y. The first is what most kernels take; the others are the least that some kernels ask for."""


class Case(NamedTuple):
    """A backend of a scheme, a machine that runs it, and the size of a layer that it takes there."""

    scheme: str
    backend: str
    facts: Facts
    n: int = N
    k: int = K
    out_dtype: torch.dtype = torch.bfloat16

    @property
    def runs_here(self) -> bool:
        """Whether this process can call it: AITER stands here on paper, torch and Triton as they are, on a CPU."""
        return self.backend.startswith("aiter") or self.backend == "reference" or self.facts.arch == "cpu"

    def on(self, machines: list[Facts]) -> Case | None:
        """The same on the first of some machines that runs it."""
        able = (self._replace(facts=facts) for facts in machines)
        return next((case for case in able if case.decision.chosen), None)

    @property
    def decision(self) -> Decision:
        """What is said of a layer of this size."""
        layer = SimpleNamespace(
            scheme=self.scheme, weight=None, out_features=self.n, in_features=self.k, out_dtype=self.out_dtype, name=""
        )
        return qscheme.explain(layer, self.facts, backend=self.backend)

    def takes(self, layer: SimpleNamespace) -> bool:
        """Whether it runs this layer."""
        return qscheme.explain(layer, self.facts, backend=self.backend).chosen is not None

    @property
    def refused_by_hardware(self) -> bool:
        """Whether no layer runs there."""
        refused = [refusal for refusal in self.decision.refused if refusal.backend == self.backend]
        return any(reason.kind == "hardware" for refusal in refused for reason in refusal.reasons)


def named(case: object) -> str | None:
    """The id of a case in the names of tests."""
    return f"{case.scheme}-{case.backend}" if isinstance(case, Case) else None


def machines(arches: Iterable[str], release: str = paper_aiter.NEWEST, **switches: bool) -> list[Facts]:
    """One machine of each architecture, with every shape tuned and everything that can be asked for asked for."""
    every = {name: name != BATCH_INVARIANT for name in load().switches}
    return [Facts.simulate(arch, aiter=release, tuned="all", switches=every | switches) for arch in arches]


def cases(scheme: str, facts: list[Facts]) -> Iterator[Case]:
    """Every backend of a scheme, with the first of the machines that can run it; torch's own run on this one."""
    here = [known for known in facts if known.arch == "cpu"]
    for backend in load().scheme(scheme).backends:
        first = [*here, *facts] if backend.name.startswith("torch") else facts
        case = Case(scheme, backend.name, facts[0])
        found = case.on(first)
        if found is None:
            able = [known for known in first if not case._replace(facts=known).refused_by_hardware]
            found = next(filter(None, (Case(scheme, backend.name, facts[0], *size).on(able) for size in SIZES)), None)
        if found is not None:
            yield found


NEWEST = machines(load().devices)
ALL = [case for scheme in load().schemes for case in cases(scheme, NEWEST)]
"""Every backend of the tables that can run at all."""
