"""Write a run in the layout of nccl-tests, for scripts that read its output: `report --format nccl-tests`.

In: a `Run` and its summaries. Out: text, one table for each operation, backend, world size and metric. The columns are
those of nccl-tests 2.17 and later; everything else is in comments. Times are CollBench's (mean over iterations of
the maximum over ranks), not the mean over calls and ranks of nccl-tests; a comment above each table says so.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from bench import __version__
from bench.catalog.dtypes import dtype_named
from bench.catalog.nccl_tests_names import NO_REDUCE_OP, NO_ROOT, reduce_op_named, test_named
from bench.catalog.nccl_tests_names import dtype_named as name_of_dtype
from bench.catalog.operations import OPERATIONS, placement, ranks_together
from bench.model.conclusions import Analysis, Summary
from bench.model.records import Case, Json, Run
from bench.report.document import method_line
from bench.report.labels import counted, label, metric_name
from bench.report.training import without_steps

NONE = "N/A"
# Widths of nccl-tests' columns (writeResultHeader and writeBenchmarkLinePreamble in its util.cu).
LEAD = "{:>12}  {:>12}  {:>8}  {:>6}  {:>6}"
HALF = "  {:>7}  {:>6}  {:>6}  {:>6}"
# Fields in which the rows of a table differ. The two halves of a row are out of place and in place.
OF_A_ROW = ("dtype", "reduce_op", "root", "size_bytes")
# Options that a column, the half of a row or the title of a table tells.
TOLD = ("reduce_op", "root", "placement", "metric", "depth")


def document(run: Run, analysis: Analysis) -> str:
    """All tables, one below the other, as in a log of nccl-tests, which has none for training steps."""
    tables: dict[tuple[object, ...], list[Summary]] = {}
    for summary in without_steps(run, analysis)[1].summaries:
        case = summary.case
        kind = (case.op, case.backend, case.world_size, case.metric, case.depth, *_others(case))
        tables.setdefault(kind, []).append(summary)
    return (
        "\n".join("\n".join(_table(run, members)) + "\n" for members in tables.values()) or "# nothing was measured\n"
    )


def _table(run: Run, members: Sequence[Summary]) -> Iterable[str]:
    case = members[0].case
    yield f"# CollBench version {__version__}, in the layout of nccl-tests; run {run.name}"
    yield f"# Collective test starting: {test_named(case.op)}"
    yield _settings(run, members)
    if case.depth == 1:
        yield "# Blocking Enabled: wait and barrier after each outer iteration (-n); time excludes barrier"
    yield from _how(run, members)
    yield "#"
    yield "# Using devices"
    yield from _ranks(run, case)
    yield "#"
    if OPERATIONS[case.op].sized:
        lead = LEAD.replace("{:>12}", "# {:>10}", 1)
        yield lead.format(*[""] * 5) + "           out-of-place                       in-place          "
        yield lead.format("size", "count", "type", "redop", "root") + 2 * HALF.format(
            "time", "algbw", "busbw", "#wrong"
        )
        yield lead.format("(B)", "(elements)", "", "", "") + 2 * HALF.format("(us)", "(GB/s)", "(GB/s)", "")
        yield from _rows(members, verified="0" if run.imported is None else NONE)
    else:
        yield from (f"# no size, no columns: {label(s.case)}: {_microseconds(s)} us" for s in members)
    for summary in members:
        for failure in summary.failures:
            yield f"# failed: {label(summary.case)}: {' '.join(failure.text.split())}"
    wrong = sum(failure.kind == "wrong" for s in members for failure in s.failures)
    yield f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
    rates = [s.busbw / 1e9 for s in members if s.busbw]
    if rates:
        yield "# The mean over sizes and placements, as nccl-tests has it; CollBench itself never averages rates:"
        yield f"# Avg bus bandwidth    : {sum(rates) / len(rates):g}"
    yield "#"
    yield f"# Collective test concluded: {test_named(case.op)}"
    yield "#"


# ── comments ─────────────────────────────────────────────────────────────────────────────────────
def _settings(run: Run, members: Sequence[Summary]) -> str:
    """The line with sizes and numbers of calls; one thread and one GPU, as each rank is a process of its own."""
    case, sizes = members[0].case, sorted({s.case.size_bytes for s in members})
    ratios = {later / earlier for earlier, later in pairwise(sizes) if earlier}
    steps = {later - earlier for earlier, later in pairwise(sizes)}
    step = f"{steps.pop() if len(steps) == 1 else 0}(bytes)"
    if len(ratios) == 1:
        step = f"{ratios.pop():.4g}(factor)"
    calls = [s.iterations // s.launches for s in members if s.launches]
    iters = case.depth if case.depth > 1 else min(calls, default=0)
    return (
        f"# nThread 1 nGpus 1 minBytes {sizes[0]} maxBytes {sizes[-1]} step: {step} "
        f"warmup iters: {run.plan.settings.sampling.warmup * case.depth} iters: {iters} agg iters: 1 validation: 1 "
        f"graph: {int(case.metric == 'graph')}"
    )


def _how(run: Run, members: Sequence[Summary]) -> Iterable[str]:
    case = members[0].case
    launches = sorted({s.launches for s in members if s.launches}) or [run.plan.launches]
    several = "–".join(str(count) for count in dict.fromkeys([launches[0], launches[-1]]))
    over = f", geometric mean over {several} launches" if launches[-1] > 1 else ", one launch"
    ours = (
        f"# How measured: {metric_name(case)}; time is the mean over iterations of the maximum over ranks{over}; "
        "nccl-tests would print the mean over calls and ranks"
    )
    yield ours if run.imported is None else f"# {method_line(run, members)}"
    yield f"# Backend: {case.backend}, {counted(case.world_size, 'rank')}; size: {OPERATIONS[case.op].size_means}"
    if different := _others(case):
        yield f"# Not at the default: {', '.join(different)}"


def _others(case: Case) -> list[str]:
    """The options at other values than their defaults that nccl-tests has no place for."""
    return [extra for extra in case.extras if extra.partition("=")[0] not in TOLD]


def _ranks(run: Run, case: Case) -> Iterable[str]:
    """One line per rank. Process ids are not recorded, so the column has 0."""
    ranks: list[Json] = []
    host = "unknown"
    for session in run.environment:
        for launch in session.get("launches", []):
            if (launch.get("backend"), launch.get("world_size")) == (case.backend, case.world_size):
                ranks, host = launch.get("ranks", []), session.get("host", {}).get("hostname", host)
    of_rank = {facts.get("rank"): facts for facts in ranks}
    for rank in range(case.world_size):
        facts = of_rank.get(rank, {})
        _, _, number = str(facts.get("device", "")).partition(":")
        where, name = facts.get("hostname", host), facts.get("device_name", "unknown")
        yield f"#  Rank {rank:2} Group  0 Pid {0:6} on {where:>10} device {int(number or 0):2} [{NONE}] {name}"


# ── the table ────────────────────────────────────────────────────────────────────────────────────
def _rows(members: Sequence[Summary], verified: str) -> Iterable[str]:
    rows: dict[tuple[object, ...], dict[str, Summary]] = {}
    for summary in members:
        key = tuple(getattr(summary.case, name) for name in OF_A_ROW)
        rows.setdefault(key, {})[placement(summary.case)] = summary
    for halves in rows.values():
        case = next(iter(halves.values())).case
        operation = OPERATIONS[case.op]
        count = case.size_bytes // (operation.pieces(ranks_together(case)) * dtype_named(case.dtype).itemsize)
        redop = reduce_op_named(case.reduce_op) if operation.reduces else NO_REDUCE_OP
        root = case.root if operation.rooted else NO_ROOT
        lead = LEAD.format(case.size_bytes, count, name_of_dtype(case.dtype), redop, root)
        yield lead + "".join(_half(halves.get(place), verified) for place in ("out", "in"))


def _half(summary: Summary | None, verified: str) -> str:
    """Time, bandwidths and the number of wrong elements. verified: that number, "0"; "N/A" for an imported run."""
    if summary is None or summary.time_s is None:
        return HALF.format(*[NONE] * 4)
    rates = [_fitted(rate / 1e9, 6) if rate else NONE for rate in (summary.algbw, summary.busbw)]
    return HALF.format(_microseconds(summary), *rates, verified)


def _microseconds(summary: Summary) -> str:
    return NONE if summary.time_s is None else _fitted(summary.time_s.value * 1e6, 7)


def _fitted(number: float, width: int) -> str:
    """The number with up to two decimals, as many as the column has room for, like nccl-tests."""
    texts = (f"{number:.{decimals}f}" for decimals in (2, 1, 0))
    return next((text for text in texts if len(text) <= width), f"{number:.{1 if width >= 7 else 0}e}")
