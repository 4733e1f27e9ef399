"""The live table of a run shows the results so far, fits the screen, and is drawn only while no call is timed."""

import io
import re
import signal
import time
from dataclasses import replace

import pytest
from rich.console import Console

from collbench.analyze.summaries import headlines
from collbench.launch import sweep, turns
from collbench.model.records import Case, Launch, Plan, Settings
from collbench.planning.plan import launch_s
from collbench.report.live import LiveTable
from collbench.report.progress import CaseProgress, TimeLeft
from collbench.store.encoding import SampleLine, samples_to_line
from conftest import SAMPLING, invented_run, samples

SIZES = (1024, 65536, 2**20)
CASES = [Case("all_reduce", "gloo", n, "float32", size) for n in (2, 4) for size in SIZES]


def lines_of(launches, cases=CASES):
    for launch in range(1, launches + 1):
        for case in cases:
            ms = 1 + launch / 50 + case.size_bytes / 2**20
            yield SampleLine(samples_to_line(samples(case, launch, [[ms * 1e6] * case.world_size] * 12)))


def live_with(launches, cases=CASES):
    run = invented_run([line.samples for line in lines_of(1)], launches=8)
    live = LiveTable(replace(run, samples=[]), headlines)
    for line in lines_of(launches, cases):
        live.take(line)
    return live


@pytest.mark.parametrize(("launches", "trust"), [(1, "1.02 ms"), (3, "1.04 ms [1.02 – 1.06 ms]"), (8, "1.09 ms [")])
def test_each_cell_has_its_time_and_its_interval(launches, trust):
    text = "\n".join(live_with(launches).lines(100, 30))
    assert "2 ranks" in text and "4 ranks" in text and "1 MiB" in text
    assert trust in text and ("each):" in text) == (launches == 1)


def test_numbers_come_as_they_are_measured():
    live = LiveTable(invented_run([], launches=8), headlines)
    assert live.lines(100, 30) == [] and live.so_far() == ""
    for line in list(lines_of(1))[:3]:
        live.take(line)
    text = "\n".join(live.lines(100, 30))
    assert "2 ranks" in text and "4 ranks" not in text
    assert live.so_far() == "so far all_reduce 1 KiB 1.02 ms … 1 MiB 2.02 ms (2 ranks)"


@pytest.mark.parametrize("width", [40, 80, 100])
@pytest.mark.parametrize("height", [3, 5, 12, 30])
def test_the_table_fits_the_screen(width, height):
    """If the table does not fit, the cases that matter are listed, and the first line states so."""
    lines = live_with(3).lines(width, height)
    assert len(lines) <= height and all(len(line) <= width for line in lines)
    if 4 <= height < 7:
        assert lines[0].startswith(f"{height - 1} of 6 cases"[:width])


def test_the_table_is_above_the_bar_on_a_terminal_and_a_line_elsewhere():
    launch = Launch("gloo", 4, 2, tuple(CASES[3:]))
    for terminal in (True, False):
        output = io.StringIO()
        console = Console(file=output, width=90, height=30, force_terminal=terminal)
        with CaseProgress(console, 48, 6, live_with(1), 8) as progress:
            progress.launching(launch)
            progress.round_begins(launch, 0)
        text = output.getvalue()
        assert "launch 2 of 8" in text
        assert ("─────" in text) == terminal and ("so far all_reduce" in text) != terminal


def test_the_interval_within_one_launch_is_not_named():
    """400 calls of one launch have an interval, but the interval does not hold for other launches."""
    live = LiveTable(invented_run([], launches=8), headlines)
    live.take(SampleLine(samples_to_line(samples(CASES[0], 1, [[1e6] * 2] * 400))))
    (summary,) = live._current()
    assert summary.time_s.known and "interval" not in live.so_far()


def test_first_times_are_shown_until_their_launch_has_ended():
    live = LiveTable(invented_run([], launches=8), headlines)
    first, complete = (
        SampleLine(samples_to_line(samples(CASES[0], 1, [[ms * 1e6] * 2] * count))) for ms, count in ((3, 4), (2, 40))
    )
    live.first = [first]
    assert live.so_far() == "so far all_reduce 1 KiB 3.00 ms (2 ranks)" and "3.00 ms" in "\n".join(live.lines(100, 30))
    live.take(complete)
    assert live.so_far() == "so far all_reduce 1 KiB 2.00 ms (2 ranks)"


