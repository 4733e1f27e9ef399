"""`make prove`: run every claim, print the table, write docs/accuracy.md; exit 1 if one is not reached.

    python -m proof [--quick] [--only NAME ...]

Each part is kept in docs/accuracy.json as soon as it has run, with its date and commit, and the page is written
from that file: --only repeats some parts and leaves the others as they are. --quick: the same lines with fewer
repetitions; nothing is kept.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tabulate import tabulate

from bench.measure import environment
from bench.units import format_seconds
from proof import coverage, headline, links_recovered, naming, overhead, verdicts
from proof.claim import FULL, QUICK, Claim, Effort, Outcome
from proof.rig import Rig, rig

ROOT = Path(__file__).resolve().parents[2]
PAGE, KEPT = ROOT / "docs/accuracy.md", ROOT / "docs/accuracy.json"
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
    "mpi-overhead": overhead.mpi_against_a_bare_loop,
}
ABOUT = (
    "Written by `make prove`; do not edit. Each line is measured, on links whose rate and delay are known, with "
    "faults and changes that were planted, or on series whose median is known. A line that is missed stays missed: "
    "the gates are not loosened. What each line does is in `tests/proof/`."
)
WORDS = {True: "yes", False: "NO", None: "not tried"}
Part = dict[str, Any]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make prove", description="Prove that the suite's numbers are right.")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions; nothing is kept")
    parser.add_argument("--only", nargs="+", choices=CLAIMS, default=list(CLAIMS), help="some parts")
    asked = parser.parse_args(arguments)
    parts: dict[str, Part] = {}
    with tempfile.TemporaryDirectory(prefix="proof-") as name, rig(Path(name)) as used:
        for claim in asked.only:
            parts[claim] = _tried(claim, used, QUICK if asked.quick else FULL)
            if not asked.quick:
                _keep(claim, parts[claim])
    print(table(parts.values()))
    print(f"\n{verdict(parts.values())}; took {format_seconds(sum(part['seconds'] for part in parts.values()))}")
    return 0 if all(outcome["reached"] is not False for part in parts.values() for outcome in part["outcomes"]) else 1


def _tried(claim: str, used: Rig, effort: Effort) -> Part:
    print(f"{claim} ...", file=sys.stderr, flush=True)
    began = time.monotonic()
    outcomes = CLAIMS[claim](used, effort)
    took = time.monotonic() - began
    for outcome in outcomes:
        print(f"  {WORDS[outcome.reached]:>9}  {outcome.claim}: {outcome.measured}", file=sys.stderr, flush=True)
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
        "commit": _commit(),
        "machine": _machine(),
        "seconds": round(took, 1),
        "outcomes": [_as_json(outcome) for outcome in outcomes],
    }


def _as_json(outcome: Outcome) -> Part:
    return {name: getattr(outcome, name) for name in ("claim", "target", "measured", "reached")}


def _keep(claim: str, part: Part) -> None:
    kept = json.loads(KEPT.read_bytes()) if KEPT.exists() else {}
    kept[claim] = part
    ordered = {name: kept[name] for name in CLAIMS if name in kept}
    KEPT.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(ordered), encoding="utf-8")


def table(parts: Any) -> str:
    shown = [
        (outcome["claim"], outcome["target"], outcome["measured"], WORDS[outcome["reached"]])
        for part in parts
        for outcome in part["outcomes"]
    ]
    return tabulate(shown, ["claim", "to reach", "measured", "reached"], tablefmt="pipe", disable_numparse=True)


def verdict(parts: Any) -> str:
    words = [WORDS[outcome["reached"]] for part in parts for outcome in part["outcomes"]]
    missed, untried = words.count("NO"), words.count("not tried")
    return f"{words.count('yes')} of {len(words)} reached, {missed} missed, {untried} not tried"


def page(parts: dict[str, Part]) -> str:
    machines = sorted({part["machine"] for part in parts.values()})
    total = sum(part["seconds"] for part in parts.values())
    facts = [
        f"machine: {'; '.join(machines)}",
        f"command: `make prove` ({format_seconds(total)})",
        verdict(parts.values()),
    ]
    runs = tabulate(
        [(name, part["date"], part["commit"], format_seconds(part["seconds"])) for name, part in parts.items()],
        ["part", "date (UTC)", "commit", "took"], tablefmt="pipe", disable_numparse=True,
    )  # fmt: skip
    listed = "\n".join(f"- {fact}" for fact in facts)
    sections = ["# How accurate CollBench is", ABOUT, listed, table(parts.values()), "When each part ran:", runs]
    return "\n\n".join(sections) + "\n"


def _machine() -> str:
    host = environment.host()
    cpu = host["cpu"]
    virtual = ", in a virtual machine" if cpu["hypervisor"] == "yes" else ""
    versions = f"kernel {host['kernel']}, Python {host['python']}, torch {host['packages']['torch']}, gloo"
    return f"{cpu['usable_cores']} cores of {cpu['model']}{virtual}, {versions}"


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "not available"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
