"""A table of expectations is read strictly and held against a run line by line."""

from dataclasses import replace

import pytest

from bench.analyze.expect import check
from bench.conclusions import Interval, Summary
from bench.errors import ConfigError
from bench.expected import load, parse
from bench.records import Case, Failure

LINE = "operation: all_reduce, backend: gloo, world_size: 2, size: 1GB, busbw: 10 GB/s"
CASE = Case("all_reduce", "gloo", 2, "float32", 10**9)  # at two ranks the bus factor is 1


def table(*lines: str, head: str = "tolerance: 10%"):
    return parse("\n".join([head, "expect:", *(f"  - {{{line}}}" for line in lines)]).encode(), "e.yaml")


def summary(low: float, high: float, case: Case = CASE, launches: int = 5) -> Summary:
    """A case whose bus bandwidth lies between these, in GB/s."""
    middle = (low + high) / 2
    return Summary(case, launches, 100, Interval(1 / middle, 1 / high, 1 / low, "over launches"))


def test_a_table_is_read_with_its_units():
    expected = table(
        LINE, LINE.replace("2, size: 1GB", "4, size: 16MiB").replace("10 GB/s", "25 Gbit/s, tolerance: 0.2")
    )
    assert expected.tolerance == pytest.approx(0.1)
    assert [line.busbw for line in expected.expect] == [10e9, 25e9 / 8]
    assert [line.tolerance for line in expected.expect] == [None, 0.2]
    assert (expected.expect[1].size, expected.expect[1].dtype) == (2**24, "float32")


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(9.5, 10.5, "PASS"), (9.001, 9.5, "PASS"), (8.9, 9.5, "INCONCLUSIVE"), (8, 8.99, "FAIL"), (20, 30, "PASS")],
)
def test_all_of_the_interval_must_reach_what_is_expected(low, high, verdict):
    (found,) = check(table(LINE), [summary(low, high)])
    assert found.verdict == verdict
    assert (found.measured.low, found.measured.high) == pytest.approx((low * 1e9, high * 1e9))


def test_what_was_not_measured_is_missing():
    other = Case("all_reduce", "gloo", 4, "float32", 10**9)
    pipelined = Case("all_reduce", "gloo", 2, "float32", 10**9, metric="pipelined", depth=8)
    (found,) = check(table(LINE), [summary(9, 10, other), summary(9, 10, pipelined)])
    assert (found.verdict, found.measured, found.case) == ("MISSING", None, CASE)
    dead = Summary(CASE, 0, 0, None, failures=(Failure("hang", None, "nobody came"),))
    (found,) = check(table(LINE), [dead])
    assert (found.verdict, found.note) == ("MISSING", "nobody came")


def test_what_a_line_leaves_out_fits_every_case_and_one_launch_decides_nothing():
    hot = Case("all_reduce", "gloo", 2, "float32", 10**9, buffers="hot")
    both = [summary(9.5, 10), summary(5, 6, hot, launches=1)]
    assert [found.verdict for found in check(table(LINE), both)] == ["PASS", "INCONCLUSIVE"]
    (found,) = check(table(f"{LINE}, buffers: hot"), both)
    assert found.case == hot and "one launch" in found.note


@pytest.mark.parametrize(
    ("named", "changes"),
    [
        ("placement: out", {"placement": "out"}),
        ("call: async", {"call": "async"}),
        ("groups: contiguous:2", {"groups": "contiguous:2"}),
        ("memory: registered", {"memory": "registered"}),
        ("settings: NCCL_ALGO=Ring", {"settings": "NCCL_ALGO=Ring"}),
        ("scheduling: rr", {"scheduling": "rr"}),
    ],
)
def test_another_placement_call_group_or_memory_is_another_case_unless_it_is_named(named, changes):
    other = summary(9.5, 10, replace(CASE, **changes))
    assert [found.verdict for found in check(table(LINE), [other])] == ["MISSING"]
    assert [found.verdict for found in check(table(f"{LINE}, {named}"), [other])] == ["PASS"]
    assert [found.verdict for found in check(table(f"{LINE}, {named}"), [summary(9.5, 10)])] == ["MISSING"]


def test_ranks_that_share_a_gpu_have_no_bandwidth_to_hold_against_a_table():
    (found,) = check(table(LINE), [summary(9.5, 10, replace(CASE, oversubscribed=True))])
    assert (found.verdict, found.measured) == ("MISSING", None) and "shared a GPU" in found.note


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        (LINE.replace("10 GB/s", "10"), ["expect[0].busbw", "not a rate"]),
        (LINE.replace("10 GB/s", "10G"), ["bits or bytes", "10 Gbit/s or 10 GB/s"]),
        (
            LINE.replace("busbw", "buswb"),
            ["expect[0].buswb: unknown key", "did you mean 'busbw'", "allowed: operation"],
        ),
        (LINE.replace("gloo", "glo"), ["expect[0].backend: glo", "did you mean 'gloo'"]),
        (LINE.replace("world_size: 2, ", ""), ["expect[0].world_size: missing"]),
        (LINE.replace("world_size: 2", "world_size: 1"), ["expect[0].world_size: 1", "greater than or equal to 2"]),
        (f"{LINE}, tolerance: 120%", ["expect[0].tolerance", "less than 100%"]),
        (f"{LINE}, tolerance: lots", ["expect[0].tolerance", "not a share"]),
        (LINE.replace("1GB", "1G"), ["expect[0].size", "1GB", "1GiB"]),
        (f"{LINE}, size: 2GB", ["line 3", "'size' is there twice"]),
    ],
)
def test_each_mistake_is_one_line_that_says_how_to_mend_it(line, parts):
    with pytest.raises(ConfigError) as error:
        table(line)
    assert "\n" not in str(error.value) and str(error.value).startswith("e.yaml:")
    for part in parts:
        assert part in str(error.value)


def test_a_table_must_say_something_once(tmp_path):
    with pytest.raises(ConfigError, match="line 2 of 'expect' repeats line 1"):
        table(LINE, LINE.replace("10 GB/s", "11 GB/s"))
    for raw, words in ((b"expect: []", "at least 1"), (b"- a", "expected keys and values"), (b"a: 1", "unknown key")):
        with pytest.raises(ConfigError, match=words):
            parse(raw, "e.yaml")
    with pytest.raises(ConfigError, match=r"no\.yaml"):
        load(tmp_path / "no.yaml")
