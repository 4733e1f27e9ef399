"""Foreign or damaged files are read, or refused in one line: no traceback, no hang, no gigabytes.

`tests/mutations.py` reads any number of inputs; this test reads a few of each kind.
"""

import pytest

import mutations
from collbench.machine import host
from collbench.store import facts

FEW = 5


@pytest.mark.slow
def test_a_few_mutated_files_of_each_kind():
    for title, result in mutations.examined(FEW, *mutations.kinds()).items():
        assert result["failures"] == [] and sum(result["codes"].values()) >= FEW, title
        assert result["peak_mib"] < mutations.MOST_MIB, title


def test_facts_of_a_machine_have_the_required_shape():
    gpu = {"name": "x", "uuid": "GPU-1", "driver": "580", "memory_bytes": 1, "ecc": "not available", "nvlinks": [4, 4]}
    health = {"h": {"gpus": {"0": {"throttle_reasons": 4, "sm_clock_mhz": 900}}, "infiniband": {"mlx5_0/1": {"x": 1}}}}
    clocks = [[[0, -1, 1], [0, 5, 9]]] * 2
    ranks = [
        {"rank": rank, "hostname": "h", "device": f"cuda:{rank}", "nccl": "2.29.7", "mpi": None} for rank in (0, 1)
    ]
    launch = {"backend": "nccl", "world_size": 2, "launch": 1, "clocks": clocks, "health": health, "ranks": ranks}
    hosts = [{**host.facts(), "gpus": [gpu], "ranks": [0, 1], "cores": [0, 1], "fewest_cores": 1}]
    session = {"host": host.facts(), "before": host.state(), "launches": [launch], "hosts": hosts}
    facts.environment_of([session | {"job": {"launcher": "torchrun", "ranks": 2}}])
    launch["clocks"] = [clocks[0][:1], clocks[1]]
    with pytest.raises(ValueError, match="clocks"):
        facts.environment_of([session])
