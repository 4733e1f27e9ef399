"""Compare two sides that were measured in pairs of launches, again and again while pairs are added.

In: for each side the times of each case in each launch. Out: a `Comparison`. A pair is two launches that followed each
other, one of each side, so that whatever differs from occasion to occasion cancels out of their ratio. The pair is the
unit.

Each look at the pairs is a chance to be wrong, so each gets a part of the error rate: Pocock's boundary (Biometrika 64,
1977), the same nominal level at each of LOOKS. It was chosen by simulation (docs/method.md, "Two sides at once"): a
sequence that is valid at any time has intervals 1.2 to 1.9 times as wide at 8 to 96 pairs. Prints nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import compress
from pathlib import Path

import numpy as np

from bench.analyze import training
from bench.analyze.compare import TWO_MODES, Label, absences, exposed_of, joined, moved_text
from bench.analyze.sessions import differences, facts_of
from bench.analyze.summaries import quantiles_of
from bench.catalog.operations import OPERATIONS
from bench.catalog.strategies import strategy_of
from bench.model.comparisons import Change, Comparison, ExposedChange, Judgement, Unpaired
from bench.model.errors import ConfigError
from bench.model.records import OPTIONS, Case, Plan, Run, Samples
from bench.stats import verdicts
from bench.stats.intervals import Floats, launch_interval
from bench.stats.series import over_launches, second_mode
from bench.stats.verdicts import ERROR_RATE, ERROR_RATE_OF_EACH, FASTER, INCONCLUSIVE, SAME, SLOWER

# Numbers of pairs at which there is a verdict.
LOOKS = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384)
# Nominal error rate of one look, as a share of that of all looks together.
SHARE_OF_A_LOOK = 0.1
# After the whole is decided, so many times as many pairs may be added to name the cases that changed.
TO_NAME_CASES = 2

SIZE = "size_bytes"
# Field of a case → the property of the operations that have it; fields that are not listed have all.
OF = {SIZE: "sized", "dtype": "typed", **{option.name: option.of for option in OPTIONS if option.of}}

# Launch → the times of its iterations, in seconds.
Launches = Mapping[int, Floats]


@dataclass(frozen=True, slots=True)
class TimedCase:
    """One case on one side. name: for people. exposed: of training steps, exposed communication in each round."""

    case: Case
    name: str
    launches: Launches = field(default_factory=dict)
    exposed: Launches = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PairedCase:
    """One case on both sides. name: for people."""

    name: str
    a: TimedCase
    b: TimedCase

    @property
    def launches(self) -> tuple[Launches, Launches]:
        """The times on both sides."""
        return self.a.launches, self.b.launches

    @property
    def pairs(self) -> list[int]:
        """Launches that both sides have."""
        return sorted(self.a.launches.keys() & self.b.launches.keys())


@dataclass(slots=True)
class FirstLook:
    """What is fixed at the first look: which cases have two modes, and the weights of the cases in the index."""

    two_modes: dict[str, bool] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)

    def has_two_modes(self, case: PairedCase, count: int) -> bool:
        """Whether half of the launches of a side have two modes, among the first `count` pairs when first asked."""
        if case.name not in self.two_modes:
            pairs = case.pairs[:count]
            modes = ([second_mode(side[pair]) is not None for pair in pairs] for side in case.launches)
            self.two_modes[case.name] = any(2 * sum(of_side) >= len(pairs) for of_side in modes)
        return self.two_modes[case.name]


@dataclass(frozen=True, slots=True)
class Look:
    """The judgements at one look. ratios: log ratios of the pairs, by case; index: of the whole, None with one case."""

    judgements: dict[str, Judgement]
    whole: Judgement | None
    ratios: dict[str, Floats]
    index: Floats | None

    @property
    def verdicts(self) -> list[str]:
        """Of all cases and of the whole."""
        return [
            *(judgement.verdict for judgement in self.judgements.values()),
            *([self.whole.verdict] if self.whole else []),
        ]


def look(cases: Sequence[PairedCase], count: int, min_change: float, first: FirstLook) -> Look:
    """The judgements from the first `count` pairs, of the cases that have two pairs or more.

    first: is filled at the first look; later looks use what it holds.
    """
    ratios: dict[str, Floats] = {}
    pairs = {case.name: case.pairs[:count] for case in cases if min(count, len(case.pairs)) >= 2}
    for case in cases:
        if case.name in pairs:
            a, b = (_levels(side, pairs[case.name], first.has_two_modes(case, count)) for side in case.launches)
            ratios[case.name] = np.array([np.log(after / before) for before, after in zip(a, b, strict=True)])
    if not ratios:
        return Look({}, None, {}, None)
    estimates = verdicts.paired(list(ratios.values()))
    index = _index(pairs, ratios, estimates, first)
    rate = (ERROR_RATE if index is None else ERROR_RATE_OF_EACH) * SHARE_OF_A_LOOK
    judged = dict(zip(ratios, verdicts.judge(estimates, min_change, rate), strict=True))
    whole = None if index is None else verdicts.judge(verdicts.paired([index]), min_change, rate)[0]
    few = f"fewer than {LOOKS[0]} pairs"
    judgements = {
        name: judgement if len(ratios[name]) >= LOOKS[0] else verdicts.undecided(judgement, few)
        for name, judgement in judged.items()
    }
    if whole is not None and index is not None and len(index) < LOOKS[0]:
        whole = verdicts.undecided(whole, few)
    return Look(judgements, whole, ratios, index)


def _levels(side: Launches, pairs: Sequence[int], two_modes: bool) -> Floats:
    """The time of each launch: the median of its iterations, or the geometric mean where there are two modes."""
    level = over_launches if two_modes else np.median
    return np.array([level(side[pair]) for pair in pairs], dtype=float)


def _index(
    pairs: Mapping[str, Sequence[int]], ratios: Mapping[str, Floats], estimates: verdicts.Estimates, first: FirstLook
) -> Floats | None:
    """The index of each pair that has all cases; None with a single case, or with less than two such pairs."""
    if len(ratios) < 2:
        return None
    if not first.weights:
        first.weights = dict(zip(ratios, verdicts.weights(estimates).tolist(), strict=True))
    known = [name for name in ratios if name in first.weights]
    common = sorted(set.intersection(*(set(pairs[name]) for name in known))) if known else []
    if len(common) < 2:
        return None
    total = sum(first.weights[name] for name in known)
    rows = [first.weights[name] / total * ratios[name][[pairs[name].index(pair) for pair in common]] for name in known]
    return np.asarray(np.sum(rows, axis=0))


# ── which cases form a pair ──────────────────────────────────────────────────────────────────────
def timed_cases(measured: Sequence[Samples], plan: Plan, label: Label) -> list[TimedCase]:
    """The cases of a side, measured or not yet. label: of a case, for people.

    Second copies of a strategy are left out: they show the noise of a run.
    """
    run = Run(Path(), {}, plan, [], list(measured))
    launches: dict[Case, dict[int, Floats]] = {
        case: {} for case in plan.cases if not (training.trains(case) and strategy_of(case.strategy).again)
    }
    for samples in training.samples_that_count(run):
        if samples.case in launches and samples.failure is None and samples.timed is not None:
            launches[samples.case][samples.launch] = samples.timed.slowest_s
    exposed = exposed_of(run)
    return [
        TimedCase(case, label(case), times, exposed[case][0] if case in exposed else {})
        for case, times in launches.items()
    ]


def matched(
    a: Sequence[TimedCase], b: Sequence[TimedCase]
) -> tuple[list[PairedCase], list[TimedCase], list[TimedCase]]:
    """The cases of both sides, and those of each side without a partner.

    Partners have equal fields, but for fields in which the sides as a whole differ.

    A field differs if no value of it is on both sides, as the backend does in gloo against MPI, among the operations
    that have the field. If all sizes differ, they pair in ascending order. Raises ConfigError if no case has a partner,
    or if one has several.
    """
    names = [item.name for item in fields(Case)]
    differing = []
    for name in names:
        a_values, b_values = ({getattr(case.case, name) for case in side if _has(case.case, name)} for side in (a, b))
        if (a_values or b_values) and not a_values & b_values:
            differing.append(name)
    same = [name for name in names if name not in differing]
    a_keys, b_keys = (_by_key(side, same) for side in (a, b))
    paired = []
    for key, cases in a_keys.items():
        partners = b_keys.get(key, [])
        if partners and (len(partners) != len(cases) or (len(cases) > 1 and SIZE not in differing)):
            raise ConfigError(f"the sides differ in {', '.join(differing)}: it is not clear which cases form pairs")
        paired += [PairedCase(joined(x.name, y.name), x, y) for x, y in zip(cases, partners, strict=False)]
    if not paired:
        raise ConfigError(f"no case of side A has a partner on side B; they differ in {', '.join(differing)}")
    only_a, only_b = (
        [case for key, cases in own.items() if key not in other for case in cases]
        for own, other in ((a_keys, b_keys), (b_keys, a_keys))
    )
    return paired, only_a, only_b


def _has(case: Case, name: str) -> bool:
    """Whether the case's operation has this field."""
    return name not in OF or bool(getattr(OPERATIONS[case.op], OF[name]))


