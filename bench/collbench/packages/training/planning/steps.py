"""Expand the section `training` of a configuration into cases: every strategy in every scenario that can be measured.

In: a `Config` and a `Machine`. Out: cases, skips with their reasons, and the shapes and links that the cases name.
Each scenario also gets the reference without synchronisation, and second copies of the reference and of one strategy:
two A/A pairs, which show the difference between two equal measurements. Also computes the memory that a rank needs, and
finds settings that measure something other than their author expects.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, product
from types import SimpleNamespace
from typing import Any

from collbench.catalog.backends import BACKENDS
from collbench.catalog.collectives import OPERATIONS
from collbench.catalog.dtypes import DTYPES
from collbench.catalog.rules import HERE, LACKS, SCHEDULING
from collbench.config.models import Config
from collbench.config.options import values_of
from collbench.model.notices import Kind, Notice, Rule, every, first
from collbench.model.projection import grouped
from collbench.model.records import Case, Machine, Plan, Settings, Skip, options_in
from collbench.model.units import parse_link
from collbench.packages.training.catalog.presets import find
from collbench.packages.training.catalog.strategies import TRAINED, StepFacts, kind, reference_of, unsupported
from collbench.packages.training.config import REAL_LINK, ShapeSection, TrainingSection
from collbench.packages.training.planning.memory import STATES, alone_bytes, model_bytes
from collbench.packages.training.step_records import Link, Shape
from collbench.packages.training.synchronisation import (
    CALLED,
    REFERENCE,
    TRAINING_STEP,
    Scenario,
    StepOptions,
    StepSettings,
    Strategy,
    label,
    options_of,
    scenario_of,
    step_settings,
    strategy_in,
    with_strategy,
)
from collbench.planning.cases import option_values, oversubscribed, worlds
from collbench.planning.parts import Expansion, PlanningPart

# 25 for `bucket_cap_mb`, in bytes: torch's source means MiB, the name of the argument MB.
DEFAULT_CAPS = frozenset({25 * 10**6, 25 * 2**20})


def expand(config: Config, machine: Machine, kept: Mapping[str, Any]) -> Expansion:
    """Return the cases of the section `training`; none without this section."""
    chosen = Expansion()
    section = config.section(TrainingSection)
    if section is None:
        return chosen
    chosen.complete = partial(complete, config, machine)
    wanted = [strategy for entry in section.strategies for strategy in entry.strategies]
    for scenario in _scenarios(config, section, machine):
        if reason := unsupported_scenario(scenario, machine):
            chosen.skips.append(Skip(scenario.case, reason))
            continue
        supported = []
        for requested in wanted:
            strategy, skip_reason = _with_buckets(requested, scenario)
            if skip_reason := skip_reason or unsupported(strategy, scenario, machine):
                chosen.skips.append(Skip(with_strategy(scenario.case, strategy), skip_reason))
            else:
                supported.append(strategy)
        # One rank on a CPU has nothing to synchronise; its step is the baseline for steps of more ranks.
        strategies = with_controls(supported) if supported or scenario.case.world_size == 1 else ()
        if reason := _too_large(scenario, strategies, section.memory, machine):
            chosen.skips.append(Skip(scenario.case, reason))
            continue
        chosen.checked += [with_strategy(scenario.case, strategy) for strategy in strategies]
    return chosen


def complete(config: Config, machine: Machine, plan: Plan) -> Plan:
    """Return the plan with the section's settings, and with the shapes and links that its cases name."""
    section = config.section(TrainingSection)
    if section is None:
        return plan
    scenarios = list(_scenarios(config, section, machine))
    own = StepSettings(
        rounds=section.rounds,
        warmup_steps=section.warmup,
        step_memory=section.memory,
        max_foreign_cpu=section.max_foreign_cpu,
        shapes={scenario.options.model: scenario.shape for scenario in scenarios if scenario.shape is not None},
        links={scenario.options.link: scenario.link for scenario in scenarios if scenario.link is not None},
    )
    steps = [case for case in plan.cases if case.op == TRAINING_STEP]
    return replace(
        plan, settings=replace(plan.settings, own={**plan.settings.own, TRAINING_STEP: own.needed_by(steps)})
    )


