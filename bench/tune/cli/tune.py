"""The verb `tune`: race what a library can be told, prove the best against its own choice, and write its rule file.

Each launch number is a round. The state in tune.json says which numbers belong to which stage; what a stage decides
follows from the samples.
"""

import json
import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench import __version__
from bench.analyze.sessions import is_virtual
from bench.cli.app import PLOTS, RESULTS, Quiet, Sets
from bench.cli.comparison import share
from bench.cli.job import run_task
from bench.cli.measuring import source
from bench.cli.output import show
from bench.cli.terminal import say
from bench.cli.trust import check_resumed
from bench.config import models
from bench.config.models import Config
from bench.launch.turns import LOOK_EVERY_S
from bench.machine import host
from bench.model import units
from bench.model.comparisons import SLOWER
from bench.model.deferred import Deferred
from bench.model.errors import ConfigError, StoreError, UnmeasurableError
from bench.model.units import format_seconds
from bench.planning import plan as planning
from bench.report import markdown
from bench.report.plots import DRAW
from bench.store import folders
from bench.tune import catalog, machine
from bench.tune import planning as rounds_of
from bench.tune.analyze import choosing
from bench.tune.catalog import Library
from bench.tune.cli.rounds import Rounds
from bench.tune.model import DEFAULT, Cell, CellResult, Choice, Picks, Rule, Tuned, TuneState, picked
from bench.tune.report import answer, as_json, comments, document

if TYPE_CHECKING:
    from bench.launch.coordinator import Coordinator
    from bench.model.records import Case

STATE, DOCUMENT, DATA, RULES = "tune.json", "tune.md", "tuned.json", "rules"
BACKENDS = ("mpi", "nccl")
LEAST_GAIN = "2%"


def tune(
    context: typer.Context,
    config: Annotated[
        Path, typer.Argument(help="Its operations, numbers of ranks and sizes; one backend: mpi or nccl.")
    ],
    sets: Sets = [],  # noqa: B006 - typer reads the default
    budget: Annotated[str, typer.Option(help="Longest time to measure.", metavar="TIME")] = "10min",
    output: Annotated[
        Path | None, typer.Option(help="The rule file; in the folder of the run if left out.", metavar="FILE")
    ] = None,
    check: Annotated[
        Path | None, typer.Option(help="Measure this rule file against the default, and write none.", metavar="FILE")
    ] = None,
    min_change: Annotated[
        str, typer.Option(help="Smallest gain for which a rule is worth having.", metavar="SHARE")
    ] = LEAST_GAIN,
    plots: Annotated[bool, typer.Option(help="Draw the picture at the end.")] = True,
    quiet: Quiet = False,
) -> int:
    """Every rule was shown to be faster than the default, on launches that had no part in choosing it.

    `resume RUN` goes on. Exit code 1 if a rule of --check is slower, or is not honoured; 3 if none of it was decided.
    """
    smallest = share("--min-change", min_change)
    try:
        budget_s = units.parse_seconds(budget)
    except ValueError as error:
        raise ConfigError(f"--budget: {error}") from None
    if check is not None and output is not None:
        raise ConfigError("--check FILE writes no rule file: leave --output out")
    read = _text(check) if check is not None else None

    def task(coordinator: "Coordinator | None") -> int:
        return _start(config, sets, smallest, budget_s, output, read, coordinator, context.obj, plots, quiet)

    given = [*sets, min_change, budget, read or ""]
    return run_task(task, lambda: b"\0".join([source(config).raw, *map(str.encode, given)]))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"--check {path}: {folders.reason_of(error)}") from None


def library_of(backend: str, state: TuneState | None = None) -> Library:
    """The library of a backend, as it is here or as a run knew it."""
    if backend == "nccl":
        return catalog.Nccl(os.environ.get("NCCL_TUNER_PLUGIN", ""))
    return catalog.OpenMpi(state.numbers if state is not None else machine.algorithms())


