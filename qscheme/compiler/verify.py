"""Every call that the YAML can make, against what the releases of its kernel library offer."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from qscheme.compiler.kernel_text import forms_of
from qscheme.errors import QschemeError, UnknownFact, suggestion
from qscheme.machine import Library
from qscheme.releases import parsed, release_tags
from qscheme.scanning import Package, all_tags, is_git, package_folder
from qscheme.signatures import chosen_form, is_library
from qscheme.types import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qscheme.compiler import ir
    from qscheme.releases import History
    from qscheme.signatures import Offer
    from qscheme.types import Form, LibrarySource

Cell: TypeAlias = Literal["works", "older form", "does not"]


class Edition(NamedTuple):
    """A library as one release or one folder has it; version None if it is not known, and breaks no limit."""

    name: str
    version: str | None
    offer: Offer


@dataclass(frozen=True, slots=True, eq=False)
class KernelFit:
    """A kernel against editions. fits: for each edition the index of the form that is called, or why there is none."""

    kernel: ir.Kernel
    forms: tuple[Form, ...]
    fits: tuple[int | Reason, ...]


@dataclass(frozen=True, slots=True, eq=False)
class BackendFit:
    """A backend against editions: its kernels of the library, and what each edition comes to.

    since: the first release for each architecture that needs one. late: the same, but empty where every architecture
    of the backend needs the same, which its cells show.
    """

    scheme: str
    backend: ir.Backend
    kernels: tuple[KernelFit, ...]
    since: tuple[tuple[str, str], ...]
    late: tuple[tuple[str, str], ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """Every backend that calls a library, against its editions."""

    history: History
    editions: tuple[Edition, ...]
    kernels: tuple[KernelFit, ...]
    backends: tuple[BackendFit, ...]

    @property
    def library(self) -> str:
        return self.history.library

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(edition.name for edition in self.editions)


def releases(history: History, name: str | None = None) -> tuple[Edition, ...]:
    """Every release of a history, or the one of that name (`v0.1.12` or `0.1.12`). Raises UnknownFact without one."""
    editions = [Edition(release, release, history.at(place)) for place, release in enumerate(history.releases)]
    if name is not None:
        editions = [edition for edition in editions if parsed(edition.version) == parsed(name)]
        if not editions:
            raise UnknownFact(f"no release {name} of {history.library}{suggestion(name, history.releases)}")
    return tuple(editions)


def folder_edition(path: Path, source: LibrarySource, history: History) -> Edition:
    """The package in a checkout or in a site-packages folder, or the package folder itself.

    Its version is that of the distribution beside it, else the newest release that the checkout descends from.
    Raises QschemeError if there is no package, or another one of that name.
    """
    folder = package_folder(path, source.name)
    if not is_library(folder, history.symbols, source.name):
        raise QschemeError(f"{folder}: another package called {source.name}; none of the known symbols is in it")
    version = _version(source, [str(folder.parent)])
    if version is None and is_git(folder.parent):
        version = next(reversed(release_tags(all_tags(folder.parent, merged=True))), None)
    name = f"{source.name} {(version or 'of unknown version').removeprefix('v')} at {path}"
    return Edition(name, version, Package(folder, history.plan, source.name))


def installed_edition(source: LibrarySource, history: History) -> Edition:
    """The installed package, found without importing it. Raises QschemeError if there is none."""
    spec = find_spec(source.name)
    if spec is None or spec.origin is None:
        raise QschemeError(
            f"{source.name} is not installed in this Python; install {source.distributions[0]}, or name a folder"
        )
    edition = folder_edition(Path(spec.origin).parent.parent, source, history)
    version = edition.version or _version(source, None)
    return edition._replace(name=f"{source.name} {version or 'of unknown version'}, installed", version=version)


def matrices(
    catalogue: ir.Catalogue, *, release: str | None = None, folder: Path | None = None, installed: bool = False
) -> tuple[Matrix, ...]:
    """Each library with a history against one release, a folder or what is installed; else against every release."""
    found: list[Matrix] = []
    for history in catalogue.histories:
        source = next(source for source in catalogue.libraries if source.name == history.library)
        if folder is not None:
            editions = [folder_edition(folder, source, history)]
        elif installed:
            editions = [installed_edition(source, history)]
        else:
            editions = list(releases(history, release))
        found.append(against(catalogue, history, editions))
    return tuple(found)


def against(catalogue: ir.Catalogue, history: History, editions: Iterable[Edition] | None = None) -> Matrix:
    """Every kernel and backend of a library against editions of it; against every release if none are given."""
    library = history.library
    given = releases(history) if editions is None else tuple(editions)
    kernels = {
        (kernel.library, kernel.name): _kernel_fit(kernel, given, history)
        for kernel in catalogue.kernels
        if kernel.package == library
    }
    backends = [
        _backend_fit(scheme.name, backend, [kernels[key] for key in used], library, given)
        for scheme in catalogue.schemes
        for backend in scheme.backends
        if (used := [(k.library, k.name) for k in backend.kernels if k.package == library])
    ]
    return Matrix(history, given, tuple(kernels.values()), tuple(backends))


def _kernel_fit(kernel: ir.Kernel, editions: Iterable[Edition], history: History) -> KernelFit:
    forms, library = forms_of(kernel), history.library
    fits = [chosen_form(forms, Library(library, edition.version), edition.offer, history) for edition in editions]
    return KernelFit(kernel, forms, tuple(fits))


def _backend_fit(
    scheme: str, backend: ir.Backend, kernels: list[KernelFit], library: str, editions: tuple[Edition, ...]
) -> BackendFit:
    since = _first_releases(backend, library)
    cells: list[Cell] = []
    for place, edition in enumerate(editions):
        fits = [kernel.fits[place] for kernel in kernels]
        version = parsed(edition.version)
        too_old = [arch for arch, first in since.items() if version and (limit := parsed(first)) and version < limit]
        if any(isinstance(fit, Reason) for fit in fits) or (
            backend.needs.arch and set(backend.needs.arch) <= set(too_old)
        ):
            cells.append("does not")
        else:
            cells.append("older form" if any(fits) else "works")
    first = tuple(sorted(since.items()))
    return BackendFit(scheme, backend, tuple(kernels), first, first if _differ(since, backend) else (), tuple(cells))


def _first_releases(backend: ir.Backend, library: str) -> dict[str, str]:
    """The latest `since` of each architecture that has one."""
    found: dict[str, str] = {}
    for where in backend.needs.where:
        if where.library == library and where.since is not None:
            for arch in where.arch:
                known, limit = parsed(found.get(arch)), parsed(where.since)
                if known is None or (limit is not None and limit > known):
                    found[arch] = where.since
    return found


def _differ(since: dict[str, str], backend: ir.Backend) -> bool:
    """Whether architectures have different first releases, so that the range of the backend does not tell them."""
    return len({since.get(arch) for arch in backend.needs.arch or (*since, "")}) > 1


def _version(source: LibrarySource, path: list[str] | None) -> str | None:
    """The version of the distribution that owns a library, looked for in a folder or in this Python's."""
    for name in source.distributions:
        found = metadata.distributions(name=name) if path is None else metadata.distributions(name=name, path=path)
        for distribution in found:
            return distribution.version
    return None
