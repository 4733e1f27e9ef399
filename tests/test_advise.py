"""`advise` answers for stated and measured links, names missing input in one line, and makes torch follow the plan."""

import re
from dataclasses import replace

import numpy as np
import pytest

import training_fixtures
from collbench.analyze.analysis import analyze
from collbench.model.conclusions import Summary
from collbench.model.errors import ConfigError
from collbench.model.records import Case, Run, Samples, Timings
from collbench.model.units import format_seconds
from collbench.packages.training.analyze import runs
from collbench.packages.training.conclusions import Split, StrategyResult, Verified, training_of
from collbench.packages.training.planning import advisor, buckets, link_model
from collbench.packages.training.planning.buckets import ReadyTimes
from collbench.packages.training.planning.link_model import AllReduceCost, LinkModel
from collbench.packages.training.planning.steps import shape_of
from collbench.packages.training.report import advice
from collbench.packages.training.step_records import StepDetail
from collbench.packages.training.synchronisation import REFERENCE, Strategy
from collbench.report.markdown import written
from collbench.stats import intervals
from collbench.store import folders
from collbench.store.encoding import samples_to_line
from conftest import ROOT, with_value

BEFORE = str(ROOT / "docs/example/before")
MIB = 2**20


def summary(
    size: int, time_s: float, op: str = "all_reduce", ranks: int = 2, dtype: str = "float32", **more
) -> Summary:
    return Summary(Case(op, "gloo", ranks, dtype, size, **more), intervals.without_interval(time_s), launches=1)


def times(link: link_model.LinkModel, *sizes: float) -> list[float]:
    return link.cost(np.array(sizes)).tolist()


# ── the link ─────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("text", ["2ms", "2ms+1GB", "1GB/s+2ms", "2ms+0GB/s", "+"])
def test_text_that_is_not_a_link_is_refused(text):
    with pytest.raises(ConfigError, match=re.escape(f"--link {text}: ")):
        link_model.stated(text)


def test_a_measured_link_is_its_all_reduces():
    rows = [summary(1000, 1e-3), summary(3000, 2e-3), summary(1000, 9.0, op="broadcast"), summary(3000, 9.0, ranks=4)]
    link = link_model.measured(rows, "run", "float32", world_size=2)
    assert times(link, 1000, 2000, 3000) == pytest.approx([1e-3, 1.5e-3, 2e-3])
    assert link.largest == 3000 and link.cpu is True and link.notes == (link_model.ISOLATED,)
    with pytest.raises(ConfigError, match="--world-size 2 or 4"):
        link_model.measured(rows, "run", "float32")
    with pytest.raises(ConfigError, match="one size"):
        link_model.measured(rows, "run", "float32", world_size=4)
    with pytest.raises(ConfigError, match="--world-size 2 or 4"):
        link_model.measured(rows, "run", "float32", world_size=8)
    with pytest.raises(ConfigError, match="on gloo and mpi"):
        mpi = replace(rows[0], case=replace(rows[0].case, backend="mpi"))
        link_model.measured([*rows, mpi], "run", "float32")
    with pytest.raises(ConfigError, match="no all_reduce"):
        link_model.measured(rows[2:3], "run", "float32")


def test_pipelined_calls_are_preferred_and_another_dtype_is_the_last_resort():
    usual = [summary(1000, 1e-3), summary(3000, 2e-3)]
    pipelined = [summary(size, 5.0, metric="pipelined", depth=20) for size in (1000, 3000)]
    half = [summary(size, 7.0, dtype="float16") for size in (1000, 3000)]
    link = link_model.measured([*half, *usual, *pipelined], "run", "float32")
    assert times(link, 1000) == pytest.approx([5.0]) and not link.notes
    alone = link_model.measured([*half, *usual], "run", "float16")
    assert times(alone, 1000) == pytest.approx([7.0]) and alone.notes == (link_model.ISOLATED,)
    other = link_model.measured([*pipelined], "run", "bfloat16")
    assert other.notes == ("The link was measured with float32, not with bfloat16.",)
    placed = [summary(s, t, placement=p) for p, t in (("out", 3.0), ("in", 2.0)) for s in (1000, 3000)]
    assert times(link_model.measured(placed, "run", "float32"), 1000) == pytest.approx([2.0])


# ── the verb ─────────────────────────────────────────────────────────────────────────────────────
TINY = ("--model", "tiny", "--backward", "60ms")


def cells(text: str, start: str) -> list[str]:
    """Return the cells of the first row of a table that begins with `start`."""
    return next(re.split(r" {2,}", line.strip()) for line in text.splitlines() if line.startswith(start))


