"""Python text without imports -> the import statements that its names need, those for types alone under a guard."""

from __future__ import annotations

import ast
from contextlib import contextmanager
from types import NoneType
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

STANDARD = ("collections.abc", "typing")


def imports_of(text: str, known: Mapping[str, Iterable[str]]) -> str:
    """The import statements, in groups as formatters have them; torch itself and `TYPE_CHECKING` included.

    known: the names that may be imported, by module. Raises SyntaxError if the text is not Python.
    """
    found = _Names(ast.parse(text))
    now: dict[str, list[str]] = {}
    later: dict[str, list[str]] = {}
    for module, names in known.items():
        for name in sorted({*names}):
            if name in found.run or (module == "typing" and name in found.annotated):
                now.setdefault(module, []).append(name)
            elif name in found.annotated | found.guarded:
                later.setdefault(module, []).append(name)
    torch_later = "torch" in (found.annotated | found.guarded) - found.run
    if later or torch_later or "TYPE_CHECKING" in found.run:
        now["typing"] = ["TYPE_CHECKING", *now.get("typing", [])]
    groups = _groups(now, torch="torch" in found.run)
    guarded = _groups(later, torch=torch_later)
    if guarded:
        lines = "\n\n".join("\n".join(f"    {line}" for line in group) for group in guarded)
        groups.append([f"if TYPE_CHECKING:\n{lines}"])
    return "\n\n".join("\n".join(group) for group in groups)


def _groups(names: Mapping[str, list[str]], *, torch: bool) -> list[list[str]]:
    lines = {module: f"from {module} import {', '.join(words)}" for module, words in sorted(names.items())}
    groups = [
        [line for module, line in lines.items() if module in STANDARD],
        [*(["import torch"] if torch else []), *([lines["torch"]] if "torch" in lines else [])],
        [line for module, line in lines.items() if module.startswith("qscheme.")],
        [line for module, line in lines.items() if module.startswith(".")],
    ]
    return [group for group in groups if group]


_TOLD = frozenset((ast.Name, ast.arg, ast.AnnAssign, ast.FunctionDef, ast.If, ast.Call))
"""The nodes that are read otherwise than by reading what they are made of."""

_NOTHING = frozenset((ast.Constant, ast.Load, ast.Store, str, int, bool, NoneType))
"""What no name is in."""


class _Names:
    """The names that a module reads but does not bind in a function, by where it reads them.

    run: where code runs. annotated: in annotations and casts. guarded: under `if TYPE_CHECKING`.
    """

    def __init__(self, module: ast.Module) -> None:
        self.run: set[str] = set()
        self.annotated: set[str] = set()
        self.guarded: set[str] = set()
        self.here = self.run
        self.read: list[tuple[set[str], str]] = []
        self.bound: set[str] = set()
        self.visit(module)
        for names, name in self.read:
            names.add(name)

    def visit(self, node: ast.AST) -> None:
        """Read a node and all that it is made of."""
        match node:
            case ast.Name(ctx=ast.Load()):
                self.read.append((self.here, node.id))
            case ast.Name():
                self.bound.add(node.id)
            case ast.arg():
                self.bound.add(node.arg)
                self.annotation(node.annotation)
            case ast.AnnAssign():
                self.visit(node.target)
                self.annotation(node.annotation)
                if node.value is not None:
                    self.visit(node.value)
            case ast.FunctionDef():
                self.function(node)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                self.read.append((self.here, "TYPE_CHECKING"))
                with self.into(self.guarded):
                    for statement in node.body:
                        self.visit(statement)
            case ast.Call(func=ast.Name(id="cast"), args=[ast.Constant(value=str(annotation)), *_]):
                self.inner(node)
                self.annotation(ast.parse(annotation, mode="eval").body)
            case _:
                self.inner(node)

    def inner(self, node: ast.AST) -> None:
        """Read all that a node is made of."""
        for field in node._fields:
            value = cast("object", getattr(node, field))
            for item in cast("list[object]", value) if value.__class__ is list else (value,):
                kind = item.__class__
                if kind in _TOLD:
                    self.visit(cast("ast.AST", item))
                elif kind not in _NOTHING:
                    self.inner(cast("ast.AST", item))

    def function(self, node: ast.FunctionDef) -> None:
        """Visit a function; what it binds is not read from the module."""
        self.annotation(node.returns)
        outer, self.bound = self.bound, set()
        start = len(self.read)
        self.visit(node.args)
        for statement in node.body:
            self.visit(statement)
        self.read[start:] = [(names, name) for names, name in self.read[start:] if name not in self.bound]
        self.bound = outer

    def annotation(self, node: ast.expr | None) -> None:
        if node is not None:
            with self.into(self.annotated if self.here is self.run else self.here):
                self.visit(node)

    @contextmanager
    def into(self, names: set[str]) -> Generator[None, None, None]:
        former, self.here = self.here, names
        yield
        self.here = former
