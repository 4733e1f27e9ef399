"""What recorded jobs add to the core: an operation with its section, its conclusions and pictures, and a verb."""

from bench.catalog.operation import SYNC, Operation
from bench.catalog.package import KeptFile, Package, PictureKind, Verb
from bench.model.deferred import Deferred
from bench.model.records import Case
from bench.packages.replay.replayed_calls import NAME, ReplayOptions, ReplaySettings, recording_in


def recorded_stamps(case: Case) -> int:
    """Start and duration of each call of a replay, where there are several."""
    calls = recording_in(case).calls
    return 2 * calls if calls > 1 else 0


REPLAY = Package(
    NAME,
    operations=(
        Operation(
            NAME,
            "bytes of the buffers that the calls of a recorded job use on a rank",
            None,
            (1, 0),
            calls=SYNC,
            placements=("in",),
            typed=False,
            why_not_mpi="it makes the calls of torch.distributed",
            options=("metric", "scheduling", "settings", "ctas", "memory", "oversubscribed"),
            own=ReplayOptions,
            settings=ReplaySettings,
            inner_stamps=recorded_stamps,
            rank=Deferred("packages.replay.rank:RANK_PART"),
        ),
    ),
    section=Deferred("packages.replay.config:SECTION"),
    kept=KeptFile(
        "recording.calls.jsonl",
        read=Deferred("packages.replay.importers:named"),
        to_text=Deferred("packages.replay.store:to_text"),
        load=Deferred("packages.replay.store:read"),
    ),
    planning=Deferred("packages.replay.planning:PLANNING"),
    analysis=Deferred("packages.replay.analyze.part:ANALYSIS"),
    report=Deferred("packages.replay.report:REPORT"),
    sentences=Deferred("packages.replay.report:SENTENCES"),
    pictures=(
        PictureKind("recorded", "Where the recorded job's time in calls went", "packages.replay.plots:recorded"),
        PictureKind("replay", "The calls of a recorded step, recorded and made again", "packages.replay.plots:steps"),
    ),
    verbs={
        NAME: Verb(
            "packages.replay.cli:replay",
            "Measure",
            "What does a recorded job's communication cost here?",
            "replay docs/example/training.calls.jsonl --look",
        )
    },
)
