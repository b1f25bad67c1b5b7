"""The models -> JSON schemas, by which an editor completes and checks YAML files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

from qscheme.compiler.kernel_model import KernelFile
from qscheme.compiler.likeness import LIKE
from qscheme.compiler.model import DeviceFile, SchemeFile, SwitchFile
from qscheme.compiler.output import MARK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import BaseModel

SCHEMAS: Mapping[str, type[BaseModel]] = {
    "scheme": SchemeFile, "kernels": KernelFile, "devices": DeviceFile, "switches": SwitchFile,
}  # fmt: skip
"""The model of each kind of file."""


def schema_text(name: str) -> str:
    """The JSON schema of one kind of file."""
    schema = cast("dict[str, object]", _of_the_language(SCHEMAS[name].model_json_schema()))
    return json.dumps({"$comment": f"{MARK} from the models of the compiler.", **schema}, indent=2) + "\n"


def _of_the_language(node: object) -> object:
    """A schema of pydantic's as the language has it.

    Nothing is null: a key has a value, or is absent. A value may fit several forms: every integer is a number, too.
    """
    if isinstance(node, list):
        return [_of_the_language(item) for item in cast("list[object]", node)]
    if not isinstance(node, dict):
        return node
    kept = {key: _of_the_language(item) for key, item in cast("dict[str, object]", node).items()}
    if "default" in kept and kept["default"] in (None, []):
        del kept["default"]
    kept.pop("discriminator", None)
    if LIKE in cast("dict[str, object]", kept.get("properties", {})):
        # What another kernel states need not be stated.
        kept["anyOf"] = [{"required": kept.pop("required")}, {"required": [LIKE]}]
        return kept
    forms: list[object] = []
    for union in (kept.pop("anyOf", []), kept.pop("oneOf", [])):
        forms += cast("list[object]", union)
    forms = [form for form in forms if form != {"type": "null"}]
    if len(forms) == 1:
        return {**cast("dict[str, object]", forms[0]), **kept}
    return {**kept, "anyOf": forms} if forms else kept
