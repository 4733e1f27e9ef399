"""Whether the code that a claim rests on is still the code that was proved.

A claim rests on the function that runs it and on the functions, classes and constants of `bench` and `proof` that this
function names, and so on. Modules that read the command line or write text do not count: a sentence may change.
"""

import ast
import functools
import hashlib
import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TEXT = re.compile(r"bench(\.packages\.\w+)?\.(report|cli\.(app|options|output|show|terminal|trust))\b")
# `module:function`, by which whoever starts ranks names what they run.
ENTRY = re.compile(r"((?:bench|proof)\.[\w.]+):(\w+)")
# A module, and the name of something that it defines.
Name = tuple[str, str]


def fingerprint(run: Callable[..., Any], more: Sequence[str] = (), without: Sequence[str] = ()) -> str:
    """A hash of the source of what `run` rests on (`rests_on`), without comments and docstrings.

    The hash is the same in all versions of Python.
    """
    digest = hashlib.sha256()
    for module, name in sorted(rests_on(run, more, without)):
        digest.update(f"{module}:{name}\n{_module(module).source(name)}\n".encode())
    return digest.hexdigest()[:16]


def of_modules(modules: Iterable[str]) -> str:
    """A hash of the source of whole modules, without comments and docstrings."""
    digest = hashlib.sha256()
    for module in modules:
        for name in sorted(_module(module).defined):
            digest.update(f"{module}:{name}\n{_module(module).source(name)}\n".encode())
    return digest.hexdigest()[:16]


def rests_on(run: Callable[..., Any], more: Sequence[str] = (), without: Sequence[str] = ()) -> set[Name]:
    """The names that `run` uses, directly or not.

    more: modules whose content counts although `run` names it nowhere, as it runs in other processes.
    without: modules that do not count although `run` names them, as they make data that could be any other.
    """
    found: set[Name] = set()
    waiting: list[Name] = [(run.__module__, run.__name__)]
    waiting += [(module, name) for module in more for name in _module(module).defined]
    while waiting:
        module, name = here = waiting.pop()
        if here not in found and module not in without and (module in more or not TEXT.match(module)):
            found.add(here)
            waiting += _module(module).used_by(name)
    return found


class _Module:
    """The statements of a module, by the names that they define."""

    def __init__(self, name: str) -> None:
        self.name = name
        text = _path(name).read_text(encoding="utf-8")
        tree = ast.parse(text)
        self._lines = _stripped(text, tree)
        self.defined: dict[str, list[ast.stmt]] = {}
        for statement in _statements(tree.body):
            for defined in _names(statement):
                self.defined.setdefault(defined, []).append(statement)
        # Imported name → its module and its name there; the latter is empty for a module.
        self._imported: dict[str, Name] = {}
        for node in ast.walk(tree):
            self._imported |= dict(_imports(node))

    def source(self, name: str) -> str:
        """The lines that define a name, without those that describe an option of the command line."""
        return "\n".join(line for node in self.defined[name] for line in self._code_of(node) if line)

    def _code_of(self, node: ast.stmt) -> list[str]:
        first, last = _first_line(node) - 1, node.end_lineno or node.lineno
        begin = node.body[0].lineno - 1 if isinstance(node, ast.FunctionDef) else last
        is_text = any("typer." in line for line in self._lines[first:begin])
        return self._lines[begin if is_text else first : last]

    def used_by(self, name: str) -> Iterator[Name]:
        """What the statements that define a name refer to."""
        for node in (inner for statement in self.defined[name] for inner in _used(statement)):
            match node:
                case ast.Name(id=used):
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
    place = ROOT.joinpath(*module.split("."))
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
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            yield from (node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))


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
    """Names that a statement imports from `bench` and `proof`."""
    match node:
        case ast.ImportFrom(module=str(module), names=aliases) if module.split(".")[0] in {"bench", "proof"}:
            for alias in aliases:
                inner = f"{module}.{alias.name}"
                yield alias.asname or alias.name, (inner, "") if _path(inner).exists() else (module, alias.name)


def _first_line(statement: ast.stmt) -> int:
    decorators: Sequence[ast.expr] = getattr(statement, "decorator_list", ())
    return min([statement.lineno, *(each.lineno for each in decorators)])


def _stripped(text: str, tree: ast.Module) -> list[str]:
    """The lines of a module; those of docstrings and comments are empty."""
    lines = text.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            for at in range(docstring.lineno - 1, docstring.end_lineno or docstring.lineno):
                lines[at] = ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    return [line.rstrip() for line in lines]
