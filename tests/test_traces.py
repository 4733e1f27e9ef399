"""Recordings of jobs, in each format, become the same list of calls; missing values are counted, never invented."""

import contextlib
import gzip
import io
import json
import pickle
import pickletools
import resource
import struct
import tarfile

import pytest

from collbench.machine import memory
from collbench.model.errors import ForeignError
from collbench.packages.replay import importers as traces
from collbench.packages.replay import report as findings
from collbench.packages.replay import store as call_file
from collbench.packages.replay.analyze.recorded import recorded_job
from collbench.packages.replay.importers import FILES_NO_RECORDING, FILES_OF_OTHER_FORMAT, recordings
from collbench.packages.replay.recorded_calls import INCOMPLETE_CALLS, RECORDED_LEFT_OUT, UNSURE_OPERATORS
from collbench.report.notices import sentences

PAIR = {"Process Group Ranks": "[0, 1]"}


# ── files and events ─────────────────────────────────────────────────────────────────────────────
def written(folder, name, content):
    path = folder / name
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def kineto(events, **device):
    info = {"backend": "nccl", "rank": 1, "world_size": 4, **device}
    return {"distributedInfo": info, "baseTimeNanoseconds": 5, "traceEvents": events}


def bare(events):
    """Return a trace without its rank."""
    return {"baseTimeNanoseconds": 5, "traceEvents": events}


def event(name, ts, duration=5, tid=1, cat="cpu_op", **args):
    return {"name": name, "cat": cat, "ts": ts, "dur": duration, "tid": tid, "args": args}


def param_event(ts, name, **args):
    usual = {
        "Collective name": name, "dtype": "Float", "In msg nelems": 100, "Out msg nelems": 100, "Group size": 2,
        "Process Group Name": "7", "Process Group Ranks": "[1, 3]", "In split size": "[]", "Out split size": "[]",
        "External id": ts,
    }  # fmt: skip
    return event("record_param_comms", ts, **usual | args)


def kernel(ts, duration, external, stream=40, name="ncclDevKernel_AllReduce", **more):
    return event(name, ts, duration, 40, "kernel", **{"External id": external, "stream": stream, **more})


def computing(ts, duration):
    return kernel(ts, duration, None, 7, "gemm")


def p2p_event(ts, name):
    return param_event(ts, name, **{"Dst Rank" if name == "send" else "Src Rank": 3})


def launch(ts, number, name="cudaLaunchKernelExC", cat="cuda_runtime"):
    return event(name, ts, 1, cat=cat, correlation=number)


def launched_kernel(ts, duration, correlation, name="ncclDevKernel_SendRecv"):
    return event(name, ts, duration, 7, "kernel", correlation=correlation, stream=7)


def operator(ts, name, dims, duration=5, **more):
    return event(f"c10d::{name}", ts, duration, **{"Input Dims": dims, **more})


def annotation(ts, name, dims, duration=5, tid=1):
    return event(name, ts, duration, tid, "user_annotation", **{"Input Dims": dims})


def read_events(folder, *events, **device):
    return traces.read([written(folder, "a.json", kineto(events, **device))])


def looked_at(folder, *events, **device):
    recorded = read_events(folder, *events, **device)
    return recorded, recorded_job(recorded)


def us(seconds):
    """Return seconds as µs, to one place; None stays."""
    return seconds if seconds is None else round(1e6 * seconds, 1)


def says(job, words):
    return any(words in text for text in sentences(job.withheld))


# ── files of one job ─────────────────────────────────────────────────────────────────────────────
def test_of_several_formats_in_a_folder_the_most_detailed_is_read(tmp_path):
    for rank in (0, 1):
        document = kineto([param_event(100, "allreduce")], rank=rank, world_size=2) | {"host_name": "one"}
        document["baseTimeNanoseconds"] = 1_790_000_000_000_000_000 + 1000 * rank
        written(tmp_path, f"kineto_rank{rank}.json", document)
        entry = {"profiling_name": "nccl:all_reduce", "input_sizes": [[100]], "input_dtypes": ["Float"]}
        written(tmp_path, f"fr_rank{rank}.json", {"entries": [entry | {"output_sizes": [[100]]}]})
    recorded = traces.read([tmp_path])
    assert (recorded.kind, len(recorded.ranks)) == ("Kineto", 2)
    assert recorded.notices == (FILES_OF_OTHER_FORMAT(format="flight recorder", count=2),)
    assert [rank.offset_s for rank in recorded.ranks] == [0.0, pytest.approx(1e-6, abs=3e-7)]
    saved = tmp_path / "job.calls.jsonl"
    saved.write_text(call_file.to_text(recorded))
    assert call_file.read(saved) == recorded
    (tmp_path / "kineto_rank1.json").unlink()
    with pytest.raises(ForeignError, match=r"fr_rank0.json: is flight recorder, and kineto_rank0.json is Kineto, with"):
        traces.read(sorted(tmp_path.glob("*rank*.json")))


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("et_rank3.json", 3), ("0.json.gz", 0), ("nccl_trace_rank_7", 7), ("dlrm_5.json", 5),
        ("worker3.1732600000000.pt.trace.json", 3), ("trace_2024-03-21.json", None), ("dump_20240321.json", None),
        ("host3_step12.json", None), ("torch2.13.json", None),
        ("job_3_2024-03-21.json", 3), ("gpu07_4711.1732600000000.pt.trace.json", None),
        ("rank2_4711.1732600000000.pt.trace.json", 2), ("trace_kineto.11.json", 11),
        ("libkineto_trace_12345.json", None), ("frankfurt1_4711.1732600000000.pt.trace.json", None),
        ("host.Jul_15_10_52_41.1074.pt.trace.json", None), ("trace_2024-03-21_10-15-30.json", None),
        ("resnet50.json", None), ("h100.json", None), ("8gpus.json", None), ("trace_ranks8_rank3.json", 3),
        ("nranks16_rank3.json", 3), ("local_rank_1_rank_9.json", 9), ("RANK_3_of_8.json", 3),
        ("epoch=3-step=100.json", None),
    ],
)  # fmt: skip
def test_a_date_or_a_step_in_a_name_is_not_a_rank(name, rank):
    assert recordings.rank_of(name) == rank


