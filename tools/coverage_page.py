"""Print docs/develop/coverage.md: which operations ran with which dtypes and reduce ops on which backends.

usage: python -m tools.coverage_page RUN > docs/develop/coverage.md     (`make coverage` calls it)

In: a run of configs/everything.yaml. Out: Markdown with a table for each backend. A cell lists the reduce ops that
were measured and verified; reasons of skips and failures are numbered, and listed below the table. No times.
"""

import sys
from dataclasses import replace
from pathlib import Path

from collbench.catalog.backends import BACKENDS
from collbench.catalog.collectives import OPERATIONS
from collbench.catalog.dtypes import DTYPES, REDUCE_OPS
from collbench.model.notices import Value
from collbench.model.records import Case, Run
from collbench.model.units import format_bytes
from collbench.report import markdown
from collbench.report.blocks import Heading, left, table
from collbench.report.notices import sentence
from collbench.store import folders

# Text of a verified cell whose operation has no reduce op; header of the column for operations without a dtype.
DONE, NO_DTYPE = "✓", "no dtype"
EXPLAINED = (
    f"{DONE}: measured, and every element of the result verified. Operations that reduce list the reduce ops for which "
    "that is so. [1]: why not, below the table, where *operation*, *dtype* and *reduce op* mean the values of the cell."
)
# (operation, dtype) → reduce op ("" if the operation has none) → why it was not measured; "" if it was measured.
Table = dict[tuple[str, str], dict[str, str]]


def page(run: Run) -> str:
    """Return the page of a run."""
    tables: dict[str, Table] = {}

    def note(case: Case, reason: str) -> None:
        operation = OPERATIONS[case.op]
        cell = tables.setdefault(case.backend, {}).setdefault(
            (case.op, case.dtype if operation.typed else NO_DTYPE), {}
        )
        cell[case.reduce_op if operation.reduces else ""] = reason

    for case in run.plan.cases:
        note(case, "**failed** planned, and not measured")
    for samples in run.samples:
        failure = samples.failure
        note(samples.case, f"**failed** {failure.kind}: {' '.join(failure.text.split())}" if failure else "")
    for skip in run.plan.skips:
        reason, case = skip.reason, skip.case
        # With placeholders in place of names, many cells can share a reason.
        general: dict[Value, Value] = {case.op: "*operation*", case.dtype: "*dtype*", case.reduce_op: "*reduce op*"}
        values = {name: general.get(value, value) for name, value in reason.values.items()}
        note(case, sentence(replace(reason, values=values)))
    parts = [f"# What runs\n\n{origin(run)}\n\n{EXPLAINED}"]
    parts += [backend_section(name, tables[name]) for name in BACKENDS if name in tables]
    return "\n\n".join(parts)


def origin(run: Run) -> str:
    """Return a text on the run, its software and its hardware: the page is valid only for these."""
    sizes = sorted({case.size_bytes for case in run.plan.cases if case.size_bytes})
    host = run.environment[0]["host"]
    failed = sum(1 for samples in run.samples if samples.failure is not None)
    return (
        f"Made by `make coverage` from the run `{run.name}`, sizes {', '.join(map(format_bytes, sizes))}. "
        f"torch {host['packages'].get('torch')}, Python {host['python']}, CollBench {host['collbench']}; "
        f"{host['cpu']['usable_cores']} cores, {len(host['gpus'])} GPUs. {len(run.samples) - failed} of "
        f"{run.plan.total} measurements good, {failed} failed, {len(run.plan.skips)} combinations skipped."
    )


def backend_section(backend: str, cases: Table) -> str:
    """Return the table of a backend: a row for each operation, a column for each group of dtypes with equal cells."""
    reasons = list(dict.fromkeys(reason for cell in cases.values() for reason in cell.values() if reason))
    if len(reasons) == 1 and not any("" in cell.values() for cell in cases.values()):
        return f"## {backend}\n\nNothing was measured: {reasons[0]}"
    operations = [name for name in OPERATIONS if any(op == name for op, _ in cases)]
    columns: dict[tuple[str, ...], list[str]] = {}
    for dtype in (name for name in (*DTYPES, NO_DTYPE) if any(typed == name for _, typed in cases)):
        cells = tuple(cell_text(cases.get((op, dtype), {}), reasons) for op in operations)
        columns.setdefault(cells, []).append(dtype)
    shown = [left("", operations.__getitem__)]
    shown += [left(", ".join(dtypes), cells.__getitem__) for cells, dtypes in columns.items()]
    notes = "\n".join(f"{number}. {reason}" for number, reason in enumerate(reasons, start=1))
    return markdown.written([Heading(backend), *table(range(len(operations)), shown), notes]).rstrip("\n")


def cell_text(cell: dict[str, str], reasons: list[str]) -> str:
    """Return a text such as `sum max min; avg band [1]`; reduce ops with the same outcome are together."""
    by_reason: dict[str, list[str]] = {}
    for reduce_op in sorted(cell, key=["", *REDUCE_OPS].index):
        by_reason.setdefault(cell[reduce_op], []).append(reduce_op)
    parts = []
    for reason, names in by_reason.items():
        number = f"[{reasons.index(reason) + 1}]" if reason else ""
        named = DONE if names == [""] and not reason else " ".join(names) if not reason or len(by_reason) > 1 else ""
        parts.append(f"{named} {number}".strip())
    return "; ".join(parts)


if __name__ == "__main__":
    sys.stdout.write(page(folders.read(folders.find(Path("results"), sys.argv[1]))) + "\n")
