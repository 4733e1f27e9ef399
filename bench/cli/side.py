"""The process of a side of `ab` that has an interpreter or environment variables of its own; not a verb.

In: requests to measure a launch. Out: lines for samples.jsonl, and records of process groups. The other end, and the
way both talk, is `bench/launch/side_process.py`. Its ranks come from a fork server of its own.
"""

import contextlib
import sys
from pathlib import Path

from bench.cli.sides import one_launch
from bench.launch import mpirun, sweep, turns
from bench.launch.side_process import SideLine
from bench.machine import host, processes
from bench.model.errors import BenchError
from bench.store import folders


def main(folder: str, descriptor: str) -> None:
    """Measure until the connection is closed. folder: of the side, in the run's. descriptor: of the connection."""
    processes.end_with_parent()  # if it has ended already, so has the connection
    line = SideLine(descriptor)
    try:
        with contextlib.suppress(EOFError, OSError):  # nobody listens any more
            _serve(Path(folder), line)
    except BenchError as error:
        with contextlib.suppress(OSError):
            line.tell("error", text=str(error))
        sys.exit(error.exit_code)


def _serve(path: Path, line: SideLine) -> None:
    plan = folders.read_plans(path.parent)[folders.SIDES.index(path.name)]
    before = folders.read(path).samples
    with mpirun.ByBackend(sweep.preload([plan])) as launcher:
        line.tell("ready", facts=host.facts())
        for number in line.requests():
            measuring = sweep.sweep(
                one_launch(plan, number),
                [samples for samples in before if samples.launch == number],
                launcher,
                lambda samples: line.tell("line", samples),
                path.parent / folders.LOG,
                lambda record: line.tell("launched", record=record),
                sweep.Silent(),
                turn=line,
                probe=number == 1,
            )
            turns.drive(line.listening(measuring))
            line.tell("measured")


if __name__ == "__main__":
    main(*sys.argv[1:])
