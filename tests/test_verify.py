"""Every call that the YAML can make, against what AITER's releases offer."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from qscheme_generated.kernels_aiter import GEMM_A4W4, GEMM_AFP4WFP4_PRESHUFFLE, PER_GROUP_QUANT_HIP
from typer.testing import CliRunner

from qscheme.cli import app
from qscheme.compiler import ir
from qscheme.compiler.claims import check, notes_of, problems_of
from qscheme.compiler.folder import read_folder
from qscheme.compiler.kernel_text import forms_of
from qscheme.compiler.ranges import ranges
from qscheme.compiler.release_text import matrix_data, matrix_lines
from qscheme.compiler.resolve import resolve
from qscheme.compiler.support import support_text
from qscheme.compiler.verify import Matrix, against, folder_edition, installed_edition, matrices, releases
from qscheme.errors import QschemeError, UnknownFact
from qscheme.machine import Library
from qscheme.releases import History, api_changes, read_history, updated_history
from qscheme.scanning import ScanPlan, Survey, is_git
from qscheme.signatures import ReleaseOffers
from qscheme.types import Form, Kernel, Reason

SCHEMES = Path(__file__).resolve().parent.parent / "schemes"
AITER = read_history(SCHEMES / "releases" / "aiter.json")

SCHEME = """\
scheme: int8_rows
title: INT8, one scale per token and one per output channel
activation:
  format: int8
  granularity: per_token
  mode: dynamic
  rule: {scale: amax_div, max: 127, round: rne, apply: divide, floor: 1.0e-10}
weight:
  format: int8
  granularity: per_channel
  rule: {scale: amax_div, max: 127, round: rne, apply: divide, floor: 1.0e-10}
backends:
  - name: aiter_rows
    quantize: aiter.row_codes
    gemm: aiter.product
"""

KERNELS = """\
library: aiter
distributions: [amd-aiter]
releases: aiter.json
kernels:
  row_codes:
    does: quantize
    formats: [int8]
    granularity: per_token
    symbol: aiter.quantize_rows
    operands:
      x: {position: 0}
      codes_dtype: {as: quant_dtype}
    inputs: [bf16]
    scale: {layout: row_major}
    rules:
      - {scale: amax_div, max: 127, round: rne, apply: divide, floor: 0.0}
  product:
    does: gemm
    formats: [int8]
    symbol: [aiter.basic.product, aiter.product]
    operands:
      x: {as: XQ}
      weight: {as: WQ, layout: row_major}
      x_scale: {as: x_scale, layout: per_row}
      weight_scale: {as: w_scale, layout: per_row}
      output_dtype: {as: dtype}
    output: [bf16]
    needs: {arch: [gfx942, gfx950]}
"""

PRODUCT = ("XQ", "WQ", "x_scale", "w_scale", "dtype=torch.bfloat16")
ROWS = ("x", "scale=None", "quant_dtype=None")


def history(**releases: dict[str, tuple[str, ...]]) -> History:
    """Releases as `v1_0={symbol: parameters}`, the oldest first."""
    surveys = [(name.replace("_", "."), Survey(symbols, {})) for name, symbols in releases.items()]
    return History.of("aiter", ScanPlan(), surveys)


WHOLE = history(
    v1_0={"aiter.quantize_rows": ROWS, "aiter.product": PRODUCT},
    v1_1={"aiter.quantize_rows": ROWS, "aiter.basic.product": PRODUCT},
    v1_2={"aiter.quantize_rows": ROWS, "aiter.basic.product": PRODUCT},
)


def compiled(folder: Path, known: History, *edits: tuple[str, str]) -> ir.Catalogue:
    """The catalogue of one scheme and two kernels after edits of their text, with a history of its own."""
    texts = {"int8_rows.yaml": SCHEME, "kernels/aiter.yaml": KERNELS}
    for old, new in edits:
        holders = [name for name, text in texts.items() if old in text]
        assert len(holders) == 1, old
        texts[holders[0]] = texts[holders[0]].replace(old, new)
    (folder / "schemes" / "kernels").mkdir(parents=True)
    for name, text in texts.items():
        (folder / "schemes" / name).write_text(text, encoding="utf-8")
    catalogue, problems = resolve(read_folder(folder / "schemes", SCHEMES))
    assert problems == ()
    return replace(catalogue, histories=(known,))


def problems(folder: Path, known: History, *edits: tuple[str, str]) -> list[str]:
    """What is wrong with the catalogue, each without its file's folder."""
    found = problems_of(against(compiled(folder, known, *edits), known))
    return [f"{Path(problem.place.file).name}:{problem.place.line}: {problem.message}" for problem in found]


