"""Write the effects of joining a process group on a process.

In: an `Observed` per rank, and remarks on them. Out: blocks. Computes only sums.
"""

from collections.abc import Callable, Mapping, Sequence

from bench.model.notices import Notice, NoticeKind
from bench.model.units import counted, format_rounded_bytes
from bench.packages.joining.process_state import STAGES, InitNotice, Observed, ProcessState
from bench.report.blocks import Blocks, Column, items, keyed, left, table
from bench.report.notices import Sentence, sentences

# Text if there are no remarks. Threads and files of groups that still exist are in the table.
NOTHING_LEFT = (
    "No thread, open file, variable or signal handler is left, less than 50 MiB of memory stays in use, and each group "
    "adds less than 1 MiB."
)
_CORES = "{left} of {before} (core {cores}); threads that it starts from then on inherit that"
SENTENCES: Mapping[NoticeKind, Sentence] = {
    InitNotice.MORE: Sentence("{count} {name}"),
    InitNotice.CORES_TAKEN: Sentence(
        "{backend}: joining took cores from a rank: {left} of {before} left (core {cores})"
    ),
    InitNotice.THREADS_STAYED: Sentence("{backend}: {count:count thread} of a rank stayed after the end ({names})"),
    InitNotice.FILES_STAYED: Sentence("{backend}: {count:count open file} of a rank stayed after the end ({names})"),
    InitNotice.FEWER_CORES: Sentence(f"{{only:lead rank}}the process may use fewer cores {{stage}}: {_CORES}"),
    InitNotice.FEWER_CORES_FOR_GOOD: Sentence(
        f"{{only:lead rank}}the process may use fewer cores {{stage}} and stays so: {_CORES}"
    ),
    InitNotice.THREADS_LEFT: Sentence("{only:lead rank}{count:count thread} left after the end: {names}"),
    InitNotice.FILES_LEFT: Sentence("{only:lead rank}{count:count open file} left after the end: {names}"),
    InitNotice.SCHEDULING_CHANGED: Sentence("{only:lead rank}threads have another scheduling than usual: {names}"),
    InitNotice.VARIABLES_CHANGED: Sentence("{only:lead rank}environment variables were set or removed: {names}"),
    InitNotice.SIGNAL_HANDLERS: Sentence("{only:lead rank}handlers of signals stay: {signals}"),
    InitNotice.MEMORY_OF_GROUPS: Sentence(
        "{only:lead rank}memory grows by {bytes:rounded bytes} with each further group"
    ),
    InitNotice.MEMORY_LEFT: Sentence("{only:lead rank}{bytes:rounded bytes} of memory stay after the end"),
}


def document(ranks: Sequence[Observed], backend: str, remarks: Sequence[Notice]) -> Blocks:
    """Return the remarks, then a table of rank 0 at each stage."""
    first = ranks[0]
    versions = ", ".join(f"{name} {version}" for name, version in first.versions.items())
    rows: list[list[str]] = [
        [name, *(value(first.stages[stage]) for stage in STAGES)] for name, value in PROPERTIES.items()
    ]
    columns: list[Column[list[str]]] = [left(f"rank 0 of {len(ranks)}", lambda row: row[0])]
    columns += keyed([(stage, at) for at, stage in enumerate(STAGES, 1)], lambda row, at: row[at])
    groups = f"More groups: {counted(first.groups, 'further group')} of all ranks, with a call in each."
    remark_lines = items(sentences(remarks)) if remarks else [NOTHING_LEFT]
    return [f"What {backend} does to a process ({versions}):", *remark_lines, *table(rows, columns), groups]


def _total(counts: Mapping[str, int]) -> str:
    return str(sum(counts.values()))


PROPERTIES: dict[str, Callable[[ProcessState], str]] = {
    "cores it may use": lambda s: str(len(s.affinity)),
    "threads": lambda s: _total(s.threads),
    "open files": lambda s: _total(s.files),
    "of these sockets": lambda s: str(s.files.get("socket", 0)),
    "resident memory": lambda s: format_rounded_bytes(s.memory_bytes),
    "signal handlers": lambda s: str(len(s.signals)),
    "variables": lambda s: str(len(s.variables)),
}
