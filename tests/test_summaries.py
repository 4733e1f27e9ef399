"""Summaries and warnings of invented runs say what was put into them.

What NCCL told in a launch of its own becomes a column, and sentences on where its choice changes.
"""

import dataclasses

import numpy as np
import pytest

from bench.analyze import warnings
from bench.analyze.analysis import analyze
from bench.analyze.summaries import choice_changes, headlines, summarize
from bench.launch import sweep
from bench.launch.supervisor import LaunchOutcome
from bench.model.records import Case, Failure, Fault, Launch, Samples
from bench.model.units import format_share
from bench.report import document, findings
from bench.report.markdown import written
from bench.report.plots import sizes
from conftest import invented_run, samples

CASE = Case("all_reduce", "gloo", 2, "float32", 10**6)


def ms(*rows):
    return (np.array(rows) * 1e6).astype(np.int64)


def steady(value_ms: float, count: int = 40, spread: float = 0.01, seed: int = 0):
    rng = np.random.default_rng(seed)
    return ms(
        *[[value_ms * (1 + spread * x), value_ms * (1 + spread * y) * 0.5] for x, y in rng.normal(size=(count, 2))]
    )


def test_the_number_is_the_slowest_rank_never_a_mean_over_ranks():
    (summary,) = summarize(invented_run([samples(CASE, 1, ms(*[[2, 8]] * 10, *[[9, 1]] * 10, *[[3, 8.5]] * 10))]))
    assert summary.time_s.value == pytest.approx(8.5e-3)
    assert summary.fastest_rank_s == pytest.approx(2e-3)
    assert summary.algbw == pytest.approx(1e6 / 8.5e-3)
    assert summary.busbw == pytest.approx(1e6 / 8.5e-3)  # 2(n-1)/n is 1 at two ranks


def test_stalls_are_a_part_of_the_number_and_the_percentiles_show_them():
    (summary,) = summarize(invented_run([samples(CASE, 1, ms(*[[1, 1]] * 31, *[[9, 9]] * 5))]))
    assert summary.time_s.value == pytest.approx((31 + 45) / 36 * 1e-3)
    assert (summary.p10_s, summary.p50_s, summary.p90_s) == pytest.approx((1e-3, 1e-3, 9e-3))
    assert (summary.outliers, summary.far_outliers) == (5, 5)
    assert summary.stall.share == pytest.approx(5 / 36)
    assert any("14 % of calls take 9.00 ms" in warning for warning in summary.warnings)


def test_launches_are_a_factor():
    run = invented_run(
        [samples(CASE, i, steady(v, seed=i)) for i, v in enumerate([1.0, 1.2, 1.44], start=1)], launches=3
    )
    (summary,) = summarize(run)
    assert (summary.time_s.kind, summary.launches) == ("over launches", 3)
    assert summary.time_s.value == pytest.approx(1.2e-3, rel=0.02)  # geometric, not 1.213
    assert summary.time_s.low < 1e-3 and summary.time_s.high > 1.4e-3


def test_arrival_and_waiting_are_told_apart():
    start, duration = ms(*[[0, 2]] * 9), ms(*[[5, 3]] * 9)
    (summary,) = summarize(invented_run([samples(CASE, 1, duration, start)]))
    assert summary.skew_s == pytest.approx(2e-3)
    assert summary.pure_s == pytest.approx(3e-3)


def test_a_wrong_result_gives_no_number():
    bad = samples(CASE, 1, steady(1.0), failure=Failure("wrong", 1, "wrong result"))
    (summary,) = summarize(invented_run([bad]))
    assert summary.time_s is None and summary.busbw is None
    assert summary.failures[0].rank == 1


def test_a_failed_launch_does_not_take_the_others_with_it():
    dead = Samples(CASE, 2, 0.0, failure=Failure("killed", 0, "rank 0 was ended"))
    (summary,) = summarize(invented_run([samples(CASE, 1, steady(1.0)), dead], launches=2))
    assert summary.launches == 1 and summary.time_s.kind == "within-run"
    assert "1 of 2 launches failed" in summary.warnings


def test_at_one_rank_nothing_is_communicated():
    alone = Case("all_reduce", "gloo", 1, "float32", 4096)
    (summary,) = summarize(invented_run([samples(alone, 1, ms(*[[1]] * 20))]))
    assert summary.algbw is summary.busbw is None and summary.time_s is not None


