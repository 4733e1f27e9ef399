"""Write a run in the layout of nccl-tests: for `report --format nccl-tests`, and for `perf` while it measures.

In: a `Run` and its summaries. Out: lines, one table for each operation, backend, world size and metric, in parts that
can be written one by one: heading, rows, closing. The columns are the same as in nccl-tests 2.17 and later; a value
that was not measured is nan, and everything else is in comments. Times are CollBench's mean over iterations of the
maximum over ranks; nccl-tests prints the mean over calls and ranks. On GPUs nccl-tests reads the host's clock, so
dispatching is part of its times (BenchTime in its common.cu): on GPUs the columns have the host's time here as well,
and the device's own time is below the table.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import pairwise
from statistics import fmean

from collbench import __version__
from collbench.catalog import collectives
from collbench.catalog.backends import BACKENDS
from collbench.catalog.collectives import OPERATIONS, half, place_named, ranks_together
from collbench.catalog.dtypes import dtype_named
from collbench.catalog.subgroups import divide
from collbench.model.conclusions import Summary
from collbench.model.facts import RankFacts
from collbench.model.projection import PLACEMENTS, grouped
from collbench.model.records import Case, Json, Run
from collbench.packages.interop.catalog import DTYPES, NO_REDUCE_OP, NO_ROOT, REDUCE_OPS, name_in, test_named
from collbench.planning.footprint import checked_apart
from collbench.report.document import method_of_calls
from collbench.report.labels import label, metric_name, ranks_text
from collbench.report.view import View

# Texts that nccl-tests prints for a time that is not a number, and for errors that were not counted.
NO_NUMBER, UNKNOWN = "nan", "N/A"
# Widths of nccl-tests' columns (writeResultHeader and writeBenchmarkLinePreamble in its util.cu).
LEAD = "{:>12}  {:>12}  {:>8}  {:>6}  {:>6}"
HALF = "  {:>7}  {:>6}  {:>6}  {:>6}"
# Variable with the least mean bus bandwidth in GB/s, and the share of it that is enough, as `run` in common.cu has it.
LEAST_BUSBW, ENOUGH = "NCCL_TESTS_MIN_BW", 0.9
# Options that a column, the half of a row or the title of a table shows.
SHOWN = ("reduce_op", "root", "placement", "metric", "depth")


def document(view: View) -> str:
    """Return all tables of collectives, one below the other, as in a log of nccl-tests; other cases have no table."""
    run, summaries = view.run, {summary.case: summary for summary in view.calls}
    parts = []
    for cases in tables(summaries):
        parts += heading(run, cases, ranks_of(run, cases[0]), summaries)
        parts += [row_line(run, halves, summaries) for halves in rows(cases)]
        parts += [*closing(run, cases, summaries), ""]
    return "\n".join(parts) or "# nothing was measured\n"


def tables(cases: Iterable[Case]) -> list[list[Case]]:
    """Group the cases by table."""

    def kind(case: Case) -> tuple[object, ...]:
        return case.op, case.backend, case.world_size, case.metric, case.depth, *_other_options(case)

    return list(grouped(cases, kind).values())


def table_named(case: Case) -> str:
    """Format the properties that the cases of a table share: `all_reduce · gloo · 4 ranks · pipelined`."""
    return " · ".join([case.op, case.backend, ranks_text(case.world_size), case.metric, *_other_options(case)])


def rows(cases: Iterable[Case]) -> list[list[Case]]:
    """Group the cases of a table by row: out of place, in place, or both."""
    return list(grouped(cases, PLACEMENTS.residue).values())


def heading(
    run: Run,
    cases: Sequence[Case],
    ranks: Sequence[RankFacts],
    summaries: Mapping[Case, Summary],
    sizes: str | None = None,
) -> list[str]:
    """Return the lines above a table. ranks: the facts of each rank. summaries: all that are known already.

    sizes: the requested sizes, as nccl-tests writes them; from the cases if left out.
    """
    case, members = cases[0], [summaries[case] for case in cases if case in summaries]
    lines = [
        f"# CollBench version {__version__}, in the layout of nccl-tests; run {run.name}",
        f"# Collective test starting: {test_named(case.op)}",
        _settings(run, cases, members, sizes),
    ]
    if case.depth == 1:
        lines.append("# Blocking Enabled: wait and barrier after each outer iteration (-n); time excludes barrier")
    lines += [*_method(run, cases, members), "#", *(["# Using devices", *_devices(case, ranks), "#"] if ranks else [])]
    if not OPERATIONS[case.op].sized:
        return lines
    lead = LEAD.replace("{:>12}", "# {:>10}", 1)
    return [
        *lines,
        lead.format(*[""] * 5) + "           out-of-place                       in-place          ",
        lead.format("size", "count", "type", "redop", "root") + 2 * HALF.format("time", "algbw", "busbw", "#wrong"),
        lead.format("(B)", "(elements)", "", "", "") + 2 * HALF.format("(us)", "(GB/s)", "(GB/s)", ""),
    ]


def row_line(run: Run, cases: Sequence[Case], summaries: Mapping[Case, Summary]) -> str:
    """Format one row; for an operation without sizes, a comment. cases: out of place, in place, or both."""
    case = cases[0]
    if not OPERATIONS[case.op].sized:
        time_us = columns(run, summaries[case])[0] if case in summaries else None
        return f"# no size, no columns: {label(case)}: {_fitted(time_us, 7)} us"
    halves = {half(case): summaries.get(case) for case in cases}
    return LEAD.format(*lead(case)) + "".join(_half(run, halves.get(place)) for place in ("out", "in"))


def closing(run: Run, cases: Sequence[Case], summaries: Mapping[Case, Summary]) -> list[str]:
    """Return the lines below a table."""
    members = [summaries[case] for case in cases if case in summaries]
    wrong = wrong_results(run, members)
    # Without the failure's text: clients take any word after " on " for a node, and 13 words with "float" for a row.
    failures = dict.fromkeys((s.case, failure.kind, failure.rank) for s in members for failure in s.failures)
    lines = [
        f"# failed ({kind}{'' if rank is None else f', rank {rank}'}; report.md says why): "
        f"{case.size_bytes} B {place_named(case)}"
        for case, kind, rank in failures
    ]
    outcome = f"{UNKNOWN} (the tool does not report it)" if wrong is None else f"{wrong} {'FAILED' if wrong else 'OK'}"
    lines.append(f"# Out of bounds values : {outcome}")
    lines += _device_times(members)
    average, enough = average_busbw(run, members)
    if average is not None:
        verdict = {None: "", True: " OK", False: " FAILED"}[enough]
        lines += [
            "# The mean over sizes and placements, as nccl-tests has it, without calls that include a copy if there are"
            " others; CollBench itself never averages rates:",
            f"# Avg bus bandwidth    : {Decimal(f'{average:g}'):f}{verdict}",
        ]
    return [*lines, "#", f"# Collective test concluded: {test_named(cases[0].op)}", "#"]


# ── comments ─────────────────────────────────────────────────────────────────────────────────────
def sizes_of(cases: Iterable[Case]) -> tuple[int, int, int | None]:
    """Return the smallest size, the largest, and the step between sizes; None if steps differ."""
    sizes = sorted({case.size_bytes for case in cases})
    steps = {later - earlier for earlier, later in pairwise(sizes)}
    return sizes[0], sizes[-1], steps.pop() if len(steps) == 1 else None


def _settings(run: Run, cases: Sequence[Case], members: Sequence[Summary], sizes: str | None) -> str:
    """Format the line with sizes and numbers of calls."""
    case, sampling = cases[0], run.plan.settings.sampling
    calls = [s.iterations // s.launches for s in members if s.launches]
    iters = case.depth if case.depth > 1 else min(calls, default=sampling.iterations or UNKNOWN)
    if sizes is None:
        least, most, step = sizes_of(cases)
        every = sorted({case.size_bytes for case in cases})
        ratios = {later / earlier for earlier, later in pairwise(every) if earlier}
        growth = f"{ratios.pop():.4g}(factor)" if len(ratios) == 1 else f"{step or 0}(bytes)"
        sizes = f"minBytes {least} maxBytes {most} step: {growth}"
    return (
        f"# nThread 1 nGpus {gpus_of_process(run, case)} {sizes} warmup iters: {sampling.warmup * case.depth} "
        f"iters: {iters} agg iters: 1 validation: {int(run.imported is None)} graph: {int(case.metric == 'graph')}"
    )


def gpus_of_process(run: Run, case: Case) -> int:
    """Return nGpus: one command has all GPUs unless a launcher started several."""
    launched = run.imported is not None or any(session.get("job") for session in run.environment)
    return 1 if launched else case.world_size


def _method(run: Run, cases: Sequence[Case], members: Sequence[Summary]) -> Iterable[str]:
    case = cases[0]
    launches = sorted({s.launches for s in members if s.launches}) or [run.plan.launches]
    several = "–".join(str(count) for count in dict.fromkeys([launches[0], launches[-1]]))
    over = f", geometric mean over {several} launches" if launches[-1] > 1 else ", one launch"
    if run.imported is not None:
        yield f"# {method_of_calls(run, members)}"
    else:
        yield (
            f"# How measured: {metric_name(case)}; time is the mean over iterations of the maximum over ranks{over}; "
            "nccl-tests would print the mean over calls and ranks"
        )
        if case.depth > 1:
            yield f"# Calls: iterations of {case.depth}, as many as fit into the time for a size (samples.jsonl)"
        if BACKENDS[case.backend].device == "cuda":
            calls = f", divided by {case.depth} calls" if case.depth > 1 else ""
            yield f"# Clock: the host's, from enqueueing until the device is idle again{calls}; it includes dispatching"
    if checked_apart(case):
        yield (
            "# Buffers: never refilled, as in nccl-tests, so results grow and are not checked; a call with new data "
            "is, before and after timing"
        )
    if copies := dict.fromkeys(place_named(case) for case in cases if case.placement == "copied"):
        yield f"# Copies: {', '.join(copies)}, which is part of the time: the library has no such call"
    if OPERATIONS[case.op].sized and run.imported is None and len({half(each) for each in cases}) == 1:
        yield "# One half is nan: skipped (report.md) or not asked for; placements [in, out], or one copied, fill both"
    yield f"# Backend: {case.backend}, {ranks_text(case.world_size)}; size: {OPERATIONS[case.op].size_means}"
    if different := _other_options(case):
        yield f"# Not at the default: {', '.join(different)}"


def _other_options(case: Case) -> list[str]:
    """Return the options that are not at their defaults and that the layout of nccl-tests does not show."""
    return [extra for extra in case.extras if extra.partition("=")[0] not in SHOWN]


def ranks_of(run: Run, case: Case) -> list[RankFacts]:
    """Return the facts of each rank from the first launch with the case's backend and world size."""
    launches = (launch for session in run.environment for launch in session.get("launches", []))
    kind = (case.backend, case.world_size)
    matching = (launch["ranks"] for launch in launches if (launch.get("backend"), launch.get("world_size")) == kind)
    return next(matching, [])


