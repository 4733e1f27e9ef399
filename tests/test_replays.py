"""A replay has the calls of a recording, on as many ranks, and reports every change."""

from dataclasses import replace

import pytest

from collbench.model.errors import ForeignError
from collbench.model.records import Machine
from collbench.packages.replay import planning as replays
from collbench.packages.replay.cli import _configuration
from collbench.packages.replay.recorded_calls import CallList, RankRecording, RecordedCall
from collbench.report.notices import sentences
from conftest import ROOT

REDUCE = RecordedCall("all_reduce", "float32", 100, 100, group=(0, 1), group_size=2)


def recorded(*calls, world=2, others=()):
    ranks = [RankRecording(f"rank{number}", number, tuple(made)) for number, made in enumerate([calls, *others])]
    return CallList("Kineto", "nccl", world, tuple(ranks))


def made(*calls, world=2, others=()):
    return replays.replay(recorded(*calls, world=world, others=others), "gloo", world)


def test_parts_of_an_all_to_all_come_from_all_ranks_or_from_one():
    sent = [(10, 30), (20, 20)]
    calls = [RecordedCall("all_to_all_uneven", "int64", 40, 0, splits_in=row, group_size=2) for row in sent]
    (case,) = made(calls[0], others=[(calls[1],)]).cases
    assert (case.op, str(case.splits)) == ("all_to_all", "rows:10,30;20,20")
    alone = made(calls[0])
    assert str(alone.cases[0].splits) == "rows:10,30;10,30"
    assert alone.changes == (replays.PARTS_OF_ONE_RANK(count=1),)
    torn = made(REDUCE, replace(calls[0], splits_in=(1, 2, 37)))
    assert len(torn.cases) == 1 and torn.changes[-1].kind is replays.CALLS_LEFT_OUT
    even = made(replace(calls[0], splits_in=(20, 20)))
    assert even.cases[0].splits is None and not even.changes


def test_sends_become_exchanges_and_receives_are_their_other_half():
    """This happens if the peer is unknown, or a rank was not recorded."""
    send, receive = RecordedCall("send", "float32", 10, 10), RecordedCall("recv", "float32", 10, 10)
    result = made(send, receive)
    assert [case.op for case in result.cases] == ["sendrecv_ring"] and len(result.of(1).calls) == 1
    assert "rank 0" in result.stand_in
    assert len(made(receive, receive).of(0).calls) == 2


# Two stages of two ranks each: ranks of a stage reduce together; the first stage sends to the second and back.
def stages(batched=False):
    def reduce(group):
        return replace(REDUCE, group=group, group_size=2)

    def send(group, peer, elements=10):
        return RecordedCall("send", "float32", elements, elements, group=group, group_size=2, peer=peer)

    def receive(group, peer, elements=10):
        return replace(send(group, peer, elements), operation="recv")

    back = [] if batched else [reduce((0, 1))]
    back_of_next = [] if batched else [reduce((2, 3))]
    return [
        [send((rank, rank + 2), rank + 2), *back, receive((rank, rank + 2), rank + 2), reduce((0, 1))]
        for rank in (0, 1)
    ] + [
        [receive((rank - 2, rank), rank - 2), *back_of_next, send((rank - 2, rank), rank - 2), reduce((2, 3))]
        for rank in (2, 3)
    ]


def test_a_send_and_a_receive_made_together_are_one_exchange():
    first, *others = stages(batched=True)
    result = made(*first, world=4, others=others)
    assert [result.cases[call.case].op for call in result.of(3).calls] == ["sendrecv_pair", "all_reduce"]


