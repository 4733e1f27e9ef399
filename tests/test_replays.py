"""What is made of a recording: the same calls, scaled by stated rules to fewer ranks, and every change is said."""

from dataclasses import replace

import pytest

from bench.catalog.operations import ranks_together
from bench.cli.run import _configuration
from bench.model.errors import ForeignError
from bench.model.recorded_calls import CallList, RankRecording, RecordedCall
from bench.model.records import Case, Machine
from bench.planning import replays
from conftest import ROOT

REDUCE = RecordedCall("all_reduce", "float32", 100, 100, group=(0, 1), group_size=2)


def recorded(*calls, world=2, steps=1, others=()):
    ranks = [RankRecording(f"rank{number}", number, made) for number, made in enumerate([calls, *others])]
    return CallList("Kineto", "nccl", world, tuple(ranks), steps)


def made(*calls, world=2, here=2, backend="gloo", gaps=False, others=(), steps=1):
    return replays.replay(recorded(*calls, world=world, others=others, steps=steps), backend, here, gaps)


def test_the_same_ranks_make_the_same_calls():
    gather = RecordedCall("all_gather", "bfloat16", 50, 100, group=(0, 1), group_size=2, asynchronous=True)
    found = made(REDUCE, gather, REDUCE)
    reduce_case, gather_case = found.cases
    assert [call.case for call in found.calls] == [0, 1, 0]
    assert (reduce_case.op, reduce_case.size_bytes, reduce_case.depth, reduce_case.groups) == (
        "all_reduce", 400, 2, "world",
    )  # fmt: skip
    assert (gather_case.op, gather_case.size_bytes, gather_case.dtype, gather_case.call) == (
        "all_gather", 200, "bfloat16", "async",
    )  # fmt: skip
    assert found.changes == ()


@pytest.mark.parametrize(
    ("group", "world", "here", "groups"),
    [
        ((0, 1, 2, 3), 4, 2, "world"),
        (tuple(range(64)), 64, 6, "world"),
        ((0, 1), 8, 4, "contiguous:2"),
        ((0, 4), 8, 8, "strided:2@4"),
        ((0, 2), 8, 4, "strided:2@2"),
        ((1, 9, 17, 25), 64, 8, "strided:4"),
        ((0, 1, 2, 3), 8, 6, "world"),
    ],
)
def test_groups_keep_their_size_and_distance_where_they_can(group, world, here, groups):
    call = replace(REDUCE, group=group, group_size=len(group))
    found = made(call, world=world, here=here)
    assert found.cases[0].groups == groups
    assert bool(found.changes) == (world != here)


def test_what_all_ranks_hold_together_stays():
    """A parameter that is gathered, a gradient that is reduced and scattered: 800 elements, on 8 ranks and on 4."""
    calls = [
        RecordedCall("all_gather", "float32", 100, 800, group_size=8),
        RecordedCall("reduce_scatter", "float32", 800, 100, group_size=8),
        RecordedCall("all_to_all", "float32", 800, 800, group_size=8),
        RecordedCall("gather", "float32", 100, 0, group_size=8),
        RecordedCall("broadcast", "float32", 800, 800, group_size=8, root=5),
    ]
    found = made(*calls, world=8, here=4)
    assert [case.size_bytes for case in found.cases] == [3200] * 5
    assert found.cases[-1].root == 1
    assert "recorded on 8 ranks, made again on 4" in found.changes


def test_parts_of_an_all_to_all_are_those_of_all_ranks_or_folded():
    sent = [(10, 30), (20, 20)]
    calls = [RecordedCall("all_to_all_uneven", "int64", 40, 0, splits_in=row, group_size=2) for row in sent]
    (case,) = made(calls[0], others=[(calls[1],)]).cases
    assert (case.op, case.splits) == ("all_to_all", "rows:10,30;20,20")
    alone = made(calls[0])
    assert alone.cases[0].splits == "rows:10,30;10,30" and "every rank sends" in " ".join(alone.changes)
    four = replace(calls[0], splits_in=(1, 2, 3, 34), group_size=4)
    assert made(four, world=4).cases[0].splits == "rows:4,36;4,36"
    even = made(replace(calls[0], splits_in=(20, 20)))
    assert even.cases[0].splits == "" and not even.changes