def job_of_two(tmp_path, second_begins_s, steps=((1, 2, 3), (1, 2, 3))):
    """Return a recording of two ranks, one all-reduce per step of 1 s; rank 1 is 10 ms late, so that rank 0 waits."""
    paths = []
    for rank, (begins_s, rank_steps) in enumerate(zip((0, second_begins_s), steps, strict=True)):
        events = []
        for step in rank_steps:
            at = step * 1_000_000
            span = event(f"ProfilerStep#{step}", at, 900_000, cat="user_annotation")
            events += [span, param_event(at + 10, "allreduce", **PAIR), kernel(at + 20, (15_000, 5_000)[rank], at + 10)]
        document = kineto(events, rank=rank, world_size=2) | {"baseTimeNanoseconds": int((1.7e9 + begins_s) * 1e9)}
        paths.append(written(tmp_path, f"rank{rank}.json", document))
    return traces.read(paths)


def test_files_of_two_jobs_are_refused(tmp_path):
    with pytest.raises(ForeignError, match=r"begins 3598 s after rank0\.json ends: give files of one recording"):
        job_of_two(tmp_path, 3600)


@pytest.mark.parametrize(
    ("device", "args", "text"),
    [
        ({"world_size": 4}, {}, "1 of 4 ranks"),
        ({"world_size": 2}, {}, "1 of at least 4 ranks"),
        ({"world_size": 3}, {}, "1 of at least 4 ranks"),
        ({"world_size": 2}, PAIR, "1 of 2 ranks"),
        ({"world_size": 2, "pg_config": [{"pg_name": "0", "ranks": [0, 1, 2, 3, 4]}]}, {}, "1 of at least 5 ranks"),
        ({"world_size": None}, {}, "1 of at least 4 ranks"),
        ({"world_size": None, "rank": None}, {"Process Group Ranks": "", "Group size": None}, "1 of an unknown number"),
    ],
)
def test_the_number_of_ranks_is_as_the_files_prove(tmp_path, device, args, text):
    recorded, job = looked_at(tmp_path, param_event(100, "allreduce", **args), kernel(110, 50, 100), **device)
    assert text in findings.recorded_sentence(job)
    assert job.world_size == (recorded.world_size if "least" not in text and "unknown" not in text else None)
    if args == PAIR:  # another file of the job contradicts
        other = kineto([param_event(100, "allreduce", **PAIR)], rank=0, world_size=8)
        both = traces.read([tmp_path / "a.json", written(tmp_path, "0.json", other)])
        assert (both.world_size, both.world_is_least) == (2, True)


