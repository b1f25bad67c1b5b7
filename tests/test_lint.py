"""`qscheme lint`: each planted fault is found with its id, place and witness, and nothing else is."""

from __future__ import annotations

import itertools
import json
import random
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from typer.testing import CliRunner

from qscheme.cli import app
from qscheme.compiler.folder import read_folder
from qscheme.compiler.lint import lint, refusal
from qscheme.compiler.lint_names import yaml_1_1
from qscheme.compiler.lint_rules import RULES, Finding
from qscheme.compiler.points import Point, point_at
from qscheme.compiler.resolve import resolve
from qscheme.compiler.space import Side, Space
from qscheme.facts import Facts
from qscheme.layer import LayerFacts
from qscheme.tables import load
from qscheme.types import Device, Scheme, TunedTable

if TYPE_CHECKING:
    from qscheme.compiler import ir
    from qscheme.tables import Tables

SHIPPED = Path(__file__).parent.parent / "schemes"
FIXTURES = Path(__file__).parent / "lint"
CASES = sorted(path for path in FIXTURES.iterdir() if path.is_dir())
MARK = re.compile(r"# lint: (QS\d+):(\d+) (.*?)(?= # lint:|$)")


def findings(folder: Path) -> tuple[Finding, ...]:
    read = read_folder(folder, SHIPPED)
    catalogue, problems = resolve(read)
    return tuple(map(refusal, problems)) if problems else lint(read, catalogue)


