#!/usr/bin/env python3
"""Entry point: `python run_bench.py --help`."""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Hand over to the command line and return its exit code; `arguments` in place of those of this process.

    For programs, such as a Ray Train job: run_bench.main(["run", "configs/gloo.yaml"]). The command line is loaded
    here, so that ranks which read this file load nothing.
    """
    from bench.cli import call

    return call(sys.argv[1:] if arguments is None else arguments)


if __name__ == "__main__":
    sys.exit(main())
