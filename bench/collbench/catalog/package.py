"""Define what a package adds to the core: verbs, lists, formats, pictures, one operation, and its reading of a run.

Each part is loaded when it is first used, so that no verb waits for parts that it does not need.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from collbench.model.deferred import Deferred

# Largest number of pages of one picture: steps of training have one for each scenario.
MOST_PAGES = 12


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
    # For a verb that measures runs: (folder, trust, plots, quiet, coordinator) → exit code, to resume one.
    resumes: Deferred | None = None

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
    # True if it is an answer, which a report shows at once.
    unfolded: bool = False

    @property
    def drawn_by(self) -> Deferred:
        """Return the function (run, analysis) → figures, one per page."""
        return Deferred(self.function)

    @property
    def pages(self) -> list[str]:
        """Return the file names of all its pages, without suffix; most runs draw only the first."""
        return [self.name, *(f"{self.name}-{number}" for number in range(2, MOST_PAGES + 1))]


@dataclass(frozen=True)
class Package:
    """The parts that a package adds. All but `reads` and `text` are entries of tables.

    Kinds of notices, and the types of its options, settings and results, register where they are declared.
    """

    name: str
    verbs: Mapping[str, Verb] = field(default_factory=dict)
    # Additional lists for `list`: name → function that returns blocks.
    lists: Mapping[str, Deferred] = field(default_factory=dict)
    # Format of `report --format` → function that writes it from the view of a run.
    formats: Mapping[str, Deferred] = field(default_factory=dict)
    # Pictures of the whole run and analysis; the core's own pictures have the cases that no package describes.
    pictures: tuple[PictureKind, ...] = ()
    # A `catalog.operation.Operation`. Its section of a configuration has the name of the package.
    operation: Deferred | None = None
    # Function: run → the package's `analyze.reading.Reading` of it.
    reads: Deferred | None = None
    # Function: run and analysis → the `report.text.Text` that describes what the package read.
    text: Deferred | None = None
