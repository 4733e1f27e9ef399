"""Define what a package adds to the core: operations, a section of the configuration, and what becomes of them.

A part is loaded when it is first used, so that no verb waits for what it does not need. Each has a type in the room
that uses it; the package's module declares its part with that type, so that mypy sees both ends.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bench.catalog.operation import Operation
from bench.model.deferred import Deferred

# Pages of one picture; readers do not look through more.
MOST_PAGES = 4


@dataclass(frozen=True)
class Verb:
    """One verb. function: "module:function" within `bench`. panel: its heading in --help. example: its words."""

    function: str
    panel: str
    help: str
    example: str

    def load(self) -> Callable[..., int | None]:
        """Import the module and return the function."""
        function: Callable[..., int | None] = Deferred(self.function).value
        return function


@dataclass(frozen=True)
class PictureKind:
    """One picture. name: file name without suffix. function: "module:name" within `bench`.

    of_package: whether it shows what a package measured; the others are given calls only. most_pages: of a run that has
    much to show. unfolded: whether it is an answer, which a report shows at once.
    """

    name: str
    title: str
    function: str
    of_package: bool = False
    most_pages: int = MOST_PAGES
    unfolded: bool = False

    @property
    def drawn_by(self) -> Deferred:
        """The function (run, analysis) → figures, one per page."""
        return Deferred(self.function)

    @property
    def pages(self) -> list[str]:
        """File names of all its pages, without suffix; most runs draw only the first."""
        return [self.name, *(f"{self.name}-{number}" for number in range(2, self.most_pages + 1))]


@dataclass(frozen=True)
class Package:
    """What a package adds. operations, pictures and verbs stand in the core's tables like its own.

    section: of a configuration, a `config.section.PackageSection`. planning: a `planning.parts.PlanningPart`. analysis:
    an `analyze.parts.AnalysisPart`. report: a `report.parts.ReportPart`. formats: of `report --format`, what writes
    them from a run and its analysis. lists: what `list` can list besides.
    """

    name: str
    operations: tuple[Operation, ...] = ()
    section: Deferred | None = None
    planning: Deferred | None = None
    analysis: Deferred | None = None
    report: Deferred | None = None
    pictures: tuple[PictureKind, ...] = ()
    verbs: Mapping[str, Verb] = field(default_factory=dict)
    formats: Mapping[str, Deferred] = field(default_factory=dict)
    lists: Mapping[str, Deferred] = field(default_factory=dict)
