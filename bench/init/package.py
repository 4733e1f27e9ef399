"""What `init` adds to the core: a verb."""

from bench.catalog.package import Package, Verb

INIT = Package(
    "init",
    verbs={
        "init": Verb("init.cli:init", "Look", "What does joining a process group do to my process?", "init gloo"),
    },
)
