"""Write report.md and report.html: the answer, tables, pictures, how far to trust the numbers, and the machine.

In: the `View` of a run, the pictures that exist. Out: blocks, also for the terminal, and files. The HTML page is the
same document with the pictures inside, so that one file can be mailed. Packages describe their own measurements
(`text.Text`). An imported run is described as far as its files allow. The only statistic that is computed here
is the median width of the intervals.
"""

import os
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from statistics import median

from collbench.catalog.collectives import OPERATIONS, is_copy
from collbench.model.conclusions import Summary
from collbench.model.facts import HostFacts, Manifest, ReportedFacts, Session
from collbench.model.notices import STOPPED_EARLY
from collbench.model.pages import page as page_of
from collbench.model.projection import grouped
from collbench.model.records import Case, Failure, Run, Skip
from collbench.model.units import FEW, first_few, format_rounded_bytes, format_seconds, format_share
from collbench.planning.footprint import checked_apart
from collbench.report import blocks, findings, labels, machine_format, markdown, tables
from collbench.report.blocks import Blocks, Column, Heading, fold, in_line, items, left, section, table
from collbench.report.labels import NOTHING, counted, known, label
from collbench.report.notices import sentence, sentences
from collbench.report.page import page
from collbench.report.plots import PICTURES, Picture
from collbench.report.tables import NOTHING_MEASURED, CaseTable, answer_table, case_details, rate_text, time_text
from collbench.report.view import View

# Maximum number of tables in the answer, and of caveats above it on a terminal; tables and report have all.
MOST_ANSWERED = MOST_CAVEATS = 3
# Maximum number of kinds of collectives, and of rows per kind, for which the answer has tables.
MOST_TABLED, MOST_ROWS = 2, 6
REPORT = "report.md"
# Scheduling of a case → words for it.
SCHEDULING = {
    "normal": "normal scheduling",
    "batch": "gloo's loop threads under SCHED_BATCH (batch)",
    "rr": "real-time scheduling (rr)",
}
# Pictures that are not folded, in addition to the first picture.
UNFOLDED = tuple(kind.name for kind in PICTURES if kind.unfolded)


def documents(view: View, pictures: Sequence[Picture], folder: Path, output: Path) -> dict[str, str]:
    """Return the files of a report: name → content. folder: where its pictures are. output: where the files will be."""
    address = os.path.relpath(folder, output)
    files = {f"{address}/{name}.png": folder / f"{name}.png" for _, name in pictures}
    report = build(view, pictures, address)
    return {
        "summary.csv": machine_format.to_csv(view),
        REPORT: markdown.written(report),
        "report.html": page(report, str(getattr(report[0], "text", view.run.name)), files),
    }


def build(view: View, pictures: Sequence[Picture] = (), folder: str = "") -> Blocks:
    """Build the whole report: the answer comes first, and parts that only some readers need are folded.

    folder: the path from the report to the pictures.
    """
    run, case_tables = view.run, view.tables
    images = {name: blocks.Picture(title, f"{folder}/{name}.png") for title, name in pictures}
    first = [name for name in images if name == pictures[0][1] or name.startswith(UNFOLDED)]
    package_blocks = [block for text in view.texts.values() for block in text.body]
    any_findings = view.analysis.diagnosis.findings or view.analysis.inconsistencies
    details = [[f"**{of.title}**"] * (len(case_tables) > 1) + case_details(of.members) for of in case_tables]
    pages = "".join(f"; {name}: {page_of(name)}" for name, text in view.texts.items() if text.body)
    return [
        Heading(in_line(f"{run.manifest.get('name', run.name)}: {_subject(run)}"), 1),
        in_line(" · ".join(_where(run))),
        *(answer_blocks(view, listed=True) or [_no_answer(run)]),
        *(images[name] for name in first),
        *section("Failed", _failed(run)),
        *tables.sections(case_tables),
        *package_blocks,
        *(findings.standing_out(view.analysis) if any_findings or case_tables or not package_blocks else []),
        Heading("How far to trust it"),
        *(items(view.caveats) or ["Nothing was found that casts doubt on these numbers."]),
        *fold("More pictures", [image for name, image in images.items() if name not in first]),
        *fold("Everything about each case", [block for of in details for block in of]),
        *findings.folded(view.analysis),
        *fold("Notes on single cases", _notes(view.calls)),
        *fold("Left out", _left_out(run)),
        *fold("Method: cases, machine and settings", [*items(_circumstances(view)), *method(view)]),
        f"Words: {page_of('reading')} (at the end of report.html). Method: {page_of('method')}{pages}.",
    ]


