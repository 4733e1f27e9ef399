"""Define the verb `tune`: race a library's choices, prove the best against its default, and write its rule file."""

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collbench.analyze.notices import BUSY, notices_of
from collbench.analyze.sessions import is_virtual
from collbench.catalog.collectives import PLACES, placement
from collbench.cli.app import PLOTS, RESULTS, Quiet, Sets
from collbench.cli.comparison import number
from collbench.cli.job import run_task
from collbench.cli.measuring import ConfigSource, parsed, source
from collbench.cli.output import Files, give, optional
from collbench.cli.terminal import say
from collbench.cli.trust import check_resumed
from collbench.config import models
from collbench.machine import environment, host
from collbench.model import units
from collbench.model.comparisons import SESSION_CHANGED
from collbench.model.deferred import Deferred
from collbench.model.errors import ConfigError, reason_of
from collbench.model.notices import Kind
from collbench.model.records import Case
from collbench.packages.tune import catalog, machine, report
from collbench.packages.tune import planning as rounds_of
from collbench.packages.tune.analyze import choosing, outcome
from collbench.packages.tune.catalog import Library
from collbench.packages.tune.cli.rounds import TuneRounds, read_state, write_state
from collbench.packages.tune.rules import DEFAULT, Cell, Pick, Tuned, TuneState, Why
from collbench.planning import plan as planning
from collbench.report.notices import sentence, sentences
from collbench.report.plots import DRAW
from collbench.store import folders

if TYPE_CHECKING:
    from collbench.launch.coordinator import Coordinator

DOCUMENT, DATA, RULES, DRAFT, CHECKED = "tune.md", "tuned.json", "rules", "draft", "checked"
BACKENDS = ("mpi", "nccl")


def tune(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(help="Operations, numbers of ranks, sizes, and one backend: mpi or nccl.")],
    sets: Sets = [],  # noqa: B006 - typer reads the default
    budget: Annotated[str, typer.Option(help="Measure for at most this long.", metavar="TIME")] = "10min",
    output: Annotated[
        Path | None,
        typer.Option(help="Write the rule file here (default: into the folder of the run).", metavar="FILE"),
    ] = None,
    check: Annotated[
        Path | None, typer.Option(help="Compare this rule file with the default; write none.", metavar="FILE")
    ] = None,
    min_change: Annotated[str, typer.Option(help="Write no rule for a smaller gain.", metavar="SHARE")] = "2%",
    plots: Annotated[bool, typer.Option(help="Draw the picture at the end.", metavar="")] = True,
    quiet: Quiet = False,
) -> int:
    """Every rule was shown to be faster than the default, on launches that had no part in choosing it.

    `resume RUN` goes on. Exit code of --check: 1 if a rule is slower, not honoured or failed; 3 if none was decided.
    """
    smallest, budget_s = number("--min-change", min_change), number("--budget", budget, units.parse_seconds)
    if check is not None and output is not None:
        raise ConfigError("--check FILE writes no rule file: leave out --output")
    if output is not None and (output.is_dir() or not output.absolute().parent.is_dir()):
        raise ConfigError(f"--output {output}: name a file in a folder that exists")
    try:
        text = check.read_text(encoding="utf-8", errors="replace") if check is not None else None
    except OSError as error:
        raise ConfigError(f"--check {check}: {reason_of(error)}") from None

    read = cache(lambda: source(config))

    def task(coordinator: "Coordinator | None") -> int:
        state = TuneState("", budget_s, smallest, {}, checks=text is not None)
        state.output = str(output.absolute()) if output is not None else None
        path, cases = _create(read(), sets, state, text, coordinator, context.obj)
        return _measured(path, state, cases, coordinator, plots, quiet)

    given = [*sets, min_change, budget, text or ""]
    return run_task(task, lambda: b"\0".join([read().raw, *map(str.encode, given)]))


ONE_LAUNCH_AT_A_TIME = Kind("one-launch-at-a-time", "ranks of a job take part in one launch at a time")


