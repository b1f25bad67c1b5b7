"""What was decided for a layer: which backend runs it, why the others do not, and what differs from the scheme."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

    from qscheme.types import Call, Format, Granularity, Reason, Rule, ScaleFormat


class Refusal(NamedTuple):
    """A backend that was not chosen, with every reason; empty reasons mean that a better backend came first."""

    backend: str
    reasons: tuple[Reason, ...]


class Mismatch(NamedTuple):
    """A numeric rule that a kernel applies and the scheme's producer does not."""

    backend: str
    kernel: str
    field: str
    scheme: str
    found: str

    @property
    def text(self) -> str:
        return f"{self.backend}: {self.kernel} has {self.field} {self.found}, the scheme's rule has {self.scheme}"


class Decision(NamedTuple):
    """Which backend runs a layer, why the others do not, and what differs from the scheme's numerics.

    traits: (name, words) pairs of all that the layouts and the results of the bound function depend on.
    rests_on: the rows of tuned tables without which the backend would not have been chosen.
    """

    scheme: str
    layer: str
    chosen: str | None
    calls: tuple[Call, ...]
    refused: tuple[Refusal, ...]
    mismatches: tuple[Mismatch, ...] = ()
    assumed: tuple[str, ...] = ()
    rotates_input: bool = False
    traits: tuple[tuple[str, str], ...] = ()
    rests_on: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """SCHEME/BACKEND/DIGEST of the traits: equal in every process that would compute the same, whatever the layer.

        The layer's name, its shape, the architecture and the release count only as far as they change a trait.
        """
        from hashlib import sha256

        told = "\n".join(f"{name}: {words}" for name, words in self.traits)
        return f"{self.scheme}/{self.chosen or 'none'}/{sha256(told.encode()).hexdigest()[:12]}"

    def text(self) -> str:
        """The decision in words, one line for each backend."""
        head = f"layer {self.layer or '(unnamed)'}: scheme {self.scheme}: "
        lines = [head + (f"runs on {self.chosen}" if self.chosen else "no backend can run it")]
        for refusal in self.refused:
            why = "; ".join(reason.text for reason in refusal.reasons)
            lines.append(f"  {refusal.backend}: {why}")
        return "\n".join(lines)


class Activation(NamedTuple):
    """What a bound function's own quantizer does, so that a fused kernel may do it instead.

    rule: the quantizer's own rule, not the scheme's. scale_layouts: (largest M, layout of the scales that the GEMM
    reads) pairs in order, None for any M; a bound function takes plain scales and makes the layout itself.
    """

    format: Format
    granularity: Granularity
    scale: ScaleFormat
    rule: Rule
    codes_dtype: torch.dtype
    scale_layouts: tuple[tuple[int | None, str], ...]
