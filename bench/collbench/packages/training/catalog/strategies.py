"""Define the table of strategies, the ways to synchronise gradients: settings and properties of each strategy.

In: a `Strategy`. Out: its properties, and why it cannot be measured in a scenario. Does not import
torch. To add a strategy, add an entry here and its synchroniser to the table in `training/rank/synchronisers.py` (or
in `training/rank/torch_synchronisers.py`, if torch provides it); a test checks that both exist.
"""

from dataclasses import dataclass, replace

from collbench.catalog.rules import Facts
from collbench.model.notices import Kind, Notice, Rule, first
from collbench.model.records import Machine
from collbench.packages.training.synchronisation import REFERENCE, Scenario, Strategy

# Dtypes that models are trained in.
TRAINED = ("float32", "float64", "bfloat16")
# Options of torch's DistributedDataParallel, as its documentation names them, and its communication hooks.
DDP_FLAGS = ("gradient_as_bucket_view", "static_graph")
NO_OPERATION = "noop"
DDP_HOOKS = (NO_OPERATION, "fp16", "bf16", "powersgd")


@dataclass(frozen=True, slots=True)
class StrategyKind:
    """The properties of one strategy."""

    about: str
    # Keys of the strategy's configuration, without `accumulate`, which all strategies take.
    takes: tuple[str, ...] = ()
    # Key that the strategy requires, and an example of it.
    needs: tuple[str, str] | None = None
    # Options that the strategy accepts.
    options: tuple[str, ...] = ()
    # True if it computes the mean of the ranks' gradients without compression; it must then train as one process does.
    exact: bool = True
    # True if ranks have the same parameters afterwards.
    synchronises: bool = True
    # False if no gradient leaves its rank.
    sends: bool = True
    # True if all calls are all-reduces of gradients. An emulated link can carry these calls, and they can be repeated
    # without computing.
    all_reduces: bool = True
    # True if our code makes the calls, one by one: the calls are visible, and packing is distinguished from waiting.
    own: bool = True
    # True if it communicates during backward.
    overlaps: bool = True
    # True if each call is waited for before the next one is made.
    one_by_one: bool = False
    # True if all gradients are sent in one call.
    one_call: bool = False
    # True if the library gives all ranks the same initial weights; otherwise the runner does.
    broadcasts: bool = False
    # True if every rank keeps only its share of the optimizer's state.
    sharded: bool = False
    # True if every rank also receives only its share of the gradients.
    shards_gradients: bool = False
    # True if every rank also keeps only its share of the parameters. Gradients then cannot be stamped, and weights
    # cannot be compared before the first step.
    shards_parameters: bool = False
    # True if a call may contain several gradients.
    in_buckets: bool = False
    # Name of the strategy that makes buckets by a cap. None if this strategy does it.
    by_cap: str | None = None


STRATEGIES: dict[str, StrategyKind] = {
    REFERENCE: StrategyKind(
        "no synchronisation at all: what computing costs", exact=False, synchronises=False, sends=False, overlaps=False
    ),
    "naive": StrategyKind("after backward, one blocking all-reduce a parameter", overlaps=False, one_by_one=True),
    "naive_async": StrategyKind(
        "after backward, one all-reduce a parameter, all launched, then waited for", overlaps=False
    ),
    "flat": StrategyKind(
        "after backward, one all-reduce of all gradients in one tensor", overlaps=False, one_call=True
    ),
    "overlap_param": StrategyKind("one all-reduce a parameter, launched as soon as its gradient is ready"),
    "overlap_bucket": StrategyKind(
        "buckets, each launched when its last gradient is ready",
        ("cap",), ("cap", "{overlap_bucket: {cap: 1MiB}}"), in_buckets=True,
    ),
    "plan": StrategyKind(
        "the same with buckets of these sizes", ("buckets",), ("buckets", "{plan: {buckets: [1MiB, 4MiB]}}"),
        in_buckets=True, by_cap="overlap_bucket",
    ),
    "local_sgd": StrategyKind(
        "steps by a rank's own gradients; after every few of them one all-reduce averages all parameters",
        ("every",), ("every", "{local_sgd: {every: 4}}"), exact=False, sends=False, all_reduces=False, overlaps=False,
    ),
    "ddp": StrategyKind(
        "torch's DistributedDataParallel", ("cap", "buckets", "options"),
        options=(*DDP_FLAGS, *DDP_HOOKS), own=False, broadcasts=True, in_buckets=True,
    ),
    "zero1": StrategyKind(
        "reduce-scatter, an optimizer for a share of the parameters, all-gather",
        all_reduces=False, own=False, overlaps=False, sharded=True, shards_gradients=True,
    ),
    "zero_redundancy": StrategyKind(
        "DistributedDataParallel with ZeroRedundancyOptimizer",
        all_reduces=False, own=False, broadcasts=True, sharded=True, in_buckets=True,
    ),
    "fsdp2": StrategyKind(
        "torch's fully_shard: parameters, gradients and optimizer in shares",
        all_reduces=False, own=False, sharded=True, shards_gradients=True, shards_parameters=True,
    ),
}  # fmt: skip
# A user's own synchroniser is assumed to be exact, and its calls are not visible.
USER_STRATEGY = StrategyKind("of the user", all_reduces=False, own=False, broadcasts=True)


