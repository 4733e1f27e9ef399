"""Write report.md and report.html: what was measured, on what, how far to trust it, the tables, the pictures.

In: a `Run`, its analysis, the pictures that exist. Out: text, also for the terminal. The HTML page is the same
document, rendered from Markdown with the pictures inside, so that one file can be mailed. An imported run is described
as far as its files tell. Computes no statistics but the median width of the intervals.
"""

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from statistics import median

from bench.model.conclusions import Analysis, Summary
from bench.model.records import Json, Run
from bench.model.units import format_bytes, format_rate, format_rounded_bytes, format_seconds
from bench.report import findings, labels, machine_format, markdown, tables
from bench.report.labels import dtype_words, interval_text, label, metric_name, ranks_text, size_text, span
from bench.report.pictures import Picture

# Host names that the report lists; environment.json has them all.
SHOWN_HOSTS = 8
# Tables that fill a few screens, and sections that a reader can still browse; if there are more, one table holds all.
MOST_TABLES, MOST_SECTIONS = 6, 60
# Groups of cases that the answer speaks of; the tables have all.
MOST_GROUPS = 3
# Operations that a title has room for, and notes that a reader will still read.
MOST_NAMED, MOST_NOTES = 4, 200
COMPACT = "Time, half the width of its 95 % interval, and in brackets the bus bandwidth in GB/s:"
NO_RANK = "none"
# Pictures that are not folded, besides the first: they are the answer of the runs that have them.
UNFOLDED = {"matrix"}
# Beginnings of notes on cases that the tables have as columns.
IN_COLUMNS = ("stopped by", "two modes")
NOTHING_MEASURED = "Nothing was measured: the run has no samples (run --resume goes on where it ended)."
IN_FULL = "Everything about each case is in summary.csv."


def documents(run: Run, analysis: Analysis, pictures: Sequence[Picture], folder: Path, output: Path) -> dict[str, str]:
    """The files of a report, by name. folder: where its pictures are. output: where the files will be."""
    address = os.path.relpath(folder, output)
    text = build(run, analysis, pictures, address)
    files = {f"{address}/{name}.png": folder / f"{name}.png" for _, name in pictures}
    csv = machine_format.to_csv(run, analysis)
    return {"summary.csv": csv, "report.md": text, "report.html": markdown.page(text, run.name, files)}


def build(run: Run, analysis: Analysis, pictures: Sequence[Picture], folder: str) -> str:
    """The whole report as Markdown: the answer first, what only some readers need folded.

    folder: the path from the report to the pictures.
    """
    summaries, warnings = analysis.summaries, analysis.warnings
    unfolded = {*[name for _, name in pictures[:1]], *UNFOLDED}
    first, others = (
        [f"![{title}]({folder}/{name}.png)" for title, name in pictures if (name in unfolded) is wanted]
        for wanted in (True, False)
    )
    groups = labels.groups(summaries)
    failed = [(samples, samples.failure) for samples in run.samples if samples.failure is not None]
    headers = ["case", "launch", "kind", "rank", "what happened"]
    failures = [
        [label(samples.case), str(samples.launch), failure.kind, NO_RANK if failure.rank is None else str(failure.rank),
         failure.text]
        for samples, failure in failed
    ]  # fmt: skip
    skipped = [[str(len(cases)), span(cases), reason] for reason, cases in labels.by_reason(run.plan.skips)]
    noted = [[label(s.case), text] for s in summaries for text in s.warnings if not text.startswith(IN_COLUMNS)]
    notes = [markdown.table(noted[:MOST_NOTES], ["case", "note"], ["left"] * 2)] if noted else []
    if len(noted) > MOST_NOTES:
        notes.append(f"And {len(noted) - MOST_NOTES} more: column `warnings` of summary.csv.")
    details = []
    if len(groups) <= MOST_SECTIONS:
        for title, members in groups:
            details += [*[f"**{title}**"] * (len(groups) > 1), tables.details(members)]
    parts = [
        f"# {run.manifest.get('name', run.name)}: {_subject(run)}",
        markdown.lines(answer(run, analysis)) or NOTHING_MEASURED,
        *first,
        *(["## Failed", markdown.table(failures, headers, ["left"] * 5)] if failures else []),
        *_sections(groups),
        *findings.standing_out(analysis),
        "## How far to trust it",
        markdown.lines(warnings) if warnings else "Nothing was found that speaks against these numbers.",
        *markdown.folded("More pictures", others),
        *markdown.folded("Everything about each case", details),
        *findings.folded(analysis),
        *markdown.folded("Notes on single cases", notes),
        *markdown.folded(
            "Cases that were skipped",
            [markdown.table(skipped, ["cases", "which", "why"], ["right", "left", "left"])] if skipped else [],
        ),
        *markdown.folded(
            "What was measured, on what, and how",
            [markdown.lines(_circumstances(run, summaries)), method_line(run, summaries)],
        ),
        "The words are explained in docs/reading.md (and in report.html), the method in docs/method.md.",
    ]
    return "\n\n".join(parts) + "\n"


