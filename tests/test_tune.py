"""`tune`: rule files as their libraries read them, the race, the proof, crossovers, and the verb with real ranks."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from collbench.catalog.variables import unsettable
from collbench.cli.rounds import RoundsInTurns
from collbench.machine import host
from collbench.model.conclusions import Interval
from collbench.model.errors import StoreError
from collbench.model.records import Case, Failure, Samples, Variables
from collbench.packages.tune import catalog, machine, plots
from collbench.packages.tune import planning as rounds_of
from collbench.packages.tune.analyze import choosing, outcome
from collbench.packages.tune.catalog import RULE_FOR_OTHER_HOSTS, RULE_FOR_SOME_CALLS, RULE_WITH_CHANNELS
from collbench.packages.tune.cli.rounds import TuneRounds, read_state
from collbench.packages.tune.cli.tune import usage
from collbench.packages.tune.rules import (
    DEFAULT,
    FROM_FILE,
    Cell,
    CellResult,
    Pick,
    SizeRule,
    Tuned,
    TuneState,
    Why,
    cell_of,
    choice_of,
)
from collbench.report.notices import sentences
from conftest import samples
from proof import tune as proof
from proof.virtual_gpu import rig

RING, LINEAR, SEGMENTED = Pick("ring"), Pick("linear"), Pick("segmented_ring", segment=65536)
NUMBERS = {
    "allreduce": {"basic_linear": 1, "recursive_doubling": 3, "ring": 4, "segmented_ring": 5},
    "alltoall": {"linear": 1, "pairwise": 2, "two_proc": 5},
}
LIBRARY = catalog.OpenMpi(NUMBERS)
needs_mpi = pytest.mark.skipif(host.unsupported_mpi() is not None, reason=str(host.unsupported_mpi()))
ALL_TO_ALL = """
import numpy as np
from mpi4py import MPI
world = MPI.COMM_WORLD
sent, received = np.full(world.size, world.rank, "i4"), np.empty(world.size, "i4")
world.Alltoall(sent, received)
print(received.tolist() == list(range(world.size)))
"""


def choices_at(library, rules, op, ranks, *sizes):
    return [library.choice_for(rules, Cell(op, ranks, size)) for size in sizes]


# ── rule files ───────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("library", [LIBRARY, catalog.Nccl()])
def test_a_rule_file_is_read_back_and_has_no_rule_beyond_its_sizes(library):
    first, second = (RING, SEGMENTED) if library is LIBRARY else (Pick("tree", "ll"), Pick("ring", "simple"))
    rules = [
        SizeRule("all_reduce", 2, 256, 1023, first),
        SizeRule("all_reduce", 2, 1024, 4096, second),
        SizeRule("all_reduce", 4, 65536, 65536, first),
    ]
    text = library.write(rules, 1, ["by a test", "99 comments"])
    read = library.read(text)
    assert read.problems == ()
    assert choices_at(library, read.rules, "all_reduce", 2, 255, 256, 1023, 1024, 4096, 4097, 2**30) == [
        DEFAULT, first, first, second, second, DEFAULT, DEFAULT,
    ]  # fmt: skip
    assert choices_at(library, read.rules, "all_reduce", 3, 256, 65536) == [DEFAULT, DEFAULT]
    assert choices_at(library, read.rules, "all_reduce", 4, 256, 65536, 65537) == [DEFAULT, first, DEFAULT]
    assert choices_at(library, read.rules, "all_reduce", 5, 65536) == [DEFAULT]
    assert choices_at(library, read.rules, "broadcast", 2, 1024) == [DEFAULT]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1\n2\n1\n0\n1\n8 4 0 0\n", "line 6: the first size of allreduce must be 0, not 8"),
        ("1\n2\n1\n0\n2\n0 4 0 0\n", "line 6: the file ends before a size"),
        ("1\n2\n1\n0\n1\n0 ring 0 0\n", "line 6: 'ring' was found where an algorithm should be"),
        ("1\n2\n1\n0\n1\n0 9 0 0\n", "line 6: allreduce has no algorithm 9 (0 to 5)"),
        ("1\n3\n1\n3\n1\n0 5 0 0\n", "line 6: two_proc is for 2 ranks"),
        ("1\n2\n1\n0\n2\n0 0 0 0\n0 4 0 0\n", "line 7: size 0 after 0: they must increase"),
        ("1\n2\n2\n4\n1\n0 4 0 0\n2\n1\n0 4 0 0\n", "line 7: a number of ranks 2 after 4: they must increase"),
        ("1\n2\n1\n0\n1\n0 4 0 0 7\n", "line 6: numbers after the last rule are not read"),
        ("rule-file-version-2\n1\n2\n1\n0\n1\n0 4 0 0 7\n8\n", "line 8: numbers after the last rule"),
        ("1\n6\n1\n0\n1\n0 1 0 0\n", "collective 6: CollBench measures no such collective"),
        ("1\n2\n1\n0\n1\n0 4 0 ²\n", "line 6: '\\xb2' was found where a segment should be"),
        ("rule-file-version-3\n1\n2\n1\n0\n1\n0 4 0 0\n", "line 1: format 3: CollBench reads formats 1 and 2"),
    ],
)
def test_a_text_that_open_mpi_would_ignore_is_named_with_its_line(text, problem):
    assert any(problem in reported for reported in LIBRARY.read(text).problems), LIBRARY.read(text)


def test_a_number_of_ranks_that_a_rule_file_names_twice_counts_as_it_is_named_last():
    rules = LIBRARY.read("1\n2\n2\n2\n1\n0 3 0 0\n2\n1\n0 4 0 0\n").rules
    assert [rule.choice for rule in rules] == [RING]
    assert LIBRARY.read("2\n2\n1\n2\n1\n0 3 0 0\n2\n1\n2\n1\n0 4 0 0\n").rules[0].choice == RING


def test_a_line_that_nccls_plugin_would_misread_is_named_with_its_number():
    text = "# head\nallreduce,0,99,tree,ll\nalltoall,0,99,ring,ll,-1,1,2\nallreduce,0,99,rings,LL,-1,1,2\n"
    text += "allreduce,0,18446744073709551615,nvls,simple,4,-1,-1,-1,0\nallreduce,0,64K,ring,ll,-1,1,2\n"
    read = catalog.Nccl().read(text + "allreduce,0,99,ring,ll,-1,2,2\n")
    lines = [problem.partition(":")[0] for problem in read.problems]
    assert lines == ["line 2", "line 3", "line 4", "line 4", "line 6"]
    assert read.notes == (
        RULE_WITH_CHANNELS(line=5, channels="4"),
        RULE_FOR_SOME_CALLS(line=5),
        RULE_FOR_OTHER_HOSTS(line=7, nodes="2", hosts=1),
    )
    assert "5 fields" in read.problems[0] and "takes it as allreduce" in read.problems[1]
    assert choices_at(catalog.Nccl(), read.rules, "all_reduce", 7, 2**40) == [Pick("nvls", "simple")]
    rules = catalog.Nccl().read("allreduce,0,4294967295,ring,simple,-1,1,2\n").rules
    assert choices_at(catalog.Nccl(), rules, "all_reduce", 2, 2**32 - 1, 2**33) == [Pick("ring", "simple"), DEFAULT]


@needs_mpi
def test_open_mpi_honours_the_written_file_and_ignores_what_it_should_ignore(tmp_path):
    """Its algorithm for two ranks fails with three, so a program ends with an error exactly if the rule is used."""
    library = catalog.OpenMpi(machine.algorithms())
    small, large = (library.choices("all_reduce", 4, size) for size in (1024, 2**20))
    assert {"ring", "recursive_doubling", "rabenseifner"} <= {choice.algorithm for choice in small}
    assert set(large) - set(small) == {SEGMENTED}
    assert [Pick("two_proc") in library.choices("all_to_all", ranks, 64) for ranks in (2, 3)] == [True, False]
    written = library.write([SizeRule("all_to_all", 3, 4, 100, Pick("two_proc"))], 1)
    others = [SizeRule("all_to_all", 3, 13, 100, Pick("two_proc")), SizeRule("all_to_all", 4, 4, 100, Pick("two_proc"))]
    elsewhere = library.write(others, 1)  # for other sizes, and for another number of ranks
    broken = written.replace("3 # ranks and more\n3 # sizes\n0 0", "3 # ranks and more\n3 # sizes\n1 0")
    assert broken != written and library.read(broken).rules == ()
    (tmp_path / "program.py").write_text(ALL_TO_ALL)

    def works(text):
        (tmp_path / "rules").write_text(text)
        environ = os.environ | dict(library.file_settings(str(tmp_path / "rules")).pairs)
        environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_btl": "self,sm"}
        words = [str(host.mpirun()), "--oversubscribe", "--bind-to", "none", "-n", "3", sys.executable, "program.py"]
        done = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)
        return done.returncode == 0 and done.stdout.split() == ["True"] * 3

    assert [works(text) for text in (written, elsewhere, broken)] == [False, True, True]


@pytest.mark.parametrize(
    "library", [catalog.OpenMpi({name: {"x": 1} for name in LIBRARY.operations.values()}), catalog.Nccl()]
)
def test_jobs_and_resume_take_every_setting(library):
    for op in library.operations:
        for choice in library.choices(op, 2, 2**20):
            pairs = library.settings({op: choice}).pairs
            assert pairs and [unsettable(name, value) for name, value in pairs] == [None] * len(pairs)
            assert all(library.decides.fullmatch(name) for name, _ in pairs)


# ── the race and the proof ───────────────────────────────────────────────────────────────────────
CELLS = [Cell("all_reduce", 2, size) for size in (1024, 4096, 16384, 65536)]
NAMES = {cell: [Pick(f"c{number}") for number in range(6)] for cell in CELLS}


def drawn(ratios, launches, scatter=0.05, seed=0):
    """Draw logs of times per cell from log ratios of choices to the default; each launch shifts all choices equally."""
    dice = np.random.default_rng(seed)
    times = {}
    for cell in CELLS:
        common = dice.normal(0, 0.3, launches)
        for choice in [DEFAULT, *NAMES[cell]]:
            logs = -9 + common + ratios.get(choice, 0.0) + dice.normal(0, scatter, launches)
            times.setdefault(cell, {})[choice] = dict(enumerate(logs.tolist(), 1))
    return times


def test_a_race_keeps_the_best_and_equal_choices_and_drops_what_is_clearly_slower():
    best, slow = Pick("c1"), [Pick(f"c{number}") for number in (0, 2, 3, 4, 5)]
    kept = left = dropped = 0
    for seed in range(12):
        alive = choosing.raced(drawn({best: -0.2, **dict.fromkeys(slow, 0.3)}, 8, seed=seed), NAMES, 8)
        kept += sum(best in choices for choices in alive.values())
        left += sum(choice in choices for choices in alive.values() for choice in slow)
        equal = choosing.raced(drawn({}, 12, seed=seed), NAMES, 12)  # however often one looks
        dropped += sum(len(NAMES[cell]) + 1 - len(choices) for cell, choices in equal.items())
    assert dropped <= 0.05 * 12 * len(CELLS)
    assert kept >= 0.95 * 12 * len(CELLS) and left <= 0.02 * 12 * len(CELLS) * len(slow)


def test_a_table_has_no_rule_where_nothing_is_faster_and_all_where_everything_is():
    def table(ratios, seed):
        times = drawn(ratios, 20, seed=seed)
        picks = choosing.picks(times, lambda number: choosing.raced(times, NAMES, number), 6, 0.02)
        faster = choosing.faster(choosing.compared(times, picks, range(7, 15)), 0.02)
        return {cell: cell in faster for cell in CELLS}

    assert sum(any(table({}, seed).values()) for seed in range(20)) <= 1
    assert all(table({Pick("c2"): -0.3}, seed) == dict.fromkeys(CELLS, True) for seed in range(4))


def test_crossovers_are_where_straight_lines_cross_and_rules_keep_what_was_proven():
    latency = {DEFAULT: (20e-6, 1 / 400e9), Pick("c0"): (5e-6, 1 / 30e9), Pick("c1"): (12e-6, 1 / 200e9)}
    cells = [Cell("all_reduce", 2, 4**power) for power in range(5, 13)]
    times = {
        cell: {
            choice: {n: float(np.log(alpha + cell.size * beta)) for n in range(1, 9)}
            for choice, (alpha, beta) in latency.items()
        }
        for cell in cells
    }
    table = {cell: min(times[cell], key=lambda choice: times[cell][choice][1]) for cell in cells}
    places = choosing.crossovers(times, table)
    true = [7e-6 / (1 / 30e9 - 1 / 200e9), 8e-6 / (1 / 200e9 - 1 / 400e9)]
    assert [(place.below, place.above) for place in places] == [(Pick("c0"), Pick("c1")), (Pick("c1"), DEFAULT)]
    for place, at in zip(places, true, strict=True):
        assert place.at == pytest.approx(at, rel=0.01) and place.low <= at * 1.01 and place.high >= at * 0.99
    rules = choosing.rules_of(table, places)
    assert [(rule.low, rule.choice) for rule in rules] == [(1024, Pick("c0")), (rules[0].high + 1, Pick("c1"))]
    assert rules[0].high == pytest.approx(true[0], rel=0.01) and rules[1].high <= true[1]


def test_rules_end_where_a_gain_was_shown():
    """At no size between, and next to the default at the size at which it was proven if the lines do not cross."""
    table = dict(zip(CELLS, [RING, DEFAULT, RING, DEFAULT], strict=True))
    rules = choosing.rules_of(table, choosing.crossovers({}, table))
    assert [(rule.low, rule.high, rule.choice) for rule in rules] == [(1024, 1024, RING), (16384, 16384, RING)]
    times = {
        cell: {
            choice: {n: float(np.log(cell.size * 1e-9) + ratio + 0.02 * (-1) ** n) for n in range(1, 9)}
            for choice, ratio in ((DEFAULT, 0.0), (RING, -0.06))
        }
        for cell in CELLS
    }
    table = dict(zip(CELLS, [DEFAULT, DEFAULT, RING, DEFAULT], strict=True))
    places = choosing.crossovers(times, table)
    assert [(place.low, place.at, place.high) for place in places] == [(16384, 16384, 16384)] * 2
    assert [(rule.low, rule.high) for rule in choosing.rules_of(table, places)] == [(16384, 16384)]
    # A gain below the minimum makes no rule, however sure it is.
    ratios = {
        cell: np.full(24, ratio) + 1e-4 * np.arange(24) for cell, ratio in zip(CELLS, (-0.003, -0.3), strict=False)
    }
    assert choosing.faster(ratios, 0.02) == {CELLS[1]} and choosing.faster(ratios, 0.0) == {*CELLS[:2]}


def test_a_rule_that_failed_in_the_last_launches_is_dropped_and_a_cell_without_times_is_no_error():
    cell = CELLS[0]
    default = Case(cell.op, "mpi", 2, "float32", cell.size)
    ring = replace(default, settings=LIBRARY.settings({cell.op: RING}))
    assigned = {"": {}, str(ring.settings): {cell.op: RING}}
    every = [samples(default, n, [[1000, 1000]] * 4) for n in range(1, 13)]
    every += [samples(ring, n, [[500, 500]] * 4) for n in range(1, 7)]
    every += [Samples(ring, n, 0.0, failure=Failure("wrong", 0, "it is wrong")) for n in range(7, 13)]
    table = outcome.proven(every, assigned, {cell: RING}, range(1, 7), 0.02)
    assert table == {cell: RING}
    tuned = outcome.tuned(every, assigned, {cell: RING}, table, range(1, 7), range(7, 13), 0.02)
    assert not tuned.rules and tuned.results[0].why is Why.THEN_FAILED
    assert tuned.wrong == ("all_reduce, 2 ranks, ring: it is wrong (1 KiB)",)
    few = outcome.tuned(every[:9], assigned, {cell: RING}, {cell: DEFAULT}, range(1, 6), range(6, 6), 0.02)
    assert not few.rules and few.results[0].why is Why.TOO_FEW
    file = LIBRARY.read(LIBRARY.write([SizeRule("all_reduce", 2, 0, None, RING)], 1))
    checked = outcome.checked(every[12:], assigned, file, {cell: RING}, range(1, 13), 0.02)
    assert checked.whole is None and checked.results[0].why is Why.NOT_MEASURED


def test_launches_of_a_round_have_a_side_for_the_default_and_one_for_each_choice():
    cases = {cell: Case(cell.op, "mpi", 2, "float32", cell.size) for cell in CELLS}
    choices = {CELLS[0]: [RING, SEGMENTED], CELLS[1]: [RING], CELLS[2]: []}
    ((default, *sides),) = rounds_of.launches(LIBRARY, cases, choices, 3, 7)
    assert {case.size_bytes for case in default.launch.cases} == {1024, 4096} and default.launch.number == 3
    picks = [dict(side.assigned) for side in (default, *sides)]
    assert picks == [{}, {"all_reduce": RING}, {"all_reduce": SEGMENTED}]
    assert [len(side.launch.cases) for side in sides] == [2, 1]
    assigned = {str(side.launch.cases[0].settings): side.assigned for side in (default, *sides)}
    assert [choice_of(assigned, side.launch.cases[0]) for side in (default, *sides)] == [DEFAULT, RING, SEGMENTED]
    ((_, read),) = rounds_of.launches(LIBRARY, cases, choices, 3, 7, LIBRARY.file_settings("/tmp/rules"))
    assert set(read.assigned.values()) == {FROM_FILE} and len(read.launch.cases) == 2


def test_a_case_whose_choice_is_not_known_does_not_count_as_the_default(tmp_path):
    case = Case("all_reduce", "mpi", 2, "float32", 1024, settings=LIBRARY.settings({"all_reduce": RING}))
    for assigned in ({"": {}}, {"": {}, str(case.settings): {"all_to_all": LINEAR}}):
        with pytest.raises(StoreError, match="does not record which choice"):
            choice_of(assigned, case)
    (tmp_path / "tune.json").write_text('{"backend": "mpi", "budget_s": 1.0, "min_change": 0.02}')
    with pytest.raises(StoreError, match="assigned"):
        read_state(tmp_path)


def test_the_answer_names_the_uses_of_buffers_for_which_rules_were_shown():
    cases = {Cell(op, 2, 1024): Case(op, "mpi", 2, "float32", 1024) for op in ("all_gather", "all_reduce", "reduce")}
    chosen = [CellResult(cell, DEFAULT if cell.op == "reduce" else RING, RING, Why.FASTER_IN_FRESH) for cell in cases]
    words = usage(Tuned(tuple(chosen), (), (), None, 0), cases)
    assert words == ("buffers: rotate", "in place: all_reduce", "out of place: all_gather")


def test_bands_of_the_picture_are_the_rules_of_the_file():
    results = tuple(
        CellResult(cell, choice, choice, "", Interval(0.9, 0.8, 0.95, "over launches"), 8)
        for cell, choice in zip(CELLS, [DEFAULT, RING, LINEAR, LINEAR], strict=True)
    )
    rules = (SizeRule("all_reduce", 2, 4096, 5000, RING), SizeRule("all_reduce", 2, 5001, 65536, LINEAR))
    (figure,) = plots.ratios(Tuned(results, rules, (), None, 0))
    spans = [patch.get_path().get_extents(patch.get_patch_transform()) for patch in figure.axes[0].patches]
    assert [(round(span.x0), round(span.x1)) for span in spans] == [(4096, 5000), (5001, 65536)]


# ── the verb ─────────────────────────────────────────────────────────────────────────────────────
SMALL = """
name: small
backends: [mpi]
world_sizes: [2]
operations: [all_to_all]
dtypes: [float32]
sizes: [1KiB, 64KiB]
sampling: {seconds_per_case: 20ms}
"""


@needs_mpi
@pytest.mark.parametrize(
    ("changed", "options", "message"),
    [
        (("[mpi]", "[gloo]"), (), "backends: gloo: no choice of algorithms; allowed: mpi, nccl"),
        (("[all_to_all]", "[barrier]"), (), "operations: barrier: Open MPI has no setting for it; allowed: all_gather"),
        (("[float32]", "[float32, float64]"), (), "fall into the same cell"),
        (
            ("name: small", "env: {OMPI_MCA_coll_tuned_alltoall_algorithm: [pairwise]}"),
            (),
            "env.OMPI_MCA_coll_tuned_alltoall_algorithm: tune finds this out",
        ),
        ((), ("--budget", "2s"), "--budget 2.00 s: the race may use 40 % of it, and 3 launches of every choice"),
        ((), ("--check", "nowhere"), "--check nowhere: no such file"),
        ((), ("--output", "no/where"), "--output no/where: name a file in a folder that exists"),
    ],
)
def test_what_cannot_be_tuned_is_refused_in_one_line(warm, changed, options, message):
    done = warm("tune", warm.config(SMALL.replace(*changed) if changed else SMALL), *options)
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1


@needs_mpi
def test_a_default_that_a_variable_decides_is_refused(warm, monkeypatch):
    monkeypatch.setenv("OMPI_MCA_coll_tuned_use_dynamic_rules", "1")
    done = warm("tune", warm.config(SMALL))
    assert done.returncode == 2 and "OMPI_MCA_coll_tuned_use_dynamic_rules is set, so the default" in done.stderr


@needs_mpi
def test_a_launch_in_which_everything_fails_ends_the_run(warm):
    done = warm("tune", warm.config(SMALL + "faults: [{do: corrupt, rank: 1, iteration: 0}]\n"), "--budget", "45s")
    assert done.returncode == 3 and "nothing was measured in launch 1: " in done.stderr, done.stderr


@pytest.mark.parametrize(("round_s", "made"), [(1, [12, 32, 16]), (5, [4, 6, 2]), (22, [1, 1, 0]), (70, [1, 0, 0])])
def test_a_budget_holds_and_too_few_launches_are_said(tmp_path, monkeypatch, capsys, round_s, made):
    """Only the first round of all begins whatever the budget is: its time is not known."""
    now = [0.0]
    monkeypatch.setattr("collbench.cli.rounds.time.monotonic", lambda: now[0])
    cell = Cell("all_reduce", 2, 4096)
    state = TuneState("mpi", 60.0, 0.02, {})
    cases = {cell: Case("all_reduce", "mpi", 2, "float32", 4096)}
    measured = TuneRounds(tmp_path, SimpleNamespace(order=()), [], state, LIBRARY, cases, True)
    measured._rounds = RoundsInTurns(None, None, 0.0, {"": []}, None)
    monkeypatch.setattr(TuneRounds, "_measure", lambda *_, **__: now.__setitem__(0, now[0] + round_s))
    stages = (rounds_of.RACE, rounds_of.PROOF, rounds_of.CHECK)
    assert [len(measured.stage(stage, lambda _: {cell: [RING]})) for stage in stages] == made
    assert now[0] <= max(60, round_s)
    notes = capsys.readouterr().err.splitlines()
    short = [stage for stage, number in zip(stages, made, strict=True) if number < stage.fewest]
    assert [note.split(":")[1].strip() for note in notes] == [f"the {stage.name}" for stage in short]
    assert all("fit into --budget 60.0 s; about --budget " in note for note in notes)


@needs_mpi
@pytest.mark.slow
def test_an_interrupted_tune_is_resumed_and_its_file_checked(tmp_path, cli):
    process = cli.start("tune", cli.config(SMALL), "--budget", "30s", "--output", "own.conf", "--no-plots")
    while not (runs := cli.runs()) or (runs[0] / "samples.jsonl").read_text().count("\n") < 8:
        assert process.poll() is None, process.communicate()
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and f"collbench resume {runs[0].relative_to(tmp_path)}" in err, err
    done = cli("resume", "--no-plots")
    assert done.returncode == 0 and "--trust writes" in done.stderr, done.stderr
    (run,) = cli.runs()
    assert (run / "rules.conf").is_file() and not (tmp_path / "own.conf").exists()
    state = json.loads((run / "tune.json").read_text())
    assert state["rounds"]["race"] and set(state["rounds"]) == {"race", "proof", "check"}
    plan = json.loads((run / "plan.json").read_text())
    assert sum(len(launch["cases"]) for launch in plan["order"]) == (run / "samples.jsonl").read_text().count("\n")
    tuned = json.loads((run / "tuned.json").read_text())
    assert len(tuned["results"]) == 2 and "2 cells" in done.stdout.splitlines()[0]
    library = catalog.OpenMpi(machine.algorithms())
    written = (run / "rules.conf").read_text()
    assert library.read(written).problems == () and "# Open MPI v" in written and ", torch " in written
    again = cli("resume", "--no-plots")
    assert again.returncode == 0 and json.loads((run / "tuned.json").read_text()) == tuned

    linear = library.write([SizeRule("all_to_all", 2, 1024, 65536, Pick("pairwise"))], 1)
    (tmp_path / "own.conf").write_text(linear)
    checked = cli("tune", cli.config(SMALL), "--check", "own.conf", "--budget", "20s", "--no-plots")
    assert checked.returncode in {0, 1, 3} and "2 of 2 cells have a rule" in checked.stdout, checked
    wrong = linear.replace("1024 2 4", "1024 99 4")
    (tmp_path / "own.conf").write_text(wrong)
    refused = cli("tune", cli.config(SMALL), "--check", "own.conf", "--budget", "20s", "--no-plots")
    assert refused.returncode == 2 and "alltoall has no algorithm 99 (0 to 5)" in refused.stderr, refused


@needs_mpi
@pytest.mark.slow
def test_a_choice_that_fails_is_reported_and_never_chosen(monkeypatch, warm):
    """Open MPI's algorithm for two ranks is offered for three."""
    monkeypatch.setattr(catalog, "FOR_TWO", set())
    config = SMALL.replace("[2]", "[3]").replace("[1KiB, 64KiB]", "[1152B]")
    done = warm("tune", warm.config(config), "--budget", "45s", "--no-plots")
    assert done.returncode == 0, done.stderr
    assert "failed: all_to_all, 3 ranks, two_proc: rank " in done.stdout
    (run,) = warm.runs()
    tuned = json.loads((run / "tuned.json").read_text())
    assert all(result["choice"]["algorithm"] != "two_proc" for result in tuned["results"]) and tuned["wrong"]


