"""A report's first lines pair each time with its own interval, and say how far to trust it."""

from dataclasses import replace

from bench.model.conclusions import Analysis, Diagnosis, Interval, Stall, Summary
from bench.model.records import Case
from bench.report import document
from conftest import invented_run

CASE = Case("all_reduce", "gloo", 2, "float32", 1024)
USUAL = Summary(CASE, 8, 400, Interval(1e-3, 0.9e-3, 1.2e-3, "over launches"), busbw=1e6)


def answer(*summaries, warnings=()):
    return document.answer(invented_run([]), Analysis(summaries, tuple(warnings), Diagnosis(())))


def test_one_mode():
    first, trust = answer(USUAL)
    assert "1 KiB takes 1.00 ms [900 µs – 1.20 ms] among 2 ranks" in first and "0.001 GB/s (1 KiB, 2 ranks)" in first
    assert "within ±15%" in trust


def test_the_fast_mode_has_its_interval_or_the_median_s_by_name():
    fast = Interval(5e-4, 4.5e-4, 5.5e-4, "over launches")
    two = replace(USUAL, stall=Stall(0.45, 5e-4, 3e-3, fast))
    assert "takes 500 µs [450 – 550 µs] (45% of the calls 3.50 ms) among" in answer(two)[0]
    alone = replace(USUAL, stall=Stall(0.45, 5e-4, 3e-3))
    assert "takes 500 µs [median 900 µs – 1.20 ms] (45% of the calls 3.50 ms) among" in answer(alone)[0]


def test_without_intervals_and_without_numbers():
    assert "no interval is known" in answer(replace(USUAL, time_s=Interval(1e-3, 1e-3, 1e-3, "none")))[1]
    assert answer(replace(USUAL, time_s=None)) == []


def test_several_kinds_are_named_apart_and_counted():
    kinds = [replace(USUAL, case=replace(CASE, dtype=dtype)) for dtype in ("float32", "float16", "int8", "int32")]
    *first, further, trust = answer(*kinds, warnings=["one"])
    assert len(first) == document.MOST_GROUPS and "float16" in first[1] and further.startswith("1 further kind")
    assert "1 caveat" in trust
