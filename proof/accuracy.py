"""Keep the findings of all proofs: accuracy.json has the newest run of each claim, accuracy.md shows them."""

import json
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from collbench.machine import host
from proof.claim import HOLDS, LIMIT, MISSED, Line
from proof.claims import CLAIMS, Claim

ROOT = Path(__file__).resolve().parents[1]
FILE, PAGE = ROOT / "proof/accuracy.json", ROOT / "proof/accuracy.md"
# One run of a claim, as JSON.
Record = dict[str, Any]
CURRENT, OLDER, UNKNOWN = "this code", "older code", "unknown code"
ABOUT = (
    "Written by `make prove`; do not edit. Each claim was held against something known: links, faults and changes that "
    "were made, series of known mean, or no change. A line holds if all of its 95 % interval is within the demand, and "
    "is MISSED if none of it is. Protocols were fixed before: `python -m proof --list`. `accuracy.json` has all lines."
)


def record(claim: Claim, trials: int, lines: Iterable[Line], seconds: float, date: str) -> Record:
    changed = _git("diff", "--quiet", "HEAD", "--", *claim.files).returncode
    return {
        "date": date,
        "commit": f"{_commit()}-dirty" if changed else _commit(),
        "machine": _machine(),
        "version": claim.version,
        "trials": trials,
        "seconds": seconds,
        "lines": [asdict(line) for line in lines],
    }


def keep(name: str, new: Record) -> None:
    """Put a run of a claim into the file, in place of the earlier one, and write the page."""
    runs = kept() | {name: new}
    ordered = {name: runs[name] for name in CLAIMS if name in runs}
    FILE.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    write()


def write() -> None:
    PAGE.write_text(page(CLAIMS, kept()), encoding="utf-8")


def kept() -> dict[str, Record]:
    return json.loads(FILE.read_bytes()) if FILE.exists() else {}


def summed(outcomes: Sequence[str]) -> str:
    """Return a summary such as `12 lines: 1 MISSED, 10 holds, 1 undecided`."""
    counts = ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in sorted(set(outcomes)))
    return f"{len(outcomes)} line{'' if len(outcomes) == 1 else 's'}{': ' if counts else ''}{counts}"


def standing(claim: Claim, run: Record, root: Path = ROOT) -> str:
    """Return whether a run is of this code, of older code, or of another version of the protocol.

    Changes that are not committed count. Without its commit, as in a shallow clone, nobody knows.
    """
    if run["version"] != claim.version:
        return f"protocol {run['version']}"
    status = _git("diff", "--quiet", run["commit"], "--", *claim.files, root=root).returncode
    return {0: CURRENT, 1: OLDER}.get(status, UNKNOWN)


def page(claims: Mapping[str, Claim], kept: Mapping[str, Record]) -> str:
    """Return the page: what does not hold, limits, and a line for each claim, by the code that was proved."""
    runs = {name: kept[name] for name in claims if name in kept}
    states = {name: standing(claims[name], run) for name, run in runs.items()}
    lines = [(name, line) for name, run in runs.items() for line in run["lines"]]
    rows = [
        (name, line["says"], line["demanded"], _figure(line), f"{line['outcome']} {_further(line)}".strip())
        for name, line in lines
        if line["outcome"] not in {HOLDS, LIMIT}
    ]
    rows.sort(key=lambda row: row[-1] != MISSED)
    limits: dict[tuple[str, str], list[Record]] = {}
    for name, line in lines:
        if line["outcome"] == LIMIT:
            limits.setdefault((name, line["limit"]), []).append(line)
    sections = [
        "# How accurate CollBench is",
        ABOUT,
        "## What does not hold",
        _table(rows, "claim", "line", "demanded", "measured", "outcome, trials to decide"),
        "## What the method cannot reach, and what to do",
        "\n".join(
            f"- **{name}**, {len(same)}: {same[0]['says']}: {_figure(same[0])}, not {same[0]['demanded']}: {reason}"
            for (name, reason), same in limits.items()
        ),
        "## Claims: lines that hold; the first line, figure and demand",
    ]
    for state in sorted(set(states.values()), key=lambda state: (state != CURRENT, state)):
        named = [name for name in runs if states[name] == state]
        outcomes = [line["outcome"] for name in named for line in runs[name]["lines"]]
        dates = sorted({runs[name]["date"].split()[0] for name in named})
        sections.append(f"Of {state}, {' to '.join(dict.fromkeys([dates[0], dates[-1]]))}, {summed(outcomes)}:")
        sections.append("\n".join(_entry(name, claims[name], runs[name]["lines"]) for name in named))
    if never := [name for name in claims if name not in runs]:
        sections.append(f"Never run: {', '.join(never)}.")
    return "\n\n".join(sections) + "\n"


def _entry(name: str, claim: Claim, lines: Sequence[Record]) -> str:
    """Return one line on a claim: how many of its lines hold, and the first of them if all do."""
    held = sum(line["outcome"] == HOLDS for line in lines)
    label = f"- **{name}**{' (weekly)' if claim.weekly else ''}: {held} of {len(lines)}"
    return f"{label}; {lines[0]['says']}: {_figure(lines[0])}, {lines[0]['demanded']}" if held == len(lines) else label


def _further(line: Record) -> str:
    """Return how many times as many trials would decide an undecided line, if its figure stayed as it is."""
    more = line.get("more")
    return "" if more is None else "≥ 100 ×" if more > 99 else f"{max(more, 1.1):.2g} ×"


def _figure(line: Record) -> str:
    """Return the measured figure without the notes after it; a rate without its count."""
    figure = str(line["measured"]).partition(";")[0]
    return re.sub(r"^(\d+) of (\d{3,}) \((.*)\)", r"\3 of \2", figure)


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
    return _git("rev-parse", "--short=12", "HEAD").stdout.strip() or "not available"


def _git(*words: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
