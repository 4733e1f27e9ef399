"""A trace follows the trace-event format: sorted, no negative duration, everything named, no overlap in a thread."""

import json
from dataclasses import replace

import pytest

import training_fixtures as invented
from bench.model.steps import CallRecord
from bench.training.model import Strategy
from bench.training.report.trace import computing, lanes, trace

SCENARIO = invented.comparison()


@pytest.fixture(scope="module")
def events():
    data = json.loads(json.dumps(trace([SCENARIO]), allow_nan=False))
    assert data["displayTimeUnit"] == "ms"
    return data["traceEvents"]


def test_events_are_sorted_and_complete(events):
    timed = [event for event in events if event["ph"] != "M"]
    assert [e["ts"] for e in timed] == sorted(e["ts"] for e in timed)
    for event in timed:
        assert event["ph"] in {"X", "i"} and event["name"] and event["ts"] >= 0
        assert event["ph"] == "i" or event["dur"] >= 0


def test_every_process_and_thread_has_a_name(events):
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert len(processes) == 2 * len(invented.STRATEGIES) == len(set(processes.values()))
    assert "flat · rank 1" in processes.values()
    for event in events:
        if event["ph"] != "M":
            assert named[event["pid"], event["tid"]].split()[0] in {"compute", "communication"}


def test_events_of_a_thread_do_not_overlap(events):
    ends: dict[tuple[int, int], float] = {}
    for event in (e for e in events if e["ph"] == "X"):
        thread = (event["pid"], event["tid"])
        assert event["ts"] >= ends.get(thread, 0.0) - 0.01, event
        ends[thread] = event["ts"] + event["dur"]


def test_times_are_microseconds_of_the_step(events):
    process = next(e["pid"] for e in events if e["name"] == "process_name" and e["args"]["name"] == "flat · rank 1")
    line = invented.rank_line(Strategy("flat"), 1)
    (call,) = (e for e in events if e["pid"] == process and e.get("cat") == "communication")
    assert call["ts"] == pytest.approx((line.begin_s + line.calls[0].launched_s) * 1e6, abs=0.01)
    assert call["args"]["bytes"] == sum(g.nbytes for g in invented.GRADIENTS)
    assert len([e for e in events if e["pid"] == process and e.get("cat") == "ready"]) == len(invented.GRADIENTS)


def test_several_scenarios_are_told_apart():
    other = replace(invented.SCENARIO, case=replace(invented.SCENARIO.case, model="nano"))
    both = trace([SCENARIO, invented.comparison(other)])["traceEvents"]
    names = [event["args"]["name"] for event in both if event["name"] == "process_name"]
    assert len(set(names)) == 4 * len(invented.STRATEGIES) and names[-1].startswith(other.case.key)


def test_lanes_are_as_many_as_were_under_way_at_once():
    calls = [CallRecord(1, 0.0, begin, end) for begin, end in ((0, 4), (1, 2), (2, 3), (3, 5), (4, 6))]
    found = lanes(calls)
    assert [len(lane) for lane in found] == [2, 3]
    assert lanes([]) == [] and sorted(f.done_s for lane in found for f in lane) == [2, 3, 4, 5, 6]


def test_parts_that_took_no_time_are_no_bars():
    bars = computing(invented.rank_line(Strategy("none")))
    assert [bar.name for bar in bars] == ["forward", "backward", "update"]
    assert bars[-1].end_s == invented.rank_line(Strategy("none")).end_s
