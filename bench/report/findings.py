"""Write as text what stands out in a run: slow ranks, outliers, models of time, replays; and which nodes pass a gate.

In: conclusions. Out: Markdown. Computes only shares and layout.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from bench.model.comparisons import CheckVerdict, GateVerdict
from bench.model.conclusions import (
    Analysis,
    Diagnosis,
    Fit,
    GlooStalls,
    Interval,
    RecordedJob,
    RecordedKind,
    RecordedTime,
    ReplayedKind,
    ReplayedStep,
)
from bench.model.units import first_few, format_bytes, format_rate, format_rounded_bytes, format_seconds, format_share
from bench.report import markdown
from bench.report.labels import (
    NOTHING,
    between,
    counted,
    dtype_words,
    family,
    interval_text,
    label,
    ranks_text,
)

# Kinds of calls in the table of a replay; the rest are one row.
MOST_KINDS = 12
# Cause and remedy of gloo's stalls.
STUDY = "docs/studies/gloo-stalls.md"
# Nodes that passed and were never suspected are only counted beyond so many.
SHOWN_NODES = 16
CHOICES_EXPLAINED = (
    "Algorithm, protocol and channels, as NCCL wrote them in a launch of its own that was not timed. A step in the "
    "times is often a change of these."
)
MODEL_EXPLAINED = (
    "t = α + size·β, piecewise, least relative squares; r∞ = 1/β and n½ = α/β are those of the largest sizes "
    "(algorithm bandwidth). With 95 % intervals over launches."
)
OUTLIERS_EXPLAINED = (
    "Iterations more than 1.5 (far: 3) interquartile ranges above the upper quartile, all of them kept. What was seen "
    "at the same time is a likely cause, not a proven one."
)
RECORDED_EXPLAINED = (
    "Time a step, mean over the recorded ranks. While several calls are under way, it is counted for the one that ends "
    "first."
)
DIVIDED_EXPLAINED = (
    "Moving: as long as the call was on the rank where it was shortest, which came last. Waiting: the rest."
)
EXPOSED_EXPLAINED = "Exposed: the part in which nothing was computed."
REPLAY_EXPLAINED = (
    "Time of a step, mean over ranks, recorded and made again; here, too, they hold waiting for ranks that come late."
)


def standing_out(analysis: Analysis) -> list[str]:
    """What every reader should see: who is slow, contradictions, and the calls of a recorded job."""
    parts = ["## What stands out", diagnosis(analysis.diagnosis)]
    if analysis.inconsistencies:
        parts += ["The run contradicts itself:", markdown.lines(finding.text for finding in analysis.inconsistencies)]
    if analysis.recorded is not None:
        parts += ["## The recorded job", *recorded_parts(analysis.recorded)]
    for step in analysis.replayed:
        parts += [f"## The recorded job, made again on {ranks_text(step.case.world_size)}"]
        parts += [replay_table(step), REPLAY_EXPLAINED]
        if step.changes:
            parts += ["Not as recorded:", markdown.lines(step.changes)]
    return parts


def diagnosis(result: Diagnosis) -> str:
    """The findings, then what was not found or could not be told."""
    named = [f"**{finding.subject}**: {finding.text}" for finding in result.findings]
    return markdown.lines([*named, *result.silent]) or "Nothing was checked."


def folded(analysis: Analysis) -> list[str]:
    """What only some readers need: outliers, what NCCL chose, models and bounds, if there are any."""
    outliers, dependence = [], []
    noticed = [s for s in analysis.summaries if s.far_outliers and s.outlier_causes]
    if noticed:
        rows = [
            [label(s.case), f"{s.outliers} of {s.iterations}", str(s.far_outliers), "; ".join(s.outlier_causes)]
            for s in noticed
        ]
        headers = ["case", "outliers", "far", "seen beside them"]
        outliers = [OUTLIERS_EXPLAINED, markdown.table(rows, headers, "lrrl")]
    if analysis.fits:
        dependence += [MODEL_EXPLAINED, _models(analysis.fits)]
    if analysis.bounds:
        rows = [
            [bound.backend, str(bound.world_size), bound.name, format_rate(bound.busbw)] for bound in analysis.bounds
        ]
        headers = ["backend", "ranks", "bound", "bus bandwidth GB/s"]
        table = markdown.table(rows, headers, "lrlr")
        dependence += ["No case can exceed these bus bandwidths:", table]
    return [
        *markdown.folded("Outliers", outliers),
        *markdown.folded(
            "What NCCL chose", [CHOICES_EXPLAINED, markdown.lines(analysis.choices)] if analysis.choices else []
        ),
        *markdown.folded("How time depends on size", dependence),
    ]


def _models(fits: Sequence[Fit]) -> str:
    """One row per series of sizes."""

    def with_interval(interval: Interval | None, text: Callable[[float], str]) -> str:
        if interval is None:
            return NOTHING
        return f"{text(interval.value)} {interval_text(interval, text)}" if interval.known else text(interval.value)

    rows = [
        [
            family(fit.case),
            str(fit.case.world_size),
            with_interval(fit.alpha_s, format_seconds),
            with_interval(fit.rate, format_rate),
            with_interval(fit.half_size, format_rounded_bytes),
            format_rounded_bytes(fit.half_size_seen) if fit.half_size_seen else NOTHING,
            str(len(fit.segments)) if fit.segments else NOTHING,
            fit.note or f"{fit.worst_residual:.0%}",
        ]
        for fit in fits
    ]
    headers = ["operation", "ranks", "α", "r∞ GB/s", "n½", "n½ seen", "segments", "worst residual"]
    return markdown.table(rows, headers, "lrrrrrrl")


def stalls_sentence(stalls: GlooStalls) -> str:
    """What gloo's small calls wait for, and how much faster they are without; or that neither is so."""
    doubt = " Other programs used the cores meanwhile: calls wait for these, too." if stalls.disturbed else ""
    return _stalls_text(stalls) + doubt


