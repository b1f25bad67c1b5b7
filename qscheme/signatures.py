"""Whether a call fits what a release of a kernel library offers, and what is missing where it does not."""

from __future__ import annotations

import gc
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from qscheme.releases import History, parsed, read_history
from qscheme.scanning import VALUE, Package
from qscheme.types import Form, Reason

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence

    from qscheme.bindings import Parameters
    from qscheme.machine import Library
    from qscheme.types import Kernel

_ANYTHING: Parameters = ("*operands", "**keywords")


CONFIG_OPERANDS = 3
"""M, N and K, by position: how a tile configuration is looked up."""


class Offer(Protocol):
    """What one release, one package folder or one running module has."""

    def parameters(self, symbol: str) -> Parameters | None:
        """The parameters of a dotted name; None if it is not there."""
        ...


@lru_cache(maxsize=4096)
def misfit(parameters: Parameters, form: Form) -> str | None:
    """Why a call cannot be made of a function with these parameters, as the words after "found"; None if it can."""
    if parameters == VALUE:
        return "a value that is no function" if form.positional or form.keywords else None
    words = [word for word in parameters if not word.startswith("-> ")]
    positional: list[str] = []
    keywords: list[str] = []
    star = extra = ""
    for word in words:
        name = word.partition("=")[0]
        if word == "/":
            keywords.clear()
        elif word.startswith("**"):
            extra = word
        elif word.startswith("*"):
            star = word
        else:
            keywords.append(name)
            positional += [] if star else [name]
    passed = positional[: form.positional]
    given = {*passed, *(word for word in form.keywords if word in keywords)}
    required = [word for word in words if word[0] not in "*/" and "=" not in word and word not in given]
    lacking = [word for word in form.keywords if word not in keywords and not extra]
    twice = [
        word for at, word in enumerate(form.keywords) if word in form.keywords[:at] or word in {*passed} & {*keywords}
    ]
    why = [f"without {', '.join(lacking)}"] if lacking else []
    why += [f"with {', '.join(required)} required"] if required else []
    why += [f"with {', '.join(dict.fromkeys(twice))} given twice"] if twice else []
    if form.positional > len(positional) and star in ("", "*"):
        why.append(f"with {len(positional)} by position, not {form.positional}")
    return f"parameters ({', '.join(words)}) {' and '.join(why)}" if why else None


@dataclass(frozen=True, slots=True)
class ReleaseOffers:
    """What the libraries of a set of facts offer; implements `types.Offers`.

    libraries: as found or as given. histories: those at hand by library name, or the folder with `LIBRARY.json` files.

    A library with a history is asked by the source of its folder if it has a location, else by the history's nearest
    release at or before its version; a newer or unknown version counts as the newest release. A library without a
    history (torch, qscheme itself) is taken to offer everything, unless the version is the one that this process has
    imported: then every name must be there. Its signatures are not checked.
    """

    libraries: Mapping[str, Library]
    histories: Mapping[str, History] | Path

    def form(self, kernel: Kernel) -> int | Reason:
        """The first form of `kernel` that fits, or why the newest does not."""
        library = self.libraries[kernel.library]
        if library.absence is not None:
            return Reason("library", library.name, library.absence)
        with _collection_paused():
            history = self._history(library.name)
            return chosen_form(kernel.forms, library, self._offer(library, history), history)

    def accepts(self, kernel: Kernel, keyword: str) -> bool:
        """Whether the fitting form of `kernel` takes an optional keyword; False where signatures are not known."""
        index = self.form(kernel)
        library = self.libraries[kernel.library]
        if isinstance(index, Reason) or (history := self._history(library.name)) is None:
            return False
        return takes(kernel.forms[index], keyword, self._offer(library, history))

    def older(self, library: str, release: str) -> bool:
        """Whether the library is older than a release; False where its version is unknown."""
        version, limit = parsed(self.libraries[library].version), parsed(release)
        return version is not None and limit is not None and version < limit

    def _history(self, library: str) -> History | None:
        if isinstance(self.histories, Path):
            file = self.histories / f"{library}.json"
            return read_history(file) if file.is_file() else None
        return self.histories.get(library)

    def _offer(self, library: Library, history: History | None) -> Offer:
        if history is None:
            return _Running(library)
        if library.location is not None:
            start = Path(library.location, "__init__.py")
            return _package(
                library.name, Path(library.location), history, start.stat().st_mtime_ns if start.is_file() else 0
            )
        place = history.nearest(library.version)
        return _Nothing() if place is None else history.at(place)


def chosen_form(forms: Sequence[Form], library: Library, offer: Offer, history: History | None = None) -> int | Reason:
    """The first of a kernel's forms that fits an offer, or why the newest does not.

    history: tells the releases that a missing symbol or keyword needs.
    """
    try:
        for index, form in enumerate(forms):
            if fits(form, library.version, offer):
                return index
        newest, name = forms[0], forms[0].symbols[0]
        lack, when = _lack(newest, offer), _when(tuple(forms), history) if history else ""
    except SyntaxError as error:
        where = f"where {error.filename}:{error.lineno} is not Python: {error.msg}"
        return Reason("symbol", forms[0].symbols[0], f"{_named(library)}, {where}")
    if lack is None:
        return Reason("symbol", f"{name} of {library.name} {_outside(library.version, newest)}", _named(library))
    if lack.needs is None:
        missing = lack.symbol.rpartition(".")[2]
        return Reason("symbol", f"{lack.symbol}{when}", f"{_named(library)}, which has no {missing}")
    return Reason("symbol", f"{lack.symbol} {lack.needs}{when}", f"{_named(library)} with {lack.found}")


