"""Register the package `replay` with the core: an operation, its conclusions and pictures, and a verb."""

from collbench.catalog.package import Package, PictureKind, Verb
from collbench.model.deferred import Deferred

REPLAY = Package(
    "replay",
    operation=Deferred("packages.replay.operation:OPERATION"),
    reads=Deferred("packages.replay.analyze.steps:read"),
    text=Deferred("packages.replay.report:describe"),
    pictures=(
        PictureKind("recorded", "Where the recorded job's time in calls went", "packages.replay.plots:recorded"),
        PictureKind("replay", "The calls of a recorded step, recorded and made again", "packages.replay.plots:steps"),
    ),
    verbs={
        "replay": Verb(
            "packages.replay.cli:replay",
            "Measure",
            "Whose fault is a slow job? Or what do its calls cost here?",
            "replay docs/example/training.calls.jsonl --look",
        )
    },
)
