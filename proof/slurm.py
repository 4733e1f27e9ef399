"""Simulate hosts on one machine, and a Slurm cluster of these hosts.

In: the names of the hosts. Out: `Hosts`, each a network namespace with its own host name, in which commands can run,
and which can be cut off; `Cluster`, a login host with slurmctld and two nodes with one slurmd each, from Debian's
packages, with their own settings. Both live as long as their context and leave nothing behind: no process, no
namespace, no folder. The file system is shared, as on a cluster. Needs Linux and root: `unsupported` returns what is
missing.
"""

import contextlib
import functools
import os
import secrets
import shutil
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
# Seconds that daemons may take to start and to end on a machine that is busy with other work.
PATIENCE_S = 90.0
# Far above the traffic of tests; the default burst of a link is large enough for it.
RATE = "1gbit"
# A node that does not answer within SlurmdTimeout is down. CPUs: more than a machine may have, so that no task waits.
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


# ── is it supported here? ─────────────────────────────────────────────────────────────────────────
@functools.cache
def unsupported_hosts() -> str | None:
    """Return why hosts are impossible here; None if they are possible."""
    if links.unsupported():
        return links.unsupported()
    with hosts("one") as made:
        tried = subprocess.run([*made.at("one"), "true"], capture_output=True, text=True)
    return f"host names of their own are refused here: {tried.stderr.strip()}" if tried.returncode else None


@functools.cache
def unsupported() -> str | None:
    """Return why a cluster is impossible here; None if it is possible."""
    missing = [name for name in ("slurmctld", "slurmd", "srun", "munged") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not found (apt install slurm-wlm munge)"
    return unsupported_hosts()


# ── hosts ────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Hosts:
    """Namespaces on one switch. Each host resolves the `names` of all hosts."""

    names: tuple[str, ...]
    network: links.Network
    folder: Path

    def address(self, name: str) -> str:
        return self.network.addresses[self.names.index(name)]

    def _namespace(self, name: str) -> str:
        return self.network.namespaces[self.names.index(name)]

    def at(self, name: str) -> list[str]:
        """Return the words to put before a command to run it on this host; the command replaces their process."""
        prepared = f"mount --bind {self.folder}/hosts /etc/hosts && hostname {name}"
        script = f'{prepared} && TMPDIR={self.folder}/tmp exec "$0" "$@"'
        return ["ip", "netns", "exec", self._namespace(name), "unshare", "--uts", "--mount", "sh", "-c", script]

    def link(self, name: str, state: str) -> None:
        """Disconnect the host ("down"), or connect it again ("up")."""
        interface = self.network.interfaces[self.names.index(name)]
        subprocess.run(["ip", "-n", self._namespace(name), "link", "set", interface, state], check=True)

    def kill_all(self, name: str) -> None:
        """Kill every process on this host, also processes that are started meanwhile."""
        wait_for(lambda: not links.kill_in(self._namespace(name)), f"{name} still has processes")


@contextmanager
def hosts(*names: str) -> Iterator[Hosts]:
    """Make hosts with these names."""
    with tempfile.TemporaryDirectory(prefix="collbench-") as place, links.bridged(len(names), RATE) as network:
        made = Hosts(names, network, Path(place))
        lines = [f"{address} {name}" for name, address in zip(names, network.addresses, strict=True)]
        Path(place, "tmp").mkdir()  # files that killed processes leave there are deleted with the folder
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
        """Start a command on the login host. more: further arguments of Popen."""
        environment = {**env, "SLURM_CONF": str(self.folder / "slurm.conf")}
        return subprocess.Popen([*self.hosts.at(LOGIN), *command], env=environment, text=True, **more)

    def run(self, *command: str, **more: Any) -> "subprocess.CompletedProcess[str]":
        """Run a command on the login host and return its result. more: further arguments of `start`."""
        with self.start(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more) as process:
            try:
                out, err = process.communicate(timeout=PATIENCE_S)
            finally:
                process.kill()  # no effect if the process has ended
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def jobs(self) -> list[str]:
        """Return the numbers of all jobs that wait, run or end."""
        return self.run("squeue", "--noheader", "--format=%i").stdout.split()

    def states(self) -> dict[str, str]:
        """Return each node's state by slurmctld: idle, mix, alloc, comp, down, with * if the node does not answer."""
        listed = self.run("sinfo", "--noheader", "--Node", "--format=%N %t").stdout
        return dict(zip(listed.split()[::2], listed.split()[1::2], strict=True))

    def lose(self, node: str) -> None:
        """Let a node fail as in a power failure: nothing is announced, and no process on it continues."""
        self.hosts.link(node, "down")
        self.hosts.kill_all(node)
        self.daemons.pop(node).wait()

    def reset(self) -> None:
        """Cancel all jobs, start missing nodes, and wait until both nodes are idle."""
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
        (place / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # `ip netns exec` hides the files that v2 needs
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
    """Start a cluster, and yield it once its nodes are idle."""
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
    """Wait until the condition holds; raises TimeoutError. more: returns further text for the error."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{otherwise}, after {seconds:g} s\n{more()}".strip())
        time.sleep(0.1)
