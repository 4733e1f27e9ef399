"""The live table of a run shows the results so far, fits the screen, and is drawn only while no call is timed."""

import signal
from dataclasses import replace

import pytest

from collbench.analyze.summaries import headlines
from collbench.model.records import Case, Launch, Plan, Settings
from collbench.report.live import LiveTable
from collbench.report.progress import TimeLeft
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


@pytest.mark.parametrize("height", [3, 5, 12, 30])
def test_the_table_fits_the_screen(height):
    """If the table does not fit, the cases that matter are listed, and the first line states so."""
    live = live_with(3)
    for width in (40, 80, 100):
        lines = live.lines(width, height)
        assert len(lines) <= height and all(len(line) <= width for line in lines)
        if 4 <= height < 7:
            assert lines[0].startswith(f"{height - 1} of 6 cases"[:width])


def shown(ms, count):
    """Return a line of samples of the first launch of a case, in which each call took as long."""
    return SampleLine(samples_to_line(samples(CASES[0], 1, [[ms * 1e6] * 2] * count)))


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
