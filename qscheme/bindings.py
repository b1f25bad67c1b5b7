"""What the top level of one Python source file binds its names to, read by ast."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

Parameters: TypeAlias = tuple[str, ...]
"""`name`, `name=default`, `*name`, `**name` and the markers `*` and `/`, as a `def` writes them. `("=",)` is a value
and no function; a last `-> dict` or `-> tuple` says what a helper returns."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function as its `def` writes it, whatever its decorators hide.

    returned: `tuple`, `dict` for anything else, or `=NAME` for what a function of that name returns.
    """

    home: str
    parameters: Parameters
    returned: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Class:
    """A class, and its methods without their first parameter."""

    home: str
    members: Mapping[str, Function | Value]


@dataclass(frozen=True, slots=True)
class Value:
    """A name that is assigned something else."""

    home: str


@dataclass(frozen=True, slots=True)
class Import:
    """A name that is imported: `name` of `module`, or `module` itself."""

    module: str
    name: str | None


@dataclass(frozen=True, slots=True)
class Same:
    """A name that is assigned another name of its module, or what calling that one makes."""

    home: str
    path: tuple[str, ...]
    called: bool


Binding: TypeAlias = "Function | Class | Value | Import | Same"


@dataclass(slots=True, eq=False)
class Bindings:
    """The names of a file in order.

    names: name -> (place, what it is bound to; then its fallbacks from `except` and `else`). stars: (place, module) of
    each `from module import *`. exported: `__all__`, None without one.
    """

    names: dict[str, tuple[int, list[Binding]]] = field(default_factory=dict[str, "tuple[int, list[Binding]]"])
    stars: list[tuple[int, str]] = field(default_factory=list["tuple[int, str]"])
    exported: set[str] | None = None


@dataclass(slots=True, eq=False)
class Module:
    """One source file, parsed when its bindings are first asked for."""

    name: str
    file: Path
    source: bytes
    _bindings: Bindings | None = None

    @property
    def bindings(self) -> Bindings:
        """Raises SyntaxError, with the file, if Python cannot parse it."""
        if self._bindings is None:
            try:
                tree = ast.parse(self.source, str(self.file))
            except ValueError as error:  # a null byte, before Python 3.12
                raise SyntaxError(str(error), (str(self.file), 1, 1, None)) from error
            reader = _Reader(self.name, package=self.file.name == "__init__.py")
            reader.read(tree.body, fallback_of=set())
            self._bindings = reader.bindings
        return self._bindings

    def may_bind(self, name: str) -> bool:
        """Whether the text allows the name at all; parsing is slow, searching is not."""
        return name.encode() in self.source or b"import *" in self.source


class _Reader:
    def __init__(self, module: str, package: bool) -> None:
        self.module, self.bindings, self.place = module, Bindings(), 0
        self.parents = module.split(".") if package else module.split(".")[:-1]

    def read(self, body: Sequence[ast.stmt], fallback_of: set[str]) -> set[str]:
        """Reads statements; a name in `fallback_of` keeps what it has and gains a fallback. Returns the bound names."""
        bound: set[str] = set()
        for statement in body:
            self.place += 1
            if isinstance(statement, ast.If):
                first = set[str]() if _only_for_types(statement.test) else self.read(statement.body, fallback_of)
                bound |= first | self.read(statement.orelse, fallback_of | first)
            elif isinstance(statement, ast.Try):
                first = self.read([*statement.body, *statement.orelse], fallback_of)
                handlers = [handled for handler in statement.handlers for handled in handler.body]
                bound |= first | self.read(handlers, fallback_of | first)
                bound |= self.read(statement.finalbody, fallback_of)
            elif isinstance(statement, ast.With):
                bound |= self.read(statement.body, fallback_of)
            else:
                for name, binding in self.bound_by(statement):
                    bound.add(name)
                    if name in fallback_of:
                        self.bindings.names[name][1].append(binding)
                    else:
                        self.bindings.names[name] = (self.place, [binding])
        return bound

    def bound_by(self, statement: ast.stmt) -> Iterator[tuple[str, Binding]]:
        """The names that one simple statement binds."""
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield statement.name, self.function(statement, f"{self.module}.{statement.name}")
        elif isinstance(statement, ast.ClassDef):
            yield statement.name, self.class_(statement)
        elif isinstance(statement, ast.Import):
            for alias in statement.names:
                whole = alias.name if alias.asname else alias.name.split(".")[0]
                yield alias.asname or whole, Import(whole, None)
        elif isinstance(statement, ast.ImportFrom):
            above = self.parents[: len(self.parents) - statement.level + 1] if statement.level else []
            source = ".".join((*above, *((statement.module,) if statement.module else ())))
            for alias in statement.names:
                if alias.name == "*":
                    self.bindings.stars.append((self.place, source))
                else:
                    yield alias.asname or alias.name, Import(source, alias.name)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            yield from self.assigned(statement)

    def assigned(self, statement: ast.Assign | ast.AnnAssign | ast.AugAssign) -> Iterator[tuple[str, Binding]]:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        value = statement.value
        for name in _names(targets):
            if name == "__all__" and isinstance(value, (ast.List, ast.Tuple)):
                words = {word.value for word in value.elts if isinstance(word, ast.Constant)}
                self.bindings.exported = (self.bindings.exported or set()) | {str(word) for word in words}
            called = isinstance(value, ast.Call)
            path = _path(value.func if isinstance(value, ast.Call) else value)
            home = f"{self.module}.{name}"
            if value is not None:
                yield name, Same(home, path, called) if path and path[0] != name else Value(home)

    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, home: str, method: bool = False) -> Function:
        made: dict[str, ast.expr] = {}
        returned = tuple(dict.fromkeys(_returned(node.body, made)))
        static = any(
            isinstance(decorator, ast.Name) and decorator.id == "staticmethod" for decorator in node.decorator_list
        )
        parameters = _parameters(node.args)
        return Function(home, parameters[1:] if method and not static else parameters, returned)

    def class_(self, node: ast.ClassDef) -> Class:
        home = f"{self.module}.{node.name}"
        members: dict[str, Function | Value] = {}
        for statement in node.body:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                members[statement.name] = self.function(statement, f"{home}.{statement.name}", method=True)
            elif isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                members |= {name: Value(f"{home}.{name}") for name in _names(targets)}
        return Class(home, members)


def _parameters(arguments: ast.arguments) -> Parameters:
    def text(argument: ast.arg, default: ast.expr | None) -> str:
        return argument.arg if default is None else f"{argument.arg}={ast.unparse(default)}"

    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [*[None] * (len(positional) - len(arguments.defaults)), *arguments.defaults]
    words = [text(argument, default) for argument, default in zip(positional, defaults, strict=True)]
    if arguments.posonlyargs:
        words.insert(len(arguments.posonlyargs), "/")
    if arguments.vararg or arguments.kwonlyargs:
        words.append(f"*{arguments.vararg.arg if arguments.vararg else ''}")
    words += [
        text(argument, default) for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    return (*words, *((f"**{arguments.kwarg.arg}",) if arguments.kwarg else ()))


def _returned(body: Iterable[ast.stmt], made: dict[str, ast.expr]) -> Iterator[str]:
    """The form of each returned value; `made` collects what names were last assigned."""
    for statement in body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            made[statement.targets[0].id] = statement.value
        elif isinstance(statement, ast.Return) and statement.value is not None:
            value = statement.value
            value = made.get(value.id, value) if isinstance(value, ast.Name) else value
            if isinstance(value, ast.Tuple):
                yield "tuple"
            elif isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
                yield f"={value.func.id}"
            else:
                yield "dict"
        elif not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for branch in ("body", "orelse", "finalbody"):
                yield from _returned(getattr(statement, branch, ()), made)


def _names(targets: Iterable[ast.expr]) -> Iterator[str]:
    for target in targets:
        if isinstance(target, ast.Name):
            yield target.id
        elif isinstance(target, (ast.Tuple, ast.List)):
            yield from _names(target.elts)


def _path(value: ast.expr | None) -> tuple[str, ...]:
    """`a.b.c` as its names; empty for any other expression."""
    if isinstance(value, ast.Name):
        return (value.id,)
    if isinstance(value, ast.Attribute):
        above = _path(value.value)
        return (*above, value.attr) if above else ()
    return ()


def _only_for_types(test: ast.expr) -> bool:
    return bool(path := _path(test)) and path[-1] == "TYPE_CHECKING"
