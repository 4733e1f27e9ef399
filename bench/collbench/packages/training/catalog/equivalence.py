"""Define the trials of an equivalence proof: does data-parallel training train the same model as one process?

A `Trial` trains twice from the same parameters on the same examples, on K ranks and in one process, and compares the
parameters. Some trials must differ, by design or because they contain one mistake: a comparison that does not detect
these differences would prove nothing. `training.rank.equivalence` runs the trials.

Averaging parameters is equivalent to averaging gradients if a step is linear in state and gradient, as in SGD with
momentum or Nesterov: the mean of the results is the result of the means, although no state leaves its rank. They are
not equivalent if the step divides by a root of squared gradients (Adam), or if several steps lie between two
averagings: from the second step on, each rank computes gradients at different parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Must = Literal["equal", "differ", "shown"]
# A trial takes a fraction of a second; ranks that report nothing for longer than this are stuck.
TIMEOUT_S = 30.0
# Largest difference between equal trainings: rounding of sums taken in another order, over some dozens of steps.
# Every error in the computation, such as a factor K or an example counted twice, makes a larger difference.
ALLOWED = {"float64": 1e-9, "float32": 1e-5}
# Smallest difference where a difference is required: far above rounding, far below the effect of any mistake.
LEAST_DIFFERENCE = 1e-4
# A loss has fallen if its last value is below this share of its first value. The loss over all examples has no noise.
FALLEN = 0.95


@dataclass(frozen=True, slots=True)
class Training:
    """The training of one side of a trial: of the ranks, or of the one process."""

    # Key of `training.rank.equivalence.OPTIMIZERS`.
    optimizer: str = "sgd"
    # The learning rate is multiplied by K to this power.
    lr_power: int = 0
    # Reduction over the ranks: "mean", "sum", or "apart" (not synchronised).
    gradients: Literal["mean", "sum", "apart"] = "mean"
    # Number of steps after which ranks average their parameters in place of gradients; 0 for never.
    average: int = 0
    # Reduction over the examples of a batch.
    loss: Literal["mean", "sum"] = "mean"
    # The batch of all ranks together has B · K^growth examples.
    growth: int = 0
    # Number of micro-batches per step, and how they add up: "no_sync" synchronises after the last one only and divides
    # each loss by their number; "synchronised" synchronises after each, "undivided" does not divide.
    accumulate: int = 1
    micro: Literal["no_sync", "synchronised", "undivided"] = "no_sync"
    # Initial parameters of the ranks: the same, drawn by each rank and replaced by those of rank 0, or each rank's own.
    start: Literal["same", "broadcast", "own"] = "same"
    # torch's DistributedSampler: as it is, with set_epoch, or with drop_last; "none": each process reads all examples.
    # One process reads the examples that the samplers of K ranks give together.
    sampler: Literal["interleaved", "shuffled", "drop_last", "none"] = "interleaved"
    # True if K does not divide the number of examples.
    odd: bool = False
    # True if the model has BatchNorm.
    normalised: bool = False


@dataclass(frozen=True, slots=True)
class Trial:
    """A model that is trained on K ranks and in one process, to compare the parameters."""

    name: str
    # Parameters must be "equal", must "differ", or the difference is only "shown".
    must: Must
    ranks: Training = Training()
    # Training of the one process. None if ranks are compared with each other.
    alone: Training | None = Training()
    dtype: str = "float64"
    # GPUs that the trial needs: on one, the one process trains; on two, torch's DataParallel in place of K ranks.
    gpus: int = 0
    # Question that the trial belongs to; a picture has one panel for each topic.
    topic: str = ""

    @property
    def allowed(self) -> float:
        """Return the largest difference between equal trainings; the parameters of ranks must have the same bits."""
        return 0.0 if self.alone is None else ALLOWED[self.dtype]


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The result of the ranks in a trial. Only the field `trial` is set if the ranks ended before the trial."""

    trial: Trial
    # Largest of max |a − b| / max |b| over all parameters and ranks.
    difference: float | None = None
    # Loss over all examples, before training and after each step: mean over ranks, and (alone) of the one process.
    loss: tuple[float, ...] = ()
    alone: tuple[float, ...] = ()
    # Examples per step, on all ranks together and in the one process.
    examples: tuple[int, int] = (1, 1)
    # Reason why this host cannot run the trial.
    untried: str = ""


