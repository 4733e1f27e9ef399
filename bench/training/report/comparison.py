"""Write the comparison of two training runs: Markdown for people, CSV and JSON for programs, JUnit for CI.

In: a `TrainingComparison`. Out: text. The Markdown begins with the verdict, as it does for runs of collectives.
Computes nothing but layout. `plots/comparison.py` draws the picture.
"""

import json
from collections.abc import Sequence

from bench.model.conclusions import Interval
from bench.model.records import Json
from bench.report import junit, markdown
from bench.report.comparison import csv_text, difference_rows, differing, headline, ratio_columns, verdict_table
from bench.training.conclusions import ExposedChange, StepChange, TrainingComparison, Unpaired
from bench.training.records import Scenario
from bench.training.report.labels import UNRESOLVED, bounds, cell, ends, names, scenario_text, seconds

# Titles of the lists of strategies that have a time in one run only.
LISTS = {
    "broken": "Measured before, refused or failed after",
    "only_before": "Only before",
    "only_after": "Only after",
}


def scenarios(changes: Sequence[StepChange]) -> list[tuple[Scenario, list[StepChange]]]:
    """The changes of each scenario, in the order of the plan."""
    found: dict[str, list[StepChange]] = {}
    for change in changes:
        found.setdefault(change.scenario.key, []).append(change)
    return [(some[0].scenario, some) for some in found.values()]


# ── for people ───────────────────────────────────────────────────────────────────────────────────
def document(result: TrainingComparison) -> str:
    """Verdict, two tables for each scenario, environment differences, strategies timed in one run only, warnings."""
    parts = [headline(result), f"## {result.before} → {result.after}"]
    for scenario, changes in scenarios(result.changes):
        parts += [f"### {scenario_text(scenario)}", "Time of a step:", _steps(changes)]
        if any(change.exposed for change in changes):
            parts += ["Exposed communication (a step less the same step without synchronisation):", _exposed(changes)]
    parts += differing(result.differences)
    for name, title in LISTS.items():
        unpaired: tuple[Unpaired, ...] = getattr(result, name)
        if unpaired:
            parts.append(f"{title}:\n\n{markdown.lines(_unpaired_text(one) for one in unpaired)}")
    if result.warnings:
        parts.append(f"Warnings:\n\n{markdown.lines(result.warnings)}")
    return "\n\n".join(parts)


def _steps(changes: Sequence[StepChange]) -> str:
    called = names([change.label for change in changes])
    return verdict_table("strategy", [cell(called[change.label]) for change in changes], changes)


def _exposed(changes: Sequence[StepChange]) -> str:
    called = names([change.label for change in changes])
    rows = [
        [
            cell(called[change.label]),
            seconds(change.exposed.before.value),
            seconds(change.exposed.after.value),
            _signed(change.exposed.difference.value),
            bounds(change.exposed.difference),
            _said(change.exposed),
        ]
        for change in changes
        if change.exposed
    ]
    headers = ["strategy", "before", "after", "after − before", "95 % interval", ""]
    return markdown.table(rows, headers, ["left", "right", "right", "right", "right", "left"])


def _signed(value: float) -> str:
    return seconds(value) if value <= 0 else f"+{seconds(value)}"


def _said(exposed: ExposedChange) -> str:
    if exposed.resolved:
        return "more" if exposed.difference.value > 0 else "less"
    return UNRESOLVED if exposed.difference.kind == "over launches" else f"{UNRESOLVED}, {exposed.difference.kind}"


def _unpaired_text(one: Unpaired) -> str:
    return f"{one.label} ({one.scenario.key}): {cell(one.reason)}"


# ── for programs ─────────────────────────────────────────────────────────────────────────────────
def to_csv(result: TrainingComparison) -> str:
    """One row for each strategy and scenario."""
    return csv_text(_rows(result))


def to_json(result: TrainingComparison) -> str:
    """The overall verdict, all strategies, environment differences, strategies timed in one run only, warnings."""
    whole = {
        "benchmark": "training",
        "before": result.before,
        "after": result.after,
        "verdict": result.verdict,
        "min_change": result.min_change,
        "cases": _rows(result),
        "differences": difference_rows(result.differences),
        **{name: [_unpaired_row(one) for one in getattr(result, name)] for name in LISTS},
        "warnings": result.warnings,
    }
    return json.dumps(whole, indent=1, ensure_ascii=False)


def to_junit(result: TrainingComparison) -> str:
    """One suite with a test case for each strategy and scenario."""
    cases = [(_class(change.scenario), _key(change), change.verdict, _sentence(change)) for change in result.changes]
    broken = [
        (_class(one.scenario), _key(one), f"measured before, refused or failed after: {one.reason}")
        for one in result.broken
    ]
    said = [headline(result), *result.warnings]
    return junit.of_verdicts(result.before, result.after, cases, broken, said, result.fail_on)


def _class(scenario: Scenario) -> str:
    return f"training.{scenario.backend}"


def _key(one: StepChange | Unpaired) -> str:
    return f"{one.scenario.key}/{one.label}"


def _sentence(change: StepChange) -> str:
    text = junit.change_sentence(change.before, change.after, change, change.note)
    if change.exposed is None:
        return text
    moved = change.exposed.difference
    return f"{text}; exposed communication {_said(change.exposed)}: {_signed(moved.value)} {bounds(moved)}"


def _unpaired_row(one: Unpaired) -> Json:
    return {"scenario": one.scenario.key, "strategy": one.label, "reason": one.reason}


def _rows(result: TrainingComparison) -> list[Json]:
    return [
        {
            "key": _key(change),
            "verdict": change.verdict,
            "scenario": change.scenario.key,
            "strategy": change.label,
            "before_s": change.before.value,
            "after_s": change.after.value,
            **ratio_columns(change.ratio),
            "p": change.p,
            "reason": change.reason,
            "further_launches": change.further_launches,
            **_exposed_columns(change.exposed),
            "note": change.note,
        }
        for change in result.changes
    ]


def _exposed_columns(exposed: ExposedChange | None) -> Json:
    if exposed is None:
        return dict.fromkeys((*EXPOSED, "exposed_resolved"))
    low, high = _ends(exposed.difference)
    values = (exposed.before.value, exposed.after.value, exposed.difference.value, low, high)
    return {**dict(zip(EXPOSED, values, strict=True)), "exposed_resolved": exposed.resolved}


EXPOSED = (
    "exposed_before_s",
    "exposed_after_s",
    "exposed_difference_s",
    "exposed_difference_low_s",
    "exposed_difference_high_s",
)


def _ends(interval: Interval) -> tuple[float | None, float | None]:
    return ends(interval) or (None, None)