def as_markdown(view: View) -> str:
    """Return the whole report as Markdown without pictures, for standard output."""
    return markdown.written(build(view))


def _failed(run: Run) -> Blocks:
    """Return a table of the measurements that failed: a row for each case and failure."""
    failed = [(samples.case, samples.failure, samples.launch) for samples in run.samples if samples.failure is not None]
    launches = grouped(failed, lambda measured: measured[:2])
    columns: list[Column[tuple[Case, Failure]]] = [
        left("case", lambda row: labels.span([row[0]])),
        left("launch", lambda row: ", ".join(str(launch) for *_, launch in launches[row])),
        left("kind", lambda row: row[1].kind),
        left("rank", lambda row: labels.optional(row[1].rank, str)),
        left("what happened", lambda row: row[1].text),
    ]
    return table(launches, columns)


def _notes(summaries: Sequence[Summary]) -> Blocks:
    """Return the notices on single cases, except that a case stopped early, which is a column of the tables."""
    noted = [(s.case, text) for s in summaries for text in sentences(n for n in s.notices if n.kind != STOPPED_EARLY)]
    columns: list[Column[tuple[Case, str]]] = [
        left("case", lambda row: label(row[0])),
        left("note", lambda row: in_line(row[1])),
    ]
    return table(noted, columns)


def _left_out(run: Run) -> Blocks:
    """Return a table of the skipped cases, by reason."""
    columns: list[Column[list[Skip]]] = [
        Column("cases", lambda skips: str(len(skips))),
        left("which", lambda skips: labels.span([skip.case for skip in skips])),
        left("why", lambda skips: sentence(skips[0].reason)),
    ]
    return table(grouped(run.plan.skips, lambda skip: (sentence(skip.reason), skip.case.backend)).values(), columns)


def terminal(view: View) -> tuple[Blocks, Blocks]:
    """Return the blocks that `run` and `report` print: first the tables, then caveats and the answer.

    The answer comes first if a package has sections: its tables explain the answer and exceed a screen.
    """
    reply = answer_blocks(view, listed=False) or [_no_answer(view.run)] * bool(view.run.samples)
    more = len(view.caveats) - MOST_CAVEATS
    lines = [f"note: {text}" for text in view.caveats[:MOST_CAVEATS]] + [f"and {more} more in {REPORT}"] * (more > 0)
    notes: Blocks = ["\n".join(lines)] if lines else []
    first = any(text.body for text in view.texts.values())
    above, below = (reply, notes) if first else ([], [*notes, *reply])
    # The tables of collectives, then the tables of packages.
    package_blocks = [block for text in view.texts.values() for block in text.brief]
    call_tables = tables.terminal_tables(view.tables) if view.calls or not view.run.samples else []
    return [*above, *call_tables, *package_blocks], below


def problems(run: Run) -> list[str]:
    """Return a sentence on the failed measurements and how many a resume would repeat; nothing if none failed."""
    failed = [samples for samples in run.samples if samples.failure is not None]
    lost = sum(not samples.final for samples in failed)
    again = f"; collbench resume {run.path} measures {lost} of them again" if lost else ""
    return [f"{len(failed)} of {len(run.samples)} measurements failed; the report says why{again}"] if failed else []


# ── the answer ───────────────────────────────────────────────────────────────────────────────────
def brief(view: View) -> str:
    """Return the answer in one line: a warning if some are missing, the first result, and if one launch made it."""
    texts = answer(view) or [_no_answer(view.run)]
    alone = [s.launches == 1 and not s.imported for s in view.calls if s.time_s is not None]
    first = texts[: 1 + (view.analysis.incomplete is not None) + view.virtual]
    return " ".join([*first, *["No interval: one launch."] * (bool(alone) and all(alone))])


