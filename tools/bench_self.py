"""Compare the costs of the suite itself with their targets: `make bench-self`. Exits with 1 if a target is missed.

Figures are ratios within one run if possible: absolute times on a shared machine mean little.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
from tabulate import tabulate

from collbench.analyze.summaries import headlines
from collbench.model.records import Case, Samples
from collbench.store import folders
from tools import large_runs
from tools.first_look import ROUNDS, RUN, Watched, candidates, compared, seen, spread

ROOT = Path(__file__).resolve().parents[1]
MIB = 2**20
THREE_SIZES = """
backends: [gloo]
world_sizes: [2]
launches: 1
operations: [all_reduce]
sizes: [4KiB, 1MiB, 64MiB]
sampling: {warmup: 5, iterations: 20}
"""
Row = tuple[str, str, str, bool]


def measured(folder: Path, *arguments: str) -> tuple[float, int]:
    """Run one command of CollBench; return its seconds from start to end, and its peak bytes."""
    began = time.perf_counter()
    with (folder / "out.txt").open("wb") as out:
        command = [sys.executable, str(ROOT / "run_bench.py"), *arguments]
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out)
        _, status, usage = os.wait4(process.pid, 0)
    took_s = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in ({0, 1} if arguments[0] == "compare" else {0}):
        raise SystemExit(f"{' '.join(arguments)} failed:\n{(folder / 'out.txt').read_text()}")
    return took_s, usage.ru_maxrss * 1024


def call(folder: Path, *arguments: str) -> float:
    return measured(folder, *arguments)[0]


def python(folder: Path, code: str) -> tuple[float, str]:
    """Run a program; return its seconds and output."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    return time.perf_counter() - began, done.stdout


def median_row(what: str, times: Sequence[float], limit_s: float) -> Row:
    return what, f"< {limit_s:g} s", spread(times, 2), statistics.median(times) < limit_s


def share_of_the_sweep(folder: Path) -> list[Row]:
    """Measure the default sweep: the time of its launches apart from calls, and the widths of its intervals."""
    wall = call(folder, "run", str(ROOT / "configs/gloo.yaml"))
    run = folders.read(folders.newest(folder / "results"))
    spent = sum(in_calls(s) for s in run.samples)
    launches = [launch["ready_s"] for launch in run.environment[0]["launches"][1:] if launch["world_size"] == 4]
    further, share = max(launches), spent / wall
    rows = [
        ("share of the gloo.yaml sweep spent in collectives", "≥ 60 %", f"{share:.0%} of {wall:.1f} s", share >= 0.6),
        ("gloo.yaml, once installed, with plots", "≤ 60 s", f"{wall:.1f} s", wall <= 60),
        ("its launches", "≥ 8", str(run.plan.launches), run.plan.launches >= 8),
        (f"further 4-rank launch to first collective ({len(launches)})", "< 0.5 s", f"{further:.2f} s", further < 0.5),
    ]
    times = [(s.case.world_size, s.time_s) for s in headlines(run) if s.time_s]
    widths = {n: [interval.relative_half_width for ranks, interval in times if ranks == n] for n in (2, 4)}
    for n, limit in ((2, 0.15), (4, 0.15)):
        width = statistics.median(widths[n])
        text = f"{width:.0%} ({min(widths[n]):.0%} to {max(widths[n]):.0%})"
        rows.append((f"half-widths of its headlines at {n} ranks, median", f"≤ {limit:.0%}", text, width <= limit))
    for n, limit in ((2, 25), (4, 80)):
        small = [s for s in run.samples if s.case.world_size == n and s.case.size_bytes <= MIB]
        apart_ms = statistics.mean(s.usage.wall_s - in_calls(s) for s in small) * 1e3
        what = f"beside calls, a case and launch up to 1 MiB, {n} ranks"
        rows.append((what, f"≤ {limit} ms", f"{apart_ms:.0f} ms", apart_ms <= limit))
        large_ones = [s for s in run.samples if s.case.world_size == n and s.case.size_bytes == 64 * MIB]
        call_s = statistics.median(float(np.median(s.timed.slowest_s)) for s in large_ones)
        units = statistics.mean(s.usage.wall_s - in_calls(s) for s in large_ones) / call_s
        rows.append((f"the same at 64 MiB, {n} ranks, in calls", "≤ 4", f"{units:.1f}", units <= 4))
    return rows