@pytest.fixture(scope="module")
def shipped() -> ir.Catalogue:
    catalogue, found = resolve(read_folder(SCHEMES, SCHEMES))
    assert found == ()
    return catalogue


@pytest.fixture(scope="module")
def matrix(shipped: ir.Catalogue) -> Matrix:
    return against(shipped, AITER)


def cell(matrix: Matrix, scheme: str, backend: str, release: str) -> str:
    fit = next(fit for fit in matrix.backends if (fit.scheme, fit.backend.name) == (scheme, backend))
    return fit.cells[matrix.names.index(release)]


# --- ranges in words -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ("11111", "a to e"),
        ("00000", "no release"),
        ("00100", "c"),
        ("00011", "d to e"),
        ("11011", "a to b and d to e (not c)"),
        ("10010", "a and d (not b to c)"),
        ("01010", "b and d (not c)"),
    ],
)
def test_a_range_names_its_ends_and_its_gaps(chosen: str, expected: str) -> None:
    assert expected == ranges("abcde", [word == "1" for word in chosen])


# --- the shipped schemes ---------------------------------------------------------------------------------------------


def test_every_shipped_call_fits_some_release(matrix: Matrix) -> None:
    assert () == problems_of(matrix)


def test_every_shipped_aiter_backend_works_with_the_newest_release(matrix: Matrix) -> None:
    assert {"works"} == {fit.cells[-1] for fit in matrix.backends}


def test_an_older_form_is_a_cell_of_its_own(matrix: Matrix) -> None:
    asked = ("v0.1.6.post1", "v0.1.6.post2", "v0.1.8", "v0.1.9")
    found = [cell(matrix, "mxfp4", "aiter_asm", release) for release in asked]
    assert ["does not", "older form", "older form", "works"] == found


def test_a_backend_whose_only_architecture_is_late_starts_there(matrix: Matrix) -> None:
    found = [cell(matrix, "fp8_block128", "aiter_triton_preshuffle", release) for release in ("v0.1.12", "v0.1.13")]
    assert ["does not", "works"] == found


def test_an_architecture_that_is_later_than_the_others_is_listed(matrix: Matrix) -> None:
    fit = next(fit for fit in matrix.backends if (fit.scheme, fit.backend.name) == ("mxfp4", "aiter_triton"))
    assert (("gfx1250", "v0.1.13"),) == fit.late


def test_an_optional_keyword_that_no_release_takes_is_a_note(matrix: Matrix) -> None:
    expected = "aiter.per_1x32_f4_quant_hip: the optional keyword hadamard_rotate is offered by no release yet"
    assert expected in notes_of(matrix)


def test_generated_kernels_have_the_forms_that_are_verified(shipped: ir.Catalogue) -> None:
    kernel = next(kernel for kernel in shipped.kernels if kernel.name == "gemm_a4w4")
    assert GEMM_A4W4.forms == forms_of(kernel)


def test_support_md_lists_the_releases_of_each_aiter_backend(shipped: ir.Catalogue) -> None:
    text = support_text(shipped)
    assert "## Releases of aiter" in text
    assert "| mxfp4 | aiter_asm | v0.1.9 to v0.1.20.post1 | v0.1.6.post2 to v0.1.8 | |" in text


