"""Read what a job recorded, whatever the format: one file, one a rank, or all ranks in a tar.

In: paths. Out: a `CallList`. The format is told by the content. A saved list of calls is read here, too, so that
`replay` takes either.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.importers.traces import execution_trace, files, flight_recorder, inspector, kineto
from bench.model.errors import ForeignError
from bench.model.recorded_calls import CallList, RankRecording, RecordedCall
from bench.model.records import Json
from bench.store import call_file

# How much of a file tells its format: torch writes the key of the events behind what describes the device.
HEAD = 2**20
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


@dataclass(slots=True)
class _Found:
    """What the files of one job told so far."""

    kind: str = ""
    ranks: list[RankRecording] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    told: Json = field(default_factory=dict)


def read(paths: Sequence[Path]) -> CallList:
    """The calls of a job. Raises ForeignError for what cannot be read, or if files of different formats are mixed."""
    if len(paths) == 1 and call_file.is_one(paths[0]):
        return call_file.read(paths[0])
    found = _Found()
    for path in paths:
        for name, text in files.texts(path):
            _read_one_guarded(name, text, found)
    if not any(one.calls for one in found.ranks):
        names = ", ".join(path.name for path in paths)
        raise ForeignError(f"{names}: no call of a collective is recorded")
    return _assembled(found)


def _read_one_guarded(name: str, text: str, found: _Found) -> None:
    """As `_read_one`; a value of another type than the format's is ForeignError, too."""
    try:
        _read_one(name, text, found)
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
        said = (str(error).splitlines() or [""])[0][:120]
        raise ForeignError(f"{name}: not as {found.kind or 'any format'} writes it: {said}") from None


def _read_one(name: str, text: str, found: _Found) -> None:
    kind = _kind(name, text)
    if found.kind not in {"", kind}:
        raise ForeignError(f"{name}: is {kind}, and the files before are {found.kind}: give files of one recording")
    found.kind = kind
    if kind == "Kineto":
        one, told = kineto.read(name, text, found.left_out)
        found.ranks.append(one)
        found.told = told | {"steps": max(told["steps"], found.told.get("steps", 1))}
    elif kind == "NCCL Inspector":
        found.ranks += inspector.read(name, text, found.left_out)
    else:
        found.ranks.append(READERS[kind](name, text, found.left_out))


READERS: dict[str, Callable[[str, str, Counter[str]], RankRecording]] = {
    "PyTorch execution trace": execution_trace.read,
    "flight recorder": flight_recorder.read,
}
# Key that only files of this format have near their beginning → format.
KEYS = {
    '"traceEvents"': "Kineto",
    '"coll_perf"': "NCCL Inspector",
    '"p2p_perf"': "NCCL Inspector",
    '"profiling_name"': "flight recorder",
    '"pg_config"': "flight recorder",
    '"nodes"': "PyTorch execution trace",
}


def _kind(name: str, text: str) -> str:
    head = text[:HEAD]
    for key, kind in KEYS.items():
        if key in head:
            return kind
    raise ForeignError(
        f"{name}: neither Kineto, a PyTorch execution trace, a flight recorder's JSON, NCCL Inspector nor a list of "
        "calls"
    )


def _assembled(found: _Found) -> CallList:
    ranks = sorted(found.ranks, key=lambda one: (one.rank is None, one.rank or 0, one.source))
    numbers = [one.rank for one in ranks if one.rank is not None]
    if len(set(numbers)) < len(numbers):
        twice = next(number for number in numbers if numbers.count(number) > 1)
        raise ForeignError(f"rank {twice} is there twice: give each rank's file once")
    calls = [call for one in ranks for call in one.calls]
    unknown = {
        what: missing
        for what, asked in ASKED.items()
        if (missing := sum(asked(call) is None for call in calls if call.operation not in WITHOUT_DATA))
    }
    sizes = [call.group_size for call in calls if call.group_size]
    world = found.told.get("world_size") or max([*sizes, len(ranks), *(number + 1 for number in numbers)])
    return CallList(
        kind=found.kind,
        backend=_backend(found),
        world_size=world,
        ranks=tuple(ranks),
        steps=found.told.get("steps", 1),
        unknown=unknown,
        left_out=dict(found.left_out),
        notes=_notes(ranks),
    )


def _backend(found: _Found) -> str | None:
    told = str(found.told.get("backend") or "")
    return next((name for name in ("nccl", "gloo") if name in told), told or None)


def _notes(ranks: Sequence[RankRecording]) -> tuple[str, ...]:
    """Whether the ranks recorded the same calls, as far as that can be seen."""
    first = [(call.operation, call.dtype) for call in ranks[0].calls]
    other = [one for one in ranks[1:] if [(call.operation, call.dtype) for call in one.calls] != first]
    if not other:
        return ()
    which = ", ".join(str(one.rank if one.rank is not None else one.source) for one in other[:4])
    return (f"rank {ranks[0].rank} and {which} did not record the same calls: they cannot be joined call by call",)
