"""Define what a package adds to reports, tables and lists."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from collbench.catalog.registry import PACKAGES
from collbench.model.conclusions import Analysis
from collbench.model.records import Case, Machine, Plan, Run
from collbench.report.blocks import Block, Blocks


@dataclass(frozen=True)
class PlannedText:
    """The text that `plan` prints on a package's cases."""

    # Description of the cases; without it, their labels are listed.
    scenes: Sequence[Block] = ()
    # Words on how the cases are measured, such as the number of rounds.
    how: Sequence[str] = ()
    notes: Sequence[str] = ()
    # Work that the estimated time does not contain.
    untimed: str = ""


@dataclass(frozen=True)
class PackageResults:
    """The results that a package adds to CSV and JSON; their types declare the fields."""

    # Type of its record of a case, and the records.
    case: type
    cases: Callable[[Analysis], Mapping[Case, object]]
    # Type of a record of the run, whose fields are further entries of the JSON document, and this record.
    run: type
    of_run: Callable[[Analysis], object]


@dataclass(frozen=True)
class Description:
    """A package's description of a run. The document, the terminal and the answer arrange its parts."""

    # Sentences of the answer.
    answer: Sequence[str] = ()
    # Sections of the document, and the same for a terminal.
    body: Blocks = field(default_factory=list)
    brief: Blocks = field(default_factory=list)
    # Summary and content of folded sections.
    folded: Sequence[tuple[str, Blocks]] = ()
    # Phrases of the sentence on trust: how precise its numbers are, and which results were checked.
    precision: Sequence[str] = ()
    verified: str = ""
    # Sentences with caveats on its numbers.
    caveats: Sequence[str] = ()
    # Lines on what was measured, and one line on the method; empty if nothing was measured.
    circumstances: Sequence[str] = ()
    method: str = ""
    # The page that explains its numbers, and whether its answer comes before the tables.
    page: str = ""
    leads: bool = False


@dataclass(frozen=True)
class ReportPart:
    """A package's part of reports and lists."""

    describe: Callable[[Run, Analysis], Description]
    # Makes the text that `plan` prints on its cases.
    planned: Callable[[Plan, Machine], PlannedText] = lambda plan, machine: PlannedText()
    # Finds the best result in the rows of a summary; None if the rows have no result of this package.
    best: Callable[[Sequence[Mapping[str, str]]], str | None] = lambda rows: None
    results: PackageResults | None = None


def parts() -> list[ReportPart]:
    """Return the report parts of all packages."""
    return [package.report.value for package in PACKAGES if package.report is not None]


def package_results() -> list[PackageResults]:
    """Return the results that packages add to CSV and JSON."""
    return [part.results for part in parts() if part.results is not None]
