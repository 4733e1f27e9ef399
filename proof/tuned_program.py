"""Load a rule file of `tune` into a plain program of mpi4py, and compare its times with the ratios that `tune` gave.

    python -m proof.tuned_program RUN [STARTS] [OP:SIZE ...]

RUN: folder of a run of `tune` on Open MPI. The program uses buffers as the run did: another buffer per call, and in
place if an operation permits it. It is started with and without the file, in random order, with each number of ranks of
the run, and measures all operations and sizes that have a rule, or only the named ones.
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from collbench.launch import mpirun
from collbench.machine import host
from collbench.model.units import format_bytes, parse_bytes
from collbench.packages.tune import catalog
from collbench.packages.tune.rules import Cell
from collbench.stats.intervals import launch_interval

STARTS, SECONDS, POOL = 12, 0.1, 8 * 2**20
PROGRAM = """
import json, sys, time
import numpy as np
from mpi4py import MPI

world, (seconds, pool, cells) = MPI.COMM_WORLD, json.loads(sys.argv[1])
found = {}
for op, size in cells:
    count = size // 4 // world.size * world.size
    sent = [np.ones(count, "f4") for _ in range(max(2, min(256, pool // size)))]
    received = [np.empty(count, "f4") for _ in sent]
    calls = {
        "all_reduce": lambda a, b: world.Allreduce(MPI.IN_PLACE, a),
        "broadcast": lambda a, b: world.Bcast(a, 0),
        "all_gather": lambda a, b: world.Allgather(a[: count // world.size], b),
        "all_to_all": lambda a, b: world.Alltoall(a, b),
    }
    def timed(calls_made, call=calls[op]):
        taken = np.empty(calls_made)
        for number in range(calls_made):
            place = number % len(sent)
            world.Barrier()
            began = time.perf_counter()
            call(sent[place], received[place])
            taken[number] = time.perf_counter() - began
            sent[place].fill(1)
        world.Allreduce(MPI.IN_PLACE, taken, MPI.MAX)
        return taken.mean()
    once = world.bcast(timed(20), 0)
    found[f"{op} {size}"] = timed(max(20, int(seconds / once)))
if world.rank == 0:
    print(json.dumps(found))
"""


def main(folder: Path, starts: int, named: set[tuple[str, int]]) -> None:
    tuned = json.loads((folder / "tuned.json").read_text())
    results = {Cell(**result["cell"]): result for result in tuned["results"]}
    has_rule = {(c.op, c.size) for c, result in results.items() if result["choice"]["algorithm"] != "default"}
    loaded = catalog.OpenMpi({}).file_settings(str((folder / "rules.conf").resolve()))
    assert loaded is not None, "a path without spaces"
    rows = []
    for ranks in sorted({cell.ranks for cell in results}):
        cells = sorted(c for c in results if c.ranks == ranks and (c.op, c.size) in (named or has_rule))
        ratios: dict[Cell, list[float]] = {cell: [] for cell in cells}
        for _ in range(starts):
            sides = {"without": {}, "with": dict(loaded.pairs)}
            order = random.sample([*sides], 2)
            times = {side: _started(ranks, cells, sides[side]) for side in order}
            for cell in cells:
                ratios[cell].append(times["with"][cell] / times["without"][cell])
        for cell, cell_ratios in ratios.items():
            choice, ratio = results[cell]["choice"], results[cell]["ratio"]
            promised = "-" if choice["algorithm"] == "default" else _text(ratio["value"], ratio["low"], ratio["high"])
            interval = launch_interval(np.array(cell_ratios))
            rule = choice["algorithm"] if promised != "-" else "no rule"
            measured = _text(interval.value, interval.low, interval.high)
            rows.append([cell.op, ranks, format_bytes(cell.size), rule, promised, measured])
    print(tabulate(rows, ["operation", "ranks", "size", "rule", "promised", "in the program"], tablefmt="github"))


def _text(value: float, low: float, high: float) -> str:
    return f"{value:.2f} [{low:.2f} – {high:.2f}]"


def _started(ranks: int, cells: list[Cell], variables: Mapping[str, str]) -> dict[Cell, float]:
    """Start the program, and return the seconds per call in each cell."""
    task: list[Any] = [SECONDS, POOL, [(cell.op, cell.size) for cell in cells]]
    program = host.mpirun()
    assert program is not None, "an MPI tuned the rules"
    only_memory = {"OMPI_MCA_btl": f"self,{mpirun.shared_memory(program)}"}
    words = [str(program), *mpirun.OPTIONS, "-n", str(ranks), sys.executable, "-c", PROGRAM, json.dumps(task)]
    environment = os.environ | mpirun.AS_ROOT | only_memory | dict(variables)
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300, check=True)
    means = json.loads(done.stdout)
    return {cell: means[f"{cell.op} {cell.size}"] for cell in cells}


if __name__ == "__main__":
    run, *arguments = sys.argv[1:]
    wanted = {(op, parse_bytes(size)) for op, size in (word.split(":") for word in arguments[1:])}
    main(Path(run), int(arguments[0]) if arguments else STARTS, wanted)
