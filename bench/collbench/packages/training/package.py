"""Define the package training: an operation with its section, its conclusions and pictures, and two verbs."""

from collbench.catalog.package import Package, PictureKind, Verb
from collbench.model.deferred import Deferred

# A page shows one scenario, or a dozen strategies of it.
MOST_PAGES = 12

TRAINING = Package(
    "training",
    operations=Deferred("packages.training.operation:OPERATIONS"),
    section=Deferred("packages.training.config:SECTION"),
    planning=Deferred("packages.training.planning.steps:PLANNING"),
    analysis=Deferred("packages.training.analyze.part:ANALYSIS"),
    report=Deferred("packages.training.report.part:REPORT"),
    kinds=("catalog.strategies", "planning.steps", "analyze.steps"),
    pictures=(
        PictureKind(
            "training-steps",
            "Step time: computing and exposed communication",
            "packages.training.report.plots:steps",
            MOST_PAGES,
            unfolded=True,
        ),
        PictureKind(
            "training-buckets",
            "Exposed communication against bucket size",
            "packages.training.report.plots:buckets",
            MOST_PAGES,
            unfolded=True,
        ),
        PictureKind(
            "training-timeline",
            "One step of each strategy: when communication overlaps with computing",
            "packages.training.report.plots:timelines",
            MOST_PAGES,
        ),
    ),
    verbs={
        "advise": Verb(
            "packages.training.cli.advise:advise",
            "Training",
            "Which gradients to all-reduce together on a given link.",
            "advise --model tiny --backward 60ms --link 2ms+1GB/s",
        ),
        "equivalence": Verb(
            "packages.training.cli.equivalence:equivalence",
            "Training",
            "Do K ranks train the same model as one process?",
            "equivalence",
        ),
    },
    lists={"models": Deferred("packages.training.report.part:models")},
)
