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
from collbench.analyze.cost_model import gpu_rate, infiniband_rate
from collbench.model.conclusions import Interval, Summary
from collbench.model.records import Case
from collbench.report.notices import sentences
from collbench.stats import intervals
from conftest import invented_run, samples

SIZES = [64 * 2**k for k in range(20)]
ALPHA_S, RATE = 5e-5, 1e9  # half of the rate is reached at 50 kB


def one_segment(size: float) -> float:
    return ALPHA_S + size / RATE


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


@pytest.mark.parametrize("launches", [1, 3])
def test_parameters_indistinguishable_from_zero_or_infinity_are_not_given(launches):
    (flat,) = cost_model.fits(series(lambda size: ALPHA_S, launches=launches))
    assert flat.alpha_s.value == pytest.approx(ALPHA_S)
    assert flat.rate is None and flat.half_size is None
    # A rate that grows with size pushes the latency to zero in every launch.
    (steep,) = cost_model.fits(series(lambda size: size**1.05 / RATE, launches=launches, sizes=SIZES[:7]))
    assert steep.alpha_s is None
    assert steep.segments[0].alpha_s == 0.0


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
