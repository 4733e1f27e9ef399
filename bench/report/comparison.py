"""Write comparisons of runs, for people: two runs, two sides in pairs, many runs, a run and a table.

In: a `Comparison`, `Trend` values or a `CheckedTable`. Out: Markdown, the verdict in its first line. Computes only
layout and counts. CSV, JSON and JUnit are in `machine_format`, pictures in `plots.comparison`.
"""

from collections import Counter
from collections.abc import Sequence

from bench.model.comparisons import (
    FASTER,
    INCONCLUSIVE,
    MOST_FURTHER_LAUNCHES,
    SAME,
    SLOWER,
    Change,
    CheckedTable,
    CheckVerdict,
    Comparison,
    ExposedChange,
    Judgement,
    Trend,
    Unpaired,
)
from bench.model.conclusions import Interval, IntervalKind
from bench.model.records import NOT_AVAILABLE, case_order
from bench.model.units import format_rate, format_ratio, format_seconds, format_share
from bench.report import markdown
from bench.report.labels import NOTHING, between, common_parts, counted, interval_text, label

# Verdict of a case → a word for it, the gravest first.
WORDS = {SLOWER: "slower", FASTER: "faster", SAME: "same", INCONCLUSIVE: "undecided"}
VERDICTS = (*WORDS,)
CHECK_VERDICTS = (CheckVerdict.FAIL, CheckVerdict.MISSING, CheckVerdict.INCONCLUSIVE, CheckVerdict.PASS)
TO_DECIDE = (
    "To decide: further launches on each side that bring a verdict with a probability of 80 %, if ratio and scatter "
    "stay as they are."
)
# Facts of hardware that the first line names if they differ, and what stands for a fact that a run does not have.
HARDWARE = {"cpu.model": "CPU", "gpus": "GPU"}
UNKNOWN = frozenset({"-", "", "none", NOT_AVAILABLE})
# Characters of a fact; longer values, such as a commit with its branch, would make the table too wide.
LONGEST_FACT = 60
# From this factor on, a change is told in times and not in percent.
MANY_TIMES = 2
# Lists of cases that have a time on one side only, and their titles.
LISTS = {"broken": "Measured before, failed after", "only_before": "Only before", "only_after": "Only after"}


# ── two runs, or two sides that took turns ───────────────────────────────────────────────────────
def document(result: Comparison) -> str:
    """Verdict, tables, differences of machine and settings, cases on one side only, how measured, warnings."""
    changes = in_order(result.changes)
    parts = [headline(result), f"## {result.before} → {result.after}"]
    if result.whole is not None:
        whole = result.whole
        text = f"The run as a whole: {whole.verdict}, index after / before {_ratio_and_p(whole)}: {whole.reason}."
        parts.append(f"{text} The smallest change that matters is {result.min_change * 100:g} %.")
    if changes:
        parts += _tables(changes)
    if result.differences:
        rows = [[name, old[:LONGEST_FACT], new[:LONGEST_FACT]] for name, old, new in result.differences]
        parts += ["What else differs:", markdown.table(rows, ["", "before", "after"], "lll")]
    for name, title in LISTS.items():
        reasons: dict[str, list[str]] = {}
        unpaired: Sequence[Unpaired] = getattr(result, name)
        for case in unpaired:
            reasons.setdefault(" ".join(case.reason.split()), []).append(case.name)
        if reasons:
            lines = [f"{'; '.join(names)}: {reason}" for reason, names in reasons.items()]
            parts.append(f"{title}:\n\n{markdown.lines(lines)}")
    if result.ended:
        how = "A and B take turns block by block, in random order"
        if result.alternate is not None:
            how = f"A and B one after the other, in random order ({result.alternate})"
        unit = f"{result.pairs} pairs of launches, {how}; the pair is the unit"
        parts.append(f"How measured: {unit}; {result.ended} · {result.rule}")
    if result.warnings:
        parts.append(f"Warnings:\n\n{markdown.lines(result.warnings)}")
    return "\n\n".join(parts)


def in_order(changes: Sequence[Change]) -> list[Change]:
    """The changes in the order of the tables."""
    return sorted(changes, key=lambda change: case_order(change.case))


