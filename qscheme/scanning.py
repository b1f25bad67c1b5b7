"""What the source of a Python package offers: functions and their parameters, found by ast without importing it."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from qscheme.bindings import Binding, Class, Function, Import, Module, Parameters, Same, Value
from qscheme.errors import QschemeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

VALUE: Parameters = ("=",)

_Found: TypeAlias = "Function | Class | Value | Module"


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """Which parts of a library's package are its offer.

    modules: files under the package folder, as glob patterns; an `__init__.py` counts for what it re-exports.
    helpers: functions that count although private or imported, and whose returned form (dict or tuple) is recorded.
    skip: names, as patterns, that do not count.
    values: files, as glob patterns, whose assigned names and class attributes count too.
    enums: dotted names of enumerations that C++ defines -> headers, relative to the package's parent, tried in order.
    """

    modules: tuple[str, ...] = ()
    helpers: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    enums: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, "tuple[str, ...]"])


@dataclass(frozen=True, slots=True)
class Survey:
    """The offer of one package: symbols under the path that defines them, and other paths to symbols and modules."""

    symbols: Mapping[str, Parameters]
    aliases: Mapping[str, str]


class Package:
    """A package folder, imported by the name `name`, whose files are parsed when a symbol needs them, and kept.

    A file that Python cannot parse raises SyntaxError, once a symbol needs it.
    """

    def __init__(self, folder: Path, plan: ScanPlan | None = None, name: str | None = None) -> None:
        self.folder, self.plan, self.name = folder, plan or ScanPlan(), name or folder.name
        self._modules: dict[str, Module | None] = {}

    def parameters(self, symbol: str) -> Parameters | None:
        """The parameters of a dotted name, through re-exports and `import *`; None if the source does not define it."""
        first, *path = symbol.split(".")
        found: _Found | None = self._module(self.name) if first == self.name else None
        for position, name in enumerate(path):
            last = position == len(path) - 1
            if isinstance(found, Value) and last and found.home in self.plan.enums:
                members = self._members(found.home)
                return VALUE if members is None or name in members else None
            found = self._member(found, name, last)
        return None if found is None or isinstance(found, Module) else self._described(found, path[-1])

    def survey(self) -> Survey:
        """Everything that the plan asks for."""
        files = dict.fromkeys(file for pattern in self.plan.modules for file in sorted(self.folder.glob(pattern)))
        valued = {file for pattern in self.plan.values for file in self.folder.glob(pattern)}
        modules = [module for file in files if (module := self._module(self._dotted(file)))]
        symbols = dict.fromkeys(self._enumerated(), VALUE)
        for module in modules:
            for name, found in self._contents(module):
                symbols |= self._offered(module, name, found, module.file in valued)
        homes = symbols.keys() | {path.rpartition(".")[0] for path in symbols}
        aliases = {
            f"{module.name}.{name}": home
            for module in modules
            if module.file.name == "__init__.py"
            for name, found in self._contents(module)
            if not name.startswith("_") and (home := _home(found)) in homes
            if not f"{module.name}.{name}.".startswith(f"{home}.")
        }
        return Survey(dict(sorted(symbols.items())), dict(sorted(aliases.items())))

    def _offered(self, module: Module, name: str, found: _Found, valued: bool) -> Iterator[tuple[str, Parameters]]:
        """The symbols that one name of a module stands for."""
        path = f"{module.name}.{name}"
        if isinstance(found, Function) and name in self.plan.helpers:
            yield path, self._described(found, name)
        elif name.startswith("_") or isinstance(found, Module):
            return
        elif isinstance(found, Function) or (isinstance(found, Value) and valued):
            if found.home.rpartition(".")[0] == module.name:
                yield path, self._described(found, name)
        elif isinstance(found, Class) and (
            valued if found.home == path else found.home.rpartition(".")[0] == module.name
        ):
            for member, binding in found.members.items():
                if not member.startswith("_"):
                    yield f"{path}.{member}", self._described(binding, member)

    def _contents(self, module: Module) -> Iterator[tuple[str, _Found]]:
        for name in sorted(self._names(module, set())):
            skipped = any(fnmatchcase(name, pattern) for pattern in self.plan.skip)
            if not skipped and (found := self._lookup(module, name, set())) is not None:
                yield name, found

    def _names(self, module: Module, seen: set[str]) -> set[str]:
        seen.add(module.name)
        stars = [star for _, source in module.bindings.stars if source not in seen and (star := self._module(source))]
        return {*module.bindings.names, *(name for star in stars for name in self._names(star, seen))}

    def _described(self, found: Function | Class | Value, name: str) -> Parameters:
        if not isinstance(found, Function):
            return VALUE
        return (
            (*found.parameters, f"-> {self._returned(found, set())}") if name in self.plan.helpers else found.parameters
        )

    def _returned(self, function: Function, seen: set[str]) -> str:
        seen.add(function.home)
        module = self._module(function.home.rpartition(".")[0])
        for form in function.returned:
            called = self._lookup(module, form[1:], set()) if form.startswith("=") else None
            if form == "tuple" or (
                isinstance(called, Function) and called.home not in seen and self._returned(called, seen) == "tuple"
            ):
                return "tuple"
        return "dict"

    def _enumerated(self) -> Iterator[str]:
        for enumeration in self.plan.enums:
            if self.parameters(enumeration) is not None:
                yield enumeration
                yield from (f"{enumeration}.{member}" for member in self._members(enumeration) or ())

    def _members(self, enumeration: str) -> tuple[str, ...] | None:
        """What the first header at hand says; None without a header, when every member is believed."""
        for header in self.plan.enums[enumeration]:
            path = self.folder.parent / header
            if path.is_file():
                text = re.sub(r"//.*|/\*[\s\S]*?\*/", "", path.read_text(encoding="utf-8", errors="replace"))
                body = re.search(rf"\benum\s+(?:class\s+)?{enumeration.rpartition('.')[2]}\b[^{{;]*{{([^}}]*)}}", text)
                return tuple(re.findall(r"(?:^|,)\s*(\w+)", body[1])) if body else ()
        return None

    def _dotted(self, file: Path) -> str:
        parts = file.relative_to(self.folder).with_suffix("").parts
        return ".".join((self.name, *(parts[:-1] if parts[-1] == "__init__" else parts)))

    def _module(self, name: str) -> Module | None:
        if name not in self._modules:
            first, *path = name.split(".")
            base = self.folder.joinpath(*path)
            files = (base / "__init__.py", *((base.with_name(f"{base.name}.py"),) if path else ()))
            file = next((file for file in files if file.is_file()), None) if first == self.name else None
            if file is None and path and first == self.name and base.is_dir():  # a folder without `__init__.py`
                self._modules[name] = Module(name, base, b"")
            else:
                self._modules[name] = Module(name, file, file.read_bytes()) if file else None
        return self._modules[name]

    def _member(self, found: _Found | None, name: str, last: bool) -> _Found | None:
        """An attribute. On the way down a module goes before a function of its name, as in `import a.b.c`."""
        if isinstance(found, Class):
            return found.members.get(name)
        if not isinstance(found, Module):
            return None
        module = self._module(f"{found.name}.{name}")
        return (self._lookup(found, name, set()) or module) if last else (module or self._lookup(found, name, set()))

    def _lookup(self, module: Module | None, name: str, seen: set[tuple[str, str]]) -> _Found | None:
        """What a module binds a name to: the last binding; its fallbacks only where it leads nowhere."""
        if module is None or (module.name, name) in seen or not module.may_bind(name):
            return None
        seen.add((module.name, name))
        place, bound = module.bindings.names.get(name, (-1, []))
        stars = module.bindings.stars[::-1]
        for source in (
            *(star for at, star in stars if at > place),
            *bound,
            *(star for at, star in stars if at < place),
        ):
            found = self._starred(source, name, seen) if isinstance(source, str) else self._bound(module, source, seen)
            if found is not None:
                return found
        return None

    def _starred(self, source: str, name: str, seen: set[tuple[str, str]]) -> _Found | None:
        module = self._module(source)
        if module is None or name.startswith("_") or not module.may_bind(name):
            return None
        exported = module.bindings.exported
        return self._lookup(module, name, seen) if exported is None or name in exported else None

    def _bound(self, module: Module, binding: Binding, seen: set[tuple[str, str]]) -> _Found | None:
        if isinstance(binding, Import):
            target = self._module(binding.module)
            if binding.name is None or target is None:
                return target
            return self._lookup(target, binding.name, seen) or self._module(f"{binding.module}.{binding.name}")
        if not isinstance(binding, Same):
            return binding
        found: _Found | None = self._lookup(module, binding.path[0], seen)
        for name in binding.path[1:]:
            found = self._member(found, name, last=True)
        made = isinstance(found, Class) if binding.called else isinstance(found, (Function, Class))
        return found if made else Value(binding.home)


def package_folder(path: Path, name: str) -> Path:
    """The package in a checkout or a site-packages folder, or the folder itself. Raises QschemeError without one."""
    for folder in (path / name, path):
        if (folder / "__init__.py").is_file():
            return folder
    raise QschemeError(
        f"{path}: needs a checkout, a site-packages folder or the package {name} itself, found no {name}/__init__.py"
    )


def scan(package: Path, plan: ScanPlan, name: str | None = None) -> dict[str, Parameters]:
    """The offer of one package folder, under every path that a user may write."""
    return flattened(Package(package, plan, name).survey())


def flattened(survey: Survey) -> dict[str, Parameters]:
    """The symbols of a survey under every path that a user may write."""
    flat = dict(survey.symbols)
    for alias, home in survey.aliases.items():
        for symbol, parameters in survey.symbols.items():
            if symbol == home or symbol.startswith(f"{home}."):
                flat[alias + symbol.removeprefix(home)] = parameters
    return dict(sorted(flat.items()))


def scan_tags(git: Path, tags: Iterable[str], library: str, plan: ScanPlan) -> Iterator[tuple[str, Survey]]:
    """The offer of each tag of a git directory (a mirror or a checkout) whose folder `library` is the package."""
    headers = tuple(header for files in plan.enums.values() for header in files)
    for tag in tags:
        listed = _git(git, "ls-tree", "-r", "--name-only", "-z", tag, "--", library, *headers).decode().split("\0")
        wanted = [path for path in listed if path.endswith(".py") or path in headers]
        if not wanted:
            raise QschemeError(f"{git}: tag {tag} has no folder {library!r} with Python files")
        with tempfile.TemporaryDirectory() as folder:
            with tarfile.open(fileobj=io.BytesIO(_git(git, "archive", "--format=tar", tag, "--", *wanted))) as archive:
                archive.extractall(folder, filter="data")
            yield tag, Package(Path(folder, library), plan).survey()


def is_git(path: Path) -> bool:
    """Whether a folder is a checkout with a history, or a bare repository."""
    return (path / ".git").exists() or ((path / "HEAD").is_file() and (path / "objects").is_dir())


def all_tags(git: Path, merged: bool = False) -> list[str]:
    """Every tag of a git directory, or those that its HEAD descends from."""
    return _git(git, "tag", "--list", *(("--merged", "HEAD") if merged else ())).decode().split()


def _home(found: _Found) -> str:
    return found.name if isinstance(found, Module) else found.home


def _git(git: Path, *arguments: str) -> bytes:
    done = subprocess.run(("git", "-C", str(git), *arguments), capture_output=True, check=False)
    if done.returncode:
        raise QschemeError(f"git {arguments[0]} failed in {git}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout
