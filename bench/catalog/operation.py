"""Define what an operation is: what `size` means, its bus bandwidth, its buffers, and the options that it has.

The table of all operations is in `collectives`. Does not import torch.
"""

from collections.abc import Callable
from dataclasses import dataclass

from bench.model.deferred import Deferred
from bench.model.records import Case, Option, OwnDetail, OwnOptions, OwnSettings, options_in

# What most operations make back to back, in one word.
CALL = "call"
SYNC, NO_BUFFERS = ("sync",), (0, 0)


@dataclass(frozen=True, slots=True)
class Operation:
    """One collective. Functions take n, the number of ranks in its group.

    size_means: what `size_bytes` counts, in words.
    bus_factor: factor from algorithm to bus bandwidth (busbw = algbw * factor); None if no data is moved.
    buffers: bytes that a rank holds out of place, as multiples of the size and of a share (1/n); in place one size.
    pieces: number of equal pieces into which the size must divide; other sizes are rounded down.
    reduces: whether it takes a reduce op. rooted: whether it has a root.
    placements: "in" place, "out" of place, or both; the first is the usual one. calls: "sync", and "async" if torch
        has an asynchronous call.
    typed: whether it has a dtype; False for Python objects and if no data is moved. sized: whether it has a size.
    fewest_ranks: smallest number of ranks that it needs.
    paired: ranks call it in pairs, round by round (`rounds`). Iterations of different rounds cannot be pooled, so such
        an operation has no pipelined metric.
    torch_only: why MPI has no such call; empty if it has one (`bench/rank/mpi.py`).
    splits: whether what a rank sends can be divided unevenly.
    startup: whether it is what a job does before its first call; once: whether a launch does it only once.
    options: the general options of a case that it has; None: all of them.
    own: the type of the options that only its cases have; settings: of what a plan holds for them; detail: of what a
        launch keeps of them besides times.
    unit: what is made back to back, in one word. verifies_itself: whether its package says which results it checked.
    case_s: seconds that a case takes in a launch, if that does not follow from a call's time; None: it does.
    round_by_round: whether the cases of a launch are compared with each other round by round. They are measured in one
        batch, in processes of their own, in a fixed number of rounds (`OwnSettings.rounds`), and a launch that lacks
        one measures all again. Ranks compute within a call, so that neither their arrivals nor a precision within a
        launch say anything.
    inner_stamps: numbers that an iteration leaves on a rank besides its start and its duration.
    rank: what it does in ranks, a `rank.workload.RankPart`; None: it is one of the core's. rank_modules: modules that
        ranks need for it besides torch, and which would take seconds to load in each of them.
    """

    name: str
    size_means: str
    bus_factor: Callable[[int], float] | None = lambda n: 1.0
    buffers: tuple[int, int] = (2, 0)
    pieces: Callable[[int], int] = lambda n: 1
    reduces: bool = False
    rooted: bool = False
    placements: tuple[str, ...] = ("out",)
    calls: tuple[str, ...] = ("sync", "async")
    typed: bool = True
    sized: bool = True
    fewest_ranks: int = 1
    paired: bool = False
    torch_only: str = ""
    splits: bool = False
    startup: bool = False
    once: bool = False
    options: tuple[str, ...] | None = None
    own: type[OwnOptions] = OwnOptions
    settings: type[OwnSettings] = OwnSettings
    detail: type[OwnDetail] = OwnDetail
    unit: str = CALL
    verifies_itself: bool = False
    case_s: float | None = None
    round_by_round: bool = False
    inner_stamps: Callable[[Case], int] = lambda case: 0
    rank: Deferred | None = None
    rank_modules: tuple[str, ...] = ()

    @property
    def pooled(self) -> bool:
        """Whether its calls use the buffers of a pool; Python objects, and what moves no data, have none."""
        return self.typed and self.sized

    def has(self, option: Option) -> bool:
        """Whether its cases have the option."""
        if not option.of:
            return self.options is None or option.name in self.options
        return bool(getattr(self, option.of, False))

    @property
    def own_options(self) -> tuple[Option, ...]:
        """The table of the options that only its cases have."""
        return options_in(self.own)
