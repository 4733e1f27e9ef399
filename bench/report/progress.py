"""Show the progress of a run: a bar on a terminal, elsewhere a line for each launch.

Implements the `Observer` of `launch.sweep`. Draws only between rounds: while ranks measure, this process sleeps and
leaves every core to them.
"""

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from bench.catalog.collectives import OPERATIONS
from bench.model.comparisons import Judgement
from bench.model.records import Case, Launch
from bench.model.units import counted, format_ratio, format_seconds
from bench.model.visible import visible
from bench.report.labels import describe, label, ranks_text
from bench.report.live import LiveTable
from bench.store.encoding import SampleLine


class _Above(Progress):
    """A bar with lines above it."""

    lines: Sequence[str] = ()

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from (Text(line, no_wrap=True, overflow="crop") for line in self.lines)
        yield from super().get_renderables()


class _Left(TimeRemainingColumn):
    """The time that is left: by the plan's estimate until cases were measured, then as fast as they came."""

    def __init__(self, estimate_s: float | None) -> None:
        super().__init__()
        self._estimate_s = estimate_s

    def render(self, task: Task) -> Text:
        if self._estimate_s is None or task.time_remaining is not None:
            return super().render(task)
        left_s = max(0.0, self._estimate_s - (task.elapsed or 0.0))
        return Text(f"{left_s // 3600:.0f}:{left_s // 60 % 60:02.0f}:{left_s % 60:02.0f}", style="progress.remaining")


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
        """Print a red line that stays. It is no markup: gloo's messages have brackets."""
        self._line(text, "red")

    def _line(self, text: str, style: str | None = None) -> None:
        self._console.print(visible(text), style=style, highlight=False, markup=False, soft_wrap=True)

    def _describe(self, text: str, **changes: float) -> None:
        """Show what is done now."""
        self._progress.update(self._task, description=visible(text), **changes)  # type: ignore[arg-type]
        self._progress.refresh()


class CaseProgress(ProgressBar):
    """The progress of a sweep: cases done in all launches, what ranks do now, and the time that is left."""

    def __init__(
        self,
        console: Console,
        total: int,
        done: int,
        live: LiveTable | None = None,
        launches: int | None = None,
        estimate_s: float | None = None,
    ) -> None:
        """live: what the run has so far. launches: as many as are planned. estimate_s: how long it takes."""
        columns = (MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"), _Left(estimate_s))
        super().__init__(console, "starting the ranks", total, done, *columns)
        self._total, self._live, self._launches = total, live, launches

    def launching(self, launch: Launch) -> None:
        """Ranks are being started: without a terminal, a line."""
        if self._console.is_terminal:
            self._sharpen()
            self._describe(_words(launch, self._launches))
        else:
            so_far = self._live.so_far() if self._live is not None else ""
            self._line(
                "; ".join(
                    filter(None, [f"{_words(launch, self._launches)}: {counted(len(launch.cases), 'case')}", so_far])
                )
            )

    def _sharpen(self) -> None:
        """Show the table so far above the bar; no call is timed now."""
        if self._live is not None and self._console.is_terminal:
            # The bar, and a line for what scrolls in.
            self._progress.lines = self._live.lines(self._console.width, self._console.height - 2)

    def round_begins(self, launch: Launch, number: int) -> None:
        """Every case is visited once more; number 0 is the warm-up."""
        if number == 0:
            self._sharpen()
        self._describe(f"{_words(launch, self._launches)}, {f'round {number}' if number else 'warm-up'}")

    def first_times(self, lines: Sequence[SampleLine]) -> None:
        """Show what cases have after one round; the ranks rest meanwhile."""
        if self._live is not None and self._console.is_terminal:
            self._live.take_first(lines)
            self._sharpen()
            self._progress.refresh()

    def ended(self, case: Case, failure: str | None) -> None:
        """A case is measured, or has failed for a reason."""
        self._progress.advance(self._task)
        if failure is not None:
            self.print_failure(f"failed: {label(case)}: {failure}")

    def extended(self, further: int) -> None:
        """Add this many measurements to the total; subtract them if negative."""
        self._total += further
        self._progress.update(self._task, total=self._total)


def _words(launch: Launch, launches: int | None = None) -> str:
    """Such as `gloo, 2 ranks, launch 3 of 8`; with what labels name first, if the cases share it."""
    names = {option.name for option in OPERATIONS[launch.cases[0].op].own_options if option.first}
    first = [part.words for part in describe(launch.cases)[0] if part.name in names]
    of = f" of {launches}" if launches is not None and launch.number <= launches else ""
    return ", ".join([*first, launch.backend, ranks_text(launch.world_size), f"launch {launch.number}{of}"])


class PairProgress(ProgressBar):
    """The progress of a run of two sides: how many pairs there are, and the verdict as it forms."""

    def __init__(self, console: Console, budget_s: float, spent_s: float) -> None:
        limit = TextColumn(f"of at most {format_seconds(budget_s)}")
        super().__init__(console, "starting the ranks", budget_s, spent_s, limit)
        self._judged = "no verdict yet"

    def show_pairs(self, pairs: int, spent_s: float) -> None:
        """Show that this many pairs are measured."""
        self._describe(f"pair {pairs}: {self._judged}", completed=spent_s)

    def show_look(self, whole: Judgement | None, verdicts: Sequence[str], pairs: int) -> None:
        """The judgements at a look; without a terminal, a line."""
        counts = ", ".join(f"{verdicts.count(verdict)} {verdict.lower()}" for verdict in dict.fromkeys(verdicts))
        index = ""
        if whole is not None:
            ratio, low, high = map(format_ratio, (whole.ratio.value, whole.ratio.low, whole.ratio.high))
            index = f"B / A {ratio} [{low} – {high}], "
        self._judged = f"{index}{counts}"
        if not self._console.is_terminal:
            self._line(f"{pairs} pairs: {self._judged}")
