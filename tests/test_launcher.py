"""The fork server ignores Ctrl-C, but no Ctrl-C is lost; the next run removes abandoned folders in which ranks met.

A file system without locks costs a warning, not the run.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from collbench.launch.launcher import RendezvousFolder
from collbench.machine import interrupts
from conftest import ROOT, fork_servers
from test_measure import assert_nothing_left


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_folder_of_a_killed_run_is_removed(temporary):
    child = os.fork()
    if child == 0:
        RendezvousFolder().__enter__()
        os._exit(9)
    os.waitpid(child, 0)
    assert len(list(temporary.iterdir())) == 1
    with RendezvousFolder() as meeting:
        assert list(temporary.iterdir()) == [meeting.folder]


# ── Ctrl-C ───────────────────────────────────────────────────────────────────────────────────────
INTERRUPTED = """
import os, signal, sys
from multiprocessing import forkserver
import psutil
from collbench.launch.launcher import Launcher
from collbench.machine import interrupts
signal.signal(signal.SIGINT, signal.default_int_handler)
if {ours}:
    interrupts.answer(signal.SIGINT)
start = forkserver.ensure_running
def interrupted():
    if {first}:
        os.kill(os.getpid(), signal.SIGINT)
    start()
    if not {first}:
        os.kill(os.getpid(), signal.SIGINT)
forkserver.ensure_running = interrupted
try:
    with Launcher():
        print("lost")
except KeyboardInterrupt:
    left = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    print("interrupted", len(left))
"""


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("ours", [True, False])
def test_ctrl_c_while_the_fork_server_starts_is_not_lost_and_leaves_no_server(cli, first, ours):
    with tempfile.TemporaryDirectory(prefix="cb-") as place:  # short, because the path of a socket has a limit
        done = subprocess.run(
            [sys.executable, "-c", INTERRUPTED.format(first=first, ours=ours)], cwd=cli.folder,
            env=cli.environment | {"TMPDIR": place, "PYTHONPATH": str(ROOT / "bench")},
            capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        assert (done.stdout, done.stderr) == ("interrupted 1\n", "")  # multiprocessing's own resource tracker
        assert not list(Path(place).iterdir())
    assert_nothing_left(cli)


def test_the_fork_server_and_so_every_rank_blocks_signals_that_end_the_run(launcher):
    (server,) = fork_servers()
    status = Path(f"/proc/{server.pid}/status").read_text()
    blocked = int(re.search(r"SigBlk:\s*(\w+)", status)[1], 16)
    assert all(blocked >> (number - 1) & 1 for number in (signal.SIGTERM, *interrupts.OTHERS))


# ── folders ──────────────────────────────────────────────────────────────────────────────────────
def test_the_fork_server_loads_what_a_rank_needs():
    """Otherwise each rank of each launch would load torch for itself, in seconds."""
    program = "import sys, collbench.rank.preload; print({'torch', 'numpy', 'collbench.rank.main'} <= {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
