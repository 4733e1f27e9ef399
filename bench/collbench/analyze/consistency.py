"""Find operations that are slower than another way to the same result; this needs no baseline.

In: summaries. Out: findings of kind "inconsistent", at most one for each rule and series of sizes: the worst size, with
the number of other sizes. A finding does not state which of the two sides is at fault. It requires that Student's t
of the difference is significant, corrected for the number of all claims (Bonferroni). Only intervals over launches
count, because intervals within one launch are too narrow: of twelve launches of gloo analysed one by one, six had a
finding; analysed together they had none.

The rules are from Träff, Gropp and Thakur, "Self-consistent MPI performance guidelines", IEEE TPDS 21 (2010).
A size counts the total bytes of an operation: a rank's contribution to all_reduce, reduce and broadcast, and
n times a rank's share for all_gather, gather and reduce_scatter. So operations of equal size S work on the same
vector of S bytes: all_reduce has the result of reduce_scatter (each rank keeps S/n) followed by all_gather.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from collbench.catalog.collectives import OPERATIONS, cycle
from collbench.model.comparisons import MIN_CHANGE
from collbench.model.conclusions import Finding, FindingKind, Interval, IntervalKind, Summary
from collbench.model.notices import Kind, Notice, Value
from collbench.model.projection import SIZES
from collbench.model.records import Case, case_order
from collbench.model.units import format_bytes
from collbench.stats.intervals import ERROR_RATE, student_quantile

# The reduce op that a plan gives an operation that does not reduce.
NO_REDUCE_OP = "sum"


@dataclass(frozen=True, slots=True)
class Timed:
    """A case with its time."""

    case: Case
    time_s: Interval
    # Number of launches minus one.
    freedom: int

    @property
    def error_s(self) -> float:
        """Return the standard error of the time in seconds."""
        return self.time_s.value * math.log(self.time_s.high / self.time_s.value) / student_quantile(self.freedom)


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim that `left` should take no longer than `parts` one after the other."""

    left: Timed
    # For each part, the number of calls and a measured case.
    parts: tuple[tuple[int, Timed], ...]

    @property
    def right_s(self) -> float:
        return sum(calls * part.time_s.value for calls, part in self.parts)

    @property
    def excess(self) -> float:
        """Return the relative excess of the time: 1.0 means twice as long as the other way."""
        return self.left.time_s.value / self.right_s - 1

    def violated(self, min_change: float, error_rate: float) -> bool:
        """Return whether the excess is above `min_change`, and above 0 with an error rate of at most `error_rate`."""
        error_s = math.hypot(self.left.error_s, *(calls * part.error_s for calls, part in self.parts))
        freedom = min(self.left.freedom, *(part.freedom for _, part in self.parts))
        least_s = student_quantile(freedom, 2 * error_rate) * error_s
        return self.excess > min_change and self.left.time_s.value - self.right_s > least_s


# Cases that differ in size only, by ascending size; and all such series, each under its case with size 0.
Series = dict[int, Timed]
AllSeries = dict[Case, Series]


def findings(summaries: Sequence[Summary], min_change: float = MIN_CHANGE) -> list[Finding]:
    """Return the worst violation of each rule in each series of two or more ranks, in the order of the tables.

    A rule makes no claim if an operation that it names was not measured.
    """
    series: AllSeries = defaultdict(dict)
    for summary in sorted(summaries, key=lambda summary: summary.case.size_bytes):
        case, time_s = summary.case, summary.time_s
        if time_s is None or time_s.kind != IntervalKind.OVER_LAUNCHES:
            continue
        # In a longer cycle, one iteration is not the whole operation.
        if cycle(case) == 1 and case.world_size > 1:
            series[SIZES.residue(case)][case.size_bytes] = Timed(case, time_s, summary.launches - 1)
    claims = [(kind, [*rule(base, series)]) for base in sorted(series, key=case_order) for rule, kind in RULES]
    error_rate = ERROR_RATE / max(1, sum(len(own_claims) for _, own_claims in claims))
    violations = ((kind, [claim for claim in own if claim.violated(min_change, error_rate)]) for kind, own in claims)
    return [_finding(kind, violated) for kind, violated in violations if violated]


