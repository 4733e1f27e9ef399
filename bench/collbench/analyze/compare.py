"""Compare two runs: give a verdict on each common case and on the whole, and list other differences between the runs.

In: two runs and their summaries. Out: a `Comparison`, with its notices; for cases that compute, also the change of
their exposed communication. `matching` matches the cases, `verdicts` decides. A measured case without a partner is
listed with the reason, never dropped silently. `pairs` builds its comparisons here, too. Prints nothing.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from collbench.analyze import joining
from collbench.analyze.against import disturbances, over_references
from collbench.analyze.between_run import FEWEST_LEDGER_RUNS, between_run_scatter
from collbench.analyze.comparability import differing_facts, machine_of
from collbench.analyze.matching import Axis, axis_of, matched, one_sided
from collbench.analyze.round_series import LAUNCHES_FOR_INTERVAL, Series, estimate, means
from collbench.analyze.sessions import is_virtual
from collbench.analyze.summaries import FOREIGN_CPU_LIMIT, headlines
from collbench.model.comparisons import (
    FASTER,
    INCONCLUSIVE,
    MIN_CHANGE,
    MOST_FURTHER_LAUNCHES,
    SLOWER,
    Absence,
    Change,
    Comparison,
    ExposedChange,
    Judgement,
    Unpaired,
)
from collbench.model.conclusions import Interval, IntervalKind, Summary
from collbench.model.errors import ConfigError, UnmeasurableError
from collbench.model.facts import Session
from collbench.model.notices import Kind, Notice, of_run
from collbench.model.records import Run, Samples
from collbench.stats import intervals, verdicts
from collbench.stats.intervals import Floats, launch_interval
from collbench.stats.verdicts import CHANGED, NEITHER, ONE_LAUNCH_ON_A_SIDE
from collbench.store.ledger import LedgerEntry

Pair = tuple[Summary, Summary]
# A run and the summaries of its cases.
Summarised = tuple[Run, Sequence[Summary]]


@dataclass(frozen=True, slots=True)
class Sets:
    """The runs of each side of a comparison. Pairs have one entry per side."""

    # Number of runs on each side, measured at different times.
    runs: tuple[int, int] = (1, 1)
    # Variance of the run means of a side, relative to its expected value if the between-run variance were equal to the
    # between-launch variance. The ratio is a mean over all cases, because a run moves many cases together, and is at
    # least 1.
    apart: float = 1.0
    # Launch means per case, with the between-run offset removed.
    means: tuple[Mapping[str, Floats], Mapping[str, Floats]] = ({}, {})
    # Mean of each run, per case.
    levels: tuple[Mapping[str, Floats], Mapping[str, Floats]] = ({}, {})

    @property
    def units(self) -> bool:
        """Return whether each side has enough runs for runs to be the unit of the test, in place of launches."""
        return min(self.runs) >= verdicts.FEWEST_LAUNCHES and all(
            len(levels) == runs for side, runs in zip(self.levels, self.runs, strict=True) for levels in side.values()
        )


ONE_EACH = Sets()
# Between-run standard deviation of the logarithm of a case's time, and its degrees of freedom; by the key of the case.
Scatter = tuple[float, float]
BetweenRuns = Mapping[str, Scatter]


def compare(
    before: Run,
    after: Run,
    old: Sequence[Summary],
    new: Sequence[Summary],
    min_change: float = MIN_CHANGE,
    noise_floor: float | None = None,
    across: str | None = None,
    between_runs: BetweenRuns | None = None,
    sets: Sets = ONE_EACH,
) -> Comparison:
    """Compare the cases that both runs measured. Raises UnmeasurableError if there are none, and none failed after.

    Raises UnmeasurableError also if only one of the runs is on virtual GPUs; ConfigError if `across` cannot be used.

    min_change: the smallest relative change that matters. noise_floor: the largest relative difference between two
    measurements of the same thing, as stated by the user; used only if a side has one launch. across: a field of
    the case that may differ between the sides, such as `backend`; or with its value on each side,
    `backend=gloo,nccl`. between_runs: the between-run variance on the machine of both runs, if it is known.
    sets: the runs of each side.
    """
    if is_virtual(before) != is_virtual(after):
        virtual = before if is_virtual(before) else after
        raise UnmeasurableError(
            f"{virtual.name} was measured on virtual GPUs, whose times follow a rule: compare it with such runs only"
        )
    axis = axis_of(across)
    cases = matched(old, new, lambda summary: summary.case, axis)
    pairs = [(a, b) for a, b in cases.pairs if a.time_s and b.time_s]
    if axis.fields and pairs and all(len({axis.values_of(side.case) for side in pair}) == 1 for pair in pairs):
        raise ConfigError(
            f"--across {axis.fields[0]}: both sides have the same {axis.fields[0]}, so there is nothing to compare"
        )
    broken, only_before, only_after = one_sided(before, after, cases, axis)
    if not pairs and not broken:
        raise _nothing_in_common((before, old), (after, new), axis)
    # Two sides of one run were measured together, launch by launch: there is no between-run variance.
    between_runs = {} if between_runs is None or before.path == after.path else between_runs
    several = [pair for pair in pairs if min(side.launches for side in pair) >= 2]
    apart = before.path != after.path
    tested, overall = _tested(several, min_change, between_runs, apart, sets) if several else ([], None)
    by_key = {change.case.key: change for change in tested}
    for a, b in pairs:
        if a.case.key not in by_key and a.time_s and b.time_s:
            judgement = verdicts.by_noise_floor(a.time_s, b.time_s, min_change, noise_floor)
            by_key[a.case.key] = Change(a.case, b.case, a.time_s, b.time_s, judgement)
    changes = [
        replace(by_key[pair[0].case.key], exposed=exposed)
        for pair, exposed in zip(pairs, _exposed(before, after, pairs), strict=True)
    ]
    variance_known = all(change.case.key in between_runs for change in changes)
    reasons = [change.judgement.reason for change in changes] + ([overall.reason] if overall else [])
    steady = apart and not variance_known
    return compared(
        (before, old),
        (after, new),
        changes,
        overall,
        before=before.name,
        after=after.name,
        min_change=min_change,
        broken=broken,
        only_before=only_before,
        only_after=only_after,
        lost=tuple(case for case in only_before if case.why is Absence.NOT_YET),
        notices=(
            *_between_run_notices(before, after, variance_known, sets),
            *_notices(before, after, changes, broken, min_change),
        ),
        remarks=tuple(_limit(changes, overall, sets) if steady else ()),
        across=axis.fields[0] if axis.fields else None,
        assumes_steady=steady and sets.runs == (1, 1) and any(reason.kind is CHANGED for reason in reasons),
    )


def compared(
    first: Summarised, other: Summarised, changes: Sequence[Change], whole: Judgement | None, *, each: bool = False,
    remarks: Sequence[Notice] = (), **more: Any,
) -> Comparison:  # fmt: skip
    """Return the comparison of two sides. each: undecided cases count although the whole is SAME. more: its fields."""
    all_verdicts = [*(change.verdict for change in changes), *([whole.verdict] if whole else [])]
    return Comparison(
        verdict=verdicts.gravest(all_verdicts or [INCONCLUSIVE], whole, each),
        changes=tuple(changes),
        whole=whole,
        differences=differing_facts(first[0], other[0]),
        virtual=is_virtual(first[0]),
        remarks=(*_disturbed(first, other), *remarks),
        **more,
    )


def _nothing_in_common(before: Summarised, after: Summarised, axis: Axis) -> UnmeasurableError:
    """Return the error for sides without a common case; it names a side that lacks the value of `axis`."""
    for (run, summaries), value in zip((before, after), axis.values, strict=True):
        there = dict.fromkeys(axis.values_of(summary.case) for summary in summaries)
        if value and value not in there:
            return UnmeasurableError(
                f"--across {axis.fields[0]}: {run.name} has no measured case of {value}; it has {', '.join(there)}"
            )
    return UnmeasurableError(
        f"{before[0].name} and {after[0].name} have no measured case in common: the same operation, backend, world "
        "size, dtype, size and options are needed"
    )


def compare_runs(
    before: Run | Sequence[Run],
    after: Run | Sequence[Run],
    min_change: float = MIN_CHANGE,
    noise_floor: float | None = None,
    across: str | None = None,
    ledger: Sequence[LedgerEntry] = (),
) -> Comparison:
    """Summarise two runs, or several on a side, and compare them. ledger: noise of the machine that measured them.

    An upgrade may lie between the runs: the between-run variance is estimated from the history before it.
    """
    sides = [[side] if isinstance(side, Run) else side for side in (before, after)]
    old, new = map(together, sides)
    machine, other = machine_of(old), machine_of(new)
    between_runs: BetweenRuns = {}
    if machine is not None and other is not None and machine.is_same_hardware(other):
        between_runs = between_run_scatter(ledger, machine, {run.name for side in sides for run in side})
    sets = sets_of([[headlines(run) for run in side] for side in sides])
    compared = compare(old, new, headlines(old), headlines(new), min_change, noise_floor, across, between_runs, sets)
    names, other_names = (tuple(run.name for run in side) for side in sides)
    return replace(compared, runs_before=names, runs_after=other_names)


# ── several runs on a side ───────────────────────────────────────────────────────────────────────
def together(runs: Sequence[Run]) -> Run:
    """Merge the runs of one side into one run, with their launches numbered consecutively."""
    if len(runs) == 1:
        return runs[0]
    samples, sessions, before = list[Samples](), list[Session](), 0
    for run in runs:
        samples += [replace(measured, launch=before + measured.launch) for measured in run.samples]
        for session in run.environment:
            launches = [{**launch, "launch": before + launch["launch"]} for launch in session.get("launches", [])]
            sessions.append({**session, "launches": launches})  # type: ignore[typeddict-item]
        before += max([run.plan.launches, *(measured.launch for measured in run.samples)])
    first = runs[0].path
    path = first.with_name(f"{first.name} and {len(runs) - 1} more")
    return replace(runs[0], path=path, environment=sessions, samples=samples)


def sets_of(sides: Sequence[Sequence[Sequence[Summary]]]) -> Sets:
    """Compute the `Sets` of both sides, from the summaries of each run."""
    ratios, centred, levels = list[float](), list[dict[str, Floats]](), list[dict[str, Floats]]()
    for runs in sides:
        logs: dict[str, list[Floats]] = defaultdict(list)
        for summary in (summary for run in runs for summary in run if len(summary.means_s) > 1):
            logs[summary.case.key].append(np.log(summary.means_s))
        centred.append({key: np.exp(_centred(series)) for key, series in logs.items()})
        levels.append({key: np.exp([values.mean() for values in series]) for key, series in logs.items()})
        for series in (series for series in logs.values() if len(series) > 1):
            launch = float(np.var(_centred(series), ddof=1)) + verdicts.SMALLEST_SCATTER**2
            expected = launch * (1 + float(np.mean([1 / len(values) for values in series])))
            ratios.append(float(np.var([values.mean() for values in series], ddof=1)) / expected)
    counts = (len(sides[0]), len(sides[1]))
    apart = max(1.0, float(np.mean(ratios))) if ratios else 1.0
    return Sets(counts, apart, (centred[0], centred[1]), (levels[0], levels[1]))


def _centred(series: Sequence[Floats]) -> Floats:
    """Centre the launches of several runs on the mean of the runs; the within-run variance stays."""
    within = np.concatenate([logs - logs.mean() for logs in series])
    stretch = math.sqrt((len(within) - 1) / (len(within) - len(series)))
    return float(np.mean([logs.mean() for logs in series])) + stretch * within


# ── verdicts ─────────────────────────────────────────────────────────────────────────────────────
def _tested(
    pairs: Sequence[Pair], min_change: float, between_runs: BetweenRuns, apart: bool, sets: Sets
) -> tuple[list[Change], Judgement | None]:
    """Return the changes of cases with two launches or more on each side, and the overall judgement.

    apart: whether the sides are different runs. With four runs on each side, these show the between-run variance;
    otherwise it is taken from `between_runs` if it has all cases, or assumed equal to the between-launch variance.
    """
    units = apart and sets.units
    by_side = sets.levels if units else sets.means
    before, after = (
        [by_side[side].get(pair[side].case.key, np.array(pair[side].means_s)) for pair in pairs] for side in (0, 1)
    )
    estimates = verdicts.unpaired(before, after, shrink=not units)
    overall = verdicts.index(before, after) if len(pairs) > 1 else None
    spans = [between_runs[pair[0].case.key] for pair in pairs if pair[0].case.key in between_runs]
    unknown = apart and not units  # the between-run variance
    if unknown and len(spans) == len(pairs):
        scatter, freedom = (np.array(column) for column in zip(*spans, strict=True))
        scatter = scatter * np.sqrt((1 / sets.runs[0] + 1 / sets.runs[1]) / 2)
        estimates = verdicts.with_between_run(estimates, scatter, freedom)
        if overall is not None:  # as if a run moved all cases by the same factor: the worst case
            overall = verdicts.with_between_run(overall, scatter.mean(keepdims=True), freedom.min(keepdims=True))
    elif unknown:
        runs = sets.runs[0] / sets.apart, sets.runs[1] / sets.apart  # effective, as if runs varied like launches
        overall = verdicts.index_with_assumed(overall, estimates, runs) if overall is not None else None
        estimates = verdicts.with_assumed(estimates, runs)
    levels = verdicts.Levels() if overall is None else verdicts.Levels().shared
    changes = [
        Change(pair[0].case, pair[1].case, launch_interval(a), launch_interval(b), _concluded(judgement, a, b, units))
        for pair, a, b, judgement in zip(
            pairs, before, after, verdicts.judge(estimates, min_change, levels), strict=True
        )
    ]
    if overall is None:
        return changes, None
    (judgement,) = verdicts.judge(overall, min_change, levels)
    return changes, _concluded(judgement, before[0], after[0], units)


TOO_FEW_LAUNCHES_ON_A_SIDE = Kind("too-few-launches-on-a-side", "fewer than {fewest} launches on a side")


def _concluded(judgement: Judgement, before: Floats, after: Floats, units: bool) -> Judgement:
    """Return the judgement as it is reported: marked as over runs, or undecided if a side has too few launches.

    units: whether the judgement is over runs, to which no further launches can be added.
    """
    if units:
        return replace(judgement, ratio=replace(judgement.ratio, kind=IntervalKind.OVER_RUNS), further_launches=None)
    launches = min(len(before), len(after))
    return verdicts.with_enough(judgement, launches, verdicts.FEWEST_LAUNCHES, TOO_FEW_LAUNCHES_ON_A_SIDE)


# ── exposed communication ────────────────────────────────────────────────────────────────────────
def _exposed(before: Run, after: Run, pairs: Sequence[Pair]) -> list[ExposedChange | None]:
    """Return the change of each pair's exposed communication; None if a side has none."""
    olds, news = over_references(before), over_references(after)
    both = [(olds.get(old.case, ({}, 0.0)), news.get(new.case, ({}, 0.0))) for old, new in pairs]
    old_s, new_s = ([means(case[side][0]) for case in both] for side in (0, 1))
    tested = verdicts.differences(old_s, new_s, fewest=LAUNCHES_FOR_INTERVAL, apart=before.path != after.path)
    return [
        exposed_change(old, new, result, max(old_noise_s, new_noise_s))
        for ((old, old_noise_s), (new, new_noise_s)), result in zip(both, tested, strict=True)
    ]


