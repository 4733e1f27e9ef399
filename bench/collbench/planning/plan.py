"""Make the plan of a run: the cases in the order of measuring, and the skipped cases with reasons.

In: a `Config`, a `Machine` and a seed. Out: a `Plan`, and an estimate of its time. Starts nothing and touches no file.
The seed, which the plan records, shuffles the order anew for each launch, so that a drift of the machine does not
affect the same sizes each time (docs/method.md).
"""

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from collbench.catalog.backends import BACKENDS
from collbench.catalog.collectives import OPERATIONS
from collbench.catalog.metrics import makes_groups, metric_of
from collbench.config.models import Config
from collbench.model.notices import Kind, Notice
from collbench.model.projection import PLACEMENTS, grouped
from collbench.model.records import (
    LAUNCH_WARMUP_S,
    OPTIONS,
    Case,
    Demands,
    Fault,
    Launch,
    Machine,
    Plan,
    Samples,
    Sampling,
    Settings,
    Skip,
    case_order,
)
from collbench.planning.asked import Asked, asked
from collbench.planning.cases import combinations, overhead_bytes, sharing_memory, unsupported, usable_bytes
from collbench.planning.footprint import (
    FEWEST_ITERATIONS,
    PATIENCE,
    arena_bytes,
    batches,
    most_iterations,
    scratch_bytes,
)

# L2 cache of the largest GPUs (126 MB on a B200): without CUDA the driver does not report it.
LARGEST_GPU_CACHE_BYTES = 128 * 2**20
# Memory for the buffers of cases that are measured in the same rounds, on all ranks of a host: at most the first value,
# and at most the available memory divided by the second value. On a GPU, at most its free memory divided by the latter.
MOST_BATCH_BYTES_OF_A_HOST, SHARE_OF_MEMORY_FOR_A_BATCH = 2**32, 4
# Time to load torch before the first set of ranks starts: measured 2.5 s.
FIRST_START_S = 3.0
# Cost of a case in a launch apart from warm-up and timed calls: seconds, and calls to fill and verify buffers (measured
# by `make bench-self`: 25 to 28 ms, and 2.1 to 2.5 calls).
HANDLING_S, HANDLING_CALLS = 0.035, 2.5
# Seconds to build and check a case that is compared with a reference (measured for training steps), without its calls.
PREPARED_S = 0.5
# Time for tables, report and plots at the end: measured 3 to 5 s.
CONCLUDE_S = 4.0
# Share of a budget for the planned launches; the rest buys further launches of the cases with the widest intervals.
# Small, because between-launch variance exceeds within-launch variance: many short launches beat few long launches.
FIRST_LAUNCHES_SHARE = 0.3
# Shortest time for a case in a launch: it gives the fewest iterations, as any shorter time would.
FEWEST_S = 0.01


def expand(config: Config, machine: Machine, seed: int, of_packages: Sequence[Asked] | None = None) -> Plan:
    """Return the plan of all cases that the configuration asks for, without cases that this machine cannot measure.

    of_packages: what the sections of packages ask for, if the caller has it already.
    """
    cases: list[Case] = []
    skips: list[Skip] = []
    flush_bytes = _flush_bytes(config, machine)
    sections = asked(config, machine) if of_packages is None else of_packages
    for case in itertools.chain(combinations(config, machine), *(section.cases for section in sections)):
        reason = unsupported(case, machine, config.buffer_pool, flush_bytes)
        if reason is None:
            cases.append(case)
        else:
            skips.append(Skip(case, reason))
    plan = _plan(config, machine, seed, _order(cases, config.launches, seed))
    if config.budget is not None and cases:
        sampling = _within_budget(plan.settings.sampling, config.budget, config.launches, cases)
        plan = replace(plan, settings=replace(plan.settings, sampling=sampling), budget_s=config.budget)
    skips += [skip for section in sections for skip in section.skips]
    notices = tuple(notice for section in sections for notice in section.notices)
    own = {section.settings.operation: section.settings for section in sections if section.settings is not None}
    settings = replace(plan.settings, own=own).needed_by(cases)
    return replace(plan, skips=tuple(skips), notices=notices, settings=settings)


