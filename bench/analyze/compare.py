"""Compare two runs: a verdict on each common case and on the whole, and what else differs between them.

In: two runs and their summaries. Out: a `Comparison`, with its warnings. This module matches the cases; `verdicts`
decides. A measured case without a partner is listed, never dropped silently. Prints nothing.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from bench.analyze.noise import FEWEST_OCCASIONS, occasions
from bench.analyze.sessions import differences, facts_of, machine_of
from bench.analyze.summaries import headlines
from bench.model.comparisons import Change, Comparison, Judgement
from bench.model.conclusions import Summary
from bench.model.errors import ConfigError, UnmeasurableError
from bench.model.records import CASE_EXTRAS, Case, Json, Run
from bench.model.units import format_seconds
from bench.stats import verdicts
from bench.stats.intervals import launch_interval
from bench.stats.verdicts import FASTER, INCONCLUSIVE, SLOWER
from bench.store.ledger import LedgerEntry

# Default of the smallest relative change that matters: a smaller one is rarely worth tracing.
MIN_CHANGE = 0.05
# Fields of a case that `--across` accepts. Size is not among them: time is expected to differ with size.
AXES = ("op", "backend", "world_size", "dtype", *CASE_EXTRAS)
TWO_MODES = "two modes: geometric means of the iterations"
ONE_LAUNCH = "one launch on a side: says nothing of how launches differ"

Pair = tuple[Summary, Summary]
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
) -> Comparison:
    """Compare the cases that both runs measured. Raises UnmeasurableError if there are none.

    min_change: the smallest relative change that matters. noise_floor: the largest relative difference between two
    measurements of the same thing, as stated by the user; used only where a side has one launch. across: a field of
    the case that may differ between the sides, such as `backend`; or with its value on each side,
    `backend=gloo,nccl`. Raises ConfigError if it cannot be used. by_occasion: by how much occasions differ on the
    machine of both runs, where that is known.
    """
    olds, news, pairs = _matched(old, new, across)
    if not pairs:
        raise UnmeasurableError(
            f"{before.name} and {after.name} have no measured case in common: the same operation, backend, world size, "
            "dtype, size, metric, synchronisation and buffers are needed"
        )
    # Two sides of one run were measured on one occasion, launch by launch.
    by_occasion = {} if by_occasion is None or before.path == after.path else by_occasion
    several = [pair for pair in pairs if min(side.launches for side in pair) >= 2]
    tested, whole = _tested(several, min_change, by_occasion) if several else ([], None)
    of_key = {change.case.key: change for change in tested}
    changes = [of_key.get(pair[0].case.key) or _single(*pair, min_change, noise_floor) for pair in pairs]
    field = across.partition("=")[0] if across is not None else None
    if field is not None:
        values = [f"{field}: {before} → {after}" for before, after in (_values(pair, field) for pair in pairs)]
        changes = [
            dataclasses.replace(change, note="; ".join(filter(None, [value, change.note])))
            for change, value in zip(changes, values, strict=True)
        ]
    broken = tuple(s.case for key, s in news.items() if s.time_s is None and key in olds and olds[key].time_s)
    return Comparison(
        before=before.name,
        after=after.name,
        whole=whole,
        verdict=verdicts.of_run([*(change.verdict for change in changes), *([whole.verdict] if whole else [])]),
        min_change=min_change,
        changes=tuple(changes),
        differences=differences(facts_of(before), facts_of(after)),
        only_before=tuple(s.case for key, s in olds.items() if s.time_s and key not in news),
        only_after=tuple(s.case for key, s in news.items() if s.time_s and (key not in olds or not olds[key].time_s)),
        broken=broken,
        warnings=(
            *_of_occasions(before, after, [change.case.key for change in changes], by_occasion),
            *_warnings(before, after, changes, broken, min_change),
        ),
        across=field,
    )


def compare_runs(
    before: Run,
    after: Run,
    min_change: float = MIN_CHANGE,
    noise_floor: float | None = None,
    across: str | None = None,
    ledger: Sequence[LedgerEntry] = (),
) -> Comparison:
    """Summarise two runs and compare them. ledger: the noise ledger of the machine that measured them."""
    machine, other = machine_of(before), machine_of(after)
    known: Occasions = {}
    if machine is not None and other is not None and machine.is_same(other):
        known = occasions(ledger, machine, {before.name, after.name})
    return compare(before, after, headlines(before), headlines(after), min_change, noise_floor, across, known)


# ── matching the cases ───────────────────────────────────────────────────────────────────────────
def _matched(
    old: Sequence[Summary], new: Sequence[Summary], across: str | None
) -> tuple[dict[str, Summary], dict[str, Summary], list[Pair]]:
    """Both sides by key (failed cases included), and the pairs that have a time on both sides."""
    if across is None:
        olds, news = ({s.case.key: s for s in side} for side in (old, new))
    else:
        field, _, values = across.partition("=")
        wanted = values.split(",") if values else [None, None]
        if field not in AXES or len(wanted) != 2:
            raise ConfigError(
                f"--across {across}: write one of {', '.join(AXES)}; or with a value for each side: backend=gloo,nccl"
            )
        olds, news = (_blanked(side, field, value) for side, value in zip((old, new), wanted, strict=True))
    pairs = [(olds[key], news[key]) for key in olds if key in news and olds[key].time_s and news[key].time_s]
    if across is not None and pairs and all(len(set(_values(pair, field))) == 1 for pair in pairs):
        raise ConfigError(f"--across {across}: both sides have the same {field}, nothing to lay side by side")
    return olds, news, pairs


def _blanked(side: Sequence[Summary], field: str, value: str | None) -> dict[str, Summary]:
    """The summaries by their key without a field; only those with this value in it, if one is given."""
    by_key: dict[str, Summary] = {}
    for summary in side:
        own = str(getattr(summary.case, field))
        if value is not None and own != value:
            continue
        blank: Json = {field: "*"}
        key = dataclasses.replace(summary.case, **blank).key
        if key in by_key:
            other = getattr(by_key[key].case, field)
            raise ConfigError(
                f"--across {field}: one run has both {other} and {own}; say which is meant on each side: "
                f"--across {field}={other},{own}"
            )
        by_key[key] = summary
    return by_key


def _values(pair: Pair, field: str) -> tuple[str, str]:
    before, after = (str(getattr(side.case, field)) for side in pair)
    return before, after


# ── verdicts ─────────────────────────────────────────────────────────────────────────────────────
def _tested(pairs: Sequence[Pair], min_change: float, by_occasion: Occasions) -> tuple[list[Change], Judgement | None]:
    """The changes of cases with two launches or more on each side, and the judgement of the whole.

    They rest on the median of each launch, or on the geometric mean where there are two modes. Where about half of the
    iterations are in the slow mode, the median of a launch jumps between the modes: at 2 ranks and 1 KiB to 1 MiB on
    two cores, medians scattered by 0.3 to 0.9 over launches, geometric means by 0.2 to 0.3.
    """
    two_modes = [any(side.stall for side in pair) and all(side.means_s for side in pair) for pair in pairs]
    before, after = (
        [
            np.array(pair[side].means_s if two else pair[side].medians_s)
            for pair, two in zip(pairs, two_modes, strict=True)
        ]
        for side in (0, 1)
    )
    estimates = verdicts.unpaired(before, after)
    index = verdicts.index(before, after, verdicts.weights(estimates)) if len(pairs) > 1 else None
    spans = [by_occasion[pair[0].case.key] for pair in pairs if pair[0].case.key in by_occasion]
    if len(spans) == len(pairs):
        # Widened by what occasions differ by. The index takes them as moving all cases alike: the worst case.
        scatter, freedom = (np.array(column) for column in zip(*spans, strict=True))
        estimates = verdicts.with_occasions(estimates, scatter, freedom)
        if index is not None:
            together, least = np.array([float(index.weights @ scatter)]), np.array([freedom.min()])
            index = dataclasses.replace(index, estimates=verdicts.with_occasions(index.estimates, together, least))
    rate = verdicts.ERROR_RATE if index is None else verdicts.ERROR_RATE_OF_EACH
    judgements = verdicts.judge(estimates, min_change, rate)
    changes = [
        Change(
            pair[0].case,
            launch_interval(a),
            launch_interval(b),
            verdicts.decided(judgement, a, b),
            TWO_MODES if two else "",
            _where(pair),
        )
        for pair, two, a, b, judgement in zip(pairs, two_modes, before, after, judgements, strict=True)
    ]
    if index is None:
        return changes, None
    (whole,) = verdicts.judge(index.estimates, min_change, rate)
    return changes, verdicts.decided(whole, index.before, index.after)


def _where(pair: Pair) -> str:
    """How the modes changed, or the quantiles of the iterations; without intervals."""
    before, after = pair
    if before.stall and after.stall:
        fast = f"{format_seconds(before.stall.fast_s)} → {format_seconds(after.stall.fast_s)}"
        return f"fast mode {fast}, share of the slow one {before.stall.share:.0%} → {after.stall.share:.0%}"
    if not (before.quantiles_s and after.quantiles_s):
        return ""
    return moved_text([b / a for a, b in zip(before.quantiles_s, after.quantiles_s, strict=True)])


def moved_text(ratios: Iterable[float]) -> str:
    """What happened to the quantiles of the iterations (`summaries.QUANTILES`)."""
    low, middle, high = ratios
    return f"fastest tenth × {low:.2f}, median × {middle:.2f}, slowest tenth × {high:.2f}"


def _single(old: Summary, new: Summary, min_change: float, noise_floor: float | None) -> Change:
    assert old.time_s is not None and new.time_s is not None  # noqa: S101 - the caller selects such
    judgement = verdicts.by_noise_floor(old.time_s, new.time_s, min_change, noise_floor)
    note = ONE_LAUNCH if noise_floor is None else f"one launch on a side: rests on the stated {noise_floor:.0%}"
    return Change(old.case, old.time_s, new.time_s, judgement, note)


# ── warnings ─────────────────────────────────────────────────────────────────────────────────────
def _warnings(
    before: Run, after: Run, changes: Sequence[Change], broken: Sequence[Case], min_change: float
) -> Iterable[str]:
    for run in (before, after):
        if run.plan.faults:
            kinds = ", ".join(sorted({fault.do for fault in run.plan.faults}))
            yield f"faults were planted on purpose in {run.name} ({kinds}): its numbers measure nothing else"
    imports = [run for run in (before, after) if run.imported is not None]
    for run in imports:
        source = run.imported or {}
        tool, statistic = (", ".join(map(str, source.get(key, []))) for key in ("tool", "statistic"))
        yield f"{run.name} was imported from {tool}: {statistic}; not verified here"
    if len(imports) == 1:
        yield (
            "the other run was measured here (maximum over ranks, median over iterations): what the two ways of "
            "counting differ by is part of each ratio"
        )
    if broken:
        yield f"{counted(len(broken), 'case')} measured before failed after: no time to compare, and that is worse"
    alone = sum(change.note.endswith(ONE_LAUNCH) for change in changes)
    if alone:
        yield (
            f"{counted(alone, 'case')} with one launch on a side: set launches: 5 (import several outputs as one run), "
            "or state with --noise-floor by how much two measurements of the same thing differ"
        )
    yield from verdict_warnings([change.verdict for change in changes], alone, min_change)


def verdict_warnings(of_cases: Sequence[str], alone: int, min_change: float) -> Iterable[str]:
    """Warnings on the verdicts as a whole. alone: cases with too few launches to decide, warned about elsewhere."""
    slower, faster, open_ = (of_cases.count(verdict) for verdict in (SLOWER, FASTER, INCONCLUSIVE))
    if slower and faster:
        yield (
            f"{counted(slower, 'case')} slower and {faster} faster: the verdict on the whole is SLOWER, so look at each"
        )
    if open_ > alone:
        yield (
            f"{counted(open_ - alone, 'case')} without a decision at ±{min_change * 100:g} %: more launches (the table "
            "says about how many), a calmer machine or a larger --min-change would bring one"
        )


def _of_occasions(before: Run, after: Run, keys: Sequence[str], by_occasion: Occasions) -> Iterable[str]:
    """What the verdicts speak of: these two occasions, or the machine."""
    if before.path == after.path or before.imported is not None or after.imported is not None:
        return
    if all(key in by_occasion for key in keys):
        yield "the intervals include by how much occasions differ on this machine, as its noise ledger shows"
    else:
        yield (
            "the verdict is about these two occasions: it cannot tell a change from what differs between occasions "
            f"(neighbours, boots). With {FEWEST_OCCASIONS} runs of these cases in the noise ledger it could; `ab` "
            "measures both sides on one occasion"
        )


def counted(number: int, noun: str) -> str:
    """Such as `1 case`, `2 cases`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
