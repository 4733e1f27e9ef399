"""Compare two runs: a verdict on each common case and on the whole, and what else differs between them.

In: two runs and their summaries. Out: a `Comparison`, with its notices. Of cases that compute also how their exposed
communication changed. This module matches the cases; `verdicts` decides. A measured case without a partner is listed
with the reason, never dropped silently. Prints nothing.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress

import numpy as np

from bench.analyze.occasions import FEWEST_OCCASIONS, occasions
from bench.analyze.parts import exposed_of, parts
from bench.analyze.round_series import LAUNCHES_FOR_INTERVAL, estimate, means
from bench.analyze.sessions import differences, facts_of, is_virtual, machine_of
from bench.analyze.summaries import FOREIGN_CPU_LIMIT, headlines
from bench.catalog.collectives import ALL_OPTIONS
from bench.model.comparisons import (
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
from bench.model.conclusions import IntervalKind, Summary
from bench.model.errors import ConfigError, UnmeasurableError
from bench.model.facts import Session
from bench.model.notices import ComparisonNotice, Notice, VerdictNotice, notice, of_run
from bench.model.records import Case, Run, Samples
from bench.stats import intervals, verdicts
from bench.stats.intervals import Floats, launch_interval
from bench.store.ledger import LedgerEntry

# Fields of a case that `--across` accepts. Size is not among them: time is expected to differ with size.
AXES = ("op", "backend", "world_size", "dtype", *(option.name for option in ALL_OPTIONS))
# A comma between two values, not one within brackets: flat,ddp(cap_bytes=1024,options=fp16).
COMMA = re.compile(r",(?![^()]*\))")

Pair = tuple[Summary, Summary]


@dataclass(frozen=True, slots=True)
class Sets:
    """The runs of each side of a comparison. Pairs have one entry per side."""

    # Number of runs on each side, each of its own occasion.
    runs: tuple[int, int] = (1, 1)
    # Variance between the runs of a side, relative to the variance that launches and occasions would explain, if
    # occasions scattered like launches. The ratio is a mean over all cases, because an occasion moves many cases, and
    # is at least 1.
    apart: float = 1.0
    # Means of launches by case, without the differences between runs.
    means: tuple[Mapping[str, Floats], Mapping[str, Floats]] = ({}, {})
    # Mean of each run, by case.
    levels: tuple[Mapping[str, Floats], Mapping[str, Floats]] = ({}, {})

    @property
    def units(self) -> bool:
        """Whether each side has enough runs that runs can be the unit, as launches are."""
        return min(self.runs) >= verdicts.FEWEST_LAUNCHES and all(
            len(levels) == runs for side, runs in zip(self.levels, self.runs, strict=True) for levels in side.values()
        )

    @property
    def occasions(self) -> tuple[float, float]:
        """Effective number of occasions per side that scatter like launches: its number of runs divided by `apart`."""
        return self.runs[0] / self.apart, self.runs[1] / self.apart


ONE_EACH = Sets()
# Standard deviation of the logarithm of a case's time from occasion to occasion, and its degrees of freedom; by key.
Occasion = tuple[float, float]
Occasions = Mapping[str, Occasion]


def compare(
    before: Run,
    after: Run,
    old: Sequence[Summary],
    new: Sequence[Summary],
    min_change: float = MIN_CHANGE,
    noise_floor: float | None = None,
    across: str | None = None,
    by_occasion: Occasions | None = None,
    sets: Sets = ONE_EACH,
) -> Comparison:
    """Compare the cases that both runs measured. Raises UnmeasurableError if there are none, and none failed after.

    Also if one run, and not both, was measured on virtual GPUs.

    min_change: the smallest relative change that matters. noise_floor: the largest relative difference between two
    measurements of the same thing, as stated by the user; used only where a side has one launch. across: a field of
    the case that may differ between the sides, such as `backend`; or with its value on each side,
    `backend=gloo,nccl`. Raises ConfigError if it cannot be used. by_occasion: by how much occasions differ on the
    machine of both runs, where that is known. sets: how many runs each side is of.
    """
    if is_virtual(before) != is_virtual(after):
        virtual = before if is_virtual(before) else after
        raise UnmeasurableError(
            f"{virtual.name} was measured on virtual GPUs, whose times follow a rule: compare it with such runs only"
        )
    axis = axis_of(across)
    olds, news = (axis.by_key(summaries, value) for summaries, value in zip((old, new), axis.values, strict=True))
    pairs = [(olds[key], news[key]) for key in olds if key in news and olds[key].time_s and news[key].time_s]
    axis.check(pairs)
    broken, only_before = _unpaired(olds, news, absences(after, axis, axis.values[1]))
    partly = [(a, b) for a, b in pairs if b.failures and not a.failures]
    broken += tuple(Unpaired(a.case, b.case, Absence.FAILED_ONCE, b.failures[0].text) for a, b in partly)
    failed_before, only_after = _unpaired(news, olds, absences(before, axis, axis.values[0]))
    if not pairs and not broken:
        for name, summaries, value in zip((before.name, after.name), (old, new), axis.values, strict=True):
            there = dict.fromkeys(str(getattr(summary.case, axis.field)) for summary in summaries) if value else {}
            if value and value not in there:
                raise UnmeasurableError(
                    f"--across {axis.field}: {name} has no measured case of {value}; it has {', '.join(there)}"
                )
        raise UnmeasurableError(
            f"{before.name} and {after.name} have no measured case in common: the same operation, backend, world size, "
            "dtype, size and options are needed"
        )
    # Two sides of one run were measured on one occasion, launch by launch.
    by_occasion = {} if by_occasion is None or before.path == after.path else by_occasion
    several = [pair for pair in pairs if min(side.launches for side in pair) >= 2]
    apart = before.path != after.path
    tested, whole = _tested(several, min_change, by_occasion, apart, sets) if several else ([], None)
    of_key = {change.case.key: change for change in tested}
    changes = [of_key.get(pair[0].case.key) or _single(*pair, min_change, noise_floor) for pair in pairs]
    changes = [
        replace(change, exposed=exposed)
        for change, exposed in zip(changes, _exposed(before, after, pairs), strict=True)
    ]
    known = all(change.case.key in by_occasion for change in changes)
    all_verdicts = [*(change.verdict for change in changes), *([whole.verdict] if whole else [])]
    return Comparison(
        before=before.name,
        after=after.name,
        whole=whole,
        verdict=verdicts.gravest(all_verdicts or [INCONCLUSIVE], whole),
        min_change=min_change,
        virtual=is_virtual(before),
        changes=tuple(changes),
        differences=differences(facts_of(before), facts_of(after)),
        only_before=only_before,
        only_after=(*failed_before, *only_after),
        lost=tuple(case for case in only_before if case.why is Absence.NOT_YET),
        broken=broken,
        notices=(
            *_of_occasions(before, after, known, sets),
            *_notices(before, after, changes, broken, min_change),
        ),
        across=axis.field or None,
        assumes_steady=apart and not known and sets.runs == (1, 1) and _by_launches(changes, whole),
        remarks=(
            *disturbed((before, old), (after, new)),
            *(_limit(changes, whole, sets) if apart and not known else ()),
        ),
    )


def compare_runs(
    before: Run | Sequence[Run],
    after: Run | Sequence[Run],
    min_change: float = MIN_CHANGE,
    noise_floor: float | None = None,
    across: str | None = None,
    ledger: Sequence[LedgerEntry] = (),
) -> Comparison:
    """Summarise two runs, or several on a side, and compare them. ledger: of the machine that measured them.

    An upgrade may lie between the runs: by how much occasions differ follows from the history before it.
    """
    sides = [[side] if isinstance(side, Run) else side for side in (before, after)]
    old, new = map(together, sides)
    machine, other = machine_of(old), machine_of(new)
    known: Occasions = {}
    if machine is not None and other is not None and machine.is_same_hardware(other):
        known = occasions(ledger, machine, {run.name for side in sides for run in side})
    of_runs = [[headlines(run) for run in side] for side in sides]
    old_cases, new_cases = (
        runs[0] if len(runs) == 1 else headlines(run) for runs, run in zip(of_runs, (old, new), strict=True)
    )
    return compare(old, new, old_cases, new_cases, min_change, noise_floor, across, known, sets_of(of_runs))


# ── several runs on a side ───────────────────────────────────────────────────────────────────────
def together(runs: Sequence[Run]) -> Run:
    """The runs of one side as one, with their launches numbered on."""
    if len(runs) == 1:
        return runs[0]
    samples, sessions, before = list[Samples](), list[Session](), 0
    for run in runs:
        samples += [replace(measured, launch=before + measured.launch) for measured in run.samples]
        for session in run.environment:
            launches = [{**launch, "launch": before + launch["launch"]} for launch in session.get("launches", [])]
            sessions.append({**session, "launches": launches})  # type: ignore[typeddict-item]
        before += max([run.plan.launches, *(measured.launch for measured in run.samples)])
    path = runs[0].path.with_name("+".join(run.name for run in runs))
    return replace(runs[0], path=path, environment=sessions, samples=samples)


def sets_of(sides: Sequence[Sequence[Sequence[Summary]]]) -> Sets:
    """What each side has of several runs, from the summaries of each."""
    ratios, of_sides, levels = list[float](), list[dict[str, Floats]](), list[dict[str, Floats]]()
    for runs in sides:
        logs: dict[str, list[Floats]] = defaultdict(list)
        for summary in (summary for run in runs for summary in run if len(summary.means_s) > 1):
            logs[summary.case.key].append(np.log(summary.means_s))
        of_sides.append({key: np.exp(_centred(of_runs)) for key, of_runs in logs.items()})
        levels.append({key: np.exp([of_run.mean() for of_run in of_runs]) for key, of_runs in logs.items()})
        for of_runs in (of_runs for of_runs in logs.values() if len(of_runs) > 1):
            launch = float(np.var(_centred(of_runs), ddof=1)) + verdicts.SMALLEST_SCATTER**2
            expected = launch * (1 + float(np.mean([1 / len(of_run) for of_run in of_runs])))
            ratios.append(float(np.var([of_run.mean() for of_run in of_runs], ddof=1)) / expected)
    counts = (len(sides[0]), len(sides[1]))
    apart = max(1.0, float(np.mean(ratios))) if ratios else 1.0
    return Sets(counts, apart, (of_sides[0], of_sides[1]), (levels[0], levels[1]))


def _centred(of_runs: Sequence[Floats]) -> Floats:
    """The launches of several runs about the mean of the runs, with the variance that they have within runs."""
    within = np.concatenate([logs - logs.mean() for logs in of_runs])
    stretch = math.sqrt((len(within) - 1) / (len(within) - len(of_runs)))
    return float(np.mean([logs.mean() for logs in of_runs])) + stretch * within


# ── matching the cases ───────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Axis:
    """The field in which the sides differ on purpose."""

    # Empty if there is no such field.
    field: str
    # Value of the field on each side; None means any value.
    values: tuple[str | None, str | None]

    def key(self, case: Case) -> str:
        """The case's key without the field."""
        if not self.field:
            return case.key
        # Only calls back to back have a depth: it is a part of the metric.
        blank = replace(case, depth=1) if self.field == "metric" else case
        return blank.with_value(self.field, "*").key

    def has(self, case: Case, value: str | None) -> bool:
        """Whether the case has this value of the field; any case, if none is given."""
        return value is None or self.text(case) == value

    def text(self, case: Case) -> str:
        """The case's value of the field, as `--across` takes it; empty if there is none."""
        value = case.value(self.field)
        return "" if value is None else str(value)

    def by_key(self, summaries: Iterable[Summary], value: str | None) -> dict[str, Summary]:
        """The summaries of a side by `key`; only those with this value of the field, if one is given."""
        by_key: dict[str, Summary] = {}
        for summary in summaries:
            if not self.has(summary.case, value):
                continue
            other = by_key.setdefault(self.key(summary.case), summary)
            if other is not summary:
                a, b = (self.text(side.case) for side in (other, summary))
                raise ConfigError(
                    f"--across {self.field}: one run has both {a} and {b}; say which is meant on each side: "
                    f"--across {self.field}={a},{b}"
                )
        return by_key

    def check(self, pairs: Sequence[Pair]) -> None:
        """Raise ConfigError if no pair differs in the field."""
        if self.field and pairs and all(len({side.case.value(self.field) for side in pair}) == 1 for pair in pairs):
            raise ConfigError(
                f"--across {self.field}: both sides have the same {self.field}, so there is nothing to compare"
            )