def _scenarios(config: Config, section: TrainingSection, machine: Machine) -> Iterator[Scenario]:
    """Yield every combination of model, backend, link, dtype, world size, and options of the process."""
    chosen: Any = {row.name: values_of(section, row)[0] for row in options_in(StepOptions) if row.key}
    ways = [*option_values(config, OPERATIONS[TRAINING_STEP], 0, "pipelined")]
    for model, (backend, ranks), link, dtype, process_options in product(
        section.models, worlds(config, machine), section.links, config.dtypes, ways
    ):
        # A model given by its sizes, or imported, is represented by its name here.
        by_shape = model if isinstance(model, ShapeSection) else None
        case = Case(
            TRAINING_STEP,
            backend,
            ranks,
            dtype,
            0,
            depth=section.steps,
            oversubscribed=oversubscribed(config, machine, backend, ranks),
            own=StepOptions(
                model=shape_name(by_shape.shape, by_shape.backward) if by_shape else str(model),
                link="" if link == REAL_LINK else link,
                autocast=section.autocast or "",
                **chosen,
            ),
            **process_options,
        )
        emulated = None if link == REAL_LINK else Link(*parse_link(link))
        shape = shape_of(by_shape.shape, by_shape.backward, dtype) if by_shape else None
        yield Scenario(case, emulated, shape)


def shape_of(preset: str, backward_s: float, dtype: str) -> Shape:
    """Return a preset's gradients, with ready times in proportion to their flops."""
    from collbench.packages.training.planning.buckets import shape_by_flops  # here: loads numpy

    sizes = find(preset)
    assert sizes is not None  # noqa: S101 - config and the command line have seen to it
    return shape_by_flops(sizes, backward_s, DTYPES[dtype].itemsize)


def shape_name(preset: str, backward_s: float) -> str:
    """Return the name of a shape in a scenario, such as shape:xl-2026@1.2s."""
    return f"shape:{preset}@{backward_s:g}s"


UNKNOWN_PLAN = Kind(
    "unknown-plan",
    "plan {plan}: the times of gradients and calls are known in advance only for a shape on an emulated link",
    "for others, `advise --from RUN` finds it after a run",
)


def _with_buckets(strategy: Strategy, scenario: Scenario) -> tuple[Strategy, Notice | None]:
    """Return the strategy with the buckets that `called` names, and the reason if they are unknown beforehand."""
    if not strategy.called:
        return strategy, None
    if scenario.shape is None or scenario.link is None:
        return strategy, UNKNOWN_PLAN(plan=CALLED[strategy.called])
    from collbench.packages.training.planning.advisor import advise  # here: these load numpy and scipy
    from collbench.packages.training.planning.buckets import (
        ReadyTimes,
        bucket_bytes,
        torch_default,
    )
    from collbench.packages.training.planning.link_model import AllReduceCost

    ready_times = ReadyTimes.of_shape(scenario.shape)
    if strategy.called == "torch":
        sizes = bucket_bytes(ready_times, torch_default(ready_times))
    else:
        sizes = advise(ready_times, AllReduceCost.emulated(scenario.link)).cap.buckets
    return replace(strategy, buckets=sizes), None


def with_controls(requested: Sequence[Strategy]) -> tuple[Strategy, ...]:
    """Return the distinct strategies, their references, and second copies of the reference and of one strategy."""
    references = [reference_of(strategy) for strategy in requested]
    strategies = list(dict.fromkeys([*references, Strategy(REFERENCE), *requested]))
    copies = [Strategy(REFERENCE, again=1)]
    communicating = [strategy for strategy in requested if strategy.name != REFERENCE]
    if communicating:
        exact_ddp = (strategy for strategy in communicating if strategy.name == "ddp" and kind(strategy).exact)
        copies.append(replace(next(exact_ddp, communicating[0]), again=1))
    return tuple({label(strategy): strategy for strategy in [*strategies, *copies]}.values())


# ── unsupported scenarios ────────────────────────────────────────────────────────────────────────
OF_SCENARIO = (
    Rule(lambda f: f.dtype not in TRAINED,
         Kind("not-trained", "models are trained in {trained}, not in {dtype}")),
    Rule(lambda f: f.options.autocast and f.dtype != "float32",
         Kind("autocast-dtype", "autocast keeps parameters in float32, and here they are {dtype}")),
    Rule(lambda f: f.options.autocast and f.shape is not None,
         Kind("autocast-shape", "a model by its shape computes nothing that autocast could compute in another dtype")),
    Rule(lambda f: f.shape is not None and f.backend != "gloo",
         Kind("shape-backend", "a model by its shape is timed on gloo or an emulated link, not on {backend}")),
    Rule(lambda f: not f.by_torch and f.dtype == "bfloat16", LACKS, {"what": "dtype"}),
    Rule(lambda f: f.machine.ranks is not None and f.link is not None,
         Kind("link-in-job", "an emulated link is memory that ranks of one host share",
              "in a job, measure the real link")),
    *HERE,
    *SCHEDULING,
)  # fmt: skip


def unsupported_scenario(scenario: Scenario, machine: Machine) -> Notice | None:
    """Return the reason why nothing can be measured in this scenario on this machine; None if something can."""
    return first(OF_SCENARIO, StepFacts(scenario, machine, Strategy(REFERENCE)))


STEP_MEMORY = Kind(
    "step-memory",
    "needs {ranks} × {rank_bytes:rounded bytes} of memory{place:after  on a } for parameters, gradients, "
    "optimizer, buckets; {available_bytes:rounded bytes} are available",
)


