"""Coordinate a job from rank 0: its other processes are workers, each of which starts one rank per launch.

In: a `JobRank` and a function that returns the request of this process. Out: a `Coordinator` with a description of
the job and a `JobLauncher`, which `sweep` uses in place of a `Launcher`. Everything else (plan, folder, journal,
report) is as on one machine. The other end is `agent`.

In a job, too, every launch has fresh processes and a fresh process group. The processes that torchrun or srun started
are not in that group: each forks a new rank per launch, so that it can kill a rank that hangs. A smaller world size
uses the first ranks of the job, or the first chosen ranks. It is not a subgroup of a long-lived group: the other ranks
of such a group would wait, and fail with it.
"""

import contextlib
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from collbench.catalog.backends import BACKENDS
from collbench.launch import compatibility
from collbench.launch.job import JobRank
from collbench.launch.launcher import Launcher
from collbench.launch.ranks import NO_LOG, LaunchJob, Ranks
from collbench.launch.secret import JobSecret
from collbench.launch.workers import JOIN_WAIT_S, Workers
from collbench.machine import environment, network
from collbench.model.errors import INTERRUPTED, UNEXPECTED, BenchError, JobError, MpirunError
from collbench.model.records import Demands, Json, Machine
from collbench.protocol import channel
from collbench.store import encoding

# Remedy if ranks on several hosts do not reach each other: stores and libraries listen on free ports.
ANY_PORT = "hosts must reach each other on any port"


@dataclass(slots=True)
class Coordinator:
    """The job as rank 0 sees it."""

    place: JobRank
    launcher: "JobLauncher"
    # Handshakes of the processes that joined, in order of rank.
    handshakes: list[Json]
    # Ranks of the processes that did not join.
    absent: tuple[int, ...] = ()
    # Exit status of all processes of the job.
    code: int = 1

    def machine(self, demands: Demands | None = None) -> Machine:
        """Return the job as a `Machine` for planning. Raises JobError if ranks would share a GPU without permission."""
        shared = demands is not None and demands.shared_gpus
        if demands is not None and demands.gpus and not shared:
            compatibility.check_gpus(self.handshakes)
        self.launcher.devices = {h["rank"]: compatibility.device_of(h, shared) for h in self.handshakes}
        machine = compatibility.merged(self.handshakes)
        machine.backends_missing.update(self.place.missing_backends() | machine.backends_missing)
        return machine

    def facts(self) -> Json:
        """Return facts for the record: launcher, number of ranks, and hosts; ranks are numbered as in launches."""
        handshakes = {handshake["rank"]: handshake for handshake in self.handshakes}
        members = [handshakes[member] | {"rank": rank} for rank, member in enumerate(self.launcher.members)]
        used = network.network_of(self.launcher.address)
        started = {"launcher": self.place.launcher, "ranks": len(members), "network": used}
        return {"job": started, "hosts": compatibility.hosts(members)}


@contextlib.contextmanager
def coordinating(
    place: JobRank,
    secret: JobSecret,
    request: Callable[[], bytes],
    before_leaving: Callable[[], None],
    partial: bool = False,
) -> Iterator[Coordinator]:
    """Connect all processes of the job while the context lasts. Raises JobError if they are not compatible.

    request: see `compatibility.handshake`. before_leaving: called before the others receive `leave`. partial: whether
    the job goes on without processes that do not join in time.
    """
    listeners = listen(place, addresses_of_rank_0(place, time.monotonic() + JOIN_WAIT_S), secret)
    address, port = listeners[0].getsockname()[:2]
    interface = None if place.one_host else network.interface_of(address)
    with (
        contextlib.ExitStack() as joining,
        Workers(listeners, joining.enter_context(secret.made(port)), range(1, place.world_size)) as workers,
        Launcher(interface) as launcher,
    ):
        try:
            handshakes = [compatibility.handshake(place, request), *gathered(workers, JOIN_WAIT_S, partial)]
            address = workers.reached() or address
            handshakes[0]["host"]["variables"] |= environment.towards(address)
            joining.close()  # every process that takes part knows the secret by now
            compatibility.check(handshakes)
            devices = {handshake["rank"]: compatibility.device_of(handshake) for handshake in handshakes}
            absent = tuple(rank for rank in range(place.world_size) if rank not in devices)
            starter = JobLauncher(launcher, workers, address, devices, tuple(devices))
            coordinator = Coordinator(place, starter, handshakes, absent)
            yield coordinator
            workers.code = coordinator.code
        except BenchError as error:
            workers.code = error.exit_code
            raise
        except (OSError, MemoryError) as error:  # the exit statuses are as in `cli.app`
            named = isinstance(error, MemoryError) or error.filename is not None
            workers.code = BenchError.exit_code if named else UNEXPECTED
            raise
        except KeyboardInterrupt:
            workers.code = INTERRUPTED
            raise
        finally:
            before_leaving()


