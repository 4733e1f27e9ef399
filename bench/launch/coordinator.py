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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.launch import compatibility, workers
from bench.launch.agents import Agents, RemoteRank
from bench.launch.job import JobRank
from bench.launch.launcher import Launcher, RankAssignment
from bench.launch.ranks import Ranks
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


class JobLauncher:
    """Starts rank 0 of each launch here, and has the agents start the others. devices: GPU of each rank."""

    def __init__(
        self,
        launcher: Launcher,
        agents: Agents,
        address: str,
        devices: list[int],
        sides: Mapping[str, Mapping[str, str]],
    ) -> None:
        self._launcher, self._agents, self._address, self._sides = launcher, agents, address, sides
        self._launches = itertools.count(1)
        self.devices = devices

    def start(self, world_size: int, target: str, argument: Any) -> Ranks:
        """Start `world_size` ranks; raises LostRankError at once if an agent that should start one is lost."""
        name = workers.name_of(target)
        listener = channel.listen(self._address, [0])
        assert listener is not None  # noqa: S101 - port 0 is any free one
        with listener:
            host, port = listener.getsockname()[:2]
            rendezvous = f"tcp:{host}:{port}"
            task = {"worker": name, "job": workers.WORKERS[name].to_json(argument)}
            messages = [
                {"world_size": world_size, "rendezvous": rendezvous, "device": self.devices[rank], **task}
                for rank in range(1, world_size)
            ]
            others = self._agents.start(next(self._launches), world_size, messages)
            folder = self._launcher.folder()
            ranks = Ranks([], lambda: _clean(folder, others, Path(argument.log)))
            ranks.members = others
            variables = self._sides.get(argument.side, {})
            assignment = RankAssignment(0, world_size, rendezvous, self.devices[0], None, listener, variables)
            try:
                own = self._launcher.fork(assignment, folder, target, argument)
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
