"""Hold `tune` against the truth: every algorithm of Open MPI measured in 40 launches, kept in tune_truth.csv.gz.

`python -m proof.tune collect` measures the truth on this machine (an hour); `python -m proof.tune` simulates tables on
it: that of `tune`, and that of generators which keep the smallest number of one or of several launches. Launches that
made a table never judge it.
"""

import csv
import gzip
import secrets
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench.cli.measuring import source
from bench.config import models
from bench.machine import host
from bench.planning import plan as planning
from bench.store import folders
from bench.tune import catalog, machine
from bench.tune import planning as rounds_of
from bench.tune.analyze import choosing
from bench.tune.cli.rounds import Rounds
from bench.tune.model import DEFAULT, Cell, Choice, Picks

TRUTH = Path(__file__).with_name("tune_truth.csv.gz")
LAUNCHES = 40
CONFIG, SECONDS = "mpi-tune", 0.01
COLUMNS = ("operation", "ranks", "size", "algorithm", "segment", "launch", "mean_s")


# ── the truth ────────────────────────────────────────────────────────────────────────────────────
def collect(root: Path) -> None:
    """Measure every choice of every cell in every launch; all choices of a cell take turns."""
    asked = source(Path(CONFIG))
    settings = models.parse(asked.raw, asked.name, [f"sampling.seconds_per_case={SECONDS}"], asked.default_name)
    library = catalog.OpenMpi(machine.algorithms())
    here = host.machine()
    plan, found = rounds_of.cells(settings, here, secrets.randbelow(2**32), library)
    sampling = replace(plan.settings.sampling, warmup_s=SECONDS)
    plan = replace(plan, settings=replace(plan.settings, sampling=sampling), order=())
    named = rounds_of.candidates(library, found)
    path = folders.create(root, plan, asked.raw, {"argv": sys.argv, "overrides": [], "collbench": ""})
    rounds = Rounds(path, plan, [], False, lambda text: print("failed:", text))
    began = time.monotonic()
    with rounds.opened([], None):
        for number in range(1, LAUNCHES + 1):
            rounds.measure(rounds_of.launches(library, found, named, number, plan.settings.seed))
            print(f"launch {number}: {time.monotonic() - began:.0f} s", flush=True)
    export(path, library)


def export(path: Path, library: catalog.Library) -> None:
    """Keep the mean time of each launch of a run."""
    with gzip.open(TRUTH, "wt", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for samples in folders.read(path).samples:
            if samples.failure is None and samples.timed is not None:
                case, choice = samples.case, library.choice_in(samples.case)
                mean_s = float(np.mean(samples.timed.slowest_s))
                writer.writerow(
                    [case.op, case.world_size, case.size_bytes, choice.algorithm, choice.segment, samples.launch]
                    + [f"{mean_s:.4g}"]
                )


if __name__ == "__main__":
    if sys.argv[1:2] == ["collect"]:
        collect(Path(sys.argv[2]))
