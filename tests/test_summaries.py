"""Summaries and warnings of invented runs report the values that were put in.

NCCL's choices, recorded in a launch of their own, become a column, and sentences on where the choice changes.
"""

import dataclasses
from operator import attrgetter

import numpy as np
import pytest

from collbench.analyze.analysis import analyze
from collbench.analyze.compare import compare_runs
from collbench.analyze.summaries import choice_changes, summarize
from collbench.launch import sweep
from collbench.launch.supervisor import LaunchOutcome
from collbench.model.errors import UnmeasurableError
from collbench.model.records import Case, Failure, Launch, Samples
from collbench.report.document import answer, brief
from collbench.report.notices import sentences
from collbench.report.plots import sizes
from collbench.report.view import View
from conftest import invented_run, samples, sentences_of_run

CASE = Case("all_reduce", "gloo", 2, "float32", 10**6)


def ms(*rows):
    return (np.array(rows) * 1e6).astype(np.int64)


def steady(value_ms: float, count: int = 40, spread: float = 0.01, seed: int = 0):
    rng = np.random.default_rng(seed)
    return ms(
        *[[value_ms * (1 + spread * x), value_ms * (1 + spread * y) * 0.5] for x, y in rng.normal(size=(count, 2))]
    )


def two_levels(count, slow_rows, factor, spread=0.05, seed=6):
    """Return times around 1 ms, the same on all ranks, of which some rows take `factor` times as long."""
    rng = np.random.default_rng(seed)
    slow = np.where(slow_rows(np.arange(count)), factor, 1)
    return np.repeat(1e6 * rng.lognormal(0, spread, (count, 1)) * slow[:, None], CASE.world_size, axis=1)


def launches_of(*durations, **more):
    return [samples(CASE, number, duration, **more) for number, duration in enumerate(durations, start=1)]


SCALED = [steady(value, seed=seed) for seed, value in enumerate([1.0, 1.1, 1.2, 1.3, 1.44])]
SEVERAL = [two_levels(60, lambda row: row % 3 == 0, 4, seed=seed) for seed in (1, 2, 3)]


@pytest.mark.parametrize(
    ("made", "values", "said"),
    [
        # The number is the slowest rank, never a mean over ranks; 2(n-1)/n is 1 at two ranks.
        (
            launches_of(ms(*[[2, 8]] * 10, *[[9, 1]] * 10, *[[3, 8.5]] * 10)),
            {"time_s.value": 8.5e-3, "fastest_rank_s": 2e-3, "algbw": 1e6 / 8.5e-3, "busbw": 1e6 / 8.5e-3},
            "",
        ),
        # Stalls are a part of the number, and the percentiles show them.
        (
            launches_of(ms(*[[1, 1]] * 31, *[[9, 9]] * 5)),
            {"time_s.value": (31 + 45) / 36 * 1e-3, "p10_s": 1e-3, "p50_s": 1e-3, "p90_s": 9e-3}
            | {"outliers": 5, "far_outliers": 5, "stall.share": 5 / 36},
            "14 % of calls take 9.00 ms",
        ),
        # Launches are a factor: the mean is geometric, not 1.213. Five have an interval of 95 %, and four a range.
        (
            launches_of(*(steady(value, seed=seed, spread=1e-3) for seed, value in enumerate([1.0, 1.2, 1.44]))),
            {"time_s.kind": "range of launches", "launches": 3, "time_s.value": pytest.approx(1.2e-3, rel=5e-3)}
            | {"time_s.low": pytest.approx(1e-3, rel=0.02), "time_s.high": pytest.approx(1.44e-3, rel=0.02)},
            "",
        ),
        (launches_of(*SCALED[:4]), {"time_s.kind": "range of launches"}, ""),
        (launches_of(*SCALED), {"time_s.kind": "over launches"}, ""),
        # Arrival and waiting are separated.
        (launches_of(ms(*[[5, 3]] * 9), start_ns=ms(*[[0, 2]] * 9)), {"skew_s": 2e-3, "pure_s": 3e-3}, ""),
        # A wrong result gives no number; a failed launch does not take the others with it.
        (
            launches_of(SCALED[0], failure=Failure("wrong", 1, "wrong result")),
            {"time_s": None, "busbw": None, "failures": (Failure("wrong", 1, "wrong result"),)},
            "",
        ),
        (
            [*launches_of(SCALED[0]), Samples(CASE, 2, 0.0, failure=Failure("killed", 0, "rank 0 was ended"))],
            {"launches": 1, "time_s.kind": "none"},
            "1 of 2 launches failed",
        ),
        # 1 µs against a stamp of 80 ns
        (launches_of(np.full((20, 2), 1000)), {"launches": 1}, "timer-limited"),
        # An unfinished warm-up is kept and reported.
        (
            launches_of(two_levels(120, lambda row: row < 12, 3)),
            {"iterations": 120, "steady": False},
            "near an end of a launch",
        ),
        # Launches are not pooled: one slow launch is not a second mode, but what most launches have is.
        (
            launches_of(*(level * two_levels(60, lambda row: row < 0, 1, seed=8) for level in (1, 1, 3))),
            {"stall": None},
            "",
        ),
        (
            launches_of(*SEVERAL),
            {"stall.share": pytest.approx(1 / 3, abs=0.02), "stall.fast_s": pytest.approx(1e-3, rel=0.1)}
            | {"stall.slow_s": pytest.approx(4e-3, rel=0.1)},
            "",
        ),
    ],
)
def test_a_summary_has_the_values_that_were_put_in(made, values, said):
    (summary,) = summarize(invented_run(made, launches=len(made)))
    for name, wanted in values.items():
        exact = wanted is None or not isinstance(wanted, float)
        assert attrgetter(name)(summary) == (wanted if exact else pytest.approx(wanted)), name
    assert said in " ".join(sentences(summary.notices))


