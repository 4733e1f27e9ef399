"""A run as pandas tables, for notebooks: `from collbench.notebook import load_run`."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from collbench.cli.app import RESULTS
from collbench.cli.output import analyzed
from collbench.model.facts import Manifest, Session
from collbench.model.records import Run
from collbench.model.units import NS, counted
from collbench.report import machine_format
from collbench.report.notices import sentences
from collbench.report.view import View
from collbench.store import folders

# Columns of `LoadedRun.samples`.
COLUMNS = (
    "key", "op", "world_size", "size_bytes", "scheduling", "launch", "iteration", "rank", "start_s", "duration_s",
    "calls",
)  # fmt: skip


@dataclass(frozen=True)
class LoadedRun:
    """A run as pandas tables."""

    name: str
    # The manifest and the environment, as in the folder of the run.
    manifest: Manifest
    environment: list[Session]
    # Content of summary.csv, one row per case (docs/reading.md has its columns; seconds, bytes, bytes/s).
    summary: pd.DataFrame
    # The facts, one row for each iteration of each rank. start_s is of the monotonic clock of the host. If cases are
    # compared round by round, an iteration is a round.
    samples: pd.DataFrame
    # The report's statements on how far the run can be trusted.
    warnings: tuple[str, ...]

    def __repr__(self) -> str:
        started, cases = self.manifest.get("started", "?"), counted(len(self.summary), "case")
        shown = f"run {self.name}, {started}\n{cases}, {len(self.samples)} samples: .summary, .samples"
        return f"{shown}\n{counted(len(self.warnings), 'warning')}: .warnings"


def load_run(run: str | Path | None = None) -> LoadedRun:
    """Read a run: its folder, its name below results/, or the newest one. Raises StoreError."""
    path = folders.find(RESULTS, None if run is None else str(run))
    result = folders.read(path)
    analysis = analyzed(result)
    text = machine_format.to_csv(View(result, analysis))
    summary = pd.read_csv(io.StringIO(text))
    rows = [*_iterations(result)]
    samples = pd.concat(rows, ignore_index=True) if rows else pd.DataFrame(columns=COLUMNS)
    return LoadedRun(
        result.name, result.manifest, result.environment, summary, samples, tuple(sentences(analysis.notices))
    )


def _iterations(run: Run) -> Iterator[pd.DataFrame]:
    for entry in run.samples:
        if entry.timed is not None:
            iterations, ranks = entry.timed.duration_ns.shape
            columns = (
                entry.case.key,
                entry.case.op,
                entry.case.world_size,
                entry.case.size_bytes,
                entry.case.scheduling,
                entry.launch,
                [number for number in range(iterations) for _ in range(ranks)],
                [*range(ranks)] * iterations,
                (entry.base_ns + entry.timed.start_ns).ravel() * NS,
                entry.timed.duration_ns.ravel() * NS,
                entry.timed.calls,
            )
            yield pd.DataFrame(dict(zip(COLUMNS, columns, strict=True)))
