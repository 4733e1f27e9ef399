"""Timing on a device that enqueues: what is timed has no dispatching in it, no waiting, and nothing that disturbs it.

The device is simulated, so that each of these can be said to the nanosecond; tests/test_gpu.py has a real one.
"""

import pytest

from bench.model.records import Case, ReplayedCall
from bench.rank.device import Host
from bench.rank.replay import make_step, marks_on
from bench.rank.timing import CaseTimer, floor_ns
from bench.rank.training.synchronisers import Stopwatch
from bench.rank.workload import Workload
from simulated_device import US, SimulatedDevice

RUNS_NS = 100 * US
# What an event costs its stream after the work before it.
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


def measured(device, call, of=None, count=6, skew_ns=0, barrier=lambda: None):
    timer = CaseTimer(Calls(call), of or case(), barrier, lambda: None, device, device.aligned_at(skew_ns))
    return timer, timer.measure(count)


def test_half_a_millisecond_of_dispatching_moves_host_time_and_not_device_time():
    found = {}
    for dispatch_ns in (5 * US, 505 * US):
        device = SimulatedDevice()
        timer, _ = measured(device, device.call(RUNS_NS, dispatch_ns))
        found[dispatch_ns] = timer.measure(6)  # the first block finds out how much has to be enqueued behind
    quick, slow = found.values()
    assert quick.dispatch_bound == slow.dispatch_bound == 0
    assert all(abs(a - b) < US for a, b in zip(quick.duration_ns, slow.duration_ns, strict=True))
    assert all(abs(ns - RUNS_NS) <= EVENT_NS for ns in slow.duration_ns)
    assert all(b - a == 500 * US for a, b in zip(quick.host_ns, slow.host_ns, strict=True))


def test_a_rank_that_leaves_the_barrier_late_is_not_waited_for_within_a_call():
    device = SimulatedDevice()
    _, found = measured(device, device.call(RUNS_NS), skew_ns=700 * US)
    assert all(abs(ns - RUNS_NS) <= EVENT_NS for ns in found.duration_ns)


def test_iterations_that_dispatching_slowed_are_counted_and_then_avoided():
    device = SimulatedDevice()
    timer, first = measured(device, device.call(RUNS_NS, 2_000 * US), count=4)
    assert first.dispatch_bound == 1  # the stream is then occupied for longer
    assert timer.measure(4).dispatch_bound == 0


def test_the_order_of_one_iteration_and_nothing_is_made_within_it():
    device = SimulatedDevice()
    timer, _ = measured(device, device.call(RUNS_NS), count=1, barrier=lambda: device.log.append("barrier"))
    device.log.clear()
    timer.measure(1)
    assert device.log == [
        *("synchronize", "barrier", "call", "synchronize"),
        *("synchronize", "barrier", "occupy", "align", "record", "call", "record", "synchronize"),
    ]


def test_more_iterations_get_their_events_before_they_begin():
    device = SimulatedDevice()
    _, _ = measured(device, device.call(RUNS_NS), count=5)
    made = [at for at, action in enumerate(device.log) if action == "make event"]
    assert len(made) == 10 and max(made) < device.log.index("call")


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
    assert all(abs(ns - 3 * RUNS_NS) <= EVENT_NS for ns in [*first.duration_ns, *again.duration_ns])
    assert device.log.count("call") == 6  # three to connect the ranks, three that are captured
    assert device.log.count("wait") == (6 if call == "async" else 0)
    assert device.log.count("replay") == 2 * (6 + 4)
    timer.close()
    assert device.log[-1] == "reset"


@pytest.mark.parametrize("wrong", ["synchronize", "event"])
def test_what_waits_for_the_device_cannot_be_captured(wrong):
    device = SimulatedDevice()
    with pytest.raises(RuntimeError, match="while calls are captured"):
        measured(device, lambda: getattr(device, wrong)() if device.capturing is not None else None, case("graph", 2))


def test_what_dispatching_costs_is_told_by_the_host():
    device = SimulatedDevice()
    assert 7 * US <= floor_ns(device.call(2 * US), device) <= 8 * US


def test_the_host_cannot_do_what_only_a_stream_can():
    host = Host()
    assert not host.enqueues
    for action in (host.event, lambda: host.occupy(1), lambda: host.captured(lambda: None)):
        with pytest.raises(NotImplementedError):
            action()


# ── training ─────────────────────────────────────────────────────────────────────────────────────
def test_a_stopwatch_marks_the_stream_and_makes_events_while_warming_up_only():
    """Marks lie behind the work before them; packing is a stretch between two of them."""
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
        ((first, last),) = watch.packing.taken()
        assert abs(watch.between(begin, end) - 450 * US) <= 40 * US
        assert abs(watch.between(first, last) - 50 * US) <= 10 * US
        assert ("make event" in device.log) is (step == 0)
    assert not watch.on_host and Stopwatch(Host()).on_host


# ── replays ──────────────────────────────────────────────────────────────────────────────────────
class Waited:
    """What an asynchronous call returns."""

    def __init__(self, device):
        self.device = device

    def wait(self):
        self.device.log.append("wait")


def test_a_replayed_step_makes_nothing_while_it_runs_and_waits_where_the_recording_did():
    device = SimulatedDevice()

    def enqueue():
        device.call(RUNS_NS)()
        return Waited(device)

    planned = [ReplayedCall(0), ReplayedCall(0, after=(0,)), ReplayedCall(0)]
    marks = marks_on(device, 3)
    device.log.clear()
    make_step(planned, [enqueue] * 3, [True, False, True], marks)
    assert device.log == [
        "record",
        *("record", "call"),
        *("wait", "record"),
        *("record", "call", "record"),
        *("record", "call"),
        *("wait", "record"),
    ]
    device.synchronize()
    starts, durations = marks.stamps()
    assert starts == sorted(starts) and all(abs(ns - RUNS_NS) <= 10 * US for ns in durations)


def test_what_makes_groups_has_the_host_s_time():
    """Connecting takes the host 3 ms; the device does hardly anything."""
    device = SimulatedDevice()
    _, found = measured(device, device.call(2 * US, 3_000 * US), case("first"))
    assert found.host_ns is None and all(abs(ns - 3_000 * US) < 10 * US for ns in found.duration_ns)
