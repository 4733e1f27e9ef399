"""Code as text in which the names that it defines are numbers, so that a consistent renaming leaves it unchanged.

Docstrings, comments, the layout of lines, imports of `collbench` and `proof`, the words of errors and descriptions of
keys and options are left out. Names of other libraries stay: a call of another clock is another text.
"""

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

# A module, and the name of something that it defines.
Name = tuple[str, str]
# A piece of a text: fixed characters, a defined name, or the name of an attribute or keyword.
Piece = str | Name
ATTRIBUTE = ""
OWN = frozenset({"collbench", "proof"})
# Calls whose texts of several words are for people: descriptions of keys, options and flags, results of checks, lines
# on the terminal. Tables whose name ends with WORDS have texts of errors.
WORDED = frozenset({"key", "option", "about", "Flag", "InvariantCheck", "say"})
WORDS = "WORDS"


def pieces(statement: ast.stmt, resolve: Callable[[str], Name | None], imported: Callable[[str], Any]) -> list[Piece]:
    """Return a statement that defines names, in pieces.

    resolve: the definition that a name of the module means, or None.
    imported: the same function for a module that a name means, or None.
    """
    return list(_Writer(resolve, imported).definition(statement))


def joined(definitions: Iterable[tuple[Name, Sequence[Piece]]], fields: frozenset[str]) -> str:
    """Return definitions as one text. Defined names and `fields` get numbers, in the order of their first use."""
    numbers: dict[Name, int] = {}
    texts = []
    for name, found in definitions:
        for piece in (name, *found):
            if isinstance(piece, tuple) and (piece[0] != ATTRIBUTE or piece[1] in fields):
                texts.append(f"#{numbers.setdefault(piece, len(numbers))}")
            else:
                texts.append(piece if isinstance(piece, str) else piece[1])
        texts.append("\n")
    return "".join(texts)


def fields_of(statement: ast.stmt) -> Iterator[str]:
    """Yield the names of the fields and methods of a class, and of the attributes that its methods set."""
    if isinstance(statement, ast.ClassDef):
        for node in statement.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield node.name
            yield from targets(node)
        for inner in ast.walk(statement):
            if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
                yield inner.attr


