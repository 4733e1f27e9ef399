"""Write whether the nodes of a job are good enough."""

from collections import Counter
from collections.abc import Sequence

from collbench.model.records import Json
from collbench.model.units import first_few, format_share
from collbench.packages.gate.conclusions import CheckVerdict, GateVerdict, NodeCheck
from collbench.report import openmetrics
from collbench.report.blocks import Blocks, Column, left, table
from collbench.report.labels import BY_RULE, with_interval
from collbench.report.notices import sentence, sentences
from collbench.report.rows import row

# Most nodes that are listed; in a larger fleet, nodes that passed are only counted.
SHOWN_NODES = 16
# Most nodes of a group that are named.
NAMED_NODES = 4


def gate_document(verdict: GateVerdict, names: Sequence[str]) -> Blocks:
    """Return the verdict on a fleet, then a row per node; in a large fleet, only nodes that failed or have a note.

    names: names of the nodes.
    """
    odd = [check for check in verdict.nodes if check.verdict != CheckVerdict.PASS or check.note]
    listed = list(verdict.nodes) if len(verdict.nodes) <= SHOWN_NODES else odd
    columns: list[Column[NodeCheck]] = [
        left("node", lambda check: names[check.node]),
        left("verdict", lambda check: check.verdict),
        Column("of the usual rate", lambda check: with_interval(check.rate, format_share)),
        left("note", lambda check: sentence(check.note) if check.note else ""),
    ]
    counts = Counter(check.verdict for check in verdict.nodes)
    counted = ", ".join(f"{count} {word}" for word, count in counts.items())
    failed = [names[check.node] for check in verdict.nodes if check.verdict == CheckVerdict.FAIL]
    named = f"{first_few(failed, SHOWN_NODES)}; " if failed else ""
    further = len(verdict.nodes) - len(listed)
    remarks = [f"and {further} further nodes that passed"] * bool(further)
    if verdict.path is not None:
        groups = [first_few([names[node] for node in group], NAMED_NODES) for group in verdict.path.groups]
        rate = format_share(verdict.path.rate)
        remarks.append(f"a slow path, no slow node: pairs across {' | '.join(groups)} reach {rate} of the rate within")
    remarks += [*sentences(verdict.remarks), *(f"failed: {text}" for text in sentences(verdict.broken))]
    headline = f"{verdict.verdict}: {named}of {len(verdict.nodes)} nodes {counted}"
    headline += f"; virtual GPUs: times {BY_RULE}" if verdict.virtual else ""
    return [headline, *table(listed, columns), *(["\n".join(remarks)] if remarks else [])]


def as_json(verdict: GateVerdict, names: Sequence[str]) -> Json:
    """Return the verdict, for programs."""
    nodes = [row(check) | {"host": names[check.node]} for check in verdict.nodes]
    return row(verdict) | {"nodes": nodes}


def metrics(verdict: GateVerdict, names: Sequence[str]) -> str:
    """Return the verdict and the known rates of the nodes as OpenMetrics."""
    node_verdicts = [({"node": names[check.node]}, check.verdict) for check in verdict.nodes]
    rates = [({"node": names[check.node]}, check.rate.value) for check in verdict.nodes if check.rate]
    words = [*CheckVerdict]  # 0 is good, 1 is bad
    lines = [
        *openmetrics.verdicts("collbench_verdict", [({"of": "gate"}, verdict.verdict)], words, "Verdict of the fleet"),
        *openmetrics.verdicts("collbench_node_verdict", node_verdicts, words, "Verdict of a node"),
        *openmetrics.gauge("collbench_node_rate", rates, "Rate of a node, as a share of the usual or required rate."),
    ]
    return "\n".join([*lines, openmetrics.END, ""])
