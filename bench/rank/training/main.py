"""Run one rank of a training launch: join the others, check every strategy, then time all strategies in rounds.

In: a RankContext and a TrainingJob. Out, over the pipe: the messages of `protocol.messages`. The payload of `sampled`
is a fact of `training.records`. The index in `begin` is the number of the strategy that is checked, or the number of
strategies when the rounds begin.
"""

from __future__ import annotations

import gc
import os
import random
import resource
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from bench.catalog.backends import BACKENDS
from bench.catalog.strategies import kind, label
from bench.machine import environment, host
from bench.model.records import Json
from bench.model.training import (
    CallRecord,
    CallSizePoint,
    CallSizeSweep,
    CommunicationOnly,
    Fact,
    Gradient,
    InvariantCheck,
    RankTimeline,
    Round,
    Strategy,
    StrategyChecks,
    TimedBlock,
    Timeline,
    TrainingJob,
)
from bench.protocol.rank_context import RankContext
from bench.rank.group import Group
from bench.rank.process import facts, joined, one_line, run_rank, wait_to_begin
from bench.rank.training import invariants, synchronisers, torch_synchronisers, transport
from bench.rank.training import runner as runners
from bench.rank.training.invariants import CheckContext
from bench.rank.training.runner import RankInfo, Runner
from bench.rank.training.transport import EmulatedLink, ProcessGroupTransport, SharedTensors, Transport
from bench.training.encoding import fact_to_line

# Timed repetitions of a strategy's calls alone, and of a call-size point; an untimed one precedes them.
REPEATS = 5
# Modules in which a rank waits for the others: for the link, and for gradients.
WAITS_IN = (transport, synchronisers, torch_synchronisers)
BATCHES = 4
# Steps up to the recorded one: torch rebuilds its buckets after the first backward; the third step is like all others.
TRACED_STEPS = 3
# What cuBLAS needs to add up in one order, where bits are compared; to be set before its first call.
REPEATABLE = "CUBLAS_WORKSPACE_CONFIG=:4096:8"
# CPU time of other processes that the kernel's accounting cannot tell from none: it counts in ticks of each core.
UNSEEN_TICKS = 2


def main(context: RankContext, job: TrainingJob) -> None:
    """Entry of a rank's process; never returns."""
    run_rank(context, job.log, lambda: _work(context, job))


def _work(context: RankContext, job: TrainingJob) -> Json:
    scenario = job.launch.scenario
    torch.set_num_threads(scenario.case.threads)
    if BACKENDS[scenario.case.backend].device == "cuda":
        environment.apply(REPEATABLE)
    if scenario.link is not None:
        _pin(context.rank, scenario.case.world_size)
    with joined(context, scenario.case.backend, job.plan.timeout_s) as group:
        wait_to_begin(context, group, lambda: facts(group, scenario.case.backend), WAITS_IN)
        _Launch(context, job, group).measure()
    return {}