def answer(view: View) -> list[str]:
    """Return the answer: missing measurements, main numbers, findings, and how far to trust the numbers.

    Empty if no measurement is missing and nothing was measured.
    """
    return [text for part in _answer(view) for text in part]


def answer_blocks(view: View, listed: bool) -> Blocks:
    """Return the answer; with few kinds of collectives, their numbers are tables. listed: make sentences a list."""

    def blocks(texts: Sequence[str]) -> Blocks:
        return items(texts) if listed else ["\n".join(map(in_line, texts))] * bool(texts)

    first, calls, rest = _answer(view)
    timed = view.timed_tables
    longest = max((len({*case_table.columns.values()}) for case_table in timed), default=0)
    numbers = blocks(calls)
    if len(timed) <= MOST_TABLED and longest <= MOST_ROWS and not view.run.plan.settings.row_by_row:
        titles = [case_table.title if len(timed) > 1 else case_table.name for case_table in timed]
        pairs = zip(titles, timed, strict=True)
        numbers = [block for title, case_table in pairs for block in (f"**{title}**", *answer_table(case_table))]
    return [*blocks(first), *numbers, *blocks(rest)]


def _answer(view: View) -> tuple[list[str], list[str], list[str]]:
    """Return three parts: the text before the numbers, the numbers of collectives, and all other sentences."""
    analysis, calls = view.analysis, _call_lines(view)
    lines = [line for text in view.texts.values() for line in text.answer]
    stated = [sentence(finding.notice) for finding in (*analysis.diagnosis.findings, *analysis.inconsistencies)]
    if stated:
        more = f"; {len(stated) - 1} more in {REPORT}" if len(stated) > 1 else ""
        lines.append(f"**Stands out**: {stated[0]}{more}.")
    missing = [] if analysis.incomplete is None else [f"**{sentence(analysis.incomplete)}**."]
    virtual = [f"**Virtual GPUs**: these times {labels.BY_RULE}."] * view.virtual
    trust = [_trust(view)] if calls or lines else []
    return [*virtual, *missing], calls, [*lines, *_stopped(view), *trust]


def _call_lines(view: View) -> list[str]:
    """Return a line for each of the first MOST_ANSWERED tables of collectives."""
    names = Counter(case_table.name for case_table in view.timed_tables)
    lines = [
        f"**{case_table.name if names[case_table.name] == 1 else case_table.title}**: {_table_answer(case_table)}"
        for case_table in view.timed_tables[:MOST_ANSWERED]
    ]
    more = len(view.timed_tables) - MOST_ANSWERED
    return [*lines, f"{counted(more, 'further kind')} of cases: see the tables."] if more > 0 else lines


def _stopped(view: View) -> list[str]:
    """State why or when a run with a budget stopped; empty without a budget."""
    plan = view.run.plan
    if plan.budget_s is None or view.analysis.incomplete is not None:
        return []
    target = plan.settings.sampling.relative_error
    intervals = [s.time_s for s in view.calls if s.time_s is not None]
    if target is not None and intervals and all(time.relative_half_width <= target for time in intervals):
        return [f"Stopped: every interval is within {format_share(target)}."]
    launches = max((s.launches for s in view.calls), default=0)
    return [f"Stopped after {counted(launches, 'launch')}, with a budget of {plan.budget_s:g} s."] if launches else []


