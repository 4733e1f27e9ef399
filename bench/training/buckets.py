"""Divide gradients into buckets: the one implementation, which prediction and measurement share.

In: bytes of the gradients in the order in which they become ready. Out: ends; bucket k holds the gradients
ends[k-1] … ends[k] - 1 of that order. Does not import torch.
"""

from collections.abc import Sequence

Ends = tuple[int, ...]


def by_caps(nbytes: Sequence[int], caps: Sequence[int], boundary: str = "after") -> Ends:
    """Buckets by a list of caps in bytes; the last cap applies to all further buckets.

    boundary: a bucket ends "after" the cap is reached, as in torch (`compute_bucket_assignment_by_size` in its
    reducer.cpp), or "before" it would be exceeded.
    """
    ends: list[int] = []
    filled = 0
    for number, size in enumerate(nbytes):
        cap = caps[min(len(ends), len(caps) - 1)]
        if boundary == "before" and filled and filled + size > cap:
            ends.append(number)
            filled = 0
        filled += size
        if boundary == "after" and filled >= cap:
            ends.append(number + 1)
            filled = 0
    return (*ends, len(nbytes)) if filled else tuple(ends)


def by_sizes(nbytes: Sequence[int], sizes: Sequence[int]) -> Ends:
    """Buckets of exactly these sizes in bytes. Raises ValueError where consecutive gradients do not add up to them."""
    ends: list[int] = []
    end = 0
    for position, size in enumerate(sizes, start=1):
        filled = 0
        while end < len(nbytes) and filled < size:
            filled += nbytes[end]
            end += 1
        if filled != size:
            raise ValueError(f"bucket {position} of the plan has {size} bytes, but gradients make up {filled}")
        ends.append(end)
    if end < len(nbytes):
        raise ValueError(f"{len(nbytes) - end} gradients are in no bucket of the plan")
    return tuple(ends)
