"""A training plan: models that do not fit into memory are refused with the numbers; misleading settings are noted."""

from dataclasses import replace

import pytest

from collbench.config.models import parse
from collbench.model.records import Machine
from collbench.packages.training.synchronisation import strategy_in
from collbench.planning.plan import expand
from collbench.report.notices import sentence

HOST = Machine("h", 4, 2**34, 2**25, 0, {})
TWO_GPUS = replace(HOST, gpus=2, gpu_free_bytes=10 * 2**30)


def planned(section: str, machine: Machine = HOST, backend: str = "gloo"):
    text = f"backends: [{backend}]\nworld_sizes: [2]\ntraining: {{{section}}}\n"
    return expand(parse(text.encode(), "x.yaml", [], "x"), machine, 1)


def on(backend: str, model: str, machine: Machine):
    return planned(f"models: [{model}], strategies: [flat]", machine, backend)


def test_unknown_memory_refuses_nothing_and_gpus_need_no_memory_of_the_host():
    assert on("nccl", "xl-2026", replace(TWO_GPUS, gpu_free_bytes=None)).order
    assert on("nccl", "tiny", replace(TWO_GPUS, memory_available_bytes=2**20)).order


@pytest.mark.parametrize(
    ("backend", "ranks", "more", "why"),
    [
        ("gloo", 1, [], "nothing to synchronise"),
        ("nccl", 1, [], None),
        ("nccl", 2, [], "oversubscribe_gpu"),
        ("nccl", 2, ["oversubscribe_gpu=true"], None),
    ],
)
def test_a_step_may_be_tried_on_one_gpu(backend, ranks, more, why):
    text = f"backends: [{backend}]\nworld_sizes: [{ranks}]\ntraining: {{models: [micro], strategies: [flat, ddp]}}\n"
    plan = expand(parse(text.encode(), "x.yaml", more, "x"), replace(TWO_GPUS, gpus=1), 1)
    tried = [case for case in plan.cases if strategy_in(case).name == "flat"]
    assert bool(tried) == (why is None) and all(case.oversubscribed == bool(more) for case in tried)
    assert any((why or "nothing to") in sentence(skip.reason) for skip in plan.skips) == (why is not None)
