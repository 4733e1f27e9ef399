"""Define the package training: an operation, its conclusions and pictures, two verbs and a list."""

from collbench.catalog.package import Package, PictureKind, Verb
from collbench.model.deferred import Deferred

TRAINING = Package(
    "training",
    operation=Deferred("packages.training.operation:OPERATION"),
    reads=Deferred("packages.training.analyze.reading:read"),
    text=Deferred("packages.training.report.text:describe"),
    pictures=(
        PictureKind(
            "training-steps",
            "Step time: computing and exposed communication",
            "packages.training.report.plots:steps",
            unfolded=True,
        ),
        PictureKind(
            "training-buckets",
            "Exposed communication against bucket size",
            "packages.training.report.plots:buckets",
            unfolded=True,
        ),
        PictureKind(
            "training-timeline",
            "One step of each strategy: when communication overlaps with computing",
            "packages.training.report.plots:timelines",
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
    lists={"models": Deferred("packages.training.report.text:models")},
)
