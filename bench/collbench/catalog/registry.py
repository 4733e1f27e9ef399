"""Import the packages that extend the core, by name: the table `collbench.packages.PACKAGES`.

The operations, the model of configurations and the decoders of a run are made from the table when their modules are
loaded, in every process: the command, ranks, agents, a side of `ab`, a notebook. So the table is read here once, and
not passed on from process to process: a process that forgot to pass it on would read runs wrongly.
"""

from collbench.catalog.package import Package
from collbench.model.deferred import Deferred

PACKAGES: tuple[Package, ...] = Deferred("packages:PACKAGES").value
