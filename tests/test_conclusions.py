"""Summaries and warnings of invented runs say what was put into them."""

import numpy as np
import pytest

from bench.analyze import trust
from bench.analyze.stats import summarize
from bench.records import Case, Failure, Fault, Samples
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


def test_a_stall_moves_the_mean_and_not_the_number():
    (summary,) = summarize(invented_run([samples(CASE, 1, ms(*[[1, 1]] * 30, *[[9, 9]] * 5))]))
    assert summary.time_s.value == pytest.approx(1e-3)
    assert summary.mean_s > 2e-3
    assert (summary.outliers, summary.far_outliers) == (5, 5)
    assert summary.stall.share == pytest.approx(5 / 35)
    assert any("two modes: 14%" in warning for warning in summary.warnings)


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


def test_at_one_rank_there_is_no_bus():
    alone = Case("all_reduce", "gloo", 1, "float32", 4096)
    (summary,) = summarize(invented_run([samples(alone, 1, ms(*[[1]] * 20))]))
    assert summary.busbw is None and summary.algbw is not None


def test_a_clock_that_is_part_of_the_number_is_mentioned():
    (summary,) = summarize(invented_run([samples(CASE, 1, np.full((20, 2), 1000))]))  # 1 µs against a stamp of 80 ns
    assert any("timer-limited" in warning for warning in summary.warnings)


def test_a_neighbour_is_noticed_and_an_idle_machine_is_not_accused():
    (busy,) = summarize(invented_run([samples(CASE, 1, steady(1.0), busy_s=4.0)]))
    (idle,) = summarize(invented_run([samples(CASE, 1, steady(1.0), busy_s=2.0)]))
    assert busy.foreign_cpu == pytest.approx(0.5) and idle.foreign_cpu == 0
    warnings = trust.warnings_of(invented_run([samples(CASE, 1, steady(1.0), busy_s=4.0)]), [busy])
    assert any("50%" in warning for warning in warnings)


def test_the_head_of_a_report_warns_of_what_matters():
    run = invented_run([samples(CASE, 1, steady(1.0))], faults=[Fault("late", 1)])
    warnings = trust.warnings_of(run, summarize(run))
    assert "planted on purpose" in warnings[0]
    assert any("one launch only" in warning for warning in warnings)
