"""Expand a configuration of the training benchmark into a plan of what this machine can measure.

In: a `TrainingConfig`, a `Machine` and a seed. Out: a `TrainingPlan`: every strategy in every scenario, and what is
left out with the reason. Each scenario also gets the reference without synchronisation, and second copies of the
reference and of one strategy: two A/A pairs, which show how far two equal measurements differ here. And of a plan: the
memory that a rank needs, and notes on settings that measure something other than their author expects.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from bench.catalog.backends import BACKENDS
from bench.catalog.dtypes import DTYPES
from bench.catalog.presets import find, parameters
from bench.catalog.strategies import CALLED, kind, label, reference_of, unsupported
from bench.config.training import ShapeConfig, StrategyConfig, TrainingConfig, link_of
from bench.model.capabilities import Demands, Machine
from bench.model.records import Scenario
from bench.model.training import (
    REFERENCE,
    CallSizeSweep,
    Fact,
    Round,
    Shape,
    SkippedStrategy,
    Strategy,
    TrainingLaunch,
    TrainingPlan,
)
from bench.model.units import format_rounded_bytes
from bench.planning.buckets import bucket_bytes, torch_default
from bench.planning.ready_times import ReadyTimes, by_sizes

# Measured: the first set of ranks 2.5 s, each further set 0.3 s, building and checking a strategy about 0.3 s.
START_S, STRATEGY_S = 3.0, 0.5
# Tensors of the size of the parameters that the optimizer keeps.
STATES = {"sgd": 1, "adamw": 2}
# 25 for `bucket_cap_mb`, in bytes: torch's source means MiB, the name of the argument MB.
DEFAULT_CAPS = frozenset({25 * 10**6, 25 * 2**20})


def expand(config: TrainingConfig, machine: Machine, seed: int) -> TrainingPlan:
    """The plan of a configuration; it names what is left out, with the reason."""
    requested = [strategy for entry in config.strategies for strategy in strategies_of(entry)]
    chosen: list[tuple[Scenario, tuple[Strategy, ...]]] = []
    skips: list[SkippedStrategy] = []
    for scenario in scenarios(config):
        reason = unsupported_scenario(scenario, machine)
        if reason is not None:
            skips.append(SkippedStrategy(scenario, None, reason))
            continue
        fit = []
        for wanted in requested:
            strategy, why = with_buckets(wanted, scenario, config)
            why = why or unsupported(strategy, scenario, machine)
            if why is None:
                fit.append(strategy)
            else:
                skips.append(SkippedStrategy(scenario, strategy, why))
        if fit and (reason := _too_large(scenario, with_controls(fit), machine)):
            skips.append(SkippedStrategy(scenario, None, reason))
        elif fit:
            chosen.append((scenario, with_controls(fit)))
    order = tuple(
        TrainingLaunch(scenario, launch, strategies, config.rounds)
        for launch in range(1, config.launches + 1)
        for scenario, strategies in chosen
    )
    call_sizes = (
        CallSizeSweep(config.call_sizes.parameters, tuple(config.call_sizes.calls)) if config.call_sizes else None
    )
    return TrainingPlan(
        name=config.name,
        order=order,
        skips=tuple(skips),
        launches=config.launches,
        steps=config.steps,
        warmup=config.warmup,
        seed=seed,
        timeout_s=config.timeout,
        max_foreign_cpu=config.max_foreign_cpu,
        call_sizes=call_sizes,
    )


def _too_large(scenario: Scenario, strategies: Sequence[Strategy], machine: Machine) -> str | None:
    """The reason why the ranks do not fit into this host's memory, or a GPU's; None if they do, or if it is unknown."""
    needed, on_gpu = rank_bytes(scenario, strategies), BACKENDS[scenario.case.backend].device == "cuda"
    available = machine.gpu_free_bytes if on_gpu else machine.memory_available_bytes
    if needed is None or available is None:
        return None
    together = 1 if on_gpu else min(scenario.case.world_size, machine.ranks_a_host or scenario.case.world_size)
    if together * needed <= available:
        return None
    return (
        f"needs {together} × {format_rounded_bytes(needed)} of memory{' on a GPU' if on_gpu else ''} for parameters, "
        f"gradients, optimizer, buckets; {format_rounded_bytes(available)} are available"
    )


def strategies_of(asked: StrategyConfig) -> Iterator[Strategy]:
    """The strategy that is asked for, or one for each of its caps."""
    base = Strategy(
        asked.name,
        bucket_boundary=asked.bucket_boundary,
        buckets=() if isinstance(asked.buckets, str) else tuple(asked.buckets or ()),
        options=tuple(asked.options),
        accumulate=asked.accumulate,
        imported=asked.imported,
        called=asked.buckets if isinstance(asked.buckets, str) else "",
    )
    if asked.cap is None:
        yield base
    else:
        yield from (replace(base, cap_bytes=cap) for cap in asked.cap)


def with_buckets(strategy: Strategy, scenario: Scenario, config: TrainingConfig) -> tuple[Strategy, str | None]:
    """The strategy with the buckets that it is called after, or why they are not known beforehand.

    Those of ddp stay open: the run itself measures what the advisor needs.
    """
    if not strategy.called:
        return strategy, None
    if strategy.name != "plan":
        return strategy, _why_never_known(scenario, config)
    if scenario.shape is None or scenario.link is None:
        return strategy, (
            f"plan {CALLED[strategy.called]}: when gradients are ready, and what a call takes, is known beforehand "
            "only of a shape on an emulated link; of others, `advise --from RUN` knows it after a run"
        )
    ready_times = ReadyTimes.of_shape(scenario.shape)
    if strategy.called == "torch":
        sizes = bucket_bytes(ready_times, torch_default(ready_times))
    else:
        from bench.advise import advisor  # here: it loads scipy
        from bench.planning.link_model import AllReduceCost

        sizes = advisor.advise(ready_times, AllReduceCost.emulated(scenario.link)).plan.buckets
    return replace(strategy, buckets=sizes), None


def _why_never_known(scenario: Scenario, config: TrainingConfig) -> str | None:
    """The reason why a run cannot find out what to advise; None if it can."""
    if config.launches < 2:
        return "what is advised is known after the first launch; set launches to 2 or more"
    if scenario.link is None and config.call_sizes is None:
        return "what is advised rests on the link; set call_sizes, which measures it"
    return None


def scenarios(config: TrainingConfig) -> Iterator[Scenario]:
    """Every combination of model, backend, link and world size."""
    for model, backend, link, ranks in product(config.models, config.backends, config.links, config.world_sizes):
        # A model given by its sizes, or imported, is its name by now.
        by_shape = model if isinstance(model, ShapeConfig) else None
        shape = shape_of(by_shape.shape, by_shape.backward, config.dtype) if by_shape else None
        name = shape_name(by_shape.shape, by_shape.backward) if by_shape else str(model)
        yield Scenario(
            name, backend, ranks, config.batch, config.sequence, config.dtype, config.optimizer, link_of(link),
            config.threads, shape, config.clip,
        )  # fmt: skip


def shape_of(preset: str, backward_s: float, dtype: str) -> Shape:
    """A preset's gradients, with ready times in proportion to their flops."""
    sizes = find(preset)
    assert sizes is not None  # noqa: S101 - config and the command line have seen to it
    return by_sizes(sizes, backward_s, DTYPES[dtype].itemsize)


