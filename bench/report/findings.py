"""Write as text what stands out in a run: slow ranks, outliers, models of time, replays; and which nodes pass a gate.

In: conclusions. Out: blocks and sentences. Computes only shares and layout.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from bench.model.comparisons import CheckVerdict, GateVerdict, NodeCheck
from bench.model.conclusions import (
    Analysis,
    Bound,
    Diagnosis,
    Fit,
    GlooStalls,
    RecordedJob,
    RecordedKind,
    RecordedTime,
    ReplayedKind,
    ReplayedStep,
    Summary,
)
from bench.model.units import first_few, format_bytes, format_rate, format_rounded_bytes, format_seconds, format_share
from bench.report.blocks import Blocks, Column, Heading, below, fold, items, left, table
from bench.report.labels import (
    NOTHING,
    between,
    counted,
    dtype_words,
    family,
    interval_text,
    label,
    ranks_text,
    seconds_text,
    with_interval,
)

Kinds = Sequence[ReplayedKind]
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


def standing_out(analysis: Analysis) -> Blocks:
    """What every reader should see: who is slow, contradictions, and the calls of a recorded job."""
    shown = [Heading("What stands out"), *diagnosis(analysis.diagnosis)]
    if analysis.inconsistencies:
        shown += ["The run contradicts itself:", *items(finding.text for finding in analysis.inconsistencies)]
    if analysis.recorded is not None:
        shown += [Heading("The recorded job"), *recorded_parts(analysis.recorded)]
    for step in analysis.replayed:
        shown += [Heading(f"The recorded job, made again on {ranks_text(step.case.world_size)}")]
        shown += [*replay_table(step), REPLAY_EXPLAINED]
        if step.changes:
            shown += ["Not as recorded:", *items(step.changes)]
    return shown


def diagnosis(result: Diagnosis) -> Blocks:
    """The findings, then what was not found or could not be told."""
    named = [f"**{finding.subject}**: {finding.text}" for finding in result.findings]
    return items([*named, *result.silent]) or ["Nothing was checked."]


def folded(analysis: Analysis) -> Blocks:
    """What only some readers need: outliers, what NCCL chose, models and bounds, if there are any."""
    outliers: list[Column[Summary]] = [
        left("case", lambda s: label(s.case)),
        Column("outliers", lambda s: f"{s.outliers} of {s.iterations}"),
        Column("far", lambda s: str(s.far_outliers)),
        left("seen beside them", lambda s: "; ".join(s.outlier_causes)),
    ]
    bounds: list[Column[Bound]] = [
        left("backend", lambda bound: bound.backend),
        Column("ranks", lambda bound: str(bound.world_size)),
        left("bound", lambda bound: bound.name),
        Column("bus bandwidth GB/s", lambda bound: format_rate(bound.busbw)),
    ]
    noticed = [s for s in analysis.summaries if s.far_outliers and s.outlier_causes]
    limits = table(analysis.bounds, bounds)
    return [
        *fold("Outliers", below(OUTLIERS_EXPLAINED, table(noticed, outliers))),
        *fold("What NCCL chose", below(CHOICES_EXPLAINED, items(analysis.choices))),
        *fold(
            "How time depends on size",
            [
                *below(MODEL_EXPLAINED, _models(analysis.fits)),
                *below("No case can exceed these bus bandwidths:", limits),
            ],
        ),
    ]


def _models(fits: Sequence[Fit]) -> Blocks:
    """One row per series of sizes."""
    columns: list[Column[Fit]] = [
        left("operation", lambda fit: family(fit.case)),
        Column("ranks", lambda fit: str(fit.case.world_size)),
        Column("α", lambda fit: with_interval(fit.alpha_s, format_seconds)),
        Column("r∞ GB/s", lambda fit: with_interval(fit.rate, format_rate)),
        Column("n½", lambda fit: with_interval(fit.half_size, format_rounded_bytes)),
        Column("n½ seen", lambda fit: format_rounded_bytes(fit.half_size_seen) if fit.half_size_seen else NOTHING),
        Column("segments", lambda fit: str(len(fit.segments)) if fit.segments else NOTHING),
        left("worst residual", lambda fit: fit.note or format_share(fit.worst_residual)),
    ]
    return table(fits, columns)


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
def recorded_parts(job: RecordedJob) -> Blocks:
    """Where the time in calls went: the sentence, tables by kind and by group, and what is withheld."""
    shown: Blocks = [recorded_sentence(job)]
    shown += _recorded_table("calls", [(recorded_kind(kind), kind.time) for kind in job.kinds], job)
    if len(job.groups) > 1:
        shown += _recorded_table("group", list(job.groups), job)
    if job.total is not None:
        divided = job.total.moved_s or job.total.waited_s
        explained = [DIVIDED_EXPLAINED] * bool(divided) + [EXPOSED_EXPLAINED] * (job.total.exposed_s is not None)
        shown.append(" ".join([RECORDED_EXPLAINED, *explained]))
    return [*shown, *below("Not told:", items(job.withheld))]


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
            text += f", {format_share(job.late[1])} of it for rank {job.late[0]}"
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


def _recorded_table(heading: str, rows: Sequence[tuple[str, RecordedTime]], job: RecordedJob) -> Blocks:
    """A row for each kind of call or group, the longest first."""
    total = job.total
    columns: list[Column[tuple[str, RecordedTime]]] = [
        left(heading, lambda row: row[0]),
        Column("number", lambda row: f"{row[1].calls:.3g}"),
    ]
    if total is not None:
        columns.append(Column("in calls", lambda row: format_seconds(row[1].in_calls_s)))
    if total is not None and (total.moved_s or total.waited_s):
        columns += [
            Column("moving", lambda row: _divided(row[1], row[1].moved_s)),
            Column("waiting", lambda row: _divided(row[1], row[1].waited_s)),
            Column("most for", lambda row: _waited_for(row[1])),
        ]
    if total is not None and total.exposed_s is not None:
        columns.append(
            Column("exposed", lambda row: NOTHING if row[1].exposed_s is None else format_seconds(row[1].exposed_s))
        )
    shown = list(rows[:MOST_KINDS])
    if rest := [time for _, time in rows[MOST_KINDS:]]:
        in_calls_s, calls = sum(time.in_calls_s for time in rest), sum(time.calls for time in rest)
        shown.append((f"{len(rest)} further", RecordedTime(calls, in_calls_s, 0.0, 0.0, 0.0, {}, None)))
    return table(shown, columns)


def _divided(time: RecordedTime, value: float) -> str:
    return format_seconds(value) if time.moved_s or time.waited_s else NOTHING


def _waited_for(time: RecordedTime) -> str:
    last = max(time.waited_for, key=time.waited_for.__getitem__, default=None)
    return NOTHING if last is None else f"rank {last}"


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


def replay_table(step: ReplayedStep) -> Blocks:
    """A row for each kind of call, the longest first; the last of them all further ones."""
    total = sum(kind.time.value for kind in step.kinds)
    # One kind, or several in a row.
    rows = [(kind,) for kind in step.kinds[:MOST_KINDS]] + [step.kinds[MOST_KINDS:]] * (len(step.kinds) > MOST_KINDS)

    def recorded(kinds: Kinds, time: Callable[[RecordedTime], float]) -> str:
        of_kind = kinds[0].recorded if len(kinds) == 1 else None
        return seconds_text(time(of_kind)) if of_kind is not None else NOTHING

    def moved(kinds: Kinds) -> str:
        size = sum(kind.calls * kind.case.size_bytes for kind in kinds)
        return format_rounded_bytes(size) if size else NOTHING

    def here(kinds: Kinds) -> str:
        return with_interval(kinds[0].time, format_seconds) if len(kinds) == 1 else format_seconds(time_s(kinds))

    def time_s(kinds: Kinds) -> float:
        return sum(kind.time.value for kind in kinds)

    columns: list[Column[Kinds]] = [
        left("calls of a step", lambda row: kind_name(row[0]) if len(row) == 1 else f"{len(row)} further kinds"),
        Column("number", lambda row: f"{sum(kind.calls for kind in row):.3g}"),
        Column("bytes", moved),
        Column("recorded", lambda row: recorded(row, lambda time: time.in_calls_s)),
        Column("moving", lambda row: recorded(row, lambda time: time.moved_s)),
        Column("here", here),
        Column("share", lambda row: format_share(time_s(row) / total) if total else NOTHING),
    ]
    return table(rows, columns)


# ── a fleet ──────────────────────────────────────────────────────────────────────────────────────
def gate_document(verdict: GateVerdict, names: Sequence[str]) -> Blocks:
    """Whether a fleet is good enough: the verdict, then a row for each node that did not simply pass.

    names: of the nodes.
    """
    odd = [check for check in verdict.nodes if check.verdict != CheckVerdict.PASS or check.note]
    shown = list(verdict.nodes) if len(verdict.nodes) <= SHOWN_NODES else odd
    columns: list[Column[NodeCheck]] = [
        left("node", lambda check: names[check.node]),
        left("verdict", lambda check: check.verdict),
        Column("of the usual rate", lambda check: with_interval(check.rate, format_share)),
        left("note", lambda check: check.note),
    ]
    counts = Counter(check.verdict for check in verdict.nodes)
    counted = ", ".join(f"{count} {word}" for word, count in counts.items())
    failed = [names[check.node] for check in verdict.nodes if check.verdict == CheckVerdict.FAIL]
    named = f"{first_few(failed, SHOWN_NODES)}; " if failed else ""
    further = len(verdict.nodes) - len(shown)
    remarks = [f"and {further} further nodes that passed"] * bool(further)
    remarks += [*verdict.remarks, *(f"failed: {text}" for text in verdict.broken)]
    headline = f"{verdict.verdict}: {named}of {len(verdict.nodes)} nodes {counted}"
    return [headline, *table(shown, columns), *(["\n".join(remarks)] if remarks else [])]
