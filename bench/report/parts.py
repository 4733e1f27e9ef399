"""What a package adds to reports, tables and lists."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.catalog.packages import PACKAGES
from bench.model.conclusions import Analysis
from bench.model.records import Case, Json, Machine, Plan, Run
from bench.report.blocks import Block, Blocks


@dataclass(frozen=True)
class PlannedText:
    """What `plan` says of a package's cases. scenes: what is measured; how: rounds and the like; notes: remedies."""

    scenes: Sequence[Block] = ()
    how: Sequence[str] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class CaseColumns:
    """What a package adds to CSV and JSON. fields: name → its type in JSON, and what it is.

    columns: of each of its cases, these fields. only_json: further fields of a case in JSON, as JSON Schema; details:
    their values. top: further entries of the document, as JSON Schema; document: their values.
    """

    fields: Mapping[str, tuple[Any, str]]
    columns: Callable[[Run, Analysis], dict[Case, Json]]
    only_json: Json
    details: Callable[[Analysis], dict[Case, Json]]
    top: Json
    document: Callable[[Analysis], Json]


@dataclass(frozen=True)
class ReportPart:
    """A package's part of reports.

    operations: its own. answers: sentences that answer. sections: of the document; failed: cases whose failures stand
    elsewhere. brief: sections for a terminal. folded: (summary, blocks). precision: of the sentence on trust. caveats:
    what speaks against its numbers. circumstances: what was measured. method: how; empty if nothing was. files: what is
    written beside the document. page: which page explains it. span: several cases in one line. words: option → its
    value in words. first: options that a label names right behind the operation. metric: name of a metric.
    planned: what `plan` says. verified: what was checked, in words. best: of rows of a summary, the best result.
    """

    operations: tuple[str, ...]
    answers: Callable[[Analysis], list[str]]
    sections: Callable[[Analysis, Collection[Case]], Blocks]
    brief: Callable[[Analysis], Blocks]
    folded: Callable[[Analysis], list[tuple[str, Blocks]]]
    precision: Callable[[Analysis], list[str]]
    caveats: Callable[[Analysis], list[str]]
    circumstances: Callable[[Analysis], list[str]]
    method: Callable[[Run], str]
    files: Callable[[Analysis], dict[str, str]]
    page: str
    span: Callable[[Sequence[Case]], str]
    words: Mapping[str, Callable[[Case], str]]
    first: tuple[str, ...]
    metric: Callable[[Case], str]
    planned: Callable[[Plan, Machine], PlannedText]
    verified: str
    best: Callable[[Sequence[Mapping[str, str]]], str | None]
    columns: CaseColumns


def parts() -> list[ReportPart]:
    """Those of all packages."""
    return [package.report.value for package in PACKAGES if package.report is not None]


def part_of(case: Case) -> ReportPart | None:
    """That of the package which has the case's operation; None if the core has it."""
    return next((part for part in parts() if case.op in part.operations), None)


def calls_only(run: Run, analysis: Analysis) -> tuple[Run, Analysis]:
    """The run without what packages show themselves: what tables and pictures of calls show."""
    own = analysis.own_cases
    if not own:
        return run, analysis
    summaries = tuple(summary for summary in analysis.summaries if summary.case not in own)
    samples = [samples for samples in run.samples if samples.case not in own]
    return replace(run, samples=samples), replace(analysis, summaries=summaries)
