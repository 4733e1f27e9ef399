"""`make prove`: run every claim, print the table, write docs/accuracy.md; exit 1 if one is not reached.

    python -m proof [--quick] [--only NAME ...]

--quick: the same lines with fewer repetitions; nothing is written. --only: some claims; nothing is written.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tabulate import tabulate

from bench.measure import environment
from bench.units import format_seconds
from proof import coverage, headline, links_recovered, naming, overhead, verdicts
from proof.claim import FULL, QUICK, Claim, Effort, Outcome
from proof.rig import Rig, rig

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/accuracy.md"
CLAIMS: dict[str, Claim] = {
    "rates": links_recovered.rates,
    "delays": links_recovered.delays,
    "matrix": links_recovered.matrix,
    "late-rank": naming.late_rank,
    "unchanged": verdicts.unchanged,
    "slowed": verdicts.slowed,
    "simulated-coverage": coverage.simulated,
    "real-coverage": coverage.real,
    "headline": headline.repeats,
    "overhead": overhead.against_a_bare_loop,
}
ABOUT = (
    "Written by `make prove`; do not edit. Each line is measured, on links whose rate and delay are known, with "
    "faults and changes that were planted, or on series whose median is known. A line that is missed stays missed: "
    "the gates are not loosened. What each line does is in `tests/proof/`."
)
Timed = tuple[Outcome, str, float]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make prove", description="Prove that the suite's numbers are right.")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--only", nargs="+", choices=CLAIMS, default=list(CLAIMS), help="some claims")
    asked = parser.parse_args(arguments)
    effort = QUICK if asked.quick else FULL
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="proof-") as name, rig(Path(name)) as used:
        rows = [row for claim in asked.only for row in _tried(claim, used, effort)]
    took = time.monotonic() - began
    print(table(rows))
    print(f"\n{verdict(rows)}; took {format_seconds(took)}")
    if effort is FULL and list(asked.only) == list(CLAIMS):
        PAGE.write_text(page(rows, took), encoding="utf-8")
        print(PAGE.relative_to(ROOT))
    return 0 if all(outcome.reached is not False for outcome, *_ in rows) else 1


def _tried(claim: str, used: Rig, effort: Effort) -> list[Timed]:
    print(f"{claim} ...", file=sys.stderr, flush=True)
    began = time.monotonic()
    outcomes = CLAIMS[claim](used, effort)
    took = time.monotonic() - began
    for outcome in outcomes:
        print(f"  {_word(outcome):>9}  {outcome.claim}: {outcome.measured}", file=sys.stderr, flush=True)
    return [(outcome, claim, took) for outcome in outcomes]


def table(rows: Sequence[Timed]) -> str:
    shown = [(o.claim, o.target, o.measured, _word(o)) for o, *_ in rows]
    return tabulate(shown, ["claim", "to reach", "measured", "reached"], tablefmt="pipe", disable_numparse=True)


def verdict(rows: Sequence[Timed]) -> str:
    words = [_word(outcome) for outcome, *_ in rows]
    missed, untried = words.count("NO"), words.count("not tried")
    return f"{words.count('yes')} of {len(words)} reached, {missed} missed, {untried} not tried"


def _word(outcome: Outcome) -> str:
    return {True: "yes", False: "NO", None: "not tried"}[outcome.reached]


def page(rows: Sequence[Timed], took: float) -> str:
    host = environment.host()
    cpu = host["cpu"]
    machine = (
        f"{cpu['usable_cores']} cores of {cpu['model']}"
        f"{', in a virtual machine' if cpu['hypervisor'] == 'yes' else ''}, kernel {host['kernel']}, "
        f"Python {host['python']}, torch {host['packages']['torch']}, gloo"
    )
    times = {claim: seconds for _, claim, seconds in rows}
    spent = tabulate(
        [(claim, format_seconds(seconds)) for claim, seconds in times.items()],
        ["part", "took"], tablefmt="pipe", disable_numparse=True,
    )  # fmt: skip
    facts = [
        f"machine: {machine}",
        f"date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        f"commit: {_commit()}",
        f"command: `make prove`, {format_seconds(took)}",
        verdict(rows),
    ]
    parts = ["# How accurate CollBench is", ABOUT, "\n".join(f"- {fact}" for fact in facts), table(rows)]
    return "\n\n".join([*parts, "How long each part took:", spent]) + "\n"


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "not available"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
