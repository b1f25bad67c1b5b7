"""One change at a time to the YAML of AITER's backends: every one is caught, or changes no byte for a stated reason.

These are the first mutants of each kind for each operand; `python -m tests.mutation` judges all of them.
"""

from __future__ import annotations

from typing import Any

import pytest
from mutation.equal import REASONS
from mutation.mutants import every, few
from mutation.run import judged
from mutation.table import data, table

KINDS = [
    "bias",
    "bound of M",
    "call removed",
    "configuration",
    "constant",
    "dtype view",
    "fold",
    "fp8 flavour",
    "keyword renamed",
    "keywords swapped",
    "layout",
    "older form",
    "operand removed",
    "operands of the scheme",
    "output",
    "quantizer's option",
    "quantizer's scales",
    "quantizes",
    "rows",
    "wrong GEMM",
    "wrong symbol",
]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return data(judged(few(every())), REASONS)


def test_no_mutant_survives(found: dict[str, Any]) -> None:
    assert {} == found["survived"], table(found)


def test_every_kind_of_mutation_is_tried_and_caught(found: dict[str, Any]) -> None:
    caught = {kind for kind, count in found["kinds"].items() if set(count) - {"equal", "survived"}}
    assert KINDS == sorted(caught)


def test_most_mutants_are_caught_behind_the_compiler(found: dict[str, Any]) -> None:
    counts = list(found["kinds"].values())
    compiled = sum(count.get("compiler", 0) for count in counts)
    assert compiled < sum(sum(count.values()) for count in counts) / 3


def test_every_stated_reason_belongs_to_a_mutant() -> None:
    assert set() == set(REASONS) - {mutant.change for mutant in every()}
