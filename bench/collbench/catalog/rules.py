"""Decide why a case cannot be measured: a table of rules, of which the first that holds is the reason.

In: a case, and for some rules a machine. Out: a notice. A rule is a condition on facts, and the kind of notice if it
holds; the values of its sentence are facts of the same names. `planning.cases` asks, and adds the rule on memory.
"""

from dataclasses import fields

from collbench.catalog.backends import BACKENDS, FLOAT8, Backend
from collbench.catalog.collectives import OPERATIONS, placement, ranks_together
from collbench.catalog.dtypes import DTYPES, REDUCE_OPS, dtype_named, spacing
from collbench.catalog.metrics import METRICS
from collbench.catalog.subgroups import divisible, group_size, stride
from collbench.catalog.variables import SHARED_GPU
from collbench.model.divisions import WORLD
from collbench.model.notices import Kind, Notice, Rule, first
from collbench.model.records import Case, Machine

# Fields of a case.
_FIELDS = tuple(field.name for field in fields(Case))


class Facts:
    """The facts of a case that rules ask for: its fields, and what follows from them."""

    def __init__(self, case: Case, machine: Machine | None = None) -> None:
        """Make all facts at once, because most rules are asked. machine: needed by the rules HERE only."""
        vars(self).update({name: getattr(case, name) for name in _FIELDS})
        self.machine, self.timed = machine, METRICS[case.metric]
        self.operation, self.features = OPERATIONS[case.op], BACKENDS[case.backend]
        self.on_gpus, self.by_torch = self.features.device == "cuda", self.features.library == "torch"
        # Ranks that call together, and how the ranks of the world are divided.
        self.ranks = ranks_together(case)
        self.listed = [rank for members in case.groups.sets for rank in members]
        self.size, apart = group_size(case.groups, case.world_size), stride(case.groups, case.world_size)
        self.stride = apart if apart > 1 else None
        # Data.
        self.itemsize, self.pieces = dtype_named(case.dtype).itemsize, self.operation.pieces(self.ranks)
        self.elements = case.size_bytes // self.itemsize
        self.reduces, self.refused = self.operation.reduces, self.features.unsupported_dtypes_of
        self.rows = len(case.splits.rows) if case.splits else 0
        # Where results go: as the case says, as is usual, by a copy if that helps, and by a copy after the call.
        self.where, self.usual = placement(case), self.operation.placements[0]
        self.copied = self.where if self.where == self.operation.copied else None
        self.copied_back = self.where == "copied" and self.operation.copied == "in"
        # Version of torch, and the first one that has the operation.
        self.since = self.features.since.get(case.op)
        self.had, self.has = (
            None if version is None else ".".join(map(str, version))
            for version in (machine.torch if machine else None, self.since)
        )
        # Compute capability of the GPUs, and the least that reduces float8, such as 9.0.
        self.capability, self.least = (
            None if number is None else number / 10
            for number in (machine.gpu_capability if machine else None, self.features.float8_capability)
        )
        # The first variable of the case that ranks on one GPU need otherwise, and the value that they need.
        self.name = next((name for name, _ in case.settings.pairs if name in SHARED_GPU), None)
        self.value = SHARED_GPU.get(self.name or "")


# ── on this machine, or in this job, at any size ─────────────────────────────────────────────────
HERE = (
    Rule(lambda f: f.machine.ranks is not None and f.world_size > f.machine.ranks,
         Kind("job-ranks", "the job has {ranks:count rank}"), {"ranks": "machine.ranks"}),
    Rule(lambda f: f.machine.ranks is not None and f.features.library == "mpi4py" and f.world_size < f.machine.ranks,
         Kind("whole-job", "in a job, {backend} measures all of its ranks: {ranks}"), {"ranks": "machine.ranks"}),
    Rule(lambda f: f.machine.backends_missing.get(f.backend)),
    Rule(lambda f: f.since is not None and f.machine.torch is not None and f.machine.torch < f.since,
         Kind("older-torch", "{backend} of torch {had} has no {op}; torch {has} has it")),
    Rule(lambda f: f.machine.scheduling_missing.get(f.scheduling)),
    Rule(lambda f: f.on_gpus and f.world_size > f.machine.gpus and not f.oversubscribed,
         Kind("too-few-gpus", "{ranks:count rank}, each with a GPU of its own: this machine has {gpus} "
              "(oversubscribe_gpu: true only tests that it works)"),
         {"ranks": "world_size", "gpus": "machine.gpus"}),
    Rule(lambda f: f.memory != "plain" and f.machine.registered_missing),
    Rule(lambda f: f.dtype in FLOAT8 and f.reduces and None not in {f.least, f.capability} and f.capability < f.least,
         Kind("low-capability", "{backend} reduces {dtype} from compute capability {least:.1f} on; "
              "the GPU has {has:.1f}"), {"has": "capability"}),
    Rule(lambda f: f.backend == "nccl" and dict(f.settings.pairs).get("NCCL_ALGO", "").upper() == "PAT",
         Kind("pat", "PAT has no all-reduce, by which ranks are aligned: "
              "write NCCL_ALGO=allgather:pat;reducescatter:pat")),
    Rule(lambda f: f.oversubscribed and f.name,
         Kind("shared-variable", "ranks that share a GPU need {name}={value}, so it cannot be varied")),
)  # fmt: skip

