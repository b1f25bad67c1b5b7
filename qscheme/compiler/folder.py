"""A folder of YAML files -> validated models, each with its document, and every problem in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from qscheme.compiler.kernel_model import KernelFile
from qscheme.compiler.likeness import completed
from qscheme.compiler.mistakes import problems_of
from qscheme.compiler.model import DeviceFile, SchemeFile, SwitchFile
from qscheme.compiler.source import Place, Problem, SourceError, read_file
from qscheme.compiler.words import NAME, WRITTEN
from qscheme.releases import read_history

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pydantic_core import ErrorDetails

    from qscheme.compiler.source import Document
    from qscheme.releases import History

DEVICES, SWITCHES, KERNELS, RELEASES = "devices.yaml", "switches.yaml", "kernels", "releases"

ModelT = TypeVar("ModelT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class File(Generic[ModelT]):
    """One YAML file: its stem, what it says, and where it says it. shipped: whether the folder itself lacks it."""

    stem: str
    model: ModelT
    document: Document
    shipped: bool

    def place(self, *path: str | int) -> Place:
        """Where the value at a key path stands."""
        return self.document.place_of(path)

    def key_place(self, *path: str | int) -> Place:
        """Where the key of that value stands."""
        return self.document.key_place_of(path)


@dataclass(frozen=True, slots=True)
class Folder:
    """Every file that one compilation reads, sorted by name.

    unread: stems of kernel files with problems; devices and switches are None if theirs has one. What such a file
    defines is unknown, so that nobody is told that it is missing.
    """

    schemes: tuple[File[SchemeFile], ...]
    kernels: tuple[File[KernelFile], ...]
    devices: File[DeviceFile] | None
    switches: File[SwitchFile] | None
    unread: frozenset[str]
    problems: tuple[Problem, ...]
    histories: tuple[History, ...] = ()


def read_folder(folder: Path, shipped: Path) -> Folder:
    """Read a folder of schemes; kernel, device and switch files that it lacks come from the shipped folder.

    Problems call a file by its path from the working folder where it stands under it, else by the path as given.
    """
    reader = _Reader(folder, shipped)
    own = reader.files(folder)
    devices = reader.read(own.pop(DEVICES, shipped / DEVICES), DeviceFile)
    switches = reader.read(own.pop(SWITCHES, shipped / SWITCHES), SwitchFile)
    paths = {**reader.files(shipped / KERNELS), **reader.files(folder / KERNELS)}
    schemes = [reader.read(path, SchemeFile) for _, path in sorted(own.items())]
    kernels = [(path.stem, reader.read(path, KernelFile)) for _, path in sorted(paths.items())]
    if not own:
        message = "no scheme files (*.yaml) here; is this the schemes folder?"
        reader.problems.append(Problem(Place(reader.shown(folder), 1, 1), message))
    read = tuple(file for _, file in kernels if file is not None)
    histories = tuple(reader.histories(read))
    return Folder(
        schemes=tuple(file for file in schemes if file is not None),
        kernels=read,
        devices=devices,
        switches=switches,
        unread=frozenset(stem for stem, file in kernels if file is None),
        problems=tuple(reader.problems),
        histories=histories,
    )


class _Reader:
    """Collects problems while it reads files."""

    def __init__(self, folder: Path, shipped: Path) -> None:
        self.folder = folder
        self.shipped = shipped
        self.problems: list[Problem] = []

    def files(self, folder: Path) -> dict[str, Path]:
        """The YAML files of a folder by name; hidden ones are those of editors."""
        found: dict[str, Path] = {}
        try:
            paths = sorted(folder.iterdir()) if folder.is_dir() else []
        except OSError as error:
            self.problems.append(Problem(Place(self.shown(folder), 1, 1), f"cannot be read: {error.strerror}"))
            paths = []
        for path in paths:
            if path.name.startswith(".") or path.suffix not in (".yaml", ".yml"):
                continue
            if path.suffix == ".yml":
                self.problems.append(Problem(Place(self.shown(path), 1, 1), f"name it {path.stem}.yaml"))
            elif re.fullmatch(NAME, path.stem) is None:
                message = f"the file's name needs to be {WRITTEN[NAME]}, found {path.stem!r}"
                self.problems.append(Problem(Place(self.shown(path), 1, 1), message))
            else:
                found[path.name] = path
        return found

    def read(self, path: Path, model: type[ModelT]) -> File[ModelT] | None:
        try:
            document = read_file(path, self.shown(path))
        except SourceError as error:
            self.problems.extend(error.problems)
            return None
        document, mistakes = completed(document) if model is KernelFile else (document, [])
        found: ModelT | None = None
        errors: list[ErrorDetails] = []
        try:
            found = model.model_validate(document.data)
        except ValidationError as error:
            errors = error.errors()
        # A mistake in a key that kernels share is one mistake, whatever their names.
        told = {(problem.place, problem.message): problem for problem in mistakes}
        for problem in problems_of(errors, document, model):
            told.setdefault((problem.place, problem.message.rpartition(": ")[2]), problem)
        problems = list(told.values())
        self.problems.extend(problems)
        if found is None or problems:
            return None
        return File(path.stem, found, document, shipped=not path.is_relative_to(self.folder))

    def histories(self, files: Iterable[File[KernelFile]]) -> Iterator[History]:
        names: dict[str, Place] = {}
        for file in files:
            if file.model.releases is not None:
                names.setdefault(file.model.releases, file.place("releases"))
        for name, place in names.items():
            if (self.shipped / RELEASES / name).is_file():
                yield read_history(self.shipped / RELEASES / name)
            else:
                self.problems.append(Problem(place, f"there is no history {name} of releases; remove the key"))

    def shown(self, path: Path) -> str:
        """A path as errors call it: from the working folder, as given, or under `shipped/`; always on one line."""
        absolute, shipped, here = path.absolute(), self.shipped.absolute(), Path.cwd()
        if absolute.is_relative_to(shipped) and not absolute.is_relative_to(self.folder.absolute()):
            text = f"shipped/{absolute.relative_to(shipped).as_posix()}"
        elif absolute.is_relative_to(here):
            text = absolute.relative_to(here).as_posix()
        else:
            text = path.as_posix()
        return text.encode("unicode_escape").decode() if not text.isprintable() else text