SAME_CASES = Axis("", (None, None))


def axis_of(across: str | None) -> Axis:
    """Read the option `--across`. Raises ConfigError."""
    field, _, text = (across or "").partition("=")
    values = COMMA.split(text) if text else [None, None]
    if across is not None and (field not in AXES or len(values) != 2):
        raise ConfigError(
            f"--across {across}: write one of {', '.join(AXES)}; or with a value for each side: backend=gloo,nccl"
        )
    return Axis(field, (values[0], values[1]))


# Why a run has no time of a case, with the detail.
Missing = tuple[Absence, str | Notice]


def absences(run: Run, axis: Axis = SAME_CASES, value: str | None = None) -> Callable[[Case], Missing]:
    """A function that says why the run has no time of a case with this value of the axis, with the detail."""
    known: list[tuple[Case, Absence, str | Notice]] = [
        *((case, Absence.NOT_YET, "") for case in run.plan.cases),
        *((skip.case, Absence.SKIPPED, skip.reason) for skip in run.plan.skips),
        *((samples.case, Absence.FAILED, samples.failure.text) for samples in run.samples if samples.failure),
    ]
    reasons = {axis.key(case): (why, detail) for case, why, detail in known if axis.has(case, value)}

    def reason(case: Case) -> Missing:
        # A skip may stand for all cases of its kind.
        kinds = (case, case.shared)
        found = (reasons[axis.key(kind)] for kind in kinds if axis.key(kind) in reasons)
        return next(found, (Absence.NOT_ASKED, ""))

    return reason


