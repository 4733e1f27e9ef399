"""What the gate adds to the core: a verb, which a job starts."""

from bench.catalog.package import Package, Verb
from bench.model.deferred import Deferred

GATE = Package(
    "gate",
    verbs={
        "gate": Verb(
            "gate.cli:gate",
            "Measure",
            "Is every node good enough? Names those that are not, in few rounds.",
            "gate nccl",
            job=Deferred("gate.analyze:estimate_s"),
        )
    },
)
