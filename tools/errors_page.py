"""Write docs/errors.md from the code: every error that a user can correct, by kind, as a page to search.

`make docs` runs it.
"""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

from collbench.model import errors

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "errors.md"
HEAD = """\
# Errors

Every error is one line per problem, and names the change to make. [Troubleshooting](troubleshooting.md) explains the \
most frequent ones. `make docs` writes this list from the code. *Names* are replaced by values, … by other text; \
causes and remedies may follow.
"""
VALUES = "A value of a configuration or of an option cannot be used. The place (file, line, key) comes first."
# Fewest letters of fixed text in an entry: shorter entries cannot be searched for.
LEAST_LETTERS = 8
UNKNOWN = "…"


def kinds() -> dict[str, str]:
    """Return the description of each kind of error, with its exit code."""
    descriptions = {"ValueError": f"{VALUES} Exit code 2."}
    for name, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, errors.BenchError):
            about = " ".join((kind.__doc__ or "").split("\n\n")[0].split()).partition(" rank: ")[0]
            descriptions[name] = f"{about} Exit code {kind.exit_code}."
    return descriptions


def messages(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the kind and the texts of every error that a module raises."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Raise(exc=ast.Call(func=ast.Name(id=kind), args=args)):
                for argument in args:
                    yield kind, readable(argument)


def readable(node: ast.expr) -> str:
    """Return a text with the names of its values in place of the values."""
    match node:
        case ast.Constant(value=str(text)):
            return text.replace("*", "\\*").replace("|", "\\|").replace("<", "&lt;")
        case ast.JoinedStr(values=parts):
            return "".join(readable(part) for part in parts)
        case ast.FormattedValue(value=value):
            return readable(value)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return readable(left) + readable(right)
        case ast.Name(id=name) | ast.Attribute(attr=name) if not name.isupper():
            return f"*{name.strip('_').replace('_', ' ')}*"
        case ast.Call(args=[ast.Name() | ast.Attribute() as value, *_]):
            return readable(value)
    return UNKNOWN


def page() -> str:
    """Return the whole page."""
    texts: dict[str, set[str]] = {kind: set() for kind in kinds()}
    for path in sorted((ROOT / "bench" / "collbench").rglob("*.py")):
        for kind, text in messages(path):
            fixed = "".join(text.split("*")[::2])
            if kind in texts and sum(map(str.isalpha, fixed)) >= LEAST_LETTERS and " " in fixed.strip():
                texts[kind].add(" ".join(text.replace("**", "* *").split()))
    parts = [HEAD]
    for kind, about in kinds().items():
        if texts[kind]:
            title = "Values" if kind == "ValueError" else kind
            listed = "\n".join(f"- {text}" for text in sorted(texts[kind], key=str.casefold))
            parts.append(f"## {title}\n\n{about}\n\n{listed}\n")
    return "\n".join(parts)


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
