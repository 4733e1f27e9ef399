"""Names of torch that bench/ uses: each is in the installed version, and private names are requested in one place."""

import ast
import importlib
import warnings

import pytest
import torch

from collbench.rank import torch_names
from collbench.rank.torch_names import NAMES, private, version
from conftest import ROOT

SOURCES = sorted((ROOT / "bench" / "collbench").rglob("*.py"))
# Only in builds for CUDA; `make gpu-check` uses them.
OF_CUDA = ("torch.distributed.ProcessGroupNCCL",)


def used_in(path):
    """Return dotted names of torch in a module: `torch.cuda.Event`, also by way of `dist` or `from torch… import`."""
    tree = ast.parse(path.read_text())
    short = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            short |= {(a.asname or "torch"): (a.name if a.asname else "torch") for a in node.names if is_torch(a.name)}
        if isinstance(node, ast.ImportFrom) and is_torch(node.module or ""):
            short |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    names = set(short.values())
    for node in ast.walk(tree):
        parts = []
        while isinstance(node, ast.Attribute):
            parts, node = [node.attr, *parts], node.value
        if isinstance(node, ast.Name) and node.id in short:
            names.add(".".join([short[node.id], *parts]))
    return names


def is_torch(module):
    return module.split(".")[0] == "torch"


def resolved(name):
    """Return the object of a dotted name in modules and classes; raise AttributeError if it is missing."""
    warnings.simplefilter("ignore")  # some modules warn about modules that they load
    parts = name.split(".")
    target = importlib.import_module(parts[0])
    for at, part in enumerate(parts[1:], 2):
        try:
            target = getattr(target, part)
        except AttributeError:
            try:
                target = importlib.import_module(".".join(parts[:at]))
            except ImportError:
                raise AttributeError(name) from None
    return target


USED = sorted(set().union(*map(used_in, SOURCES)))


def test_the_search_finds_names():
    assert len(USED) > 60 and {"torch.cuda.Stream", "torch.distributed.all_reduce"} <= set(USED)


@pytest.mark.parametrize("name", [name for name in USED if not name.startswith(OF_CUDA)])
def test_a_name_is_in_the_installed_torch(name):
    resolved(name)


def test_no_private_name_is_used_directly():
    assert [
        name for name in USED if any(part.startswith("_") and part != "__version__" for part in name.split("."))
    ] == []


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name.path)
def test_the_table_gives_the_versions_that_have_a_name(name):
    if name.since <= version() <= name.until:
        resolved(name.path)
    else:
        with pytest.raises(AttributeError):
            resolved(name.path)


def test_the_error_of_a_missing_private_name_gives_its_use(monkeypatch):
    assert private("torch._utils", "_flatten_dense_tensors") is torch._utils._flatten_dense_tensors
    monkeypatch.delattr(torch.cuda, "_sleep")
    with pytest.raises(RuntimeError, match=r"torch.cuda._sleep, which device times on GPUs needs: versions 2.9 to"):
        private("torch.cuda", "_sleep")


def test_every_private_name_that_is_requested_is_in_the_table():
    names = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("torch_names.private"):
                names.add(node.args[1].value)
    assert names == {path.rpartition(".")[2] for path in (n.path for n in NAMES) if path.rpartition(".")[2][0] == "_"}
    assert version() >= torch_names.OLDEST