# ── Kineto ───────────────────────────────────────────────────────────────────────────────────────
def test_kineto_with_metadata(tmp_path):
    listed = {"Process Group Ranks": "[0, 2, ...]", "Global rank start": 1, "Global rank stride": 2}
    gathered = {"Out msg nelems": 200, "Seq": 7, "Is asynchronized op": True, "dtype": "BFloat16"}
    events = [
        param_event(100, "allreduce"),
        kernel(150, 40, 100),
        event("nccl:all_reduce", 150, 40, cat="gpu_user_annotation"),
        param_event(110, "wait"),
        param_event(300, "_allgather_base", **gathered),
        param_event(400, "all_to_allv", **{"In split size": "[60, 40]", "Out split size": "[10, 90]"}),
        param_event(500, "broadcast", **listed),
        event("ProfilerStep#4", 90, 600, cat="user_annotation"),
        {"name": "something else", "ts": 1},
        {"ph": "M", "name": 5},
    ]
    job = traces.read([written(tmp_path, "a.json.gz", kineto(events))])
    (rank,) = job.ranks
    assert (job.kind, job.backend, job.world_size, rank.rank, job.steps) == ("Kineto", "nccl", 4, 1, 1)
    reduce, gather, exchange, broadcast = rank.calls
    assert (reduce.operation, reduce.dtype, reduce.elements_in, reduce.group) == ("all_reduce", "float32", 100, (1, 3))
    assert reduce.start_s == 0 and reduce.ran_s == pytest.approx(50e-6) and reduce.duration_s == pytest.approx(40e-6)
    assert reduce.step == 4 and reduce.communicator == "7"
    assert reduce.asynchronous is False and reduce.exposed_s is None  # no computing was recorded
    assert (gather.elements_out, gather.sequence, gather.asynchronous) == (200, 7, True)
    assert (exchange.operation, exchange.splits_in) == ("all_to_all_uneven", (60, 40))
    assert broadcast.group == (1, 3) and broadcast.start_s == pytest.approx(400e-6)
    assert job.notices == (RECORDED_LEFT_OUT(what="wait", count=1),) and job.unknown == {"duration": 3}


def test_kineto_without_metadata(tmp_path):
    events = [
        operator(100, "_allgather_base_", [[800], [100], []], 50),
        event("nccl:_all_gather_base", 110, 30, **{"Input Dims": [[100]], "Input type": ["c10::BFloat16"]}),
        launch(120, 3),
        launched_kernel(200, 70, 3, "ncclKernel_AllGather"),
        event("nccl:all_reduce", 400, 10, **{"Input Dims": [[5, 4]], "Input type": ["float"]}),
        event("nccl:all_to_all", 500, 10),
    ]
    (rank,) = traces.read([written(tmp_path, "a.json", {"traceEvents": events})]).ranks
    gather, reduce, exchange = rank.calls
    assert (gather.operation, gather.elements_in, gather.elements_out, gather.group_size) == ("all_gather", 100, 800, 8)
    assert gather.dtype == "bfloat16" and gather.duration_s == pytest.approx(70e-6)
    assert (reduce.elements_in, reduce.dtype, reduce.group, reduce.duration_s) == (20, "float32", None, None)
    assert exchange.elements_in is None and exchange.splits_in is None


def test_only_kernels_show_when_calls_ran_and_what_ran_meanwhile(tmp_path):
    """Ten calls of 5 ms, enqueued 50 µs apart, run one after another: computing overlaps only with the first."""
    events = [param_event(100 + 50 * number, "allreduce") for number in range(10)]
    events += [kernel(1000 + 5000 * number, 5000, 100 + 50 * number) for number in range(10)]
    calls = read_events(tmp_path, *events, computing(0, 3000)).ranks[0].calls
    assert [us(call.ran_s) for call in calls] == [900 + 5000 * number for number in range(10)]
    assert [call.asynchronous for call in calls] == [True] + [False] * 9
    assert [us(call.exposed_s) for call in calls] == [3000] + [5000] * 9
    # Older files count µs since 1970; converted to seconds, a float would lose fractions below 0.2 µs.
    epoch = 1_750_000_000_000_000
    events = [param_event(epoch, "allreduce"), kernel(epoch + 10.25, 0.5, epoch), computing(epoch + 10.5, 10)]
    (call,) = read_events(tmp_path, *events).ranks[0].calls
    assert (call.ran_s, call.exposed_s) == pytest.approx((10.25e-6, 0.25e-6), rel=1e-6)


def test_a_kernel_that_ran_several_calls_belongs_to_each_of_them(tmp_path):
    """torch launches a batch of sends and receives after its last call; the kernel names none of the calls."""
    early = launched_kernel(300, 80, 5, "ncclDevKernel_AllReduce")
    recorded, job = looked_at(tmp_path, *BATCH, early)
    (rank,) = recorded.ranks
    assert [(call.operation, call.batched, us(call.duration_s)) for call in rank.calls] == [
        ("send", True, 450), ("recv", True, 450),
    ]  # fmt: skip
    assert (rank.unclaimed, us(rank.unclaimed_s)) == (1, 80)
    assert us(job.total.in_calls_s) == 900 and job.kinds[0].busbw is None
    assert says(job, "belong to no recorded call: 1, 80.0 µs")
    assert not read_events(tmp_path, BATCH[0], *BATCH[2:]).ranks[0].calls[0].batched


def test_a_kernel_that_a_call_launched_communicates_whatever_its_name_is(tmp_path):
    """By the id of the call, of the dispatcher's operator around it, or by the time and thread of the launch."""
    call, around = param_event(100, "allreduce"), operator(95, "allreduce_", [], 60, **{"External id": 95})
    launched = launch(120, 3, cat="xpu_runtime")
    for number, unclaimed in ((100, 0), (95, 0), (7, 1)):
        zork = kernel(300, 50, number, correlation=3, name="zork")
        recorded, job = looked_at(tmp_path, call, around, launched, zork, computing(300, 50))
        assert recorded.ranks[0].unclaimed == unclaimed
        assert recorded.ranks[0].calls[0].duration_s == (None if unclaimed else pytest.approx(50e-6))
        assert job.total is None or job.total.exposed_s == 0
    copied = kernel(300, 50, 7, correlation=3, name="void at::native::elementwise_kernel<128>")
    assert read_events(tmp_path, call, around, launched, copied).ranks[0].unclaimed == 0


