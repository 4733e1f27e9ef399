"""Run a command while other processes compute on its cores: `python -m tools.beside cores -- taskset -c 0,1 COMMAND`.

LOAD is `none`, `cores` (an endless loop on each core) or `bursts` (10 ms of computing, 10 ms of sleep, on each core).
The processes are pinned, one to each core that `--cores` names, or that this process may use. They end with the
command, whose exit code is returned.
"""

import argparse
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable

BURST_S = 0.01


def endless() -> None:
    while True:
        pass


def bursts() -> None:
    while True:
        until = time.monotonic() + BURST_S
        while time.monotonic() < until:
            pass
        time.sleep(BURST_S)


LOADS: dict[str, Callable[[], None]] = {"cores": endless, "bursts": bursts}


def compute(load: str, core: int) -> None:
    """Load one core until this process is ended."""
    os.sched_setaffinity(0, {core})
    LOADS[load]()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("load", choices=["none", *LOADS])
    parser.add_argument("--cores", help="such as 0,1; all that may be used", metavar="LIST")
    parser.add_argument("command", nargs="+")
    asked = parser.parse_args()
    cores = [int(core) for core in asked.cores.split(",")] if asked.cores else sorted(os.sched_getaffinity(0))
    processes = [
        multiprocessing.Process(target=compute, args=(asked.load, core), daemon=True)
        for core in (cores if asked.load in LOADS else ())
    ]
    for process in processes:
        process.start()
    try:
        return subprocess.run(asked.command).returncode
    except KeyboardInterrupt:
        return 130
    finally:
        for process in processes:
            process.kill()


if __name__ == "__main__":
    sys.exit(main())