def devices(case: Case, ranks: Iterable[RankFacts]) -> dict[int, Json]:
    """Return rank → its line in nccl-tests' list of devices, with the names of its JSON; None for an unknown fact."""
    groups, lines = divide(case.groups, case.world_size), {}
    for facts in ranks:
        rank, number = facts.get("rank", 0), str(facts.get("device", "")).partition(":")[2]
        lines[rank] = {
            "rank": rank,
            "group": groups.of(rank) or 0,
            "pid": facts.get("pid"),
            "hostname": facts.get("hostname"),
            "device": int(number) if number.isdecimal() else None,
            "device_hex": None,
            "device_info": facts.get("device_name"),
        }
    return lines


def _devices(case: Case, ranks: Sequence[RankFacts]) -> Iterable[str]:
    """Yield one line per rank; an unknown fact is 0 or a word."""
    unknown: list[RankFacts] = [{"rank": rank} for rank in range(case.world_size)]
    for rank, device in devices(case, [*unknown, *ranks]).items():
        where, name = device["hostname"] or "unknown", device["device_info"] or "unknown"
        process = f"Group {device['group']:2} Pid {device['pid'] or 0:6} on {where:>10}"
        yield f"#  Rank {rank:2} {process} device {device['device'] or 0:2} [{UNKNOWN}] {name}"


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────
def _half(run: Run, summary: Summary | None) -> str:
    """Format time, bandwidths and the number of wrong elements."""
    if summary is None:
        return HALF.format(*[NO_NUMBER] * 3, UNKNOWN)
    time_us, algbw, busbw, wrong = columns(run, summary)
    texts = _fitted(time_us, 7), _fitted(algbw, 6), _fitted(busbw, 6)
    return HALF.format(*texts, UNKNOWN if wrong is None else wrong)


