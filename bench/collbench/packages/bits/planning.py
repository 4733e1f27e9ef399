"""Define the inputs of comparisons bit by bit: the cases, their variations, and data whose sums are not exact.

In: a plan, a case. Out: cases that can be compared, the case that a variation is compared with, and the data that a
rank sends. A rank's data begin with the same elements in messages of all sizes: a smaller message is the beginning of
each share of a larger message, so that results differ only in how the library cuts the message.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collbench.catalog.collectives import OPERATIONS, ranks_together
from collbench.catalog.dtypes import DTYPES, dtype_named
from collbench.model.divisions import WORLD
from collbench.model.records import OPTIONS, Case, Job, Launch

Values = NDArray[np.float64]

# Calls of each case in a launch: the second call must give the same bits.
CALLS = 2
# Options of a case that must not change the bits of its result. The others, like its dtype, change the result itself.
VARIED = [option for option in OPTIONS if option.name not in {"reduce_op", "root", "groups", "splits"}]
# Dtypes whose sums have a reference.
FLOATS = {"float64", "float32", "float16", "bfloat16"}
# Operations that send another share to each rank: a smaller message's share is the beginning of a larger message's.
_SHARES = {"reduce_scatter", "reduce_scatter_list", "scatter", "all_to_all", "all_to_all_list"}


@dataclass(frozen=True, slots=True)
class BitsJob:
    """The job that every rank receives."""

    job: Job
    # Folder into which a rank writes the results of its calls. None of the calls are timed.
    folder: str

    @property
    def launch(self) -> Launch:
        """Return the launch whose cases are called."""
        return self.job.launch


def uncomparable(case: Case) -> str | None:
    """Return the reason why the results of a case are not compared; None if they are compared."""
    operation = OPERATIONS[case.op]
    reasons = {
        "it has no buffers whose bits could be compared": not operation.pooled or operation.rank is not None,
        "its parts are uneven: smaller messages are no part of larger ones": case.op == "all_to_all_uneven"
        or case.splits is not None,
        "groups are not compared: world sizes are": case.groups != WORLD,
        f"data of {case.dtype} are not made": dtype_named(case.dtype).kind in {"complex", "bool"},
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def family(case: Case) -> Case:
    """Return the case with the options in VARIED at their defaults: the same for all variations of a case."""
    return replace(case, **{option.name: option.default for option in VARIED})


def shares(case: Case) -> int:
    """Return the number of shares into which the data that a rank sends are divided."""
    return ranks_together(case) if case.op in _SHARES else 1


def values(dtype: str, seed: int, rank: int, share: int, count: int) -> Values:
    """Draw the first values of a share of a rank's data: normal, rounded to a float of the dtype.

    Values for other dtypes have all bits of a float32, so that sums are rounded. The first values do not depend on
    `count`.
    """
    drawn = np.random.default_rng([seed, rank, share]).standard_normal(count)
    if dtype == "float64":
        return drawn
    data: NDArray[Any] = drawn.astype(np.float32)
    if dtype == "float16":
        data = data.astype(np.float16)
    elif dtype == "bfloat16":  # to the nearest, ties to even
        bits = data.view(np.uint32)
        data = ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return data.astype(np.float64)


def sent(case: Case, seed: int, rank: int, count: int) -> Values:
    """Return the data that a rank sends: `count` elements, share after share."""
    numbers = shares(case)
    data = np.concatenate([values(case.dtype, seed, rank, share, count // numbers) for share in range(numbers)])
    return data if DTYPES[case.dtype].kind == "float" else np.trunc(data * 8) % 32


def reference(case: Case, seed: int, rank: int, count: int) -> NDArray[np.longdouble] | None:
    """Return the sum that a rank should receive, added in higher precision than the case has.

    None if the result is not a sum of floats. count: number of elements that the rank receives.
    """
    if case.reduce_op not in {"sum", "avg"} or case.dtype not in FLOATS or not OPERATIONS[case.op].reduces:
        return None
    share = rank if case.op in _SHARES else 0
    parts = [values(case.dtype, seed, other, share, count) for other in range(case.world_size)]
    total: NDArray[np.longdouble] = np.sum(parts, axis=0, dtype=np.longdouble)
    return total / case.world_size if case.reduce_op == "avg" else total
