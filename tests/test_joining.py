"""Effects of a library on a process that joins with it are reported; a library without effects gets no remark."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from bench.machine import host
from bench.model.records import Case
from bench.packages.joining.analyze import facts, notices, remarks
from bench.packages.joining.process_state import STAGES, Observed, ProcessState
from bench.rank import torch_names
from bench.report.notices import sentences
from bench.store import encoding
from conftest import ROOT, invented_run, samples

# Each trial runs in an own fork and prints a line: (planted effect, remarks).
SCRIPT = """
import contextlib, json, os, sys, threading, time
from bench.packages.joining.analyze import remarks
from bench.packages.joining.process_state import Observed
from bench.packages.joining.rank import observed
from bench.report.notices import sentences

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
            told = sentences(remarks([Observed(0, observed(library(plant), 5), 5)]))
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


def test_planted_effects_are_found_each_time_and_nothing_else():
    planted = dict(EXPECTED)
    if len(os.sched_getaffinity(0)) == 1:
        del planted["cores"]  # the only core cannot be taken
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *planted], cwd=ROOT, capture_output=True, text=True, check=True
    )
    trials = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(trials) == 10 * len(planted)
    for plant, texts in trials:
        assert len(texts) == len(EXPECTED[plant]), (plant, texts)
        assert all(part in text for part, text in zip(EXPECTED[plant], texts, strict=True)), (plant, texts)


def test_a_remark_on_some_ranks_names_the_ranks():
    quiet = ProcessState((0, 1), {"python": 1}, {"file": 3}, {"normal": 1}, 2**20, (), ())
    loud = ProcessState((0, 1), {"python": 2}, {"file": 3}, {"normal": 2}, 2**20, (), ())
    ranks = [
        Observed(rank, {stage: loud if rank == 1 and stage == STAGES[-1] else quiet for stage in STAGES}, 1)
        for rank in range(3)
    ]
    assert sentences(remarks(ranks)) == ["rank 1: 1 thread left after the end: 1 python"]
    assert remarks(ranks[:1]) == []


def test_real_ranks_of_gloo_are_observed(warm):
    done = warm("init", "gloo", "--format", "json")
    ranks = [encoding.decoded(json.dumps(rank), Observed) for rank in json.loads(done.stdout)]
    assert [rank.rank for rank in ranks] == [0, 1] and all(tuple(rank.stages) == STAGES for rank in ranks)
    before, joined = ranks[0].stages["before"], ranks[0].stages["after init"]
    assert sum(joined.threads.values()) > sum(before.threads.values())
    if torch_names.version() >= host.LOOP_THREAD_NAMED:
        assert joined.threads["gloo_tcp_loop"] == 1 and "gloo_tcp_loop" not in before.threads
    assert joined.files["socket"] > before.files["socket"]


@pytest.mark.parametrize(("arguments", "code"), [(["ucc"], 2), (["nccl", "--ranks", "64"], 3)])
def test_a_backend_that_cannot_be_observed_is_one_line(warm, arguments, code):
    done = warm("init", *arguments)
    assert done.returncode == code and done.stderr.startswith(f"error: init {arguments[0]}: "), done.stderr
    assert done.stderr.count("\n") == 1


# ── effects in a run ─────────────────────────────────────────────────────────────────────────────
def run_with(left, joined=(0, 1), **more):
    """Return a run of one rank, which may use the cores `joined` after joining; the files `left` stay."""

    def state(cores, files):
        return {"joining": {"affinity": list(cores), "threads": {"python": 1}, "files": files, **more}}

    stages = {"before": state((0, 1), {"file": 3}), "joined": state(joined, {"file": 5}), "left": state((0, 1), left)}
    case = Case("all_reduce", "gloo", 2, "float32", 4096)
    session = {"launches": [{"backend": "gloo", "world_size": 2, "launch": 1, "ranks": [{"rank": 0, "seen": stages}]}]}
    return replace(invented_run([samples(case, 1, [[1e6, 1e6]] * 4)]), environment=[session])


def test_a_run_warns_of_cores_that_were_taken_and_of_files_that_stayed():
    assert notices(run_with({"file": 3})) == []
    assert sentences(notices(run_with({"file": 3, "pipe": 2}, joined=(1,)))) == [
        "gloo: joining took cores from a rank: 1 of 2 left (core 1)",
        "gloo: 2 open files of a rank stayed after the end (2 pipe)",
    ]
    assert facts(run_with({"file": 3}))["open files of a rank (gloo)"] == "5"


def test_a_damaged_record_gives_no_notices_and_no_facts():
    assert notices(run_with("many")) == [] and facts(run_with({"file": 3}, threads="3")) == {}
