"""Whether the code that a claim rests on is still the code that was proved."""

import ast
import hashlib
import io
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

BENCH = Path(__file__).resolve().parents[1] / "bench"


def fingerprint(parts: Sequence[str]) -> str:
    """Of all modules in these folders of `bench/`, or patterns of files; comments and docstrings do not count.

    It is of text, and so the same in all versions of Python.
    """
    digest = hashlib.sha256()
    for path in sorted(set(_modules(parts))):
        digest.update(f"{path.relative_to(BENCH)}\n{_stripped(path.read_text())}\n".encode())
    return digest.hexdigest()[:16]


def _stripped(text: str) -> str:
    """The lines of a module without docstrings, comments and empty lines."""
    lines: list[str] = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            for at in range(docstring.lineno - 1, docstring.end_lineno or docstring.lineno):
                lines[at] = ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _modules(parts: Iterable[str]) -> Iterator[Path]:
    for part in parts:
        modules = list(BENCH.glob(part if part.endswith(".py") else f"{part}/**/*.py"))
        assert modules, f"bench/{part} does not exist"
        yield from modules
