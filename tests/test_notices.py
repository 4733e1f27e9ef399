"""Every kind of notice has a sentence for its values."""

import ast
import string
import subprocess
import sys
from pathlib import Path

import pytest

from collbench.analyze.notices import _OF_HOST, _OF_VARIABLES, BUSY, HostState
from collbench.analyze.summaries import _OF_SUMMARY, STEAL
from collbench.catalog import splits
from collbench.catalog.rules import ANYWHERE, HERE, Facts
from collbench.model.conclusions import Stall, Summary
from collbench.model.errors import StoreError
from collbench.model.notices import Kind, Notice, kind_named, kinds
from collbench.model.records import Case, Machine
from collbench.packages.replay.planning import CALLS_LEFT_OUT
from collbench.packages.replay.replayed_calls import Replay
from collbench.packages.training.catalog.strategies import OF_MODEL, OF_SHAPE, StepFacts
from collbench.packages.training.planning.steps import OF_SCENARIO
from collbench.packages.training.synchronisation import TRAINING_STEP, Scenario, StepOptions, Strategy
from collbench.planning.plan import LAUNCH_MEMORY, SEVERAL_REASONS
from collbench.report.notices import sentence
from collbench.store import encoding
from conftest import ROOT, invented_run

BENCH = ROOT / "bench" / "collbench"
TREES = {path: ast.parse(path.read_text()) for path in sorted(BENCH.rglob("*.py"))}
CALLS = [(path, node) for path, tree in TREES.items() for node in ast.walk(tree) if isinstance(node, ast.Call)]
# Packages → values that their notices get later than the other values.
LATER = {"interop": {"rows"}, "replay": {"count", "calls"}}


def fields(template: str) -> dict[str, str]:
    """Return the names of the values in a template → their formats."""
    return {name: spec or "" for _, name, spec, _ in string.Formatter().parse(template) if name is not None}


def test_every_kind_has_a_sentence_and_a_name_of_its_own_and_is_found():
    assert all(kind.text for kind in kinds())
    with pytest.raises(ValueError, match="two kinds of notices are named busy"):
        Kind("busy", "another sentence")
    declared = {
        node.args[0].value
        for _, node in CALLS
        if ast.unparse(node.func) == "Kind" and isinstance(node.args[0], ast.Constant)
    }
    assert declared <= set(kinds())


def given() -> list[tuple[Kind, set[str], bool, Path, int]]:
    """Return the notices that the code makes: kind, names of values, whether these are all, file and line."""
    by_constant = {kind.upper().replace("-", "_"): kind for kind in kinds()}
    entries = []
    for path, node in CALLS:
        if isinstance(node.func, ast.Name | ast.Attribute | ast.IfExp):
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


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            kind_named("crowded")(ranks=(4, 8), cores=1),
            "4, 8 ranks share 1 core: they wait for a core as well as for data; use fewer ranks",
        ),
        (
            kind_named("far-outliers")(far=3, iterations=40, causes=(STEAL(share=0.25),)),
            "3 of 40 iterations are far outliers; seen meanwhile: the hypervisor took 25 % of a core",
        ),
        (kind_named("far-outliers")(far=3, iterations=40, causes=()), "3 of 40 iterations are far outliers"),
        (
            BUSY(host="node1", load=1.25, cores=2),
            "host node1: the machine was busy at the start (load 1.25 on 2 cores); repeat when it is idle",
        ),
        (
            SEVERAL_REASONS(
                reasons=tuple(
                    LAUNCH_MEMORY(ranks=2, backend="gloo", needed_bytes=needed, usable_bytes=2**20)
                    for needed in (2**30, 2**30 + 1, 2**31)
                )
            ),
            "2 ranks on gloo need 1.00 GiB of memory; 1.00 MiB may be used here (and 1 other reason: see plan)",
        ),
    ],
)
def test_a_sentence_has_numbers_lists_causes_and_the_remedy(given, text):
    assert sentence(given) == text


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


def test_values_that_a_file_lacks_are_an_error_of_one_line():
    assert kinds()  # loads those of packages
    for wrong in (
        kind_named("job-ranks")(),
        LAUNCH_MEMORY(ranks=2, backend="gloo", needed_bytes="x", usable_bytes=1),
        kind_named("repeated-cases")(size_bytes="x", operation="y", count=1),
        Notice(kind_named("too-hot")),
    ):
        with pytest.raises(StoreError, match=f"a notice {wrong.kind} does not have"):
            sentence(wrong)


def test_reasons_and_replays_survive_the_way_to_a_rank():
    why = kind_named("fewest-ranks")(op="broadcast", fewest=2)
    left = Notice(CALLS_LEFT_OUT, {"operation": "broadcast", "why": (why,), "count": 3})
    replay = Replay("a file", (), (), changes=(left,))
    assert encoding.decoded(encoding.encoded(replay), Replay) == replay
    assert sentence(left) == "3 × broadcast left out: broadcast needs 2 ranks or more"


def test_the_list_has_each_kind_with_its_sentence_and_remedy(warm):
    done = warm("list", "notices")
    assert done.returncode == 0, done.stderr
    assert {line.split()[0] for line in done.stdout.splitlines()[2:]} >= {*kinds()}
    assert "INCOMPLETE: <missing> of <planned> measurements missing" in done.stdout
    assert "go on with collbench resume <path>" in done.stdout
