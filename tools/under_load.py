"""Run a command while other processes compute on its cores: `python -m tools.under_load cores -- COMMAND`.

LOAD is `none`, `cores` or `bursts`, as for the key `load` of a configuration. The processes are pinned, one to each
core in `--cores`, or that this process may use. They end with the command, whose exit code is returned.
"""

import argparse
import os
import subprocess
import sys

from collbench.config.fields import LOADS
from collbench.rank import load


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("load", choices=LOADS)
    parser.add_argument("--cores", help="such as 0,1; all that may be used", metavar="LIST")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    cores = [int(core) for core in args.cores.split(",")] if args.cores else sorted(os.sched_getaffinity(0))
    if args.load != "none":
        load.begin(args.load, cores)
    return subprocess.run(args.command).returncode


if __name__ == "__main__":
    sys.exit(main())
