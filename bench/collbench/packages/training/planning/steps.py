"""Expand the section `training` of a configuration into cases: every strategy in every scenario that can be measured.

In: a `Config` and a `Machine`. Out: cases, skips with their reasons, and the shapes and links that the cases name.
Each scenario also gets the reference without synchronisation, and second copies of the reference and of one strategy:
two A/A pairs, which show the difference between two equal measurements. Also computes the memory that a rank needs, and
finds settings that measure something other than their author expects.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

from collbench.catalog.backends import BACKENDS
from collbench.catalog.collectives import OPERATIONS
from collbench.catalog.dtypes import DTYPES
from collbench.catalog.rules import HERE, LACKS, SCHEDULING
from collbench.config.models import Config
from collbench.config.options import values_of
from collbench.model.notices import Kind, Notice, Rule, every, first
from collbench.model.records import Case, Machine, Settings, Skip, options_in
from collbench.model.units import parse_link
from collbench.packages.training.catalog.presets import find
from collbench.packages.training.catalog.strategies import TRAINED, StepFacts, kind, unsupported
from collbench.packages.training.config import REAL_LINK, ShapeSection, TrainingSection
from collbench.packages.training.planning.memory import model_bytes, rank_bytes
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
    reference_of,
    step_settings,
    strategy_in,
    with_strategy,
)
from collbench.planning.asked import Asked
from collbench.planning.cases import option_values, oversubscribed, worlds

# 25 for `bucket_cap_mb`, in bytes: torch's source means MiB, the name of the argument MB.
DEFAULT_CAPS = frozenset({25 * 10**6, 25 * 2**20})


def asked(config: Config, machine: Machine, section: TrainingSection) -> Asked:
    """Return the cases of the section `training`."""
    cases, skips, notices, scene_bytes = list[Case](), list[Skip](), list[Notice](), dict[str, int]()
    wanted = [strategy for entry in section.strategies for strategy in entry.strategies]
    scenarios = list(_scenarios(config, section, machine))
    for scenario in scenarios:
        if reason := unsupported_scenario(scenario, machine):
            skips.append(Skip(scenario.case, reason))
            continue
        supported = []
        for requested in wanted:
            strategy, skip_reason = _with_buckets(requested, scenario)
            if skip_reason := skip_reason or unsupported(strategy, scenario, machine):
                skips.append(Skip(with_strategy(scenario.case, strategy), skip_reason))
            else:
                supported.append(strategy)
        # One rank on a CPU has nothing to synchronise; its step is the baseline for steps of more ranks.
        strategies = with_controls(supported) if supported or scenario.case.world_size == 1 else ()
        needed = rank_bytes(scenario, strategies, section.memory)
        if needed is not None and (reason := _too_large(scenario, needed, machine)):
            skips.append(Skip(scenario.case, reason))
            continue
        if needed is not None:
            scene_bytes[scenario.case.key] = needed
        notices += traps(scenario, strategies, machine.cores)
        cases += [with_strategy(scenario.case, strategy) for strategy in strategies]
    settings = StepSettings(
        rounds=section.rounds,
        warmup_steps=section.warmup,
        step_memory=section.memory,
        max_foreign_cpu=section.max_foreign_cpu,
        scene_bytes=scene_bytes,
        shapes={scenario.options.model: scenario.shape for scenario in scenarios if scenario.shape is not None},
        links={scenario.options.link: scenario.link for scenario in scenarios if scenario.link is not None},
    )
    return Asked(cases, skips, list(dict.fromkeys(notices)), settings)


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


def _too_large(scenario: Scenario, needed: int, machine: Machine) -> Notice | None:
    """Return the reason why ranks that need so many bytes do not fit here; None if they fit, or if unknown."""
    on_gpu = BACKENDS[scenario.case.backend].device == "cuda"
    available = machine.gpu_free_bytes if on_gpu else machine.memory_available_bytes
    if available is None:
        return None
    ranks = scenario.case.world_size
    together = 1 if on_gpu else min(ranks, machine.ranks_a_host or ranks)
    if together * needed <= available:
        return None
    place = "GPU" if on_gpu else None
    return STEP_MEMORY(ranks=together, rank_bytes=needed, place=place, available_bytes=available)


# ── traps ────────────────────────────────────────────────────────────────────────────────────────
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


def traps(scenario: Scenario, strategies: Sequence[Strategy], cores: int) -> list[Notice]:
    """Find settings that measure something other than they seem to; they never stop a run. cores: number here."""
    return every(_TRAPS, SimpleNamespace(of=scenario, strategies=strategies, cores=cores)) if strategies else []


# Rough operations a second of a rank with a core of its own, to estimate the time of a run: measured on a CPU with the
# preset tiny and AdamW, an order of magnitude on a GPU.
OPERATIONS_PER_S = {"cpu": 3e10, "cuda": 1e13}
# Steps of a strategy after the rounds of the first launch, and those that measure its memory (`rank/step.py`).
DETAIL_STEPS, MEMORY_STEPS = 4, 6


def calls_s(case: Case, settings: Settings, launch: int) -> float | None:
    """Estimate the seconds of a strategy's steps in a launch; None for a model of the user's."""
    own, options, backend = step_settings(settings), options_of(case), BACKENDS[case.backend]
    steps = own.warmup_steps + own.rounds * case.depth
    if launch == 1:
        steps += DETAIL_STEPS + MEMORY_STEPS * own.step_memory
    shape, sent_bytes = own.shapes.get(options.model), model_bytes(case)
    if shape is not None:
        sent_bytes, computing_s = sum(gradient.nbytes for gradient in shape.gradients), max(shape.ready_s)
    elif sent_bytes is not None:
        weights = sent_bytes / DTYPES[case.dtype].itemsize
        # Forward multiplies and adds once for each weight and token, backward twice.
        operations = 6 * weights * options.batch * options.sequence
        computing_s = operations / OPERATIONS_PER_S[backend.device] / options.threads
    else:
        return None
    rate = own.links.get(options.link, backend).bytes_per_s
    return steps * (computing_s + sent_bytes / rate)


def imports(cases: Sequence[Case], settings: Settings) -> set[str]:
    """Return the names that ranks import: the user's models (neither preset nor shape) and synchronisers."""
    named = {options_of(case).model for case in cases} - step_settings(settings).shapes.keys()
    strategies = {strategy_in(case).imported for case in cases}
    return {name for name in named if find(name) is None} | {name for name in strategies if name is not None}
