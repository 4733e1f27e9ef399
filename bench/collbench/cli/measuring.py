"""Create a run from a configuration, measure its missing cases, and write its report, for the verbs that measure.

In: a configuration that is not yet parsed, or the folder of a run. Out: the exit code; the run's samples, its status,
the state of the machine before and after it, its tables, report and plots.
"""

import contextlib
import importlib
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from rich.console import Console

from collbench.cli.app import RESULTS
from collbench.cli.terminal import say
from collbench.config import documents, models, names
from collbench.config.models import Config
from collbench.machine import host, interrupts
from collbench.model.deferred import Deferred
from collbench.model.errors import StoreError, UnmeasurableError
from collbench.model.facts import Measurements, RankFacts, Session
from collbench.model.records import Json, Launch, Plan, Run, Samples
from collbench.planning import plan as planning
from collbench.planning.asked import asked
from collbench.report import wording
from collbench.report.notices import sentence
from collbench.store import folders, ledger
from collbench.store.encoding import SampleLine
from collbench.store.folders import Journal

if TYPE_CHECKING:
    from collbench.launch.coordinator import Coordinator
    from collbench.launch.ranks import Starter
    from collbench.report.view import View

# Modules of the analysis and the report, imported while ranks start; with pictures, also the module that draws them.
CONCLUDING = ("collbench.analyze.analysis", "collbench.report.document")
DRAWING = ("collbench.report.plots.figures",)


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """A configuration that is not parsed yet."""

    raw: bytes
    # Name of the configuration in messages.
    name: str
    default_name: str
    # True if another configuration of this name comes with CollBench.
    hides: bool = False


class Watch(Protocol):
    """An observer that prints the numbers of a run while it is measured."""

    def joined(self, launch: Launch, ranks: Sequence[RankFacts]) -> None:
        """Receive the facts about each rank when the ranks of a launch begin to measure."""

    def sampled(self, samples: Samples) -> None:
        """Receive the samples of a case that was measured in a launch."""

    def concluded(self, view: "View") -> list[str]:
        """Receive the view of the run when the run has ended; return a sentence on each thing that failed."""


def source(config: Path) -> ConfigSource:
    """Read the configuration in a file. Raises ConfigError if there is no configuration of this name."""
    path = names.path_of(config)
    raw, shipped = documents.read(path), names.FOLDERS[1] / path.name
    hides = path != config and shipped.exists() and documents.read(shipped) != raw
    return ConfigSource(raw, str(path), path.stem, hides)


def parsed(config_source: ConfigSource, sets: list[str]) -> Config:
    """Parse a configuration, and note if it hides another. Raises ConfigError, and UnmeasurableError on this system."""
    if config_source.hides:
        say(f"{config_source.default_name}: {config_source.name}, not the one that comes with CollBench", err=True)
    config = models.parse(config_source.raw, config_source.name, sets, config_source.default_name)
    if unsupported := host.unsupported_platform():
        raise UnmeasurableError("", unsupported)
    return config


def start(
    config_source: ConfigSource,
    sets: list[str],
    plots: bool,
    coordinator: "Coordinator | None",
    argv: Sequence[str],
    live: Callable[[Run], Watch] | None = None,
    output: Path | None = None,
    quiet: bool = False,
) -> int:
    """Plan a new run, measure it and write its report; return the exit code.

    live: measure row by row; it makes from the run the `Watch` that prints each row when it is known. output: the
    folder of the run; None for a new folder in results/. quiet: print one line.
    """
    config = parsed(config_source, sets)
    seed = config.seed if config.seed is not None else secrets.randbelow(2**32)
    machine = host.machine() if coordinator is None else coordinator.machine(planning.demands(config))
    sections = asked(config, machine)
    plan = planning.expand(config, machine, seed, sections)
    if live is not None:
        plan = planning.row_by_row(plan)
    reason = planning.unmeasurable_reason(plan)
    if reason is not None:
        raise UnmeasurableError(f"{config_source.name}: nothing can be measured here", reason)
    if planning.demands(plan).gpus:
        say(f"measuring {host.measured_with()}", err=True)
    facts = {"argv": list(argv), "overrides": sets}
    files = {name: text for section in sections for name, text in section.files.items()}
    path = folders.create(RESULTS, plan, config_source.raw, facts, files, output)
    return measured(path, plots, coordinator, live(folders.read(path)) if live is not None else None, quiet)