def _too_large(scenario: Scenario, strategies: Sequence[Strategy], alone: bool, machine: Machine) -> Notice | None:
    """Return the reason why the ranks do not fit into the host's or GPU's memory; None if they fit, or if unknown."""
    needed, on_gpu = rank_bytes(scenario, strategies, alone), BACKENDS[scenario.case.backend].device == "cuda"
    available = machine.gpu_free_bytes if on_gpu else machine.memory_available_bytes
    if needed is None or available is None:
        return None
    ranks = scenario.case.world_size
    together = 1 if on_gpu else min(ranks, machine.ranks_a_host or ranks)
    if together * needed <= available:
        return None
    place = "GPU" if on_gpu else None
    return STEP_MEMORY(ranks=together, rank_bytes=needed, place=place, available_bytes=available)


def rank_bytes(scenario: Scenario, strategies: Sequence[Strategy], alone: bool = False) -> int | None:
    """Return the bytes of memory that one rank needs; None for a model that is not a preset.

    Parameters, gradients, optimizer states and buckets are counted; activations, which grow with batch and sequence,
    and torch itself are not. Strategies take turns on one set of tensors (`training/rank/transport.py`); tensors that
    torch's wrappers keep are added. alone: whether the memory of each strategy alone is measured, in addition to the
    tensors that all strategies share.
    """
    case = scenario.case
    model, states, ranks = model_bytes(case), STATES[options_of(case).optimizer], case.world_size
    if scenario.shape is not None or model is None:
        return None
    # One set of parameters, gradients and states, and one set of buckets or one flattened tensor.
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
    largest_alone = max((alone_bytes(case, strategy) or round(model * copies) for strategy in strategies), default=0)
    return round(model * copies) + (largest_alone if alone else 0)


# ── traps ────────────────────────────────────────────────────────────────────────────────────────
def scenarios_of(plan: Plan) -> dict[Scenario, list[Strategy]]:
    """Return the scenarios of a plan, each with its strategies in their order."""
    steps = grouped((case for case in plan.cases if case.op == TRAINING_STEP), lambda case: with_strategy(case, None))
    return {scenario_of(plan.settings, of): [strategy_in(case) for case in cases] for of, cases in steps.items()}


_TRAPS = (
    Rule(lambda f: any(not kind(strategy).own and strategy.cap_bytes in DEFAULT_CAPS for strategy in f.strategies),
         Kind("default-cap", "ddp with a cap of 25 is not torch's default: an explicit cap drops the first bucket of "
              "1 MiB, so communication starts later", "write ddp without a cap for the default")),
    # On a CPU backend, communication runs on the cores that compute.
    Rule(lambda f: any(kind(strategy).overlaps for strategy in f.strategies) and f.of.link is None
         and BACKENDS[f.of.case.backend].device == "cpu" and f.of.options.threads * f.of.case.world_size > f.cores,
         Kind("no-free-core", "{ranks:count rank} of {threads} computing threads on {cores} cores: no core is left to "
              "overlap communication with, so the scheduler is measured",
              "lower threads or world_sizes, or use an emulated link, which needs no core"),
         {"ranks": "of.case.world_size", "threads": "of.options.threads"}),
    Rule(lambda f: f.of.case.depth < 2,
         Kind("single-step", "steps: 1 puts one step between two barriers: unequal times at which ranks leave the "
              "barrier count for that step, and work that reaches into the next step is not seen",
              "write steps: 2 or more")),
)  # fmt: skip


def traps(plan: Plan, cores: int) -> list[Notice]:
    """Find settings that measure something other than they seem to; they never stop a run. cores: number here."""
    found = (
        every(_TRAPS, SimpleNamespace(of=scenario, strategies=strategies, cores=cores))
        for scenario, strategies in scenarios_of(plan).items()
    )
    return list(dict.fromkeys(chain.from_iterable(found)))


# ── the package's part of planning ───────────────────────────────────────────────────────────────
def _launch_bytes(cases: Sequence[Case], settings: Settings) -> int | None:
    strategies = [strategy_in(case) for case in cases]
    return rank_bytes(scenario_of(settings, cases[0]), strategies, step_settings(settings).step_memory)


def _imports(cases: Sequence[Case], settings: Settings) -> set[str]:
    """Return the names that ranks import: the user's models (neither preset nor shape) and synchronisers."""
    steps = [case for case in cases if case.op == TRAINING_STEP]
    named = {options_of(case).model for case in steps} - step_settings(settings).shapes.keys()
    models = {name for name in named if find(name) is None}
    strategies = {strategy_in(case).imported for case in steps}
    return models | {name for name in strategies if name is not None}


PLANNING = PlanningPart(
    expand=expand,
    launch_bytes=_launch_bytes,
    imports=_imports,
)
