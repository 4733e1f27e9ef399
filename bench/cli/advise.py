"""The verb `advise`: say which gradients to all-reduce together on a given link, and measure it on request.

In: a model or a recorded run, and a link. Out: the advice on stdout; with --verify also a run and its report.
"""

import difflib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

import typer

from bench import __version__, store, units
from bench.analyze import stats
from bench.cli import benchmarks
from bench.cli.app import RESULTS
from bench.cli.benchmarks import TRAINING
from bench.cli.measuring import measure
from bench.cli.run_files import write_report
from bench.encoding import CODEC
from bench.errors import ConfigError, UnmeasurableError
from bench.machine import host
from bench.training import link_model, planner, verification
from bench.training.all_reduce_cost import AllReduceCost
from bench.training.analyze.advice import all_reduce_cost_of
from bench.training.analyze.advice import shape_of as recorded_shape
from bench.training.conclusions import Advice
from bench.training.encoding import CODEC as TRAINING_CODEC
from bench.training.link_model import LinkModel, costs_cpu
from bench.training.plan import shape_name, shape_of
from bench.training.presets import EXAMPLE, PRESETS, find
from bench.training.ready_times import ReadyTimes
from bench.training.records import Scenario, Shape
from bench.training.report import advice
from bench.training.report import verification as pages
from bench.yaml_file import dump

BACKWARD = "60ms"
# An emulated link costs the same at any number of ranks: more would only be more processes.
RANKS = 2
# Name of the run that --verify makes.
NAME = "advise"


class GradientType(StrEnum):
    """Dtypes that gradients can have."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT64 = "float64"


def advise(
    context: typer.Context,
    model: Annotated[str | None, typer.Option(help="A preset model, such as tiny or xl-2026.")] = None,
    backward: Annotated[
        str | None, typer.Option(help=f"With --model: how long backward takes. [default: {BACKWARD}]", metavar="TIME")
    ] = None,
    recorded: Annotated[
        str | None, typer.Option("--from", help="A run of the training benchmark, for its ready times.", metavar="RUN")
    ] = None,
    scenario: Annotated[
        str | None, typer.Option(help="With --from: the scenario whose name contains TEXT.", metavar="TEXT")
    ] = None,
    link: Annotated[str | None, typer.Option(help="Latency and rate, such as 2ms+1GB/s.", metavar="LINK")] = None,
    curve: Annotated[
        str | None, typer.Option(help="A run of all_reduce over sizes, measured or imported.", metavar="RUN")
    ] = None,
    backend: Annotated[str | None, typer.Option(help="With --curve: take the series of this backend.")] = None,
    world_size: Annotated[int | None, typer.Option(help="With --curve: take the series of this world size.")] = None,
    dtype: Annotated[GradientType, typer.Option(help="Dtype of the gradients.")] = GradientType.FLOAT32,
    verify: Annotated[bool, typer.Option("--verify", help="Measure the plans here, beside what is predicted.")] = False,
) -> None:
    """Print the optimal bucket plan, torch's default and the best uniform cap beside it, and code to paste.

    --verify measures these plans: with --from the model of that run, with --model its gradients and a backward that
    waits instead of computing. The link is that run's own if no other is given; gloo if --curve names a run of gloo
    that was not imported; otherwise an emulated one with the same cost.
    """
    if (model is None) == (recorded is None):
        raise ConfigError("advise: name a model (--model tiny) or a run that has its ready times (--from RUN)")
    if link is not None and curve is not None:
        raise ConfigError("advise: give the link once, by --link or by --curve")
    if curve is None and (backend is not None or world_size is not None):
        raise ConfigError("advise: --backend and --world-size choose from a run, which --curve names")
    model_of_link: LinkModel | None = None
    if model is not None:
        if scenario is not None:
            raise ConfigError("advise: --scenario chooses from a run, which --from names")
        chosen = _by_sizes(model, backward or BACKWARD, dtype)
    else:
        if backward is not None:
            raise ConfigError("advise: --backward is for --model; a run knows how long its backward took")
        chosen, model_of_link = _from_run(str(recorded), scenario)
    if link is not None or curve is not None:
        model_of_link = _link(link, curve, backend, world_size, dtype)
        chosen = replace(chosen, scenario=_on(chosen.scenario, model_of_link))
    if model_of_link is None:
        raise ConfigError("advise: say what the link is, by --link 2ms+1GB/s or by a run of all_reduce (--curve RUN)")
    ready_times = ReadyTimes.of_shape(chosen.shape)
    best = planner.advise(ready_times, model_of_link.cost)
    names = [gradient.name for gradient in chosen.shape.gradients]
    explained = planner.explain(ready_times, model_of_link.cost, best)
    typer.echo(advice.document(explained, model_of_link, model or str(recorded), names))
    if verify:
        typer.echo("\n" + _verified(chosen.scenario, ready_times, model_of_link.cost, best, context.obj))


@dataclass(frozen=True)
class Chosen:
    """The gradients to advise on. scenario: in which --verify measures the plans."""

    shape: Shape
    scenario: Scenario


def _by_sizes(model: str, backward: str, dtype: str) -> Chosen:
    """A preset's gradients, with ready times estimated from their flops."""
    try:
        preset = find(model)
    except ValueError as error:
        raise ConfigError(f"--model {error}") from None
    if preset is None:
        near = difflib.get_close_matches(model, PRESETS, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"--model {model}: unknown; there are {', '.join(PRESETS)}, or sizes such as {EXAMPLE}{hint}")
    try:
        seconds = units.parse_seconds(backward)
    except ValueError as error:
        raise ConfigError(f"--backward: {error}") from None
    shape = shape_of(model, seconds, dtype)
    return Chosen(shape, Scenario(shape_name(model, seconds), "gloo", RANKS, 1, 2, dtype, shape=shape))


