"""Generated files against the disk: what is compared, what is written, and what is never touched."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from qscheme.compiler.output import MARK, Differences, compare, is_marked, write
from qscheme.errors import OutputError


def python(body: str) -> str:
    return f"# {MARK} from schemes/x.yaml. Edit that file instead.\n{body}\n"


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Every path under the folder; None for folders."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


FILES = {"tables/a.py": python("a = 1"), "tables/b.py": python("b = 1"), "support.md": f"<!-- {MARK} -->\n# Support\n"}


def test_writing_creates_folders_and_files(tmp_path: Path) -> None:
    differences = write(FILES, tmp_path / "not" / "yet")

    assert ("support.md", "tables/a.py", "tables/b.py") == differences.missing
    for path, text in FILES.items():
        assert text.encode() == (tmp_path / "not" / "yet" / path).read_bytes()


def test_writing_twice_finds_nothing_to_do(tmp_path: Path) -> None:
    write(FILES, tmp_path)

    assert not write(FILES, tmp_path)
    assert "" == compare(FILES, tmp_path).diff()


def test_comparing_a_folder_that_does_not_exist_names_every_file_and_creates_nothing(tmp_path: Path) -> None:
    differences = compare(FILES, tmp_path / "new")

    assert "support.md: missing\ntables/a.py: missing\ntables/b.py: missing\n" == differences.diff()
    assert {} == snapshot(tmp_path)


def test_unchanged_files_keep_their_modification_time(tmp_path: Path) -> None:
    write(FILES, tmp_path)
    for path in FILES:
        os.utime(tmp_path / path, ns=(10**18, 10**18))

    differences = write({**FILES, "tables/b.py": python("b = 2")}, tmp_path)

    assert ("tables/b.py",) == differences.changed
    assert 10**18 == (tmp_path / "tables/a.py").stat().st_mtime_ns
    assert 10**18 != (tmp_path / "tables/b.py").stat().st_mtime_ns


def test_changed_files_keep_their_permissions(tmp_path: Path) -> None:
    write(FILES, tmp_path)
    (tmp_path / "tables/b.py").chmod(0o640)

    write({**FILES, "tables/b.py": python("b = 2")}, tmp_path)

    assert 0o640 == (tmp_path / "tables/b.py").stat().st_mode & 0o777


def test_new_files_get_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    write(FILES, tmp_path)
    (tmp_path / "plain").touch()

    assert (tmp_path / "plain").stat().st_mode == (tmp_path / "support.md").stat().st_mode


def test_a_hand_edit_shows_as_a_unified_diff_towards_the_generated_text(tmp_path: Path) -> None:
    write(FILES, tmp_path)
    (tmp_path / "tables/a.py").write_text(python("a = 7"))

    assert (
        "--- tables/a.py\n"
        "+++ tables/a.py (generated)\n"
        "@@ -1,2 +1,2 @@\n"
        f" {python('a = 1').splitlines()[0]}\n"
        "-a = 7\n"
        "+a = 1\n"
    ) == compare(FILES, tmp_path).diff()


def test_a_missing_last_line_break_is_a_change_that_the_diff_shows(tmp_path: Path) -> None:
    write(FILES, tmp_path)
    (tmp_path / "tables/a.py").write_text(python("a = 1").rstrip("\n"))

    assert "-a = 1\n\\ No newline at end of file\n+a = 1\n" in compare(FILES, tmp_path).diff()


def test_windows_line_ends_are_a_change(tmp_path: Path) -> None:
    write(FILES, tmp_path)
    (tmp_path / "tables/a.py").write_bytes(python("a = 1").replace("\n", "\r\n").encode())

    assert ("tables/a.py",) == write(FILES, tmp_path).changed
    assert b"\r" not in (tmp_path / "tables/a.py").read_bytes()


def test_bytes_that_are_not_utf8_are_a_change(tmp_path: Path) -> None:
    write(FILES, tmp_path)
    (tmp_path / "tables/a.py").write_bytes(python("a = 1").encode() + b"\xff")

    assert ("tables/a.py",) == write(FILES, tmp_path).changed


def test_text_beyond_ascii_is_written_as_utf8(tmp_path: Path) -> None:
    write({"a.py": python("µ = '≤ 64'")}, tmp_path)

    assert python("µ = '≤ 64'").encode("utf-8") == (tmp_path / "a.py").read_bytes()


def test_changed_missing_stale_and_foreign_are_all_named_at_once(tmp_path: Path) -> None:
    write({**FILES, "old.py": python("old = 1")}, tmp_path)
    (tmp_path / "tables/a.py").write_text(python("a = 7"))
    (tmp_path / "tables/b.py").unlink()
    (tmp_path / "support.md").write_text("my own notes\n")

    differences = compare(FILES, tmp_path)

    assert ("tables/a.py",) == differences.changed
    assert ("tables/b.py",) == differences.missing
    assert ("old.py",) == differences.stale
    assert ("support.md",) == differences.foreign
    assert differences.diff().endswith(
        "+a = 1\n"
        "tables/b.py: missing\n"
        "old.py: stale, nothing produces it any more\n"
        f"support.md: in the way, it is not a file that says {MARK}; move it away, or choose another folder\n"
    )


def test_stale_files_of_ours_are_deleted_with_the_folder_that_they_leave_empty(tmp_path: Path) -> None:
    write({**FILES, "gone/deep/c.py": python("c = 1")}, tmp_path)
    (tmp_path / "gone/deep/__pycache__").mkdir()
    (tmp_path / "gone/deep/__pycache__/c.pyc").write_bytes(b"\0")

    differences = write(FILES, tmp_path)

    assert ("gone/deep/c.py",) == differences.stale
    assert {"support.md", "tables", "tables/a.py", "tables/b.py"} == set(snapshot(tmp_path))


def test_folders_that_still_hold_something_stay(tmp_path: Path) -> None:
    write({**FILES, "gone/c.py": python("c = 1")}, tmp_path)
    (tmp_path / "gone/notes.txt").write_text("mine\n")

    write(FILES, tmp_path)

    assert ["notes.txt"] == [path.name for path in (tmp_path / "gone").iterdir()]


def test_the_output_folder_itself_stays_when_it_becomes_empty(tmp_path: Path) -> None:
    write(FILES, tmp_path / "generated")
    write({}, tmp_path / "generated")

    assert {"generated": None} == snapshot(tmp_path)


def test_files_of_others_are_never_stale(tmp_path: Path) -> None:
    write(FILES, tmp_path)
    (tmp_path / "tables/mine.py").write_text("mine = 1\n")
    (tmp_path / "speaks_of_it.md").write_text(f"A file that starts with {MARK} is deleted.\n")
    (tmp_path / "far_down.py").write_text("\n" * 10 + f"# {MARK}\n")
    (tmp_path / "picture.png").write_bytes(bytes(range(256)))
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/copy.py").write_text(python("a = 1"))

    assert () == compare(FILES, tmp_path).stale


def test_a_link_to_a_file_of_ours_is_not_stale(tmp_path: Path) -> None:
    write(FILES, tmp_path)
    (tmp_path / "link.py").symlink_to("tables/a.py")

    assert () == compare(FILES, tmp_path).stale


def test_a_foreign_file_stops_everything_before_the_first_write(tmp_path: Path) -> None:
    write({"old.py": python("old = 1")}, tmp_path)
    (tmp_path / "support.md").write_text("my own notes\n")
    before = snapshot(tmp_path)

    with pytest.raises(OutputError, match=r"support\.md: in the way, .*move it away"):
        write(FILES, tmp_path)

    assert before == snapshot(tmp_path)


def test_an_empty_file_is_foreign(tmp_path: Path) -> None:
    (tmp_path / "support.md").touch()

    assert ("support.md",) == compare(FILES, tmp_path).foreign


def test_a_folder_where_a_file_belongs_is_foreign(tmp_path: Path) -> None:
    (tmp_path / "support.md").mkdir()

    assert ("support.md",) == compare(FILES, tmp_path).foreign


def test_a_file_where_a_folder_belongs_is_foreign_once(tmp_path: Path) -> None:
    (tmp_path / "tables").write_text("mine\n")

    assert ("tables",) == compare(FILES, tmp_path).foreign


def test_nothing_is_written_through_links(tmp_path: Path) -> None:
    write(FILES, tmp_path / "elsewhere")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/tables").symlink_to("../elsewhere/tables")
    (tmp_path / "out/support.md").symlink_to("../elsewhere/support.md")

    assert ("support.md", "tables") == compare(FILES, tmp_path / "out").foreign


def test_a_dangling_link_is_foreign(tmp_path: Path) -> None:
    (tmp_path / "support.md").symlink_to("nowhere")

    assert ("support.md",) == compare(FILES, tmp_path).foreign


def test_a_named_pipe_is_foreign_and_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "support.md")

    assert ("support.md",) == compare(FILES, tmp_path).foreign


def test_the_output_folder_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to("real")
    write({**FILES, "old.py": python("old = 1")}, tmp_path / "out")

    assert ("old.py",) == write(FILES, tmp_path / "out").stale


def test_an_output_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine\n")

    with pytest.raises(OutputError, match="out: needs a folder, found a file"):
        write(FILES, tmp_path / "out")


def test_an_output_folder_under_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine\n")

    with pytest.raises(OutputError, match="out/inner"):
        write(FILES, tmp_path / "out" / "inner")

    assert {"out": b"mine\n"} == snapshot(tmp_path)


def test_a_full_disk_leaves_the_old_tree_and_no_temporary_files(tmp_path: Path) -> None:
    write({**FILES, "old.py": python("old = 1")}, tmp_path)
    before = snapshot(tmp_path)
    files = {**FILES, "fresh/a.py": python("a = 2"), "support.md": f"<!-- {MARK} -->\n", "z.py": python("z" * 200_000)}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))  # stands for a disk that is full after 100 kB
    try:
        with pytest.raises(OutputError, match="cannot be written, and is as it was: File too large"):
            write(files, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert before == snapshot(tmp_path)


@pytest.mark.parametrize("failing", range(1, 5))
def test_a_rename_that_fails_undoes_the_renames_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    write({**FILES, "old/old.py": python("old = 1")}, tmp_path)
    for path in FILES:
        os.utime(tmp_path / path, ns=(10**18, 10**18))
    before = snapshot(tmp_path)
    files = {"support.md": FILES["support.md"], "tables/a.py": python("a = 2"), "tables/new/c.py": python("c = 2")}
    calls = 0
    replace = Path.replace

    def replace_until(self: Path, target: Path) -> Path:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", replace_until)
    with pytest.raises(OutputError, match="is as it was: Input/output error"):
        write(files, tmp_path)

    assert before == snapshot(tmp_path)
    assert all(10**18 == (tmp_path / path).stat().st_mtime_ns for path in FILES)


KILLED_BETWEEN_RENAMES = """
import os, signal, sys
from pathlib import Path
from qscheme.compiler.output import MARK, write

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore it
replace, done = Path.replace, []

