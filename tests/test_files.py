"""Ranks may open as many files as the hard limit permits, and the doctor reports for how many ranks they are enough."""

import subprocess
import sys

import pytest

from bench.launch import doctor
from bench.machine import environment
from conftest import ROOT

# In a process of its own: a hard limit that was lowered cannot be raised again.
LIMITED = """
import resource
from bench.launch import doctor
from bench.machine import environment
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
said = doctor.open_files()
environment.prepare_process()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], said.level, said.text, sep="|")
"""


def limited(soft: int, hard: int) -> list[str]:
    code = LIMITED.format(soft=soft, hard=hard)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip().split("|")


@pytest.mark.parametrize(
    ("soft", "hard", "level", "text"),
    [
        (256, 4096, "ok", "256 allowed, which a run raises to 4096: enough for 1008 ranks on this machine"),
        (128, 128, "note", "128 allowed: enough for 16 ranks on this machine"),
    ],
)
def test_the_soft_limit_is_raised_to_the_hard_one(soft, hard, level, text):
    assert limited(soft, hard) == [str(hard), level, text]


def test_a_limit_is_never_lowered(monkeypatch):
    resource = pytest.importorskip("resource")
    new_limits = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (environment.MOST_FILES + 1, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: new_limits.append(limits[0]))
    assert environment.raise_file_limit() >= environment.MOST_FILES
    assert all(limit >= environment.MOST_FILES + 1 for limit in new_limits)
    assert doctor.RANKS_WANTED * doctor.FILES_A_RANK < environment.MOST_FILES
