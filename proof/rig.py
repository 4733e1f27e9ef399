"""Runs of the suite for the proof: the real plan, sweep, store and analysis, in a folder that is thrown away.

In: the text of a configuration and whoever starts the ranks. Out: a `Run` as `store.read` gives it.
"""

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.config import models
from bench.launch.launcher import Launcher
from bench.launch.ranks import Starter
from bench.launch.sweep import Silent, sweep
from bench.launch.turns import drive
from bench.machine import host
from bench.model.records import Run
from bench.planning import plan
from bench.report.notices import sentence
from bench.store import folders
from bench.store.folders import Journal


@dataclass(frozen=True)
class Rig:
    """launcher: entered once, so that torch is loaded once. folder: where the runs go. quick: of a quick proof."""

    launcher: Launcher
    folder: Path
    quick: bool = False

    def measure(self, text: str, starter: Starter | None = None) -> Run:
        """One run of a configuration; raises AssertionError if any case of it failed."""
        config = models.parse(text.encode(), "proof", default_name="proof")
        seed = config.seed if config.seed is not None else secrets.randbelow(2**32)
        planned = plan.expand(config, host.machine(), seed)
        assert not planned.skips, sentence(planned.skips[0].reason)
        path = folders.create(self.folder, planned, text.encode(), {})
        launches: list[Any] = []
        with Journal(path) as journal:
            log = path / folders.LOG
            ranks = starter or self.launcher
            drive(sweep(planned, [], ranks, lambda line: journal.append(line.text), log, launches.append, Silent()))
        folders.write_environment(path, [{"launches": launches}])
        folders.update_manifest(path, status="complete")
        run = folders.read(path)
        failures = [samples.failure for samples in run.samples if samples.failure is not None]
        assert not failures, failures[0]
        return run
