"""Write the conclusions of the gate: whether nodes are good enough, and whether a run reaches what a table expects."""

from collections import Counter
from collections.abc import Collection, Sequence

from collbench.config import names as configurations
from collbench.model.records import Json
from collbench.model.units import first_few, format_rate, format_ratio, format_share
from collbench.packages.gate.conclusions import Check, CheckedTable, CheckVerdict, GateVerdict, NodeCheck
from collbench.report import listings, openmetrics
from collbench.report.blocks import Blocks, Column, left, table
from collbench.report.junit import JUnitSuite, class_of
from collbench.report.labels import BY_RULE, interval_text, known, label, optional, with_interval
from collbench.report.machine_format import csv_text, json_text
from collbench.report.notices import sentence, sentences
from collbench.report.rows import cells, row

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


# ── a run against a table ────────────────────────────────────────────────────────────────────────
# The worst first.
VERDICTS = (CheckVerdict.FAIL, CheckVerdict.MISSING, CheckVerdict.INCONCLUSIVE, CheckVerdict.PASS)


def checks_document(result: CheckedTable, run: str) -> Blocks:
    """Return the verdict, then one row for each line of the table of expectations."""
    checks = result.checks
    counts = Counter(check.verdict for check in checks)
    counted = ", ".join(f"{counts[verdict]} {verdict.lower()}" for verdict in VERDICTS if counts[verdict])
    blocks: Blocks = [f"{result.verdict}: {run}, {len(checks)} expected: {counted}; {sentence(result.reason)}"]
    if result.index is not None and len(checks) > 1:
        blocks.append(f"The table as a whole: measured / least allowed {with_interval(result.index, format_ratio)}")
    sources = [source for source in dict.fromkeys(check.source for check in checks) if source]
    return [*blocks, *table(checks, CHECKS), *([f"Expected by {'; '.join(sources)}"] if sources else [])]


CHECKS: list[Column[Check]] = [
    left("case", lambda check: label(check.case)),
    left("verdict", lambda check: check.verdict),
    Column("expected GB/s", lambda check: format_rate(check.expected)),
    Column("tolerance", lambda check: f"{check.tolerance * 100:g} %"),
    Column("busbw GB/s", lambda check: optional(check.measured, lambda busbw: format_rate(busbw.value))),
    Column("95 % interval", lambda check: interval_text(check.measured, format_rate)),
    left("note", lambda check: sentence(check.note) if check.note else ""),
]


def checks_csv(checks: Sequence[Check]) -> str:
    """Return CSV with one row for each line of the table of expectations."""
    return csv_text([cells(check) for check in checks])


def checks_json(result: CheckedTable, run: str) -> str:
    """Return JSON with the verdict on the table, and one entry for each of its lines."""
    return json_text({"run": run, **row(result)})


def checks_junit(result: CheckedTable, run: str, failing: Collection[str]) -> str:
    """Return one suite with a test case per line of the table of expectations. failing: verdicts that are failures.

    An undecided line is not a failure if the table as a whole passes.
    """
    failing = failing if result.verdict in failing else ()
    suite = JUnitSuite(run)
    for check in result.checks:
        busbw = "not measured"
        if check.measured:
            interval = known((" {}", check.measured.known and interval_text(check.measured, format_rate)))
            busbw = f"{format_rate(check.measured.value)} GB/s{''.join(interval)}"
        wanted = f"{format_rate(check.expected)} GB/s less {check.tolerance * 100:g} %"
        text = f"{check.verdict}: busbw {busbw}, expected {wanted}"
        text += f"; {sentence(check.note)}" if check.note else ""
        kind = "" if check.verdict == CheckVerdict.PASS else "skipped"
        if check.verdict != CheckVerdict.PASS and check.verdict in failing:
            kind = "error" if check.verdict == CheckVerdict.MISSING else "failure"
        suite.add(class_of(check.case), check.case.key, kind, text, check.verdict)
    return suite.text()


def published() -> Blocks:
    """Return the published tables of expected bandwidths."""
    files = configurations.files(configurations.EXPECTED)
    return listings.configs([*files], "check NAME judges a run by one")
