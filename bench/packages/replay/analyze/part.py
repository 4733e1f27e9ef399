"""Provide the conclusions on replays to the core."""

from collections.abc import Sequence

from bench.analyze.parts import AnalysisPart
from bench.model.conclusions import Summary
from bench.model.records import Run
from bench.packages.replay.analyze.recorded import recorded_job
from bench.packages.replay.analyze.steps import replayed_steps
from bench.packages.replay.conclusions import ReplayAnalysis
from bench.packages.replay.replayed_calls import NAME


def analyze(run: Run, summaries: Sequence[Summary]) -> ReplayAnalysis:
    """Return where the time of the recorded job went, and how long its replayed steps take here."""
    recording = run.kept.get(NAME)
    recorded = recorded_job(recording) if recording is not None else None
    return ReplayAnalysis(recorded, tuple(replayed_steps(run, recorded)))


ANALYSIS = AnalysisPart(analyze=analyze)
