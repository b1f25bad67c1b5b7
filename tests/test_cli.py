"""The command line as a person and a script use it: what it prints where, and its exit codes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from folders import EVERY_FEATURE, edited
from typer.testing import CliRunner

from qscheme.cli import app, main
from qscheme.compiler.output import MARK
from qscheme.tables import load, shipped_schemes

ROOT = Path(__file__).resolve().parent.parent
REFUSED = {"QSCHEME_AITER", "QSCHEME_AITER_LINEAR", "VLLM_ROCM_USE_AITER", "VLLM_ROCM_USE_AITER_LINEAR"}


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def qscheme(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """The command line in this process, errors included."""
    for name in REFUSED:
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str | Path) -> Done:
        monkeypatch.setattr(sys, "argv", ["qscheme", *map(str, arguments)])
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        return Done(code, *capsys.readouterr())

    return run


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with schemes/ in it."""
    edited(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


EXPLAIN = ("explain", "mxfp4", "-n", "7168", "-k", "2048", "--arch", "gfx950")


# --- generate -------------------------------------------------------------------------------------------------------


def test_generate_reads_schemes_and_writes_generated(qscheme, work: Path) -> None:
    done = qscheme("generate")

    assert (0, "15 files in generated: 15 written or deleted\n", "") == done
    assert (work / "generated" / "qscheme_generated" / "four_bits.py").read_text().startswith(f"# {MARK}")
    assert (0, "15 files in generated: all up to date\n", "") == qscheme("generate")
    assert (0, "15 files in generated: all up to date\n", "") == qscheme("generate", "--check")


def test_generate_takes_folders_and_a_package(qscheme, work: Path) -> None:
    (work / "schemes").rename(work / "mine")

    done = qscheme("generate", "--schemes", "mine", "--out", "out", "--package", "my_tables")

    assert 0 == done.code
    assert {"my_tables"} == {path.name for path in (work / "out").iterdir() if path.is_dir()}
    assert ["four_bits", "one_scale"] == list(load_from(work / "out", "my_tables"))


def load_from(folder: Path, package: str) -> tuple[str, ...]:
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); from qscheme.tables import load; print(*load({package!r}).schemes)"
    return tuple(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )


@pytest.mark.parametrize("package", ["class", "1x", "a-b", "a.b", "../out", "", "é", "qscheme"])
def test_a_package_must_have_a_name_that_python_can_import(package: str, qscheme, work: Path) -> None:
    done = qscheme("generate", "--package", package)

    assert 2 == done.code
    assert "cannot be the name of a generated package" in done.err
    assert ["schemes"] == [path.name for path in work.iterdir()]


def test_check_shows_what_changed_is_missing_is_stale_or_is_in_the_way(qscheme, work: Path) -> None:
    qscheme("generate")
    package = work / "generated" / "qscheme_generated"
    (package / "machines.py").write_text((package / "machines.py").read_text().replace("304", "305"))
    (package / "one_scale.py").unlink()
    (package / "gone.py").write_text(f"# {MARK} from schemes/gone.yaml. Edit that file instead.\n")
    (work / "generated" / "support.md").write_text("mine\n")
    before = {path: path.read_bytes() for path in package.rglob("*") if path.is_file()}

    done = qscheme("generate", "--check")

    assert 1 == done.code
    assert "compute_units=(305, 80)" in done.out
    assert "qscheme_generated/one_scale.py: missing\n" in done.out
    assert "qscheme_generated/gone.py: stale, nothing produces it any more\n" in done.out
    assert "support.md: in the way, " in done.out
    assert "generated files in generated are stale; run `qscheme generate`\n" == done.err
    assert before == {path: path.read_bytes() for path in package.rglob("*") if path.is_file()}
    data = json.loads(qscheme("generate", "--check", "--json").out)
    assert {
        "changed": ["qscheme_generated/machines.py"],
        "missing": ["qscheme_generated/one_scale.py"],
        "stale": ["qscheme_generated/gone.py"],
        "foreign": ["support.md"],
    } == data


