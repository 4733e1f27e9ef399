"""Compare two sides that were measured in pairs of launches, repeatedly while pairs are added.

In: for each side the times of each case in each launch. Out: a `Comparison`. A pair is two launches that followed each
other, one of each side, so that differences between runs cancel out of their ratio. The pair is the unit.

Each look at the pairs is a chance of an error, so each look gets a part of the error rate (`stats.spending`): the more
of the time budget has passed, the more of the error rate may be spent. The budget is fixed before the first pair.
Prints nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path

import numpy as np

from collbench.analyze.against import over_references, samples_that_count
from collbench.analyze.comparability import session_changes
from collbench.analyze.compare import compared, exposed_change
from collbench.analyze.matching import differing_axis, matched, one_sided
from collbench.analyze.round_series import means
from collbench.analyze.summaries import headlines
from collbench.catalog.collectives import is_copy
from collbench.model.comparisons import (
    FASTER,
    INCONCLUSIVE,
    SAME,
    SLOWER,
    Change,
    ChangeVerdict,
    Comparison,
    ExposedChange,
    InTurns,
    Judgement,
)
from collbench.model.errors import ConfigError
from collbench.model.notices import Kind
from collbench.model.records import Case, Ending, EndReason, Plan, Run, Samples
from collbench.stats import spending, verdicts
from collbench.stats.intervals import Floats, launch_interval
from collbench.stats.verdicts import ERROR_RATE, SAME_RATE, Levels

# Numbers of pairs at which there is a look with a verdict; there is one more look when the budget ends.
LOOKS = (6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384)
FEWEST_PAIRS = LOOKS[0]

# Launch → the times of its iterations, in seconds.
Launches = Mapping[int, Floats]
# Each look so far: number of pairs, and share of the budget that was spent.
Looks = Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class TimedCase:
    """One case on one side."""

    case: Case
    launches: Launches = field(default_factory=dict)
    # Exposed communication in each round, if any.
    exposed: Launches = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PairedCase:
    """One case on both sides."""

    a: TimedCase
    b: TimedCase

    @property
    def key(self) -> str:
        """Return the name of the pair in a look."""
        return self.a.case.key

    @property
    def pairs(self) -> list[int]:
        """Return the numbers of the launches that both sides have."""
        return sorted(self.a.launches.keys() & self.b.launches.keys())

    def pairs_until(self, count: int) -> list[int]:
        """Return the numbers of the pairs up to `count`; some may be lost."""
        return [number for number in self.pairs if number <= count]

    def log_ratios(self, pairs: Sequence[int]) -> Floats:
        """Return the logarithm of B / A in each of these pairs."""
        a, b = (_means(side, pairs) for side in (self.a, self.b))
        return np.asarray(np.log(b / a))


@dataclass(frozen=True, slots=True)
class Look:
    """The judgements at one look."""

    judgements: dict[str, Judgement]
    # Judgement of the whole, by `index`; None with one case.
    whole: Judgement | None
    # Log ratios of the pairs, by case.
    ratios: dict[str, Floats]
    # Log ratios of the whole; None with one case.
    index: Floats | None
    levels: Levels

    @property
    def names_a_change(self) -> bool:
        """Return whether a case or the whole is slower or faster."""
        return not {SLOWER, FASTER}.isdisjoint(self.verdicts)

    @property
    def verdicts(self) -> list[ChangeVerdict]:
        """Return the verdicts on all cases and on the whole."""
        return [
            *(judgement.verdict for judgement in self.judgements.values()),
            *([self.whole.verdict] if self.whole else []),
        ]


TOO_FEW_PAIRS = Kind("too-few-pairs", "fewer than {fewest} pairs")


def look(cases: Sequence[PairedCase], looks: Looks, min_change: float) -> Look:
    """Judge the cases that have two pairs or more, at the last of these looks."""
    count = looks[-1][0]
    pairs = {case.key: numbers for case in cases if len(numbers := case.pairs_until(count)) >= 2}
    ratios = {case.key: case.log_ratios(pairs[case.key]) for case in cases if case.key in pairs}
    if not ratios:
        return Look({}, None, {}, None, Levels())
    index = _index(pairs, ratios)
    levels = levels_at(looks)
    levels = levels if index is None else levels.shared
    judged = verdicts.judge(verdicts.paired(list(ratios.values())), min_change, levels)
    enough = partial(verdicts.with_enough, fewest=FEWEST_PAIRS, too_few=TOO_FEW_PAIRS)
    judgements = {name: enough(judgement, len(ratios[name])) for name, judgement in zip(ratios, judged, strict=True)}
    overall = None
    if index is not None:
        overall = enough(verdicts.judge(verdicts.paired([index]), min_change, levels)[0], len(index))
    return Look(judgements, overall, ratios, index, levels)


def in_all(pairs: Iterable[Sequence[int]]) -> list[int]:
    """Return the numbers of the pairs that every case has, in order."""
    return sorted(set.intersection(*map(set, pairs)))


def after_verdict(cases: Sequence[PairedCase], count: int) -> list[int]:
    """Return the pairs after the first `count` that all cases have; [] if they are too few for an estimate.

    A verdict is reached when a change looks large; the pairs measured after the verdict have no such selection bias.
    """
    later = [number for number in in_all(case.pairs for case in cases) if number > count]
    return later if len(later) >= FEWEST_PAIRS else []


def levels_at(looks: Looks) -> Levels:
    """Return the nominal levels at the last look, from the error rates allowed by then and already spent before."""
    counts, shares = zip(*looks, strict=True)
    change, same = (
        float(spending.levels(shares, counts, rate, two_sided)[-1])
        for rate, two_sided in ((ERROR_RATE, True), (SAME_RATE, False))
    )
    return Levels(change, same)


def _means(side: TimedCase, pairs: Sequence[int]) -> Floats:
    """Return the mean time of each launch."""
    return np.array([side.launches[pair].mean() for pair in pairs])


def _index(pairs: Mapping[str, Sequence[int]], ratios: Mapping[str, Floats]) -> Floats | None:
    """Return the mean of all cases in each pair that has all cases; None for one case, or fewer than two such pairs.

    All cases have equal weight: weights chosen on the pairs that are tested raise the false-alarm rate.
    """
    common = in_all(pairs.values())
    if len(ratios) < 2 or len(common) < 2:
        return None
    return np.asarray(np.mean([ratios[name][np.searchsorted(pairs[name], common)] for name in ratios], axis=0))


# ── which cases form a pair ──────────────────────────────────────────────────────────────────────
def timed_cases(measured: Sequence[Samples], plan: Plan) -> list[TimedCase]:
    """Return the cases of a side by size, measured or not yet; without second copies, which show the noise of a run."""
    run = Run(Path(), {}, plan, [], list(measured))
    by_size = sorted(plan.cases, key=lambda case: case.size_bytes)
    launches: dict[Case, dict[int, Floats]] = {case: {} for case in by_size if not is_copy(case)}
    for samples in samples_that_count(run):
        if samples.case in launches and samples.failure is None and samples.timed is not None:
            launches[samples.case][samples.launch] = samples.timed.slowest_s
    exposed = over_references(run)
    return [TimedCase(case, times, exposed[case][0] if case in exposed else {}) for case, times in launches.items()]


def paired_cases(a: Sequence[TimedCase], b: Sequence[TimedCase]) -> list[PairedCase]:
    """Return the cases of both sides in pairs. Raises ConfigError if no case has a partner, or if a case has several.

    Partners have equal fields, except for fields in which the sides as a whole differ.
    """
    axis = differing_axis([side.case for side in a], [side.case for side in b])
    pairs = matched(a, b, lambda side: side.case, axis).pairs
    if not pairs:
        raise ConfigError(f"no case of side A has a partner on side B; they differ in {', '.join(axis.fields)}")
    return [PairedCase(*pair) for pair in pairs]


# ── when to end ──────────────────────────────────────────────────────────────────────────────────
def why_end(latest: Look, pairs: int, each: bool = False) -> Ending | None:
    """Return the reason to end at this look; None to continue. each: continue until every case is decided."""
    case_verdicts = {judgement.verdict for judgement in latest.judgements.values()}
    if (case_verdicts and INCONCLUSIVE not in case_verdicts) if each else latest.names_a_change:
        return Ending(EndReason.DECIDED, pairs)
    if latest.verdicts and set(latest.verdicts) == {SAME}:
        return Ending(EndReason.SAME, pairs)
    return Ending(EndReason.MOST_PAIRS, pairs) if pairs >= LOOKS[-1] else None


# ── the comparison at the end ────────────────────────────────────────────────────────────────────
RULE = Kind(
    "rule",
    "looks at {looks}, … pairs and at the end of the budget, over which error rates of {change_rate:share} (a "
    "change) and {same_rate:share} (SAME) are spent (Lan and DeMets), fixed before the first pair: at this look "
    "p ≤ {change:.2g} names a change, and two one-sided tests at {same:.2g} show SAME",
)


def compare_sides(
    a: Run,
    b: Run,
    names: tuple[str, str],
    min_change: float,
    ended: Ending,
    looks: Looks,
    each: bool = False,
) -> Comparison:
    """Compare the two sides at the last look.

    Without a look, for example after an early interrupt, all pairs count, undecided.

    names: names of the sides. ended: why measuring ended. looks: the looks taken. each: whether all must be decided.
    """
    sides = [timed_cases(run.samples, run.plan) for run in (a, b)]
    axis = differing_axis(*([timed.case for timed in side] for side in sides))
    cases = paired_cases(*sides)
    most = max((case.pairs[-1] for case in cases if case.pairs), default=0)
    latest = look(cases, looks or [(max(1, most), 1.0)], min_change)
    judged = [case for case in cases if case.key in latest.judgements]
    count = looks[-1][0] if looks else most
    changes = []
    for case, exposed in zip(judged, _exposed(judged, count, latest.levels), strict=True):
        judgement = _estimated(latest.judgements[case.key], [case], count, latest.ratios[case.key])
        shown = after_verdict([case], count) if judgement.at_verdict else case.pairs_until(count)
        before, after = (launch_interval(_means(side, shown)) for side in (case.a, case.b))
        changes.append(Change(case.a.case, case.b.case, before, after, judgement, exposed=exposed))
    old, new = ([s for s in headlines(run) if not is_copy(s.case)] for run in (a, b))
    broken, only_before, only_after = one_sided(a, b, matched(old, new, lambda summary: summary.case, axis), axis)
    fresh_pairs = len(after_verdict(judged, count)) if latest.names_a_change else 0
    undecided = sum(judgement.verdict == INCONCLUSIVE for judgement in latest.judgements.values())
    # Without the cases that have times on one side only, because they failed on the other.
    both = [case.key for case in cases if bool(case.a.launches) == bool(case.b.launches)]
    unjudged = tuple(key for key in both if judged and key not in latest.judgements)
    measured = [side.case for pair in judged for side in (pair.a, pair.b)]
    on_gloo = all(case.backend == "gloo" and case.scheduling == "normal" for case in measured)
    levels = latest.levels
    rule = RULE(
        looks=tuple(LOOKS[:4]), change_rate=ERROR_RATE, same_rate=SAME_RATE, change=levels.change, same=levels.same
    )
    return compared(
        (a, old),
        (b, new),
        changes,
        None if latest.whole is None else _estimated(latest.whole, judged, count, latest.index),
        each=each,
        before=names[0],
        after=names[1],
        runs_before=(a.name,),
        runs_after=(b.name,),
        min_change=min_change,
        broken=broken,
        only_before=only_before,
        only_after=only_after,
        notices=(
            *([GLOO_STALLS(undecided=undecided)] if undecided and on_gloo else []),
            *([NO_VERDICT(unjudged, names=unjudged)] if unjudged else []),
            *dict.fromkeys([*session_changes(a), *session_changes(b)]),
        ),
        in_turns=InTurns(ended, max(map(len, latest.ratios.values()), default=0), fresh_pairs, rule),
    )


GLOO_STALLS = Kind(
    "gloo-stalls",
    "{undecided:count case} undecided on gloo, whose event loop stalls on shared cores",
    "unless the stalls are the question, --set scheduling=batch on both sides lets launches scatter less",
)
NO_VERDICT = Kind(
    "no-verdict", "no verdict without two pairs that count: {names:lines}", "a longer --budget has time for more"
)


def _estimated(judgement: Judgement, cases: Sequence[PairedCase], count: int, logs: Floats | None) -> Judgement:
    """Return the judgement with the ratios of its pairs. If it names a change, its ratio is over the later pairs."""
    judgement = replace(judgement, ratios=() if logs is None else tuple(np.exp(logs).tolist()))
    if judgement.verdict not in {SLOWER, FASTER} or not (later := after_verdict(cases, count)):
        return judgement
    ratio = launch_interval(np.exp(np.mean([case.log_ratios(later) for case in cases], axis=0)))
    return replace(judgement, ratio=ratio, at_verdict=judgement.ratio)


def _exposed(cases: Sequence[PairedCase], count: int, levels: Levels) -> list[ExposedChange | None]:
    """Return the change of exposed communication in the first `count` pairs; None for a case with fewer than two pairs.

    The mean of each launch counts. All cases are tested together, at the level of the look.
    """
    pairs = [[n for n in case.pairs_until(count) if n in case.a.exposed and n in case.b.exposed] for case in cases]
    both = [
        [{number: side.exposed[number] for number in numbers} for side in (case.a, case.b)]
        for case, numbers in zip(cases, pairs, strict=True)
    ]
    tested = verdicts.differences([means(b) - means(a) for a, b in both], error_rate=levels.change)
    return [
        None if result is None else exposed_change(a, b, result, 0.0 if len(a) >= FEWEST_PAIRS else inf)
        for (a, b), result in zip(both, tested, strict=True)
    ]