@dataclass(frozen=True, slots=True)
class Proof:
    """The results of all trials."""

    world_size: int
    steps: int
    results: tuple[TrialResult, ...]
    # Reason why ranks ended before the last trial. None if they did not.
    failure: str | None = None

    @property
    def holds(self) -> bool:
        """Return whether the proof ran to its end and no trial violates its requirement."""
        return self.failure is None and all(verdict(result)[0] is not False for result in self.results)


# ── the table ────────────────────────────────────────────────────────────────────────────────────
# In one process, settings that only ranks can have are at their defaults.
ALONE: dict[str, Any] = {"lr_power": 0, "gradients": "mean", "average": 0, "growth": 0, "accumulate": 1}


def _trial(must: Must, name: str, alone: Mapping[str, Any] | None = ALONE, **settings: Any) -> Trial:
    """Return a trial of ranks. alone: settings in which the one process differs; None: there is none."""
    of_trial = {key: settings.pop(key) for key in ("dtype", "gpus") if key in settings}
    ranks = Training(**settings)
    return Trial(name, must, ranks, None if alone is None else replace(ranks, **alone), **of_trial)


def _exact(name: str, **settings: Any) -> list[Trial]:
    """Return a trial for each precision, which must be equal."""
    return [_trial("equal", name, dtype=dtype, **settings) for dtype in ALLOWED]