def test_if_a_rank_was_not_recorded_all_ranks_make_the_calls_of_the_first():
    lists = stages()
    ranks = [RankRecording(f"rank{number}", number, tuple(lists[number])) for number in (0, 2)]
    job = replays.replay(CallList("Kineto", "nccl", 4, tuple(ranks)), "gloo", 4)
    assert [made.recorded for made in job.lists] == [0]
    assert "every rank makes the calls of rank 0" in job.stand_in and "2 of 4 ranks were not recorded" in job.stand_in


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (replace(REDUCE, operation="mystery"), "mystery left out: CollBench does not know it"),
        (replace(REDUCE, group=(0, 1, 2), group_size=3), "all_reduce left out: 8 ranks cannot be divided"),
        (replace(REDUCE, elements_in=None, elements_out=None), "its size was not recorded"),
        (replace(REDUCE, elements_in=0, elements_out=0), "it moved nothing"),
        (replace(REDUCE, dtype=None), "unknown dtype, taken as float32"),
        (replace(REDUCE, dtype="float8_e4m3fn"), "float8_e4m3fn sent as uint8"),
        (replace(REDUCE, operation="all_to_all", splits_in=None), "its splits were not recorded"),
        (RecordedCall("all_gather", "float32", 50, 101, group_size=2), "rounded down to whole shares"),
    ],
)
def test_changes_of_recorded_calls_are_reported(call, message):
    result = made(REDUCE, call, world=8 if call.group_size == 3 else 2)
    assert message in " ".join(sentences(result.changes))
    assert "left out" not in message or len(result.cases) == 1


def test_a_recording_without_anything_to_make_is_refused():
    with pytest.raises(ForeignError, match="no call can be replayed") as caught:
        made(replace(REDUCE, operation="mystery"))
    assert caught.value.reasons == (replays.UNKNOWN_OPERATION(operation="mystery", count=1),)
    with pytest.raises(ForeignError, match="no call can be replayed: it has no calls"):
        made()


def test_calls_are_asynchronous_and_waited_for_as_recorded():
    """A call waits for those that ended before it ran; only what was recorded as asynchronous is."""
    times = ((0.001, 0.004, True), (0.003, 0.005, True), (0.006, 0.004, None), (0.020, 0.001, None))
    calls = [replace(REDUCE, ran_s=at, duration_s=took, asynchronous=is_async) for at, took, is_async in times]
    result = made(*calls)
    assert [call.after for call in result.of(0).calls] == [(), (), (0,), (1,)]
    assert [result.cases[call.case].call for call in result.of(0).calls] == ["async", "async", "sync", "sync"]


def test_the_last_of_equal_steps_is_replayed():
    calls = [replace(REDUCE, step=number // 2) for number in range(6)]
    result = made(*calls)
    assert [call.recorded for call in result.of(0).calls] == [4, 5]
    assert result.changes == (replays.LAST_STEP(steps=3),)
    odd = made(*calls, replace(REDUCE, elements_in=7, step=2))
    assert len(odd.of(0).calls) == 7 and odd.changes[0].kind is replays.STEPS_AS_ONE


@pytest.mark.parametrize(("gpus", "backend", "ranks"), [(7, "gloo", 8), (8, "nccl", 8)])
def test_a_replay_takes_gpus_only_if_each_rank_has_a_gpu(monkeypatch, gpus, backend, ranks):
    machine = Machine("h", 4, 2**34, 2**25, gpus, {}, gpu_free_bytes=2**34)
    monkeypatch.setattr("collbench.machine.host.machine", lambda: machine)
    trace = ROOT / "docs" / "example" / "training.calls.jsonl"
    text = _configuration([trace], None).raw.decode()
    assert f"backends: [{backend}]" in text and f"world_sizes: [{ranks}]" in text


def test_a_plan_lists_the_cases_of_a_replay_or_names_the_number_of_ranks(warm):
    (warm.folder / "c.yaml").write_text(
        f"replay: {{recording: [{ROOT / 'docs/example/training.calls.jsonl'}]}}\nbackends: [gloo]\nworld_sizes: [8]\n"
    )
    done = warm("plan", "c.yaml")
    assert done.stdout.startswith("replay · gloo · 8 ranks") and "nothing can be measured" not in done.stdout
    other = warm("plan", "c.yaml", "--set", "world_sizes=[2]")
    assert (other.returncode, other.stderr.count("\n")) == (2, 1) and "recorded on 8 ranks, not on 2" in other.stderr


def test_a_report_states_how_a_replay_was_measured_and_how_precisely(warm):
    done = warm("report", str(ROOT / "docs" / "example" / "replay"), "--format", "markdown")
    assert "How measured: isolated · barrier before each call" in done.stdout
    assert "**Trust**: spread of launches (too few for a 95 % interval) within this run ±6 %" in done.stdout
