"""The process of a side of `ab` that has an interpreter or environment variables of its own; not a verb.

In: plans to measure. Out: lines for samples.jsonl, and records of process groups. The other end, and the protocol
between both, is `collbench/launch/side_process.py`. Its ranks come from its own fork server.
"""

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from collbench.cli.terminal import error_text
from collbench.launch import mpirun, sweep, turns
from collbench.launch.side_process import SideLine
from collbench.machine import host, processes
from collbench.model.errors import BenchError


def main(log: str, *arguments: str) -> None:
    """Measure until the connection is closed. log: path of the run's log. arguments: modules to preload, connection."""
    *modules, descriptor = arguments
    processes.end_with_parent()  # if the parent has ended already, the connection is closed
    line = SideLine(descriptor)
    try:
        with contextlib.suppress(EOFError, OSError):  # the parent has closed the connection
            _serve(Path(log), modules, line)
    except BenchError as error:
        with contextlib.suppress(OSError):
            line.notify("error", text=error_text(error))
        sys.exit(error.exit_code)


def _serve(log: Path, modules: Sequence[str], line: SideLine) -> None:
    with mpirun.ByBackend(modules) as launcher:
        line.notify("ready", facts=host.facts())
        for plan, probe in line.requests():
            measuring = sweep.sweep(
                plan,
                (),
                launcher,
                lambda measured: line.notify("line", measured.text),
                log,
                lambda record: line.notify("launched", record=record),
                sweep.Silent(),
                turn=line,
                probe=probe,
            )
            turns.drive(line.listening(measuring))
            line.notify("measured")


if __name__ == "__main__":
    main(*sys.argv[1:])