def _pin(rank: int, ranks: int) -> None:
    """Give each rank a core of its own, if there are enough: an emulated link needs none.

    On gloo, ranks are not pinned: the thread that communicates would share the core, ten times more slowly.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) >= ranks:
        os.sched_setaffinity(0, {cores[rank]})


class _Launch:
    """The work of one launch. Every rank goes through the same calls in the same order."""

    def __init__(self, context: RankContext, job: TrainingJob, group: Group) -> None:
        self.context, self.job, self.group = context, job, group
        self.scenario, self.plan, self.launch = job.launch.scenario, job.plan, job.launch.number
        self.place = RankInfo(group.rank, group.world_size, group.device.handle)
        real = ProcessGroupTransport(group.world_size)
        self.transport: Transport = real
        if self.scenario.link is not None:
            file = Path(context.stack_file).parent / "link"
            if group.rank == 0:
                EmulatedLink(self.scenario.link, 0, group.world_size, file)
            group.barrier()
            self.transport = EmulatedLink(self.scenario.link, group.rank, group.world_size, file)
        self.order = runners.ready_order(self.scenario, self.place, real, self.plan.seed)
        self.batches: list[Any] = []
        self.shared = SharedTensors()

    def measure(self) -> None:
        chosen = self._checked()
        self._send_begin(len(self.job.launch.strategies))
        for number in range(self.job.first_round, self.job.launch.rounds + 1):
            self._round(number, chosen)
        if self.job.detail:
            for strategy, runner in chosen.items():
                self._communication_only(strategy, runner)
                if kind(strategy).all_reduces:
                    # The runner is not kept in a variable: its gradients are freed before the next one is built.
                    self._emit(self._timeline(self._built(strategy, traced=True)))
                    self.context.tick()
        if self.plan.call_sizes and self.scenario.link is None:
            self._call_sizes(self.plan.call_sizes)

    def _send_begin(self, index: int) -> None:
        if self.group.rank == 0:
            self.context.send({"kind": "begin", "index": index})

    def _emit(self, fact: Fact) -> None:
        if self.group.rank == 0:
            self.context.send({"kind": "sampled", "failure": None}, fact_to_line(fact))

    def _built(self, strategy: Strategy, traced: bool = False) -> Runner:
        return runners.build(
            strategy, self.scenario, self.place, self.transport, self.order, self.plan.seed, traced, self.shared
        )

    # ── checks ───────────────────────────────────────────────────────────────────────────────────
    def _checked(self) -> dict[Strategy, Runner]:
        """The strategies that may be timed, each warmed up."""
        context = CheckContext(self.scenario, self.place, self.group.gather, self.plan.seed, self.order, [])
        warmed: dict[Strategy, Runner] = {}
        checked: dict[Strategy, tuple[list[InvariantCheck], tuple[int, ...] | None]] = {}
        for index, strategy in enumerate(self.job.launch.strategies):
            self._send_begin(index)
            # An error on any rank becomes the failed check `runs`.
            runner, checks, calls, problem = None, list[InvariantCheck](), None, None
            try:
                runner, checks, calls = self._warm(strategy, context)
            except (RuntimeError, ValueError, TypeError, ImportError, AttributeError, NotImplementedError) as error:
                problem = one_line(error)
            problems = [text for text in self.group.gather(problem) if text]
            if problems:
                checks = [*checks, InvariantCheck("runs", False, problems[0])]
            if runner is not None and not any(check.ok is False for check in checks):
                warmed[strategy] = runner
            else:  # I3 must not compare others with a strategy that is wrong
                context.finals.pop(label(strategy), None)
            checked[strategy] = (checks, calls)
        facts: list[StrategyChecks] = []
        for strategy, (checks, calls) in checked.items():
            all_checks = (*checks, invariants.check_bits(context, strategy))
            facts.append(StrategyChecks(self.scenario.case.key, self.launch, label(strategy), all_checks, calls))
            if facts[-1].failed:
                warmed.pop(strategy, None)
        if not self.job.checked:
            for fact in (*facts, StrategyChecks(self.scenario.case.key, self.launch, None, invariants.general())):
                self._emit(fact)
        return warmed

    def _warm(
        self, strategy: Strategy, context: CheckContext
    ) -> tuple[Runner, list[InvariantCheck], tuple[int, ...] | None]:
        """Warm up and check a strategy. Returns also the bytes of its calls, None where a library does not say."""
        runner, entry = self._built(strategy), kind(strategy)
        if not context.sizes:
            context.sizes.extend(p.numel() * p.element_size() for p in runner.parameters)
        if not self.batches:
            dice = torch.Generator().manual_seed(self.plan.seed + self.launch * 1000 + self.group.rank)
            self.batches = [runner.draw(dice, self.scenario.case.batch) for _ in range(BATCHES)]
        moved = self.scenario.link is None and self.scenario.shape is None
        if not entry.sharded:
            self.shared.lend_states(runner.optimizer)
        checks = [invariants.check_start(context, runner)] if moved and not entry.shards_parameters else []
        for step in range(self.plan.warmup):
            self.transport.sent.clear()
            runner.step(self.batches[step % BATCHES])
            self.context.tick()
        if moved:
            checks.append(invariants.check_end(context, runner, self.plan.warmup))
        if not entry.sharded:
            self.shared.adopt_states(runner.optimizer)
        call_checks, calls = invariants.check_calls(context, runner)
        checks += [*call_checks, invariants.check_shards(context, runner)]
        checks += invariants.check_training(context, strategy)
        self.context.tick()
        return runner, checks, calls

    # ── rounds ───────────────────────────────────────────────────────────────────────────────────
    def _round(self, number: int, chosen: dict[Strategy, Runner]) -> None:
        order = list(chosen)
        random.Random(f"{self.plan.seed}/{self.scenario.case.key}/{self.launch}/{number}").shuffle(order)
        began = time.time()
        gc.collect()
        gc.disable()
        own = [self._timed_block(chosen[strategy]) for strategy in order]
        gc.enable()
        ranks: list[list[dict[str, Any]]] = self.group.gather(own)
        blocks = tuple(_joined(strategy, [rank[at] for rank in ranks]) for at, strategy in enumerate(order))
        self._emit(Round(self.scenario.case.key, self.launch, number, began, self.plan.steps, blocks))

    def _timed_block(self, runner: Runner) -> dict[str, Any]:
        """Time `plan.steps` steps of one strategy between two barriers, on this rank."""
        parts: Counter[str] = Counter()
        tails: list[int] = []
        self.group.synchronize()
        before = _cpu()
        self.group.barrier()
        began = time.perf_counter_ns()
        for step in range(self.plan.steps):
            runner.step(self.batches[step % BATCHES])
            if runner.watch.on_host:  # on a GPU, reading marks would wait for the step
                times = runner.parts()
                tails.append(times["tail"])
                parts.update(times)
        self.group.synchronize()
        wall = time.perf_counter_ns() - began
        if not runner.watch.on_host:
            last = runner.parts()
            tails = [last["tail"]] * self.plan.steps
            parts.update({name: time_ns * self.plan.steps for name, time_ns in last.items()})
        self.group.barrier()
        runner.transport.sent.clear()
        runner.optimizer.zero_grad()  # frees the gradients
        self.context.tick()
        after = _cpu()
        busy = None if None in (before[0], after[0]) else after[0] - before[0]  # type: ignore[operator]
        used = {"host": host.hostname(), "cores": os.cpu_count() or 1, "busy": busy, "cpu": after[1] - before[1]}
        return {"wall": wall, "parts": parts, "tails": tails, **used}

    # ── after the rounds ─────────────────────────────────────────────────────────────────────────
    def _timeline(self, runner: Runner) -> Timeline:
        """One step in detail: when each gradient was ready, when each call was launched and done. Equal on every rank.

        runner: a traced one. The step is not one of the timed steps, because a stamp for each gradient takes time.
        """
        transport, scenario, group = runner.transport, self.scenario, self.group
        host_clock, began = transport.mark, 0
        transport.mark = runner.watch.mark
        for number in range(TRACED_STEPS):
            transport.sent.clear()
            transport.stamped = number == TRACED_STEPS - 1
            group.barrier()
            began = time.perf_counter_ns()
            runner.step(self.batches[number % len(self.batches)])
        transport.stamped, transport.mark = False, host_clock
        group.synchronize()
        group.barrier()
        ranks = []
        for data in group.gather(asdict(_traced_step(runner, group.rank, began))):
            calls = tuple(CallRecord(**call | {"parameters": tuple(call["parameters"])}) for call in data["calls"])
            ranks.append(RankTimeline(**data | {"calls": calls, "ready_s": tuple(data["ready_s"])}))
        names = [(name.removeprefix("module."), p) for name, p in runner.sync.module.named_parameters()]
        gradients = tuple(
            Gradient(name, p.numel(), p.numel() * p.element_size()) for name, p in names if p.requires_grad
        )
        # Clocks of different hosts cannot be compared; the ranks have left one barrier.
        one_host = len(set(group.gather(host.hostname()))) == 1
        first = min(rank.begin_s for rank in ranks)
        return Timeline(
            scenario.case.key,
            self.launch,
            label(runner.strategy),
            gradients if scenario.shape is None else scenario.shape.gradients,
            tuple(replace(rank, begin_s=rank.begin_s - first if one_host else 0.0) for rank in ranks),
        )

    def _communication_only(self, strategy: Strategy, runner: Runner) -> None:
        """Time the calls of a step back to back, without computing."""
        runner.transport.sent.clear()
        runner.step(self.batches[0])
        calls = runner.sync.calls()
        if not calls or not kind(strategy).all_reduces:
            return
        dtype = getattr(torch, self.scenario.case.dtype)
        device = "meta" if self.scenario.shape is not None else self.place.device
        tensors = [torch.zeros(nbytes // dtype.itemsize, dtype=dtype, device=device) for nbytes in calls]
        times = self._repeated(tensors, kind(strategy).one_by_one)
        self._emit(CommunicationOnly(self.scenario.case.key, self.launch, label(strategy), calls, times))

    def _repeated(self, tensors: list[torch.Tensor], one_by_one: bool = False) -> tuple[float, ...]:
        times = []
        for _ in range(1 + REPEATS):
            self.group.barrier()
            began = time.perf_counter_ns()
            if one_by_one:
                for tensor in tensors:
                    self.transport.all_reduce(tensor).wait()
            else:
                for handle in [self.transport.all_reduce(tensor) for tensor in tensors]:
                    handle.wait()
            self.group.synchronize()
            times.append(time.perf_counter_ns() - began)
            self.context.tick()
        ranks = self.group.gather(times[1:])
        return tuple(max(rank[at] for rank in ranks) / 1e9 for at in range(REPEATS))

    def _call_sizes(self, call_sizes: CallSizeSweep) -> None:
        for calls in call_sizes.calls:
            flat = torch.zeros(call_sizes.parameters, device=self.place.device)
            times = self._repeated(list(flat.chunk(calls)))
            backend, ranks = self.scenario.case.backend, self.group.world_size
            self._emit(CallSizePoint(backend, ranks, self.launch, call_sizes.parameters, calls, times))


def _traced_step(runner: Runner, rank: int, began: int) -> RankTimeline:
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


def _cpu() -> tuple[float | None, float]:
    """CPU seconds of the host, and of this process."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    return host.busy_and_steal_s(except_for=None)[0], own.ru_utime + own.ru_stime