def test_operators_that_may_be_calls_make_the_time_a_least_time(tmp_path):
    """gloo makes some operations of others: such operators may be the same calls."""
    recorded, job = looked_at(tmp_path, operator(10, "broadcast_", []), annotation(50, "gloo:all_reduce", [], 7, 2))
    assert recorded.notices == (UNSURE_OPERATORS(count=1),)
    assert "at least 7.00 µs" in findings.recorded_sentence(job)
    scattered = operator(500, "_reduce_scatter_base_", [[9], [18]])
    recorded, _ = looked_at(tmp_path, scattered, annotation(510, "gloo:all_reduce", [[18]], 8000, 5))
    assert [call.operation for call in recorded.ranks[0].calls] == ["all_reduce"]
    assert recorded.notices == (UNSURE_OPERATORS(count=1),)


BATCH = [p2p_event(100, "send"), p2p_event(110, "recv"), launch(120, 9), launched_kernel(200, 900, 9)]
SHARED_ID = [param_event(100, "allreduce"), param_event(100, "allreduce") | {"ts": 900}]
ALONE = param_event(100, "allreduce", **{"Group size": 1, "Process Group Name": "9"})
# Title → events, and of each call: operation, elements in and out, duration in µs; at the end, kernels of no call.
EVENTS = {
    "calls that share an external id": (
        [*SHARED_ID, kernel(110, 50, 100), kernel(1010, 50, 100)], 2 * [("all_reduce", 100, 100, 50)], 0,
    ),
    # A call of one rank has no kernel; kernels that a graph launches were captured before.
    "a graph": (
        [ALONE, launch(200, 9, "cudaGraphLaunch"), launched_kernel(300, 300, 9, "ncclDevKernel_AllReduce")],
        [("all_reduce", 100, 100, None)], 1,
    ),
    "a batch after a call of another group": (
        [param_event(90, "_allgather_base", **{"Process Group Name": "other"}), *BATCH],
        [("all_gather", 100, 100, None), ("send", 100, 100, 450), ("recv", 100, 100, 450)], 0,
    ),
    "an annotation without an operator": (
        [annotation(5, "hccl:all_reduce", [[9]], 7)], [("all_reduce", 9, 9, None)], 0,
    ),
    # Backends of vendors annotate nothing; an operator around an annotation is the same call.
    "calls that only the dispatcher knows": (
        [
            operator(100, "allreduce_", [[[7]]], 50), annotation(110, "nccl:all_reduce", [[7]]),
            operator(300, "allreduce_", [[[250]]], 50), operator(305, "allreduce_", [[[250]]], 10),
            operator(400, "monitored_barrier_", [], 50), operator(500, "_allgather_base_", [[40], [10]], 50),
        ],
        [("all_reduce", 7, 7, None), ("all_reduce", 250, 250, None), ("all_gather", 10, 40, None)], 0,
    ),
    "calls of gloo among described calls": (
        [
            param_event(100, "allreduce"), kernel(110, 50, 100), operator(500, "allreduce_", [[[9]]]),
            annotation(510, "gloo:all_reduce", [[9]], 8000, 5),
        ],
        [("all_reduce", 100, 100, 50), ("all_reduce", 9, 9, 8000)], 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("title", EVENTS)
def test_each_call_is_found_once_with_its_own_kernel(tmp_path, title):
    events, calls, unclaimed = EVENTS[title]
    (rank,) = read_events(tmp_path, *events).ranks
    assert [(c.operation, c.elements_in, c.elements_out, us(c.duration_s)) for c in rank.calls] == calls
    assert rank.unclaimed == unclaimed


def test_numbers_that_json_does_not_have(tmp_path):
    """torch wrote `inf` for a copy that took no time; a time is never NaN. A torn file has a place."""
    copy = event("Memcpy", 5, 0, cat="Memcpy", **{"memory bandwidth (GB/s)": 1234.5})
    text = json.dumps(kineto([copy, param_event(100, "allreduce"), copy, kernel(110, 50, 100)]))
    recorded = traces.read([written(tmp_path, "inf.json", text.replace("1234.5", "inf").encode())])
    assert recorded.ranks[0].calls[0].duration_s == pytest.approx(50e-6)
    with pytest.raises(ForeignError, match="NaN is not a number"):
        traces.read([written(tmp_path, "nan.json", text.replace('"dur": 5', '"dur": NaN').encode())])
    lines = json.dumps(kineto([param_event(100, "allreduce")]), indent=1).replace('"dur": 5', '"dur": ?')
    number = next(at for at, line in enumerate(lines.split("\n"), 1) if "?" in line)
    with pytest.raises(ForeignError, match=f"torn.json:{number}:"):
        traces.read([written(tmp_path, "torn.json", lines.encode())])


# ── execution traces ─────────────────────────────────────────────────────────────────────────────
def tensor(number, elements):
    return [number, number, 0, elements, 4, "cuda:1"]


def execution_trace(*more_nodes):
    """Return an execution trace with a reduce_scatter of lists among ranks 1 and 3 of 4."""
    groups = [{"pg_name": "0", "ranks": [], "group_size": 4}, {"pg_name": "3", "ranks": [1, 3], "group_size": 2}]
    facts = {"collective_name": "reduce_scatter", "dtype": "Float", "pg_name": "3", "pg_size": 2}
    call = {
        "id": 9,
        "name": "record_param_comms",
        "attrs": [{"name": name, "value": value} for name, value in facts.items()],
        "inputs": {
            "values": [[tensor(4, 80)], 12, ["3", "group"], 0, "reduce_scatter", [], [], 1, 2, 2],
            "types": ["GenericList[Tensor(float)]"],
        },
        "outputs": {"values": [[tensor(5, 40)]], "types": []},
    }
    made = {"id": 1, "name": "## process_group:init ##", "inputs": {"values": [json.dumps(groups)]}}
    return {"schema": "1.1.0", "nodes": [made, call, *more_nodes]}


def test_execution_trace_with_attributes_and_groups(tmp_path):
    wait = {"id": 5, "name": "record_param_comms", "inputs": {"values": [11, ["0", "x"], 1, "wait", [], []]}}
    recorded = traces.read([written(tmp_path, "et_rank3.json", execution_trace(wait))])
    (rank,) = recorded.ranks
    (call,) = rank.calls
    assert (rank.rank, call.operation, call.dtype, call.group, call.sequence) == (
        3, "reduce_scatter_list", "float32", (1, 3), 12,
    )  # fmt: skip
    assert (call.elements_in, call.elements_out, call.start_s, call.asynchronous) == (80, 40, None, None)
    assert recorded.notices == (RECORDED_LEFT_OUT(what="wait", count=1),)
    assert recorded.unknown == {"start": 1, "duration": 1}


def test_execution_trace_1_0_has_splits_and_the_pointer_of_its_group(tmp_path):
    node = {
        "id": 2,
        "name": "record_param_comms",
        "inputs": [[tensor(1, 3392)], 149, 94594108284448, 0, "all_to_allv", [96, 3296], [32, 736]],
        "input_types": ["GenericList[Tensor(int)]", *["Int"] * 3, "String", *["GenericList[Int]"] * 2],
        "outputs": [[tensor(2, 768)]],
    }
    (rank,) = traces.read([written(tmp_path, "0.json", {"schema": "1.0.1", "nodes": [node]})]).ranks
    (call,) = rank.calls
    assert (call.operation, call.dtype, call.splits_in) == ("all_to_all_uneven", "int32", (96, 3296))
    assert (call.elements_in, call.elements_out, call.group, call.group_size) == (3392, 768, None, 2)


# ── flight recorder ──────────────────────────────────────────────────────────────────────────────
def recorder(**entry):
    usual = {
        "record_id": 1, "process_group": ["7", "tp"], "collective_seq_id": 3, "p2p_seq_id": 0,
        "profiling_name": "nccl:all_reduce", "input_sizes": [[4, 5], [2]], "input_dtypes": ["Float", "Float"],
        "output_sizes": [[4, 5], [2]], "output_dtypes": ["Float", "Float"], "state": "completed",
        "time_created_ns": 1_000_000_000, "is_p2p": False,
    }  # fmt: skip
    return {"version": "2.10", "pg_config": {"7": {"name": "7", "ranks": "[2, 5]"}}, "entries": [usual | entry]}


def dump(folder, entries, name="fr_rank2.json"):
    """Return the recording in a dump of these entries."""
    whole = [recorder(**entry)["entries"][0] for entry in entries]
    return traces.read([written(folder, name, recorder() | {"entries": whole})])


def test_a_batch_in_a_flight_recorder_has_one_state_and_one_time(tmp_path):
    made = (
        {"profiling_name": "nccl:send 0->1", "state": "scheduled"},
        {"profiling_name": "nccl:recv 0<-1", "state": "scheduled"},
        {"profiling_name": "nccl:coalesced", "duration_ms": 3.0, "retired": True},
        {"profiling_name": "nccl:send 0->1", "state": "scheduled", "p2p_seq_id": 2},
    )
    usual = {"is_p2p": True, "p2p_seq_id": 1}
    recorded = dump(tmp_path, [usual | entry | {"record_id": number} for number, entry in enumerate(made)])
    assert [(call.operation, call.duration_s, call.batched) for call in recorded.ranks[0].calls] == [
        ("send", 0.0015, True), ("recv", 0.0015, True), ("send", None, False),
    ]  # fmt: skip
    assert recorded.notices == (INCOMPLETE_CALLS(count=1),)
    assert findings.recorded_sentence(recorded_job(recorded)).startswith("calls took at least 3.00 ms")


@pytest.mark.parametrize(
    ("first", "sequence", "gaps"), [(0, 3, None), (70, 3, (1, 71, 3, 3)), (70, 90, (1, 90, 90, 90))]
)
def test_a_ring_that_dropped_calls_leaves_no_total(tmp_path, first, sequence, gaps):
    """The flight recorder numbers its entries from 0: without the first, calls were dropped."""
    recorded = dump(tmp_path, [{"record_id": first, "collective_seq_id": sequence, "duration_ms": 2}])
    assert (*(recorded.gaps or {}).values(),) == (gaps or ()) and (recorded_job(recorded).total is None) == bool(gaps)


# ── Inspector ────────────────────────────────────────────────────────────────────────────────────
INSPECTED = {
    "header": {"id": "0xe6", "rank": 4, "n_ranks": 8},
    "coll_perf": {"coll": "ReduceScatter", "coll_sn": 9, "coll_msg_size_bytes": 1000, "coll_exec_time_us": 41},
}


def inspected(host, pid, communicator, rank, ranks, number, coll="AllReduce", **more):
    call = {"coll": coll, "coll_sn": number, "coll_msg_size_bytes": 64, "coll_exec_time_us": 10}
    header = {"id": communicator, "rank": rank, "n_ranks": ranks}
    return {"header": header, "metadata": {"hostname": host, "pid": pid}, "coll_perf": call | more}


def log(folder, lines, name="a.log"):
    return written(folder, name, "\n".join(map(json.dumps, lines)).encode())


def test_a_process_of_inspector_is_a_host_and_a_pid(tmp_path):
    """The rank in a line counts within its communicator; the rank in the world is unknown."""
    paths = []
    for rank in range(4):
        lines = [inspected(f"n{rank // 2}", rank, f"pair{rank // 2}", rank % 2, 2, number) for number in (1, 2)]
        lines += [inspected(f"n{rank // 2}", rank, "all", rank, 4, number, "AllGather") for number in (1, 2)]
        paths.append(log(tmp_path, lines, f"n{rank}.log"))
    recorded = traces.read(paths)
    assert [(rank.rank, len(rank.calls)) for rank in recorded.ranks] == [(None, 4)] * 4
    assert len({rank.process for rank in recorded.ranks}) == 4 and recorded.gaps is None
    assert recorded_job(recorded).total.in_calls_s == pytest.approx(40e-6)
    with pytest.raises(ForeignError, match="is given twice"):
        traces.read([paths[0], written(tmp_path, "again.log", paths[0].read_bytes())])
    pairs = [log(tmp_path, [inspected("n", pid, f"c{pid}", 0, 2, 1)], f"p{pid}.log") for pid in (1, 2)]
    assert [rank.rank for rank in traces.read(pairs).ranks] == [None, None]


@pytest.mark.parametrize(
    ("first", "dropped", "gaps"),
    [
        (4097, 4096, (3, 4099, 4097, 4099)),
        (1, 5, (3, 8, 1, 3)),
        (1, 0, None),
        (0, None, None),
        (7, None, (3, 9, 7, 9)),
    ],
)
def test_calls_that_were_dropped_before_the_first_leave_no_total(tmp_path, first, dropped, gaps):
    """Inspector counts the calls that it dropped; lines of its own are no lost calls."""
    lines = [inspected("n", 1, "0xe6", 0, 2, number) for number in range(first, first + 3)]
    head = {key: lines[0][key] for key in ("header", "metadata")}
    stats = [] if dropped is None else [head | {"dump_stats": {"coll_dropped_total": dropped}}]
    proxy = {"proxy_trace": {"record_type": "proxy_op_start", "proxy_op_sn": 12}}
    recorded = traces.read([log(tmp_path, [*stats, *lines, proxy])])
    assert (recorded.gaps and (*recorded.gaps.values(),)) == gaps and not recorded.notices
    assert (recorded_job(recorded).total is None) == (gaps is not None)


@pytest.mark.parametrize(
    ("sources", "by_host", "total_us"),
    [
        (("kernel_gpu", "collective_cpu"), 1, 110), (("kernel_gpu", "kernel_cpu"), 1, 110),
        (("collective_cpu", None), 1, 110), (("kernel_gpu", "kernel_gpu"), 0, 220),
        (("collective_cpu", "kernel_cpu"), 2, 220), ((None, None), 0, 220), (("kernel_gpu", "host_fallback"), 1, 110),
    ],
)  # fmt: skip
def test_durations_by_two_clocks_are_not_added(tmp_path, sources, by_host, total_us):
    """A duration by the host's clock lasts from the call until its end was seen, one by the GPU's is a kernel's."""
    lines = [
        inspected("n", 1, "all", 0, 2, number, coll_exec_time_us=110, coll_timing_source=source)
        for number, source in enumerate(sources)
    ]
    job = recorded_job(traces.read([log(tmp_path, lines)]))
    assert job.total.in_calls_s == pytest.approx(total_us * 1e-6)
    assert says(job, f"{by_host} of 2 durations are by the host's") == (by_host > 0)
    assert ("took at least" in findings.recorded_sentence(job)) == (total_us == 110)


# ── files ────────────────────────────────────────────────────────────────────────────────────────
def tar_of(folder, members):
    path = folder / "all.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def test_a_folder_and_a_pattern_name_all_files_in_them(tmp_path):
    inside = tmp_path / "job"
    inside.mkdir()
    for rank in (0, 1):
        written(inside, f"fr_{rank}.json", recorder())
    written(inside, "._fr_0.json", b"\x00 written by macOS")
    assert len(traces.read([inside]).ranks) == len(traces.read([inside / "fr_*.json"]).ranks) == 2
    with pytest.raises(ForeignError, match="no file of a recording"):
        traces.read([tmp_path / "none*"])
    with pytest.raises(ForeignError, match="rank 1 is given twice"):
        traces.read([inside, written(tmp_path, "again_1.json", recorder())])


def test_an_archive_is_read_as_a_folder(tmp_path):
    """Torch writes a folder of sources with an execution trace; the commonest packing has each rank packed, too."""
    others = {"a/kernel_0.py": b"import triton", "a/plot.png": b"\x89PNG\xff", "a/dump": b"\x80\x04broken"}
    packed = {f"a/rank-{rank}.json.gz": gzip.compress(json.dumps(recorder()).encode()) for rank in (2, 5)}
    recorded = traces.read([tar_of(tmp_path, others | packed | {"a/._rank-0.json": b"written by macOS"})])
    assert [rank.rank for rank in recorded.ranks] == [2, 5]
    assert recorded.notices == (FILES_NO_RECORDING(file="a/kernel_0.py", count=3),)
    damaged = packed | {"a/rank-6.json.gz": packed["a/rank-2.json.gz"][:40]}  # a damaged rank is not another file
    for members, message in (
        (damaged, r"rank-6\.json\.gz"),
        (others, "a/kernel_0.py: neither Kineto"),
        (others | {"a/et.json": {"nodes": []}}, "no call of a collective"),
    ):
        with pytest.raises(ForeignError, match=message):
            traces.read([tar_of(tmp_path, members)])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "neither Kineto"),
        (b"\xff\xfe", "neither a text file"),
        (b"\x80\x04broken", "a pickle that cannot be read"),
        (b'{"traceEvents": [{"name": "x", "ts": 1}, {"na', "JSON"),
        (b'{"traceEvents": []}', "no call of a collective"),
        (b'{"nodes": [' + b"[" * 100_000, "JSON"),
        (b'{"entries": 5, "pg_config": {}}', ""),
        (b'{"nodes": [{"id": 1, "name": "record_param_comms", "inputs": ' + b"[" * 900 + b"]" * 900 + b"}]}", ""),
        (b'{"coll_perf": {"coll": "AllReduce"}, "header": {"rank": 1' + b"0" * 30 + b"}}", "world"),
        (json.dumps(recorder(input_sizes="x", process_group=None)).encode()[:-1], "JSON"),
        (json.dumps(recorder(input_sizes=[[None]])).encode(), "not in the format of flight recorder"),
        (json.dumps(recorder(duration_ms="nan")).encode(), "a call of nan s"),
    ],
)
def test_torn_and_hostile_files_are_one_line(tmp_path, content, message):
    with pytest.raises(ForeignError) as caught:
        traces.read([written(tmp_path, "t.json", content)])
    assert message in str(caught.value) and "\n" not in str(caught.value)


