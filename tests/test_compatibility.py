"""Processes that do not fit together are named in one line; the others are planned for as their weakest host."""

import copy
import dataclasses
import re

import pytest

from collbench.launch import compatibility
from collbench.launch.job import JobRank
from collbench.model.errors import JobError
from collbench.model.notices import kind_named
from collbench.model.records import Case
from conftest import invented_run, samples, sentences_of_run

RUN = invented_run([samples(Case("all_reduce", "gloo", 4, "float32", 4096), 1, [[1000] * 4] * 10)])


@pytest.fixture(scope="module")
def own():
    place = JobRank("srun", 0, 4, 0, "127.0.0.1", (1,), "x", True)
    return compatibility.handshake(place, lambda: b"asked")


@pytest.fixture
def handshakes(own):
    """Return handshakes of two ranks each on hosts a and b, with a GPU each."""
    made = []
    for rank in range(4):
        msg = copy.deepcopy(own)
        name = "ab"[rank // 2]
        msg |= {"rank": rank, "hostname": name, "gpu": f"GPU-{rank}", "gpus": 2, "affinity": [0, 1], "device": rank % 2}
        msg["host"] |= {"hostname": name, "boot_id": name}
        msg["before"] |= {"load": [0.0, 0.0, 0.0]}
        msg["machine"] |= {"memory_available_bytes": 2**33 - rank * 2**30, "backends_missing": {}}
        made.append(msg)
    return made


def test_equal_processes_are_admitted_and_planned_for_as_the_weakest(handshakes):
    compatibility.check(handshakes)
    compatibility.check_gpus(handshakes)
    machine = compatibility.merged(handshakes)
    assert (machine.ranks, machine.ranks_a_host, machine.gpus, machine.cores) == (4, 2, 4, 4)
    assert machine.memory_available_bytes == 2**33 - 3 * 2**30
    handshakes[3]["machine"]["backends_missing"] = {"nccl": dataclasses.asdict(kind_named("no-gpu")())}
    handshakes[2]["gpu"] = None
    assert compatibility.merged(handshakes).backends_missing == {"nccl": kind_named("no-gpu")(host="b")}
    assert compatibility.merged(handshakes).gpus == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fingerprint": "0123456789"}, "has another configuration (01234567) than rank 0 on host a ("),
        ({"collbench": "0.0.1"}, "has CollBench 0.0.1, rank 0 has "),
        ({"world_size": 8}, "counts 8 ranks, rank 0 counts 4"),
    ],
)
def test_a_rank_that_does_not_fit_is_named(handshakes, change, words):
    handshakes[3] |= change
    with pytest.raises(JobError, match=re.escape(f"rank 3 on host b {words}")):
        compatibility.check(handshakes)
    handshakes[3] |= {"problem": "c.yaml: No such file"}
    with pytest.raises(JobError, match=re.escape("rank 3 on host b: c.yaml: No such file")):
        compatibility.check(handshakes)


def test_two_ranks_on_one_gpu_are_refused_unless_they_may(handshakes):
    handshakes[1]["gpu"] = handshakes[0]["gpu"]
    with pytest.raises(JobError, match="ranks 0 and 1 on host a would share GPU GPU-0"):
        compatibility.check_gpus(handshakes)
    assert compatibility.merged(handshakes).gpus == 1
    handshakes[1] |= {"device": 1, "gpus": 1}
    assert compatibility.device_of(handshakes[1], share=True) == 0


def test_a_rank_that_is_bound_to_one_core_is_reported(handshakes):
    for handshake, core in zip(handshakes, (0, 1, 0, 1), strict=True):
        handshake["affinity"] = [core]
    hosts = compatibility.hosts(handshakes)
    assert hosts[0]["cores"] == [0, 1] and hosts[0]["fewest_cores"] == 1
    hosts[0]["cpu"]["logical_cores"] = hosts[1]["cpu"]["logical_cores"] = 2
    run = dataclasses.replace(RUN, environment=[{"job": {"launcher": "srun", "ranks": 4}, "hosts": hosts}])
    assert "--cpu-bind=none" in "\n".join(sentences_of_run(run, []))