# --- mistakes --------------------------------------------------------------------------------------------------------


def test_a_whole_catalogue_has_no_problem(tmp_path: Path) -> None:
    assert [] == problems(tmp_path, WHOLE)


def test_a_keyword_that_no_release_has_is_a_problem_with_a_suggestion(tmp_path: Path) -> None:
    expected = (
        "aiter.yaml:17: product: no release of aiter.basic.product takes the keyword 'x_scal', did you mean 'x_scale'?"
    )
    assert [expected] == problems(tmp_path, WHOLE, ("as: x_scale", "as: x_scal"))


def test_a_symbol_that_no_release_has_is_a_problem_with_a_suggestion(tmp_path: Path) -> None:
    expected = (
        "aiter.yaml:5: row_codes: no release of aiter has aiter.quantise_rows, did you mean 'aiter.quantize_rows'?"
    )
    assert [expected] == problems(tmp_path, WHOLE, ("aiter.quantize_rows", "aiter.quantise_rows"))


def test_a_second_path_that_no_release_has_is_a_problem(tmp_path: Path) -> None:
    found = problems(tmp_path, WHOLE, ("aiter.product]", "aiter.produkt]"))
    assert ["aiter.yaml:17: product: no release of aiter has aiter.produkt, did you mean 'aiter.product'?"] == found


def test_a_path_that_another_always_precedes_is_a_problem(tmp_path: Path) -> None:
    known = history(v1_0={"aiter.quantize_rows": ROWS, "aiter.basic.product": PRODUCT, "aiter.product": PRODUCT})
    expected = "aiter.yaml:17: product: aiter.product is never used: wherever it is, a path above it is too"
    assert [expected] == problems(tmp_path, known)


def test_a_required_parameter_that_is_not_given_is_a_problem(tmp_path: Path) -> None:
    known = history(v1_0={"aiter.quantize_rows": ROWS, "aiter.product": (*PRODUCT[:4], "out", "dtype=None")})
    found = problems(tmp_path, known, ("[aiter.basic.product, aiter.product]", "aiter.product"))
    assert [
        "aiter.yaml:17: product: the newest form can be called in no release of aiter: needs aiter.product called with "
        "XQ, WQ, x_scale, w_scale, dtype, found aiter 1.0 with parameters (XQ, WQ, x_scale, w_scale, out, dtype=None) "
        "with out required"
    ] == found


def test_a_position_that_is_passed_by_keyword_too_is_a_problem(tmp_path: Path) -> None:
    known = history(v1_0={"aiter.quantize_rows": ("quant_dtype", "x=None"), "aiter.product": PRODUCT})
    found = problems(tmp_path, known, ("[aiter.basic.product, aiter.product]", "aiter.product"))
    assert len(found) == 1 and "(quant_dtype, x=None) with quant_dtype given twice" in found[0]


def test_a_position_that_belongs_to_another_operand_is_a_problem(tmp_path: Path) -> None:
    known = history(
        v1_0={"aiter.quantize_rows": ROWS, "aiter.product": PRODUCT},
        v1_1={"aiter.quantize_rows": ("WQ_bytes", "quant_dtype=None"), "aiter.basic.product": PRODUCT},
    )
    expected = "aiter.yaml:5: row_codes: position of x: v1.1 calls it 'WQ_bytes', which is weight elsewhere"
    assert [expected] == problems(tmp_path, known)


def test_since_that_leaves_no_release_is_a_problem_and_one_before_the_symbol_is_not(tmp_path: Path) -> None:
    late = ("symbol: aiter.quantize_rows", "symbol: aiter.quantize_rows\n    since: v2.0")
    expected = "aiter.yaml:5: row_codes: since v2.0 leaves no release; its signature fits v1.0 to v1.2"
    assert [expected] == problems(tmp_path / "late", WHOLE, late)
    assert [] == problems(tmp_path / "early", WHOLE, (late[0], late[1].replace("v2.0", "v0.5")))


