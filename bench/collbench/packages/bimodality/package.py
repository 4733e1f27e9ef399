"""Define the package `bimodality`: conclusions on a run, and sentences in its answer."""

from collbench.catalog.package import Package
from collbench.model.deferred import Deferred

BIMODALITY = Package(
    "bimodality",
    analysis=Deferred("packages.bimodality.analyze.launches:ANALYSIS"),
    report=Deferred("packages.bimodality.report:REPORT"),
)
