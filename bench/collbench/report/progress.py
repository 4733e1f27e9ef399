"""Show the progress of a run: a bar on a terminal, elsewhere a line for each launch.

Implements the `Observer` of `launch.sweep`. Draws only between rounds: while ranks measure, this process sleeps and
leaves every core to them.
"""

import time
from collections.abc import Callable, Iterable, Sequence
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


class _Above(Progress):
    """A bar with lines above it."""

    lines: Sequence[str] = ()

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from (Text(line, no_wrap=True, overflow="crop") for line in self.lines)
        yield from super().get_renderables()


class TimeLeft:
    """Predicts the remaining time of a plan: its estimates, scaled by the durations of launches so far."""

    def __init__(self, plan: Plan, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin to count the time. plan: contains only the launches that are still to be made."""
        self._clock, self._began = clock, clock()
        self._budget_s = plan.budget_s
        self._settings = plan.settings
        # Kind and number of each launch that has not begun → its estimate, in seconds.
        self._waiting = {
            (process_kind(launch.cases[0]), launch.number): launch_s(launch, self._settings) for launch in plan.order
        }
        # Kind of launch → duration of its last launch, divided by the estimate.
        self._factors: dict[Kind, float] = {}
        # Kind, estimate and beginning of the launch that is measured.
        self._now: tuple[Kind, float, float] | None = None

    def launching(self, launch: Launch) -> None:
        """Note that a launch begins, and that the launch before it has ended."""
        now, kind = self._clock(), process_kind(launch.cases[0])
        if self._now is not None and self._now[1]:
            before, estimate_s, began = self._now
            self._factors[before] = (now - began) / estimate_s
        self._waiting.pop((kind, launch.number), None)
        # Launch 0 times nothing; a launch after a failure has only the remaining cases.
        estimate_s = launch_s(launch, self._settings) if launch.number else 0.0
        self._now = (kind, estimate_s, now)

    def seconds(self) -> float:
        """Return the predicted number of seconds from now to the end."""
        now = self._clock()
        if self._budget_s is not None:
            return max(0.0, self._budget_s - (now - self._began))
        left_s = sum(estimate_s * self._factor(kind) for (kind, _), estimate_s in self._waiting.items())
        if self._now is not None:
            kind, estimate_s, began = self._now
            left_s += max(0.0, estimate_s * self._factor(kind) - (now - began))
        return left_s

    def _factor(self, kind: Kind) -> float:
        """Return the factor of this kind of launch; else the mean factor of other kinds; 1 in the first launch."""
        factors = list(self._factors.values()) or [1.0]
        return self._factors.get(kind, sum(factors) / len(factors))


class _Left(ProgressColumn):
    """A column with the remaining time."""

    def __init__(self, left: TimeLeft) -> None:
        super().__init__()
        self._left = left

    def render(self, task: Task) -> Text:
        minutes, seconds = divmod(round(self._left.seconds()), 60)
        return Text(f"{minutes // 60}:{minutes % 60:02}:{seconds:02}", style="progress.remaining")


class ProgressBar:
    """A context with a bar on a terminal. Its length is `total` and its state is `done`; it shows `columns`."""

    def __init__(self, console: Console, text: str, total: float, done: float, *columns: ProgressColumn) -> None:
        self._console = console
        self._progress = _Above(
            TextColumn("{task.description}", markup=False),
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
        columns = [] if left is None else [TextColumn("left"), _Left(left)]
        super().__init__(
            console, "starting the ranks", total, done, MofNCompleteColumn(), TimeElapsedColumn(), *columns
        )
        self._total, self._live, self._launches, self._left = total, live, launches, left
        # Key of a case and launch that was measured → whether it failed.
        self.failed: dict[tuple[str, int], bool] = {}
        self._launch = 0
        # Time when a round was last drawn.
        self._drawn_s = 0.0

    def launching(self, launch: Launch) -> None:
        """Show that ranks are being started; without a terminal, print a line."""
        self._launch = launch.number
        if self._left is not None:
            self._left.launching(launch)
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
            # Two lines stay free: for the bar, and for a line that scrolls in.
            self._progress.lines = self._live.lines(self._console.width, self._console.height - 2)

    def round_begins(self, launch: Launch, number: int) -> None:
        """Show that a round begins, which visits every case once; number 0 is the warm-up.

        Later rounds are drawn at most every REDRAWN_S seconds: their first call may begin before the drawing ends.
        """
        if number == 0:
            self._sharpen()
        elif time.monotonic() < self._drawn_s + REDRAWN_S:
            return
        self._drawn_s = time.monotonic()
        self._describe(f"{_words(launch, self._launches)}, {f'round {number}' if number else 'warm-up'}")

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