def test_until_before_the_symbol_is_a_problem(tmp_path: Path) -> None:
    early = ("symbol: aiter.quantize_rows", "symbol: aiter.quantize_rows\n    until: v0.9")
    expected = "aiter.yaml:5: row_codes: until v0.9 leaves no release; its signature fits v1.0 to v1.2"
    assert [expected] == problems(tmp_path, WHOLE, early)


def test_an_older_form_that_no_release_needs_is_a_problem(tmp_path: Path) -> None:
    found = problems(tmp_path, WHOLE, ("    needs: {arch", "    older: [{without: [output_dtype]}]\n    needs: {arch"))
    assert [
        "aiter.yaml:17: product: the older form 1 is needed by no release: a newer one fits wherever it does"
    ] == found


def test_an_architecture_that_is_left_without_a_release_is_a_problem(tmp_path: Path) -> None:
    needs = "needs: {arch: [gfx942, gfx950], where: [{arch: [gfx950], since: v3.0}]}"
    found = problems(tmp_path, WHOLE, ("needs: {arch: [gfx942, gfx950]}", needs))
    assert [
        "int8_rows.yaml:13: aiter_rows: since v3.0 on gfx950 leaves no release; it works with v1.0 to v1.2"
    ] == found


def test_a_condition_on_releases_before_the_first_is_a_problem(tmp_path: Path) -> None:
    needs = "needs: {arch: [gfx942, gfx950], where: [{arch: [gfx950], before: BEFORE, multiple_of: {k: 256}}]}"
    old, late, early = (
        "needs: {arch: [gfx942, gfx950]}",
        needs.replace("BEFORE", "v1.1"),
        needs.replace("BEFORE", "v1.0"),
    )
    assert [] == problems(tmp_path / "late", WHOLE, (old, late))
    expected = "int8_rows.yaml:13: aiter_rows: before v1.0 on gfx950 holds for no release"
    assert [expected] == problems(tmp_path / "early", WHOLE, (old, early))


def test_kernels_that_no_release_has_together_are_a_problem(tmp_path: Path) -> None:
    known = history(
        v1_0={"aiter.quantize_rows": ROWS},
        v1_1={"aiter.basic.product": PRODUCT},
        v1_2={"aiter.product": PRODUCT},
    )
    expected = (
        "int8_rows.yaml:13: aiter_rows: no release of aiter has all of its kernels: row_codes works with v1.0; "
        "product works with v1.1 to v1.2"
    )
    assert [expected] == problems(tmp_path, known)


def test_a_rule_that_no_release_follows_is_a_problem(tmp_path: Path) -> None:
    rules = "rules:\n      - {since: v1.9, scale: ceil, max: 127, round: rne, apply: divide, floor: 0.0}"
    found = problems(tmp_path, WHOLE, ("    rules:", f"    {rules}"))
    assert ["aiter.yaml:5: row_codes: no release with it follows the rule ceil since v1.9"] == found


def test_a_default_that_is_relied_on_and_changed_is_a_note(tmp_path: Path) -> None:
    known = history(
        v1_0={"aiter.quantize_rows": ROWS, "aiter.product": (*PRODUCT, "splitK=0")},
        v1_1={"aiter.quantize_rows": ROWS, "aiter.basic.product": (*PRODUCT, "splitK=None")},
    )
    expected = "aiter.product relies on the default of splitK, which changed: 0 in v1.0; None in v1.1"
    assert [expected] == [*notes_of(against(compiled(tmp_path, known), known))]


def test_a_backend_that_ended_is_a_note(tmp_path: Path) -> None:
    known = history(v1_0={"aiter.quantize_rows": ROWS, "aiter.product": PRODUCT}, v1_1={"aiter.quantize_rows": ROWS})
    catalogue = compiled(tmp_path, known, ("[aiter.basic.product, aiter.product]", "aiter.product"))
    assert ("int8_rows aiter_rows does not work with the newest release, v1.1",) == notes_of(against(catalogue, known))


