"""Is a rank that is late by a known time named, with its delay, and no rank if none is late?"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from collbench.analyze.analysis import diagnose
from collbench.packages.replay import importers
from collbench.packages.replay.analyze.recorded import recorded_job
from proof.claim import Limit, Line, at_least, at_most, rate
from proof.rig import Rig, all_reduces

DELAY_S, CLOSE = 2e-3, 0.1
# Kinds of recorded jobs: which rank is made late.
ONE, DRAWN, NONE = "one", "drawn", "none"
SLOWER_CORE = (
    "a core of a shared machine computes more slowly for a second or more, so the ranks of so short a job do differ: "
    "compare jobs of different minutes"
)


def _sweep(ranks: int, *faults: object) -> str:
    sampling = {"warmup": 5, "warmup_seconds": 0, "iterations": 60}
    sizes = ["4KiB", "256KiB"]
    return all_reduces(world_sizes=[ranks], launches=1, buffers="hot", sizes=sizes, sampling=sampling, faults=faults)


def late_rank(rig: Rig, trials: int) -> list[Line]:
    """Measure 2 and 4 ranks over loopback, with a different late rank per trial; and as often with none."""
    right, wrong, delays_s = 0, 0, []
    for trial in range(trials):
        n = (2, 4)[trial % 2]
        rank = (trial // 2) % n
        fault = {"do": "late", "rank": rank, "delay": f"{DELAY_S}s"}
        findings = diagnose(rig.measure(_sweep(n, fault))).findings
        right += [finding.rank for finding in findings] == [rank]
        delays_s += [finding.cost_s for finding in findings if finding.rank == rank]
        wrong += bool(diagnose(rig.measure(_sweep(n))).findings)
    close = sum(abs(delay_s / DELAY_S - 1) <= CLOSE for delay_s in delays_s)
    spread = "" if not delays_s else ", {:.2f} to {:.2f} ms".format(*np.multiply([min(delays_s), max(delays_s)], 1e3))
    return [
        at_least("a rank that is 2 ms late is named, and no other", right, trials, 0.95),
        at_least("its delay is recovered within 10 %", close, trials, 0.95, spread, delays_s=delays_s),
        at_most("nobody is late, and somebody is named", wrong, trials, 0.05),
    ]


def in_recorded_jobs(rig: Rig, trials: int) -> list[Line]:
    """Record ten DDP steps on 2 and 4 ranks by torch's profiler: one rank is late, or one drawn per step, or none."""
    # Whether the late rank is named, or another one; None if no rank is.
    named: dict[str, list[bool | None]] = {ONE: [], DRAWN: [], NONE: []}
    # -E: a rig sets PYTHONSAFEPATH, which hides this module in the working folder.
    command = [sys.executable, "-E", "-m", __name__, str(rig.folder), str(trials)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for kind, _, planted, folder in _jobs(rig.folder, trials):
        job = recorded_job(importers.read([*folder.glob("kineto_rank*")]))
        shutil.rmtree(folder)
        named[kind].append(None if job.late is None else [job.late[0]] == planted)
    drawn, none = (len(named[kind]) - named[kind].count(None) for kind in (DRAWN, NONE))
    return [
        at_least("a rank that begins each backward pass 100 ms late is named", named[ONE].count(True), trials, 0.95),
        at_most("another rank is named", named[ONE].count(False), trials, 0.0),
        at_most("a rank drawn for each step is 100 ms late, and a rank is named", drawn, trials, 0.1),
        rate("no rank is made late, and a rank is named", none, len(named[NONE]), most=0.1, limit=Limit(SLOWER_CORE)),
    ]


def _jobs(root: Path, trials: int) -> Iterator[tuple[str, int, list[int], Path]]:
    """Yield the kind of each job, its number of ranks, the late rank per step in turn, and its folder."""
    for trial in range(trials):
        ranks = (2, 4)[trial % 2]
        drawn = np.random.default_rng(trial).integers(ranks, size=20).tolist()
        yield ONE, ranks, [(trial // 2) % ranks], root / f"{trial}-{ONE}"
        yield DRAWN, ranks, drawn, root / f"{trial}-{DRAWN}"
        if trial % 4 < 2:  # half as often
            yield NONE, ranks, [], root / f"{trial}-{NONE}"


if __name__ == "__main__":
    # All jobs in one process, which loads torch once.
    from tools.recorded_job import record

    for _, ranks, late, folder in _jobs(Path(sys.argv[1]), int(sys.argv[2])):
        record(folder, ranks, "nano", late)
