"""Which backend each scheme gets on each architecture, and the reasons against the better ones, as tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import qscheme
from qscheme import Facts
from qscheme.decision import Decision
from qscheme.tables import load
from qscheme.tuned import AllTuned
from qscheme.types import REASON_ORDER, Device, Reason, TunedTable


@dataclass(frozen=True)
class TunedBut:
    """Takes every shape for tuned but those of one table."""

    name: str

    def untuned(
        self, table: TunedTable, device: Device, compute_units: int | None, n: int, k: int, every: tuple[int, ...]
    ) -> str | None:
        if table.name == self.name:
            return "no row"
        return AllTuned().untuned(table, device, compute_units, n, k, every)


@dataclass(frozen=True)
class Situation:
    """What a machine has and what a layer is, where they differ from the usual."""

    facts: dict[str, Any] = field(default_factory=dict)
    layer: dict[str, Any] = field(default_factory=dict)


TUNED = {"tuned": "all"}

SITUATIONS = {
    "untuned": Situation(),
    "tuned": Situation(TUNED),
    "aiter_absent": Situation(TUNED | {"aiter": None}),
    "aiter_off": Situation(TUNED | {"switches": {"aiter": False}}),
    "linear_off": Situation(TUNED | {"switches": {"aiter_linear": False}}),
    "aiter_0.1.2": Situation(TUNED | {"aiter": "0.1.2"}),
    "aiter_0.1.8": Situation(TUNED | {"aiter": "0.1.8"}),
    "aiter_0.1.13": Situation(TUNED | {"aiter": "0.1.13"}),
    "preshuffled": Situation(TUNED | {"switches": {"aiter_preshuffled_blockscale": True}}),
    "invariant": Situation({"switches": {"batch_invariant": True}}),
    "invariant_tuned": Situation(TUNED | {"switches": {"batch_invariant": True}}),
    "fp16": Situation(TUNED, {"out_dtype": torch.float16}),
    "fp32": Situation(TUNED, {"out_dtype": torch.float32}),
    "n_1000": Situation(TUNED, {"out_features": 1000}),
    "n_1006": Situation(TUNED, {"out_features": 1006}),
    "k_1056": Situation(TUNED, {"in_features": 1056}),
    "k_1008": Situation(TUNED, {"in_features": 1008}),
    "k_1006": Situation(TUNED, {"in_features": 1006}),
    "bias": Situation(TUNED, {"bias": torch.zeros(1024)}),
    "rotated": Situation(TUNED, {"rotation": 32}),
    "prequantized": Situation(TUNED, {"prequantized": True}),
}


def decision(scheme: str, arch: str, situation: str | Situation, **asked: Any) -> Decision:
    found = SITUATIONS[situation] if isinstance(situation, str) else situation
    usual = {"out_features": 1024, "in_features": 1024, "out_dtype": torch.bfloat16, "bias": None}
    layer = SimpleNamespace(
        **{
            "scheme": scheme,
            "weight": None,
            "weight_scale": None,
            "input_scale": None,
            "name": "",
            **usual,
            **found.layer,
        }
    )
    return qscheme.explain(layer, Facts.simulate(arch, **found.facts), **asked)


# Rows are situations, columns are architectures; gfx9999 stands for one that nobody knows, - for no backend at all.
TABLES = {
    "int8_ptpc": """
                         gfx942        gfx950        gfx1250       gfx1201       gfx1100       gfx90a        sm_90         cpu           gfx9999
        untuned          aiter_ck      aiter_ck      aiter_triton  aiter_triton  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  reference
        tuned            aiter_ck      aiter_ck      aiter_triton  aiter_triton  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  reference
        aiter_absent     torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  reference
        aiter_off        torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  reference
        linear_off       torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  reference
        aiter_0.1.2      aiter_ck      aiter_ck      torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  reference
        aiter_0.1.8      aiter_ck      aiter_ck      torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  reference
        aiter_0.1.13     aiter_ck      aiter_ck      aiter_triton  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  reference
        preshuffled      aiter_ck      aiter_ck      aiter_triton  aiter_triton  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  reference
        invariant        torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  -
        invariant_tuned  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  -
        fp16             aiter_ck      aiter_ck      aiter_triton  aiter_triton  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  reference
        fp32             torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  reference
        n_1000           aiter_triton  aiter_triton  aiter_triton  aiter_triton  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  reference
        n_1006           aiter_triton  aiter_triton  aiter_triton  aiter_triton  reference     reference     reference     torch_int_mm  reference
        k_1056           aiter_ck      aiter_ck      aiter_triton  aiter_triton  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  reference
        k_1008           aiter_ck      aiter_ck      aiter_triton  aiter_triton  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  reference
        k_1006           aiter_triton  aiter_triton  aiter_triton  aiter_triton  reference     reference     reference     torch_int_mm  reference
        bias             aiter_ck      aiter_ck      aiter_triton  aiter_triton  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  reference
        rotated          aiter_ck      aiter_ck      aiter_triton  aiter_triton  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  reference
        prequantized     aiter_ck      aiter_ck      aiter_triton  aiter_triton  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  reference
    """,
    "int8_tensor_static": """
                         gfx942        gfx950        gfx1250       gfx1201       gfx1100       gfx90a        sm_90         cpu           gfx9999
        untuned          aiter_ck      aiter_ck      aiter_triton  aiter_triton  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  reference
        tuned            aiter_ck      aiter_ck      aiter_triton  aiter_triton  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  reference
        aiter_absent     torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  reference
        aiter_off        torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  reference
        linear_off       torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  reference
        aiter_0.1.2      aiter_ck      aiter_ck      torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  reference
        aiter_0.1.8      aiter_ck      aiter_ck      torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  reference
        aiter_0.1.13     aiter_ck      aiter_ck      aiter_triton  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  reference
        preshuffled      aiter_ck      aiter_ck      aiter_triton  aiter_triton  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  reference
        invariant        torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  -
        invariant_tuned  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  -
        fp16             aiter_ck      aiter_ck      aiter_triton  aiter_triton  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  reference
        fp32             torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  reference
        n_1000           aiter_triton  aiter_triton  aiter_triton  aiter_triton  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  reference
        n_1006           aiter_triton  aiter_triton  aiter_triton  aiter_triton  reference     reference     reference     torch_int_mm  reference
        k_1056           aiter_ck      aiter_ck      aiter_triton  aiter_triton  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  reference
        k_1008           aiter_ck      aiter_ck      aiter_triton  aiter_triton  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  reference
        k_1006           aiter_triton  aiter_triton  aiter_triton  aiter_triton  reference     reference     reference     torch_int_mm  reference
        bias             aiter_ck      aiter_ck      aiter_triton  aiter_triton  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  reference
        rotated          aiter_ck      aiter_ck      aiter_triton  aiter_triton  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  reference
        prequantized     aiter_ck      aiter_ck      aiter_triton  aiter_triton  torch_int_mm  torch_int_mm  torch_int_mm  torch_int_mm  reference
    """,
    "fp8_block128": """
                         gfx942               gfx950              gfx1250                  gfx1201             gfx1100    gfx90a     sm_90            cpu        gfx9999
        untuned          aiter_ck             aiter_ck            aiter_triton             aiter_triton_rdna4  reference  reference  torch_scaled_mm  reference  reference
        tuned            aiter_ck             aiter_triton_tuned  aiter_triton_preshuffle  aiter_triton_rdna4  reference  reference  torch_scaled_mm  reference  reference
        aiter_absent     reference            reference           reference                reference           reference  reference  torch_scaled_mm  reference  reference
        aiter_off        reference            reference           reference                reference           reference  reference  torch_scaled_mm  reference  reference
        linear_off       reference            reference           reference                reference           reference  reference  torch_scaled_mm  reference  reference
        aiter_0.1.2      reference            reference           reference                reference           reference  reference  torch_scaled_mm  reference  reference
        aiter_0.1.8      aiter_ck             aiter_triton_tuned  reference                reference           reference  reference  torch_scaled_mm  reference  reference
        aiter_0.1.13     aiter_ck             aiter_triton_tuned  aiter_triton_preshuffle  reference           reference  reference  torch_scaled_mm  reference  reference
        preshuffled      aiter_ck_preshuffle  aiter_triton_tuned  aiter_triton_preshuffle  aiter_triton_rdna4  reference  reference  torch_scaled_mm  reference  reference
        invariant        aiter_triton         aiter_triton        aiter_triton             aiter_triton_rdna4  -          -          -                -          -
        invariant_tuned  aiter_triton         aiter_triton_tuned  aiter_triton             aiter_triton_rdna4  -          -          -                -          -
        fp16             aiter_ck             aiter_triton_tuned  aiter_triton_preshuffle  aiter_triton_rdna4  reference  reference  torch_scaled_mm  reference  reference
        fp32             reference            reference           reference                reference           reference  reference  torch_scaled_mm  reference  reference
        n_1000           aiter_ck             aiter_triton_tuned  aiter_triton             aiter_triton_rdna4  reference  reference  reference        reference  reference
        n_1006           aiter_triton         aiter_triton_tuned  aiter_triton             aiter_triton_rdna4  reference  reference  reference        reference  reference
        k_1056           reference            reference           reference                reference           reference  reference  torch_scaled_mm  reference  reference
        k_1008           reference            reference           reference                reference           reference  reference  torch_scaled_mm  reference  reference
        k_1006           reference            reference           reference                reference           reference  reference  reference        reference  reference
        bias             aiter_ck             aiter_triton_tuned  aiter_triton_preshuffle  aiter_triton_rdna4  reference  reference  torch_scaled_mm  reference  reference
        rotated          aiter_ck             aiter_triton_tuned  aiter_triton_preshuffle  aiter_triton_rdna4  reference  reference  torch_scaled_mm  reference  reference
        prequantized     aiter_ck             aiter_triton_tuned  aiter_triton_preshuffle  aiter_triton_rdna4  reference  reference  torch_scaled_mm  reference  reference
    """,
    "mxfp4": """
                         gfx942     gfx950                              gfx1250             gfx1201    gfx1100    gfx90a     sm_90      cpu        gfx9999
        untuned          reference  aiter_triton                        aiter_triton        reference  reference  reference  reference  reference  reference
        tuned            reference  aiter_asm                           aiter_triton        reference  reference  reference  reference  reference  reference
        aiter_absent     reference  torch_scaled_mm_mxfp4_plain_scales  reference           reference  reference  reference  reference  reference  reference
        aiter_off        reference  torch_scaled_mm_mxfp4_plain_scales  reference           reference  reference  reference  reference  reference  reference
        linear_off       reference  torch_scaled_mm_mxfp4_plain_scales  reference           reference  reference  reference  reference  reference  reference
        aiter_0.1.2      reference  torch_scaled_mm_mxfp4_plain_scales  reference           reference  reference  reference  reference  reference  reference
        aiter_0.1.8      reference  aiter_asm                           reference           reference  reference  reference  reference  reference  reference
        aiter_0.1.13     reference  aiter_asm                           aiter_triton        reference  reference  reference  reference  reference  reference
        preshuffled      reference  aiter_asm                           aiter_triton        reference  reference  reference  reference  reference  reference
        invariant        -          aiter_triton                        aiter_triton        -          -          -          -          -          -
        invariant_tuned  -          aiter_triton                        aiter_triton        -          -          -          -          -          -
        fp16             reference  aiter_triton                        aiter_triton        reference  reference  reference  reference  reference  reference
        fp32             reference  reference                           reference           reference  reference  reference  reference  reference  reference
        n_1000           reference  aiter_triton                        aiter_triton        reference  reference  reference  reference  reference  reference
        n_1006           reference  aiter_triton                        aiter_triton        reference  reference  reference  reference  reference  reference
        k_1056           reference  aiter_triton                        aiter_triton        reference  reference  reference  reference  reference  reference
        k_1008           reference  reference                           reference           reference  reference  reference  reference  reference  reference
        k_1006           reference  reference                           reference           reference  reference  reference  reference  reference  reference
        bias             reference  aiter_asm                           aiter_triton        reference  reference  reference  reference  reference  reference
        rotated          reference  aiter_asm                           aiter_triton        reference  reference  reference  reference  reference  reference
        prequantized     reference  aiter_asm                           aiter_triton        reference  reference  reference  reference  reference  reference
    """,
}

OTHERS = {
    "fp8_ptpc": """
                     gfx942                     gfx950                     gfx1250                  gfx1201                  gfx90a     sm_90                    cpu                      gfx9999
        untuned      torch_scaled_mm_rowwise    torch_scaled_mm_rowwise    torch_scaled_mm_rowwise  torch_scaled_mm_rowwise  reference  torch_scaled_mm_rowwise  torch_scaled_mm_rowwise  reference
        tuned        aiter_ck_preshuffle_short  aiter_ck_preshuffle_short  torch_scaled_mm_rowwise  torch_scaled_mm_rowwise  reference  torch_scaled_mm_rowwise  torch_scaled_mm_rowwise  reference
        aiter_off    torch_scaled_mm_rowwise    torch_scaled_mm_rowwise    torch_scaled_mm_rowwise  torch_scaled_mm_rowwise  reference  torch_scaled_mm_rowwise  torch_scaled_mm_rowwise  reference
        aiter_0.1.2  aiter_ck                   aiter_ck                   torch_scaled_mm_rowwise  torch_scaled_mm_rowwise  reference  torch_scaled_mm_rowwise  torch_scaled_mm_rowwise  reference
        invariant    -                          -                          -                        -                        -          -                        -                        -
        fp16         aiter_ck_preshuffle_short  aiter_ck_preshuffle_short  aiter_triton             aiter_triton             reference  reference                reference                reference
        n_1006       aiter_triton               aiter_triton               aiter_triton             aiter_triton             reference  reference                torch_scaled_mm_rowwise  reference
        k_1056       aiter_ck                   aiter_ck                   torch_scaled_mm_rowwise  torch_scaled_mm_rowwise  reference  torch_scaled_mm_rowwise  torch_scaled_mm_rowwise  reference
    """,
    "fp8_tensor_static": """
                      gfx942           gfx950           gfx1250          gfx1201          gfx90a     sm_90            cpu              gfx9999
        untuned       torch_scaled_mm  torch_scaled_mm  torch_scaled_mm  torch_scaled_mm  reference  torch_scaled_mm  torch_scaled_mm  reference
        tuned         torch_scaled_mm  torch_scaled_mm  torch_scaled_mm  torch_scaled_mm  reference  torch_scaled_mm  torch_scaled_mm  reference
        invariant     -                -                -                -                -          -                -                -
        fp32          torch_scaled_mm  torch_scaled_mm  torch_scaled_mm  torch_scaled_mm  reference  torch_scaled_mm  torch_scaled_mm  reference
        n_1006        aiter_triton     aiter_triton     aiter_triton     aiter_triton     reference  reference        torch_scaled_mm  reference
        aiter_absent  torch_scaled_mm  torch_scaled_mm  torch_scaled_mm  torch_scaled_mm  reference  torch_scaled_mm  torch_scaled_mm  reference
    """,
    "fp8_w8a16_block128": """
                     gfx942                   gfx950                   gfx1250                  gfx1201             sm_90               cpu        gfx9999
        untuned      aiter_triton             aiter_triton             aiter_triton             triton_weight_only  triton_weight_only  reference  reference
        tuned        aiter_triton_preshuffle  aiter_triton_preshuffle  aiter_triton_preshuffle  triton_weight_only  triton_weight_only  reference  reference
        aiter_0.1.8  aiter_triton             aiter_triton             triton_weight_only       triton_weight_only  triton_weight_only  reference  reference
        invariant    aiter_triton             aiter_triton             aiter_triton             triton_weight_only  triton_weight_only  -          -
        fp32         triton_weight_only       triton_weight_only       triton_weight_only       triton_weight_only  triton_weight_only  reference  reference
        n_1006       aiter_triton             aiter_triton             aiter_triton             triton_weight_only  triton_weight_only  reference  reference
        k_1056       triton_weight_only       triton_weight_only       triton_weight_only       triton_weight_only  triton_weight_only  reference  reference
    """,
    "fp8_block128_a_mxfp8": """
                      gfx942                   gfx950                   gfx1250    gfx1201    sm_90      cpu        gfx9999
        untuned       aiter_triton             aiter_triton             reference  reference  reference  reference  reference
        tuned         aiter_triton_preshuffle  aiter_triton_preshuffle  reference  reference  reference  reference  reference
        aiter_0.1.13  reference                reference                reference  reference  reference  reference  reference
        invariant     aiter_triton             aiter_triton             -          -          -          -          -
        n_1006        aiter_triton             aiter_triton             reference  reference  reference  reference  reference
        k_1056        aiter_triton_preshuffle  aiter_triton_preshuffle  reference  reference  reference  reference  reference
    """,
    "mxfp4_a_fp8_tensor": """
                      gfx942     gfx950        gfx1250       gfx1201    sm_90      cpu        gfx9999
        untuned       reference  aiter_triton  aiter_triton  reference  reference  reference  reference
        aiter_0.1.8   reference  reference     reference     reference  reference  reference  reference
        aiter_0.1.13  reference  aiter_triton  aiter_triton  reference  reference  reference  reference
        invariant     -          -             -             -          -          -          -
        fp32          reference  reference     reference     reference  reference  reference  reference
        k_1056        reference  aiter_triton  aiter_triton  reference  reference  reference  reference
    """,
    "int4_w4a16_g128": """
                   gfx942              gfx950              gfx1201             sm_90               cpu        gfx9999
        tuned      triton_weight_only  triton_weight_only  triton_weight_only  triton_weight_only  reference  reference
        fp32       triton_weight_only  triton_weight_only  triton_weight_only  triton_weight_only  reference  reference
        k_1056     triton_weight_only  triton_weight_only  triton_weight_only  triton_weight_only  reference  reference
        invariant  triton_weight_only  triton_weight_only  triton_weight_only  triton_weight_only  -          -
    """,
    "mxfp8": """
                   gfx942     gfx950                              sm_90      sm_100                 sm_120                 cpu
        untuned    reference  torch_scaled_mm_mxfp8_plain_scales  reference  torch_scaled_mm_mxfp8  torch_scaled_mm_mxfp8  reference
        fp32       reference  reference                           reference  torch_scaled_mm_mxfp8  torch_scaled_mm_mxfp8  reference
        n_1000     reference  reference                           reference  reference              reference              reference
        k_1056     reference  reference                           reference  torch_scaled_mm_mxfp8  torch_scaled_mm_mxfp8  reference
        bias       reference  torch_scaled_mm_mxfp8_plain_scales  reference  torch_scaled_mm_mxfp8  torch_scaled_mm_mxfp8  reference
        invariant  -          -                                   -          -                      -                      -
    """,
    "nvfp4": """
                   gfx942     gfx950     sm_90      sm_100                 sm_120                 cpu
        untuned    reference  reference  reference  torch_scaled_mm_nvfp4  torch_scaled_mm_nvfp4  reference
        fp32       reference  reference  reference  torch_scaled_mm_nvfp4  torch_scaled_mm_nvfp4  reference
        n_1000     reference  reference  reference  reference              reference              reference
        k_1056     reference  reference  reference  torch_scaled_mm_nvfp4  torch_scaled_mm_nvfp4  reference
        bias       reference  reference  reference  torch_scaled_mm_nvfp4  torch_scaled_mm_nvfp4  reference
        invariant  -          -          -          -                      -                      -
    """,
}
"""The same for one scheme of each further kind, in the situations that matter to it."""


def choices(tables: dict[str, str]) -> list[tuple[str, str, str, str]]:
    """(scheme, situation, architecture, backend) of every cell."""
    found: list[tuple[str, str, str, str]] = []
    for scheme, table in tables.items():
        head, *rows = [line.split() for line in table.strip("\n ").splitlines()]
        for situation, *backends in rows:
            found += [(scheme, situation, arch, backend) for arch, backend in zip(head, backends, strict=True)]
    return found


def test_the_tables_have_every_scheme_and_situation() -> None:
    cells = choices(TABLES)
    assert {"fp8_block128", "int8_ptpc", "int8_tensor_static", "mxfp4"} == {scheme for scheme, *_ in cells}
    assert len(TABLES) * len(SITUATIONS) * 9 == len(cells)


@pytest.mark.parametrize("scheme", TABLES)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_each_architecture_gets_the_backend_of_the_table(scheme: str, situation: str) -> None:
    expected = {arch: backend for one, row, arch, backend in choices(TABLES) if (one, row) == (scheme, situation)}
    assert expected == {arch: decision(scheme, arch, situation).chosen or "-" for arch in expected}


@pytest.mark.parametrize("scheme", OTHERS)
def test_schemes_of_further_kinds_get_the_backend_of_their_table(scheme: str) -> None:
    expected = {cell[:3]: cell[3] for cell in choices({scheme: OTHERS[scheme]})}
    assert expected == {cell: decision(cell[0], cell[2], cell[1]).chosen or "-" for cell in expected}


def test_parts_with_scales_of_their_own_take_a_kernel_of_one_scale_per_row() -> None:
    situation = Situation(TUNED, {"logical_widths": [512, 512]})
    assert "torch_scaled_mm_rowwise" == decision("fp8_tensor_static", "gfx942", situation).chosen


def test_an_architectures_suffixes_do_not_matter() -> None:
    for scheme in TABLES:
        assert decision(scheme, "gfx950", "tuned") == decision(scheme, "gfx950:sramecc+:xnack-", "tuned")


# --- reasons -------------------------------------------------------------------------------------------------------


def reasons(scheme: str, arch: str, situation: str | Situation, backend: str) -> tuple[Reason, ...]:
    """Why a backend is not taken, also where a better one is."""
    every = {refusal.backend: refusal.reasons for refusal in decision(scheme, arch, situation, backend=backend).refused}
    return every.get(backend, ())


def texts(scheme: str, arch: str, situation: str | Situation, backend: str) -> list[str]:
    return [f"{reason.kind}: {reason.text}" for reason in reasons(scheme, arch, situation, backend)]


def test_reasons_stand_in_their_order_and_tables_and_switches_are_not_blamed_on_hardware() -> None:
    worst = Situation(
        {"aiter": "0.1.2", "switches": {"aiter": False, "aiter_linear": False, "batch_invariant": True}},
        {"out_features": 1006, "in_features": 1006, "out_dtype": torch.float32},
    )
    for scheme in TABLES:
        for arch in ("gfx942", "gfx950", "gfx1201", "gfx90a", "cpu", "gfx9999"):
            for backend in load().scheme(scheme).backends:
                kinds = [reason.kind for reason in reasons(scheme, arch, worst, backend.name)]
                assert sorted(kinds, key=REASON_ORDER.index) == kinds
                assert "hardware" not in kinds or not {"tuned", "switch"} & set(kinds)


@pytest.mark.parametrize("arch", ["gfx90a", "gfx1100", "sm_90", "cpu", "gfx9999"])
def test_nobody_is_told_to_set_a_switch_on_hardware_that_cannot_run_the_kernel(arch: str) -> None:
    for scheme in TABLES:
        for situation in ("untuned", "aiter_off"):
            text = decision(scheme, arch, situation).text()
            assert "QSCHEME_" not in text and "VLLM_" not in text
            assert f"found {arch}" in text


def test_an_absent_aiter_is_the_reason_once_and_before_all_that_it_would_bring() -> None:
    expected = ["library: needs aiter, found given as absent"]
    assert expected == texts("int8_ptpc", "gfx942", "aiter_absent", "aiter_ck")
    assert expected == texts("mxfp4", "gfx950", "aiter_absent", "aiter_asm")


def test_an_older_aiter_lacks_symbols_or_keywords_that_are_named() -> None:
    newer = "library: needs aiter v0.1.13 or later on gfx1250, found 0.1.8"
    assert [
        newer,
        "symbol: needs aiter.ops.triton.gemm.basic.gemm_a8w8_blockscale.gemm_a8w8_blockscale_preshuffle "
        "(v0.1.10 and later), found aiter 0.1.8, which has no gemm_a8w8_blockscale_preshuffle",
    ] == texts("fp8_block128", "gfx1250", "aiter_0.1.8", "aiter_triton_preshuffle")
    lacking = texts("fp8_block128", "gfx942", "aiter_0.1.2", "aiter_ck")
    assert lacking and all(text.startswith("symbol: needs aiter.") and "found aiter 0.1.2" in text for text in lacking)


def test_a_switch_is_named_with_the_variables_that_set_it() -> None:
    assert ["switch: needs switch aiter on (QSCHEME_AITER=1 or VLLM_ROCM_USE_AITER=1), found off"] == texts(
        "int8_ptpc", "gfx942", "aiter_off", "aiter_ck"
    )
    assert [
        "switch: needs switch aiter_linear on (QSCHEME_AITER_LINEAR=1 or VLLM_ROCM_USE_AITER_LINEAR=1), found off"
    ] == texts("mxfp4", "gfx950", "linear_off", "aiter_asm")


def test_a_shape_that_a_kernel_cannot_take_is_told_with_the_shape() -> None:
    assert ["layer: needs N a multiple of 16, found N = 1006"] == texts("int8_ptpc", "gfx942", "n_1006", "aiter_ck")
    assert ["layer: needs K a multiple of 16, found K = 1006"] == texts("int8_ptpc", "gfx942", "k_1006", "aiter_ck")
    assert ["layer: needs K a multiple of 128, found K = 1056"] == texts("fp8_block128", "gfx942", "k_1056", "aiter_ck")
    assert ["layer: needs K a multiple of 256, found K = 1056"] == texts("mxfp4", "gfx950", "k_1056", "aiter_asm")
    assert ["layer: needs N a multiple of 32, found N = 1000"] == texts("mxfp4", "gfx950", "n_1000", "aiter_asm")
    assert [] == texts("int8_ptpc", "cpu", "k_1006", "torch_int_mm")
    assert ["layer: needs K a multiple of 8 on a device of nvidia, found K = 1006"] == [
        text.replace("amd or nvidia", "nvidia") for text in texts("int8_ptpc", "sm_90", "k_1006", "torch_int_mm")
    ]


def test_an_output_that_a_kernel_cannot_write_is_told() -> None:
    assert ["layer: needs output in bf16 or fp16, found fp32"] == texts("int8_ptpc", "gfx942", "fp32", "aiter_ck")
    assert ["layer: needs output in bf16, found fp16"] == texts("mxfp4", "gfx950", "fp16", "aiter_asm")
    assert [] == texts("mxfp4", "gfx950", "fp32", "reference")
    assert [] == texts("fp8_block128", "sm_90", "fp32", "torch_scaled_mm")


def test_an_untuned_shape_is_told_with_the_table_and_its_rows() -> None:
    assert [
        "tuned: needs N and K tuned in a4w4_blockscale for M = 1024 and 8192, found no row, tuned tables were given as none",
        "tuned: needs N and K tuned in triton_afp4wfp4_preshuffled for M = 128, found no row, tuned tables were given as none",
    ] == texts("mxfp4", "gfx950", "untuned", "aiter_asm")


@pytest.mark.parametrize("table", ["a4w4_blockscale", "triton_afp4wfp4_preshuffled"])
def test_the_assembly_kernel_needs_both_of_its_tables(table: str) -> None:
    situation = Situation({"tuned": TunedBut(table)})
    assert "aiter_triton" == decision("mxfp4", "gfx950", situation).chosen
    (text,) = texts("mxfp4", "gfx950", situation, "aiter_asm")
    assert text.startswith(f"tuned: needs N and K tuned in {table} for M = ")


def test_a_table_of_one_kernel_says_nothing_about_another() -> None:
    assert (
        "aiter_ck"
        == decision("fp8_block128", "gfx950", Situation({"tuned": TunedBut("triton_a8w8_blockscale")})).chosen
    )
    situation = Situation({"tuned": TunedBut("triton_a8w8_blockscale_preshuffled")})
    assert "aiter_triton" == decision("fp8_block128", "gfx1250", situation).chosen


def test_batch_invariance_is_named_as_what_speaks_against_a_split_along_k() -> None:
    (text,) = texts("int8_ptpc", "gfx942", "invariant", "aiter_ck")
    assert text.startswith("switch: needs switch batch_invariant off (") and text.endswith("depend on M), found on")


def test_nothing_runs_where_batch_invariance_is_asked_for_and_no_kernel_has_it() -> None:
    found = decision("fp8_block128", "cpu", "invariant")
    assert found.chosen is None
    (reason,) = found.refused[-1].reasons
    assert "reference" == found.refused[-1].backend
    assert reason.needs.startswith("switch batch_invariant off (")


@pytest.mark.parametrize("arch", ["gfx942", "gfx950", "gfx1250", "gfx1201"])
def test_batch_invariant_triton_products_are_not_split(arch: str) -> None:
    for scheme in ("fp8_block128", "mxfp4"):
        calls = decision(scheme, arch, "invariant_tuned").calls
        assert all(call.gemm.endswith("_one_split") or call.gemm.startswith("reference.") for call in calls)


def test_rdna4_never_gets_a_compiled_kernel_of_aiter() -> None:
    for scheme in TABLES:
        for situation in SITUATIONS:
            found = decision(scheme, "gfx1201", situation)
            assert "ck" not in str(found.chosen)
            assert not any(call.quantize.endswith("_hip") for call in found.calls)


def test_mxfp4_takes_its_kernels_by_the_number_of_rows() -> None:
    calls = [(call.when, call.gemm, call.scale_layout) for call in decision("mxfp4", "gfx950", "tuned").calls]
    assert [
        ("M <= 31", "aiter.gemm_afp4wfp4_preshuffle", "row_major"),
        ("32 <= M <= 64", "aiter.gemm_afp4wfp4_preshuffle", "swizzle_e8m0_32x8"),
        ("M >= 65", "aiter.gemm_a4w4", "swizzle_e8m0_32x8"),
    ] == calls


def test_a_rule_that_differs_from_the_schemes_is_reported_for_the_chosen_backend() -> None:
    found = {
        (scheme, arch): [one.text for one in decision(scheme, arch, "tuned").mismatches]
        for scheme, arch in [
            ("int8_ptpc", "gfx942"),
            ("int8_tensor_static", "gfx942"),
            ("mxfp4", "gfx950"),
            ("mxfp4", "cpu"),
        ]
    }
    assert any("round truncate, the scheme's rule has rne" in text for text in found["int8_ptpc", "gfx942"])
    assert [] == found["int8_tensor_static", "gfx942"]
    assert ["aiter_asm: aiter.per_1x32_f4_quant_hip has scale rceil, the scheme's rule has even"] == found[
        "mxfp4", "gfx950"
    ]
    assert [] == found["mxfp4", "cpu"]


def test_an_unknown_architecture_still_has_the_backends_that_need_no_known_one() -> None:
    for scheme in TABLES:
        found = decision(scheme, "gfx9999", "tuned")
        assert "reference" == found.chosen
        assert all(one.reasons[0].kind == "hardware" for one in found.refused)
