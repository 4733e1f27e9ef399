"""Define the package `joining`: the verb `init`, and the state that is recorded in the ranks of each run."""

from bench.catalog.package import Package, Verb
from bench.model.deferred import Deferred

JOINING = Package(
    "joining",
    analysis=Deferred("packages.joining.analyze:ANALYSIS"),
    sentences=Deferred("packages.joining.report:SENTENCES"),
    look=Deferred("packages.joining.rank:look"),
    verbs={
        "init": Verb(
            "packages.joining.cli:init", "Look", "What does joining a process group do to my process?", "init gloo"
        ),
    },
)
