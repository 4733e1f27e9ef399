"""The import law and the house rules of DESIGN, kept by reading the syntax trees of the code.

A folder says in which process its lines run; the table below says what each folder may import.
"""

import ast
import io
import pickle
import re
from pathlib import Path

import pytest

from bench.cli.app import VERBS
from bench.importers.traces.plain_pickle import PlainData
from conftest import ROOT

BENCH = ROOT / "bench"
GROUND = "ground"  # bench/*.py
PARTS = ("launch", "rank", "analyze", "report")
# Folder → the folders that it may import beside itself. Whoever is not named may not be imported.
MAY_IMPORT = {
    GROUND: set(),
    "machine": {GROUND},
    "protocol": {GROUND, "machine"},
    "launch": {GROUND, "machine", "protocol"},
    "rank": {GROUND, "machine", "protocol"},
    "analyze": {GROUND},
    "importers": {GROUND},
    "report": {GROUND},
    "training": {GROUND},
    "training.launch": {GROUND, "machine", "protocol", "training", "launch"},
    "training.rank": {GROUND, "machine", "protocol", "training", "rank"},
    "training.analyze": {GROUND, "training", "analyze"},
    "training.report": {GROUND, "training", "report"},
    "cli": {
        GROUND, "machine", "launch", "analyze", "importers", "report", "training",
        *(f"training.{part}" for part in PARTS if part != "rank"),
    },
}  # fmt: skip
# The one module of torch that a parent process loads: the verb `plan --simulate` is a single process.
DRY_RUN = "bench.rank.dry_run"
FILES = sorted(BENCH.rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in FILES]


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path) -> set[str]:
    """Modules, and names within modules, that a file imports."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def folder_of(module: str) -> str:
    parts = module.split(".")[1:]
    if parts[:1] == ["training"]:
        return f"training.{parts[1]}" if len(parts) > 1 and parts[1] in PARTS else "training"
    return parts[0] if parts and parts[0] in MAY_IMPORT else GROUND


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_imports_keep_the_law(path):
    own = folder_of(module_of(path))
    for name in imports(path):
        if name.startswith("bench.") and folder_of(name) != own and not (own == "cli" and name.startswith(DRY_RUN)):
            if (own, name) == ("cli", "bench.rank"):
                continue  # of `from bench.rank import dry_run`
            assert folder_of(name) in MAY_IMPORT[own], f"{own} must not import {name}"


def test_the_law_forbids_what_it_is_for():
    assert "rank" not in MAY_IMPORT["launch"] and "launch" not in MAY_IMPORT["rank"]
    assert not any(
        "training" in allowed
        for folder, allowed in MAY_IMPORT.items()
        if not folder.startswith("training") and folder != "cli"
    )
    assert {folder_of(module_of(path)) for path in FILES} == set(MAY_IMPORT)


def test_no_import_cycle():
    graph = {module_of(path): imports(path) for path in FILES}
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


def folders_that_import(package: str) -> set[str]:
    return {folder_of(module_of(path)) for path in FILES if any(n.split(".")[0] == package for n in imports(path))}


@pytest.mark.parametrize(
    ("package", "folders"),
    [
        ("torch", {"rank", "training.rank"}),
        ("matplotlib", {"report", "training.report"}),
        ("typer", {"cli"}),
    ],
)
def test_heavy_packages_stay_in_their_folders(package, folders):
    assert folders_that_import(package) == folders


@pytest.mark.parametrize(
    ("package", "modules"),
    [
        ("yaml", {"bench.config.yaml_file"}),
        (
            "pydantic",
            {
                "bench.config.sections",
                "bench.config.problems",
                "bench.config.models",
                "bench.config.config_sections",
                "bench.config.values",
                "bench.config.expected",
                "bench.training.config",
                "bench.store.encoding",
                "bench.store.ledger",
                "bench.store.call_file",
                "bench.training.encoding",
            },
        ),
    ],
)
def test_some_packages_have_one_home(package, modules):
    found = {module_of(path) for path in FILES if any(n.split(".")[0] == package for n in imports(path))}
    assert found == modules


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_only_the_command_line_prints_and_exits(path):
    if path.parent.name == "cli":
        return
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func) not in {"print", "sys.exit", "exit", "quit"}, f"line {node.lineno}"


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_the_environment_is_read_in_one_place(path):
    # mpirun_placeholder runs in a process of its own, which loads nothing else
    if path.name in {"environment.py", "mpirun_placeholder.py"}:
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


def test_nothing_is_unpickled_but_plain_data():
    """torch's flight recorder writes pickles; that one reader refuses every class and function."""
    found = {module_of(path) for path in FILES if imports(path) & {"pickle", "marshal", "shelve", "dill"}}
    assert found == {"bench.importers.traces.plain_pickle"}
    with pytest.raises(pickle.UnpicklingError):
        PlainData(io.BytesIO(pickle.dumps(Path))).load()


def test_no_two_classes_share_a_name():
    places = {}
    for path in FILES:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(path.name)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_verb_imports_another_verb():
    verbs = {"bench.cli." + verb.function.partition(":")[0] for verb in VERBS.values()}
    for path in FILES:
        if module_of(path) in verbs:
            assert not (imports(path) & verbs) - {module_of(path)}, path.name


FOLDERS = [ROOT, *{path.parent for path in FILES}]


def written() -> list[Path]:
    """All text that speaks of modules."""
    return [*FILES, *(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


@pytest.mark.parametrize("path", written(), ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_that_text_speaks_of_exist(path):
    text = path.read_text()
    files = re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", text)
    names = [name.split(".") for name in re.findall(r"`((?:[a-z_]+\.)+[a-z_]+)`", text)]
    missing = [name for name in files if not any((folder / name).exists() for folder in FOLDERS)]
    packages = {folder.name for folder in BENCH.iterdir() if (folder / "__init__.py").exists()}
    for parts in names:
        if parts[0] in packages and parts[-1] not in ("html", "md", "py"):
            where = BENCH / "/".join(parts)
            if not (where.is_dir() or where.with_suffix(".py").exists() or where.parent.with_suffix(".py").exists()):
                missing.append(".".join(parts))
    assert not missing
