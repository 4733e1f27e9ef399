"""Compare two sides that were measured in pairs of launches, repeatedly while pairs are added.

In: for each side the times of each case in each launch. Out: a `Comparison`. A pair is two launches that followed each
other, one of each side, so that differences between runs cancel out of their ratio. The pair is the unit.

Each look at the pairs is a chance of an error, so each look gets a part of the error rate (`stats.spending`): the more
of the time budget has passed, the more of the error rate may be spent. The budget is fixed before the first pair.
Prints nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

import numpy as np
from scipy.special import ndtri

from collbench.analyze.comparability import differing_facts, session_changes
from collbench.analyze.compare import FIELDS, SIZE, absences, disturbed, exposed_change, key_without
from collbench.analyze.parts import exposed_of, samples_that_count
from collbench.analyze.round_series import means
from collbench.analyze.sessions import is_virtual
from collbench.analyze.summaries import headlines
from collbench.catalog.collectives import ALL_OPTIONS, OPERATIONS
from collbench.model.comparisons import (
    FASTER,
    INCONCLUSIVE,
    SAME,
    SLOWER,
    Change,
    ChangeVerdict,
    Comparison,
    ExposedChange,
    Judgement,
    Unpaired,
)
from collbench.model.conclusions import Interval
from collbench.model.errors import ConfigError
from collbench.model.notices import Kind, Notice
from collbench.model.projection import grouped
from collbench.model.records import OPTIONS, Case, Ending, EndReason, Plan, Run, Samples
from collbench.stats import spending, verdicts
from collbench.stats.intervals import Floats, launch_interval, student_quantile
from collbench.stats.verdicts import ERROR_RATE, SAME_RATE, Levels

# Numbers of pairs at which there is a look with a verdict; there is one more look when the budget ends.
LOOKS = (6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384)
FEWEST_PAIRS = LOOKS[0]

# Field of a case → the property of the operations that have this field. All have the other fields, except options.
OF = {SIZE: "sized", "dtype": "typed"}

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


def look(cases: Sequence[PairedCase], looks: Looks, min_change: float) -> Look:
    """Judge the cases that have two pairs or more, at the last of these looks."""
    count = looks[-1][0]
    pairs = {case.key: case.pairs[:count] for case in cases if min(count, len(case.pairs)) >= 2}
    ratios = {case.key: case.log_ratios(pairs[case.key]) for case in cases if case.key in pairs}
    if not ratios:
        return Look({}, None, {}, None, Levels())
    index = _index(pairs, ratios)
    levels = levels_at(looks)
    levels = levels if index is None else levels.shared
    judged = verdicts.judge(verdicts.paired(list(ratios.values())), min_change, levels)
    judgements = {name: _enough(judgement, len(ratios[name])) for name, judgement in zip(ratios, judged, strict=True)}
    overall = None
    if index is not None:
        overall = _enough(verdicts.judge(verdicts.paired([index]), min_change, levels)[0], len(index))
    return Look(judgements, overall, ratios, index, levels)


def after_verdict(cases: Sequence[PairedCase], count: int) -> tuple[int, Interval | None]:
    """Return the number of pairs after the first `count`, and the ratio of the whole over them, with a 95 % interval.

    A verdict is reached when a change looks large; the pairs measured after the verdict have no such selection bias.
    """
    pairs = {case.key: case.pairs[count:] for case in cases}
    common = sorted(set.intersection(*map(set, pairs.values()))) if pairs else []
    if len(common) < 2:
        return len(common), None
    return len(common), launch_interval(np.exp(np.mean([case.log_ratios(common) for case in cases], axis=0)))


def levels_at(looks: Looks) -> Levels:
    """Return the nominal levels at the last look, from the error rates allowed by then and already spent before."""
    counts, shares = zip(*looks, strict=True)
    change, same = (
        spending.levels(shares, counts, rate, two_sided)[-1]
        for rate, two_sided in ((ERROR_RATE, True), (SAME_RATE, False))
    )
    return Levels(change, same)


def scatter_for_same(count: int, cases: int, min_change: float) -> float:
    """Return the largest standard deviation of a pair's log ratio with which `count` pairs show SAME in 4 of 5 tries.

    The sides are equal, and all cases must show SAME. count: at least FEWEST_PAIRS.
    """
    looks = [*(pairs for pairs in LOOKS if pairs < count), count]
    level = levels_at([(pairs, pairs / count) for pairs in looks]).same
    allowed = student_quantile(count - 1, 2 * level) + float(ndtri((1 + 0.8 ** (1 / cases)) / 2))
    return float(np.log1p(min_change) * np.sqrt(count) / allowed)


TOO_FEW_PAIRS = Kind("too-few-pairs", "fewer than {fewest} pairs")


def _enough(judgement: Judgement, pairs: int) -> Judgement:
    """Return the judgement, or an undecided one if there are too few pairs."""
    if pairs >= FEWEST_PAIRS:
        return judgement
    return verdicts.undecided(judgement, TOO_FEW_PAIRS(fewest=FEWEST_PAIRS))


def _means(side: TimedCase, pairs: Sequence[int]) -> Floats:
    """Return the mean time of each launch."""
    return np.array([side.launches[pair].mean() for pair in pairs])


def _index(pairs: Mapping[str, Sequence[int]], ratios: Mapping[str, Floats]) -> Floats | None:
    """Return the mean of all cases in each pair that has all cases; None for one case, or fewer than two such pairs.

    All cases have equal weight: weights chosen on the pairs that are tested raise the false-alarm rate.
    """
    common = sorted(set.intersection(*map(set, pairs.values())))
    if len(ratios) < 2 or len(common) < 2:
        return None
    return np.asarray(np.mean([ratios[name][np.searchsorted(pairs[name], common)] for name in ratios], axis=0))


# ── which cases form a pair ──────────────────────────────────────────────────────────────────────
def timed_cases(measured: Sequence[Samples], plan: Plan) -> list[TimedCase]:
    """Return the cases of a side, measured or not yet.

    Controls are left out: they show the noise of a run.
    """
    run = Run(Path(), {}, plan, [], list(measured))
    launches: dict[Case, dict[int, Floats]] = {case: {} for case in plan.cases if not case.own.is_control}
    for samples in samples_that_count(run):
        if samples.case in launches and samples.failure is None and samples.timed is not None:
            launches[samples.case][samples.launch] = samples.timed.slowest_s
    exposed = exposed_of(run)
    return [TimedCase(case, times, exposed[case][0] if case in exposed else {}) for case, times in launches.items()]


def matched(
    a: Sequence[TimedCase], b: Sequence[TimedCase]
) -> tuple[list[PairedCase], list[TimedCase], list[TimedCase]]:
    """Pair the cases of both sides; return the pairs, and the cases of each side without a partner.

    Partners have equal fields, except for fields in which the sides as a whole differ.

    A field differs if no value of it is on both sides, such as the backend in gloo against MPI, among the operations
    that have the field. If all sizes differ, they pair in ascending order. Raises ConfigError if no case has a partner,
    or if a case has several.
    """
    differing = []
    for name in FIELDS:
        a_values, b_values = ({_asked(case).value(name) for case in side if _has(case.case, name)} for side in (a, b))
        if (a_values or b_values) and not a_values & b_values:
            differing.append(name)
    a_keys, b_keys = (
        grouped(sorted(side, key=lambda case: case.case.size_bytes), lambda case: key_without(_asked(case), differing))
        for side in (a, b)
    )
    paired = []
    for key, cases in a_keys.items():
        partners = b_keys.get(key, [])
        if partners and (len(partners) != len(cases) or (len(cases) > 1 and SIZE not in differing)):
            raise ConfigError(f"the sides differ in {', '.join(differing)}: it is not clear which cases form pairs")
        paired += [PairedCase(x, y) for x, y in zip(cases, partners, strict=False)]
    if not paired:
        raise ConfigError(f"no case of side A has a partner on side B; they differ in {', '.join(differing)}")
    only_a, only_b = (
        [case for key, cases in own.items() if key not in other for case in cases]
        for own, other in ((a_keys, b_keys), (b_keys, a_keys))
    )
    return paired, only_a, only_b


def _asked(case: TimedCase) -> Case:
    """Return the case with the size as requested: numbers of ranks round it down differently."""
    return replace(case.case, size_bytes=case.case.asked)


def _has(case: Case, name: str) -> bool:
    """Return whether the case's operation has this field."""
    operation = OPERATIONS[case.op]
    if option := next((option for option in ALL_OPTIONS if option.name == name), None):
        return operation.has(option) if option in OPTIONS else option in operation.own_options
    return name not in OF or bool(getattr(operation, OF[name]))


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

    Without a look, for example after an early interrupt, all pairs are shown, undecided.

    names: names of the sides. ended: why measuring ended. looks: the looks taken. each: whether all must be decided.
    """
    cases, only_a, only_b = matched(*(timed_cases(run.samples, run.plan) for run in (a, b)))
    most = max((len(case.pairs) for case in cases), default=0)
    shown = look(cases, looks or [(max(1, most), 1.0)], min_change)
    judged = [case for case in cases if case.key in shown.judgements]
    count = looks[-1][0] if looks else most
    changes = []
    for case, exposed in zip(judged, _exposed(judged, count, shown.levels), strict=True):
        ratios = shown.ratios[case.key]
        pairs = case.pairs[: len(ratios)]
        before, after = (launch_interval(_means(side, pairs)) for side in (case.a, case.b))
        judgement = replace(shown.judgements[case.key], ratios=_ratios(ratios))
        changes.append(Change(case.a.case, case.b.case, before, after, judgement, exposed=exposed))
    not_a, not_b = absences(a), absences(b)
    failed = [{s.case for s in samples_that_count(run) if s.failure is not None} for run in (a, b)]
    broken = [case for case in cases if case.b.case in failed[1] and case.a.case not in failed[0]]
    fresh_pairs, fresh = after_verdict(judged, count) if shown.names_a_change else (0, None)
    return Comparison(
        before=names[0],
        after=names[1],
        runs_before=(a.name,),
        runs_after=(b.name,),
        verdict=verdicts.gravest(shown.verdicts, shown.whole, each) if shown.verdicts else INCONCLUSIVE,
        min_change=min_change,
        changes=tuple(changes),
        differences=differing_facts(a, b),
        only_before=tuple(Unpaired(case.case, case.case, *not_b(case.case)) for case in only_a),
        only_after=(
            *(Unpaired(case.b.case, case.a.case, *not_a(case.a.case)) for case in cases if _failed(case.a, case.b)),
            *(Unpaired(case.case, case.case, *not_a(case.case)) for case in only_b),
        ),
        broken=tuple(Unpaired(case.a.case, case.b.case, *not_b(case.b.case)) for case in broken),
        notices=(
            *_notices([case for pair in judged for case in (pair.a.case, pair.b.case)], shown),
            *_left_out([case for case in cases if judged and case.key not in shown.judgements]),
            *dict.fromkeys([*session_changes(a), *session_changes(b)]),
        ),
        whole=shown.whole and replace(shown.whole, ratios=() if shown.index is None else _ratios(shown.index)),
        remarks=tuple(disturbed((a, headlines(a)), (b, headlines(b)))),
        virtual=is_virtual(a),
        pairs=max((len(ratios) for ratios in shown.ratios.values()), default=0),
        fresh_pairs=fresh_pairs,
        fresh=fresh,
        ended=ended,
        rule=RULE(
            looks=tuple(LOOKS[:4]),
            change_rate=ERROR_RATE,
            same_rate=SAME_RATE,
            change=shown.levels.change,
            same=shown.levels.same,
        ),
    )


GLOO_STALLS = Kind(
    "gloo-stalls",
    "{undecided:count case} undecided on gloo, whose event loop stalls on shared cores",
    "unless the stalls are the question, --set scheduling=batch on both sides lets launches scatter less",
)


def _notices(cases: Sequence[Case], shown: Look) -> Iterable[Notice]:
    """Yield the objections to the verdicts on these cases, of both sides."""
    undecided = sum(judgement.verdict == INCONCLUSIVE for judgement in shown.judgements.values())
    if undecided and all(case.backend == "gloo" and case.scheduling == "normal" for case in cases):
        yield GLOO_STALLS(undecided=undecided)


NO_VERDICT = Kind(
    "no-verdict", "no verdict without two pairs that count: {names:lines}", "a longer --budget has time for more"
)


def _left_out(cases: Sequence[PairedCase]) -> Iterable[Notice]:
    """Yield a notice on measured cases that have no verdict."""
    few = [case for case in cases if not _failed(case.a, case.b) and not _failed(case.b, case.a)]
    if few:
        keys = [case.key for case in few]
        yield NO_VERDICT(keys, names=tuple(keys))


def _failed(side: TimedCase, other: TimedCase) -> bool:
    """Return whether a case has times on the other side only."""
    return bool(other.launches) and not side.launches


def _ratios(logs: Floats) -> tuple[float, ...]:
    return tuple(np.exp(logs).tolist())


def _exposed(cases: Sequence[PairedCase], count: int, levels: Levels) -> list[ExposedChange | None]:
    """Return the change of exposed communication in the first `count` pairs; None for a case with fewer than two pairs.

    The mean of each launch counts. All cases are tested together, at the level of the look.
    """
    pairs = [[n for n in case.pairs[:count] if n in case.a.exposed and n in case.b.exposed] for case in cases]
    both = [
        [{number: side.exposed[number] for number in numbers} for side in (case.a, case.b)]
        for case, numbers in zip(cases, pairs, strict=True)
    ]
    tested = verdicts.differences([means(b) - means(a) for a, b in both], error_rate=levels.change)
    return [
        None if result is None else exposed_change(a, b, result, 0.0 if len(a) >= FEWEST_PAIRS else inf)
        for (a, b), result in zip(both, tested, strict=True)
    ]
