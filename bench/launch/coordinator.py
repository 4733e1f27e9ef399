"""Rank 0 of a job: collect the agents of the other processes, and have them start ranks.

In: a `JobRank` and a function that returns what this process was asked to do. Out: a `Coordinator` with a description
of the job and a `JobLauncher`, which `sweep` uses in place of a `Launcher`. Everything else (plan, folder, journal,
report) is as on one machine.

Here, too, every launch has fresh processes and a fresh process group. The processes that torchrun or srun started stay
outside of it: each forks a new rank for each launch, so a rank that hangs is killed from outside. A smaller world
size uses the first ranks. It is not a subgroup of a long-lived group, whose other ranks would wait and fail with it.
"""

import contextlib
import itertools
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.launch import compatibility
from bench.launch.agents import Agents, RemoteRank
from bench.launch.job import JobRank
from bench.launch.launcher import Launcher
from bench.launch.ranks import RankJob, Ranks
from bench.launch.secret import JobSecret
from bench.machine import network
from bench.model.capabilities import Demands, Machine
from bench.model.errors import INTERRUPTED, BenchError, JobError
from bench.model.records import Json
from bench.protocol import channel

# Launchers start the processes of a job within seconds of each other, but a host may have to pull a container first.
JOIN_WAIT_S = 120.0


@dataclass(slots=True)
class Coordinator:
    """The job as rank 0 sees it. code: exit status of all its processes."""

    place: JobRank
    launcher: "JobLauncher"
    handshakes: list[Json]
    code: int = 1

    def machine(self, demands: Demands | None = None) -> Machine:
        """The job as a `Machine` to plan with. Raises JobError if ranks would share a GPU that they must not share."""
        shared = demands is not None and demands.shared_gpus
        if demands is not None and demands.gpus:
            compatibility.check_gpus(self.handshakes, shared)
        self.launcher.devices = [compatibility.device_of(handshake, shared) for handshake in self.handshakes]
        return compatibility.merged(self.handshakes)

    def facts(self) -> Json:
        """Facts for the record: the launcher, the number of ranks, and the hosts."""
        started = {"launcher": self.place.launcher, "ranks": self.place.world_size}
        return {"job": started, "hosts": compatibility.hosts(self.handshakes)}


@contextlib.contextmanager
def coordinating(
    place: JobRank,
    secret: JobSecret,
    asked: Callable[[], bytes],
    sides: Mapping[str, Mapping[str, str]],
    before_leaving: Callable[[], None],
) -> Iterator[Coordinator]:
    """Context in which all agents of the job are connected. Raises JobError if the processes do not fit together.

    asked: see `compatibility.handshake`. sides: variables of each side of a run that has sides.
    before_leaving: called before the agents are told to leave.
    """
    deadline = time.monotonic() + JOIN_WAIT_S
    address = _own_address(place, deadline)
    interface = None if place.one_host else network.interface_of(address)
    with (
        secret.made() as key,
        Agents(_listener(place, address), key, place.world_size) as agents,
        Launcher(interface) as launcher,
    ):
        try:
            handshakes = agents.gather(compatibility.handshake(place, asked), JOIN_WAIT_S)
            compatibility.check(handshakes)
            devices = [compatibility.device_of(handshake) for handshake in handshakes]
            coordinator = Coordinator(place, JobLauncher(launcher, agents, address, devices, sides), handshakes)
            yield coordinator
            agents.code = coordinator.code
        except BenchError as error:
            agents.code = error.exit_code
            raise
        except KeyboardInterrupt:
            agents.code = INTERRUPTED
            raise
        finally:
            before_leaving()


@dataclass(slots=True)
class JobLauncher:
    """Starts rank 0 of each launch here, and has the agents start the others.

    address: of this host, where rank 0 listens. devices: GPU of each rank. sides: variables of each side of a run that
    has sides, from the command line of this process; the agents have theirs. side: the one whose variables ranks get.
    """

    launcher: Launcher
    agents: Agents
    address: str
    devices: list[int]
    sides: Mapping[str, Mapping[str, str]]
    side: str = ""
    launches: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def start(self, world_size: int, entry: str, job: RankJob) -> Ranks:
        """Start `world_size` ranks; raises LostRankError at once if an agent that should start one is lost."""
        listener = channel.listen(self.address, [0])
        assert listener is not None  # noqa: S101 - port 0 is any free one
        with listener:
            host, port = listener.getsockname()[:2]
            rendezvous = f"tcp:{host}:{port}"
            task = {"entry": entry, "job": asdict(job), "side": self.side}
            messages = [
                {"world_size": world_size, "rendezvous": rendezvous, "device": self.devices[rank], **task}
                for rank in range(1, world_size)
            ]
            others = self.agents.start(next(self.launches), world_size, messages)
            folder = self.launcher.folder()
            ranks = Ranks([], lambda: _clean(folder, others, Path(job.log)))
            ranks.members = others
            try:
                own = self.launcher.fork(
                    entry,
                    job,
                    folder,
                    rank=0,
                    world_size=world_size,
                    rendezvous=rendezvous,
                    device=self.devices[0],
                    listener=listener,
                    variables=self.sides.get(self.side, {}),
                )
            except BaseException:
                ranks.kill()
                raise
        ranks.members = [own, *others]
        return ranks


def _clean(folder: Path, others: list[RemoteRank], log: Path) -> None:
    """Remove the folder of rank 0, and add to the log what the other ranks printed on their hosts."""
    shutil.rmtree(folder, ignore_errors=True)
    for rank in others:
        if rank.log:
            with contextlib.suppress(OSError), log.open("a", encoding="utf-8") as file:
                file.write(f"[rank {rank.rank} on host {rank.agent.handshake['hostname']}]\n{rank.log.rstrip()}\n")


def _own_address(place: JobRank, deadline: float) -> str:
    address = network.resolve(place.address, deadline)
    if address is None:
        raise JobError(f"nobody knows the host {place.address!r} of rank 0: set MASTER_ADDR to its name or number")
    # Debian resolves a host's own name to 127.0.1.1, where other hosts do not find it.
    if network.is_loopback(address) and not place.one_host:
        return network.own_address_towards(network.ELSEWHERE) or address
    return address


def _listener(place: JobRank, address: str) -> socket.socket:
    try:
        listener = channel.listen(address, place.ports)
    except OSError:
        raise JobError(
            f"rank 0 cannot listen at {place.address} ({address}), which is no address of its host: set MASTER_ADDR "
            "to one, and let rank 0 run there"
        ) from None
    if listener is None:
        raise JobError(
            f"ports {place.ports[0]} to {place.ports[-1]} of {address} are all in use: set MASTER_PORT to another one"
        )
    return listener
