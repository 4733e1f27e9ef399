"""Hosts on one machine, and a Slurm cluster of them.

In: the names of the hosts. Out: `Hosts`, each a network namespace with a host name of its own, in which commands can
run, and which can be cut off; `Cluster`, a login host with slurmctld and two nodes with a slurmd each, all of Debian's
packages, with settings of their own. Both live as long as their context and leave nothing behind: no process, no
namespace, no folder. The file system is shared, as it is on a cluster. Needs Linux and root: `unsupported` says what
is missing.
"""

import contextlib
import functools
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proof import links

LOGIN, NODES = "login", ("node0", "node1")
# How long daemons may take to start and to end, in seconds, on a machine that other work keeps busy.
PATIENCE_S = 90.0
# Far above what tests send; the smallest burst of a link fits it.
RATE = "1gbit"
# A node without an answer for SlurmdTimeout is down. CPUs: more than a machine may have, so that tasks never wait.
SETTINGS = """
ClusterName=collbench
SlurmctldHost={login}({address})
SlurmUser=root
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmctldTimeout=10
SlurmdTimeout=10
MessageTimeout=5
TCPTimeout=2
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


# ── can it be done here? ─────────────────────────────────────────────────────────────────────────
@functools.cache
def unsupported_hosts() -> str | None:
    """Why there can be no hosts here; None where there can."""
    if links.unsupported():
        return links.unsupported()
    with hosts("one") as made:
        tried = subprocess.run([*made.at("one"), "true"], capture_output=True, text=True)
    return f"host names of their own are refused here: {tried.stderr.strip()}" if tried.returncode else None


@functools.cache
def unsupported() -> str | None:
    """Why there can be no cluster here; None where there can."""
    missing = [name for name in ("slurmctld", "slurmd", "srun", "munged") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not found (apt install slurm-wlm munge)"
    return unsupported_hosts()


# ── hosts ────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Hosts:
    """Namespaces on one switch. names: of the hosts, each of which knows the addresses of all."""

    names: tuple[str, ...]
    network: links.Network
    folder: Path

    def address(self, name: str) -> str:
        return self.network.addresses[self.names.index(name)]

    def _namespace(self, name: str) -> str:
        return self.network.namespaces[self.names.index(name)]

    def at(self, name: str) -> list[str]:
        """The words before a command that is to run on this host; its process is the command's own."""
        prepared = f"mount --bind {self.folder}/hosts /etc/hosts && hostname {name}"
        script = f'{prepared} && TMPDIR={self.folder}/tmp exec "$0" "$@"'
        return ["ip", "netns", "exec", self._namespace(name), "unshare", "--uts", "--mount", "sh", "-c", script]

    def link(self, name: str, state: str) -> None:
        """Cut the host off ("down"), or join it again ("up")."""
        interface = self.network.interfaces[self.names.index(name)]
        subprocess.run(["ip", "-n", self._namespace(name), "link", "set", interface, state], check=True)

    def kill_all(self, name: str) -> None:
        """Every process on this host, also those that others start meanwhile."""
        wait_for(lambda: not self._kill(name), f"{name} still has processes")

    def _kill(self, name: str) -> list[str]:
        command = ["ip", "netns", "pids", self._namespace(name)]
        pids = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        return pids


