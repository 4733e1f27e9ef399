"""Write comparisons of runs, for people: two runs, two sides in pairs, many runs.

In: a `Comparison`, or `Trend` values. Out: blocks; the verdict comes first in a file and last on a terminal. Computes
only layout and counts. CSV and JSON are in `machine_format`, JUnit in `junit`, pictures in `plots.comparison`.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from collbench.model.comparisons import (
    FASTER,
    INCONCLUSIVE,
    SAME,
    SLOWER,
    Change,
    Comparison,
    EnvironmentDifference,
    ExposedChange,
    InTurns,
    Judgement,
    Trend,
    Unpaired,
)
from collbench.model.conclusions import Interval, IntervalKind
from collbench.model.projection import grouped
from collbench.model.records import NOT_AVAILABLE, case_order
from collbench.model.units import format_ratio, format_seconds, format_share
from collbench.report import wording
from collbench.report.blocks import Blocks, Column, Heading, below, items, left, section, table
from collbench.report.labels import (
    BY_RULE,
    between,
    common_parts,
    counted,
    interval_text,
    label,
    on_both_sides,
    parts_on_both_sides,
    with_interval,
)
from collbench.report.notices import sentence, sentences

# Verdict of a case → a word for it, the gravest first.
WORDS = {SLOWER: "slower", FASTER: "faster", SAME: "same", INCONCLUSIVE: "undecided"}
VERDICTS = (*WORDS,)
CORRECTED = (
    "Intervals are corrected for the number of cases. In brackets: how many more launches on each side would decide an "
    "undecided case with a probability of 80 %, if ratio and scatter stay as measured."
)
# Hardware facts that the headline names if they differ, and values that mean that a run does not have the fact.
HARDWARE = {"cpu.model": "CPU", "gpus": "GPU"}
UNKNOWN = frozenset({"-", "", "none", NOT_AVAILABLE})
# Maximum characters of a fact; longer values, such as a commit with its branch, would make the table too wide.
LONGEST_FACT = 60
# Changes whose bound is below this share are printed with a decimal.
FINE = 0.02
# From this factor on, a change is given as a factor and not in percent.
MANY_TIMES = 2
BIAS = "A verdict is reached when a change looks large, so the ratio at the verdict tends to be too large."
# An interval of a ratio that spans more than this factor is not shown.
MOST_SPANNED = 1000
# Lists of cases that have a time on one side only, and their titles.
LISTS = {"broken": "Measured before, failed after", "only_before": "Only before", "only_after": "Only after"}


# ── two runs, or two sides that took turns ───────────────────────────────────────────────────────
def document(result: Comparison) -> Blocks:
    """Return the blocks for a file: the verdict, the evidence for it, and the method."""
    blocks: Blocks = [headline(result), Heading(f"{result.before} → {result.after}"), *_body(result)]
    method = [f"The smallest change that matters is {result.min_change * 100:g} %. {CORRECTED}"]
    if result.whole is not None:
        method.insert(0, f"The whole: {result.whole.verdict}, {judgement_text(result.whole)}.")
    changed = [change for change in in_order(result.changes) if change.judgement.at_verdict]
    if turns := result.in_turns:
        if changed:
            later = counted(turns.fresh_pairs, "pair")
            method.append(f"Cases that changed have times and ratios of the {later} after the verdict. {BIAS}")
        how = "A and B take turns block by block, in random order"
        if turns.alternate is not None:
            how = f"A and B one after the other, in random order ({sentence(turns.alternate)})"
        ended = wording.ended(turns.ended, turns.budget_s)
        method.append(f"{turns.pairs} pairs of launches, {how}; the pair is the unit; {ended}. {sentence(turns.rule)}")
    sides = {"before": result.runs_before, "after": result.runs_after}
    several = (f"{side}: {', '.join(names)}" for side, names in sides.items() if len(names) > 1)
    at_verdict = items(f"{on_both_sides(change)}: {judgement_text(change.judgement)}" for change in changed)
    return [*blocks, *section("How it was decided", [*method, *items(several), *at_verdict, *_reasons(result)])]


def terminal(result: Comparison) -> Blocks:
    """Return the blocks for a terminal: the evidence for the verdict, and at the end the verdict."""
    sides = f"{result.before}\n{result.after}" if result.in_turns else f"{result.before} → {result.after}"
    return [sides, *_body(result), headline(result)]


def _body(result: Comparison) -> Blocks:
    blocks = _tables(in_order(result.changes), result.in_turns)
    blocks += below("What else differs:", table(result.differences, DIFFERENCES))
    for name, title in LISTS.items():
        unpaired: Sequence[Unpaired] = getattr(result, name)
        reasons = grouped(unpaired, wording.absence)
        lines = (f"{'; '.join(label(item.case) for item in group)}: {reason}" for reason, group in reasons.items())
        blocks += below(f"{title}:", items(lines))
    return [*blocks, *below("Warnings:", items(sentences(result.notices)))]


def in_order(changes: Sequence[Change]) -> list[Change]:
    """Return the changes in the order of the tables."""
    return sorted(changes, key=lambda change: case_order(change.case))


def headline(result: Comparison) -> str:
    """Format the verdict as `SLOWER by 13 % overall [3 – 25 %]; 11 cases slower, 5 faster, 2 undecided`."""
    counts = Counter(change.verdict for change in result.changes)
    named = [(counts[verdict], WORDS[verdict]) for verdict in VERDICTS if counts[verdict]]
    cases = ", ".join(f"{count} {word}" for count, word in named)
    if named:  # `11 cases slower, 5 faster`
        cases = f"{counted(named[0][0], 'case')} {cases.partition(' ')[2]}"
    index = result.whole or (result.changes[0].judgement if len(result.changes) == 1 else None)
    # What a change rests on.
    assumption = ", if the machine was as steady between the runs as between launches" if result.assumes_steady else ""
    if index is None:
        short = result.in_turns is not None and result.in_turns.pairs == 0
        nothing = "no pair of launches was completed" if short else "no case has times on both sides"
        parts = [f"{result.verdict}: {cases or nothing}"]
    elif index.verdict == result.verdict and result.verdict in {SLOWER, FASTER}:
        parts = [f"{result.verdict}{_size(index, result.in_turns)}{assumption}", cases]
    else:
        limits = between(*map(percent, (index.ratio.low, index.ratio.high)))
        time = f"time {percent(index.ratio.value)}" + (f" [{limits}]" if _bounded(index.ratio).known else "")
        parts = [f"{result.verdict}: {cases}{assumption}", f"overall {WORDS[index.verdict]}, {time}"]
    if result.broken:
        parts.insert(0, f"FAILED: {counted(len(result.broken), 'case')} that did not fail before")
    if result.lost:
        parts.insert(0, f"INCOMPLETE: {counted(len(result.lost), 'case')} of {result.before} not measured yet after")
    if result.virtual:
        parts.append(f"virtual GPUs: times {BY_RULE}")
    parts += sentences(result.remarks)
    # A different CPU or GPU is the most likely explanation of a change.
    for other in result.differences:
        if other.fact in HARDWARE and UNKNOWN.isdisjoint((other.before, other.after)):
            parts.append(f"another {HARDWARE[other.fact]}: {other.before} → {other.after}")
    return "; ".join(filter(None, parts))


def _size(judged: Judgement, turns: InTurns | None) -> str:
    """Format the size of a change, of which there is one estimate.

    Of sides that took turns it is over the pairs after the verdict, whatever they show. Without such pairs there is
    no estimate that is not too large, only a bound: ` by at least 3 % overall`.
    """
    if turns is None or judged.at_verdict is None:
        return _by(judged.ratio, bound=turns is not None)
    after = f", over {counted(turns.fresh_pairs, 'pair')} after the verdict"
    if judged.ratio.low > 1 or judged.ratio.high < 1:
        return _by(judged.ratio) + after
    limits = between(*map(percent, (judged.ratio.low, judged.ratio.high)))
    return f": time {percent(judged.ratio.value)} overall [{limits}]{after}"


def _by(ratio: Interval, bound: bool = False) -> str:
    """Format a change as ` by 13 % overall [3 – 25 %]`; a large change as `: 59 times as fast overall [56 – 63]`.

    bound: return only the limit of the interval that is closest to no change.
    """
    least, most = sorted(abs(end - 1) for end in (ratio.low, ratio.high))
    show: Callable[[float], str] = partial(format_share, digits=1 if least < FINE else 0)
    before, after, value = " by ", "", abs(ratio.value - 1)
    factor = max(ratio.value, 1 / ratio.value)
    if factor >= MANY_TIMES:
        least, most = sorted((ratio.low, ratio.high) if ratio.value > 1 else (1 / ratio.high, 1 / ratio.low))
        show, before, value = "{:.2g}".format, ": ", factor
        after = f" times as {'long' if ratio.value > 1 else 'fast'}"
    if bound and ratio.known:
        return f"{before}at least {show(least)}{after} overall"
    interval = f" [{between(show(least), show(most))}]" if ratio.known else ""
    return f"{before}{show(value)}{after} overall{interval}"


def judgement_text(judged: Judgement) -> str:
    """Format a judgement as `ratio 1.210 [1.100 – 1.330] (97.5 %), p 0.002: p ≤ 0.025`, as it was at the verdict."""
    p = "" if judged.p is None else f", p {judged.p:.2g}"
    level = f" ({judged.level * 100:.4g} %)" if judged.level is not None else ""
    ratio = judged.at_verdict or judged.ratio
    return f"ratio {with_interval(ratio, format_ratio)}{level}{p}: {sentence(judged.reason)}"


def _short(ratio: float) -> str:
    """Format a ratio with two or three digits: `28`, `3.6`, `1.04`, `0.35`."""
    decimals = 0 if ratio >= 9.95 else 1 if ratio >= 1.995 else 2
    return f"{ratio:.2g}" if ratio < 0.0995 else f"{ratio:.{decimals}f}"


def _bounded(ratio: Interval) -> Interval:
    """Return the ratio, without its interval if that spans more than MOST_SPANNED, as after two pairs of launches."""
    spans = ratio.known and ratio.high > MOST_SPANNED * ratio.low
    return Interval(ratio.value, ratio.value, ratio.value, IntervalKind.NONE) if spans else ratio


def _tables(changes: Sequence[Change], turns: InTurns | None) -> Blocks:
    """Return one row per change: times, ratio with its interval, verdict. Common parts of names are above the table.

    A second table has the time over the reference, of cases that have one.
    """
    common, short = common_parts([parts_on_both_sides(change.case, change.other) for change in changes])
    rows = list(zip(short, changes, strict=True))
    before, after = ("A", "B") if turns else ("before", "after")
    columns: list[Column[tuple[str, Change]]] = [
        left("case", lambda row: row[0]),
        Column(before, lambda row: format_seconds(row[1].before.value)),
        Column(after, lambda row: format_seconds(row[1].after.value)),
        Column(f"{after} / {before}", lambda row: _ratio(row[1], turns)),
        left("", lambda row: _verdict(row[1])),
    ]
    exposed = [(name, change.exposed) for name, change in rows if change.exposed is not None]
    explained = "Over the reference (less the reference, such as the same step without synchronisation):"
    blocks = [*([common] if common else []), *table(rows, columns)]
    return [*blocks, *below(explained, table(exposed, EXPOSED))]


def _ratio(change: Change, turns: InTurns | None) -> str:
    """Format the ratio of a change with its interval, or as a bound if there is no estimate of its size (`_size`)."""
    ratio = change.ratio
    if turns and change.verdict in {SLOWER, FASTER} and change.judgement.at_verdict is None:
        return f"at least {_short(ratio.low)}" if ratio.value > 1 else f"at most {_short(ratio.high)}"
    return with_interval(_bounded(ratio), _short)


def _verdict(change: Change) -> str:
    """Return the verdict; if undecided, also the further launches per side for a verdict with a probability of 80 %."""
    if change.verdict != INCONCLUSIVE:
        return change.verdict
    more = change.judgement.further_launches
    estimated = _bounded(change.ratio).kind == IntervalKind.OVER_LAUNCHES and more
    return f"undecided ({more} more)" if estimated else "undecided"


def _reasons(result: Comparison) -> Blocks:
    """List the reasons for the verdicts, each reason once with its cases."""
    remarks = grouped(in_order(result.changes), lambda change: sentence(change.judgement.reason))
    everywhere = len(result.changes)
    return items(
        text if len(changes) == everywhere else f"{text}: {', '.join(map(on_both_sides, changes))}"
        for text, changes in remarks.items()
    )


def direction(exposed: ExposedChange) -> str:
    """Return `more` or `less`; else `not resolved`, with the kind of the interval unless that is over launches."""
    if exposed.resolved:
        return "more" if exposed.difference.value > 0 else "less"
    kind = exposed.difference.kind
    return "not resolved" if kind == IntervalKind.OVER_LAUNCHES else f"not resolved, {kind}"


EXPOSED: list[Column[tuple[str, ExposedChange]]] = [
    left("case", lambda row: row[0]),
    Column("before", lambda row: format_seconds(row[1].before.value)),
    Column("after", lambda row: format_seconds(row[1].after.value)),
    Column("after − before", lambda row: "+" * (row[1].difference.value > 0) + format_seconds(row[1].difference.value)),
    Column("interval", lambda row: interval_text(row[1].difference, format_seconds)),
    left("", lambda row: direction(row[1])),
]
DIFFERENCES: list[Column[EnvironmentDifference]] = [
    left("", lambda row: row.fact),
    left("before", lambda row: row.before[:LONGEST_FACT]),
    left("after", lambda row: row.after[:LONGEST_FACT]),
]


# ── many runs ────────────────────────────────────────────────────────────────────────────────────
def trend_document(trends: Sequence[Trend], runs: Sequence[str]) -> Blocks:
    """Return the number of cases that changed level, the runs with their numbers, and one row per case."""
    numbers: list[Column[tuple[int, str]]] = [Column("", lambda row: str(row[0])), left("run", lambda row: row[1])]
    columns: list[Column[Trend]] = [
        left("case", lambda trend: label(trend.case)),
        Column("runs", lambda trend: str(len(trend.runs))),
        Column("first", lambda trend: format_seconds(trend.times_s[0].value)),
        Column("last", lambda trend: format_seconds(trend.times_s[-1].value)),
        Column("last / first", lambda trend: format_ratio(trend.times_s[-1].value / trend.times_s[0].value)),
        left("level", lambda trend: _levels(trend, runs)),
    ]
    changed = sum(bool(trend.changed) for trend in trends)
    headline = f"{changed} of {counted(len(trends), 'case')} changed level over {len(runs)} runs"
    return [headline, *table(enumerate(runs, 1), numbers), *table(trends, columns)]


def _levels(trend: Trend, runs: Sequence[str]) -> str:
    """Describe each change of level: its size, and the run from which it applies."""
    changes = []
    for level in trend.changed:
        alone = " (only the last run so far)" if level.first == len(trend.runs) - 1 else ""
        changes.append(f"{percent(level.ratio)} from run {runs.index(level.run) + 1} on{alone}")
    return "; ".join(changes) or "no change shown"


def percent(ratio: float) -> str:
    """Format a ratio as a change: `+31 %`."""
    return f"{ratio - 1:+.0%}".replace("%", " %")
