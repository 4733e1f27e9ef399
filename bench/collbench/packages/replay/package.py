"""Register the package `replay` with the core: an operation, its section, conclusions and pictures, and a verb."""

from collbench.catalog.package import KeptFile, Package, PictureKind, Verb
from collbench.model.deferred import Deferred

REPLAY = Package(
    "replay",
    operations=Deferred("packages.replay.operation:OPERATIONS"),
    section=Deferred("packages.replay.config:SECTION"),
    kept=KeptFile(
        "recording.calls.jsonl",
        read=Deferred("packages.replay.importers:named"),
        to_text=Deferred("packages.replay.store:to_text"),
        load=Deferred("packages.replay.store:read"),
    ),
    planning=Deferred("packages.replay.planning:PLANNING"),
    analysis=Deferred("packages.replay.analyze.steps:ANALYSIS"),
    report=Deferred("packages.replay.report:REPORT"),
    kinds=("operation", "recorded_calls", "planning", "analyze.recorded", "importers", "importers.nccl_records"),
    pictures=(
        PictureKind("recorded", "Where the recorded job's time in calls went", "packages.replay.plots:recorded"),
        PictureKind("replay", "The calls of a recorded step, recorded and made again", "packages.replay.plots:steps"),
    ),
    verbs={
        "replay": Verb(
            "packages.replay.cli:replay",
            "Measure",
            "What does a recorded job's communication cost here?",
            "replay docs/example/training.calls.jsonl --look",
        )
    },
)
