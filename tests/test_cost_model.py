"""The α–β model recovers the parameters of invented series, gives no negative latency, and reports if it does not fit.

Bounds come from the hardware; a number that exceeds a bound is called impossible.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import least_squares

from collbench.analyze import cost_model
from collbench.analyze.analysis import analyze
from collbench.analyze.cost_model import NO_MODEL, gpu_rate, infiniband_rate
from collbench.model.conclusions import Bound, Interval, Summary
from collbench.model.records import Case
from collbench.report.notices import sentences
from collbench.stats import intervals
from conftest import invented_run, samples

SIZES = [64 * 2**k for k in range(20)]
ALPHA_S, RATE = 5e-5, 1e9  # half of the rate is reached at 50 kB
SWITCH = 2**15


def one_segment(size: float) -> float:
    return ALPHA_S + size / RATE


def two_segments(size: float) -> float:
    return 2e-5 + size / 5e8 if size <= SWITCH else 1.5e-4 + size / 2e9


def summary(size: int, medians, op: str = "all_reduce", world_size: int = 4, **case) -> Summary:
    m = np.asarray(medians, dtype=float)
    alone = Interval(float(m[0]), float(m[0]) * 0.95, float(m[0]) * 1.05, "within-run")
    time_s = intervals.launch_interval(m) if len(m) > 1 else alone
    return Summary(
        Case(op, "gloo", world_size, "float32", size, **case),
        time_s,
        tuple(m.tolist()),
        launches=len(m),
        iterations=100,
    )


def series(curve: Callable[[float], float], noise: float = 0.0, seed: int = 0, launches: int = 5, sizes=SIZES):
    rng = np.random.default_rng(seed)
    return [summary(size, curve(size) * np.exp(rng.normal(0, noise, launches))) for size in sizes]


@pytest.mark.parametrize("launches", [1, 5])
def test_an_exact_series_gives_its_parameters_back(launches):
    (fit,) = cost_model.fits(series(one_segment, launches=launches))
    (segment,) = fit.segments
    assert (segment.low, segment.high) == (SIZES[0], SIZES[-1])
    assert (segment.alpha_s, 1 / segment.beta_s_per_byte) == pytest.approx((ALPHA_S, RATE))
    assert fit.alpha_s.value == pytest.approx(ALPHA_S)
    assert fit.rate.value == pytest.approx(RATE)
    assert fit.half_size.value == pytest.approx(ALPHA_S * RATE)
    assert fit.worst_residual < 1e-9 and fit.note is None
    kind = "none" if launches == 1 else "over launches"
    assert {getattr(fit, name).kind for name in ("alpha_s", "rate", "half_size")} == {kind}


def test_intervals_over_launches_cover_the_truth():
    fits = [cost_model.fits(series(one_segment, 0.05, seed, sizes=SIZES[::3]))[0] for seed in range(50)]
    assert all(fit.worst_residual < 0.15 for fit in fits)
    for name, truth in (("alpha_s", ALPHA_S), ("rate", RATE), ("half_size", ALPHA_S * RATE)):
        around = [getattr(fit, name) for fit in fits]
        assert np.median([interval.value for interval in around]) == pytest.approx(truth, rel=0.05)
        assert all(interval.kind == "over launches" for interval in around)
        assert 43 <= sum(interval.low <= truth <= interval.high for interval in around) <= 49, name


def test_slowness_of_a_whole_launch_widens_the_intervals():
    slow = np.array([1.0, 1.3, 1.0, 1.3, 1.0])
    (fit,) = cost_model.fits([summary(size, one_segment(size) * slow) for size in SIZES])
    want = intervals.launch_interval(ALPHA_S * slow)
    assert (fit.alpha_s.low, fit.alpha_s.high) == pytest.approx((want.low, want.high))
    assert fit.half_size.relative_half_width < 1e-6  # both parameters grow by the same factor


def test_parameters_of_few_launches_have_a_range():
    slow = np.array([1.0, 1.3, 1.1])
    (fit,) = cost_model.fits([summary(size, one_segment(size) * slow) for size in SIZES])
    assert fit.alpha_s.kind == "range of launches"
    assert (fit.alpha_s.low, fit.alpha_s.high) == pytest.approx((ALPHA_S, 1.3 * ALPHA_S))
    # Sizes with more launches are fitted by the launches that all sizes have.
    equal = series(one_segment, 0.05)
    more = [replace(s, means_s=(*s.means_s, 9 * s.means_s[0])) if n == 2 else s for n, s in enumerate(equal)]
    assert cost_model.fits(more)[0].alpha_s == cost_model.fits(equal)[0].alpha_s


def test_a_latency_that_is_zero_in_some_launches_is_no_logarithm():
    with_latency, without = (np.array([a + size / RATE for size in SIZES[:7]]) for a in (1e-6, 0.0))
    medians = np.column_stack([with_latency, without, with_latency])
    (fit,) = cost_model.fits([summary(size, row) for size, row in zip(SIZES, medians, strict=False)])
    assert fit.alpha_s.low == 0.0
    assert fit.alpha_s.value == pytest.approx(2e-6 / 3, rel=1e-3)
    assert 1e-6 < fit.alpha_s.high < 1e-5


@pytest.mark.parametrize("launches", [1, 3])
def test_parameters_indistinguishable_from_zero_or_infinity_are_not_given(launches):
    (flat,) = cost_model.fits(series(lambda size: ALPHA_S, launches=launches))
    assert flat.alpha_s.value == pytest.approx(ALPHA_S)
    assert flat.rate is None and flat.half_size is None
    # A rate that grows with size pushes the latency to zero in every launch.
    (steep,) = cost_model.fits(series(lambda size: size**1.05 / RATE, launches=launches, sizes=SIZES[:7]))
    assert steep.alpha_s is None
    assert steep.segments[0].alpha_s == 0.0


def test_eager_and_rendezvous_are_two_segments_of_four_sizes_or_more():
    (fit,) = cost_model.fits(series(two_segments, 0.02))
    assert [(s.low, s.high) for s in fit.segments] == [(SIZES[0], SWITCH), (2 * SWITCH, SIZES[-1])]
    assert fit.alpha_s.value == pytest.approx(2e-5, rel=0.1)
    assert fit.rate.value == pytest.approx(2e9, rel=0.1)
    assert fit.half_size.value == pytest.approx(3e5, rel=0.2)
    (eight,) = cost_model.fits(series(two_segments, sizes=SIZES[6:14]))
    assert [(s.low, s.high) for s in eight.segments] == [(SIZES[6], SWITCH), (2 * SWITCH, SIZES[13])]
    (seven,) = cost_model.fits(series(two_segments, sizes=SIZES[6:13]))
    assert seven.segments == () and seven.note.kind is NO_MODEL


def test_one_segment_is_rarely_taken_for_more():
    counts = [len(cost_model.fits(series(one_segment, 0.05, seed))[0].segments) for seed in range(15)]
    assert counts.count(1) >= 13


def test_fewer_sizes_than_four_or_no_numbers_give_no_fit():
    failed = [Summary(s.case) for s in series(one_segment)[3:]]
    assert cost_model.fits(series(one_segment, sizes=SIZES[:3])) == []
    assert cost_model.fits(series(one_segment, sizes=SIZES[:3]) + failed) == []
    assert len(cost_model.fits(series(one_segment, sizes=SIZES[:4]))) == 1


def test_a_series_that_no_model_describes_says_so_instead():
    def zigzag(size):
        return one_segment(size) * (4 if SIZES.index(size) % 2 else 1)

    (fit,) = cost_model.fits(series(zigzag))
    assert fit.segments == () and fit.alpha_s is None and fit.rate is None and fit.half_size is None
    assert fit.worst_residual > cost_model.WORST_RESIDUAL
    assert fit.note.kind is NO_MODEL and fit.note.values["worst"] == fit.worst_residual


def test_series_that_differ_in_anything_but_size_are_apart():
    slow = [summary(s, [2 * one_segment(s)] * 2, world_size=8) for s in reversed(SIZES)]
    pipelined = [summary(s, [one_segment(s) / 2] * 2, metric="pipelined", depth=8) for s in SIZES]
    fits = cost_model.fits([*slow, *series(one_segment), *pipelined])
    assert [(fit.case.world_size, fit.case.metric) for fit in fits] == [
        (4, "isolated"), (8, "isolated"), (4, "pipelined"),
    ]  # fmt: skip
    assert [fit.alpha_s.value / ALPHA_S for fit in fits] == pytest.approx([1, 2, 0.5])
    assert {fit.case.size_bytes for fit in fits} == {SIZES[0]}


def test_bounds_come_from_the_user_and_from_the_best_pair():
    summaries = [
        *series(one_segment),
        summary(1000, [1e-5], world_size=1),
        summary(1000, [1e-5], "pairwise"),
        summary(10**6, [1e-3], "pairwise"),
        summary(10**7, [2e-2], "pairwise"),
        Summary(Case("pairwise", "gloo", 4, "float32", 10**8)),
        summary(1000, [1e-5], world_size=2),
    ]
    ring = Bound("gloo", 4, "ring of measured pairs", pytest.approx(1e9))
    assert cost_model.bounds(summaries, None) == [ring]
    assert cost_model.bounds(summaries, 3e9) == [
        Bound("gloo", 2, "link as given", 3e9),
        Bound("gloo", 4, "link as given", 3e9),
        ring,
    ]


def test_the_fit_is_the_least_of_scipys_from_many_starts():
    rng = np.random.default_rng(4)
    sizes = 2.0 ** np.arange(10, 27, 2)
    for _ in range(6):
        alpha, beta = 10 ** rng.uniform(-6, -2), 10 ** rng.uniform(-12, -7)
        times = (alpha + beta * sizes) * np.exp(0.3 * rng.normal(size=len(sizes)))

        def residuals(x, times=times):
            return np.log((np.exp(x[0]) + np.exp(x[1]) * sizes) / times)

        starts = [(np.log(times[0]), np.log(times[-1] / sizes[-1])), (-9, -20), (-12, -25), (-6, -18)]
        best = min(2 * least_squares(residuals, start).cost for start in starts)
        fitted = cost_model._affine(sizes, times)
        assert np.sum(np.log((fitted[0] + fitted[1] * sizes) / times) ** 2) <= best * (1 + 1e-6) + 1e-12


def test_latency_is_not_biased_by_noise():
    """Relative residuals would give 6 % less at this noise, and intervals that cover 75 to 83 %."""
    rng = np.random.default_rng(5)
    sizes = 2.0 ** np.arange(10, 27, 2)
    drawn = [
        cost_model._affine(sizes, (3e-4 + 1e-9 * sizes) * np.exp(0.2 * rng.normal(size=len(sizes)))) for _ in range(150)
    ]
    alpha, beta = np.exp(np.mean(np.log(drawn), axis=0))
    assert alpha == pytest.approx(3e-4, rel=0.025) and beta == pytest.approx(1e-9, rel=0.03)


# ── bounds of the hardware ───────────────────────────────────────────────────────────────────────
H100 = {"gpus": [{"nvlinks": [6] * 18, "capability": 90, "pcie_generation": 5, "pcie_width": 16}]}
IB = {
    "infiniband": [{"rate": "400 Gb/sec (4X NDR)", "state": "4: ACTIVE"}] * 8
    + [{"rate": "100 Gb/sec", "state": "1: DOWN"}]
}


def run_of(host, op="all_reduce", seconds=1e-3, size=10**9, hosts=1, **extra):
    case = Case(op, "nccl", 8, "float32", size, **extra)
    run = invented_run([samples(case, 1, [[int(seconds * 1e9)] * 8] * 8)])
    ranks = [{"rank": r, "hostname": f"h{r % hosts}"} for r in range(8)]
    launch = {"backend": "nccl", "world_size": 8, "launch": 1, "ranks": ranks}
    run.environment.append({"host": host, "launches": [launch], "before": {}, "after": {}})
    return run


@pytest.mark.parametrize(
    ("gpu", "rate"),
    [
        # The version of NVLink that NVML gives is not a generation.
        *(
            ({"nvlinks": [version] * links, "capability": capability}, (f"NVLink ({links} links)", rate))
            for version, links, capability, rate in [
                (5, 12, 80, 300e9), (6, 18, 90, 450e9), (7, 18, 90, 450e9), (7, 18, 100, 900e9), (8, 18, 103, 900e9),
            ]
        ),
        ({"nvlinks": [99] * 18}, None),  # links of an unknown kind have no bound
        ({"nvlinks": [], "pcie_generation": 4}, ("PCIe 4 × 16", pytest.approx(31.5e9, rel=0.01))),
        ({"nvlinks": "not available", "pcie_generation": None, "pcie_width": None}, None),
    ],
)  # fmt: skip
def test_rates_are_those_of_the_data_sheets(gpu, rate):
    assert gpu_rate({"gpus": [{"pcie_generation": 5, "pcie_width": 16} | gpu]}) == rate
    assert gpu_rate({"gpus": []}) is None and infiniband_rate(IB) == pytest.approx(8 * 50e9)


@pytest.mark.parametrize(("seconds", "believed"), [(4e-3, True), (1.75 / 478, True), (2.3e-3, True), (1.8e-3, False)])
def test_a_number_beyond_the_hardware_is_not_believed(seconds, believed):
    """1 GB into each GPU over 450 GB/s takes 2.2 ms, even if switches reduce: 475 to 480 GB/s were published."""
    analysis = analyze(run_of(H100, seconds=seconds))
    assert any("do not believe" in warning for warning in sentences(analysis.notices)) != believed
    assert [bound.busbw for bound in analysis.bounds] == [450e9 * 2 * 7 / 8] and 450e9 * 2 * 7 / 8 > 478e9


def test_hosts_are_bounded_by_the_network_between_them():
    names = {bound.name: bound.busbw for bound in analyze(run_of(H100 | IB, seconds=9e-3, hosts=2)).bounds}
    assert names["InfiniBand between 2 hosts"] == pytest.approx(400e9 * (7 / 8) / (1 / 2))


def test_shared_gpus_and_barriers_have_no_bandwidth():
    analysis = analyze(run_of(H100, seconds=1e-5, oversubscribed=True))
    assert analysis.summaries[0].busbw is analysis.summaries[0].algbw is None
    assert "shared a GPU" in " ".join(sentences(analysis.notices))
    run = run_of(H100, op="barrier", size=0)  # moves nothing
    run = replace(run, samples=[replace(run.samples[0], case=replace(run.samples[0].case, dtype="bytes"))])
    assert analyze(run).bounds == ()