def _by_key(side: Sequence[TimedCase], names: Sequence[str]) -> dict[tuple[object, ...], list[TimedCase]]:
    """The cases by the values of these fields, in ascending order of size."""
    by_key: dict[tuple[object, ...], list[TimedCase]] = {}
    for case in sorted(side, key=lambda case: case.case.size_bytes):
        by_key.setdefault(tuple(getattr(case.case, name) for name in names), []).append(case)
    return by_key


# ── when to end ──────────────────────────────────────────────────────────────────────────────────
def why_end(latest: Look, pairs: int, decided_at: int | None) -> str | None:
    """Why to end at this look; None to go on. decided_at: number of pairs at which the whole was decided first."""
    cases = [judgement.verdict for judgement in latest.judgements.values()]
    changed = {SLOWER, FASTER}
    if changed & set(cases):
        return f"decided after {pairs} pairs"
    if latest.whole is not None and latest.whole.verdict in changed:
        if decided_at is not None and pairs >= TO_NAME_CASES * decided_at:
            return f"the whole was decided after {decided_at} pairs, and no case by {pairs}"
        return None
    if cases and set(latest.verdicts) == {SAME}:
        return f"all are the same after {pairs} pairs"
    return f"{pairs} pairs are the most" if pairs >= LOOKS[-1] else None


