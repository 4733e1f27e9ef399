"""A run that contradicts itself is reported, once per rule and series; a run that only scatters is not."""

import numpy as np
import pytest

from collbench.analyze import consistency
from collbench.model.conclusions import Interval, Summary
from collbench.model.records import Case
from collbench.report.notices import sentence
from collbench.stats import intervals

KIB = 1024


def timed(op: str, size: int, seconds: float, spread: float = 0.02, world_size: int = 4, **case) -> Summary:
    interval = Interval(seconds, seconds * (1 - spread), seconds * (1 + spread), "over launches")
    return Summary(
        Case(op, "gloo", world_size, "float32", size, **case), interval, (seconds,) * 5, launches=5, iterations=100
    )


def texts(summaries, **options) -> list[str]:
    return [sentence(finding.notice) for finding in consistency.findings(summaries, **options)]


def test_a_split_that_is_faster_is_a_finding_with_its_numbers():
    small, large = timed("all_reduce", 32 * KIB, 0.5e-3), timed("all_reduce", 64 * KIB, 2.1e-3)
    (finding,) = consistency.findings([large, small])
    assert finding.kind == "inconsistent"
    assert finding.subject == "all_reduce of 64 KiB over gloo, n = 4"
    text = "all_reduce of 64 KiB takes 2.10 ms, but twice 32 KiB takes 1.00 ms: splitting would be faster"
    assert sentence(finding.notice) == text
    assert finding.cases == (large.case, small.case)
    assert (finding.cost_s, finding.share) == pytest.approx((1.1e-3, 1.1))


def test_a_larger_message_that_is_faster_is_a_finding():
    (text,) = texts([timed("all_reduce", 32 * KIB, 2.1e-3), timed("all_reduce", 64 * KIB, 1e-3)])
    assert text == "all_reduce of 32 KiB takes 2.10 ms, but 64 KiB takes 1.00 ms: padding would be faster"


@pytest.mark.parametrize(
    ("left", "parts", "other_way"),
    [
        ("all_reduce", ("reduce", "broadcast"), "reduce and broadcast of 1 KiB take 1.00 ms and 1.00 ms"),
        ("all_reduce", ("reduce_scatter", "all_gather"), "reduce_scatter and all_gather of 1 KiB take"),
        ("all_gather", ("gather", "broadcast"), "gather and broadcast of 1 KiB take 1.00 ms and 1.00 ms"),
        ("reduce_scatter", ("all_reduce",), "all_reduce of 1 KiB takes 1.00 ms: keeping a part"),
    ],
)
def test_every_composition_is_a_rule(left, parts, other_way):
    right = [timed(part, KIB, 1e-3) for part in parts]
    (text,) = texts([timed(left, KIB, 1.2e-3 * len(parts)), *right])
    assert text.startswith(f"{left} of 1 KiB takes ") and other_way in text
    assert texts([timed(left, KIB, 0.9e-3 * len(parts)), *right]) == []
    assert texts([timed(left, KIB, 1.0), *right[1:], timed(parts[0], 2 * KIB, 1e-3)]) == []


@pytest.mark.parametrize(
    ("excess", "min_change", "spread", "expected"),
    [
        (1.04, 0.05, 1e-6, 0), (1.06, 0.05, 1e-6, 1), (1.04, 0.01, 1e-6, 1), (1.06, 0.1, 1e-6, 0),
        # 0.2 of 2.2 ms: the errors of both cases, in quadrature, are as large at a spread of 7 %.
        (1.1, 0.05, 0.06, 1), (1.1, 0.05, 0.08, 0),
    ],
)  # fmt: skip
def test_only_an_excess_beyond_the_smallest_change_and_its_error_counts(excess, min_change, spread, expected):
    pair = [timed("all_reduce", 32, 1e-3, spread), timed("all_reduce", 64, 2e-3 * excess, spread)]
    assert len(texts(pair, min_change=min_change)) == expected


def test_cases_that_differ_in_anything_else_are_never_compared():
    for other in ({"world_size": 8}, {"metric": "pipelined"}, {"buffers": "hot"}, {"reduce_op": "max"}):
        assert texts([timed("all_reduce", 32, 1e-3), timed("all_reduce", 64, 9e-3, **other)]) == [], other
        assert texts([timed("all_reduce", 32, 9e-3), timed("reduce", 32, 1e-3), timed("broadcast", 32, 1e-3, **other)])\
            == [], other  # fmt: skip


def test_an_operation_without_a_reduce_op_is_a_part_for_every_reduce_op():
    left, broadcast = timed("all_reduce", 32, 9e-3, reduce_op="max"), timed("broadcast", 32, 1e-3)
    assert len(texts([left, broadcast, timed("reduce", 32, 1e-3, reduce_op="max")])) == 1
    assert texts([left, broadcast, timed("reduce", 32, 1e-3)]) == []


def test_a_series_is_named_once_per_rule_with_its_worst_size():
    base = [timed("all_reduce", 32, 1e-3), timed("all_reduce", 64, 3e-3), timed("all_reduce", 128, 20e-3)]
    (finding,) = consistency.findings(base)
    assert finding.cases == (base[2].case, base[0].case)
    assert "4 times 32 B takes 4.00 ms" in sentence(finding.notice)
    assert sentence(finding.notice).endswith("(and for 1 more of its sizes)")


def test_one_launch_is_not_enough():
    alone = [
        Summary(s.case, Interval(s.time_s.value, s.time_s.low, s.time_s.high, "within-run"), launches=1, iterations=100)
        for s in (timed("all_reduce", 32, 1e-3), timed("all_reduce", 64, 3e-3))
    ]
    assert texts(alone) == []


def test_series_that_only_scatter_are_rarely_blamed():
    rng = np.random.default_rng(5)
    blamed = 0
    for _ in range(40):
        summaries = []
        for size in [64 * 2**k for k in range(16)]:
            medians = (5e-5 + size / 1e9) * np.exp(rng.normal(0, 0.05, 5))
            case = Case("all_reduce", "gloo", 4, "float32", size)
            summaries.append(
                Summary(case, intervals.launch_interval(medians), tuple(medians.tolist()), launches=5, iterations=100)
            )
        blamed += bool(consistency.findings(summaries))
        slow = summaries[8]
        tripled = Interval(slow.time_s.value * 3, slow.time_s.low * 3, slow.time_s.high * 3, slow.time_s.kind)
        summaries[8] = Summary(slow.case, tripled, launches=5, iterations=100)
        assert consistency.findings(summaries)
    assert blamed <= 1