def test_a_neighbour_is_noticed_and_an_idle_machine_is_not_accused():
    (busy,) = summarize(invented_run([samples(CASE, 1, steady(1.0), busy_s=4.0)]))
    (idle,) = summarize(invented_run([samples(CASE, 1, steady(1.0), busy_s=2.0)]))
    assert busy.foreign_cpu == pytest.approx(0.5) and idle.foreign_cpu == 0
    warnings = sentences_of_run(invented_run([samples(CASE, 1, steady(1.0), busy_s=4.0)]), [busy])
    assert any("50 %" in warning for warning in warnings)


def test_disturbances_of_a_case_are_given_with_its_outliers():
    quiet = samples(CASE, 1, ms(*[[1, 1]] * 60, *[[1.4, 1.4]] * 2))
    usage = dataclasses.replace(
        quiet.usage, steal_s=0.2, throttled=4, machine_busy_s=4.0, dispatch_bound=31, left_out=3
    )  # fmt: skip
    (summary,) = summarize(invented_run([dataclasses.replace(quiet, usage=usage)]))
    causes = " ".join(sentences(summary.outlier_causes))
    for part in ("the hypervisor took 20 % of a core", "4 periods", "other processes used"):
        assert part in causes, part
    assert any(text.startswith("dispatch-bound: in 50.0 % of the iterations") for text in sentences(summary.notices))
    assert any(text.startswith("3 iterations left out") for text in sentences(summary.notices))
    (clean,) = summarize(invented_run([samples(CASE, 1, ms(*[[1, 1.1]] * 30))]))
    assert (clean.outliers, clean.outlier_causes) == (0, ())


def test_percentiles_need_their_count():
    def percentiles(count):
        (summary,) = summarize(invented_run([samples(CASE, 1, np.full((count, CASE.world_size), 1e6))]))
        return [name for name in ("p10_s", "p50_s", "p90_s", "p99_s") if getattr(summary, name) is not None]

    assert percentiles(35) == ["p50_s"]
    assert percentiles(36) == percentiles(367) == ["p10_s", "p50_s", "p90_s"]
    assert percentiles(368) == ["p10_s", "p50_s", "p90_s", "p99_s"]


def test_throttling_is_reported():
    host = {"host": {}, "launches": [], "before": {}}
    run = dataclasses.replace(invented_run([samples(CASE, 1, steady(1.0))]), environment=[host])
    run.environment[0]["after"] = {"gpus": [{"throttle_reasons": 0x4 | 0x1}, {"throttle_reasons": "not available"}]}
    text = " ".join(sentences_of_run(run, summarize(run)))
    assert "GPU 0 was throttled after the run: power cap" in text
    assert "GPU 1" not in text


def with_sessions(*launches, **session):
    run = invented_run([samples(CASE, 1, steady(1.0))])
    run.environment[:] = [{"host": {}, "before": {}, "after": {}, "launches": list(launches)} | session]
    return " ".join(sentences_of_run(run, summarize(run)))


def test_health_of_gpus_and_adapters_of_any_host_is_reported():
    hot = {"b": {"gpus": {"3": {"throttle_reasons": 0x40, "energy_mj": 9}, "4": {"held_back_power_ns": 5_000}}}}
    worse = {"b": {"gpus": {"3": {"throttle_reasons": 0x40, "uncorrected_errors": 1}}}}
    link = {"a": {"infiniband": {"mlx5_0/1": {"port_xmit_data": 10**9, "symbol_error": 3}}}}
    text = with_sessions({"health": hot}, {"health": worse}, {"health": link}, {"health": {}})
    assert "host b: GPU 3: hardware thermal slowdown in 2 of 4 launches" in text
    assert "host b: GPU 3: memory errors that were not corrected in 1 of 4 launches" in text
    assert "host a: port mlx5_0/1: symbol errors in 1 of 4 launches" in text
    lossy, clean = ({"a": {"tcp": {"all": {"segments": 10_000, "segments_again": n}}}} for n in (500, 3))
    sent_again = "host a: TCP: up to 5.0 % of the segments were sent again in 1 of 2 launches"
    job, local = ({"launcher": "srun", "ranks": 2, "network": name} for name in ("10.0.0.0/24", "127.0.0.0/8"))
    assert sent_again in with_sessions({"health": lossy}, {"health": clean}, job=job, hosts=[{}])
    few = {"a": {"tcp": {"all": {"segments": 9, "segments_again": 9}}}}
    assert "segments" not in with_sessions({"health": clean}, job=job, hosts=[{}])
    # On loopback of a busy machine, time-outs that come too early send up to 0.2 % again.
    assert "segments" not in with_sessions({"health": lossy}, job=local, hosts=[{}])
    assert "segments" not in with_sessions({"health": lossy}) + with_sessions({"health": few})
    assert "GPU 4" not in text and "energy" not in text and "xmit" not in text