def folded_pickle():
    """Return a pickle of lists that each contain the previous list twice: its JSON would fill any memory."""
    folded = ["x"]
    for _ in range(30):
        folded = [folded, folded]
    return pickletools.optimize(pickle.dumps({"entries": folded}, protocol=2))


def a_header(name="fr_1.json", **fields):
    info = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(info, field, value)
    return info.tobuf(tarfile.GNU_FORMAT)


def test_a_few_bytes_take_no_gigabytes(tmp_path):
    """Each of these files is smaller than 2 KiB and once took unlimited memory, or all memory of the system."""
    far = {"Process Group Ranks": "", "Group size": 10**9, "Global rank start": 0, "Global rank stride": 1}
    groups = json.dumps([{"pg_name": "0", "group_size": 10**9}])
    hostile = {
        "folded": folded_pickle(),
        "memo": b"\x80\x02}r" + struct.pack("<I", 2**31 - 1) + b".",
        "array": b"\x80\x05\x96" + struct.pack("<Q", 2**33) + b".",
        "stride.json": bare([param_event(1, "allreduce", **far)]),
        "listed.json": kineto([], pg_config=[{"pg_name": "0", "pg_size": 10**9}]),
        "nodes.json": {"nodes": [{"id": 1, "name": "## process_group:init ##", "inputs": {"values": [groups]}}]},
        "lie.tar.gz": a_header(size=2**40, type=tarfile.XHDTYPE) + bytes(512),
        "sparse.tar.gz": a_header(size=2**40, type=tarfile.GNUTYPE_SPARSE) + bytes(1024),
    }
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name, content in hostile.items():
        path = written(tmp_path, name, content)
        assert path.stat().st_size < 2048
        with contextlib.suppress(ForeignError):
            traces.read([path])
        # 256 MiB: the limit of the reader itself, `machine.memory`, is 512 MiB.
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18, name


