"""Register the gate with the core: a verb that checks the nodes of a job, and a verb that checks a run with a table."""

from collbench.catalog.package import JobKind, Package, Verb
from collbench.model.deferred import Deferred

GATE = Package(
    "gate",
    lists={"tables": Deferred("packages.gate.report:published")},
    verbs={
        "gate": Verb(
            "packages.gate.cli.gate:gate",
            "Measure",
            "Is every node good enough? Names those that are not, in few rounds.",
            "gate nccl",
            JobKind(
                "gate.json and taint.txt are in results/",
                "Status 0: every node passed; 1: some fail, their names are in taint.txt; 3: undecided.",
                Deferred("packages.gate.analyze.nodes:estimate_s"),
                survives=True,
            ),
        ),
        "check": Verb(
            "packages.gate.cli.check:check",
            "Look",
            "Does a run reach the bandwidths that a table expects?",
            "check nvidia-aicr",
        ),
    },
)
