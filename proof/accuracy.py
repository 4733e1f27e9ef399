"""What all proofs found: accuracy.json keeps every run of every claim, accuracy.md shows the newest run of each."""

import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.machine import host
from proof.claim import Claim, Line
from proof.claims import CLAIMS
from proof.code import fingerprint

ROOT = Path(__file__).resolve().parents[1]
FILE, PAGE = ROOT / "proof/accuracy.json", ROOT / "proof/accuracy.md"
# One run of a claim, as JSON.
Record = dict[str, Any]
ABOUT = (
    "Written by `make prove`; do not edit. Each line was measured on links whose rate and delay are known, with "
    "faults and changes that were planted, on series whose mean is known, or where nothing changed. A rate holds if "
    "all of its 95 % interval (Clopper and Pearson) is within what is demanded, is MISSED if none of it is, and is "
    "else undecided; a ratio likewise by its interval. A demanded count is a count; its interval shows what so few "
    "trials can say. What each claim does is in `proof/`, and was fixed before it ran; a changed protocol is a new "
    "version, and what the old one found stays. The newest run of each claim stands here, and how often earlier runs "
    "held; `accuracy.json` keeps every line of all runs. Only quick proofs are not kept."
)


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
    newest = {name: kept[name][0] for name in claims if kept.get(name)}
    states = {name: standing(claims[name], found) for name, found in newest.items()}
    current = [name for name, state in states.items() if state == "this code"]
    outcomes = [line["outcome"] for name in current for line in newest[name]["lines"]]
    others = [f"{name} ({states.get(name, 'never run')})" for name in claims if name not in current]
    facts = [
        f"Of this code: {summed(outcomes)}.",
        f"**Not current**: {', '.join(others)}." if others else "All claims are current: what they rest on has not "
        "changed since they ran.",
    ]  # fmt: skip
    sections = [
        "# How accurate CollBench is",
        ABOUT,
        "\n".join(f"- {fact}" for fact in facts),
        *(part for name in claims for part in _of_claim(name, claims[name], kept.get(name, []))),
    ]
    return "\n\n".join(sections) + "\n"


def _of_claim(name: str, claim: Claim, runs: Sequence[Record]) -> list[str]:
    """Its protocol, its newest run, and the outcomes of the earlier ones."""
    facts = [f"- protocol {claim.version}: {claim.protocol} ({claim.trials} trials, about {claim.minutes:g} min)"]
    facts += [f"- protocol {version} was replaced because {why}" for version, why in claim.replaced.items()]
    if not runs:
        return [f"## {name}", "\n".join(facts), "Never run."]
    newest, *earlier = runs
    facts.append(
        f"- newest run: {newest['date']} UTC, commit {newest['commit']}, {newest['machine'].split(',')[0]}, "
        f"{newest.get('trials', '-')} trials, {standing(claim, newest)}"
    )
    for version in sorted({run["version"] for run in earlier}, reverse=True):
        of_version = [run for run in earlier if run["version"] == version]
        outcomes = [line["outcome"] for run in of_version for line in run["lines"]]
        plural = "" if len(of_version) == 1 else "s"
        facts.append(f"- {len(of_version)} earlier run{plural} by protocol {version}: {summed(outcomes)}")
    table = _table([_cells(line) for line in newest["lines"]], "line", "demanded", "measured", "outcome")
    return [f"## {name}", "\n".join(facts), table]


def _cells(line: Record) -> tuple[str, ...]:
    return line["says"], line["demanded"], line["measured"], line["outcome"]


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
