"""The library that emulates a patch of gloo waits where gloo's loop thread finds a lock taken, and nowhere else."""

import shutil
import subprocess
import sys

import pytest

from conftest import ROOT

# Tries a taken mutex 50 times, in a thread of this name, and prints how often the thread gave up its core.
SCRIPT = """
import ctypes, sys, threading
libc = ctypes.CDLL(None)
mutex = ctypes.create_string_buffer(64)
assert libc.pthread_mutex_lock(mutex) == 0

def try_often():
    libc.prctl(15, sys.argv[1].encode(), 0, 0, 0)
    switches = lambda: int(open("/proc/thread-self/status").read().partition("voluntary_ctxt_switches:")[2].split()[0])
    before = switches()
    assert all(libc.pthread_mutex_trylock(mutex) == 16 for _ in range(50))
    print(switches() - before)

thread = threading.Thread(target=try_often)
thread.start()
thread.join()
"""


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a C compiler")
def test_only_gloos_loop_thread_waits_for_a_lock_that_is_taken(tmp_path):
    subprocess.run([sys.executable, "-m", "tools.gloo_patch", str(tmp_path)], cwd=ROOT, check=True, capture_output=True)

    def gave_up(change, thread):
        command = [tmp_path / f"python-{change}", "-c", SCRIPT, thread]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert gave_up("sleep50", "gloo_tcp_loop") >= 50
    assert gave_up("sleep50", "another") < 25 and gave_up("same", "gloo_tcp_loop") < 25
