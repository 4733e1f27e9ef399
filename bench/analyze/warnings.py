"""Write the warnings of a run: sentences on how far it can be trusted, for the head of its report.

In: a `Run` and its summaries. Out: warnings, the gravest first. Each says what to do about it, where something can be
done.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bench.analyze.model import impossible
from bench.analyze.parts import parts
from bench.analyze.sessions import launches_of
from bench.analyze.summaries import DISPATCH_BOUND, FOREIGN_CPU_LIMIT
from bench.catalog.backends import BACKENDS
from bench.catalog.operations import OPERATIONS
from bench.model.conclusions import Summary
from bench.model.facts import HostFacts, Session
from bench.model.records import LOAD_LIMIT, NOT_AVAILABLE, UNLIMITED, Json, Run
from bench.model.units import format_bytes, format_share
from bench.stats import intervals

# Flags among NVML's throttle reasons that matter; idle (1) and set clocks (2) do not.
THROTTLED = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
# A limit that held back a GPU for less than this in a launch did not make it slow.
HELD_BACK_NS = 10_000_000
# Counters of a network adapter that should not move: what it says if they do.
PORT_FAULTS = {
    "symbol_error": "symbol errors",
    "link_downed": "the link went down",
    "link_error_recovery": "the link recovered from errors",
    "port_rcv_errors": "damaged packets received",
    "port_xmit_discards": "packets discarded",
}
# Fewest launches with which an interval over launches supports a claim (docs/method.md).
LAUNCHES_FOR_A_CLAIM = 8
# Facts that should be equal on all hosts of a job, read from a host's record; the second table only with GPUs.
COMPARED: dict[str, Callable[[HostFacts], Any]] = {
    "torch": lambda host: host.get("packages", {}).get("torch"),
    "CollBench at commit": lambda host: host.get("commit"),
}
COMPARED_WITH_GPUS: dict[str, Callable[[HostFacts], Any]] = {
    "NCCL": lambda host: host.get("nccl"),
    "GPU driver": lambda host: next((gpu.get("driver") for gpu in host.get("gpus", [])), None),
}


def warnings_of(run: Run, summaries: Sequence[Summary]) -> list[str]:
    """What a reader must know before believing the table."""
    session = run.environment[0] if run.environment else {}
    return [
        *impossible(run, summaries),
        *_plan_warnings(run),
        *_import_warnings(run),
        *run.warnings,
        *_sample_warnings(summaries),
        *_health_warnings(run),
        *_launch_warnings(run),
        *(text for part in parts().values() for text in part.warnings(run)),
        *_polling_warnings(run, session),
        *_hosts_warnings(run, session),
        *_gpu_order_warnings(session),
        *_detour_warnings(session),
        *_unused_rank_warnings(run, session),
        # How the ranks of a launch were started.
        *dict.fromkeys(remark for launch in launches_of(run.environment) for remark in launch.get("remarks", [])),
    ]


def incomplete(run: Run) -> str:
    """Says what is missing, and how to go on; empty if the run has all that it was to have."""
    missing = _missing(run)
    if not missing or _budget_is_spent(run):
        return ""
    return f"INCOMPLETE: {missing} of {run.plan.total} measurements missing (go on with: collbench resume {run.path})"


def _missing(run: Run) -> int:
    measured = {(s.case.key, s.launch) for s in run.samples}
    return sum((case.key, launch.number) not in measured for launch in run.plan.order for case in launch.cases)


def _budget_is_spent(run: Run) -> bool:
    return run.plan.budget_s is not None and run.manifest.get("status") == "complete"


def _import_warnings(run: Run) -> Iterable[str]:
    """For an imported run: how the tool measured, what it checked, what is not known."""
    source = run.imported
    if source is None:
        return
    for statistic in source.get("statistic", []):
        yield (
            f"imported from {', '.join(source.get('tool', []))}: each time is a {statistic}; stragglers are hidden, "
            "and no rank's arrival is known"
        )
    verified = source.get("verified", {})
    right, wrong, unchecked = (int(verified.get(key, 0)) for key in ("right", "wrong", "not checked"))
    checked = "the tool's output does not say that it checked any"
    if right or wrong:
        checked = f"the tool itself found {right} right and {wrong} wrong"
        checked += f", and did not check {unchecked}" if unchecked else ""
    yield f"CollBench verified none of the results; {checked}"
    yield from source.get("notes", [])
    yield from (f"unknown: {fact}" for fact in source.get("unknown", []))
    yield from (f"left out: {count} rows: {why}" for why, count in source.get("left_out", {}).items() if count)


def _plan_warnings(run: Run) -> Iterable[str]:
    if any(case.oversubscribed for case in run.plan.cases):
        yield "ranks shared a GPU: this checks that the calls work; times mean nothing, and no bandwidth is given"
    for fault in run.plan.settings.faults:
        yield f"a fault was planted on purpose: {fault.do} on rank {fault.rank}; these numbers measure nothing else"
    missing = _missing(run)
    if missing and _budget_is_spent(run):
        yield f"the budget of {run.plan.budget_s:g} s left no time for {missing} of {run.plan.total} measurements"


def _launch_warnings(run: Run) -> Iterable[str]:
    launches = run.plan.launches
    if launches == 1 and run.imported is not None:
        yield "one launch only, so there are no intervals: import the output of several runs"
    elif launches == 1:
        several = f"-N {LAUNCHES_FOR_A_CLAIM}" if run.plan.settings.row_by_row else f"launches={LAUNCHES_FOR_A_CLAIM}"
        yield f"one launch only, so it is unknown how launches differ: set {several}"
    elif launches < intervals.FEWEST_OVER_LAUNCHES:
        yield (
            f"only {launches} launches: intervals are wide; brackets of collectives show the range of launches, which "
            f"contains the true median in {format_share(1 - 2 ** (1 - launches))}; a 95 % interval needs "
            f"{intervals.FEWEST_OVER_LAUNCHES}, a claim {LAUNCHES_FOR_A_CLAIM}"
        )
    elif launches < LAUNCHES_FOR_A_CLAIM:
        yield f"only {launches} launches: intervals are wide; use {LAUNCHES_FOR_A_CLAIM} or more for a claim"
    if len(run.environment) > 1:
        yield f"measured in {len(run.environment)} sessions (resumed)"


def _hosts_warnings(run: Run, session: Session) -> Iterable[str]:
    alone: HostFacts = {**session.get("host", {}), "before": session.get("before", {})}
    first, *others = session.get("hosts") or [alone]
    hosts: list[HostFacts] = [{**first, "after": session.get("after", {})}, *others]
    for host in hosts:
        where = f"host {host.get('hostname')}: " if len(hosts) > 1 else ""
        yield from (where + warning for warning in (*_host_warnings(run, host), *_gpu_warnings(host)))
    on_gpus = any(BACKENDS[case.backend].device == "cuda" for case in run.plan.cases)
    compared = COMPARED | (COMPARED_WITH_GPUS if on_gpus else {})
    for host in hosts[1:]:
        for what, fact in compared.items():
            theirs, ours = fact(host), fact(hosts[0])
            if theirs != ours:
                yield f"host {host.get('hostname')} has {what} {theirs}, rank 0 has {ours}: make them equal"


def _host_warnings(run: Run, host: HostFacts) -> Iterable[str]:
    cores = len(host.get("cores", [])) or host.get("cpu", {}).get("usable_cores", 0)
    worlds = {case.world_size for case in run.plan.cases if BACKENDS[case.backend].device == "cpu"}
    # Without a job, all ranks of a world run on this host.
    ranks_here = {n: sum(rank < n for rank in host["ranks"]) if "ranks" in host else n for n in worlds}
    crowded = sorted({number for number in ranks_here.values() if cores and number > cores})
    if crowded:
        ranks = ", ".join(map(str, crowded))
        yield f"{ranks} ranks share {_cores(cores)}: they wait for a core as well as for data; take fewer ranks"
    cache = host.get("cpu", {}).get("last_level_cache_bytes")
    rotating = (c for c in run.plan.cases if c.buffers == "rotate" and OPERATIONS[c.op].pooled)
    small = [c for c in rotating if c.world_size in worlds]
    pool_bytes = run.plan.settings.pool_bytes
    if isinstance(cache, int) and any(max(c.size_bytes, pool_bytes) < cache for c in small):
        yield (
            f"buffers may stay in the cache, which has {format_bytes(cache)} (they have {format_bytes(pool_bytes)}): "
            "buffers=flush shows cold memory"
        )
    if worlds and host.get("fewest_cores", cores) == 1 and host.get("cpu", {}).get("logical_cores") != 1:
        yield (
            "a rank may run on one core only, which its caller and gloo's thread share: start ranks unbound (mpirun "
            "--bind-to none, srun --cpu-bind=none)"
        )
    load = host.get("before", {}).get("load")
    if load and cores and load[0] / cores > LOAD_LIMIT:
        yield f"the machine was busy at the start (load {load[0]:.2f} on {_cores(cores)}): repeat when it is idle"
    governor = host.get("cpu", {}).get("governor")
    if governor not in {None, NOT_AVAILABLE, "performance"}:
        yield f"the CPU's clock follows the load ({governor}): `cpupower frequency-set -g performance`"
    quota = host.get("cgroup_cpu_max", UNLIMITED)
    if quota != NOT_AVAILABLE and quota.split()[0] != UNLIMITED:
        yield f"a cgroup limits the CPU ({quota}), so ranks may be throttled: raise its cpu.max"


def _cores(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"


def _gpu_warnings(host: HostFacts) -> Iterable[str]:
    for moment, state in (("before", host.get("before", {})), ("after", host.get("after", {}))):
        for index, gpu in enumerate(state.get("gpus") or []):
            flags = gpu.get("throttle_reasons")
            reasons = [reason for bit, reason in THROTTLED.items() if isinstance(flags, int) and flags & bit]
            if reasons:
                yield f"GPU {index} was throttled {moment} the run: {', '.join(reasons)}"
    debug = host.get("variables", {}).get("TORCH_DISTRIBUTED_DEBUG", "OFF").upper()
    if debug not in {"OFF", "0"}:
        yield f"TORCH_DISTRIBUTED_DEBUG={debug} makes collectives several times slower: unset it"
    if host.get("variables", {}).get("NCCL_DEBUG", "").upper() in {"INFO", "TRACE"}:
        yield "NCCL_DEBUG writes while it measures: unset it"


def _health_warnings(run: Run) -> Iterable[str]:
    """What GPUs and network adapters of any host went through while ranks ran on them."""
    launches = launches_of(run.environment)
    seen: Counter[tuple[str, str, str]] = Counter()
    for launch in launches:
        for host, health in launch.get("health", {}).items():
            for number, changes in health.get("gpus", {}).items():
                seen.update((host, f"GPU {number}", why) for why in _hardships(changes))
            for port, changes in health.get("infiniband", {}).items():
                seen.update((host, f"port {port}", why) for name, why in PORT_FAULTS.items() if changes.get(name))
    for (host, what, why), count in seen.items():
        yield f"host {host}: {what}: {why} in {count} of {len(launches)} launches: their times are not typical"


def _gpu_order_warnings(session: Session) -> Iterable[str]:
    """Where CUDA counts GPUs in another order than NVML: what is recorded of one is then that of another."""
    hosts = session.get("hosts") or [session.get("host", {})]
    known = {host.get("hostname"): [gpu.get("uuid") for gpu in host.get("gpus", [])] for host in hosts}
    ranks = [rank for launch in launches_of([session]) for rank in launch.get("ranks", [])]
    for rank in ranks:
        used, of_host = rank.get("device_uuid"), known.get(rank.get("hostname"), [])
        number = int(str(rank.get("device")).partition(":")[2] or 0)
        if used and number < len(of_host) and str(of_host[number]).startswith("GPU-") and of_host[number] != used:
            yield (
                f"host {rank['hostname']}: CUDA's GPU {number} is not the driver's GPU {number}: what was "
                "recorded for it belongs to another GPU; set CUDA_DEVICE_ORDER=PCI_BUS_ID"
            )
            return


def _detour_warnings(session: Session) -> Iterable[str]:
    """Where GPUs have NVLink and NCCL goes another way, as where each rank sees its own GPU only."""
    hosts = session.get("hosts") or [session.get("host", {})]
    links = [gpu.get("nvlinks") or [] for host in hosts for gpu in host.get("gpus") or []]
    chosen = [choice for launch in launches_of([session]) for choice in launch.get("chosen", {}).values()]
    ways = {way for choice in chosen for way in choice.get("transports", [])}
    if links and all(map(any, links)) and ways and not any(way.startswith(("P2P", "NVLS")) for way in ways):
        yield (
            f"the GPUs have NVLink, but NCCL goes by {', '.join(sorted(ways))}: each rank must see all GPUs of its "
            "host (not --gpus-per-task), and NCCL_P2P_DISABLE must not be set"
        )


def _hardships(changes: Json) -> Iterable[str]:
    """Why a GPU was slower than it could be, or not well, from what it counted in a launch."""
    flags = changes.get("throttle_reasons", 0)
    yield from (reason for bit, reason in THROTTLED.items() if flags & bit)
    held_back = {name: ns for name, ns in changes.items() if name.startswith("held_back_")}
    for name, ns in held_back.items():
        if ns >= HELD_BACK_NS:
            yield f"held back by its {name.removeprefix('held_back_').removesuffix('_ns')} limit"
    if changes.get("uncorrected_errors"):
        yield "memory errors that were not corrected"
    if changes.get("pcie_replays"):
        yield "PCIe transfers repeated"


def _unused_rank_warnings(run: Run, session: Session) -> Iterable[str]:
    """Where no case uses all ranks of the job: those of the last hosts were not measured."""
    ranks = session.get("job", {}).get("ranks", 0)
    largest = max((case.world_size for case in run.plan.cases), default=0)
    if largest < ranks:
        first = len(session["hosts"][0].get("ranks", [])) if "hosts" in session else 0
        crosses = "; no case crosses hosts" if largest <= first < ranks else ""
        unused = f"{ranks - largest} of the {ranks} ranks of the job are in no case{crosses}"
        yield f"{unused}: set world_sizes, or leave it out"


def _polling_warnings(run: Run, session: Session) -> Iterable[str]:
    """With more ranks than cores, ranks that wait by polling take the cores from those that they wait for."""
    cores = session.get("host", {}).get("cpu", {}).get("usable_cores", 0)
    polling = {(case.backend, case.world_size) for case in run.plan.cases if BACKENDS[case.backend].polls}
    for backend in sorted({name for name, _ in polling}):
        crowded = sorted(size for name, size in polling if name == backend and cores and size > cores)
        if crowded:
            yield (
                f"ranks of {backend} poll while they wait: {', '.join(map(str, crowded))} ranks on {_cores(cores)} "
                "take the cores from those that they wait for; use fewer ranks"
            )


def _sample_warnings(summaries: Sequence[Summary]) -> Iterable[str]:
    good = [summary for summary in summaries if summary.time_s is not None]
    disturbed = [s.foreign_cpu for s in good if s.foreign_cpu is not None and s.foreign_cpu > FOREIGN_CPU_LIMIT]
    if disturbed:
        yield (
            f"other processes used up to {format_share(max(disturbed))} of the busy CPU time during {len(disturbed)} "
            f"of {len(good)} cases: repeat when the machine is idle"
        )
    if nothing := sum(s.only_clock for s in good):
        yield f"{nothing} of {len(good)} cases took as long as reading the clock: one rank in place has nothing to do"
    short = [s for s in good if any(w.startswith("stopped by time") for w in s.warnings)]
    if short:
        asked = format_share(max(s.asked or 0.0 for s in short))
        yield f"±{asked} was not reached in {len(short)} of {len(good)} cases: more launches would help"
    bound = [s for s in good if any(w.startswith(DISPATCH_BOUND) for w in s.warnings)]
    if bound:
        yield (
            f"{len(bound)} of {len(good)} cases are bound by dispatching: enqueueing takes longer than the GPU's "
            "work, so their times are the host's (host_time_s in summary.csv); a smaller depth helps"
        )
    unsteady = sum(1 for s in good if not s.steady)
    if unsteady:
        yield (
            f"{unsteady} of {len(good)} cases were not steady at the beginning or the end of a launch: a longer "
            "sampling.seconds_per_case shows which time stays"
        )