def exposed_change(
    old: Series, new: Series, tested: tuple[Interval, bool] | None, noise_s: float
) -> ExposedChange | None:
    """Return the change of exposed communication; None if a side has none. A change up to `noise_s` is not resolved.

    tested: the result of `verdicts.differences`; None with too few launches, so that the change cannot be resolved.
    """
    if not (old and new):
        return None
    a, b = estimate(old), estimate(new)
    difference, significant = tested or (intervals.difference_of_intervals(a, b), False)
    return ExposedChange(a, b, difference, significant and abs(difference.value) > noise_s)


# ── notices ──────────────────────────────────────────────────────────────────────────────────────
PLANTED_FAULTS = Kind("planted-faults", "faults were planted on purpose ({faults}): these numbers measure nothing else")
SAMPLED_DIFFERENTLY = Kind(
    "sampled-differently",
    "the runs were sampled differently, which moves times: the geometric mean of shorter launches reads lower "
    "where calls scatter much (7 % for small calls under normal scheduling with a fifth of the time)",
)
IMPORTED = Kind("imported", "imported from {tools}: {statistics}; not verified here")
OTHER_METHOD = Kind(
    "other-method",
    "the other run was measured here (maximum over ranks, mean over iterations): each ratio includes the "
    "difference between the two methods",
)
BROKEN = Kind("broken", "{count:count case} measured before failed after: no time to compare, which counts as worse")
TOO_FEW_LAUNCHES = Kind(
    "too-few-launches",
    "{count:count case} with one launch on a side, too few for a verdict",
    "set launches=5, or give --noise-floor, the difference between two equal measurements",
)
BOTH_WAYS = Kind("both-ways", "{slower:count case} slower and {faster} faster: the verdict is SLOWER", "look at each")
UNDECIDED = Kind("undecided", "{count:count case} undecided at ±{min_change:exact share}")
BEYOND_LAUNCHES = Kind(
    "beyond-launches",
    "{most} more launches per side would not decide {count:count undecided case}",
    "compare several runs of each side, or measure both at once with ab",
)


