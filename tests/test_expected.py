"""A table of expectations is read strictly and compared with a run line by line."""

import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import stdtrit

from collbench.analyze.sessions import Place
from collbench.model.conclusions import Interval, Summary
from collbench.model.errors import ConfigError, UnmeasurableError
from collbench.model.records import Case
from collbench.packages.gate.analyze.tables import check, least_of_two_nodes, lines_for_fabric
from collbench.packages.gate.config import load, parse
from conftest import ROOT

LINE = "operation: all_reduce, backend: gloo, world_size: 2, size: 1GB, busbw: 10 GB/s"
CASE = Case("all_reduce", "gloo", 2, "float32", 10**9)  # at two ranks the bus factor is 1


def table(*lines: str, head: str = "tolerance: 10%"):
    return parse("\n".join([head, "expect:", *(f"  - {{{line}}}" for line in lines)]).encode(), "e.yaml")


def summary(low: float, high: float, case: Case = CASE, launches: int = 5) -> Summary:
    """Return the summary of a case whose bus bandwidth has this interval, in GB/s."""
    middle, half = np.sqrt(low * high), np.log(high / low) / 2
    spread = half * np.sqrt(launches) / stdtrit(launches - 1, 0.975) if launches > 1 else 0.0
    steps = np.linspace(-1, 1, launches) if launches > 1 else np.zeros(1)
    medians = np.exp(spread * steps / max(np.std(steps, ddof=1), 1e-9) if launches > 1 else steps) / middle
    time_s = Interval(1 / middle, 1 / high, 1 / low, "over launches")
    return Summary(case, time_s, tuple(medians.tolist()), launches=launches, iterations=100)


def lines(expected, summaries):
    return check(expected, summaries).checks


def many(rel: float, seed: int, launches: int = 8):
    """Check 18 lines on a machine that is `rel` times as fast as the table says; launches scatter by 5 %."""
    dice = np.random.default_rng(seed)
    cases = [replace(CASE, size_bytes=10**9 + 8 * k) for k in range(18)]
    expected = table(*(LINE.replace("1GB", str(case.size_bytes)) for case in cases))
    made = [10 * rel * np.exp(0.05 * dice.normal(size=launches)) for _ in cases]
    bounds = [Interval(1 / m.mean(), 1 / m.max(), 1 / m.min(), "over launches") for m in made]
    rows = [
        Summary(c, b, tuple((1 / m).tolist()), launches=launches) for c, b, m in zip(cases, bounds, made, strict=True)
    ]
    return check(expected, rows)


def test_a_machine_passes_or_fails_all_lines_together_and_is_open_at_their_limits():
    assert {many(1.0, seed, launches).verdict for seed in range(6) for launches in (4, 8)} == {"PASS"}
    assert {many(0.8, seed).verdict for seed in range(6)} == {"FAIL"}
    assert [many(0.9, seed).verdict for seed in range(6)].count("INCONCLUSIVE") >= 4


# ── published tables ─────────────────────────────────────────────────────────────────────────────
EXPECTED = ROOT / "configs" / "expected"
PUBLISHED = "operation: all_reduce, backend: nccl, gpu: H100, nodes: 1, ranks_per_node: 8, metric: pipelined"
H100 = {("nccl", 8): Place(frozenset({"NVIDIA H100 80GB HBM3"}), 1), ("nccl", 16): Place(frozenset({"NVIDIA H100"}), 2)}
GPU_CASE = Case("all_reduce", "nccl", 8, "float32", 2**30, metric="pipelined", depth=20)


def on_gpus(expected, *cases, places=None):
    measured = [summary(450, 455, case) for case in cases]
    return check(expected, measured, H100 if places is None else places)


def test_a_line_for_hardware_is_applied_to_that_hardware_only():
    expected = table(f"{PUBLISHED}, busbw: 100 GB/s", f"{PUBLISHED.replace('H100', 'A100')}, busbw: 9000 GB/s")
    two_nodes = replace(GPU_CASE, world_size=16)
    checked = on_gpus(expected, GPU_CASE, two_nodes)
    assert [(line.case.world_size, line.verdict) for line in checked.checks] == [(8, "PASS")]
    assert checked.verdict == "PASS" and checked.reason.values["elsewhere"] == 1
    assert checked.checks[0].source == ""


def test_networks_that_the_run_does_not_distinguish_have_to_be_named():
    pair = replace(GPU_CASE, world_size=16, size_bytes=8 * 2**30)
    expected = load(EXPECTED / "google-cloud.yaml")
    with pytest.raises(ConfigError, match=r"TCPX and .*TCPXO: name the network"):
        on_gpus(expected, pair)
    (line,) = on_gpus(lines_for_fabric(expected, "tcpxo"), pair).checks
    assert line.expected == 150e9 and "2026-11-23" in line.source and "a3plus.yaml" in line.source
    with pytest.raises(ConfigError, match="no line of the table is for the network EFA; it has A3, GPUDirect-TCPX"):
        lines_for_fabric(expected, "EFA")


def test_a_line_without_a_size_means_the_largest_that_was_measured():
    small, large = replace(GPU_CASE, size_bytes=2**20), replace(GPU_CASE, size_bytes=2**33)
    (line,) = on_gpus(table(f"{PUBLISHED}, busbw: 100 GB/s"), small, large, GPU_CASE).checks
    assert line.case == large


def test_the_expected_rate_of_two_nodes_is_found_by_their_hardware():
    expected = load(EXPECTED / "google-cloud.yaml")
    pair = replace(GPU_CASE, world_size=16)
    assert least_of_two_nodes(expected, pair, frozenset({"NVIDIA B200"})) == 250e9
    assert least_of_two_nodes(expected, replace(pair, world_size=8), frozenset({"NVIDIA GB200"})) == 160e9
    with pytest.raises(UnmeasurableError, match="give the rate itself"):
        least_of_two_nodes(expected, pair, frozenset({"NVIDIA H100 80GB HBM3"}))
    with pytest.raises(
        ConfigError, match="8×B200 or 2 nodes of 4×GB200 on nccl; this is 2 nodes of 8×NVIDIA L4 on nccl"
    ):
        least_of_two_nodes(expected, pair, frozenset({"NVIDIA L4"}))
    with pytest.raises(ConfigError, match="no line of the table is for all_gather"):
        least_of_two_nodes(expected, replace(pair, op="all_gather"), frozenset({"NVIDIA B200"}))


@pytest.mark.parametrize("path", sorted(EXPECTED.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_table_that_comes_with_the_suite_is_read_and_names_its_source(path):
    for line in load(path).expect:
        assert re.search(r", 2026-11-2\d$", line.source) and line.metric == "pipelined"
        assert line.gpu and line.ranks_per_node and line.nodes