def _trust(view: View) -> str:
    """Return a sentence on typical and worst precision, on verification, and on the number of caveats."""
    phrases = []
    alone = [s for s in view.analysis.summaries if s.time_s is not None and not OPERATIONS[s.case.op].against]
    meaning, widths = tables.widths({s.case: s.time_s for s in alone if s.time_s is not None})
    if len(widths) > 1:
        worst = max(widths, key=lambda case: widths[case])
        where = tables.place(worst, tables.column_headers(widths))
        typical = format_share(median(widths.values()))
        phrases.append(f"typical {meaning} within this run ±{typical}, worst ±{format_share(widths[worst])} ({where})")
    elif widths:
        phrases.append(f"{meaning} within this run ±{format_share(next(iter(widths.values())))}")
    elif alone:
        only = "there is only one launch" if view.run.plan.launches == 1 else "each case has only one good launch"
        phrases.append(f"there is no interval, because {only}")
    if (noise_s := view.analysis.noise_s) is not None:
        phrases.append(f"two copies of one case differ by up to {format_seconds(noise_s)} per call")
    count = len(view.caveats)
    phrases += [_verified(view), counted(count, "caveat") if count else "no caveats"]
    return f"**Trust**: {'; '.join(phrases)}."


def _table_answer(case_table: CaseTable) -> str:
    """Return a sentence with the time of the smallest size at each world size, and the best bus bandwidth."""
    sure = {summary.case: summary for summary in case_table.members if not summary.only_clock}
    if not sure:
        return "no time, because the calls take as long as reading the clock."
    rows, columns = case_table.rows, case_table.columns
    size = next(name for case, name in rows.items() if case in sure)
    times = [f"{time_text(s)} with {columns[case]}" for case, s in sure.items() if rows[case] == size]
    text = (f"{size} takes " if size != NOTHING else "") + ", ".join(times)
    best = max(sure.values(), key=lambda s: s.busbw or 0.0)
    if (rate := rate_text(best.busbw)) != NOTHING:
        text += f". Bus bandwidth reaches {rate} GB/s ({tables.place(best.case, columns)})"
    return f"{text}."


def _no_answer(run: Run) -> str:
    """State why there is no number: nothing was measured, or all measurements failed."""
    failures = [(samples.case, samples.failure) for samples in run.samples if samples.failure is not None]
    if not failures:
        return NOTHING_MEASURED
    case, failure = failures[0]
    return f"No number: {counted(len(failures), 'measurement')} failed; {label(case)}: {in_line(failure.text)}"


def _verified(view: View) -> str:
    """State whether the results were verified, and how many were wrong."""
    run = view.run
    wrong = sum(samples.failure is not None and samples.failure.kind == "wrong" for samples in run.samples)
    if run.imported is not None and wrong:
        return f"{counted(wrong, 'result')} WRONG by the tool's own check; no number is printed for them"
    if run.imported is not None:
        return "not verified by CollBench"
    if wrong:
        return f"{counted(wrong, 'measurement')} gave WRONG results; no number is printed for them"
    with_invariants = first_few(sorted({samples.case.op for samples in run.samples if samples.checks}))
    calls = any(not samples.checks for samples in run.samples)
    apart = any(checked_apart(samples.case) for samples in run.samples)
    failed = any(samples.failure is not None for samples in run.samples)
    every = "every result that is shown was verified" if failed else "every result was verified"
    if all(samples.failure is not None for samples in run.samples):
        return "there is no result to verify"
    how = "results of separate calls were verified, before and after timing" if apart else every
    invariants = known(("the invariants of every {} were checked before it was timed", with_invariants or None))
    return "; ".join([*[how] * (calls or not invariants), *invariants])


# ── cases, machine and method ────────────────────────────────────────────────────────────────────
def _subject(run: Run) -> str:
    """Return the operations of the run, and the time when it began."""
    named = first_few(sorted({case.op for case in run.plan.cases}) or ["nothing"])
    started = str(run.manifest.get("started") or "")[:16].replace("T", " ")
    return ", ".join([named, *(["imported"] if run.imported is not None else known(("{} UTC", started)))])


def _where(run: Run) -> list[str]:
    """Return short texts on the run: its name, which has its time, the machine, and the version of torch."""
    host: HostFacts = run.environment[0].get("host", {}) if run.environment else {}
    cpu = host.get("cpu", {})
    uses_gpus = "nccl" in {case.backend for case in run.plan.cases}
    gpus = dict.fromkeys(str(gpu.get("name")) for gpu in host.get("gpus", []) if uses_gpus)
    machine = [*gpus] or known(("{}", cpu.get("model")), ("{} cores", cpu.get("usable_cores")))
    return [run.name, *machine, *known(("torch {}", host.get("packages", {}).get("torch")))]


