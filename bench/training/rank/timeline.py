"""Record one step of a strategy in detail: when each gradient was ready, when each call was launched and done.

In: a traced `Runner` on every rank. Out: a `Timeline`. The step is not one of the timed steps, because a stamp for each
gradient takes time.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from bench.machine import host
from bench.model.records import Json
from bench.rank.group import Group
from bench.training.rank.runner import Batch, Runner
from bench.training.records import CallRecord, Gradient, RankTimeline, Scenario, Timeline
from bench.training.strategies import label

# torch rebuilds its buckets after the first backward; the third step is like all that follow.
STEPS = 3


def timeline(runner: Runner, scenario: Scenario, launch: int, batches: Sequence[Batch], group: Group) -> Timeline:
    """The same on every rank."""
    transport = runner.transport
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
    ranks = [_from_json(data) for data in group.gather(asdict(_recorded(runner, group.rank, began)))]
    named = [(name.removeprefix("module."), p) for name, p in runner.sync.module.named_parameters() if p.requires_grad]
    gradients = tuple(Gradient(name, p.numel(), p.numel() * p.element_size()) for name, p in named)
    # Clocks of different hosts cannot be compared; the ranks have left one barrier.
    one_host = len(set(group.gather(host.hostname()))) == 1
    first = min(line.begin_s for line in ranks)
    return Timeline(
        scenario.key,
        launch,
        label(runner.strategy),
        gradients if scenario.shape is None else scenario.shape.gradients,
        tuple(replace(line, begin_s=line.begin_s - first if one_host else 0.0) for line in ranks),
    )


def _recorded(runner: Runner, rank: int, began: int) -> RankTimeline:
    """The last step of this rank. began: when it began, in ns of the host's clock."""
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


def _from_json(data: Json) -> RankTimeline:
    """The inverse of `asdict`, after a way as JSON."""
    calls = tuple(CallRecord(**call | {"parameters": tuple(call["parameters"])}) for call in data["calls"])
    return RankTimeline(**data | {"calls": calls, "ready_s": tuple(data["ready_s"])})
