"""Define the data of training steps: strategies, ways to synchronise gradients, and the scenario that they share.

A case has its strategy as a value; the strategies of a launch share the rest of the case: its scenario. A case names
its link and shape, which are stored in the plan's `StepSettings`. Details of steps are in `step_records`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

from collbench.model.records import Case, ConfigKey, OwnOptions, OwnSettings, Settings, option
from collbench.model.units import format_bytes
from collbench.packages.training.step_records import Link, Shape

TRAINING_STEP = "training_step"


# The strategy without synchronisation. Every scenario has it, and the other strategies are compared with it.
REFERENCE = "none"
# The parts of a rank's step, in order: names of the inner times of an iteration, which are sums over its steps. TAILS
# names the tail of each step. gather: calls of a sharded optimizer, also those within forward and backward.
PARTS = ("forward", "backward", "pack", "tail", "clip", "update", "gather")
TAILS = "tails"


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to synchronise gradients; `training.catalog.strategies.STRATEGIES` describes names and settings."""

    name: str
    # A bucket ends after the gradient that reaches this cap, as in torch.
    cap_bytes: int | None = None
    # Bytes of each bucket, in the order in which they are sent; for the strategies plan and ddp.
    buckets: tuple[int, ...] = ()
    # Options of ddp, such as "noop", "fp16", "gradient_as_bucket_view".
    options: tuple[str, ...] = ()
    # Micro-batches per step; gradients are synchronised after the last one.
    accumulate: int = 1
    # Name of a user's own synchroniser: "package.module:name".
    imported: str | None = None
    # Number of steps after which local_sgd averages parameters; 0 for the other strategies.
    every: int = 0
    # 1 for the second copy of an A/A pair.
    again: int = 0
    # How the buckets were chosen: "advised" or "torch". Empty if the configuration lists them.
    called: str = ""

    def __str__(self) -> str:
        """Return the name in keys: `flat`, or `ddp(cap_bytes=1048576,options=fp16+static_graph)`."""
        changed = [(item.name, getattr(self, item.name)) for item in fields(self)[1:]]
        settings = ",".join(
            f"{name}={'+'.join(map(str, value)) if isinstance(value, tuple) else value}"
            for name, value in changed
            if value != DEFAULTS[name]
        )
        return f"{self.name}({settings})" if settings else self.name


def reference_of(strategy: Strategy) -> Strategy:
    """Return the strategy that makes the same step without synchronisation."""
    return Strategy(REFERENCE, accumulate=strategy.accumulate)


DEFAULTS: dict[str, Any] = {item.name: item.default for item in fields(Strategy)}


# A plan's label lists its buckets; if there are more than this, tables show the first two and their number.
MOST_BUCKETS = 4
# How buckets were chosen → text in labels.
CALLED = {"advised": "advised", "torch": "torch's default"}


def short_name(strategy: Strategy) -> str:
    """Return the name of a strategy in tables: its label without a long list of buckets, which the CSV has in full."""
    return label(strategy, MOST_BUCKETS)


def label(strategy: Strategy, most_buckets: int | None = None) -> str:
    """Return the name of a strategy in files; unique if it lists all buckets.

    most_buckets: a longer list of buckets is shortened to its first two sizes and its length.
    """
    words = [strategy.imported or strategy.name]
    if strategy.cap_bytes is not None and not strategy.called:
        words.append(format_bytes(strategy.cap_bytes))
    if strategy.called:
        words.append(CALLED[strategy.called])
    elif strategy.buckets:
        sizes = [format_bytes(size) for size in strategy.buckets]
        if most_buckets is not None and len(sizes) > most_buckets:
            sizes = [*sizes[:2], f"… {len(sizes)} buckets"]
        words.append(f"[{', '.join(sizes)}]")
    words += strategy.options
    if strategy.every:
        words.append(f"every {strategy.every} steps" if strategy.every > 1 else "every step")
    if strategy.accumulate > 1:
        words.append(f"over {strategy.accumulate} micro-batches")
    if strategy.again:
        words.append("again")
    return " ".join(words)


