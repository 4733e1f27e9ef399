"""A budget measures everything once, and then buys launches for the cases with the widest intervals."""

import dataclasses
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest

from collbench.analyze.analysis import analyze
from collbench.config.models import parse
from collbench.launch.sweep import Spent, next_launch
from collbench.machine import host
from collbench.model.records import Case, Launch, Plan
from collbench.planning.plan import expand
from collbench.report import document
from collbench.report.view import View
from collbench.stats.intervals import FEWEST_BLOCKS
from conftest import SAMPLING, invented_run, samples

STEADY, WILD = (Case("all_reduce", "gloo", 2, "float32", size) for size in (4096, 65536))


def spent_on(levels: dict[Case, list[float]]) -> tuple[Plan, Spent]:
    made = [
        samples(case, launch, np.full((20, 2), level * 1e6))
        for case, values in levels.items()
        for launch, level in enumerate(values, start=1)
    ]
    plan = dataclasses.replace(invented_run(made, launches=3).plan, budget_s=60.0)
    spent = Spent()
    for launch_samples in made:
        spent.add(launch_samples)
    return plan, spent


@pytest.mark.parametrize(
    ("levels", "left_s", "cases"),
    [
        ({STEADY: [1.0, 1.001, 1.0, 1.0, 1.0], WILD: [1.0, 1.5, 2.0, 1.0, 1.5]}, 30.0, (WILD,)),
        # The widest comes first where not all fit: each case costs a second.
        ({STEADY: [1.0, 1.2, 1.1], WILD: [1.0, 1.5, 2.0]}, 1.5, (WILD,)),
        ({STEADY: [1.0, 1.2, 1.1], WILD: [1.0, 1.5, 2.0]}, 30.0, (WILD, STEADY)),
        ({STEADY: [1.0, 1.001, 1.0, 1.0, 1.001]}, 30.0, None),
        ({STEADY: [1.0, 1.001, 1.0, 1.0]}, 30.0, (STEADY,)),  # four launches may agree by chance
        ({WILD: [1.0, 1.5, 2.0]}, 0.5, None),  # the time is spent
        ({STEADY: [1.0]}, 30.0, (STEADY,)),  # one launch is never narrow, and a case that never worked stays out
    ],
)
def test_only_cases_with_too_wide_an_interval_are_measured_again_while_there_is_time(levels, left_s, cases):
    launch = max(map(len, levels.values())) + 1
    assert next_launch(*spent_on(levels), left_s) == ([Launch("gloo", 2, launch, cases)] if cases else [])


BUDGETED = """
backends: [gloo]
world_sizes: [2]
launches: 2
operations: [all_reduce]
sizes: [4KiB, 64KiB]
sampling: {warmup: 1, warmup_seconds: 0, relative_error: 0.000001}
budget: 3s
buffers: hot
"""


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (0.5, "Stopped: every interval is within 50 %."),
        (0.001, "Stopped after 8 launches, with a budget of 60 s."),
        (None, "Stopped after 8 launches, with a budget of 60 s."),
    ],
)
def test_a_run_with_a_budget_says_why_it_stopped(error, sentence):
    """The run has eight launches, each 2 % slower than the launch before."""
    case = Case("all_reduce", "gloo", 2, "float32", 1024)
    run = invented_run([samples(case, n, [[1e6 * (1 + n / 50)] * 2] * 12) for n in range(1, 9)], launches=8)
    settings = dataclasses.replace(run.plan.settings, sampling=dataclasses.replace(SAMPLING, relative_error=error))
    budgeted = dataclasses.replace(run, plan=dataclasses.replace(run.plan, budget_s=60.0, settings=settings))
    assert sentence in document.answer(View(budgeted, analyze(budgeted)))
    assert not [text for text in document.answer(View(run, analyze(run))) if text.startswith("Stopped")]


@pytest.mark.slow
def test_a_real_run_spends_its_budget_and_resumes_with_what_is_left(warm, monkeypatch):
    # Each look at the clock takes half a second, so how fast this machine is does not matter.
    monkeypatch.setattr("collbench.launch.sweep.time", SimpleNamespace(monotonic=count(0, 0.5).__next__))
    done = warm("run", warm.config(BUDGETED), "--no-plots")
    assert done.returncode == 0, done.stderr
    run = warm.only_run()
    assert run.manifest["status"] == "complete"
    keys = [(s.case.key, s.launch) for s in run.samples]
    assert len(keys) == len(set(keys)) > run.plan.total  # more launches than were planned
    assert max(s.launch for s in run.samples) <= 7  # then 3 s are over
    assert [s.launch for s in run.samples[:2]] == [1, 1]  # every case once, before any case twice
    assert "missing" not in done.stdout
    assert warm("resume", "tiny", "--no-plots").returncode == 0


def test_a_budget_shortens_each_case_but_never_below_the_fewest_iterations(warm):
    plan = expand(parse(BUDGETED.replace("budget: 3s", "budget: 1s").encode(), "b"), host.machine(), 1)
    assert plan.settings.sampling.seconds_per_case < 0.1
    done = warm("run", warm.config(BUDGETED.replace("budget: 3s", "budget: 1s")), "--no-plots")
    assert done.returncode == 0, done.stderr
    run = warm.only_run()
    assert {s.case.size_bytes for s in run.samples} == {4096, 65536}
    assert all(len(s.timed.duration_ns) >= FEWEST_BLOCKS for s in run.samples)