def markdown_of(run: Run, analysis: Analysis) -> str:
    """The report without pictures."""
    return build(run, analysis, [], "")


def tables_of(run: Run, analysis: Analysis) -> str:
    """The answer, the tables and the caveats that the verb `report` prints."""
    caveats = "\n".join(f"note: {text}" for text in analysis.warnings)
    parts = ["\n".join(answer(run, analysis)), summary_tables(analysis.summaries), caveats]
    return "\n\n".join(filter(None, parts))


def terminal(run: Run, analysis: Analysis) -> str:
    """The text that `run` prints at its end: the tables, how they were measured, warnings and findings, the answer."""
    stated = (*analysis.diagnosis.findings, *analysis.inconsistencies)
    notes = [f"note: {text}" for text in (*analysis.warnings, *(finding.text for finding in stated))]
    steps = [
        text
        for step in analysis.replayed
        for text in (findings.replay_table(step), "", findings.replay_sentence(step), "")
    ]
    method = method_line(run, analysis.summaries)
    lines = [*steps, summary_tables(analysis.summaries), "", method, *notes, "", *answer(run, analysis)]
    return "\n".join(lines).rstrip()


def problems(run: Run, analysis: Analysis) -> list[str]:
    """A sentence with the number of failed measurements; empty if none failed."""
    failed = sum(1 for samples in run.samples if samples.failure is not None)
    return [f"{failed} of {len(run.samples)} measurements failed; the report says why"] if failed else []


def import_line(facts: Json, rows: int, cases: int, launches: int, results: int) -> str:
    """The files that an import read, and what they held, in one line. facts: of the import."""

    def count(number: int, noun: str) -> str:
        return f"{number} {noun}{'' if number == 1 else 'es' if noun.endswith('ch') else 's'}"

    files = ", ".join(file["name"] for file in facts["files"])
    counted = f"{count(rows, 'row')} → {count(results, 'result')} of {count(cases, 'case')}"
    return f"imported {files} ({', '.join(facts['tool'])}): {counted} in {count(launches, 'launch')}"


# ── the answer ───────────────────────────────────────────────────────────────────────────────────
def answer(run: Run, analysis: Analysis) -> list[str]:
    """The numbers that answer most questions, in a line for each of the first groups; then a line on trust."""
    summaries, warnings = analysis.summaries, analysis.warnings
    groups = [(title, [s for s in members if s.time_s is not None]) for title, members in labels.groups(summaries)]
    groups = [(title, members) for title, members in groups if members]
    if not groups:
        return []
    # `all_reduce on gloo`; with the words in brackets where several groups share that.
    short = [title.partition(" (")[0] for title, _ in groups]
    lines = []
    for name, (title, members) in list(zip(short, groups, strict=True))[:MOST_GROUPS]:
        lines.append(f"**{name if short.count(name) == 1 else title}**: {_group_answer(members)}")
    more = len(groups) - MOST_GROUPS
    if more > 0:
        lines.append(f"{more} further kind{'s' if more > 1 else ''} of cases: see the tables below.")
    widths = sorted(s.time_s.relative_half_width for s in summaries if s.time_s is not None and s.time_s.known)
    wide = "no interval is known, as there is one launch only"
    if widths:
        wide = f"half of the 95 % intervals of medians are within ±{median(widths):.0%}, all within ±{widths[-1]:.0%}"
    caveats = f"{len(warnings)} caveat{'s' if len(warnings) != 1 else ''}" if warnings else "no caveats"
    return [*lines, f"**Trust**: {wide}; {_verified(run, summaries)}; {caveats}."]


def _group_answer(members: Sequence[Summary]) -> str:
    """The time of the smallest size at each world size, and the best bus bandwidth."""
    smallest = min(s.case.size_bytes for s in members)
    times = []
    for summary in sorted((s for s in members if s.case.size_bytes == smallest), key=lambda s: s.case.world_size):
        assert summary.time_s is not None  # noqa: S101 - the caller selects such
        stall = summary.stall
        # Of two modes, the fast one has its own interval, or it stands beside that of the median, by name.
        interval = summary.time_s if stall is None or stall.fast is None else stall.fast
        of = "median " if stall is not None and stall.fast is None else ""
        text = format_seconds(stall.fast_s if stall else interval.value)
        text += f" {interval_text(interval, format_seconds, of)}" if interval.known else ""
        text += f" ({stall.share:.0%} of the calls {format_seconds(stall.slow_s)})" if stall is not None else ""
        times.append(f"{text} among {ranks_text(summary.case.world_size)}")
    answer = (f"{size_text(smallest)} takes " if smallest else "") + ", ".join(times)
    best = max(members, key=lambda s: s.busbw or 0.0)
    if best.busbw:
        answer += f". Bus bandwidth reaches {format_rate(best.busbw)} GB/s ({size_text(best.case.size_bytes)}, "
        answer += f"{ranks_text(best.case.world_size)})"
    return f"{answer}."


