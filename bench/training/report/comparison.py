"""Write the comparison of two training runs: Markdown for people, CSV and JSON for programs, JUnit for CI.

In: a `TrainingComparison`. Out: text. The Markdown begins with the verdict, as it does for runs of collectives.
Computes nothing but layout. `plots/steps.py` draws the picture.
"""

import json
from collections.abc import Sequence

from bench.model.conclusions import ExposedChange, StepChange, TrainingComparison, Unpaired
from bench.model.records import Json, Scenario
from bench.report import machine_format, markdown
from bench.report.comparison import differing, headline, verdict_table
from bench.report.machine_format import csv_text, difference_rows, ratio_columns
from bench.report.training_labels import UNRESOLVED, bounds, cell, ends, scenario_text, seconds, short_names

# Titles of the lists of strategies that have a time in one run only.
LISTS = {
    "broken": "Measured before, refused or failed after",
    "only_before": "Only before",
    "only_after": "Only after",
}


def scenarios(changes: Sequence[StepChange]) -> list[tuple[Scenario, list[StepChange]]]:
    """The changes of each scenario, in the order of the plan."""
    by_key: dict[str, list[StepChange]] = {}
    for change in changes:
        by_key.setdefault(change.scenario.key, []).append(change)
    return [(members[0].scenario, members) for members in by_key.values()]


# ── for people ───────────────────────────────────────────────────────────────────────────────────
def document(result: TrainingComparison) -> str:
    """Verdict, two tables for each scenario, environment differences, strategies timed in one run only, warnings."""
    parts = [headline(result), f"## {result.before} → {result.after}"]
    for scenario, changes in scenarios(result.changes):
        names = {label: cell(name) for label, name in short_names(change.label for change in changes).items()}
        parts += [f"### {scenario_text(scenario)}", "Time of a step:"]
        parts.append(verdict_table("strategy", [names[change.label] for change in changes], changes))
        rows = [
            [
                names[change.label],
                seconds(change.exposed.before.value),
                seconds(change.exposed.after.value),
                _signed(change.exposed.difference.value),
                bounds(change.exposed.difference),
                _direction(change.exposed),
            ]
            for change in changes
            if change.exposed
        ]
        if rows:
            headers = ["strategy", "before", "after", "after − before", "95 % interval", ""]
            parts.append("Exposed communication (a step less the same step without synchronisation):")
            parts.append(markdown.table(rows, headers, ["left", *["right"] * 4, "left"]))
    parts += differing(result.differences)
    for name, title in LISTS.items():
        unpaired: tuple[Unpaired, ...] = getattr(result, name)
        lines = [f"{strategy.label} ({strategy.scenario.key}): {cell(strategy.reason)}" for strategy in unpaired]
        parts += [f"{title}:\n\n{markdown.lines(lines)}"] if lines else []
    if result.warnings:
        parts.append(f"Warnings:\n\n{markdown.lines(result.warnings)}")
    return "\n\n".join(parts)


def _signed(value: float) -> str:
    return seconds(value) if value <= 0 else f"+{seconds(value)}"


def _direction(exposed: ExposedChange) -> str:
    """`more` or `less`; why not, where that is not resolved."""
    if exposed.resolved:
        return "more" if exposed.difference.value > 0 else "less"
    return UNRESOLVED if exposed.difference.kind == "over launches" else f"{UNRESOLVED}, {exposed.difference.kind}"


# ── for programs ─────────────────────────────────────────────────────────────────────────────────
def to_csv(result: TrainingComparison) -> str:
    """One row for each strategy and scenario."""
    return csv_text([_row(change) for change in result.changes])


def to_json(result: TrainingComparison) -> str:
    """The overall verdict, all strategies, environment differences, strategies timed in one run only, warnings."""
    whole = {
        "benchmark": "training",
        "before": result.before,
        "after": result.after,
        "verdict": result.verdict,
        "min_change": result.min_change,
        "cases": [_row(change) for change in result.changes],
        "differences": difference_rows(result.differences),
        **{
            name: [
                {"scenario": unpaired.scenario.key, "strategy": unpaired.label, "reason": unpaired.reason}
                for unpaired in getattr(result, name)
            ]
            for name in LISTS
        },
        "warnings": result.warnings,
    }
    return json.dumps(whole, indent=1, ensure_ascii=False)


def to_junit(result: TrainingComparison) -> str:
    """One suite with a test case for each strategy and scenario."""
    cases = []
    for change in result.changes:
        sentence = machine_format.change_sentence(change.before, change.after, change, change.note)
        if change.exposed is not None:
            moved = change.exposed.difference
            sentence += f"; exposed communication {_direction(change.exposed)}: {_signed(moved.value)} {bounds(moved)}"
        cases.append((_class(change), _key(change), change.verdict, sentence))
    broken = [
        (_class(unpaired), _key(unpaired), f"measured before, refused or failed after: {unpaired.reason}")
        for unpaired in result.broken
    ]
    output = [headline(result), *result.warnings]
    return machine_format.junit(result.before, result.after, cases, broken, output, result.fail_on)


def _class(strategy: StepChange | Unpaired) -> str:
    return f"training.{strategy.scenario.backend}"


def _key(strategy: StepChange | Unpaired) -> str:
    return f"{strategy.scenario.key}/{strategy.label}"


def _row(change: StepChange) -> Json:
    exposed, difference = change.exposed, change.exposed.difference if change.exposed else None
    low, high = ends(difference) or (None, None)
    return {
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
        "exposed_before_s": exposed.before.value if exposed else None,
        "exposed_after_s": exposed.after.value if exposed else None,
        "exposed_difference_s": difference.value if difference else None,
        "exposed_difference_low_s": low,
        "exposed_difference_high_s": high,
        "exposed_resolved": exposed.resolved if exposed else None,
        "note": change.note,
    }
