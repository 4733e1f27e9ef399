#!/usr/bin/env python3
"""Entry point: `python run_bench.py --help`."""

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. arguments: those of this process if None.

    Programs may call it, such as a Ray Train job: run_bench.main(["run", "configs/gloo.yaml"]). The command line is
    imported in this function, so that ranks, which import this file, do not import it.
    """
    try:
        _standard_streams()
        from bench.cli import call

        return call(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:  # while packages were loaded: nothing has begun
        return 130


def _standard_streams() -> None:
    """Open those that were closed, which ranks inherit and write to, and let none refuse a character.

    Some daemons close them; a locale without UTF-8 has no words for what is printed.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, "w" if number else "r"))
        if number and hasattr(getattr(sys, name), "reconfigure"):  # a program that calls this may have its own
            getattr(sys, name).reconfigure(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
