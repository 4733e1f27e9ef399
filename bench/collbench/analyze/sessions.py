"""Read the records that the sessions of a run made of its hosts, ranks and clocks.

In: `Run.environment`, or entries of it. Out: where its ranks ran; timings of all ranks on one clock. `comparability`
reads the facts that tell machines and software apart.
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from collbench.analyze.reading import once
from collbench.model.facts import LaunchFacts, RankFacts, Session
from collbench.model.projection import grouped
from collbench.model.records import NOT_AVAILABLE, Run, Samples, Timings

# Label of a host → its ranks.
Hosts = dict[str, tuple[int, ...]]
BackendAndSize = tuple[str, int]

# Prefix of the names of all virtual GPUs, for every rule.
VIRTUAL = "Virtual GPU"


def launches_of(sessions: Iterable[Session]) -> list[LaunchFacts]:
    """Return the records of all launches, in their order."""
    return [launch for session in sessions for launch in session.get("launches", [])]


def ranks_of(sessions: Iterable[Session]) -> list[RankFacts]:
    """Return the records of the ranks of all launches."""
    return [rank for launch in launches_of(sessions) for rank in launch.get("ranks", [])]


def is_virtual(run: Run) -> bool:
    """Return whether ranks ran on virtual GPUs (proof/virtual_gpu/), whose times follow a rule."""
    return any(is_virtual_gpu(str(rank.get("device_name", ""))) for rank in ranks_of(run.environment))


def is_virtual_gpu(name: str) -> bool:
    """Return whether a GPU of this name is virtual."""
    return name.startswith(VIRTUAL)


# ── where ranks ran ──────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Place:
    """The hardware under the ranks of a backend and world size."""

    # Names of the GPUs; "CPU" for ranks without a GPU.
    gpus: frozenset[str]
    # Number of hosts.
    hosts: int


def places_of(run: Run) -> dict[BackendAndSize, Place]:
    """Return the place of the ranks of each backend and world size in the latest launch."""
    places: dict[BackendAndSize, Place] = {}
    for launch in launches_of(run.environment):
        if "backend" in launch and "world_size" in launch:
            ranks = launch.get("ranks", [])
            hosts = {_identity(rank) for rank in ranks if rank.get("hostname") is not None}
            devices = frozenset(str(rank.get("device_name") or NOT_AVAILABLE) for rank in ranks)
            places[launch["backend"], launch["world_size"]] = Place(devices, max(1, len(hosts)))
    return places


def hosts(run: Run) -> dict[BackendAndSize, Hosts]:
    """Return the ranks on each host, for each backend and world size.

    A backend and world size is left out if a rank did not report its host, or if launches placed ranks differently:
    a host then has no fixed set of ranks.
    """
    agreed: dict[BackendAndSize, Hosts] = {}
    unclear: set[BackendAndSize] = set()
    for launch in launches_of(run.environment):
        backend, world_size = str(launch.get("backend")), int(launch.get("world_size", 0))
        ranks = launch.get("ranks", [])
        identities = {rank.get("rank", -1): _identity(rank) for rank in ranks if rank.get("hostname") is not None}
        placed, complete = by_host(identities), identities.keys() == set(range(world_size))
        if not complete or agreed.setdefault((backend, world_size), placed) != placed:
            unclear.add((backend, world_size))
    return {place: placed for place, placed in agreed.items() if place not in unclear}


def by_host(identities: Mapping[int, tuple[str, ...]]) -> Hosts:
    """Return the ranks on each host. identities: of the host of each rank; its name first.

    The label of a host is its name; if hosts share the name, it also has the first rank of the host.
    """
    members = grouped(sorted(identities), lambda rank: identities[rank])
    names = Counter(name for name, *_ in members)
    return {
        name if names[name] == 1 else f"{name} (rank {ranks[0]})": tuple(ranks) for (name, *_), ranks in members.items()
    }


def _identity(rank: RankFacts) -> tuple[str, ...]:
    """Return the identity of a rank's host: its name, and its boot id if recorded."""
    return str(rank.get("hostname")), str(rank.get("clock"))


def in_words(ranks: tuple[int, ...]) -> str:
    """Format ranks as `ranks 8–15`, or `ranks 0, 4, 8`."""
    if len(ranks) > 2 and ranks == tuple(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]}–{ranks[-1]}"
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


# ── one clock for all ranks ──────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Aligned:
    """Timings of all ranks on one clock."""

    # Starts are on the clock of rank 0.
    timings: Timings
    # The value is 0 if all ranks read the same clock.
    uncertainty_s: float


class Clocks:
    """The clock records of each launch of a run, which convert the arrivals of all ranks to rank 0's clock."""

    def __init__(self, run: Run) -> None:
        self._launches: dict[tuple[Any, ...], list[LaunchFacts]] = defaultdict(list)
        for launch in launches_of(run.environment):
            self._launches[launch.get("backend"), launch.get("world_size"), launch.get("launch")].append(launch)
        # Computed once: there are more cases than launches, and a launch can have a thousand ranks.
        self._several = {
            place
            for place, launches in self._launches.items()
            if any(len({rank.get("clock") for rank in launch.get("ranks", [])}) > 1 for launch in launches)
        }

    def aligned(self, samples: Samples) -> Aligned | None:
        """Return the timed iterations on rank 0's clock; None if the clock offsets are unknown.

        Offsets are interpolated between the start and the end of a launch, because clocks drift apart.
        """
        timed = samples.timed
        assert timed is not None  # noqa: S101 - failures have no arrivals
        place = (samples.case.backend, samples.case.world_size, samples.launch)
        if place not in self._several:
            return Aligned(timed, 0.0)
        launches = self._launches[place]
        # After a failure new processes measure the rest: it is not recorded which processes made these samples.
        clocks = launches[0].get("clocks") if len(launches) == 1 else None
        if not clocks:
            return None
        import numpy as np  # imported here: `plan` needs the rest of this module, but not numpy

        # `rank.group.Bounds` of each rank (at, low, high; ns), at the start and at the end of the launch.
        begin, end = (np.array(bounds, dtype=np.int64) for bounds in clocks)
        offset_0, offset_1 = ((bounds[:, 1] + bounds[:, 2]) // 2 for bounds in (begin, end))
        span = max(1, int(end[-1, 0] - begin[-1, 0]))
        at = timed.start_ns[:, :1] + samples.base_ns - begin[-1, 0]  # rank 0's offset is 0
        offset = offset_0 + (offset_1 - offset_0) * (at / span)
        start = timed.start_ns - np.rint(offset).astype(np.int64)
        uncertainty = max(int((bounds[:, 2] - bounds[:, 1]).max()) for bounds in (begin, end)) / 2e9
        return Aligned(dataclasses.replace(timed, start_ns=start), uncertainty)


clocks_of = once(Clocks)