def _start(
    config: Path,
    sets: list[str],
    smallest: float,
    budget_s: float,
    output: Path | None,
    check: str | None,
    coordinator: "Coordinator | None",
    argv: list[str],
    plots: bool,
    quiet: bool,
) -> int:
    """Plan a run, make its folder, and measure it."""
    asked = source(config)
    settings = models.parse(asked.raw, asked.name, sets, asked.default_name)
    if len(settings.backends) != 1 or settings.backends[0] not in BACKENDS:
        raise ConfigError(
            f"{asked.name}: backends: {', '.join(settings.backends)}: tune needs one whose library lets one choose; "
            f"allowed: {', '.join(BACKENDS)}"
        )
    if unsupported := host.unsupported_platform():
        raise UnmeasurableError(unsupported)
    here = host.machine() if coordinator is None else coordinator.machine(planning.demands(settings))
    library = library_of(settings.backends[0])
    state = TuneState(
        settings.backends[0],
        budget_s,
        smallest,
        settings.seed if settings.seed is not None else secrets.randbelow(2**32),
        hosts=len({shake["hostname"] for shake in coordinator.handshakes}) if coordinator else 1,
        numbers={name: dict(of) for name, of in library.numbers.items()}
        if isinstance(library, catalog.OpenMpi)
        else {},
        output=str(output.absolute()) if output is not None else None,
    )
    plan, found = rounds_of.cells(settings, here, state.seed, library)
    for skip in {skip.reason for skip in plan.skips}:
        say(f"note: left out: {skip}", err=True)
    named = rounds_of.candidates(library, found)
    groups = rounds_of.launches(library, found, named, 1, state.seed)
    if check is None:
        plan = rounds_of.fitted(plan, groups, budget_s)
    state.alternate = "ranks of a job take part in one launch at a time" if coordinator is not None else None
    if state.alternate is None:
        sides = [
            replace(plan, order=(launch,)) for launch in max(groups, key=lambda group: len(group) * group[0].world_size)
        ]
        state.alternate = planning.reason_to_alternate(sides, here)
    if state.alternate is not None:
        say(f"note: launches alternate: {state.alternate}", err=True)
    facts = {"argv": list(argv), "overrides": sets, "collbench": __version__}
    path = folders.create(RESULTS, replace(plan, name=f"{plan.name}-tune", order=()), asked.raw, facts)
    if check is not None:
        state.file = f"checked.{library.suffix}"
        folders.write(path / state.file, check)
    _write_state(path, state)
    return _measured(path, state, library, settings, coordinator, found, plots, quiet)


def resume(path: Path, trust: bool, plots: bool, quiet: bool, coordinator: "Coordinator | None") -> int:
    """Go on with a run of `tune`."""
    state = read_state(path)
    run = folders.read(path)
    library = library_of(state.backend, state)
    own = f"={path.resolve()}/"  # the rule file that one side reads
    order = tuple(launch for launch in run.plan.order if own not in launch.cases[0].settings)
    check_resumed(path, [replace(run.plan, order=order)], {}, trust)
    settings = models.parse(
        (path / folders.CONFIG).read_bytes(), str(path / folders.CONFIG), run.manifest["overrides"], ""
    )
    here = host.machine() if coordinator is None else coordinator.machine(planning.demands(settings))
    _, found = rounds_of.cells(settings, here, state.seed, library)
    return _measured(path, state, library, settings, coordinator, found, plots, quiet)


