"""Show the progress of a run: a bar on a terminal, elsewhere a line for each launch.

Implements the `Observer` of `launch.sweep`. Draws only between rounds: while ranks measure, this process sleeps and
leaves every core to them.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from statistics import fmean
from types import TracebackType
from typing import Self, TypeAlias

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from collbench.catalog.collectives import OPERATIONS
from collbench.model.comparisons import Judgement
from collbench.model.facts import Measurements
from collbench.model.records import Case, Launch, Plan
from collbench.model.units import counted, format_ratio, format_seconds
from collbench.model.visible import visible
from collbench.planning.plan import launch_s, process_kind
from collbench.report.labels import describe, label, ranks_text
from collbench.report.live import LiveTable
from collbench.store.encoding import SampleLine

# Shortest time between two rounds that are drawn, so that drawing takes no core from the calls that are timed.
REDRAWN_S = 2.0
# Properties that all ranks of a launch share (`process_kind`). Launches of one kind take similar times.
Kind: TypeAlias = tuple[object, ...]
# The time left is shown if it is within this factor of the truth even with an error of SURE standard deviations.
WITHIN, SURE = 1.5, 1.75
# Latest launches of a kind that count, for loads change; their standard deviation, before it is known, over their mean.
RECENT, SPREAD = 3, 0.15
# Time from the last launch to the answer and its pictures, measured 1 to 10 s; an error of it, with 2 s since drawing.
END_S, UNKNOWN_S = 3.0, 5.0


class _Above(Progress):
    """A bar with lines above it, the last of which says what is done."""

    lines: Sequence[str] = ()

    def get_renderables(self) -> Iterable[RenderableType]:
        lines = [*self.lines, *(task.description for task in self.tasks)]
        yield from (Text(line, no_wrap=True, overflow="crop") for line in lines)
        yield from super().get_renderables()


class TimeLeft(ProgressColumn):
    """A column with the predicted time to the end: a launch takes the mean time of launches of its kind so far."""

    def __init__(self, plan: Plan, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin to count the time. plan: contains only the launches that are still to be made."""
        super().__init__()
        self._plan, self._clock, self._began = plan, clock, clock()
        self._estimate_s = partial(launch_s, settings=plan.settings)
        # At the end, one launch of each kind, with number 0, reads NCCL's choices: little more than a start of ranks.
        reads = [replace(each, number=0, cases=each.cases[:1]) for each in plan.order if each.backend == "nccl"]
        # Kind and number of each launch that has not begun → its estimate, in seconds.
        self._waiting = {(process_kind(of.cases[0]), of.number): self._estimate_s(of) for of in (*plan.order, *reads)}
        # Kind of launch → durations of its launches, divided by their estimates, because their cases may differ.
        self._factors: dict[Kind, list[float]] = {}
        # The launch that is measured, and its beginning.
        self._now: tuple[Launch, float] | None = None

    def launching(self, launch: Launch) -> None:
        """Note that a launch has begun, and that the launch before it has ended; it may be noted again."""
        if self._now is not None:
            before, began = self._now
            if before is launch:
                return
            factor = (self._clock() - began) / self._estimate_s(before)
            self._factors.setdefault(process_kind(before.cases[0]), []).append(factor)
        self._waiting.pop((process_kind(launch.cases[0]), launch.number), None)
        self._now = (launch, self._clock())

    def seconds(self) -> float | None:
        """Return the predicted seconds from now to the end; None if they may be wrong by more than a factor WITHIN."""
        if self._now is None:
            return None
        launch, began = self._now
        kind, estimate_s, spent_s = process_kind(launch.cases[0]), self._estimate_s(launch), self._clock() - began
        to_come = [(kind, estimate_s), *((kind, each_s) for (kind, _), each_s in self._waiting.items())]
        if not {kind for kind, _ in to_come} <= self._factors.keys():
            return None
        factors = {kind: of[-RECENT:] for kind, of in self._factors.items()}
        if spent_s > estimate_s * fmean(factors[kind]):  # slower than its kind: it counts before its end
            factors[kind] = [*factors[kind], spent_s / estimate_s]
        means = {kind: fmean(of) for kind, of in factors.items()}
        deviations = [factor / means[kind] - 1 for kind, of in factors.items() for factor in of]
        spread = math.hypot(SPREAD, *deviations) / math.sqrt(1 + len(deviations) - len(means))
        seconds = [estimate_s * means[kind] for kind, estimate_s in to_come]
        # Each launch differs from the mean of its kind, and all of them from what a mean of few launches says.
        fewest = min(len(factors[kind]) for kind, _ in to_come)
        error_s = SURE * spread * math.hypot(*seconds, sum(seconds) / math.sqrt(fewest))
        left_s = END_S + sum(seconds) - min(spent_s, seconds[0])
        if self._plan.budget_s is not None:  # it is spent to its end, unless a precision suffices
            left_s = END_S + self._plan.budget_s - (self._clock() - self._began)
            error_s = math.inf if self._plan.settings.sampling.relative_error else 0.0
        return left_s if left_s - error_s - UNKNOWN_S >= left_s / WITHIN else None

    def render(self, task: Task) -> Text:
        """Write the time left; nothing if it is not known."""
        left_s = self.seconds()
        return Text("" if left_s is None else f"left {timedelta(seconds=round(left_s))}", style="progress.remaining")