def _stalls_text(stalls: GlooStalls) -> str:
    waiting, small = "", f"calls of up to {format_bytes(stalls.largest_bytes)}"
    if stalls.cases:
        ranks = " or ".join(map(str, sorted({case.world_size for case in stalls.cases})))
        sizes = {case.size_bytes for case in stalls.cases}
        ends = between(*map(format_bytes, (min(sizes), max(sizes)))) if len(sizes) > 1 else format_bytes(*sizes)
        share = f"{format_share(stalls.share)} of calls ({ends}, {ranks} ranks)"
        waiting = f"{share} wait {format_seconds(stalls.wait_s)}"
    if stalls.factor is None:
        remedy = "`--set scheduling=[normal,batch]` shows it"
        return f"**gloo may stall here**: {waiting}, most likely for a lock that gloo spins on ({STUDY}): {remedy}."
    ratio = stalls.factor
    factor = f"{ratio.value:.1f} times as fast [{ratio.low:.1f} – {ratio.high:.1f}]"
    match stalls.verdict:
        case "stalls":
            waits = f"{waiting or 'small calls wait'} for a lock that gloo spins on"
            return f"**gloo stalls here**: {waits}; four lines ({STUDY}) make {small} {factor}."
        case "other":
            return f"**Not gloo's lock**: {waiting}, but without the lock (scheduling=batch) {small} are {factor}."
        case "harms":
            slower = between(*(f"{1 / end:.1f}" for end in (ratio.high, ratio.low)))
            return (
                f"**SCHED_BATCH does harm here**: {small} take {1 / ratio.value:.1f} times as long [{slower}] in it, "
                f"as where other programs compute on the same cores ({STUDY})."
            )
        case "none":
            return f"**gloo does not stall here**: without the lock that it may spin on, {small} are {factor}."
    doubt = f"{waiting}; without the lock that gloo may spin on, {small} are {factor}".removeprefix("; ")
    return f"**Undecided whether gloo stalls here**: {doubt}; more launches would tell."


# ── a recorded job ───────────────────────────────────────────────────────────────────────────────
def recorded_parts(job: RecordedJob) -> list[str]:
    """Where the time in calls went: the sentence, tables by kind and by group, and what is withheld."""
    parts = [recorded_sentence(job)]
    parts.append(_recorded_table("calls", [(recorded_kind(kind), kind.time) for kind in job.kinds], job))
    if len(job.groups) > 1:
        parts.append(_recorded_table("group", list(job.groups), job))
    if job.total is not None:
        divided = job.total.moved_s or job.total.waited_s
        explained = [DIVIDED_EXPLAINED] * bool(divided) + [EXPOSED_EXPLAINED] * (job.total.exposed_s is not None)
        parts.append(" ".join([RECORDED_EXPLAINED, *explained]))
    if job.withheld:
        parts += ["Not told:", markdown.lines(job.withheld)]
    return parts


