"""Define every collective: the meaning of `size`, its bus bandwidth, its buffers, and the options that it has.

Does not import torch. To add a collective: one entry here and one in the table of `rank.collectives`; a test
requires both. MPI's call is in `collbench/rank/mpi.py`; if MPI has none, the entry has the reason (`why_not_mpi`).
Definitions follow nccl-tests' PERFORMANCE.md, so that numbers can be compared: if each rank contributes a share, size
counts all n shares.
"""

from dataclasses import replace

from collbench.catalog import splits
from collbench.catalog.dtypes import BYTES, dtype_named
from collbench.catalog.operation import NO_BUFFERS, SYNC, Against, Operation
from collbench.catalog.registry import PACKAGES
from collbench.catalog.subgroups import divide, group_size
from collbench.model.notices import Kind
from collbench.model.records import OPTIONS, Case

# Every buffer begins at a multiple of this number of bytes, and so does received data that follows sent data.
ALIGNMENT = 512
# NCCL moves packs of this many bytes, but single elements if a pointer is not a multiple of it.
PACK_BYTES = 16
# Number of tensors in a coalesced all-reduce, as in a bucket of gradients of a small model.
COALESCED_PIECES = 8
# Placements of a call's buffers, in words.
PLACES = {"in": "in place", "out": "out of place", "copied": "by a copy"}


def _others(n: int) -> float:
    """Return (n-1)/n: all of n shares except the rank's own cross the bus."""
    return (n - 1) / n


def _ring(n: int) -> float:
    """Return 2(n-1)/n: a ring sends each byte this number of times, in reduce-scatter, then all-gather."""
    return 2 * (n - 1) / n


def _ranks(n: int) -> int:
    return n


ALL_SHARES = "bytes of all n shares: each rank contributes 1/n of it"
A_RANKS = "bytes that each rank contributes and receives"
ONCE, WITH_SHARE, NOTHING = (1, 0), (1, 1), NO_BUFFERS
IN, IN_OUT, OUT_IN = ("in",), ("in", "out"), ("out", "in")

OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation("all_reduce", A_RANKS, _ring, reduces=True, placements=IN_OUT, copied="out"),
        Operation(
            "all_reduce_coalesced", f"{A_RANKS} in {COALESCED_PIECES} tensors that are reduced together",
            _ring, ONCE, lambda n: COALESCED_PIECES, reduces=True, placements=IN,
            why_not_mpi=Kind("no-mpi-call", "MPI has no call that reduces several buffers together"),
        ),
        Operation("all_gather", ALL_SHARES, _others, WITH_SHARE, _ranks, placements=OUT_IN),
        Operation("all_gather_list", f"{ALL_SHARES}, into a list of tensors", _others, WITH_SHARE, _ranks),
        Operation(
            "reduce_scatter", "bytes that each rank contributes; each keeps 1/n of the result",
            _others, WITH_SHARE, _ranks, reduces=True, placements=OUT_IN,
        ),
        Operation(
            "reduce_scatter_list",
            "bytes that each rank contributes, from a list of tensors; each keeps 1/n of the result",
            _others, WITH_SHARE, _ranks, reduces=True,
        ),
        Operation("broadcast", "bytes that the root sends to every rank", rooted=True, placements=IN, copied="out"),
        Operation(
            "reduce", "bytes that each rank contributes and the root receives",
            reduces=True, rooted=True, placements=IN_OUT, copied="out",
        ),
        Operation(
            "gather", f"{ALL_SHARES}, and the root receives all", _others, WITH_SHARE, _ranks, rooted=True,
            placements=OUT_IN,
        ),
        Operation(
            "scatter", "bytes of the root, of which each rank receives 1/n", _others, WITH_SHARE, _ranks, rooted=True,
            placements=OUT_IN,
        ),
        Operation(
            "all_to_all", "bytes that each rank sends, 1/n of it to each rank unless `splits` says otherwise",
            _others, pieces=_ranks, splits=True, copied="in",
        ),
        Operation(
            "all_to_all_list", "bytes that each rank sends, 1/n of it to each rank, from a list of tensors",
            _others, pieces=_ranks,
        ),
        Operation("all_to_all_uneven", "bytes that each rank sends, in n parts in the ratio 0 : 1 : … : n-1", _others),
        Operation(
            "send_recv", "bytes that each rank with an even number sends to the next, one way; with an odd root, the "
            "next one sends to it", rooted=True, fewest_ranks=2,
        ),
        # No asynchronous call for both directions at once: the call is already made of isend and irecv.
        Operation(
            "sendrecv_pair",
            "bytes that each rank sends to its partner, and receives, at the same time (0 with 1, 2 with 3, …)",
            calls=SYNC, fewest_ranks=2,
        ),
        Operation(
            "sendrecv_ring",
            "bytes that each rank sends to the next and receives from the one before (nccl-tests: sendrecv)",
            calls=SYNC, fewest_ranks=2, copied="in",
        ),
        # Both directions at once, so that one slow direction makes the pair slow.
        Operation(
            "pairwise",
            "bytes that each rank sends to its partner, and receives, with another partner in each round",
            calls=SYNC, fewest_ranks=2, paired=True,
        ),
        Operation("barrier", "nothing: no data is moved", None, NOTHING, typed=False, sized=False),
        Operation(
            "init_process_group", "nothing: ranks join, once a launch", None, NOTHING,
            calls=SYNC, typed=False, sized=False, startup=True, once=True,
            why_not_mpi=Kind("mpi-joins-before", "MPI joins its ranks before the program begins"),
        ),
        Operation(
            "new_group", "nothing: a further process group is made", None, NOTHING,
            calls=SYNC, typed=False, sized=False, startup=True, why_not_mpi=Kind("of-torch", "it is torch's"),
        ),
        *(package.operation.value for package in PACKAGES if package.operation),
    )
}  # fmt: skip


# The options of all operations: the general ones, then each operation's own.
ALL_OPTIONS = (*OPTIONS, *(option for operation in OPERATIONS.values() for option in operation.own_options))
# Operations whose package describes their cases in reports; the core has tables and pictures of all others.
DESCRIBED = frozenset(package.operation.value.name for package in PACKAGES if package.operation and package.text)
# Operations that are one call of a library: not operations of packages, and not those at the beginning of a job.
CALLS = tuple(name for name, operation in OPERATIONS.items() if not (operation.startup or operation.rank))


def against(case: Case) -> Against | None:
    """Return what a case is compared with; None for a reference, and for operations whose cases have none."""
    compare = OPERATIONS[case.op].against
    return None if compare is None else compare(case)


def is_copy(case: Case) -> bool:
    """Return whether a case is the second copy of another, which only shows the noise of a run."""
    compared = against(case)
    return compared is not None and compared.copy_of is not None


def usual(case: Case) -> Case:
    """Return the case with options that its operation lacks at their defaults, so that equal cases have equal keys."""
    operation = OPERATIONS[case.op]
    changes = {option.name: option.default for option in OPTIONS if not operation.has(option)}
    if case.placement == operation.placements[0]:
        changes["placement"] = "usual"
    if not operation.typed:
        changes["dtype"] = BYTES.name
    if not operation.sized:
        changes["size_bytes"] = 0
    return replace(case, **changes)


def placement(case: Case) -> str:
    """Return "in" or "out" (of place), or "copied" if a copy makes the placement that the library's call lacks."""
    return OPERATIONS[case.op].placements[0] if case.placement == "usual" else case.placement


def half(case: Case) -> str:
    """Return where the results of a case go, also by a copy: "in" or "out" of place; "" if there is no such copy."""
    return OPERATIONS[case.op].copied if placement(case) == "copied" else placement(case)