def replace_once(self, target):
    done.append(target)
    if len(done) == 2:
        os.kill(os.getpid(), signal.Signals[sys.argv[2]])
    return replace(self, target)

Path.replace = replace_once
write(dict.fromkeys(("a.py", "b.py"), f"# {MARK}\\nx = 2\\n"), Path(sys.argv[1]))
"""


def both(value: int) -> dict[str, str]:
    return dict.fromkeys(("a.py", "b.py"), f"# {MARK}\nx = {value}\n")


def killed(folder: Path, by: str) -> int:
    root = Path(__file__).parents[1]
    command = [sys.executable, "-c", KILLED_BETWEEN_RENAMES, str(folder), by]
    return subprocess.run(
        command, check=False, capture_output=True, env={**os.environ, "PYTHONPATH": str(root)}
    ).returncode


def test_an_interrupt_between_two_renames_leaves_the_old_tree(tmp_path: Path) -> None:
    write(both(1), tmp_path)
    before = snapshot(tmp_path)

    assert 0 != killed(tmp_path, "SIGINT")
    assert before == snapshot(tmp_path)


def test_after_a_kill_every_file_is_whole_and_the_next_run_cleans_up(tmp_path: Path) -> None:
    write(both(1), tmp_path)

    assert -signal.SIGKILL == killed(tmp_path, "SIGKILL")
    assert {f"# {MARK}\nx = 1\n", f"# {MARK}\nx = 2\n"} == {path.read_text() for path in tmp_path.glob("*.py")}

    files = both(2)
    assert compare(files, tmp_path).stale
    write(files, tmp_path)
    assert {name: text.encode() for name, text in files.items()} == snapshot(tmp_path)


@pytest.mark.parametrize(
    "path", ["../a.py", "/a.py", "a/../b.py", "./a.py", "a//b.py", "a/", "", ".", "a\\b.py", "C:a.py"]
)
def test_paths_that_are_not_plain_are_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(ValueError, match="not a plain path"):
        write({path: python("a = 1")}, tmp_path)


def test_text_without_the_mark_is_refused_before_it_becomes_foreign(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.py: none of its first 5 lines"):
        write({"a.py": "a = 1\n"}, tmp_path)


def test_the_mark_is_found_in_each_kind_of_file() -> None:
    assert is_marked(f"# {MARK} from schemes/x.yaml.\n")
    assert is_marked(f'"""Tables."""\n\n# {MARK}\n')
    assert is_marked(f"<!-- {MARK}. -->\n")
    assert is_marked(f"// {MARK}\n")
    assert is_marked(json.dumps({"$comment": MARK, "type": "object"}))
    assert is_marked(json.dumps({"$schema": "x", "$comment": f"{MARK}.", "type": "object"}, indent=2))


def test_the_mark_inside_a_sentence_is_not_the_mark() -> None:
    assert not is_marked(f"Files that say {MARK} are ours.\n")
    assert not is_marked(f"# Files that say {MARK} are ours.\n")
    assert not is_marked(json.dumps({"description": MARK}))


def test_this_module_is_not_taken_for_a_generated_one() -> None:
    source = Path(__file__).parents[1] / "qscheme" / "compiler" / "output.py"

    assert not is_marked(source.read_text(encoding="utf-8"))


def test_differences_are_true_when_there_are_any() -> None:
    assert not Differences((), (), (), (), {})
    assert Differences((), (), ("old.py",), (), {})


def test_other_packages_of_ours_are_left_alone_where_only_some_folders_are_ours(tmp_path: Path) -> None:
    write({"mine/a.py": f"# {MARK}\n", "other/b.py": f"# {MARK}\n", "old.md": f"<!-- {MARK} -->\n"}, tmp_path)
    differences = write({"mine/c.py": f"# {MARK}\n"}, tmp_path, ("mine",))
    assert ("mine/a.py", "old.md") == differences.stale
    assert (tmp_path / "other" / "b.py").exists()
