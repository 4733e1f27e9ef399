"""Compare two sides that were measured in pairs of launches, again and again while pairs are added.

In: for each side the times of each case in each launch. Out: a `PairedComparison`. A pair is two launches that followed
each other, one of each side, so that whatever differs from occasion to occasion cancels out of their ratio. The pair is
the unit.

Each look at the pairs is a chance to be wrong, so each gets a part of the error rate: Pocock's boundary (Biometrika 64,
1977), the same nominal level at each of LOOKS. It was chosen by simulation (docs/method.md, "Two sides at once"): a
sequence that is valid at any time has intervals 1.2 to 1.9 times as wide at 8 to 96 pairs. Prints nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from bench.analyze.compare import TWO_MODES, moved_text
from bench.analyze.summaries import quantiles_of
from bench.model.comparisons import Judgement, PairedChange, PairedComparison
from bench.model.errors import ConfigError
from bench.model.records import Case, Samples
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

# Launch → the times of its iterations, in seconds.
Launches = Mapping[int, Floats]


@dataclass(frozen=True, slots=True)
class TimedCase:
    """One case on one side. fields: what identifies it, by name. name: for people."""

    fields: Mapping[str, str]
    name: str
    launches: Launches


@dataclass(frozen=True, slots=True)
class PairedCase:
    """One case on both sides. name: for people."""

    name: str
    a: Launches
    b: Launches

    @property
    def pairs(self) -> list[int]:
        """Launches that both sides have."""
        return sorted(self.a.keys() & self.b.keys())


@dataclass(slots=True)
class FirstLook:
    """What is fixed at the first look: which cases have two modes, and the weights of the cases in the index."""

    two_modes: dict[str, bool] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)

    def has_two_modes(self, case: PairedCase, count: int) -> bool:
        """Whether half of the launches of a side have two modes, among the first `count` pairs when first asked."""
        if case.name not in self.two_modes:
            pairs = case.pairs[:count]
            modes = ([second_mode(side[pair]) is not None for pair in pairs] for side in (case.a, case.b))
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
            a, b = (_levels(side, pairs[case.name], first.has_two_modes(case, count)) for side in (case.a, case.b))
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
def matched(a: Sequence[TimedCase], b: Sequence[TimedCase]) -> tuple[list[PairedCase], list[str]]:
    """The cases of both sides, and the names of those without a partner.

    Partners have equal fields, but for fields in which the sides as a whole differ.

    A field differs if no value of it is on both sides, as the backend does in gloo against MPI. If all sizes differ,
    they pair in ascending order. Raises ConfigError if no case has a partner, or if one has several.
    """
    names = sorted({name for case in (*a, *b) for name in case.fields})
    own = [{name: {case.fields.get(name, "") for case in side} for name in names} for side in (a, b)]
    same = [name for name in names if own[0][name] & own[1][name]]
    differing = [name for name in names if name not in same]
    sides = [_by_key(side, same) for side in (a, b)]
    paired = []
    for key, cases in sides[0].items():
        partners = sides[1].get(key, [])
        if partners and (len(partners) != len(cases) or (len(cases) > 1 and SIZE not in differing)):
            raise ConfigError(f"the sides differ in {', '.join(differing)}: it is not clear which cases form pairs")
        for case, partner in zip(cases, partners, strict=False):
            # Two names as one, such as `all_reduce · gloo · 2 ranks · 64 KiB → 80 KiB`.
            words = case.name.split(" · "), partner.name.split(" · ")
            name = f"{case.name} → {partner.name}"
            if len(words[0]) == len(words[1]):
                name = " · ".join(x if x == y else f"{x} → {y}" for x, y in zip(*words, strict=True))
            paired.append(PairedCase(name, case.launches, partner.launches))
    if not paired:
        raise ConfigError(f"no case of side A has a partner on side B; they differ in {', '.join(differing)}")
    alone = [
        f"only on side {side}: {case.name}"
        for side, mine, other in (("A", sides[0], sides[1]), ("B", sides[1], sides[0]))
        for key, cases in mine.items()
        if key not in other
        for case in cases
    ]
    return paired, alone


def _by_key(side: Sequence[TimedCase], names: Sequence[str]) -> dict[tuple[str, ...], list[TimedCase]]:
    """The cases by the values of these fields, in ascending order of size."""
    by_key: dict[tuple[str, ...], list[TimedCase]] = {}
    for case in sorted(side, key=lambda case: int(case.fields.get(SIZE, "0"))):
        by_key.setdefault(tuple(case.fields.get(name, "") for name in names), []).append(case)
    return by_key


def of_collectives(facts: Sequence[Samples], cases: Sequence[Case], name: Callable[[Case], str]) -> list[TimedCase]:
    """The cases of a side, measured or not yet. name: of a case, for people."""
    times: dict[Case, dict[int, Floats]] = {case: {} for case in cases}
    for samples in facts:
        if samples.failure is None and samples.timed is not None:
            times[samples.case][samples.launch] = samples.timed.slowest_s
    return [
        TimedCase({key: str(value) for key, value in asdict(case).items()}, name(case), launches)
        for case, launches in times.items()
    ]


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
def conclude(cases: Sequence[PairedCase], sides: tuple[str, str], min_change: float, ended: str) -> PairedComparison:
    """The comparison of all pairs there are. sides: how the two are called. ended: why measuring ended."""
    first, shown = FirstLook(), Look({}, None, {}, None)
    most = max((len(case.pairs) for case in cases), default=0)
    # Where a budget ended between two looks, the last look takes the place of the next one.
    for count in sorted({*(number for number in LOOKS if number <= most), *([most] if most >= LOOKS[0] else [])}):
        shown = look(cases, count, min_change, first)
    if not shown.judgements:
        shown = look(cases, most, min_change, first)
    changes = []
    for case in cases:
        if case.name not in shown.judgements:
            continue
        ratios, two_modes = shown.ratios[case.name], first.two_modes[case.name]
        pairs = case.pairs[: len(ratios)]
        before, after = (launch_interval(_levels(side, pairs, two_modes)) for side in (case.a, case.b))
        # What happened to the fastest tenth, the median and the slowest tenth of the iterations, over the pairs.
        moved = [np.log(quantiles_of(case.b[pair])) - np.log(quantiles_of(case.a[pair])) for pair in pairs]
        changes.append(
            PairedChange(
                name=case.name,
                before=before,
                after=after,
                judgement=shown.judgements[case.name],
                ratios=tuple(np.exp(ratios).tolist()),
                note=TWO_MODES if two_modes else "",
                where=moved_text(np.exp(np.mean(moved, axis=0))),
            )
        )
    return PairedComparison(
        before=sides[0],
        after=sides[1],
        verdict=verdicts.of_run(shown.verdicts) if shown.verdicts else INCONCLUSIVE,
        min_change=min_change,
        changes=tuple(changes),
        whole=shown.whole,
        ratios=() if shown.index is None else tuple(np.exp(shown.index).tolist()),
        pairs=max((len(ratios) for ratios in shown.ratios.values()), default=0),
        ended=ended,
        rule=(
            f"looks at {', '.join(map(str, LOOKS[:6]))}, … pairs, each at the same level (Pocock), so that all looks "
            f"together are wrong in {ERROR_RATE:.0%}"
        ),
        warnings=() if changes else ("fewer than two pairs were measured: a larger --budget is needed",),
        broken=tuple(case.name for case in cases if case.a and not case.b),
    )
