"""What a library leaves in the ranks of a run is reported; a library without effects gets no notice."""

from dataclasses import replace

from collbench.analyze.joining import facts, notices
from collbench.machine import host
from collbench.model.records import Case
from collbench.rank import torch_names
from collbench.report.notices import sentences
from conftest import invented_run, samples


def test_ranks_of_gloo_are_recorded_before_in_and_after_the_group(warm):
    assert warm("run", warm.config(), "--no-plots").returncode == 0
    seen = warm.only_run().environment[0]["launches"][0]["ranks"][0]["seen"]
    before, joined = seen["before"]["joining"], seen["joined"]["joining"]
    assert sum(joined["threads"].values()) > sum(before["threads"].values())
    if torch_names.version() >= host.LOOP_THREAD_NAMED:
        assert joined["threads"]["gloo_tcp_loop"] >= 1 and "gloo_tcp_loop" not in before["threads"]
    assert joined["files"]["socket"] > before["files"]["socket"] and before["memory_bytes"] > 2**20
    assert set(before["policies"]) == {"normal"} and before["affinity"] == joined["affinity"]


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


def test_a_damaged_record_gives_no_notices_and_no_facts():
    assert notices(run_with("many")) == [] and facts(run_with({"file": 3}, threads="3")) == {}