def _circumstances(view: View) -> list[str]:
    """Return lines on the cases, the state of the run, the machine, its software, and the data."""
    run, cases, summaries = view.run, view.run.plan.cases, view.analysis.summaries
    session = run.environment[0] if run.environment else {}
    lines = []
    operations = dict.fromkeys(case.op for case in cases)
    if len(operations) > FEW:
        lines.append(f"**Operations**: {', '.join(operations)}")
    if cases:
        counts = f"{counted(len(cases), 'case')} × {counted(run.plan.launches, 'launch')}"
        lines.append(f"**What**: {labels.span([case for case in cases if not is_copy(case)])}; {counts}")
    done = sum(1 for samples in run.samples if samples.failure is None)
    state = "imported" if run.imported is not None else run.manifest.get("status")
    lines.append(
        f"**State**: {state}; {done} of {run.plan.total} measurements good, {len(run.samples) - done} failed, "
        f"{len(run.plan.skips)} cases skipped{duration(run.manifest) if run.imported is None else ''}"
    )
    if run.imported is not None:
        files = [
            f"{file.get('name')} (sha256 {str(file.get('sha256'))[:12]})" for file in run.imported.get("files", [])
        ]
        lines.append(f"**From**: {', '.join(run.imported.get('tool', []))}, imported; {', '.join(files)}")
        machine: ReportedFacts = session.get("imported", {})
        where = known(("{}", ", ".join(machine.get("hosts", []))), ("{}", machine.get("devices")))
        lines += known(("**On** (as the file says): {}", ": ".join(where)))
        lines += known(("**With** (as the file says): NCCL {}", machine.get("nccl")))
    else:
        lines += machine_lines(session)
    lines.append(f"**Data**: {_verified(view)}")
    timers = [s.timer_s for s in summaries if s.timer_s is not None]
    if timers and run.imported is None:
        lines.append(f"**Clock**: reading it costs up to {format_seconds(max(timers))}, which is not subtracted")
    return lines


def machine_lines(session: Session) -> list[str]:
    """Return lines on the launcher, machine, GPUs and software, as far as they are known."""
    lines = []
    if "job" in session:
        names = list(dict.fromkeys(str(host.get("hostname")) for host in session["hosts"]))
        hosts = "host" if len(names) == 1 else f"{len(names)} hosts:"
        job = session["job"]
        lines.append(f"**Started by**: {job['launcher']}, {job['ranks']} ranks on {hosts} {first_few(names)}")
    host: HostFacts = session.get("host", {})
    cpu = host.get("cpu", {})
    machine = known(
        ("{} cores", cpu.get("usable_cores")),
        ("{}", cpu.get("model")),
        ("{} of memory", format_rounded_bytes(memory) if (memory := host.get("memory_bytes")) else None),
        ("kernel {}", host.get("kernel")),
        ("in a virtual machine", cpu.get("hypervisor") == "yes"),
    )
    gpus = [known(("{}", gpu.get("name")), ("driver {}", gpu.get("driver"))) for gpu in host.get("gpus", [])]
    # The versions of NCCL and MPI that the ranks had loaded.
    ranks = [rank for launch in session.get("launches", []) for rank in launch.get("ranks", [])]
    software = known(
        ("torch {}", host.get("packages", {}).get("torch")),
        ("Python {}", host.get("python")),
        ("CollBench {}", " ".join(known(("{}", host.get("collbench")), ("(commit {})", host.get("commit"))))),
        *(("NCCL {}", version) for version in sorted({str(rank.get("nccl") or "") for rank in ranks})),
        *(("{}", version) for version in sorted({str(rank.get("mpi") or "") for rank in ranks})),
    )
    return [
        *lines,
        *known(("**On**: {}", ": ".join(known(("{}", host.get("hostname")), ("{}", ", ".join(machine)))))),
        *(f"**GPU**: {gpu if n == 1 else f'{n} × {gpu}'}" for gpu, n in Counter(map(", ".join, gpus)).items()),
        *known(("**With**: {}", ", ".join(software))),
    ]


