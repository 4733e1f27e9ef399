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
    """One way to synchronise gradients; `training.catalog.strategies.STRATEGIES` says what each name does and takes."""

    name: str
    # A bucket ends after the gradient that reaches this cap, as in torch.
    cap_bytes: int | None = None
    # Bytes of each bucket, in the order in which they are sent; for the strategies plan and ddp.
    buckets: tuple[int, ...] = ()
    # Options of ddp, such as "noop", "fp16", "gradient_as_bucket_view".
    options: tuple[str, ...] = ()
    # Micro-batches a step; gradients are synchronised after the last one.
    accumulate: int = 1
    # Name of a user's own synchroniser: "package.module:name".
    imported: str | None = None
    # Number of steps after which local_sgd averages parameters; 0 for the other strategies.
    every: int = 0
    # 1 for the second copy of an A/A pair.
    again: int = 0
    # How the buckets were chosen: "advised" or "torch". Empty if the configuration lists them.
    called: str = ""


@dataclass(frozen=True, slots=True)
class Scenario:
    """The part that all strategies of a launch share: a case without a strategy, and what its names stand for."""

    case: Case
    # None for the real backend.
    link: Link | None = None
    # Shape that replaces the model, which is then only a name: backward waits until each gradient's ready time, and
    # nothing is computed.
    shape: Shape | None = None


def scenario_of(settings: Settings, case: Case) -> Scenario:
    """The scenario of a case of training steps."""
    return Scenario(replace(case, strategy=""), settings.links.get(case.link), settings.shapes.get(case.model))
