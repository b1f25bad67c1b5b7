"""A folder of schemes as it stands on disk or in a revision of git."""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from qscheme.compiler.folder import DEVICES, KERNELS, RELEASES, SWITCHES
from qscheme.errors import QschemeError, SchemeFileError

if TYPE_CHECKING:
    from collections.abc import Generator

GIT = "git:"
"""Begins the name of a revision: `git:REV` or `git:REV:FOLDER`, the folder `schemes` unless told."""


def complete(folder: Path) -> bool:
    """Whether a folder has everything itself, so that nothing of the shipped schemes belongs to it."""
    return all((folder / name).exists() for name in (DEVICES, SWITCHES, KERNELS, RELEASES))


@contextmanager
def schemes_at(name: str) -> Generator[Path]:
    """The folder that a name means; one of a revision is written to a temporary folder for as long as it is used.

    Raises QschemeError where there is none, and passes on mistakes in its files with their places in the revision.
    """
    if not name.startswith(GIT):
        if not Path(name).is_dir():
            raise QschemeError(
                f"there is no folder {name}; name one, or a revision of git as git:REV or git:REV:FOLDER"
            )
        yield Path(name)
        return
    revision, _, folder = name.removeprefix(GIT).partition(":")
    folder = folder.strip("/") or "schemes"
    with tempfile.TemporaryDirectory(prefix="qscheme-") as made:
        root = Path(made).resolve()
        _extract(_archive(revision, folder), root)
        try:
            yield root / folder
        except SchemeFileError as error:
            raise SchemeFileError(problem.replace(f"{root}/", f"{revision}:") for problem in error.problems) from None


def _archive(revision: str, folder: str) -> bytes:
    if revision.startswith("-") or not revision:
        raise QschemeError(f"{GIT}{revision}: needs a revision of git")
    done = subprocess.run(("git", "archive", "--format=tar", revision, "--", folder), capture_output=True, check=False)
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip().removeprefix("fatal: ")
        raise QschemeError(f"{GIT}{revision}:{folder}: git archive failed: {why}")
    return done.stdout


def _extract(archive: bytes, root: Path) -> None:
    """Write the regular files of an archive under a folder."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            if member.isfile() and not path.is_absolute() and ".." not in path.parts:
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                content = tar.extractfile(member)
                (root / path).write_bytes(content.read() if content else b"")
