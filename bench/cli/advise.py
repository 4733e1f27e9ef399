"""The verb `advise`: say what to set so that a link costs a training step little, and measure it on request.

In: a model, a list of gradients or a recorded run, and a link. Out: the advice on stdout; with --verify also a run and
its report.
"""

import difflib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bench import __version__
from bench.advise import advisor, verification
from bench.advise.of_run import all_reduce_cost_of, stretch_of
from bench.advise.of_run import shape_of as recorded_shape
from bench.advise.planner import Box
from bench.analyze.summaries import headlines
from bench.catalog.dtypes import DTYPES
from bench.catalog.presets import EXAMPLE, PRESETS, find
from bench.cli import benchmarks
from bench.cli.app import RESULTS
from bench.cli.benchmarks import TRAINING
from bench.cli.measuring import measure
from bench.cli.output import show, write_report
from bench.config.documents import dump
from bench.machine import host
from bench.model import units
from bench.model.conclusions import Advice
from bench.model.errors import ConfigError, UnmeasurableError
from bench.model.records import Scenario
from bench.model.training import Shape
from bench.planning import link_model
from bench.planning.link_model import AllReduceCost, LinkModel, costs_cpu
from bench.planning.ready_times import LIST_HEADER, ReadyTimes, read_list
from bench.planning.training import shape_name, shape_of
from bench.report import advice
from bench.store import folders
from bench.store.encoding import CODEC
from bench.training.encoding import CODEC as TRAINING_CODEC

UNCERTAINTY = "20%"
WHOSE = (
    "advise: name a model (--model tiny), a list of gradients (--gradients sizes.csv), or a run that has its ready "
    "times (--from RUN)"
)
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
        str | None,
        typer.Option(help="With --model or --gradients: how long backward takes, such as 60ms.", metavar="TIME"),
    ] = None,
    gradients: Annotated[
        Path | None,
        typer.Option(help=f"A list of gradients in place of a preset model: {LIST_HEADER}.", metavar="CSV"),
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
    world_size: Annotated[
        int | None,
        typer.Option(help="With --curve: take the series of this world size.", min=2),
    ] = None,
    uncertainty: Annotated[
        str, typer.Option(help="How far latency, rate and backward may be off.", metavar="SHARE")
    ] = UNCERTAINTY,
    dtype: Annotated[GradientType, typer.Option(help="Dtype of the gradients.")] = GradientType.FLOAT32,
    verify: Annotated[bool, typer.Option("--verify", help="Measure the plans here, beside what is predicted.")] = False,
) -> None:
    """Print what to set: a bucket plan that stays good if the link is not as assumed, a cap, or torch's default.

    With it what each leaves exposed, what brings more, and code to paste. --verify measures
    the plans: with --from the model of that run, else the gradients and a backward that waits instead of computing. The
    link is that run's own if no other is given; gloo if --curve names a run of gloo that was not imported; otherwise an
    emulated one with the same cost.
    """
    if sum(source is not None for source in (model, gradients, recorded)) != 1:
        raise ConfigError(WHOSE)
    if curve is None and (backend is not None or world_size is not None):
        raise ConfigError("advise: --backend and --world-size choose from a run, which --curve names")
    box = _box(uncertainty)
    of_run: LinkModel | None = None
    if recorded is None:
        if scenario is not None:
            raise ConfigError("advise: --scenario chooses from a run, which --from names")
        chosen = _stated(model, gradients, backward, dtype)
    else:
        if backward is not None:
            raise ConfigError("advise: --backward is for --model and --gradients; a run knows how long it took")
        chosen, of_run = _from_run(recorded, scenario)
    model_of_link = _link(link, curve, backend, world_size, dtype) or of_run
    if model_of_link is None:
        raise ConfigError("advise: say what the link is, by --link 2ms+1GB/s or by a run of all_reduce (--curve RUN)")
    if model_of_link is not of_run:
        chosen = replace(chosen, scenario=_on(chosen.scenario, model_of_link))
    _answer(chosen, model_of_link, box, model or str(gradients or recorded), verify, context.obj)


def _answer(
    chosen: "Chosen",
    model_of_link: LinkModel,
    box: Box,
    name: str,
    verify: bool,
    argv: Sequence[str],
) -> None:
    """Print the advice, and with `verify` measure it."""
    ready_times = ReadyTimes.of_shape(chosen.shape, chosen.forward_s)
    best = advisor.advise(ready_times, model_of_link.cost, box.at_least(model_of_link.error))
    names = [gradient.name for gradient in chosen.shape.gradients]
    itemsize = DTYPES[chosen.scenario.case.dtype].itemsize
    explained = advisor.explain(ready_times, model_of_link.cost, best, itemsize)
    show(advice.document(explained, model_of_link, name, names))
    if verify:
        show("\n" + _verified(chosen.scenario, ready_times, model_of_link.cost, best, argv))


def _box(uncertainty: str) -> Box:
    try:
        share = units.parse_share(uncertainty)
    except ValueError as error:
        raise ConfigError(f"--uncertainty: {error}") from None
    if not 0 < share < 1:
        raise ConfigError(f"--uncertainty: {uncertainty} is not between 0 and 100 %")
    return Box(share, share, share)


