"""What the README and the pages in docs/ name exists, and what they show runs and prints what they say."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import typer

from qscheme.cli import app
from qscheme.compiler.source import read_file

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
EXCERPT = ROOT / "generated" / "qscheme_generated" / "int8_ptpc.py"
TOP = "qscheme|schemes|generated|tests|docs|examples|benchmarks"
QUICK = ("diff", "explain", "generate", "lint", "list", "verify")

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, its lines, and whether it is marked as output."""

    language: str
    text: str
    output: bool


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order; one after `<!-- output -->` shows what something prints or writes."""
    found = re.finditer(r"^(<!-- output -->\n+)?```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [Block(language, text, mark is not None) for mark, language, text in (match.groups() for match in found)]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def spans(page: Path) -> list[str]:
    """Every text between backticks outside of blocks."""
    return re.findall(r"`([^`\n]+)`", prose(page))


# --- names ---------------------------------------------------------------------------------------------------------


@lru_cache
def defined(path: Path) -> frozenset[str]:
    """The functions, classes and constants of a Python file; methods as Class::method."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names.add(node.name)
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return frozenset(names)


@each_page
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    named = set(re.findall(r"\b(tests/\w+\.py)::(\w+(?:::\w+)?)", page.read_text()))
    missing = [f"{file}::{name}" for file, name in sorted(named) if not is_test(ROOT / file, name)]
    assert [] == missing


def is_test(file: Path, name: str) -> bool:
    return file.is_file() and name.rpartition("::")[2].startswith("test_") and name in defined(file)


@each_page
def test_every_function_that_a_page_names_exists(page: Path) -> None:
    named = [re.fullmatch(rf"((?:{TOP})/[\w/]+\.py): (\w+)", span) for span in spans(page)]
    missing = [match.group() for match in named if match and match[2] not in defined(ROOT / match[1])]
    assert [] == missing


@each_page
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = set(re.findall(rf"(?<![\w./-])((?:{TOP})/[\w./*-]*\w)", prose(page)))
    missing = [name for name in sorted(named) if not (stands_for(name) or any(ROOT.glob(name)))]
    assert [] == missing


def stands_for(name: str) -> bool:
    """Whether a name has a part in capitals in the place of one of the reader's own."""
    return any(part.isupper() for part in re.split(r"[/.]", name))


@each_page
def test_every_link_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    local = [target.partition("#")[0] for target in targets if not target.startswith(("https://", "#"))]
    assert [] == [target for target in local if not (page.parent / target).exists()]


@each_page
def test_every_key_that_a_page_names_exists(page: Path) -> None:
    named = [re.fullmatch(r"(schemes/[\w/]+\.yaml): ([\w.\[\]]+)", span) for span in spans(page)]
    missing = [match.group() for match in named if match and not leads_somewhere(match[1], match[2])]
    assert [] == missing


def leads_somewhere(file: str, path: str) -> bool:
    """Whether a path such as `backends.aiter_asm.calls[1]` leads to a value; items of a list may go by their name."""
    found: Any = data(file)
    for part in re.findall(r"\w+", path):
        if isinstance(found, tuple):
            named = {item["name"]: item for item in found if isinstance(item, dict) and "name" in item}
            found = named.get(part, found[int(part)] if part.isdecimal() and int(part) < len(found) else None)
        else:
            found = found.get(part) if isinstance(found, dict) else None
        if found is None:
            return False
    return True


@lru_cache
def data(file: str) -> object:
    return read_file(ROOT / file, file).data


def test_the_pages_on_the_seeds_name_keys_functions_and_tests() -> None:
    text = (ROOT / "docs" / "seeds.md").read_text()
    assert 60 < len(re.findall(r"`schemes/[\w/]+\.yaml: ", text))
    assert 60 < len(re.findall(r"tests/\w+\.py::test_", text))
    assert 60 < len(re.findall(r"tests/\w+\.py::test_", (ROOT / "docs" / "field-reports.md").read_text()))


@each_page
def test_every_row_of_a_table_has_as_many_cells_as_its_head(page: Path) -> None:
    ragged: list[str] = []
    cells = 0
    for line in prose(page).splitlines():
        if not line.startswith("|"):
            cells = 0
            continue
        found = len(re.findall(r"(?<!\\)\|", line)) - 1
        cells = cells or found
        ragged += [] if found == cells else [line]
    assert [] == ragged


def test_every_row_on_a_seed_or_a_field_report_says_what_holds_it() -> None:
    """A test, a place, or a sentence that begins with one of these words and ends with a full stop."""
    excused = r"(?:Not covered yet|Out of scope|Cannot happen|Not done|Not here)\b.*\."
    bare = [
        line
        for page in ("seeds.md", "field-reports.md")
        for line in prose(ROOT / "docs" / page).splitlines()
        if line.startswith("| ") and not re.match(r"\| (demand|report|constant|---)", line)
        if not re.search(rf"tests/\w+\.py::(?:\w+::)?test_\w+|{excused}", line)
    ]
    assert [] == bare