def gathered(workers: Workers, seconds: float, partial: bool = False) -> list[Json]:
    """Return the handshakes of the other processes, in order of rank. partial: missing ranks are left out, but not all.

    Raises JobError if a rank is missing after `seconds`, joins twice, or (if not partial) sends no handshake.
    """
    began = time.monotonic()
    missing = workers.join(seconds, enough=lambda: workers.silent and not partial)
    if missing and not (partial and workers.members):
        names = ", ".join(map(str, missing[:10])) + (", …" if len(missing) > 10 else "")
        listening = [listener.getsockname()[:2] for listener in workers.listeners]
        refused = "".join(f"{peer} {why}; " for peer, why in workers.refused.items())
        raise JobError(
            f"{len(missing)} of {len(missing) + len(workers.members) + 1} ranks did not join within "
            f"{time.monotonic() - began:.0f} s: {names}; rank 0 listens at "
            f"{' and '.join(str(address) for address, _ in listening)}, port {listening[0][1]}; {refused}"
            f"nobody {'else ' if workers.members or refused else ''}connected: the same command must run on all ranks, "
            "and their hosts must reach rank 0 there"
        )
    return [worker.handshake for _, worker in sorted(workers.members.items())]


def addresses_of_rank_0(place: JobRank, deadline: float) -> list[str]:
    """Return the addresses at which rank 0 may listen; none if the name of its host is unknown at the deadline.

    They are the addresses of the name except loopback. Hosts may know them in another order, so an agent tries each.
    Debian resolves a host's own name to 127.0.1.1: on that host, they are all addresses of the host.
    """
    addresses = network.resolve(place.address, deadline)
    if place.one_host or not addresses:
        return addresses[:1]
    return [address for address in addresses if not network.is_loopback(address)] or network.own_addresses()


def listen(place: JobRank, addresses: Sequence[str], secret: JobSecret | None = None) -> list[socket.socket]:
    """Return sockets that listen at the addresses that this host has, on the first port of the job that is free there.

    Raises JobError if there is none, or if another rank 0 of the same name still waits at a lower port: ranks of one
    job would join the other job. secret: its file on a lower port reveals such a rank 0.
    """
    own = [address for address in addresses if network.interface_of(address) or network.is_loopback(address)]
    if not own:
        named = ", ".join(addresses) or ", ".join(network.resolve(place.address, 0)) or "an unknown name"
        raise JobError(
            f"rank 0 cannot listen at {place.address} ({named}): set MASTER_ADDR to an address of its host that other "
            "hosts reach, or to localhost if all ranks are on this host"
        )
    for port in place.ports:
        listeners = [listener for address in own if (listener := channel.listen(address, [port])) is not None]
        if len(listeners) == len(own):
            return listeners
        for listener in listeners:
            listener.close()
        if secret is not None and secret.path(port).exists():
            raise JobError(
                f"another rank 0 waits for its ranks at port {port} of {own[0]}: give each process of a job its "
                "own rank, and each job its own MASTER_PORT"
            )
    numbers = f"{place.ports[0]} to {place.ports[-1]} of {' and '.join(own)}"
    raise JobError(f"ports {numbers} are all in use: set MASTER_PORT to another one")


@dataclass(slots=True)
class JobLauncher:
    """Starts rank 0 of each launch in this process, and has the other processes start the other ranks."""

    launcher: Launcher
    workers: Workers
    # Address of this host, where rank 0 listens.
    address: str
    # Maps a rank of the job to its GPU number.
    devices: Mapping[int, int]
    # Ranks of the job that launches may use, rank 0 first. The index of a rank here is its rank in a launch.
    members: tuple[int, ...]
    # Environment variables of the ranks, from the side of `ab` that is measured.
    variables: Mapping[str, str] = field(default_factory=dict)
    # The MPI ranks that were started last; None if no MPI ranks were started.
    mpi: Ranks | None = None

    def start(self, world_size: int, entry: str, job: object, log: Path = NO_LOG) -> Ranks:
        """See `ranks.Starter.start`; raises LostRankError at once if a process that should start a rank is lost.

        Raises MpirunError for MPI ranks if the last launch of MPI ranks failed: they would wait for a lost rank.
        """
        by_mpi = isinstance(job, LaunchJob) and BACKENDS[job.launch.backend].library == "mpi4py"
        if by_mpi and self.mpi is not None and self.mpi.failed:
            raise MpirunError(
                "a rank of MPI was lost; mpirun does not replace it: start a job with collbench resume RUN"
            )
        listener = channel.listen(self.address, [0])
        assert listener is not None  # noqa: S101 - port 0 is any free one
        with listener:
            host, port = listener.getsockname()[:2]
            encoded, remedy = encoding.encoded(job), "" if network.is_loopback(host) else f": {ANY_PORT}"
            order = {
                "launch": next(self.workers.launches),
                "world_size": world_size,
                "rendezvous": f"tcp:{host}:{port}",
                "variables": dict(self.variables),
            }
            chosen = enumerate(self.members[1:world_size], 1)
            shares = [(member, {"ranks": [rank], "device": self.devices[member]}) for rank, member in chosen]
            ranks = self.workers.start(shares, order, encoded, log)
            folder, append_output = self.launcher.folder(), ranks.clean

            def clean() -> None:
                shutil.rmtree(folder, ignore_errors=True)
                append_output()

            ranks.clean, ranks.remedy = clean, remedy
            own = {"rank": 0, "device": self.devices[0], "listener": listener}
            try:
                first = self.launcher.fork_in_job(entry, encoded, folder, log, order, self.workers.key, **own)
            except BaseException:
                ranks.kill()
                raise
        ranks.members = [first, *ranks.members]
        if by_mpi:
            self.mpi = ranks
        return ranks
