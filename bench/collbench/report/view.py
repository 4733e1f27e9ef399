"""Gather once the contents of a report; the terminal, documents, formats for programs and pictures render them.

In: a `Run` and its analysis. Out: a `View`, whose parts are made when the first renderer needs them. It has the
summaries of collectives; each package describes the cases that the package measured.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from collbench.catalog.collectives import DESCRIBED
from collbench.catalog.registry import PACKAGES
from collbench.model.conclusions import Analysis, Summary
from collbench.model.errors import ConfigError
from collbench.model.notices import INCOMPLETE
from collbench.model.records import Case, Run
from collbench.report.notices import sentences
from collbench.report.tables import CaseTable, case_tables
from collbench.report.text import Text


def is_call(case: Case) -> bool:
    """Return whether the core describes a case in its tables and pictures, because no package does."""
    return case.op not in DESCRIBED


@dataclass(frozen=True)
class View:
    """The contents of a report on a run."""

    run: Run
    analysis: Analysis

    def select(self, wanted: Callable[[Case], bool]) -> "View":
        """Return the view of some cases."""
        plan = replace(self.run.plan, skips=tuple(skip for skip in self.run.plan.skips if wanted(skip.case)))
        samples = [samples for samples in self.run.samples if wanted(samples.case)]
        summaries = tuple(summary for summary in self.analysis.summaries if wanted(summary.case))
        return View(replace(self.run, samples=samples, plan=plan), replace(self.analysis, summaries=summaries))

    def only(self, fields: Mapping[str, object]) -> "View":
        """Return the view of the cases that have these values: name of a field of a case → value.

        Raises ConfigError if no case has them.
        """
        view = self.select(lambda case: all(case.value(name) == value for name, value in fields.items()))
        if not view.analysis.summaries:
            requested = ", ".join(f"{name} {value}" for name, value in fields.items())
            there = "; ".join(
                f"{name}: {', '.join(map(str, dict.fromkeys(s.case.value(name) for s in self.analysis.summaries)))}"
                for name in fields
            )
            raise ConfigError(f"{self.run.name}: no case with {requested}; it has {there or 'no cases'}")
        return view

    @cached_property
    def calls(self) -> list[Summary]:
        """The summaries of collectives, without those of packages' operations."""
        return [summary for summary in self.analysis.summaries if is_call(summary.case)]

    @cached_property
    def tables(self) -> list[CaseTable]:
        """The summaries of collectives in tables."""
        return case_tables(self.calls)

    @cached_property
    def timed_tables(self) -> list[CaseTable]:
        """The tables without the cases that have no time."""
        return case_tables([summary for summary in self.calls if summary.time_s is not None])

    @cached_property
    def texts(self) -> dict[str, Text]:
        """What each package says of the run, in the order of the table of packages."""
        texts = ((package.name, package.text) for package in PACKAGES)
        return {name: text(self.run, self.analysis) for name, text in texts if text is not None}

    @cached_property
    def caveats(self) -> list[str]:
        """Sentences with caveats, the gravest first; without missing measurements."""
        return sentences(notice for notice in self.analysis.notices if notice.kind is not INCOMPLETE)

    @property
    def virtual(self) -> bool:
        """Whether a case was measured on virtual GPUs."""
        return any(summary.virtual for summary in self.analysis.summaries)
