"""Write whether a fleet is good enough, and which nodes are not.

In: a `GateVerdict` and the names of the nodes. Out: text. Computes nothing.
"""

from collections.abc import Sequence

from bench.model.comparisons import GateVerdict
from bench.report import markdown
from bench.report.tables import NOTHING

PASS = "PASS"  # noqa: S105 - a verdict
# Nodes that passed and were never suspected are only counted beyond so many.
SHOWN = 16
HEADERS = ["node", "verdict", "of the usual rate", "note"]


def document(verdict: GateVerdict, names: Sequence[str]) -> str:
    """The verdict, then a row for each node that did not simply pass."""
    odd = [one for one in verdict.nodes if one.verdict != PASS or one.note]
    shown = list(verdict.nodes) if len(verdict.nodes) <= SHOWN else odd
    rows = [
        [names[one.node], one.verdict, NOTHING if one.rate is None else f"{one.rate:.0%}", one.note] for one in shown
    ]
    failed = sum(one.verdict == "FAIL" for one in verdict.nodes)
    lines = [f"{verdict.verdict}: {failed or 'none'} of {len(verdict.nodes)} nodes named", ""]
    if rows:
        lines += [markdown.table(rows, HEADERS, ["left", "left", "right", "left"]), ""]
    if len(shown) < len(verdict.nodes):
        lines.append(f"and {len(verdict.nodes) - len(shown)} further nodes that passed")
    for group in verdict.groups:
        members = ", ".join(names[node] for node in group.nodes)
        lines.append(f"slow together, at {group.rate:.0%} of the rate of other groups of {len(group.nodes)}: {members}")
    return "\n".join([*lines, *(f"failed: {text}" for text in verdict.broken)]).rstrip()
