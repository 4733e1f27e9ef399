"""Write the predicted and the measured times of bucket plans side by side, as Markdown.

In: `Verified` plans. Out: text. Judges nothing itself.
"""

from collections.abc import Sequence

from bench.model.units import format_seconds
from bench.report import markdown
from bench.report.labels import NOTHING
from bench.training.conclusions import ScenarioAnalysis
from bench.training.report.labels import scenario_text
from bench.training.verification import OFF_S, OFF_SHARE, Verified

HOLDS = {True: "yes", False: "NO", None: "not measured"}


def document(verified: Sequence[Verified], comparison: ScenarioAnalysis) -> str:
    """A heading, the table, when a prediction holds, which plan was best, and the refused plans."""
    rows = [_row(one) for one in verified]
    headers = ["plan", "predicted", "tail", "holds", "exposed in all", "its 95 % interval"]
    table = markdown.table(rows, headers, ["left", *["right"] * 5])
    said = [
        f"Measured on {scenario_text(comparison.scenario)}: {comparison.rounds} rounds. A prediction holds if the "
        f"tail, of the rank that comes last in a step, is off by {format_seconds(OFF_S)} or {OFF_SHARE:.0%} at most. "
        "Where a model computes, backward is taken to last longer by what copying and sending cost it here.",
        _order(verified),
    ]
    refused = [f"- {one.name}: {one.result.refused}" for one in verified if one.result and one.result.refused]
    return "\n\n".join(["## Predicted and measured", table, *said, *(["\n".join(refused)] if refused else [])])


def _row(one: Verified) -> list[str]:
    result = one.result
    if result is None or one.tail_s is None or result.exposed is None:
        return [one.name, format_seconds(one.predicted_s), NOTHING, HOLDS[None], NOTHING, NOTHING]
    exposed = result.exposed
    return [
        one.name,
        format_seconds(one.predicted_s),
        format_seconds(one.tail_s),
        HOLDS[one.holds],
        format_seconds(exposed.value),
        f"[{format_seconds(exposed.low)} – {format_seconds(exposed.high)}]",
    ]


def _order(verified: Sequence[Verified]) -> str:
    """Which plan exposed least, and whether that was predicted."""
    there = [(one.result.exposed, one) for one in verified if one.result and one.result.exposed]
    if len(there) < 2:
        return "Too little could be measured to tell which is the best."
    (least, first), (next_, second) = sorted(there, key=lambda pair: pair[0].value)[:2]
    said = f"{first.name} exposed least"
    if least.high >= next_.low:
        return f"{said}; that it is better than {second.name} is not resolved."
    best = min(one.predicted_s for _, one in there)
    return f"{said}, {'as' if first.predicted_s <= best else 'against what was'} predicted."