@pytest.mark.parametrize("start", [b"BZh9", b"\xfd7zXZ\x00", b"PK\x03\x04", b"\x28\xb5\x2f\xfd", a_header(size=0)])
def test_other_archives_are_refused(tmp_path, start):
    with pytest.raises(ForeignError, match=r"only \.gz and \.tar\.gz are"):
        traces.read([written(tmp_path, "job", start + bytes(1024))])


def test_a_tar_that_was_cut_off_lacks_no_rank_silently(tmp_path):
    path = tar_of(tmp_path, {f"rank-{rank}.json": recorder() for rank in range(2)})
    unpacked = gzip.decompress(path.read_bytes())
    assert len(traces.read([written(tmp_path, "whole.tar.gz", unpacked)]).ranks) == 2
    second = unpacked.index(b"rank-1.json")
    damaged = unpacked[:second] + b"\xff" * 20 + unpacked[second + 20 :]
    for content in (unpacked[:second], unpacked[: second + 100], unpacked[: second + 700], damaged):
        with pytest.raises(ForeignError) as caught:
            traces.read([written(tmp_path, "cut.tar.gz", content)])
        assert "cut.tar.gz" in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_takes_too_much_memory_is_one_line_and_the_limit_is_lifted(tmp_path, monkeypatch):
    if not memory.STATE.exists():
        pytest.skip("this system does not tell how much memory a process has")
    before = resource.getrlimit(resource.RLIMIT_AS)
    monkeypatch.setattr(memory, "LEAST", 2**22)
    path = written(tmp_path, "a.json.gz", json.dumps(kineto([param_event(1, "allreduce")] * 100_000)).encode())
    with pytest.raises(ForeignError, match="of memory"):
        traces.read([path])
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def gloo_calls(number):
    """Return calls of gloo, on another thread than their operators of equal size; no call fits its neighbour."""
    events = []
    for call in range(number):
        run = {"Input Dims": [[100]], "Input type": ["float"]}
        events += [
            operator(10 * call, "allreduce_", [[[100]]]),
            event("gloo:all_reduce", 10**6 + 10 * call, 5, 2, **run),
            event("nccl:all_reduce", 10 * call + 1, 3, **run),
        ]
    return {"traceEvents": events}