@contextmanager
def hosts(*names: str) -> Iterator[Hosts]:
    """Hosts with these names."""
    with tempfile.TemporaryDirectory(prefix="collbench-") as place, links.bridged(len(names), RATE) as network:
        made = Hosts(names, network, Path(place))
        lines = [f"{address} {name}" for name, address in zip(names, network.addresses, strict=True)]
        Path(place, "tmp").mkdir()  # what killed processes leave there goes with it
        Path(place, "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        try:
            yield made
        finally:
            for name in names:
                made.kill_all(name)


# ── a cluster ────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Cluster:
    """Two nodes with Slurm, and a host from which jobs are started."""

    hosts: Hosts
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.hosts.folder

    def start(self, *command: str, env: Mapping[str, str] = os.environ, **more: Any) -> "subprocess.Popen[str]":
        """A command on the login host. more: as of Popen."""
        told = {**env, "SLURM_CONF": str(self.folder / "slurm.conf")}
        return subprocess.Popen([*self.hosts.at(LOGIN), *command], env=told, text=True, **more)

    def run(self, *command: str, **more: Any) -> "subprocess.CompletedProcess[str]":
        """What became of a command on the login host. more: as of `start`."""
        with self.start(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more) as process:
            try:
                out, err = process.communicate(timeout=PATIENCE_S)
            finally:
                process.kill()  # nothing, where it has ended
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def jobs(self) -> list[str]:
        """The numbers of all jobs that wait, run or end."""
        return self.run("squeue", "--noheader", "--format=%i").stdout.split()

    def states(self) -> dict[str, str]:
        """What slurmctld thinks of each node: idle, mix, alloc, comp, down, and * where it does not answer."""
        listed = self.run("sinfo", "--noheader", "--Node", "--format=%N %t").stdout
        return dict(zip(listed.split()[::2], listed.split()[1::2], strict=True))

    def lose(self, node: str) -> None:
        """As if its power failed: nobody is told, and nothing on it goes on."""
        self.hosts.link(node, "down")
        self.hosts.kill_all(node)
        self.daemons.pop(node).wait()

    def reset(self) -> None:
        """No job, and both nodes idle."""
        self.run("scancel", "--full", "--user=root")
        for node in NODES:
            if node not in self.daemons:
                self.hosts.link(node, "up")
                self._start_node(node)
        self._wait_until_idle()

    def _start(self, host: str, name: str, *command: str) -> None:
        with Path(self.folder, f"{name}.log").open("ab") as log:
            words = [*self.hosts.at(host), *command]
            self.daemons[name] = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _start_node(self, node: str) -> None:
        self._start(node, node, "slurmd", "-D", "-N", node, "-f", f"{self.folder}/slurm.conf")

    def _start_all(self) -> None:
        place = self.folder
        for name in ("state", *NODES):
            (place / name).mkdir()
        nodes = [f"NodeName={node} NodeAddr={self.hosts.address(node)} CPUs=8 State=UNKNOWN" for node in NODES]
        text = SETTINGS.format(login=LOGIN, address=self.hosts.address(LOGIN), folder=place, nodes="\n".join(nodes))
        (place / "slurm.conf").write_text(text)
        (place / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # `ip netns exec` hides what v2 looks for
        (place / "munge.key").touch(0o600)
        (place / "munge.key").write_bytes(secrets.token_bytes(128))
        files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "munged", "seed-file": "seed"}
        own = [f"--{option}={place}/munge.{name}" for option, name in files.items()]
        self._start(LOGIN, "munged", "munged", "--foreground", "--force", *own)
        wait_for((place / "munge.socket").exists, "munged has no socket", self._logs)
        self._start(LOGIN, "slurmctld", "slurmctld", "-D", "-f", f"{place}/slurm.conf")
        for node in NODES:
            self._start_node(node)
        self._wait_until_idle()

    def _end_all(self) -> None:
        for daemon in self.daemons.values():
            daemon.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)  # slurmctld waits for its own child
        for name in self.hosts.names:
            self.hosts.kill_all(name)
        for daemon in self.daemons.values():
            daemon.wait()

    def _wait_until_idle(self) -> None:
        wait_for(lambda: self.states() == dict.fromkeys(NODES, "idle"), "not all nodes are idle", self._logs)
        wait_for(lambda: not self.jobs(), "jobs do not end", self._logs)

    def _logs(self) -> str:
        return "\n".join(f"{log.name}:\n{log.read_text(errors='replace')[-2000:]}" for log in self.folder.glob("*.log"))


@contextmanager
def cluster() -> Iterator[Cluster]:
    """A cluster whose nodes are idle."""
    with hosts(LOGIN, *NODES) as machines:
        made = Cluster(machines)
        try:
            made._start_all()
            yield made
        finally:
            made._end_all()


def wait_for(
    condition: Callable[[], Any], otherwise: str, more: Callable[[], str] = str, seconds: float = PATIENCE_S
) -> None:
    """Until the condition holds; raises TimeoutError. more: what else is to be said then."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{otherwise}, after {seconds:g} s\n{more()}".strip())
        time.sleep(0.1)
