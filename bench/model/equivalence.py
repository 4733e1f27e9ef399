"""Define the data of an equivalence proof: does data-parallel training train the same model as one process?

    PairTrial, SamplerTrial ─▶ (ranks) ─▶ TrialResult ─▶ (analyze) ─▶ Verdict ─▶ Proof

A `PairTrial` trains twice from the same parameters on the same examples, on K ranks and in one process, and compares
the parameters. A `SamplerTrial` shows which examples each rank reads. Everything is frozen. Nothing here computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Must = Literal["equal", "differ", "shown"]
# A trial takes a fraction of a second; ranks that report nothing for longer than this are stuck.
TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Training:
    """The training of one side of a trial: of the ranks, or of the one process.

    optimizer: a key of `rank.training.equivalence.OPTIMIZERS`. lr_power: its learning rate is multiplied by K to this
    power. gradients: "mean" or "sum" over the ranks, or "apart" (not synchronised). average: ranks average their
    parameters after every so many steps; 0 for never. loss: "mean" or "sum" over the examples of a batch.
    growth: the batch of all ranks together has B · K^growth examples.
    accumulate: micro-batches a step, on ranks only. no_sync: gradients are synchronised only after the last of them.
    divided: each micro-batch's loss is divided by their number.
    seeds: each rank draws its own initial parameters. broadcast: those of rank 0 replace them.
    sampler: "interleaved" (torch's DistributedSampler), "shuffled" (the same with set_epoch) or "none" (every rank
    reads all examples). examples: "even" (K divides their number), "odd" (it does not, and the sampler pads),
    "padded" (in one process: the odd ones and what the sampler adds), "dropped" (the sampler's drop_last).
    normalised: the model has BatchNorm.
    """

    optimizer: str = "sgd"
    lr_power: int = 0
    gradients: Literal["mean", "sum", "apart"] = "mean"
    average: int = 0
    loss: Literal["mean", "sum"] = "mean"
    growth: int = 0
    accumulate: int = 1
    no_sync: bool = True
    divided: bool = True
    seeds: bool = False
    broadcast: bool = True
    sampler: Literal["interleaved", "shuffled", "none"] = "interleaved"
    examples: Literal["even", "odd", "padded", "dropped"] = "even"
    normalised: bool = False


@dataclass(frozen=True, slots=True)
class PairTrial:
    """A model trained on K ranks, and in one process as `alone` says; with None, ranks are compared with each other.

    must: parameters must be "equal", must "differ", or the difference is only "shown".
    data_parallel: torch's DataParallel, one process with several GPUs, instead of K ranks. gpu: the one process trains
    on a GPU. topic: the question that the trial belongs to; a picture has one panel per topic.
    """

    name: str
    must: Must
    ranks: Training = Training()
    alone: Training | None = Training()
    dtype: str = "float64"
    data_parallel: bool = False
    gpu: bool = False
    topic: str = ""


@dataclass(frozen=True, slots=True)
class SamplerTrial:
    """A check of which examples each rank reads, batch by batch. Examples are numbered from 1.

    examples, ranks, batch: how many. expected: what is to be read; `|` separates ranks, `, then` separates batches.
    """

    name: str
    examples: int
    expected: str
    drop_last: bool = False
    ranks: int = 2
    batch: int = 3


Trial = PairTrial | SamplerTrial


@dataclass(frozen=True, slots=True)
class EquivalenceJob:
    """The message to every rank. log: the file for what torch prints."""

    trials: tuple[Trial, ...]
    steps: int
    log: str


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What ranks found in a trial; nothing besides the trial if they ended before it.

    difference: the largest of max |a − b| / max |b| over all parameters and ranks.
    loss, alone: loss over all examples, before training and after each step: mean over ranks, and of the one process.
    examples: examples a step, on all ranks together and in the one process. read: what a `SamplerTrial` read.
    untried: why this host cannot run the trial.
    """

    trial: Trial
    difference: float | None = None
    loss: tuple[float, ...] = ()
    alone: tuple[float, ...] = ()
    examples: tuple[int, int] = (1, 1)
    read: str = ""
    untried: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a trial is as it must be; None where nothing is required, or this host cannot run it.

    limit: in words, what the difference may be. text: the verdict in words.
    """

    result: TrialResult
    holds: bool | None
    limit: str
    text: str


@dataclass(frozen=True, slots=True)
class Proof:
    """The verdicts on all trials. failure: why the launch ended early; None if it did not."""

    world_size: int
    steps: int
    verdicts: tuple[Verdict, ...]
    failure: str | None = None

    @property
    def holds(self) -> bool:
        """Whether it ran to its end and no trial is other than it must be."""
        return self.failure is None and all(verdict.holds is not False for verdict in self.verdicts)
