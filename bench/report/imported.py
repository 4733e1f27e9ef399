"""Describe an imported run in words, for the terminal and for the head of its report.

In: a `Run` with the facts of its import. Out: text. Warnings about such numbers are made in `analyze.warnings`.
"""

from collections.abc import Sequence

from bench.model.conclusions import Summary
from bench.model.records import Json, Run
from bench.report.labels import metric_name


def in_short(facts: Json, rows: int, cases: int, launches: int, numbers: int) -> str:
    """What was read, in one line."""
    files = ", ".join(file["name"] for file in facts["files"])
    counted = f"{_count(rows, 'row')} → {_count(numbers, 'result')} of {_count(cases, 'case')}"
    return f"imported {files} ({', '.join(facts['tool'])}): {counted} in {_count(launches, 'launch')}"


def head(run: Run) -> list[str]:
    """Lines for the head of the report: the tool, its files, hosts, devices and NCCL version."""
    facts = run.imported or {}
    files = ", ".join(f"{file.get('name')} (sha256 {str(file.get('sha256'))[:12]})" for file in facts.get("files", []))
    lines = [f"**From**: {', '.join(facts.get('tool', []))}, imported; {files}"]
    told: Json = run.environment[0].get("imported", {}) if run.environment else {}
    where = [", ".join(told.get("hosts", [])), str(told.get("devices", ""))]
    if any(where):
        lines.append(f"**On** (as the file says): {': '.join(filter(None, where))}")
    if told.get("nccl"):
        lines.append(f"**With** (as the file says): NCCL {told['nccl']}")
    return lines


def data(summaries: Sequence[Summary]) -> str:
    """Whether the results were verified, and how many were wrong."""
    wrong = sum(1 for s in summaries for failure in s.failures if failure.kind == "wrong")
    if wrong:
        return f"{_count(wrong, 'result')} WRONG by the tool's own check; no number is printed for them"
    return "not verified by CollBench; what the tool checked itself is said below"


def method_line(run: Run, summaries: Sequence[Summary]) -> str:
    """One line that says how the numbers were measured; terminal output and report both show it."""
    facts = run.imported or {}
    metrics = " and ".join(dict.fromkeys(metric_name(s.case) for s in summaries))
    several = run.plan.launches > 1
    launches = f"geometric mean over {run.plan.launches} launches" if several else "one launch, so no intervals"
    return (
        f"How measured: not by CollBench, but by {', '.join(facts.get('tool', []))} · {metrics} · "
        f"{' / '.join(facts.get('statistic', []))} · {launches} · size is the total in bytes, GB = 10⁹ bytes"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 'es' if noun.endswith('ch') else 's'}"