# ── on any machine ───────────────────────────────────────────────────────────────────────────────
GROUPS = (
    Rule(lambda f: len(set(map(len, f.groups.sets))) > 1,
         Kind("unequal-groups", "groups that are listed must be of equal size")),
    Rule(lambda f: f.listed and (len(set(f.listed)) < len(f.listed) or max(f.listed) >= f.world_size),
         Kind("listed-twice", "listed groups must have each of the {ranks} ranks at most once"),
         {"ranks": "world_size"}),
    Rule(lambda f: not f.listed and not divisible(f.groups, f.world_size),
         Kind("not-divisible", "{ranks} ranks cannot be divided into groups of {size}{stride:after , |apart}"),
         {"ranks": "world_size"}),
)  # fmt: skip
FEWEST_RANKS = Rule(
    lambda f: f.ranks < f.operation.fewest_ranks,
    Kind("fewest-ranks", "{op} needs {fewest:count rank} or more"),
    {"fewest": "operation.fewest_ranks"},
)
SCHEDULING = (
    Rule(lambda f: f.scheduling == "rr" and f.features.polls,
         Kind("rr-polling", "ranks of {backend} wait by polling: "
              "with scheduling: rr no other process could run on their cores")),
    Rule(lambda f: f.scheduling == "batch" and not f.features.loop_thread,
         Kind("no-loop-thread", "scheduling: batch is for the threads of gloo that wait for the network; "
              "{backend} has none")),
    Rule(lambda f: f.scheduling == "batch" and f.operation.startup,
         Kind("over-by-then", "scheduling: batch applies to the threads of a group once it is made: "
              "{op} is over by then")),
)  # fmt: skip
LACKS = Kind("lacks", "{backend} has no {what}")
_LACKS_DTYPE = Kind("lacks-dtype", "{backend} has no {what} of {dtype}")
_COPIED = "{copied:after `placements: [copied]` measures it |placed by copy}"
BACKEND = (
    Rule(lambda f: not f.on_gpus and f.memory != "plain",
         Kind("needs-nccl", "registered memory needs NCCL on GPUs")),
    Rule(lambda f: f.timed.device not in {None, f.features.device},
         Kind("metric-needs-gpus", "metric {metric} needs GPUs: {metric:what is timed}")),
    Rule(lambda f: f.timed.captured and not f.operation.typed,
         Kind("no-graph", "a CUDA graph cannot include {op}, which waits on the CPU")),
    Rule(lambda f: f.timed.makes_group and not (f.operation.typed and f.by_torch and f.operation.rank is None),
         Kind("metric-of-torch", "metric {metric} is for torch's operations on buffers")),
    Rule(lambda f: f.call not in f.operation.calls,
         Kind("no-async", "{op} has no asynchronous call")),
    Rule(lambda f: unsupported_operation(f.op, f.features)),
    # Dtypes and reduce ops.
    Rule(lambda f: f.dtype in f.features.unsupported_dtypes, LACKS, {"what": "dtype"}),
    Rule(lambda f: f.dtype in f.refused.get(f.op, ()), _LACKS_DTYPE, {"what": "op"}),
    Rule(lambda f: f.reduces and f.dtype in f.features.unsupported_reduce_dtypes,
         Kind("only-copies", "{backend} copies {dtype} and does not reduce it")),
    Rule(lambda f: f.reduces and f.dtype in f.refused.get(f.reduce_op, ()), _LACKS_DTYPE, {"what": "reduce_op"}),
    Rule(lambda f: f.reduces and f.dtype in f.features.unsupported_alone.get(f.reduce_op, ()) and f.ranks == 1,
         Kind("lacks-alone", "{backend} has no {what} of {dtype} with one rank"), {"what": "reduce_op"}),
    Rule(lambda f: f.reduces and f.reduce_op in f.features.unsupported_reduce_ops, LACKS, {"what": "reduce_op"}),
    # Placements.
    Rule(lambda f: f.where not in f.operation.placements and not f.operation.typed,
         Kind("no-buffers", "{op} has no buffers")),
    Rule(lambda f: f.where == "copied" and not f.operation.copied,
         Kind("no-copy", "{op} is not measured with a copy")),
    Rule(lambda f: f.copied_back and f.splits,
         Kind("uneven-copy", "uneven shares are not copied back")),
    Rule(lambda f: f.copied_back and f.call == "async",
         Kind("async-copy", "no asynchronous call copies the received data of {op}")),
    Rule(lambda f: f.where not in (*f.operation.placements, "copied"),
         Kind("only-placed", "{op} works only {usual:place}", _COPIED)),
    Rule(lambda f: f.by_torch and f.where == "out" and f.usual == "in",
         Kind("torch-in-place", "torch's {op} works in place", _COPIED)),
    Rule(lambda f: f.splits and not f.by_torch,
         Kind("only-uneven", "{backend} divides an all-to-all by all_to_all_uneven only")),
    *SCHEDULING,
    Rule(lambda f: f.features.most_elements is not None and f.elements > f.features.most_elements,
         Kind("most-elements", "{backend} counts at most {most} elements; this would be {elements}"),
         {"most": "features.most_elements"}),
)  # fmt: skip
SPLITS = (
    Rule(lambda f: f.splits and f.rows and f.rows != f.ranks,
         Kind("matrix-rows", "a matrix of {rows} rows is for {rows} ranks, not for {ranks}")),
    Rule(lambda f: f.splits and f.splits.kind == "hot" and f.splits.value > f.ranks,
         Kind("too-hot", "with {ranks} ranks, none can receive {times:g} times the mean"),
         {"times": "splits.value"}),
)  # fmt: skip
ANYWHERE = (
    *GROUPS,
    Rule(lambda f: f.operation.paired and f.groups != WORLD,
         Kind("pairs-all", "{op} pairs all ranks of the world, so it has no groups")),
    Rule(lambda f: f.depth > 1 and f.groups.serial,
         Kind("serial-groups", "groups that call one after the other are timed call by call")),
    FEWEST_RANKS,
    Rule(lambda f: f.root >= f.ranks,
         Kind("no-root", "there is no rank {root}: it has {ranks} ranks, from 0")),
    *BACKEND,
    *SPLITS,
    Rule(lambda f: f.size_bytes % f.itemsize and f.pieces == 1,
         Kind("part-of-element", "{size_bytes} B is not a whole number of {dtype} elements of {itemsize} B")),
    Rule(lambda f: f.size_bytes % (f.pieces * f.itemsize),
         Kind("part-of-pieces", "{size_bytes} B is not a whole number of {pieces} pieces of {dtype} "
              "of {itemsize} B")),
    Rule(lambda f: f.reduces and DTYPES[f.dtype].kind not in REDUCE_OPS[f.reduce_op].kinds,
         Kind("undefined-reduction", "{reduce_op} is not defined for {dtype}")),
    Rule(lambda f: f.reduces and spacing(f.dtype, f.reduce_op, f.ranks) is None,
         Kind("inexact", "{reduce_op} over {ranks} ranks is not exact in {dtype}, so it could not be verified")),
)  # fmt: skip


def unsupported_operation(op: str, backend: Backend) -> Notice | None:
    """Return the reason why the backend does not have the operation; None if it has it."""
    why = OPERATIONS[op].why_not_mpi if backend.library != "torch" else None
    return None if why is None else why()


def unsupported_by_backend(case: Case) -> Notice | None:
    """Return the first reason why the case's backend cannot run it; None if it can."""
    return first(BACKEND, Facts(case))
