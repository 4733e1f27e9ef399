"""Write as text where the time of a recorded job went, and how long its steps take here.

In: conclusions. Out: blocks and sentences. Computes only shares and layout.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from collbench.catalog.collectives import OPERATIONS
from collbench.catalog.dtypes import DTYPES
from collbench.model.conclusions import Analysis
from collbench.model.records import Json, Run
from collbench.model.units import format_bytes, format_rate, format_rounded_bytes, format_seconds, format_share
from collbench.model.visible import visible
from collbench.packages.replay.conclusions import (
    RecordedJob,
    RecordedKind,
    RecordedTime,
    ReplayedKind,
    ReplayedStep,
    replays_of,
    together,
)
from collbench.packages.replay.recorded_calls import MISSING_CALLS, NAMED_RATE, NOT_IN_CALLS, CallList
from collbench.report import labels
from collbench.report.blocks import Blocks, Column, Heading, below, items, left, table
from collbench.report.labels import NOTHING, optional, ranks_text, seconds_text, with_interval
from collbench.report.notices import sentences
from collbench.report.rows import row
from collbench.report.tables import LEAST_RATE, rate_text
from collbench.report.text import Text

Kinds = Sequence[ReplayedKind]
# Most kinds of calls in a table; all further kinds share one row.
MOST_KINDS = 12
NEXT = "Look next at the work of {} before its calls: its input pipeline, its node, the clock of its GPU or CPU."
RECORDED_EXPLAINED = (
    "Time and calls per step (in all, if steps are not marked), mean over the recorded ranks. While several calls are "
    "under way, the time counts for the call that ends first."
)
LATE_ENDS = "Last to end its calls: {}, {} per step after the first rank's end, over all calls."
DIVIDED_EXPLAINED = "Moving: from the arrival of the last rank until the call ends. Waiting: the time before that."
RATE_EXPLAINED = f"GB/s: bus bandwidth, from {format_rate(LEAST_RATE)} on, while data moved, or while calls ran."
EXPOSED_EXPLAINED = "Exposed: the part in which nothing was computed."
REPLAY_EXPLAINED = "Time of a step, mean over ranks, recorded and made again; both include waiting for late ranks."


def sections(analysis: Analysis) -> Blocks:
    """Return the sections on the recorded job and on each of its replayed steps."""
    replays = replays_of(analysis)
    blocks: Blocks = []
    if replays.recorded is not None:
        blocks += [Heading("The recorded job"), *recorded_parts(replays.recorded)]
    for step in replays.steps:
        blocks += [Heading(f"The recorded job, made again on {ranks_text(step.case.world_size)}")]
        blocks += [*replay_table(step), REPLAY_EXPLAINED]
        if step.changes:
            blocks += ["Not as recorded:", *items(sentences(step.changes))]
    return blocks


def brief(analysis: Analysis) -> Blocks:
    """Return a sentence on the recorded job, and the table of each replayed step."""
    replays = replays_of(analysis)
    recorded: Blocks = [recorded_sentence(replays.recorded)] if replays.recorded is not None else []
    return [*recorded, *(block for step in replays.steps for block in replay_table(step))]


def recorded_parts(job: RecordedJob) -> Blocks:
    """Return the account of the time in calls: a sentence, tables by kind and by group, and withheld conclusions."""
    blocks: Blocks = [recorded_sentence(job)]
    everywhere = all((kind.ranks, kind.groups) == (job.world_size, 1) for kind in job.kinds)
    kinds = [_Row(_row_name(kind, everywhere), kind.time, kind.busbw) for kind in job.kinds]
    blocks += _recorded_table([left("calls", lambda row: row.name)], kinds, job)
    if len(job.groups) > 1:
        number: Column[_Row] = Column("number", lambda row: f"{row.time.calls:.3g}")
        groups = [_Row(*group) for group in job.groups]
        blocks += _recorded_table([left("group", lambda row: row.name), number], groups, job)
    if any(kind.busbw is not None for kind in job.kinds) and job.total is not None:
        blocks.append(RATE_EXPLAINED)
    if job.total is not None:
        divided = job.total.moved_s or job.total.waited_s
        explained = [DIVIDED_EXPLAINED] * bool(divided) + [EXPOSED_EXPLAINED] * (job.total.exposed_s is not None)
        blocks.append(" ".join([RECORDED_EXPLAINED, *explained]))
    if job.late is not None:
        blocks.append(NEXT.format(rank_named(job, job.late[0])))
    if job.ends_late is not None:
        blocks.append(LATE_ENDS.format(rank_named(job, job.ends_late[0]), format_seconds(job.ends_late[1])))
    return [*blocks, *below("Unknown:", items(sentences(job.withheld)))]


def recorded_json(job: RecordedJob) -> Json:
    """Return the conclusions for programs, in seconds; late: the straggler and its share of the waiting time."""
    groups = {name: _time_json(time) for name, time in job.groups}
    kinds = [{**row(kind), "time": _time_json(kind.time)} for kind in job.kinds]
    return {**row(job), "kinds": kinds, "groups": groups, "late": job.late}


def _time_json(time: RecordedTime) -> Json:
    """Return a time for programs; its parts are null if the time was not recorded."""
    unknown = dict.fromkeys(("moved_s", "waited_s", "unsplit_s"), None) if time.in_calls_s is None else {}
    return row(time) | unknown


def recorded_sentence(job: RecordedJob) -> str:
    """Format as `calls took 5.80 ms a step: 0.22 ms moving data, 5.58 ms waiting, 95% of it for rank 3`."""
    if job.total is None or job.total.in_calls_s is None:
        missing = any(reason.kind is MISSING_CALLS for reason in job.withheld)
        return f"{job.source}: {'not all calls were recorded' if missing else 'how long calls took was not recorded'}"
    total, in_calls_s, period = job.total, job.total.in_calls_s, "per step" if job.marked else "in the recording"
    part = bool(total.untimed) or any(reason.kind in NOT_IN_CALLS for reason in job.withheld)
    text = f"calls took {'at least ' * part}{format_seconds(in_calls_s)} {period}"
    if not total.moved_s and not total.waited_s:
        text += "; the waiting part of it is unknown"
    elif not total.waited_s and not total.unsplit_s:
        text += ", all of it moving data"
    else:
        undivided = f", {format_seconds(total.unsplit_s)} that cannot be divided" if total.unsplit_s else ""
        waiting = format_seconds(total.waited_s) if total.waited_s else "none"
        text += f": {format_seconds(total.moved_s)} moving data{undivided}, {waiting} waiting"
        if job.late is not None:
            text += f", {format_share(job.late[1])} of it for {rank_named(job, job.late[0])}"
        elif total.waited_s and job.steps > 1:
            few = len(job.ranks) ** (1 - job.steps) > NAMED_RATE
            text += (
                f"; {job.steps} steps are too few to name a late rank" if few else ", and no rank can be named for it"
            )
    if job.unclaimed_s:
        text += f"; kernels that belong to no recorded call took {format_seconds(job.unclaimed_s)}"
    if total.exposed_s is not None:
        text += f"; during {format_seconds(total.exposed_s)} nothing was computed"
    return f"{text} ({job.source}, {labels.counted(job.steps, 'step') if job.marked else 'steps not marked'})"


def rank_named(job: RecordedJob, rank: int) -> str:
    """Return `rank 3`, or the name of the file if the files do not record their ranks."""
    return f"the rank of {job.files[job.ranks.index(rank)]}" if job.files else f"rank {rank}"


def call_name(operation: str, size: str, dtype: str | None, ranks: int | None, groups: int = 1) -> str:
    """Format as `all_reduce of 1.15 MiB float32 over 8 ranks, 4 groups`; size: as text, "" without one."""
    words = operation, f"of {size}" if size else "", dtype, f"over {ranks_text(ranks)}" if ranks else ""
    return " ".join(filter(None, words)) + (f", {groups} groups" if groups > 1 else "")


def recorded_kind(kind: RecordedKind, size_text: Callable[[float], str] = format_rounded_bytes) -> str:
    """Format as `all_reduce of 7.82 MiB float32 over 8 ranks, 4 groups`; with elements if the bytes are unknown."""
    elements = f"{kind.elements:,}".replace(",", "\u2009") if kind.elements else ""
    size = elements if kind.size_bytes is None else size_text(kind.size_bytes)
    return call_name(kind.operation, size, kind.dtype, kind.ranks, kind.groups)


def _row_name(kind: RecordedKind, everywhere: bool) -> str:
    """Return `2 × all_reduce of 7.82 MiB float32`. everywhere: all ranks make all calls, so the row does not say it."""
    times = f"{kind.time.calls:.3g} × " if kind.time.calls != 1 else ""
    return times + recorded_kind(replace(kind, ranks=None) if everywhere else kind)


class _Row(NamedTuple):
    """A row of a table of a recorded job: a kind of calls, or a group."""

    name: str
    time: RecordedTime
    busbw: float | None = None


def _recorded_table(leading: Sequence[Column[_Row]], rows: Sequence[_Row], job: RecordedJob) -> Blocks:
    """Return a table of the given rows; the rows after the first MOST_KINDS are summed into one.

    The time in calls has no column if it is the sum of moving and waiting in all rows.
    """
    total, columns = job.total, [*leading]
    if total is not None and (total.unsplit_s or not (total.moved_s or total.waited_s)):
        columns.append(Column("in calls", lambda row: seconds_text(row.time.in_calls_s)))
    if total is not None and any(row.busbw is not None for row in rows):
        columns.append(Column("GB/s", lambda row: rate_text(row.busbw)))
    if total is not None and (total.moved_s or total.waited_s):
        columns += [
            Column("moving", lambda row: _divided(row.time, row.time.moved_s)),
            Column("waiting", lambda row: _divided(row.time, row.time.waited_s)),
            Column("most for", lambda row: _waited_for(row.time, job)),
        ]
    if total is not None and total.exposed_s is not None:
        columns.append(Column("exposed", lambda row: optional(row.time.exposed_s, format_seconds)))
    most = list(rows[:MOST_KINDS])
    if further := [row.time for row in rows[MOST_KINDS:]]:
        most.append(_Row(f"{len(further)} further", together(further)))
    return table(most, columns)


def _divided(time: RecordedTime, value: float) -> str:
    return format_seconds(value) if time.moved_s or time.waited_s else NOTHING


def _waited_for(time: RecordedTime, job: RecordedJob) -> str:
    """Return the straggler of the whole recording if the ranks waited longest for it here, too."""
    last = max(time.waited_for, key=time.waited_for.__getitem__, default=None)
    return NOTHING if last is None or last != job.named else rank_named(job, last)


def replay_sentence(step: ReplayedStep) -> str:
    """Return a sentence: whose calls are made, the time of a step as recorded and here, and its largest kind."""
    recorded = "its times were not recorded; "
    if step.recorded is not None and step.recorded.in_calls_s is not None:
        moved = f" of which {format_seconds(step.recorded.moved_s)} moved data" if step.recorded.moved_s else ""
        recorded = f"recorded {format_seconds(step.recorded.in_calls_s)}{moved}, "
    here = f"here {format_seconds(step.time.value)} {labels.interval_text(step.time, format_seconds)}"
    largest, total = step.kinds[0], sum(kind.time.value for kind in step.kinds)
    share = largest.time.value / total if total else 0.0
    times = f"{largest.calls:.3g} × " if largest.calls > 1 else ""
    most = f"{format_share(share)} of it is {times}{kind_name(largest)}"
    text = f"communication of one step, mean over ranks: {recorded}{here}; {most}"
    return f"{step.stand_in}. {text}" if step.stand_in else text


def kind_name(kind: ReplayedKind, size_text: Callable[[float], str] = format_rounded_bytes) -> str:
    """Format as `all_gather of 33.0 MiB bfloat16 over 8 ranks`."""
    size = size_text(kind.case.size_bytes) if kind.case.size_bytes else ""
    return call_name(kind.case.op, size, " ".join(labels.dtype_words(kind.case)), kind.ranks)


def replay_table(step: ReplayedStep) -> Blocks:
    """Return a table with a row per kind of call, the longest first; the last row sums all further kinds."""
    total = sum(kind.time.value for kind in step.kinds)
    # A row shows one kind, or several.
    rows = [(kind,) for kind in step.kinds[:MOST_KINDS]] + [step.kinds[MOST_KINDS:]] * (len(step.kinds) > MOST_KINDS)

    def recorded(kinds: Kinds, text: Callable[[RecordedTime], str]) -> str:
        return optional(kinds[0].recorded if len(kinds) == 1 else None, text)

    def here(kinds: Kinds) -> str:
        return with_interval(kinds[0].time, format_seconds) if len(kinds) == 1 else format_seconds(time_s(kinds))

    def time_s(kinds: Kinds) -> float:
        return sum(kind.time.value for kind in kinds)

    columns: list[Column[Kinds]] = [
        left("calls of a step", lambda row: kind_name(row[0]) if len(row) == 1 else f"{len(row)} further kinds"),
        Column("number", lambda row: f"{sum(kind.calls for kind in row):.3g}"),
        Column(
            "bytes", lambda row: optional(sum(k.calls * k.case.size_bytes for k in row) or None, format_rounded_bytes)
        ),
        Column("recorded", lambda row: recorded(row, lambda time: seconds_text(time.in_calls_s))),
        Column("moving", lambda row: recorded(row, lambda time: _divided(time, time.moved_s))),
        Column("here", here),
        Column("share", lambda row: format_share(time_s(row) / total) if total else NOTHING),
    ]
    return table(rows, columns)


def calls_config(recording: CallList, source: str) -> str:
    """Return a sweep configuration with the operations, dtypes and sizes of a job; comments list its combinations."""
    kinds: Counter[tuple[str, str, int]] = Counter()
    for call in recording.ranks[0].calls:
        operation = OPERATIONS.get(call.operation)
        if operation is None or not (operation.typed and operation.sized) or call.dtype is None:
            continue
        # `size` counts the larger side, which contains the shares of all ranks.
        size = max(call.elements_in or 0, call.elements_out or 0) * DTYPES[call.dtype].itemsize
        if size:
            kinds[call.operation, call.dtype, size] += 1
    heading = f"# The operations and sizes of {visible(source, '')}"
    lines = [f"{heading}; the job's own combinations, with their number in the recording:"]
    lines += [f"#   {count} × {op} {dtype} {format_bytes(size)}" for (op, dtype, size), count in kinds.items()]
    lines += [
        f"backends: [{recording.backend or 'gloo'}]",
        f"world_sizes: [{recording.world_size or 2}]",
        f"operations: {json.dumps(list(dict.fromkeys(op for op, _, _ in kinds)))}",
        f"dtypes: {json.dumps(list(dict.fromkeys(dtype for _, dtype, _ in kinds)))}",
        f"sizes: {json.dumps(sorted({size for _, _, size in kinds}))}",
    ]
    return "\n".join(lines)


def describe(run: Run, analysis: Analysis) -> Text:
    """Return all text on the replays of a run."""
    answer = [f"{replay_sentence(step)}." for step in replays_of(analysis).steps]
    return Text(answer, sections(analysis), brief(analysis))