def row_by_row(plan: Plan) -> Plan:
    """Return the plan with each row of its tables measured to its end before the next row, as in nccl-tests.

    A row is then known as soon as it is measured. Rows keep the order of the table in every launch, and the blocks of a
    case are not spread over the launch: a drift of the machine moves the same sizes each time.
    """

    def place(case: Case) -> tuple[object, ...]:
        return case_order(PLACEMENTS.residue(case))

    order = [replace(launch, cases=tuple(sorted(launch.cases, key=place))) for launch in plan.order]
    order.sort(key=lambda launch: (launch.number, place(launch.cases[0])))
    return replace(plan, order=tuple(order), settings=replace(plan.settings, row_by_row=True))


def plan_cases(config: Config, machine: Machine, seed: int, name: str, cases: Sequence[Case]) -> Plan:
    """Return the plan of these cases, in this order, with the configuration's sampling and without a budget.

    The first launch has all cases; a case that occurs again is measured in the next launch.
    """
    launches: list[list[Case]] = []
    counts: Counter[str] = Counter()
    for case in cases:
        if counts[case.key] == len(launches):
            launches.append([])
        launches[counts[case.key]].append(case)
        counts[case.key] += 1
    order = [Launch(cases[0].backend, cases[0].world_size, number, tuple(of)) for number, of in enumerate(launches, 1)]
    return replace(_plan(config, machine, seed, order), name=name, launches=len(order))


