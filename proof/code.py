"""Whether the code that a claim rests on is still the code that was proved."""

import ast
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

BENCH = Path(__file__).resolve().parents[1] / "bench"


def fingerprint(parts: Sequence[str]) -> str:
    """Of all modules in these folders of `bench/`, or patterns of files; comments and docstrings do not count."""
    digest = hashlib.sha256()
    for path in sorted(set(_modules(parts))):
        tree = ast.parse(path.read_bytes())
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
                node.body = node.body[1:]
        digest.update(f"{path.relative_to(BENCH)}\n{ast.dump(tree)}\n".encode())
    return digest.hexdigest()[:16]


def _modules(parts: Iterable[str]) -> Iterator[Path]:
    for part in parts:
        modules = list(BENCH.glob(part if part.endswith(".py") else f"{part}/**/*.py"))
        assert modules, f"bench/{part} does not exist"
        yield from modules