def test_a_clock_that_is_part_of_the_number_is_mentioned():
    (summary,) = summarize(invented_run([samples(CASE, 1, np.full((20, 2), 1000))]))  # 1 µs against a stamp of 80 ns
    assert any("timer-limited" in warning for warning in summary.warnings)


def test_a_neighbour_is_noticed_and_an_idle_machine_is_not_accused():
    (busy,) = summarize(invented_run([samples(CASE, 1, steady(1.0), busy_s=4.0)]))
    (idle,) = summarize(invented_run([samples(CASE, 1, steady(1.0), busy_s=2.0)]))
    assert busy.foreign_cpu == pytest.approx(0.5) and idle.foreign_cpu == 0
    found = warnings.warnings_of(invented_run([samples(CASE, 1, steady(1.0), busy_s=4.0)]), [busy])
    assert any("50 %" in warning for warning in found)


def test_the_head_of_a_report_warns_of_what_matters():
    run = invented_run([samples(CASE, 1, steady(1.0))], faults=[Fault("late", 1)])
    found = warnings.warnings_of(run, summarize(run))
    assert "planted on purpose" in found[0]
    assert any("one launch only" in warning for warning in found)


def test_runs_are_compared_by_the_very_numbers_of_the_report():
    rng = np.random.default_rng(2)
    other = dataclasses.replace(CASE, size_bytes=CASE.size_bytes * 2)
    made = [
        samples(case, launch, 1e6 * rng.lognormal(0, 0.2, (60, CASE.world_size)))
        for case, launches in ((CASE, 3), (other, 1))
        for launch in range(1, launches + 1)
    ]
    made.append(Samples(CASE, 4, 0.0, failure=Failure("killed", 0, "gone")))
    run = invented_run(made, launches=4)
    fields = ("case", "launches", "iterations", "time_s", "means_s", "algbw", "busbw", "p10_s", "p50_s", "p90_s")
    for brief, whole in zip(headlines(run), summarize(run), strict=True):
        assert all(getattr(brief, name) == getattr(whole, name) for name in (*fields, "stall", "failures"))


def test_what_disturbed_a_case_is_said_beside_its_outliers():
    duration = ms(*[[1, 1]] * 60, *[[1.4, 1.4]] * 2)
    quiet = samples(CASE, 1, duration)
    usage = dataclasses.replace(quiet.usage, steal_s=0.2, throttled=4, machine_busy_s=4.0)
    (summary,) = summarize(invented_run([dataclasses.replace(quiet, usage=usage)]))
    said = " ".join(summary.outlier_causes)
    ranks = CASE.world_size
    for part in (f"{3 * ranks} involuntary", "the hypervisor took 20 % of a core", "4 periods", "other processes used"):
        assert part in said, part
    (clean,) = summarize(invented_run([samples(CASE, 1, ms(*[[1, 1.1]] * 30))]))
    assert (clean.outliers, clean.outlier_causes) == (0, ())


def test_a_warm_up_that_was_not_over_is_kept_and_said():
    rng = np.random.default_rng(6)
    slow_first = 1e6 * rng.lognormal(0, 0.05, (120, 1)) * np.where(np.arange(120) < 12, 3, 1)[:, None]
    (summary,) = summarize(invented_run([samples(CASE, 1, np.repeat(slow_first, CASE.world_size, axis=1))]))
    assert summary.iterations == 120 and not summary.steady
    assert any("near an end of a launch" in warning for warning in summary.warnings)


def test_percentiles_need_their_count():
    def percentiles(count):
        (summary,) = summarize(invented_run([samples(CASE, 1, np.full((count, CASE.world_size), 1e6))]))
        return [name for name in ("p10_s", "p50_s", "p90_s", "p99_s") if getattr(summary, name) is not None]

    assert percentiles(35) == ["p50_s"]
    assert percentiles(36) == percentiles(367) == ["p10_s", "p50_s", "p90_s"]
    assert percentiles(368) == ["p10_s", "p50_s", "p90_s", "p99_s"]


