"""Run every claim, keep the findings in proof/accuracy.json, and write proof/accuracy.md (`make prove`).

The exit code is 1 if a line is missed that is not a declared limit.

    python -m proof [--quick] [--weekly] [--only NAME ...] [--trials N] [--list] [--pages]

Claims that time something run first, one after the other; then simulated claims run, one on each core. The findings of
a claim are kept as soon as it has run. --quick: fewer trials, as a test of the proof itself; nothing is kept.
"""

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path

from tabulate import tabulate

from collbench.launch.launcher import Launcher
from collbench.machine import host
from collbench.packages.training.operation import OPERATION
from proof import accuracy, noise
from proof.accuracy import Record
from proof.claim import MISSED
from proof.claims import CLAIMS, NOISE
from proof.rig import Rig


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m proof", description="Prove that the suite's numbers are right.")
    parser.add_argument("--quick", action="store_true", help="fewer trials; nothing is kept")
    parser.add_argument("--weekly", action="store_true", help="the claims that take too long for each change")
    parser.add_argument("--only", nargs="+", choices=CLAIMS, metavar="NAME", help="some claims")
    parser.add_argument("--trials", type=int, help="trials of each claim, in place of its own number")
    parser.add_argument("--list", action="store_true", help="the claims, their protocols and minutes")
    parser.add_argument("--pages", action="store_true", help="write the page again; measure nothing")
    args = parser.parse_args(arguments)
    if args.list:
        rows = [
            (name, c.protocol, c.trials, c.quick or "-", f"{c.minutes:g}", "yes" if c.weekly else "")
            for name, c in CLAIMS.items()
        ]
        print(tabulate(rows, ["claim", "protocol", "trials", "quick", "minutes", "weekly"], maxcolwidths=[None, 80]))
        return 0
    if args.pages:
        accuracy.write()
        return 0
    names = args.only or [name for name, claim in CLAIMS.items() if claim.weekly == args.weekly]
    trials: dict[str, int] = {}
    for name, claim in CLAIMS.items():
        if name in names and (reason := claim.missing()):
            print(f"{name}: not tried, {reason}")
        elif name in names:
            trials[name] = args.trials or (claim.quick if args.quick else claim.trials)
    records: list[Record] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="proof-") as folder, Launcher(preload=[OPERATION.rank.module]) as launcher:
        rig = Rig(launcher, Path(folder), args.quick)
        for name, record in _tried(rig, {name: count for name, count in trials.items() if count}):
            _show(name, record)
            records.append(record)
            if not args.quick:
                accuracy.keep(name, record)
    outcomes = [line["outcome"] for record in records for line in record["lines"]]
    print(f"{accuracy.summed(outcomes)}; took {(time.monotonic() - began) / 60:.1f} min")
    return int(MISSED in outcomes)


def _tried(rig: Rig, trials: Mapping[str, int]) -> Iterator[tuple[str, Record]]:
    """Run the claims, and yield the name and the record of each claim as soon as it has run."""
    timed = [name for name in trials if not CLAIMS[name].simulated]
    yield from ((name, _run(rig, name, trials[name])) for name in timed)
    simulated = sorted(trials.keys() - timed, key=lambda name: -CLAIMS[name].minutes)
    if any(NOISE in CLAIMS[name].paths for name in simulated):
        noise.sets(rig)  # measured once, here: forked processes inherit the cached sets
    _FORKED.append(rig)
    with ProcessPoolExecutor(len(host.affinity()), multiprocessing.get_context("fork")) as cores:
        running = {cores.submit(_run_forked, name, trials[name]): name for name in simulated}
        yield from ((running[done], done.result()) for done in as_completed(running))


# The rig, for forked processes to inherit: a rig cannot be sent to a process.
_FORKED: list[Rig] = []


def _run_forked(name: str, trials: int) -> Record:
    return _run(_FORKED[0], name, trials)


def _run(rig: Rig, name: str, trials: int) -> Record:
    began = time.monotonic()
    lines = CLAIMS[name].run(rig, trials)
    seconds = round(time.monotonic() - began, 1)
    return accuracy.record(CLAIMS[name], trials, lines, seconds, f"{datetime.now(UTC):%Y-%m-%d %H:%M}")


def _show(name: str, record: Record) -> None:
    print(f"{name}: {CLAIMS[name].protocol}")
    for line in record["lines"]:
        print(f"  {line['outcome']:>9}  {line['says']}: {line['measured']} (demanded: {line['demanded']})")
    print(f"  {record['seconds']:g} s\n", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
