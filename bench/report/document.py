"""Write report.md and report.html: what was measured, on what, how far to trust it, the tables, the pictures.

In: a `Run`, its analysis, the pictures that exist. Out: text. The HTML page is the same document, rendered from
Markdown with the pictures inside, so that one file can be mailed.
"""

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from bench.model.conclusions import Analysis, Summary
from bench.model.records import Json, Run
from bench.model.units import format_bytes, format_rounded_bytes, format_seconds
from bench.report import answer, findings, groups, imported, machine_format, markdown, replay, tables
from bench.report.labels import dtype_words, label, metric_name, span
from bench.report.page import page
from bench.report.pictures import Picture

# Host names that the report lists; environment.json has them all.
SHOWN_HOSTS = 8
# Tables that fill a few screens, and sections that a reader can still browse; if there are more, one table holds all.
MOST_TABLES, MOST_SECTIONS = 6, 60
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
    tables_of = groups.groups(summaries)
    parts = [
        f"# {run.manifest.get('name', run.name)}: {_what_in_short(run)}",
        markdown.lines(answer.lines(summaries, warnings, _verified(run, summaries))) or NOTHING_MEASURED,
        *first,
        *_failed(run),
        *_sections(tables_of),
        *findings.standing_out(analysis),
        "## How far to trust it",
        markdown.lines(warnings) if warnings else "Nothing was found that speaks against these numbers.",
        *markdown.folded("More pictures", others),
        *markdown.folded("Everything about each case", _details(tables_of)),
        *findings.folded(analysis),
        *markdown.folded("Notes on single cases", _notes(summaries)),
        *markdown.folded("Cases that were skipped", _skipped(run)),
        *markdown.folded("What was measured, on what, and how", _method(run, summaries)),
        "The words are explained in docs/reading.md (and in report.html), the method in docs/method.md.",
    ]
    return "\n\n".join(parts) + "\n"


def _sections(tables_of: Sequence[tuple[str, list[Summary]]]) -> list[str]:
    """A section for each table, or one table for all if there are more than MOST_SECTIONS."""
    if len(tables_of) > MOST_SECTIONS:
        return ["## All cases", COMPACT, tables.compact(tables_of), _all_notes(tables_of), IN_FULL]
    parts = []
    for title, members in tables_of:
        parts += [f"## {title}", f"{_time_name(members)} with its 95 % interval, and bus bandwidth:"]
        parts += [tables.with_bandwidth(members), markdown.lines(groups.notes_of(members))]
    return parts


def _details(tables_of: Sequence[tuple[str, list[Summary]]]) -> list[str]:
    """A table with everything for each group of cases; none if there are too many groups to browse."""
    if len(tables_of) > MOST_SECTIONS:
        return []
    several = len(tables_of) > 1
    return [text for title, members in tables_of for text in (*[f"**{title}**"] * several, tables.details(members))]


def _all_notes(tables_of: Sequence[tuple[str, list[Summary]]]) -> str:
    """The notes of each operation and backend, each note once."""
    found: dict[str, dict[str, bool]] = {}
    for _, members in tables_of:
        case = members[0].case
        for note in groups.notes([case]):
            found.setdefault(f"{case.op} on {case.backend}", {})[note] = True
    return markdown.lines(
        [f"**{name}**: {'; '.join(texts)}" for name, texts in found.items()]
        + groups.rounding([s.case for _, members in tables_of for s in members])
    )


def markdown_of(run: Run, analysis: Analysis) -> str:
    """The report without pictures."""
    return build(run, analysis, [], "")


def csv_of(run: Run, analysis: Analysis) -> str:
    """One row per case, for pandas."""
    return tables.to_csv(analysis.summaries)


def json_of(run: Run, analysis: Analysis) -> str:
    """One object, for programs."""
    return machine_format.to_json(run, analysis)


def tables_of(run: Run, analysis: Analysis) -> str:
    """The answer, the tables and the caveats that the verb `report` prints."""
    caveats = "\n".join(f"note: {text}" for text in analysis.warnings)
    return "\n\n".join(filter(None, [_answer(run, analysis), summary_tables(analysis.summaries), caveats]))


def terminal(run: Run, analysis: Analysis) -> str:
    """What `run` prints at its end: the tables, how they were measured, warnings and findings, and the answer."""
    findings_of = (*analysis.diagnosis.findings, *analysis.inconsistencies)
    notes = [f"note: {text}" for text in (*analysis.warnings, *(finding.text for finding in findings_of))]
    steps = [text for step in analysis.replayed for text in (replay.table(step), "", replay.sentence(step), "")]
    method = method_line(run, analysis.summaries)
    found = [*steps, summary_tables(analysis.summaries), "", method, *notes, "", _answer(run, analysis)]
    return "\n".join(found).rstrip()


