"""Whether the code that a claim rests on is still the code that was proved.

A claim rests on the function that runs it and on the functions, classes and constants of both packages that it
names, and so on. Modules that read the command line or write text do not count, nor do names, comments and the
words of errors (`canonical`): sentences and names may change.
"""

import ast
import functools
import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from proof.canonical import OWN, Name, Piece, fields_of, joined, local_names, pieces, targets

ROOT = Path(__file__).resolve().parents[1]
TEXT = re.compile(r"collbench(\.packages\.\w+)?\.(report|cli\.(app|options|output|show|terminal|trust))\b")
# `module:function`, which names what a process runs.
ENTRY = re.compile(r"((?:collbench|proof)\.[\w.]+):(\w+)")


def fingerprint(run: Callable[..., Any], more: Sequence[str] = (), without: Sequence[str] = ()) -> str:
    """Return a hash of the code that `run` rests on (`rests_on`), by `canonical`.

    The hash is the same in all versions of Python.
    """
    return _hash(rests_on(run, more, without))


def of_modules(modules: Iterable[str]) -> str:
    """Return a hash of the code of whole modules, by `canonical`."""
    return _hash([(module, name) for module in modules for name in _module(module).defined])


def _hash(names: Sequence[Name]) -> str:
    fields = frozenset(field for module, name in names for field in _module(module).fields(name))
    text = joined(((here, _module(here[0]).pieces(here[1])) for here in names), fields)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def rests_on(run: Callable[..., Any], more: Sequence[str] = (), without: Sequence[str] = ()) -> list[Name]:
    """Return the definitions that `run` uses, directly or not, in an order that does not depend on their names.

    more: modules whose content counts although `run` names it nowhere, as it runs in other processes.
    without: modules that do not count although `run` names them, as they make data that could be any other.
    """
    found: dict[Name, None] = {}
    waiting: list[Name] = [(run.__module__, run.__name__)]
    waiting += [(module, name) for module in more for name in _module(module).defined]
    while waiting:
        module, name = here = waiting.pop()
        if here not in found and module not in without and (module in more or not TEXT.match(module)):
            found[here] = None
            waiting += _module(module).used_by(name)
    return list(found)


class _Module:
    """The statements of a module, by the names that they define."""

    def __init__(self, name: str) -> None:
        self.name = name
        tree = ast.parse(_path(name).read_text(encoding="utf-8"))
        self.defined: dict[str, list[ast.stmt]] = {}
        for statement in _statements(tree.body):
            for defined in _names(statement):
                self.defined.setdefault(defined, []).append(statement)
        # Imported name → its module and its name there; the latter is empty for a module.
        self._imported: dict[str, Name] = {}
        for node in ast.walk(tree):
            self._imported |= dict(_imports(node))

        self.pieces, self.used_by, self.fields = map(functools.cache, (self._pieces, self._used_by, self._fields))

    def _pieces(self, name: str) -> list[Piece]:
        """Return the code that defines a name, without the options of the command line."""
        return [piece for node in self.defined[name] for piece in pieces(node, self._definition, self._of_import)]

    def _fields(self, name: str) -> list[str]:
        """Return the attributes of a class."""
        return [field for node in self.defined[name] for field in fields_of(node)]

    def _definition(self, name: str) -> Name | None:
        return next(self._found(name), None)

    def _of_import(self, name: str) -> Callable[[str], Name | None] | None:
        """Return the function that finds the definitions of an imported module; None if `name` is not a module."""
        module, inner = self._imported.get(name, ("", " "))
        return None if inner else _module(module)._definition

    def _used_by(self, name: str) -> list[Name]:
        """Return the definitions that the statements of a name refer to."""
        return list(self._references(name))

    def _references(self, name: str) -> Iterator[Name]:
        for node, local in (found for statement in self.defined[name] for found in _with_locals(statement)):
            match node:
                case ast.Name(id=used) if used not in local:
                    yield from self._found(used)
                case ast.Attribute(value=ast.Name(id=module), attr=used) if self._imported.get(module, "  ")[1] == "":
                    yield from _module(self._imported[module][0])._found(used)
                case ast.Constant(value=str(text)) if entry := ENTRY.fullmatch(text):
                    yield entry[1], entry[2]

    def _found(self, name: str) -> Iterator[Name]:
        """Where a name is defined: here, or where it is imported from."""
        if name in self.defined:
            yield self.name, name
        elif name in self._imported and self._imported[name][1]:
            module, original = self._imported[name]
            yield from _module(module)._found(original)


_module = functools.cache(_Module)


def _path(module: str) -> Path:
    place = ROOT.joinpath(*(["bench"] if module.startswith("collbench") else []), *module.split("."))
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def _statements(body: Iterable[ast.AST]) -> Iterator[ast.stmt]:
    """Those of a module, also in conditions."""
    for node in body:
        if isinstance(node, ast.If | ast.Try | ast.With | ast.ExceptHandler):
            yield from _statements(ast.iter_child_nodes(node))
        elif isinstance(node, ast.stmt):
            yield node


def _names(statement: ast.stmt) -> Iterator[str]:
    """What a statement defines or changes."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield statement.name
        case _:
            yield from targets(statement)


def _with_locals(statement: ast.AST) -> Iterator[tuple[ast.AST, Collection[str]]]:
    """Yield what a statement uses, each with the local names of its function."""
    scopes = ast.iter_child_nodes(statement) if isinstance(statement, ast.ClassDef) else [statement]
    for scope in scopes:
        local = local_names(scope) if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef) else ()
        yield from ((node, local) for node in _used(scope))


def _used(node: ast.AST) -> Iterator[ast.AST]:
    """A statement and all within it, less the types of parameters that it does not use."""
    yield node
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        walked = (each for statement in node.body for each in ast.walk(statement))
        used = {each.id for each in walked if isinstance(each, ast.Name)} - {"_"}
        parameters = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        types = [each.annotation for each in parameters if each.annotation and each.arg in used]
        inner: Iterable[ast.AST] = (*node.body, *node.decorator_list, *types)
    else:
        inner = ast.iter_child_nodes(node)
    for each in inner:
        yield from _used(each)


def _imports(node: ast.AST) -> Iterator[tuple[str, Name]]:
    """Names that a statement imports from `collbench` and `proof`."""
    match node:
        case ast.ImportFrom(module=str(module), names=aliases) if module.split(".")[0] in OWN:
            for alias in aliases:
                inner = f"{module}.{alias.name}"
                yield alias.asname or alias.name, (inner, "") if _path(inner).exists() else (module, alias.name)