def headline(result: Comparison) -> str:
    """Such as `SLOWER by 13 % overall [3 – 25 %]; 11 cases slower, 5 faster, 2 undecided`."""
    counts = Counter(change.verdict for change in result.changes)
    named = [(counts[verdict], WORDS[verdict]) for verdict in VERDICTS if counts[verdict]]
    cases = ", ".join(f"{count} {word}" for count, word in named)
    if named:  # `11 cases slower, 5 faster`
        cases = f"{counted(named[0][0], 'case')} {cases.partition(' ')[2]}"
    index = result.whole or next((change for change in result.changes if len(result.changes) == 1), None)
    if index is None:
        parts = [f"{result.verdict}: {cases or 'no case has times on both sides'}"]
    elif index.verdict == result.verdict and result.verdict in {SLOWER, FASTER}:
        parts = [f"{result.verdict}{_by(index.ratio)}", cases]
    else:
        ends = between(*map(percent, (index.ratio.low, index.ratio.high)))
        time = f"time {percent(index.ratio.value)}" + (f" [{ends}]" if index.ratio.known else "")
        parts = [f"{result.verdict}: {cases}", f"overall {WORDS[index.verdict]}, {time}"]
    if result.lost:
        parts.insert(0, f"INCOMPLETE: {counted(len(result.lost), 'case')} of {result.before} not measured yet after")
    # Another CPU or GPU explains a change before anything else does.
    for fact, before, after in result.differences:
        if fact in HARDWARE and UNKNOWN.isdisjoint((before, after)):
            parts.append(f"another {HARDWARE[fact]}: {before} → {after}")
    return "; ".join(filter(None, parts))


def _by(ratio: Interval) -> str:
    """Such as ` by 13 % overall [3 – 25 %]`; of large changes `: 59 times as fast overall [56 – 63]`."""
    ends = sorted(abs(end - 1) for end in (ratio.low, ratio.high))
    number, interval = f" by {format_share(abs(ratio.value - 1))} overall", between(*map(format_share, ends))
    factor = max(ratio.value, 1 / ratio.value)
    if factor >= MANY_TIMES:
        ends = sorted((ratio.low, ratio.high) if ratio.value > 1 else (1 / ratio.high, 1 / ratio.low))
        number = f": {factor:.2g} times as {'long' if ratio.value > 1 else 'fast'} overall"
        interval = between(*(f"{end:.2g}" for end in ends))
    return number + (f" [{interval}]" if ratio.known else "")


def judgement_text(judged: Change | Judgement) -> str:
    """Such as `ratio 1.210 [1.100 – 1.330] (97.5 %), p 0.002: p ≤ 0.025`."""
    return f"ratio {_ratio_and_p(judged)}: {judged.reason}"


def _ratio_and_p(judged: Change | Judgement) -> str:
    p = "" if judged.p is None else f", p {judged.p:.2g}"
    level = f" ({_percent(judged.level)})" if judged.level is not None else ""
    return f"{_ratio(judged.ratio)}{level}{p}"


def _ratio(ratio: Interval) -> str:
    """Such as `1.210 [1.100 – 1.330]`."""
    return f"{format_ratio(ratio.value)} {interval_text(ratio, format_ratio)}"


def _percent(level: float | None) -> str:
    """The level of an interval, such as `97.5 %`."""
    return NOTHING if level is None else f"{level * 100:.4g} %"


def _tables(changes: Sequence[Change]) -> list[str]:
    """One row a change: verdict, times, ratio with its interval; below it the reasons and notes, each once.

    What the names of all have in common stands above the table. Then: which part of the times changed, in the cases
    that did; and the exposed communication of cases that compute, too.
    """
    common, short = common_parts([change.name for change in changes])
    rows, remarks, where, exposed = [], dict[str, list[str]](), [], []
    for name, change in zip(short, changes, strict=True):
        times = [format_seconds(change.before.value), format_seconds(change.after.value)]
        ratio = _ratio(change.ratio)
        p = NOTHING if change.p is None else f"{change.p:.2g}"
        rows.append([name, change.verdict, *times, ratio, _percent(change.level), p, _to_decide(change)])
        if change.verdict in {SLOWER, FASTER}:  # the interval shows the reason
            where += [f"{name}: {change.where}"] if change.where else []
        elif change.reason:
            remarks.setdefault(change.reason, []).append(name)
        if change.note:
            remarks.setdefault(change.note, []).append(name)
        if change.exposed is not None:
            difference = change.exposed.difference
            of_step = [format_seconds(side.value) for side in (change.exposed.before, change.exposed.after)]
            sign = "+" if difference.value > 0 else ""
            moved = [f"{sign}{format_seconds(difference.value)}", interval_text(difference, format_seconds)]
            exposed.append([name, *of_step, *moved, direction(change.exposed)])
    headers = ["case", "verdict", "before", "after", "after / before", "level", "p", "to decide"]
    parts = [f"All: {common}"] if common else []
    parts.append(markdown.table(rows, headers, "llrrrrrr"))
    if any(change.verdict == INCONCLUSIVE for change in changes):
        parts.append(TO_DECIDE)
    undecided = [name for name, change in zip(short, changes, strict=True) if change.verdict == INCONCLUSIVE]
    lines = []
    for text, names in remarks.items():
        which = f"{text}: {', '.join(names)}"
        lines.append(text if len(names) == len(changes) else f"undecided: {text}" if names == undecided else which)
    parts += [markdown.lines(lines)] if lines else []
    parts += [f"Where it changed:\n\n{markdown.lines(where)}"] if where else []
    if exposed:
        headers = ["case", "before", "after", "after − before", "interval", ""]
        parts.append("Exposed communication (a step less the same step without synchronisation):")
        parts.append(markdown.table(exposed, headers, "lrrrrl"))
    return parts