# ── the rules ────────────────────────────────────────────────────────────────────────────────────
def _composed(op: str, parts: tuple[str, ...], base: Case, series: AllSeries) -> Iterator[Claim]:
    """Yield the claims t(`op` of S bytes) ≤ the sum of t over `parts`, each of S bytes."""
    if base.op != op:
        return
    columns = []
    for part in parts:
        reduce_op = base.reduce_op if OPERATIONS[part].reduces else NO_REDUCE_OP
        columns.append(series.get(replace(base, op=part, reduce_op=reduce_op), {}))
    for size, left in series[base].items():
        if all(size in column for column in columns):
            yield Claim(left, tuple((1, column[size]) for column in columns))


def _not_slower_than_larger(base: Case, series: AllSeries) -> Iterator[Claim]:
    """Yield the claims t(S) ≤ t(S') for every measured S' > S: the smaller message could be padded."""
    for left, larger in itertools.combinations(series[base].values(), 2):
        yield Claim(left, ((1, larger),))


def _not_slower_than_split(base: Case, series: AllSeries) -> Iterator[Claim]:
    """Yield the claims t(S) ≤ m t(S/m) for every measured S/m."""
    for size, left in series[base].items():
        for smaller, timed in series[base].items():
            if smaller < size and size % smaller == 0:
                yield Claim(left, ((size // smaller, timed),))


# Makes the claims of a rule on one series.
Rule = Callable[[Case, AllSeries], Iterator[Claim]]
_OTHERS = "{more_sizes:more sizes}"
_TAKES = "{op} of {size_bytes:bytes} takes {time_s:seconds}, but "
PARTS_FASTER = Kind(
    "parts-faster",
    f"{_TAKES}{{parts:and}} of {{size_bytes:bytes}} take {{times_s:seconds each}}: one after the other would be "
    f"faster{_OTHERS}",
)
WHOLE_FASTER = Kind(
    "whole-faster",
    f"{_TAKES}{{parts:and}} of {{size_bytes:bytes}} takes {{times_s:seconds each}}: keeping a part of its result "
    f"would be faster{_OTHERS}",
)
PADDING_FASTER = Kind(
    "padding-faster", f"{_TAKES}{{other_bytes:bytes}} takes {{other_s:seconds}}: padding would be faster{_OTHERS}"
)
SPLITTING_FASTER = Kind(
    "splitting-faster",
    f"{_TAKES}{{calls:times}} {{other_bytes:bytes}} takes {{other_s:seconds}}: splitting would be faster{_OTHERS}",
)
# Rules of self-consistent performance, and the meaning of a violation.
RULES: tuple[tuple[Rule, Kind], ...] = (
    (partial(_composed, "all_reduce", ("reduce", "broadcast")), PARTS_FASTER),
    (partial(_composed, "all_reduce", ("reduce_scatter", "all_gather")), PARTS_FASTER),
    (partial(_composed, "all_gather", ("gather", "broadcast")), PARTS_FASTER),
    (partial(_composed, "reduce_scatter", ("all_reduce",)), WHOLE_FASTER),
    (_not_slower_than_larger, PADDING_FASTER),
    (_not_slower_than_split, SPLITTING_FASTER),
)


# ── the findings ─────────────────────────────────────────────────────────────────────────────────
def _finding(kind: Kind, violations: list[Claim]) -> Finding:
    worst = max(violations, key=lambda claim: claim.excess)
    case, seconds = worst.left.case, worst.left.time_s.value
    calls, first = worst.parts[0]
    values: dict[str, Value] = {
        "op": case.op,
        "size_bytes": case.size_bytes,
        "time_s": seconds,
        "more_sizes": len({claim.left.case.size_bytes for claim in violations}) - 1,
    }
    if first.case.op == case.op:
        values |= {"calls": calls, "other_bytes": first.case.size_bytes, "other_s": worst.right_s}
    else:
        values["parts"] = tuple(part.case.op for _, part in worst.parts)
        values["times_s"] = tuple(part.time_s.value for _, part in worst.parts)
    return Finding(
        kind=FindingKind.INCONSISTENT,
        subject=f"{case.op} of {format_bytes(case.size_bytes)} over {case.backend}, n = {case.world_size}",
        notice=Notice(kind, values, tuple(claim.left.case.key for claim in violations)),
        cases=(case, *(part.case for _, part in worst.parts)),
        cost_s=seconds - worst.right_s,
        share=worst.excess,
    )