@dataclass(frozen=True)
class Chosen:
    """The gradients to advise on. scenario: in which --verify measures the plans.

    forward_s: when backward begins, on the clock of the shape.
    """

    shape: Shape
    scenario: Scenario
    forward_s: float = 0.0


def _stated(model: str | None, gradients: Path | None, backward: str | None, dtype: str) -> Chosen:
    """The gradients of a preset or of a list, with ready times estimated from their sizes if they are not listed."""
    try:
        seconds = None if backward is None else units.parse_seconds(backward)
    except ValueError as error:
        raise ConfigError(f"--backward: {error}") from None
    if seconds is not None and seconds <= 0:
        raise ConfigError(f"--backward: {backward} is not more than 0")
    if gradients is not None:
        shape = read_list(gradients, DTYPES[dtype].itemsize, seconds)
        name = shape_name(gradients.stem, max(shape.ready_s))
    else:
        shape, name = _of_preset(str(model), seconds, dtype)
    return Chosen(shape, Scenario(name, "gloo", RANKS, 1, 2, dtype, shape=shape))


def _of_preset(model: str, backward_s: float | None, dtype: str) -> tuple[Shape, str]:
    try:
        preset = find(model)
    except ValueError as error:
        raise ConfigError(f"--model {error}") from None
    if preset is None:
        near = difflib.get_close_matches(model, PRESETS, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"--model {model}: unknown; there are {', '.join(PRESETS)}, or sizes such as {EXAMPLE}{hint}")
    if backward_s is None:
        raise ConfigError(
            "advise: say how long backward takes on your machine, such as --backward 60ms; --from RUN takes it from a "
            "run of the training benchmark"
        )
    return shape_of(model, backward_s, dtype), shape_name(model, backward_s)


def _from_run(name: str, wanted: str | None) -> tuple[Chosen, LinkModel | None]:
    """The gradients of a recorded step, and the link of its run; None if the run says too little about the link."""
    path = folders.find(RESULTS, name)
    kind = benchmarks.of_run(path)
    if kind is not TRAINING:
        raise ConfigError(f"--from {name}: a run of the {kind.name} benchmark has no ready times; name one of training")
    run = folders.read(path, TRAINING_CODEC)
    scenarios = {launch.scenario.case.key: launch.scenario for launch in run.plan.order}
    steps = {key: shape for key, scenario in scenarios.items() if (shape := recorded_shape(run, scenario)) is not None}
    matching = [key for key in steps if wanted is None or wanted in key]
    if len(matching) != 1:
        there = "; ".join(sorted(steps)) or "no recorded step without synchronisation"
        raise ConfigError(f"--from {name}: choose one by a part of its name, --scenario TEXT; there is: {there}")
    (key,) = matching
    scenario, curve = scenarios[key], all_reduce_cost_of(run, scenarios[key])
    emulated = scenario.link is not None
    words = f"the link of {key}, {'as emulated' if emulated else 'as its own calls took'}"
    link = None if curve is None else LinkModel(curve, words, None if emulated else costs_cpu(scenario.case.backend))
    return Chosen(steps[key].shape, scenario, steps[key].forward_s), link


def _on(scenario: Scenario, link: LinkModel) -> Scenario:
    """The scenario on another link: gloo if --curve measured gloo here, else an emulated link of equal cost."""
    if link.here and link.ranks is not None:
        return replace(scenario, backend="gloo", world_size=link.ranks, link=None)
    return replace(scenario, link=link.cost.as_link())


def _link(
    stated: str | None, run: str | None, backend: str | None, world_size: int | None, dtype: str
) -> LinkModel | None:
    """The link that the user gave, as text (--link) or as a run (--curve); None without either."""
    if stated is not None and run is not None:
        raise ConfigError("advise: give the link once, by --link or by --curve")
    if stated is None and run is None:
        return None
    if stated is not None:
        return link_model.stated(stated)
    path = folders.find(RESULTS, str(run))
    benchmarks.collectives_only([path], "--curve")
    result = folders.read(path, CODEC)
    link = link_model.measured(headlines(result), result.name, dtype, backend, world_size)
    return link if result.imported is None else replace(link, here=False)


def _verified(
    scenario: Scenario, ready_times: ReadyTimes, curve: AllReduceCost, advised: Advice, argv: Sequence[str]
) -> str:
    """Measure the plans in the scenario, keep the run, and compare the times with the predictions."""
    unsupported = host.unsupported_platform()
    if unsupported:
        raise UnmeasurableError(unsupported)
    plans = verification.candidates(ready_times, advised, scenario.shape is not None)
    strategies = [strategy for strategy, _ in plans.values()]
    plan = verification.planned(scenario, strategies, NAME, secrets.randbelow(2**32), host.machine())
    written = dump({"advise": " ".join(argv[1:])}).encode()
    facts = {"argv": list(argv), "overrides": [], "collbench": __version__}
    path = folders.create(RESULTS, TRAINING_CODEC, plan, written, facts)
    measure(TRAINING, path, plots=False)
    result = TRAINING.read(path)
    analysis = TRAINING.analyze(result)
    files = write_report(TRAINING, result, analysis, plots=False)
    (comparison,) = analysis.scenarios
    stretch = stretch_of(result, scenario, ready_times)
    verified = verification.verified(plans, ready_times, curve, comparison.results, stretch)
    return "\n\n".join([advice.verification(verified, comparison), *files])
