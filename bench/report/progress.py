"""Show the progress of a run: a bar on a terminal, elsewhere a line for each launch.

Implements the `Observer` of `launch.sweep`. Draws only between rounds: while ranks measure, this process sleeps and
leaves every core to them.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from bench.catalog.collectives import OPERATIONS
from bench.model.comparisons import Judgement
from bench.model.records import Case, Launch
from bench.model.units import counted, format_ratio, format_seconds
from bench.model.visible import visible
from bench.report.labels import describe, label, ranks_text


class ProgressBar:
    """A context with a bar on a terminal. Its length is `total` and its state is `done`; it shows `columns`."""

    def __init__(self, console: Console, text: str, total: float, done: float, *columns: ProgressColumn) -> None:
        self._console = console
        self._progress = Progress(
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

    def __init__(self, console: Console, total: int, done: int) -> None:
        columns = (MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
        super().__init__(console, "starting the ranks", total, done, *columns)
        self._total = total

    def launching(self, launch: Launch) -> None:
        """Ranks are being started: without a terminal, a line."""
        if self._console.is_terminal:
            self._describe(_words(launch))
        else:
            self._line(f"{_words(launch)}: {counted(len(launch.cases), 'case')}")

    def round_begins(self, launch: Launch, number: int) -> None:
        """Every case is visited once more; number 0 is the warm-up."""
        self._describe(f"{_words(launch)}, {f'round {number}' if number else 'warm-up'}")

    def ended(self, case: Case, failure: str | None) -> None:
        """A case is measured, or has failed for a reason."""
        self._progress.advance(self._task)
        if failure is not None:
            self.print_failure(f"failed: {label(case)}: {failure}")

    def extended(self, further: int) -> None:
        """Add this many measurements to the total; subtract them if negative."""
        self._total += further
        self._progress.update(self._task, total=self._total)


def _words(launch: Launch) -> str:
    """Such as `gloo, 2 ranks, launch 3`; with what labels name first, if the cases share it."""
    names = {option.name for option in OPERATIONS[launch.cases[0].op].own_options if option.first}
    first = [part.words for part in describe(launch.cases)[0] if part.name in names]
    return ", ".join([*first, launch.backend, ranks_text(launch.world_size), f"launch {launch.number}"])


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
