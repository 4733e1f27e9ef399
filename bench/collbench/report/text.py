"""Define what a package says of a run, and the records that it adds to CSV and JSON."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from collbench.catalog.registry import PACKAGES
from collbench.model.conclusions import Analysis
from collbench.model.results import RunRecord
from collbench.report.blocks import Blocks


@dataclass(frozen=True)
class Text:
    """A package's description of a run. The document, the terminal and the answer arrange its parts."""

    # Sentences of the answer.
    answer: Sequence[str] = ()
    # Sections of the document. With them, the answer comes before the tables, and the package's page is named.
    body: Blocks = field(default_factory=list)
    # The same for a terminal.
    brief: Blocks = field(default_factory=list)


def record_types(base: type) -> list[type]:
    """Return the types that packages declare as `CaseRecord` or `RunRecord`."""
    for package in PACKAGES:
        _ = package.reads and package.reads.value  # imports its module
    return base.__subclasses__()


def run_records(analysis: Analysis) -> list[RunRecord]:
    """Return the conclusions whose facts packages add to the JSON document."""
    return [value for value in analysis.of_packages.values() if isinstance(value, RunRecord)]
