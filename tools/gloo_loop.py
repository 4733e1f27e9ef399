"""Count how often gloo's event loop wakes for nothing: `python -m tools.gloo_loop [--picture FILE]`.

Ranks repeat one all-reduce, with the loop thread of each under normal scheduling and under SCHED_BATCH, in fresh
processes that alternate. Out: Markdown tables of the time of a call, of the returns of `epoll_wait` that had something
ready, and of the CPU time and switches of each thread; a picture of the returns in each call. A preloaded library
counts the returns. Needs Linux and a C compiler; uses nothing of CollBench, so that it can be given to somebody.
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
# Calls that take longer have waited for a time slice.
SLOW_S = 2e-3
NAMES = {"normal": "normal", "batch": "SCHED_BATCH"}


def threads() -> dict[str, tuple[float, int]]:
    """Name of each thread of this process → its CPU time in seconds, and its involuntary switches."""
    used: dict[str, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    for thread in Path("/proc/self/task").iterdir():
        name = (thread / "comm").read_text().strip()
        seconds = int((thread / "schedstat").read_text().split()[0]) / 1e9
        switches = int((thread / "status").read_text().rpartition("nonvoluntary_ctxt_switches:")[2])
        used[name] = (used[name][0] + seconds, used[name][1] + switches)
    return used


def wait_in_line() -> None:
    """Run gloo's loop threads under SCHED_BATCH: they preempt no thread when they wake. The remedy, whole."""
    for thread in Path("/proc/self/task").iterdir():
        if (thread / "comm").read_text().strip() == LOOP:
            os.sched_setscheduler(int(thread.name), os.SCHED_BATCH, os.sched_param(0))


def rank(number: int, asked: argparse.Namespace, scheduling: str, place: str) -> None:
    """Repeat the call; write what was seen into a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}/store", rank=number, world_size=asked.ranks)
    tensor = torch.zeros(asked.bytes // 4)
    dist.all_reduce(tensor)
    if scheduling == "batch":
        wait_in_line()
    for _ in range(WARM_UP):
        dist.all_reduce(tensor)
    count = ctypes.CDLL(None).epoll_returns
    count.restype = ctypes.c_ulong
    before, times, returns = threads(), [], [count()]
    for _ in range(asked.calls):
        began = time.perf_counter()
        dist.all_reduce(tensor)
        times.append(time.perf_counter() - began)
        returns.append(count())
    after = threads()
    used = {
        name: (seconds - before.get(name, (0.0, 0))[0], switches - before.get(name, (0.0, 0))[1])
        for name, (seconds, switches) in after.items()
    }
    seen = {"times": times, "returns": np.diff(returns).tolist(), "threads": used}
    Path(place, f"rank{number}.json").write_text(json.dumps(seen))
    dist.barrier()


def launch(asked: argparse.Namespace, scheduling: str, library: Path) -> list[dict[str, Any]]:
    """What each rank of fresh processes saw."""
    with tempfile.TemporaryDirectory() as place:
        own = [sys.executable, __file__, *sys.argv[1:], "--scheduling", scheduling, "--place", place]
        preload = ":".join(filter(None, [str(library), os.environ.get("LD_PRELOAD")]))  # tools.gloo_patch, if asked for
        environment = os.environ | {"LD_PRELOAD": preload, "GLOO_SOCKET_IFNAME": "lo"}
        processes = [subprocess.Popen([*own, "--rank", str(number)], env=environment) for number in range(asked.ranks)]
        if any(process.wait(600) for process in processes):
            sys.exit("a rank failed")
        return [json.loads(Path(place, f"rank{number}.json").read_text()) for number in range(asked.ranks)]


def table(seen: dict[str, list[list[dict[str, Any]]]]) -> str:
    """A row for each scheduling: ranges over the launches, each of which is a mean over its ranks."""
    rows = []
    for scheduling, launches in seen.items():
        times = [np.array([of_rank["times"] for of_rank in ranks]) for ranks in launches]
        returns = [np.mean([of_rank["returns"] for of_rank in ranks]) for ranks in launches]
        slow = [np.mean(of_launch > SLOW_S) for of_launch in times]
        rows.append(
            [
                NAMES[scheduling],
                _range([1e3 * of_launch.mean() for of_launch in times], ".2f"),
                _range([100 * share for share in slow], ".0f"),
                _range(returns, ".0f"),
            ]
        )
    return tabulate(
        rows, ["loop thread", "time, ms", "over 2 ms, %", "returns a call"], "github", disable_numparse=True
    )


def of_threads(seen: dict[str, list[list[dict[str, Any]]]], calls: int) -> str:
    """A row for each scheduling and thread: CPU time and involuntary switches of a call, ranges over the launches."""
    rows = []
    for scheduling, launches in seen.items():
        for name in sorted({name for ranks in launches for of_rank in ranks for name in of_rank["threads"]}):
            used = [np.mean([of_rank["threads"].get(name, (0, 0)) for of_rank in ranks], axis=0) for ranks in launches]
            microseconds, switches = [1e6 * seconds / calls for seconds, _ in used], [n / calls for _, n in used]
            if max(microseconds) >= 1:
                rows.append([NAMES[scheduling], name, _range(microseconds, ".0f"), _range(switches, ".2f")])
    headers = ["loop thread", "thread", "CPU a call, µs", "involuntary switches a call"]
    return tabulate(rows, headers, "github", disable_numparse=True)


def _range(values: list[Any], form: str) -> str:
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low} – {high}"


def picture(seen: dict[str, list[list[dict[str, Any]]]], asked: argparse.Namespace) -> Figure:
    """Share of the calls in which `epoll_wait` returned more often than this; both schedulings."""
    figure = Figure(figsize=(7.5, 3.6), layout="constrained")
    axes = figure.subplots()
    for (scheduling, launches), line in zip(seen.items(), ("-", "--"), strict=True):
        returns = np.sort(np.concatenate([of_rank["returns"] for ranks in launches for of_rank in ranks]))
        share = 100 * (1 - np.arange(len(returns)) / len(returns))
        axes.step(returns.clip(1), share, line, label=f"loop thread {NAMES[scheduling]}: mean {returns.mean():.0f}")
    axes.set(xscale="log", yscale="log", ylim=(0.1, 130))
    axes.set(xlabel="returns of epoll_wait with something ready, in one call", ylabel="calls with so many or more, %")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    size = f"{asked.bytes // 1024} KiB" if asked.bytes >= 1024 else f"{asked.bytes} B"
    axes.set_title(f"gloo's event loop in an all-reduce of {size} with {asked.ranks} ranks", loc="left", fontsize=10.5)
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
    asked = parser.parse_args()
    if asked.rank is not None:
        rank(int(asked.rank), asked, asked.scheduling, asked.place)
        return
    seen: dict[str, list[list[dict[str, Any]]]] = {"normal": [], "batch": []}
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "shim.c"), Path(folder, "shim.so")
        source.write_text(SHIM)
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        for _ in range(asked.turns):
            for scheduling, launches in seen.items():
                launches.append(launch(asked, scheduling, library))
    print(table(seen), of_threads(seen, asked.calls), sep="\n\n")
    if asked.picture is not None:
        picture(seen, asked).savefig(asked.picture, dpi=120)


if __name__ == "__main__":
    main()
