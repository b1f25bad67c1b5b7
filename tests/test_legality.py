"""`qscheme check`: rows of tuned tables that cannot be right are found with their file and row, and no others."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from qscheme.errors import UnknownFact
from qscheme.legality import files_of, illegal_rows
from qscheme.tables import load

if TYPE_CHECKING:
    from pathlib import Path

TABLES = load().tuned
CSV = "a8w8_bpreshuffle_tuned_gemm.csv"
HEADER = "gfx,cu_num,M,N,K,q_dtype_w,libtype,kernelId,splitK,us,kernelName,errRatio"
TILE = "a8w8_bpreshuffle_128x16x32x{}_16x16_16x16_32x4x1_32x4x1_1x16x1x8_4x4x1_1x1_intrawave_v1"
FP8 = "torch.float8_e4m3fn"


def row(k: object = 1024, kernel: str = TILE.format(512), split: object = 0, m: object = 16, dtype: str = FP8) -> str:
    return f"gfx950,256,{m},512,{k},{dtype},ck,3,{split},9.5,{kernel},0.0"


def mistakes(folder: Path, *rows: str, name: str = CSV) -> list[str]:
    """Each mistake as `FILE:LINE: message`."""
    (folder / name).write_text("\n".join((HEADER, *rows)) + "\n")
    return [str(one).removeprefix(f"{folder}/") for one in illegal_rows(files_of(folder / name, TABLES))[-1]]


LEGAL = [
    row(), row(k=512), row(k=1000), row(k=1024, split=1), row(k="1024.0", m=32), row(k=1536, split="1.0"),
    row(k=256, kernel="a8w8_bpreshuffle_cktile_0x0x8x4x1x0x0x0x0x1_32x64x256_1x4x1_16x16x64_default"),
    row(k=5120, kernel="_ZN5aiter41I8gemm_bf16_perTokenI8_BpreShuffle_64x128E", split=6, dtype="torch.int8"),
    row(k=64, kernel="flydsl_bpreshuflle_16x64x512_F8_F8_B16_0x3x0x1_default"),
]  # fmt: skip
ILLEGAL = [
    (row(k=256), "a tile of 512 along K is longer than K = 256"),
    (row(k=511), "a tile of 512 along K is longer than K = 511"),
    (row(k=1028, split=3), "a split into 8 does not divide K = 1028"),
    (row(k=1024, split=2), "a split into 4 leaves slices without a tile: K = 1024 has 2 of 512"),
    (row(kernel="a8w8_rowwise_256x16x64x512_16x16_v3"), "kernelName 'a8w8_rowwise_256x16x64x512_16x16_v3' is no kernel of a8w8_bpreshuffle"),
    (row(dtype="torch.int8"), f"kernelName {TILE.format(512)!r} is no kernel of a8w8_bpreshuffle_int8"),
    (row(kernel=""), "kernelName '' is no kernel of a8w8_bpreshuffle"),
    (row(split=-1), "splitK needs a whole number, found '-1'"),
    (row(m="x"), "M needs a positive whole number, found 'x'"),
    (row() + ",9", "needs 12 cells, found 13"),
]  # fmt: skip


@pytest.mark.parametrize("text", LEGAL)
def test_a_row_that_can_be_right_is_legal(text: str, tmp_path: Path) -> None:
    assert [] == mistakes(tmp_path, text)


@pytest.mark.parametrize(("text", "message"), ILLEGAL)
def test_a_row_that_cannot_be_right_is_told_with_its_file_and_line(text: str, message: str, tmp_path: Path) -> None:
    found = mistakes(tmp_path, row(m=8), "", "# a comment", text)
    assert f"{CSV}:5: {message}" in found
    assert {f"{CSV}:5"} == {line.partition(": ")[0] for line in found}


def test_a_shape_that_stands_twice_is_told_with_both_rows(tmp_path: Path) -> None:
    other = row(kernel=TILE.format(256))
    first = re.escape(f"{tmp_path}/{CSV}:2")
    for text in (row(), other):
        (found,) = mistakes(tmp_path, row(), row(m=32), text)
        assert re.fullmatch(
            rf"{CSV}:4: a second row for this shape; the first, at {first}, takes a8w8.* with splitK 0", found
        )
    assert [] == mistakes(tmp_path, row(), row(m=32), row(dtype="torch.float8_e4m3fnuz"), row(k=2048))


def test_two_files_of_a_table_may_repeat_each_other_and_may_not_disagree(tmp_path: Path) -> None:
    own, model = tmp_path / CSV, tmp_path / "a8w8_bpreshuffle_tuned_gemm_model.csv"
    own.write_text(f"{HEADER}\n{row()}\n{row(m=32)}\n")
    model.write_text(f"{HEADER}\n{row()}\n{row(m=32, kernel=TILE.format(256))}\n")
    count, _, found = illegal_rows([pair for path in (own, model) for pair in files_of(path, TABLES)])
    assert (4, [f"{model}:3"]) == (count, [one.place for one in found])
    assert f"the first, at {own}:3, takes" in found[0].message


def test_a_file_without_a_column_is_told_once(tmp_path: Path) -> None:
    (tmp_path / CSV).write_text("cu_num,M,N,K,kernelName\n256,1,2,3,x\n")
    *_, (found,) = illegal_rows(files_of(tmp_path / CSV, TABLES))
    assert (f"{tmp_path}/{CSV}:1", "needs the column splitK, found cu_num, M, N, K, kernelName") == found[1:]


JSON = "gfx950-GEMM-A8W8_BLOCKSCALE-N=512-K=384.json"


def json_mistakes(folder: Path, text: str, name: str = JSON) -> list[str]:
    (folder / name).write_text(text)
    return [str(one).removeprefix(f"{folder}/") for one in illegal_rows(files_of(folder / name, TABLES))[-1]]


def test_a_configuration_that_can_be_right_is_legal(tmp_path: Path) -> None:
    entries = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_K": 128, "NUM_KSPLIT": 3, "cache_modifier": None}
    keys = ("M_LEQ_16", "M_GEQ_17", "any", "small", "medium_M64", "xlarge")
    assert [] == json_mistakes(tmp_path, json.dumps(dict.fromkeys(keys, entries)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"M_LEQ_8": {"BLOCK_SIZE_K": 512}}', "M_LEQ_8: a tile of 512 along K is longer than K = 384"),
        ('{"any": {"BLOCK_SIZE_K": 32, "NUM_KSPLIT": 5}}', "any: a split into 5 does not divide K = 384"),
        (
            '{"any": {"BLOCK_SIZE_K": 128, "NUM_KSPLIT": 4}}',
            "any: a split into 4 leaves slices without a tile: K = 384 has 3 of 128",
        ),
        ('{"any": {"BLOCK_SIZE_K": "128"}}', "any: BLOCK_SIZE_K needs a positive whole number, found '128'"),
        ('{"any": {"NUM_KSPLIT": 0}}', "any: NUM_KSPLIT needs a positive whole number, found 0"),
        ('{"small": {}, "any": {}, "small": {}}', "small: stands twice"),
        ('{"M_LT_8": {}}', "M_LT_8: stands for no M; write M_LEQ_x, M_GEQ_x or any"),
        ('{"any": 3}', "any: needs an object with a tile configuration and no entry twice, found another value"),
        ("[1]", "needs an object with a key for each range of M, found another value"),
        ("{", "cannot be read: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
    ],
)  # fmt: skip
def test_a_configuration_that_cannot_be_right_is_told_with_its_file_and_key(
    text: str, message: str, tmp_path: Path
) -> None:
    assert [f"{JSON}: {message}"] == json_mistakes(tmp_path, text)


def test_a_folder_is_that_of_a_package_and_every_table_in_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "configs" / "model_configs").mkdir(parents=True)
    (tmp_path / "configs" / CSV).write_text(f"{HEADER}\n{row(k=256)}\n")
    (tmp_path / "configs" / "model_configs" / "a8w8_tuned_gemm_m.csv").write_text(f"{HEADER}\n{row()}\n")
    files = files_of(tmp_path, TABLES)
    assert ["a8w8_bpreshuffle", "a8w8_bpreshuffle_int8", "a8w8"] == [table.name for _, table in files]
    assert ["a8w8_bpreshuffle", "a8w8"] == [one.table for one in illegal_rows(files)[-1]]


def test_a_file_of_another_name_needs_the_name_of_its_table(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(f"{HEADER}\n{row()}\n")
    with pytest.raises(UnknownFact, match=r"has the name of no tuned table; name the table: .*a8w8_bpreshuffle"):
        files_of(path, TABLES)
    with pytest.raises(UnknownFact, match=r"unknown tuned table 'a8w9'; did you mean 'a8w8'\?"):
        files_of(path, TABLES, "a8w9")
    assert (1, 0, ()) == illegal_rows(files_of(path, TABLES, "a8w8_bpreshuffle"))
    with pytest.raises(UnknownFact, match="there is no file or folder"):
        files_of(tmp_path / "absent.csv", TABLES)
    with pytest.raises(UnknownFact, match="has no file of a tuned table"):
        files_of(tmp_path, TABLES)