def measured(
    path: Path,
    plots: bool,
    coordinator: "Coordinator | None",
    watch: Watch | None = None,
    quiet: bool = False,
) -> int:
    """Measure the cases of the plan that are missing in the run's folder; then print and write the report.

    watch: prints rows during the run, so that neither a progress bar nor the tables at the end are shown.
    """
    try:
        measure(path, plots, coordinator, watch=watch, quiet=quiet)
    except KeyboardInterrupt:
        if folders.read(path).samples:  # a second Ctrl-C exits at once
            _conclude(path, plots, watch, quiet)
        raise
    try:
        return _conclude(path, plots, watch, quiet)
    except KeyboardInterrupt:
        say(wording.interrupted_after(path, folders.read_manifest(path).get("measurements")), err=True)
        raise


def _conclude(path: Path, plots: bool, watch: Watch | None, quiet: bool) -> int:
    """Print the tables and the answer of a run that has ended, write report and plots; return the exit code."""
    from collbench.analyze import noise
    from collbench.cli.output import analyzed, conclude
    from collbench.report.view import View

    run = folders.read(path)
    analysis = analyzed(run)
    faults = []
    if watch is not None:
        faults = watch.concluded(View(run, analysis))
        say(err=True)
    code = conclude(run, analysis, plots, quiet, watch is None, faults=faults)
    entry = noise.entry_of(run, analysis)
    if entry is not None and RESULTS.is_dir():  # False if all runs here were made with --output
        ledger.append(RESULTS, entry)
    return code


def measure(
    path: Path,
    plots: bool,
    coordinator: "Coordinator | None" = None,
    after_failure: bool = True,
    watch: Watch | None = None,
    quiet: bool = False,
) -> None:
    """Measure what is missing in a run, with a progress bar if not `quiet`. after_failure: go on after a failed launch.

    watch: prints rows during the run, so that a line for each launch replaces the bar.
    """
    with Journal(path) as journal:
        if not journal.locked:
            say(f"note: {path}: its file system has no locks: let no other process measure into it", err=True)
        before = folders.read(path)
        done = planning.done(before.plan, before.samples)
        if done is None:
            if folders.read_manifest(path)["status"] != "complete":  # Ctrl-C came after the last measurement
                with _marked(path):
                    pass
            return
        with contextlib.ExitStack() as stack:
            # Entered first, because it loads torch in the background.
            launcher = stack.enter_context(starter(coordinator, [before.plan]))
            from collbench.launch import sweep, turns
            from collbench.report.live import LiveTable
            from collbench.report.progress import CaseProgress, TimeLeft

            facts = {"": coordinator.facts() if coordinator else {}}
            console = Console(stderr=True, quiet=quiet, force_terminal=None if watch is None else False)
            live = LiveTable(before, Deferred("analyze.summaries:headlines")) if watch is None and not quiet else None
            missing = replace(before.plan, order=tuple(planning.remaining(before.plan, before.samples)))
            if missing.budget_s is not None:
                spent_s = sum(samples.usage.wall_s for samples in before.samples if samples.usage is not None)
                missing = replace(missing, budget_s=max(0.0, missing.budget_s - spent_s))
            progress = CaseProgress(console, before.plan.total, done, live, before.plan.launches, TimeLeft(missing))
            progress.failed = {(s.case.key, s.launch): s.failure is not None for s in before.samples}
            sessions = recorded_sessions(path, before.environment, facts, [before.plan], progress.counts)
            launches = stack.enter_context(sessions)[""]
            stack.enter_context(progress)
            modules = (*CONCLUDING, *(DRAWING if plots else ()))
            loading = threading.Thread(target=lambda: [*map(importlib.import_module, modules)], daemon=True)
            loading.start()

            def append(line: SampleLine) -> None:
                journal.append(line.text)
                if watch is not None:
                    watch.sampled(line.samples)
                if live is not None:
                    live.take(line)

            def before_go(launch: Launch, ranks: Sequence[Json]) -> None:
                earlier = [Session(launches=session.get("launches", [])) for session in before.environment]
                here = Session(launches=[{"ranks": cast("list[RankFacts]", ranks)}])
                _check_comparable(path, earlier, here, {launch.backend})
                loading.join()
                if watch is not None:
                    watch.joined(launch, cast("Sequence[RankFacts]", ranks))

            measuring = sweep.sweep(
                before.plan,
                before.samples,
                launcher,
                append,
                path / folders.LOG,
                launches.append,
                progress,
                before_go,
                after_failure=after_failure,
            )
            turns.drive(measuring, looked=progress.looked)


