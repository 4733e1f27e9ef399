"""What launches of two kinds add to the core: warnings on a run."""

from bench.catalog.package import Package
from bench.model.deferred import Deferred

MODES = Package("modes", analysis=Deferred("modes.analyze:ANALYSIS"))