@pytest.mark.parametrize(
    ("quota", "limited"),
    [("max 100000", False), ("not available", False), ("50000 100000", True), ("notional 1", True), (None, False)],
)
def test_only_a_quota_of_a_cgroup_is_a_limit(quota, limited):
    host = {"hostname": "h"} if quota is None else {"hostname": "h", "cgroup_cpu_max": quota}
    run = dataclasses.replace(invented_run([samples(CASE, 1, steady(5))]), environment=[{"host": host}])
    said = warnings.warnings_of(run, summarize(run))
    assert any("a cgroup limits the CPU" in text for text in said) == limited


def test_one_slow_launch_is_no_second_mode_of_the_iterations():
    """Launches are not pooled: each of these has one level."""
    rng = np.random.default_rng(8)
    made = [
        samples(CASE, launch, np.repeat(level * 1e6 * rng.lognormal(0, 0.05, (60, 1)), CASE.world_size, axis=1))
        for launch, level in enumerate((1, 1, 3), start=1)
    ]
    (summary,) = summarize(invented_run(made, launches=3))
    assert summary.stall is None


def test_a_second_mode_that_most_launches_have_is_one():
    rng = np.random.default_rng(9)
    made = []
    for launch in (1, 2, 3):
        times = 1e6 * rng.lognormal(0, 0.05, (60, 1)) * np.where(np.arange(60) % 3 == 0, 4, 1)[:, None]
        made.append(samples(CASE, launch, np.repeat(times, CASE.world_size, axis=1)))
    (summary,) = summarize(invented_run(made, launches=3))
    assert summary.stall.share == pytest.approx(1 / 3, abs=0.02)
    assert (summary.stall.fast_s, summary.stall.slow_s) == pytest.approx((1e-3, 4e-3), rel=0.1)


def test_throttling_is_said():
    host = {"host": {}, "launches": [], "before": {}}
    run = dataclasses.replace(invented_run([samples(CASE, 1, steady(1.0))]), environment=[host])
    run.environment[0]["after"] = {"gpus": [{"throttle_reasons": 0x4 | 0x1}, {"throttle_reasons": "not available"}]}
    text = " ".join(warnings.warnings_of(run, summarize(run)))
    assert "GPU 0 was throttled after the run: power cap" in text
    assert "GPU 1" not in text


def with_sessions(*launches, **session):
    run = invented_run([samples(CASE, 1, steady(1.0))])
    run.environment[:] = [{"host": {}, "before": {}, "after": {}, "launches": list(launches)} | session]
    return " ".join(warnings.warnings_of(run, summarize(run)))


def test_what_gpus_and_adapters_of_any_host_went_through_is_said():
    hot = {"b": {"gpus": {"3": {"throttle_reasons": 0x40, "energy_mj": 9}, "4": {"held_back_power_ns": 5_000}}}}
    worse = {"b": {"gpus": {"3": {"throttle_reasons": 0x40, "uncorrected_errors": 1}}}}
    link = {"a": {"infiniband": {"mlx5_0/1": {"port_xmit_data": 10**9, "symbol_error": 3}}}}
    text = with_sessions({"health": hot}, {"health": worse}, {"health": link}, {"health": {}})
    assert "host b: GPU 3: hardware thermal slowdown in 2 of 4 launches" in text
    assert "host b: GPU 3: memory errors that were not corrected in 1 of 4 launches" in text
    assert "host a: port mlx5_0/1: symbol errors in 1 of 4 launches" in text
    assert "GPU 4" not in text and "energy" not in text and "xmit" not in text


def test_gpus_that_cuda_counts_in_another_order_are_said():
    host = {"hostname": "a", "gpus": [{"uuid": "GPU-1"}, {"uuid": "GPU-2"}]}
    ranks = [{"hostname": "a", "device": "cuda:0", "device_uuid": "GPU-2"}]
    assert "CUDA_DEVICE_ORDER" in with_sessions({"ranks": ranks}, host=host)
    ranks[0]["device_uuid"] = "GPU-1"
    assert "CUDA_DEVICE_ORDER" not in with_sessions({"ranks": ranks}, host=host)


@pytest.mark.parametrize(("on_first", "crosses"), [(8, True), (1, False)])
def test_ranks_that_no_case_uses_are_said(on_first, crosses):
    hosts = [{"hostname": "a", "ranks": list(range(on_first))}, {"hostname": "b", "ranks": [8]}]
    text = with_sessions(job={"launcher": "srun", "ranks": 16}, hosts=hosts)
    assert f"{16 - CASE.world_size} of the 16 ranks of the job are in no case" in text
    assert ("no case crosses hosts" in text) is crosses


