"""The table of traps of data-parallel training and its timing: what, why, and what to do instead. Looks at no file.

`analyze.gradients.lint` has one function for each entry. G1xx are of Python files, G2xx of configurations of the
gradient benchmark. What is said of torch was run or read in its source at version 2.13, on gloo.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trap:
    """One entry. what: the trap in a few words; reason: what it costs; remedy: what to write instead."""

    what: str
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Hit:
    """A file runs into a trap. line: from 1; about: the piece of the file that does."""

    code: str
    line: int
    about: str


TRAPS: dict[str, Trap] = {
    "G101": Trap(
        "bucket_cap_mb=25 is not the default",
        "Left out, the first bucket closes at 1 MiB, so that communication starts early; any number given here drops "
        "that first bucket. A model of 27 MB becomes one bucket, and nothing overlaps.",
        "Leave bucket_cap_mb out, or choose a plan and pass bucket_cap_mb_list.",
    ),
    "G102": Trap(
        "a time of _get_ddp_logging_data() taken for communication",
        "It reported 61 ms of communication under the noop hook, which communicates nothing.",
        "Time whole steps with and without synchronisation; the difference is exposed communication.",
    ),
    "G103": Trap(
        "bf16_compress_hook on gloo",
        "torch's bf16 hook raises there: it wants NCCL or XCCL.",
        "Use fp16_compress_hook, which gloo can do, or another backend.",
    ),
    "G104": Trap(
        "ReduceOp.AVG on gloo",
        "It averages floats in recent versions of torch only; older ones refuse it, and integers raise in all.",
        "Use ReduceOp.SUM and divide by the number of ranks.",
    ),
    "G105": Trap(
        "asynchronous work that nobody waits for",
        "The call returns at once: a timer around it measures the launch, and whoever reads the tensor next may read "
        "it half done.",
        "Keep what the call returns and call its wait() before the tensor is used or the clock is read.",
    ),
    "G106": Trap(
        "the clock is read while the GPU still works",
        "Kernels and collectives are only queued; without a synchronise before the second reading the difference is "
        "the time of queueing.",
        "Call torch.cuda.synchronize() before each reading, or use torch.cuda.Event with elapsed_time.",
    ),
    "G107": Trap(
        "DistributedSampler without set_epoch",
        "It shuffles by seed + epoch, and the epoch stays 0: every epoch has the same order and the same batches.",
        "Call sampler.set_epoch(epoch) at the beginning of each epoch.",
    ),
    "G108": Trap(
        "gradients of every micro-batch are synchronised",
        "DistributedDataParallel all-reduces in each backward; accumulating over k micro-batches pays k times.",
        "Run all but the last micro-batch, forward and backward, within model.no_sync().",
    ),
    "G109": Trap(
        "DataLoader(shuffle=True) beside a sampler",
        "With a sampler, DataLoader raises; without it, the distributed sampler of this file has no effect and every "
        "rank reads all of the data.",
        "Pass sampler=DistributedSampler(data, shuffle=True) and leave shuffle out.",
    ),
    "G110": Trap(
        "a shuffling DataLoader in data-parallel training, without a distributed sampler",
        "Every rank reads all of the data: an epoch is as many times too long as there are ranks, and with equal seeds "
        "all ranks train on the same batches.",
        "Pass sampler=DistributedSampler(data, shuffle=True) and leave shuffle out.",
    ),
    "G111": Trap(
        "find_unused_parameters=True",
        "Every forward walks the whole graph, and a bit map of used parameters is all-reduced besides.",
        "Leave it out unless parameters really go unused; if the same do in every step, use static_graph=True.",
    ),
    "G112": Trap(
        "state of the wrapper saved in place of the model's",
        "Every name begins with `module.`: the file does not load into the bare model.",
        "Save model.module.state_dict(), on rank 0 only.",
    ),
    "G113": Trap(
        "a summed loss under DistributedDataParallel",
        "Gradients are averaged over ranks, so a sum over the local batch is divided by the number of ranks: K ranks "
        "need K times the learning rate to train as one process does.",
        "Use the mean, or multiply loss or learning rate by the number of ranks.",
    ),
    "G114": Trap(
        "forward through .module",
        "The wrapper does not see it, prepares no reduction, and ranks drift apart without an error.",
        "Call the wrapper itself; .module is for its state.",
    ),
    "G115": Trap(
        "NCCL without a device for each rank",
        "Without set_device, `cuda` is GPU 0 on every rank: they share one GPU, or NCCL refuses.",
        "Call torch.cuda.set_device(local_rank) before the first use of the GPU.",
    ),
    "G201": Trap(
        "fewer than 2 steps to warm up",
        "torch rebuilds its buckets after the first backward; until then it uses one bucket.",
        "Write warmup: 2 or more.",
    ),
    "G202": Trap(
        "a cap of 25 for ddp is not its default",
        "Given as a number it drops the first bucket of 1 MiB, so that communication starts later than by default.",
        "Write ddp without a cap for the default; keep the cap beside it if the difference is the question.",
    ),
    "G203": Trap(
        "the bf16 hook on gloo",
        "torch's bf16 hook raises there: the strategy is left out.",
        "Use fp16, or a backend on GPUs.",
    ),
    "G204": Trap(
        "more computing threads than cores",
        "On the CPU, communication is work of the same cores: with threads × ranks above them, nothing is left to "
        "overlap with, and what is measured is the scheduler.",
        "Lower threads or world_sizes, or use an emulated link, which costs no CPU.",
    ),
    "G205": Trap(
        "one step between two barriers",
        "How unequally the ranks leave the barrier falls on that one step, and what reaches from one step into the "
        "next is not seen.",
        "Write steps: 2 or more.",
    ),
}