def recorded_sentence(job: RecordedJob) -> str:
    """Such as `calls took 5.80 ms a step: 0.22 ms moving data, 5.58 ms waiting, 95% of it for rank 3`."""
    if job.total is None:
        return f"{job.source}: how long calls took was not recorded"
    total, period = job.total, "a step" if job.steps > 1 else "in the recording"
    text = f"calls took {format_seconds(total.in_calls_s)} {period}"
    if not total.moved_s and not total.waited_s:
        text += "; how much of it was waiting cannot be told"
    elif not total.waited_s and not total.unsplit_s:
        text += ", all of it moving data"
    else:
        rest = f", {format_seconds(total.unsplit_s)} that cannot be divided" if total.unsplit_s else ""
        text += f": {format_seconds(total.moved_s)} moving data{rest}, {format_seconds(total.waited_s)} waiting"
        if job.late is not None:
            text += f", {job.late[1]:.0%} of it for rank {job.late[0]}"
        elif total.waited_s:
            text += ", for no rank in particular"
    if total.exposed_s is not None:
        text += f"; during {format_seconds(total.exposed_s)} nothing was computed"
    return f"{text} ({job.source}, {counted(job.steps, 'step')})"


def recorded_kind(kind: RecordedKind) -> str:
    """Such as `all_reduce of 2 049 000 float32 over 8 ranks, 4 groups`."""
    size = f" of {kind.elements:,}".replace(",", "\u2009") if kind.elements else ""
    over = "" if kind.ranks is None else f" over {ranks_text(kind.ranks)}"
    return (
        f"{kind.operation}{size} {kind.dtype or ''}".rstrip()
        + over
        + (f", {kind.groups} groups" if kind.groups > 1 else "")
    )


def _recorded_table(heading: str, rows: Sequence[tuple[str, RecordedTime]], job: RecordedJob) -> str:
    """A row for each kind of call or group, the longest first."""
    total = job.total
    divided = total is not None and bool(total.moved_s or total.waited_s)
    computing = total is not None and total.exposed_s is not None
    cells = [[name, *_recorded_cells(time, total is not None, divided, computing)] for name, time in rows[:MOST_KINDS]]
    if rest := rows[MOST_KINDS:]:
        sums = [f"{sum(time.calls for _, time in rest):.3g}"]
        sums += [format_seconds(sum(time.in_calls_s for _, time in rest))] * (total is not None)
        cells.append([f"{len(rest)} further", *sums, *[NOTHING] * (3 * divided + computing)])
    headers = ["number", *(["in calls"] * (total is not None)), *(["moving", "waiting", "most for"] * divided)]
    headers += ["exposed"] * computing
    return markdown.table(cells, [heading, *headers], "l" + "r" * len(headers))


def _recorded_cells(time: RecordedTime, timed: bool, divided: bool, computing: bool) -> list[str]:
    cells = [f"{time.calls:.3g}", *([format_seconds(time.in_calls_s)] * timed)]
    if divided:
        known = bool(time.moved_s or time.waited_s)
        cells += [format_seconds(value) if known else NOTHING for value in (time.moved_s, time.waited_s)]
        last = max(time.waited_for, key=time.waited_for.__getitem__, default=None)
        cells.append(NOTHING if last is None else f"rank {last}")
    if computing:
        cells.append(NOTHING if time.exposed_s is None else format_seconds(time.exposed_s))
    return cells


