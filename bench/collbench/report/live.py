"""Show the table of a run while it is measured: the time and interval of each case that has samples.

In: a run with its earlier samples, a function that summarises a run, and new lines of samples. Out: the lines that
fit on a screen, and one line for output without a screen. It computes only on request, between launches and while
ranks warm up or rest: never while calls are timed.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from collbench.model.conclusions import Summary
from collbench.model.records import Run
from collbench.model.units import format_bytes, format_seconds, format_share
from collbench.report.labels import counted, label, ranks_text, with_interval
from collbench.report.screen import fitted, plain
from collbench.report.tables import case_tables, terminal_tables
from collbench.report.view import is_call
from collbench.store.encoding import SampleLine

# Fewest lines of a screen for a table; with fewer, nothing is shown.
FEWEST_LINES = 4


class LiveTable:
    """The results that a run has so far."""

    def __init__(self, run: Run, summarize: Callable[[Run], Sequence[Summary]]) -> None:
        self._run = run
        self._summarize = summarize
        self._samples = list(run.samples)
        self._waiting: list[SampleLine] = []
        # Samples after the first round, until complete samples come.
        self.first: Sequence[SampleLine] = ()
        self._cases = sum(is_call(case) for case in run.plan.cases)
        self._summaries: Sequence[Summary] = ()

    def take(self, line: SampleLine) -> None:
        """Keep a measurement; nothing is computed."""
        self._waiting.append(line)
        self.first = ()

    def lines(self, width: int, height: int) -> list[str]:
        """Return the table, or a list of cases if it does not fit, in at most `height` lines of `width` columns."""
        timed = [summary for summary in self._current() if summary.time_s is not None]
        if not timed or height < FEWEST_LINES:
            return []
        blocks = terminal_tables(case_tables(timed), only_times=True)
        full_table = [line for line in plain(fitted(blocks, width)).split("\n") if line]
        return full_table if len(full_table) <= height else self._listed(timed, width, height)

    def so_far(self) -> str:
        """Format as `so far all_reduce 1 KiB 508 µs … 16 MiB 19 ms (4 ranks), widest interval ±21 %`; "" if nothing."""
        timed = [summary for summary in self._current() if summary.time_s is not None]
        if not timed:
            return ""
        most = max(summary.case.world_size for summary in timed)
        first = next(summary for summary in timed if summary.case.world_size == most)
        row = [s for s in timed if (s.case.op, s.case.world_size) == (first.case.op, most)]
        ends = [min(row, key=lambda s: s.case.size_bytes), max(row, key=lambda s: s.case.size_bytes)]
        results = [f"{format_bytes(s.case.size_bytes)} {format_seconds(s.time_s.value)}" for s in ends if s.time_s]
        widest = max(summary.time_s.relative_half_width for summary in timed if summary.time_s is not None)
        # An interval within a single launch does not include the variance between launches.
        sure = math.isfinite(widest) and all(summary.launches > 1 for summary in timed)
        trust = f", widest interval ±{format_share(widest)}" if sure else ""
        return f"so far {first.case.op} {' … '.join(dict.fromkeys(results))} ({ranks_text(most)}){trust}"

    def _current(self) -> Sequence[Summary]:
        if self._waiting or self.first or not self._summaries:
            self._samples += [line.samples for line in self._waiting]
            self._waiting.clear()
            so_far = [*self._samples, *(line.samples for line in self.first)]
            collective_samples = [samples for samples in so_far if is_call(samples.case)]
            self._summaries = self._summarize(replace(self._run, samples=collective_samples))
        return self._summaries

    def _listed(self, timed: Sequence[Summary], width: int, height: int) -> list[str]:
        """Return a line per case: cases without an interval first, by falling size, then cases by falling width."""
        widths = {s.case: s.time_s.relative_half_width for s in timed if s.time_s is not None}
        listed = sorted(timed, key=lambda s: (-widths[s.case], -s.case.size_bytes))[: height - 1]
        lines = [f"{label(s.case)}  {with_interval(s.time_s, format_seconds)}" for s in listed]
        first = "widest intervals" if any(map(math.isfinite, widths.values())) else "largest sizes"
        head = f"{len(listed)} of {counted(self._cases, 'case')}, the {first} first; all of them come at the end"
        return [text[:width] for text in (head, *lines)]
