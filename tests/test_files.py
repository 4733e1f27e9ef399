"""Ranks may open as many files as the hard limit permits, and the doctor reports for how many ranks they are enough."""

import resource
import subprocess
import sys

import pytest

from collbench.launch import doctor
from collbench.machine import environment, limits
from conftest import ROOT

# In a process of its own: a hard limit that was lowered cannot be raised again.
LIMITED = """
import resource
from collbench.machine import environment, limits
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
said = next(limits.limits())
environment.prepare_process()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], said, limits.too_low(16), sep="|")
"""


def limited(soft: int, hard: int) -> list[str]:
    code = LIMITED.format(soft=soft, hard=hard)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip().split("|")


@pytest.mark.parametrize(
    ("soft", "hard", "text", "low"),
    [
        (
            256,
            4096,
            "256 allowed, which a run raises to 4096 (ulimit -n): enough for 1008 ranks on this machine",
            False,
        ),
        (128, 128, "128 allowed (ulimit -n): enough for 16 ranks on this machine", False),
        (68, 68, "68 allowed (ulimit -n): enough for 1 rank on this machine", True),
        (20, 20, "20 allowed (ulimit -n): enough for 0 ranks on this machine", True),
    ],
)
def test_the_soft_limit_is_raised_to_the_hard_one(soft, hard, text, low):
    assert limited(soft, hard) == [str(hard), text, f"; open files: {text}" if low else ""]


def test_a_limit_is_never_lowered(monkeypatch):
    new_limits = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (environment.MOST_FILES + 1, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: new_limits.append(limits[0]))
    assert environment.raise_file_limit() >= environment.MOST_FILES
    assert all(limit >= environment.MOST_FILES + 1 for limit in new_limits)
    assert doctor.RANKS_WANTED * limits.FILES_A_RANK < environment.MOST_FILES
