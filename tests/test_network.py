"""The kernel gives the way to the other hosts of a job, never all interfaces, for any name of a host."""

import contextlib
import socket
import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest

from collbench.launch import coordinator
from collbench.launch.job import JobRank
from collbench.machine import network
from collbench.model.errors import JobError
from conftest import interface_bound_to


def place(address: str, one_host: bool = False) -> JobRank:
    return JobRank("srun", 0, 2, 0, address, (0,), "x", one_host)


def test_loopback_leads_over_the_loopback_interface():
    assert network.own_address_towards("127.0.0.1") == "127.0.0.1"
    assert network.interface_towards("127.0.0.1") == network.interface_of("127.0.0.1")
    assert network.interface_of("192.0.2.77") is None
    assert {*network.resolve("localhost", 0)} <= {"127.0.0.1", "::1"}
    assert not any(map(network.is_loopback, network.own_addresses()))


def test_an_unknown_name_is_looked_up_until_the_deadline(monkeypatch):
    monkeypatch.setattr(network, "RESOLVE_AGAIN_S", 0.05)
    began = time.monotonic()
    assert network.resolve("no-such-host.invalid", began + 0.3) == []
    assert coordinator.addresses_of_rank_0(place("no-such-host.invalid"), 0) == []


@pytest.mark.parametrize(("addresses", "named"), [(["192.0.2.77"], "192.0.2.77"), ([], "127.0.1.1")])
def test_where_rank_0_cannot_be_reached_it_is_refused_at_once(monkeypatch, addresses, named):
    monkeypatch.setattr(network, "resolve", lambda *_: ["127.0.1.1"])
    with pytest.raises(JobError, match=rf"cannot listen at head \({named}\): set MASTER_ADDR"):
        coordinator.listen(place("head"), addresses)


def test_rank_0_takes_the_first_port_that_is_free_at_all_of_its_addresses():
    with socket.socket() as taken, socket.socket() as free:
        taken.bind(("127.0.0.2", 0))
        free.bind(("127.0.0.1", 0))
        taken.listen()
        ports = (taken.getsockname()[1], free.getsockname()[1])
        free.close()
        job = replace(place("head"), ports=ports)
        with contextlib.ExitStack() as stack:
            found = [*map(stack.enter_context, coordinator.listen(job, ["127.0.0.1", "127.0.0.2", "192.0.2.77"]))]
            assert [one.getsockname() for one in found] == [("127.0.0.1", ports[1]), ("127.0.0.2", ports[1])]


# ── sockets of a child ───────────────────────────────────────────────────────────────────────────
LISTENING = """
import socket, sys
sockets = [socket.create_server((host, 0)) for host in ("0.0.0.0", "127.0.0.1")]
print("ready", flush=True)
sys.stdin.read()
"""


def test_an_open_port_is_kept_to_loopback_another_one_left_alone_and_one_that_stays_open_reported(monkeypatch):
    command, loopback = [sys.executable, "-c", LISTENING], network.interface_of(network.LOOPBACK)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        with monkeypatch.context() as refusing:
            refusing.setattr(network, "borrowed_socket", lambda *_: (_ for _ in ()).throw(PermissionError("pidfd")))
            (address,) = network.confine(child.pid, "lo")
            assert address.startswith("0.0.0.0:")
        if network.confine(child.pid, loopback):
            pytest.skip("this system does not lend descriptors of children")
        sockets = {entry.laddr.ip: entry.fd for entry in psutil.Process(child.pid).net_connections("tcp")}
        assert interface_bound_to(child.pid, sockets["0.0.0.0"]) == loopback
        assert interface_bound_to(child.pid, sockets["127.0.0.1"]) == ""
        child.stdin.close()
