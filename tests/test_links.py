"""Shaped links have the stated rate, delayed links the stated delay, and both leave nothing behind."""

import contextlib
import os
import signal
import subprocess
import sys

import psutil
import pytest

from conftest import ROOT
from proof import links
from proof.rig import Rig

needs_links = pytest.mark.skipif(links.unsupported() is not None, reason=str(links.unsupported()))
needs_tun = pytest.mark.skipif(links.unsupported_tun() is not None, reason=str(links.unsupported_tun()))
# The share of TCP's data in a full Ethernet frame of 1514 bytes, with time stamps.
PAYLOAD = 1448 / 1514
MIB = 2**20


CONFIGURATION = """
backends: [gloo]
world_sizes: [2]
launches: 1
operations: [all_reduce]
sizes: [{}]
sampling: {{iterations: {}, warmup: {}, warmup_seconds: 0}}
buffers: hot
timeout: 30s
seed: 1
"""


def left_behind() -> list[str]:
    """List the namespaces, interfaces and processes that this process has left, by tools of the machine."""
    mark = f"{links.PREFIX}{os.getpid()}-"
    left = [name for name in _output("ip", "netns", "list").splitlines() if mark in name]
    left += [line for line in _output("ip", "-o", "link").splitlines() if "link0" in line or "switch" in line]
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            left += [f"{child.pid} {word}" for word in child.cmdline() if "relay.py" in word]
    return left


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def fastest_s(launcher, tmp_path):
    """Return a function for the slowest rank's time of an all-reduce: its fastest call, as other work delays calls."""

    def time_s(network: links.Network, size: int, iterations: int, warmup: int = 1) -> float:
        text = CONFIGURATION.format(size, iterations, warmup)
        (samples,) = Rig(launcher, tmp_path).measure(text, links.NamespacedLauncher(launcher, network)).samples
        assert samples.failure is None, samples.failure
        return min(samples.timed.duration_ns.max(axis=1)) / 1e9

    return time_s


@needs_links
def test_an_all_reduce_of_two_ranks_runs_at_the_rate_of_the_link(fastest_s):
    """In a world of 2, each rank sends, and receives, as many bytes as the buffer has."""
    with links.shaped_pair("200mbit") as network:
        measured = 2 * MIB / fastest_s(network, 2 * MIB, 21)
    assert measured == pytest.approx(200e6 / 8 * PAYLOAD, rel=0.25)  # half or twice the bytes would be detected
    assert not left_behind()


@needs_tun
@pytest.mark.parametrize(
    ("link", "error"),
    [
        (lambda: links.shaped_pair("1gbit"), RuntimeError),
        (lambda: links.bridged(3, "1gbit"), KeyboardInterrupt),
        (lambda: links.delayed_pair(0.001), KeyboardInterrupt),
    ],
    ids=["shaped pair", "bridged", "delayed pair"],
)
def test_nothing_is_left_after_an_error(link, error):
    with pytest.raises(error), link() as network:
        listed = _output("ip", "netns", "list")
        assert all(name in listed for name in network.namespaces)
        inside = ["ip", "netns", "exec", network.namespaces[0], "sh", "-c", "echo inside; exec sleep 60"]
        sleeping = subprocess.Popen(inside, stdout=subprocess.PIPE)
        assert sleeping.stdout.readline() == b"inside\n"  # until then, the process is not in the namespace
        raise error
    assert sleeping.wait(60) == -signal.SIGKILL
    sleeping.stdout.close()
    assert not left_behind()


@needs_tun
def test_namespaces_of_a_killed_process_are_removed_by_the_next_process():
    code = "import time; from proof import links\n"
    code += "with links.delayed_pair(0) as network: print(*network.namespaces, flush=True); time.sleep(60)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "bench")}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment) as process:
        names = process.stdout.readline().split()
        (relay,) = psutil.Process(process.pid).children()
        process.kill()
    assert psutil.wait_procs([relay], timeout=60)[1] == []
    with links.shaped_pair("1gbit"):
        listed = _output("ip", "netns", "list")
    assert names and not any(name in listed for name in names)