def _joined(strategy: Strategy, ranks: list[dict[str, Any]]) -> TimedBlock:
    """The measurements of all ranks of one block."""
    wall_s = max(rank["wall"] for rank in ranks) / 1e9
    by_host: dict[str, list[dict[str, Any]]] = {}
    for rank in ranks:
        by_host.setdefault(rank["host"], []).append(rank)
    shares = [_foreign(neighbours, wall_s) for neighbours in by_host.values()]
    foreign = None if None in shares else max(share for share in shares if share is not None)
    parts = {name: tuple(rank["parts"][name] for rank in ranks) for name in ranks[0]["parts"]}
    last = sum(min(tails) for tails in zip(*(rank["tails"] for rank in ranks), strict=True))
    return TimedBlock(label(strategy), tuple(rank["wall"] for rank in ranks), parts, foreign, last)


def _foreign(ranks: list[dict[str, Any]], wall_s: float) -> float | None:
    """Share of a host's CPU time that others than its ranks used; None if that is not known."""
    if ranks[0]["busy"] is None:
        return None
    others = float(ranks[0]["busy"] - sum(rank["cpu"] for rank in ranks))
    if others <= UNSEEN_TICKS / os.sysconf("SC_CLK_TCK"):
        return 0.0
    return round(others / (wall_s * int(ranks[0]["cores"])), 4)
