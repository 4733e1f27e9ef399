"""Read what a job recorded, whatever the format: one file, one a rank, or all ranks in a tar.

In: paths. Out: a `CallList`. The format is told by the content. A saved list of calls is read here, too, so that
`replay` takes either.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.importers.traces import execution_trace, kineto, nccl_records, recordings
from bench.model.errors import ForeignError
from bench.model.recorded_calls import CallList, RankRecording, RecordedCall
from bench.model.records import Json
from bench.store import call_file

# How much of a file tells its format: torch writes the key of the events behind what describes the device.
HEAD = 2**20
KINETO, EXECUTION_TRACE, FLIGHT_RECORDER, INSPECTOR = (
    "Kineto",
    "PyTorch execution trace",
    "flight recorder",
    "NCCL Inspector",
)
# Key that only files of this format have near their beginning → format.
KEYS = {
    '"traceEvents"': KINETO,
    '"coll_perf"': INSPECTOR,
    '"p2p_perf"': INSPECTOR,
    '"profiling_name"': FLIGHT_RECORDER,
    '"pg_config"': FLIGHT_RECORDER,
    '"nodes"': EXECUTION_TRACE,
}
# What is asked of each call, and said where some calls do not tell it.
ASKED: dict[str, Callable[[RecordedCall], object]] = {
    "dtype": lambda call: call.dtype,
    "elements": lambda call: call.elements_in if call.elements_in is not None else call.elements_out,
    "splits": lambda call: call.splits_in,
    "ranks of the group": lambda call: call.group,
    "start": lambda call: call.start_s,
    "duration": lambda call: call.duration_s,
}
# Operations without data: nothing but times can be asked of them.
WITHOUT_DATA = {"barrier"}


def read(paths: Sequence[Path]) -> CallList:
    """The calls of a job. Raises ForeignError for what cannot be read, or if files of different formats are mixed."""
    if len(paths) == 1 and call_file.is_call_list(paths[0]):
        return call_file.read(paths[0])
    kind = ""
    ranks: list[RankRecording] = []
    left_out: Counter[str] = Counter()
    job: Json = {}  # what Kineto tells of it
    for path in paths:
        for name, text in recordings.texts(path):
            previous, kind = kind, _kind(name, text)
            if previous not in {"", kind}:
                raise ForeignError(
                    f"{name}: is {kind}, and the files before are {previous}: give files of one recording"
                )
            try:
                job = _read_file(kind, name, text, ranks, left_out, job)
            except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
                # a value of another type than the format's
                reason = (str(error).splitlines() or [""])[0][:120]
                raise ForeignError(f"{name}: not as {kind} writes it: {reason}") from None
    if not any(rank.calls for rank in ranks):
        names = ", ".join(path.name for path in paths)
        raise ForeignError(f"{names}: no call of a collective is recorded")
    return _assembled(kind, ranks, left_out, job)


def _kind(name: str, text: str) -> str:
    start = text[:HEAD]
    for key, kind in KEYS.items():
        if key in start:
            return kind
    raise ForeignError(
        f"{name}: neither Kineto, a PyTorch execution trace, a flight recorder's JSON, NCCL Inspector nor a list of "
        "calls"
    )


def _read_file(kind: str, name: str, text: str, ranks: list[RankRecording], left_out: Counter[str], job: Json) -> Json:
    """Add the ranks of one file; returns what the files so far tell of the job."""
    if kind == KINETO:
        rank, described = kineto.read(name, text, left_out)
        ranks.append(rank)
        return described | {"steps": max(described["steps"], job.get("steps", 1))}
    if kind == EXECUTION_TRACE:
        ranks.append(execution_trace.read(name, text, left_out))
    elif kind == FLIGHT_RECORDER:
        ranks.append(nccl_records.read_flight_recorder(name, text, left_out))
    else:
        ranks += nccl_records.read_inspector(name, text, left_out)
    return job


def _assembled(kind: str, recorded: Sequence[RankRecording], left_out: Counter[str], job: Json) -> CallList:
    ranks = sorted(recorded, key=lambda rank: (rank.rank is None, rank.rank or 0, rank.source))
    numbers = [rank.rank for rank in ranks if rank.rank is not None]
    if len(set(numbers)) < len(numbers):
        twice = next(number for number in numbers if numbers.count(number) > 1)
        raise ForeignError(f"rank {twice} is there twice: give each rank's file once")
    calls = [call for rank in ranks for call in rank.calls]
    unknown = {
        what: missing
        for what, asked in ASKED.items()
        if (missing := sum(asked(call) is None for call in calls if call.operation not in WITHOUT_DATA))
    }
    sizes = [call.group_size for call in calls if call.group_size]
    world = job.get("world_size") or max([*sizes, len(ranks), *(number + 1 for number in numbers)])
    backend = str(job.get("backend") or "")

    # Whether the ranks recorded the same calls, as far as that can be seen.
    kinds = {id(rank): [(call.operation, call.dtype) for call in rank.calls] for rank in ranks}
    different = [rank for rank in ranks[1:] if kinds[id(rank)] != kinds[id(ranks[0])]]
    notes = []
    if different:
        which = ", ".join(str(rank.rank if rank.rank is not None else rank.source) for rank in different[:4])
        notes.append(
            f"rank {ranks[0].rank} and {which} did not record the same calls: they cannot be joined call by call"
        )
    return CallList(
        kind=kind,
        backend=next((name for name in ("nccl", "gloo") if name in backend), backend or None),
        world_size=world,
        ranks=tuple(ranks),
        steps=job.get("steps", 1),
        unknown=unknown,
        left_out=dict(left_out),
        notes=tuple(notes),
    )
