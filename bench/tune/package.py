"""What `tune` adds to the core: a verb, and how a run of it goes on."""

from bench.catalog.package import Package, Verb
from bench.model.deferred import Deferred

TUNE = Package(
    "tune",
    notices=Deferred("tune.report:SENTENCES"),
    verbs={
        "tune": Verb(
            "tune.cli.tune:tune",
            "Measure",
            "Which algorithm is faster than the library's own choice? Writes its rule file.",
            "tune mpi-tune --budget 10min",
        ),
    },
    resumes={"tune.json": Deferred("tune.cli.tune:resume")},
)