def test_first_times_are_the_first_blocks_of_the_kept_samples(launcher, tmp_path):
    """The ranks of a first launch report first times, the ranks of later launches do not."""
    kept, first = [], []

    class Observer(sweep.Silent):
        def first_times(self, lines):
            assert not kept  # while the launch goes on
            first.extend(line.samples for line in lines)

    settings = Settings(replace(SAMPLING, warmup=1, seconds_per_case=0.05), 7, 60.0, 0)
    for number in (1, 2):
        plan = Plan("first", (Launch("gloo", 2, number, tuple(CASES[:3])),), (), 1, settings)
        turns.drive(sweep.sweep(plan, [], launcher, kept.append, tmp_path / "log.txt", lambda _: None, Observer()))
    assert [samples.case for samples in first] == CASES[:3]
    for early, line in zip(first, kept, strict=False):
        late, count = line.samples, len(early.timed.duration_ns)
        assert early.case == late.case and early.usage is None and len(early.timed.blocks) == 1
        assert 0 < count < len(late.timed.duration_ns)
        assert (early.timed.duration_ns == late.timed.duration_ns[:count]).all()


def test_the_time_that_is_left_is_the_estimate_at_first():
    output = io.StringIO()
    console = Console(file=output, width=100, height=30, force_terminal=True)
    launch = Launch("gloo", 4, 1, tuple(CASES[3:]))
    settings = Settings(replace(SAMPLING, iterations=None, seconds_per_case=3671.0), 7, 60.0, 0)
    left = TimeLeft(Plan("long", (launch,), (), 1, settings))
    with CaseProgress(console, 48, 0, None, 8, left) as progress:
        progress.launching(launch)
    assert "left 3:03:" in re.sub(r"\x1b\[[0-9;]*m", "", output.getvalue())


def test_the_time_that_is_left_follows_the_launches_that_were_made():
    """Launches of four and of two ranks have equal estimates, but those of four ranks take twice as long."""
    order = [
        Launch("gloo", ranks, number, (case,)) for number in (1, 2, 3) for ranks, case in ((4, CASES[3]), (2, CASES[0]))
    ]
    settings = Settings(replace(SAMPLING, iterations=None, seconds_per_case=10.0), 7, 60.0, 0)
    now = [0.0]
    left = TimeLeft(Plan("two", tuple(order), (), 3, settings), lambda: now[0])
    estimates = [launch_s(launch, settings) for launch in order]
    assert left.seconds() == pytest.approx(sum(estimates))
    for launch in order[:2]:
        left.launching(launch)
        now[0] += 20.0 if launch.world_size == 4 else 10.0
    left.launching(order[2])
    assert left.seconds() == pytest.approx(20.0 + 10.0 + 20.0 + 10.0)
    now[0] += 15.0
    assert left.seconds() == pytest.approx(5.0 + 10.0 + 20.0 + 10.0)
    now[0] += 15.0  # longer than the previous launch
    assert left.seconds() == pytest.approx(10.0 + 20.0 + 10.0)


def test_launches_of_one_number_that_need_processes_of_their_own_all_count():
    """A graph needs a launch in addition to the launch of the other calls, with as many ranks."""
    calls, graph = (Case("all_reduce", "nccl", 2, "float32", 1024, metric=metric) for metric in ("isolated", "graph"))
    order = [Launch("nccl", 2, 1, (calls,)), Launch("nccl", 2, 1, (graph,))]
    settings = Settings(replace(SAMPLING, iterations=None, seconds_per_case=10.0), 7, 60.0, 0)
    now = [0.0]
    left = TimeLeft(Plan("two", tuple(order), (), 1, settings), lambda: now[0])
    each = launch_s(order[0], settings)
    assert left.seconds() == pytest.approx(2 * each)
    left.launching(order[0])
    now[0] += 2 * each
    left.launching(order[1])
    assert left.seconds() == pytest.approx(2 * each)
    left.launching(replace(order[1], number=0))  # this launch reads the choices of the library
    assert left.seconds() == 0.0


def test_the_time_that_is_left_of_a_budget_is_the_unspent_part():
    now = [5.0]
    left = TimeLeft(Plan("b", (), (), 1, Settings(SAMPLING, 7, 60.0, 0), budget_s=30.0), lambda: now[0])
    now[0] += 12.0
    assert left.seconds() == 18.0
    now[0] += 60.0
    assert left.seconds() == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_shows_the_results_so_far(cli, number):
    path = cli.config(
        "name: long\nbackends: [gloo]\nworld_sizes: [2]\noperations: [all_reduce]\nsizes: [1KiB]\nlaunches: 200\n"
    )
    process = cli.start("run", path, "--no-plots")
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if cli.runs() and (lines := cli.runs()[0] / "samples.jsonl").exists() and lines.read_bytes().count(b"\n") > 1:
            break
        time.sleep(0.1)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "1 KiB" in out and "INCOMPLETE: " in out and "collbench resume" in out
    assert "interrupted; measured cases are kept" in err
    assert (cli.runs()[0] / "report.html").exists() and not cli.processes()
