"""Pair ranks, or nodes, round by round, such that each pair occurs once: the circle method of tournaments.

In: a number of ranks. Out: pairs, or the partner of a rank. Does not import torch.
"""


def rounds(world_size: int) -> list[list[tuple[int, int]]]:
    """Pairs of ranks, round by round, such that each pair occurs once (the circle method).

    n - 1 rounds of n/2 pairs; with an odd number of ranks n rounds, in each of which one rank rests.
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
    """Partner of a rank in round `turn` of `rounds`; None if the rank rests. Does not make the whole schedule, which
    has half a million pairs at 1024 ranks."""
    places = world_size + world_size % 2
    moving = places - 1  # rank 0 keeps its place, the others rotate
    place = (rank - 1 + turn) % moving + 1 if rank else 0
    opposite = places - 1 - place
    other = (opposite - 1 - turn) % moving + 1 if opposite else 0
    return other if other < world_size else None