def lead(case: Case) -> tuple[int, int, str, str, int]:
    """Return the size, number of elements, dtype, reduce op and root of a row."""
    operation = OPERATIONS[case.op]
    count = case.size_bytes // (operation.pieces(ranks_together(case)) * dtype_named(case.dtype).itemsize)
    redop = name_in(REDUCE_OPS, case.reduce_op) if operation.reduces else NO_REDUCE_OP
    return case.size_bytes, count, name_in(DTYPES, case.dtype), redop, case.root if operation.rooted else NO_ROOT


def wrong_elements(run: Run, summary: Summary) -> int | None:
    """Return 0 if all results are right, else the number of wrong results; None if results were not checked.

    nccl-tests counts wrong elements instead. For an imported run, the tool's own check decides.
    """
    wrong = sum(failure.kind == "wrong" for failure in summary.failures)
    if wrong or summary.time_s is None:
        return wrong or None
    if run.imported is None:
        return 0
    verified = {s.aggregate.verified for s in run.samples if s.case == summary.case and s.aggregate}
    return 0 if verified == {True} else None


def wrong_results(run: Run, members: Sequence[Summary]) -> int | None:
    """Return the number of wrong results in a table; None if an imported run does not give it for all its cases."""
    counts = [wrong_elements(run, summary) for summary in members]
    return None if run.imported is not None and None in counts else sum(filter(None, counts))


