"""Register `tune` with the core: a verb, and the function that resumes its runs."""

from collbench.catalog.package import Package, Verb
from collbench.model.deferred import Deferred

TUNE = Package(
    "tune",
    verbs={
        "tune": Verb(
            "packages.tune.cli.tune:tune",
            "Measure",
            "Which algorithm is faster than the library's own choice? Writes its rule file.",
            "tune mpi-tune --budget 10min",
            resumes=Deferred("packages.tune.cli.tune:resume"),
        ),
    },
)