def test_a_keyword_of_qschemes_own_kernels_is_checked_too(tmp_path: Path) -> None:
    folder = tmp_path / "schemes"
    shutil.copytree(SCHEMES, folder)
    file = folder / "kernels" / "reference.yaml"
    file.write_text(file.read_text(encoding="utf-8").replace("{as: fp8}", "{as: fp9}"), encoding="utf-8")
    catalogue, found = resolve(read_folder(folder, SCHEMES))
    assert found == ()
    wrong, _ = check(catalogue, folder)
    assert len(wrong) == 1 and wrong[0].endswith("quantize: qscheme.numerics.quantize takes no keyword 'fp9'")


def test_a_stale_support_md_is_a_problem(tmp_path: Path, shipped: ir.Catalogue) -> None:
    (tmp_path / "generated").mkdir()
    file = tmp_path / "generated" / "support.md"
    file.write_text(support_text(shipped), encoding="utf-8")
    assert () == check(shipped, tmp_path / "schemes")[0]
    file.write_text("old", encoding="utf-8")
    assert ("generated/support.md is stale; run `qscheme generate`",) == check(shipped, tmp_path / "schemes")[0]


# --- what is shown ---------------------------------------------------------------------------------------------------


def test_a_gap_is_named_and_its_reason_stands_at_the_kernel(tmp_path: Path) -> None:
    known = history(
        v1_0={"aiter.quantize_rows": ROWS, "aiter.product": PRODUCT},
        v1_1={"aiter.quantize_rows": ROWS},
        v1_2={"aiter.quantize_rows": ROWS, "aiter.product": PRODUCT},
    )
    catalogue = compiled(tmp_path, known, ("[aiter.basic.product, aiter.product]", "aiter.product"))
    lines = list(matrix_lines(against(catalogue, known)))
    assert lines[0] == "aiter: 3 releases, v1.0 to v1.2"
    assert lines[2].split(maxsplit=2) == ["int8_rows", "aiter_rows", "v1.0 and v1.2 (not v1.1)"]
    assert lines[4].startswith("aiter.product, ") and lines[4].endswith("kernels/aiter.yaml:17:3")
    assert lines[5] == "  v1.1: needs aiter.product (v1.2 and later), found aiter 1.1, which has no product"


def test_the_matrix_as_data_has_a_cell_for_every_release(matrix: Matrix) -> None:
    data = json.loads(json.dumps(matrix_data(matrix)))
    assert {len(AITER.releases)} == {len(row["cells"]) for row in data["backends"]}
    assert {"works", "older form", "does not"} == {word for row in data["backends"] for word in row["cells"].values()}


# --- one release, a folder, the installed one ------------------------------------------------------------------------


def test_one_release_may_be_named_with_or_without_its_v() -> None:
    assert ["v0.1.12"] == [edition.name for edition in releases(AITER, "0.1.12")]
    assert ["v0.1.12"] == [edition.name for edition in releases(AITER, "v0.1.12")]


def test_a_release_that_never_was_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UnknownFact, match=r"no release v0\.1\.99 of aiter; did you mean"):
        releases(AITER, "v0.1.99")


def test_the_installed_aiter_is_read_with_its_version(shipped: ir.Catalogue) -> None:
    found = installed_edition(next(source for source in shipped.libraries if source.name == "aiter"), AITER)
    assert ("aiter 0.1.7.post2.dev18, installed", "0.1.7.post2.dev18") == (found.name, found.version)
    (matrix,) = matrices(shipped, installed=True)
    asked = ("aiter_triton_preshuffle", "aiter_ck", "aiter_triton_rdna4")
    cells = [cell(matrix, "fp8_block128", backend, found.name) for backend in asked]
    assert ["does not", "works", "does not"] == cells
    assert "aiter" not in sys.modules


