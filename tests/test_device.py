"""Timing on a device that enqueues: the times include no dispatching, no waiting and no disturbance.

The device is simulated, so that each of these can be tested to the nanosecond; tests/test_gpu.py has a real device.
"""

import pytest

from collbench.model.records import Case
from collbench.packages.replay.rank import Marks, make_step
from collbench.packages.replay.replayed_calls import ReplayedCall
from collbench.packages.training.rank.synchronisers import Stopwatch
from collbench.rank.collectives import rest
from collbench.rank.device import Host
from collbench.rank.timing import LEAST_BACKLOG_NS, CaseTimer, floor_ns
from collbench.rank.workload import Workload
from simulated_device import US, SimulatedDevice

RUNS_NS = 100 * US
# The cost of an event for its stream, after the work before the event.
EVENT_NS = 2 * US


class Calls(Workload):
    """A workload of the same call again and again."""

    def __init__(self, call):
        self.call, self.made = call, 0

    def prepare(self):
        self.made += 1
        return self.call


def case(metric="isolated", depth=1, call="sync"):
    return Case("all_reduce", "nccl", 2, "float32", 4096, metric=metric, depth=depth, call=call)


def measured(device, call, timed_case=None, count=6, skew_ns=0, barrier=lambda: None):
    timer = CaseTimer(Calls(call), timed_case or case(), barrier, lambda: None, device, device.aligned_at(skew_ns))
    return timer, timer.measure(count)


def test_half_a_millisecond_of_dispatching_moves_host_time_and_not_device_time():
    blocks = {}
    for dispatch_ns in (5 * US, 505 * US):
        device = SimulatedDevice()
        timer, _ = measured(device, device.call(RUNS_NS, dispatch_ns))
        blocks[dispatch_ns] = timer.measure(6)  # the first block finds out for how long to occupy the stream
    quick, slow = blocks.values()
    assert not any(quick["dispatch_bound"] + slow["dispatch_bound"])
    assert all(abs(a - b) < US for a, b in zip(quick["duration_ns"], slow["duration_ns"], strict=True))
    assert all(abs(ns - RUNS_NS) <= EVENT_NS for ns in slow["duration_ns"])
    assert all(b - a == 500 * US for a, b in zip(quick["host_ns"], slow["host_ns"], strict=True))


def test_iterations_that_dispatching_slowed_are_counted_and_then_avoided():
    device = SimulatedDevice()
    timer, first = measured(device, device.call(RUNS_NS, 2_000 * US), count=4)
    assert first["dispatch_bound"] == [True, False, False, False]  # the stream is then occupied for longer
    assert not any(timer.measure(4)["dispatch_bound"])


def test_a_call_that_waits_on_the_host_occupies_nothing():
    device = SimulatedDevice()

    class Barrier(Calls):
        waits_on_host = True

    def barrier():
        device.enqueue(10 * US)
        device.synchronize()

    timer = CaseTimer(Barrier(barrier), case(), rest, rest, device, device.aligned_at(0))
    block = timer.measure(8)
    assert not {"host_ns", "wait_ns", "dispatch_bound"} & block.keys()
    assert "occupy" not in device.log and all(ns < 40 * US for ns in block["duration_ns"])
    assert timer.cost_ns() < 1e6  # measured by the host's clock


def test_the_rank_that_comes_last_waits_least_whatever_its_host_s_stamps_say():
    """The host of the first of two ranks is 300 µs late; the devices show this, and the host's stamps do not matter."""
    blocks = {}
    for name, late_ns in (("late", 0), ("waits", LEAST_BACKLOG_NS + 300 * US)):  # the stream is also occupied
        device = SimulatedDevice()
        _, blocks[name] = measured(device, device.call(RUNS_NS), skew_ns=late_ns)
    assert min(blocks["waits"]["wait_ns"]) - max(blocks["late"]["wait_ns"]) > 250 * US
    assert max(blocks["waits"]["duration_ns"]) - min(blocks["late"]["duration_ns"]) <= EVENT_NS


@pytest.mark.parametrize("depth", [1, 20])
def test_a_rank_whose_host_enqueues_slower_is_not_late(depth):
    """At 12 and 13 µs per call, the second rank's stream is occupied for longer, and both are ready at one time."""
    ready = {}
    for dispatch_ns in (12 * US, 13 * US):
        device = SimulatedDevice()

        def calls(device=device, dispatch_ns=dispatch_ns):
            for _ in range(depth):
                device.call(RUNS_NS, dispatch_ns)()

        timer, _ = measured(device, calls, case(depth=depth))
        stream = timer._stream
        stream.make_events(40)
        timed = stream.timed(lambda most: [calls], 40, rest, rest)
        ready[dispatch_ns] = [
            events[0]._at_ns - start for events, start in zip(stream._events, timed.starts, strict=True)
        ]
    first, second = ready.values()
    assert max(abs(a - b) for a, b in zip(first, second, strict=True)) <= EVENT_NS