def test_a_rule_that_nccl_read_and_did_not_take_is_named():
    """NCCL 2.28 did so on a GPU: between hosts without a fast network it has no LL128, and takes its own choice."""
    file = Variables((("NCCL_TUNER_CONFIG_FILE", "/rules.csv"),))
    cases = [Case("all_reduce", "nccl", 2, "float32", size, settings=file) for size in (4096, 2**20)]
    words = [("TREE", "LL"), ("RING", "SIMPLE")]
    chosen = {
        case.key: {"algorithm": algorithm, "protocol": protocol}
        for case, (algorithm, protocol) in zip(cases, words, strict=True)
    }
    run = SimpleNamespace(environment=[{"launches": [{"chosen": chosen}]}], plan=SimpleNamespace(cases=cases))
    rules = [
        SizeRule("all_reduce", 2, 0, 65536, Pick("tree", "ll")),
        SizeRule("all_reduce", 2, 65537, None, Pick("ring", "ll128")),
    ]
    library = catalog.Nccl()
    table = {cell_of(case): library.choice_for(rules, cell_of(case)) for case in cases}
    assert sentences(outcome.not_honoured(run, library, {str(file): {"all_reduce": FROM_FILE}}, table)) == [
        "not honoured: all_reduce, 2 ranks, 1 MiB: asked for ring ll128, NCCL ran ring simple"
    ]