def _notices(
    before: Run, after: Run, changes: Sequence[Change], broken: Sequence[Unpaired], min_change: float
) -> Iterable[Notice]:
    for run in (before, after):
        yield from of_run(run.name, [*joining.notices(run), *disturbances(run)])
        if run.plan.settings.faults:
            kinds = tuple(sorted({fault.do for fault in run.plan.settings.faults}))
            yield from of_run(run.name, [PLANTED_FAULTS(faults=kinds)])
    imports = [run for run in (before, after) if run.imported is not None]
    if not imports and before.plan.settings.sampling != after.plan.settings.sampling:
        yield SAMPLED_DIFFERENTLY()
    for run in imports:
        source = run.imported or {}
        tools, statistics = tuple(source.get("tool", [])), tuple(source.get("statistic", []))
        yield from of_run(run.name, [IMPORTED(tools=tools, statistics=statistics)])
    if len(imports) == 1:
        yield OTHER_METHOD()
    if broken:
        yield BROKEN([case.case.key for case in broken], count=len(broken))
    alone = [change.case.key for change in changes if change.judgement.reason.kind is ONE_LAUNCH_ON_A_SIDE]
    if alone:
        yield TOO_FEW_LAUNCHES(alone, count=len(alone))
    changed = {verdict: [change.case.key for change in changes if change.verdict == verdict]
               for verdict in (SLOWER, FASTER)}  # fmt: skip
    if changed[SLOWER] and changed[FASTER]:
        yield BOTH_WAYS(slower=len(changed[SLOWER]), faster=len(changed[FASTER]))
    opened = [change for change in changes if change.verdict == INCONCLUSIVE and change.case.key not in alone]
    if opened:
        keys = [change.case.key for change in opened]
        yield UNDECIDED(keys, count=len(opened), min_change=min_change)
        if beyond := [change.case.key for change in opened if _beyond_launches(change)]:
            yield BEYOND_LAUNCHES(beyond, count=len(beyond), most=MOST_FURTHER_LAUNCHES)


