"""What is known about a machine, as plain data that may be given instead of probed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from qscheme.types import BATCH_INVARIANT, Reason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qscheme.types import Device, Kernel, Rule, TunedTable


class Library(NamedTuple):
    """A kernel library or a tool as found or as given. absence says why it cannot be used; None if it can."""

    name: str
    version: str | None = None
    location: str | None = None
    absence: str | None = None


class Offers(Protocol):
    """What the kernel libraries of these facts offer."""

    def form(self, kernel: Kernel) -> int | Reason:
        """The first form of `kernel` that fits, or why none does."""
        ...

    def accepts(self, kernel: Kernel, keyword: str) -> bool:
        """Whether the fitting form of `kernel` takes an optional keyword."""
        ...

    def older(self, library: str, release: str) -> bool:
        """Whether the library is older than a release; False where its version is unknown."""
        ...


class Tuned(Protocol):
    """Which shapes are tuned."""

    def untuned(
        self, table: TunedTable, device: Device, compute_units: int | None, n: int, k: int, every: tuple[int, ...]
    ) -> str | None:
        """What was found instead of a row for each M in `every`; None if every one is tuned."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """What is known about a machine, as plain data that may be given instead of probed.

    libraries: kernel libraries and, beside them, the tools of `TOOLCHAIN`. A version that is not known is taken for the
    newest and breaks no limit. Two sets of facts are different objects even if equal; decisions are cached per object.
    """

    device: Device
    libraries: Mapping[str, Library]
    switches: Mapping[str, bool]
    offers: Offers
    tuned: Tuned
    index: int | None = None
    compute_units: int | None = None
    notes: tuple[str, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def arch(self) -> str:
        return self.device.arch

    def on(self, switch: str) -> bool:
        """Whether a switch is on."""
        return self.switches[switch]

    def version(self, library: str) -> str:
        """The version of a library or a tool, in words where there is none."""
        found = self.libraries[library]
        return found.absence or found.version or "an unknown version"

    def older(self, library: str, release: str) -> bool:
        """Whether a library or a tool is older than a release."""
        return self.offers.older(library, release)

    def within(self, library: str, since: str | None, before: str | None) -> bool:
        """Whether the version of a library or a tool is known, not older than `since`, and older than `before`."""
        found = self.libraries.get(library)
        if found is None or found.version is None or found.absence is not None:
            return False
        return not (since and self.older(library, since)) and (before is None or self.older(library, before))

    def outside(self, library: str, since: str | None, before: str | None) -> bool:
        """Whether a library or a tool is absent, or its version known and not in a range."""
        found = self.libraries.get(library)
        if found is None or (found.version is None and found.absence is None):
            return False
        return not self.within(library, since, before)

    def untuned(self, table: TunedTable, n: int, k: int, every: tuple[int, ...]) -> str | None:
        """What was found instead of a tuned row for N, K and each M in `every`; None if every one is tuned."""
        return self.tuned.untuned(table, self.device, self.compute_units, n, k, every)

    @property
    def batch_invariant(self) -> bool:
        """Whether a row's result must not depend on how many rows there are."""
        return self.switches.get(BATCH_INVARIANT, False)

    def rule(self, kernel: Kernel) -> Rule | None:
        """The rule of a quantizer in the release at hand; None for one that follows the scheme's own."""
        for since, rule in kernel.rules:
            if since is None or not self.older(kernel.library, since):
                return rule
        return None

    def lacks(self, *kernels: Kernel) -> list[Reason]:
        """Why these kernels cannot be loaded: the library first, then each symbol that is missing or does not fit."""
        for kernel in kernels:
            absence = self.libraries[kernel.library].absence
            if absence is not None:
                return [Reason("library", kernel.library, absence)]
        forms = [self.offers.form(kernel) for kernel in kernels]
        return list(dict.fromkeys(form for form in forms if isinstance(form, Reason)))