TOPICS: dict[str, list[Trial]] = {
    # The batch is B / K on each rank, and B in one process.
    "Do K ranks train the same model as one process?": [
        *_exact("SGD: mean of gradients"),
        *_exact("SGD with momentum", optimizer="momentum"),
        *_exact("Adam", optimizer="adam"),
        *_exact("AdamW", optimizer="adamw"),
        *_exact("SGD: ranks on CPUs, the one process on a GPU", gpus=1),
        *_exact("DataParallel: one process, all GPUs", gpus=2),
    ],
    "Do the ranks stay together?": [
        _trial("equal", "SGD: ranks against each other", None),
        _trial("equal", "Adam: ranks against each other", None, dtype="float32", optimizer="adam"),
        _trial("differ", "gradients not synchronised: ranks against each other", None, gradients="apart"),
        _trial("equal", "ranks seeded differently, DDP broadcasts rank 0's", start="broadcast"),
        _trial("equal", "the same, ranks against each other", None, start="broadcast"),
        _trial("differ", "the same without the broadcast, ranks against each other", None, start="own"),
    ],
    # With a mean of gradients the learning rate stays the same, so lr × K is a mistake there.
    "What must make up for sums?": [
        _trial("equal", "SGD: gradients summed, lr / K", gradients="sum", lr_power=-1),
        _trial("differ", "SGD: gradients summed, lr unchanged", gradients="sum"),
        _trial("differ", "SGD: mean of gradients, lr × K", lr_power=1),
        _trial("equal", "SGD: loss summed over examples, lr × K", loss="sum", lr_power=1),
        _trial("differ", "SGD: loss summed over examples, lr unchanged", loss="sum"),
        # Both divide a gradient by the size of past gradients, so a constant factor cancels if eps is 0.
        _trial("equal", "Adam with eps = 0: gradients summed, lr unchanged", optimizer="adam0", gradients="sum"),
        _trial("equal", "AdaGrad with eps = 0: gradients summed, lr unchanged", optimizer="adagrad0", gradients="sum"),
        _trial("shown", "Adam: gradients summed, lr unchanged", optimizer="adam", gradients="sum"),
    ],
    "Average parameters in place of gradients?": [
        _trial("equal", "SGD: parameters averaged after each step", average=1),
        _trial("equal", "SGD with momentum: parameters averaged after each step", optimizer="momentum", average=1),
        _trial("equal", "Nesterov's momentum: parameters averaged after each step", optimizer="nesterov", average=1),
        _trial("differ", "Adam: parameters averaged after each step", optimizer="adam", average=1),
        _trial("differ", "SGD: parameters averaged after every 4 steps", average=4),
        _trial("differ", "SGD with momentum: parameters averaged after every 4 steps", optimizer="momentum", average=4),
    ],
    # The ranks make K times fewer steps; a larger learning rate makes up for that only approximately.
    "And with a batch K times as large?": [
        _trial("shown", "SGD: batch B per rank, lr × K (linear scaling)", growth=1, lr_power=1),
        _trial("shown", "SGD: batch B per rank, lr unchanged", growth=1),
        _trial("shown", "Adam: batch B per rank, lr unchanged", optimizer="adam", growth=1),
    ],
    "And in micro-batches?": [
        *_exact("SGD: 2 micro-batches with no_sync, loss / 2", accumulate=2),
        _trial("equal", "Adam: 2 micro-batches with no_sync, loss / 2", optimizer="adam", accumulate=2),
        _trial("equal", "SGD: 2 micro-batches, each synchronised, loss / 2", accumulate=2, micro="synchronised"),
        _trial("differ", "SGD: 2 micro-batches with no_sync, loss not divided", accumulate=2, micro="undivided"),
    ],
    "What does each rank see?": [
        _trial("equal", "shuffled, with set_epoch", sampler="shuffled"),
        _trial("differ", "every rank reads the same examples (no sampler)", sampler="none"),
        _trial(
            "differ", "K does not divide N, sampler pads: against N examples", ALONE | {"sampler": "none"}, odd=True
        ),
        _trial("equal", "the same against N examples and the padding again", odd=True),
        _trial("equal", "K does not divide N, drop_last: against those that are left", sampler="drop_last", odd=True),
        # No averaging of gradients makes these equal: each rank normalises by its own share of the batch.
        _trial("differ", "a model with BatchNorm", normalised=True),
    ],
}
TRIALS = tuple(replace(trial, topic=topic) for topic, trials in TOPICS.items() for trial in trials)


# ── the verdicts ─────────────────────────────────────────────────────────────────────────────────
def verdict(result: TrialResult) -> tuple[bool | None, str]:
    """Return whether a trial's result is as required, and the verdict in words.

    None if nothing is required, or if this host cannot run the trial.
    """
    trial, difference = result.trial, result.difference
    if result.untried:
        return None, result.untried
    if difference is None:
        return False, "NOT MEASURED: the ranks ended before it"
    # A mistake may keep the ranks' loss from falling; the one process makes no mistake.
    curves = [result.alone] * (trial.alone is not None) + [result.loss] * (trial.must != "differ")
    finite = difference < float("inf")
    if not finite or not all(map(fell, curves)):
        reason = "the loss did not fall" if finite else "the training diverged"
        return None if trial.must == "shown" else False, f"PROVES NOTHING: {reason}"
    if trial.must == "shown":
        return None, "shown, not required"
    if trial.must == "differ":
        return (True, "differs, as it must") if difference > LEAST_DIFFERENCE else (False, "DOES NOT DIFFER")
    return (True, "holds") if difference <= trial.allowed else (False, "BROKEN")


def fell(losses: Sequence[float]) -> bool:
    """Return whether training learnt something and was stable: the loss fell, and never exceeded its first value.

    Parameters that do not change would be equal too, and unstable training amplifies rounding errors.
    """
    return losses[-1] < FALLEN * losses[0] and all(loss <= losses[0] for loss in losses)
