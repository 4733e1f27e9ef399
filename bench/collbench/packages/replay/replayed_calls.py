"""Define the replayed calls of a recorded job, and the names of a replay in a case and in a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from collbench.model.notices import Notice
from collbench.model.records import Case, OwnOptions, OwnSettings, Settings, option

# Name of the package, its operation, its section and its verb.
NAME = "replay"
# Names of the inner times of an iteration: start of each call since the start of the iteration, and its duration.
START_NS, DURATION_NS = "start", "duration"


@dataclass(frozen=True, slots=True)
class ReplayedCall:
    """One call of a recorded job that a replay makes again."""

    # Position of the call's case in `Replay.cases`.
    case: int
    # Position of the call among the calls of the recorded rank.
    recorded: int
    # Positions of earlier asynchronous calls that the rank waits for before this call.
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplayedList:
    """The calls that a rank makes: the calls of one recorded rank."""

    # Position of the recorded rank in the recording.
    recorded: int
    calls: tuple[ReplayedCall, ...]


@dataclass(frozen=True, slots=True)
class Replay:
    """The calls of a recorded job that a case makes, derived from the recording by the package `replay`."""

    # Description of the recording.
    source: str
    # The distinct calls.
    cases: tuple[Case, ...]
    # One list for each rank of this world, or one list for all ranks.
    lists: tuple[ReplayedList, ...]
    # Sentence that states whose calls the ranks make; empty if each rank makes the same calls as in the job.
    stand_in: str = ""
    # Notices on the differences from the recording.
    changes: tuple[Notice, ...] = ()

    def of(self, rank: int) -> ReplayedList:
        """Return the calls that a rank of this world makes."""
        return self.lists[rank if len(self.lists) > 1 else 0]


@dataclass(frozen=True, slots=True, order=True)
class Recording:
    """The name of a replay in a case."""

    # Hash of the calls.
    digest: str
    # Number of calls per step, on the rank that makes the most calls.
    calls: int

    def __str__(self) -> str:
        """Format the name as in a key: `5f0c2a91d3be:52`."""
        return f"{self.digest}:{self.calls}"


@dataclass(frozen=True)
class ReplayOptions(OwnOptions):
    """The option of a replay."""

    operation: str = NAME
    recording: Recording | None = option(
        None,
        "hash of a replay's calls and their number: 5f0c2a91d3be:52",
        lambda recording: f"{recording.calls} calls ({recording.digest})",
    )


@dataclass(frozen=True)
class ReplaySettings(OwnSettings):
    """The replays of a plan."""

    operation: str = NAME
    # `Recording` as text → the calls.
    replays: dict[str, Replay] = field(default_factory=dict)

    def needed_by(self, cases: Sequence[Case]) -> ReplaySettings:
        """Return the settings with only the replays that the cases name."""
        names = {str(recording_in(case)) for case in cases}
        return replace(self, replays={name: replay for name, replay in self.replays.items() if name in names})


def recording_in(case: Case) -> Recording:
    """Return the name of the replay that a case makes."""
    recording = cast(ReplayOptions, case.own).recording
    assert recording is not None  # noqa: S101 - every case of a replay has one
    return recording


def replay_of(settings: Settings, case: Case) -> Replay:
    """Return the replay that a case of a plan makes."""
    return cast(ReplaySettings, settings.own[NAME]).replays[str(recording_in(case))]
