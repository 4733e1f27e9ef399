"""The verb `advise`: recommend settings with little exposed communication on a link, and measure them on request.

In: a model or a recorded run, and a link. Out: the advice on stdout; with --verify also a run and
its report.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import typer

from collbench.analyze.summaries import headlines
from collbench.catalog.dtypes import DTYPES
from collbench.cli.app import RESULTS
from collbench.cli.measuring import measure
from collbench.cli.output import analyzed, write_report
from collbench.cli.terminal import say, show
from collbench.config.documents import dump
from collbench.machine import host
from collbench.model import units
from collbench.model.errors import ConfigError, StoreError, UnmeasurableError
from collbench.model.records import Case
from collbench.model.units import counted
from collbench.packages.training.analyze import runs
from collbench.packages.training.analyze.steps import scenarios_of
from collbench.packages.training.conclusions import training_of
from collbench.packages.training.config import known_model
from collbench.packages.training.planning import advisor, link_model
from collbench.packages.training.planning.buckets import ReadyTimes
from collbench.packages.training.planning.link_model import LinkModel, costs_cpu
from collbench.packages.training.planning.steps import shape_name, shape_of
from collbench.packages.training.report import advice
from collbench.packages.training.step_records import Shape
from collbench.packages.training.synchronisation import TRAINING_STEP, Scenario, StepOptions, options_of
from collbench.report.view import View
from collbench.store import folders

ESTIMATED = (
    "The times at which gradients become ready are estimated from the flops of each layer, not measured; --from RUN "
    "takes them from a run with training steps."
)
WHOSE = "advise: name a model (--model tiny), or a run that has its ready times (--from RUN)"
# An emulated link costs the same at any number of ranks: more ranks would only add processes.
RANKS = 2
# Name of the run that --verify makes.
NAME = "advise"
# Dtypes that gradients can have.
GradientType = Literal["float32", "float16", "bfloat16", "float64"]


def advise(
    context: typer.Context,
    model: Annotated[str | None, typer.Option(help="Advise for a preset model, such as tiny or xl-2026.")] = None,
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
) -> None:
    """Print what to set: a cap of buckets that stays good on a slower or faster link, or torch's default.

    With it what both leave exposed, what saves more, and code to paste for what saves 1 % of a step. --verify measures
    them: with --from the model of that run, else the gradients and a backward that waits instead of computing. The
    link is that run's own if no other is given; gloo if --link names a run of gloo that was not imported; otherwise an
    emulated one with the same cost.
    """
    curve, link = (None, link) if link is None or "+" in link else (link, None)
    without_unit = backward is not None and backward.strip().replace(".", "", 1).isdigit()
    for wrong, message in (
        ((model is None) == (recorded is None), WHOSE),
        (curve is None and world_size is not None, "advise: --world-size is for a run that --link names"),
        (recorded is None and scenario is not None, "advise: --scenario chooses from a run, which --from names"),
        (
            recorded is not None and backward is not None,
            "advise: --backward is for --model; a run contains the time of backward",
        ),
        (without_unit, f"--backward: {backward} has no unit; write {backward}ms, or {backward}s"),
    ):
        if wrong:
            raise ConfigError(message)
    backward_s = _parsed("--backward", units.parse_seconds, backward)
    if backward_s is not None and backward_s <= 0:
        raise ConfigError(f"--backward: {backward} must be above 0")
    share = _parsed("--uncertainty", units.parse_share, uncertainty) or 0.0
    if not 0 < share < 1:
        raise ConfigError(f"--uncertainty: {uncertainty} is not between 0 and 100 %")
    chosen = _stated(str(model), backward_s, dtype) if recorded is None else _recorded_choice(recorded, scenario)
    if link is not None:
        chosen = chosen.on(link_model.stated(link))
    if curve is not None:
        try:
            run = folders.read(folders.find(RESULTS, curve))
        except StoreError as error:
            raise ConfigError(f"--link {error}; or write latency and rate, such as 2ms+1GB/s") from None
        measured = link_model.measured(headlines(run), run.name, dtype, world_size)
        chosen = chosen.on(measured if run.imported is None else replace(measured, here=False))
    if chosen.link is None:
        raise ConfigError("advise: describe the link, by --link 2ms+1GB/s or by a run of all_reduce (--link RUN)")
    ready_times, cost = ReadyTimes.of_shape(chosen.shape), chosen.link.cost
    off = max(share, min(chosen.link.error or 0.0, advisor.LARGEST_OFF))
    best = advisor.advise(ready_times, cost, off)
    itemsize = DTYPES[chosen.scenario.case.dtype].itemsize
    explained = advisor.explain(best, ready_times, chosen.link, itemsize, str(model or recorded))
    if recorded is None:
        explained = replace(explained, notes=(*explained.notes, ESTIMATED))
    show(advice.document(explained))
    if not verify:
        return
    if unsupported := host.unsupported_platform():
        raise UnmeasurableError("", unsupported)
    plans = runs.candidates(ready_times, best, chosen.scenario.shape is not None)
    strategies = [strategy for strategy, _ in plans.values()]
    plan = runs.planned(chosen.scenario, strategies, NAME, secrets.randbelow(2**32), host.machine())
    written = dump({"advise": " ".join(context.obj[1:])}).encode()
    path = folders.create(RESULTS, plan, written, {"argv": list(context.obj), "overrides": []})
    measure(path, plots=False)
    result = folders.read(path)
    analysis = analyzed(result)
    files = write_report(View(result, analysis), plots=False)
    (measured_plans,) = training_of(analysis).scenarios
    verified = runs.verified(plans, ready_times, cost, measured_plans)
    say("")
    show([*advice.verification(verified, measured_plans), *files])


def _parsed(option: str, parse: Callable[[str], float], text: str | None) -> float | None:
    try:
        return None if text is None else parse(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None


@dataclass(frozen=True)
class Chosen:
    """The gradients to advise on."""

    shape: Shape
    # Scenario in which --verify measures the plans.
    scenario: Scenario
    # None until the link is known.
    link: LinkModel | None = None

    def on(self, link: LinkModel) -> "Chosen":
        """Return the gradients on a link: gloo if a run measured gloo here, else an emulated link of equal cost."""
        if link.here and link.ranks is not None:
            case = replace(
                self.scenario.case, backend="gloo", world_size=link.ranks, own=replace(self.scenario.options, link="")
            )
            return Chosen(self.shape, replace(self.scenario, case=case, link=None), link)
        case = replace(self.scenario.case, own=replace(self.scenario.options, link=link.name))
        return Chosen(self.shape, replace(self.scenario, case=case, link=link.cost.as_link()), link)


def _stated(model: str, backward_s: float | None, dtype: str) -> Chosen:
    """Return the gradients of a preset; ready times are estimated."""
    try:
        known_model(model)
    except ValueError as error:
        raise ConfigError(f"--model {error}") from None
    if backward_s is None:
        raise ConfigError(
            "advise: give the time of backward on your machine, such as --backward 60ms; --from RUN takes it from a "
            "run with training steps"
        )
    shape, name = shape_of(model, backward_s, dtype), shape_name(model, backward_s)
    own = StepOptions(model=name, batch=1, sequence=2, optimizer="sgd", threads=1)
    case = Case(TRAINING_STEP, "gloo", RANKS, dtype, 0, metric="pipelined", own=own)
    return Chosen(shape, Scenario(case, shape=shape))


def _recorded_choice(name: str, wanted: str | None) -> Chosen:
    """Return the gradients of a recorded step, and the link of its run, if the run measured enough of the link."""
    run = folders.read(folders.find(RESULTS, name))
    shapes = {scenario: shape for scenario in scenarios_of(run) if (shape := runs.shape_of(run, scenario)) is not None}
    matching = [scenario for scenario in shapes if wanted is None or wanted in scenario.case.key]
    if len(matching) != 1:
        available = (
            "; ".join(sorted(scenario.case.key for scenario in shapes)) or "no recorded step without synchronisation"
        )
        raise ConfigError(f"--from {name}: choose one by a part of its name, --scenario TEXT; available: {available}")
    (scenario,) = matching
    cost, case = runs.all_reduce_cost_of(run, scenario), scenario.case
    if cost is None:
        return Chosen(shapes[scenario], scenario)
    if scenario.link is not None:
        link = LinkModel(cost, f"the run's own link, {options_of(case).link}, as emulated", options_of(case).link)
    else:
        words = f"the run's own {case.backend}, {counted(case.world_size, 'rank')}, as its calls took"
        link = LinkModel(cost, words, options_of(case).link, costs_cpu(case.backend), ranks=case.world_size)
    return Chosen(shapes[scenario], scenario, link)
