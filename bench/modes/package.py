"""What modes add to the core: conclusions on a run, and sentences in its answer."""

from bench.catalog.package import Package
from bench.model.deferred import Deferred
from bench.modes.conclusions import NAME

MODES = Package(NAME, analysis=Deferred("modes.analyze.launches:ANALYSIS"), report=Deferred("modes.report:REPORT"))