@pytest.mark.parametrize("inside", [False, True])
def test_a_checkout_and_its_package_folder_are_both_taken(tmp_path: Path, inside: bool) -> None:
    known = history(v1_0={"aiter.quantize_rows": ROWS, "aiter.product": PRODUCT})
    catalogue = compiled(tmp_path, known)
    package = tmp_path / "checkout" / "aiter"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def quantize_rows(x, quant_dtype): ...\n", encoding="utf-8")
    source = next(source for source in catalogue.libraries if source.name == "aiter")
    edition = folder_edition(package if inside else package.parent, source, known)
    (fit,) = against(catalogue, known, [edition]).backends
    assert edition.version is None
    assert ("does not",) == fit.cells
    assert [0, True] == [fit.kernels[0].fits[0], isinstance(fit.kernels[1].fits[0], Reason)]


def test_a_folder_without_the_package_is_refused(tmp_path: Path, shipped: ir.Catalogue) -> None:
    with pytest.raises(QschemeError, match=r"found no aiter/__init__\.py"):
        matrices(shipped, folder=tmp_path)


def test_a_namesake_is_refused(tmp_path: Path, shipped: ir.Catalogue) -> None:
    (tmp_path / "aiter").mkdir()
    (tmp_path / "aiter" / "__init__.py").write_text("def azip(*iterators): ...\n", encoding="utf-8")
    with pytest.raises(QschemeError, match="another package called aiter"):
        matrices(shipped, folder=tmp_path)


# --- the same code when a layer is bound -----------------------------------------------------------------------------


def reason(kernel: Kernel, version: str, location: str | None = None) -> str:
    found = ReleaseOffers({"aiter": Library("aiter", version, location)}, SCHEMES / "releases").form(kernel)
    assert isinstance(found, Reason)
    return found.text


NEWEST_A4W4 = replace(GEMM_A4W4, forms=GEMM_A4W4.forms[:1])


def test_the_probe_names_the_missing_keyword_its_first_release_and_what_was_found() -> None:
    assert (
        "needs aiter.gemm_a4w4 with keyword dtype (v0.1.9 and later), found aiter 0.1.8 with parameters "
        "(A, B, A_scale, B_scale, out, bias=None, alpha=1.0, beta=0.0, bpreshuffle=True) without dtype and with out "
        "required"
    ) == reason(NEWEST_A4W4, "0.1.8")


def test_the_probe_names_the_releases_that_an_older_form_fits() -> None:
    assert (
        "needs aiter.gemm_a4w4 with keywords dtype, bpreshuffle (v0.1.9 and later) or an older form of it "
        "(v0.1.4 to v0.1.8), found aiter 0.1.3 with parameters (A, B, A_scale, B_scale, out, bias, alpha=1.0, beta=0.0) "
        "without dtype, bpreshuffle and with out, bias required"
    ) == reason(GEMM_A4W4, "0.1.3")


def test_the_probe_names_a_missing_symbol_and_its_first_release() -> None:
    assert (
        "needs aiter.per_group_quant_hip (v0.1.5 and later), found aiter 0.1.3, which has no per_group_quant_hip"
    ) == reason(PER_GROUP_QUANT_HIP, "0.1.3")


def test_a_simulated_release_has_the_form_that_its_api_asks_for() -> None:
    offers = [ReleaseOffers({"aiter": Library("aiter", v)}, SCHEMES / "releases") for v in ("0.1.8", "0.1.12")]
    assert [1, 0] == [offer.form(GEMM_A4W4) for offer in offers]


