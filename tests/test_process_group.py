"""What only NCCL has, by groups that note what is asked of them: registered memory, groups that are split off."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from bench.model.records import Case
from bench.rank import process_group, torch_names
from bench.rank.process_group import TorchGroup
from simulated_device import SimulatedDevice


@pytest.fixture
def nccl(monkeypatch):
    """What is asked of the world and of other groups, in order."""
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


def test_memory_is_registered_with_the_groups_of_this_rank_and_given_back(nccl):
    log = registered(nccl, None, nccl.group("pair"))
    assert [entry[:2] for entry in log] == [
        ("pool", "allocator of world"),
        *(("register", "world"), ("register", "pair")),
        *(("deregister", "pair"), ("deregister", "world")),
    ]


def test_a_rank_in_no_group_registers_with_none(nccl):
    """The others register with groups of theirs: with the world, it alone would wait for them."""
    assert [entry[0] for entry in registered(nccl)] == ["pool"]


@pytest.mark.parametrize(("version", "of_pool", "of_registration"), [((2, 8), True, False), ((2, 9), False, True)])
def test_symmetric_memory_is_asked_for_as_the_version_wants_it(nccl, monkeypatch, version, of_pool, of_registration):
    monkeypatch.setattr(torch_names, "version", lambda: version)
    log = registered(nccl, None, symmetric=True)
    assert log[0][2] == ({"symmetric": True} if of_pool else {})
    assert log[1][2] == ({"symm": True} if of_registration else {})


def test_all_groups_of_a_matching_are_split_off_at_once(monkeypatch):
    asked, made = [], []
    monkeypatch.setattr(dist, "all_reduce", lambda tensor: None)
    monkeypatch.setattr(dist, "split_group", lambda **how: asked.append(how["split_ranks"]) or "own")
    monkeypatch.setattr(dist, "new_group", lambda members, **how: made.append(members) or f"group {members}")
    group = TorchGroup(2, 8, "nccl", SimulatedDevice(), None, barrier=lambda: None)
    case = Case("all_reduce", "nccl", 8, "float32", 4096, groups="contiguous:2")
    assert group.subgroup(case).handle == "own" and asked == [[[0, 1], [2, 3], [4, 5], [6, 7]]]
    assert group.subgroup(case).handle == "own" and len(asked) == 1
    # What is measured under the name of new_group is new_group.
    assert group.new_subgroup(case).handle == "group [2, 3]" and len(made) == 4 and len(asked) == 1