def _unpaired(
    own: Mapping[str, Summary], others: Mapping[str, Summary], reason: Callable[[Case], Missing]
) -> tuple[tuple[Unpaired, ...], tuple[Unpaired, ...]]:
    """Cases with a time on their own side only: those that failed on the other side, and those not measured there."""
    failed, missing = [], []
    for key, summary in own.items():
        if summary.time_s is None:
            continue
        partner = others.get(key)
        if partner is None:
            missing.append(Unpaired(summary.case, summary.case, *reason(summary.case)))
        elif partner.time_s is None:
            why = (Absence.FAILED, partner.failures[0].text) if partner.failures else reason(summary.case)
            failed.append(Unpaired(summary.case, partner.case, *why))
    return tuple(failed), tuple(missing)


# ── verdicts ─────────────────────────────────────────────────────────────────────────────────────
def _tested(
    pairs: Sequence[Pair], min_change: float, by_occasion: Occasions, apart: bool, sets: Sets
) -> tuple[list[Change], Judgement | None]:
    """The changes of cases with two launches or more on each side, and the judgement of the whole.

    apart: the sides were measured on different occasions. By how much those differ is known of four runs on each side,
    is else taken from `by_occasion` if it has all cases, and else assumed to be as much as launches do.
    """
    units = apart and sets.units
    of_sides = sets.levels if units else sets.means
    before, after = (
        [of_sides[side].get(pair[side].case.key, np.array(pair[side].means_s)) for pair in pairs] for side in (0, 1)
    )
    estimates = verdicts.unpaired(before, after, alike=not units)
    whole = verdicts.index(before, after) if len(pairs) > 1 else None
    spans = [by_occasion[pair[0].case.key] for pair in pairs if pair[0].case.key in by_occasion]
    unknown = apart and not units  # by how much occasions differ
    if unknown and len(spans) == len(pairs):
        scatter, freedom = (np.array(column) for column in zip(*spans, strict=True))
        scatter = scatter * np.sqrt((1 / sets.runs[0] + 1 / sets.runs[1]) / 2)
        estimates = verdicts.with_occasions(estimates, scatter, freedom)
        if whole is not None:  # as if an occasion moved all cases alike: the worst case
            whole = verdicts.with_occasions(whole, scatter.mean(keepdims=True), freedom.min(keepdims=True))
    elif unknown:
        whole = verdicts.index_with_occasions(whole, estimates, sets.occasions) if whole is not None else None
        estimates = verdicts.occasions_as_launches(estimates, sets.occasions)
    levels = verdicts.Levels() if whole is None else verdicts.Levels().shared
    changes = [
        Change(pair[0].case, pair[1].case, launch_interval(a), launch_interval(b), _concluded(judgement, a, b, units))
        for pair, a, b, judgement in zip(
            pairs, before, after, verdicts.judge(estimates, min_change, levels), strict=True
        )
    ]
    if whole is None:
        return changes, None
    (judgement,) = verdicts.judge(whole, min_change, levels)
    return changes, _concluded(judgement, before[0], after[0], units)