def kind(strategy: Strategy) -> StrategyKind:
    """Return the strategy's entry in the table, changed as its options require."""
    if strategy.imported is not None:
        return USER_STRATEGY
    entry = STRATEGIES[strategy.name]
    if hooks := hooks_of(strategy):
        silent = NO_OPERATION in hooks
        return replace(entry, exact=False, synchronises=not silent, sends=not silent)
    return entry


def hooks_of(strategy: Strategy) -> set[str]:
    """Return torch's communication hooks among the strategy's options; at most one."""
    return set(strategy.options) & set(DDP_HOOKS)


def competes(strategy: Strategy) -> bool:
    """Return whether the strategy may be chosen: it synchronises, and it is not a second copy."""
    return kind(strategy).synchronises and not strategy.again


class StepFacts(Facts):
    """The facts of a strategy in a scenario that rules ask for."""

    def __init__(self, scenario: Scenario, machine: Machine, strategy: Strategy) -> None:
        """Make all facts. strategy: none is asked for by rules on a scenario."""
        super().__init__(scenario.case, machine)
        self.shape, self.link, self.options = scenario.shape, scenario.link, scenario.options
        self.trained = TRAINED
        self.chosen, self.of_kind = strategy, kind(strategy)
        self.strategy, self.hooks = strategy.imported or strategy.name, tuple(sorted(hooks_of(strategy)))
        total = sum(gradient.nbytes for gradient in scenario.shape.gradients) if scenario.shape else 0
        self.call_bytes = max(total if self.of_kind.one_call else 0, strategy.cap_bytes or 0, *strategy.buckets, 0)
        self.real_bytes = scenario.case.world_size * min(total, self.call_bytes) if scenario.link is None else 0


OF_SHAPE = (
    Rule(lambda f: f.chosen.imported is not None or f.chosen.every or not f.of_kind.own,
         Kind("shape-without-parameters", "a shape has no parameters that a library could reduce",
              "torch's buckets can be given as a plan")),
    Rule(lambda f: f.real_bytes > f.machine.memory_available_bytes,
         Kind("call-memory", "a real link moves real bytes: {ranks} ranks with a call of {call_bytes:bytes} need more "
              "than the {free_bytes:bytes} of memory that are free"),
         {"free_bytes": "machine.memory_available_bytes"}),
)  # fmt: skip
OF_MODEL = (
    Rule(lambda f: not f.by_torch and not f.of_kind.own,
         Kind("sends-by-torch", "{strategy} sends by torch.distributed, not on {backend}")),
    Rule(lambda f: f.link is not None and f.chosen.imported is not None,
         Kind("link-moves-nothing", "an emulated link moves no data: "
              "a synchroniser of your own is measured on a real link")),
    Rule(lambda f: f.link is not None and not f.of_kind.all_reduces,
         Kind("link-of-all-reduces", "an emulated link carries all-reduces only, "
              "and {strategy} makes other calls too")),
    Rule(lambda f: f.link is not None and {*f.hooks} - {NO_OPERATION},
         Kind("two-hooks", "{hooks} is a communication hook, and so is the emulated link")),
    Rule(lambda f: "bf16" in f.hooks and f.backend == "gloo",
         Kind("bf16-on-gloo", "torch's bf16 hook raises on gloo, which has no bfloat16 reduction (fp16 works)")),
    # On a GPU, one rank tests the calls and shows their cost.
    Rule(lambda f: f.world_size == 1 and not f.on_gpus and f.chosen.name != REFERENCE,
         Kind("nothing-to-synchronise", "with one rank there is nothing to synchronise")),
    Rule(lambda f: f.options.batch % f.chosen.accumulate,
         Kind("unequal-batches", "a batch of {batch} is not divided into {parts} equal micro-batches"),
         {"batch": "options.batch", "parts": "chosen.accumulate"}),
)  # fmt: skip


def unsupported(strategy: Strategy, scenario: Scenario, machine: Machine) -> Notice | None:
    """Return the reason why the strategy cannot be measured in this scenario; None if it can."""
    return first(OF_MODEL if scenario.shape is None else OF_SHAPE, StepFacts(scenario, machine, strategy))
