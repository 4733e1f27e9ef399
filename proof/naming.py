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
from proof.claim import Line, at_least, at_most
from proof.rig import Rig, all_reduces

DELAY_S, CLOSE = 2e-3, 0.1


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
    """Record ten DDP steps on 2 and 4 ranks by torch's profiler; a different rank is late in each job, or none."""
    right, misnamed, wrong = 0, 0, 0
    # -E: a rig sets PYTHONSAFEPATH, which hides this module in the working folder.
    command = [sys.executable, "-E", "-m", __name__, str(rig.folder), str(trials)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for _, late, folder in _jobs(rig.folder, trials):
        named = (recorded_job(importers.read([folder])).late or [None])[0]
        shutil.rmtree(folder)
        right += late is not None and named == late
        misnamed += late is not None and named not in {late, None}
        wrong += late is None and named is not None
    return [
        at_least("a rank that begins each backward pass 100 ms late is named", right, trials, 0.95),
        at_most("another rank is named", misnamed, trials, 0.0),
        at_most("nobody is late, and a rank is named", wrong, trials, 0.1),
    ]


def _jobs(root: Path, trials: int) -> Iterator[tuple[int, int | None, Path]]:
    """Yield the number of ranks, the late rank, and the folder of each job."""
    for trial in range(trials):
        ranks = (2, 4)[trial % 2]
        for late in ((trial // 2) % ranks, None):
            yield ranks, late, root / f"job-{trial}-{late}"


if __name__ == "__main__":
    # All jobs in one process, which loads torch once.
    from tools.recorded_job import record

    for ranks, late, folder in _jobs(Path(sys.argv[1]), int(sys.argv[2])):
        record(folder, ranks, "nano", late)