class ProgressBar:
    """A context with a bar on a terminal. Its length is `total` and its state is `done`; it shows `columns`."""

    def __init__(self, console: Console, text: str, total: float, done: float, *columns: ProgressColumn) -> None:
        self._console = console
        self._progress = _Above(
            BarColumn(bar_width=30),
            *columns,
            console=console,
            auto_refresh=False,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(text, total=total)
        self._progress.update(self._task, completed=done)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._progress.stop()

    def print_failure(self, text: str) -> None:
        """Print a red line that stays. It is not read as markup, because gloo's messages have brackets."""
        self._line(text, "red")

    def _line(self, text: str, style: str | None = None) -> None:
        self._console.print(visible(text), style=style, highlight=False, markup=False, soft_wrap=True)

    def _describe(self, text: str, **changes: float) -> None:
        """Show this text as the current activity."""
        self._progress.update(self._task, description=visible(text), **changes)  # type: ignore[arg-type]
        self._progress.refresh()


class CaseProgress(ProgressBar):
    """The progress of a sweep: cases done in all launches, current activity of the ranks, and remaining time."""

    def __init__(
        self,
        console: Console,
        total: int,
        done: int,
        live: LiveTable | None = None,
        launches: int | None = None,
        left: TimeLeft | None = None,
    ) -> None:
        """Make the bar. live: the table of the results so far. launches: number of planned launches."""
        columns = [MofNCompleteColumn(), TimeElapsedColumn(), *([] if left is None else [left])]
        super().__init__(console, "starting the ranks", total, done, *columns)
        self._total, self._live, self._launches, self._left = total, live, launches, left
        # Key of a case and launch that was measured → whether it failed.
        self.failed: dict[tuple[str, int], bool] = {}
        self._launch = 0
        # The launch whose ranks start or prepare their cases; None while rounds are measured.
        self._starting: Launch | None = None
        # Time of the last drawing in a launch.
        self._drawn_s = 0.0

    def launching(self, launch: Launch) -> None:
        """Show that ranks are being started; without a terminal, print a line."""
        self._launch, self._starting = launch.number, launch
        if self._console.is_terminal:
            self._sharpen()
            self._describe(_words(launch, self._launches))
        else:
            so_far = self._live.so_far() if self._live is not None else ""
            begins = f"{_words(launch, self._launches)}: {counted(len(launch.cases), 'case')}"
            self._line("; ".join(filter(None, [begins, so_far])))

    def _sharpen(self) -> None:
        """Show the table so far above the bar. It is called only while no call is timed."""
        if self._live is not None and self._console.is_terminal:
            # Three lines stay free: for what is done, for the bar, and for a line that scrolls in.
            self._progress.lines = self._live.lines(self._console.width, self._console.height - 3)

    def looked(self) -> None:
        """Draw anew while ranks start or prepare their cases. The first look is after torch has been loaded."""
        if self._starting is not None:
            if self._left is not None:
                self._left.launching(self._starting)
            self._draw(_words(self._starting, self._launches))

    def round_begins(self, launch: Launch, number: int) -> None:
        """Show that a round begins, which visits every case once; number 0 is the warm-up.

        Later rounds are drawn at most every REDRAWN_S seconds: their first call may begin before the drawing ends.
        """
        self._starting = None
        if number == 0:
            self._sharpen()
        self._draw(f"{_words(launch, self._launches)}, {f'round {number}' if number else 'warm-up'}")

    def _draw(self, text: str) -> None:
        """Show this text, if the last drawing is at least REDRAWN_S seconds old."""
        if time.monotonic() >= self._drawn_s + REDRAWN_S:
            self._drawn_s = time.monotonic()
            self._describe(text)

    def first_times(self, lines: Sequence[SampleLine]) -> None:
        """Show the times of the cases after one round, while the ranks rest."""
        if self._live is not None and self._console.is_terminal:
            self._live.first = lines
            self._sharpen()
            self._progress.refresh()

    def ended(self, case: Case, failure: str | None) -> None:
        """Count a case that has ended. failure: the reason if it failed, which is printed."""
        self.failed[case.key, self._launch] = failure is not None
        self._progress.advance(self._task)
        if failure is not None:
            self.print_failure(f"failed: {label(case)}: {failure}")

    def extended(self, further: int) -> None:
        """Add this many measurements to the total; subtract them if negative."""
        self._total += further
        self._progress.update(self._task, total=self._total)

    def counts(self) -> Measurements:
        """Return the numbers of measurements made, failed and planned so far."""
        return {"made": len(self.failed), "failed": sum(self.failed.values()), "planned": self._total}


def _words(launch: Launch, launches: int | None = None) -> str:
    """Format a launch as `gloo, 2 ranks, launch 3 of 8`, after options that labels name first and all cases share."""
    names = {option.name for option in OPERATIONS[launch.cases[0].op].own_options if option.first}
    first = [part.words for part in describe(launch.cases)[0] if part.name in names]
    of = f" of {launches}" if launches is not None and launch.number <= launches else ""
    which = f"launch {launch.number}{of}" if launch.number else "reading which algorithms it chose"
    return ", ".join([*first, launch.backend, ranks_text(launch.world_size), which])


class PairProgress(ProgressBar):
    """The progress of a run of two sides: the number of pairs, and the verdict so far."""

    def __init__(self, console: Console, budget_s: float, spent_s: float) -> None:
        limit = TextColumn(f"of at most {format_seconds(budget_s)}")
        super().__init__(console, "starting the ranks", budget_s, spent_s, limit)
        self._judged = "no verdict yet"

    def show_pairs(self, pairs: int, spent_s: float) -> None:
        """Show that this many pairs are measured."""
        self._describe(f"pair {pairs}: {self._judged}", completed=spent_s)

    def show_look(self, whole: Judgement | None, verdicts: Sequence[str], pairs: int) -> None:
        """Show the judgements of an interim look; without a terminal, print a line."""
        counts = ", ".join(f"{verdicts.count(verdict)} {verdict.lower()}" for verdict in dict.fromkeys(verdicts))
        index = ""
        if whole is not None:
            ratio, low, high = map(format_ratio, (whole.ratio.value, whole.ratio.low, whole.ratio.high))
            index = f"B / A {ratio} [{low} – {high}], "
        self._judged = f"{index}{counts}"
        if not self._console.is_terminal:
            self._line(f"{pairs} pairs: {self._judged}")
