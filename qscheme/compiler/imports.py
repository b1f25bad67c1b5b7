"""Python text without imports -> the import statements that its names need, those for types alone under a guard."""

from __future__ import annotations

import ast
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

STANDARD = ("collections.abc", "typing")


def imports_of(text: str, known: Mapping[str, Iterable[str]]) -> str:
    """The import statements, in groups as formatters have them; torch itself and `TYPE_CHECKING` included.

    known: the names that may be imported, by module.
    """
    found = _Names()
    found.visit(ast.parse(text))
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


class _Names(ast.NodeVisitor):
    """The names that a module reads but does not bind in a function, by where it reads them.

    run: where code runs. annotated: in annotations and casts. guarded: under `if TYPE_CHECKING`.
    """

    def __init__(self) -> None:
        self.run: set[str] = set()
        self.annotated: set[str] = set()
        self.guarded: set[str] = set()
        self.here = self.run
        self.bound: list[set[str]] = []

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load) and not any(node.id in names for names in self.bound):
            self.here.add(node.id)

    def visit_arg(self, node: ast.arg) -> None:
        self.annotation(node.annotation)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.annotation(node.annotation)
        if node.value is not None:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.annotation(node.returns)
        self.visit(node.args)
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        stored = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        self.bound.append({*(argument.arg for argument in arguments), *stored})
        for statement in node.body:
            self.visit(statement)
        self.bound.pop()

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            self.run.add("TYPE_CHECKING")
            with self.into(self.guarded):
                for statement in node.body:
                    self.visit(statement)
        else:
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """The first argument of a cast is a type in quotes."""
        self.generic_visit(node)
        first = node.args[0] if node.args else None
        if isinstance(node.func, ast.Name) and node.func.id == "cast" and isinstance(first, ast.Constant):
            self.annotation(ast.parse(str(first.value), mode="eval").body)

    def annotation(self, node: ast.expr | None) -> None:
        if node is not None:
            with self.into(self.annotated if self.here is self.run else self.here):
                self.visit(node)

    @contextmanager
    def into(self, names: set[str]) -> Generator[None, None, None]:
        former, self.here = self.here, names
        yield
        self.here = former
