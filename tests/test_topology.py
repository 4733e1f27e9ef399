"""Bounds come from what the hardware is; a number that beats it is called impossible, and a throttled GPU is said."""

from dataclasses import replace

import pytest

from bench.analyze.analysis import analyze
from bench.analyze.model import gpu_rate, infiniband_rate
from bench.model.records import Case
from conftest import invented_run, samples

H100 = {"gpus": [{"nvlinks": [4] * 18, "pcie_generation": 5, "pcie_width": 16}]}
PCIE = {"gpus": [{"nvlinks": [], "pcie_generation": 4, "pcie_width": 16}]}
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


def test_rates_are_those_of_the_data_sheets():
    assert gpu_rate(H100) == ("NVLink (18 links)", 450e9)
    assert gpu_rate(PCIE) == ("PCIe 4 × 16", pytest.approx(31.5e9, rel=0.01))
    assert gpu_rate({"gpus": []}) is gpu_rate({"gpus": [{"nvlinks": "not available"}]}) is None
    assert infiniband_rate(IB) == pytest.approx(8 * 50e9)


@pytest.mark.parametrize(("seconds", "believed"), [(4e-3, True), (2.3e-3, True), (1.8e-3, False)])
def test_a_number_beyond_the_hardware_is_not_believed(seconds, believed):
    """1 GB into each GPU over 450 GB/s takes 2.2 ms, even where switches reduce."""
    analysis = analyze(run_of(H100, seconds=seconds))
    assert any("do not believe" in warning for warning in analysis.warnings) != believed
    assert [bound.busbw for bound in analysis.bounds] == [450e9]


def test_hosts_are_bounded_by_what_joins_them():
    names = {bound.name: bound.busbw for bound in analyze(run_of(H100 | IB, seconds=9e-3, hosts=2)).bounds}
    assert names["InfiniBand between 2 hosts"] == pytest.approx(400e9 * (7 / 8) / (1 / 2))


def test_shared_gpus_have_no_bandwidth_and_that_is_said():
    analysis = analyze(run_of(H100, seconds=1e-5, oversubscribed=True))
    assert analysis.summaries[0].busbw is analysis.summaries[0].algbw is None
    assert "shared a GPU" in " ".join(analysis.warnings)


def test_throttling_is_said():
    run = run_of(H100)
    run.environment[0]["after"] = {"gpus": [{"throttle_reasons": 0x4 | 0x1}, {"throttle_reasons": "not available"}]}
    text = " ".join(analyze(run).warnings)
    assert "GPU 0 was throttled after the run: power cap" in text
    assert "GPU 1" not in text


def test_what_moves_nothing_has_no_bound():
    run = run_of(H100, op="barrier", size=0)
    run = replace(run, samples=[replace(run.samples[0], case=replace(run.samples[0].case, dtype="bytes"))])
    assert analyze(run).bounds == ()
