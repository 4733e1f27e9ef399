"""Write plans and lists of runs, operations, backends and configurations, as text for a terminal.

In: a `Plan`, manifests, the tables of operations and backends. Out: text. Loads no pandas, so that
`plan` and `list` answer quickly.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bench.catalog.backends import BACKENDS, unsupported_by_backend, unsupported_operation
from bench.catalog.operations import OPERATIONS, Operation
from bench.model.capabilities import Machine
from bench.model.records import Case, Json, Plan
from bench.model.units import format_bytes, format_rate, format_rounded_bytes, format_seconds
from bench.planning.footprint import bounded, buffer_bytes
from bench.planning.plan import estimate_s
from bench.report import groups, markdown
from bench.report.labels import PLACES, dtype_words, extras, span, variety

# Bus factor at 4 ranks → its formula.
FACTORS = {1.0: "1", 0.75: "(n-1)/n", 1.5: "2(n-1)/n"}
# Reasons for skipping cases that a reader will still read.
MOST_REASONS = 12
# Alignment of the columns of tables.
PLAN_COLUMNS = [*["left"] * 3, *["right"] * 2, "left", *["right"] * 2]
RUN_COLUMNS = ["left", "left", "left", "right", "left"]


def plan(plan: Plan, _: Machine) -> str:
    """What a run would do: cases, memory, skips, and how long it takes."""
    headers = ["operation", "backend", "data", "ranks", "sizes", "from – to", "cases", "buffers a rank"]
    s = plan.sampling
    count = (
        f"{s.iterations} iterations each"
        if s.iterations
        else f"until ±{s.relative_error:.0%}, {format_seconds(s.seconds_per_case)} or {s.max_iterations} iterations"
    )
    bound = "about" if s.iterations else "at most about"
    rows = _rows(plan)
    lines = [
        markdown.table(rows, headers, PLAN_COLUMNS) if rows else "nothing can be measured here",
        "",
        f"{len(plan.cases)} cases × {plan.launches} launches = {plan.total} measurements, {count}; seed {plan.seed}",
        f"takes {bound} {format_seconds(estimate_s(plan))}",
    ]
    lines += [f"at {n} ranks at most {most} iterations are kept" for n, most in bounded(plan).items()]
    lines += [f"note: {note}" for note in groups.rounding(plan.cases)]
    if plan.budget_s is not None:
        lines.append("the rest of the budget goes to further launches of the cases with the widest intervals")
    if plan.skips:
        reasons = groups.by_reason(plan.skips)
        lines += ["", f"{len(plan.skips)} cases are skipped:"]
        lines += [
            f"  {reason}: {f'{len(cases)} × ' if len(cases) > 1 else ''}{span(cases)}"
            for reason, cases in reasons[:MOST_REASONS]
        ]
        if len(reasons) > MOST_REASONS:
            lines.append(f"  and for {len(reasons) - MOST_REASONS} further reasons, which the run's report lists")
    if plan.faults:
        lines += ["", *(f"planted fault: {fault.do} on rank {fault.rank}" for fault in plan.faults)]
    return "\n".join(lines)


def smallest_change(found: Sequence[float], cases: int) -> str:
    """A line on the smallest changes that two such runs would show. found: ascending, one a case; empty if unknown."""
    if not found:
        return ""
    middle = found[len(found) // 2]
    known = "" if len(found) == cases else f"; of {cases - len(found)} cases the ledger has nothing"
    return (
        f"two such runs would show a change of {middle:.0%} in the median case ({found[0]:.0%} to {found[-1]:.0%}), "
        f"as the noise ledger has it{known}\n"
    )


def _rows(plan: Plan) -> list[list[str]]:
    """A row for each operation and backend; several if its variants differ in ranks or sizes."""
    kinds: dict[tuple[str, str], dict[str, list[Case]]] = {}
    for case in plan.cases:
        words = " ".join([*dtype_words(case), *extras(case)])
        kinds.setdefault((case.op, case.backend), {}).setdefault(words, []).append(case)
    rows = []
    for (op, backend), hows in kinds.items():
        alike: dict[frozenset[tuple[int, str]], list[list[Case]]] = {}
        for cases in hows.values():
            alike.setdefault(_reach(cases), []).append(cases)
        for reach, several in alike.items():
            cases = [case for members in several for case in members]
            sizes = [groups.row_name(row) for row in groups.size_rows(several[0])]
            memory = max(buffer_bytes(case, plan.pool_bytes) for case in cases)
            ranks = ", ".join(str(n) for n in sorted({n for n, _ in reach}))
            ends = " – ".join(dict.fromkeys([sizes[0], sizes[-1]]))
            data = " · ".join(variety(cases)) or "-"
            rows.append([op, backend, data, ranks, str(len(sizes)), ends, str(len(cases)), _memory(memory)])
    return rows


def _reach(cases: Sequence[Case]) -> frozenset[tuple[int, str]]:
    """(world size, size) of each case. Sizes that were rounded down by different units count as the same."""
    rows = groups.size_rows(cases)
    return frozenset((case.world_size, groups.row_name(row)) for row in rows for case in row)


def _memory(size_bytes: int) -> str:
    return format_rounded_bytes(size_bytes) if size_bytes else "-"


def runs(found: Iterable[tuple[str, Json, tuple[str, str]]]) -> str:
    """One line per run. found: its name, its manifest, and (number of cases, best result) from its summary."""
    rows = [
        [name, str(manifest.get("started", ""))[:16].replace("T", " "), str(manifest.get("status")), *best]
        for name, manifest, best in found
    ]
    return markdown.table(rows, ["run", "started (UTC)", "status", "cases", "best result"], RUN_COLUMNS)


def headline(rows: Sequence[Mapping[str, str]]) -> tuple[str, str]:
    """The number of measured cases in a summary, and the case with the best bus bandwidth."""
    measured = [row for row in rows if row.get("time_s")]
    best = max(measured, key=lambda row: float(row.get("busbw") or 0), default=None)
    if best is None:
        return "0", "-"
    ranks, size = best["world_size"], format_bytes(int(best["size_bytes"]))
    if not float(best.get("busbw") or 0):
        return str(len(measured)), "-"
    rate = format_rate(float(best["busbw"]))
    return str(len(measured)), f"{rate} GB/s: {best['op']}, {best['backend']}, {ranks} ranks, {size}"


def operations() -> str:
    """The table of operations, and what single operations do not support on a backend."""
    rows = [
        [op.name, op.size_means if op.sized else "-", _factor(op), _placements(op), _takes(op)]
        for op in OPERATIONS.values()
    ]
    table = markdown.table(rows, ["operation", "size is", "bus factor", "placements", "takes"], ["left"] * 5)
    able = list(BACKENDS)
    lacks = [[op, *(_lacks(op, name) for name in able)] for op in OPERATIONS]
    lacks = [row for row in lacks if any(text != "" for text in row[1:])]
    return "\n".join(
        [
            table,
            "",
            "Unsupported for single operations (for all: list backends):",
            "",
            markdown.table(lacks, ["operation", *able], ["left"] * (1 + len(able))),
        ]
    )


def _factor(operation: Operation) -> str:
    """busbw / algbw as a formula; its value at 4 ranks if FACTORS has no formula for it."""
    if operation.bus_factor is None:
        return "-"
    value = operation.bus_factor(4)
    return FACTORS.get(value, f"{value:g} at n = 4")


def _placements(operation: Operation) -> str:
    return ", ".join(operation.placements) if operation.typed else "-"


def _takes(operation: Operation) -> str:
    """The keys of a configuration that make further cases of an operation."""
    takes = {"reduce op": operation.reduces, "root": operation.rooted, "async": "async" in operation.calls}
    return ", ".join(name for name, has in takes.items() if has) or "-"


def _lacks(op: str, backend: str) -> str:
    """What the backend does not support for this operation, in words, beyond what it supports for no operation."""
    table, operation = BACKENDS[backend], OPERATIONS[op]
    missing = unsupported_operation(op, table)
    if missing is not None:
        return missing
    found = [f"no {', '.join(sorted(table.unsupported_dtypes_of[op]))}"] if op in table.unsupported_dtypes_of else []
    for place in operation.placements:
        usual = operation.placements[0] == place
        if not usual and unsupported_by_backend(Case(op, backend, 2, "float32", 2**20, placement=place)) is not None:
            found.append(f"not {PLACES[place]}")
    return "; ".join(found)


def backends(missing: dict[str, str]) -> str:
    """The table of backends: whether they can be used here, and what they do not support."""
    rows = [[b.name, b.device, b.description, missing.get(b.name, "yes")] for b in BACKENDS.values()]
    table = markdown.table(rows, ["backend", "device", "what it is", "usable here"], ["left"] * 4)
    lacks = [
        [b.name, _names(b.unsupported_dtypes), _names(b.unsupported_reduce_dtypes), _names(b.unsupported_reduce_ops),
         _names([op for op in OPERATIONS if unsupported_operation(op, b) is not None])]
        for b in BACKENDS.values()
    ]  # fmt: skip
    headers = [
        "backend",
        "unsupported dtypes",
        "moved but not reduced",
        "unsupported reduce ops",
        "unsupported operations",
    ]
    return f"{table}\n\n{markdown.table(lacks, headers, ['left'] * 5)}"


def _names(found: Iterable[str]) -> str:
    return ", ".join(sorted(found)) or "-"


def configs(files: Sequence[Path]) -> str:
    """Names of configurations, with the first line of their comment, and where their files are."""
    table = markdown.table([[path.stem, _purpose(path)] for path in files], ["name", "what it is for"], ["left"] * 2)
    folders = dict.fromkeys(str(path.parent) for path in files)
    return f"{table}\n\nFiles: {', '.join(folders)}. run NAME measures one; a path of your own ends in .yaml."


def _purpose(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    comments = [line.lstrip("# ") for line in lines if line.startswith("#") and "yaml-language-server" not in line]
    return comments[0] if comments else ""