# ── kept launches ────────────────────────────────────────────────────────────────────────────────
def test_a_table_on_kept_launches_makes_fewer_cells_slower_than_the_smallest_number_does():
    """Two tables each. Launches that made a table never judge it."""

    def by_smallest(times):
        named = {cell: [choice for choice in choices if choice != DEFAULT] for cell, choices in times.items()}
        picks = {cell: min(named[cell], key=lambda choice: logs[choice].get(1, np.inf)) for cell, logs in times.items()}
        return proof.Table(picks, 0)

    ours, smallest = (proof.simulated(made_by, proof.truth(), 2) for made_by in (proof.by_tune, by_smallest))
    assert ours.slower_by_2 <= 0.01 * ours.cells < smallest.slower_by_2


@pytest.mark.skipif(rig.missing() is not None, reason=str(rig.missing()))
@pytest.mark.slow
def test_a_csv_for_nccl_is_checked_on_virtual_gpus(tmp_path):
    """`python -m proof --only virtual-tune` checks all steps with NCCL, from the race to the crossovers."""
    rule = {"gpus": 2, "chosen": "ring.simple", "timed_data": 0} | {
        f"{key}.all_reduce.{name}": value
        for name, (latency_us, rate) in proof.RULE.items()
        for key, value in (("latency_us", latency_us), ("bus_gbps", rate / 1e3))
    }
    (tmp_path / "c.yaml").write_text(
        "backends: [nccl]\nworld_sizes: [2]\noperations: [all_reduce]\nsizes: [16KiB, 16MiB]\n"
        "buffers: reused\nsampling: {seconds_per_case: 20ms}\n"
    )
    library = catalog.Nccl()
    rules = [SizeRule("all_reduce", 2, 0, None, Pick("tree", "ll"))]
    (tmp_path / "own.csv").write_text(library.write(rules, 1))
    done = rig.run(tmp_path, rule, "tune", "c.yaml", "--check", "own.csv", "--budget", "2min", "--no-plots")
    assert done.returncode == 1 and "virtual GPUs: times follow a rule" in done.stdout, done.stdout + done.stderr
    (path,) = tmp_path.glob("results/*/tuned.json")
    small, large = json.loads(path.read_text())["results"]
    for result, size in ((small, 2**14), (large, 2**24)):
        tree_us, ring_us = (proof.RULE[name][0] + size / proof.RULE[name][1] for name in ("tree.ll", "ring.simple"))
        assert result["ratio"]["value"] == pytest.approx(tree_us / ring_us, rel=0.02)
    assert (small["why"], large["why"]) == ("faster", "slower") and "not honoured" not in done.stdout
