"""Tuned tables are read as the libraries lay them out, and a broken one is a readable reason."""

from __future__ import annotations

import json
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from qscheme.errors import QschemeError
from qscheme.tuned import ALL_TUNED, NOTHING_TUNED, TunedFiles, TunedLibraries, read_tuned
from qscheme.types import Device, TunedTable

if TYPE_CHECKING:
    from pathlib import Path

MI300 = Device("gfx942", "amd", "cdna3", "fnuz", mx=False, int8=True, wave=64, compute_units=(304, 80))
MI350 = Device("gfx950", "amd", "cdna4", "fn", mx=True, int8=True, wave=64, compute_units=(256,))

CSV = TunedTable(
    "a4w4", "aiter", "csv", ("configs/a4w4_tuned.csv", "configs/models/*a4w4_tuned*.csv"), variable="A4W4_FILES"
)
JSON = TunedTable(
    "fp4", "aiter", "json",
    ("{arch}/gemm/fp4/FP4-N={n}-K={k}.json", "gemm/{arch}-FP4-N={n}-K={k}.json", "gemm/{product}-FP4-N={n}-K={k}.json"),
    products=(("gfx950", "MI350X"),),
)  # fmt: skip


def write(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def write_json(root: Path, name: str, *keys: str) -> Path:
    return write(root, name, json.dumps({key: {"BLOCK_SIZE_M": 16} for key in keys}))


def csv_rows(root: Path, rows: str, name: str = "configs/a4w4_tuned.csv") -> TunedFiles:
    write(root, name, "gfx,cu_num,M,N,K,kernelId\n" + rows)
    return TunedFiles(root)


def test_everything_or_nothing_may_be_taken_for_tuned() -> None:
    assert ALL_TUNED.untuned(CSV, MI350, 256, 1, 2, (3,)) is None
    assert NOTHING_TUNED.untuned(CSV, MI350, 256, 1, 2, (3,)) == "no row, tuned tables were given as none"


def test_a_row_for_every_m_is_tuned(tmp_path: Path) -> None:
    files = csv_rows(tmp_path, "gfx950,256,1024,512,768,1\ngfx950,256,8192,512,768,2\n")
    assert files.untuned(CSV, MI350, 256, 512, 768, (1024, 8192)) is None


def test_a_row_counts_only_with_the_values_that_its_table_asks_for(tmp_path: Path) -> None:
    write(tmp_path, "configs/a4w4_tuned.csv", "gfx,cu_num,M,N,K,dtype\ngfx950,256,16,512,768,torch.int8\n")
    write(tmp_path, "configs/models/old_a4w4_tuned.csv", "cu_num,M,N,K\n256,32,512,768\n")
    files = TunedFiles(tmp_path)
    untuned = {
        (word, m): files.untuned(
            CSV._replace(name=word, rows=(("dtype", (f"torch.{word}", "torch.fp4")),)), MI350, 256, 512, 768, (m,)
        )
        is not None
        for word in ("int8", "fp8")
        for m in (16, 32)  # a file without the column is from before there were several
    }
    assert {("int8", 16): False, ("int8", 32): False, ("fp8", 16): True, ("fp8", 32): False} == untuned


def test_the_missing_m_are_named(tmp_path: Path) -> None:
    files = csv_rows(tmp_path, "gfx950,256,1024,512,768,1\n")
    expected = "no row for M=64, 2048 and 8192, N=512, K=768 on gfx950 with 256 compute units in a4w4"
    assert expected == files.untuned(CSV, MI350, 256, 512, 768, (64, 1024, 2048, 8192))


@pytest.mark.parametrize(
    ("device", "units", "n", "k"),
    [(MI300, 256, 512, 768), (MI350, 128, 512, 768), (MI350, 256, 768, 512), (MI350, 256, 512, 384)],
    ids=["architecture", "compute units", "N and K swapped", "half of K"],
)
def test_a_row_counts_for_its_own_machine_and_shape_only(
    tmp_path: Path, device: Device, units: int, n: int, k: int
) -> None:
    files = csv_rows(tmp_path, "gfx950,256,1024,512,768,1\n")
    assert files.untuned(CSV, MI350, 256, 512, 768, (1024,)) is None
    assert files.untuned(CSV, device, units, n, k, (1024,)) is not None


def test_without_an_architecture_column_the_compute_units_tell(tmp_path: Path) -> None:
    write(tmp_path, "configs/a4w4_tuned.csv", "cu_num,M,N,K\n304,1024,512,768\n")
    files = TunedFiles(tmp_path)
    assert files.untuned(CSV, MI300, 304, 512, 768, (1024,)) is None
    assert files.untuned(CSV, MI350, 256, 512, 768, (1024,)) is not None


def test_files_for_models_add_their_rows(tmp_path: Path) -> None:
    csv_rows(tmp_path, "gfx950,256,1024,512,768,1\n")
    files = csv_rows(tmp_path, "gfx950,256,8192,512,768,1\n", "configs/models/a4w4_tuned_of_a_model.csv")
    assert files.untuned(CSV, MI350, 256, 512, 768, (1024, 8192)) is None


def test_shapes_that_wait_for_tuning_do_not_count(tmp_path: Path) -> None:
    csv_rows(tmp_path, "gfx950,256,1024,512,768,1\n")
    files = csv_rows(tmp_path, "gfx950,256,8192,512,768,1\n", "configs/models/a4w4_untuned_of_a_model.csv")
    assert files.untuned(CSV, MI350, 256, 512, 768, (8192,)) is not None


def test_a_row_that_stands_twice_counts_once_and_nothing_is_written(tmp_path: Path) -> None:
    csv_rows(tmp_path, "gfx950,256,1024,512,768,1\ngfx950,256,1024,512,768,2\n")
    files = csv_rows(tmp_path, "gfx950,256,1024,512,768,3\n", "configs/models/a4w4_tuned_again.csv")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert files.untuned(CSV, MI350, 256, 512, 768, (1024,)) is None
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_unknown_compute_units_are_said(tmp_path: Path) -> None:
    files = csv_rows(tmp_path, "gfx950,256,1024,512,768,1\n")
    assert files.untuned(CSV, MI350, None, 512, 768, (1024,)) == "an unknown number of compute units of gfx950"


def test_a_table_without_files_is_said(tmp_path: Path) -> None:
    expected = "no file configs/a4w4_tuned.csv or configs/models/*a4w4_tuned*.csv in the installed aiter"
    assert expected == TunedFiles(tmp_path).untuned(CSV, MI350, 256, 512, 768, (1024,))


def test_a_variable_replaces_the_files(tmp_path: Path) -> None:
    csv_rows(tmp_path, "gfx950,256,1024,512,768,1\n")
    own = write(tmp_path, "own.csv", "gfx,cu_num,M,N,K\ngfx950,256,8192,512,768\n")
    files = TunedFiles(tmp_path, {"A4W4_FILES": str(own)})
    assert files.untuned(CSV, MI350, 256, 512, 768, (8192,)) is None
    assert files.untuned(CSV, MI350, 256, 512, 768, (1024,)) is not None


def test_a_variable_may_name_several_files_of_which_some_are_missing(tmp_path: Path) -> None:
    paths = [write(tmp_path, f"{m}.csv", f"gfx,cu_num,M,N,K\ngfx950,256,{m},512,768\n") for m in (64, 128)]
    files = TunedFiles(tmp_path, {"A4W4_FILES": os.pathsep.join(map(str, [*paths, tmp_path / "gone.csv"]))})
    assert files.untuned(CSV, MI350, 256, 512, 768, (64, 128)) is None


def test_a_variable_that_names_no_file_is_said(tmp_path: Path) -> None:
    files = TunedFiles(tmp_path, {"A4W4_FILES": "gone.csv"})
    assert files.untuned(CSV, MI350, 256, 512, 768, (1024,)) == "A4W4_FILES=gone.csv, which is no file"


def test_an_empty_variable_replaces_nothing(tmp_path: Path) -> None:
    csv_rows(tmp_path, "gfx950,256,1024,512,768,1\n")
    assert TunedFiles(tmp_path, {"A4W4_FILES": ""}).untuned(CSV, MI350, 256, 512, 768, (1024,)) is None


def test_numbers_that_a_data_frame_wrote_as_floats_are_read(tmp_path: Path) -> None:
    assert csv_rows(tmp_path, "gfx950,256.0,1024.0,512,768,1\n").untuned(CSV, MI350, 256, 512, 768, (1024,)) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("gfx,cu_num,M,N\ngfx950,256,1,2\n", ":1: needs the column K, found gfx, cu_num, M, N"),
        ("", ":1: needs the column cu_num, found nothing"),
        ("cu_num,M,N,K\n256,1,2,3\n256,many,2,3\n", ":3: M needs a positive whole number, found 'many'"),
        ("cu_num,M,N,K\n256,1,2\n", ":2: needs 4 cells, found 3"),
        ("cu_num,M,N,K\n256,-1,2,3\n", ":2: M needs a positive whole number, found '-1'"),
        ("cu_num,M,N,K\n<<<<<<< ours\n256,1,2,3\n", ":2: needs 4 cells, found 1"),
    ],
)
def test_a_malformed_csv_is_a_reason_with_its_place(tmp_path: Path, text: str, problem: str) -> None:
    path = write(tmp_path, "configs/a4w4_tuned.csv", text)
    assert f"{path}{problem}" == TunedFiles(tmp_path).untuned(CSV, MI350, 256, 2, 3, (1,))


