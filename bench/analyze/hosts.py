"""Tell which ranks ran on which host, as the ranks reported it.

In: a `Run`. Out: for each backend and world size, host names with their ranks. A backend and world size is left out
if a rank did not report its host, or if launches placed ranks differently: a host then has no fixed set of ranks.
"""

from bench.model.records import Json, Run

# Backend and world size.
Place = tuple[str, int]
Hosts = dict[str, tuple[int, ...]]


def hosts(run: Run) -> dict[Place, Hosts]:
    """The hosts of each backend and world size whose launches agree."""
    found: dict[Place, Hosts] = {}
    unclear: set[Place] = set()
    for session in run.environment:
        for launch in session.get("launches", []):
            place = (str(launch.get("backend")), int(launch.get("world_size", 0)))
            told = _of_launch(launch, place[1])
            if told is None or found.setdefault(place, told) != told:
                unclear.add(place)
    return {place: told for place, told in found.items() if place not in unclear}


def _of_launch(launch: Json, world_size: int) -> Hosts | None:
    names = {rank.get("rank"): rank.get("hostname") for rank in launch.get("ranks", [])}
    if None in names.values() or names.keys() != set(range(world_size)):
        return None
    told: dict[str, list[int]] = {}
    for rank in range(world_size):
        told.setdefault(str(names[rank]), []).append(rank)
    return {host: tuple(ranks) for host, ranks in told.items()}


def in_words(ranks: tuple[int, ...]) -> str:
    """Such as `ranks 8–15`, or `ranks 0, 4, 8`."""
    if len(ranks) > 2 and ranks == tuple(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]}–{ranks[-1]}"
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