def _verified(run: Run, summaries: Sequence[Summary]) -> str:
    """Whether the results were verified, and how many were wrong."""
    wrong = sum(1 for s in summaries for failure in s.failures if failure.kind == "wrong")
    if run.imported is not None and wrong:
        results = f"{wrong} result{'' if wrong == 1 else 's'}"
        return f"{results} WRONG by the tool's own check; no number is printed for them"
    if run.imported is not None:
        return "not verified by CollBench; what the tool checked itself is said below"
    if wrong:
        return f"{wrong} measurements gave WRONG results; no number is printed for them"
    return "every result was verified, before the first and after the last timed call"


# ── the tables ───────────────────────────────────────────────────────────────────────────────────
def summary_tables(summaries: Sequence[Summary]) -> str:
    """Tables for the terminal: an overview of each group, or one table of all if there are more than MOST_TABLES."""
    groups = labels.groups(summaries)
    if not groups:
        return NOTHING_MEASURED
    if len(groups) > MOST_TABLES:
        return "\n\n".join([COMPACT, tables.compact(groups), _all_notes(groups)])
    parts = []
    for title, members in groups:
        parts += [f"### {title}", markdown.lines(labels.notes_of(members))]
        parts += ["time [95 % interval]", tables.overview(members)]
        if any(s.busbw for s in members):
            parts += ["bus bandwidth, GB/s", tables.bandwidth_overview(members)]
    return "\n\n".join(parts)


def _sections(groups: Sequence[tuple[str, list[Summary]]]) -> list[str]:
    """A section for each table, or one table for all if there are more than MOST_SECTIONS."""
    if len(groups) > MOST_SECTIONS:
        return ["## All cases", COMPACT, tables.compact(groups), _all_notes(groups), IN_FULL]
    parts = []
    for title, members in groups:
        time = "Time, as imported," if any(s.imported for s in members) else "Median time"
        parts += [f"## {title}", f"{time} with its 95 % interval, and bus bandwidth:"]
        parts += [tables.with_bandwidth(members), markdown.lines(labels.notes_of(members))]
    return parts


def _all_notes(groups: Sequence[tuple[str, list[Summary]]]) -> str:
    """The notes of each operation and backend, each note once."""
    texts: dict[str, dict[str, bool]] = {}
    for _, members in groups:
        case = members[0].case
        for note in labels.notes([case]):
            texts.setdefault(f"{case.op} on {case.backend}", {})[note] = True
    return markdown.lines(
        [f"**{name}**: {'; '.join(notes)}" for name, notes in texts.items()]
        + labels.rounding([s.case for _, members in groups for s in members])
    )


# ── what was measured, on what, and how ──────────────────────────────────────────────────────────
def _subject(run: Run) -> str:
    """The operations of the run, and when it began."""
    operations = sorted({case.op for case in run.plan.cases}) or ["nothing"]
    named = ", ".join(operations) if len(operations) <= MOST_NAMED else f"{len(operations)} operations"
    if run.imported is not None:
        return f"{named}, imported"
    return f"{named}, {str(run.manifest.get('started', ''))[:16].replace('T', ' ')} UTC"


def _circumstances(run: Run, summaries: Sequence[Summary]) -> list[str]:
    """Lines on the cases, the state of the run, the machine, its software, and the data."""
    cases = run.plan.cases
    session = run.environment[0] if run.environment else {}
    lines = []
    if cases:
        sizes = [case.size_bytes for case in cases if case.size_bytes]
        worlds = ", ".join(str(n) for n in sorted({case.world_size for case in cases}))
        backends = ", ".join(sorted({case.backend for case in cases}))
        dtypes = sorted({word for case in cases for word in dtype_words(case)})
        what = [backends, *dtypes, *([f"{format_bytes(min(sizes))} to {format_bytes(max(sizes))}"] if sizes else [])]
        operations = dict.fromkeys(case.op for case in cases)
        if len(operations) > MOST_NAMED:
            lines.append(f"**Operations**: {', '.join(operations)}")
        launches = f"{run.plan.launches} launch{'' if run.plan.launches == 1 else 'es'}"
        lines.append(f"**What**: {', '.join(what)}, world sizes {worlds}; {len(cases)} cases × {launches}")
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
        machine: Json = session.get("imported", {})
        where = [", ".join(machine.get("hosts", [])), str(machine.get("devices", ""))]
        if any(where):
            lines.append(f"**On** (as the file says): {': '.join(filter(None, where))}")
        if machine.get("nccl"):
            lines.append(f"**With** (as the file says): NCCL {machine['nccl']}")
    else:
        lines += machine_lines(session)
    lines.append(f"**Data**: {_verified(run, summaries)}")
    timers = [s.timer_s for s in summaries if s.timer_s is not None]
    if timers and run.imported is None:
        lines.append(f"**Clock**: reading it costs up to {format_seconds(max(timers))}, which is not subtracted")
    return lines


