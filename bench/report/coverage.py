"""Show which operations ran with which dtypes and reduce ops on which backends: `report --format coverage`.

In: a `Run`. Out: Markdown with a table for each backend. A cell lists the reduce ops that were measured and verified.
The reasons why others were skipped or failed are numbered below the table; a cell has their numbers. No times.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bench.catalog.backends import BACKENDS
from bench.catalog.dtypes import DTYPES, REDUCE_OPS
from bench.catalog.operations import OPERATIONS
from bench.model.conclusions import Analysis
from bench.model.records import Case, Json, Run
from bench.model.units import format_bytes
from bench.report import markdown

# Text of a cell if the operation reduces nothing, and if all reduce ops that were asked for ran.
DONE, ALL = "✓", "all {}"
# Header of the column for operations that have no dtype.
NO_DTYPE = "no dtype"


@dataclass(slots=True)
class CaseOutcome:
    """Of one combination: the world sizes that ran, and why others did not (reason → whether it is a failure)."""

    ran: set[int] = field(default_factory=set)
    reasons: dict[str, bool] = field(default_factory=dict)


Cell = dict[str, CaseOutcome]  # by reduce op; "" where nothing is reduced
Table = dict[tuple[str, str], Cell]  # by operation and dtype


def document(run: Run, _: Analysis) -> str:
    """The whole page."""
    tables = _outcomes(run)
    parts = ["# What runs", _from(run), EXPLAINED]
    for backend in (name for name in BACKENDS if name in tables):
        parts += _backend(backend, tables[backend])
    return "\n\n".join(parts) + "\n"


EXPLAINED = (
    f"{DONE}: measured, and every element of the result verified. Operations that reduce list the reduce ops for which "
    "that is so. [1]: why not, below the table, where *operation*, *dtype* and *reduce op* stand for those of the cell."
)


def _from(run: Run) -> str:
    """The run, its software and its hardware: the page is true only for these."""
    session = run.environment[0] if run.environment else {}
    host: Json = session.get("host", {})
    sizes = sorted({case.size_bytes for case in run.plan.cases if case.size_bytes})
    sized = f", sizes {', '.join(map(format_bytes, sizes))}" if sizes else ""
    lines = [f"Made by `report --format coverage` from the run `{run.name}`{sized}."]
    if host:
        packages = host.get("packages", {})
        lines.append(
            f"torch {packages.get('torch')}, Python {host.get('python')}, CollBench {host.get('collbench')}; "
            f"{host.get('cpu', {}).get('usable_cores')} cores, {len(host.get('gpus', []))} GPUs."
        )
    failed = sum(1 for s in run.samples if s.failure is not None)
    lines.append(
        f"{len(run.samples) - failed} of {run.plan.total} measurements good, {failed} failed, {len(run.plan.skips)} "
        "combinations skipped."
    )
    return " ".join(lines)


# ── what became of each combination ──────────────────────────────────────────────────────────────
def _outcomes(run: Run) -> dict[str, Table]:
    tables: dict[str, Table] = {}
    done = {(s.case.key, s.launch) for s in run.samples}
    for samples in run.samples:
        outcome = _outcome(tables, samples.case)
        if samples.failure is None:
            outcome.ran.add(samples.case.world_size)
        else:
            outcome.reasons[f"{samples.failure.kind}: {' '.join(samples.failure.text.split())}"] = True
    for skip in run.plan.skips:
        _outcome(tables, skip.case).reasons.setdefault(_general(skip.reason, skip.case), False)
    for launch in run.plan.order:
        for case in launch.cases:
            if (case.key, launch.number) not in done:
                _outcome(tables, case).reasons.setdefault("planned, and not measured", True)
    return tables


def _outcome(tables: dict[str, Table], case: Case) -> CaseOutcome:
    operation = OPERATIONS[case.op]
    cell = tables.setdefault(case.backend, {}).setdefault((case.op, case.dtype if operation.typed else NO_DTYPE), {})
    return cell.setdefault(case.reduce_op if operation.reduces else "", CaseOutcome())


def _general(reason: str, case: Case) -> str:
    """The reason with placeholders for operation, dtype and reduce op, so that many cells can share it."""
    for word, general in ((case.op, "*operation*"), (case.dtype, "*dtype*"), (case.reduce_op, "*reduce op*")):
        reason = re.sub(rf"(?<![\w.]){re.escape(word)}(?![\w.])", general, reason)
    return reason


# ── layout ───────────────────────────────────────────────────────────────────────────────────────
def _backend(backend: str, table: Table) -> list[str]:
    outcomes = [outcome for cell in table.values() for outcome in cell.values()]
    worlds = sorted({n for outcome in outcomes for n in outcome.ran})
    reasons = {reason: None for outcome in outcomes for reason in outcome.reasons}
    if not worlds and len(reasons) == 1:
        return [f"## {backend}", f"Nothing was measured: {next(iter(reasons))}"]
    numbers = {reason: number for number, reason in enumerate(reasons, start=1)}
    ops = [name for name in OPERATIONS if any(op == name for op, _ in table)]
    columns: dict[tuple[str, ...], list[str]] = {}  # dtypes with equal cells share a column
    for dtype in (name for name in (*DTYPES, NO_DTYPE) if any(of == name for _, of in table)):
        cells = tuple(_text(table.get((op, dtype), {}), worlds, numbers) for op in ops)
        columns.setdefault(cells, []).append(dtype)
    rows = [[op, *row] for op, row in zip(ops, zip(*columns, strict=True), strict=True)]
    headers = ["", *(", ".join(dtypes) for dtypes in columns.values())]
    ranks = f"World sizes: {', '.join(map(str, worlds))}." if worlds else "Nothing was measured."
    failing = {reason for outcome in outcomes for reason, failed in outcome.reasons.items() if failed}
    notes = [f"{n}. {'**failed** ' if reason in failing else ''}{reason}" for reason, n in numbers.items()]
    return [f"## {backend}", ranks, markdown.table(rows, headers, ["left"] * len(headers)), "\n".join(notes)]


def _text(cell: Cell, worlds: Sequence[int], numbers: dict[str, int]) -> str:
    """Such as `sum max min`, `avg band [1, 3]`; reduce ops with the same outcome share their numbers."""
    ordered = sorted(cell, key=lambda name: list(REDUCE_OPS).index(name) if name else -1)
    alike: dict[tuple[str, str], list[str]] = {}
    for name in ordered:
        outcome = cell[name]
        few = set(outcome.ran) != set(worlds) and outcome.ran
        ranks = f"at {', '.join(map(str, sorted(outcome.ran)))} ranks" if few else ""
        marks = ", ".join(str(numbers[reason]) for reason in outcome.reasons)
        alike.setdefault(("ran " + ranks if outcome.ran else "", marks), []).append(name)
    parts = []
    for (ran, marks), names in alike.items():
        parts.append(" ".join(_words(names, len(cell), ran, marks)))
    return "; ".join(parts)


def _words(names: Sequence[str], asked: int, ran: str, marks: str) -> Iterable[str]:
    """Words for the reduce ops with one outcome. If none in the cell ran, only the numbers of the reasons."""
    whole = len(names) == asked
    if ran:
        yield DONE if names == [""] else ALL.format(asked) if whole and asked > 1 else " ".join(names)
        yield from filter(None, [ran.removeprefix("ran ")])
    elif not whole:
        yield " ".join(names)
    if marks:
        yield f"[{marks}]"
