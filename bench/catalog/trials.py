"""The table of the trials of data-parallel training against one process, and what must become of each.

Some must differ: by design, or because they make one mistake; a comparison that cannot tell those apart would prove
nothing. `rank.training.equivalence` runs them, `analyze.equivalence` judges.

Averaging parameters is averaging gradients where a step is linear in state and gradient, as in SGD with momentum or
Nesterov: the mean of the results is the result of the means, although no state leaves its rank. It is not where the
step divides by a root of squared gradients (Adam), nor with several steps between two averagings: from the second one
on, gradients are taken at other parameters on each rank.
"""

from dataclasses import replace
from typing import Any

from bench.model.equivalence import Must, PairTrial, SamplerTrial, Training

PRECISIONS = ("float64", "float32")


def _both(name: str, must: Must, dtype: str = "float64", **how: Any) -> PairTrial:
    """A trial whose two sides train in the same way."""
    return PairTrial(name, must, Training(**how), Training(**how), dtype)


def _exact(name: str, **how: Any) -> list[PairTrial]:
    """Trials, one a precision, whose two sides train in the same way and must be equal."""
    return [_both(name, "equal", dtype, **how) for dtype in PRECISIONS]


def _averaging(name: str, must: Must, optimizer: str, every: int = 1) -> PairTrial:
    """Ranks that average parameters, against one process, which trains as ranks that average gradients."""
    name += ": parameters averaged after " + ("each step" if every == 1 else f"every {every} steps")
    return PairTrial(name, must, Training(optimizer, gradients="apart", average=every), Training(optimizer))


TOPICS: dict[str, list[PairTrial]] = {
    # The batch is B / K on each rank, and B in one process.
    "Do K ranks train what one process trains?": [
        *_exact("SGD: mean of gradients"),
        *_exact("SGD with momentum", optimizer="momentum"),
        *_exact("Adam", optimizer="adam"),
        *_exact("AdamW", optimizer="adamw"),
        *(PairTrial("SGD: ranks on CPUs, the one process on a GPU", "equal", dtype=d, gpu=True) for d in PRECISIONS),
        *(PairTrial("DataParallel: one process, all GPUs", "equal", dtype=d, data_parallel=True) for d in PRECISIONS),
    ],
    "Do the ranks stay together?": [
        PairTrial("SGD: ranks against each other", "equal", alone=None),
        PairTrial("Adam: ranks against each other", "equal", Training("adam"), None, "float32"),
        PairTrial("gradients not synchronised: ranks against each other", "differ", Training(gradients="apart"), None),
        _both("ranks seeded differently, DDP broadcasts rank 0's", "equal", seeds=True),
        PairTrial("the same, ranks against each other", "equal", Training(seeds=True), None),
        PairTrial(
            "the same without the broadcast, ranks against each other",
            "differ", Training(seeds=True, broadcast=False), None,
        ),
    ],
    # With a mean of gradients the learning rate stays the same, so lr × K is a mistake there.
    "What must make up for sums?": [
        PairTrial("SGD: gradients summed, lr / K", "equal", Training(gradients="sum", lr_power=-1)),
        PairTrial("SGD: gradients summed, lr unchanged", "differ", Training(gradients="sum")),
        PairTrial("SGD: mean of gradients, lr × K", "differ", Training(lr_power=1)),
        PairTrial(
            "SGD: loss summed over examples, lr × K",
            "equal", Training(loss="sum", lr_power=1), Training(loss="sum"),
        ),
        _both("SGD: loss summed over examples, lr unchanged", "differ", loss="sum"),
        # Both divide by what the gradients themselves are like, so that a factor cancels; but for eps, if there is one.
        PairTrial(
            "Adam with eps = 0: gradients summed, lr unchanged",
            "equal", Training("adam without eps", gradients="sum"), Training("adam without eps"),
        ),
        PairTrial(
            "AdaGrad with eps = 0: gradients summed, lr unchanged",
            "equal", Training("adagrad without eps", gradients="sum"), Training("adagrad without eps"),
        ),
        PairTrial("Adam: gradients summed, lr unchanged", "shown", Training("adam", gradients="sum"), Training("adam")),
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
        PairTrial("SGD: batch B a rank, lr × K (linear scaling)", "shown", Training(growth=1, lr_power=1)),
        PairTrial("SGD: batch B a rank, lr unchanged", "shown", Training(growth=1)),
        PairTrial("Adam: batch B a rank, lr unchanged", "shown", Training("adam", growth=1), Training("adam")),
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
        PairTrial(
            "the same against N examples and the padding again",
            "equal", Training(examples="odd"), Training(examples="padded"),
        ),
        _both("K does not divide N, drop_last: against those that are left", "equal", examples="dropped"),
        # No averaging of gradients makes these equal: each rank normalises by its own share of the batch.
        _both("a model with BatchNorm", "differ", normalised=True),
    ],
}  # fmt: skip
TRIALS = tuple(replace(trial, topic=topic) for topic, trials in TOPICS.items() for trial in trials)

SAMPLER_TRIALS: tuple[SamplerTrial, ...] = (
    SamplerTrial("sampler: N = 8, K = 2, batch 2", 8, "x1 x3 | x2 x4, then x5 x7 | x6 x8", batch=2),
    SamplerTrial("sampler: N = 9, K = 2, batch 3, padded", 9, "x1 x3 x5 | x2 x4 x6, then x7 x9 | x8 x1"),
    SamplerTrial("sampler: N = 9, K = 2, batch 3, drop_last", 9, "x1 x3 x5 | x2 x4 x6, then x7 | x8", drop_last=True),
)