def test_a_csv_that_is_no_text_is_a_reason(tmp_path: Path) -> None:
    write(tmp_path, "configs/a4w4_tuned.csv", "").write_bytes(b"cu_num,M,N,K\n\xff\xfe\x00\n")
    found = TunedFiles(tmp_path).untuned(CSV, MI350, 256, 2, 3, (1,))
    assert found is not None and "a4w4_tuned.csv: cannot be read: 'utf-8' codec" in found


@pytest.mark.parametrize(
    "name",
    ["gfx950/gemm/fp4/FP4-N=512-K=768.json", "gemm/gfx950-FP4-N=512-K=768.json", "gemm/MI350X-FP4-N=512-K=768.json"],
)
def test_a_json_file_is_found_in_every_layout_of_the_releases(tmp_path: Path, name: str) -> None:
    write_json(tmp_path, name, "M_LEQ_128", "any")
    assert TunedFiles(tmp_path).untuned(JSON, MI350, 256, 512, 768, (128,)) is None


def test_a_product_name_stands_for_its_own_architecture_only(tmp_path: Path) -> None:
    write_json(tmp_path, "gemm/MI350X-FP4-N=512-K=768.json", "M_LEQ_128")
    assert (
        TunedFiles(tmp_path).untuned(JSON, MI300, 304, 512, 768, (128,))
        == "no file of fp4 for N=512 and K=768 on gfx942"
    )


