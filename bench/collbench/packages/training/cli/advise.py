"""The verb `advise`: recommend settings with little exposed communication on a link, and measure them on request.

In: a model or a recorded run, and a link. Out: the advice on stdout; with --verify also a run, and predicted beside
measured times.
"""

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Literal

import typer

from collbench.analyze.summaries import headlines
from collbench.catalog.dtypes import DTYPES
from collbench.cli.app import RESULTS
from collbench.cli.measuring import measured
from collbench.cli.output import analyzed
from collbench.cli.terminal import say, show
from collbench.config.documents import dump
from collbench.machine import host
from collbench.model import units
from collbench.model.errors import ConfigError, StoreError, UnmeasurableError
from collbench.model.records import Case
from collbench.packages.training.analyze import runs
from collbench.packages.training.analyze.steps import scenarios_of
from collbench.packages.training.catalog.presets import PRESETS
from collbench.packages.training.conclusions import training_of
from collbench.packages.training.config import known_model
from collbench.packages.training.planning import advisor, link_model
from collbench.packages.training.planning.buckets import ReadyTimes
from collbench.packages.training.planning.link_model import LinkModel
from collbench.packages.training.planning.steps import shape_name, shape_of
from collbench.packages.training.report import advice
from collbench.packages.training.step_records import Shape
from collbench.packages.training.synchronisation import TRAINING_STEP, Scenario, StepOptions
from collbench.store import folders

ESTIMATED = (
    "The times at which gradients become ready are estimated from the flops of each layer, not measured; --from RUN "
    "takes them from a run with training steps."
)
# An emulated link costs the same at any number of ranks: more ranks would only add processes.
RANKS = 2
# Dtypes that gradients can have.
GradientType = Literal["float32", "float16", "bfloat16", "float64"]


def advise(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Option(help="Advise for a preset model, such as tiny or xl-2026.", autocompletion=lambda: [*PRESETS]),
    ] = None,
    backward: Annotated[
        str | None,
        typer.Option(help="With --model: set the time of backward, such as 60ms.", metavar="TIME"),
    ] = None,
    recorded: Annotated[
        str | None, typer.Option("--from", help="Take the ready times from a run with training steps.", metavar="RUN")
    ] = None,
    scenario: Annotated[
        str | None, typer.Option(help="With --from: choose the scenario whose name contains TEXT.", metavar="TEXT")
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(
            help="Set latency and rate of an all-reduce: 2ms+1GB/s, or a RUN of all_reduce.",
            metavar="LINK|RUN",
        ),
    ] = None,
    world_size: Annotated[
        int | None,
        typer.Option(help="Set the number of ranks, with a RUN of several.", min=2, metavar="N"),
    ] = None,
    uncertainty: Annotated[
        str, typer.Option(help="Allow latency and rate of the link to be off by this share.", metavar="SHARE")
    ] = f"{advisor.OFF:.0%}",
    dtype: Annotated[GradientType, typer.Option(help="Set the dtype of the gradients.")] = "float32",
    verify: Annotated[
        bool, typer.Option("--verify", help="Measure the plans here, and compare with the prediction.", metavar="")
    ] = False,
) -> int:
    """Print what to set: a cap of buckets that stays good on a slower or faster link, or torch's default.

    With it what both leave exposed, what saves more, and code to paste for what saves 1 % of a step. --verify measures
    them: with --from the model of that run, else the gradients and a backward that waits instead of computing. The
    link is that run's own if no other is given; gloo if --link names a run of gloo that was not imported; otherwise an
    emulated one with the same cost.
    """
    for wrong, message in (
        (
            (model is None) == (recorded is None),
            "advise: name a model (--model tiny), or a run that has its ready times (--from RUN)",
        ),
        (
            world_size is not None and (link is None or "+" in link),
            "advise: --world-size is for a run that --link names",
        ),
        (recorded is None and scenario is not None, "advise: --scenario chooses from a run, which --from names"),
        (
            recorded is not None and backward is not None,
            "advise: --backward is for --model; a run contains the time of backward",
        ),
    ):
        if wrong:
            raise ConfigError(message)
    share = _parsed("--uncertainty", units.parse_share, uncertainty)
    if not share:
        raise ConfigError(f"--uncertainty: {uncertainty} is not between 0 and 100 %")
    shape, measurable, known = (
        _of_preset(str(model), backward, dtype) if recorded is None else _of_run(recorded, scenario)
    )
    if link is not None:
        known = _link(link, dtype, world_size)
        measurable = known.under(measurable)
    if known is None:
        raise ConfigError("advise: describe the link, by --link 2ms+1GB/s or by a run of all_reduce (--link RUN)")
    ready_times, itemsize = ReadyTimes.of_shape(shape), DTYPES[measurable.case.dtype].itemsize
    best = advisor.advise(ready_times, known.cost, max(share, min(known.error or 0.0, advisor.LARGEST_OFF)))
    explained = advisor.explain(best, ready_times, known, itemsize, str(model or recorded))
    if recorded is None:
        explained = replace(explained, notes=(*explained.notes, ESTIMATED))
    show(advice.document(explained))
    if not verify:
        return 0
    if unsupported := host.unsupported_platform():
        raise UnmeasurableError("", unsupported)
    plans = runs.candidates(ready_times, best, measurable.shape is not None)
    strategies = [strategy for strategy, _ in plans.values()]
    plan = runs.planned(measurable, strategies, "advise", secrets.randbelow(2**32), host.machine())
    written = dump({"advise": " ".join(context.obj[1:])}).encode()
    path = folders.create(RESULTS, plan, written, {"argv": list(context.obj), "overrides": []})
    say("")
    code = measured(path, plots=False, coordinator=None)
    (results,) = training_of(analyzed(folders.read(path))).scenarios
    say("")
    show(advice.verification(runs.verified(plans, ready_times, known.cost, results)))
    return code