def test_the_timer_costs_as_much_as_an_empty_pair_of_events_and_the_host_measures_dispatching():
    device = SimulatedDevice()
    timer, _ = measured(device, device.call(RUNS_NS))
    assert 0 <= timer.cost_ns() <= EVENT_NS
    device = SimulatedDevice()
    assert 7 * US <= floor_ns(device.call(2 * US), device) <= 8 * US


def test_the_order_of_one_iteration_and_nothing_is_made_within_it():
    device = SimulatedDevice()
    timer, _ = measured(device, device.call(RUNS_NS), count=1, barrier=lambda: device.log.append("barrier"))
    device.log.clear()
    timer.measure(1)
    assert device.log == [
        *("synchronize", "barrier", "call", "synchronize"),
        *("synchronize", "barrier", "record", "occupy", "align", "record", "call", "record", "synchronize"),
    ]


@pytest.mark.parametrize("call", ["sync", "async"])
def test_a_graph_is_captured_once_replayed_and_let_go_of(call):
    device = SimulatedDevice()

    class Work:
        def wait(self):
            device.log.append("wait")

    def enqueue():
        device.call(RUNS_NS)()
        return Work()

    timer, first = measured(device, enqueue, case("graph", 3, call))
    again = timer.measure(4)
    assert all(abs(ns - 3 * RUNS_NS) <= EVENT_NS for ns in [*first["duration_ns"], *again["duration_ns"]])
    assert device.log.count("call") == 6  # three to connect the ranks, three that are captured
    assert device.log.count("wait") == (6 if call == "async" else 0)
    assert device.log.count("replay") == 2 * (6 + 4)
    timer.close()
    assert device.log[-1] == "reset"


# ── training ─────────────────────────────────────────────────────────────────────────────────────
def test_a_stopwatch_marks_the_stream_and_makes_events_while_warming_up_only():
    """A mark comes after the work before it; packing is the time between two marks."""
    device = SimulatedDevice()
    watch = Stopwatch(device)
    for step in range(3):
        device.log.clear()
        watch.clear()
        begin = watch.mark()
        device.enqueue(400 * US)
        with watch.packing:
            device.enqueue(50 * US)
        end = watch.mark()
        device.synchronize()
        first, last = watch.packing.taken()
        assert abs(watch.between(begin, end) - 450 * US) <= 40 * US
        assert abs(watch.between(first, last) - 50 * US) <= 10 * US
        assert ("make event" in device.log) is (step == 0)
    assert not watch.on_host and Stopwatch(Host()).on_host


# ── replays ──────────────────────────────────────────────────────────────────────────────────────
class Waited:
    """The handle of an asynchronous call, which its stream completes at `ends_ns`."""

    def __init__(self, device, ends_ns=0):
        self.device, self.ends_ns = device, ends_ns

    def wait(self):
        self.device.log.append("wait")
        self.device.wait_until(self.ends_ns)


def test_a_replayed_step_makes_nothing_while_it_runs_and_waits_where_the_recording_did():
    device = SimulatedDevice()

    def enqueue():
        device.call(RUNS_NS)()
        return Waited(device, device.free_at_ns)

    planned = [ReplayedCall(0, 0), ReplayedCall(0, 1, after=(0,)), ReplayedCall(0, 2)]
    marks = Marks(device, [0, 0, 0])
    device.log.clear()
    make_step(planned, [enqueue] * 3, [True, False, True], marks)
    assert device.log == [
        "record",
        *("record", "call", "wait", "record"),
        "wait",
        *("record", "call", "record"),
        *("record", "call", "wait", "record"),
        "wait",
    ]
    device.synchronize()
    starts, durations = marks.stamps()
    assert starts == sorted(starts) and all(abs(ns - RUNS_NS) <= 10 * US for ns in durations)


def test_an_asynchronous_call_ends_when_it_is_done_and_not_when_it_is_waited_for():
    """The call ends 100 µs after it began; another call of 900 µs runs before anything waits for the first call."""
    device = SimulatedDevice()
    planned = [ReplayedCall(0, 0), ReplayedCall(1, 1)]
    marks = Marks(device, [0, 1])

    def asynchronous():
        device.host_ns += 5 * US
        return Waited(device, max(device.free_at_ns, device.host_ns) + RUNS_NS)

    make_step(planned, [asynchronous, device.call(900 * US)], [True, False], marks)
    device.synchronize()
    _, durations = marks.stamps()
    assert durations[0] == pytest.approx(RUNS_NS, abs=20 * US) and durations[1] > 890 * US
