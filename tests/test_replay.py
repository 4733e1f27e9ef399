"""A recorded job is replayed: measured, verified, reported, resumed and compared like any other case."""

import re
import subprocess
import sys

import pytest

from collbench.packages.replay import store as call_file
from collbench.packages.replay.recorded_calls import CallList, RankRecording, RecordedCall
from collbench.packages.replay.replayed_calls import DURATION_NS, START_NS, replay_of
from conftest import ROOT

ASYNC = {"duration_s": 0.002, "asynchronous": True}
STEP = [
    RecordedCall("broadcast", "int64", 50, 50, group=(0, 1), group_size=2, ran_s=0.0, duration_s=0.0004),
    RecordedCall("all_reduce", "float32", 40_000, 40_000, group_size=2, ran_s=0.001, **ASYNC),
    RecordedCall("all_reduce", "float32", 40_000, 40_000, group_size=2, ran_s=0.002, **ASYNC),
    RecordedCall(
        "all_to_all_uneven", "bfloat16", 900, 900, splits_in=(200, 700), group_size=2, ran_s=0.006, duration_s=0.001
    ),
    RecordedCall("barrier", None, None, None, group_size=2, ran_s=0.008, duration_s=0.0001),
]  # fmt: skip
QUICK = ["--set", "launches=1", "--set", "sampling={warmup: 1, warmup_seconds: 0, iterations: 8}"]
CORRUPT = ["--set", "faults=[{do: corrupt, rank: 1, iteration: 5}]"]


def saved(folder, *calls):
    recorded = CallList("Kineto", "nccl", 2, (RankRecording("job.json", 0, calls or tuple(STEP)),))
    path = folder / "job.calls.jsonl"
    path.write_text(call_file.to_text(recorded))
    return path.name


def test_a_step_is_made_again_compared_with_the_recording_and_resumed_without_it(warm):
    name = saved(warm.folder)
    done = warm("replay", name, "--no-plots", *QUICK)
    assert done.returncode == 0, done.stdout + done.stderr
    run = warm.only_run()
    (case,) = run.plan.cases
    timed = run.samples[0].timed
    assert timed.inner_ns[DURATION_NS].shape == (8, 2, 5) and (timed.inner_ns[DURATION_NS] > 0).all()
    assert (timed.inner_ns[START_NS] + timed.inner_ns[DURATION_NS] <= timed.duration_ns[:, :, None]).all()
    pattern = r"communication of one step, mean over ranks: recorded (\S+ \S+), here \S+ \S+ \[?.*% of it is "
    sentence = re.search(pattern, done.stdout)
    # 0.4 ms, 1 to 4 ms (two calls that overlap), 1 ms, 0.1 ms
    assert sentence and sentence[1] == "4.50 ms", done.stdout
    assert replay_of(run.plan.settings, case)

    (warm.folder / name).unlink()
    (run.path / "samples.jsonl").write_bytes(b"")
    assert warm("resume", run.path.name).returncode == 0
    assert len(warm.only_run().samples) == 1
    report = (run.path / "report.md").read_text()
    assert "## The recorded job, made again on 2 ranks" in report and "every rank sends the parts" in report
    assert (warm.folder / "plots" / run.path.name / "replay.png").is_file()


def test_stages_of_a_pipeline_make_their_own_calls_on_real_ranks(warm):
    """Ranks 0 and 1 send to ranks 2 and 3, which make one more reduction; each rank checks its results."""

    def reduce(group, elements=3000):
        return RecordedCall("all_reduce", "float32", elements, elements, group=group, group_size=2, duration_s=0.001)

    def part(name, pair, peer):
        return RecordedCall(name, "float32", 5000, 5000, group=pair, group_size=2, peer=peer, duration_s=0.002)

    lists = [[part("send", (rank, rank + 2), rank + 2), reduce((0, 1))] for rank in (0, 1)]
    lists += [[part("recv", (rank - 2, rank), rank - 2), reduce((2, 3)), reduce((2, 3), 400)] for rank in (2, 3)]
    ranks = tuple(RankRecording(f"{number}.json", number, tuple(calls)) for number, calls in enumerate(lists))
    path = warm.folder / "stages.calls.jsonl"
    path.write_text(call_file.to_text(CallList("Kineto", "nccl", 4, ranks)))
    done = warm("replay", path.name, "--no-plots", *QUICK)
    assert done.returncode == 0, done.stdout + done.stderr
    run = warm.only_run()
    timed = run.samples[0].timed
    assert timed.inner_ns[DURATION_NS].shape == (8, 4, 3)
    assert (timed.inner_ns[DURATION_NS][:, :2, 2] == 0).all() and (timed.inner_ns[DURATION_NS][:, 2:] > 0).all()
    report = (run.path / "report.md").read_text()
    assert "every rank makes" not in report and "send_recv" in report and "## The recorded job\n" in report


