"""Measure how soon a terminal shows a first number and a whole table: CollBench and a plain script, in turns.

`python -m tools.first_look` runs the same three sizes with two gloo ranks by `collbench run` and by a script under
torchrun. Out: a Markdown table of seconds from the start of each command, median and range over the rounds.
"""

import contextlib
import os
import pty
import re
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[1]
RUN = (sys.executable, str(ROOT / "run_bench.py"), "run")
CONFIG = "backends: [gloo]\nworld_sizes: [2]\noperations: [all_reduce]\nsizes: [1KiB, 64KiB, 1MiB]\n"
# Two clock readings around 20 calls, without statistics, as people write it who need a number quickly.
PLAIN = """
import time, torch, torch.distributed as dist

dist.init_process_group("gloo")
for size in (1024, 65536, 1048576):
    tensor = torch.ones(size // 4)
    for call in range(25):
        if call == 5:
            dist.barrier()
            began = time.perf_counter()
        dist.all_reduce(tensor)
    if dist.get_rank() == 0:
        print(f"{size:>12} bytes {(time.perf_counter() - began) / 20 * 1e6:>12.1f} us", flush=True)
dist.destroy_process_group()
"""
ROUNDS = 5
# Seconds after which a command that has not shown both numbers is ended.
LONGEST_S = 120.0


class Watched(NamedTuple):
    """A command that shows numbers on a terminal, and the patterns of the first number and the last in the table."""

    name: str
    command: Sequence[str]
    first: bytes
    last: bytes


def seen(watched: Watched, folder: Path) -> list[float]:
    """Return the seconds from the start of a command until a terminal of 100 columns shows its first and last number.

    Ends the command then. Raises TimeoutError if they are not shown within LONGEST_S.
    """
    wanted, times, shown = (watched.first, watched.last), dict[bytes, float](), b""
    main, terminal = pty.openpty()
    ends = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
    variables = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    began = time.perf_counter()
    process = subprocess.Popen(watched.command, cwd=folder, env=variables, **ends)
    os.close(terminal)
    with contextlib.suppress(OSError):  # the other end is closed: the command has ended
        while len(times) < 2 and select.select([main], [], [], max(0.0, began + LONGEST_S - time.perf_counter()))[0]:
            shown += os.read(main, 65536)
            for pattern in wanted:
                if pattern not in times and re.search(pattern, shown):
                    times[pattern] = time.perf_counter() - began
        process.send_signal(signal.SIGINT)
        while os.read(main, 65536):
            pass
    process.wait()
    os.close(main)
    if len(times) < 2:
        raise TimeoutError(f"{watched.name} never showed {wanted}: {shown[-2000:].decode(errors='replace')}")
    return [times[pattern] for pattern in wanted]


def candidates(folder: Path) -> list[Watched]:
    """Return the commands of CollBench and of the plain script."""
    (folder / "three.yaml").write_text(CONFIG)
    (folder / "plain.py").write_text(PLAIN)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "plain.py"]
    return [
        Watched("collbench run", [*RUN, "three.yaml"], rb"1 KiB +\d", rb"1 MiB +\d"),
        Watched("a plain script, torchrun", torchrun, rb" 1024 bytes", rb" 1048576 bytes"),
    ]


def compared(watched: Sequence[Watched], folder: Path) -> dict[str, list[list[float]]]:
    """Run the commands in turns; return name → per round, the seconds until the first number and until the table."""
    times: dict[str, list[list[float]]] = {candidate.name: [] for candidate in watched}
    for number in range(ROUNDS):
        for candidate in watched[:: 1 if number % 2 else -1]:  # each is first in turn
            times[candidate.name].append(seen(candidate, folder))
    return times


def spread(times: Sequence[float], digits: int = 1) -> str:
    """Return median and range, such as `3.1 s (2.9 – 3.4)`."""
    middle, low, high = (f"{time_s:.{digits}f}" for time_s in (statistics.median(times), min(times), max(times)))
    return f"{middle} s ({low} – {high})"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="first-look-") as name:
        times = compared(candidates(Path(name)), Path(name))
    rows = [(label, *(spread(each) for each in zip(*rounds, strict=True))) for label, rounds in times.items()]
    print(tabulate(rows, ["command", "first number", "table of three sizes"], "github", disable_numparse=True))


if __name__ == "__main__":
    main()