def fits(form: Form, version: str | None, offer: Offer) -> bool:
    """Whether a form can and may be called; an unknown version breaks no release limit."""
    return _outside(version, form) is None and _lack(form, offer) is None


def fits_signature(form: Form, offer: Offer) -> bool:
    """Whether a form can be called, whatever its release limits say."""
    return _lack(form, offer) is None


def takes(form: Form, keyword: str, offer: Offer) -> bool:
    """Whether the function of a form takes a further keyword."""
    found = first_found(form.symbols, offer) or VALUE
    return misfit(found, form._replace(keywords=(*form.keywords, keyword))) is None


def first_found(symbols: Iterable[str], offer: Offer) -> Parameters | None:
    """The parameters of the first dotted name that is there: it decides, as it does when the symbol is loaded."""
    return next((known for symbol in symbols if (known := offer.parameters(symbol)) is not None), None)


def is_library(package: Path, symbols: Iterable[str], name: str | None = None) -> bool:
    """Whether a package folder defines any of these dotted names, so that it is the library and not a namesake.

    A folder without `__init__.py` is no library, and a file that Python cannot parse defines nothing.
    """
    if not (package / "__init__.py").is_file():
        return False
    found = Package(package, name=name)
    with _collection_paused():
        return any(_defines(found, symbol) for symbol in symbols)


def _defines(package: Package, symbol: str) -> bool:
    try:
        return package.parameters(symbol) is not None
    except SyntaxError:
        return False


@contextmanager
def _collection_paused() -> Generator[None]:
    """Reads source without waking the garbage collector, whose pass over torch's objects takes longer than reading."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class _Nothing:
    """The offer of a version that is older than every known release."""

    def parameters(self, symbol: str) -> None:
        return None


@dataclass(frozen=True, slots=True)
class _Running:
    """The offer of a library that this process has imported; one that it has not is taken to offer everything."""

    library: Library

    def parameters(self, symbol: str) -> Parameters | None:
        root, *path = symbol.split(".")
        found: object = sys.modules.get(root)
        running, asked = parsed(str(getattr(found, "__version__", ""))), parsed(self.library.version)
        if found is None or running is None or asked is None or running.public != asked.public:
            return _ANYTHING
        for name in path:
            above, found = found, getattr(found, name, None)
            if found is None and isinstance(above, ModuleType) and hasattr(above, "__path__"):
                return _ANYTHING if find_spec(f"{above.__name__}.{name}") else None
            if found is None or (hasattr(type(above), "__getattr__") and name == path[-1] and not _stands(found)):
                return None
        return _ANYTHING


def _stands(operator: object) -> bool:
    """Whether an attribute of a namespace that makes up any (as torch.ops does) is an operator with an overload."""
    try:
        overloads = getattr(operator, "overloads", None)
        return hasattr(operator, "_schema") or (callable(overloads) and bool(overloads()))
    except (AttributeError, RuntimeError):
        return False


@lru_cache(maxsize=64)
def _package(name: str, folder: Path, history: History, changed: int) -> Package:
    return Package(folder, history.plan, name)


@dataclass(frozen=True, slots=True)
class _Lack:
    """What an offer lacks for a form: a symbol, or, where `needs` says more, a function that takes the call."""

    symbol: str
    needs: str | None = None
    found: str = ""


def _lack(form: Form, offer: Offer) -> _Lack | None:
    lack = _call_lack(form, offer)
    if lack is None and form.config:
        return _call_lack(Form(form.config, CONFIG_OPERANDS, ()), offer)
    return lack


def _call_lack(form: Form, offer: Offer) -> _Lack | None:
    found, name = first_found(form.symbols, offer), form.symbols[0]
    if found is None:
        return _Lack(name)
    why = misfit(found, form)
    if why is None:
        return None
    names = {word.partition("=")[0] for word in found}
    missing = [word for word in form.keywords if word not in names]
    if missing:
        return _Lack(name, f"with keyword{'s' * (len(missing) > 1)} {', '.join(missing)}", why)
    called = [f"{form.positional} operands"] * bool(form.positional) + [", ".join(form.keywords)] * bool(form.keywords)
    return _Lack(name, f"called with {' and '.join(called) or 'nothing'}", why)


def _outside(version: str | None, form: Form) -> str | None:
    """The release limit that a version breaks; a local version label counts for `since` and not for `until`."""
    known, since, until = parsed(version), parsed(form.since), parsed(form.until)
    if known is not None and since is not None and known < since:
        return f"{form.since} and later"
    if known is not None and until is not None and known > until and parsed(known.public) != until:
        return f"{form.until} and earlier"
    return None


@lru_cache(maxsize=1024)
def _when(forms: tuple[Form, ...], history: History) -> str:
    """The releases that the newest form fits, and those that only older ones fit, in words; empty if there are none."""
    offers = [(release, history.at(place)) for place, release in enumerate(history.releases)]
    newest = [fits(forms[0], release, offer) for release, offer in offers]
    older = [
        not new and any(fits(form, release, offer) for form in forms[1:])
        for new, (release, offer) in zip(newest, offers, strict=True)
    ]
    words, rest = _last_run(newest, history), _last_run(older, history)
    return f"{words} or an older form of it{rest}" if rest else words


def _last_run(chosen: Sequence[bool], history: History) -> str:
    if not any(chosen):
        return ""
    last = max(place for place, fit in enumerate(chosen) if fit)
    first = next(place for place in range(last, -1, -1) if place == 0 or not chosen[place - 1])
    start, end = history.releases[first], history.releases[last]
    if last == len(chosen) - 1:
        return f" ({start} and later)"
    return f" ({start} to {end})" if start != end else f" ({start})"


def _named(library: Library) -> str:
    return f"{library.name} {(library.version or 'of unknown version').removeprefix('v')}"
