"""A silence of ranks is a hang; a silence of the whole machine is none. The clock is a fake one."""

from multiprocessing import Pipe

import pytest

from bench.launch import supervisor, sweep
from bench.launch.ranks import Ranks
from bench.launch.supervisor import LaunchOutcome
from bench.model.records import Case, Failure, Launch
from bench.protocol import messages


class Clock:
    """Time that passes only while somebody looks at the ranks, or sleeps."""

    def __init__(self, events):
        self.now, self.looks, self.events = 100.0, 0, events

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds

    def wait(self, connections, seconds):
        self.looks += 1
        self.now += self.events.get(self.looks, lambda: None)() or seconds
        return [one for one in connections if one.poll()]


class SilentRank:
    """A rank that has joined and says nothing more, unless a test lets it."""

    rank, exit_code, lost, log = 0, None, None, ""

    def __init__(self):
        self.connection, self.other = Pipe()
        self.count = 0
        messages.send(self.other, {"kind": "ready", "waits_in": [], "facts": {}})

    def progress(self):
        return self.count

    def position(self):
        return 0

    def state(self):
        return "sleeping"

    def ask_stack(self):
        pass

    def stack(self):
        return ""


def watch(monkeypatch, rank, events, timeout_s=2.0):
    clock = Clock(events)
    monkeypatch.setattr(supervisor, "time", clock)
    monkeypatch.setattr(supervisor, "wait", clock.wait)
    ranks = Ranks([rank], lambda: None)
    outcome = supervisor.watch(ranks, 100.0, timeout_s, lambda: None, lambda index: None, lambda line, failure: None)
    return outcome, clock


@pytest.mark.parametrize("frozen_s", [3.0, 1000.0])
def test_a_machine_that_stood_still_is_no_hang(monkeypatch, frozen_s):
    rank = SilentRank()

    def goes_on():
        rank.count += 1

    events = {
        3: lambda: frozen_s,
        4: goes_on,
        9: lambda: messages.send(rank.other, {"kind": "done"}),
    }
    outcome, _ = watch(monkeypatch, rank, events)
    assert outcome.failure is None


def test_a_rank_that_is_silent_while_it_is_looked_at_hangs(monkeypatch):
    outcome, clock = watch(monkeypatch, SilentRank(), {3: lambda: 1000.0})
    assert outcome.failure.kind == "hang"
    assert clock.looks == pytest.approx(2.0 / supervisor.LOOK_EVERY_S, abs=3)


# ── which case is to blame, and ranks that cannot be ended ───────────────────────────────────────
CASES = tuple(Case("all_reduce", "gloo", 2, "float32", size) for size in (4096, 2**30, 65536))


@pytest.mark.parametrize(("position", "size"), [(-1, 2**30), (0, 4096), (2, 65536)])
def test_before_the_first_case_the_largest_is_taken_out(position, size):
    """Ranks that end while they take memory for all cases have not entered one yet."""
    outcome = LaunchOutcome(position=position, ready_s=1.0, failure=Failure("raised", 0, "out of memory"))
    kept = []
    rest = sweep._after(Launch("gloo", 2, 1, CASES), outcome, lambda case, line, failure: kept.append(case))
    assert [case.size_bytes for case in kept] == [size]
    assert {case.size_bytes for case in rest.cases} == {4096, 2**30, 65536} - {size}


class StuckRank(SilentRank):
    """A rank that waits for a device, and ends by no signal."""

    def kill(self):
        self.killed = True

    def join(self, seconds): ...

    def state(self):
        return "disk-sleep"


def test_a_rank_that_cannot_be_ended_is_said():
    rank = StuckRank()
    said = Ranks([rank], lambda: None).kill()
    assert rank.killed and "rank 0 (disk-sleep) did not end within" in said