def test_the_answer_has_the_advisors_numbers(warm):
    done = warm("advise", *TINY, "--link", "2ms+1GB/s")
    assert done.returncode == 0, done.stderr
    # The default's second bucket has 25.2 MB; the embedding alone takes 2 + 1.0 ms.
    assert cells(done.stdout, "torch's default")[3] == "27.2 ms"
    best = float(cells(done.stdout, "best cap")[3].split()[0])
    bound = float(cells(done.stdout, "lower bound")[1].split()[0])  # the bound has no buckets
    assert best >= bound > 3.0
    assert "backward 60.0 ms" in done.stdout and "lower bounds" in done.stdout
    slower, faster = cells(done.stdout, "torch's default")[5:]
    assert (slower, faster) == ("33.8 ms", "22.6 ms")


def test_where_nothing_is_worth_typing_nothing_is_there_to_type(warm):
    done = warm("advise", *TINY, "--link", "1us+1000GB/s")
    assert "Leave torch's default" in done.stdout and "Not communication-bound" in done.stdout
    assert "`" not in done.stdout and "import" not in done.stdout and "bucket_cap" not in done.stdout
    # Times that are negligible in a step are not shown.
    assert " ns" not in done.stdout and "e-0" not in done.stdout
    slow = warm("advise", *TINY, "--link", "2ms+0.1GB/s")
    assert "Communication-bound: the bytes alone take" in slow.stdout


def test_a_measured_run_is_a_link(warm):
    done = warm(
        "advise", "--model", "nano", "--backward", "60ms", "--link", BEFORE, "--world-size", "2", "--dtype", "bfloat16"
    )
    assert done.returncode == 0, done.stderr
    assert "before: gloo, 2 ranks, " in done.stdout and "sizes from 1 KiB to " in done.stdout
    assert "measured with float32, not with bfloat16" in done.stdout and "isolated calls" in done.stdout


EMULATED = replace(
    training_fixtures.SCENARIO,
    case=with_value(training_fixtures.SCENARIO.case, "link", "0.4ms+1GB/s"),
    link=training_fixtures.LINK,
)
FLAT = Strategy("flat")


def run_on(scenario, *more: Samples, extra_s=0.0) -> Run:
    """Return a run of three launches, of which the first recorded a step per strategy, with these samples added."""
    run = training_fixtures.run_of(
        {FLAT: extra_s}, 3, 4, 0.0, scenario=scenario, strategies=(Strategy(REFERENCE), FLAT),
    )  # fmt: skip
    details = [
        replace(samples, detail=StepDetail(timeline=training_fixtures.timeline(strategy)))
        for strategy, samples in zip((Strategy(REFERENCE), FLAT), run.samples, strict=False)
    ]
    return replace(run, samples=[*details, *run.samples[2:], *more])


def all_reduce(size: int, time_s: float, ranks: int = 2, call: str = "async", **more) -> Samples:
    """Return the samples of an all-reduce in three blocks of ten calls each."""
    ns = np.full((3, ranks), int(10 * time_s * 1e9), dtype=np.int64)
    case = Case("all_reduce", "gloo", ranks, "float32", size, metric="pipelined", depth=10, call=call)
    return Samples(case, 1, 0.0, timed=Timings(np.zeros_like(ns), ns, calls=10), **more)


def test_a_run_of_training_steps_has_both(warm):
    """The step without synchronisation has the ready times, the scenario has the link; another link may be stated."""
    run = run_on(EMULATED)
    path = folders.create(warm.folder / "results", run.plan, b"", {"status": "complete"})
    (path / "samples.jsonl").write_bytes(b"".join(samples_to_line(samples) + b"\n" for samples in run.samples))
    own = warm("advise", "--from", path.name)
    assert own.returncode == 0, own.stderr
    ready_times, cost = ReadyTimes.of_shape(runs.shape_of(run, EMULATED)), AllReduceCost.emulated(EMULATED.link)
    default = advisor.tail_s(ready_times, buckets.torch_default(ready_times), cost)
    assert cells(own.stdout, "torch's default")[3] == format_seconds(default)
    assert "as emulated" in own.stdout
    (scenario,) = training_of(analyze(run)).scenarios
    assert scenario.advice == advisor.advise(ready_times, cost)
    other = warm("advise", "--from", path.name, *LINK)
    assert "a link of 2.00 ms and 1.00 GB/s" in other.stdout
    absent = warm("advise", "--from", path.name, "--scenario", "nothing")
    assert absent.returncode == 2 and EMULATED.case.key in absent.stderr and absent.stderr.count("\n") == 1


