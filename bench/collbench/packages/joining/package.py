"""Define the package `joining`: the state that is recorded in the ranks of each run."""

from collbench.catalog.package import Package
from collbench.model.deferred import Deferred

JOINING = Package(
    "joining",
    analysis=Deferred("packages.joining.analyze:ANALYSIS"),
    kinds=("analyze",),
    look=Deferred("packages.joining.rank:look"),
)
