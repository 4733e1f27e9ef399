"""What a library does to a process that joins with it is seen, and nothing is said of one that does nothing."""

import json
import subprocess
import sys

import pytest

from bench.init.analyze import remarks
from bench.init.model import STAGES, Observed, ProcessState
from bench.store import encoding
from conftest import ROOT

# Each trial in a fork of its own: (what is planted, remarks) a line.
SCRIPT = """
import contextlib, json, os, sys, threading, time
from bench.init.analyze import remarks
from bench.init.model import Observed
from bench.init.rank import observed

kept = []
PLANTED = {
    "nothing": lambda: None,
    "cores": lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
    "thread": lambda: threading.Thread(target=time.sleep, args=(60,), daemon=True).start(),
    "files": lambda: kept.extend(open("/dev/null") for _ in range(10)),
    "memory": lambda: kept.append(bytearray(os.urandom(1 << 20) * 100)),
    "variable": lambda: os.environ.update(PLANTED="1"),
    "each group": lambda: None,
}

@contextlib.contextmanager
def library(plant):
    PLANTED[plant]()
    grow = (lambda: kept.append(bytearray(os.urandom(1 << 20) * 4))) if plant == "each group" else (lambda: None)
    yield (lambda: None), grow

for plant in sys.argv[1:]:
    for _ in range(10):
        child = os.fork()
        if not child:
            told = remarks([Observed(0, observed(library(plant), 5), 5)])
            os.write(1, (json.dumps([plant, told]) + "\\n").encode())
            os._exit(0)
        os.waitpid(child, 0)
"""
EXPECTED = {
    "nothing": [],
    "cores": ["may use fewer cores after init and stays so"],
    "thread": ["1 thread left after the end"],
    "files": ["10 open files left after the end: 10 file"],
    "memory": ["MiB of memory stay after the end"],
    "variable": ["environment variables were set or removed: PLANTED"],
    "each group": [" with each further group"],
}


def test_what_was_planted_is_found_each_time_and_nothing_else():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *EXPECTED], cwd=ROOT, capture_output=True, text=True, check=True
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(told) == 10 * len(EXPECTED)
    for plant, texts in told:
        assert len(texts) == len(EXPECTED[plant]), (plant, texts)
        assert all(part in text for part, text in zip(EXPECTED[plant], texts, strict=True)), (plant, texts)


def test_what_some_ranks_tell_names_them():
    quiet = ProcessState((0, 1), {"python": 1}, {"file": 3}, {"normal": 1}, 2**20, (), ())
    loud = ProcessState((0, 1), {"python": 2}, {"file": 3}, {"normal": 2}, 2**20, (), ())
    ranks = [
        Observed(rank, {stage: loud if rank == 1 and stage == STAGES[-1] else quiet for stage in STAGES}, 1)
        for rank in range(3)
    ]
    assert remarks(ranks) == ["rank 1: 1 thread left after the end: 1 python"]
    assert remarks(ranks[:1]) == []


def test_real_ranks_of_gloo_are_looked_at(warm):
    done = warm("init", "gloo", "--format", "json")
    ranks = [encoding.decoded(json.dumps(rank), Observed) for rank in json.loads(done.stdout)]
    assert [rank.rank for rank in ranks] == [0, 1] and all(tuple(rank.stages) == STAGES for rank in ranks)
    before, joined = ranks[0].stages["before"], ranks[0].stages["after init"]
    assert joined.threads["gloo_tcp_loop"] == 1 and "gloo_tcp_loop" not in before.threads
    assert joined.files["socket"] > before.files["socket"]


@pytest.mark.parametrize(("arguments", "code"), [(["ucc"], 2), (["nccl", "--ranks", "64"], 3)])
def test_what_cannot_be_looked_at_is_one_line(warm, arguments, code):
    done = warm("init", *arguments)
    assert done.returncode == code and done.stderr.startswith(f"error: init {arguments[0]}: "), done.stderr
    assert done.stderr.count("\n") == 1