# ── lists of calls ───────────────────────────────────────────────────────────────────────────────
def changed(line, old, new):
    """Return a function that changes a line: 0 is the header, 1 the call."""
    return lambda lines: [text.replace(old, new, 1) if number == line else text for number, text in enumerate(lines)]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda lines: lines[1:], "not a list of calls"),
        (lambda lines: [lines[0], "{"], ":2: not JSON"),
        (lambda lines: [lines[0], "[]"], ":2: a line must be an object"),
        (lambda lines: [*lines, lines[1]], "states 1 calls, but 2 follow"),
        (changed(1, '"elements_in":22,', ""), ":2: elements_in: Field required"),
        (changed(1, "{", '{"colour":1,'), "unknown field 'colour'"),
        (changed(1, "22", '"many"'), ":2: elements_in: "),
        (changed(1, '"group_size":2', '"group_size":1000000000'), "at most 65536"),
        (changed(0, '"version":4', '"version":9'), "version 9; this CollBench reads 4"),
        (changed(0, '"notices":[', '"notices":[{"kind":"x"}'), "no notice of this kind"),
        (changed(0, '"ranks":[', '"ranks":5,"x":['), "each needs a source, and its number"),
        (changed(0, '"calls":1', '"calls":"1"'), "each needs a source"),
        (changed(0, '"world_size":6', '"world_size":9999999999'), "at most 65536"),
    ],
)
def test_mistakes_in_a_list_of_calls_are_named_with_their_line(tmp_path, edit, message):
    recorded = traces.read([written(tmp_path, "fr_0.json", recorder())])
    path = tmp_path / "x.calls.jsonl"
    path.write_text("\n".join(edit(call_file.to_text(recorded).splitlines())) + "\n")
    with pytest.raises(ForeignError) as caught:
        traces.read([path])
    assert message in str(caught.value) and "\n" not in str(caught.value)
