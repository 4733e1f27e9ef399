"""Describe what a run would do, for a terminal.

In: a `Plan`. Out: blocks. Loads no pandas, so that `plan` answers quickly.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from collbench.catalog.collectives import OPERATIONS, is_copy
from collbench.model.projection import KINDS, grouped
from collbench.model.records import Case, Plan
from collbench.model.units import first_few, format_rounded_bytes, format_seconds, format_share
from collbench.planning.footprint import bounded, buffer_bytes
from collbench.planning.plan import estimate_s
from collbench.report import labels, tables
from collbench.report.blocks import Blocks, Column, left, table
from collbench.report.labels import NOTHING, counted, known, variety
from collbench.report.notices import sentence, sentences
from collbench.report.view import is_call


def plan(plan: Plan) -> Blocks:
    """Describe what a run would do: cases, memory, skips, and the estimated time."""
    s = plan.settings.sampling
    limits = known(
        ("until ±{}", s.relative_error and format_share(s.relative_error)),
        ("{} each", format_seconds(s.seconds_per_case)),
        ("{} iterations", s.max_iterations),
    )
    count = f"{s.iterations} iterations each" if s.iterations else " or ".join(limits)
    calls = [case for case in plan.cases if is_call(case) and not OPERATIONS[case.op].against]
    compared = [case for case in plan.cases if OPERATIONS[case.op].against]
    if not plan.cases:
        return ["nothing can be measured here", *_skipped(plan)]
    blocks = [*_plan_table(plan, calls), *_scenes(plan, compared)]
    if others := [labels.label(case) for case in plan.cases if not is_call(case) and case not in compared]:
        blocks.append(first_few(others, separator="\n"))
    total = f"{counted(len(plan.cases), 'case')} × {counted(plan.launches, 'launch')} = "
    total += counted(plan.total, "measurement")
    rounds = sorted({(plan.settings.own_of(case).rounds, case.depth) for case in compared})
    how = [total, *[count] * (len(compared) < len(plan.cases)), *(f"{n} rounds of {depth} each" for n, depth in rounds)]
    bound = "about" if s.iterations or not calls else "up to"
    lines = [", ".join(how)]
    unknown = any(OPERATIONS[case.op].calls_s(case, plan.settings, 1) is None for case in compared)
    beyond = ", and the calls on top" * unknown
    lines.append(f"takes {bound} {format_seconds(estimate_s(plan))}{beyond}; longer if other programs use the cores")
    lines += [f"at {n} ranks at most {most} iterations are kept" for n, most in bounded(plan).items()]
    lines += [f"note: {note}" for note in [*tables.rounding(calls), *sentences(plan.notices)]]
    if plan.budget_s is not None:
        lines.append("the rest of the budget goes to further launches of the cases with the widest intervals")
    faults = [f"planted fault: {fault.do} on rank {fault.rank}" for fault in plan.settings.faults]
    return [*blocks, "\n".join(lines), *_skipped(plan), *(["\n".join(faults)] if faults else [])]


def _scenes(plan: Plan, compared: Sequence[Case]) -> Blocks:
    """Describe the cases that share rounds, one text for each scene: what they share, memory, and their names."""
    texts: Blocks = []
    for shared, cases in grouped(compared, lambda case: case.shared).items():
        needed = plan.settings.own_of(shared).scene_bytes.get(shared.key)
        memory = "" if needed is None else f"; at least {format_rounded_bytes(needed)} of memory per rank"
        first = [case for case in cases if not is_copy(case)]
        copies = f", {len(cases) - len(first)} of them second copies" * (len(first) < len(cases))
        names = [", ".join(labels.in_words(parts)) for parts in labels.describe(first)[1]]
        texts.append(f"{labels.label(shared)}: {counted(len(cases), 'case')}{copies}{memory}\n  {', '.join(names)}")
    return texts


def _skipped(plan: Plan) -> Blocks:
    """List the cases that are skipped, by reason."""
    if not plan.skips:
        return []
    reasons = grouped(plan.skips, lambda skip: (sentence(skip.reason), skip.case.backend))
    lines = [f"{counted(len(plan.skips), 'case')} skipped:"]
    for (reason, _), skips in reasons.items():
        which = labels.span([skip.case for skip in skips])
        lines.append(f"  {reason}: {f'{len(skips)} × ' if len(skips) > 1 else ''}{which}")
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
    """Return a row for each operation and backend; several rows if its variants differ in ranks or sizes."""

    def reach(variant: Sequence[Case]) -> frozenset[tuple[int, int]]:
        return frozenset((case.world_size, case.asked) for case in variant)

    rows = []
    for cases in grouped(calls, lambda case: (case.op, case.backend)).values():
        # Variants with the same numbers of ranks and the same sizes share a row.
        for several in grouped(KINDS.tables(cases, lambda case: case).values(), reach).values():
            cases = [case for members in several for case in members]
            sizes = [*dict.fromkeys(tables.row_names(several[0]).values())]
            rows.append(_PlanRow(cases, sizes, max(buffer_bytes(case, plan.settings.pool_bytes) for case in cases)))
    return table(rows, PLANNED)


def smallest_change(changes: Sequence[float], cases: int) -> str:
    """Return a line on the smallest changes that two such runs can detect; empty if none is known.

    changes: the smallest change of each case that is in the ledger, ascending. cases: number of all cases.
    """
    if not changes:
        return ""
    middle = changes[len(changes) // 2]
    missing = "" if len(changes) == cases else f"; of {cases - len(changes)} cases the ledger has nothing"
    return (
        f"two runs like this can typically detect changes of more than {_change(middle)} "
        f"({_change(changes[0])} to {_change(changes[-1])}), by the noise of earlier runs{missing}"
    )


def _change(share: float) -> str:
    """Format a change as a share, or a large change as a factor."""
    return format_share(share) if share < 1 else f"{1 + share:.1f}×"