@dataclass(frozen=True)
class StepOptions(OwnOptions):
    """The options of a training step."""

    UNIT = "step"

    operation: str = TRAINING_STEP
    strategy: Strategy | None = option(
        None, "how gradients are synchronised; empty: a scenario", lambda strategy: label(strategy), first=True
    )
    model: str = option("", "a preset, a shape, or package.module:build of a user's own", first=True)
    batch: int = option(
        0,
        "number of examples per rank and step",
        "batch {} a rank",
        key=ConfigKey("batch", (8,), "one", usual=4, least=1, after="links"),
    )
    sequence: int = option(
        0, "number of tokens in an example", "sequence {}", key=ConfigKey("sequence", (256,), "one", usual=64, least=2)
    )
    optimizer: str = option(
        "",
        "the optimizer: sgd or adamw",
        key=ConfigKey("optimizer", ("adamw",), "one", usual="sgd"),
        names=("sgd", "adamw"),
    )
    link: str = option("", "name of an emulated link (`StepSettings.links`); empty: the real one", "emulated link {}")
    threads: int = option(
        0,
        "number of threads that each rank computes with",
        lambda count: f"{count} threads a rank" if count > 1 else "",
        key=ConfigKey("threads", (4,), "one", usual=1, least=1, most=1024),
    )
    clip: float = option(
        0.0,
        "largest norm of all gradients, as for torch's clip_grad_norm_; 0 clips nothing",
        "clipped to {:g}",
        key=ConfigKey("clip", (1.0,), "one"),
    )
    autocast: str = option("", "dtype of torch's autocast around forward; empty: none", "autocast {}")

    @property
    def shared(self) -> StepOptions:
        """Return the options of the scenario: all options except the strategy."""
        return replace(self, strategy=None)


@dataclass(frozen=True)
class StepSettings(OwnSettings):
    """The settings of all training steps of a plan."""

    operation: str = TRAINING_STEP
    # Steps of each strategy before the first round.
    warmup_steps: int = 3
    # Whether the first launch also measures the memory of each strategy alone.
    step_memory: bool = False
    # `StepOptions.model` → gradients and ready times of a model that is not computed.
    shapes: dict[str, Shape] = field(default_factory=dict)
    # `StepOptions.link` → an emulated link.
    links: dict[str, Link] = field(default_factory=dict)

    def needed_by(self, cases: Sequence[Case]) -> StepSettings:
        """Return the settings with only the shapes and links that the cases name."""
        shapes, links = ({getattr(options_of(case), name) for case in cases} for name in ("model", "link"))
        return replace(
            self,
            shapes={name: shape for name, shape in self.shapes.items() if name in shapes},
            links={name: link for name, link in self.links.items() if name in links},
        )


def options_of(case: Case) -> StepOptions:
    """Return the options of a training step."""
    return cast(StepOptions, case.own)


def strategy_in(case: Case) -> Strategy:
    """Return the strategy of a training step; the case must have one, unlike a scenario."""
    strategy = options_of(case).strategy
    assert strategy is not None  # noqa: S101 - only a scenario has none
    return strategy


def with_strategy(case: Case, strategy: Strategy | None) -> Case:
    """Return the same step with another strategy; without a strategy, the case represents the whole scenario."""
    return replace(case, own=replace(options_of(case), strategy=strategy))


def step_settings(settings: Settings) -> StepSettings:
    """Return the settings of training steps from the settings of a plan."""
    return cast(StepSettings, settings.own.get(TRAINING_STEP, StepSettings()))


@dataclass(frozen=True, slots=True)
class Scenario:
    """The part that all strategies of a launch share: a case without a strategy, and the link and shape it names."""

    case: Case
    # None for the real backend.
    link: Link | None = None
    # Shape that replaces the model, which is then only a name: backward waits until each gradient's ready time, and
    # nothing is computed.
    shape: Shape | None = None

    @property
    def options(self) -> StepOptions:
        """Return the options of the scenario's case."""
        return options_of(self.case)


def scenario_of(settings: Settings, case: Case) -> Scenario:
    """Return the scenario of a training step."""
    own, options = step_settings(settings), options_of(case)
    return Scenario(with_strategy(case, None), own.links.get(options.link), own.shapes.get(options.model))