def _concluded(judgement: Judgement, before: Floats, after: Floats, units: bool) -> Judgement:
    """The judgement as it is reported: marked as one over runs, or left undecided if a side has too few launches.

    units: whether it is over runs, to which no further launches can be added.
    """
    if units:
        return replace(judgement, ratio=replace(judgement.ratio, kind=IntervalKind.OVER_RUNS), further_launches=None)
    if min(len(before), len(after)) >= verdicts.FEWEST_LAUNCHES:
        return judgement
    return verdicts.undecided(judgement, notice(VerdictNotice.FEW_LAUNCHES, fewest=verdicts.FEWEST_LAUNCHES))


def _single(old: Summary, new: Summary, min_change: float, noise_floor: float | None) -> Change:
    assert old.time_s is not None and new.time_s is not None  # noqa: S101 - the caller selects such
    judgement = verdicts.by_noise_floor(old.time_s, new.time_s, min_change, noise_floor)
    return Change(old.case, new.case, old.time_s, new.time_s, judgement)


# ── exposed communication ────────────────────────────────────────────────────────────────────────
def _exposed(before: Run, after: Run, pairs: Sequence[Pair]) -> list[ExposedChange | None]:
    """The change of each pair's exposed communication; None where a side has none."""
    olds, news = exposed_of(before), exposed_of(after)
    both = [(olds.get(old.case, ({}, 0.0)), news.get(new.case, ({}, 0.0))) for old, new in pairs]
    enough = [min(len(old), len(new)) >= LAUNCHES_FOR_INTERVAL for (old, _), (new, _) in both]
    several = [(means(old), means(new)) for (old, _), (new, _) in compress(both, enough)]
    old_s, new_s = ([side[which] for side in several] for which in (0, 1))
    tested = iter(verdicts.differences(old_s, new_s, occasions=before.path != after.path))
    changes: list[ExposedChange | None] = []
    for ((old, old_noise_s), (new, new_noise_s)), over_launches in zip(both, enough, strict=True):
        if not (old and new):
            changes.append(None)
            continue
        a, b = estimate(old), estimate(new)
        difference, resolved = intervals.difference_of_intervals(a, b), False
        if over_launches:
            difference, significant = next(tested)
            resolved = significant and abs(difference.value) > max(old_noise_s, new_noise_s)
        changes.append(ExposedChange(a, b, difference, resolved))
    return changes


