"""Write sentences for values that other modules return: one function for each kind of value.

In: values. Out: text for the terminal. Decides nothing.
"""

from collections.abc import Sequence
from pathlib import Path

from collbench.model.comparisons import Absence, SessionDifference, Unpaired
from collbench.model.facts import Manifest, Measurements, Session
from collbench.model.notices import Notice
from collbench.model.records import Ending, EndReason
from collbench.report.notices import sentence


def refused_resume(path: Path, recorded: Session, differences: Sequence[SessionDifference]) -> str:
    """State why a run cannot be resumed here, and how to go on. differences: the blocking differences."""
    both = "; ".join(f"{d.fact}: {d.recorded} there, {d.here} here" for d in differences)
    job, hosts = recorded.get("job"), ", ".join(str(host.get("hostname")) for host in recorded.get("hosts", []))
    how = f" by {job['launcher']} with {job['ranks']} ranks on {hosts}," if job else ""
    return (
        f"{path}: these times cannot become one number with those measured before ({both}): start collbench resume "
        f"{path}{how} as it was measured, or start a new run"
    )


def state(manifest: Manifest) -> str:
    """Return the status of a run, and how many measurements failed or are missing, as far as it is recorded."""
    status, counts = str(manifest.get("status")), manifest.get("measurements")
    # `list` reads manifests that nothing has checked.
    complete = isinstance(counts, dict) and all(type(counts.get(name)) is int for name in Measurements.__annotations__)
    return ", ".join([status, *(lacking(counts) if counts and complete else [])])


def lacking(counts: Measurements) -> list[str]:
    """Return how many measurements of a run failed, and how many are missing; empty if it has all."""
    failed, missing = counts["failed"], max(0, counts["planned"] - counts["made"])
    return [
        *([f"{failed} of {counts['made']} failed"] if failed else []),
        *([f"{missing} of {counts['planned']} missing"] if missing else []),
    ]


def interrupted_after(path: Path, counts: Measurements | None) -> str:
    """State what is kept of a run that was interrupted while its report was written."""
    lacks = [] if counts is None else lacking(counts)
    kept = f"measurements: {', '.join(lacks)}" if lacks else "everything was measured"
    again = f"; collbench resume {path} measures the lost cases" if lacks else ""
    return f"interrupted; {kept}; measured cases are kept, and collbench report {path.name} shows it{again}"


def absence(case: Unpaired) -> str:
    """State why a case has no time on the other side."""
    detail = " ".join((sentence(case.detail) if isinstance(case.detail, Notice) else case.detail).split())
    return {Absence.FAILED_ONCE: f"in a launch: {detail}"}.get(case.why, detail or case.why.value)


def ended(ending: Ending, budget_s: float | None) -> str:
    """State why the measurement of two sides ended."""
    budget = "" if budget_s is None else f" of {budget_s:g} s"
    return {
        EndReason.DECIDED: f"decided after {ending.pairs} pairs",
        EndReason.SAME: f"all are the same after {ending.pairs} pairs",
        EndReason.BUDGET: f"the budget{budget} was spent after {ending.pairs} pairs",
        EndReason.MOST_PAIRS: f"stopped at the limit of {ending.pairs} pairs",
        EndReason.INTERRUPTED: "interrupted: collbench resume goes on",
    }[ending.reason]


def unused_allocation(tasks: int, nodes: int) -> str:
    """State that a run by hand uses one host of a Slurm allocation, and how to use all tasks."""
    return (
        f"this Slurm allocation has {tasks} tasks on {nodes} node{'s' * (nodes > 1)}, and this command measures "
        "this host alone. To use all of them: srun collbench …"
    )
