"""Runs of the suite for the proof: the real plan, sweep, store and analysis, in a folder that is thrown away.

In: the text of a configuration and whoever starts the ranks. Out: a `Run` as `store.read` gives it, or a `TrainingRun`
of the training benchmark.
"""

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.training.launch.sweep import sweep as train_sweep

from bench.config import models, training
from bench.launch.launcher import Launcher
from bench.launch.ranks import Starter
from bench.launch.sweep import sweep
from bench.machine import host
from bench.model.records import Run
from bench.model.training import LaunchFailure, StrategyChecks, TrainingPlan, TrainingRun
from bench.planning import plan
from bench.planning import training as training_plan
from bench.store import folders
from bench.store.folders import Journal


@dataclass(frozen=True)
class Rig:
    """launcher: entered once, so that torch is loaded once. folder: where the runs go."""

    launcher: Launcher
    folder: Path

    def measure(self, text: str, starter: Starter | None = None) -> Run:
        """One run of a configuration; raises AssertionError if any case of it failed."""
        settings = models.parse(text.encode(), "proof", default_name="proof")
        seed = settings.seed if settings.seed is not None else secrets.randbelow(2**32)
        planned = plan.expand(settings, host.machine(), seed)
        assert not planned.skips, planned.skips[0].reason
        path = folders.create(self.folder, planned, text.encode(), {})
        launches: list[Any] = []
        with Journal(path) as journal:
            sweep(
                planned,
                [],
                starter or self.launcher,
                journal.append,
                path / folders.LOG,
                launches.append,
                SilentObserver(),
            )
        folders.write_environment(path, [{"launches": launches}])
        folders.update_manifest(path, status="complete")
        run = folders.read(path)
        failures = [s.failure for s in run.samples if s.failure is not None]
        assert not failures, failures[0]
        return run

    def train(self, text: str, starter: Starter | None = None) -> TrainingRun:
        """The same with the training benchmark; nothing of it may fail."""
        settings = training.parse(text.encode(), "proof", [], "proof")
        seed = settings.seed if settings.seed is not None else secrets.randbelow(2**32)
        planned = training_plan.expand(settings, host.machine(), seed)
        assert not planned.skips, planned.skips[0].reason
        return self.trained(planned, starter)

    def trained(self, planned: TrainingPlan, starter: Starter | None = None) -> TrainingRun:
        """The same of a plan."""
        path = folders.create(self.folder, planned, b"", {})
        with Journal(path) as journal:
            train_sweep(
                planned,
                [],
                starter or self.launcher,
                journal.append,
                path / folders.LOG,
                lambda _: None,
                SilentObserver(),
            )
        run = folders.read(path)
        broken = [one.failure for one in run.facts if isinstance(one, LaunchFailure)]
        assert not broken, broken[0]
        failed = [check for one in run.facts if isinstance(one, StrategyChecks) for check in one.failed]
        assert not failed, failed[0]
        return run


class SilentObserver:
    """An observer of a sweep that shows nothing."""

    def launching(self, *_: object) -> None: ...

    def round_begins(self, *_: object) -> None: ...

    def ended(self, *_: object) -> None: ...

    def extended(self, *_: object) -> None: ...

    def checking(self, *_: object) -> None: ...

    def rounds_begin(self, *_: object) -> None: ...

    def measured(self, *_: object) -> None: ...