def read_state(path: Path) -> TuneState:
    """The state of a run. Raises StoreError."""
    try:
        return TuneState(**json.loads((path / STATE).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(f"{path / STATE}: {error}") from None


def _write_state(path: Path, state: TuneState) -> None:
    folders.write(path / STATE, json.dumps(asdict(state), indent=1) + "\n")


# ── the stages ───────────────────────────────────────────────────────────────────────────────────
class _Stages:
    """The stages of a run: each measures rounds until its share of the budget is spent, and says what follows."""

    def __init__(
        self, rounds: Rounds, state: TuneState, library: Library, found: "dict[Cell, Case]", quiet: bool
    ) -> None:
        self.rounds, self.state, self.library, self.found = rounds, state, library, found
        self.began = time.monotonic() - state.spent_s
        self.quiet = quiet

    @property
    def times(self) -> choosing.Times:
        return choosing.times_of(self.rounds.samples, self.library)[0]

    @property
    def failed(self) -> dict[Cell, dict[Choice, tuple[int, str]]]:
        return choosing.times_of(self.rounds.samples, self.library)[1]

    def tell(self, text: str) -> None:
        """A line of progress."""
        if not self.quiet:
            say(f"{text}, {format_seconds(time.monotonic() - self.began)}", err=True)

    def raced(self, rounds: int) -> dict[Cell, list[Choice]]:
        """The choices of each cell that are left after so many rounds, without those that have failed."""
        times, failed = choosing.times_of(self.rounds.samples, self.library)
        named = {
            cell: [c for c in choices if failed.get(cell, {}).get(c, (rounds + 1, ""))[0] > rounds]
            for cell, choices in rounds_of.candidates(self.library, self.found).items()
        }
        return choosing.raced(times, named, rounds)

    def stage(
        self, name: str, share_s: float, fewest: int, most: int, first: int,
        asked: Callable[[int], dict[Cell, list[Choice]]], settings: str | None = None, probe: bool = False,
    ) -> int:  # fmt: skip
        """Measure rounds until time is up, or nothing is asked; returns how many there were. first: number before."""
        done, latest_s = 0, 0.0
        known = max((launch.number for launch in self.rounds.plan.order), default=0) - first
        while done < most:
            wanted = asked(done)
            left_s = share_s - (time.monotonic() - self.began)
            if not any(wanted.values()) or (done >= max(fewest, known) and left_s < latest_s):
                break
            start = time.monotonic()
            number = first + done + 1
            groups = rounds_of.launches(self.library, self.found, wanted, number, self.state.seed, settings)
            self.rounds.measure(groups, probe and done == 0)
            done, latest_s = done + 1, max(time.monotonic() - start, LOOK_EVERY_S)
            self.save()
            self.tell(
                f"{name} {done}: {sum(map(len, wanted.values()))} choices in {sum(map(bool, wanted.values()))} cells"
            )
        return done

    def save(self) -> None:
        self.state.spent_s = round(time.monotonic() - self.began, 2)
        _write_state(self.rounds.path, self.state)

    def race(self) -> int:
        """Race until each cell has one choice left, or half of the budget is spent."""
        state = self.state
        if state.race is None:
            budget_s = rounds_of.RACE_SHARE * state.budget_s
            state.race = self.stage(
                "race", budget_s, rounds_of.FEWEST_RACED, rounds_of.MOST_RACED, 0,
                lambda done: rounds_of.undecided(self.raced(done)),
            )  # fmt: skip
            self.save()
        return state.race

    def picks(self) -> dict[Cell, Choice]:
        """What each cell tries, as the race ended."""
        race = self.race()
        return choosing.picks(self.times, self.raced, race, self.state.min_change)

    def confirm(self, picks: Picks) -> range:
        """Launches that prove the picks; their numbers."""
        state, first = self.state, self.race()
        if state.confirm is None:
            until_s = (rounds_of.RACE_SHARE + rounds_of.CONFIRM_SHARE) * state.budget_s
            asked = {cell: [pick] for cell, pick in picks.items() if pick != DEFAULT}
            state.confirm = self.stage(
                "proof", until_s, rounds_of.FEWEST_CONFIRMED, rounds_of.MOST_CONFIRMED, first, lambda done: asked
            )
            self.save()
        return range(first + 1, first + 1 + state.confirm)

    def check(self, table: Picks, first: int, file: Path) -> range:
        """Launches that measure the table as it is; their numbers."""
        state = self.state
        if state.check is None:
            asked = {cell: [pick] for cell, pick in table.items() if pick != DEFAULT}
            settings = self.library.file_settings(str(file.resolve())) if state.hosts == 1 else None
            state.check = self.stage(
                "check", state.budget_s, rounds_of.FEWEST_CHECKED, rounds_of.MOST_CHECKED, first, lambda done: asked,
                settings, probe=True,
            )  # fmt: skip
            self.save()
        return range(first + 1, first + 1 + state.check)


def _measured(
    path: Path,
    state: TuneState,
    library: Library,
    config: Config,
    coordinator: "Coordinator | None",
    found: "dict[Cell, Case]",
    plots: bool,
    quiet: bool,
) -> int:
    run = folders.read(path)
    rounds = Rounds(
        path, run.plan, run.samples, state.alternate is not None, lambda text: say(f"failed: {text}", err=True)
    )
    stages = _Stages(rounds, state, library, found, quiet)
    checking = state.file is not None
    with rounds.opened(run.environment, coordinator):
        tuned, rules = _checked(stages) if checking else _tuned(stages)
    run = folders.read(path)
    notes = ["virtual GPUs: times follow a rule, and say nothing about hardware"] if is_virtual(run) else []
    notes += choosing.not_honoured(run, library)
    tuned = replace(tuned, notes=(*tuned.notes, *notes))
    if not checking:
        _write_rules(path, state, library, tuned, rules, run)
    _concluded(path, state, library, tuned, rules, plots, quiet)
    return _code(tuned) if checking else 0


def _tuned(stages: _Stages) -> tuple[Tuned, list[Rule]]:
    picks = stages.picks()
    confirmed = stages.confirm(picks)
    proof = choosing.judged(stages.times, picks, confirmed, stages.state.min_change)
    table = choosing.kept(proof, picks)
    draft = stages.rounds.path / f"draft.{stages.library.suffix}"
    rules = choosing.rules_of(table, choosing.crossovers(stages.times, table))
    if not draft.is_file():
        folders.write(draft, stages.library.write(rules, stages.state.hosts))
    checked = stages.check(table, stages.race() + len(confirmed), draft)
    as_read = {
        cell: catalog.FROM_FILE if _from_file(stages, cell) else pick for cell, pick in table.items() if pick != DEFAULT
    }
    again = choosing.judged(stages.times, as_read, checked, stages.state.min_change)
    final = choosing.without_slower(again, table)
    changed = {cell: as_read[cell] for cell, pick in final.items() if pick != DEFAULT}
    together, count = choosing.whole(stages.times, changed, checked)
    places = choosing.crossovers(stages.times, final)
    results = []
    for cell, tried in sorted(picks.items()):
        judgement, pairs = proof.get(cell, (None, 0))
        why = "faster in fresh launches" if final[cell] != DEFAULT else _why(tried, judgement)
        if table[cell] != final[cell]:
            why = "faster in fresh launches, slower in those after them"
        ratio = judgement.ratio if judgement is not None else None
        results.append(CellResult(cell, final[cell], tried, why, ratio, pairs))
    tuned = Tuned(tuple(results), tuple(places), together, count, _launches(stages), tuple(_wrong(stages)))
    return tuned, choosing.rules_of(final, places)


def _from_file(stages: _Stages, cell: Cell) -> bool:
    return catalog.FROM_FILE in stages.times.get(cell, {})


def _why(tried: Choice, judgement: Any) -> str:
    if tried == DEFAULT:
        return "nothing was faster in the race"
    return "no gain shown" if judgement is None else f"no gain shown ({judgement.verdict.lower()})"


def _launches(stages: _Stages) -> int:
    return len({(s.case.world_size, s.case.settings, s.launch) for s in stages.rounds.samples})


def _wrong(stages: _Stages) -> list[str]:
    texts: dict[str, list[str]] = {}
    for cell, choices in sorted(stages.failed.items()):
        for choice, (_, text) in choices.items():
            key = f"{cell.op}, {cell.ranks} ranks, {choice}: {text}"
            texts.setdefault(key, []).append(units.format_bytes(cell.size))
    return [f"{key} ({', '.join(sizes)})" for key, sizes in texts.items()]


def _checked(stages: _Stages) -> tuple[Tuned, list[Rule]]:
    """Measure a rule file that is there."""
    state, library = stages.state, stages.library
    file = stages.rounds.path / str(state.file)
    read = library.read(file.read_text(encoding="utf-8", errors="replace"))
    table = {cell: _asked(read.rules, cell) for cell in stages.found}
    state.race, state.confirm = 0, 0
    checked = stages.check(table, 0, file)
    as_read = {
        cell: catalog.FROM_FILE if _from_file(stages, cell) else pick for cell, pick in table.items() if pick != DEFAULT
    }
    proof = choosing.judged(stages.times, as_read, checked, state.min_change, choosing.ERROR_RATE)
    together, count = choosing.whole(stages.times, as_read, checked)
    results = []
    for cell, choice in sorted(table.items()):
        judgement, pairs = proof.get(cell, (None, 0))
        why = judgement.verdict.lower() if judgement is not None else "no rule" if choice == DEFAULT else "not measured"
        results.append(CellResult(cell, choice, choice, why, judgement.ratio if judgement else None, pairs))
    problems = [f"not honoured: {problem}" for problem in read.problems]
    tuned = Tuned(tuple(results), (), together, count, _launches(stages), tuple(_wrong(stages)), tuple(problems))
    return tuned, list(read.rules)


def _asked(rules: Sequence[Rule], cell: Cell) -> Choice:
    """What a file says of a cell. Open MPI's rules for a number of ranks hold up to the next one that is named."""
    named = sorted({rule.ranks for rule in rules if rule.op == cell.op and rule.ranks <= cell.ranks})
    return picked(rules, replace(cell, ranks=named[-1])) if named else DEFAULT


def _code(tuned: Tuned) -> int:
    problems = any(note.startswith("not honoured") for note in tuned.notes)
    if problems or tuned.wrong or any(result.why == SLOWER.lower() for result in tuned.changed):
        return 1
    return 0 if any(result.why in {"faster", "same"} for result in tuned.changed) else 3


# ── what is written ──────────────────────────────────────────────────────────────────────────────
def _write_rules(path: Path, state: TuneState, library: Library, tuned: Tuned, rules: list[Rule], run: Any) -> None:
    target = Path(state.output) if state.output is not None else path / f"{RULES}.{library.suffix}"
    text = library.commented(library.write(rules, state.hosts), comments(tuned, run, library, state))
    folders.write(target, text)


def _concluded(
    path: Path, state: TuneState, library: Library, tuned: Tuned, rules: list[Rule], plots: bool, quiet: bool
) -> None:
    target = state.output or str(path / f"{RULES}.{library.suffix}")
    load = [] if state.file is not None else library.how_to_load(target)
    picture = PLOTS / path.name / "tune"
    if plots:
        folders.make_folder(picture.parent)
        DRAW(Deferred("tune.plots:ratios"), tuned, None, [picture])
    drawn = picture.with_suffix(".png").is_file()
    blocks = document(tuned, library, state, load, "tune" if drawn else None)
    folders.write(path / DATA, json.dumps(as_json(tuned, rules), indent=1) + "\n")
    folders.write(path / DOCUMENT, markdown.written(blocks))
    show(answer(tuned, state, load), quiet)
    if not quiet:
        written = [path / DOCUMENT, *([picture.with_suffix(".png")] if drawn else [])]
        say("\n" + "\n".join(map(str, [*([] if state.file is not None else [target]), *written])))
