"""Define what a package adds to the core: operations, a section of the configuration, and what becomes of them.

A part is loaded when it is first used, so that no verb waits for what it does not need. Each has a type in the room
that uses it; the package's module declares its part with that type, so that mypy sees both ends.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bench.model.deferred import Deferred

# Pages of one picture; readers do not look through more.
MOST_PAGES = 4


@dataclass(frozen=True)
class Verb:
    """One verb."""

    # "module:function" within `bench`.
    function: str
    # Its heading in --help.
    panel: str
    help: str
    # The words of an example.
    example: str
    # For a verb that starts jobs: from a Config, its path, a Machine and a number of nodes, the most seconds it takes.
    job: Deferred | None = None

    def load(self) -> Callable[..., int | None]:
        """Import the module and return the function."""
        function: Callable[..., int | None] = Deferred(self.function).value
        return function


@dataclass(frozen=True)
class PictureKind:
    """One picture."""

    # File name without suffix.
    name: str
    title: str
    # "module:name" within `bench`.
    function: str
    # Pages of a run that has much to show.
    most_pages: int = MOST_PAGES
    # True if it is an answer, which a report shows at once.
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
class KeptFile:
    """What a package reads from files that a configuration names, and keeps in the folder of the run."""

    # File name in the folder of the run.
    name: str
    # From the section of a configuration, what its files hold.
    read: Deferred
    # From that, the text of the file.
    to_text: Deferred
    # From the path of the file, the same again; raises ForeignError if the file is damaged.
    load: Deferred


@dataclass(frozen=True)
class Package:
    """What a package adds. Operations, pictures and verbs stand in the core's tables like its own."""

    name: str
    # The `catalog.operation.Operation`s that it adds, in a tuple.
    operations: Deferred | None = None
    # A `config.section.PackageSection`.
    section: Deferred | None = None
    # What its section names in files.
    kept: KeptFile | None = None
    # A `planning.parts.PlanningPart`, an `analyze.parts.AnalysisPart`, a `report.parts.ReportPart`.
    planning: Deferred | None = None
    analysis: Deferred | None = None
    report: Deferred | None = None
    # Kind → `report.notices.Sentence`, for all kinds of notices that the package gives.
    sentences: Deferred | None = None
    # Drawn from the whole run and analysis; the core's own pictures are given collectives only.
    pictures: tuple[PictureKind, ...] = ()
    verbs: Mapping[str, Verb] = field(default_factory=dict)
    # Format of `report --format` → what writes it from the view of a run.
    formats: Mapping[str, Deferred] = field(default_factory=dict)
    # What `list` can list in addition.
    lists: Mapping[str, Deferred] = field(default_factory=dict)
    # What it sees in a rank's process before it joins the others, after it, and after it has left them, as JSON.
    look: Deferred | None = None
    # File that only its own runs have → what goes on with such a run.
    resumes: Mapping[str, Deferred] = field(default_factory=dict)
