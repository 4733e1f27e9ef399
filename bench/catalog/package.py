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
    """One verb. function: "module:function" within `bench`. panel: its heading in --help. example: its words.

    job: for a verb that a job is started with: from a Config, its path, a Machine and the number of nodes, the seconds
    that it takes at most.
    """

    function: str
    panel: str
    help: str
    example: str
    job: Deferred | None = None

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
class KeptFile:
    """What a package reads from files that a configuration names, and keeps in the folder of the run.

    name: of the file in the folder. read: from the section of a configuration, what its files hold. to_text: from that,
    the file. load: from the path of the file, the same again; raises ForeignError if it is damaged.
    """

    name: str
    read: Deferred
    to_text: Deferred
    load: Deferred


@dataclass(frozen=True)
class Package:
    """What a package adds. operations, pictures and verbs stand in the core's tables like its own.

    section: of a configuration, a `config.section.PackageSection`. kept: what its section names in files. planning: a
    `planning.parts.PlanningPart`. analysis: an `analyze.parts.AnalysisPart`. report: a `report.parts.ReportPart`.
    notices: kind → `report.notices.Sentence`, of all kinds of notices that the package gives.
    formats: of `report --format`, what writes them from a run and its analysis. lists: what `list` can list besides.
    look: what it sees in a rank's process before it joins the others, after it, and after it has left them, as JSON.
    resumes: file that only its own runs have → what goes on with such a run.
    """

    name: str
    operations: tuple[Operation, ...] = ()
    section: Deferred | None = None
    kept: KeptFile | None = None
    planning: Deferred | None = None
    analysis: Deferred | None = None
    report: Deferred | None = None
    notices: Deferred | None = None
    pictures: tuple[PictureKind, ...] = ()
    verbs: Mapping[str, Verb] = field(default_factory=dict)
    formats: Mapping[str, Deferred] = field(default_factory=dict)
    lists: Mapping[str, Deferred] = field(default_factory=dict)
    look: Deferred | None = None
    resumes: Mapping[str, Deferred] = field(default_factory=dict)