def test_dispatching_is_a_share_of_the_device_times():
    made = samples(CASE, 1, steady(1.0))
    usage = dataclasses.replace(made.usage, dispatch_bound=[len(made.timed.duration_ns)] + [0] * (CASE.world_size - 1))
    (summary,) = summarize(invented_run([dataclasses.replace(made, usage=usage)]))
    share = format_share(1 / CASE.world_size, 1)
    assert any(text.startswith(f"{share} of the device times have dispatching") for text in summary.warnings)


# ── what NCCL chose ──────────────────────────────────────────────────────────────────────────────
HEAD = "node-1:2041:2113 [0] NCCL INFO "
WAYS = f"{HEAD}Channel 00/24 : 0[0] -> 1[1] via P2P/CUMEM\n"
CASES = tuple(Case("all_reduce", "nccl", 8, "float32", 2**k) for k in (10, 20, 21))


def line(size, algorithm, protocol, channels):
    return (
        f"{HEAD}AllReduce: {size} Bytes -> Algo {algorithm} proto {protocol} channel{{Lo..Hi}}={{0..{channels - 1}}}\n"
    )


def measured():
    return invented_run([samples(case, 1, np.full((8, 8), 100_000)) for case in CASES])


def told():
    texts = (WAYS, line(2**10, "RING", "LL", 1), line(2**20, "NVLS", "SIMPLE", 16), line(2**21, "NVLS", "SIMPLE", 16))
    return sweep._chosen(Launch("nccl", 8, 0, CASES), LaunchOutcome(chosen=texts))


def test_the_last_call_of_each_case_counts():
    found = told()
    assert found[CASES[0].key]["algorithm"] == "RING" and found[CASES[0].key]["channels"] == 1
    assert found[CASES[2].key]["transports"] == ["P2P/CUMEM"]
    assert sweep._chosen(Launch("nccl", 8, 0, CASES), LaunchOutcome()) == {}


def test_one_launch_of_each_kind_is_probed_and_only_where_nccl_tells():
    others = [dataclasses.replace(case, backend="gloo") for case in CASES]
    launches = [Launch("gloo", 8, 1, tuple(others)), *(Launch("nccl", 8, n + 1, o) for n, o in enumerate(orders()))]
    (probed,) = sweep._to_probe(launches)
    assert (probed.backend, probed.number, set(probed.cases)) == ("nccl", 0, set(CASES))
    barrier = dataclasses.replace(CASES[0], op="barrier", size_bytes=0)
    assert sweep._to_probe([Launch("nccl", 8, 1, (barrier,))]) == []


def orders():
    """Each launch has the cases in an order of its own, and a further one has only some of them."""
    return (CASES, CASES[::-1], (CASES[1], CASES[0], CASES[2]), CASES[:1])


def test_the_report_says_what_was_chosen_and_where_that_changes():
    run = measured()
    run.environment[:] = [{"launches": [{"chosen": told()}]}]
    summaries = summarize(run)
    assert [one.chosen for one in summaries] == ["RING LL, 1 channel", *["NVLS SIMPLE, 16 channels"] * 2]
    assert "NVLS SIMPLE, 16 channels" in written(document.case_details(summaries))
    (sentence,) = choice_changes(summaries)
    assert sentence == (
        "all_reduce float32 8 ranks: RING LL, 1 channel from 1 KiB on; NVLS SIMPLE, 16 channels from 1 MiB on"
    )


def test_a_picture_marks_where_the_choice_changes():
    run = measured()
    analysis = analyze(run)
    texts = ("RING LL, 1 channel", *["NVLS SIMPLE, 16 channels"] * 2)
    told = [dataclasses.replace(one, chosen=text) for one, text in zip(analysis.summaries, texts, strict=True)]
    (figure,) = sizes.time_against_size(run, dataclasses.replace(analysis, summaries=told))
    assert [note.get_text() for note in figure.axes[0].texts] == ["RING LL", "NVLS SIMPLE"]
    (plain,) = sizes.time_against_size(run, analysis)
    assert not plain.axes[0].texts


def test_without_nccl_there_is_no_column():
    run = measured()
    assert "NCCL chose" not in written(document.case_details(summarize(run))) and choice_changes(summarize(run)) == []
    assert "What NCCL chose" not in written(findings.folded(analyze(run)))
