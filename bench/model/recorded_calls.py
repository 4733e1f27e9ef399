"""The collective calls that a recorded job made, in one type for every format of recording.

    file of a profiler ─▶ (importers.traces) CallList ─▶ (call_file) X.calls.jsonl ─▶ CallList ─▶ (replays) Replay

What a format leaves out or cuts off is None and counted in `unknown`; nothing is invented. Everything is frozen. Units
are elements and seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call on one rank.

    operation: as `operations` names it; what it does not know keeps the format's own name. dtype: as
    `dtypes` names it; None if the format does not tell, elements are then bytes. elements_in, elements_out: of
    this rank.
    splits_in, splits_out: elements for and from each rank of the group; empty where all are alike, None if they are not
    known. group: ranks of the world; None if it is not known. group_size: None if not even that is known.
    root: of the world, of a rooted call. peer: of the world, of a send or receive.
    stream: on which it ran; calls of different streams may overlap. start_s: when the call was made, since the first
    one of the recording; ran_s: when it began to run, if that is told apart. duration_s: how long it ran, with the
    wait for others that came late.
    asynchronous: whether the caller went on at once. sequence: number of the call within its group, by which the calls
    of different ranks belong together; None if the format has none.
    """

    operation: str
    dtype: str | None
    elements_in: int | None
    elements_out: int | None
    splits_in: tuple[int, ...] | None = ()
    splits_out: tuple[int, ...] | None = ()
    group: tuple[int, ...] | None = None
    group_size: int | None = None
    root: int | None = None
    peer: int | None = None
    stream: str | None = None
    start_s: float | None = None
    ran_s: float | None = None
    duration_s: float | None = None
    asynchronous: bool | None = None
    sequence: int | None = None


@dataclass(frozen=True, slots=True)
class RankRecording:
    """The calls of one rank, in the order in which they were made. rank: None if the file does not tell."""

    source: str
    rank: int | None
    calls: tuple[RecordedCall, ...]


@dataclass(frozen=True, slots=True)
class CallList:
    """What a job recorded. kind: of the format. world_size: None if it is not told. steps: of training that it has.

    unknown: what was not told → of how many calls. left_out: events that are no calls that could be made again, such as
    waits, with their number. notes: sentences on what a reader must know.
    """

    kind: str
    backend: str | None
    world_size: int | None
    ranks: tuple[RankRecording, ...]
    steps: int = 1
    unknown: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