def _create(
    config_source: ConfigSource, sets: list[str], state: TuneState, check: str | None,
    coordinator: "Coordinator | None", argv: list[str],
) -> tuple[Path, dict[Cell, Case]]:  # fmt: skip
    """Plan a run, create its folder, and fill in the state."""
    settings = parsed(config_source, sets)
    if len(settings.backends) != 1 or settings.backends[0] not in BACKENDS:
        raise ConfigError(
            f"{config_source.name}: backends: {', '.join(settings.backends)}: no choice of algorithms; "
            f"allowed: {', '.join(BACKENDS)}"
        )
    here = host.machine() if coordinator is None else coordinator.machine(planning.demands(settings))
    state.backend = settings.backends[0]
    state.seed = settings.seed if settings.seed is not None else secrets.randbelow(2**32)
    state.hosts = len(coordinator.facts()["hosts"]) if coordinator else 1
    state.numbers = machine.algorithms() if state.backend == "mpi" else {}
    library = _library(state)
    plan, cases = rounds_of.cells(settings, here, state.seed, library)
    for reason in sorted({*sentences(skip.reason for skip in plan.skips)}):
        say(f"note: left out: {reason}", err=True)
    if coordinator is not None and state.backend == "nccl" and _taken_plugin():
        raise ConfigError("NCCL_TUNER_PLUGIN is set, which all ranks of a job load: unset it")
    wanted = rounds_of.candidates(library, cases)
    if check is not None:
        rules = library.read(check, state.hosts)
        wanted = {cell: [choice] for cell in cases if (choice := library.choice_for(rules.rules, cell)) != DEFAULT}
        if not wanted:
            problems = "".join(f"; {problem}" for problem in (*rules.problems, *sentences(rules.notes))[:1])
            raise ConfigError(f"--check: the file has no rule for a cell of {config_source.name}{problems}")
    groups = rounds_of.launches(library, cases, wanted, 1, state.seed)
    plan = rounds_of.fitted(plan, groups, state.budget_s, rounds_of.ONLY_CHECK if check else rounds_of.RACE)
    state.alternate = ONE_LAUNCH_AT_A_TIME() if coordinator is not None else None
    if state.alternate is None:
        most = max(groups, key=lambda group: len(group) * group[0].launch.world_size)
        state.alternate = planning.reason_to_alternate([replace(plan, order=(side.launch,)) for side in most], here)
    if state.alternate is not None:
        say(f"note: launches alternate: {sentence(state.alternate)}", err=True)
    plan = replace(plan, name=f"{plan.name.removesuffix('-tune')}-tune", order=())
    path = folders.create(RESULTS, plan, config_source.raw, {"verb": "tune", "argv": list(argv), "overrides": sets})
    if check is not None:
        folders.write(path / f"{CHECKED}.{library.suffix}", check)
    write_state(path, state)
    return path, cases


def resume(path: Path, trust: bool, plots: bool, quiet: bool, coordinator: "Coordinator | None") -> int:
    """Resume a run of `tune`."""
    state = read_state(path)
    run, library, file = folders.read(path), _library(state), path / folders.CONFIG
    settings = models.parse(file.read_bytes(), str(file), run.manifest["overrides"], "")
    here = host.machine() if coordinator is None else coordinator.machine(planning.demands(settings))
    plan, cases = rounds_of.cells(settings, here, state.seed, library)
    check_resumed(path, [plan], {}, trust)  # from this plan, all launches are planned again
    if state.output is not None and not trust:
        say(f"note: the rule file goes into {path}; --trust writes {state.output}, as this run's folder says", err=True)
        state.output = None
    return _measured(path, state, cases, coordinator, plots, quiet)


def _library(state: TuneState) -> Library:
    """Return the library. Raises ConfigError if a variable in the environment overrides the library's own choice."""
    library = catalog.Nccl(_taken_plugin()) if state.backend == "nccl" else catalog.OpenMpi(state.numbers)
    if named := [name for name in environment.variables() if library.decides.fullmatch(name)]:
        raise ConfigError(f"{named[0]} is set, so the default is not {library.name}'s own choice: unset it")
    return library


@cache
def _taken_plugin() -> str:
    """Take the tuner plugin that the user named out of the environment: only the side with a rule file loads it."""
    named = environment.variables().get("NCCL_TUNER_PLUGIN", "")
    environment.apply([("NCCL_TUNER_PLUGIN", "")])
    return named


VIRTUAL_GPUS = Kind("virtual-gpus", "virtual GPUs: times follow a rule, and mean nothing for hardware")
AS_MEASURED = Kind(
    "as-measured", "valid for calls as they were measured ({calls:lines}): in others a rule can be slower"
)