def replay_sentence(step: ReplayedStep) -> str:
    """Whose calls are made, if not each rank's own; the communication of a step, recorded and here; most of it."""
    recorded = "its times were not recorded; "
    if step.recorded is not None:
        moved = f" of which {format_seconds(step.recorded.moved_s)} moved data" if step.recorded.moved_s else ""
        recorded = f"recorded {format_seconds(step.recorded.in_calls_s)}{moved}, "
    ranks = step.case.world_size
    other = step.recorded_world is not None and step.recorded_world != ranks
    where = f"here, with {ranks_text(ranks)} in place of {step.recorded_world}," if other else "here"
    here = f"{where} {format_seconds(step.time.value)} {interval_text(step.time, format_seconds)}"
    largest, total = step.kinds[0], sum(kind.time.value for kind in step.kinds)
    share = largest.time.value / total if total else 0.0
    times = f"{largest.calls:.3g} × " if largest.calls > 1 else ""
    most = f"{format_share(share)} of it is {times}{kind_name(largest)}"
    text = f"communication of one step, mean over ranks: {recorded}{here}; {most}"
    return f"{step.stand_in}. {text}" if step.stand_in else text


def kind_name(kind: ReplayedKind) -> str:
    """Such as `all_gather of 33 MiB bfloat16 over 8 ranks`."""
    case = kind.case
    size = f" of {format_bytes(case.size_bytes)}" if case.size_bytes else ""
    return f"{case.op}{size} {' '.join(dtype_words(case))}".rstrip() + f" over {ranks_text(kind.ranks)}"


def replay_table(step: ReplayedStep) -> str:
    """A row for each kind of call, the longest first."""
    total = sum(kind.time.value for kind in step.kinds)
    rows = []
    for kind in step.kinds[:MOST_KINDS]:
        moved = kind.calls * kind.case.size_bytes
        recorded = kind.recorded
        rows.append(
            [
                kind_name(kind),
                f"{kind.calls:.3g}",
                format_rounded_bytes(moved) if moved else NOTHING,
                NOTHING if recorded is None else format_seconds(recorded.in_calls_s),
                NOTHING if recorded is None or not recorded.moved_s else format_seconds(recorded.moved_s),
                f"{format_seconds(kind.time.value)} {interval_text(kind.time, format_seconds)}",
                f"{kind.time.value / total:.0%}" if total else NOTHING,
            ]
        )
    rest = step.kinds[MOST_KINDS:]
    if rest:
        calls, moved = sum(kind.calls for kind in rest), sum(kind.calls * kind.case.size_bytes for kind in rest)
        time_s = sum(kind.time.value for kind in rest)
        counts = [f"{len(rest)} further kinds", f"{calls:.3g}", format_rounded_bytes(moved)]
        rows.append([*counts, NOTHING, NOTHING, format_seconds(time_s), f"{time_s / total:.0%}"])
    headers = ["calls of a step", "number", "bytes", "recorded", "moving", "here", "share"]
    return markdown.table(rows, headers, "lrrrrrr")


# ── a fleet ──────────────────────────────────────────────────────────────────────────────────────
def gate_document(verdict: GateVerdict, names: Sequence[str]) -> str:
    """Whether a fleet is good enough: the verdict, then a row for each node that did not simply pass.

    names: of the nodes.
    """
    odd = [check for check in verdict.nodes if check.verdict != CheckVerdict.PASS or check.note]
    shown = list(verdict.nodes) if len(verdict.nodes) <= SHOWN_NODES else odd
    rows = [[names[check.node], check.verdict, _share(check.rate), check.note] for check in shown]
    counts = Counter(check.verdict for check in verdict.nodes)
    counted = ", ".join(f"{count} {word}" for word, count in counts.items())
    failed = [names[check.node] for check in verdict.nodes if check.verdict == CheckVerdict.FAIL]
    named = f"{first_few(failed, SHOWN_NODES)}; " if failed else ""
    lines = [f"{verdict.verdict}: {named}of {len(verdict.nodes)} nodes {counted}", ""]
    if rows:
        headers = ["node", "verdict", "of the usual rate", "note"]
        lines += [markdown.table(rows, headers, "llrl"), ""]
    if len(shown) < len(verdict.nodes):
        lines.append(f"and {len(verdict.nodes) - len(shown)} further nodes that passed")
    return "\n".join([*lines, *verdict.remarks, *(f"failed: {text}" for text in verdict.broken)]).rstrip()


def _share(rate: Interval | None) -> str:
    """Such as `61 % (55 to 68 %)`."""
    if rate is None:
        return NOTHING
    return f"{rate.value:.0%} ({rate.low:.0%} to {rate.high:.0%})" if rate.known else f"{rate.value:.0%}"
