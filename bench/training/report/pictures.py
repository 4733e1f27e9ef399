"""List the pictures of a training run: file name, title and function, in the order of the report."""

from dataclasses import dataclass
from typing import Any

from bench.model.deferred import Deferred
from bench.report.pictures import Catalogue, PictureKind
from bench.training.conclusions import TrainingAnalysis


@dataclass(frozen=True)
class OfEachScenario(Deferred):
    """Calls a function (scenario's analysis) → pages for each scenario of a run."""

    def __call__(self, run: Any, analysis: TrainingAnalysis) -> list[Any]:
        return [figure for scenario in analysis.scenarios for figure in self.value(scenario)]


CATALOGUE = Catalogue(
    (
        PictureKind(
            "training-steps",
            "Step time: computing and exposed communication",
            OfEachScenario("training.report.plots.steps:steps"),
        ),
        PictureKind(
            "training-timeline",
            "One step of each strategy: when communication overlaps with computing",
            OfEachScenario("training.report.plots.timelines:timelines"),
        ),
        PictureKind(
            "training-buckets",
            "Exposed communication against bucket size",
            OfEachScenario("training.report.plots.sizes:buckets"),
        ),
        PictureKind(
            "training-call-sizes",
            "The same parameters in more and more calls",
            Deferred("training.report.plots.sizes:call_sizes"),
        ),
    ),
    most_pages=12,  # a page shows one scenario, or a dozen strategies of it
)
