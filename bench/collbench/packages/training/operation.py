"""Define the operation that training adds: a training step."""

from collbench.catalog.operation import NO_BUFFERS, SYNC, Operation
from collbench.model.deferred import Deferred
from collbench.packages.training.step_records import StepDetail
from collbench.packages.training.synchronisation import PARTS, TRAINING_STEP, StepOptions, StepSettings

# Loading these modules in each rank would take two seconds.
RANK_MODULES = ("torch._dynamo", "collbench.packages.training.rank.step")
# Measured seconds to build, warm up and check one strategy in a launch.
STRATEGY_S = 0.5

OPERATIONS = (
    Operation(
        TRAINING_STEP,
        "nothing: the model says how many bytes of gradients are sent",
        None,
        NO_BUFFERS,
        calls=SYNC,
        sized=False,
        options=("metric", "depth", "scheduling", "settings", "oversubscribed"),
        own=StepOptions,
        settings=StepSettings,
        detail=StepDetail,
        unit="step",
        verifies_itself=True,
        case_s=STRATEGY_S,
        round_by_round=True,
        # Durations of the parts, then of the tail of each step.
        inner_stamps=lambda case: len(PARTS) + case.depth,
        rank=Deferred("packages.training.rank.step:RANK_PART"),
        rank_modules=RANK_MODULES,
    ),
)