def average_busbw(run: Run, members: Sequence[Summary]) -> tuple[float | None, bool | None]:
    """Return the mean bus bandwidth of a table in GB/s, and whether it is enough for NCCL_TESTS_MIN_BW, if that is set.

    nccl-tests copies nothing, so calls with a copy, which are slower, are left out if there are others.
    """
    own = [s for s in members if s.case.placement != "copied"] or members
    busbws = [busbw for s in own if (busbw := columns(run, s)[2]) is not None]
    average = float(f"{fmean(busbws):.6g}") if busbws else None
    least = least_busbw(variables_of(run))
    return average, None if least is None else average is not None and average >= ENOUGH * least


def least_busbw(variables: Mapping[str, str]) -> float | None:
    """Return the mean bus bandwidth in GB/s that NCCL_TESTS_MIN_BW asks for; None if it is not set, or not a number."""
    text = variables.get(LEAST_BUSBW, "")
    return float(text) if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", text, re.IGNORECASE) else None


def variables_of(run: Run) -> dict[str, str]:
    """Return the recorded environment variables of a run."""
    return dict(run.environment[0].get("host", {}).get("variables", {})) if run.environment else {}


def columns(
    run: Run, summary: Summary, seconds: float | None = None
) -> tuple[float | None, float | None, float | None, int | None]:
    """Return time in us, algorithm and bus bandwidth in GB/s, and wrong elements, as nccl-tests defines them.

    seconds: time of a call; if left out, that of the summary, by the clock that nccl-tests reads: the host's, also on
    GPUs. A single rank has bandwidths, too: its bus bandwidth is 0 for operations in which only the data of other ranks
    cross the bus. None for what is unknown; a bandwidth also if ranks share a GPU, or if no data is moved.
    """
    case, wrong = summary.case, wrong_elements(run, summary)
    if seconds is None and summary.time_s is not None:
        seconds = summary.time_s.value if summary.host_time_s is None else summary.host_time_s
    if seconds is None:
        return None, None, None, wrong
    algbw, busbw = collectives.algbw(case, seconds), collectives.busbw(case, seconds)
    if ranks_together(case) == 1 and not case.oversubscribed:
        factor = OPERATIONS[case.op].bus_factor
        algbw = case.size_bytes / seconds
        busbw = None if factor is None else algbw * factor(1)
    return seconds * 1e6, algbw and algbw / 1e9, busbw and busbw / 1e9, wrong


def _device_times(members: Sequence[Summary]) -> Iterable[str]:
    """Yield the times of the device, one line per size, if the columns have the host's times."""
    texts = [
        (s.case, f"{_fitted(s.time_s.value * 1e6, 7)} us {place_named(s.case)}")
        for s in members
        if s.time_s is not None and s.host_time_s is not None
    ]
    if texts:
        yield "# Device time, by CUDA events; `report` shows it, and names cases that dispatching slows nevertheless:"
    for case, row in grouped(texts, lambda timed: PLACEMENTS.residue(timed[0])).items():
        yield f"# {case.size_bytes:>10}  {', '.join(text for _, text in row)}"


def _fitted(number: float | None, width: int) -> str:
    """Format a number with up to two decimals, as many as the column has room for, like nccl-tests."""
    if number is None:
        return NO_NUMBER
    texts = (f"{number:.{decimals}f}" for decimals in (2, 1, 0))
    return next((text for text in texts if len(text) <= width), f"{number:.{1 if width >= 7 else 0}e}")
