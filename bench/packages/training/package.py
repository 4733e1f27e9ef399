"""What training adds to the core: an operation with its section, its conclusions and pictures, and two verbs."""

from bench.catalog.operation import NO_BUFFERS, SYNC, Operation
from bench.catalog.package import Package, PictureKind, Verb
from bench.model.deferred import Deferred
from bench.packages.training.step_records import StepDetail
from bench.packages.training.synchronisation import PARTS, TRAINING_STEP, StepOptions, StepSettings

# Loading these in each rank would cost two seconds.
RANK_MODULES = ("torch._dynamo", "bench.packages.training.rank.step")
# Building, warming up and checking one strategy in a launch, measured.
STRATEGY_S = 0.5
# A page shows one scenario, or a dozen strategies of it.
MOST_PAGES = 12

TRAINING = Package(
    "training",
    operations=(
        Operation(
            TRAINING_STEP,
            "nothing: the model says how many bytes of gradients are sent",
            None,
            NO_BUFFERS,
            calls=SYNC,
            sized=False,
            options=("metric", "depth", "scheduling", "settings", "oversubscribed"),
            own=StepOptions,
            settings=StepSettings,
            detail=StepDetail,
            unit="step",
            verifies_itself=True,
            case_s=STRATEGY_S,
            round_by_round=True,
            # Durations of the parts, then of the tail of each step.
            inner_stamps=lambda case: len(PARTS) + case.depth,
            rank=Deferred("packages.training.rank.step:RANK_PART"),
            rank_modules=RANK_MODULES,
        ),
    ),
    section=Deferred("packages.training.config:SECTION"),
    planning=Deferred("packages.training.planning.steps:PLANNING"),
    analysis=Deferred("packages.training.analyze.part:ANALYSIS"),
    report=Deferred("packages.training.report.part:REPORT"),
    sentences=Deferred("packages.training.report.notices:SENTENCES"),
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
    formats={"cs336": Deferred("packages.training.report.cs336:document")},
    lists={"models": Deferred("packages.training.report.part:models")},
)
