"""Define the types for what one execution of one of the nccl-tests printed, as text or as JSON.

`nccl_text` makes these from text and `nccl_json` from JSON; `nccl_tests` reads them. Names stay those of the tool.
No logic but small sums.
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
    """One of the two halves of a row. place: "out" or "in". time: in microseconds.

    error: text of the column #wrong (a count, N/A), or of error (the largest deviation, perhaps with a star).
    each_us: of each call, of the slowest process; empty if the file does not have them.
    """

    place: str
    time: Printed | None
    algbw: Printed | None
    busbw: Printed | None
    error: str
    each_us: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """One size. root: None if the row has no such column."""

    size: int
    count: int
    dtype: str
    redop: str
    root: int | None
    blocks: tuple[Half, ...]
    iterations: int | None = None


@dataclass(slots=True)
class Section:
    """One execution. test: such as `all_reduce` for `all_reduce_perf`.

    ranks_cut: the list of devices is known to be incomplete. iterations, aggregated: their product is the number of
    calls timed together. average: how ranks are combined: "rank0", "avg", "min" or "max"; None if not written.
    counts_errors: `Half.error` is a number of wrong elements. out_of_bounds: how many rows the tool itself found wrong.
    cut: number of rows that could not be read to their end.
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
    counts_errors: bool = True
    out_of_bounds: int | None = None
    rows: list[Row] = field(default_factory=list)
    cut: int = 0
    variables: dict[str, str] = field(default_factory=dict)
    debug: bool = False
    errors: list[str] = field(default_factory=list)

    @property
    def copies(self) -> int:
        """How many processes each ran a world of their own: built without MPI, each calls itself rank 0."""
        return max(Counter(one.rank for one in self.ranks).values(), default=1)

    @property
    def world_size(self) -> int | None:
        """Number of ranks of one world: `expected_ranks`, else by the list of devices; None if missing or cut."""
        if self.expected_ranks is not None:
            return self.expected_ranks
        if not self.ranks or self.ranks_cut:
            return None
        return max(one.rank for one in self.ranks) + 1

    @property
    def colours(self) -> dict[int, int]:
        """rank → group."""
        return {one.rank: one.group for one in self.ranks}
