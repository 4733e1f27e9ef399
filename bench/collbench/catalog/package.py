"""Define the parts that a package adds to the core: operations, a section of the configuration, and their handling.

A part is loaded when it is first used, so that no verb waits for parts that it does not need. Each has a type in the
room that uses it; the package's module declares its part with that type, so that mypy checks both sides.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from collbench.model.deferred import Deferred

# Largest number of pages of one picture; readers do not look through more.
MOST_PAGES = 4


@dataclass(frozen=True)
class JobKind:
    """What a verb is as a job on several hosts, for the file that starts it."""

    # Words of the file: where results are, and how the job ends.
    results: str
    end: str
    # (Config, its path, Machine, number of nodes) → most seconds that the job takes on all ranks. None: it measures the
    # plan of the configuration, with its world sizes.
    estimate: Deferred | None = None
    # True if it goes on without a failed node, where the scheduler allows it.
    survives: bool = False


@dataclass(frozen=True)
class Verb:
    """One verb of the command line."""

    # "module:function" within `collbench`.
    function: str
    # Its heading in --help.
    panel: str
    help: str
    # The words of an example.
    example: str
    # For a verb that a job can be started with.
    job: JobKind | None = None

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
    # "module:name" within `collbench`.
    function: str
    # Number of pages for a run that has much to show.
    most_pages: int = MOST_PAGES
    # True if it is an answer, which a report shows at once.
    unfolded: bool = False

    @property
    def drawn_by(self) -> Deferred:
        """Return the function (run, analysis) → figures, one per page."""
        return Deferred(self.function)

    @property
    def pages(self) -> list[str]:
        """Return the file names of all its pages, without suffix; most runs draw only the first."""
        return [self.name, *(f"{self.name}-{number}" for number in range(2, self.most_pages + 1))]


@dataclass(frozen=True)
class KeptFile:
    """Data that a package reads from files named in a configuration, and keeps in the folder of the run."""

    # File name in the folder of the run.
    name: str
    # Function: section of a configuration → data in its files.
    read: Deferred
    # Function: these data → text of the kept file.
    to_text: Deferred
    # Function: path of the kept file → the same data; raises ForeignError if the file is damaged.
    load: Deferred


@dataclass(frozen=True)
class Package:
    """The parts that a package adds. Its operations, pictures and verbs are entries of the core's tables."""

    name: str
    # The `catalog.operation.Operation`s that it adds, in a tuple.
    operations: Deferred | None = None
    # A `config.fields.PackageSection`.
    section: Deferred | None = None
    # Data from the files that its section names.
    kept: KeptFile | None = None
    # A `planning.parts.PlanningPart`, an `analyze.parts.AnalysisPart`, a `report.parts.ReportPart`.
    planning: Deferred | None = None
    analysis: Deferred | None = None
    report: Deferred | None = None
    # Its modules that declare kinds of notices, such as "planning.steps".
    kinds: tuple[str, ...] = ()
    # Pictures of the whole run and analysis; the core's own pictures get collectives only.
    pictures: tuple[PictureKind, ...] = ()
    verbs: Mapping[str, Verb] = field(default_factory=dict)
    # Format of `report --format` → function that writes it from the view of a run.
    formats: Mapping[str, Deferred] = field(default_factory=dict)
    # Additional lists for `list`.
    lists: Mapping[str, Deferred] = field(default_factory=dict)
    # State of a rank's process, as JSON: before it joins the other ranks, after that, and after it has left them.
    look: Deferred | None = None
    # File that only its own runs have → function that resumes such a run.
    resumes: Mapping[str, Deferred] = field(default_factory=dict)
