"""Write comparisons of runs, for people: two runs, two sides in pairs, many runs, a run and a table.

In: a `Comparison`, a `PairedComparison`, `Trend` values or a `CheckedTable`. Out: Markdown, the verdict in its first
line. Computes only layout and counts. CSV, JSON and JUnit are in `machine_format`, pictures in `plots.comparison`.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from bench.model.comparisons import CheckedTable, Comparison, Judgement, PairedComparison, Trend
from bench.model.conclusions import Interval
from bench.model.records import NOT_AVAILABLE, case_order
from bench.model.units import format_rate, format_seconds
from bench.report import markdown
from bench.report.labels import NOTHING, common_parts, interval_text, label

VERDICTS = ("SLOWER", "FASTER", "SAME", "INCONCLUSIVE")
CHECK_VERDICTS = ("FAIL", "MISSING", "INCONCLUSIVE", "PASS")
# Facts of hardware that the first line names if they differ, and what stands for a fact that a run does not have.
HARDWARE = {"cpu.model": "CPU", "gpus": "GPU"}
UNKNOWN = frozenset({"-", "", "none", NOT_AVAILABLE})
# Characters of a fact; longer values, such as a commit with its branch, would make the table too wide.
LONGEST_FACT = 60


class Judged(Protocol):
    """The comparison of one thing in two runs. before, after: seconds; the other properties as in `Judgement`."""

    @property
    def before(self) -> Interval: ...
    @property
    def after(self) -> Interval: ...
    @property
    def ratio(self) -> Interval: ...
    @property
    def verdict(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def p(self) -> float | None: ...
    @property
    def further_launches(self) -> int | None: ...
    @property
    def note(self) -> str: ...


class JudgedRuns(Protocol):
    """A comparison of two runs of any benchmark; the properties as in `Comparison`."""

    @property
    def verdict(self) -> str: ...
    @property
    def min_change(self) -> float: ...
    @property
    def differences(self) -> Sequence[tuple[str, str, str]]: ...
    @property
    def changes(self) -> Sequence[Judged]: ...
    @property
    def whole(self) -> Judgement | None: ...


# ── two runs ─────────────────────────────────────────────────────────────────────────────────────
def document(result: Comparison) -> str:
    """Verdict, table, differences of machine and settings, cases in one run only, warnings."""
    changes = sorted(result.changes, key=lambda change: case_order(change.case))
    parts = [headline(result), f"## {result.before} → {result.after}", *whole_text(result.whole)]
    parts.append(verdict_table("case", [label(change.case) for change in changes], changes))
    parts += where_lines(
        [label(change.case) for change in result.changes], [change.where for change in result.changes], result.changes
    )
    parts += differing(result.differences)
    for where, cases in (
        ("Failed after, measured before", result.broken),
        ("Only before", result.only_before),
        ("Only after", result.only_after),
    ):
        if cases:
            parts.append(f"{where}: {', '.join(label(case) for case in cases)}")
    return "\n\n".join([*parts, *warning_list(result.warnings)])


def pairs_document(result: PairedComparison) -> str:
    """Of two sides measured in pairs of launches: as `document`, and how it was measured."""
    parts = [headline(result), f"## {result.before} → {result.after}", *whole_text(result.whole)]
    if result.changes:
        names = [change.name for change in result.changes]
        parts.append(verdict_table("case", names, result.changes))
        parts += where_lines(names, [change.where for change in result.changes], result.changes)
    if result.broken:
        parts.append(f"Failed on side B: {', '.join(result.broken)}")
    parts += differing(result.differences)
    parts.append(
        f"How measured: {result.pairs} pairs of launches, A and B in random order; the pair is the unit; "
        f"{result.ended} · {result.rule}"
    )
    return "\n\n".join([*parts, *warning_list(result.warnings)])


def headline(result: JudgedRuns) -> str:
    """Such as `SLOWER: 2 of 18 cases slower; 16 same; the whole slower; smallest change that matters 5 %`."""
    counts = Counter(change.verdict for change in result.changes)
    first, *others = sorted(VERDICTS, key=lambda verdict: verdict != result.verdict)
    parts = [
        f"{counts[first]} of {len(result.changes)} case{'' if len(result.changes) == 1 else 's'} {first.lower()}",
        ", ".join(f"{counts[verdict]} {verdict.lower()}" for verdict in others if counts[verdict]),
        f"the whole {result.whole.verdict.lower()}" if result.whole else "",
        f"smallest change that matters {result.min_change * 100:g} %",
    ]
    # Another CPU or GPU explains a change before anything else does.
    for fact, before, after in result.differences:
        if fact in HARDWARE and UNKNOWN.isdisjoint((before, after)):
            parts.append(f"another {HARDWARE[fact]}: {before} → {after}")
    return f"{result.verdict}: {'; '.join(filter(None, parts))}"


def judgement_text(judged: Judged | Judgement) -> str:
    """Such as `ratio 1.210 [1.100 – 1.330], p 0.002: the interval lies above 1`."""
    return f"ratio {_ratio_and_p(judged)}: {judged.reason}"


def _ratio_and_p(judged: Judged | Judgement) -> str:
    p = "" if judged.p is None else f", p {judged.p:.2g}"
    return f"{judged.ratio.value:.3f} {interval_text(judged.ratio, '{:.3f}'.format)}{p}"


def whole_text(whole: Judgement | None) -> list[str]:
    """The index of the run as a whole, with its interval and the reason of its verdict; empty if there is none."""
    if whole is None:
        return []
    return [f"The run as a whole: {whole.verdict}, index after / before {_ratio_and_p(whole)}: {whole.reason}."]


def verdict_table(what: str, names: Sequence[str], changes: Sequence[Judged]) -> str:
    """One row per change: verdict, times, ratio with its interval; below it the reasons and notes, each once.

    names: of the changes; what they have in common stands above the table. what: the header of their column.
    """
    common, short = common_parts(names)
    rows, remarks = [], dict[str, list[str]]()
    for name, change in zip(short, changes, strict=True):
        times = [format_seconds(change.before.value), format_seconds(change.after.value)]
        ratio = f"{change.ratio.value:.3f} {interval_text(change.ratio, '{:.3f}'.format)}"
        rows.append([name, change.verdict, *times, ratio])
        if change.verdict not in {"SLOWER", "FASTER"} and change.reason:  # else the interval shows the reason
            remarks.setdefault(change.reason, []).append(f"{name}{_further_text(change)}")
        if change.note:
            remarks.setdefault(change.note, []).append(name)
    headers = [what, "verdict", "before", "after", "after / before"]
    table = markdown.table(rows, headers, ["left", "left", *["right"] * 3])
    noted = markdown.lines(f"{text}: {', '.join(called)}" for text, called in remarks.items())
    return "\n\n".join(filter(None, [f"All: {common}" if common else "", table, noted]))


def _further_text(change: Judged) -> str:
    """How many further launches would decide; empty if decided, or if there is no interval over launches."""
    if change.verdict != "INCONCLUSIVE" or change.ratio.kind != "over launches":
        return ""
    return f" ({f'about {change.further_launches}' if change.further_launches else 'over 200'} further launches)"


def where_lines(names: Sequence[str], where: Sequence[str], changes: Sequence[Judged]) -> list[str]:
    """Which part of the times changed in the cases that did. names, where: of each change; where is mostly empty."""
    _, short = common_parts(names)
    lines = [
        f"{name}: {text}"
        for name, text, change in zip(short, where, changes, strict=True)
        if text and change.verdict in {"SLOWER", "FASTER"}
    ]
    return [f"Where it changed:\n\n{markdown.lines(lines)}"] if lines else []


def differing(differences: Sequence[tuple[str, str, str]]) -> list[str]:
    """A table of what else differs: machine, software, settings. Empty if nothing does."""
    rows = [[name, old[:LONGEST_FACT], new[:LONGEST_FACT]] for name, old, new in differences]
    return ["What else differs:", markdown.table(rows, ["", "before", "after"], ["left"] * 3)] if rows else []


def warning_list(warnings: Sequence[str]) -> list[str]:
    """The warnings on a comparison; empty if there are none."""
    return [f"Warnings:\n\n{markdown.lines(warnings)}"] if warnings else []


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
                f"{times[1].value / times[0].value:.3f}",
                "; ".join(changes) or "steady",
            ]
        )
    changed = sum(bool(trend.changed) for trend in trends)
    total = f"{len(trends)} case{'' if len(trends) == 1 else 's'}"
    names = markdown.table([[str(number), name] for number, name in enumerate(runs, 1)], ["", "run"], ["right", "left"])
    headers = ["case", "runs", "first", "last", "last / first", "level"]
    table = markdown.table(rows, headers, ["left", *["right"] * 4, "left"])
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
        ratio = interval_text(result.index, "{:.3f}".format)
        parts.append(f"The table as a whole: measured / least allowed {result.index.value:.3f} {ratio}")
    return "\n\n".join([*parts, markdown.table(rows, headers, ["left", "left", *["right"] * 4, "left"])])
