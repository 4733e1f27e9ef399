"""Keep the findings of all proofs: accuracy.json has every run of every claim, accuracy.md shows the newest runs."""

import functools
import itertools
import json
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from collbench.machine import host
from proof.claim import HOLDS, Claim, Line
from proof.claims import CLAIMS

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


def record(claim: Claim, trials: int, lines: Iterable[Line], seconds: float, date: str) -> Record:
    return {
        "date": date,
        "commit": _commit(),
        "code": claim.code(),
        "machine": _machine(),
        "version": claim.version,
        "trials": trials,
        "seconds": seconds,
        "lines": [asdict(line) for line in lines],
    }


def keep(name: str, new: Record) -> None:
    """Add a run of a claim to the file, and write the page."""
    runs = kept()
    runs[name] = [new, *runs.get(name, [])]
    ordered = {name: runs[name] for name in CLAIMS if name in runs}
    FILE.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    write()


def write() -> None:
    PAGE.write_text(page(CLAIMS, kept()), encoding="utf-8")


def kept() -> dict[str, list[Record]]:
    return json.loads(FILE.read_bytes()) if FILE.exists() else {}


def summed(outcomes: Sequence[str]) -> str:
    """Return a summary such as `12 lines: 10 holds, 1 MISSED, 1 undecided`."""
    counts = ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in dict.fromkeys(outcomes))
    return f"{len(outcomes)} line{'' if len(outcomes) == 1 else 's'}{': ' if counts else ''}{counts}"


def standing(claim: Claim, run: Record) -> str:
    """Return whether a run is of this code, of older code, or of another version of the protocol."""
    if run["version"] != claim.version:
        return f"protocol {run['version']}"
    return "this code" if run["code"] == claim.code() else "older code"


def page(claims: Mapping[str, Claim], kept: Mapping[str, Sequence[Record]]) -> str:
    """Return the page: lines that do not hold, lines that hold, and the claims with their history."""
    newest = {name: kept[name][0] for name in claims if kept.get(name)}
    states = {name: standing(claims[name], run) for name, run in newest.items()}
    facts = []
    for command, weekly in (("make prove", False), ("make prove-weekly", True)):
        listed = [name for name, claim in claims.items() if claim.weekly == weekly]
        current = [name for name in listed if states.get(name) == "this code"]
        outcomes = [line["outcome"] for name in current for line in newest[name]["lines"]]
        took = sum(newest[name]["seconds"] for name in current) / 60
        commits = sorted({newest[name]["commit"] for name in current})
        facts.append(
            f"`{command}`: {len(current)} of {len(listed)} claims are of this code ({took:.0f} min of claims, commit "
            f"{', '.join(commits) or 'none'}): {summed(outcomes)}."
        )
    marks = {name: "" if state == "this code" else f" ({state})" for name, state in states.items()}
    lines = [(name + marks[name], line) for name, run in newest.items() for line in run["lines"]]
    held = [(name, line["says"], _figure(line)) for name, line in lines if line["outcome"] == HOLDS]
    not_held = [
        (name, line["says"], line["demanded"], _figure(line), line["outcome"], str(line.get("limit", "")))
        for name, line in lines
        if line["outcome"] != HOLDS
    ]
    sections = [
        "# How accurate CollBench is",
        ABOUT,
        "\n".join(f"- {fact}" for fact in facts),
        "## What does not hold",
        _table(_named_once(not_held), "claim", "line", "demanded", "measured", "outcome", "limit, and what to do"),
        "## What holds",
        _table(_named_once(held), "claim", "line", "measured"),
        "## Claims",
        _table([_history(name, claims[name], kept.get(name, [])) for name in claims], *HISTORY),
    ]
    return "\n\n".join(sections) + "\n"


def _named_once(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the rows; a claim, the first words that its lines share, and a repeated reason are in one row only."""
    shortened: list[tuple[str, ...]] = []
    for name, group in itertools.groupby(rows, key=lambda row: row[0]):
        same = list(group)
        begin = _common_begin([row[1] for row in same])
        before: tuple[str, ...] = ("",) * len(same[0])
        for number, row in enumerate(same):
            title = f"… {row[1][begin:]}" if number and begin else row[1]
            reason = "as above" if row[-1] and row[-1] == before[-1] else row[-1]
            shortened.append(("" if number else name, title, *row[2:-1], reason))
            before = row
    return shortened


def _common_begin(lines: Sequence[str]) -> int:
    """Return the length of the words that all lines begin with; 0 if these are fewer than three words."""
    split = [line.split(" ") for line in lines]
    words = list(itertools.takewhile(lambda each: len(set(each)) == 1, zip(*split, strict=False)))
    return sum(len(each[0]) + 1 for each in words) if len(words) >= 3 else 0


def _figure(line: Record) -> str:
    """Return the measured figure without the notes after it; a rate without its count."""
    figure = str(line["measured"]).partition(";")[0]
    return re.sub(r"^(\d+) of (\d{3,}) \((.*)\)", r"\3 of \2", figure)


HISTORY = ("claim", "trials", "newest run", "code", "earlier runs")


def _history(name: str, claim: Claim, runs: Sequence[Record]) -> tuple[str, ...]:
    """Return one row: the newest run of a claim, and the outcomes of earlier runs by all protocols."""
    label = f"{name} (weekly)" if claim.weekly else name
    if not runs:
        return label, str(claim.trials), "never", "", ""
    newest, *earlier = runs
    outcomes = [line["outcome"] for run in earlier for line in run["lines"]]
    history = summed(outcomes) if outcomes else ""
    return label, str(newest.get("trials", "-")), newest["date"].split()[0], standing(claim, newest), history


def _table(rows: Sequence[Sequence[str]], *headers: str) -> str:
    lines = [headers, ["-"] * len(headers), *rows]  # without padding: cells are long
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def _machine() -> str:
    facts = host.facts()
    cpu = facts["cpu"]
    virtual = "a virtual machine, " if cpu["hypervisor"] == "yes" else ""
    versions = f"kernel {facts['kernel']}, Python {facts['python']}, torch {facts['packages']['torch']}"
    return f"{cpu['usable_cores']} cores of {cpu['model']}, {virtual}{versions}"


@functools.cache  # called before the first finding is kept, which changes the folder
def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "not available"
