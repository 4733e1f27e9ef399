"""Does the live table change the times of the run that it shows? It must not, within the allowed deviation.

Sweeps with the live table on a terminal of 100 columns and sweeps that show nothing alternate in random order. A second
line counts drawings during a timed call, by the clock that ranks and the drawing process share.
"""

import io
import random
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from collbench.analyze.summaries import headlines
from collbench.config import models
from collbench.launch.sweep import Silent, sweep
from collbench.launch.turns import drive
from collbench.machine import host
from collbench.model.records import Plan, Run, Samples
from collbench.planning import plan
from collbench.report.live import LiveTable
from collbench.report.progress import CaseProgress, TimeLeft
from proof.claim import Line, at_most, within
from proof.overhead import ratio_of
from proof.rig import Rig, all_reduces

ALLOWED = 0.01
# Two launches, so that a table is also drawn between them. With normal scheduling, gloo's stalls would hide any effect.
CONFIG = all_reduces(
    launches=2, sizes=["1KiB", "64KiB", "1MiB"], scheduling="batch", sampling={"seconds_per_case": 0.1}, timeout=None
)


class _Timed(CaseProgress):
    """The progress of a sweep, which records when it draws."""

    def __init__(self, *given: Any) -> None:
        self.drawn_ns: list[tuple[int, int]] = []
        super().__init__(*given)

    def _sharpen(self) -> None:
        self._note(super()._sharpen)

    def _describe(self, text: str, **changes: float) -> None:
        self._note(lambda: super(_Timed, self)._describe(text, **changes))

    def _note(self, draw: Callable[[], None]) -> None:
        began = time.perf_counter_ns()
        draw()
        self.drawn_ns.append((began, time.perf_counter_ns()))


def live_table(rig: Rig, trials: int) -> list[Line]:
    """Compare the times of shown sweeps with silent ones, and count drawings that overlap a timed call."""
    planned = plan.expand(models.parse(CONFIG.encode(), "live", []), host.machine(), 1)
    dice, logs, draws, overlapping = random.Random(11), [], 0, 0
    for _ in range(trials):
        times = {}
        for shown in dice.sample((True, False), 2):
            samples, drawn_ns = _measured(rig, planned, shown)
            times[shown] = np.mean([np.log(each.timed.slowest_s.mean()) for each in samples if each.timed])
            draws += len(drawn_ns)
            overlapping += sum(_overlaps(samples, *drawing) for drawing in drawn_ns)
        logs.append(times[True] - times[False])
    middle, low, high = ratio_of(np.exp(logs))
    return [
        within("times of a sweep that is shown / one that is not", middle, low, high, ALLOWED, f"; {trials} pairs"),
        at_most("drawing while a call is timed", overlapping, draws, 0.001),
    ]


def _measured(rig: Rig, planned: Plan, shown: bool) -> tuple[list[Samples], list[tuple[int, int]]]:
    """Measure a sweep; return its samples, and the start and end of each drawing, in ns."""
    kept: list[Samples] = []
    with tempfile.TemporaryDirectory(dir=rig.folder) as folder, ExitStack() as stack:
        live = LiveTable(Run(Path(folder), {}, planned, [], []), headlines)
        console = Console(file=io.StringIO(), width=100, height=40, force_terminal=True)
        progress = _Timed(console, planned.total, 0, live, planned.launches, TimeLeft(planned))
        if shown:
            stack.enter_context(progress)

        def keep(line: Any) -> None:
            kept.append(line.samples)
            if shown:
                live.take(line)

        observer = progress if shown else Silent()
        drive(sweep(planned, [], rig.launcher, keep, Path(folder, "log.txt"), lambda _: None, observer))
    return kept, progress.drawn_ns


def _overlaps(samples: list[Samples], began_ns: int, ended_ns: int) -> bool:
    """Return whether a call was timed in this interval; ranks and this process use the same clock."""
    calls = ((each.timed.start_ns + each.base_ns, each.timed.duration_ns) for each in samples if each.timed is not None)
    return any(((starts < ended_ns) & (starts + durations > began_ns)).any() for starts, durations in calls)
