"""Every kind of notice has a sentence for its values."""

import ast
import string
import subprocess
import sys
from pathlib import Path

import pytest

from collbench.analyze.notices import _OF_HOST, _OF_VARIABLES, HostState
from collbench.analyze.summaries import _OF_SUMMARY
from collbench.catalog import splits
from collbench.catalog.rules import ANYWHERE, HERE, Facts
from collbench.model.conclusions import Stall, Summary
from collbench.model.notices import Kind, kinds
from collbench.model.records import Case, Machine
from collbench.packages.training.catalog.strategies import OF_MODEL, OF_SHAPE, StepFacts
from collbench.packages.training.planning.steps import OF_SCENARIO
from collbench.packages.training.synchronisation import TRAINING_STEP, Scenario, StepOptions, Strategy
from conftest import ROOT, invented_run, syntax_trees

BENCH = ROOT / "bench" / "collbench"
# Packages → values that their notices get later than the other values.
LATER = {"interop": {"rows"}, "replay": {"count", "calls"}}


def fields(template: str) -> dict[str, str]:
    """Return the names of the values in a template → their formats."""
    return {name: spec or "" for _, name, spec, _ in string.Formatter().parse(template) if name is not None}


def given() -> list[tuple[Kind, set[str], bool, Path, int]]:
    """Return the notices that the code makes: kind, names of values, whether these are all, file and line."""
    by_constant = {kind.upper().replace("-", "_"): kind for kind in kinds()}
    entries = []
    calls = ((path, node) for path, tree in syntax_trees().items() for node in ast.walk(tree))
    for path, node in calls:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute | ast.IfExp):
            names = {word.arg for word in node.keywords if word.arg} - {"host", "cases"}
            every = all(word.arg for word in node.keywords)
            called = ast.walk(node.func) if isinstance(node.func, ast.IfExp) else [node.func]
            for name in (ast.unparse(part).rpartition(".")[2] for part in called):
                if name in by_constant:
                    entries.append((by_constant[name], names, every, path, node.lineno))
    return entries


def test_the_values_of_each_notice_are_those_of_its_sentence():
    seen = set()
    for kind, values, every, path, line in given():
        wanted = fields(kind.text + kind.remedy)
        seen.add(kind)
        assert values <= set(wanted), (path, line, kind, values, wanted)
        if every:
            later = set().union(*(LATER.get(package, set()) for package in path.relative_to(BENCH).parts))
            assert values | later >= set(wanted), (path, line, kind, values, wanted)
    assert len(seen) > 80


MACHINE = Machine("h", 2, 2**30, 2**20, 2, {}, ranks=2, torch=(2, 13))
CASE = Case("all_to_all", "nccl", 2, "float32", 8, splits=splits.parse("hot:2"))
STEP = Scenario(Case(TRAINING_STEP, "gloo", 2, "float32", 0, own=StepOptions(model="tiny", batch=1, sequence=2)))


@pytest.mark.parametrize(
    ("rules", "facts"),
    [
        ((*HERE, *ANYWHERE), Facts(CASE, MACHINE)),
        ((*OF_SCENARIO, *OF_SHAPE, *OF_MODEL), StepFacts(STEP, MACHINE, Strategy("flat"))),
        ((*_OF_HOST, *_OF_VARIABLES), HostState(invented_run([]), {})),
        (_OF_SUMMARY, Summary(CASE, 1, 2, None, stall=Stall(1.0, 2.0, 0.5))),
    ],
)
def test_the_values_of_each_rule_are_facts(rules, facts):
    for rule in rules:
        if rule.kind:
            assert set(fields(rule.kind.text)) <= rule.kind.of(facts, rule.names).values.keys()


# Without the kinds of packages loaded: read the notices of an import in a manifest, and a name of no kind.
READ = """
from collbench.store.facts import notices_of
def read(kind):
    return notices_of({"imported": {"notices": [{"kind": kind, "values": {"rows": 2}}]}})
print(*((found.kind, found.values) for found in read("size-0")))
try:
    read("size-9")
except ValueError as error:
    print(error)
import sys  # by now, all modules in which kinds stand are loaded
print("torch" in sys.modules)
"""


def test_a_stored_notice_is_read_in_any_process():
    done = subprocess.run([sys.executable, "-c", READ], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.splitlines() == [
        "('size-0', {'rows': 2})",
        "0.kind: Value error, 'size-9': CollBench has no notice of this kind",
        "False",
    ]


def test_the_list_has_each_kind_with_its_sentence_and_remedy(warm):
    done = warm("list", "notices")
    assert done.returncode == 0, done.stderr
    assert {line.split()[0] for line in done.stdout.splitlines()[2:]} >= {*kinds()}
    assert "INCOMPLETE: <missing> of <planned> measurements missing" in done.stdout
    assert "go on with collbench resume <path>" in done.stdout
