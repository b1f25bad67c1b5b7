"""Every check of the compiler: each fixture states its own errors, and nothing else may be found."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from folders import EVERY_FEATURE, edited, problems

from qscheme.compiler.folder import read_folder
from qscheme.compiler.resolve import resolve

ERRORS = Path(__file__).parent / "errors"
FIXTURES = sorted(ERRORS.glob("*.yaml"))


def marked(text: str) -> list[tuple[int, str]]:
    """The errors that a fixture announces on its own lines."""
    return sorted(
        (number, message.strip())
        for number, line in enumerate(text.splitlines(), start=1)
        for message in line.split("# error:")[1:]
    )


def found(fixture: Path, folder: Path) -> tuple[list[tuple[int, str]], list[str]]:
    """The errors in a fixture beside the case with every feature, and those in any other file."""
    copy = edited(folder)
    shutil.copytree(ERRORS / "beside", copy, dirs_exist_ok=True)
    name = fixture.read_text().partition("\n")[0].removeprefix("# file: ")
    shutil.copy(fixture, copy / name)
    inside, outside = [], []
    for problem in problems(copy):
        file, line, _, message = problem.split(":", 3)
        if file == name:
            inside.append((int(line), message.strip()))
        else:
            outside.append(problem)
    return sorted(inside), outside


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda fixture: fixture.stem)
def test_a_fixture_has_the_errors_that_it_says(fixture: Path, tmp_path: Path) -> None:
    inside, outside = found(fixture, tmp_path)

    assert marked(fixture.read_text()) == inside
    assert [] == outside


def test_what_stands_beside_the_fixtures_has_no_errors(tmp_path: Path) -> None:
    copy = edited(tmp_path)
    shutil.copytree(ERRORS / "beside", copy, dirs_exist_ok=True)

    assert [] == problems(copy)


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def test_all_problems_of_all_files_are_found_at_once_and_sorted(tmp_path: Path) -> None:
    copy = edited(
        tmp_path,
        one_scale=("title: INT8", "titel: INT8"),
        kernels__torch=("minimum: 17", "minimum: many"),
        devices=("family: third", "family: Third"),
        switches=("meaning:", "meening:"),
    )
    write(copy, "broken.yaml", "a: [\n")

    assert [
        "broken.yaml:2:1: ",
        "devices.yaml:4:35: ",
        "kernels/torch.yaml:13:21: ",
        "one_scale.yaml:2:1: ",
        "switches.yaml:5:5: ",
    ] == [problem.partition(" ")[0] + " " for problem in problems(copy)]


def test_names_of_a_file_with_problems_are_not_called_unknown(tmp_path: Path) -> None:
    copy = edited(
        tmp_path,
        kernels__fast=("does: gemm\n    symbol: triton.small", "dos: gemm\n    symbol: triton.small"),
        devices=("fp8: fnuz", "fp8: fnzu"),
        switches=("default: false", "default: no"),
    )

    assert [
        "devices.yaml:2:44: devices.alpha.fp8: unknown word 'fnzu', did you mean 'fnuz'?",
        "kernels/fast.yaml:45:5: kernels.small_product: needs the key 'does'",
        "switches.yaml:3:14: switches.fast.default: needs true or false, found 'no'; write false",
    ] == problems(copy)


def test_backends_of_a_kernel_with_problems_are_left_out_without_another_word(tmp_path: Path) -> None:
    copy = edited(tmp_path, kernels__fast=("needs: {arch: [beta], multiple_of", "needs: {arch: [btea], multiple_of"))

    assert ["kernels/fast.yaml:27:20: unknown architecture 'btea', did you mean 'beta'?"] == problems(copy)


def test_a_folder_without_schemes_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    _, found_here = resolve(read_folder(tmp_path / "empty", EVERY_FEATURE))

    assert [f"{tmp_path}/empty:1:1: no scheme files (*.yaml) here; is this the schemes folder?"] == list(
        map(str, found_here)
    )


def test_kernel_device_and_switch_files_that_are_absent_come_from_the_shipped_ones(tmp_path: Path) -> None:
    own = tmp_path / "own"
    write(own, "one_scale.yaml", (EVERY_FEATURE / "one_scale.yaml").read_text())

    catalogue, found_here = resolve(read_folder(own, EVERY_FEATURE))

    assert () == found_here
    assert ["one_scale"] == [scheme.name for scheme in catalogue.schemes]
    assert ["alpha", "beta", "gamma"] == [device.arch for device in catalogue.devices]
    assert ["fast"] == [switch.name for switch in catalogue.switches]
    assert {"fast", "reference", "torch"} == {kernel.library for kernel in catalogue.kernels}


def test_a_file_that_is_present_replaces_the_shipped_one_of_its_name(tmp_path: Path) -> None:
    own = tmp_path / "own"
    write(own, "one_scale.yaml", (EVERY_FEATURE / "one_scale.yaml").read_text())
    write(own, "kernels/torch.yaml", (EVERY_FEATURE / "kernels/torch.yaml").read_text().replace("17", "33"))
    write(own, "switches.yaml", "switches:\n  mine: {default: true, variables: [MINE], meaning: mine}\n")
    write(own, "devices.yaml", (EVERY_FEATURE / "devices.yaml").read_text().replace("gamma", "delta"))

    catalogue, found_here = resolve(read_folder(own, EVERY_FEATURE))

    assert () == found_here
    assert ["alpha", "beta", "delta"] == [device.arch for device in catalogue.devices]
    assert ["mine"] == [switch.name for switch in catalogue.switches]
    assert [33] == [kernel.minimum_rows for kernel in catalogue.kernels if kernel.name == "int_mm"]


def test_shipped_kernels_may_name_architectures_that_a_folder_of_its_own_devices_has_not(tmp_path: Path) -> None:
    own = tmp_path / "own"
    write(own, "one_scale.yaml", (EVERY_FEATURE / "one_scale.yaml").read_text())
    write(
        own, "devices.yaml", "devices:\n  cpu: {vendor: cpu, family: cpu, fp8: none, mx: false, int8: true, wave: 1}\n"
    )

    catalogue, found_here = resolve(read_folder(own, EVERY_FEATURE))

    assert () == found_here
    assert ["cpu"] == [device.arch for device in catalogue.devices]


def test_problems_in_shipped_files_are_shown_under_shipped(tmp_path: Path) -> None:
    shipped = edited(tmp_path, kernels__torch=("minimum: 17", "minimum: 0"))
    own = tmp_path / "own"
    write(own, "one_scale.yaml", (EVERY_FEATURE / "one_scale.yaml").read_text())

    _, found_here = resolve(read_folder(own, shipped))

    expected = "shipped/kernels/torch.yaml:13:21: kernels.int_mm.rows.minimum: needs at least 1, found 0"
    assert [expected] == list(map(str, found_here))


def test_paths_in_errors_are_relative_to_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = edited(tmp_path, one_scale=("title: INT8", "title: 8 #"))
    monkeypatch.chdir(tmp_path)
    expected = (
        "schemes/one_scale.yaml:2:8: title: needs text, found the number 8; quote it, as all version numbers: '8'"
    )

    for folder in (copy, Path("schemes"), Path("./schemes")):
        assert [expected] == [str(problem) for problem in read_folder(folder, folder).problems]


def test_files_whose_names_could_not_be_modules_are_refused(tmp_path: Path) -> None:
    copy = edited(tmp_path)
    text = (EVERY_FEATURE / "kernels/torch.yaml").read_text()
    for name in ("kernels/a b.yaml", 'kernels/x"\nimport os\n#.yaml', "kernels/1x.yaml", "Two-Words.yaml", "late.yml"):
        write(copy, name, text)
    write(copy, ".hidden.yaml", "not a scheme\n")
    write(copy, "notes.txt", "not YAML\n")
    words = "the file's name needs to be a name of small letters, digits and _, such as gemm_a8w8, found"

    assert [
        f"Two-Words.yaml:1:1: {words} 'Two-Words'",
        f"kernels/1x.yaml:1:1: {words} '1x'",
        f"kernels/a b.yaml:1:1: {words} 'a b'",
        f"kernels/x\"\\nimport os\\n#.yaml:1:1: {words} 'x\"\\nimport os\\n#'",
        "late.yml:1:1: name it late.yaml",
    ] == problems(copy)


@pytest.mark.parametrize("word", ["None", "class", "lambda", "Scheme", "1x32", "a-b", "é", "x; import os", "__init__"])
def test_names_that_cannot_be_python_names_are_refused(word: str, tmp_path: Path) -> None:
    copy = edited(tmp_path, kernels__torch=("  int_mm:", f"  '{word}':"))

    assert any(problem.startswith("kernels/torch.yaml:6:3: kernels.") for problem in problems(copy))


@pytest.mark.parametrize("word", ["mro", "name", "value", "int8", "self", "property", "print", "type", "match", "id"])
def test_names_that_only_look_special_compile(word: str, tmp_path: Path) -> None:
    copy = edited(tmp_path, kernels__torch=("  int_mm:", f"  {word}:"), one_scale=("torch.int_mm", f"torch.{word}"))

    assert [] == problems(copy)


def test_a_library_that_is_trusted_by_name_is_admitted(tmp_path: Path) -> None:
    copy = edited(tmp_path)
    shutil.copy(ERRORS / "kernels_untrusted.yaml", copy / "kernels" / "untrusted.yaml")

    assert [] == problems(copy, "os")
    assert [
        "kernels/untrusted.yaml:2:10: library 'os' is not trusted; pass --trust-library os to load its symbols"
    ] == (problems(copy, "sys"))


def test_a_symbol_outside_its_library_is_refused_even_if_both_are_trusted(tmp_path: Path) -> None:
    copy = edited(tmp_path, kernels__fast=("symbol: triton.cast_rows", "symbol: torch.cast_rows"))

    assert ["kernels/fast.yaml:34:13: the symbol torch.cast_rows is not in the library 'triton' of this file"] == (
        problems(copy)
    )
