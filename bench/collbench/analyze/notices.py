"""Collect notices on everything that limits how far a run can be trusted.

In: a `Run` and its summaries. Out: notices, the gravest first.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from collbench.analyze import joining
from collbench.analyze.against import disturbances
from collbench.analyze.comparability import hosts_of, session_changes
from collbench.analyze.cost_model import impossible
from collbench.analyze.reading import readings
from collbench.analyze.sessions import launches_of, ranks_of
from collbench.analyze.summaries import DISPATCH_BOUND, FOREIGN_CPU_LIMIT
from collbench.catalog.backends import BACKENDS
from collbench.catalog.collectives import OPERATIONS
from collbench.model.conclusions import Summary
from collbench.model.facts import HostFacts, Session
from collbench.model.notices import INCOMPLETE, STOPPED_EARLY, Kind, Notice, Rule, every, first
from collbench.model.records import LOAD_LIMIT, NOT_AVAILABLE, UNLIMITED, Json, Run
from collbench.stats import intervals

# Flags among NVML's throttle reasons that matter; idle (1) and set clocks (2) do not.
THROTTLE_REASONS = {
    0x4: Kind("power-cap", "power cap"),
    0x8: Kind("hardware-slowdown", "hardware slowdown"),
    0x20: Kind("software-thermal-slowdown", "software thermal slowdown"),
    0x40: Kind("hardware-thermal-slowdown", "hardware thermal slowdown"),
    0x80: Kind("power-brake", "power brake"),
}
# A limit that held back a GPU for less than this in a launch did not make it slow.
HELD_BACK_NS = 10_000_000
# Counters of a network adapter that should not change → the notice if they do.
PORT_FAULTS = {
    "symbol_error": Kind("symbol-errors", "symbol errors"),
    "link_downed": Kind("link-down", "the link went down"),
    "link_error_recovery": Kind("link-recovered", "the link recovered from errors"),
    "port_rcv_errors": Kind("damaged-packets", "damaged packets received"),
    "port_xmit_discards": Kind("discarded-packets", "packets discarded"),
}
# A launch in which TCP sends a larger share of its segments again waits for a lossy or crowded network.
RETRANSMITTED_SHARE = 1e-3
# A launch that sends fewer segments hardly uses TCP: other programs may have sent them.
FEWEST_SEGMENTS = 1000
# Fewest launches with which an interval over launches supports a claim (docs/method.md).
LAUNCHES_FOR_A_CLAIM = 8
# Facts that should be equal on all hosts of a job, read from a host's record; the second table applies only with GPUs.
COMPARED: dict[str, Callable[[HostFacts], Any]] = {
    "torch": lambda host: host.get("packages", {}).get("torch"),
    "CollBench at commit": lambda host: host.get("commit"),
}
COMPARED_WITH_GPUS: dict[str, Callable[[HostFacts], Any]] = {
    "NCCL": lambda host: host.get("nccl"),
    "GPU driver": lambda host: next((gpu.get("driver") for gpu in host.get("gpus", [])), None),
}


def notices_of(run: Run, summaries: Sequence[Summary]) -> list[Notice]:
    """Return the notices that a reader must know before trusting the table."""
    session = run.environment[0] if run.environment else {}
    # Addresses other than loopback at which mpirun listened.
    opened = dict.fromkeys(tuple(launch.get("open_to", [])) for launch in launches_of(run.environment))
    notices = [
        *impossible(run, summaries),
        *_plan_notices(run),
        *_import_notices(run),
        *run.notices,
        *_health_notices(run),
        *_sample_notices(summaries),
        *_launch_notices(run),
        *joining.notices(run),
        *disturbances(run),
        *(notice for reading in readings(run).values() for notice in reading.notices),
        *_polling_notices(run, session),
        *_hosts_notices(run, session),
        *_gpu_order_notices(session),
        *_detour_notices(session),
        *_unused_rank_notices(run, session),
        *(OPEN_TO_NETWORK(addresses=addresses) for addresses in opened if addresses),
    ]
    # What stays after the end of a group changed none of its times.
    return sorted(notices, key=lambda notice: notice.kind in {joining.THREADS_STAYED, joining.FILES_STAYED})


def incomplete(run: Run) -> Notice | None:
    """Return a notice on missing launches of cases; None if the run is complete, or its time budget was spent."""
    missing = _missing(run)
    if not missing or _budget_is_spent(run):
        return None
    return INCOMPLETE(missing=missing, planned=run.plan.total, path=str(run.path))


def _missing(run: Run) -> int:
    measured = {(s.case.key, s.launch) for s in run.samples}
    return sum((case.key, launch.number) not in measured for launch in run.plan.order for case in launch.cases)


def _budget_is_spent(run: Run) -> bool:
    return run.plan.budget_s is not None and run.manifest.get("status") == "complete"


IMPORTED_STATISTIC = Kind(
    "imported-statistic",
    "imported from {tools}: each time is a {statistic}; stragglers are hidden, and no rank's arrival is known",
)
NOT_CHECKED = Kind(
    "not-checked", "CollBench verified none of the results; the tool's output does not state that it checked any"
)
CHECKED_ELSEWHERE = Kind(
    "checked-elsewhere",
    "CollBench verified none of the results; the tool itself found {right} right and {wrong} wrong"
    "{unchecked:after , and did not check }",
)


def _import_notices(run: Run) -> Iterable[Notice]:
    """Yield, for an imported run, notices on the statistics of the tool, and on its checks of results."""
    source = run.imported
    if source is None:
        return
    for statistic in source.get("statistic", []):
        yield IMPORTED_STATISTIC(tools=tuple(source.get("tool", [])), statistic=statistic)
    verified = source.get("verified", {})
    right, wrong, unchecked = (int(verified.get(key, 0)) for key in ("right", "wrong", "not checked"))
    if right or wrong:
        yield CHECKED_ELSEWHERE(right=right, wrong=wrong, unchecked=unchecked)
    else:
        yield NOT_CHECKED()


SHARED_GPU = Kind(
    "shared-gpu", "ranks shared a GPU: this checks that the calls work; times mean nothing, and no bandwidth is given"
)
PLANTED_FAULT = Kind(
    "planted-fault", "a fault was planted on purpose: {do} on rank {rank}; these numbers measure nothing else"
)
BUDGET_SPENT = Kind("budget-spent", "the budget of {budget_s:g} s left no time for {missing} of {planned} measurements")


def _plan_notices(run: Run) -> Iterable[Notice]:
    if shared := [case.key for case in run.plan.cases if case.oversubscribed]:
        yield SHARED_GPU(shared)
    for fault in run.plan.settings.faults:
        yield PLANTED_FAULT(do=fault.do, rank=fault.rank)
    missing = _missing(run)
    if missing and _budget_is_spent(run):
        yield BUDGET_SPENT(budget_s=run.plan.budget_s, missing=missing, planned=run.plan.total)


# The first that holds is given.
_OF_LAUNCHES = (
    Rule(lambda f: f.launches == 1 and f.imported,
         Kind("one-imported-launch", "one launch only, so there are no intervals",
              "import the output of several runs")),
    Rule(lambda f: f.launches == 1,
         Kind("one-launch", "one launch only, so the variation between launches is unknown", "set {setting}")),
    Rule(lambda f: f.launches < f.for_interval and f.collectives,
         Kind("few-launches", "only {launches} launches: intervals are wide; brackets of collectives show the range of "
              "launches, which contains the true median in {covered:share}",
              "a 95 % interval needs {for_interval}, a claim {for_claim}")),
    Rule(lambda f: f.launches < f.for_claim,
         Kind("wide-intervals", "only {launches} launches: intervals are wide", "use {for_claim} or more for a claim")),
)  # fmt: skip
SESSIONS = Kind("sessions", "measured in {sessions} sessions (resumed)")


def _launch_notices(run: Run) -> Iterable[Notice]:
    launches = run.plan.launches
    facts = SimpleNamespace(
        launches=launches,
        imported=run.imported is not None,
        setting=f"{'-N ' if run.plan.settings.row_by_row else 'launches='}{LAUNCHES_FOR_A_CLAIM}",
        covered=1 - 2 ** (1 - launches),
        for_interval=intervals.FEWEST_OVER_LAUNCHES,
        for_claim=LAUNCHES_FOR_A_CLAIM,
        collectives=any(not OPERATIONS[case.op].against for case in run.plan.cases),
    )
    yield from filter(None, [first(_OF_LAUNCHES, facts)])
    if len(run.environment) > 1:
        yield SESSIONS(sessions=len(run.environment))
        yield from session_changes(run)


UNLIKE_HOSTS = Kind("unlike-hosts", "host {name} has {what} {there}, rank 0 has {here}", "make them equal")


def _hosts_notices(run: Run, session: Session) -> Iterable[Notice]:
    alone: HostFacts = {**session.get("host", {}), "before": session.get("before", {})}
    first, *others = session.get("hosts") or [alone]
    hosts: list[HostFacts] = [{**first, "after": session.get("after", {})}, *others]
    for host in hosts:
        name = str(host.get("hostname")) if len(hosts) > 1 else None
        state = HostState(run, host)
        of_host = (*every(_OF_HOST, state), *_throttled_notices(host), *every(_OF_VARIABLES, state))
        yield from (replace(host_notice, host=name) for host_notice in of_host)
    on_gpus = any(BACKENDS[case.backend].device == "cuda" for case in run.plan.cases)
    compared = COMPARED | (COMPARED_WITH_GPUS if on_gpus else {})
    for host in hosts[1:]:
        for what, fact in compared.items():
            theirs, ours = fact(host), fact(hosts[0])
            if theirs != ours:
                yield UNLIKE_HOSTS(name=str(host.get("hostname")), what=what, there=str(theirs), here=str(ours))


class HostState:
    """The facts of a host that notices on it ask for."""

    def __init__(self, run: Run, host: HostFacts) -> None:
        cpu, before, variables = host.get("cpu", {}), host.get("before", {}), host.get("variables", {})
        self.cores = cores = len(host.get("cores", [])) or cpu.get("usable_cores")
        worlds = {case.world_size for case in run.plan.cases if BACKENDS[case.backend].device == "cpu"}
        # Without a job, all ranks of a world run on this host.
        here = {sum(rank < n for rank in host["ranks"]) if "ranks" in host else n for n in worlds}
        self.ranks = tuple(sorted(number for number in here if cores and number > cores))
        cache, pool = cpu.get("last_level_cache_bytes"), run.plan.settings.pool_bytes
        self.cache_bytes, self.buffers_bytes = cache, pool
        rotating = (c for c in run.plan.cases if c.buffers == "rotate" and OPERATIONS[c.op].pooled)
        pooled = [(c.key, max(c.size_bytes, pool)) for c in rotating if c.world_size in worlds]
        self.cached = [key for key, nbytes in pooled if isinstance(cache, int) and nbytes < cache]
        self.on_one_core = worlds and host.get("fewest_cores", cores) == 1 and cpu.get("logical_cores") != 1
        self.load = next(iter(before.get("load") or ()), None)
        self.governor, self.quota = cpu.get("governor"), host.get("cgroup_cpu_max", UNLIMITED)
        self.value = variables.get("TORCH_DISTRIBUTED_DEBUG", "OFF").upper()
        self.nccl_debug = variables.get("NCCL_DEBUG", "").upper()


BUSY = Kind(
    "busy", "the machine was busy at the start (load {load:.2f} on {cores:count core})", "repeat when it is idle"
)
_OF_HOST = (
    Rule(lambda f: f.ranks,
         Kind("crowded", "{ranks} ranks share {cores:count core}: they wait for a core as well as for data",
              "use fewer ranks")),
    Rule(lambda f: f.cached,
         Kind("in-cache", "buffers may stay in the cache: it has {cache_bytes:bytes} (they have {buffers_bytes:bytes})",
              "buffers=flush shows cold memory"), {"cases": "cached"}),
    Rule(lambda f: f.on_one_core,
         Kind("one-core", "a rank may run on one core only, which its caller and gloo's thread share",
              "start ranks unbound (mpirun --bind-to none, srun --cpu-bind=none)")),
    Rule(lambda f: f.cores and f.load and f.load / f.cores > LOAD_LIMIT, BUSY),
    Rule(lambda f: f.governor not in {None, NOT_AVAILABLE, "performance"},
         Kind("governor", "the CPU's clock follows the load ({governor})",
              "`cpupower frequency-set -g performance` keeps it constant")),
    Rule(lambda f: f.quota != NOT_AVAILABLE and f.quota.split()[0] != UNLIMITED,
         Kind("cpu-quota", "a cgroup limits the CPU ({quota}), so ranks may be throttled", "raise its cpu.max")),
)  # fmt: skip
_OF_VARIABLES = (
    Rule(lambda f: f.value not in {"OFF", "0"},
         Kind("debug-checks", "TORCH_DISTRIBUTED_DEBUG={value} makes collectives several times slower", "unset it")),
    Rule(lambda f: f.nccl_debug in {"INFO", "TRACE"},
         Kind("debug-output", "NCCL_DEBUG writes while it measures", "unset it")),
)  # fmt: skip
THROTTLED = Kind("throttled", "GPU {gpu} was throttled {moment} the run: {reasons}")


def _throttled_notices(host: HostFacts) -> Iterable[Notice]:
    for moment, state in (("before", host.get("before", {})), ("after", host.get("after", {}))):
        for index, gpu in enumerate(state.get("gpus") or []):
            flags = gpu.get("throttle_reasons")
            if reasons := tuple(_throttled(flags) if isinstance(flags, int) else ()):
                yield THROTTLED(gpu=index, moment=moment, reasons=reasons)


DEVICE_EVENT = Kind(
    "device-event", "{device}: {why} in {launches} of {of_launches} launches: their times are not typical"
)
RETRANSMITTED_SEGMENTS = Kind("retransmitted-segments", "up to {share:fine share} of the segments were sent again")


def _health_notices(run: Run) -> Iterable[Notice]:
    """Yield notices on problems of GPUs and network adapters of any host while ranks ran on them."""
    launches = [(session, launch) for session in run.environment for launch in launches_of([session])]
    events: Counter[tuple[str, str, Notice]] = Counter()
    again: defaultdict[str, list[float]] = defaultdict(list)
    for session, launch in launches:
        for host, health in launch.get("health", {}).items():
            for number, changes in health.get("gpus", {}).items():
                events.update((host, f"GPU {number}", why) for why in _device_events(changes))
            for port, changes in health.get("infiniband", {}).items():
                faults = (why() for name, why in PORT_FAULTS.items() if changes.get(name))
                events.update((host, f"port {port}", why) for why in faults)
            tcp = health.get("tcp", {}).get("all", {})
            share = tcp.get("segments_again", 0) / max(FEWEST_SEGMENTS, tcp.get("segments", 0))
            network = session.get("job", {}).get("network", "")
            on_loopback = network.startswith(("127.", "::1"))  # where nothing is lost
            if share > RETRANSMITTED_SHARE and network and not on_loopback:
                again[host].append(share)
    retransmitted = {
        (host, "TCP", RETRANSMITTED_SEGMENTS(share=max(shares))): len(shares) for host, shares in again.items()
    }
    for (host, device, why), count in (events | retransmitted).items():
        yield DEVICE_EVENT(host=host, device=device, why=(why,), launches=count, of_launches=len(launches))


GPU_ORDER = Kind(
    "gpu-order",
    "CUDA's GPU {gpu} is not the driver's GPU {gpu}: its recorded values belong to another GPU",
    "set CUDA_DEVICE_ORDER=PCI_BUS_ID",
)


def _gpu_order_notices(session: Session) -> Iterable[Notice]:
    """Yield a notice if CUDA counts GPUs in another order than NVML: records of a GPU then belong to another GPU."""
    hosts = hosts_of(session)
    uuids_by_host = {host.get("hostname"): [gpu.get("uuid") for gpu in host.get("gpus", [])] for host in hosts}
    for rank in ranks_of([session]):
        used, uuids = rank.get("device_uuid"), uuids_by_host.get(rank.get("hostname"), [])
        number = int(str(rank.get("device")).partition(":")[2] or 0)
        if used and number < len(uuids) and str(uuids[number]).startswith("GPU-") and uuids[number] != used:
            yield GPU_ORDER(host=rank["hostname"], gpu=number)
            return


NO_NVLINK = Kind(
    "no-nvlink",
    "the GPUs have NVLink, but NCCL uses {ways}",
    "each rank must see all GPUs of its host (not --gpus-per-task), and NCCL_P2P_DISABLE must not be set",
)


def _detour_notices(session: Session) -> Iterable[Notice]:
    """Yield a notice if GPUs have NVLink but NCCL uses another way, such as when each rank sees its own GPU only."""
    hosts = hosts_of(session)
    links = [gpu.get("nvlinks") or [] for host in hosts for gpu in host.get("gpus") or []]
    chosen = [choice for launch in launches_of([session]) for choice in launch.get("chosen", {}).values()]
    ways = {way for choice in chosen for way in choice.get("transports", [])}
    if links and all(map(any, links)) and ways and not any(way.startswith(("P2P", "NVLS")) for way in ways):
        yield NO_NVLINK(ways=tuple(sorted(ways)))


def _throttled(flags: int) -> Iterable[Notice]:
    return (why() for bit, why in THROTTLE_REASONS.items() if flags & bit)


HELD_BACK = Kind("held-back", "held back by its {limit} limit")
# Counters of a GPU that should not change → the notice if they do.
GPU_FAULTS = {
    "uncorrected_errors": Kind("uncorrected-memory-errors", "memory errors that were not corrected"),
    "pcie_replays": Kind("pcie-replays", "PCIe transfers repeated"),
}


def _device_events(changes: Json) -> Iterable[Notice]:
    """Yield the reasons why a GPU was slower than it could be, or faulty, from its counters in a launch."""
    yield from _throttled(changes.get("throttle_reasons", 0))
    held_back = {name: ns for name, ns in changes.items() if name.startswith("held_back_")}
    for name, ns in held_back.items():
        if ns >= HELD_BACK_NS:
            yield HELD_BACK(limit=name.removeprefix("held_back_").removesuffix("_ns"))
    yield from (why() for name, why in GPU_FAULTS.items() if changes.get(name))


UNUSED_RANKS = Kind(
    "unused-ranks", "{unused} of the {ranks} ranks of the job are in no case", "set world_sizes, or leave it out"
)
UNUSED_HOSTS = Kind(
    "unused-hosts",
    "{unused} of the {ranks} ranks of the job are in no case; no case crosses hosts",
    "set world_sizes, or leave it out",
)


def _unused_rank_notices(run: Run, session: Session) -> Iterable[Notice]:
    """Yield a notice if no case uses all ranks of the job: the ranks of the last hosts were not measured."""
    ranks = session.get("job", {}).get("ranks", 0)
    largest = max((case.world_size for case in run.plan.cases), default=0)
    if largest < ranks:
        first = len(session["hosts"][0].get("ranks", [])) if "hosts" in session else 0
        kind = UNUSED_HOSTS if largest <= first < ranks else UNUSED_RANKS
        yield kind(unused=ranks - largest, ranks=ranks)


OPEN_TO_NETWORK = Kind(
    "open-to-network",
    "mpirun listened on {addresses:and} while it ran, and this system cannot confine it to loopback (Linux 5.7 "
    "does, unless a container forbids pidfd_getfd)",
)


POLLING = Kind(
    "polling",
    "ranks of {backend} poll while they wait: {ranks} ranks on {cores:count core} take the cores from those that "
    "they wait for",
    "use fewer ranks",
)


def _polling_notices(run: Run, session: Session) -> Iterable[Notice]:
    """Yield a notice if polling ranks outnumber cores: waiting ranks take the cores from the ranks they wait for."""
    cores = session.get("host", {}).get("cpu", {}).get("usable_cores", 0)
    polling = {(case.backend, case.world_size) for case in run.plan.cases if BACKENDS[case.backend].polls}
    for backend in sorted({name for name, _ in polling}):
        crowded = sorted(size for name, size in polling if name == backend and cores and size > cores)
        if crowded:
            yield POLLING(backend=backend, ranks=tuple(crowded), cores=cores)


# Condition on a case, kind of the notice on all cases that meet it, and the number of a case whose maximum it states.
_OF_CASES: tuple[tuple[Callable[[Summary], object], Kind, Callable[[Summary], float | None] | None], ...] = (
    (lambda s: s.foreign_cpu is not None and s.foreign_cpu > FOREIGN_CPU_LIMIT,
     Kind("other-processes", "other processes used up to {worst:share} of the busy CPU time during {count} of "
          "{measured} cases", "repeat when the machine is idle"), lambda s: s.foreign_cpu),
    (lambda s: s.only_clock,
     Kind("only-clock", "{count} of {measured} cases took as long as reading the clock: one rank in place has nothing "
          "to do"), None),
    (lambda s: STOPPED_EARLY in {notice.kind for notice in s.notices},
     Kind("precision-missed", "±{worst:share} was not reached in {count} of {measured} cases",
          "more launches would help"), lambda s: s.asked),
    (lambda s: DISPATCH_BOUND in {notice.kind for notice in s.notices},
     Kind("cases-dispatch-bound", "{count} of {measured} cases are bound by dispatching: enqueueing takes longer than "
          "the GPU's work, so their times are the host's (host_time_s in summary.csv)", "a smaller depth helps"), None),
    (lambda s: not s.steady,
     Kind("cases-unsteady", "{count} of {measured} cases had not settled at the start or the end of a launch",
          "a longer sampling.seconds_per_case shows which time stays"), None),
)  # fmt: skip


def _sample_notices(summaries: Sequence[Summary]) -> Iterable[Notice]:
    good = [summary for summary in summaries if summary.time_s is not None]
    for applies, kind, number in _OF_CASES:
        if cases := [s for s in good if applies(s)]:
            worst = None if number is None else max(number(s) or 0.0 for s in cases)
            yield kind([s.case.key for s in cases], count=len(cases), measured=len(good), worst=worst)
