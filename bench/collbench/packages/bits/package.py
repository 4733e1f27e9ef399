"""Define the package `bits`: one verb."""

from collbench.catalog.package import Package, Verb

BITS = Package(
    "bits",
    verbs={
        "bits": Verb(
            "packages.bits.cli:bits", "Measure", "Is it the same sum? Compares results bit by bit.", "bits bits"
        )
    },
)
