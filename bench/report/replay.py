"""Write how the communication of a recorded job compares with the same calls made here.

In: a `ReplayedStep`. Out: Markdown. Computes only shares and layout.
"""

from bench.model.conclusions import ReplayedKind, ReplayedStep
from bench.model.units import format_bytes, format_rounded_bytes, format_seconds
from bench.report import markdown
from bench.report.labels import dtype_words, ranks_text
from bench.report.tables import NOTHING, interval_text

HEADERS = ["calls of a step", "number", "bytes", "recorded", "here", "here / recorded", "share"]
# Kinds of calls in a table; the rest are one row.
MOST_KINDS = 12
EXPLAINED = (
    "Times of the calls of one step on the rank that communicates longest, with waiting for others that come late. "
    "While several calls are under way, the time is counted for the one that ends first."
)


def section(step: ReplayedStep) -> list[str]:
    """Parts of the report on one replay."""
    parts = [f"## The recorded job, made again on {ranks_text(step.case.world_size)}", sentence(step)]
    parts += [table(step), EXPLAINED]
    if step.changes:
        parts += ["Not as recorded:", markdown.lines(step.changes)]
    return parts


def sentence(step: ReplayedStep) -> str:
    """The communication of a step, recorded and here, and what most of it is."""
    here = f"here {format_seconds(step.time.value)} {interval_text(step.time, format_seconds)}"
    recorded = "" if step.recorded_s is None else f"recorded {format_seconds(step.recorded_s)}, "
    if step.recorded_s is not None and step.without_time:
        recorded = f"recorded {format_seconds(step.recorded_s)} without {step.without_time} calls that have no time, "
    if step.recorded_s is None:
        recorded = "its times were not recorded; "
    largest, total = step.kinds[0], sum(kind.time.value for kind in step.kinds)
    share = largest.time.value / total if total else 0.0
    times = f"{largest.calls} × " if largest.calls > 1 else ""
    return f"communication of one step: {recorded}{here}; {share:.0%} of it is {times}{name(largest)}"


def name(kind: ReplayedKind) -> str:
    """Such as `all_gather of 33 MiB bfloat16 over 8 ranks`."""
    case = kind.case
    size = f" of {format_bytes(case.size_bytes)}" if case.size_bytes else ""
    return f"{case.op}{size} {' '.join(dtype_words(case))}".rstrip() + f" over {ranks_text(kind.ranks)}"


def table(step: ReplayedStep) -> str:
    """A row for each kind of call, the longest first."""
    total = sum(kind.time.value for kind in step.kinds)
    rows = [_row(kind, total) for kind in step.kinds[:MOST_KINDS]]
    rest = step.kinds[MOST_KINDS:]
    if rest:
        calls, moved = sum(kind.calls for kind in rest), sum(kind.calls * kind.case.size_bytes for kind in rest)
        time_s = sum(kind.time.value for kind in rest)
        text = f"{len(rest)} further kinds"
        rows.append([text, str(calls), format_rounded_bytes(moved), NOTHING, format_seconds(time_s), NOTHING])
        rows[-1].append(f"{time_s / total:.0%}")
    return markdown.table(rows, HEADERS, ["left", *["right"] * 6])


def _row(kind: ReplayedKind, total: float) -> list[str]:
    moved = kind.calls * kind.case.size_bytes
    here = f"{format_seconds(kind.time.value)} {interval_text(kind.time, format_seconds)}"
    return [
        name(kind),
        str(kind.calls),
        format_rounded_bytes(moved) if moved else NOTHING,
        NOTHING if kind.recorded_s is None else format_seconds(kind.recorded_s),
        here,
        f"{kind.time.value / kind.recorded_s:.2f}" if kind.recorded_s else NOTHING,
        f"{kind.time.value / total:.0%}" if total else NOTHING,
    ]