@contextlib.contextmanager
def starter(coordinator: "Coordinator | None", plans: Sequence[Plan]) -> Iterator["Starter"]:
    """Yield the starter of the ranks of these plans: the processes of a job, or local fork servers and mpirun."""
    from collbench.launch import launcher, mpirun

    if coordinator is not None:
        yield coordinator.launcher
        return
    with mpirun.ByBackend(launcher.preload(plans)) as here:
        yield here


@contextlib.contextmanager
def recorded_sessions(
    path: Path,
    sessions: Sequence[Session],
    facts: Mapping[str, Json],
    plans: Iterable[Plan],
    counted: Callable[[], Measurements] | None = None,
) -> Iterator[dict[str, list[Json]]]:
    """Record one session for each side of a run: its launches, its end, and the machine before and after it.

    Yields side → the list to which the caller adds the facts of each launch. Raises StoreError, before anything is
    measured or written, if this machine or software may not be mixed with the machine or software of the earlier
    `sessions`. facts: side → additional facts of its session; a run without sides has one side, "". plans: the plans
    that are measured. counted: counts the measurements of the run when the session ends.
    """
    here: Json = {"host": host.facts(), "before": host.state()}
    added: dict[str, Json] = {
        side: {**({"side": side} if side else {}), **here, **side_facts} for side, side_facts in facts.items()
    }
    backends = {case.backend for plan in plans for launch in plan.order for case in launch.cases}
    for session in added.values():
        _check_comparable(path, sessions, cast("Session", session), backends)
    with _marked(path, counted):
        folders.write_environment(path, [*sessions, *added.values()])
        launches: dict[str, list[Json]] = {side: [] for side in facts}
        try:
            yield launches
        finally:
            after = host.state()
            for side, session in added.items():
                session |= {"after": after, "launches": launches[side]}
            with contextlib.suppress(StoreError):  # a full disk has been reported already
                folders.write_environment(path, [*sessions, *added.values()])


def _check_comparable(path: Path, recorded: Sequence[Session], here: Session, backends: Iterable[str]) -> None:
    """Raise StoreError if `here` differs in a fact that makes times incomparable; print the other differences."""
    from collbench.analyze import comparability

    different = comparability.session_differences(recorded, here, backends)
    blocking = [difference for difference in different if difference.blocking]
    if blocking:
        raise StoreError(wording.refused_resume(path, recorded[-1], blocking))
    for difference in different:
        say(f"note: {sentence(difference.notice)}", err=True)


@contextlib.contextmanager
def _marked(path: Path, counted: Callable[[], Measurements] | None = None) -> Iterator[None]:
    """Write into the manifest how the run ended; after an interrupt, print how to go on."""

    def mark(status: str) -> None:
        counts = {} if counted is None else {"measurements": counted()}
        finished = datetime.now(UTC).isoformat(timespec="seconds")
        folders.update_manifest(path, status=status, finished=finished, **counts)

    try:
        folders.update_manifest(path, status="running")
        with interrupts.deferred():
            yield
    except KeyboardInterrupt:
        with contextlib.suppress(StoreError):
            mark("interrupted")
        say(f"interrupted; measured cases are kept, go on with: collbench resume {path}", err=True)
        raise
    except BaseException:
        with contextlib.suppress(StoreError):
            mark("failed")
        raise
    mark("complete")