@pytest.mark.parametrize(
    ("nvlinks", "ways", "reported"),
    [([6, 6], ["SHM/direct"], True), ([6], ["P2P/CUMEM"], False), ([0, 0], ["SHM/direct"], False), ([6], [], False)],
)
def test_a_way_around_nvlink_is_reported(nvlinks, ways, reported):
    host = {"hostname": "a", "gpus": [{"nvlinks": nvlinks}] * 2}
    launch = {"ranks": [], "chosen": {"case": {"algorithm": "RING", "transports": ways}}}
    assert ("each rank must see all GPUs" in with_sessions(launch, host=host)) == reported


@pytest.mark.parametrize(("on_first", "crosses"), [(8, True), (1, False)])
def test_ranks_that_no_case_uses_are_reported(on_first, crosses):
    hosts = [{"hostname": "a", "ranks": list(range(on_first))}, {"hostname": "b", "ranks": [8]}]
    text = with_sessions(job={"launcher": "srun", "ranks": 16}, hosts=hosts)
    assert f"{16 - CASE.world_size} of the 16 ranks of the job are in no case" in text
    assert ("no case crosses hosts" in text) is crosses


# ── choices of NCCL ──────────────────────────────────────────────────────────────────────────────
HEAD = "node-1:2041:2113 [0] NCCL INFO "
WAYS = f"{HEAD}Channel 00/24 : 0[0] -> 1[1] via P2P/CUMEM\n"
CASES = tuple(Case("all_reduce", "nccl", 8, "float32", 2**k) for k in (10, 20, 21))


def line(size, algorithm, protocol, channels):
    return (
        f"{HEAD}AllReduce: {size} Bytes -> Algo {algorithm} proto {protocol} channel{{Lo..Hi}}={{0..{channels - 1}}}\n"
    )


def measured():
    return invented_run([samples(case, 1, np.full((8, 8), 100_000)) for case in CASES])


def nccl_choices():
    texts = (WAYS, line(2**10, "RING", "LL", 1), line(2**20, "NVLS", "SIMPLE", 16), line(2**21, "NVLS", "SIMPLE", 16))
    return sweep._chosen(Launch("nccl", 8, 0, CASES), LaunchOutcome(chosen=texts))


def test_sizes_at_which_the_choice_changes_are_found():
    run = measured()
    run.environment[:] = [{"launches": [{"chosen": nccl_choices()}]}]
    summaries = summarize(run)
    assert [summary.chosen for summary in summaries] == ["RING LL, 1 channel", *["NVLS SIMPLE, 16 channels"] * 2]
    (change,) = choice_changes(summaries)
    sizes = [(case.size_bytes, chosen) for case, chosen in change.begins]
    assert sizes == [(2**10, "RING LL, 1 channel"), (2**20, "NVLS SIMPLE, 16 channels")]


def test_a_picture_marks_where_the_choice_changes():
    run = measured()
    analysis = analyze(run)
    texts = ("RING LL, 1 channel", *["NVLS SIMPLE, 16 channels"] * 2)
    summaries = [dataclasses.replace(s, chosen=text) for s, text in zip(analysis.summaries, texts, strict=True)]
    (figure,) = sizes.time_against_size(run, dataclasses.replace(analysis, summaries=summaries))
    assert [note.get_text() for note in figure.axes[0].texts] == ["RING LL", "NVLS SIMPLE"]
    (plain,) = sizes.time_against_size(run, analysis)
    assert not plain.axes[0].texts


def test_times_of_virtual_gpus_are_never_shown_as_times_of_hardware():
    runs = []
    for name in ("Virtual GPU, H100", "NVIDIA H100"):
        run = invented_run([samples(CASE, launch, steady(1.0)) for launch in (1, 2)])
        run.environment[:] = [{"launches": [{"ranks": [{"rank": 0, "device_name": name}]}]}]
        runs.append(run)
    virtual, real = runs
    analyses = [analyze(run) for run in runs]
    assert [all(s.virtual for s in analysis.summaries) for analysis in analyses] == [True, False]
    first = [answer(View(run, analysis))[0] for run, analysis in zip(runs, analyses, strict=True)]
    assert [line.startswith("**Virtual GPUs**") for line in first] == [True, False]
    assert "Virtual" in brief(View(virtual, analyses[0])) and "takes" in brief(View(virtual, analyses[0]))
    assert compare_runs(virtual, virtual).changes
    for pair in ((virtual, real), (real, virtual)):
        with pytest.raises(UnmeasurableError, match="virtual GPUs"):
            compare_runs(*pair)
