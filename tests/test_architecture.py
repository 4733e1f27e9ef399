"""The house rules of the code, kept by reading its syntax trees."""

import ast
from pathlib import Path

import pytest

from conftest import ROOT

# Lower numbers may be imported by higher ones; measure, analyze and present never import each other.
LAYERS = {
    "errors": 0, "units": 0, "records": 0, "conclusions": 0, "operations": 0, "backends": 0,
    "dtypes": 0, "layouts": 0, "nccl_names": 0, "variables": 0, "pools": 1, "stamps": 1,
    "intervals": 1,  # numpy on records
    "strict": 2,
    "config": 3, "shorthand": 3, "expected": 3, "encoding": 3,
    "cases": 4, "plan": 4, "store": 4,
    "gradients": 4,  # a sub-package: data, configuration and planning of the gradient benchmark
    "measure": 5, "analyze": 5, "importers": 5, "present": 5,
    "cli": 6,
}  # fmt: skip
FILES = sorted((ROOT / "bench").rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in FILES]


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def layer(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "bench"


def importers_of(package: str) -> set[str]:
    return {
        layer(".".join(("bench", *path.relative_to(ROOT / "bench").with_suffix("").parts)))
        for path in FILES
        if any(name.split(".")[0] == package for name in imports(path))
    }


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_imports_go_one_way(path):
    own = path.relative_to(ROOT / "bench").with_suffix("").parts[0]
    if own == "__init__":
        return
    for name in imports(path):
        if not name.startswith("bench.") or layer(name) in {own, "__version__"}:
            continue
        target = layer(name)
        assert LAYERS[target] < LAYERS[own] or (LAYERS[target] == LAYERS[own] < 5), f"{own} imports {target}"


def test_no_import_cycle():
    graph = {}
    for path in FILES:
        name = ".".join(("bench", *path.relative_to(ROOT / "bench").with_suffix("").parts)).removesuffix(".__init__")
        graph[name] = imports(path)
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " → ".join([*trail, name])
        if name in done:
            return
        for target in graph[name]:
            if target in graph and target != "bench":
                visit(target, (*trail, name))
        done.add(name)

    for name in graph:
        visit(name, ())


@pytest.mark.parametrize(
    ("package", "place"),
    [
        ("torch", {"measure"}),
        ("matplotlib", {"present"}),
        ("yaml", {"strict"}),
        ("pydantic", {"strict", "config", "expected", "gradients"}),
        ("typer", {"cli"}),
    ],
)
def test_heavy_packages_have_one_home(package, place):
    assert importers_of(package) == place


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_only_the_command_line_prints_and_exits(path):
    if path.parent.name == "cli":
        return
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func) not in {"print", "sys.exit", "exit", "quit"}, f"line {node.lineno}"


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_the_environment_is_read_in_one_place(path):
    # stand_in.py runs in a process of its own, which loads nothing else
    if path.name in {"environment.py", "stand_in.py"}:
        return
    text = path.read_text()
    assert "os.environ" not in text and "getenv" not in text


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_every_module_says_what_it_is_for(path):
    assert ast.get_docstring(tree(path))
    assert path.stem not in {"utils", "common", "helpers", "misc"}


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_modules_and_functions_stay_readable(path):
    assert len(path.read_text().splitlines()) <= 400
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 60, node.name


def test_nothing_is_unpickled_from_outside():
    for path in FILES:
        assert not imports(path) & {"pickle", "marshal", "shelve", "dill"}, path
