"""The table of ways to synchronise gradients: what each takes, and what must hold of it. Knows no torch.

A strategy of our own is one entry here and one class in `measure.gradients.synchronisers`.
"""

from dataclasses import dataclass

from bench.records import Machine
from bench.training.records import REFERENCE, Scenario, Strategy
from bench.units import format_bytes

# Options of torch's DistributedDataParallel, as its documentation names them, and its communication hooks.
DDP_FLAGS = ("gradient_as_bucket_view", "static_graph")
DDP_HOOKS = ("noop", "fp16", "bf16", "powersgd")
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Kind:
    """One way to synchronise.

    exact: the mean of the ranks' gradients, without compression: it must train as one process would.
    synchronises: ranks hold the same parameters afterwards. own: made of all-reduces of ours, which we see one by one.
    sharded: every rank keeps its share of the optimizer's state only.
    """

    about: str
    takes: tuple[str, ...] = ()
    exact: bool = True
    synchronises: bool = True
    own: bool = True
    sharded: bool = False


STRATEGIES: dict[str, Kind] = {
    REFERENCE: Kind("no synchronisation at all: what computing costs", exact=False, synchronises=False),
    "naive": Kind("after backward, one blocking all-reduce a parameter"),
    "naive_async": Kind("after backward, all of them launched, then waited for"),
    "flat": Kind("after backward, one all-reduce of all gradients in one tensor"),
    "overlap_param": Kind("one all-reduce a parameter, launched as soon as its gradient is ready"),
    "overlap_bucket": Kind("buckets, each launched when its last gradient is ready", ("cap", "bucket_boundary")),
    "plan": Kind("the same with buckets of these sizes", ("buckets",)),
    "ddp": Kind("torch's DistributedDataParallel", ("cap", "buckets", "options"), own=False),
    "zero1": Kind("reduce-scatter, an optimizer for a share of the parameters, all-gather", own=False, sharded=True),
    "zero_redundancy": Kind("DistributedDataParallel with ZeroRedundancyOptimizer", own=False, sharded=True),
    "fsdp2": Kind("torch's fully_shard: parameters, gradients and optimizer in shares", own=False, sharded=True),
}


def kind(strategy: Strategy) -> Kind:
    """Its entry of the table; a user's own is held to be exact and its calls are not seen."""
    if strategy.imported is not None:
        return Kind("of the user", own=False)
    entry = STRATEGIES[strategy.name]
    if strategy.name == "ddp" and set(strategy.options) & set(DDP_HOOKS):
        noop = "noop" in strategy.options
        return Kind(entry.about, entry.takes, exact=False, synchronises=not noop, own=False)
    return entry


def label(strategy: Strategy) -> str:
    """How tables and files name it; distinct for distinct strategies."""
    words = [strategy.imported or strategy.name]
    if strategy.cap_bytes is not None:
        words.append(format_bytes(strategy.cap_bytes))
    if strategy.bucket_boundary != "after":
        words.append(f"ends {strategy.bucket_boundary} the cap")
    if strategy.buckets:
        words.append(f"[{', '.join(format_bytes(size) for size in strategy.buckets)}]")
    words += strategy.options
    if strategy.accumulate > 1:
        words.append(f"over {strategy.accumulate} micro-batches")
    if strategy.again:
        words.append("again")
    return " ".join(words)


def reference_of(strategy: Strategy) -> Strategy:
    """The strategy whose step is what this one's would be without synchronisation."""
    return Strategy(REFERENCE, accumulate=strategy.accumulate)


def unsupported(strategy: Strategy, scenario: Scenario, machine: Machine) -> str | None:
    """Why it cannot be measured in this scenario; None if it can."""
    if scenario.shape is not None:
        return _unsupported_shape(strategy, scenario, machine.memory_available_bytes)
    if scenario.link is not None and strategy.name in {"zero1", "zero_redundancy", "fsdp2"}:
        return f"an emulated link carries all-reduces only, and {strategy.name} makes other calls too"
    if scenario.link is not None and strategy.imported is not None:
        return "an emulated link moves no data: a synchroniser of one's own is measured on a real one"
    hooks = set(strategy.options) & set(DDP_HOOKS)
    if scenario.link is not None and hooks - {"noop"}:
        return f"{', '.join(sorted(hooks))} is a communication hook, and so is the emulated link"
    if "bf16" in hooks and scenario.backend == "gloo":
        return "torch's bf16 hook raises on gloo, which has no bfloat16 reduction (fp16 works)"
    if scenario.world_size == 1 and strategy.name != REFERENCE:
        return "with one rank there is nothing to synchronise"
    if scenario.batch % strategy.accumulate:
        return f"a batch of {scenario.batch} is not divided into {strategy.accumulate} equal micro-batches"
    return None


def _unsupported_shape(strategy: Strategy, scenario: Scenario, memory_bytes: int) -> str | None:
    """Why it cannot be measured with a shape instead of a model."""
    assert scenario.shape is not None  # noqa: S101 - the caller's question
    if strategy.imported is not None or not kind(strategy).own:
        return "a shape has no parameters that a library could reduce; torch's buckets can be given as a plan"
    total = sum(gradient.nbytes for gradient in scenario.shape.gradients)
    sizes = [total if strategy.name == "flat" else 0, strategy.cap_bytes or 0, *strategy.buckets]
    needed = scenario.world_size * min(total, max(sizes))
    if scenario.link is None and needed > memory_bytes:
        return (
            f"a real link moves real bytes: {scenario.world_size} ranks with a call of {format_bytes(max(sizes))} "
            f"need more than the {format_bytes(memory_bytes)} of memory that are free"
        )
    return None