# ── the comparison at the end ────────────────────────────────────────────────────────────────────
def compare_sides(a: Run, b: Run, names: tuple[str, str], label: Label, min_change: float, ended: str) -> Comparison:
    """The comparison of all pairs there are. names: of the sides. ended: why measuring ended."""
    cases, only_a, only_b = matched(*(timed_cases(run.samples, run.plan, label) for run in (a, b)))
    first, shown = FirstLook(), Look({}, None, {}, None)
    most = max((len(case.pairs) for case in cases), default=0)
    # Where a budget ended between two looks, the last look takes the place of the next one.
    for count in sorted({*(number for number in LOOKS if number <= most), *([most] if most >= LOOKS[0] else [])}):
        shown = look(cases, count, min_change, first)
    if not shown.judgements:
        shown = look(cases, most, min_change, first)
    judged = [case for case in cases if case.name in shown.judgements]
    changes = []
    for case, exposed in zip(judged, _exposed(judged, most), strict=True):
        ratios, two_modes = shown.ratios[case.name], first.two_modes[case.name]
        pairs = case.pairs[: len(ratios)]
        before, after = (launch_interval(_levels(side, pairs, two_modes)) for side in case.launches)
        # What happened to the fastest tenth, the median and the slowest tenth of the iterations, over the pairs.
        quantiles = [[quantiles_of(side[pair]) for pair in pairs] for side in case.launches]
        moved = np.exp(np.mean(np.log(quantiles[1]) - np.log(quantiles[0]), axis=0))
        changes.append(
            Change(
                name=case.name,
                case=case.a.case,
                before=before,
                after=after,
                judgement=shown.judgements[case.name],
                note=TWO_MODES if two_modes else "",
                where=moved_text(moved),
                ratios=tuple(np.exp(ratios).tolist()),
                exposed=exposed,
            )
        )
    not_a, not_b = absences(a), absences(b)
    return Comparison(
        before=names[0],
        after=names[1],
        verdict=verdicts.of_run(shown.verdicts) if shown.verdicts else INCONCLUSIVE,
        min_change=min_change,
        changes=tuple(changes),
        differences=differences(facts_of(a), facts_of(b)),
        only_before=tuple(Unpaired(case.name, case.case, not_b(case.case)) for case in only_a),
        only_after=(
            *(Unpaired(case.name, case.b.case, not_a(case.a.case)) for case in cases if _failed(case.a, case.b)),
            *(Unpaired(case.name, case.case, not_a(case.case)) for case in only_b),
        ),
        broken=tuple(Unpaired(case.name, case.a.case, not_b(case.b.case)) for case in cases if _failed(case.b, case.a)),
        warnings=() if changes else ("fewer than two pairs were measured: a larger --budget is needed",),
        whole=shown.whole,
        pairs=max((len(ratios) for ratios in shown.ratios.values()), default=0),
        ratios=() if shown.index is None else tuple(np.exp(shown.index).tolist()),
        ended=ended,
        rule=(
            f"looks at {', '.join(map(str, LOOKS[:6]))}, … pairs, each at the same level (Pocock), so that all looks "
            f"together are wrong in {ERROR_RATE:.0%}"
        ),
    )


def _failed(side: TimedCase, other: TimedCase) -> bool:
    """Whether a case has times on the other side only."""
    return bool(other.launches) and not side.launches


def _exposed(cases: Sequence[PairedCase], count: int) -> list[ExposedChange | None]:
    """How exposed communication differs within the first `count` pairs; None for a case with less than two.

    The median of each launch counts. All cases are tested together, at the level of one look.
    """
    both = [[{n: side.exposed[n] for n in case.pairs[:count] if n in side.exposed} for side in (case.a, case.b)]
            for case in cases]  # fmt: skip
    pairs = [[number for number in a if number in b] for a, b in both]
    several = [len(numbers) >= 2 for numbers in pairs]
    differences_s = [
        np.array([np.median(b[number]) - np.median(a[number]) for number in numbers])
        for (a, b), numbers in compress(zip(both, pairs, strict=True), several)
    ]
    tested = iter(verdicts.differences(differences_s, error_rate=ERROR_RATE * SHARE_OF_A_LOOK))
    changes: list[ExposedChange | None] = []
    for (a, b), numbers, enough in zip(both, pairs, several, strict=True):
        if not enough:
            changes.append(None)
            continue
        difference, significant = next(tested)
        before, after = (training.estimate({number: side[number] for number in numbers}) for side in (a, b))
        changes.append(ExposedChange(before, after, difference, significant and len(numbers) >= LOOKS[0]))
    return changes