def first_numbers(folder: Path) -> list[Row]:
    """Measure when a terminal shows the first number and the whole table; for three sizes, compare a plain script."""
    sweep = Watched("gloo.yaml", [*RUN, str(ROOT / "configs/gloo.yaml")], rb"1 KiB", rb"size +2 ranks +4 ranks")
    first, whole = zip(*(seen(sweep, folder) for _ in range(ROUNDS)), strict=True)
    rows = [median_row("gloo.yaml on a terminal, first number", first, 5)]
    rows.append(median_row("gloo.yaml on a terminal, whole table", whole, 12))
    times_of = compared(candidates(folder), folder)
    own, plain = (list(zip(*times, strict=True)) for times in times_of.values())
    for what, ours, theirs in zip(("first number", "table"), own, plain, strict=True):
        good = statistics.median(ours) <= statistics.median(theirs)
        text = f"{spread(ours)}; {spread(theirs)}"
        rows.append((f"three sizes, {what}: run; a plain script under torchrun", "run first", text, good))
    return rows


def in_calls(samples: Samples) -> float:
    """Return the seconds of warm-up and timed calls of one case and launch."""
    parts = [timings for timings in (samples.warmup, samples.timed) if timings is not None]
    return sum(float(timings.duration_ns.max(axis=1).sum()) / 1e9 for timings in parts)


def memory_of_a_rank(folder: Path) -> list[Row]:
    """Measure the memory of a rank that measures small messages only."""
    call(folder, "run", str(ROOT / "configs/gloo.yaml"), "--no-plots", "--set", "sizes=[1KiB]", "--set", "launches=1")
    run = folders.read(folders.newest(folder / "results"))
    program = "import torch, torch.distributed, resource; print(1024 * resource.getrusage(0).ru_maxrss)"
    idle = int(python(folder, program)[1])
    above = max(max(s.usage.peak_rss_bytes) for s in run.samples if s.usage) - idle
    return [("a rank's memory above idle torch, 1 KiB", "≤ 100 MiB", f"{above / MIB:.0f} MiB", above <= 100 * MIB)]


def start_to_end(folder: Path) -> list[Row]:
    (folder / "three.yaml").write_text(THREE_SIZES)
    torch_s, bare_s, plots_s = [], [], []
    for _ in range(5):
        torch_s.append(python(folder, "import torch")[0])
        bare_s.append(call(folder, "run", "three.yaml", "--no-plots"))
        plots_s.append(call(folder, "run", "three.yaml"))
    torch, rows = statistics.median(torch_s), []
    for what, times, limit in (("table and report", bare_s, 3.0), ("with plots", plots_s, 4.5)):
        margin = statistics.median(times) - torch
        text = f"{spread(times, 2)} = import torch ({torch:.2f} s) + {margin:.2f} s"
        rows.append((f"three sizes, start to {what}", f"≤ import torch + {limit} s", text, margin <= limit))
    return rows


def light_verbs(folder: Path) -> list[Row]:
    verbs = (["--help"], ["plan", str(ROOT / "configs/gloo.yaml")], ["list"])
    return [median_row(f"`{verb[0]}`", [call(folder, *verb) for _ in range(7)], 0.5) for verb in verbs]


def quiet_run(root: Path, name: str, cases: list[Case], launches: int, seed: int) -> Path:
    """Write a run of 200 iterations per case and launch, without a fault."""
    rng, pairs = np.random.default_rng(seed), product(range(1, launches + 1), cases)
    return large_runs.write(root, name, launches, ((n, case, large_runs.scattered(rng, case)) for n, case in pairs))


def hundred_cases(folder: Path) -> list[Row]:
    cases = [Case("all_reduce", "gloo", n, "float32", 1024 * k) for n in (2, 4) for k in range(1, 51)]
    path = quiet_run(folder / "results", "hundred", cases, launches=3, seed=1)
    reports = [call(folder, "report", path.name, "--no-plots") for _ in range(5)]
    plots = [call(folder, "report", path.name, "--plots") for _ in range(3)]
    return [median_row("report of 100 cases", reports, 1.0), median_row("report and plots of 100 cases", plots, 6.0)]


