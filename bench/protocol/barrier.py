"""The barrier before each timed stretch, for ranks on one host: two semaphore hops, no torch.

Against `dist.barrier` on a gloo control group, interleaved blocks in one process group on two cores: at 2
ranks 0.11 ms instead of 0.8 ms a meeting, at 4 ranks 0.8 instead of 3.8 ms; the 90th percentile of the
arrival skew fell from 0.17 to 0.08 ms and from 4.1 to 0.7 ms. gloo's barrier leaves work for its threads
behind, which then fights with the timed call for the cores. Ranks on several hosts have only `dist.barrier`.

Who lets the others go changes from meeting to meeting: whoever does it leaves first or last, and that must
not make one rank look late (docs/method.md, "Naming a rank").
"""

import time
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from multiprocessing.synchronize import Semaphore
from typing import Any

# Slack before the agreed instant: this many times the meeting itself, and more by this factor after a miss.
FIRST_SLACK, SLACK_GROWTH = 2, 1.5
# A slack that grows from nothing starts here.
FEWEST_NS = 1000
# Meetings whose median says how long one takes.
TRIALS = 21
_DEADLINE, _SLACK, _MISSED = 0, 1, 2


@dataclass(slots=True)
class SemaphoreBarrier:
    """`meet` returns on every rank once every rank has called it. A rank that dies leaves the others waiting,
    until the supervisor ends them.

    shared: nanoseconds that all ranks see: the agreed instant, the slack, whether it was too short.
    misses: meetings that this rank left after the agreed instant.
    """

    rank: int
    arrived: list[Semaphore]
    go: list[Semaphore]
    shared: Any
    rounds: int = 0
    misses: int = 0

    def wait(self) -> None:
        """The barrier: an order of leaving that no rank is favoured by over many meetings."""
        master = self._next_master()
        if self.rank != master:
            self.arrived[master].release()
            self.go[self.rank].acquire()
            return
        self._wait_for_all()
        self._let_all_go()

    def wait_for_deadline(self) -> None:
        """The barrier, and then all spin until one instant on the clock that they share."""
        master = self._next_master()
        if self.rank == master:
            self._wait_for_all()
            if self.shared[_MISSED]:
                self.shared[_SLACK] = max(FEWEST_NS, int(self.shared[_SLACK] * SLACK_GROWTH))
                self.shared[_MISSED] = 0
            self.shared[_DEADLINE] = time.perf_counter_ns() + self.shared[_SLACK]
            self._let_all_go()
        else:
            self.arrived[master].release()
            self.go[self.rank].acquire()
        deadline = self.shared[_DEADLINE]
        if time.perf_counter_ns() > deadline:
            self.misses += 1
            self.shared[_MISSED] = 1
        while time.perf_counter_ns() < deadline:
            pass

    def calibrate(self) -> None:
        """Every rank together: set the first slack from how long a meeting takes."""
        took = []
        for _ in range(TRIALS):
            began = time.perf_counter_ns()
            self.wait()
            took.append(time.perf_counter_ns() - began)
        if self.rank == 0:
            self.shared[_SLACK] = FIRST_SLACK * sorted(took)[TRIALS // 2]
        self.wait()

    def _next_master(self) -> int:
        self.rounds += 1
        return self.rounds % len(self.go)

    def _wait_for_all(self) -> None:
        for _ in range(len(self.go) - 1):
            self.arrived[self.rank].acquire()

    def _let_all_go(self) -> None:
        for step in range(1, len(self.go)):
            self.go[(self.rank + step) % len(self.go)].release()


def barriers(context: ForkServerContext, world_size: int) -> list[SemaphoreBarrier]:
    """One gate a rank, all of them the same gate."""
    arrived = [context.Semaphore(0) for _ in range(world_size)]
    go = [context.Semaphore(0) for _ in range(world_size)]
    shared = context.RawArray("q", 3)
    return [SemaphoreBarrier(rank, arrived, go, shared) for rank in range(world_size)]
