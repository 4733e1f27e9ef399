"""Group summaries into tables and rows, and skips by reason; write the notes that explain a table.

In: summaries, cases, skips. Out: groups with titles, rows, sentences. Computes no statistics and no layout.
"""

from collections.abc import Sequence
from itertools import groupby

from bench.catalog.backends import BACKENDS
from bench.catalog.dtypes import dtype_named
from bench.catalog.operations import OPERATIONS, heaviest_bytes, ranks_together, size_unit
from bench.model.conclusions import Summary
from bench.model.records import Case, Skip
from bench.model.units import format_bytes
from bench.report.labels import attributes, size_text

# Smaller sizes are printed in bytes, so their rounding needs no explanation.
SMALLEST_ROUND = 1024
# Rounded sizes that a sentence names; the tables have them all.
MOST_NAMED = 3


def groups(summaries: Sequence[Summary]) -> list[tuple[str, list[Summary]]]:
    """(title, summaries) of each table. Summaries in a table differ in size and ranks only."""
    return [(name, list(members)) for name, members in groupby(summaries, key=lambda summary: title(summary.case))]


def title(case: Case) -> str:
    """Such as `all_reduce on gloo (float32, sum, in place, isolated, rotate buffers)`."""
    words = attributes(case)
    op, backend = words.pop("op"), words.pop("backend")
    return f"{op} on {backend} ({', '.join(words.values())})"


def size_rows(cases: Sequence[Case]) -> list[list[Case]]:
    """The rows of a table, by ascending size. cases: differ in size and ranks only.

    One size that was asked for is one row, also if it was rounded down differently for different numbers of ranks.
    """
    rows: list[list[Case]] = []
    for case in sorted(cases, key=lambda case: (case.size_bytes, case.world_size)):
        if rows and _one_size([*rows[-1], case]):
            rows[-1].append(case)
        else:
            rows.append([case])
    return rows


def row_name(row: Sequence[Case]) -> str:
    """The size of a row: `4 KiB`, or `≤ 4 KiB` if its sizes were rounded down to different values."""
    sizes = {case.size_bytes for case in row}
    return ("≤ " if len(sizes) > 1 else "") + size_text(max(sizes))


def _one_size(cases: Sequence[Case]) -> bool:
    """Whether all can be one size, rounded down: each world size once, each less than its unit below the largest."""
    largest = max(case.size_bytes for case in cases)
    if all(case.size_bytes == largest for case in cases):
        return True
    distinct = len({case.world_size for case in cases}) == len(cases)
    return distinct and all(largest - case.size_bytes < size_unit(case) for case in cases)


TWO_MODES = (
    "where a cell has two times, the first is the median of the fast mode; bandwidth, pictures and models take the "
    "median of all iterations, which may lie between the modes"
)


def notes_of(members: Sequence[Summary]) -> list[str]:
    """The notes on a table of these summaries."""
    two = any(summary.stall is not None for summary in members)
    return [*notes([summary.case for summary in members]), *[TWO_MODES] * two]


def notes(cases: Sequence[Case]) -> list[str]:
    """Notes for reading a table: what its size counts, how the backend differs, why there is no bandwidth, rounding."""
    first = cases[0]
    operation, backend = OPERATIONS[first.op], BACKENDS[first.backend]
    found = [f"size: {operation.size_means}"] if operation.sized else ["no data is moved, so there is no size"]
    if first.op in backend.implementation_notes:
        found.append(f"{backend.name} here: {backend.implementation_notes[first.op]}")
    if first.oversubscribed:
        found.append("no bandwidth: several ranks share a GPU, and the number would be mistaken for the GPU's")
    return [*found, *_imbalance(cases), *rounding(cases)]


def _imbalance(cases: Sequence[Case]) -> list[str]:
    """What an uneven division costs at best: no call ends before its busiest rank has sent and received all."""
    uneven = [case for case in cases if case.splits]
    if not uneven:
        return []
    case = max(uneven, key=lambda one: (one.world_size, one.size_bytes))
    even = case.size_bytes * (ranks_together(case) - 1) / ranks_together(case)
    times = heaviest_bytes(case) / even if even else 1.0
    return [
        f"{case.splits}: the busiest of {ranks_together(case)} ranks moves {times:.2f} times what it would if parts "
        "were equal; bus bandwidth is that of the busiest rank, which the link bounds"
    ]


def rounding(cases: Sequence[Case]) -> list[str]:
    """A sentence on sizes that were rounded down to whole equal shares; empty if all are round numbers."""
    odd = {(case.size_bytes, ranks_together(case)) for case in cases if _rounded(case)}
    if not odd:
        return []
    ordered = sorted(odd)
    named = ", ".join(f"{format_bytes(size)} for {n} ranks" for size, n in ordered[:MOST_NAMED])
    more = f" and {len(ordered) - MOST_NAMED} more" if len(ordered) > MOST_NAMED else ""
    return [f"sizes are rounded down to whole equal shares, as in nccl-tests: {named}{more}"]


def _rounded(case: Case) -> bool:
    size, whole = case.size_bytes, dtype_named(case.dtype).itemsize
    return size_unit(case) > whole and size >= SMALLEST_ROUND and bool(size % 1024 and size % 1000)


def by_reason(skips: Sequence[Skip]) -> list[tuple[str, list[Case]]]:
    """(reason, cases) of the skips, separately for each backend, in the order of the plan."""
    found: dict[tuple[str, str], list[Case]] = {}
    for skip in skips:
        found.setdefault((skip.reason, skip.case.backend), []).append(skip.case)
    return [(reason, cases) for (reason, _), cases in found.items()]