def place_named(case: Case) -> str:
    """Return the placement of a case in words, such as `out of place by a copy`."""
    words = (PLACES.get(half(case), ""), PLACES["copied"] if placement(case) == "copied" else "")
    return " ".join(filter(None, words))


def buffer_bytes(case: Case) -> int:
    """Return the most bytes that the buffers of one call take on any rank. The root has more than other ranks."""
    if case.splits:
        itemsize = dtype_named(case.dtype).itemsize
        return case.size_bytes + itemsize * splits.most_received(
            case.splits, ranks_together(case), case.size_bytes // itemsize
        )
    wholes, shares = ONCE if placement(case) == "in" else OPERATIONS[case.op].buffers
    return case.size_bytes * wholes - (-case.size_bytes * shares // ranks_together(case))


def size_unit(case: Case) -> int:
    """Return the unit of sizes in bytes: equal pieces of whole elements, and of whole packs if they are large enough.

    NCCL moves packs only if every share begins at a multiple of PACK_BYTES; nccl-tests rounds likewise.
    """
    pieces, itemsize = OPERATIONS[case.op].pieces(ranks_together(case)), dtype_named(case.dtype).itemsize
    packs = pieces > 1 and case.size_bytes >= pieces * PACK_BYTES
    return pieces * max(itemsize, PACK_BYTES if packs else 0)


def behind(case: Case, elements: int) -> int:
    """Return the index of the first received element, after the sent elements: at a multiple of ALIGNMENT bytes."""
    unit = ALIGNMENT // dtype_named(case.dtype).itemsize
    return -(-elements // unit) * unit


def room_bytes(case: Case) -> int:
    """Return the bytes of one buffer, with gaps that put it and its parts at multiples of ALIGNMENT, or off them."""
    data = buffer_bytes(case)
    if not data:
        return 0
    whole_parts = case.size_bytes % (ALIGNMENT * ranks_together(case)) == 0 and not case.splits
    gap = 0 if placement(case) == "in" or whole_parts else ALIGNMENT
    shift = ALIGNMENT if case.alignment == "unaligned" else 0
    return -(-(data + gap + shift) // ALIGNMENT) * ALIGNMENT


def ranks_together(case: Case) -> int:
    """Return the number of ranks in one group: n in the definitions above."""
    return group_size(case.groups, case.world_size)


def algbw(case: Case, time_s: float) -> float | None:
    """Return the algorithm bandwidth in bytes/s: size over time; None if a rank is alone and communicates nothing.

    None also if ranks share a GPU: readers would take the number for the bandwidth of the GPU.
    """
    return None if ranks_together(case) == 1 or case.oversubscribed else case.size_bytes / time_s


def busbw(case: Case, time_s: float) -> float | None:
    """Return the bus bandwidth in bytes/s; None if there is no algorithm bandwidth, or if no data is moved."""
    factor, rate = OPERATIONS[case.op].bus_factor, algbw(case, time_s)
    if factor is None or rate is None:
        return None
    if case.splits:
        return heaviest_bytes(case) / time_s
    return rate * factor(ranks_together(case))


def heaviest_bytes(case: Case) -> int:
    """Return the bytes that the busiest rank of an uneven all-to-all sends to others or receives."""
    itemsize, n = dtype_named(case.dtype).itemsize, ranks_together(case)
    assert case.splits is not None  # noqa: S101 - only such cases are asked for
    return itemsize * splits.heaviest(splits.matrix(case.splits, n, case.size_bytes // itemsize))


def cycle(case: Case) -> int:
    """Return the number of iterations until a case repeats: rounds of pairs, or serial groups; else 1."""
    if OPERATIONS[case.op].paired:
        together = ranks_together(case)
        return together - 1 + together % 2  # number of rounds of `subgroups.rounds`
    division = divide(case.groups, case.world_size)
    return len(division.groups) if division.serial else 1