def _answer(run: Run, analysis: Analysis) -> str:
    summaries = analysis.summaries
    return "\n".join(answer.lines(summaries, analysis.warnings, _verified(run, summaries)))


def problems(run: Run, analysis: Analysis) -> list[str]:
    """A sentence with the number of failed measurements; empty if none failed."""
    failed = sum(1 for samples in run.samples if samples.failure is not None)
    return [f"{failed} of {len(run.samples)} measurements failed; the report says why"] if failed else []


def documents(run: Run, analysis: Analysis, pictures: Sequence[Picture], folder: Path, output: Path) -> dict[str, str]:
    """The files of a report, by name. folder: where its pictures are. output: where the files will be."""
    address = os.path.relpath(folder, output)
    text = build(run, analysis, pictures, address)
    files = {f"{address}/{name}.png": folder / f"{name}.png" for _, name in pictures}
    csv = tables.to_csv(analysis.summaries)
    return {"summary.csv": csv, "report.md": text, "report.html": page(text, run.name, files)}


def method_line(run: Run, summaries: Sequence[Summary]) -> str:
    """One line that says how the numbers were measured; terminal output and report both show it."""
    cases = [s.case for s in summaries]
    if not cases:
        return "How measured: nothing was."
    if run.imported is not None:
        return imported.method_line(run, summaries)
    case = cases[0]
    metrics = " and ".join(dict.fromkeys(map(metric_name, cases)))
    clock = "CUDA events" if any(s.host_time_s is not None for s in summaries) else "perf_counter"
    counts = [s.iterations // s.launches for s in summaries if s.launches]
    n = "–".join(str(count) for count in sorted({min(counts), max(counts)})) if counts else "0"
    each = [s.launches for s in summaries if s.launches] or [run.plan.launches]
    launches = "–".join(str(count) for count in sorted({min(each), max(each)}))
    launches += " launch" if max(each) == 1 else " launches"
    # In a job, ranks share no memory for a barrier (docs/method.md, "The barrier").
    barrier = "barrier over the network" if any("job" in session for session in run.environment) else "barrier"
    scheduling = "" if case.scheduling == "normal" else f"real-time scheduling ({case.scheduling}) · "
    return (
        f"How measured: {metrics} · {barrier} before each call · {clock} · maximum over ranks, "
        f"median over {n} iterations, geometric mean over {launches} · "
        f"{scheduling}{case.buffers} buffers · order shuffled, seed {run.plan.seed} · "
        "what size counts stands with each table, GB = 10⁹ bytes"
    )


def summary_tables(summaries: Sequence[Summary]) -> str:
    """Tables for the terminal: an overview of each group, or one table of all if there are more than MOST_TABLES."""
    tables_of = groups.groups(summaries)
    if not tables_of:
        return NOTHING_MEASURED
    if len(tables_of) > MOST_TABLES:
        return f"{COMPACT}\n\n{tables.compact(tables_of)}\n\n{_all_notes(tables_of)}"
    parts = []
    for title, members in tables_of:
        parts += [f"### {title}", markdown.lines(groups.notes_of(members))]
        parts += ["time [95 % interval]", tables.overview(members)]
        if any(s.busbw for s in members):
            parts += ["bus bandwidth, GB/s", tables.bandwidth_overview(members)]
    return "\n\n".join(parts)


def _time_name(members: Sequence[Summary]) -> str:
    return "Time, as imported," if any(s.imported for s in members) else "Median time"


def _what_in_short(run: Run) -> str:
    operations = sorted({case.op for case in run.plan.cases}) or ["nothing"]
    named = ", ".join(operations) if len(operations) <= MOST_NAMED else f"{len(operations)} operations"
    if run.imported is not None:
        return f"{named}, imported"
    return f"{named}, {str(run.manifest.get('started', ''))[:16].replace('T', ' ')} UTC"


def _of_the_job(session: Json) -> list[str]:
    """A line with the launcher and the hosts of a job; empty if one process started its ranks itself."""
    if "job" not in session:
        return []
    names = list(dict.fromkeys(str(host.get("hostname")) for host in session["hosts"]))
    shown = ", ".join(names[:SHOWN_HOSTS]) + (", …" if len(names) > SHOWN_HOSTS else "")
    hosts = "host" if len(names) == 1 else f"{len(names)} hosts:"
    return [f"**Started by**: {session['job']['launcher']}, {session['job']['ranks']} ranks on {hosts} {shown}"]


def _head(run: Run, summaries: Sequence[Summary]) -> list[str]:
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
        lines.append(f"**What**: {', '.join(what)}, world sizes {worlds}; {len(cases)} cases × {_launches(run)}")
    done = sum(1 for s in run.samples if s.failure is None)
    failed = len(run.samples) - done
    state = "imported" if run.imported is not None else run.manifest.get("status")
    took = duration(run.manifest) if run.imported is None else ""
    lines.append(
        f"**State**: {state}; {done} of {run.plan.total} measurements good, {failed} failed, "
        f"{len(run.plan.skips)} cases skipped{took}"
    )
    if run.imported is not None:
        return [*lines, *imported.head(run), f"**Data**: {_verified(run, summaries)}"]
    lines += machine_lines(session)
    lines.append(f"**Data**: {_verified(run, summaries)}")
    timers = [s.timer_s for s in summaries if s.timer_s is not None]
    if timers:
        lines.append(f"**Clock**: reading it costs up to {format_seconds(max(timers))}, which is not subtracted")
    return lines


def machine_lines(session: Json) -> list[str]:
    """Lines on the launcher, machine, GPUs and software, as far as they are known."""
    host: Json = session.get("host", {})
    cpu = host.get("cpu", {})
    lines = _of_the_job(session)
    if host:
        lines.append(
            f"**On**: {host.get('hostname')}: {cpu.get('usable_cores')} cores of {cpu.get('model')}, "
            f"{format_rounded_bytes(host.get('memory_bytes', 0))} of memory, kernel {host.get('kernel')}"
            + (", in a virtual machine" if cpu.get("hypervisor") == "yes" else "")
        )
        for gpu in host.get("gpus", []):
            lines.append(f"**GPU**: {gpu.get('name')}, driver {gpu.get('driver')}")
        lines.append(
            f"**With**: torch {host.get('packages', {}).get('torch')}, Python {host.get('python')}, "
            f"CollBench {host.get('collbench')} (commit {host.get('commit')})" + _libraries(session)
        )
    return lines


def _launches(run: Run) -> str:
    return f"{run.plan.launches} launch{'' if run.plan.launches == 1 else 'es'}"


def _verified(run: Run, summaries: Sequence[Summary]) -> str:
    if run.imported is not None:
        return imported.data(summaries)
    wrong = sum(1 for s in summaries for failure in s.failures if failure.kind == "wrong")
    if wrong:
        return f"{wrong} measurements gave WRONG results; no number is printed for them"
    return "every result was verified, before the first and after the last timed call"


def _libraries(session: Json) -> str:
    """The versions of NCCL and MPI that the ranks had loaded."""
    ranks = [rank for launch in session.get("launches", []) for rank in launch.get("ranks", [])]
    found = {"NCCL ": {rank.get("nccl") for rank in ranks}, "": {rank.get("mpi") for rank in ranks}}
    return "".join(f", {name}{version}" for name, versions in found.items() for version in sorted(versions - {None}))


def duration(manifest: Json) -> str:
    """Such as `; took 62.8 s`; empty if it is not known."""
    started, finished = manifest.get("started"), manifest.get("finished")
    if not started or not finished:
        return ""
    return (
        f"; took {format_seconds((datetime.fromisoformat(finished) - datetime.fromisoformat(started)).total_seconds())}"
    )


def _method(run: Run, summaries: Sequence[Summary]) -> list[str]:
    return [markdown.lines(_head(run, summaries)), method_line(run, summaries)]


def _failed(run: Run) -> list[str]:
    failures = [(label(s.case), s.launch, s.failure) for s in run.samples if s.failure is not None]
    rows = [
        [name, str(launch), f.kind, NO_RANK if f.rank is None else str(f.rank), f.text] for name, launch, f in failures
    ]
    headers = ["case", "launch", "kind", "rank", "what happened"]
    return ["## Failed", markdown.table(rows, headers, ["left"] * 5)] if rows else []


def _skipped(run: Run) -> list[str]:
    rows = [[str(len(cases)), span(cases), reason] for reason, cases in groups.by_reason(run.plan.skips)]
    return [markdown.table(rows, ["cases", "which", "why"], ["right", "left", "left"])] if rows else []


def _notes(summaries: Sequence[Summary]) -> list[str]:
    """What no column of the tables says of single cases."""
    noted = [[label(s.case), text] for s in summaries for text in s.warnings if not text.startswith(IN_COLUMNS)]
    if not noted:
        return []
    table = markdown.table(noted[:MOST_NOTES], ["case", "note"], ["left"] * 2)
    more = len(noted) - MOST_NOTES
    return [table, *([f"And {more} more: column `warnings` of summary.csv."] if more > 0 else [])]
