"""Show the table of a run while it is measured: each cell its time, and how far it is trusted, from the first one on.

In: a run as it was before, what summarizes it, and lines of samples as they come. Out: the lines that fit on a
screen, and one line for where there is none. It computes when it is asked, which is between launches and while ranks
warm up: never while calls are timed.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from bench.catalog.collectives import OPERATIONS
from bench.model.conclusions import Summary
from bench.model.records import Run
from bench.model.units import format_bytes, format_seconds, format_share
from bench.report.labels import counted, label, ranks_text, with_interval
from bench.report.screen import fitted, plain
from bench.report.tables import tables, terminal_tables
from bench.store.encoding import SampleLine

# Lines of the table of a run that fits; with fewer, the cases are listed.
FEWEST_LINES = 4
LISTED = "{shown} of {cases}, the widest intervals first; all of them come at the end"


class LiveTable:
    """What a run has so far."""

    def __init__(self, run: Run, summarize: Callable[[Run], Sequence[Summary]]) -> None:
        self._run = run
        self._summarize = summarize
        self._samples = list(run.samples)
        self._waiting: list[SampleLine] = []
        # What cases have after one round, until the launch has ended.
        self._first: Sequence[SampleLine] = ()
        self._cases = sum(OPERATIONS[case.op].rank is None for case in run.plan.cases)
        self._summaries: Sequence[Summary] = ()

    def take(self, line: SampleLine) -> None:
        """Keep a measurement; nothing is computed."""
        self._waiting.append(line)
        self._first = ()

    def take_first(self, lines: Sequence[SampleLine]) -> None:
        """Keep what cases have after one round of their first launch, until the launch has ended."""
        self._first = lines

    def lines(self, width: int, height: int) -> list[str]:
        """The table, or where it does not fit the cases that matter, in at most `height` lines of `width` columns."""
        timed = [summary for summary in self._current() if summary.time_s is not None]
        if not timed or height < FEWEST_LINES:
            return []
        blocks = terminal_tables(tables(timed), only_times=True)
        whole = [line for line in plain(fitted(blocks, width)).split("\n") if line]
        return whole if len(whole) <= height else self._listed(timed, width, height)

    def so_far(self) -> str:
        """Such as `so far all_reduce 1 KiB 508 µs … 16 MiB 19 ms (4 ranks), widest interval ±21 %`; "" if nothing."""
        timed = [summary for summary in self._current() if summary.time_s is not None]
        if not timed:
            return ""
        most = max(summary.case.world_size for summary in timed)
        first = next(summary for summary in timed if summary.case.world_size == most)
        row = [s for s in timed if (s.case.op, s.case.world_size) == (first.case.op, most)]
        ends = [min(row, key=lambda s: s.case.size_bytes), max(row, key=lambda s: s.case.size_bytes)]
        told = [f"{format_bytes(s.case.size_bytes)} {format_seconds(s.time_s.value)}" for s in ends if s.time_s]
        widest = max(summary.time_s.relative_half_width for summary in timed if summary.time_s is not None)
        # An interval within a single launch does not say how launches differ.
        sure = math.isfinite(widest) and all(summary.launches > 1 for summary in timed)
        trust = f", widest interval ±{format_share(widest)}" if sure else ""
        return f"so far {first.case.op} {' … '.join(dict.fromkeys(told))} ({ranks_text(most)}){trust}"

    def _current(self) -> Sequence[Summary]:
        if self._waiting or self._first or not self._summaries:
            self._samples += [line.samples for line in self._waiting]
            self._waiting.clear()
            so_far = [*self._samples, *(line.samples for line in self._first)]
            of_calls = [samples for samples in so_far if OPERATIONS[samples.case.op].rank is None]
            self._summaries = self._summarize(replace(self._run, samples=of_calls))
        return self._summaries

    def _listed(self, timed: Sequence[Summary], width: int, height: int) -> list[str]:
        """A line for each case: the widest intervals first, and of those that have none the largest sizes."""
        widths = {s.case: s.time_s.relative_half_width for s in timed if s.time_s is not None}
        shown = sorted(timed, key=lambda s: (-widths[s.case], -s.case.size_bytes))[: height - 1]
        lines = [f"{label(s.case)}  {with_interval(s.time_s, format_seconds)}" for s in shown]
        head = LISTED.format(shown=len(shown), cases=counted(self._cases, "case"))
        return [text[:width] for text in (head, *lines)]
