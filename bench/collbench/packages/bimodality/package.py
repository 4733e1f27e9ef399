"""Define the package `bimodality`: conclusions on a run, and sentences in its answer."""

from collbench.catalog.package import Package
from collbench.model.deferred import Deferred

BIMODALITY = Package(
    "bimodality",
    reads=Deferred("packages.bimodality.analyze.launches:read"),
    text=Deferred("packages.bimodality.report:describe"),
)
