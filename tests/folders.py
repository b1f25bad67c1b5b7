"""Folders of YAML for tests of the compiler: the case with every feature, edited copies of it, and what compiles."""

from __future__ import annotations

import shutil
from pathlib import Path

from qscheme.compiler.emit import emit
from qscheme.compiler.folder import read_folder
from qscheme.compiler.output import MARK
from qscheme.compiler.resolve import resolve

CASES = Path(__file__).parent / "cases"
EVERY_FEATURE = CASES / "every_feature" / "schemes"


def problems(folder: Path, *trusted: str) -> list[str]:
    """Every problem in a folder, as `path:line:col: message` with paths from the folder."""
    _, found = resolve(read_folder(folder, folder), trusted)
    return [str(problem).replace(f"{folder.as_posix()}/", "") for problem in found]


def compiled(folder: Path, package: str = "qscheme_generated", *trusted: str) -> dict[str, str]:
    """Every generated file of a folder without problems."""
    catalogue, found = resolve(read_folder(folder, folder), trusted)
    assert () == found
    return emit(catalogue, package)


def edited(folder: Path, **edits: tuple[str, str]) -> Path:
    """A copy of the case with every feature in `folder`; in each file named (`kernels__fast`) one text is replaced."""
    copy = folder / "schemes"
    shutil.copytree(EVERY_FEATURE, copy)
    for name, (old, new) in edits.items():
        path = copy / f"{name.replace('__', '/')}.yaml"
        text = path.read_text()
        assert 1 == text.count(old), f"{old!r} stands {text.count(old)} times in {path.name}"
        path.write_text(text.replace(old, new))
    return copy


def goldens(case: Path) -> dict[str, str]:
    """The expected files of a case. They are stored without the mark, so that no run takes them for its own."""
    stored = case / "expected"
    return {
        path.relative_to(stored).as_posix().removesuffix(".expected"): path.read_text().replace("@MARK@", MARK)
        for path in sorted(stored.rglob("*.expected"))
    }


def accept(case: Path) -> None:
    """Make what the compiler says now what is expected."""
    shutil.rmtree(case / "expected", ignore_errors=True)
    for name, text in compiled(case / "schemes").items():
        if not name.endswith(".schema.json"):
            path = case / "expected" / f"{name}.expected"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace(MARK, "@MARK@"))


if __name__ == "__main__":
    for folder in sorted(CASES.iterdir()):
        accept(folder)
