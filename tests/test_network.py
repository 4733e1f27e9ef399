"""The kernel gives the way to the other hosts of a job, never all interfaces, for any name of a host."""

import subprocess
import sys
import time

import psutil
import pytest

from bench.launch import agent, coordinator
from bench.launch.job import JobRank
from bench.machine import network
from bench.model.errors import JobError
from conftest import interface_bound_to


def place(address: str, one_host: bool = False) -> JobRank:
    return JobRank("srun", 0, 2, 0, address, (0,), "x", one_host)


def test_loopback_leads_over_the_loopback_interface():
    assert network.own_address_towards("127.0.0.1") == "127.0.0.1"
    assert network.interface_towards("127.0.0.1") == network.interface_of("127.0.0.1")
    assert network.interface_of("192.0.2.77") is None
    assert network.resolve("localhost", 0) in {"127.0.0.1", "::1"}


def test_an_unknown_name_is_looked_up_until_the_deadline(monkeypatch):
    monkeypatch.setattr(network, "RESOLVE_AGAIN_S", 0.05)
    began = time.monotonic()
    assert network.resolve("no-such-host.invalid", began + 0.3) is None
    with pytest.raises(JobError, match="cannot resolve the host"):
        coordinator.own_address(place("no-such-host.invalid"), 0)


def test_a_host_that_calls_itself_loopback_is_found_from_outside(monkeypatch):
    """On Debian this address is 127.0.1.1; ranks on the same host and on others must use the same address."""
    monkeypatch.setattr(network, "resolve", lambda *_: "127.0.1.1")
    monkeypatch.setattr(network, "own_address_towards", lambda _: "10.0.0.5")
    assert coordinator.own_address(place("head"), 0) == "10.0.0.5"
    assert "10.0.0.5" in agent.addresses_of_rank_0(place("head"), 0)
    assert coordinator.own_address(place("head", one_host=True), 0) == "127.0.1.1"


def test_an_address_of_another_host_cannot_be_listened_at():
    with pytest.raises(JobError, match="not an address of its host: set MASTER_ADDR"):
        coordinator.listen(place("192.0.2.77"), "192.0.2.77")


# ── sockets of a child ───────────────────────────────────────────────────────────────────────────
LISTENING = """
import socket, sys
sockets = [socket.socket() for _ in range(2)]
for one, host in zip(sockets, ("0.0.0.0", "127.0.0.1")):
    one.bind((host, 0))
    one.listen()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def child():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", LISTENING], **pipes) as process:
        process.stdout.readline()
        yield process
        process.stdin.close()


def descriptor(process, host: str) -> int:
    """Return the descriptor of the child's socket that listens at this address."""
    (connection,) = [entry for entry in psutil.Process(process.pid).net_connections("tcp") if entry.laddr.ip == host]
    return connection.fd


def test_an_open_port_is_kept_to_loopback_and_another_one_left_alone(child):
    loopback = network.interface_of(network.LOOPBACK)
    if network.confine(child.pid, loopback):
        pytest.skip("this system does not lend descriptors of children")
    assert interface_bound_to(child.pid, descriptor(child, "0.0.0.0")) == loopback
    assert interface_bound_to(child.pid, descriptor(child, "127.0.0.1")) == ""


def test_a_port_that_stays_open_is_reported(child, monkeypatch):
    def refused(*_):
        raise PermissionError("pidfd_getfd")

    monkeypatch.setattr(network, "borrowed_socket", refused)
    (address,) = network.confine(child.pid, "lo")
    assert address.startswith("0.0.0.0:")
