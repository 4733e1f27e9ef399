"""Only ranks that know the key of the launch join a process group; features of NCCL reach the groups of a rank.

Strangers are real processes on gloo that know all public values and more, but not the key of the launch. Features of
NCCL are tested with groups that record calls: registered memory, groups that are split off.
"""

import os
import pickle
import subprocess
import sys
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from collbench.catalog import subgroups
from collbench.model.records import Case
from collbench.rank import group, process_group
from collbench.rank.process_group import TorchGroup
from conftest import ROOT
from simulated_device import SimulatedDevice

# Both ranks of a launch. The stranger simulates rank 1 with torch's own functions; its object makes a file if loaded.
PLAY = """
import os, pickle, sys
from pathlib import Path
from types import SimpleNamespace
import torch, torch.distributed as dist
from collbench.protocol.channel import derived
from collbench.rank import process_group

role, folder = sys.argv[1], Path(sys.argv[2])
key, other_key = b"k" * 32, b"x" * 32
store = folder / "store"

class Hostile:
    def __reduce__(self):
        return (os.mknod, (str(folder / "loaded"),))

def member(rank, key):
    context = SimpleNamespace(rank=rank, world_size=2, key=key, barrier=None, rendezvous=f"file:{store}", tick=None)
    return process_group.joined(context, "gloo", 60)

def group_of_torch(prefix):
    dist.init_process_group("gloo", store=dist.PrefixStore(prefix, dist.FileStore(str(store), 2)), rank=1, world_size=2)
    return dist.new_group(backend="gloo")

if role == "rank 0":
    with member(0, key) as group:
        print("gathered", group.gather(0))
elif role == "stranger":
    control = group_of_torch(derived(key, "store").hex())
    guess = torch.ones(32, dtype=torch.uint8)
    for _ in range(2):  # the nonces, then what he takes for a proof
        dist.all_gather([torch.zeros_like(guess) for _ in range(2)], guess, control)
    dist.all_gather_object([None, None], Hostile(), group=control)
elif role == "member who sends objects":
    with process_group.plain_objects(), member(1, key) as group:  # what is his own, he would load, too
        dist.all_gather_object([None, None], Hostile(), group=group._control)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("role", "words"),
    [
        # The stranger has reached the store, knows its prefix, has joined, and is in the group that gathers.
        ("stranger", ["rank 1 does not know the key of this launch"]),
        # An attacker between two hosts could let the proofs pass and change the messages behind the proofs.
        ("member who sends objects", ["mknod", "plain data"]),
    ],
)
def test_no_object_of_somebody_in_the_place_of_a_rank_is_loaded(tmp_path, role, words):
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PLAY, name, str(tmp_path)],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for name in ("rank 0", role)
    ]  # fmt: skip
    printed, _ = started[0].communicate(timeout=240)
    started[1].kill()
    started[1].communicate()
    assert not (tmp_path / "loaded").exists()
    assert all(text in printed for text in words) and "gathered [" not in printed


@pytest.mark.parametrize(
    "value", [Case("barrier", "gloo", 2, "float32", 0), torch.zeros(1), os.getcwd, ValueError("x")]
)
def test_nothing_but_plain_data_is_unpickled(value):
    with pytest.raises(pickle.UnpicklingError, match="plain data need no class"):
        group.unpickled(pickle.dumps(value))


@pytest.fixture
def nccl(monkeypatch):
    """Record the calls to the world and to other groups, in order."""
    log = []

    def group(name):
        backend = SimpleNamespace(
            mem_allocator=f"allocator of {name}",
            register_mem_pool=lambda pool, **how: log.append(("register", name, how)),
            deregister_mem_pool=lambda pool: log.append(("deregister", name, {})),
        )
        return SimpleNamespace(_get_backend=lambda device: backend)

    @contextmanager
    def allocating(pool):
        yield

    monkeypatch.setattr(dist, "group", SimpleNamespace(WORLD=group("world")))
    monkeypatch.setattr(torch.cuda, "MemPool", lambda allocator, **how: log.append(("pool", allocator, how)))
    monkeypatch.setattr(torch.cuda, "use_mem_pool", allocating)
    return SimpleNamespace(log=log, group=group)


def registered(nccl, *groups, symmetric=False):
    with process_group.registered_memory(torch.device("cpu"), groups, symmetric) as register:
        register()
    return nccl.log


def test_symmetric_memory_is_requested_at_registration(nccl):
    log = registered(nccl, None, symmetric=True)
    assert log[0][2] == {} and log[1][2] == {"symm": True}


def test_all_groups_of_a_matching_are_split_off_at_once(monkeypatch):
    splits, made = [], []
    monkeypatch.setattr(dist, "all_reduce", lambda tensor: None)
    minute = timedelta(minutes=1)
    monkeypatch.setattr(dist, "split_group", lambda **how: splits.append((how["split_ranks"], how["timeout"])) or "own")
    monkeypatch.setattr(dist, "new_group", lambda members, **how: made.append(how["timeout"]) or f"group {members}")
    group = TorchGroup(2, 8, "nccl", SimulatedDevice(), None, barrier=lambda: None, timeout=minute)
    case = Case("all_reduce", "nccl", 8, "float32", 4096, groups=subgroups.parse("contiguous:2"))
    assert group.subgroup(case).handle == "own" and splits == [([[0, 1], [2, 3], [4, 5], [6, 7]], minute)]
    assert group.subgroup(case).handle == "own" and len(splits) == 1
    # The operation new_group measures torch's new_group.
    assert group.new_subgroup(case).handle == "group [2, 3]" and made == [minute] * 4 and len(splits) == 1
