"""Record one step of a strategy in detail: when each gradient was ready, when each call was launched and done.

In: a strategy in its scenario, on every rank. Out: a `Timeline`. The step is not one of the timed steps, because a
stamp for each gradient takes time.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from bench.machine import host
from bench.model.records import Json
from bench.rank.group import Group
from bench.training.rank import runner as runners
from bench.training.rank.runner import Batch, RankInfo, Runner
from bench.training.rank.shared_tensors import SharedTensors
from bench.training.rank.transport import Transport
from bench.training.records import CallRecord, Gradient, RankTimeline, Scenario, Strategy, Timeline
from bench.training.strategies import label

# torch rebuilds its buckets after the first backward; the third step is like all that follow.
STEPS = 3


def timeline(
    strategy: Strategy,
    scenario: Scenario,
    place: RankInfo,
    transport: Transport,
    order: Sequence[int],
    seed: int,
    batches: Sequence[Batch],
    group: Group,
    launch: int,
    shared: SharedTensors,
) -> Timeline:
    """The same on every rank."""
    runner = runners.build(strategy, scenario, place, transport, order, seed, traced=True, shared=shared)
    host_clock, began = transport.mark, 0
    transport.mark = runner.watch.mark
    for number in range(STEPS):
        transport.sent.clear()
        transport.stamped = number == STEPS - 1
        group.barrier()
        began = time.perf_counter_ns()
        runner.step(batches[number % len(batches)])
    transport.stamped, transport.mark = False, host_clock
    group.synchronize()
    group.barrier()
    ranks = [_line_of(data) for data in group.gather(asdict(_line(runner, place.rank, began)))]
    gradients = scenario.shape.gradients if scenario.shape is not None else _gradients(runner)
    # Clocks of different hosts cannot be compared; the ranks have left one barrier.
    one_host = len(set(group.gather(host.hostname()))) == 1
    first = min(line.begin_s for line in ranks)
    moved = tuple(
        RankTimeline(
            line.rank, line.begin_s - first if one_host else 0.0, line.forward_s, line.backward_s, line.usable_s,
            line.end_s, line.ready_s, line.calls,
        )
        for line in ranks
    )  # fmt: skip
    return Timeline(scenario.key, launch, label(strategy), gradients, moved)


def _gradients(runner: Runner) -> tuple[Gradient, ...]:
    named = [(name.removeprefix("module."), p) for name, p in runner.sync.module.named_parameters() if p.requires_grad]
    return tuple(Gradient(name, p.numel(), p.numel() * p.element_size()) for name, p in named)


def _line_of(data: Json) -> RankTimeline:
    """The inverse of `asdict`, after a way as JSON."""
    calls = tuple(CallRecord(**call | {"parameters": tuple(call["parameters"])}) for call in data["calls"])
    return RankTimeline(**data | {"calls": calls, "ready_s": tuple(data["ready_s"])})


def _line(runner: Runner, rank: int, began: int) -> RankTimeline:
    begin, forward, backward, usable, *_, end = runner.marks

    def since(instant: Any) -> float:
        return runner.watch.between(begin, instant) / 1e9

    ready = tuple(since(runner.ready.get(number, backward)) for number in range(len(runner.parameters)))
    calls = []
    for at, sent in enumerate(runner.transport.sent):
        numbers = tuple(runner.sync.buckets[at]) if runner.sync.buckets else ()
        launched = since(sent.launched_ns)
        complete = max((ready[number] for number in numbers), default=launched)
        calls.append(CallRecord(sent.nbytes, complete, launched, since(sent.done_ns or usable), numbers))
    return RankTimeline(
        rank, began / 1e9, since(forward), since(backward), since(usable), since(end), ready, tuple(calls)
    )