def _plan(config: Config, machine: Machine, seed: int, order: Iterable[Launch]) -> Plan:
    """Return a plan of these launches, without skips, budget and settings of packages."""
    settings = Settings(
        sampling=Sampling(**config.sampling.model_dump()),
        seed=seed,
        timeout_s=config.timeout,
        pool_bytes=config.buffer_pool,
        flush_bytes=_flush_bytes(config, machine),
        batch_bytes=min(MOST_BATCH_BYTES_OF_A_HOST, machine.memory_available_bytes // SHARE_OF_MEMORY_FOR_A_BATCH),
        gpu_batch_bytes=(machine.gpu_free_bytes or MOST_BATCH_BYTES_OF_A_HOST) // SHARE_OF_MEMORY_FOR_A_BATCH,
        faults=tuple(Fault(**fault.model_dump()) for fault in config.faults),
    )
    return Plan(
        name=config.name,
        order=tuple(order),
        skips=(),
        launches=config.launches,
        settings=settings,
        link_bytes_per_s=config.link,
    )


def _flush_bytes(config: Config, machine: Machine) -> int:
    """Return the bytes that `flush` overwrites: twice the largest cache."""
    on_gpu = any(BACKENDS[name].device == "cuda" for name in config.backends)
    return 2 * max(machine.last_level_cache_bytes, LARGEST_GPU_CACHE_BYTES if on_gpu else 0)


def _order(cases: list[Case], launches: int, seed: int) -> Iterable[Launch]:
    dice = random.Random(seed)
    by_kind = grouped(cases, process_kind)
    kinds = list(by_kind)
    for launch in range(1, launches + 1):
        dice.shuffle(kinds)
        if launch == 1:  # most ranks first, so that a table of all cases is complete early
            kinds.sort(key=lambda kind: -by_kind[kind][0].world_size)
        for kind in kinds:
            shuffled = list(by_kind[kind])
            dice.shuffle(shuffled)
            if launch == 1:
                shuffled.sort(key=lambda case: case.size_bytes)
            yield Launch(shuffled[0].backend, shuffled[0].world_size, launch, tuple(shuffled))


def process_kind(case: Case) -> tuple[object, ...]:
    """Return the kind of a case: only cases of one kind share processes. NCCL reads its variables once per process.

    Threads of groups that were made and left continue for a while, which would slow other cases. Once a communicator of
    NCCL was captured in a graph, each later call on it waits for one more event. Cases that are compared with a
    reference share processes only with the cases that they are compared with.
    """
    apart = (getattr(case, option.name) for option in OPTIONS if option.needs_processes)
    return (
        case.backend,
        case.world_size,
        *apart,
        makes_groups(case),
        metric_of(case).captured,
        case.shared if OPERATIONS[case.op].against else None,
    )


def _within_budget(sampling: Sampling, budget_s: float, launches: int, cases: list[Case]) -> Sampling:
    """Return the sampling with `seconds_per_case` cut: planned launches take FIRST_LAUNCHES_SHARE of the budget."""
    backends_by_kind = {process_kind(case): case.backend for case in cases}
    start_s = sum(BACKENDS[backend].start_s for backend in backends_by_kind.values())
    handling = sum(_handling_s(case) + sampling.warmup_s for case in cases)
    per_launch_s = FIRST_LAUNCHES_SHARE * (budget_s - FIRST_START_S) / launches - handling - start_s
    return replace(sampling, seconds_per_case=min(sampling.seconds_per_case, max(FEWEST_S, per_launch_s / len(cases))))


SEVERAL_REASONS = Kind("several-reasons", "{reasons:first of}")


def unmeasurable_reason(plan: Plan) -> Notice | None:
    """Return why no case of the plan can be measured here; None if at least one case can."""
    if plan.total:
        return None
    reasons = tuple(dict.fromkeys(skip.reason for skip in plan.skips))
    return SEVERAL_REASONS(reasons=reasons) if len(reasons) > 1 else reasons[0]


LAUNCH_MEMORY = Kind(
    "launch-memory",
    "{ranks:count rank} on {backend} need {needed_bytes:rounded bytes} of memory; {usable_bytes:rounded bytes} may "
    "be used here",
)


def too_large(plan: Plan, machine: Machine) -> Notice | None:
    """Return why the memory here does not suffice for a plan, perhaps made on another machine; None if it does."""
    for launch in plan.order:
        usable = usable_bytes(machine, on_gpu=BACKENDS[launch.backend].device == "cuda")
        needed = _launch_bytes(launch, plan.settings, machine)
        if usable is not None and needed > usable:
            return LAUNCH_MEMORY(
                ranks=launch.world_size, backend=launch.backend, needed_bytes=needed, usable_bytes=usable
            )
    return None


EXCLUSIVE_GPU = Kind(
    "exclusive-gpu",
    "a GPU here is in exclusive mode: only one process at a time may use it (nvidia-smi -c 0 ends that)",
)
MEMORY_OF_BOTH = Kind(
    "memory-of-both",
    "both at once need {needed_bytes:sum of bytes} of memory on a {place}; {usable_bytes:rounded bytes} may be used",
)


def reason_to_alternate(plans: Sequence[Plan], machine: Machine) -> Notice | None:
    """Return why ranks of all plans cannot be alive at once and launches must alternate; None if they can."""
    needed: dict[bool, list[int]] = {False: [], True: []}  # on a GPU or not → bytes of each plan there
    for plan in plans:
        launches: dict[bool, list[int]] = {}
        for launch in (launch for launch in plan.order if launch.number == 1):
            on_gpu = BACKENDS[launch.backend].device == "cuda"
            launches.setdefault(on_gpu, []).append(_launch_bytes(launch, plan.settings, machine))
        for on_gpu, nbytes in launches.items():
            needed[on_gpu].append(max(nbytes))
    if machine.gpu_exclusive and len(needed[True]) > 1:
        return EXCLUSIVE_GPU()
    for on_gpu, nbytes in needed.items():
        usable = usable_bytes(machine, on_gpu)
        if len(nbytes) > 1 and usable is not None and sum(nbytes) > usable:
            place = "GPU" if on_gpu else "host"
            return MEMORY_OF_BOTH(needed_bytes=tuple(nbytes), place=place, usable_bytes=usable)
    return None


def _launch_bytes(launch: Launch, settings: Settings, machine: Machine) -> int:
    """Return the bytes that the ranks of a launch take together on one GPU or host, as far as they are known."""
    cases = launch.cases
    buffers = max(arena_bytes(batch, settings.pool_bytes) for batch in batches(cases, settings))
    buffers += max(scratch_bytes(case, settings.flush_bytes) for case in cases)
    buffers += settings.own_of(cases[0]).scene_bytes.get(cases[0].shared.key, 0)
    return sharing_memory(cases[0], machine) * (buffers + max(map(overhead_bytes, cases)))


def demands(source: Config | Plan) -> Demands:
    """Return the requirements that a configuration or a plan has of the job that measures it."""
    if isinstance(source, Plan):
        backends, shared = {case.backend for case in source.cases}, any(case.oversubscribed for case in source.cases)
    else:
        backends, shared = set(source.backends), source.oversubscribe_gpu
    return Demands(any(BACKENDS[name].device == "cuda" for name in backends), shared)


def done(plan: Plan, samples: Sequence[Samples]) -> int | None:
    """Return how many of `plan.total` measurements are made; None if no measurement is left."""
    made = sum(entry.final for entry in samples)
    return None if made >= plan.total and plan.budget_s is None else made


def remaining(plan: Plan, samples: Sequence[Samples]) -> list[Launch]:
    """Return the launches with cases that still have to be measured, each with only these cases.

    If cases are compared with references and one case is missing, its launch repeats all cases except failed cases.
    """
    failures = {(sample.case.key, sample.launch): sample.failure for sample in samples if sample.final}
    launches = []
    for launch in plan.order:
        cases = [case for case in launch.cases if (case.key, launch.number) not in failures]
        if cases and OPERATIONS[cases[0].op].against:
            cases = [case for case in launch.cases if failures.get((case.key, launch.number)) is None]
        if cases:
            launches.append(replace(launch, cases=tuple(cases)))
    return launches


def estimate_s(plan: Plan) -> float:
    """Estimate the seconds of the run: an upper limit (adaptive), or a rough value from rough rates (fixed count)."""
    if plan.budget_s is not None:
        return plan.budget_s
    return FIRST_START_S + sum(launch_s(launch, plan.settings) for launch in plan.order) + CONCLUDE_S


def launch_s(launch: Launch, settings: Settings) -> float:
    """Estimate the seconds of a launch from the start of its ranks, as `estimate_s` does for the run."""
    sampling = settings.sampling
    seconds = BACKENDS[launch.backend].start_s + LAUNCH_WARMUP_S * bool(sampling.warmup and sampling.warmup_s)
    for case in launch.cases:
        if OPERATIONS[case.op].against:
            seconds += PREPARED_S + (OPERATIONS[case.op].calls_s(case, settings, launch.number) or 0.0)
            continue
        call_s = _call_s(case)
        seconds += _handling_s(case)
        if sampling.iterations is None:
            most_s = PATIENCE * sampling.seconds_per_case
            seconds += sampling.warmup_s + max(sampling.seconds_per_case, min(FEWEST_ITERATIONS * call_s, most_s))
        else:  # the warm-up ends after its calls or its time, whichever is less, but has one call
            seconds += min(sampling.warmup * call_s, max(sampling.warmup_s, call_s))
            seconds += min(sampling.iterations, most_iterations(case)) * call_s
    return seconds


def _handling_s(case: Case) -> float:
    return HANDLING_S + HANDLING_CALLS * _call_s(case)


def _call_s(case: Case) -> float:
    """Estimate the seconds of a call from rough rates. CPU ranks share the cores of their host."""
    backend = BACKENDS[case.backend]
    shared = max(1.0, case.world_size / 2) if backend.device == "cpu" else 1.0
    return (backend.latency_s + case.size_bytes / backend.bytes_per_s) * shared
