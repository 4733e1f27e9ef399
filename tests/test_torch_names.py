"""Names of torch that bench/ uses: each is in the installed version, and private names are requested in one place."""

import ast
import importlib
import warnings

import pytest
import torch

from collbench.rank import torch_names
from collbench.rank.torch_names import NAMES, private, version
from conftest import syntax_trees

# Only in builds for CUDA; `make gpu-check` uses them.
OF_CUDA = ("torch.distributed.ProcessGroupNCCL",)


def used_in(tree):
    """Return dotted names of torch in a module: `torch.cuda.Event`, also by way of `dist` or `from torch… import`."""
    short = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            short |= {(a.asname or "torch"): (a.name if a.asname else "torch") for a in node.names if is_torch(a.name)}
        if isinstance(node, ast.ImportFrom) and is_torch(node.module or ""):
            short |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    names = set(short.values())
    for node in ast.walk(tree) if short else ():
        parts = []
        while isinstance(node, ast.Attribute):
            parts, node = [node.attr, *parts], node.value
        if isinstance(node, ast.Name) and node.id in short:
            names.add(".".join([short[node.id], *parts]))
    return names


def is_torch(module):
    return module.split(".")[0] == "torch"


def installed(name):
    """Return whether a dotted name is in modules and classes."""
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
                return False
    return True


def test_names_are_in_the_installed_torch_and_no_private_name_is_used_directly():
    used = sorted(set().union(*map(used_in, syntax_trees().values())))
    assert len(used) > 60 and {"torch.cuda.Stream", "torch.distributed.all_reduce"} <= set(used)
    assert [name for name in used if not name.startswith(OF_CUDA) and not installed(name)] == []
    assert [name for name in used if "._" in name.replace("__version__", "")] == []


def test_the_table_has_each_private_name_that_is_requested_and_the_versions_that_have_it():
    for name in NAMES:
        assert installed(name.path) == (name.since <= version() <= name.until), name
    calls = (node for tree in syntax_trees().values() for node in ast.walk(tree) if isinstance(node, ast.Call))
    private_calls = (call for call in calls if getattr(call.func, "attr", "") == "private")
    names = {call.args[1].value for call in private_calls if ast.unparse(call.func).endswith("torch_names.private")}
    last = {name.path.rpartition(".")[2] for name in NAMES}
    assert names == {name for name in last if name[0] == "_"}
    assert version() >= torch_names.OLDEST


def test_the_error_of_a_missing_private_name_gives_its_use(monkeypatch):
    assert private("torch._utils", "_flatten_dense_tensors") is torch._utils._flatten_dense_tensors
    monkeypatch.delattr(torch.cuda, "_sleep")
    with pytest.raises(RuntimeError, match=r"torch.cuda._sleep, which device times on GPUs needs: versions 2.9 to"):
        private("torch.cuda", "_sleep")
