"""Define the type of operations: the meaning of `size`, its bus bandwidth, its buffers, and the options that it has.

The table of all operations is in `collectives`. Does not import torch.
"""

from collections.abc import Callable
from dataclasses import dataclass

from collbench.model.deferred import Deferred
from collbench.model.notices import Kind
from collbench.model.records import Case, Option, OwnOptions, OwnSettings, Settings, of_operation, options_in

SYNC, NO_BUFFERS = ("sync",), (0, 0)


@dataclass(frozen=True, slots=True)
class Against:
    """The cases that a case is compared with, in the same rounds."""

    # Its time is subtracted: a step without communication, a step on one rank, an empty call.
    reference: Case
    # Set for a second copy of a case, which only shows the noise of a run.
    copy_of: Case | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """One collective. Functions take n, the number of ranks in its group."""

    name: str
    # Meaning of `size_bytes`, in words; a list shows the text between "bytes " and the first comma.
    size_means: str
    # Factor from algorithm to bus bandwidth (busbw = algbw * factor); None if no data is moved.
    bus_factor: Callable[[int], float] | None = lambda n: 1.0
    # Bytes of a rank's buffers out of place, as multiples of the size and of a share (1/n); in place one size. Ranks
    # may take as much from their arena (`collectives.room_bytes`).
    buffers: tuple[int, int] = (2, 0)
    # Number of equal pieces into which the size must divide; other sizes are rounded down.
    pieces: Callable[[int], int] = lambda n: 1
    # `reduces`: True if it takes a reduce op. `rooted`: True if it has a root.
    reduces: bool = False
    rooted: bool = False
    # "in" place, "out" of place, or both; the first is the usual one.
    placements: tuple[str, ...] = ("out",)
    # Placement that a copy makes if the library has no such call: "out" by a copy before the call in place, "in" by a
    # copy after the call out of place. Empty if there is none.
    copied: str = ""
    # "sync", and "async" if torch has an asynchronous call.
    calls: tuple[str, ...] = ("sync", "async")
    # `typed`: False if no data is moved, or data of no dtype. `sized`: False if no data is moved.
    typed: bool = True
    sized: bool = True
    # Smallest number of ranks that it needs.
    fewest_ranks: int = 1
    # True if ranks call it in pairs, round by round (`rounds`). Iterations of different rounds cannot be pooled, so it
    # has no pipelined metric.
    paired: bool = False
    # Reason why MPI has no such call; None if it has one (`collbench/rank/mpi.py`).
    why_not_mpi: Kind | None = None
    # True if the data that a rank sends can be divided unevenly.
    splits: bool = False
    # `startup`: True if a job does it before its first call. `once`: True if a launch does it only once.
    startup: bool = False
    once: bool = False
    # General options that its cases have, among those that do not follow from a property (`Option.of`); None means all.
    # Others stay at their defaults; a configuration that lists them is refused.
    options: tuple[str, ...] | None = None
    # For cases that are compared with a reference: case → what it is compared with; None for a reference. These cases
    # are measured in one batch, in processes of their own, in a fixed number of rounds (`OwnSettings.rounds`), and
    # blocks that other processes disturbed are left out; a launch that lacks a case measures all again. Ranks compute
    # within a call, so that neither arrivals nor a precision within a launch have a meaning.
    against: Callable[[Case], Against | None] | None = None
    # Number of stamps that an iteration leaves on a rank in addition to its start and its duration.
    inner_stamps: Callable[[Case], int] = lambda case: 0
    # For an operation of a package: the function in ranks (case, settings, number of the launch,
    # `rank.stage.RankPlace`) → a function that makes the workload of each case of the launch.
    rank: Deferred | None = None
    # If its cases come from a section of its own in a configuration: the model (`config.fields.PackageSection`), and
    # the function (config, machine, section) → `planning.asked.Asked`. Without one, they come from `operations`.
    section: Deferred | None = None
    cases: Deferred | None = None
    # For cases that are compared with a reference: function (case, settings, number of the launch) → rough seconds of
    # its calls in the launch, for `plan`; None if unknown.
    calls_s: Callable[[Case, Settings, int], float | None] = lambda *_: None
    # Function (cases, settings) → objects of the user's code that ranks import, as "module:name".
    imports: Deferred | None = None

    @property
    def own(self) -> type[OwnOptions]:
        """Return the type of the options that only its cases have."""
        return of_operation(OwnOptions, self.name)

    @property
    def settings(self) -> type[OwnSettings]:
        """Return the type of the settings that only its cases need in a plan."""
        return of_operation(OwnSettings, self.name)

    @property
    def pooled(self) -> bool:
        """Return whether its calls use the buffers of a pool; not if no data is moved."""
        return self.typed and self.sized

    def has(self, option: Option) -> bool:
        """Return whether its cases have the option."""
        if not option.of:
            return self.options is None or option.name in self.options
        return bool(getattr(self, option.of, False))

    @property
    def own_options(self) -> tuple[Option, ...]:
        """Return the table of the options that only its cases have."""
        return options_in(self.own)
