"""Measure the costs of rank 0 in a job of many processes: start-up, messages, files, memory, one gather of timings.

    python -m tools.job_scale      prints the table of docs/develop/scale.md (about 6 minutes on 4 cores)

All processes run on this machine, which has far fewer cores than processes. So the cost of rank 0 is CPU time and
memory of its own processes, which do not depend on the number of processes on the cores; only the start-up time does.
The last columns give the growth: the slope over the larger half of the sizes (1: in proportion), and a fit for 4 096.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil
from tabulate import tabulate

from collbench.launch.launcher import Launcher
from collbench.machine import host
from collbench.model.records import Case, Job, Launch, Sampling, Settings
from collbench.protocol import messages
from collbench.protocol.rank_context import RankContext
from collbench.rank.process import joined, run_rank
from collbench.store import encoding, folders

ROOT = Path(__file__).resolve().parents[1]
SIZES = (2, 4, 8, 16, 32, 64)
ASKED_FOR = 4096
CONFIG = """
name: scale
backends: [gloo]
world_sizes: [{n}]
operations: [all_reduce]
sizes: [1KiB, 16KiB, 256KiB]
launches: 3
sampling: {{warmup: 1, iterations: 20}}
timeout: 300s
"""
# Cases of a round and iterations of their blocks, which a rank sends in one gather; number of gathers.
CASES, ITERATIONS, GATHERS = 16, 12, 5
COLUMNS = (
    "first launch ready, s",
    "next launches ready, s",
    "CPU of rank 0's process, s",
    "memory of rank 0's process, MiB",
    "memory of rank 0, MiB",
    "threads",
    "a gather, CPU ms a rank",
    "samples.jsonl, KiB a case and launch",
    "environment.json, KiB a launch",
)


def job(n: int, folder: Path) -> tuple[float, ...]:
    """Run a real job of n processes; return all columns apart from the column of gathering."""
    config = folder / "scale.yaml"
    config.write_text(CONFIG.format(n=n))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(ROOT / "run_bench.py"), "run", str(config), "--no-plots"]
    processes = []
    for rank in range(n):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": n, "LOCAL_WORLD_SIZE": n, "MASTER_PORT": port}
        variables = {**os.environ, **{name: str(value) for name, value in place.items()}, "MASTER_ADDR": "127.0.0.1"}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        processes.append(subprocess.Popen(command, cwd=folder, env=variables, **quiet))  # type: ignore[call-overload]
    first = psutil.Process(processes[0].pid)
    cpu_s = memory = threads = 0.0
    while processes[0].poll() is None:
        try:
            times = first.cpu_times()
            cpu_s, threads = times.user + times.system, max(threads, first.num_threads())
            memory = max(memory, first.memory_info().rss)
        except psutil.Error:
            break
        time.sleep(0.1)
    for process in processes:
        process.wait()
    (path,) = folders.runs(folder / "results")
    run = folders.read(path)
    launches = [launch for session in run.environment for launch in session["launches"]]
    ready = [launch["ready_s"] for launch in launches]
    usage = [samples.usage for samples in run.samples if samples.usage is not None]
    assert len(usage) == len(run.samples) == 9, [samples.failure for samples in run.samples]
    return (
        ready[0],
        statistics.median(ready[1:]),
        cpu_s,
        memory / 2**20,
        max(used.peak_rss_bytes[0] for used in usage) / 2**20,
        threads,
        (path / "samples.jsonl").stat().st_size / len(run.samples) / 1024,
        (path / "environment.json").stat().st_size / len(launches) / 1024,
    )


def gathering(context: RankContext, job: bytes) -> None:
    """Run a rank that gathers invented timings, and sends the CPU time of one gather."""

    def work() -> dict[str, object]:
        with joined(context, "gloo", encoding.decoded(job, Job).settings.timeout_s) as group:
            numbers = [[10**15 + k for k in range(ITERATIONS)], list(range(10**5, 10**5 + ITERATIONS)), None, 10**7]
            context.send({"kind": "ready", "facts": {}, "waits_in": []})
            context.wait_for_go()
            took = []
            for _ in range(GATHERS):
                began = time.process_time()
                group.gather([numbers] * CASES)
                took.append(time.process_time() - began)
            if context.rank == 0:
                context.send({"kind": "sampled", "failure": None}, json.dumps(statistics.median(took)).encode())
        return {}

    run_rank(context, work)


def gather_s(n: int) -> float:
    """Return the CPU seconds of one gather on rank 0 of n ranks."""
    settings = Settings(Sampling(1, 0.0, 4, None, 1.0, 4), seed=1, timeout_s=300.0, pool_bytes=0)
    launch = Launch("gloo", n, 1, (Case("all_reduce", "gloo", n, "float32", 1024),))
    with Launcher() as launcher:
        ranks = launcher.start(n, "tools.job_scale:gathering", Job(launch, settings))
        try:
            for member in ranks.members:
                messages.receive(member.connection)
            for member in ranks.members:
                messages.send(member.connection, {"kind": "go"})
            _, line = messages.receive(ranks.members[0].connection)
            return float(json.loads(line))
        finally:
            ranks.kill()


def slope(values: Sequence[float]) -> float:
    """Return the exponent of a power law fitted to the larger half of the sizes."""
    half = len(SIZES) // 2
    return float(np.polyfit(np.log(SIZES[half:]), np.log(np.maximum(values[half:], 1e-9)), 1)[0])


def fitted(values: Sequence[float]) -> float:
    """Fit a constant and a part in proportion to n by relative least squares; return the value at ASKED_FOR."""
    matrix = np.array([[1.0, n] for n in SIZES]) / np.array(values)[:, None]
    constant, each = np.linalg.lstsq(matrix, np.ones(len(SIZES)), rcond=None)[0]
    return float(constant + each * ASKED_FOR)


def main() -> None:
    """Measure all sizes, and print the table."""
    rows = []
    for n in SIZES:
        with tempfile.TemporaryDirectory(prefix="job-scale-") as folder:
            figures = list(job(n, Path(folder)))
        figures.insert(6, 1e3 * gather_s(n))
        rows.append(figures)
        print(n, figures, file=sys.stderr, flush=True)
    columns = list(zip(*rows, strict=True))
    shown = [[name, *(f"{value:.3g}" for value in values)] for name, values in zip(COLUMNS, columns, strict=True)]
    for line, values in zip(shown, columns, strict=True):
        line += [f"{slope(values):.2f}", f"{fitted(values):.3g}"]
    print(tabulate(shown, ["", *map(str, SIZES), "slope", f"{ASKED_FOR}, fitted"], tablefmt="github"))
    print(f"\n{host.machine().cores} cores")


if __name__ == "__main__":
    main()