def shape_name(preset: str, backward_s: float) -> str:
    """The name of a shape in a scenario, such as shape:xl-2026@1.2s."""
    return f"shape:{preset}@{backward_s:g}s"


def with_controls(asked: list[Strategy]) -> tuple[Strategy, ...]:
    """The distinct strategies, their references, and second copies of the reference and of one strategy."""
    references = [reference_of(strategy) for strategy in asked]
    strategies = list(dict.fromkeys([*references, Strategy(REFERENCE), *asked]))
    aa_pairs = [Strategy(REFERENCE, again=1)]
    communicating = [strategy for strategy in asked if strategy.name != REFERENCE]
    if communicating:
        exact_ddp = (ddp for ddp in communicating if ddp.name == "ddp" and kind(ddp).exact and not ddp.open)
        aa_pairs.append(replace(next(exact_ddp, communicating[0]), again=1))
    return tuple({label(strategy): strategy for strategy in [*strategies, *aa_pairs]}.values())


def unmeasurable_reason(plan: TrainingPlan) -> str | None:
    """The reason why nothing in the plan can be measured on this machine; None if something can."""
    return None if plan.total else "; ".join(dict.fromkeys(skip.reason for skip in plan.skips))


def demands(asked: TrainingConfig | TrainingPlan) -> Demands:
    """The GPUs and ranks that a configuration or a plan needs."""
    if isinstance(asked, TrainingPlan):
        backends = [launch.scenario.case.backend for launch in asked.order]
        worlds = [launch.scenario.case.world_size for launch in asked.order]
    else:
        backends, worlds = list(asked.backends), list(asked.world_sizes)
    return Demands(any(BACKENDS[name].device == "cuda" for name in backends), shared_gpus=False, ranks=max(worlds))


