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
from bench.model.conclusions import NO_INTERVAL, Interval
from bench.model.errors import ConfigError
from bench.model.records import Case, Samples
from bench.stats import intervals, verdicts
from bench.stats.intervals import Floats
from bench.stats.series import second_mode
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
        return [*(one.verdict for one in self.judgements.values()), *([self.whole.verdict] if self.whole else [])]


def look(cases: Sequence[PairedCase], count: int, min_change: float, first: FirstLook) -> Look:
    """The judgements from the first `count` pairs, of the cases that have two pairs or more.

    first: is filled at the first look; later looks use what it holds.
    """
    cases = [_until(case, count) for case in cases]
    ratios = {case.name: _log_ratios(case, first) for case in cases if len(case.pairs) >= 2}
    if not ratios:
        return Look({}, None, {}, None)
    estimates = verdicts.paired(list(ratios.values()))
    index = _index(cases, ratios, estimates, first)
    rate = (ERROR_RATE if index is None else ERROR_RATE_OF_EACH) * SHARE_OF_A_LOOK
    judged = dict(zip(ratios, verdicts.judge(estimates, min_change, rate), strict=True))
    whole = None if index is None else verdicts.judge(verdicts.paired([index]), min_change, rate)[0]
    return Look(
        {name: _enough(one, len(ratios[name])) for name, one in judged.items()},
        None if whole is None or index is None else _enough(whole, len(index)),
        ratios,
        index,
    )


def _enough(judged: Judgement, pairs: int) -> Judgement:
    return judged if pairs >= LOOKS[0] else verdicts.undecided(judged, f"fewer than {LOOKS[0]} pairs")


def _log_ratios(case: PairedCase, first: FirstLook) -> Floats:
    if case.name not in first.two_modes:
        first.two_modes[case.name] = any(_has_two_modes(side) for side in (case.a, case.b))
    level = _geometric_mean if first.two_modes[case.name] else _median
    return np.array([np.log(level(case.b[pair]) / level(case.a[pair])) for pair in case.pairs])


def _has_two_modes(launches: Launches) -> bool:
    return 2 * sum(second_mode(times) is not None for times in launches.values()) >= len(launches)


def _median(times: Floats) -> float:
    return float(np.median(times))


def _geometric_mean(times: Floats) -> float:
    return float(np.exp(np.mean(np.log(times))))


def _index(
    cases: Sequence[PairedCase], ratios: Mapping[str, Floats], estimates: verdicts.Estimates, first: FirstLook
) -> Floats | None:
    """The index of each pair that has all cases; None with a single case, or with less than two such pairs."""
    if len(ratios) < 2:
        return None
    if not first.weights:
        first.weights = dict(zip(ratios, verdicts.weights(estimates).tolist(), strict=True))
    known = [case for case in cases if case.name in first.weights and case.name in ratios]
    pairs = set.intersection(*(set(case.pairs) for case in known)) if known else set()
    if len(pairs) < 2:
        return None
    total = sum(first.weights[case.name] for case in known)
    rows = [
        first.weights[case.name] / total * ratios[case.name][[case.pairs.index(pair) for pair in sorted(pairs)]]
        for case in known
    ]
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
    found = []
    for key, cases in sides[0].items():
        partners = sides[1].get(key, [])
        if partners and (len(partners) != len(cases) or (len(cases) > 1 and SIZE not in differing)):
            raise ConfigError(f"the sides differ in {', '.join(differing)}: it is not clear which cases form pairs")
        found += [
            PairedCase(_both(one.name, other.name), one.launches, other.launches)
            for one, other in zip(cases, partners, strict=False)
        ]
    if not found:
        raise ConfigError(f"no case of side A has a partner on side B; they differ in {', '.join(differing)}")
    alone = [
        f"only on side {side}: {case.name}"
        for side, mine, other in (("A", sides[0], sides[1]), ("B", sides[1], sides[0]))
        for key, cases in mine.items()
        if key not in other
        for case in cases
    ]
    return found, alone


def _both(a: str, b: str) -> str:
    """Two names as one, such as `all_reduce · gloo · 2 ranks · 64 KiB → 80 KiB`."""
    words = a.split(" · "), b.split(" · ")
    if len(words[0]) != len(words[1]):
        return f"{a} → {b}"
    return " · ".join(one if one == other else f"{one} → {other}" for one, other in zip(*words, strict=True))


def _by_key(side: Sequence[TimedCase], names: Sequence[str]) -> dict[tuple[str, ...], list[TimedCase]]:
    """The cases by the values of these fields, in ascending order of size."""
    found: dict[tuple[str, ...], list[TimedCase]] = {}
    for case in sorted(side, key=lambda case: int(case.fields.get(SIZE, "0"))):
        found.setdefault(tuple(case.fields.get(name, "") for name in names), []).append(case)
    return found


def of_collectives(facts: Sequence[Samples], cases: Sequence[Case], name: Callable[[Case], str]) -> list[TimedCase]:
    """The cases of a side, measured or not yet. name: of a case, for people."""
    found: dict[Case, dict[int, Floats]] = {case: {} for case in cases}
    for one in facts:
        if one.failure is None and one.timed is not None:
            found[one.case][one.launch] = one.timed.slowest_s
    return [
        TimedCase({key: str(value) for key, value in asdict(case).items()}, name(case), launches)
        for case, launches in found.items()
    ]


# ── when to end ──────────────────────────────────────────────────────────────────────────────────
def why_end(found: Look, pairs: int, decided_at: int | None) -> str | None:
    """Why to end at this look; None to go on. decided_at: number of pairs at which the whole was decided first."""
    cases = [one.verdict for one in found.judgements.values()]
    changed = {SLOWER, FASTER}
    if changed & set(cases):
        return f"decided after {pairs} pairs"
    if found.whole is not None and found.whole.verdict in changed:
        if decided_at is not None and pairs >= TO_NAME_CASES * decided_at:
            return f"the whole was decided after {decided_at} pairs, and no case by {pairs}"
        return None
    if cases and set(found.verdicts) == {SAME}:
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
    changes = [_change(case, shown, first) for case in cases if case.name in shown.judgements]
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


def _until(case: PairedCase, count: int) -> PairedCase:
    kept = case.pairs[:count]
    return PairedCase(case.name, {pair: case.a[pair] for pair in kept}, {pair: case.b[pair] for pair in kept})


def _change(case: PairedCase, shown: Look, first: FirstLook) -> PairedChange:
    two = first.two_modes[case.name]
    level = _geometric_mean if two else _median
    ratios = shown.ratios[case.name]
    used = case.pairs[: len(ratios)]
    a, b = (np.array([level(side[pair]) for pair in used]) for side in (case.a, case.b))
    return PairedChange(
        name=case.name,
        before=_level(a),
        after=_level(b),
        judgement=shown.judgements[case.name],
        ratios=tuple(np.exp(ratios).tolist()),
        note=TWO_MODES if two else "",
        where=_where(case, used),
    )


def _level(times: Floats) -> Interval:
    if len(times) < 2:
        return Interval(float(times[0]), float(times[0]), float(times[0]), NO_INTERVAL)
    return intervals.launch_interval(times)


def _where(case: PairedCase, pairs: Sequence[int]) -> str:
    """What happened to the fastest tenth, the median and the slowest tenth of the iterations, over the pairs."""
    moved = [np.log(quantiles_of(case.b[pair])) - np.log(quantiles_of(case.a[pair])) for pair in pairs]
    return moved_text(np.exp(np.mean(moved, axis=0)))