def _parsed(option: str, parse: Callable[[str], float], text: str) -> float:
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None


def _of_preset(model: str, backward: str | None, dtype: str) -> tuple[Shape, Scenario, LinkModel | None]:
    """Return the gradients of a preset, with estimated ready times, and a scenario in which they can be measured."""
    try:
        known_model(model)
    except ValueError as error:
        raise ConfigError(f"--model {error}") from None
    if backward is None:
        raise ConfigError(
            "advise: give the time of backward on your machine, such as --backward 60ms; --from RUN takes it from a "
            "run with training steps"
        )
    if backward.strip().replace(".", "", 1).isdigit():
        raise ConfigError(f"--backward: {backward} has no unit; write {backward}ms, or {backward}s")
    backward_s = _parsed("--backward", units.parse_seconds, backward)
    if backward_s <= 0:
        raise ConfigError(f"--backward: {backward} must be above 0")
    shape, name = shape_of(model, backward_s, dtype), shape_name(model, backward_s)
    own = StepOptions(model=name, batch=1, sequence=2, optimizer="sgd", threads=1)
    return shape, Scenario(Case(TRAINING_STEP, "gloo", RANKS, dtype, 0, metric="pipelined", own=own), shape=shape), None


def _of_run(name: str, wanted: str | None) -> tuple[Shape, Scenario, LinkModel | None]:
    """Return the gradients of a recorded step, its scenario, and the link, if the run measured enough of it."""
    run = folders.read(folders.find(RESULTS, name))
    shapes = {scenario: shape for scenario in scenarios_of(run) if (shape := runs.shape_of(run, scenario)) is not None}
    matching = [scenario for scenario in shapes if wanted is None or wanted in scenario.case.key]
    if len(matching) != 1:
        keys = sorted(scenario.case.key for scenario in shapes)
        available = "; ".join(keys) or "no recorded step without synchronisation"
        raise ConfigError(f"--from {name}: choose one by a part of its name, --scenario TEXT; available: {available}")
    return shapes[matching[0]], matching[0], runs.link_of(run, matching[0])


def _link(text: str, dtype: str, world_size: int | None) -> LinkModel:
    """Return the link that a text describes: latency and rate, or the name of a run."""
    if "+" in text:
        return link_model.stated(text)
    try:
        run = folders.read(folders.find(RESULTS, text))
    except StoreError as error:
        raise ConfigError(f"--link {error}; or write latency and rate, such as 2ms+1GB/s") from None
    link = link_model.measured(headlines(run), run.name, dtype, world_size)
    return link if run.imported is None else replace(link, here=False)
