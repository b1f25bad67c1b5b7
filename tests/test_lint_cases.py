"""Planted faults of many kinds, each in a scheme of its own: lint finds them, and the generated code bears it out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from decided import catalogue_of, compare, explained

from qscheme.compiler.emit import emit
from qscheme.compiler.folder import read_folder
from qscheme.compiler.lint import lint
from qscheme.compiler.points import Point
from qscheme.tables import load, shipped_schemes
from qscheme.types import TOOLCHAIN

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from qscheme.compiler import ir
    from qscheme.compiler.lint_rules import Finding

Data = dict[str, object]

OPERANDS = {"a": "x", "b": "weight", "p": "x_scale", "q": "weight_scale", "d": "output_dtype"}
CK = {
    "x": {"as": "XQ"}, "weight": {"as": "WQ"}, "x_scale": {"as": "x_scale", "layout": "per_row"},
    "weight_scale": {"as": "w_scale", "layout": "per_row"}, "bias": {"as": "bias"}, "output_dtype": {"as": "dtype"},
}  # fmt: skip


def rule(floor: float = 0.0) -> Data:
    return {"scale": "amax_div", "max": 127, "round": "rne", "apply": "divide", "floor": floor}


def gemm(output: str = "bf16 fp16 fp32", **more: object) -> Data:
    operands = {role: {"as": word} for word, role in OPERANDS.items()}
    common: Data = {"does": "gemm", "formats": ["int8"], "symbol": "triton.product", "operands": operands}
    return common | {"output": output.split()} | more


def ck(**more: object) -> Data:
    return gemm("bf16 fp16", symbol="aiter.gemm_a8w8_CK", operands=CK, **more)


def within(**limits: str) -> Data:
    return {"versions": {"rocm": limits}}


def wrong(arch: Sequence[str] = (), **limits: str) -> Data:
    return {
        **({"arch": list(arch)} if arch else {}),
        **within(**limits),
        "because": "wrong",
        "source": "owner/project#1",
    }


KERNELS: dict[str, dict[str, Data]] = {
    "t": {
        "any": gemm(), "vary": gemm(batch_invariant=False), "half": gemm("bf16"), "rest": gemm("fp16 fp32"),
        "four": gemm(needs={"multiple_of": {"n": 4}}), "mx": gemm(needs={"mx": True, "arch": ["gfx950", "gfx942"]}),
        "off": gemm(needs={"switches": ["aiter_preshuffled_blockscale"]}),
        "late": gemm(needs=within(since="v6.2")),
        "bad": gemm(known_bad=[wrong(arch=["gfx942"], since="v7.0", before="v7.3")]),
        "bad_once": gemm(known_bad=[wrong(before="v9.0")]),
        "six": {
            "does": "quantize", "formats": ["int8"], "granularity": "per_token", "symbol": "triton.quantize", "rules": [rule()],
            "operands": {"x": {"position": 0}}, "scale": {"layout": "row_major"}, "needs": {"multiple_of": {"n": 6}},
        },
    },
    "ax": {
        "early": ck(until="v0.1.10"),
        "early9": ck(until="v0.1.9"),
        "late": ck(needs={"arch": ["gfx942"], "where": [{"arch": ["gfx942"], "since": "v0.1.9"}]}),
        "late11": ck(needs={"arch": ["gfx942"], "where": [{"arch": ["gfx942"], "since": "v0.1.11"}]}),
        "both": ck(needs={"arch": ["gfx942"]}),
    },
}  # fmt: skip
TRITON = ["triton", "pytorch-triton-rocm", "triton-rocm", "pytorch-triton"]
TABLES = {name: {"kind": "csv", "files": [f"{name}.csv"]} for name in ("table", "others")}


class Case(NamedTuple):
    """Backends as (kernel, needs), with the reference below them, and what lint says of them."""

    expected: str
    backends: tuple[tuple[str, Data], ...]
    more: Data = {}  # noqa: RUF012 - read only
    granularity: str = "per_channel"


def arch(*names: str) -> Data:
    return {"arch": list(names)}


def n(multiple: int) -> Data:
    return {"multiple_of": {"n": multiple}}


def whole(multiple: int) -> Data:
    return {"multiple_of": {"full_n": multiple}}


def least(number: int) -> Data:
    return {"minimum": {"n": number}}


def tuned(**rows: list[int]) -> Data:
    return {"tuned": [{"table": table, "m": m} for table, m in rows.items()]}


def on(*names: str) -> Data:
    return {"switches": list(names)}


def where(*rows: Data) -> Data:
    return {"where": list(rows)}


CASES = {
    "by_arch": Case("QS101 2", (("t.any", arch("gfx942")), ("t.any", arch("gfx950")), ("t.any", arch("gfx942", "gfx950")))),
    "by_vendor": Case("QS101 2", (("t.any", {"vendor": ["amd"]}), ("t.any", {"vendor": ["nvidia"]}), ("t.any", arch("gfx942", "sm_90")))),
    "by_output": Case("QS101 2, QS108 0, QS108 1", (("t.half", n(2)), ("t.rest", n(3)), ("t.any", n(6)))),
    "by_output_alive": Case("QS108 0, QS108 1, QS108 2", (("t.half", n(2)), ("t.rest", n(3)), ("t.any", n(3)))),
    "by_release": Case("QS101 2", (("ax.early", {}), ("ax.late", {}), ("ax.both", {}))),
    "by_release_alive": Case("", (("ax.early9", {}), ("ax.late11", {}), ("ax.both", {}))),
    "by_rows": Case("QS101 1, QS108 0", (("t.any", tuned(table=[1, 8])), ("t.any", tuned(table=[1, 8, 16])))),
    "by_rows_alive": Case("QS108 0, QS108 1", (("t.any", tuned(table=[1, 8])), ("t.any", tuned(table=[1])))),
    "by_two_tables": Case("QS101 2, QS108 0, QS108 1", (("t.any", tuned(table=[1])), ("t.any", tuned(others=[1])), ("t.any", tuned(table=[8, 1], others=[4])))),
    "by_mode": Case("QS101 2", (("t.any", on("batch_invariant")), ("t.vary", {}), ("t.any", n(4)))),
    "by_mode_alive": Case("", (("t.vary", {}), ("t.any", {}))),
    "against_its_mode": Case("QS102 0", (("t.vary", on("batch_invariant")),)),
    "by_switches": Case("QS101 2", (("t.any", on("aiter")), ("t.any", on("aiter_linear")), ("t.any", on("aiter", "aiter_linear")))),
    "by_lengths": Case("QS101 2, QS108 0, QS108 1", (("t.any", n(6)), ("t.any", least(5)), ("t.any", least(6)))),
    "by_lengths_alive": Case("QS108 0, QS108 1, QS108 2", (("t.any", n(2)), ("t.any", least(64)), ("t.any", n(3)))),
    "by_primes": Case("QS101 3, QS108 0, QS108 1, QS108 2", (("t.any", n(7)), ("t.any", n(11)), ("t.any", n(13)), ("t.any", n(77)))),
    "by_whole": Case("QS101 2, QS108 0, QS108 1", (("t.any", whole(6)), ("t.any", whole(4)), ("t.any", whole(12)))),
    "by_whole_alive": Case("QS108 0, QS108 1, QS108 2", (("t.any", whole(6)), ("t.any", n(6)), ("t.any", {"multiple_of": {"full_k": 6}}))),
    "by_versions": Case("QS101 2", (("t.any", within(before="v7.0")), ("t.any", within(since="v7.0")), ("t.any", within(since="v6.0")))),
    "by_versions_alive": Case("", (("t.any", within(before="v7.0")), ("t.any", within(since="v7.1")), ("t.any", within(since="v6.0")), ("t.any", {}))),
    "by_no_version": Case("QS102 1", (("t.late", within(before="v7.0")), ("t.late", within(before="v6.0")))),
    "by_fault": Case("QS101 2", (("t.bad", {}), ("t.any", arch("gfx942") | within(since="v7.0", before="v7.2")), ("t.any", arch("gfx942") | within(since="v7.1", before="v7.2")))),
    "by_fault_alive": Case("", (("t.bad", {}), ("t.any", arch("gfx942") | within(since="v7.2", before="v7.4")))),
    "by_fault_elsewhere": Case("QS101 1", (("t.bad", {}), ("t.any", arch("gfx950") | within(since="v7.0", before="v7.3")))),
    "always_wrong": Case("QS102 0", (("t.bad_once", within(before="v8.0")),)),
    "versions_implied": Case("QS112 0 versions.rocm.since", (("t.late", within(since="v6.0", before="v8.0")),)),
    "by_parts": Case("QS101 1", (("t.any", {}), ("t.any", {"one_scale": True})), granularity="per_tensor"),
    "by_parts_alive": Case("QS108 1", (("t.any", {"one_scale": True}), ("t.any", n(2))), granularity="per_tensor"),
    "vain": Case("QS103 1 arch.0", (("t.any", arch("gfx942")), ("t.any", arch("gfx942", "gfx950") | on("aiter")))),
    "two_imply_arch": Case("QS103 0 arch.0, QS103 0 arch.3, QS113 0 arch", (("t.any", arch("gfx942", "gfx950", "gfx1250", "sm_100") | {"mx": True, "vendor": ["amd"]}),)),
    "arch_implies_two": Case("QS113 0 mx, QS113 0 vendor", (("t.any", arch("gfx950") | {"mx": True, "vendor": ["amd"]}),)),
    "implied_by_kernels": Case("QS112 0 vendor", (("t.mx", {"vendor": ["amd"]}),)),
    "implied_by_kernels_together": Case("QS112 0 multiple_of.n", (("t.four+t.six", n(12)),)),
    "row_implied": Case("QS108 0, QS113 0 where.0", (("t.any", n(32) | where({"arch": ["gfx942"], **n(16)})),)),
    "rows_imply_row": Case("QS108 0, QS113 0 where.2", (("t.any", arch("gfx942", "gfx950") | n(3) | where({"arch": ["gfx942"], **n(4)}, {"arch": ["gfx950"], **n(8)}, {"vendor": ["amd"], **n(12)})),)),
    "row_out_of_reach": Case("QS115 0 where.0", (("t.mx", where({"vendor": ["nvidia"], **n(16)})),)),
    "row_loses": Case("QS108 0", (("t.any", where({"arch": ["gfx942"], **n(16)})),)),
    "always": Case("QS113 0 minimum.n", (("t.any", least(1)),)),
    "always_one_scale": Case("QS113 0 one_scale", (("t.any", {"one_scale": True}),)),
    "kernel_switch": Case("QS107 0", (("t.off", {}),)),
    "claims_a_dtype": Case("QS104 claims", (("t.half", {}),), {"claims": {"arch": ["gfx942"], "output": ["bf16", "fp32"]}}),
    "claims_parts": Case("QS104 claims", (("t.any", {"one_scale": True}),), {"claims": {"arch": ["gfx942"]}}, "per_tensor"),
    "claims_short": Case("QS104 claims", (("t.any", least(65)),), {"claims": n(64)}),
    "claims_a_switch": Case("QS104 claims", (("t.off", {}),), {"claims": {"arch": ["gfx942"]}}),
    "claims_enough": Case("", (("t.any", least(64) | on("aiter")),), {"claims": n(64)}),
}  # fmt: skip


def backend(at: int, kernels: str, needs: Data) -> Data:
    product, _, quantizer = kernels.partition("+")
    library, _, _ = product.partition(".")
    found: Data = {"name": f"{library}_{'abcdef'[at]}", "quantize": quantizer or "reference.quantize", "gemm": product}
    return found | ({"needs": needs} if needs else {})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every case as a scheme of one folder, each with a floor of its own."""
    folder = tmp_path_factory.mktemp("cases") / "schemes"
    (folder / "kernels").mkdir(parents=True)
    for stem, kernels in KERNELS.items():
        head: Data = {"library": "triton", "distributions": TRITON, "tuned_tables": TABLES}
        if stem == "ax":
            head = {"library": "aiter", "distributions": ["amd-aiter", "aiter"], "releases": "aiter.json"}
        text = json.dumps({**head, "kernels": kernels})
        (folder / "kernels" / f"{stem}.yaml").write_text(text)
    for number, (name, case) in enumerate(CASES.items()):
        scales = {"per_channel": "per_token"}.get(case.granularity, case.granularity)
        last: Data = {"name": "reference", "quantize": "reference.quantize", "gemm": "reference.reference_linear"}
        backends = [backend(at, *stated) for at, stated in enumerate(case.backends)]
        document: Data = {
            "scheme": name, "title": "Planted", **case.more,
            "activation": {"format": "int8", "granularity": scales, "mode": "dynamic", "rule": rule(number / 64)},
            "weight": {"format": "int8", "granularity": case.granularity, "rule": rule()},
            "backends": [*backends, *([] if "claims" in case.more else [{**last, "on_use": "warn"}])],
        }  # fmt: skip
        (folder / f"{name}.yaml").write_text(json.dumps(document))
    return folder


