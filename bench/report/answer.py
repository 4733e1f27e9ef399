"""Say in a few lines what a run found: the time of small messages, the best bandwidth, how far to trust them.

In: summaries and the warnings on the run. Out: Markdown lines for the top of the report and of what `run` prints.
Computes nothing: it picks the numbers that answer most questions.
"""

from collections.abc import Sequence
from statistics import median

from bench.model.conclusions import Interval, Summary
from bench.model.units import format_rate, format_seconds
from bench.report import groups
from bench.report.labels import ranks_text, size_text
from bench.report.tables import interval_text

# Groups of cases that the answer speaks of; the tables have all.
MOST_GROUPS = 3


def lines(summaries: Sequence[Summary], warnings: Sequence[str], verified: str) -> list[str]:
    """A line for each of the first groups of cases, then one on trust. verified: what is known of the data."""
    grouped = [(title, [s for s in members if s.time_s is not None]) for title, members in groups.groups(summaries)]
    measured = [(title, members) for title, members in grouped if members]
    names = _names([title for title, _ in measured])
    found = [f"**{name}**: {_of_group(members)}" for name, (_, members) in zip(names, measured, strict=True)]
    more = len(found) - MOST_GROUPS
    if more > 0:
        found[MOST_GROUPS:] = [f"{more} further kind{'s' if more > 1 else ''} of cases: see the tables below."]
    return [*found, f"**Trust**: {_trust(summaries, warnings, verified)}"] if found else []


def _names(titles: Sequence[str]) -> list[str]:
    """`all_reduce on gloo`; with what stands in brackets where several groups share that."""
    short = [title.partition(" (")[0] for title in titles]
    return [name if short.count(name) == 1 else title for name, title in zip(short, titles, strict=True)]


def _of_group(members: Sequence[Summary]) -> str:
    smallest = min(s.case.size_bytes for s in members)
    small = sorted((s for s in members if s.case.size_bytes == smallest), key=lambda s: s.case.world_size)
    size = f"{size_text(smallest)} takes " if smallest else ""
    text = size + ", ".join(f"{_time(s)} among {ranks_text(s.case.world_size)}" for s in small)
    best = max(members, key=lambda s: s.busbw or 0.0)
    if best.busbw:
        text += f". Bus bandwidth reaches {format_rate(best.busbw)} GB/s ({size_text(best.case.size_bytes)}, "
        text += f"{ranks_text(best.case.world_size)})"
    return f"{text}."


def shown_interval(summary: Summary) -> Interval:
    """The interval that tables show: of the fast mode where there are two."""
    assert summary.time_s is not None  # noqa: S101 - the callers see to it
    return summary.stall.fast if summary.stall is not None and summary.stall.fast is not None else summary.time_s


def _time(summary: Summary) -> str:
    shown, stall = shown_interval(summary), summary.stall
    of = "median " if stall is not None and stall.fast is None else ""
    interval = f" {interval_text(shown, format_seconds, of)}" if shown.known else ""
    slow = f" ({stall.share:.0%} of the calls {format_seconds(stall.slow_s)})" if stall is not None else ""
    return f"{format_seconds(stall.fast_s if stall else shown.value)}{interval}{slow}"


def _trust(summaries: Sequence[Summary], warnings: Sequence[str], verified: str) -> str:
    widths = sorted(s.time_s.relative_half_width for s in summaries if s.time_s is not None and s.time_s.known)
    wide = "no interval is known, as there is one launch only"
    if widths:
        wide = f"half of the 95 % intervals of medians are within ±{median(widths):.0%}, all within ±{widths[-1]:.0%}"
    caveats = f"{len(warnings)} caveat{'s' if len(warnings) != 1 else ''}" if warnings else "no caveats"
    return f"{wide}; {verified}; {caveats}."
