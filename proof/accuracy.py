"""What all proofs found: accuracy.json keeps every run of every claim, accuracy.md shows the newest run of each."""

import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.machine import host
from proof.claim import HOLDS, MISSED, NOT_TRIED, UNDECIDED, Claim, Line
from proof.claims import CLAIMS
from proof.code import fingerprint

ROOT = Path(__file__).resolve().parents[1]
FILE, PAGE = ROOT / "proof/accuracy.json", ROOT / "proof/accuracy.md"
# One run of a claim, as JSON.
Record = dict[str, Any]
ABOUT = (
    "Written by `make prove`; do not edit. Lines were measured on links, faults and changes that are known because "
    "they were made, on series whose mean is known, or where nothing changed. A line holds if all of its 95 % interval "
    "(Clopper and Pearson, or of a ratio) is within the demand; it is MISSED if none of it is, and undecided "
    "otherwise; *limit* marks a demand that the method cannot reach. Protocols were fixed before they ran: "
    "`python -m proof --list` prints them. `accuracy.json` keeps every line of all runs."
)
# Outcome of a line that does not hold → what the page says where no limit is declared.
REASONS = {
    UNDECIDED: "crosses the bound",
    MISSED: "open",
    NOT_TRIED: "",
}


def record(claim: Claim, trials: int, lines: Iterable[Line], seconds: float, date: str) -> Record:
    return {
        "date": date,
        "commit": _commit(),
        "code": fingerprint(claim.rests_on),
        "machine": _machine(),
        "version": claim.version,
        "trials": trials,
        "seconds": seconds,
        "lines": [asdict(line) for line in lines],
    }


def keep(name: str, new: Record) -> None:
    """Add a run of a claim, and write the page."""
    found = kept()
    found[name] = [new, *found.get(name, [])]
    ordered = {name: found[name] for name in CLAIMS if name in found}
    FILE.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    write()


def write() -> None:
    PAGE.write_text(page(CLAIMS, kept()), encoding="utf-8")


def kept() -> dict[str, list[Record]]:
    return json.loads(FILE.read_bytes()) if FILE.exists() else {}


def summed(outcomes: Sequence[str]) -> str:
    """Such as `12 lines: 10 holds, 1 MISSED, 1 undecided`."""
    counts = ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in dict.fromkeys(outcomes))
    return f"{len(outcomes)} line{'' if len(outcomes) == 1 else 's'}{': ' if counts else ''}{counts}"


def standing(claim: Claim, found: Record) -> str:
    """Of which protocol and code a run is."""
    if found["version"] != claim.version:
        return f"protocol {found['version']}"
    return "this code" if found["code"] == fingerprint(claim.rests_on) else "older code"


def page(claims: Mapping[str, Claim], kept: Mapping[str, Sequence[Record]]) -> str:
    """The lines that hold, those that do not, and the claims with their history."""
    newest = {name: kept[name][0] for name in claims if kept.get(name)}
    states = {name: standing(claims[name], found) for name, found in newest.items()}
    current = [name for name, state in states.items() if state == "this code"]
    outcomes = [line["outcome"] for name in current for line in newest[name]["lines"]]
    others = [f"{name} ({states.get(name, 'never run')})" for name in claims if name not in current]
    facts = [
        f"Of this code: {summed(outcomes)}.",
        f"**Not current**: {len(others)} of {len(claims)} claims; the last table says which."
        if others
        else "All claims are of this code.",
    ]
    marks = {name: "" if state == "this code" else f" ({state})" for name, state in states.items()}
    lines = [(name + marks[name], line) for name, found in newest.items() for line in found["lines"]]
    held = [(name, line["says"], _figure(line)) for name, line in lines if line["outcome"] == HOLDS]
    rest = [
        (name, line["says"], line["demanded"], _figure(line), line["outcome"], _reason(line))
        for name, line in lines
        if line["outcome"] != HOLDS
    ]
    sections = [
        "# How accurate CollBench is",
        ABOUT,
        "\n".join(f"- {fact}" for fact in facts),
        "## What does not hold",
        _table(_named_once(rest), "claim", "line", "demanded", "measured", "outcome", "why, and what to do"),
        "## What holds",
        _table(_named_once(held), "claim", "line", "measured"),
        "## Claims",
        _table([_history(name, claims[name], kept.get(name, [])) for name in claims], *HISTORY),
    ]
    return "\n\n".join(sections) + "\n"


def _named_once(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The rows, each claim named in its first one only."""
    named = ["", *(row[0] for row in rows)]
    return [("" if row[0] == before else row[0], *row[1:]) for before, row in zip(named, rows, strict=False)]


def _figure(line: Record) -> str:
    """The measured figure without what stands beside it."""
    return str(line["measured"]).partition(";")[0]


def _reason(line: Record) -> str:
    return str(line.get("limit") or REASONS[line["outcome"]])


HISTORY = ("claim", "trials", "newest run", "code", "earlier runs")


def _history(name: str, claim: Claim, runs: Sequence[Record]) -> tuple[str, ...]:
    """One row: the newest run of a claim, and the outcomes of the earlier ones by all protocols."""
    if not runs:
        return name, str(claim.trials), "never", "", ""
    newest, *earlier = runs
    outcomes = [line["outcome"] for run in earlier for line in run["lines"]]
    history = summed(outcomes) if outcomes else ""
    return name, str(newest.get("trials", "-")), newest["date"].split()[0], standing(claim, newest), history


def _table(rows: Sequence[Sequence[str]], *headers: str) -> str:
    lines = [headers, ["-"] * len(headers), *rows]  # without padding: cells are long
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def _machine() -> str:
    facts = host.facts()
    cpu = facts["cpu"]
    virtual = "a virtual machine, " if cpu["hypervisor"] == "yes" else ""
    versions = f"kernel {facts['kernel']}, Python {facts['python']}, torch {facts['packages']['torch']}"
    return f"{cpu['usable_cores']} cores of {cpu['model']}, {virtual}{versions}"


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "not available"
