"""Divide unevenly the data that ranks send to each other in an all-to-all, as routing tokens to experts does.

In: a distribution, the number of ranks, and the elements that a rank sends. Out: a matrix whose row a has the
elements that rank a sends to each rank. Does not import torch.

    zipf:1.2        popularity of the k-th most popular rank is 1 / k^1.2       lognormal:1    exp(N(0, 1²))
    hot:4           one rank receives 4 times as much as the mean               rows:0,3;1,2   as written
    distance:1      a rank sends to the k-th rank after it k times as much as to the next, and nothing to itself, as
                    alltoallv_perf of nccl-tests does; with 0.5, half of its data is divided in this way, half evenly

The suffix `:seed=3` chooses the popular ranks. Rows as written are scaled so that the largest sum is the number of
elements a rank sends; they are exact if it is their sum.
"""

import random
import re
from collections.abc import Sequence

from collbench.model.divisions import Splits

_NUMBER = r"\d+(?:\.\d+)?"
_PATTERN = re.compile(
    rf"(?:(?P<kind>zipf|lognormal|hot|distance):(?P<value>{_NUMBER})|rows:(?P<rows>[\d,;]+))"
    r"(?::seed=(?P<seed>\d+))?"
)


def parse(text: str) -> Splits:
    """Parse a distribution; raises ValueError with the allowed forms."""
    match = _PATTERN.fullmatch(text)
    if not match:
        raise ValueError(
            f"{text!r} is not a distribution: write zipf:1, lognormal:1, hot:4, distance:1 or rows:0,3;1,2"
        )
    rows = tuple(tuple(map(int, row.split(","))) for row in match["rows"].split(";")) if match["rows"] else ()
    if any(len(row) != len(rows) for row in rows):
        raise ValueError(f"rows: a matrix of {len(rows)} rows needs {len(rows)} numbers in each")
    if match["kind"] == "distance" and (float(match["value"]) > 1 or match["seed"]):
        raise ValueError("distance: a share from 0 to 1, without a seed")
    return Splits(match["kind"] or "rows", float(match["value"] or 0), rows, int(match["seed"] or 0))


def matrix(splits: Splits, ranks: int, elements: int) -> list[list[int]]:
    """Return the elements from each rank (row) to each rank (column)."""
    if splits.rows:
        largest = max(map(sum, splits.rows)) or 1
        return [[part * elements // largest for part in row] for row in splits.rows]
    if splits.kind == "distance":
        row = _apportioned(_by_distance(splits.value, ranks), elements)
        return [row[-rank:] + row[:-rank] for rank in range(ranks)]
    return [_apportioned(_popularity(splits, ranks), elements)] * ranks


def heaviest(rows: Sequence[Sequence[int]]) -> int:
    """Return the most elements that one rank sends to others, or receives: no exchange ends before they are moved."""
    ranks = range(len(rows))
    sent = max(sum(rows[a]) - rows[a][a] for a in ranks)
    received = max(sum(rows[a][b] for a in ranks) - rows[b][b] for b in ranks)
    return max(sent, received)


def most_received(splits: Splits, ranks: int, elements: int) -> int:
    """Return the most elements that one rank receives in a call, including its own."""
    return max(map(sum, zip(*matrix(splits, ranks, elements), strict=True)))


def _by_distance(spread: float, ranks: int) -> list[float]:
    """Return the share of each rank, by its distance to the sender."""
    if ranks == 1:
        return [1.0]
    return [(1 - spread) / ranks + spread * distance / (ranks * (ranks - 1) / 2) for distance in range(ranks)]


def _popularity(splits: Splits, ranks: int) -> list[float]:
    """Return the share of each rank, in an order that the seed chooses."""
    dice = random.Random(f"{splits.seed}/0")
    if splits.kind == "zipf":
        weights = [1 / (k + 1) ** splits.value for k in range(ranks)]
    elif splits.kind == "lognormal":
        weights = [dice.lognormvariate(0, splits.value) for _ in range(ranks)]
    else:
        share = splits.value / ranks
        weights = [share, *[(1 - share) / (ranks - 1)] * (ranks - 1)] if ranks > 1 else [1.0]
    dice.shuffle(weights)
    total = sum(weights)
    return [weight / total for weight in weights]


def _apportioned(shares: Sequence[float], elements: int) -> list[int]:
    """Return whole numbers in these shares that add up to `elements`: the largest remainders are rounded up."""
    exact = [share * elements for share in shares]
    parts = [int(share) for share in exact]
    by_remainder = sorted(range(len(parts)), key=lambda k: parts[k] - exact[k])
    for k in by_remainder[: elements - sum(parts)]:
        parts[k] += 1
    return parts