def scale(folder: Path) -> list[Row]:
    """Measure verbs on 500 cases × 8 ranks × 200 iterations × 5 launches, 70 MB per run."""
    sizes = [(f"pool{pool}", 1024 * 2**k) for pool in range(25) for k in range(20)]
    cases = [Case("all_reduce", "gloo", 8, "float32", size, buffers=pool) for pool, size in sizes]
    paths = [quiet_run(folder / "results", f"large{seed}", cases, launches=5, seed=seed).name for seed in (1, 2)]
    rows = []
    for verb, names in (("report", [paths[0], "--no-plots"]), ("compare", [*paths, "--format", "json"])):
        times, peaks = zip(*(measured(folder, verb, *names) for _ in range(3)), strict=True)
        text = f"{spread(times, 2)}, {max(peaks) / MIB:.0f} MiB"
        good = statistics.median(times) < 5 and max(peaks) < 500 * MIB
        rows.append((f"{verb}: 500 cases × 8 ranks × 200 iterations × 5 launches", "< 5 s, < 500 MiB", text, good))
    return rows


def many_ranks(folder: Path) -> list[Row]:
    """Diagnose 200 cases of 256 ranks on 32 nodes, one of them late."""
    node = large_runs.large_run(folder / "results", [*large_runs.ranks_of(5)])
    shown = min(call(folder, "report", node.name, "--no-plots") for _ in range(3))
    named = min(call(folder, "diagnose", node.name) for _ in range(3))
    plots = call(folder, "report", node.name, "--plots")
    text = f"{shown + named:.2f} s (report {shown:.2f}, diagnose {named:.2f}, the least of 3)"
    return [
        ("report and diagnose: 200 cases × 256 ranks × 50 iterations × 2 launches", "< 10 s", text, shown + named < 10),
        ("the same, plots", "< 10 s", f"{plots:.2f} s", plots < 10),
    ]


def sixty_four_ranks(folder: Path) -> list[Row]:
    """Measure real gloo ranks, many more than the machine has cores."""
    (folder / "many.yaml").write_text(THREE_SIZES.replace("[2]", "[64]").replace("[4KiB, 1MiB, 64MiB]", "[1KiB]"))
    sets = ["sampling={warmup: 1, warmup_seconds: 0, iterations: 8}", "buffers=hot"]
    took = call(folder, "run", "many.yaml", *(word for setting in sets for word in ("--set", setting)))
    run = folders.read(folders.newest(folder / "results"))
    ready = run.environment[0]["launches"][0]["ready_s"]
    good = [s for s in run.samples if s.failure is None]
    text = f"{took:.0f} s, joined after {ready:.1f} s, {len(good)} of {len(run.samples)} measured"
    return [("64 gloo ranks, 1 KiB, 9 iterations", "< 90 s, measured", text, took < 90 and len(good) == 1)]


def the_tests(folder: Path) -> list[Row]:
    began = time.perf_counter()
    done = subprocess.run(["make", "test"], cwd=ROOT, capture_output=True, text=True, check=False)
    took_s = time.perf_counter() - began
    if done.returncode:
        print(done.stdout[-3000:], file=sys.stderr)
    good = took_s < 300 and not done.returncode
    return [("`make test`, installed", "< 5 min", f"{took_s / 60:.1f} min, exit {done.returncode}", good)]


PARTS = (
    start_to_end, light_verbs, hundred_cases, scale, many_ranks, sixty_four_ranks, memory_of_a_rank,
    share_of_the_sweep, first_numbers, the_tests,
)  # fmt: skip


def main() -> int:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="collbench-self-") as name:
        for part in PARTS:
            print(f"{part.__name__.replace('_', ' ')} ...", file=sys.stderr)
            rows += part(Path(name))
    shown = [(what, target, got, "yes" if good else "NO") for what, target, got, good in rows]
    print(tabulate(shown, ["figure", "to reach", "measured", "reached"], tablefmt="pipe", disable_numparse=True))
    return 0 if all(good for *_, good in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
