"""Count how often gloo's event loop wakes in vain: `python -m tools.gloo_loop [--picture FILE]`.

Ranks repeat one all-reduce, with their loop threads under normal scheduling and under SCHED_BATCH, alternating in new
processes. Out: Markdown tables of the time per call, of the returns of `epoll_wait` with a ready descriptor, and of the
CPU time and switches of each thread; a picture of the returns per call. A preloaded library counts the returns. Needs
Linux and a C compiler; uses no code of CollBench, so that it can be passed on as a single file.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from matplotlib.figure import Figure
from tabulate import tabulate

SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <sys/epoll.h>
static atomic_ulong returns;
unsigned long epoll_returns(void) { return returns; }
int epoll_wait(int fd, struct epoll_event *events, int most, int timeout) {
    static int (*real)(int, struct epoll_event *, int, int);
    if (!real) real = dlsym(RTLD_NEXT, "epoll_wait");
    int ready = real(fd, events, most, timeout);
    if (ready > 0) returns++;
    return ready;
}
"""
LOOP = "gloo_tcp_loop"
WARM_UP = 50
# Calls that take longer than this have waited for a time slice.
SLOW_S = 2e-3
NAMES = {"normal": "normal", "batch": "SCHED_BATCH"}


def threads() -> dict[str, tuple[float, int]]:
    """Return the name of each thread of this process → its CPU time in seconds, and its involuntary switches."""
    used: dict[str, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    for thread in Path("/proc/self/task").iterdir():
        name = (thread / "comm").read_text().strip()
        seconds = int((thread / "schedstat").read_text().split()[0]) / 1e9
        switches = int((thread / "status").read_text().rpartition("nonvoluntary_ctxt_switches:")[2])
        used[name] = (used[name][0] + seconds, used[name][1] + switches)
    return used


def wait_in_line() -> None:
    """Run gloo's loop threads under SCHED_BATCH: they preempt no thread when they wake. This is the whole remedy."""
    for thread in Path("/proc/self/task").iterdir():
        if (thread / "comm").read_text().strip() == LOOP:
            os.sched_setscheduler(int(thread.name), os.SCHED_BATCH, os.sched_param(0))


def rank(number: int, args: argparse.Namespace, scheduling: str, place: str) -> None:
    """Repeat the call as one rank; write its times, returns and threads into a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}/store", rank=number, world_size=args.ranks)
    tensor = torch.zeros(args.bytes // 4)
    dist.all_reduce(tensor)
    if scheduling == "batch":
        wait_in_line()
    for _ in range(WARM_UP):
        dist.all_reduce(tensor)
    count = ctypes.CDLL(None).epoll_returns
    count.restype = ctypes.c_ulong
    before, times, returns = threads(), [], [count()]
    for _ in range(args.calls):
        began = time.perf_counter()
        dist.all_reduce(tensor)
        times.append(time.perf_counter() - began)
        returns.append(count())
    after = threads()
    used = {
        name: (seconds - before.get(name, (0.0, 0))[0], switches - before.get(name, (0.0, 0))[1])
        for name, (seconds, switches) in after.items()
    }
    record = {"times": times, "returns": np.diff(returns).tolist(), "threads": used}
    Path(place, f"rank{number}.json").write_text(json.dumps(record))
    dist.barrier()


def launch(args: argparse.Namespace, scheduling: str, library: Path) -> list[dict[str, Any]]:
    """Start ranks in new processes; return the record of each rank."""
    with tempfile.TemporaryDirectory() as place:
        own = [sys.executable, __file__, *sys.argv[1:], "--scheduling", scheduling, "--place", place]
        preload = ":".join(filter(None, [str(library), os.environ.get("LD_PRELOAD")]))  # tools.gloo_patch, if asked for
        environment = os.environ | {"LD_PRELOAD": preload, "GLOO_SOCKET_IFNAME": "lo"}
        processes = [subprocess.Popen([*own, "--rank", str(number)], env=environment) for number in range(args.ranks)]
        if any(process.wait(600) for process in processes):
            sys.exit("a rank failed")
        return [json.loads(Path(place, f"rank{number}.json").read_text()) for number in range(args.ranks)]


def table(results: dict[str, list[list[dict[str, Any]]]]) -> str:
    """Return a row for each scheduling: ranges over launches of means over ranks."""
    rows = []
    for scheduling, launches in results.items():
        times = [np.array([record["times"] for record in ranks]) for ranks in launches]
        returns = [np.mean([record["returns"] for record in ranks]) for ranks in launches]
        slow = [np.mean(durations > SLOW_S) for durations in times]
        rows.append(
            [
                NAMES[scheduling],
                _range([1e3 * durations.mean() for durations in times], ".2f"),
                _range([100 * share for share in slow], ".0f"),
                _range(returns, ".0f"),
            ]
        )
    return tabulate(
        rows, ["loop thread", "time, ms", "over 2 ms, %", "returns a call"], "github", disable_numparse=True
    )


def of_threads(results: dict[str, list[list[dict[str, Any]]]], calls: int) -> str:
    """Return a row per scheduling and thread: CPU time and involuntary switches per call, as ranges over launches."""
    rows = []
    for scheduling, launches in results.items():
        for name in sorted({name for ranks in launches for record in ranks for name in record["threads"]}):
            used = [np.mean([record["threads"].get(name, (0, 0)) for record in ranks], axis=0) for ranks in launches]
            microseconds, switches = [1e6 * seconds / calls for seconds, _ in used], [n / calls for _, n in used]
            if max(microseconds) >= 1:
                rows.append([NAMES[scheduling], name, _range(microseconds, ".0f"), _range(switches, ".2f")])
    headers = ["loop thread", "thread", "CPU a call, µs", "involuntary switches a call"]
    return tabulate(rows, headers, "github", disable_numparse=True)


def _range(values: list[Any], form: str) -> str:
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low} – {high}"


def picture(results: dict[str, list[list[dict[str, Any]]]], args: argparse.Namespace) -> Figure:
    """Draw the share of calls with at least x returns of `epoll_wait`, for both schedulings."""
    figure = Figure(figsize=(7.5, 3.6), layout="constrained")
    axes = figure.subplots()
    for (scheduling, launches), line in zip(results.items(), ("-", "--"), strict=True):
        returns = np.sort(np.concatenate([record["returns"] for ranks in launches for record in ranks]))
        share = 100 * (1 - np.arange(len(returns)) / len(returns))
        axes.step(returns.clip(1), share, line, label=f"loop thread {NAMES[scheduling]}: mean {returns.mean():.0f}")
    axes.set(xscale="log", yscale="log", ylim=(0.1, 130))
    axes.set(xlabel="returns of epoll_wait with something ready, in one call", ylabel="calls with so many or more, %")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    size = f"{args.bytes // 1024} KiB" if args.bytes >= 1024 else f"{args.bytes} B"
    axes.set_title(f"gloo's event loop in an all-reduce of {size} with {args.ranks} ranks", loc="left", fontsize=10.5)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--bytes", type=int, default=1024)
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--turns", type=int, default=3, help="launches of each scheduling")
    parser.add_argument("--picture", type=Path)
    for own in ("--rank", "--scheduling", "--place"):
        parser.add_argument(own, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        rank(int(args.rank), args, args.scheduling, args.place)
        return
    results: dict[str, list[list[dict[str, Any]]]] = {"normal": [], "batch": []}
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "shim.c"), Path(folder, "shim.so")
        source.write_text(SHIM)
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        for _ in range(args.turns):
            for scheduling, launches in results.items():
                launches.append(launch(args, scheduling, library))
    print(table(results), of_threads(results, args.calls), sep="\n\n")
    if args.picture is not None:
        picture(results, args).savefig(args.picture, dpi=120)


if __name__ == "__main__":
    main()
