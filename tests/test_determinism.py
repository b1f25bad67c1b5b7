"""The same YAML gives the same bytes, whatever the hash seed, the order of files, the folder, the locale or the clock."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def generated(schemes: Path, out: Path, working: Path | None = None, **environment: str) -> dict[str, bytes]:
    """What `qscheme generate` writes from a folder, run in a process of its own."""
    command = [sys.executable, "-m", "qscheme.cli", "generate", "--schemes", str(schemes), "--out", str(out)]
    done = subprocess.run(
        command, cwd=working or ROOT, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert 0 == done.returncode, done.stderr
    folder = (working or ROOT) / out
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def expected() -> dict[str, bytes]:
    """The files that the repository holds."""
    folder = ROOT / "generated"
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if "__pycache__" not in name}


@pytest.mark.parametrize("seed", ["0", "1", "4294967295"])
def test_the_hash_seed_changes_nothing(seed: str, expected: dict[str, bytes], tmp_path: Path) -> None:
    assert expected == generated(ROOT / "schemes", tmp_path / "out", PYTHONHASHSEED=seed)


def test_the_order_of_files_and_the_absolute_path_change_nothing(expected: dict[str, bytes], tmp_path: Path) -> None:
    copy = tmp_path / "deep" / "elsewhere" / "schemes"
    for path in sorted((ROOT / "schemes").rglob("*"), reverse=True):
        if path.is_file():
            (copy / path.relative_to(ROOT / "schemes")).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy / path.relative_to(ROOT / "schemes"))

    assert expected == generated(copy, tmp_path / "out")


def test_the_working_folder_changes_nothing(expected: dict[str, bytes], tmp_path: Path) -> None:
    shutil.copytree(ROOT / "schemes", tmp_path / "schemes")

    assert expected == generated(Path("schemes"), Path("out"), tmp_path)
    assert expected == generated(Path("../schemes"), Path("../again"), tmp_path / "out")


@pytest.mark.parametrize("locale", ["C", "POSIX", "C.UTF-8", "tr_TR.UTF-8"])
def test_the_locale_changes_nothing(locale: str, expected: dict[str, bytes], tmp_path: Path) -> None:
    environment = {"LC_ALL": locale, "LANG": locale, "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "TZ": "Asia/Tokyo"}

    assert expected == generated(ROOT / "schemes", tmp_path / "out", **environment)


def test_a_configuration_of_the_formatter_changes_nothing(expected: dict[str, bytes], tmp_path: Path) -> None:
    shutil.copytree(ROOT / "schemes", tmp_path / "schemes")
    (tmp_path / "ruff.toml").write_text('line-length = 60\n[format]\nquote-style = "single"\n')

    assert expected == generated(Path("schemes"), Path("out"), tmp_path)


def test_a_line_that_ends_as_on_windows_changes_nothing(expected: dict[str, bytes], tmp_path: Path) -> None:
    shutil.copytree(ROOT / "schemes", tmp_path / "schemes")
    for path in (tmp_path / "schemes").rglob("*.yaml"):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))

    assert expected == generated(Path("schemes"), Path("out"), tmp_path)
