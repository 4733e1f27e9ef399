"""Provide the conclusions on replays to the core."""

from collections.abc import Sequence

from collbench.analyze.parts import AnalysisPart
from collbench.model.conclusions import Summary
from collbench.model.records import Run
from collbench.packages.replay.analyze.recorded import recorded_job
from collbench.packages.replay.analyze.steps import replayed_steps
from collbench.packages.replay.conclusions import ReplayAnalysis
from collbench.packages.replay.replayed_calls import NAME


def analyze(run: Run, summaries: Sequence[Summary]) -> ReplayAnalysis:
    """Return where the time of the recorded job went, and how long its replayed steps take here."""
    recording = run.kept.get(NAME)
    recorded = recorded_job(recording) if recording is not None else None
    return ReplayAnalysis(recorded, tuple(replayed_steps(run, recorded)))


ANALYSIS = AnalysisPart(analyze=analyze)
