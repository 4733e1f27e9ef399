"""Define the trials of an equivalence proof: does data-parallel training train the same model as one process?

    Trial ─▶ (ranks) ─▶ TrialResult ─▶ (verdict) ─▶ Verdict ─▶ Proof

A `Trial` trains twice from the same parameters on the same examples, on K ranks and in one process, and compares the
parameters. Some trials must differ, by design or because they contain one mistake: a comparison that does not detect
these differences would prove nothing. `training.rank.equivalence` runs the trials.

Averaging parameters is equivalent to averaging gradients if a step is linear in state and gradient, as in SGD with
momentum or Nesterov: the mean of the results is the result of the means, although no state leaves its rank. They are
not equivalent if the step divides by a root of squared gradients (Adam), or if several steps lie between two
averagings: from the second step on, each rank computes gradients at different parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Must = Literal["equal", "differ", "shown"]
# A trial takes a fraction of a second; ranks that report nothing for longer than this are stuck.
TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Training:
    """The training of one side of a trial: of the ranks, or of the one process."""

    # Key of `training.rank.equivalence.OPTIMIZERS`.
    optimizer: str = "sgd"
    # The learning rate is multiplied by K to this power.
    lr_power: int = 0
    # Reduction over the ranks: "mean", "sum", or "apart" (not synchronised).
    gradients: Literal["mean", "sum", "apart"] = "mean"
    # Number of steps after which ranks average their parameters, repeatedly; 0 for never.
    average: int = 0
    # Reduction over the examples of a batch: "mean" or "sum".
    loss: Literal["mean", "sum"] = "mean"
    # The batch of all ranks together has B · K^growth examples.
    growth: int = 0
    # Number of micro-batches per step, on ranks only.
    accumulate: int = 1
    # True if gradients are synchronised only after the last micro-batch.
    no_sync: bool = True
    # True if the loss of each micro-batch is divided by the number of micro-batches.
    divided: bool = True
    # True if each rank draws its own initial parameters.
    seeds: bool = False
    # True if the initial parameters of rank 0 replace the initial parameters of all other ranks.
    broadcast: bool = True
    # Sampler: "interleaved" (torch's DistributedSampler), "shuffled" (the same with set_epoch) or "none" (every rank
    # reads all examples).
    sampler: Literal["interleaved", "shuffled", "none"] = "interleaved"
    # Number of examples: "even" (K divides it), "odd" (K does not, and the sampler pads), "padded" (in one process: the
    # examples of "odd" and the sampler's padding), "dropped" (the sampler's drop_last).
    examples: Literal["even", "odd", "padded", "dropped"] = "even"
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
    # True for torch's DataParallel, one process with several GPUs, instead of K ranks.
    data_parallel: bool = False
    # True if the one process trains on a GPU.
    gpu: bool = False
    # Question that the trial belongs to; a picture has one panel for each topic.
    topic: str = ""


@dataclass(frozen=True, slots=True)
class EquivalenceJob:
    """The job that every rank receives."""

    trials: tuple[Trial, ...]
    steps: int


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
class Verdict:
    """The verdict on a trial: whether its result is as required."""

    result: TrialResult
    # None if nothing is required, or if this host cannot run the trial.
    holds: bool | None
    # Limit of the difference, in words.
    limit: str
    # The verdict in words.
    text: str


@dataclass(frozen=True, slots=True)
class Proof:
    """The verdicts on all trials."""

    world_size: int
    steps: int
    verdicts: tuple[Verdict, ...]
    # Reason why ranks ended before the last trial. None if they did not.
    failure: str | None = None

    @property
    def holds(self) -> bool:
        """Return whether the proof ran to its end and no trial violates its requirement."""
        return self.failure is None and all(verdict.holds is not False for verdict in self.verdicts)


# ── the table ────────────────────────────────────────────────────────────────────────────────────
PRECISIONS = ("float64", "float32")


def _both(name: str, must: Must, dtype: str = "float64", **fields: Any) -> Trial:
    """Return a trial whose two sides train in the same way."""
    return Trial(name, must, Training(**fields), Training(**fields), dtype)


def _exact(name: str, **fields: Any) -> list[Trial]:
    """Return one trial per precision, whose two sides train in the same way and must be equal."""
    return [_both(name, "equal", dtype, **fields) for dtype in PRECISIONS]


def _averaging(name: str, must: Must, optimizer: str, every: int = 1) -> Trial:
    """Return a trial of ranks that average parameters, and one process that trains as if they averaged gradients."""
    name += ": parameters averaged after " + ("each step" if every == 1 else f"every {every} steps")
    return Trial(name, must, Training(optimizer, gradients="apart", average=every), Training(optimizer))


TOPICS: dict[str, list[Trial]] = {
    # The batch is B / K on each rank, and B in one process.
    "Do K ranks train the same model as one process?": [
        *_exact("SGD: mean of gradients"),
        *_exact("SGD with momentum", optimizer="momentum"),
        *_exact("Adam", optimizer="adam"),
        *_exact("AdamW", optimizer="adamw"),
        *(Trial("SGD: ranks on CPUs, the one process on a GPU", "equal", dtype=d, gpu=True) for d in PRECISIONS),
        *(Trial("DataParallel: one process, all GPUs", "equal", dtype=d, data_parallel=True) for d in PRECISIONS),
    ],
    "Do the ranks stay together?": [
        Trial("SGD: ranks against each other", "equal", alone=None),
        Trial("Adam: ranks against each other", "equal", Training("adam"), None, "float32"),
        Trial("gradients not synchronised: ranks against each other", "differ", Training(gradients="apart"), None),
        _both("ranks seeded differently, DDP broadcasts rank 0's", "equal", seeds=True),
        Trial("the same, ranks against each other", "equal", Training(seeds=True), None),
        Trial(
            "the same without the broadcast, ranks against each other",
            "differ", Training(seeds=True, broadcast=False), None,
        ),
    ],
    # With a mean of gradients the learning rate stays the same, so lr × K is a mistake there.
    "What must make up for sums?": [
        Trial("SGD: gradients summed, lr / K", "equal", Training(gradients="sum", lr_power=-1)),
        Trial("SGD: gradients summed, lr unchanged", "differ", Training(gradients="sum")),
        Trial("SGD: mean of gradients, lr × K", "differ", Training(lr_power=1)),
        Trial(
            "SGD: loss summed over examples, lr × K",
            "equal", Training(loss="sum", lr_power=1), Training(loss="sum"),
        ),
        _both("SGD: loss summed over examples, lr unchanged", "differ", loss="sum"),
        # Both divide a gradient by the size of past gradients, so a constant factor cancels if eps is 0.
        Trial(
            "Adam with eps = 0: gradients summed, lr unchanged",
            "equal", Training("adam without eps", gradients="sum"), Training("adam without eps"),
        ),
        Trial(
            "AdaGrad with eps = 0: gradients summed, lr unchanged",
            "equal", Training("adagrad without eps", gradients="sum"), Training("adagrad without eps"),
        ),
        Trial("Adam: gradients summed, lr unchanged", "shown", Training("adam", gradients="sum"), Training("adam")),
    ],
    "Average parameters in place of gradients?": [
        _averaging("SGD", "equal", "sgd"),
        _averaging("SGD with momentum", "equal", "momentum"),
        _averaging("Nesterov's momentum", "equal", "nesterov"),
        _averaging("Adam", "differ", "adam"),
        _averaging("SGD", "differ", "sgd", every=4),
        _averaging("SGD with momentum", "differ", "momentum", every=4),
    ],
    # The ranks make K times fewer steps; a larger learning rate makes up for that only approximately.
    "And with a batch K times as large?": [
        Trial("SGD: batch B per rank, lr × K (linear scaling)", "shown", Training(growth=1, lr_power=1)),
        Trial("SGD: batch B per rank, lr unchanged", "shown", Training(growth=1)),
        Trial("Adam: batch B per rank, lr unchanged", "shown", Training("adam", growth=1), Training("adam")),
    ],
    "And in micro-batches?": [
        *_exact("SGD: 2 micro-batches with no_sync, loss / 2", accumulate=2),
        _both("Adam: 2 micro-batches with no_sync, loss / 2", "equal", optimizer="adam", accumulate=2),
        _both("SGD: 2 micro-batches, each synchronised, loss / 2", "equal", accumulate=2, no_sync=False),
        _both("SGD: 2 micro-batches with no_sync, loss not divided", "differ", accumulate=2, divided=False),
    ],
    "What does each rank see?": [
        _both("shuffled, with set_epoch", "equal", sampler="shuffled"),
        _both("every rank reads the same examples (no sampler)", "differ", sampler="none"),
        _both("K does not divide N, sampler pads: against N examples", "differ", examples="odd"),
        Trial(
            "the same against N examples and the padding again",
            "equal", Training(examples="odd"), Training(examples="padded"),
        ),
        _both("K does not divide N, drop_last: against those that are left", "equal", examples="dropped"),
        # No averaging of gradients makes these equal: each rank normalises by its own share of the batch.
        _both("a model with BatchNorm", "differ", normalised=True),
    ],
}  # fmt: skip
TRIALS = tuple(replace(trial, topic=topic) for topic, trials in TOPICS.items() for trial in trials)


# ── the sampler's examples per rank ──────────────────────────────────────────────────────────────
def dealt(examples: int, ranks: int, batch: int, drop_last: bool) -> list[list[list[int]]]:
    """Return the indices of the examples, from 0 on, that torch's DistributedSampler gives: per step, then per rank.

    Example i goes to rank i mod K. If K does not divide the number of examples (at least K), the first examples fill up
    the last round; with drop_last, that round is left out. batch: examples per rank and step.
    """
    share = examples // ranks if drop_last else -(-examples // ranks)
    given = [number % examples for number in range(share * ranks)]
    return [[given[rank::ranks][first : first + batch] for rank in range(ranks)] for first in range(0, share, batch)]


# ── the verdicts ─────────────────────────────────────────────────────────────────────────────────
# Largest difference between equal trainings: rounding of sums taken in another order, over some dozens of steps.
# Every error in the computation, such as a factor K or an example counted twice, makes a larger difference.
ALLOWED = {"float64": 1e-9, "float32": 1e-5}
# Smallest difference where a difference is required: far above rounding, far below the effect of any mistake.
LEAST_DIFFERENCE = 1e-4
# A loss has fallen if its last value is below this share of its first value. The loss over all examples has no noise.
FALLEN = 0.95
NOT_MEASURED = "NOT MEASURED: the ranks ended before it"


def verdict(result: TrialResult) -> Verdict:
    """Return the verdict on a trial: whether its result is as required, and why."""
    trial, difference = result.trial, result.difference
    # Parameters of ranks must have the same bits.
    allowed = ALLOWED[trial.dtype] if trial.alone is not None else 0.0
    limits = {"equal": f"≤ {allowed:g}" if allowed else "0 (same bits)", "differ": f"> {LEAST_DIFFERENCE:g}"}
    limit = limits.get(trial.must, "")
    if result.untried:
        return Verdict(result, None, limit, result.untried)
    if difference is None:
        return Verdict(result, False, limit, NOT_MEASURED)
    # A mistake may keep the ranks' loss from falling; the one process makes no mistake.
    curves = [result.alone] * (trial.alone is not None) + [result.loss] * (trial.must != "differ")
    if not math.isfinite(difference) or not all(map(fell, curves)):
        reason = "the loss did not fall" if math.isfinite(difference) else "the training diverged"
        return Verdict(result, None if trial.must == "shown" else False, limit, f"PROVES NOTHING: {reason}")
    if trial.must == "shown":
        return Verdict(result, None, limit, "shown, not required")
    if trial.must == "differ":
        differs = difference > LEAST_DIFFERENCE
        return Verdict(result, differs, limit, "differs, as it must" if differs else "DOES NOT DIFFER")
    return Verdict(result, difference <= allowed, limit, "holds" if difference <= allowed else "BROKEN")


def fell(losses: Sequence[float]) -> bool:
    """Return whether training learnt something and was stable: the loss fell, and never exceeded its first value.

    Parameters that do not change would be equal too, and unstable training amplifies rounding errors.
    """
    if len(losses) < 2 or not all(map(math.isfinite, losses)):
        return False
    return losses[-1] < FALLEN * losses[0] and max(losses) <= losses[0]
