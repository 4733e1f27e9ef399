"""Operations that a job makes once are measured like others: joining, new groups, the first call in a new group.

What a library leaves in the ranks of a run is reported; a library without effects gets no notice.
"""

from dataclasses import replace

import pytest

from collbench.analyze.joining import facts, notices
from collbench.model.records import Case
from collbench.report.notices import sentences
from conftest import invented_run, samples

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


def test_a_wrong_first_call_is_noticed(warm):
    fault = "faults=[{do: corrupt, rank: 0, iteration: 4}]"
    sets = ["--set", "operations=[all_reduce]", "--set", "metrics=[first]", "--set", fault]
    assert warm("run", warm.config(STARTUP), "--no-plots", *sets).returncode == 1
    assert all(s.failure.kind == "wrong" for s in warm.only_run().samples)


@pytest.mark.slow
def test_groups_within_the_world_are_made_anew_too(warm):
    sets = ["--set", "world_sizes=[4]", "--set", "groups=[contiguous:2, strided:2]"]
    assert warm("run", warm.config(STARTUP), "--no-plots", *sets).returncode == 0


# ── what joining leaves ──────────────────────────────────────────────────────────────────────────


def run_with(left, joined=(0, 1), **more):
    """Return a run of one rank, which may use the cores `joined` after joining; the files `left` stay."""

    def state(cores, files):
        return {"joining": {"affinity": list(cores), "threads": {"python": 1}, "files": files, **more}}

    stages = {"before": state((0, 1), {"file": 3}), "joined": state(joined, {"file": 5}), "left": state((0, 1), left)}
    case = Case("all_reduce", "gloo", 2, "float32", 4096)
    session = {"launches": [{"backend": "gloo", "world_size": 2, "launch": 1, "ranks": [{"rank": 0, "seen": stages}]}]}
    return replace(invented_run([samples(case, 1, [[1e6, 1e6]] * 4)]), environment=[session])


def test_a_run_warns_of_cores_that_were_taken_and_of_files_that_stayed():
    assert notices(run_with({"file": 3})) == []
    assert sentences(notices(run_with({"file": 3, "pipe": 2}, joined=(1,)))) == [
        "gloo: joining took cores from a rank: 1 of 2 left (core 1)",
        "gloo: 2 open files of a rank stayed after the end (2 pipe)",
    ]
    assert facts(run_with({"file": 3}))["open files of a rank (gloo)"] == "5"
