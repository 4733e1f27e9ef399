"""The live table of a run shows the results so far, fits the screen, and is drawn only while no call is timed."""

import io
import re
import signal
from dataclasses import replace

import pytest
from rich.console import Console

from collbench.analyze.summaries import headlines
from collbench.launch import sweep, turns
from collbench.model.records import Case, Launch, Plan, Settings
from collbench.report.live import LiveTable
from collbench.report.progress import CaseProgress, TimeLeft
from collbench.store.encoding import SampleLine, samples_to_line
from conftest import SAMPLING, invented_run, samples
from test_faults import wait_for_samples

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
    assert trust in text and ("one launch:" in text) == (launches == 1)


def test_numbers_come_as_they_are_measured():
    live = LiveTable(invented_run([], launches=8), headlines)
    assert live.lines(100, 30) == [] and live.so_far() == ""
    for line in list(lines_of(1))[:3]:
        live.take(line)
    text = "\n".join(live.lines(100, 30))
    assert "2 ranks" in text and "4 ranks" not in text
    assert live.so_far() == "so far all_reduce 1 KiB 1.02 ms … 1 MiB 2.02 ms (2 ranks)"


@pytest.mark.parametrize("height", [3, 5, 12, 30])
def test_the_table_fits_the_screen(height):
    """If the table does not fit, the cases that matter are listed, and the first line states so."""
    live = live_with(3)
    for width in (40, 80, 100):
        lines = live.lines(width, height)
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


def shown(ms, count):
    """Return a line of samples of the first launch of a case, in which each call took as long."""
    return SampleLine(samples_to_line(samples(CASES[0], 1, [[ms * 1e6] * 2] * count)))


def test_the_interval_within_one_launch_is_not_named():
    """400 calls of one launch have an interval, but the interval does not hold for other launches."""
    live = LiveTable(invented_run([], launches=8), headlines)
    live.take(shown(1, 400))
    (summary,) = live._current()
    assert summary.time_s.known and "interval" not in live.so_far()


def test_first_times_are_shown_until_their_launch_has_ended():
    live = LiveTable(invented_run([], launches=8), headlines)
    live.first = [shown(3, 4)]
    assert live.so_far() == "so far all_reduce 1 KiB 3.00 ms (2 ranks)" and "3.00 ms" in "\n".join(live.lines(100, 30))
    live.take(shown(2, 40))
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


KINDS = (CASES[0], CASES[3], replace(CASES[0], scheduling="batch"))


def clocked(launches, now, **fields):
    """Return the launches of each of the KINDS, and their time left by the clock `now`. fields: of the plan."""
    order = [Launch("gloo", case.world_size, number, (case,)) for number in range(1, launches + 1) for case in KINDS]
    settings = Settings(replace(SAMPLING, iterations=None, **fields.pop("sampling", {})), 7, 60.0, 0)
    return order, TimeLeft(Plan("clocked", tuple(order), (), launches, settings, **fields), lambda: now[0])


@pytest.mark.parametrize(
    ("duration_s", "least", "unforeseen"),
    [
        (lambda kind, number: 5.0, 0.7, ()),
        (lambda kind, number: (1.0, 8.0, 60.0)[kind], 0.5, ()),  # of different sizes
        (lambda kind, number: 5.0 * (1 + (7 * number + 3 * kind) % 5 / 8), 0.5, ()),  # noisy
        (lambda kind, number: 5.0 * (1 + number / 20), 0.5, ()),  # slower and slower
        # Nothing announces the change. Soon after it no time is shown, and then the right one.
        (lambda kind, number: 5.0 * (1 + (number > 8)), 0.3, range(2, 10)),
    ],
)
def test_the_time_left_is_right_or_absent_from_the_second_launch_on(duration_s, least, unforeseen):
    now, moments = [0.0], []
    order, left = clocked(16 if unforeseen else 8, now)
    for launch in order:
        ends = now[0] + duration_s(KINDS.index(launch.cases[0]), launch.number)
        while now[0] < ends:
            left.launching(launch)  # at each look
            moments.append((launch.number, left.seconds(), now[0]))
            now[0] += min(1.0, ends - now[0])
    shown = [(number, left_s / (now[0] - at)) for number, left_s, at in moments if left_s is not None]
    assert shown[0][0] > 1 and len(shown) > least * len(moments)
    assert all(1 / 1.5 <= ratio <= 1.5 for number, ratio in shown if number not in unforeseen)


@pytest.mark.parametrize(("precision", "left_s"), [(None, 50.0), (0.05, None)])
def test_the_time_left_of_a_budget_is_the_unspent_part_if_no_precision_ends_the_run(precision, left_s):
    now = [5.0]
    order, left = clocked(2, now, budget_s=100.0, sampling={"relative_error": precision})
    for launch in order[: len(KINDS) + 1]:
        left.launching(launch)
        now[0] += 12.5
    assert left.seconds() == (left_s and pytest.approx(left_s, abs=3))


def test_no_column_of_the_bar_is_cut(monkeypatch):
    """What is done, which may be long, has a line of its own."""
    launch = replace(Launch("gloo", 4, 2, tuple(CASES[3:])), backend="a backend with a name of fifty-two characters")
    output, (_, left) = io.StringIO(), clocked(1, [0.0])
    monkeypatch.setattr(left, "seconds", lambda: 3671.0)
    console = Console(file=output, width=80, height=30, force_terminal=True)
    with CaseProgress(console, 1048, 600, None, 8, left) as progress:
        progress.launching(launch)
        progress.round_begins(launch, 12)
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output.getvalue()).splitlines()
    assert any(re.fullmatch(r"━.* 600/1048 0:00:00 left 1:01:11", line.strip()) for line in lines)


@pytest.mark.slow
def test_an_interrupt_shows_the_results_so_far(cli):
    path = cli.config(
        "name: long\nbackends: [gloo]\nworld_sizes: [2]\noperations: [all_reduce]\nsizes: [1KiB]\nlaunches: 200\n"
    )
    process = cli.start("run", path, "--no-plots")
    wait_for_samples(cli, 2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "1 KiB" in out and "INCOMPLETE: " in out and "collbench resume" in out
    assert "interrupted; measured cases are kept" in err
    assert (cli.runs()[0] / "report.html").exists() and not cli.processes()
