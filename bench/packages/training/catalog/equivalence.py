"""The trials of an equivalence proof: does data-parallel training train the same model as one process?

    Trial ─▶ (ranks) ─▶ TrialResult ─▶ (verdict) ─▶ Verdict ─▶ Proof

A `Trial` trains twice from the same parameters on the same examples, on K ranks and in one process, and compares the
parameters. Some must differ: by design, or because they make one mistake; a comparison that cannot tell those apart
would prove nothing. `training.rank.equivalence` runs them.

Averaging parameters is averaging gradients where a step is linear in state and gradient, as in SGD with momentum or
Nesterov: the mean of the results is the result of the means, although no state leaves its rank. It is not where the
step divides by a root of squared gradients (Adam), nor with several steps between two averagings: from the second one
on, gradients are taken at other parameters on each rank.
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
    # Ranks average their parameters each time after this number of steps; 0 for never.
    average: int = 0
    # Reduction over the examples of a batch: "mean" or "sum".
    loss: Literal["mean", "sum"] = "mean"
    # The batch of all ranks together has B · K^growth examples.
    growth: int = 0
    # Micro-batches a step, on ranks only.
    accumulate: int = 1
    # True if gradients are synchronised only after the last micro-batch.
    no_sync: bool = True
    # True if the loss of each micro-batch is divided by the number of micro-batches.
    divided: bool = True
    # True if each rank draws its own initial parameters.
    seeds: bool = False
    # True if the initial parameters of rank 0 replace those of all ranks.
    broadcast: bool = True
    # Sampler: "interleaved" (torch's DistributedSampler), "shuffled" (the same with set_epoch) or "none" (every rank
    # reads all examples).
    sampler: Literal["interleaved", "shuffled", "none"] = "interleaved"
    # Number of examples: "even" (K divides it), "odd" (K does not, and the sampler pads), "padded" (in one process: the
    # odd ones and what the sampler adds), "dropped" (the sampler's drop_last).
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
    """The result of the ranks in a trial. If they ended before it, only the trial is set."""

    trial: Trial
    # Largest of max |a − b| / max |b| over all parameters and ranks.
    difference: float | None = None
    # Loss over all examples, before training and after each step: mean over ranks, and (alone) of the one process.
    loss: tuple[float, ...] = ()
    alone: tuple[float, ...] = ()
    # Examples a step, on all ranks together and in the one process.
    examples: tuple[int, int] = (1, 1)
    # Reason why this host cannot run the trial.
    untried: str = ""
    # Which rank ended the trial, and how.
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a trial is as it must be."""

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
    # Reason why ranks could not begin. None if they did.
    failure: str | None = None

    @property
    def holds(self) -> bool:
        """Whether the proof ran to its end and no trial differs from what it must be."""
        return self.failure is None and all(verdict.holds is not False for verdict in self.verdicts)


# ── the table ────────────────────────────────────────────────────────────────────────────────────
PRECISIONS = ("float64", "float32")


def _both(name: str, must: Must, dtype: str = "float64", **how: Any) -> Trial:
    """A trial whose two sides train in the same way."""
    return Trial(name, must, Training(**how), Training(**how), dtype)


def _exact(name: str, **how: Any) -> list[Trial]:
    """Trials, one a precision, whose two sides train in the same way and must be equal."""
    return [_both(name, "equal", dtype, **how) for dtype in PRECISIONS]


def _averaging(name: str, must: Must, optimizer: str, every: int = 1) -> Trial:
    """Ranks that average parameters, against one process, which trains as ranks that average gradients."""
    name += ": parameters averaged after " + ("each step" if every == 1 else f"every {every} steps")
    return Trial(name, must, Training(optimizer, gradients="apart", average=every), Training(optimizer))


TOPICS: dict[str, list[Trial]] = {
    # The batch is B / K on each rank, and B in one process.
    "Do K ranks train what one process trains?": [
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
        # Both divide by what the gradients themselves are like, so that a factor cancels; but for eps, if there is one.
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
        Trial("SGD: batch B a rank, lr × K (linear scaling)", "shown", Training(growth=1, lr_power=1)),
        Trial("SGD: batch B a rank, lr unchanged", "shown", Training(growth=1)),
        Trial("Adam: batch B a rank, lr unchanged", "shown", Training("adam", growth=1), Training("adam")),
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


# ── what a sampler gives each rank ───────────────────────────────────────────────────────────────
def dealt(examples: int, ranks: int, batch: int, drop_last: bool) -> list[list[list[int]]]:
    """Numbers of the examples, from 0 on, that torch's DistributedSampler gives: by step, then by rank.

    Example i goes to rank i mod K. Where K does not divide their number, the first ones fill up the last round, or with
    drop_last the round is left out. batch: examples of a rank in a step. The number of examples is K or more.
    """
    share = examples // ranks if drop_last else -(-examples // ranks)
    given = [number % examples for number in range(share * ranks)]
    return [[given[rank::ranks][first : first + batch] for rank in range(ranks)] for first in range(0, share, batch)]


# ── the verdicts ─────────────────────────────────────────────────────────────────────────────────
# The largest difference between equal trainings: rounding of sums taken in another order, over some dozens of steps.
# Every error in what is computed, such as a factor K or an example counted twice, makes a larger difference.
ALLOWED = {"float64": 1e-9, "float32": 1e-5}
# The smallest difference where one is expected: far above rounding, and far below what any mistake causes.
LEAST_DIFFERENCE = 1e-4
# A loss has fallen if its last value is below this share of its first. It is over all examples, so it has no noise.
FALLEN = 0.95
NOT_MEASURED = "NOT MEASURED: the ranks ended before it"


def verdict(result: TrialResult) -> Verdict:
    """Whether a trial is as it must be, and why."""
    trial, difference = result.trial, result.difference
    # Ranks must hold the same bits.
    allowed = ALLOWED[trial.dtype] if trial.alone is not None else 0.0
    limits = {"equal": f"≤ {allowed:g}" if allowed else "0 (same bits)", "differ": f"> {LEAST_DIFFERENCE:g}"}
    limit = limits.get(trial.must, "")
    if result.untried:
        return Verdict(result, None, limit, result.untried)
    if difference is None:
        return Verdict(result, False, limit, f"FAILED: {result.failure}" if result.failure else NOT_MEASURED)
    # A mistake may keep the ranks' loss from falling; the one process makes none.
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
    """Whether training learnt something and was stable: the loss fell, and never exceeded its first value.

    Parameters that do not change would be equal too, and an unstable training makes rounding large.
    """
    if len(losses) < 2 or not all(map(math.isfinite, losses)):
        return False
    return losses[-1] < FALLEN * losses[0] and max(losses) <= losses[0]