@pytest.mark.parametrize("break_it", ["changed", "missing", "stale", "foreign"])
def test_check_fails_for_each_kind_of_difference_alone(break_it: str, qscheme, work: Path) -> None:
    qscheme("generate")
    file = work / "generated" / "support.md"
    match break_it:
        case "changed":
            file.write_text(file.read_text() + "\n")
        case "missing":
            file.unlink()
        case "stale":
            (work / "generated" / "old.md").write_text(file.read_text())
        case _:
            file.write_text("mine\n")

    assert 1 == qscheme("generate", "--check").code


def test_a_deleted_scheme_makes_its_file_stale(qscheme, work: Path) -> None:
    qscheme("generate")
    (work / "schemes" / "one_scale.yaml").unlink()

    assert "qscheme_generated/one_scale.py: stale" in qscheme("generate", "--check").out
    assert 0 == qscheme("generate").code
    assert not (work / "generated" / "qscheme_generated" / "one_scale.py").exists()


def test_a_file_in_the_way_is_named_and_nothing_is_written(qscheme, work: Path) -> None:
    (work / "generated").mkdir()
    (work / "generated" / "support.md").write_text("mine\n")

    done = qscheme("generate")

    assert 1 == done.code
    assert "error: generated/support.md: in the way" in done.err
    assert ["support.md"] == [path.name for path in (work / "generated").iterdir()]


def test_a_mistake_is_located_and_nothing_is_written(qscheme, work: Path) -> None:
    file = work / "schemes" / "one_scale.yaml"
    file.write_text(file.read_text().replace("format: int8", "format: int9", 1))
    place, message = "schemes/one_scale.yaml:4:11", "activation.format: unknown word 'int9', did you mean 'int8'?"
    expected = f"{place}: {message}"

    assert (1, "", f"{expected}\n") == qscheme("generate")
    assert (1, f"{place}: QS100 {message}\n", "") == qscheme("lint")
    found = json.loads(qscheme("lint", "--json").out)
    assert [expected] == found["problems"]
    assert [("QS100", "schemes/one_scale.yaml", 4, 11, message)] == [
        tuple(finding[key] for key in ("id", "file", "line", "column", "message")) for finding in found["findings"]
    ]
    assert {"problems": [expected]} == json.loads(qscheme("generate", "--json").out)
    assert not (work / "generated").exists()