def machine_lines(session: Json) -> list[str]:
    """Lines on the launcher, machine, GPUs and software, as far as they are known."""
    lines = []
    if "job" in session:
        names = list(dict.fromkeys(str(host.get("hostname")) for host in session["hosts"]))
        shown = ", ".join(names[:SHOWN_HOSTS]) + (", …" if len(names) > SHOWN_HOSTS else "")
        hosts = "host" if len(names) == 1 else f"{len(names)} hosts:"
        job = session["job"]
        lines.append(f"**Started by**: {job['launcher']}, {job['ranks']} ranks on {hosts} {shown}")
    host: Json = session.get("host", {})
    if not host:
        return lines
    cpu = host.get("cpu", {})
    lines.append(
        f"**On**: {host.get('hostname')}: {cpu.get('usable_cores')} cores of {cpu.get('model')}, "
        f"{format_rounded_bytes(host.get('memory_bytes', 0))} of memory, kernel {host.get('kernel')}"
        + (", in a virtual machine" if cpu.get("hypervisor") == "yes" else "")
    )
    lines += [f"**GPU**: {gpu.get('name')}, driver {gpu.get('driver')}" for gpu in host.get("gpus", [])]
    # The versions of NCCL and MPI that the ranks had loaded.
    ranks = [rank for launch in session.get("launches", []) for rank in launch.get("ranks", [])]
    loaded = {"NCCL ": {rank.get("nccl") for rank in ranks}, "": {rank.get("mpi") for rank in ranks}}
    libraries = [f"{name}{version}" for name, versions in loaded.items() for version in sorted(versions - {None})]
    software = [
        f"torch {host.get('packages', {}).get('torch')}",
        f"Python {host.get('python')}",
        f"CollBench {host.get('collbench')} (commit {host.get('commit')})",
    ]
    return [*lines, f"**With**: {', '.join([*software, *libraries])}"]


def duration(manifest: Json) -> str:
    """Such as `; took 62.8 s`; empty if it is not known."""
    started, finished = manifest.get("started"), manifest.get("finished")
    if not started or not finished:
        return ""
    seconds = (datetime.fromisoformat(finished) - datetime.fromisoformat(started)).total_seconds()
    return f"; took {format_seconds(seconds)}"


def method_line(run: Run, summaries: Sequence[Summary]) -> str:
    """One line that says how the numbers were measured; terminal output and report both show it."""
    cases = [s.case for s in summaries]
    if not cases:
        return "How measured: nothing was."
    metrics = " and ".join(dict.fromkeys(map(metric_name, cases)))
    if run.imported is not None:
        several = run.plan.launches > 1
        launches = f"geometric mean over {run.plan.launches} launches" if several else "one launch, so no intervals"
        return (
            f"How measured: not by CollBench, but by {', '.join(run.imported.get('tool', []))} · {metrics} · "
            f"{' / '.join(run.imported.get('statistic', []))} · {launches} · size is the total in bytes, "
            "GB = 10⁹ bytes"
        )
    case = cases[0]
    # In a job, ranks share no memory for a barrier (docs/method.md, "The barrier").
    barrier = "barrier over the network" if any("job" in session for session in run.environment) else "barrier"
    clock = "CUDA events" if any(s.host_time_s is not None for s in summaries) else "perf_counter"
    counts = [s.iterations // s.launches for s in summaries if s.launches] or [0]
    n = "–".join(str(count) for count in sorted({min(counts), max(counts)}))
    each = [s.launches for s in summaries if s.launches] or [run.plan.launches]
    launches = "–".join(str(count) for count in sorted({min(each), max(each)}))
    launches += " launch" if max(each) == 1 else " launches"
    scheduling = "" if case.scheduling == "normal" else f"real-time scheduling ({case.scheduling}) · "
    return (
        f"How measured: {metrics} · {barrier} before each call · {clock} · maximum over ranks, "
        f"median over {n} iterations, geometric mean over {launches} · "
        f"{scheduling}{case.buffers} buffers · order shuffled, seed {run.plan.seed} · "
        "what size counts stands with each table, GB = 10⁹ bytes"
    )
