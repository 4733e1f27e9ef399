"""The verb that says which gradients to send together: `advise`."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from bench import store, units
from bench.cli.app import RESULTS, verb
from bench.errors import ConfigError

if TYPE_CHECKING:
    from bench.gradients.links import Known
    from bench.gradients.profiles import Profile

BACKWARD = "60ms"


class GradientType(StrEnum):
    """What gradients are made of."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT64 = "float64"


@verb
def advise(
    model: Annotated[str | None, typer.Option(help="A model by its shape, such as tiny or xl-2026.")] = None,
    backward: Annotated[
        str | None, typer.Option(help=f"With --model: how long backward takes. [default: {BACKWARD}]", metavar="TIME")
    ] = None,
    recorded: Annotated[
        str | None, typer.Option("--from", help="A run of the gradient benchmark, for its ready times.", metavar="RUN")
    ] = None,
    scenario: Annotated[
        str | None, typer.Option(help="With --from: of several, the one with this in its name.", metavar="TEXT")
    ] = None,
    link: Annotated[str | None, typer.Option(help="Latency and rate, such as 2ms+1GB/s.", metavar="LINK")] = None,
    curve: Annotated[
        str | None, typer.Option(help="A run of all_reduce over sizes, measured or imported.", metavar="RUN")
    ] = None,
    backend: Annotated[str | None, typer.Option(help="With --curve: of several, this one.")] = None,
    world_size: Annotated[int | None, typer.Option(help="With --curve: of several, this one.")] = None,
    dtype: Annotated[GradientType, typer.Option(help="Of the gradients.")] = GradientType.FLOAT32,
) -> None:
    """Which gradients to all-reduce together so that least communication is left over after backward.

    The exact best plan for a model and a link, beside torch's default and the best uniform cap, with code to paste.
    """
    from bench.gradients.planner import advise as planned
    from bench.present.gradients import advice

    if (model is None) == (recorded is None):
        raise ConfigError("advise: name a model (--model tiny) or a run that has its ready times (--from RUN)")
    if link is not None and curve is not None:
        raise ConfigError("advise: say what the link is once, by --link or by --curve")
    if curve is None and (backend is not None or world_size is not None):
        raise ConfigError("advise: --backend and --world-size choose from a run, which --curve names")
    known: Known | None = None
    if model is not None:
        if scenario is not None:
            raise ConfigError("advise: --scenario chooses from a run, which --from names")
        profile, names = _by_shape(model, backward or BACKWARD, dtype)
    else:
        if backward is not None:
            raise ConfigError("advise: --backward is for --model; a run knows how long its backward took")
        profile, names, known = _from_run(str(recorded), scenario)
    known = _link(link, curve, backend, world_size, dtype) or known
    if known is None:
        raise ConfigError("advise: say what the link is, by --link 2ms+1GB/s or by a run of all_reduce (--curve RUN)")
    typer.echo(advice.document(profile, known, planned(profile, known.curve), model or str(recorded), names))


def _by_shape(model: str, backward: str, dtype: str) -> "tuple[Profile, list[str]]":
    """A preset's gradients, and when they are ready by their flops."""
    import difflib

    from bench.dtypes import DTYPES
    from bench.gradients.presets import PRESETS, gradients
    from bench.gradients.profiles import shape_only

    if model not in PRESETS:
        near = difflib.get_close_matches(model, PRESETS, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"--model {model}: unknown; there are {', '.join(PRESETS)}{hint}")
    try:
        seconds = units.parse_seconds(backward)
    except ValueError as error:
        raise ConfigError(f"--backward: {error}") from None
    preset = PRESETS[model]
    return shape_only(preset, seconds, DTYPES[dtype].itemsize), [gradient.name for gradient in gradients(preset)]


def _from_run(name: str, wanted: str | None) -> "tuple[Profile, list[str], Known | None]":
    """Of a recorded step: the profile, its gradients' names, and the link if the run tells enough of it."""
    from bench.analyze.gradients.advised import curve_of
    from bench.gradients.links import Known, costs_cpu
    from bench.gradients.profiles import from_timeline
    from bench.gradients.records import REFERENCE, Alone, Rung, Timeline

    run = store.read_training(store.find(RESULTS, name))
    steps = {f.scenario: f for f in reversed(run.facts) if isinstance(f, Timeline) and f.strategy == REFERENCE}
    chosen = [key for key in steps if wanted is None or wanted in key]
    if len(chosen) != 1:
        there = "; ".join(sorted(steps)) or "no recorded step without synchronisation"
        raise ConfigError(f"--from {name}: choose one by a part of its name, --scenario TEXT; there is: {there}")
    (key,) = chosen
    profile, names = from_timeline(steps[key]), [gradient.name for gradient in steps[key].gradients]
    scenario = next((bout.scenario for bout in run.plan.bouts if bout.scenario.key == key), None)
    if scenario is None:
        return profile, names, None
    alone = [fact for fact in run.facts if isinstance(fact, Alone) and fact.scenario == key]
    curve = curve_of(scenario, alone, [fact for fact in run.facts if isinstance(fact, Rung)])
    emulated = scenario.link is not None
    words = f"the link of {key}, {'as emulated' if emulated else 'as its own calls took'}"
    return (
        profile,
        names,
        None if curve is None else Known(curve, words, None if emulated else costs_cpu(scenario.backend)),
    )


def _link(
    stated: str | None, run: str | None, backend: str | None, world_size: int | None, dtype: str
) -> "Known | None":
    """What the user says of the link; None if that is nothing."""
    from bench.gradients import links

    if stated is not None:
        return links.stated(stated)
    if run is None:
        return None
    from bench.analyze import stats

    result = store.read(store.find(RESULTS, run))
    return links.measured(stats.headlines(result), result.name, dtype, backend, world_size)