def test_the_probe_of_the_installed_aiter_says_what_its_source_has() -> None:
    spec = find_spec("aiter")
    assert spec is not None and spec.origin is not None
    location = str(Path(spec.origin).parent)
    newest = replace(GEMM_AFP4WFP4_PRESHUFFLE, forms=GEMM_AFP4WFP4_PRESHUFFLE.forms[:1])
    assert (
        "needs aiter.ops.triton.gemm.basic.gemm_afp4wfp4.gemm_afp4wfp4_preshuffle (v0.1.7.post3 and later), found aiter "
        "0.1.7.post2.dev18, which has no gemm_afp4wfp4_preshuffle"
    ) == reason(newest, "0.1.7.post2.dev18", location)
    assert (
        "needs aiter.gemm_a4w4 with keyword dtype (v0.1.9 and later), found aiter 0.1.7.post2.dev18 with parameters "
        "(A, B, A_scale, B_scale, out, bias=None, alpha=1.0, beta=0.0, bpreshuffle=True) without dtype and with out "
        "required"
    ) == reason(NEWEST_A4W4, "0.1.7.post2.dev18", location)


def test_a_configuration_that_is_looked_up_with_more_than_m_n_and_k_does_not_fit() -> None:
    known = history(v1_0={"aiter.product": ("x",), "aiter._get_config": ("M", "N", "K", "dtype", "-> dict")})
    kernel = Kernel("aiter.k", "aiter", (Form(("aiter.product",), 1, (), config=("aiter._get_config",)),), print)
    found = ReleaseOffers({"aiter": Library("aiter", "1.0")}, {"aiter": known}).form(kernel)
    assert isinstance(found, Reason)
    assert found.text == (
        "needs aiter._get_config called with 3 operands, found aiter 1.0 with parameters (M, N, K, dtype) "
        "with dtype required"
    )


# --- the command line ------------------------------------------------------------------------------------------------


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    return result.exit_code, result.stdout


def test_verify_prints_a_line_for_each_backend_and_ends_with_0() -> None:
    code, text = run("verify", "--schemes", str(SCHEMES), "--release", "v0.1.8")
    rows = [line.split() for line in text.splitlines()]
    assert code == 0
    assert ["mxfp4", "aiter_asm", "older", "form"] in rows


def test_verify_as_json_has_nothing_else_in_its_output() -> None:
    code, text = run("verify", "--schemes", str(SCHEMES), "--json")
    data = json.loads(text)
    assert (code, data["problems"]) == (0, [])
    assert list(AITER.releases) == data["matrices"][0]["releases"]


def test_verify_ends_with_1_where_a_keyword_is_wrong(tmp_path: Path) -> None:
    folder = tmp_path / "schemes"
    shutil.copytree(SCHEMES, folder)
    file = folder / "kernels" / "aiter.yaml"
    file.write_text(file.read_text(encoding="utf-8").replace("{as: quant_dtype}", "{as: quantdtype}"), encoding="utf-8")
    code, text = run("verify", "--schemes", str(folder))
    assert code == 1
    assert "no release of aiter.per_token_quant_hip takes the keyword 'quantdtype', did you mean 'quant_dtype'?" in text


def test_verify_takes_one_source_at_a_time() -> None:
    assert CliRunner().invoke(app, ["verify", "--installed", "--release", "v0.1.8"]).exit_code == 2


def test_verify_imports_neither_torch_nor_aiter() -> None:
    code = (
        "import sys; from qscheme.cli import app; "
        f"app(['verify', '--installed', '--schemes', {str(SCHEMES)!r}], standalone_mode=False); "
        "print({'torch', 'triton', 'aiter', 'jinja2'} & sys.modules.keys())"
    )
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


