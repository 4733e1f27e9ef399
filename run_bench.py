#!/usr/bin/env python3
"""Entry point: `python run_bench.py --help`."""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. arguments: those of this process if None.

    Programs may call it, such as a Ray Train job: run_bench.main(["run", "configs/gloo.yaml"]). The command line is
    imported in this function, so that ranks, which import this file, do not import it.
    """
    try:
        from bench.cli import call

        return call(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:  # while packages were loaded: nothing has begun
        return 130


if __name__ == "__main__":
    sys.exit(main())
