"""Operations that a job makes once are measured like others: joining, new groups, the first call in a new group."""

import pytest

from collbench.analyze.summaries import summarize
from collbench.model.records import Machine

MACHINE = Machine("h", 2, 16 * 2**30, 32 * 2**20, 0, {})
STARTUP = """
backends: [gloo]
world_sizes: [2]
launches: 2
operations: [init_process_group, new_group, all_reduce]
metrics: [isolated, first]
sizes: [4KiB]
sampling: {warmup: 1, warmup_seconds: 0, iterations: 8}
seed: 1
"""


def test_joining_new_groups_and_first_calls_have_times_with_intervals(warm):
    done = warm("run", warm.config(STARTUP), "--no-plots")
    assert done.returncode == 0, done.stdout + done.stderr
    run = warm.only_run()
    summaries = {(summary.case.op, summary.case.metric): summary for summary in summarize(run)}
    assert set(summaries) == {
        ("init_process_group", "isolated"), ("new_group", "isolated"),
        ("all_reduce", "isolated"), ("all_reduce", "first"),
    }  # fmt: skip
    assert all(summary.time_s.kind == "range of launches" and summary.launches == 2 for summary in summaries.values())
    joining = [samples for samples in run.samples if samples.case.op == "init_process_group"]
    assert all(samples.timed.duration_ns.shape == (1, 2) for samples in joining)
    assert all(summary.time_s.low > 0 for summary in summaries.values())


def test_a_wrong_first_call_is_noticed(warm):
    fault = "faults=[{do: corrupt, rank: 0, iteration: 4}]"
    sets = ["--set", "operations=[all_reduce]", "--set", "metrics=[first]", "--set", fault]
    assert warm("run", warm.config(STARTUP), "--no-plots", *sets).returncode == 1
    assert all(samples.failure.kind == "wrong" for samples in warm.only_run().samples)


@pytest.mark.slow
def test_groups_within_the_world_are_made_anew_too(warm):
    sets = ["--set", "world_sizes=[4]", "--set", "groups=[contiguous:2, strided:2]"]
    assert warm("run", warm.config(STARTUP), "--no-plots", *sets).returncode == 0