def _from_run(name: str, wanted: str | None) -> tuple[Chosen, LinkModel | None]:
    """The gradients of a recorded step, and the link of its run; None if the run says too little about the link."""
    path = store.find(RESULTS, name)
    kind = benchmarks.of_run(path)
    if kind is not TRAINING:
        raise ConfigError(f"--from {name}: a run of the {kind.name} benchmark has no ready times; name one of training")
    run = store.read(path, TRAINING_CODEC)
    scenarios = {launch.scenario.key: launch.scenario for launch in run.plan.order}
    steps = {key: shape for key, scenario in scenarios.items() if (shape := recorded_shape(run, scenario)) is not None}
    found = [key for key in steps if wanted is None or wanted in key]
    if len(found) != 1:
        there = "; ".join(sorted(steps)) or "no recorded step without synchronisation"
        raise ConfigError(f"--from {name}: choose one by a part of its name, --scenario TEXT; there is: {there}")
    (key,) = found
    scenario, curve = scenarios[key], all_reduce_cost_of(run, scenarios[key])
    emulated = scenario.link is not None
    words = f"the link of {key}, {'as emulated' if emulated else 'as its own calls took'}"
    link = None if curve is None else LinkModel(curve, words, None if emulated else costs_cpu(scenario.backend))
    return Chosen(steps[key], scenario), link


def _on(scenario: Scenario, link: LinkModel) -> Scenario:
    """The scenario on another link: gloo if --curve measured gloo here, else an emulated link of equal cost."""
    if link.ranks is not None:
        return replace(scenario, backend="gloo", world_size=link.ranks, link=None)
    return replace(scenario, link=link.cost.as_link())


def _link(stated: str | None, run: str | None, backend: str | None, world_size: int | None, dtype: str) -> LinkModel:
    """The link that the user gave, as text (--link) or as a run (--curve)."""
    if stated is not None:
        return link_model.stated(stated)
    path = store.find(RESULTS, str(run))
    benchmarks.collectives_only([path], "--curve")
    result = store.read(path, CODEC)
    link = link_model.measured(stats.headlines(result), result.name, dtype, backend, world_size)
    return link if result.imported is None else replace(link, ranks=None)


def _verified(
    scenario: Scenario, ready_times: ReadyTimes, curve: AllReduceCost, advised: Advice, argv: Sequence[str]
) -> str:
    """Measure the plans in the scenario, keep the run, and compare the times with the predictions."""
    unsupported = host.unsupported_platform()
    if unsupported:
        raise UnmeasurableError(unsupported)
    asked = verification.candidates(ready_times, advised, scenario.shape is not None)
    strategies = [strategy for strategy, _ in asked.values()]
    plan = verification.planned(scenario, strategies, NAME, secrets.randbelow(2**32), host.machine())
    written = dump({"advise": " ".join(argv[1:])}).encode()
    facts = {"argv": list(argv), "overrides": [], "collbench": __version__}
    path = store.create(RESULTS, TRAINING_CODEC, plan, written, facts)
    measure(TRAINING, path, plots=False)
    result = TRAINING.read(path)
    analysis = TRAINING.analyze(result)
    files = write_report(TRAINING, result, analysis, plots=False)
    (comparison,) = analysis.scenarios
    found = verification.verified(asked, ready_times, curve, comparison.results)
    return "\n\n".join([pages.document(found, comparison), *map(str, files)])
