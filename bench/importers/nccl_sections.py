"""What one execution of one of the nccl-tests left behind, whichever way it was written. Read by `nccl_tests`.

`nccl_text` makes these from text and `nccl_json` from JSON; foreign names stay as they are. No logic but small sums.
"""

from collections import Counter
from dataclasses import dataclass, field

from bench.importers.found import Printed


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One line of the list of devices. group: the colour of NCCL_TESTS_SPLIT."""

    rank: int
    group: int
    host: str
    device: str


@dataclass(frozen=True, slots=True)
class Half:
    """One of the two halves of a row. place: "out" or "in". time: in the unit of its section.

    error: what the column #wrong holds (a count, N/A), or error and res (the largest deviation, perhaps with a star).
    """

    place: str
    time: Printed | None
    algbw: Printed | None
    busbw: Printed | None
    error: str


@dataclass(frozen=True, slots=True)
class Row:
    """One size. root: None where the row has no such column."""

    size: int
    count: int
    dtype: str
    redop: str
    root: int | None
    blocks: tuple[Half, ...]
    iterations: int | None = None


@dataclass(slots=True)
class Section:
    """One execution. test: such as `all_reduce` of `all_reduce_perf`. single: each time is that of one call.

    ranks_cut: the list of devices is known to be incomplete. iterations, aggregated: calls timed together are their
    product. average: over ranks: "rank0", "avg", "min" or "max"; None where it is not written. unit: of times, in
    seconds; None where the table does not say it. counts_errors: the column holds a number of wrong elements.
    out_of_bounds: how many rows the tool itself found wrong. cut: rows that could not be read to their end.
    """

    test: str | None = None
    tool: str | None = None
    nccl: str | None = None
    ranks: list[DeviceRow] = field(default_factory=list)
    ranks_cut: bool = False
    expected_ranks: int | None = None
    iterations: int | None = None
    aggregated: int = 1
    validation: int | None = None
    graph: int = 0
    blocking: str = ""
    average: str | None = None
    registered: bool = False
    cpu_time: bool = False
    timed_each: bool = False
    parallel_init: bool = False
    single: bool = False
    unit: float | None = None
    counts_errors: bool = True
    out_of_bounds: int | None = None
    rows: list[Row] = field(default_factory=list)
    cut: int = 0
    variables: dict[str, str] = field(default_factory=dict)
    debug: bool = False
    errors: list[str] = field(default_factory=list)

    @property
    def copies(self) -> int:
        """How many processes ran a world of their own: without MPI each calls itself rank 0."""
        return max(Counter(one.rank for one in self.ranks).values(), default=1)

    @property
    def world_size(self) -> int | None:
        """Ranks of one world by the list of devices; None where that is missing or cut."""
        if self.expected_ranks is not None:
            return self.expected_ranks
        if not self.ranks or self.ranks_cut:
            return None
        return max(one.rank for one in self.ranks) + 1

    @property
    def colours(self) -> dict[int, int]:
        """rank → group."""
        return {one.rank: one.group for one in self.ranks}
