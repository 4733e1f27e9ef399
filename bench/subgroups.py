"""Divide the ranks of a world into groups, as tensor- and data-parallel training does.

contiguous:2   0 1 | 2 3        strided:2   0 2 | 1 3        with the suffix :serial, one group calls after the other

In: a division as text, and the world size. Out: the global ranks of each group. Does not import torch.
"""

import re
from dataclasses import dataclass

WORLD = "world"
_PATTERN = re.compile(r"(contiguous|strided):([1-9]\d*)(:serial)?")


@dataclass(frozen=True, slots=True)
class Subgroups:
    """groups: the global ranks of each group. serial: whether groups call one after the other, not all at once."""

    groups: tuple[tuple[int, ...], ...]
    serial: bool = False

    def of(self, rank: int) -> int:
        """Number of the group that a rank is in."""
        return next(number for number, members in enumerate(self.groups) if rank in members)


def check(text: str) -> str:
    """The text itself if it is a division into groups; raises ValueError with what is allowed."""
    if text != WORLD and not _PATTERN.fullmatch(text):
        raise ValueError(
            f"{text!r} is no division into groups: write world, contiguous:K or strided:K with K ranks a group "
            "(behind it :serial, for one group after the other)"
        )
    return text


def group_size(text: str, world_size: int) -> int:
    """Ranks in each group."""
    match = _PATTERN.fullmatch(text)
    return int(match[2]) if match else world_size


def unsupported(text: str, world_size: int) -> str | None:
    """Why so many ranks cannot be divided in this way; None if they can."""
    size = group_size(text, world_size)
    if world_size % size:
        return f"{world_size} ranks cannot be divided into groups of {size}"
    return None


def divide(text: str, world_size: int) -> Subgroups:
    """The groups of a division that `unsupported` allows."""
    match = _PATTERN.fullmatch(text)
    if not match:
        return Subgroups((tuple(range(world_size)),))
    size = int(match[2])
    count = world_size // size
    if match[1] == "contiguous":
        groups = tuple(tuple(range(start, start + size)) for start in range(0, world_size, size))
    else:
        groups = tuple(tuple(range(start, world_size, count)) for start in range(count))
    return Subgroups(groups, serial=match[3] is not None)