# ── notices ──────────────────────────────────────────────────────────────────────────────────────
def _notices(
    before: Run, after: Run, changes: Sequence[Change], broken: Sequence[Unpaired], min_change: float
) -> Iterable[Notice]:
    for run in (before, after):
        yield from of_run(run.name, (found for part in parts().values() for found in part.notices(run)))
        if run.plan.settings.faults:
            kinds = tuple(sorted({fault.do for fault in run.plan.settings.faults}))
            yield from of_run(run.name, [notice(ComparisonNotice.PLANTED_FAULTS, faults=kinds)])
    imports = [run for run in (before, after) if run.imported is not None]
    if not imports and before.plan.settings.sampling != after.plan.settings.sampling:
        yield notice(ComparisonNotice.SAMPLED_DIFFERENTLY)
    for run in imports:
        source = run.imported or {}
        tools, statistics = tuple(source.get("tool", [])), tuple(source.get("statistic", []))
        yield from of_run(run.name, [notice(ComparisonNotice.IMPORTED, tools=tools, statistics=statistics)])
    if len(imports) == 1:
        yield notice(ComparisonNotice.OTHER_METHOD)
    if broken:
        yield notice(ComparisonNotice.BROKEN, [case.case.key for case in broken], count=len(broken))
    alone = [change.case.key for change in changes if change.reason.kind is VerdictNotice.ONE_LAUNCH]
    if alone:
        yield notice(ComparisonNotice.TOO_FEW_LAUNCHES, alone, count=len(alone))
    of_verdict = {verdict: [change.case.key for change in changes if change.verdict == verdict]
                  for verdict in (SLOWER, FASTER)}  # fmt: skip
    if of_verdict[SLOWER] and of_verdict[FASTER]:
        yield notice(ComparisonNotice.BOTH_WAYS, slower=len(of_verdict[SLOWER]), faster=len(of_verdict[FASTER]))
    opened = [change for change in changes if change.verdict == INCONCLUSIVE and change.case.key not in alone]
    if opened:
        keys = [change.case.key for change in opened]
        yield notice(ComparisonNotice.UNDECIDED, keys, count=len(opened), min_change=min_change)
        beyond = [change.case.key for change in opened if _beyond_launches(change)]
        if beyond:
            yield notice(ComparisonNotice.BEYOND_LAUNCHES, beyond, count=len(beyond), most=MOST_FURTHER_LAUNCHES)


