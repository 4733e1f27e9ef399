"""What a package adds to reports, tables and lists."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.catalog.registry import PACKAGES
from bench.model.conclusions import Analysis
from bench.model.records import Case, Json, Machine, Plan, Run
from bench.report.blocks import Block, Blocks
from bench.report.public import PublicCase, PublicModel


@dataclass(frozen=True)
class PlannedText:
    """What `plan` says of a package's cases."""

    # What is measured; without it, the labels of the cases are listed.
    scenes: Sequence[Block] = ()
    # Rounds and the like.
    how: Sequence[str] = ()
    notes: Sequence[str] = ()
    # What the estimated time does not contain.
    untimed: str = ""


@dataclass(frozen=True)
class CaseColumns:
    """What a package adds to CSV and JSON."""

    # The model of its cases, and the values of the fields that this adds to `PublicCase`.
    case: type[PublicCase]
    values: Callable[[Run, Analysis], dict[Case, Json]]
    # The model of further entries of a run's JSON, and their values.
    entries: type[PublicModel]
    document: Callable[[Analysis], PublicModel]


@dataclass(frozen=True)
class Description:
    """What a package says of a run. The document, the terminal and the answer lay it out."""

    # Sentences that answer.
    answer: Sequence[str] = ()
    # Sections of the document, and the same for a terminal.
    body: Blocks = field(default_factory=list)
    brief: Blocks = field(default_factory=list)
    # Summary and content of folded sections.
    folded: Sequence[tuple[str, Blocks]] = ()
    # Phrases of the sentence on trust: how precise its numbers are, and which results were checked.
    precision: Sequence[str] = ()
    verified: str = ""
    # Sentences on what speaks against its numbers.
    caveats: Sequence[str] = ()
    # Lines on what was measured, and one on how; empty if nothing was.
    circumstances: Sequence[str] = ()
    method: str = ""
    # The page that explains its numbers, and whether its answer comes before the tables.
    page: str = ""
    leads: bool = False


@dataclass(frozen=True)
class ReportPart:
    """A package's part of reports and lists."""

    describe: Callable[[Run, Analysis], Description]
    # What `plan` says of its cases.
    planned: Callable[[Plan, Machine], PlannedText] = lambda plan, machine: PlannedText()
    # The best result among rows of a summary; None if the rows have none of its own.
    best: Callable[[Sequence[Mapping[str, str]]], str | None] = lambda rows: None
    columns: CaseColumns | None = None


def parts() -> list[ReportPart]:
    """Those of all packages."""
    return [package.report.value for package in PACKAGES if package.report is not None]


def package_columns() -> list[CaseColumns]:
    """What packages add to CSV and JSON."""
    return [part.columns for part in parts() if part.columns is not None]
