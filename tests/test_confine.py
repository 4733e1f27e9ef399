"""What a child listens on for every interface is kept to loopback, and what cannot be is said."""

import subprocess
import sys

import psutil
import pytest

from bench.machine import confine, network
from conftest import interface_bound_to

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
    """Of the child's socket that listens there."""
    (found,) = [one for one in psutil.Process(process.pid).net_connections("tcp") if one.laddr.ip == host]
    return found.fd


def test_an_open_port_is_kept_to_loopback_and_another_one_left_alone(child):
    loopback = network.interface_of(network.LOOPBACK)
    if confine.to_interface(child.pid, loopback):
        pytest.skip("this system does not lend descriptors of children")
    assert interface_bound_to(child.pid, descriptor(child, "0.0.0.0")) == loopback
    assert interface_bound_to(child.pid, descriptor(child, "127.0.0.1")) == ""


def test_what_stays_open_is_told(child, monkeypatch):
    def refused(*_):
        raise PermissionError("pidfd_getfd")

    monkeypatch.setattr(confine, "_borrowed", refused)
    (address,) = confine.to_interface(child.pid, "lo")
    assert address.startswith("0.0.0.0:")