def _beyond_launches(change: Change) -> bool:
    """Whether the tests left the case undecided, and no number of launches that could be advised would decide it."""
    by_launches = change.reason.kind is VerdictNotice.NEITHER and change.ratio.kind is IntervalKind.OVER_LAUNCHES
    return by_launches and change.further_launches is None


def _limit(changes: Sequence[Change], whole: Judgement | None, sets: Sets) -> Iterable[Notice]:
    """The smallest change that these occasions could show, where nothing was decided."""
    judgement = whole or (changes[0].judgement if len(changes) == 1 else None)
    if judgement is None or judgement.level is None or judgement.verdict != INCONCLUSIVE:
        return
    yield notice(ComparisonNotice.LIMIT, runs=sum(sets.runs), least_ratio=judgement.ratio.high / judgement.ratio.value)


def disturbed(*sides: tuple[Run, Sequence[Summary]]) -> Iterable[Notice]:
    """The sides whose times other processes made longer."""
    for run, summaries in sides:
        shares = [s.foreign_cpu for s in summaries if s.foreign_cpu is not None and s.foreign_cpu > FOREIGN_CPU_LIMIT]
        if shares:
            yield from of_run(run.name, [notice(ComparisonNotice.DISTURBED, share=max(shares))])


def _by_launches(changes: Sequence[Change], whole: Judgement | None) -> bool:
    """Whether the scatter of launches shows a change, of a case or of the whole."""
    reasons = [change.reason for change in changes] + ([whole.reason] if whole else [])
    return any(reason.kind is VerdictNotice.CHANGED for reason in reasons)


def _of_occasions(before: Run, after: Run, known: bool, sets: Sets) -> Iterable[Notice]:
    """Where the verdicts have from by how much occasions differ. known: from the ledger."""
    if before.path == after.path:
        return
    if sets.units:
        yield notice(ComparisonNotice.OVER_RUNS, before=sets.runs[0], after=sets.runs[1])
    elif known:
        yield notice(ComparisonNotice.FROM_LEDGER)
    else:
        yield notice(ComparisonNotice.OTHER_TIMES, fewest=FEWEST_OCCASIONS)