# --- commands ------------------------------------------------------------------------------------------------------


def commands(text: str) -> Iterator[list[str]]:
    """The words of every qscheme command in lines of a shell."""
    for line in text.splitlines():
        for part in re.split(r"&&|;|\|", re.sub(r"^\$ ", "", line.strip())):
            if part.strip().startswith("qscheme "):
                yield shlex.split(part, comments=True)


def shown(page: Path) -> list[list[str]]:
    """Every qscheme command that a page shows."""
    in_blocks = [words for block in blocks(page) for words in commands(block.text)]
    in_prose = [words for span in spans(page) for words in commands(re.sub(r"\[.*", "", span))]
    return in_blocks + [words for words in in_prose if len(words) > 1]


@each_page
def test_every_command_that_a_page_shows_is_one(page: Path) -> None:
    main = typer.main.get_command(app)
    known = getattr(main, "commands")  # noqa: B009
    for words in shown(page):
        command = known[words[1]]
        if words[2:]:
            command.make_context(words[1], words[2:]).close()


@each_page
def test_every_target_of_make_that_a_page_shows_exists(page: Path) -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    lines = [line for block in blocks(page) for line in block.text.splitlines()] + spans(page)
    asked = {match[1] for line in lines if (match := re.match(r"make (\w+)\b(?!=)", line))}
    assert set() == asked - targets


def ran(folder: Path, *words: str, code: int = 0) -> str:
    """What a command prints in a folder, where only the switches' defaults hold."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("QSCHEME_", "VLLM_"))}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=kept, capture_output=True, text=True, check=False)
    assert code == done.returncode, f"{words}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("page", [README, ROOT / "docs" / "add-a-kernel.md"], ids=lambda page: page.name)
def test_a_reader_who_does_what_a_page_shows_sees_what_it_shows(page: Path, tmp_path: Path) -> None:
    """From top to bottom: files are written, commands run, and at the end all the Python as one program."""
    program: list[str] = []
    for block in blocks(page):
        named = re.match(r"# (\S+\.yaml)\n", block.text)
        if block.language == "yaml" and named:
            file = tmp_path / named[1]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text)
        elif block.language == "python" and not block.output:
            program.append(block.text)
        elif block.language in ("sh", "console"):
            for part in re.split(r"^(?=\$ )", block.text, flags=re.MULTILINE):
                obey(tmp_path, block, part)
    assert program
    (tmp_path / "program.py").write_text("\n".join(program))
    ran(tmp_path, "program.py")


def obey(folder: Path, block: Block, part: str) -> None:
    """Run the commands of a part of a block; one whose output is shown with `# exit 1` after it says no."""
    line, _, shows = part.partition("\n")
    for words in commands(part if block.language == "sh" else line):
        if words[1] in QUICK and (words[1] != "explain" or "--arch" in words):
            printed = ran(folder, "-m", "qscheme.cli", *words[1:], code=int(line.endswith("# exit 1")))
            if block.language == "console":
                assert in_order(shows, printed), f"{line}\nprints\n{printed}"


def in_order(shows: str, printed: str) -> bool:
    """Whether the lines shown are those printed; a line of three dots stands for any lines."""
    texts = [re.escape(text) for text in re.split(r"^\.\.\.\n", shows, flags=re.MULTILINE)]
    return re.fullmatch(r"(?:.*\n)*".join(texts), printed.rstrip("\n") + "\n") is not None


# --- code ----------------------------------------------------------------------------------------------------------


def test_the_generated_code_of_the_readme_is_what_is_generated() -> None:
    excerpts = [block.text for block in blocks(README) if block.language == "python" and block.output]
    assert excerpts
    assert [] == [text for text in excerpts if text.strip("\n") not in EXCERPT.read_text()]


def test_the_house_names_every_module() -> None:
    text = (ROOT / "docs" / "design.md").read_text()
    house = text[text.index("```\nqscheme/") : text.index("```\n", text.index("```\nqscheme/") + 4)]
    modules = [path.stem for path in (ROOT / "qscheme").rglob("*.py") if not path.stem.startswith("lint_")]
    assert set() == set(modules) - set(re.findall(r"(\w+)\.py", house))


def test_no_page_holds_a_place_for_text_that_is_missing() -> None:
    found = {
        page.name: re.findall(r"\b(?:[A-Z]{3,}_(?:EXCERPT|OUTPUT|SENTENCES)|TODO|FIXME)\b", page.read_text())
        for page in PAGES
    }
    found["README.md"] += re.findall(r"^(?:.*: )?(?:COST|PROOF)\b", README.read_text(), re.MULTILINE)
    assert {} == {name: places for name, places in found.items() if places}
