"""The way to the other hosts of a job: asked of the kernel, never over all interfaces, whatever a host calls itself."""

import time

import pytest

from bench.launch import agent, coordinator
from bench.launch.job import JobRank
from bench.machine import network
from bench.model.errors import JobError


def place(address: str, one_host: bool = False) -> JobRank:
    return JobRank("srun", 0, 2, 0, address, (0,), "x", one_host)


def test_loopback_leads_over_the_loopback_interface():
    assert network.own_address_towards("127.0.0.1") == "127.0.0.1"
    assert network.interface_towards("127.0.0.1") == network.interface_of("127.0.0.1")
    assert network.interface_of("192.0.2.77") is None
    assert network.resolve("localhost", 0) in {"127.0.0.1", "::1"}


def test_a_name_that_nobody_knows_is_asked_for_until_the_deadline(monkeypatch):
    monkeypatch.setattr(network, "RESOLVE_AGAIN_S", 0.05)
    began = time.monotonic()
    assert network.resolve("no-such-host.invalid", began + 0.3) is None
    with pytest.raises(JobError, match="nobody knows the host"):
        coordinator._own_address(place("no-such-host.invalid"), 0)


def test_a_host_that_calls_itself_loopback_is_found_from_outside(monkeypatch):
    """Debian's 127.0.1.1; ranks on the same host and on others must end up at the same address."""
    monkeypatch.setattr(network, "resolve", lambda *_: "127.0.1.1")
    monkeypatch.setattr(network, "own_address_towards", lambda _: "10.0.0.5")
    assert coordinator._own_address(place("head"), 0) == "10.0.0.5"
    assert "10.0.0.5" in agent._addresses(place("head"), 0)
    assert coordinator._own_address(place("head", one_host=True), 0) == "127.0.1.1"


def test_an_address_of_another_host_cannot_be_listened_at():
    with pytest.raises(JobError, match="is no address of its host: set MASTER_ADDR"):
        coordinator._listener(place("192.0.2.77"), "192.0.2.77")
