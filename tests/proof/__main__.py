"""`make prove` and `make prove-ddp`: run every claim, print the table, write a page; exit 1 if one is not reached.

    python -m proof [collectives | gradients] [--quick] [--only NAME ...]

Each part is kept in docs/accuracy.json, or docs/training-accuracy.json, as soon as it has run, with its date and
commit, and the page beside it is written from that file: --only repeats some parts and leaves the others as they are.
--quick: the same lines with fewer repetitions; nothing is kept.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tabulate import tabulate

from bench.machine import host
from bench.units import format_seconds
from proof import bucket_plans, coverage, headline, links_recovered, naming, overhead, training_steps, verdicts
from proof.claim import FULL, QUICK, Claim, Effort, Outcome
from proof.rig import Rig, rig

ROOT = Path(__file__).resolve().parents[2]
COLLECTIVES: dict[str, Claim] = {
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
GRADIENTS: dict[str, Claim] = {
    "planning": bucket_plans.planning,
    "plans": bucket_plans.against_uniform_caps,
    "tails": bucket_plans.tails,
    "shaped-link": bucket_plans.on_a_shaped_link,
    "silence": training_steps.silence,
    "planted-wait": training_steps.planted_wait,
    "stamps": training_steps.stamps,
    "bench-ddp": training_steps.duration,
}


@dataclass(frozen=True)
class Book:
    """Claims that are told on one page. file: of the page and of what it is written from, without suffix."""

    claims: dict[str, Claim]
    command: str
    title: str
    file: Path


BOOKS = {
    "collectives": Book(COLLECTIVES, "make prove", "How accurate CollBench is", ROOT / "docs/accuracy"),
    "gradients": Book(
        GRADIENTS, "make prove-ddp", "How accurate the training benchmark is", ROOT / "docs/training-accuracy"
    ),
}
ABOUT = (
    "Written by `{}`; do not edit. Each line is measured, on links whose rate and delay are known, with "
    "faults and changes that were planted, or on series whose median is known. A line that is missed stays missed: "
    "the gates are not loosened. What each line does is in `tests/proof/`."
)
WORDS = {True: "yes", False: "NO", None: "not tried"}
Part = dict[str, Any]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make prove", description="Prove that the suite's numbers are right.")
    parser.add_argument("book", nargs="?", choices=BOOKS, default="collectives", help="what to prove")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions; nothing is kept")
    parser.add_argument("--only", nargs="+", choices=[*COLLECTIVES, *GRADIENTS], help="some parts")
    asked = parser.parse_args(arguments)
    book = BOOKS[asked.book]
    parts: dict[str, Part] = {}
    with tempfile.TemporaryDirectory(prefix="proof-") as name, rig(Path(name)) as used:
        for claim in asked.only or book.claims:
            parts[claim] = _tried(claim, book.claims[claim], used, QUICK if asked.quick else FULL)
            if not asked.quick:
                _keep(book, claim, parts[claim])
    print(table(parts.values()))
    print(f"\n{verdict(parts.values())}; took {format_seconds(sum(part['seconds'] for part in parts.values()))}")
    return 0 if all(outcome["reached"] is not False for part in parts.values() for outcome in part["outcomes"]) else 1


def _tried(name: str, claim: Claim, used: Rig, effort: Effort) -> Part:
    print(f"{name} ...", file=sys.stderr, flush=True)
    began = time.monotonic()
    outcomes = claim(used, effort)
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


def _keep(book: Book, claim: str, part: Part) -> None:
    file = book.file.with_suffix(".json")
    kept = json.loads(file.read_bytes()) if file.exists() else {}
    kept[claim] = part
    ordered = {name: kept[name] for name in book.claims if name in kept}
    file.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    book.file.with_suffix(".md").write_text(page(book, ordered), encoding="utf-8")


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


def page(book: Book, parts: dict[str, Part]) -> str:
    machines = sorted({part["machine"] for part in parts.values()})
    total = sum(part["seconds"] for part in parts.values())
    facts = [
        f"machine: {'; '.join(machines)}",
        f"command: `{book.command}` ({format_seconds(total)})",
        verdict(parts.values()),
    ]
    runs = tabulate(
        [(name, part["date"], part["commit"], format_seconds(part["seconds"])) for name, part in parts.items()],
        ["part", "date (UTC)", "commit", "took"], tablefmt="pipe", disable_numparse=True,
    )  # fmt: skip
    listed = "\n".join(f"- {fact}" for fact in facts)
    sections = [
        f"# {book.title}",
        ABOUT.format(book.command),
        listed,
        table(parts.values()),
        "When each part ran:",
        runs,
    ]
    return "\n\n".join(sections) + "\n"


def _machine() -> str:
    facts = host.facts()
    cpu = facts["cpu"]
    virtual = ", in a virtual machine" if cpu["hypervisor"] == "yes" else ""
    versions = f"kernel {facts['kernel']}, Python {facts['python']}, torch {facts['packages']['torch']}, gloo"
    return f"{cpu['usable_cores']} cores of {cpu['model']}{virtual}, {versions}"


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "not available"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