def done(plan: TrainingPlan, facts: Sequence[Fact]) -> int | None:
    """The number of rounds measured, of `plan.total`; None if none is left."""
    rounds = sum(isinstance(fact, Round) for fact in facts)
    return rounds if rounds < plan.total else None


def estimate_s(plan: TrainingPlan) -> float:
    """Seconds that the run takes without the steps themselves, whose duration is not known yet."""
    return START_S * len(plan.order) + STRATEGY_S * sum(len(launch.strategies) for launch in plan.order)


def unsupported_scenario(scenario: Scenario, machine: Machine) -> str | None:
    """The reason why nothing can be measured in this scenario on this machine; None if something can."""
    if scenario.case.backend not in {"gloo", "nccl"}:
        return f"gradients are synchronised by torch here, on gloo or nccl, not on {scenario.case.backend}"
    if scenario.shape is not None and scenario.case.backend != "gloo":
        return f"a model by its shape is timed on gloo or an emulated link, not on {scenario.case.backend}"
    missing = machine.backends_missing.get(scenario.case.backend)
    if missing:
        return missing
    if machine.ranks is not None and scenario.link is not None:
        return "an emulated link is memory that ranks of one host share; in a job, measure the real one"
    if machine.ranks is not None and scenario.case.world_size > machine.ranks:
        return f"world size {scenario.case.world_size} exceeds the {machine.ranks} ranks of this job"
    if BACKENDS[scenario.case.backend].device == "cuda" and scenario.case.world_size > machine.gpus:
        return f"{scenario.case.world_size} ranks need as many GPUs; here are {machine.gpus}"
    return None


# ── memory ───────────────────────────────────────────────────────────────────────────────────────
def rank_bytes(scenario: Scenario, strategies: Sequence[Strategy]) -> int | None:
    """Bytes of memory that one rank needs; None for a model that is not a preset.

    Counted are parameters, gradients, states of the optimizer and buckets; not activations, which grow with batch and
    sequence, nor torch itself. Strategies take turns on one set of tensors (`rank/transport.py`); what torch's
    wrappers keep comes on top.
    """
    preset = find(scenario.case.model) if scenario.shape is None and ":" not in scenario.case.model else None
    if preset is None:
        return None
    model, states, ranks = (
        parameters(preset) * DTYPES[scenario.case.dtype].itemsize,
        STATES[scenario.case.optimizer],
        scenario.case.world_size,
    )
    # One set of parameters, gradients and states, and one of buckets or of a flattened tensor.
    copies = 3.0 + states
    for strategy in strategies:
        if strategy.name == "zero1":
            copies += 2 + (2 + states) / ranks  # flat parameters and gradients, and a rank's share of the rest
        elif strategy.name == "fsdp2":
            copies += (2 + states) / ranks
        elif strategy.name == "zero_redundancy":
            copies += 1 + states / ranks
        elif not kind(strategy).own:
            copies += 1  # the buckets of DistributedDataParallel
    return round(model * copies)


# ── notes ────────────────────────────────────────────────────────────────────────────────────────
def notes(plan: TrainingPlan, cores: int) -> list[str]:
    """Settings that measure something other than they seem to, each with the remedy. They never stop a run.

    cores: of this machine.
    """
    texts: list[str] = []
    if any(
        not kind(strategy).own and strategy.cap_bytes in DEFAULT_CAPS
        for launch in plan.order
        for strategy in launch.strategies
    ):
        texts.append(
            "ddp with a cap of 25 is not torch's default: an explicit cap drops the first bucket of 1 MiB, so "
            "communication starts later; write ddp without a cap for the default"
        )
    for launch in plan.order:
        # On a CPU backend, communication runs on the cores that compute.
        scenario = launch.scenario
        overlapping = any(kind(strategy).overlaps for strategy in launch.strategies)
        on_cores = BACKENDS[scenario.case.backend].device == "cpu" and scenario.link is None
        if overlapping and on_cores and scenario.case.threads * scenario.case.world_size > cores:
            texts.append(
                f"{scenario.case.world_size} ranks of {scenario.case.threads} computing threads on {cores} cores: no core is "
                "left to overlap communication with, so the scheduler is measured; lower threads or world_sizes, or "
                "use an emulated link, which needs no core"
            )
    if plan.steps < 2:
        texts.append(
            "steps: 1 puts one step between two barriers: how unequally ranks leave the barrier falls on that step, "
            "and what reaches into the next step is not seen; write steps: 2 or more"
        )
    return list(dict.fromkeys(texts))
