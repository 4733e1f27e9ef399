"""Run the suite for the proof: the real plan, sweep and store, in a folder that is deleted afterwards.

In: the text of a configuration, and the starter of the ranks. Out: a `Run`, as `store.folders.read` returns it.
"""

import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collbench.config import models
from collbench.launch.launcher import Launcher
from collbench.launch.ranks import Starter
from collbench.launch.sweep import sweep
from collbench.launch.turns import drive
from collbench.machine import host
from collbench.model.records import Run
from collbench.planning import plan
from collbench.report.notices import sentence
from collbench.store import folders
from collbench.store.folders import Journal

USUAL = {"backends": ["gloo"], "world_sizes": [2], "operations": ["all_reduce"], "timeout": "60s"}


def all_reduces(**keys: Any) -> str:
    """Return a configuration of all-reduces at two gloo ranks, but for these keys; None leaves a usual key out."""
    return json.dumps({key: value for key, value in (USUAL | keys).items() if value is not None})


def steps(launches: int, **training: Any) -> str:
    """Return a configuration of training steps at two gloo ranks."""
    return all_reduces(operations=None, timeout=None, launches=launches, training={"batch": 1, **training})


@dataclass(frozen=True)
class Rig:
    """A folder for the runs of a proof, and a launcher, entered once, so that torch is loaded once."""

    launcher: Launcher
    folder: Path
    quick: bool = False

    def measure(self, text: str, starter: Starter | None = None) -> Run:
        """Run a configuration and return the run; raises AssertionError if any case failed."""
        config = models.parse(text.encode(), "proof", default_name="proof")
        seed = config.seed if config.seed is not None else secrets.randbelow(2**32)
        planned = plan.expand(config, host.machine(), seed)
        assert not planned.skips, sentence(planned.skips[0].reason)
        path = folders.create(self.folder, planned, text.encode(), {})
        launches: list[Any] = []
        with Journal(path) as journal:
            log = path / folders.LOG
            ranks = starter or self.launcher
            drive(sweep(planned, [], ranks, lambda line: journal.append(line.text), log, launches.append))
        folders.write_environment(path, [{"launches": launches}])
        folders.update_manifest(path, status="complete")
        run = folders.read(path)
        failures = [samples.failure for samples in run.samples if samples.failure is not None]
        assert not failures, failures[0]
        return run
