"""Write what a recording of a job holds, and a sweep with its operations and sizes.

In: a `CallList`. Out: text.
"""

import json
from collections import Counter
from collections.abc import Sequence

from bench.catalog.dtypes import DTYPES
from bench.catalog.operations import OPERATIONS
from bench.model.recorded_calls import CallList, RecordedCall
from bench.model.units import format_bytes
from bench.report import markdown

HEADERS = ["rank", "operation", "dtype", "elements in", "elements out", "group", "number"]
ALIGN = ["right", "left", "left", "right", "right", "right", "right"]
# Ranks that are listed one by one.
SHOWN_RANKS = 4
UNKNOWN = "unknown"


def overview(found: CallList) -> str:
    """A row for each kind of call of each rank, and what was not recorded."""
    rows = []
    for one in found.ranks[:SHOWN_RANKS]:
        kinds = Counter(
            (call.operation, call.dtype, call.elements_in, call.elements_out, call.group_size) for call in one.calls
        )
        rows += [[one.rank, *kind, count] for kind, count in kinds.items()]
    shown = [[UNKNOWN if cell is None else str(cell) for cell in row] for row in rows]
    lines = [markdown.table(shown, HEADERS, ALIGN), ""]
    if len(found.ranks) > SHOWN_RANKS:
        lines.append(f"and {len(found.ranks) - SHOWN_RANKS} further ranks")
    total = sum(len(one.calls) for one in found.ranks)
    lines.append(f"{found.kind}: {total} calls of {_count(len(found.ranks), 'rank')}, {_count(found.steps, 'step')}")
    lines += [f"{what}: unknown for {count} of {total} calls" for what, count in found.unknown.items()]
    lines += [f"left out: {count} × {what}" for what, count in found.left_out.items() if count]
    return "\n".join([*lines, *found.notes])


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def as_config(found: CallList, source: str) -> str:
    """A sweep with the job's operations, dtypes and sizes. The job's own combinations are in its comments."""
    calls = [call for call in found.ranks[0].calls if _measurable(call)]
    kinds = Counter((call.operation, str(call.dtype), _size_bytes(call)) for call in calls)
    lines = [f"# The operations and sizes of {source}; the job's own combinations, with their number in the recording:"]
    lines += [f"#   {count} × {op} {dtype} {format_bytes(size)}" for (op, dtype, size), count in kinds.items()]
    world = found.world_size or 2
    lines += [
        f"backends: [{found.backend or 'gloo'}]",
        f"world_sizes: [{world}]",
        f"operations: {json.dumps(_distinct([op for op, _, _ in kinds]))}",
        f"dtypes: {json.dumps(_distinct([dtype for _, dtype, _ in kinds]))}",
        f"sizes: {json.dumps(sorted({size for _, _, size in kinds}))}",
    ]
    return "\n".join(lines)


def _distinct(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _measurable(call: RecordedCall) -> bool:
    known = call.operation in OPERATIONS and OPERATIONS[call.operation].typed and OPERATIONS[call.operation].sized
    return known and call.dtype is not None and bool(_size_bytes(call))


def _size_bytes(call: RecordedCall) -> int:
    """What `size` counts: the larger side, which all shares are in."""
    elements = max(call.elements_in or 0, call.elements_out or 0)
    return elements * DTYPES[call.dtype].itemsize if call.dtype else 0
