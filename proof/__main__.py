"""`make prove`, `make prove-ab`, `make prove-ddp`: run every claim, print the table, write a page; exit 1 on a miss.

    python -m proof [collectives | sides | gradients] [--quick] [--only NAME ...] [--pages]

Each part is kept in docs/accuracy.json, or in the file of another book, as soon as it has run, with its date and
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

from bench.launch.launcher import Launcher
from bench.launch.sweep import TRAINING_MODULES
from bench.machine import host
from bench.model.units import format_seconds
from proof import (
    bucket_plans,
    coverage,
    headline,
    links_recovered,
    naming,
    overhead,
    simulated,
    training_steps,
    two_sides,
    verdicts,
)
from proof.claim import FULL, QUICK, Claim, Effort, Outcome
from proof.code import fingerprint
from proof.rig import Rig

ROOT = Path(__file__).resolve().parents[1]
# What every measured number rests on; what summarises and compares them; what plans buckets, and what trains.
MEASURED = ("catalog", "launch", "planning", "protocol", "rank/*.py")
COMPARED = ("analyze", "stats")
SUMMARISED = (*MEASURED, *COMPARED)
PLANNED = ("advise", "planning")
TRAINED = (*SUMMARISED, "rank/training", "advise")

COLLECTIVES: dict[str, Claim] = {
    "rates": Claim(links_recovered.rates, SUMMARISED),
    "delays": Claim(links_recovered.delays, SUMMARISED),
    "matrix": Claim(links_recovered.matrix, SUMMARISED),
    "late-rank": Claim(naming.late_rank, SUMMARISED),
    "unchanged": Claim(verdicts.unchanged, SUMMARISED),
    "slowed": Claim(verdicts.slowed, SUMMARISED),
    "occasions": Claim(simulated.known_occasions, COMPARED),
    "identical-sides": Claim(simulated.identical_sides, COMPARED),
    "launches": Claim(simulated.launches_of_all_kinds, ("stats",)),
    "simulated-coverage": Claim(coverage.simulated, ("stats",)),
    "real-coverage": Claim(coverage.real, (*MEASURED, "stats")),
    "headline": Claim(headline.repeats, SUMMARISED),
    "overhead": Claim(overhead.against_a_bare_loop, MEASURED),
    "mpi-overhead": Claim(overhead.mpi_against_a_bare_loop, MEASURED),
}
SIDES: dict[str, Claim] = {
    "all-by-20": Claim(two_sides.all_by_20, SUMMARISED),
    "all-by-5": Claim(two_sides.all_by_5, SUMMARISED),
    "all-by-2": Claim(two_sides.all_by_2, SUMMARISED),
    "one-of-six": Claim(two_sides.one_of_six, SUMMARISED),
    "identical": Claim(two_sides.identical, SUMMARISED),
}
GRADIENTS: dict[str, Claim] = {
    "planning": Claim(bucket_plans.planning, PLANNED),
    "plans": Claim(bucket_plans.against_uniform_caps, PLANNED),
    "tails": Claim(bucket_plans.tails, TRAINED),
    "order": Claim(bucket_plans.order_of_buckets, TRAINED),
    "shaped-link": Claim(bucket_plans.on_a_shaped_link, TRAINED),
    "simulated-runs": Claim(training_steps.simulated, COMPARED),
    "silence": Claim(training_steps.silence, TRAINED),
    "planted-wait": Claim(training_steps.planted_wait, TRAINED),
    "stamps": Claim(training_steps.stamps, TRAINED),
    "bench-ddp": Claim(training_steps.duration, TRAINED),
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
    "sides": Book(SIDES, "make prove-ab", "How well two sides are told apart", ROOT / "docs/ab-accuracy"),
    "gradients": Book(
        GRADIENTS, "make prove-ddp", "How accurate times of training steps are", ROOT / "docs/training-accuracy"
    ),
}
ABOUT = (
    "Written by `{}`; do not edit. Each line is measured, on links whose rate and delay are known, with "
    "faults and changes that were planted, or on series whose median is known. Counts have 95 % intervals by Clopper "
    "and Pearson. A line that is missed stays missed: the gates are not loosened. What each line does is in "
    "`proof/`. "
    "A part is of older code if something that it rests on in `bench/` has changed since it ran, comments aside: its "
    "lines say what was true of that code."
)
CODE = {True: "this code", False: "older code"}
WORDS = {True: "yes", False: "NO", None: "not tried"}
Part = dict[str, Any]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make prove", description="Prove that the suite's numbers are right.")
    parser.add_argument("book", nargs="?", choices=BOOKS, default="collectives", help="what to prove")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions; nothing is kept")
    parser.add_argument("--only", nargs="+", choices=[*COLLECTIVES, *SIDES, *GRADIENTS], help="some parts")
    parser.add_argument("--pages", action="store_true", help="write the pages again; measure nothing")
    asked = parser.parse_args(arguments)
    if asked.pages:
        for one in BOOKS.values():
            _write(one)
        return 0
    book = BOOKS[asked.book]
    parts: dict[str, Part] = {}
    with tempfile.TemporaryDirectory(prefix="proof-") as name, Launcher(preload=TRAINING_MODULES) as launcher:
        used = Rig(launcher, Path(name))
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
    outcomes = claim.run(used, effort)
    took = time.monotonic() - began
    for outcome in outcomes:
        print(f"  {WORDS[outcome.reached]:>9}  {outcome.claim}: {outcome.measured}", file=sys.stderr, flush=True)
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
        "commit": _commit(),
        "code": fingerprint(claim.rests_on),
        "machine": _machine(),
        "seconds": round(took, 1),
        "outcomes": [_as_json(outcome) for outcome in outcomes],
    }


def _as_json(outcome: Outcome) -> Part:
    # NumPy's comparisons give a bool of its own, which JSON refuses.
    reached = None if outcome.reached is None else bool(outcome.reached)
    return {"claim": outcome.claim, "target": outcome.target, "measured": outcome.measured, "reached": reached}


def _keep(book: Book, claim: str, part: Part) -> None:
    file = book.file.with_suffix(".json")
    kept = json.loads(file.read_bytes()) if file.exists() else {}
    kept[claim] = part
    ordered = {name: kept[name] for name in book.claims if name in kept}
    file.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    _write(book)


def _write(book: Book) -> None:
    """Write the page of a book from what is kept of it."""
    file = book.file.with_suffix(".json")
    if file.exists():
        book.file.with_suffix(".md").write_text(page(book, json.loads(file.read_bytes())), encoding="utf-8")


def is_current(book: Book, name: str, part: Part) -> bool:
    """Whether what the part rests on has not changed since it ran."""
    return part.get("code") == fingerprint(book.claims[name].rests_on)


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
        _how_current(book, parts),
    ]
    rows = [
        (name, part["date"], part["commit"], format_seconds(part["seconds"]), CODE[is_current(book, name, part)])
        for name, part in parts.items()
    ]
    headers = ["part", "date (UTC)", "commit", "took", "is of"]
    runs = tabulate(rows, headers, tablefmt="pipe", disable_numparse=True)
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


def _how_current(book: Book, parts: dict[str, Part]) -> str:
    """Such as `not current: 3 of 14 parts are of older code (rates, delays), 1 has not been tried (headline)`."""
    older = [name for name, part in parts.items() if not is_current(book, name, part)]
    missing = [name for name in book.claims if name not in parts]
    if not older and not missing:
        return "current: nothing that these lines rest on has changed since"
    said = [
        f"{len(names)} of {len(book.claims)} parts {what} ({', '.join(names)})"
        for names, what in ((older, "of older code"), (missing, "not tried yet"))
        if names
    ]
    return f"**not current**: {'; '.join(said)}"


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