def duration(manifest: Manifest) -> str:
    """Format the duration of a run as `; took 62.8 s`; empty if it is unknown."""
    ends = [datetime.fromisoformat(str(moment)) for name in ("started", "finished") if (moment := manifest.get(name))]
    return f"; took {format_seconds((ends[1] - ends[0]).total_seconds())}" if len(ends) == 2 else ""


def method(view: View) -> Blocks:
    """Describe how the numbers were measured: a line on cases by themselves, and a line on those with references."""
    compared = [s for s in view.analysis.summaries if OPERATIONS[s.case.op].against]
    alone = view.calls or [s for s in view.analysis.summaries if not OPERATIONS[s.case.op].against]
    lines = [*([method_of_calls(view.run, alone)] if alone else []), *_methods_of_compared(view.run, compared)]
    return [*lines] or ["How measured: nothing was measured."]


def _methods_of_compared(run: Run, summaries: Sequence[Summary]) -> list[str]:
    """Return a line per operation on how cases with references were measured."""
    settings, lines = run.plan.settings, []
    for op, members in grouped(summaries, lambda summary: summary.case.op).items():
        own, unit = settings.own_of(members[0].case), members[0].case.own.UNIT
        lines.append(
            f"How measured, {op}: {_range([s.case.depth for s in members])} {unit}s back to back between two barriers, "
            f"slowest rank · every case in each of {own.rounds} rounds, each round in another random order, seed "
            f"{settings.seed} · {counted(run.plan.launches, 'launch')} of fresh processes · blocks in which other "
            f"processes used more than {format_share(own.max_foreign_cpu)} of the machine's CPU time are left out · ± "
            "is the standard deviation over rounds"
        )
    return lines


def method_of_calls(run: Run, summaries: Sequence[Summary]) -> str:
    """Return a line on how collectives were measured. summaries: at least one."""
    cases = [s.case for s in summaries]
    metrics = " and ".join(dict.fromkeys(map(labels.metric_name, cases)))
    if run.imported is not None:
        several = run.plan.launches > 1
        launches = f"geometric mean over {run.plan.launches} launches" if several else "one launch, so no intervals"
        return (
            f"How measured: not by CollBench, but by {', '.join(run.imported.get('tool', []))} · {metrics} · "
            f"{' / '.join(run.imported.get('statistic', []))} · {launches} · size is the total in bytes, "
            "GB = 10⁹ bytes"
        )
    # In a job, ranks share no memory for a barrier (docs/method.md, "The barrier").
    barrier = "barrier over the network" if any("job" in session for session in run.environment) else "barrier"
    clock = "CUDA events" if any(s.host_time_s is not None for s in summaries) else "perf_counter"
    timed = [s for s in summaries if s.launches]
    means = ["maximum over ranks"]
    if timed:
        means.append(f"mean over {_range([s.iterations // s.launches for s in timed])} iterations")
    if any(s.launches > 1 for s in timed):
        means.append(f"geometric mean over {_range([s.launches for s in timed])} launches")
    buffers = next((f"{c.buffers} buffers · " for c in cases if OPERATIONS[c.op].pooled), "")
    kinds = list(dict.fromkeys(c.scheduling for c in cases))
    scheduling = "" if kinds == ["normal"] else f"{' and '.join(SCHEDULING[kind] for kind in kinds)} · "
    settings = run.plan.settings
    order = "one size after the other" if settings.row_by_row else f"order shuffled, seed {settings.seed}"
    return (
        f"How measured: {metrics} · {barrier} before each call · {clock} · {', '.join(means)} · "
        f"{scheduling}{buffers}{order} · "
        "each table states the meaning of size, GB = 10⁹ bytes"
    )


def _range(counts: Sequence[int]) -> str:
    """Format the smallest and the largest count as `40–493`, or as `8` if they are equal."""
    return "–".join(map(str, sorted({min(counts), max(counts)})))