def planted(folder: Path) -> list[tuple[str, int, int, str, list[str]]]:
    """(file, line, column, id, words that the finding has) of every fault that a fixture announces."""
    return sorted(
        (path.relative_to(folder).as_posix(), number, int(column), id_, words.strip().split(" | "))
        for path in sorted(folder.rglob("*.yaml"))
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        for id_, column, words in MARK.findall(line)
    )


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_a_fixture_has_the_faults_that_it_says_and_no_others(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "schemes"
    shutil.copytree(folder, copy)
    prefix = f"{copy.as_posix()}/"

    found = findings(copy)
    expected = planted(copy)

    assert [row[:4] for row in expected] == sorted(
        (f.place.file.removeprefix(prefix), f.place.line, f.place.column, f.id) for f in found
    ), "\n".join(map(str, found))
    for file, line, column, id_, words in expected:
        where = (f"{prefix}{file}", line, column)
        text = next(str(f) for f in found if (f.place.file, f.place.line, f.place.column, f.id) == (*where, id_))
        assert [] == [word for word in words if word not in text], text


def test_every_kind_of_finding_has_a_fixture() -> None:
    assert sorted(RULES) == sorted({row[3] for folder in CASES for row in planted(folder)})
    assert {folder.name[:5] for folder in CASES if folder.name.startswith("QS")} == set(RULES)


def test_the_shipped_catalogue_has_no_findings() -> None:
    assert () == findings(SHIPPED)


def decided(folder: Path) -> list[tuple[ir.Scheme, Space, Side]]:
    catalogue, problems = resolve(read_folder(folder, SHIPPED))
    assert () == problems
    side = Side.of(catalogue)
    return [(scheme, Space.of((side, scheme)), side) for scheme in catalogue.schemes]


class Rows:
    """Tuned rows as a point of the decision space has them."""

    def __init__(self, point: Point) -> None:
        self.rows = point.tuned

    def untuned(
        self, table: TunedTable, device: Device, compute_units: int | None, n: int, k: int, every: tuple[int, ...]
    ) -> str | None:
        lacking = [m for m in every if (table.name, m) not in self.rows]
        return f"no row for M = {lacking}" if lacking else None


def runs(scheme: Scheme, tables: Tables, point: Point) -> list[str]:
    """The backends that the generated code does not refuse at a point."""
    facts = Facts.simulate(point.arch, switches=point.switches, tuned=Rows(point), tables=tables, **point.releases)
    layer = LayerFacts(point.n, point.k, point.output, fused=point.fused, full_n=point.full_n, full_k=point.full_k)
    return [candidate.name for candidate in scheme.backends if not candidate.why_not(facts, layer)]


@pytest.mark.parametrize("row", decided(SHIPPED), ids=lambda row: row[0].name)
def test_the_runtime_chooses_each_backend_for_a_layer_that_lint_names(row: tuple[ir.Scheme, Space, Side]) -> None:
    """Every backend of the catalogue is alive, by the word of the generated code."""
    scheme, space, side = row
    tables = load(None)
    for found in space.decisions(side, scheme)[:-1]:
        cube = space.sample(found.cubes)
        assert cube is not None, found.backend
        assert found.backend == runs(tables.scheme(scheme.name), tables, point_at(space, cube))[0]


KERNEL = """  {name}:
    does: gemm
    formats: [int8]
    symbol: triton.{name}
    operands: {{x: {{as: a}}, weight: {{as: b}}, x_scale: {{as: p}}, weight_scale: {{as: q}}, output_dtype: {{as: d}}}}
    output: [{output}]
"""


def test_no_point_of_a_random_space_contradicts_lint(tmp_path: Path) -> None:
    """Reachability against brute force over every N up to two periods, output, architecture and setting of switches."""
    choose = random.Random(20)
    outputs = ("bf16", "fp16", "fp32", "bf16, fp16", "fp16, fp32", "bf16, fp16, fp32")
    (tmp_path / "kernels").mkdir()
    text = "".join(KERNEL.format(name=f"out{at}", output=output) for at, output in enumerate(outputs))
    head = "library: triton\ndistributions: [triton, pytorch-triton-rocm, triton-rocm, pytorch-triton]\n"
    (tmp_path / "kernels" / "fast.yaml").write_text(f"{head}kernels:\n{text}")
    names = tuple(switch.name for switch in load(None).switches.values() if switch.name != "batch_invariant")
    archs = ("gfx942", "gfx950", "sm_90")
    stated: dict[str, list[dict[str, object]]] = {}
    for number in range(40):
        backends: list[dict[str, object]] = []
        for at in range(choose.randint(2, 6)):
            needs: dict[str, object] = {"multiple_of": {"n": choose.choice((2, 3, 4, 6, 8))}}
            if choose.random() < 0.5:
                needs["minimum"] = {"n": choose.choice((2, 3, 5, 9, 13, 16))}
            if choose.random() < 0.5:
                needs["switches"] = choose.sample(names, choose.randint(1, 2))
            if choose.random() < 0.4:
                needs["arch"] = choose.sample(archs, choose.randint(1, 2))
            gemm = choose.randrange(len(outputs))
            backends.append(
                {"name": f"fast_{at}", "quantize": "reference.quantize", "gemm": f"fast.out{gemm}", "needs": needs}
            )
        stated[f"random_{number}"] = backends
        document = json.loads(json.dumps(OPERANDS)) | {
            "scheme": f"random_{number}",
            "title": "Random",
            "backends": backends,
        }
        (tmp_path / f"random_{number}.yaml").write_text(json.dumps(document))
    dead = 0
    for scheme, space, side in decided(tmp_path):
        backends = stated[scheme.name]
        chosen = {
            next((at for at, backend in enumerate(backends) if holds(backend["needs"], outputs[int(backend["gemm"][-1])], *point)), None)
            for point in itertools.product(
                (*archs, "unknown"), range(1, 65), ("bf16", "fp16", "fp32"),
                [frozenset(on) for size in range(len(names) + 1) for on in itertools.combinations(names, size)],
            )
        }  # fmt: skip
        found = {at for at, decision in enumerate(space.decisions(side, scheme)[:-1]) if decision.cubes}
        dead += len(backends) - len(found)

        assert chosen - {None} == found, scheme.name
    assert dead > 9


OPERANDS = {
    "activation": {
        "format": "int8", "granularity": "per_token", "mode": "dynamic",
        "rule": {"scale": "amax_div", "max": 127, "round": "rne", "apply": "divide", "floor": 0},
    },
    "weight": {
        "format": "int8", "granularity": "per_channel",
        "rule": {"scale": "amax_div", "max": 127, "round": "rne", "apply": "divide", "floor": 0},
    },
}  # fmt: skip


def holds(needs: dict[str, dict[str, int]], output: str, arch: str, n: int, dtype: str, on: frozenset[str]) -> bool:
    return (
        n % needs["multiple_of"]["n"] == 0
        and n >= needs.get("minimum", {"n": 1})["n"]
        and on.issuperset(needs.get("switches", ()))
        and arch in needs.get("arch", (arch,))
        and dtype in output
    )


@pytest.mark.parametrize("text", ["on", "Yes", "FALSE", "~", "012", "0x1F", "1_000", "1:32", "1e3", "1.0e10", "1.0e+3", "7.10", ".5", ".inf", "2026-01-02", "=", "1x128", "y", "n", "bf16", "v0.1.12", "128"])  # fmt: skip
def test_a_word_is_what_pyyaml_takes_it_for(text: str) -> None:
    kinds = {bool: "a boolean", int: "a whole number", float: "a decimal", str: "text", type(None): "nothing"}
    try:
        value = yaml.safe_load(f"[{text}]")[0]
    except yaml.YAMLError:
        value = None
    expected = kinds.get(type(value), "a date")
    expected = {"1:32": "a number in base 60", "=": "an operator"}.get(text, expected)

    assert expected == yaml_1_1(text)


def test_lint_prints_findings_and_says_no(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FIXTURES / "QS108_shape")

    done = CliRunner().invoke(app, ["lint", "--schemes", "."])

    assert 1 == done.exit_code
    assert done.output.startswith("demo.yaml:17:7: QS108 torch_int_mm asks for `minimum` beyond its kernels")


def test_lint_prints_findings_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FIXTURES / "QS120_kernel")

    done = CliRunner().invoke(app, ["lint", "--schemes", ".", "--json"])

    found = json.loads(done.output)["findings"]
    assert 1 == done.exit_code
    assert [("QS120", "kernels/fast.yaml", 15, 3)] == [(f["id"], f["file"], f["line"], f["column"]) for f in found]
    assert {"id", "title", "file", "line", "column", "message", "witness", "cure"} == set(found[0])


def test_a_folder_without_findings_says_yes() -> None:
    done = CliRunner().invoke(app, ["lint", "--schemes", str(FIXTURES / "allowed"), "--json"])

    assert (0, {"problems": [], "findings": []}) == (done.exit_code, json.loads(done.output))


@pytest.mark.parametrize("id_", sorted(RULES))
def test_every_id_is_explained(id_: str) -> None:
    done = CliRunner().invoke(app, ["lint", "--explain", id_])

    assert 0 == done.exit_code
    assert done.output.startswith(f"{id_}: {RULES[id_].title}\n\n")


def test_an_unknown_id_is_not_explained() -> None:
    done = CliRunner().invoke(app, ["lint", "--explain", "QS109"])

    assert 2 == done.exit_code
