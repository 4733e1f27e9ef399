"""Write what joining a process group did to a process.

In: an `Observed` of each rank, and remarks on them. Out: blocks. Computes only differences.
"""

from collections.abc import Callable, Mapping, Sequence

from bench.init.model import STAGES, Observed, ProcessState
from bench.model.units import counted, format_rounded_bytes
from bench.report.blocks import Blocks, Column, items, keyed, left, table

# What no remark means. Threads and files of groups that are still there are in the table.
NOTHING_LEFT = (
    "No thread, open file, variable or signal handler is left, less than 50 MiB of memory stays in use, and each group "
    "adds less than 1 MiB."
)


def document(ranks: Sequence[Observed], backend: str, remarks: Sequence[str]) -> Blocks:
    """What was remarked, then rank 0 at each stage."""
    first = ranks[0]
    versions = ", ".join(f"{name} {version}" for name, version in first.versions.items())
    rows: list[list[str]] = [
        [name, *(value(first.stages[stage]) for stage in STAGES)] for name, value in PROPERTIES.items()
    ]
    columns: list[Column[list[str]]] = [left(f"rank 0 of {len(ranks)}", lambda row: row[0])]
    columns += keyed([(stage, at) for at, stage in enumerate(STAGES, 1)], lambda row, at: row[at])
    groups = f"More groups: {counted(first.groups, 'further group')} of all ranks, with a call in each."
    said = items(remarks) if remarks else [NOTHING_LEFT]
    return [f"What {backend} does to a process ({versions}):", *said, *table(rows, columns), groups]


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