def test_lint_has_nothing_to_say_of_sound_files(qscheme, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(shipped_schemes(), "schemes")

    assert (0, "nothing to report in schemes\n", "") == qscheme("lint")
    assert {"problems": [], "findings": []} == json.loads(qscheme("lint", "--json").out)
    assert not Path("generated").exists()


@pytest.mark.parametrize("command", ["generate", "lint"])
def test_a_folder_that_is_not_there_is_wrong_use(command: str, qscheme, tmp_path: Path) -> None:
    done = qscheme(command, "--schemes", tmp_path / "nowhere")

    assert 2 == done.code
    assert f"there is no folder {tmp_path}/nowhere" in done.err
    assert "Traceback" not in done.err


def test_a_library_is_trusted_by_name(qscheme, work: Path) -> None:
    file = work / "schemes" / "kernels" / "fast.yaml"
    file.write_text(file.read_text().replace("triton", "swift"))
    problem = "schemes/kernels/fast.yaml:2:10: QS100 library 'swift' is not trusted; pass --trust-library swift to load its symbols\n"

    assert (1, problem, "") == qscheme("lint")
    assert "QS100" not in qscheme("lint", "--trust-library", "swift").out
    assert 0 == qscheme("generate", "--trust-library", "swift").code


def test_text_that_the_terminal_cannot_show_is_escaped(work: Path) -> None:
    file = work / "schemes" / "one_scale.yaml"
    file.write_text(file.read_text().replace("title: INT8", "títle: INT8"), encoding="utf-8")
    command = [sys.executable, "-m", "qscheme.cli", "lint"]

    done = subprocess.run(command, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, text=True)

    assert 1 == done.returncode
    assert "unknown key 't\\xedtle', did you mean 'title'?" in done.stdout
    assert "" == done.stderr


# --- list and doctor ------------------------------------------------------------------------------------------------


def test_list_names_every_scheme_and_its_backends(qscheme) -> None:
    tables = load()

    data = json.loads(qscheme("list", "--json").out)

    assert ["schemes"] == list(data)
    assert list(tables.schemes) == [row["scheme"] for row in data["schemes"]]
    for row in data["schemes"]:
        assert ["scheme", "title", "activation", "weight", "backends", "producers"] == list(row)
        assert [backend.name for backend in tables.scheme(row["scheme"]).backends] == row["backends"]
        assert row["title"] == tables.scheme(row["scheme"]).title
        assert tables.scheme(row["scheme"]).producers == tuple(row["producers"])


def test_a_table_is_neither_wrapped_nor_cut_where_there_is_no_terminal(qscheme) -> None:
    lines = qscheme("list").out.splitlines()

    assert ["scheme", "title", "backends, best first"] == re.split(r"  +", lines[0])
    for line, row in zip(lines[1:], json.loads(qscheme("list", "--json").out)["schemes"], strict=True):
        assert [row["scheme"], row["title"], ", ".join(row["backends"])] == re.split(r"  +", line)


def test_doctor_says_where_each_fact_came_from(qscheme, monkeypatch: pytest.MonkeyPatch) -> None:
    data = json.loads(qscheme("doctor", "--device", "cpu", "--json").out)

    assert "cpu" == data["arch"]
    assert {"device", "tuned", "switch aiter", "library torch"} <= set(data["origins"])
    assert "architecture" in qscheme("doctor", "--device", "cpu").out


@pytest.mark.parametrize("arguments", [("--device", "nonsense"), ("--tables", "no_such_tables")])
def test_doctor_of_what_is_not_there_is_wrong_use(arguments: tuple[str, str], qscheme) -> None:
    done = qscheme("doctor", *arguments)

    assert 2 == done.code
    assert done.err.startswith("error: ")


def test_list_reads_a_package_of_ones_own(work: Path) -> None:
    run = [sys.executable, "-m", "qscheme.cli"]
    subprocess.run([*run, "generate", "--out", ".", "--package", "my_tables"], check=True, capture_output=True)

    done = subprocess.run([*run, "list", "--tables", "my_tables", "--json"], capture_output=True, text=True)

    assert ["four_bits", "one_scale"] == [row["scheme"] for row in json.loads(done.stdout)["schemes"]]


# --- explain --------------------------------------------------------------------------------------------------------


def test_explain_prints_json_alone_with_the_promised_keys(qscheme) -> None:
    done = qscheme(*EXPLAIN, "--json")
    data = json.loads(done.out)

    assert (0, "") == (done.code, done.err)
    assert ["scheme", "facts", "chosen", "refused", "mismatches", "assumed", "rests_on"] == list(data)
    assert ["backend", "calls"] == list(data["chosen"])
    assert {("when", "quantize", "gemm")} == {tuple(call) for call in data["chosen"]["calls"]}
    assert {("backend", "reasons")} == {tuple(row) for row in data["refused"]}
    assert {("kind", "needs", "found", "text")} == {tuple(r) for row in data["refused"] for r in row["reasons"]}
    assert "mxfp4" == data["scheme"]
    assert "gfx950" == data["facts"]["arch"]


def test_explain_in_words_says_the_same_as_in_json(qscheme) -> None:
    text, data = qscheme(*EXPLAIN).out, json.loads(qscheme(*EXPLAIN, "--json").out)

    assert text.startswith(f"mxfp4 on gfx950: {data['chosen']['backend']}\n")
    for refusal in data["refused"]:
        for reason in refusal["reasons"]:
            assert f"    [{reason['kind']}] {reason['text']}\n" in text
            assert f"needs {reason['needs']}, found {reason['found']}" == reason["text"]


def explained(qscheme, *arguments: str) -> tuple[str | None, dict[str, list[str]]]:
    """The backend that is chosen, and the kinds of reasons against the others."""
    data = json.loads(qscheme(*EXPLAIN, *arguments, "--json").out)
    chosen = data["chosen"] and data["chosen"]["backend"]
    return chosen, {row["backend"]: [reason["kind"] for reason in row["reasons"]] for row in data["refused"]}


def test_with_an_architecture_tables_are_untuned_and_switches_at_their_defaults(qscheme) -> None:
    chosen, refused = explained(qscheme)

    assert "aiter_triton" == chosen
    assert ["tuned", "tuned"] == refused["aiter_asm"]
    assert ["tuned", "tuned", "switch"] == refused["aiter_asm_even"]
    assert ["hardware"] == refused["aiter_f4gemm"]


def test_tuned_all_takes_every_shape_as_tuned(qscheme) -> None:
    refused = {"aiter_f4gemm": ["hardware"], "aiter_asm_even": ["switch"]}
    assert ("aiter_asm", refused) == explained(qscheme, "--tuned", "all")


def test_tuned_shapes_may_stand_in_a_file(qscheme, tmp_path: Path) -> None:
    table = tmp_path / "tuned.csv"
    rows = [("a4w4_blockscale", 1024), ("a4w4_blockscale", 8192), ("triton_afp4wfp4_preshuffled", 128)]
    table.write_text("table,arch,cu_num,M,N,K\n" + "".join(f"{name},gfx950,,{m},7168,2048\n" for name, m in rows))

    assert "aiter_asm" == explained(qscheme, "--tuned", str(table))[0]
    table.write_text("table,arch,cu_num,M,N,K\na4w4_blockscal,gfx950,,1024,7168,2048\n")
    done = qscheme(*EXPLAIN, "--tuned", table)
    assert 2 == done.code
    assert f"error: {table}:2: unknown table 'a4w4_blockscal'; did you mean 'a4w4_blockscale'?" in done.err


@pytest.mark.parametrize("off", ["off", "0", "false", "no", "OFF"])
def test_a_switch_is_given_by_name(off: str, qscheme) -> None:
    chosen, refused = explained(qscheme, "--switch", f"aiter={off}")

    assert "torch_scaled_mm_mxfp4_plain_scales" == chosen
    assert ["switch"] == refused["aiter_triton"]
    assert "aiter_triton" == explained(qscheme, "--switch", "aiter=on")[0]


@pytest.mark.parametrize("release", ["0.1.20", "v0.1.20"])
def test_a_release_may_have_a_v(release: str, qscheme) -> None:
    data = json.loads(qscheme(*EXPLAIN, "--aiter", release, "--json").out)

    assert "0.1.20" == data["facts"]["libraries"]["aiter"]["version"]
    assert "aiter_triton" == data["chosen"]["backend"]


def test_the_newest_release_is_the_default(qscheme) -> None:
    newest = json.loads((ROOT / "schemes" / "releases" / "aiter.json").read_text())["releases"]
    last = newest[-1] if isinstance(newest, list) else list(newest)[-1]

    found = json.loads(qscheme(*EXPLAIN, "--json").out)["facts"]["libraries"]["aiter"]["version"]

    assert str(last).removeprefix("v") == found


def test_a_shard_is_explained_with_the_sizes_of_the_whole_layer(qscheme) -> None:
    asked = ("explain", "fp8_block128", "-n", "576", "-k", "7168", "--arch", "gfx950")
    done = qscheme(*asked, "--full-n", "18432")
    assert (1, True) == (done.code, "found N = 576 = 18432 / 32; 16 shards of 1152 = 9 x 128 would do" in done.out)
    alone, whole = (json.loads(qscheme(*asked, *more, "--json").out) for more in ((), ("--full-n", "576")))
    assert (alone, "aiter_ck") == (whole, alone["chosen"]["backend"])
    assert 1 == qscheme("explain", "mxfp4", "-n", "64", "-k", "48", "--full-k", "96", "--arch", "gfx950").code


def test_versions_of_the_toolchain_are_given_to_explain(qscheme) -> None:
    asked = ("explain", "fp8_block128", "-n", "512", "-k", "512", "--arch", "gfx950", "--tuned", "all", "--json")
    switch = ("--switch", "aiter_preshuffled_blockscale=on", "--disable", "aiter_triton_tuned")
    found = {v: json.loads(qscheme(*asked, *switch, "--rocm", v).out) for v in ("7.2", "7.10", "none")}
    assert {"7.2": "aiter_ck", "7.10": "aiter_ck_preshuffle", "none": "aiter_ck_preshuffle"} == {
        version: data["chosen"]["backend"] for version, data in found.items()
    }
    assert "7.2" == found["7.2"]["facts"]["libraries"]["rocm"]["version"]
    assert "given" == found["7.2"]["facts"]["origins"]["toolchain rocm"]
    assert "it needs --arch beside it" in qscheme("explain", "mxfp4", "-n", "64", "-k", "64", "--rocm", "7.2").err


def test_check_fails_with_the_row_that_cannot_be_right(qscheme, tmp_path: Path) -> None:
    table = tmp_path / "a8w8_tuned_gemm.csv"
    rows = ["cu_num,M,N,K,kernelId,splitK,us,kernelName"]
    rows += [f"256,{m},512,1024,3,0,9.5,a8w8_rowwise_256x16x64x{k}_16x16_v3" for m, k in ((1, 512), (2, 2048))]
    table.write_text("\n".join(rows))
    words = f"{table}:3: a tile of 2048 along K is longer than K = 1024"
    assert (1, f"{words}\n1 mistakes in 2 rows of 1 files\n", "") == qscheme("check", table)
    illegal = {"table": "a8w8", "place": f"{table}:3", "message": words.partition(": ")[2]}
    expected = {"files": 1, "rows": 2, "rows_of_no_table": 0, "illegal": [illegal]}
    assert expected == json.loads(qscheme("check", table, "--json").out)
    table.write_text("\n".join(rows[:2]))
    assert (0, "0 mistakes in 1 rows of 1 files\n", "") == qscheme("check", table)
    assert 2 == qscheme("check", tmp_path / "absent.csv").code


def test_check_says_how_many_rows_it_did_not_look_at(qscheme, tmp_path: Path) -> None:
    row = "256,{},512,1024,{},3,0,9.5,a8w8_rowwise_256x16x64x512_16x16_v3"
    header = "cu_num,M,N,K,q_dtype_w,kernelId,splitK,us,kernelName"
    a8w8, shared = tmp_path / "a8w8_tuned_gemm.csv", tmp_path / "a8w8_bpreshuffle_tuned_gemm.csv"
    types = ("torch.int8", "torch.float8_e4m3fn", "torch.int8", "torch.int4")
    a8w8.write_text("\n".join((header, *(row.format(m, name) for m, name in enumerate(types, 1)))))
    shared.write_text(
        a8w8.read_text().replace("a8w8_rowwise_256x16x64x512_16x16_v3", "_ZN5aiter").replace("float8_e4m3fn", "int8")
    )

    assert (
        "0 mistakes in 1 rows of 1 files; 3 rows that no backend asks for were passed over\n"
        == qscheme("check", a8w8).out
    )
    # Two tables count rows of this file, and none counts int4.
    assert (
        "0 mistakes in 3 rows of 1 files; 1 rows that no backend asks for were passed over\n"
        == qscheme("check", shared).out
    )


def test_explain_names_the_rows_that_a_decision_rests_on(qscheme) -> None:
    words = [
        "tuned table a4w4_blockscale: N = 7168, K = 2048, M = 1024, 8192 on gfx950 (given)",
        "tuned table triton_afp4wfp4_preshuffled: N = 7168, K = 2048, M = 128 on gfx950 (given)",
    ]
    assert words == json.loads(qscheme(*EXPLAIN, "--tuned", "all", "--json").out)["rests_on"]
    assert all(f"  rests on: {row}\n" in qscheme(*EXPLAIN, "--tuned", "all").out for row in words)
    assert [] == json.loads(qscheme(*EXPLAIN, "--json").out)["rests_on"]


def test_the_doctor_shows_the_toolchain_and_where_it_was_found(qscheme) -> None:
    lines = qscheme("doctor", "--device", "cpu").out.splitlines()
    found = {line.split("  ")[0]: line.split()[-1] for line in lines if line.startswith("toolchain")}
    assert ["toolchain cuda", "toolchain rocm"] == sorted(found)
    assert ("torch.version.cuda", "torch.version.hip") == (found["toolchain cuda"], found["toolchain rocm"])


def test_a_library_may_be_absent_or_too_old(qscheme) -> None:
    chosen, refused = explained(qscheme, "--aiter", "none")
    assert "torch_scaled_mm_mxfp4_plain_scales" == chosen
    assert (["library", "tuned", "tuned"], ["library"]) == (refused["aiter_asm"], refused["aiter_triton"])
    chosen, refused = explained(qscheme, "--aiter", "0.1.1")
    assert "torch_scaled_mm_mxfp4_plain_scales" == chosen
    assert "symbol" in refused["aiter_triton"]


def test_a_backend_may_be_forced_or_disabled(qscheme) -> None:
    assert "reference" == explained(qscheme, "--backend", "reference")[0]
    chosen, refused = explained(qscheme, "--disable", "aiter_triton")
    assert "torch_scaled_mm_mxfp4_plain_scales" == chosen
    assert (["tuned", "tuned"], ["disabled"]) == (refused["aiter_asm"], refused["aiter_triton"])


def test_a_forced_backend_that_cannot_run_is_a_no(qscheme) -> None:
    done = qscheme(*EXPLAIN, "--backend", "aiter_asm", "--json")

    assert 1 == done.code
    assert json.loads(done.out)["chosen"] is None
    assert 1 == qscheme(*EXPLAIN, "--backend", "aiter_asm").code
    assert "mxfp4 on gfx950: no backend can run it\n" in qscheme(*EXPLAIN, "--backend", "aiter_asm").out


def test_m_keeps_the_call_for_it(qscheme) -> None:
    def whens(*arguments: str) -> list[str]:
        data = json.loads(qscheme(*EXPLAIN, "--tuned", "all", *arguments, "--json").out)
        return [call["when"] for call in data["chosen"]["calls"]]

    assert ["M <= 31", "32 <= M <= 64", "M >= 65"] == whens()
    assert [["M <= 31"], ["32 <= M <= 64"], ["M >= 65"]] == [whens("-m", m) for m in ("31", "32", "65")]


def test_batch_invariant_mode_leaves_out_kernels_that_follow_m(qscheme) -> None:
    data = json.loads(qscheme(*EXPLAIN, "--tuned", "all", "--batch-invariant", "--json").out)

    assert "aiter_triton" == data["chosen"]["backend"]
    assert ["aiter.gemm_afp4wfp4_one_split"] == [call["gemm"] for call in data["chosen"]["calls"]]


def test_an_output_dtype_is_taken_into_account(qscheme) -> None:
    assert "aiter_triton" == explained(qscheme, "--tuned", "all", "--out-dtype", "fp16")[0]
    assert "reference" == explained(qscheme, "--out-dtype", "fp32")[0]


def test_what_loaded_weights_must_be_is_taken_as_met_and_listed(qscheme) -> None:
    assumed = json.loads(qscheme(*EXPLAIN, "--json").out)["assumed"]

    assert any("weight is fp4_e2m1" in line for line in assumed)
    assert all(f"  assumed: {line}\n" in qscheme(*EXPLAIN).out for line in assumed)


def test_what_was_not_said_of_another_machine_is_taken_and_listed(qscheme) -> None:
    silent = json.loads(qscheme(*EXPLAIN, "--json").out)["assumed"]
    told = json.loads(qscheme(*EXPLAIN, "--tuned", "all", "--aiter", "0.1.12", "--json").out)["assumed"]

    assert ["no shape is tuned (--tuned none)"] == [line for line in silent if "tuned" in line]
    assert [] == [line for line in told if "tuned" in line]
    assert [True, False] == [any("versions: aiter 0.1." in line for line in lines) for lines in (silent, told)]


def test_a_bias_is_considered_before_it_is_loaded(qscheme) -> None:
    done = qscheme("explain", "int8_ptpc", "--arch", "gfx942", "-n", "512", "-k", "512", "--bias", "--json")

    assert (0, "aiter_ck") == (done.code, json.loads(done.out)["chosen"]["backend"])


def test_an_unknown_architecture_is_accepted_with_a_note_and_a_suggestion(qscheme) -> None:
    done = qscheme("explain", "mxfp4", "-n", "64", "-k", "64", "--arch", "gfx951", "--json")

    assert 0 == done.code
    assert "note: unknown architecture 'gfx951'; did you mean 'gfx950'?\n" == done.err
    assert "reference" == json.loads(done.out)["chosen"]["backend"]


def test_without_an_architecture_this_machine_is_asked(qscheme) -> None:
    data = json.loads(qscheme("explain", "int8_ptpc", "-n", "64", "-k", "64", "--json").out)

    assert data["facts"]["arch"] in load().devices


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("explain", "mxpf4", "-n", "64", "-k", "64"), "error: unknown scheme 'mxpf4'; did you mean 'mxfp4'?"),
        ((*EXPLAIN, "--switch", "aitr=on"), "error: unknown switch 'aitr'; did you mean 'aiter'?"),
        ((*EXPLAIN, "--switch", "aiter=maybe"), "error: --switch aiter needs one of 1, true, yes, on, 0, false, no, off"),
        ((*EXPLAIN, "--switch", "aiter"), "error: --switch aiter: needs NAME=on or NAME=off"),
        ((*EXPLAIN, "--switch", "aiter=on", "--switch", "aiter=off"), "error: --switch aiter is both on and off"),
        ((*EXPLAIN, "--backend", "aiter_tritn"), "error: scheme mxfp4 has no backend 'aiter_tritn'; did you mean"),
        ((*EXPLAIN, "--disable", "aiter_tritn"), "error: scheme mxfp4 has no backend 'aiter_tritn'; did you mean"),
        ((*EXPLAIN, "--aiter", "newest"), "error: aiter needs a release such as 0.1.20"),
        ((*EXPLAIN, "--out-dtype", "bf17"), "error: unknown output dtype 'bf17'; did you mean 'bf16'?"),
        ((*EXPLAIN, "--tuned", "nowhere.csv"), "error: nowhere.csv: cannot be read"),
        ((*EXPLAIN, "--rotation", "31"), "error: layer (unnamed): rotation: needs None or 32, found 31"),
        (("explain", "mxfp4", "-n", "64", "-k", "64", "--tuned", "all"), "error: --tuned describes another machine"),
        (("explain", "mxfp4", "-n", "64", "-k", "64", "--aiter", "0.1.20"), "error: --aiter, --torch, --rocm, --cuda or --triton describes another"),
        (("explain", "mxfp4", "-n", "0", "-k", "64"), "Invalid value for '-n'"),
        (("explain", "mxfp4", "-n", "many", "-k", "64"), "Invalid value for '-n'"),
        (("explain", "mxfp4", "-k", "64"), "Missing option '-n'"),
        (("explain",), "Missing argument"),
        (("list", "--tables", "no_such_tables"), "error: the generated tables are missing: there is no module no_such_tables"),
        (("frobnicate",), "No such command 'frobnicate'"),
        (("list", "--jsn"), "No such option"),
    ],
)  # fmt: skip
def test_wrong_use_ends_with_2_and_a_sentence(arguments: tuple[str, ...], message: str, qscheme) -> None:
    done = qscheme(*arguments)

    assert (2, "") == (done.code, done.out)
    assert message in done.err
    assert "Traceback" not in done.err