def _beyond_launches(change: Change) -> bool:
    """Return whether the tests left the case undecided, and no advisable number of further launches would decide it."""
    by_launches = change.judgement.reason.kind is NEITHER and change.ratio.kind is IntervalKind.OVER_LAUNCHES
    return by_launches and change.judgement.further_launches is None


LIMIT = Kind(
    "limit",
    "these {runs} runs can only show changes of more than {least_ratio:.2f} times",
    "add runs on a side (compare A1,A2 B1,B2), or measure both sides at once with ab",
)


def _limit(changes: Sequence[Change], overall: Judgement | None, sets: Sets) -> Iterable[Notice]:
    """Yield the smallest change that these runs could show, if nothing was decided."""
    judgement = overall or (changes[0].judgement if len(changes) == 1 else None)
    if judgement is None or judgement.level is None or judgement.verdict != INCONCLUSIVE:
        return
    yield LIMIT(runs=sum(sets.runs), least_ratio=judgement.ratio.high / judgement.ratio.value)


DISTURBED = Kind("disturbed", "disturbed by other processes, which used up to {share:share} of the CPU time")


def _disturbed(*sides: Summarised) -> Iterable[Notice]:
    """Yield a notice for each side whose times other processes made longer."""
    for run, summaries in sides:
        shares = [s.foreign_cpu for s in summaries if s.foreign_cpu is not None and s.foreign_cpu > FOREIGN_CPU_LIMIT]
        if shares:
            yield from of_run(run.name, [DISTURBED(share=max(shares))])


OVER_RUNS = Kind("over-runs", "intervals come from the variation of runs: {before} on one side, {after} on the other")
FROM_LEDGER = Kind("from-ledger", "the intervals include the between-run variance on this machine (its noise ledger)")
OTHER_TIMES = Kind(
    "other-times",
    "the runs were made at different times, so part of a difference may be the machine. It is taken to be as large "
    "as the variation between launches until the noise ledger has {fewest} earlier runs of these cases. `ab` "
    "avoids it: it measures both sides now",
)


def _between_run_notices(before: Run, after: Run, variance_known: bool, sets: Sets) -> Iterable[Notice]:
    """Yield the source of the verdicts' between-run variance. variance_known: whether the ledger has this variance."""
    if before.path == after.path:
        return
    if sets.units:
        yield OVER_RUNS(before=sets.runs[0], after=sets.runs[1])
    elif variance_known:
        yield FROM_LEDGER()
    else:
        yield OTHER_TIMES(fewest=FEWEST_LEDGER_RUNS)
