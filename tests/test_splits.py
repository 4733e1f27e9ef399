"""Uneven all-to-all: shares add up, are the same for all ranks, bound the time, and are verified."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.analyze.analysis import analyze
from collbench.catalog import collectives, splits
from collbench.config.models import parse
from collbench.model.errors import ConfigError
from collbench.model.records import Case, Machine
from collbench.report.plots import PICTURES

MACHINE = Machine("h", 2, 16 * 2**30, 32 * 2**20, 0, {})
SKEWED = """
backends: [gloo]
world_sizes: [3]
launches: 1
operations: [all_to_all]
sizes: [1KiB, 60KiB]
splits:
- even
- {zipf: 1.2}
- {lognormal: 1}
- {hot: 2.5, seed: 3}
- {matrix: [[0, 5, 1], [2, 0, 0], [0, 0, 0]]}
sampling: {warmup: 1, warmup_seconds: 0, iterations: 8}
seed: 1
"""
DISTRIBUTIONS = st.sampled_from(
    ["zipf:1.2", "zipf:0.5:seed=4", "lognormal:1", "lognormal:2:seed=1", "hot:1.5", "distance:0.5"]
)


def rows_of(text, ranks, elements):
    return splits.matrix(splits.parse(text), ranks, elements)


@settings(max_examples=50)
@given(DISTRIBUTIONS, st.integers(2, 40), st.integers(0, 10_000))
def test_every_rank_sends_all_it_has(text, ranks, elements):
    rows = rows_of(text, ranks, elements)
    assert len(rows) == ranks and all(len(row) == ranks and sum(row) == elements and min(row) >= 0 for row in rows)
    most = max(map(sum, zip(*rows, strict=True)))
    assert splits.most_received(splits.parse(text), ranks, elements) == most


def test_distance_divides_as_alltoallv_perf_does():
    assert rows_of("distance:1", 4, 12) == [[0, 2, 4, 6], [6, 0, 2, 4], [4, 6, 0, 2], [2, 4, 6, 0]]
    assert rows_of("distance:0", 4, 12) == [[3] * 4] * 4
    assert rows_of("distance:0.5", 4, 24)[0] == [3, 5, 7, 9] and rows_of("distance:1", 1, 5) == [[5]]


def test_the_busiest_rank_bounds_the_rate():
    rows = [[1, 8, 0], [0, 2, 0], [3, 4, 0]]
    assert splits.heaviest(rows) == 12  # received by rank 1 from other ranks
    assert splits.heaviest([[0, 5, 5], [0, 0, 0], [0, 0, 0]]) == 10  # sent by rank 0 to other ranks
    case = Case("all_to_all", "gloo", 4, "float32", 4000, splits=splits.parse("hot:4"))
    assert collectives.heaviest_bytes(case) == 3 * 4000
    assert collectives.busbw(case, 2.0) == 6000
    assert collectives.busbw(replace(case, splits=None), 2.0) == 1500


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ("{zipf: 1, hot: 2}", "exactly one of"),
        ("{matrix: [[1, 2], [3]]}", "needs 2 numbers"),
        ("{matrix: none.csv}", "no such file"),
        ("{matrix: [[1]], seed: 2}", "has no seed"),
        ("{hot: 0.5}", "more than 1"),
    ],
)
def test_mistakes_in_yaml_are_one_line(given_, message):
    with pytest.raises(ConfigError) as caught:
        parse(SKEWED.encode(), "x.yaml", [f"splits=[{given_}]"])
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_matrix_is_read_from_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.csv").write_text("0,5,1\n2,0,0\n0,0,0\n")
    (read,) = parse(SKEWED.encode(), "x.yaml", ["splits=[{matrix: m.csv}]"]).splits
    assert str(read) == "rows:0,5,1;2,0,0;0,0,0"


def test_uneven_calls_are_measured_and_drawn_and_a_wrong_element_is_noticed(warm):
    fault = "faults=[{do: corrupt, rank: 1, iteration: 4, size: 60KiB}]"
    run = warm.measure(SKEWED, fault, code=1)
    assert {str(s.case.splits).partition(":")[0] for s in run.samples} == {"None", "zipf", "lognormal", "hot", "rows"}
    failed = [s.case for s in run.samples if s.failure]
    assert {"None", "zipf:1.2", "lognormal:1"} <= {str(case.splits) for case in failed}
    assert all(case.size_bytes > 1024 for case in failed)
    (figure,) = next(kind for kind in PICTURES if kind.name == "splits").drawn_by(run, analyze(run))
    titles = [axes.get_title().replace("\n", " ") for axes in figure.axes if axes.get_title()]
    assert len(titles) == 4 and all("the busiest" in title for title in titles)