@pytest.fixture(scope="module")
def catalogue(folder: Path) -> ir.Catalogue:
    return catalogue_of(folder, shipped_schemes())


@pytest.fixture(scope="module")
def found(folder: Path, catalogue: ir.Catalogue) -> dict[str, list[Finding]]:
    """The findings of each scheme; JSON has numbers that YAML 1.1 takes for text."""
    every = [finding for finding in lint(read_folder(folder, shipped_schemes()), catalogue) if finding.id != "QS140"]
    return {name: [finding for finding in every if finding.place.file.endswith(f"/{name}.yaml")] for name in CASES}


def told(finding: Finding) -> str:
    """The id, the backend's number, and the condition where it matters which."""
    path = [*map(str, finding.path)]
    if path[0] != "backends":
        return f"{finding.id} {path[0]}"
    return " ".join(
        [finding.id, path[1], *([".".join(path[3:])] if finding.id in ("QS103", "QS112", "QS113", "QS115") else [])]
    )


@pytest.mark.parametrize("name", CASES)
def test_a_planted_fault_is_found_and_no_other(name: str, found: dict[str, list[Finding]]) -> None:
    assert CASES[name].expected == ", ".join(sorted(map(told, found[name])))


def test_the_generated_code_bears_every_witness_out(
    catalogue: ir.Catalogue, found: dict[str, list[Finding]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in emit(catalogue, "planted_faults").items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    tables, checked = load("planted_faults"), 0
    for name, findings in found.items():
        for point, chosen in witnesses(findings, catalogue):
            assert chosen == explained(name, point, tables), (name, point)
            checked += 1
    assert checked > 30
    compare(catalogue, tables, 2)


def witnesses(findings: list[Finding], catalogue: ir.Catalogue) -> Iterator[tuple[Point, str | None]]:
    """The point that a witness tells, with the defaults of what it does not, and the backend that it says is chosen."""
    for finding in findings:
        words = dict(finding.witness)
        if not {"arch", "N", "K", "out_dtype"} <= words.keys():
            continue
        switches = {switch.name: switch.default for switch in catalogue.switches}
        switches |= {word[7:]: value == "on" for word, value in words.items() if word.startswith("switch ")}
        rows = [word.split() for word, value in words.items() if " tuned for M " in word and value == "yes"]
        newest = dict.fromkeys((library.name for library in catalogue.libraries if library.name != "qscheme"), "v99")
        newest |= dict.fromkeys(TOOLCHAIN, "v99")
        given = {name: words[name] for name in newest if words.get(name, "any version") != "any version"}
        yield (
            Point(
                words["arch"], {**newest, **{name: None if v == "absent" else v for name, v in given.items()}},
                int(words["N"]), int(words["K"]), words["out_dtype"], words.get("scales of the weight") == "one for each part",
                frozenset((row[0], int(row[-1])) for row in rows), switches,
                *(int(words[side]) if side in words else None for side in ("full N", "full K")),
            ),
            words.get("chosen"),
        )  # fmt: skip
