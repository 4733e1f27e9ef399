"""A model by its shape takes no memory and no computing; gradients are never early, calls have the right bytes."""

import resource
from dataclasses import replace

import pytest

from collbench.analyze.analysis import analyze
from collbench.packages.training.conclusions import training_of
from collbench.packages.training.planning import buckets
from collbench.packages.training.planning.buckets import ReadyTimes
from collbench.packages.training.planning.steps import shape_of
from collbench.packages.training.synchronisation import REFERENCE, Strategy, strategy_in
from collbench.report.notices import sentence
from collbench.store import folders

NANO = shape_of("nano", 0.01, "float32")
RUN = """
backends: [gloo]
world_sizes: [2]
launches: 1
training:
  models: [nano, {shape: nano, backward: 10ms}]
  links: [real, 1ms + 100MB/s]
  rounds: 2
  steps: 1
  strategies: [naive, flat, {overlap_bucket: {cap: 64KiB}}, {plan: {buckets: [BUCKETS]}}, ddp]
"""


@pytest.mark.slow
def test_a_shape_is_trained_like_a_model_and_no_emulated_link_is_faster_than_it_should_be(warm):
    profile = ReadyTimes.of_shape(NANO)
    sizes = buckets.bucket_bytes(profile, buckets.uniform(profile, 2**18))
    done = warm("run", warm.config(RUN.replace("BUCKETS", ", ".join(map(str, sizes)))), "--no-plots")
    assert done.returncode == 0, done.stderr
    run = folders.read(warm.runs()[0])
    assert [strategy_in(skip.case).name for skip in run.plan.skips] == ["ddp", "ddp"]
    assert all("a shape has no parameters" in sentence(skip.reason) for skip in run.plan.skips)
    scenarios = training_of(analyze(run)).scenarios
    assert len(scenarios) == 4
    for scenario in (each.scenario for each in scenarios):
        results = {r.label: r for each in scenarios if each.scenario == scenario for r in each.results}
        assert all(result.step is not None for result in results.values())
        held = {check.invariant for check in results["flat"].checks if check.ok}
        assert {"I2", "I3", "I5", "I6"} <= held
        assert ("I1" in held) == (scenario.link is None and scenario.shape is None)
        assert results["flat"].calls == (profile.total,)
        assert next(result for name, result in results.items() if name.startswith("plan")).calls == sizes
        if scenario.shape is not None:
            assert results["none"].step.low > max(NANO.ready_s)
        if scenario.link is not None:
            for name, least_s in (("flat", 1e-3 + profile.total / 1e8), ("naive", len(NANO.gradients) * 1e-3)):
                assert min(results[name].split.tail_s, results[name].calls_alone_s) >= least_s

    references = [entry for entry in run.samples if strategy_in(entry.case) == Strategy(REFERENCE)]
    steps = [entry.detail.timeline for entry in references if entry.case.own.model.startswith("shape")]
    assert len(steps) == 2
    for step in steps:
        assert step.gradients == NANO.gradients
        for line in step.ranks:  # no gradient is ready before its time, and the last registered is first
            assert all(ready >= due for ready, due in zip(line.ready_s, NANO.ready_s, strict=True))
            assert sorted(line.ready_s, reverse=True) == list(line.ready_s)


def test_a_shape_takes_no_memory():
    import torch

    from collbench.packages.training.rank.models import ByShape

    shape = shape_of("xl-2026", 0.0, "float32")
    model = ByShape(replace(shape, ready_s=tuple(0.0 for _ in shape.ready_s)), torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.zeros(1)).backward()
        optimizer.step()
    assert sum(p.numel() for p in model.parameters()) > 3.4e9
    assert all(p.grad is not None for p in model.parameters())
    # Gradients and momentum would be 27 GB.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20