# --- scanning releases -----------------------------------------------------------------------------------------------


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false")
    subprocess.run(("git", "-C", str(folder), *identity, *words), check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A git checkout of a package `aiter` with three tags."""
    folder = tmp_path / "checkout"
    file = folder / "aiter" / "ops" / "quant.py"
    file.parent.mkdir(parents=True)
    (folder / "aiter" / "__init__.py").write_text("from .ops.quant import *\n", encoding="utf-8")
    git(tmp_path, "init", "-q", str(folder))
    for tag, parameters in (("v0.1.1", "x"), ("v0.1.2", "x, quant_dtype=None"), ("v0.1.3-rc1", "x, y")):
        file.write_text(f"def per_token_quant_hip({parameters}): ...\n", encoding="utf-8")
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", tag)
        git(folder, "tag", tag)
    return folder


def test_a_checkout_has_the_version_of_the_last_release_under_it(checkout: Path, shipped: ir.Catalogue) -> None:
    source = next(source for source in shipped.libraries if source.name == "aiter")
    found = folder_edition(checkout, source, AITER)
    assert ("v0.1.2", f"aiter 0.1.2 at {checkout}") == (found.version, found.name), "a candidate is no release"


def test_scan_aiter_writes_every_release_tag_the_same_way_each_time(checkout: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    for out in (first, second):
        shutil.copytree(SCHEMES, tmp_path / out.stem)
        code, text = run("scan-aiter", str(checkout), "--out", str(out), "--schemes", str(SCHEMES))
        assert (code, text.split(":")[-1]) == (0, " written\n")
    assert first.read_bytes() == second.read_bytes()
    known = read_history(first)
    assert ("x", "quant_dtype=None") == known.at(known.releases.index("v0.1.2")).parameters("aiter.per_token_quant_hip")
    assert AITER.releases == known.releases, "releases without a tag are kept"


def test_a_new_release_is_appended_and_the_others_stay(checkout: Path) -> None:
    git(checkout, "tag", "v0.2.0", "v0.1.2")
    known = updated_history(checkout, AITER, only_new=True)
    assert (*AITER.releases, "v0.2.0") == known.releases
    assert known.at(len(known.releases) - 1).parameters("aiter.per_token_quant_hip") == ("x", "quant_dtype=None")
    for place in (0, len(AITER.releases) - 1):
        assert AITER.survey(place) == known.survey(place)


def test_a_survey_taken_out_of_a_history_and_put_back_changes_nothing() -> None:
    surveys = [(release, AITER.survey(place)) for place, release in enumerate(AITER.releases)]
    assert AITER.text() == History.of("aiter", AITER.plan, surveys).text()


def test_an_up_to_date_history_is_not_written_again(checkout: Path, tmp_path: Path) -> None:
    out = tmp_path / "aiter.json"
    words = ("scan-aiter", str(checkout), "--out", str(out), "--schemes", str(SCHEMES), "--only-new")
    assert run(*words)[1].endswith("written\n")
    assert run(*words)[1].endswith("up to date\n")
    assert AITER.text() == out.read_text(encoding="utf-8")


def test_a_package_folder_is_compared_with_the_newest_release(checkout: Path) -> None:
    code, text = run("scan-aiter", str(checkout / "aiter"), "--schemes", str(SCHEMES))
    assert code == 0
    newest = ", ".join(AITER.at(len(AITER.releases) - 1).parameters("aiter.per_token_quant_hip") or ())
    assert f"~ aiter.per_token_quant_hip({newest}) is now (x, y)" in text.splitlines()


def test_a_package_folder_as_json_is_its_api(checkout: Path) -> None:
    _, text = run("scan-aiter", str(checkout / "aiter"), "--schemes", str(SCHEMES), "--json")
    assert {"aiter.per_token_quant_hip": ["x", "y"], "aiter.ops.quant.per_token_quant_hip": ["x", "y"]} == json.loads(
        text
    )


def test_changes_are_sorted_by_name() -> None:
    before, after = (
        {"a.gone": ("x",), "a.same": ("x",), "a.told": ("x",)},
        {"a.same": ("x",), "a.told": ("y",), "a.b": ("=",)},
    )
    assert ("+ a.b = ...", "- a.gone(x)", "~ a.told(x) is now (y)") == api_changes(before, after)


def test_a_bare_repository_is_git_and_a_package_is_not(checkout: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--bare", str(checkout), str(tmp_path / "bare"))
    assert [True, True, False] == [is_git(path) for path in (checkout, tmp_path / "bare", checkout / "aiter")]
