"""Gather once what a report shows of a run; the terminal, the document, pictures and one-line answers render it.

In: a `Run` and its analysis. Out: a `View`. It has the summaries of collectives; each package describes the cases that
the package measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.catalog.collectives import OPERATIONS
from bench.model.conclusions import Analysis, Summary
from bench.model.notices import RunNotice
from bench.model.records import Run
from bench.report.notices import sentences
from bench.report.parts import Description, parts
from bench.report.tables import CaseTable, tables


@dataclass(frozen=True)
class View:
    """What a report shows of a run."""

    run: Run
    analysis: Analysis
    # The summaries of collectives.
    calls: Sequence[Summary]
    # The same in tables.
    tables: Sequence[CaseTable]
    # What packages say, in the order of their table.
    descriptions: Sequence[Description]
    # Sentences on what speaks against the numbers, the weightiest first.
    caveats: Sequence[str]

    @property
    def timed_tables(self) -> list[CaseTable]:
        """The tables without the cases that have no time."""
        return [timed for timed in (each.timed for each in self.tables) if timed.members]

    @property
    def virtual(self) -> bool:
        """Whether a case was measured on virtual GPUs."""
        return any(summary.virtual for summary in self.analysis.summaries)


def view_of(run: Run, analysis: Analysis) -> View:
    """The view of a run."""
    _, of_calls = collectives_only(run, analysis)
    descriptions = [part.describe(run, analysis) for part in parts()]
    # The answer begins with what is missing.
    rest = (notice for notice in analysis.notices if notice.kind is not RunNotice.INCOMPLETE)
    caveats = [*(text for description in descriptions for text in description.caveats), *sentences(rest)]
    return View(run, analysis, of_calls.summaries, tables(of_calls.summaries), descriptions, caveats)


def collectives_only(run: Run, analysis: Analysis) -> tuple[Run, Analysis]:
    """The run and its analysis without the cases of packages' operations."""
    summaries = tuple(summary for summary in analysis.summaries if OPERATIONS[summary.case.op].rank is None)
    samples = [samples for samples in run.samples if OPERATIONS[samples.case.op].rank is None]
    return replace(run, samples=samples), replace(analysis, summaries=summaries)