def test_sends_become_exchanges_and_receives_are_their_other_half():
    send, receive = RecordedCall("send", "float32", 10, 10, peer=1), RecordedCall("recv", "float32", 10, 10, peer=1)
    found = made(send, receive)
    assert [case.op for case in found.cases] == ["sendrecv_ring"] and len(found.calls) == 1
    assert len(made(receive, receive).calls) == 2


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (replace(REDUCE, operation="mystery"), "mystery left out: it is not known here"),
        (replace(REDUCE, elements_in=None, elements_out=None), "its size was not recorded"),
        (replace(REDUCE, elements_in=0, elements_out=0), "it moved nothing"),
        (replace(REDUCE, dtype=None), "unknown dtype, taken as float32"),
        (replace(REDUCE, dtype="float8_e4m3fn"), "float8_e4m3fn sent as uint8"),
        (replace(REDUCE, operation="all_to_all", splits_in=None), "its splits were not recorded"),
        (RecordedCall("all_gather", "float32", 50, 101, group_size=2), "rounded down to whole shares"),
    ],
)
def test_what_is_not_as_recorded_is_said(call, said):
    assert said in " ".join(made(REDUCE, call).changes)


def test_a_sum_that_could_not_be_verified_is_a_maximum():
    found = made(replace(REDUCE, dtype="bfloat16", group=None, group_size=300), world=300, here=300)
    assert found.cases[0].reduce_op == "max" and "reduced by max" in " ".join(found.changes)


def test_a_recording_without_anything_to_make_is_refused():
    with pytest.raises(ForeignError, match="mystery left out"):
        made(replace(REDUCE, operation="mystery"))


def test_pauses_are_those_between_calls():
    calls = [
        replace(REDUCE, start_s=0.0, ran_s=0.0, duration_s=0.010),  # gloo: it returned when it was over
        replace(REDUCE, start_s=0.013, ran_s=0.020, duration_s=0.010),  # NCCL: it was only enqueued
        replace(REDUCE, start_s=0.014, duration_s=None),
    ]
    pauses = [call.pause_s for call in made(*calls, gaps=True).calls]
    assert pauses == pytest.approx([0.0, 0.003, 0.001])
    assert all(call.pause_s == 0 for call in made(*calls).calls)


def test_calls_that_the_next_one_did_not_wait_for_are_asynchronous():
    calls = [
        replace(REDUCE, start_s=0.0, ran_s=0.001, duration_s=0.010),
        replace(REDUCE, start_s=0.005, ran_s=0.011, duration_s=0.010),
        replace(REDUCE, start_s=0.030, ran_s=0.031, duration_s=0.010, asynchronous=True),
    ]
    found = made(*calls)
    assert [found.cases[call.case].call for call in found.calls] == ["async", "sync", "async"]


def test_what_had_ended_before_a_call_is_waited_for():
    calls = [
        replace(REDUCE, start_s=0.000, ran_s=0.001, duration_s=0.004, asynchronous=True),
        replace(REDUCE, start_s=0.001, ran_s=0.005, duration_s=0.004, asynchronous=True),
        replace(REDUCE, start_s=0.006, ran_s=0.009, duration_s=0.004),
        replace(REDUCE, start_s=0.020, duration_s=0.001),
    ]
    found = made(*calls, gaps=True)
    assert [call.after for call in found.calls] == [(), (), (0,), (1,)]
    assert [call.pause_s for call in found.calls] == pytest.approx([0.0, 0.001, 0.001, 0.011])


def test_of_equal_steps_the_last_is_made_again():
    calls = [replace(REDUCE, start_s=float(number), duration_s=0.1) for number in range(6)]
    found = made(*calls, steps=3)
    assert len(found.calls) == 2 and "of 3 recorded steps the last one" in found.changes
    assert [call.start_s for call in found.calls] == [0.0, 1.0]
    assert len(made(*calls, replace(REDUCE, elements_in=7), steps=3).calls) == 7


def test_the_key_names_the_calls_and_not_what_was_recorded_of_them():
    base = Case("replay", "gloo", 2, "bytes", 0)
    one = replays.case_of(made(REDUCE), base)
    assert one.key.startswith("replay/gloo/n2/bytes/") and one.recording.endswith(":1")
    slower = replace(REDUCE, start_s=0.0, duration_s=9.0)
    assert replays.case_of(made(slower), base).key == one.key
    assert replays.case_of(made(replace(REDUCE, elements_in=101)), base).key != one.key
    assert ranks_together(one) == 2


@pytest.mark.parametrize(("gpus", "backend"), [(1, "gloo"), (2, "nccl")])
def test_a_replay_takes_gpus_only_where_each_of_two_ranks_has_one(monkeypatch, tmp_path, gpus, backend):
    machine = Machine("h", 4, 2**34, 2**25, gpus, {}, gpu_free_bytes=2**34)
    monkeypatch.setattr("bench.machine.host.machine", lambda: machine)
    trace = ROOT / "docs" / "example" / "training.calls.jsonl"
    text = _configuration([trace], None, None, False, None).raw.decode()
    assert f"backends: [{backend}]" in text and "world_sizes: [2]" in text