def targets(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that an assignment sets."""
    if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        assigned = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        yield from (node.id for target in assigned for node in ast.walk(target) if isinstance(node, ast.Name))


class _Writer:
    def __init__(self, resolve: Callable[[str], Name | None], imported: Callable[[str], Any]) -> None:
        self._resolve = resolve
        self._imported = imported
        # The definition that is written, and its local names with their numbers.
        self._top: ast.AST | None = None
        self._locals: dict[str, int] = {}
        # Whether texts are left out: all of them (""), those with this character, or none (None).
        self._left_out: str | None = None

    def definition(self, node: ast.stmt) -> Iterator[Piece]:
        """Yield a top-level statement without the name that it defines, or a member of a class."""
        if isinstance(node, ast.Assign | ast.AnnAssign) and all(name.endswith(WORDS) for name in targets(node)):
            yield WORDS
        elif isinstance(node, ast.ClassDef):
            self._left_out = (
                "" if any(isinstance(base, ast.Name) and base.id == "NoticeKind" for base in node.bases) else None
            )
            yield "class"
            yield from self._all([*node.decorator_list, *node.bases, *node.keywords])
            for member in node.body:
                if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    yield from (" ", (ATTRIBUTE, member.name))
                    yield from self.definition(member)
                elif not _is_docstring(member):
                    self._locals = {}
                    assigned = set(targets(member))
                    for piece in self._node(member):
                        own = isinstance(piece, str) and piece.startswith(".") and piece[1:] in assigned
                        yield (ATTRIBUTE, piece[1:]) if own else piece
        else:
            defined = {node.name} if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else set(targets(node))
            self._top = node
            self._locals = {name: number for number, name in enumerate(local_names(node, defined))}
            if isinstance(node, ast.FunctionDef) and _describes_options(node):
                yield from self._all(each for each in node.body if not _is_docstring(each))
            elif not _describes_options(node):
                yield from self._node(node)

    def _all(self, nodes: Iterable[ast.AST]) -> Iterator[Piece]:
        for node in nodes:
            yield "("
            yield from self._node(node)
            yield ")"

    def _name(self, name: str) -> Piece:
        if name in self._locals:
            return f"${self._locals[name]}"
        return self._resolve(name) or f".{name}"

    def _node(self, node: ast.AST) -> Iterator[Piece]:
        match node:
            case ast.Name(id=name):
                yield self._name(name)
            case ast.Attribute(value=ast.Name()) if defined := self._member(node):
                yield defined
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in OWN:
                pass
            case ast.Constant(value=str(text)) if self._left_out is not None and self._left_out in text:
                yield "words"
            case ast.JoinedStr() if self._left_out is not None:
                yield "words"
            case ast.Raise():
                yield from self._without(node, "")
            case ast.Call(func=ast.Name(id=name)) if name.endswith("Error"):
                yield from self._without(node, "")
            case ast.Call(func=ast.Name(id=name)) if name in WORDED:
                yield from self._without(node, " ")
            case ast.Call(func=function, keywords=[_, *_]) if name := self._own_function(function):
                yield "Call"
                yield from self._all([function, *node.args])
                for keyword in node.keywords:
                    yield (":".join(name), keyword.arg) if keyword.arg else "**"
                    yield from self._all([keyword.value])
            case _:
                yield from self._fields(node)

    def _own_function(self, node: ast.expr) -> Name | None:
        """Return the function of `collbench` or `proof` that a call names; None for a class or a method."""
        is_name = isinstance(node, ast.Name) and node.id not in self._locals
        found = self._resolve(node.id) if is_name else self._member(node)
        return found if found and found[1].lstrip("_")[:1].islower() else None

    def _member(self, node: ast.expr) -> Name | None:
        """Return the definition that `module.name` means; None for any other expression."""
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module not in self._locals:
                members = self._imported(module)
                return members(name) if members else None
        return None

    def _without(self, node: ast.AST, texts: str) -> Iterator[Piece]:
        before, self._left_out = self._left_out, texts
        yield from self._fields(node)
        self._left_out = before

    def _fields(self, node: ast.AST) -> Iterator[Piece]:
        yield type(node).__name__
        for field, value in ast.iter_fields(node):
            missing = value == [] or (value is None and not isinstance(node, ast.Constant))
            if missing or field in {"ctx", "kind"} or (field == "name" and node is self._top):
                continue
            yield f" {field}="
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, ast.AST) and _is_docstring(each):
                    continue
                if isinstance(each, ast.AST):
                    yield from self._all([each])
                elif field in {"attr", "kwd_attrs"} or (field == "arg" and isinstance(node, ast.keyword)):
                    yield (ATTRIBUTE, each)
                elif isinstance(each, str) and not isinstance(node, ast.Constant | ast.alias):
                    yield self._name(each)  # a parameter, a nested function, a name of a pattern or of an error
                else:
                    yield repr(each)
                yield ","


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def local_names(node: ast.AST, defined: Collection[str] = ()) -> dict[str, None]:
    """Return the names that a definition binds within itself, in their order; nested functions count as its own.

    So no function may use one name both as its own and as the module's (a test).
    """
    found: dict[str, None] = {}
    for inner in ast.walk(node):
        match inner:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                found[name] = None
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                found[name] = None
            case ast.FunctionDef(name=name) | ast.MatchMapping(rest=str(name)):
                found[name] = None
    outer = {name for inner in ast.walk(node) if isinstance(inner, ast.Global) for name in inner.names}
    return {name: None for name in found if name not in outer.union(defined)}


def _describes_options(node: ast.stmt) -> bool:
    """True for a function or an assignment whose signature or value describes options of the command line."""
    if isinstance(node, ast.FunctionDef):
        looked_at: list[ast.AST] = [*node.decorator_list, node.args]
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        looked_at = [node]
    else:
        return False
    return any(isinstance(inner, ast.Name) and inner.id == "typer" for each in looked_at for inner in ast.walk(each))
