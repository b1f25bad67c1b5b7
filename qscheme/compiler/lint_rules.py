"""Every kind of finding of `qscheme lint`: its id, its title and the paragraph that explains it."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from qscheme.compiler.folder import File
    from qscheme.compiler.kernel_model import KernelFile
    from qscheme.compiler.model import DeviceFile, SchemeFile, SwitchFile
    from qscheme.compiler.source import KeyPath, Place

    AnyFile = File[KernelFile] | File[SchemeFile] | File[DeviceFile] | File[SwitchFile]


class LintRule(NamedTuple):
    """One kind of finding."""

    id: str
    title: str
    why: str


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """Something that the compiler accepts and that a reviewer would not.

    place, path: where it stands, for people and as the keys in the file. witness: concrete facts that show it, as
    (what, value) pairs. cure: what to do.
    """

    place: Place
    id: str
    message: str
    witness: tuple[tuple[str, str], ...]
    cure: str
    path: KeyPath

    def __str__(self) -> str:
        shown = ", ".join(f"{what} = {value}" for what, value in self.witness)
        witness, cure = f" [{shown}]" if shown else "", f"; {self.cure}" if self.cure else ""
        return f"{self.place}: {self.id} {self.message}{witness}{cure}"

    def data(self) -> dict[str, object]:
        """The finding as JSON has it."""
        return {
            "id": self.id, "title": RULES[self.id].title, "file": self.place.file, "line": self.place.line,
            "column": self.place.column, "message": self.message, "witness": dict(self.witness), "cure": self.cure,
        }  # fmt: skip


def finding(
    rule: str,
    file: AnyFile,
    path: KeyPath,
    message: str,
    cure: str,
    witness: tuple[tuple[str, str], ...] = (),
    *,
    key: bool = False,
) -> Finding:
    """A finding at the value of a key path, or at its key."""
    place = file.key_place(*path) if key else file.place(*path)
    return Finding(place, rule, message, witness, cure, path)


def explanation(rule: LintRule) -> str:
    """A title and a paragraph for people."""
    return f"{rule.id}: {rule.title}\n\n{textwrap.fill(rule.why, 100)}"


_RULES = (
    LintRule(
        "QS100", "the compiler refuses it",
        "The file cannot be compiled: a word is unknown, a key is missing, the M ranges of calls overlap or leave a "
        "hole, a kernel does not fit the scheme, and so on. `qscheme generate` says the same. The message names the "
        "cure; nothing else is analysed until the files compile.",
    ),
    LintRule(
        "QS101", "a backend that earlier ones shadow",
        "Backends are tried in order, and the first that nothing speaks against is used. For every machine, release, "
        "switch, tuned row, shape and output dtype with which this backend could run, an earlier one can run too, so "
        "it is never chosen. The witness is one such layer and the backend that takes it. Move the backend up, give "
        "the earlier one a condition, or remove it.",
    ),
    LintRule(
        "QS102", "a backend that contradicts itself",
        "No machine and no release meets all conditions of the backend and its kernels together: its architectures "
        "lack a unit that it needs, or no release of the library has all of its kernels on one of its architectures. "
        "It can never be chosen, whatever stands above it.",
    ),
    LintRule(
        "QS103", "an architecture that is named in vain",
        "A list of architectures names one on which the other conditions never hold, or on which earlier backends "
        "take every layer. A reader believes that the backend serves it.",
    ),
    LintRule(
        "QS104", "a gap",
        "A layer of the scheme exists that no backend runs. A scheme without `claims` claims every machine, so its "
        "last backend must be unconditional outside of batch-invariant mode, as the reference is. A scheme with "
        "`claims` names the architectures, output dtypes and shapes that it serves; these must run with switches at "
        "their defaults, the newest releases, and no tuned row.",
    ),
    LintRule(
        "QS105", "a weight-only kernel above a native one",
        "A GEMM that dequantizes its weight (it takes no scales of the activation, or is told the weight's operand) "
        "stands above one that multiplies the codes, and both can run the same layer. The native one is faster and "
        "has the scheme's own arithmetic.",
    ),
    LintRule(
        "QS106", "a fallback above a backend that is none",
        "A backend marked `on_use: warn` stands above one that is not, and both can run the same layer. The user is "
        "warned of a fallback although a better backend would have run.",
    ),
    LintRule(
        "QS107", "a fallback that a switch would lift",
        "With every switch at its default, a layer runs on a fallback (`on_use: warn`) although an earlier backend "
        "lacks nothing but one switch that is off by default. Turn the default on, offer the kernel without the "
        "switch, or say why with `allow`.",
    ),
    LintRule(
        "QS108", "a fallback that a shape would lift",
        "A layer runs on a fallback (`on_use: warn`) because of a multiple, a minimum or a tuned row that the scheme "
        "asks for and the kernels do not. The kernels themselves could run the layer. Drop the condition, add a "
        "backend for the rest, or say why with `allow`.",
    ),
    LintRule(
        "QS110", "a call that is never made",
        "Calls are tried in order in each mode. This one is reached for M = 0 alone, which needs no kernel, or only "
        "in a mode in which the whole backend is refused because the sums of a kernel depend on M.",
    ),
    LintRule(
        "QS111", "two calls that are one",
        "Neighbouring calls run the same kernels with the same options, and their ranges join. Write one call.",
    ),
    LintRule(
        "QS112", "a condition that repeats the kernels' own",
        "A backend has the needs of its kernels without saying them again. A repeated condition drifts apart from the "
        "kernel's when that one changes: it then hides a new architecture or a relaxed limit.",
    ),
    LintRule(
        "QS113", "a condition that others imply",
        "Removing this condition changes no decision: the conditions beside it already hold only where it holds.",
    ),
    LintRule(
        "QS114", "a word that stands twice in a list",
        "The second one says nothing; most often another word was meant.",
    ),
    LintRule(
        "QS115", "a `where` row that applies nowhere",
        "The other conditions of the entry leave no device to which the row belongs.",
    ),
    LintRule(
        "QS116", "a release limit that no release feels",
        "Every known release with the kernel lies on the same side of this `since`, `until` or `before`, so it decides "
        "nothing. Its signature already tells the releases apart, or the number is wrong.",
    ),
    LintRule(
        "QS117", "a symbol path that no release needs",
        "Several paths of a symbol are tried in order, for releases that moved it. This one is never the first that a "
        "known release has.",
    ),
    LintRule(
        "QS118", "an older form that no release needs",
        "Wherever this older form could be called, a newer one fits too.",
    ),
    LintRule("QS120", "a kernel that no backend uses", "No scheme of the folder calls it. Use it, or remove it."),
    LintRule("QS121", "a switch that nothing needs", "No kernel and no backend asks for it; setting it does nothing."),
    LintRule("QS122", "a tuned table that nothing needs", "No kernel and no backend asks for rows of it."),
    LintRule(
        "QS123", "a product name that is never looked up",
        "The table names a product for an architecture on which no backend that asks for the table can run.",
    ),
    LintRule(
        "QS124", "a device that nothing tells from an unknown one",
        "No backend of any scheme treats the architecture otherwise than one that is not listed, and it has no FP8 "
        "flavour. Name it at the kernels that run there, or remove it.",
    ),
    LintRule(
        "QS125", "a quantizer's option that no call turns on",
        "The quantizer can write its scales in another layout, and no call asks for that.",
    ),
    LintRule(
        "QS126", "a layout that no call passes",
        "The kernel reads the activation's scales in another layout for this range of M, and no call has such M.",
    ),
    LintRule(
        "QS130", "names that become one",
        "Two names differ in underscores alone. As CamelCase classes of generated code they are the same name, and a "
        "reader takes one for the other.",
    ),
    LintRule(
        "QS131", "an environment variable with two meanings",
        "One variable sets a switch and replaces a tuned table, or replaces two tables. Setting it does both.",
    ),
    LintRule(
        "QS140", "a word that other YAML readers take for something else",
        "Readers of YAML 1.1, such as PyYAML, take unquoted yes, no, on and off for booleans, 1:32 and 012 for numbers "
        "in base 60 and 8, and 1e3 for text. This reader does not, so the file means two things: quote the word, or "
        "write it so that both agree. And 7.10 is the number 7.1 for everyone: quote a version.",
    ),
    LintRule(
        "QS150", "two schemes with the same operands",
        "Activation, weight and stored scales are identical, so one checkpoint has two names and two lists of "
        "backends, which drift apart. Merge them; `producers` may name both writers.",
    ),
    LintRule(
        "QS151", "a backend whose name says another kernel",
        "The name has a word that no kernel of the backend has, and lacks one that all of its GEMMs have and that "
        "other backends are named by. Logs and `explain` then blame the wrong kernel.",
    ),
    LintRule(
        "QS152", "a quantizer with another rule",
        "The quantizer finds scales or rounds values by another rule than the scheme states, in some release. The "
        "result differs from what the checkpoint's producer computed. `explain` prints it; the scheme must say that "
        "it is meant, with `allow` and the size of the effect.",
    ),
    LintRule("QS190", "an `allow` of an unknown id", "The id is none of `qscheme lint`; it suppresses nothing."),
    LintRule(
        "QS191", "an `allow` that suppresses nothing",
        "There is no such finding in the entry any more. Remove the `allow`, so that the next one is seen.",
    ),
    LintRule(
        "QS192", "an `allow` without a reason",
        "A suppressed finding is a decision. `because` says why it is right, for the next reader.",
    ),
)  # fmt: skip

RULES = {rule.id: rule for rule in _RULES}
"""Every kind of finding by id. Ids are never used again for another kind."""

FIXED = ("QS100", "QS190", "QS191", "QS192")
"""Findings that cannot be suppressed."""
