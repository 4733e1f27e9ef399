"""`make prove`: run every claim, keep the findings in proof/accuracy.json, write proof/accuracy.md.

Exit code 1 on a miss that is no declared limit.

    python -m proof [--quick] [--only NAME ...] [--trials N] [--list] [--pages]

Each claim is kept as soon as it has run. --quick: fewer trials, to see that it works; nothing is kept.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tabulate import tabulate

from bench.launch.launcher import Launcher
from bench.packages.training.operation import RANK_MODULES
from proof import accuracy
from proof.accuracy import Record
from proof.claim import MISSED, Claim
from proof.claims import CLAIMS
from proof.rig import Rig


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m proof", description="Prove that the suite's numbers are right.")
    parser.add_argument("--quick", action="store_true", help="fewer trials; nothing is kept")
    parser.add_argument("--only", nargs="+", choices=CLAIMS, metavar="NAME", help="some claims")
    parser.add_argument("--trials", type=int, help="trials of each claim, in place of its own number")
    parser.add_argument("--list", action="store_true", help="the claims, their protocols and minutes")
    parser.add_argument("--pages", action="store_true", help="write the page again; measure nothing")
    asked = parser.parse_args(arguments)
    if asked.list:
        rows = [(name, c.protocol, c.trials, c.quick or "-", f"{c.minutes:g}") for name, c in CLAIMS.items()]
        print(tabulate(rows, ["claim", "protocol", "trials", "quick", "minutes"], maxcolwidths=[None, 80]))
        print(f"\n{sum(claim.minutes for claim in CLAIMS.values()):.0f} minutes in all")
        return 0
    if asked.pages:
        accuracy.write()
        return 0
    records: list[Record] = []
    with tempfile.TemporaryDirectory(prefix="proof-") as folder, Launcher(preload=RANK_MODULES) as launcher:
        rig = Rig(launcher, Path(folder), asked.quick)
        for name in asked.only or CLAIMS:
            claim = CLAIMS[name]
            trials = asked.trials or (claim.quick if asked.quick else claim.trials)
            if not trials:
                continue
            records.append(_tried(name, claim, rig, trials))
            if not asked.quick:
                accuracy.keep(name, records[-1])
    outcomes = [line["outcome"] for record in records for line in record["lines"]]
    print(f"{accuracy.summed(outcomes)}; took {sum(record['seconds'] for record in records) / 60:.1f} min")
    return int(MISSED in outcomes)


def _tried(name: str, claim: Claim, rig: Rig, trials: int) -> Record:
    print(f"{name}: {claim.protocol}", flush=True)
    began = time.monotonic()
    lines = claim.run(rig, trials)
    seconds = round(time.monotonic() - began, 1)
    for line in lines:
        print(f"  {line.outcome:>9}  {line.says}: {line.measured} (demanded: {line.demanded})", flush=True)
    print(f"  {seconds:g} s\n", flush=True)
    return accuracy.record(claim, trials, lines, seconds, f"{datetime.now(UTC):%Y-%m-%d %H:%M}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
