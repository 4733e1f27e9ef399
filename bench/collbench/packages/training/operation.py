"""Define the operation that training adds: a training step."""

from dataclasses import replace

from collbench.catalog.operation import NO_BUFFERS, SYNC, Against, Operation
from collbench.model.deferred import Deferred
from collbench.model.records import Case
from collbench.packages.training.synchronisation import PARTS, TRAINING_STEP, reference_of, strategy_in, with_strategy


def against(case: Case) -> Against | None:
    """Return the same step without synchronisation and, for a second copy, the first one; None for a reference."""
    strategy = strategy_in(case)
    reference, first = reference_of(strategy), replace(strategy, again=0)
    if strategy == reference:
        return None
    return Against(with_strategy(case, reference), with_strategy(case, first) if strategy.again else None)


OPERATION = Operation(
    TRAINING_STEP,
    "nothing: the model says how many bytes of gradients are sent",
    None,
    NO_BUFFERS,
    calls=SYNC,
    sized=False,
    options=("metric", "depth", "scheduling", "settings", "oversubscribed"),
    against=against,
    # Durations of the parts, then of the tail of each step.
    inner_stamps=lambda case: len(PARTS) + case.depth,
    section=Deferred("packages.training.config:TrainingSection"),
    cases=Deferred("packages.training.planning.steps:asked"),
    rank=Deferred("packages.training.rank.step:workloads"),
    calls_s=Deferred("packages.training.planning.steps:calls_s"),
    imports=Deferred("packages.training.planning.steps:imports"),
)
