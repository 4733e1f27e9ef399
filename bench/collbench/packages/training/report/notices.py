"""Write the notices on training steps, and the reasons why a step cannot be measured."""

from collections.abc import Mapping

from collbench.model.notices import NoticeKind
from collbench.packages.training.conclusions import TrainingNotice
from collbench.packages.training.synchronisation import TrainingSkip, TrainingTrap
from collbench.report.notices import Sentence

_WHERE = "{model} · {backend} · {ranks:count rank}{link:after  · }: "
_BECAUSE = ": other processes used the CPU"
SENTENCES: Mapping[NoticeKind, Sentence] = {
    TrainingNotice.BLOCKS_LEFT_OUT: Sentence(f"{_WHERE}{{dropped}} of {{blocks}} timed blocks left out{_BECAUSE}"),
    TrainingNotice.BLOCKS_KEPT: Sentence(
        f"{_WHERE}too much of {{strategies}} disturbed to leave it out, so all of those kept{_BECAUSE}"
    ),
    TrainingNotice.ALL_BLOCKS_KEPT: Sentence(
        f"{_WHERE}too much of all strategies disturbed to leave it out, so all of those kept{_BECAUSE}"
    ),
    TrainingSkip.NOT_TRAINED: Sentence("models are trained in {trained}, not in {dtype}"),
    TrainingSkip.AUTOCAST_DTYPE: Sentence("autocast keeps parameters in float32, and here they are {dtype}"),
    TrainingSkip.AUTOCAST_SHAPE: Sentence(
        "a model by its shape computes nothing that autocast could compute in another dtype"
    ),
    TrainingSkip.SHAPE_BACKEND: Sentence("a model by its shape is timed on gloo or an emulated link, not on {backend}"),
    TrainingSkip.SHAPE_WITHOUT_PARAMETERS: Sentence(
        "a shape has no parameters that a library could reduce", "torch's buckets can be given as a plan"
    ),
    TrainingSkip.LINK_IN_JOB: Sentence(
        "an emulated link is memory that ranks of one host share", "in a job, measure the real link"
    ),
    TrainingSkip.LINK_MOVES_NOTHING: Sentence(
        "an emulated link moves no data: a synchroniser of your own is measured on a real link"
    ),
    TrainingSkip.LINK_OF_ALL_REDUCES: Sentence(
        "an emulated link carries all-reduces only, and {strategy} makes other calls too"
    ),
    TrainingSkip.TWO_HOOKS: Sentence("{hooks} is a communication hook, and so is the emulated link"),
    TrainingSkip.BF16_ON_GLOO: Sentence(
        "torch's bf16 hook raises on gloo, which has no bfloat16 reduction (fp16 works)"
    ),
    TrainingSkip.SENDS_BY_TORCH: Sentence("{strategy} sends by torch.distributed, not on {backend}"),
    TrainingSkip.NOTHING_TO_SYNCHRONISE: Sentence("with one rank there is nothing to synchronise"),
    TrainingSkip.UNEQUAL_BATCHES: Sentence("a batch of {batch} is not divided into {parts} equal micro-batches"),
    TrainingSkip.UNKNOWN_PLAN: Sentence(
        "plan {plan}: the times of gradients and calls are known in advance only for a shape on an emulated link",
        "for others, `advise --from RUN` finds it after a run",
    ),
    TrainingSkip.CALL_MEMORY: Sentence(
        "a real link moves real bytes: {ranks} ranks with a call of {call_bytes:bytes} need more than the "
        "{free_bytes:bytes} of memory that are free"
    ),
    TrainingSkip.STEP_MEMORY: Sentence(
        "needs {ranks} × {rank_bytes:rounded bytes} of memory{place:after  on a } for parameters, gradients, "
        "optimizer, buckets; {available_bytes:rounded bytes} are available"
    ),
    TrainingTrap.DEFAULT_CAP: Sentence(
        "ddp with a cap of 25 is not torch's default: an explicit cap drops the first bucket of 1 MiB, so "
        "communication starts later",
        "write ddp without a cap for the default",
    ),
    TrainingTrap.NO_FREE_CORE: Sentence(
        "{ranks:count rank} of {threads} computing threads on {cores} cores: no core is left to overlap communication "
        "with, so the scheduler is measured",
        "lower threads or world_sizes, or use an emulated link, which needs no core",
    ),
    TrainingTrap.SINGLE_STEP: Sentence(
        "steps: 1 puts one step between two barriers: unequal times at which ranks leave the barrier count for that "
        "step, and work that reaches into the next step is not seen",
        "write steps: 2 or more",
    ),
}
