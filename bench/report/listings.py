"""Write plans, and all that `list` lists, for a terminal.

In: a `Plan`, a `CallList`, manifests, the tables of operations, backends and presets. Out: blocks. Loads no pandas, so
that `plan` and `list` answer quickly.
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from bench.catalog.backends import BACKENDS, Backend, unsupported_by_backend, unsupported_operation
from bench.catalog.collectives import OPERATIONS, PLACES
from bench.catalog.operation import Operation
from bench.catalog.variables import AT_START, TUNING
from bench.model.facts import Manifest
from bench.model.projection import KINDS, grouped
from bench.model.records import Case, Json, Machine, Plan
from bench.model.units import first_few, format_bytes, format_rate, format_rounded_bytes, format_seconds, format_share
from bench.planning.footprint import bounded, buffer_bytes
from bench.planning.plan import estimate_s
from bench.report import labels, tables, wording
from bench.report.blocks import Blocks, Column, keyed, left, table
from bench.report.labels import NOTHING, counted, ranks_text, variety
from bench.report.parts import parts

# Bus factor at 4 ranks → its formula.
FACTORS = {1.0: "1", 0.75: "(n-1)/n", 1.5: "2(n-1)/n"}
# Reasons for skipping cases that a reader will still read.
MOST_REASONS = 12


# ── plans ────────────────────────────────────────────────────────────────────────────────────────
def plan(plan: Plan, machine: Machine) -> Blocks:
    """What a run would do: cases, memory, skips, and how long it takes."""
    s = plan.settings.sampling
    count = (
        f"{s.iterations} iterations each"
        if s.iterations
        else " or ".join(
            [
                *([f"until ±{format_share(s.relative_error)}"] if s.relative_error is not None else []),
                f"{format_seconds(s.seconds_per_case)} each",
                f"{s.max_iterations} iterations",
            ]
        )
    )
    calls = [case for case in plan.cases if OPERATIONS[case.op].rank is None]
    of_packages = [part.planned(plan, machine) for part in parts()]
    scenes = [block for text in of_packages for block in text.scenes]
    if not plan.cases:
        return ["nothing can be measured here", *_skipped(plan)]
    shown = [*_plan_table(plan, calls), *scenes]
    if not scenes and (others := [labels.label(case) for case in plan.cases if OPERATIONS[case.op].rank is not None]):
        shown.append(first_few(others, separator="\n"))
    total = f"{counted(len(plan.cases), 'case')} × {counted(plan.launches, 'launch')} = "
    total += counted(plan.total, "measurement")
    how = [total, *([count] if calls or not scenes else []), *(words for text in of_packages for words in text.how)]
    bound = "about" if s.iterations or not calls else "up to"
    lines = [", ".join(how)]
    beyond = "".join(f", and {text.untimed} on top" for text in of_packages if text.untimed)
    lines.append(f"takes {bound} {format_seconds(estimate_s(plan))}{beyond}; longer if other programs use the cores")
    lines += [f"at {n} ranks at most {most} iterations are kept" for n, most in bounded(plan).items()]
    lines += [
        f"note: {note}" for note in [*tables.rounding(calls), *(note for text in of_packages for note in text.notes)]
    ]
    if plan.budget_s is not None:
        lines.append("the rest of the budget goes to further launches of the cases with the widest intervals")
    faults = [f"planted fault: {fault.do} on rank {fault.rank}" for fault in plan.settings.faults]
    return [*shown, "\n".join(lines), *_skipped(plan), *(["\n".join(faults)] if faults else [])]


def _skipped(plan: Plan) -> Blocks:
    """The cases that are left out, by reason."""
    if not plan.skips:
        return []
    reasons = grouped(plan.skips, lambda skip: (skip.reason, skip.case.backend))
    lines = [f"{counted(len(plan.skips), 'case')} skipped:"]
    for (reason, _), skips in list(reasons.items())[:MOST_REASONS]:
        which = labels.span([skip.case for skip in skips])
        lines.append(f"  {reason}: {f'{len(skips)} × ' if len(skips) > 1 else ''}{which}")
    if len(reasons) > MOST_REASONS:
        lines.append(f"  and for {len(reasons) - MOST_REASONS} further reasons, which the run's report lists")
    return ["\n".join(lines)]


@dataclass(frozen=True)
class _PlanRow:
    """Cases of one operation and backend with the same ranks and sizes."""

    cases: list[Case]
    # Names of the sizes, ascending.
    sizes: list[str]
    memory: int


PLANNED: list[Column[_PlanRow]] = [
    left("operation", lambda row: row.cases[0].op),
    left("backend", lambda row: row.cases[0].backend),
    left("data", lambda row: labels.SEPARATOR.join(variety(row.cases)) or NOTHING),
    Column("ranks", lambda row: ", ".join(str(n) for n in sorted({case.world_size for case in row.cases}))),
    Column("sizes", lambda row: str(len(row.sizes))),
    left("from – to", lambda row: " – ".join(dict.fromkeys([row.sizes[0], row.sizes[-1]]))),
    Column("cases", lambda row: str(len(row.cases))),
    Column("buffers a rank", lambda row: format_rounded_bytes(row.memory) if row.memory else NOTHING),
]


def _plan_table(plan: Plan, calls: Sequence[Case]) -> Blocks:
    """A row for each operation and backend; several if its variants differ in ranks or sizes."""

    def reach(variant: Sequence[Case]) -> frozenset[tuple[int, int]]:
        return frozenset((case.world_size, case.asked) for case in variant)

    rows = []
    for cases in grouped(calls, lambda case: (case.op, case.backend)).values():
        # Variants that differ in neither numbers of ranks nor sizes share a row.
        for several in grouped(KINDS.tables(cases, lambda case: case).values(), reach).values():
            cases = [case for members in several for case in members]
            sizes = [tables.row_name(row) for row in tables.size_rows(several[0])]
            rows.append(_PlanRow(cases, sizes, max(buffer_bytes(case, plan.settings.pool_bytes) for case in cases)))
    return table(rows, PLANNED)


def smallest_change(changes: Sequence[float], cases: int) -> str:
    """A line on the smallest changes that two such runs would show; empty if none is known.

    changes: of the cases that the ledger knows, ascending. cases: number of all cases.
    """
    if not changes:
        return ""
    middle = changes[len(changes) // 2]
    known = "" if len(changes) == cases else f"; of {cases - len(changes)} cases the ledger has nothing"
    return (
        f"two runs like this can typically tell changes of more than {_change(middle)} "
        f"({_change(changes[0])} to {_change(changes[-1])}), by the noise of earlier runs{known}"
    )


def _change(share: float) -> str:
    """A change; of large ones, the factor."""
    return format_share(share) if share < 1 else f"{1 + share:.1f}×"


# ── runs ────────────────────────────────────────────────────────────────────────────────────────
def runs(found: Iterable[tuple[str, Json, tuple[str, str]]]) -> Blocks:
    """One line per run. found: its name, its manifest, and (number of cases, best result) from its summary."""
    columns: list[Column[tuple[str, Json, tuple[str, str]]]] = [
        left("run", lambda row: row[0]),
        left("started (UTC)", lambda row: str(row[1].get("started", ""))[:16].replace("T", " ")),
        left("status", lambda row: wording.state(cast("Manifest", row[1]))),
        Column("cases", lambda row: row[2][0]),
        left("best result", lambda row: row[2][1]),
    ]
    return table(found, columns)


def headline(rows: Sequence[Mapping[str, str]]) -> tuple[str, str]:
    """The number of measured cases in a summary, and the best result."""
    measured = [row for row in rows if row.get("time_s")]
    for part in parts():
        if (best_of_part := part.best(measured)) is not None:
            return str(len(measured)), best_of_part
    best = max(measured, key=lambda row: float(row.get("busbw") or 0), default={})
    if not float(best.get("busbw") or 0):
        return str(len(measured)), NOTHING
    size = format_bytes(int(best["size_bytes"]))
    rate = format_rate(float(best["busbw"]))
    return str(
        len(measured)
    ), f"{rate} GB/s: {best['op']}, {best['backend']}, {ranks_text(int(best['world_size']))}, {size}"


# ── the catalog ──────────────────────────────────────────────────────────────────────────────────
def operations() -> Blocks:
    """The table of operations, as far as possible a line each: what their size counts, and their bus factor."""
    columns: list[Column[Operation]] = [
        left("operation", lambda op: op.name),
        # The rest of the sentence stands beside the tables of a run.
        left(
            "size: the bytes …",
            lambda op: re.split("[,;:(]", op.size_means.removeprefix("bytes "))[0].strip() if op.sized else NOTHING,
        ),
        left("bus factor", _factor),
    ]
    hint = "What a backend lacks: list backends. The options of each: docs/configuration.md."
    return [*table(OPERATIONS.values(), columns), hint]


def _factor(op: Operation) -> str:
    """busbw / algbw as a formula; its value at 4 ranks if FACTORS has no formula for it."""
    value = op.bus_factor(4) if op.bus_factor is not None else None
    return NOTHING if value is None else FACTORS.get(value, f"{value:g} at n = 4")


def _lacks(op: str, backend: str) -> str:
    """What the backend does not support for this operation, in words, beyond what it supports for no operation."""
    table, operation = BACKENDS[backend], OPERATIONS[op]
    missing = unsupported_operation(op, table)
    if missing is not None:
        return missing
    lacks = [f"no {', '.join(sorted(table.unsupported_dtypes_of[op]))}"] if op in table.unsupported_dtypes_of else []
    for place in operation.placements[1:]:  # the first is the usual one
        if unsupported_by_backend(Case(op, backend, 2, "float32", 2**20, placement=place)) is not None:
            lacks.append(f"not {PLACES[place]}")
    return "; ".join(lacks)


def backends(missing: dict[str, str]) -> Blocks:
    """The table of backends: whether they can be used here, and what they do not support."""

    def named(names: Iterable[str]) -> str:
        return ", ".join(sorted(names)) or NOTHING

    usable: list[Column[Backend]] = [
        left("backend", lambda b: b.name),
        left("device", lambda b: b.device),
        left("what it is", lambda b: b.description),
        left("usable here", lambda b: missing.get(b.name, "yes")),
    ]
    unsupported: list[Column[Backend]] = [
        left("backend", lambda b: b.name),
        left("unsupported dtypes", lambda b: named(b.unsupported_dtypes)),
        left("moved but not reduced", lambda b: named(b.unsupported_reduce_dtypes)),
        left("unsupported reduce ops", lambda b: named(b.unsupported_reduce_ops)),
        left(
            "unsupported operations",
            lambda b: named(op for op in OPERATIONS if unsupported_operation(op, b) is not None),
        ),
    ]
    single: list[Column[str]] = [left("operation", lambda op: op)]
    single += keyed([(name, name) for name in BACKENDS], _lacks, "left")
    limited = [op for op in OPERATIONS if any(_lacks(op, name) for name in BACKENDS)]
    several = BACKENDS.values()
    limits = ["Unsupported for single operations:", *table(limited, single)]
    return [*table(several, usable), *table(several, unsupported), *limits]


def variables() -> Blocks:
    """The environment variables that may be set for ranks, by the library that they tune."""
    of_library: dict[str, list[str]] = {}
    for name, library in TUNING.items():
        of_library.setdefault(library, []).append(name)
    of_library["sides of ab only"] = sorted(AT_START)
    return [
        *(f"{library}: {', '.join(names)}" for library, names in of_library.items()),
    ]


def configs(files: Sequence[Path]) -> Blocks:
    """Names of configurations, with the first sentence of their comment, and where their files are."""

    def purpose(path: Path) -> str:
        lines = path.read_text(encoding="utf-8").splitlines()
        head = itertools.takewhile(lambda line: line.startswith("#"), lines)
        comment = " ".join(line.lstrip("# ") for line in head if "yaml-language-server" not in line)
        return re.split(r"(?<=\.) ", comment, maxsplit=1)[0]

    columns: list[Column[Path]] = [left("name", lambda path: path.stem), left("what it is for", purpose)]
    folders = ", ".join(dict.fromkeys(str(path.parent) for path in files))
    return [*table(files, columns), f"Files: {folders}. run NAME measures one; a path of your own ends in .yaml."]
