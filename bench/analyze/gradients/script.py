"""A Python file as rules want to see it: its calls by full name, its loops and scopes. Never imports or runs the file.

In: source text as bytes. Out: a `Script`. Names are resolved through the file's own imports, so that `DDP` and
`nn.parallel.DistributedDataParallel` are the same. Values are known where they are written out or assigned once.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from bench.errors import ConfigError

WRAPPER = "DistributedDataParallel"
BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl")
# Those of a scope's own statements are asked for, not those of functions within it.
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


@dataclass(frozen=True)
class Script:
    """A file that was parsed."""

    tree: ast.Module

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes."""
        return list(ast.walk(self.tree))

    @cached_property
    def aliases(self) -> dict[str, str]:
        """Local name → what was imported under it."""
        found = {"DDP": WRAPPER}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                found |= {alias.asname: alias.name for alias in node.names if alias.asname}
            elif isinstance(node, ast.ImportFrom):
                found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        return found

    @cached_property
    def constants(self) -> dict[str, object]:
        """Names that are assigned once, to a value that is written out."""
        values: dict[str, list[ast.expr]] = {}
        for target, value in self.assignments:
            values.setdefault(ast.unparse(target), []).append(value)
        return {n: v[0].value for n, v in values.items() if len(v) == 1 and isinstance(v[0], ast.Constant)}

    @cached_property
    def assignments(self) -> list[tuple[ast.expr, ast.expr]]:
        """Target and value of every plain assignment."""
        found: list[tuple[ast.expr, ast.expr]] = []
        for node in self.nodes:
            if isinstance(node, ast.Assign):
                found += [(target, node.value) for target in node.targets]
            elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
                found.append((node.target, node.value))
        return found

    def name(self, node: ast.AST) -> str:
        """`torch.distributed.all_reduce` of what may be written `dist.all_reduce`; empty for what has no name."""
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            return f"{self.name(node.value)}.{node.attr}"
        return ""

    def last(self, node: ast.AST) -> str:
        """The last part of its name; of a call, of what is called."""
        return self.name(node.func if isinstance(node, ast.Call) else node).rpartition(".")[2]

    def calls(self, *names: str, within: ast.AST | None = None) -> list[ast.Call]:
        """Calls of anything whose name ends with one of these."""
        nodes = self.nodes if within is None else ast.walk(within)
        return [node for node in nodes if isinstance(node, ast.Call) and self.last(node) in names]

    def value(self, node: ast.AST | None) -> object:
        """What is written there, or in the one assignment to the name that stands there; None if unknown."""
        if isinstance(node, ast.Constant):
            return node.value
        return self.constants.get(ast.unparse(node)) if isinstance(node, ast.Name | ast.Attribute) else None

    @cached_property
    def wrappers(self) -> list[ast.Call]:
        """Calls of DistributedDataParallel."""
        return self.calls(WRAPPER)

    @cached_property
    def wrapped(self) -> set[str]:
        """Names that hold nothing but a wrapped model from the wrapping on."""
        return {ast.unparse(target) for target, value in self.assignments if value in self.wrappers}

    @cached_property
    def backends(self) -> set[str]:
        """Backends that the file names for itself."""
        found: list[ast.AST] = []
        for node in self.nodes:
            if isinstance(node, ast.keyword) and node.arg == "backend":
                found.append(node.value)
            elif isinstance(node, ast.arguments):
                found += _defaults(node, "backend")
        found += [value for target, value in self.assignments if ast.unparse(target).lower().endswith("backend")]
        found += [call.args[0] for call in self.calls("init_process_group") if call.args]
        words = [leaf.value for node in found for leaf in ast.walk(node) if isinstance(leaf, ast.Constant)]
        return {name for word in words if isinstance(word, str) for name in BACKENDS if name in word}

    @cached_property
    def scopes(self) -> list[ast.AST]:
        """The file itself and every function of it."""
        return [self.tree, *(node for node in self.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))]

    @cached_property
    def loops(self) -> list[ast.For | ast.AsyncFor | ast.While]:
        """All loops."""
        return [node for node in self.nodes if isinstance(node, ast.For | ast.AsyncFor | ast.While)]

    @cached_property
    def texts(self) -> list[ast.Constant]:
        """All pieces of text."""
        return [node for node in self.nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def read(raw: bytes, source: str) -> Script:
    """The file, or a ConfigError of one line."""
    try:
        return Script(ast.parse(raw))
    except SyntaxError as error:
        line = f" line {error.lineno}:" if error.lineno else ""
        raise ConfigError(f"{source}:{line} not Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{source}: not Python: {error or 'nested too deeply'}") from None


def own(scope: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a scope without those of functions and classes within it."""
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:  # no recursion: a long sum is nested as deeply as it is long
        child = waiting.pop()
        yield child
        if not isinstance(child, SCOPES):
            waiting += ast.iter_child_nodes(child)


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The value of one argument that is given by name."""
    return next((word.value for word in call.keywords if word.arg == name), None)


def _defaults(arguments: ast.arguments, name: str) -> list[ast.AST]:
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = [*zip(positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=True)]
    pairs += [(a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None]
    return [default for argument, default in pairs if argument.arg == name]