# --- streams --------------------------------------------------------------------------------------------------------


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    command = f"{sys.executable} -m qscheme.cli explain mxfp4 -n 64 -k 64 --arch gfx950 --json | true"

    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True)

    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_errors_are_not_wrapped_where_there_is_no_terminal(tmp_path: Path) -> None:
    nowhere = tmp_path / ("long" * 50)
    command = [sys.executable, "-m", "qscheme.cli", "lint", "--schemes", str(nowhere)]

    done = subprocess.run(command, env={**os.environ, "COLUMNS": "40"}, capture_output=True, text=True)

    assert 2 == done.returncode
    assert f"there is no folder {nowhere}\n" in done.stderr


@pytest.mark.parametrize("command", ["generate", "lint", "list", "doctor", "explain"])
def test_every_command_has_help(command: str) -> None:
    done = CliRunner().invoke(app, [command, "--help"])

    assert 0 == done.exit_code
    assert "--json" in done.stdout


def test_help_is_not_cut_where_there_is_no_terminal(qscheme) -> None:
    assert "Say which backend would run a layer, and why each better one would not.\n" in qscheme("--help").out


def test_no_arguments_show_the_commands() -> None:
    done = CliRunner().invoke(app, [])

    for command in ("generate", "lint", "list", "doctor", "explain"):
        assert command in done.output


def test_the_folder_of_the_case_is_as_it_was() -> None:
    """No command wrote into what it read."""
    assert not (EVERY_FEATURE / "generated").exists()
