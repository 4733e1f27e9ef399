"""What a package adds to reports, tables and lists."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bench.catalog.registry import PACKAGES
from bench.model.conclusions import Analysis
from bench.model.records import Case, Json, Machine, Plan, Run
from bench.report.blocks import Block, Blocks
from bench.report.public import PublicCase, PublicModel


@dataclass(frozen=True)
class PlannedText:
    """What `plan` says of a package's cases. scenes: what is measured; how: rounds and the like; notes: remedies.

    untimed: what the estimated time does not contain. Without scenes, the labels of the cases are listed.
    """

    scenes: Sequence[Block] = ()
    how: Sequence[str] = ()
    notes: Sequence[str] = ()
    untimed: str = ""


@dataclass(frozen=True)
class CaseColumns:
    """What a package adds to CSV and JSON.

    case: the model of its cases; values: of each of them, the fields that this has besides those of `PublicCase`.
    entries: the model of further entries of a run's JSON; document: their values.
    """

    case: type[PublicCase]
    values: Callable[[Run, Analysis], dict[Case, Json]]
    entries: type[PublicModel]
    document: Callable[[Analysis], PublicModel]


@dataclass(frozen=True)
class ReportPart:
    """A package's part of reports.

    answers: sentences that answer. sections: of the document; failed: cases whose failures stand elsewhere. brief:
    sections for a terminal. page: which page explains it; empty if it only adds sentences. operations: those that it
    describes in its own way, by what follows. folded: (summary, blocks). precision: of the sentence on trust. caveats:
    what speaks against its numbers. circumstances: what was measured. method: how; empty if nothing was. words: option
    → its value in words. first: options that a label names right behind the operation. metric: name of a metric.
    planned: what `plan` says. verified: what was checked, in words. best: of rows of a summary, the best result.
    """

    answers: Callable[[Analysis], list[str]]
    sections: Callable[[Analysis, Collection[Case]], Blocks]
    brief: Callable[[Analysis], Blocks]
    page: str
    operations: tuple[str, ...] = ()
    folded: Callable[[Analysis], list[tuple[str, Blocks]]] = lambda analysis: []
    precision: Callable[[Analysis], list[str]] = lambda analysis: []
    caveats: Callable[[Analysis], list[str]] = lambda analysis: []
    circumstances: Callable[[Analysis], list[str]] = lambda analysis: []
    method: Callable[[Run], str] = lambda run: ""
    words: Mapping[str, Callable[[Case], str]] = field(default_factory=dict)
    first: tuple[str, ...] = ()
    metric: Callable[[Case], str] = lambda case: ""
    planned: Callable[[Plan, Machine], PlannedText] = lambda plan, machine: PlannedText()
    verified: str = ""
    best: Callable[[Sequence[Mapping[str, str]]], str | None] = lambda rows: None
    columns: CaseColumns | None = None


def parts() -> list[ReportPart]:
    """Those of all packages."""
    return [package.report.value for package in PACKAGES if package.report is not None]


def part_of(case: Case) -> ReportPart | None:
    """That of the package which has the case's operation; None if the core has it."""
    return next((part for part in parts() if case.op in part.operations), None)


def package_columns() -> list[CaseColumns]:
    """What packages add to CSV and JSON."""
    return [part.columns for part in parts() if part.columns is not None]


def calls_only(run: Run, analysis: Analysis) -> tuple[Run, Analysis]:
    """The run without what packages show themselves: what tables and pictures of calls show."""
    own = analysis.own_cases
    if not own:
        return run, analysis
    summaries = tuple(summary for summary in analysis.summaries if summary.case not in own)
    samples = [samples for samples in run.samples if samples.case not in own]
    return replace(run, samples=samples), replace(analysis, summaries=summaries)
