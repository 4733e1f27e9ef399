"""What `init` adds to the core: a verb, and what is looked at in the ranks of each run."""

from bench.catalog.package import Package, Verb
from bench.model.deferred import Deferred

INIT = Package(
    "init",
    analysis=Deferred("init.analyze:ANALYSIS"),
    notices=Deferred("init.report:SENTENCES"),
    look=Deferred("init.rank:look"),
    verbs={
        "init": Verb("init.cli:init", "Look", "What does joining a process group do to my process?", "init gloo"),
    },
)
