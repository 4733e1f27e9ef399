"""How far a whole run can be trusted: sentences for the head of its report.

In: a `Run` and its summaries. Out: warnings, the gravest first. Each says what to do about it, where
something can be done.
"""

from collections.abc import Iterable, Sequence

from bench.analyze.stats import FOREIGN_CPU_LIMIT
from bench.backends import BACKENDS
from bench.conclusions import Summary
from bench.records import Json, Run

# Load average a core before the start from which on the machine was not idle.
LOAD_LIMIT = 0.25
# Launches from which on an interval over launches supports a claim (docs/method.md).
LAUNCHES_FOR_A_CLAIM = 5


def warnings_of(run: Run, summaries: Sequence[Summary]) -> list[str]:
    """What a reader must know before believing the table."""
    session = run.environment[0] if run.environment else {}
    found = [*_of_the_plan(run), *run.warnings, *_of_completeness(run), *_of_the_machine(run, session)]
    found += _of_the_samples(summaries)
    return found


def _of_the_plan(run: Run) -> Iterable[str]:
    for fault in run.plan.faults:
        yield f"a fault was planted on purpose: {fault.do} on rank {fault.rank}; these numbers measure nothing else"
    if run.plan.launches == 1:
        yield (
            "one launch only: the intervals do not know how launches differ, which is often more than they say; "
            "set launches: 5 for a claim"
        )
    elif run.plan.launches < LAUNCHES_FOR_A_CLAIM:
        yield f"{run.plan.launches} launches: enough to see how they differ; a claim wants {LAUNCHES_FOR_A_CLAIM}"


def _of_completeness(run: Run) -> Iterable[str]:
    missing = run.plan.total - len({(s.case.key, s.launch) for s in run.samples})
    if missing:
        yield f"{missing} of {run.plan.total} measurements are missing; go on with: run --resume {run.name}"
    if len(run.environment) > 1:
        yield f"measured in {len(run.environment)} sessions (resumed)"


def _of_the_machine(run: Run, session: Json) -> Iterable[str]:
    host, before = session.get("host", {}), session.get("before", {})
    cores = host.get("cpu", {}).get("usable_cores")
    crowded = sorted(
        {case.world_size for case in run.plan.cases if BACKENDS[case.backend].device == "cpu" and cores}
        - set(range(1, (cores or 0) + 1))
    )
    if crowded:
        sizes = ", ".join(map(str, crowded))
        yield f"more ranks than the {cores} cores at world size {sizes}: that measures scheduling as much as transport"
    load = before.get("load")
    if load and cores and load[0] / cores > LOAD_LIMIT:
        yield f"the machine was not idle at the start (load average {load[0]:.2f} on {cores} cores)"
    governor = host.get("cpu", {}).get("governor")
    if governor not in {None, "not available", "performance"}:
        yield f"CPU frequency governor is {governor}: clocks follow the load; `cpupower frequency-set -g performance`"
    if host.get("cgroup_cpu_max", "max").split()[0] not in {"max", "not"}:
        yield f"a cgroup limits the CPU ({host['cgroup_cpu_max']}): ranks may be throttled"
    debug = host.get("variables", {}).get("TORCH_DISTRIBUTED_DEBUG", "OFF").upper()
    if debug not in {"OFF", "0"}:
        yield f"TORCH_DISTRIBUTED_DEBUG={debug} makes collectives several times slower: unset it"
    if host.get("variables", {}).get("NCCL_DEBUG", "").upper() in {"INFO", "TRACE"}:
        yield "NCCL_DEBUG writes while it measures: unset it"


def _of_the_samples(summaries: Sequence[Summary]) -> Iterable[str]:
    good = [summary for summary in summaries if summary.time_s is not None]
    disturbed = [s.foreign_cpu for s in good if s.foreign_cpu is not None and s.foreign_cpu > FOREIGN_CPU_LIMIT]
    if disturbed:
        yield (
            f"other processes used up to {max(disturbed):.0%} of the busy CPU time during {len(disturbed)} of "
            f"{len(good)} cases: repeat on an idle machine"
        )
    short = [s for s in good if any(w.startswith("stopped by time") for w in s.warnings)]
    if short:
        widest = max(s.reached or 0.0 for s in short)
        yield (
            f"{len(short)} of {len(good)} cases ran out of time before their interval was as narrow as asked "
            f"(widest ±{widest:.0%}): raise sampling.seconds_per_case"
        )
    heavy = [s for s in good if s.time_s and s.mean_s and s.mean_s > 1.5 * s.time_s.value]
    if heavy:
        worst = max((s.mean_s or 0) / s.time_s.value for s in heavy if s.time_s)
        yield (
            f"in {len(heavy)} of {len(good)} cases some iterations stall so long that a mean would be up to "
            f"{worst:.1f} times the median: see the plot of the run over time"
        )