def test_a_wrong_element_in_any_call_is_noticed_also_beside_other_operations(warm):
    text = f"""
backends: [gloo]
world_sizes: [2]
launches: 1
operations: [all_reduce]
sizes: [4KiB]
replay: {{recording: [{saved(warm.folder)}]}}
sampling: {{warmup: 1, warmup_seconds: 0, iterations: 8}}
"""
    assert warm("run", warm.config(text), "--no-plots", *CORRUPT).returncode == 1
    samples = {samples.case.op: samples for samples in warm.only_run().samples}
    assert samples.keys() == {"replay", "all_reduce"}
    failure = samples["replay"].failure
    assert failure.kind == "wrong" and "all_reduce of 160000 B" in failure.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["replay", "none.json"], "no such file"),
        (["run", "x.yaml"], "the operation replay needs it, such as {recording:"),
        (["replay", "job.calls.jsonl", "--look", "--save", "x.txt"], "ends in .calls.jsonl"),
        (["replay", "job.calls.jsonl", "--save", "x.yaml"], "goes with --look"),
    ],
)
def test_mistakes_are_one_line(warm, arguments, message):
    saved(warm.folder)
    warm.config("backends: [gloo]\nworld_sizes: [2]\noperations: [replay]\n", "x.yaml")
    done = warm(*arguments)
    assert done.returncode == 2 and message in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_a_trace_is_shown_saved_and_made_a_sweep(warm):
    name = saved(warm.folder)
    shown = warm("replay", name, "--look", "--save", "copy.calls.jsonl")
    assert shown.returncode == 0 and "calls took 4.50 ms in the recording" in shown.stdout, shown.stderr
    assert (warm.folder / "plots" / "look-job" / "recorded.png").is_file()
    assert call_file.read(warm.folder / "copy.calls.jsonl") == call_file.read(warm.folder / name)
    again = warm("replay", name, "--look", "--save", "copy.calls.jsonl")
    assert again.returncode == 2 and "exists already" in again.stderr
    assert warm("replay", name, "--look", "--save", "sweep.yaml").returncode == 0
    planned = warm("plan", "sweep.yaml", "--set", "backends=[gloo]")
    assert planned.returncode == 0 and "all_reduce" in planned.stdout
    assert "2 × all_reduce float32" in (warm.folder / "sweep.yaml").read_text()


# ── our own training, recorded by torch ──────────────────────────────────────────────────────────
@pytest.mark.slow
def test_our_own_gloo_training_recorded_in_three_formats(warm):
    """The profiler, the execution trace and the flight recorder give the same calls of one step."""
    command = [sys.executable, str(ROOT / "tools" / "recorded_job.py"), ".", "--ranks", "2", "--model", "nano"]
    done = subprocess.run(command, cwd=warm.folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    recordings = []
    for kind in ("kineto", "et", "fr"):
        files = [f"{kind}_rank{rank}.json" for rank in (0, 1)]
        saved_as = f"{kind}.calls.jsonl"
        shown = warm("replay", *files, "--look", "--no-plots", "--save", saved_as)
        assert shown.returncode == 0, shown.stderr
        recordings.append(call_file.read(warm.folder / saved_as))
    lists = [[(c.operation, c.elements_in) for c in recorded.ranks[0].calls] for recorded in recordings]
    assert lists[0] and lists == 3 * lists[:1]