def test_the_first_layout_that_has_the_file_counts(tmp_path: Path) -> None:
    write_json(tmp_path, "gfx950/gemm/fp4/FP4-N=512-K=768.json", "any")
    write_json(tmp_path, "gemm/gfx950-FP4-N=512-K=768.json", "M_LEQ_128")
    assert (
        TunedFiles(tmp_path).untuned(JSON, MI350, 256, 512, 768, (128,))
        == "FP4-N=512-K=768.json without a key for M=128"
    )


def test_a_json_file_needs_no_compute_units(tmp_path: Path) -> None:
    write_json(tmp_path, "gemm/gfx950-FP4-N=512-K=768.json", "M_LEQ_128")
    assert TunedFiles(tmp_path).untuned(JSON, MI350, None, 512, 768, (128,)) is None


@pytest.mark.parametrize(
    ("keys", "tuned"),
    [
        (("any",), []),
        (("M_LEQ_31",), [1, 16, 31]),
        (("M_LEQ_64", "any"), [1, 16, 31, 32, 33, 64]),
        (("M_GEQ_256",), [256, 300, 8192]),
        (("M_LEQ_16", "M_GEQ_256", "any"), [1, 16, 256, 300, 8192]),
        (("small", "any"), [1, 16, 31]),
        (("medium_M32",), [32]),
        (("medium_M64", "medium_M128"), [33, 64, 65, 128]),
        (("large",), [129, 256]),
        (("xlarge",), [300, 8192]),
        (("xlarge_M8192",), [8192]),
        (("small", "medium_M32", "medium_M64", "medium_M128", "large", "xlarge"),
         [1, 16, 31, 32, 33, 64, 65, 128, 129, 256, 300, 8192]),
        (("M_LEQ_", "M_LEQ_x", "tiny", "medium_M", ""), []),
    ],
)  # fmt: skip
def test_a_key_other_than_any_must_cover_m(tmp_path: Path, keys: tuple[str, ...], tuned: list[int]) -> None:
    write_json(tmp_path, "gemm/gfx950-FP4-N=512-K=768.json", *keys)
    files = TunedFiles(tmp_path)
    rows = (1, 16, 31, 32, 33, 64, 65, 128, 129, 256, 300, 8192)
    assert tuned == [m for m in rows if files.untuned(JSON, MI350, 256, 512, 768, (m,)) is None]


