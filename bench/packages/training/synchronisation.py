"""Define the data of training steps: ways to synchronise gradients, and what they share.

A case names its strategy and its link as text, because a case is a name. What all strategies of a launch share is the
rest of the case: its scenario. What steps show in detail is in `model/steps.py`. Nothing here computes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.model.records import STEP, Case, Settings
from bench.model.steps import Link, Shape

TRAINING_STEP = STEP
# The strategy without synchronisation. Every scenario has it, and the others are compared with it.
REFERENCE = "none"
# The parts of a rank's step, in order: the inner durations of an iteration, which are sums over its steps. Behind them
# follows the tail of each step. gather: calls of a sharded optimizer, also those within forward and backward.
PARTS = ("forward", "backward", "pack", "tail", "clip", "update", "gather")


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to synchronise gradients; `training.catalog.strategies.STRATEGIES` says what each name does and takes.

    cap_bytes: a bucket ends after the gradient that reaches it, as in torch.
    buckets: bytes of each bucket, in the order in which they are sent; of the strategies plan and ddp.
    options: of ddp, such as "noop", "fp16", "gradient_as_bucket_view".
    accumulate: micro-batches a step; gradients are synchronised after the last one.
    imported: "package.module:name" of a user's own synchroniser.
    every: of local_sgd, after how many steps parameters are averaged; 0 for the others.
    again: 1 for the second copy of an A/A pair.
    called: how its buckets were chosen, "advised" or "torch"; empty if the configuration lists them.
    """

    name: str
    cap_bytes: int | None = None
    buckets: tuple[int, ...] = ()
    options: tuple[str, ...] = ()
    accumulate: int = 1
    imported: str | None = None
    every: int = 0
    again: int = 0
    called: str = ""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What all strategies of a launch share: a case without a strategy, and what its names stand for.

    link: None is the real backend. shape: replaces the model, which is only a name then: backward waits until each
    gradient's ready time, and nothing is computed.
    """

    case: Case
    link: Link | None = None
    shape: Shape | None = None


def scenario_of(settings: Settings, case: Case) -> Scenario:
    """The scenario of a case of training steps."""
    return Scenario(replace(case, strategy=""), settings.links.get(case.link), settings.shapes.get(case.model))
