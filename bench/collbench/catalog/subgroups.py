"""Divide the ranks of a world into groups, as tensor- and data-parallel jobs do.

contiguous:2   0 1 | 2 3        strided:2   0 2 | 1 3        with the suffix :serial, one group calls after the other
strided:2@2, of 8 ranks: 0 2 | 1 3 | 4 6 | 5 7: groups of 2 ranks that are 2 apart, within each 4 ranks
sets:0,3|1,2   exactly these groups, of equal size; ranks in no group rest

In: a division, and the world size. Out: the global ranks of each group. Also pairs ranks, or nodes, round by
round, such that each pair occurs once. Does not import torch.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from collbench.model.divisions import WORLD, Division

_PATTERN = re.compile(
    r"(?P<kind>contiguous|strided):(?P<size>[1-9]\d*)(?:(?<=\d)@(?P<stride>[1-9]\d*))?(?P<serial>:serial)?"
)
_SETS = re.compile(r"sets:\d+(?:,\d+)*(?:\|\d+(?:,\d+)*)*")


@dataclass(frozen=True, slots=True)
class Subgroups:
    """A division of the ranks into groups."""

    # Global ranks of each group.
    groups: tuple[tuple[int, ...], ...]
    # True if groups call one after the other, not all at once.
    serial: bool = False

    def of(self, rank: int) -> int | None:
        """Return the number of the group that a rank is in; None if it is in none."""
        return next((number for number, members in enumerate(self.groups) if rank in members), None)


def parse(text: str) -> Division:
    """Parse the division that a text names; raises ValueError with the allowed forms."""
    if text == str(WORLD):
        return WORLD
    if _SETS.fullmatch(text):
        return of_sets([map(int, part.split(",")) for part in text.removeprefix("sets:").split("|")])
    match = _PATTERN.fullmatch(text)
    if match is None or (match["kind"] == "contiguous" and match["stride"]):
        raise ValueError(
            f"{text!r} is not a division into groups: write world, contiguous:K or strided:K of K ranks per group, or "
            "strided:K@S with K ranks that are S apart (append :serial to run one group after the other)"
        )
    return Division(match["kind"], int(match["size"]), int(match["stride"] or 0), match["serial"] is not None)


def of_sets(groups: Iterable[Iterable[int]]) -> Division:
    """Return a division into exactly these groups, each sorted by rank, because torch sorts them, too."""
    return Division("sets", sets=tuple(tuple(sorted(members)) for members in groups))


def of_colours(colours: Sequence[int]) -> Division:
    """Return the division into groups of ranks with equal colours. colours: the colour of each rank."""
    groups = tuple(
        tuple(rank for rank, own in enumerate(colours) if own == colour) for colour in dict.fromkeys(colours)
    )
    named = (WORLD, *(Division(kind, len(groups[0])) for kind in ("contiguous", "strided")))
    return next((known for known in named if divide(known, len(colours)).groups == groups), of_sets(groups))


def group_size(division: Division, world_size: int) -> int:
    """Return the number of ranks in each group."""
    return len(division.sets[0]) if division.sets else division.size or world_size


def stride(division: Division, world_size: int) -> int:
    """Return the distance between neighbours in a group."""
    return 1 if division.kind != "strided" else division.stride or world_size // division.size


def divisible(division: Division, world_size: int) -> bool:
    """Return whether groups of one size and at one distance divide this number of ranks."""
    size = group_size(division, world_size)
    return world_size % size == 0 and world_size % (size * stride(division, world_size)) == 0


def divide(division: Division, world_size: int) -> Subgroups:
    """Return the groups of a division that the rules allow (`catalog.rules`)."""
    if division.sets:
        return Subgroups(division.sets)
    if division == WORLD:
        return Subgroups((tuple(range(world_size)),))
    apart = stride(division, world_size)
    block = division.size * apart
    groups = tuple(
        tuple(range(first, start + block, apart))
        for start in range(0, world_size, block)
        for first in range(start, start + apart)
    )
    return Subgroups(groups, division.serial)


# ── pairs ────────────────────────────────────────────────────────────────────────────────────────
def rounds(world_size: int) -> list[list[tuple[int, int]]]:
    """Return pairs of ranks, round by round, such that each pair occurs once: the circle method of tournaments.

    There are n - 1 rounds of n/2 pairs; with an odd number of ranks, n rounds, and one rank rests in each.
    """
    ranks = [*range(world_size), *([-1] if world_size % 2 else [])]
    half = len(ranks) // 2
    schedule = []
    for _ in range(len(ranks) - 1):
        pairs = zip(ranks[:half], reversed(ranks[half:]), strict=True)
        schedule.append([(min(pair), max(pair)) for pair in pairs if -1 not in pair])
        ranks = [ranks[0], ranks[-1], *ranks[1:-1]]
    return schedule


def partner(rank: int, turn: int, world_size: int) -> int | None:
    """Return the partner of a rank in round `turn` of `rounds`, without the whole schedule; None if the rank rests."""
    places = world_size + world_size % 2
    moving = places - 1  # rank 0 keeps its place, the others rotate
    place = (rank - 1 + turn) % moving + 1 if rank else 0
    opposite = places - 1 - place
    other = (opposite - 1 - turn) % moving + 1 if opposite else 0
    return other if other < world_size else None