@pytest.mark.parametrize(
    ("text", "problem"),
    [("{", "cannot be read: Expecting property name"), ("[1]", "needs an object with a key for each range of M")],
)
def test_a_malformed_json_is_a_reason_with_its_place(tmp_path: Path, text: str, problem: str) -> None:
    path = write(tmp_path, "gemm/gfx950-FP4-N=512-K=768.json", text)
    found = TunedFiles(tmp_path).untuned(JSON, MI350, 256, 512, 768, (128,))
    assert found is not None and found.startswith(f"{path}: {problem}")


def test_files_are_read_when_they_are_asked_for_and_once(tmp_path: Path) -> None:
    files = TunedFiles(tmp_path)
    csv_rows(tmp_path, "gfx950,256,1024,512,768,1\n")
    assert files.untuned(CSV, MI350, 256, 512, 768, (1024,)) is None
    (tmp_path / "configs" / "a4w4_tuned.csv").unlink()
    assert files.untuned(CSV, MI350, 256, 512, 768, (1024,)) is None


def test_tables_survive_pickling_and_threads(tmp_path: Path) -> None:
    csv_rows(tmp_path, "gfx950,256,1024,512,768,1\n")
    files = pickle.loads(pickle.dumps(TunedLibraries({"aiter": TunedFiles(tmp_path, {"OTHER": "x"})})))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: files.untuned(CSV, MI350, 256, 512, 768, (1024,)), range(32)))
    assert (found, files.libraries["aiter"].overrides) == ([None] * 32, {"OTHER": "x"})


def test_a_library_that_is_not_installed_has_no_rows() -> None:
    assert TunedLibraries({}).untuned(CSV, MI350, 256, 512, 768, (1024,)) == "no installed aiter"


def test_rows_for_a_simulation_are_read(tmp_path: Path) -> None:
    path = write(
        tmp_path, "rows.csv",
        "# measured in May\n\ntable,arch,cu_num,M,N,K\na4w4,gfx950,256,1024,512,768\n"
        "fp4, gfx950:sramecc+ ,,128,512,768\na4w4,gfx950,256,1024,512,768\n",
    )  # fmt: skip
    rows = read_tuned(path, {"a4w4", "fp4"})
    assert rows.untuned(CSV, MI350, 256, 512, 768, (1024,)) is None
    assert rows.untuned(JSON, MI350, None, 512, 768, (128,)) is None
    expected = f"no row for M=8192, N=512, K=768 on gfx950 with 128 compute units in {path}"
    assert expected == rows.untuned(CSV, MI350, 128, 512, 768, (8192,))
    assert rows.untuned(CSV, MI350, 128, 512, 768, (1024,)) is not None
    assert rows.untuned(JSON, MI300, 304, 512, 768, (128,)) is not None


def test_every_mistake_in_rows_for_a_simulation_has_its_line(tmp_path: Path) -> None:
    path = write(
        tmp_path, "rows.csv",
        "table,arch,cu_num,M,N,K\na4w5,gfx950,256,1,2,3\na4w4,,256,1,2,3\na4w4,gfx950,256,0,2,3\na4w4,gfx950,1,2,3\n"
        "a4w4,gfx950,x,1,2,3\n",
    )  # fmt: skip
    with pytest.raises(QschemeError) as caught:
        read_tuned(path, {"a4w4"})
    assert [
        f"{path}:2: unknown table 'a4w5'; did you mean 'a4w4'?",
        f"{path}:3: arch needs the name of an architecture, found nothing",
        f"{path}:4: M needs a positive whole number, found '0'",
        f"{path}:5: needs 6 cells, found 5",
        f"{path}:6: cu_num needs a positive whole number, found 'x'",
    ] == str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("arch,table,cu_num,M,N,K\n", ":1: needs the header table,arch,cu_num,M,N,K, found arch,table,cu_num,M,N,K"),
        ("", ":1: needs the header table,arch,cu_num,M,N,K, found nothing"),
    ],
)
def test_rows_for_a_simulation_need_their_header(tmp_path: Path, text: str, problem: str) -> None:
    path = write(tmp_path, "rows.csv", text)
    with pytest.raises(QschemeError) as caught:
        read_tuned(path)
    assert f"{path}{problem}" == str(caught.value)


def test_a_missing_file_of_rows_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(QschemeError, match=r"gone\.csv: cannot be read: .*No such file"):
        read_tuned(tmp_path / "gone.csv")