def _to_decide(change: Change) -> str:
    if change.verdict != INCONCLUSIVE or change.ratio.kind != IntervalKind.OVER_LAUNCHES:
        return NOTHING
    return str(change.further_launches or f"> {MOST_FURTHER_LAUNCHES}")


def direction(exposed: ExposedChange) -> str:
    """`more` or `less`; why not, where that is not resolved."""
    if exposed.resolved:
        return "more" if exposed.difference.value > 0 else "less"
    kind = exposed.difference.kind
    return "not resolved" if kind == IntervalKind.OVER_LAUNCHES else f"not resolved, {kind}"


# ── many runs ────────────────────────────────────────────────────────────────────────────────────
def trend_document(trends: Sequence[Trend], runs: Sequence[str]) -> str:
    """How many cases changed their level, the runs with their numbers, one row per case."""
    rows = []
    for trend in trends:
        changes = []
        for level in trend.changed:
            alone = " (only the last run so far)" if level.first == len(trend.runs) - 1 else ""
            first = runs.index(trend.runs[level.first]) + 1
            changes.append(f"{percent(level.ratio)} from run {first} on{alone}")
        times = [trend.times_s[0], trend.times_s[-1]]
        rows.append(
            [
                label(trend.case),
                str(len(trend.runs)),
                *(format_seconds(time.value) for time in times),
                format_ratio(times[1].value / times[0].value),
                "; ".join(changes) or "steady",
            ]
        )
    changed = sum(bool(trend.changed) for trend in trends)
    names = markdown.table([[str(number), name] for number, name in enumerate(runs, 1)], ["", "run"], "rl")
    headers = ["case", "runs", "first", "last", "last / first", "level"]
    table = markdown.table(rows, headers, "lrrrrl")
    total = counted(len(trends), "case")
    return "\n\n".join([f"{changed} of {total} changed level over {len(runs)} runs", names, table])


def percent(ratio: float) -> str:
    """A ratio as a change: `+31 %`."""
    return f"{ratio - 1:+.0%}".replace("%", " %")


# ── a run against a table ────────────────────────────────────────────────────────────────────────
def checks_document(result: CheckedTable, run: str) -> str:
    """The verdict, then one row for each line of the table of expectations."""
    checks = result.checks
    counts = Counter(check.verdict for check in checks)
    counted = ", ".join(f"{counts[verdict]} {verdict.lower()}" for verdict in CHECK_VERDICTS if counts[verdict])
    rows = [
        [
            label(check.case),
            check.verdict,
            format_rate(check.expected),
            f"{check.tolerance * 100:g} %",
            format_rate(check.measured.value) if check.measured else NOTHING,
            interval_text(check.measured, format_rate) if check.measured else NOTHING,
            check.note,
        ]
        for check in checks
    ]
    headers = ["case", "verdict", "expected GB/s", "tolerance", "busbw GB/s", "95 % interval", "note"]
    parts = [f"{result.verdict}: {run}, {len(checks)} expected: {counted}; {result.reason}"]
    if result.index is not None and len(checks) > 1:
        parts.append(f"The table as a whole: measured / least allowed {_ratio(result.index)}")
    parts.append(markdown.table(rows, headers, "llrrrrl"))
    sources = [source for source in dict.fromkeys(check.source for check in checks) if source]
    return "\n\n".join([*parts, *([f"Expected by {'; '.join(sources)}"] if sources else [])])
