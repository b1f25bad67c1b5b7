"""A folder of YAML files -> validated models, each with its document, and every problem in them."""

from __future__ import annotations

import difflib
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from qscheme.compiler.model import DeviceFile, KernelFile, SchemeFile, SwitchFile
from qscheme.compiler.source import Place, Problem, SourceError, read_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pydantic_core import ErrorDetails

    from qscheme.compiler.source import Document, KeyPath

DEVICES, SWITCHES, KERNELS = "devices.yaml", "switches.yaml", "kernels"

ModelT = TypeVar("ModelT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class File(Generic[ModelT]):
    """One YAML file: its stem, what it says, and where it says it."""

    stem: str
    model: ModelT
    document: Document

    def place(self, *path: str | int) -> Place:
        """Where the value at a key path stands."""
        return self.document.place_of(path)


@dataclass(frozen=True, slots=True)
class Folder:
    """Every file that one compilation reads, sorted by name."""

    schemes: tuple[File[SchemeFile], ...]
    kernels: tuple[File[KernelFile], ...]
    devices: File[DeviceFile] | None
    switches: File[SwitchFile] | None
    problems: tuple[Problem, ...]


def read_folder(folder: Path, shipped: Path) -> Folder:
    """Read a folder of schemes; kernel, device and switch files that it lacks come from the shipped folder."""
    problems: list[Problem] = []
    own = {path.name: path for path in folder.glob("*.yaml")}
    devices = _read(own.pop(DEVICES, shipped / DEVICES), DeviceFile, folder, problems)
    switches = _read(own.pop(SWITCHES, shipped / SWITCHES), SwitchFile, folder, problems)
    kernel_paths = {path.name: path for path in (shipped / KERNELS).glob("*.yaml")}
    kernel_paths |= {path.name: path for path in (folder / KERNELS).glob("*.yaml")}
    schemes = [_read(path, SchemeFile, folder, problems) for _, path in sorted(own.items())]
    kernels = [_read(path, KernelFile, folder, problems) for _, path in sorted(kernel_paths.items())]
    if not own:
        problems.append(Problem(Place(folder.name, 1, 1), "no scheme files (*.yaml) here; is this the schemes folder?"))
    return Folder(
        tuple(file for file in schemes if file),
        tuple(file for file in kernels if file),
        devices,
        switches,
        tuple(problems),
    )


def unknown(word: str, known: Iterable[str], what: str) -> str:
    """`unknown WHAT 'word', did you mean 'x'?`, or the known words where none is close."""
    words = sorted(known)
    close = difflib.get_close_matches(word, words, n=1)
    cure = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(words)}"
    return f"unknown {what} {word!r}, {cure}"


def _read(path: Path, model: type[ModelT], folder: Path, problems: list[Problem]) -> File[ModelT] | None:
    shown = path.relative_to(folder.parent).as_posix() if path.is_relative_to(folder) else f"shipped/{path.name}"
    try:
        document = read_file(path, shown)
    except SourceError as error:
        problems.extend(error.problems)
        return None
    try:
        return File(path.stem, model.model_validate(document.data), document)
    except ValidationError as error:
        problems.extend(_problem(details, document, model) for details in error.errors())
        return None


def _problem(details: ErrorDetails, document: Document, model: type[BaseModel]) -> Problem:
    path: KeyPath = tuple(details["loc"])
    if details["type"] in ("extra_forbidden", "missing"):
        place = document.key_place_of(path) if details["type"] == "extra_forbidden" else document.place_of(path)
    else:
        place = document.place_of(path)
    return Problem(place, _message(details, document, path, model))


def _message(details: ErrorDetails, document: Document, path: KeyPath, model: type[BaseModel]) -> str:
    key = ".".join(str(part) for part in path if _in_document(document, path, part))
    context: Mapping[str, object] = details.get("ctx", {})
    match details["type"]:
        case "extra_forbidden":
            known = _known_keys(model, path, details["msg"])
            return unknown(str(path[-1]), known, "key") if known else f"unknown key {path[-1]!r}"
        case "missing":
            return f"{key + ': ' if key else ''}needs the key {path[-1]!r}"
        case "literal_error":
            words = [word.strip("' ") for word in str(context.get("expected", "")).replace(" or ", ",").split(",")]
            return f"{key}: {unknown(str(details['input']), words, 'word')}"
        case "string_pattern_mismatch":
            return f"{key}: {details['input']!r} is not written like {context.get('pattern')}"
        case "string_type":
            raw = document.texts.get(document_path(document, path), str(details["input"]))
            return f"{key}: needs text, found {raw}; quote it if it is a version or a name"
        case _:
            return f"{key}: {details['msg'][0].lower()}{details['msg'][1:]}, found {_short(details['input'])}"


def document_path(document: Document, path: KeyPath) -> KeyPath:
    """The part of a validation path that the document has; union tags, which it does not have, are skipped."""
    known: KeyPath = ()
    for part in path:
        if (*known, part) in document.places:
            known = (*known, part)
    return known


def _in_document(document: Document, path: KeyPath, part: str | int) -> bool:
    return part in document_path(document, path)


def _known_keys(model: type[BaseModel], path: KeyPath, message: str) -> tuple[str, ...]:
    """The keys that the model at a path has, found by walking the models' fields."""
    here: list[type[BaseModel]] = [model]
    for part in path[:-1]:
        following: list[type[BaseModel]] = []
        for candidate in here:
            field = next((f for n, f in candidate.model_fields.items() if part in (n, f.alias)), None)
            following += _models_in(field.annotation) if field is not None else [candidate]
        here = following
    return tuple(field.alias or name for candidate in here for name, field in candidate.model_fields.items())


def _models_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [found for argument in typing.get_args(annotation) for found in _models_in(argument)]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
