"""Read the recordings of a job in any known format: one file, one per rank, or all ranks in a folder, glob or .tar.gz.

In: paths. Out: a `CallList`. The content determines the format; if files have several formats, the most informative
format is used. A saved list of calls is read here, too, so that `replay` accepts both.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from collbench.config.models import Config
from collbench.machine import memory
from collbench.model.errors import ForeignError
from collbench.model.notices import Kind, Notice, with_counts
from collbench.model.pages import at_hand
from collbench.model.records import Machine
from collbench.model.units import NS
from collbench.packages.replay import planning
from collbench.packages.replay import store as call_file
from collbench.packages.replay.config import ReplaySection
from collbench.packages.replay.importers.execution_trace import read_execution_trace
from collbench.packages.replay.importers.kineto import read_kineto
from collbench.packages.replay.importers.nccl_records import read_flight_recorder, read_inspector
from collbench.packages.replay.importers.recordings import texts
from collbench.packages.replay.recorded_calls import ONE_WAY, CallList, RankRecording
from collbench.planning.asked import Asked

# Takes a name, a text, and a counter of the events that are left out. Returns the ranks of one file.
Reader = Callable[[str, str, Counter[Notice]], list[RankRecording]]
# Length of the head in which the format's key is searched: torch describes the device before the key of the events.
HEAD = 2**20
# Key that only files of this format have near their beginning → format, reader; the most informative comes first.
FORMATS: dict[str, tuple[str, Reader]] = {
    '"traceEvents"': ("Kineto", read_kineto),
    '"profiling_name"': ("flight recorder", read_flight_recorder),
    '"pg_config"': ("flight recorder", read_flight_recorder),
    '"coll_perf"': ("NCCL Inspector", read_inspector),
    '"p2p_perf"': ("NCCL Inspector", read_inspector),
    '"nodes"': ("PyTorch execution trace", read_execution_trace),
}
NO_RECORDING = (
    "{name}: neither Kineto, a PyTorch execution trace, a flight recorder's JSON, NCCL Inspector nor a list of calls"
)
# Formats in which calls have consecutive numbers within their group: NCCL counts each operation separately.
INSPECTOR = "NCCL Inspector"
NUMBERED = {"flight recorder", INSPECTOR}
# A time in 2001: smaller values do not count from 1970. Largest clock differences between hosts, and on one host.
LEAST_UNIX_NS, CLOCKS_APART_S, ON_ONE_HOST_S = 10**18, 600.0, 1.0


def asked(config: Config, machine: Machine, section: ReplaySection) -> Asked:
    """Return the replays of the recorded job that a configuration names; the run keeps the recording."""
    recording = read([Path(name) for name in section.recording])
    return replace(planning.asked(config, machine, recording), files={call_file.FILE: call_file.to_text(recording)})


def read(paths: Sequence[Path]) -> CallList:
    """Return the calls of a job. Raises ForeignError if files cannot be read or do not belong together."""
    requested, paths = paths, files(paths)
    with memory.limited(paths):
        if len(paths) == 1 and call_file.is_call_list(paths[0]):
            return call_file.read(paths[0])
        return _read(paths, requested)


FILES_NO_RECORDING = Kind("files-no-recording", "{count} × file that is not a recording, such as {file}: left out")
FILES_OF_OTHER_FORMAT = Kind("files-of-other-format", "{count} × file of {format}, of the same ranks: left out")


def _read(paths: Sequence[Path], requested: Sequence[Path]) -> CallList:
    """Return the calls in files. requested: paths that the user named; a folder or archive has other files, too."""
    other_files: list[str] = []
    formats: dict[str, tuple[list[RankRecording], Counter[Notice]]] = {}
    for path in paths:
        try:
            inside = list(texts(path))
        except ForeignError:
            if path in requested or ".json" in path.name:  # a damaged recording is not another file
                raise
            other_files.append(path.name)
            continue
        for name, text in inside:
            start = (text or "")[:HEAD]
            known_format = next((kind_and_reader for key, kind_and_reader in FORMATS.items() if key in start), None)
            if known_format is None and path in requested and name == path.name:
                raise ForeignError(NO_RECORDING.format(name=name))
            if text is None or known_format is None:
                other_files.append(name)
                continue
            kind, reader = known_format
            ranks, left_out = formats.setdefault(kind, ([], Counter()))
            try:
                ranks += reader(name, text, left_out)
            except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
                # a value has another type or size than in the format
                reason = (str(error).splitlines() or [""])[0][:120]
                raise ForeignError(f"{name}: not in the format of {kind}: {reason}") from None
    order = dict.fromkeys(kind for kind, _ in FORMATS.values())
    kinds = [kind for kind in order if kind in formats and any(rank.calls for rank in formats[kind][0])]
    if not kinds and other_files and not formats:
        raise ForeignError(NO_RECORDING.format(name=other_files[0]))
    if not kinds:
        raise ForeignError(f"{', '.join(path.name for path in paths)}: no call of a collective is recorded")
    ranks, left_out = formats[kinds[0]]
    if other_files:
        left_out[FILES_NO_RECORDING(file=other_files[0])] += len(other_files)
    for other in kinds[1:]:
        if more := {rank.rank for rank in formats[other][0]} - {rank.rank for rank in ranks}:
            raise ForeignError(
                f"{formats[other][0][0].source}: is {other}, and {ranks[0].source} is {kinds[0]}, without rank "
                f"{min(more, key=str)}: give every rank's file of one format"
            )
        left_out[FILES_OF_OTHER_FORMAT(format=other)] += len(formats[other][0])
    try:
        return _assembled(kinds[0], ranks, left_out)
    except ValueError as error:
        raise ForeignError(f"{paths[0]}: not in the format of {kinds[0]}: {error}") from None


def files(paths: Sequence[Path]) -> list[Path]:
    """Return the files that paths name, in order: all files of a folder, or the files that match a pattern.

    Raises ForeignError if a path names no file.
    """
    named = []
    for path in map(at_hand, paths):
        try:
            if path.is_dir():
                inside = sorted(entry for entry in path.iterdir() if entry.is_file() and not entry.name.startswith("."))
            elif not path.exists() and set(str(path)) & set("*?["):
                inside = sorted(Path(path.anchor or ".").glob(str(path.relative_to(path.anchor))))
            else:
                inside = [path]
        except OSError as error:
            raise ForeignError(f"{path!s:.200}: {(error.strerror or str(error)).lower()}") from None
        if not inside:
            raise ForeignError(f"{path}: it has no file of a recording")
        named += inside
    return named


def _check_together(ranks: Sequence[RankRecording]) -> None:
    """Raise ForeignError if files that contain their time were recorded at different times."""
    spans = sorted(
        (rank.began_ns * NS, max((call.start_s or 0.0 for call in rank.calls), default=0.0), rank.source)
        for rank in ranks
        if rank.began_ns is not None and rank.began_ns > LEAST_UNIX_NS
    )
    hosts, apart_s = {rank.host for rank in ranks}, ON_ONE_HOST_S
    if len(hosts) > 1 or None in hosts:
        apart_s = CLOCKS_APART_S + max((length for _, length, _ in spans), default=0.0)
    for (began, length, before), (following, _, after) in pairwise(spans):
        if following - began - length > apart_s:
            raise ForeignError(
                f"{after}: begins {following - began - length:.0f} s after {before} ends: give files of one recording, "
                "which all ranks made at the same time"
            )


HOST_CLOCK = Kind("host-clock", "{count} of {calls} durations are by the host's clock: not added to a GPU's")


def _assembled(kind: str, recorded: Sequence[RankRecording], left_out: Counter[Notice]) -> CallList:
    """Return one list of all ranks."""
    ranks = sorted(recorded, key=lambda rank: (rank.rank is None, rank.rank or 0, rank.source))
    worlds = {rank.stated_world for rank in ranks} - {None}
    stated = worlds.pop() if len(worlds) == 1 else None
    numbers = [rank.rank for rank in ranks if rank.rank is not None]
    twice = [number for number, times in Counter(numbers).items() if times > 1]
    if twice and not _different([rank for rank in ranks if rank.rank == twice[0]]):
        raise ForeignError(f"rank {twice[0]} is given twice: give each rank's file once")
    # The numbers count within groups, or count something else than ranks.
    within = kind == INSPECTOR and len({call.communicator for rank in ranks for call in rank.calls}) > 1
    strange = any(rank.by_name and not _possible(rank, stated) for rank in ranks)
    if twice or within or strange:
        ranks, numbers = [replace(rank, rank=None) for rank in ranks], []
    if within:  # numbers of peers count within groups, too
        ranks = [replace(rank, calls=tuple(replace(call, peer=None) for call in rank.calls)) for rank in ranks]
    _check_together(ranks)
    begins = [rank.began_ns or 0 for rank in ranks]
    if len({rank.host for rank in ranks}) == 1 and ranks[0].host and min(begins) > LEAST_UNIX_NS:
        ranks = [replace(rank, offset_s=(began - min(begins)) * NS) for rank, began in zip(ranks, begins, strict=True)]
    notices = with_counts(left_out)
    timed = [call for rank in ranks for call in rank.calls if call.duration_s is not None]
    if by_host := sum(call.by_host for call in timed):
        notices.insert(0, HOST_CLOCK(count=by_host, calls=len(timed)))
        if by_host < len(timed):
            without = {call: replace(call, duration_s=None) for call in timed if call.by_host}
            ranks = [replace(rank, calls=tuple(without.get(call, call) for call in rank.calls)) for rank in ranks]
    calls = [call for rank in ranks for call in rank.calls]
    sizes = [call.group_size for call in calls if call.group_size] + [rank.proven_world for rank in ranks]
    proven = max([*sizes, *(max(call.group, default=0) + 1 for call in calls if call.group)], default=0)
    proven = max([proven, len(ranks) if len(ranks) > 1 else 0, *(number + 1 for number in numbers if number)])
    known = stated is not None and stated >= proven
    backend = ranks[-1].backend
    return CallList(
        kind=kind,
        backend=next((name for name in ("nccl", "gloo") if name in backend), backend or None),
        world_size=stated if known else proven or None,
        world_is_least=not known and proven > 0,
        ranks=tuple(ranks),
        notices=tuple(notices),
        gaps=_gaps(ranks, kind) if kind in NUMBERED else None,
    )


def _different(ranks: Sequence[RankRecording]) -> bool:
    """Return whether recordings with one number are from different processes, so that the number is not a rank."""
    processes = [rank.process for rank in ranks]
    if None not in processes:
        return len({*processes}) == len(processes)
    return all(rank.by_name for rank in ranks) and len({rank.calls for rank in ranks}) == len(ranks)


def _possible(rank: RankRecording, world: int | None) -> bool:
    """Return whether the number in the name of a file can be the rank: it is in the world, and in a listed group."""
    if rank.rank is None:
        return True
    listed = [call.group for call in rank.calls if call.group]
    return (world is None or rank.rank < world) and (not listed or any(rank.rank in group for group in listed))


def _gaps(ranks: Sequence[RankRecording], kind: str) -> dict[str, int] | None:
    """Return the gaps of the rank that lacks the most calls; None if no call is known to be missing."""
    gaps = []
    # Counters begin at 0 or 1, all at the same; if the recorder states that it dropped no call, they began earlier.
    begin = min([1, *(call.sequence for rank in ranks for call in rank.calls if call.sequence is not None)])
    for rank in ranks:
        numbers: dict[tuple[object, ...], set[int]] = defaultdict(set)
        for call in rank.calls:
            if call.sequence is not None:
                one_way = call.operation in ONE_WAY  # sends and receives share a counter
                counted = call.operation if kind == INSPECTOR and not one_way else one_way
                numbers[call.communicator, counted].add(call.sequence)
        recorded = sum(map(len, numbers.values()))
        made = sum(max(seen) + 1 - (min(seen) if rank.dropped == 0 else begin) for seen in numbers.values())
        made = max(made, recorded + (rank.dropped or 0))
        if made > recorded:
            first, last = min(map(min, numbers.values())), max(map(max, numbers.values()))
            gaps.append({"recorded": recorded, "made": made, "first": first, "last": last})
    return max(gaps, key=lambda gap: gap["made"] - gap["recorded"], default=None)