LINK = ("--link", "2ms+1GB/s")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (LINK, "name a model"),
        (TINY, "describe the link"),
        (("--model", "tiny", *LINK), "give the time of backward"),
        ((*TINY, "--from", "x", *LINK), "name a model"),
        ((*TINY, *LINK, "--world-size", "4"), "--world-size is for"),
        (("--model", "tny", "--backward", "60ms", *LINK), "did you mean 'tiny'?"),
        (("--model", "tiny", *LINK, "--backward", "60 lightyears"), "--backward: unknown unit"),
        (("--model", "tiny", *LINK, "--backward", "0ms"), "must be above 0"),
        (("--model", "tiny", *LINK, "--backward", "60"), "60 has no unit; write 60ms, or 60s"),
        ((*TINY, *LINK, "--uncertainty", "2"), "--uncertainty"),
        ((*TINY, "--link", "fast"), "write latency and rate"),
        ((*TINY, "--link", "nowhere"), "no such run"),
        ((*TINY, "--link", BEFORE), "--world-size 2 or 4"),
        ((*TINY, "--scenario", "x", *LINK), "--scenario chooses"),
        (("--from", "nowhere"), "no such run"),
        (("--from", "x", "--backward", "60ms", *LINK), "--backward is for --model"),
    ],
)
def test_mistakes_are_one_line(warm, arguments, message):
    done = warm("advise", *arguments)
    assert done.returncode == 2 and not done.stdout
    assert message in done.stderr and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


# ── what to type ─────────────────────────────────────────────────────────────────────────────────
def test_a_cap_that_saves_as_assumed_and_loses_on_a_slower_link_is_offered_with_both_numbers(warm):
    done = warm("advise", "--model", "small-2025", "--backward", "200ms", "--link", "100us+3GB/s")
    answer = " ".join(done.stdout.split())
    assert "Leave torch's default" in answer and "unless you know the link well: a cap of" in answer
    assert re.search(r"saves 2\.\d % of a step on the link as assumed, but loses up to \d\.\d+ ms if", answer), answer


def test_many_buckets_are_counted_and_what_was_not_measured_is_noted():
    ready_times = ReadyTimes.of([MIB * (1 + number % 3) for number in range(40)], [float(40 - n) for n in range(40)])
    cost = AllReduceCost.of_link(0, 1e6)
    link = LinkModel(cost, "a link", "link", largest=MIB // 2)
    result = replace(advisor.advise(ready_times, cost), advised=True)
    assert len(result.cap.buckets) > advice.MOST_COMPARED
    text = written(advice.document(advisor.explain(result, ready_times, link, 4, "a model")))
    assert f"planned = {len(result.cap.buckets)}\n" in text and "if len(made) != planned:" in text
    assert "A bucket has more bytes than the largest size measured" in text


# ── --verify ─────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.slow
def test_advice_is_verified_by_measuring_it(warm, monkeypatch):
    monkeypatch.setattr(runs, "LAUNCHES", 1)
    done = warm("advise", "--model", "nano", "--backward", "10ms", "--link", "1ms+100MB/s", "--verify")
    assert done.returncode == 0, done.stderr
    table = done.stdout.split("Predicted and measured")[1]
    rows = re.findall(r"^(\w.*?)  +(\S+ \S+)  +(\S+ \S+)  +(yes|NO)$", table, re.M)
    assert {name for name, *_ in rows} == {
        "best cap", "torch's default", "all in one", "one call a gradient"
    }  # fmt: skip
    (path,) = warm.runs()
    assert path.name.endswith("-advise") and str(path.name) in done.stdout
    assert warm("report", path.name).returncode == 0


def test_predictions_are_compared_with_the_right_measurements():
    """A backward that took longer while it sent leaves the link more time; a scenario of a shape computes nothing."""
    shape, cost = shape_of("nano", 0.01, "float32"), AllReduceCost.of_link(1e-3, 1e8)
    profile = ReadyTimes.of_shape(shape)
    plans = runs.candidates(profile, advisor.advise(profile, cost), of_shape=False)
    assert plans["torch's default"][0] == Strategy("ddp") and len(plans) == 5
    strategy, ends = plans["best cap"]
    longer = replace(profile, ready_s=tuple(1.2 * ready_s for ready_s in profile.ready_s))
    for scenario, ready_times in (
        (training_fixtures.SCENARIO, longer),
        (replace(training_fixtures.SCENARIO, shape=shape), profile),
    ):
        tail = advisor.tail_s(ready_times, ends, cost)
        split = Split(tail + 0.6e-3, 0.1e-3, 0.5e-3, 1.5e-3, 0.0, 0.0, 0.0)
        result = StrategyResult(training_fixtures.case_of(strategy), rounds=1, split=split)
        measured = replace(training_fixtures.comparison(), scenario=scenario, results=(result,))
        (first, *rest) = runs.verified(plans, profile, cost, measured)
        assert first == Verified("best cap", pytest.approx(tail), pytest.approx(tail + 0.5e-3)) and first.holds
        assert len(rest) == 4 and all(plan.holds is None for plan in rest)