def _measured(
    path: Path,
    state: TuneState,
    cases: dict[Cell, Case],
    coordinator: "Coordinator | None",
    plots: bool,
    quiet: bool,
) -> int:
    """Measure the missing launches, and show the outcome."""
    run, library = folders.read(path), _library(state)
    rounds = TuneRounds(path, run.plan, run.samples, state, library, cases, quiet)
    with rounds.opened(run.environment, coordinator):
        tuned = _checked(rounds) if state.checks else _tuned(rounds)
    run = folders.read(path)
    notes = [VIRTUAL_GPUS()] if is_virtual(run) else []
    notes += [note for note in notices_of(run, ()) if note.kind in {BUSY, SESSION_CHANGED}]
    if tuned.changed and not state.checks:
        notes.append(AS_MEASURED(calls=usage(tuned, cases)))
    table = {result.cell: result.choice for result in tuned.results}
    tuned = replace(tuned, notes=(*tuned.notes, *notes, *outcome.not_honoured(run, library, state.assigned, table)))
    target = Path(state.output) if state.output is not None else path / f"{RULES}.{library.suffix}"
    load = library.loading_lines(str(target.absolute())) if tuned.changed and not state.checks else []
    picture = (PLOTS / path.name / "tune").with_suffix(".png")
    with optional():
        if plots:
            DRAW([picture.with_suffix("")], Deferred("packages.tune.plots:ratios"), tuned)
    address = os.path.relpath(picture, path) if picture.is_file() else None
    rules = library.write(tuned.rules, state.hosts, report.comments(tuned, run, library))
    files: Files = {
        **({} if state.checks else {target: rules}),
        path / DOCUMENT: report.document(tuned, library, state, load, address),
        path / DATA: json.dumps(report.as_json(tuned), indent=1) + "\n",
    }
    give(report.answer(tuned, state, load), files, lambda: picture if picture.is_file() else None, quiet)
    if load and not quiet:
        say(f"\n{load[0]}")
    return _code(tuned) if state.checks else 0


def usage(tuned: Tuned, cases: Mapping[Cell, Case]) -> tuple[str, ...]:
    """Return texts such as `buffers: rotate`, `in place: all_reduce`, `out of place: all_gather` for the rules."""
    tuned_cases = [cases[result.cell] for result in tuned.changed]
    words = [f"buffers: {tuned_cases[0].buffers}"]
    for place, text in PLACES.items():
        ops = dict.fromkeys(case.op for case in tuned_cases if placement(case) == place)
        words += [f"{text}: {', '.join(ops)}"] if ops else []
    return tuple(words)


def _tuned(rounds: TuneRounds) -> Tuned:
    """Run the three stages, and return the outcome."""
    state, library = rounds.state, rounds.library
    named = rounds_of.candidates(library, rounds.found)

    def left_after(number: int) -> dict[Cell, list[Pick]]:
        return outcome.left_after(rounds.samples, state.assigned, named, number)

    race = rounds.stage(rounds_of.RACE, lambda done: rounds_of.undecided(left_after(done)))
    picks = choosing.picks(outcome.times_of(rounds.samples, state.assigned), left_after, len(race), state.min_change)
    proving = rounds.stage(rounds_of.PROOF, lambda done: rounds_of.only_tried(picks))
    table = outcome.proven(rounds.samples, state.assigned, picks, proving, state.min_change)
    draft = rounds.path / f"{DRAFT}.{library.suffix}"
    if not draft.is_file():
        places = choosing.crossovers(outcome.times_of(rounds.samples, state.assigned), table)
        folders.write(draft, library.write(choosing.rules_of(table, places), state.hosts))
    file_settings = library.file_settings(str(draft.resolve())) if rounds.reads_files else None
    checking = rounds.stage(rounds_of.CHECK, lambda done: rounds_of.only_tried(table), file_settings)
    return outcome.tuned(rounds.samples, state.assigned, picks, table, proving, checking, state.min_change)


def _checked(rounds: TuneRounds) -> Tuned:
    """Measure an existing rule file, and return the outcome."""
    state, library = rounds.state, rounds.library
    file = rounds.path / f"{CHECKED}.{library.suffix}"
    read = library.read(file.read_text(encoding="utf-8", errors="replace"), state.hosts)
    table = {cell: library.choice_for(read.rules, cell) for cell in rounds.found}
    file_settings = library.file_settings(str(file.resolve())) if rounds.reads_files else None
    numbers = rounds.stage(rounds_of.ONLY_CHECK, lambda done: rounds_of.only_tried(table), file_settings)
    return outcome.checked(rounds.samples, state.assigned, read, table, numbers, state.min_change)


def _code(tuned: Tuned) -> int:
    reasons = {result.why for result in tuned.changed}
    if tuned.wrong or Why.SLOWER in reasons or any(note.kind in outcome.DISHONOURED for note in tuned.notes):
        return 1
    return 0 if reasons & {Why.FASTER, Why.SAME} else 3
