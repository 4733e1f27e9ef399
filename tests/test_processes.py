"""A process ends with its parent, even if the child is stopped; a handle refers to one process only."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from collbench.machine import processes
from collbench.machine.processes import ProcessHandle
from conftest import ROOT

CHILD = "from collbench.machine.processes import end_with_parent; import os, time; end_with_parent({parent})\n"
WAITS = CHILD.format(parent="os.getppid()") + "print(os.getpid(), flush=True); time.sleep(600)"
PARENT = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {WAITS!r}]); time.sleep(600)"


def python(code: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_a_stopped_child_of_a_killed_parent_ends():
    parent = python(PARENT)
    child = psutil.Process(int(parent.stdout.readline()))
    child.suspend()
    handle = ProcessHandle(child.pid)
    assert not handle.ended()
    parent.kill()
    parent.communicate()
    assert handle.ended(60)


def test_a_parent_that_ended_before_the_check_is_noticed():
    done = python(CHILD.format(parent=2**22 + 1) + "print('went on')")
    assert done.communicate(timeout=60)[0] == "" and done.returncode == -signal.SIGKILL


def forbidden(pid):
    raise PermissionError


@pytest.mark.parametrize("pidfd_open", [os.pidfd_open, forbidden])
def test_a_handle_ends_its_process_and_no_other(monkeypatch, pidfd_open):
    monkeypatch.setattr(processes, "os", SimpleNamespace(**vars(os) | {"pidfd_open": pidfd_open}))
    with python("import time; time.sleep(600)") as process:
        handle = ProcessHandle(process.pid)
        assert not handle.ended() and handle.state() != "gone" and handle.children() == []
        handle.send(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL and handle.ended(60)
        handle.send(signal.SIGKILL)  # a process that has this number now gets no signal
        assert handle.state() == "gone" and handle.children() == []
        with pytest.raises(psutil.NoSuchProcess):
            ProcessHandle(process.pid)
