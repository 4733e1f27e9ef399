"""A training run that does not fit into the memory of the host, or of a GPU, is refused with the numbers."""

from dataclasses import replace

import pytest

from bench.model.capabilities import Machine
from bench.training.config import parse
from bench.training.plan import expand

HOST = Machine("h", 4, 2**34, 2**25, 0, {})
TWO_GPUS = replace(HOST, gpus=2, gpu_free_bytes=10 * 2**30)


def planned(backend: str, model: str, machine: Machine):
    text = f"benchmark: training\nbackends: [{backend}]\nworld_sizes: [2]\nmodels: [{model}]\nstrategies: [flat]\n"
    return expand(parse(text.encode(), "x.yaml", [], "x"), machine, 1)


@pytest.mark.parametrize(
    ("backend", "machine", "said"),
    [("gloo", HOST, "needs 2 × "), ("nccl", TWO_GPUS, "of memory on a GPU for parameters")],
)
def test_what_does_not_fit_is_refused_with_the_numbers(backend, machine, said):
    plan = planned(backend, "xl-2026", machine)
    assert not plan.order
    (skip,) = plan.skips
    assert said in skip.reason and "GiB are available" in skip.reason
    assert planned(backend, "tiny", machine).order


def test_memory_that_is_not_told_refuses_nothing():
    assert planned("nccl", "xl-2026", replace(TWO_GPUS, gpu_free_bytes=None)).order


def test_training_on_gpus_asks_for_no_memory_of_the_host():
    assert planned("nccl", "tiny", replace(TWO_GPUS, memory_available_bytes=2**20)).order
