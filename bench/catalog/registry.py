"""The packages that the core is put together with: the table `bench.packages.PACKAGES`, read by name.

The operations, the model of configurations and what decodes a run are made from the table when their modules are
loaded, in every process: the command, ranks, agents, a side of `ab`, a notebook. So the table is read here once, and is
not handed to each of them: a process that forgot to hand it on would read runs wrongly.
"""

from bench.catalog.package import Package
from bench.model.deferred import Deferred

PACKAGES: tuple[Package, ...] = Deferred("packages:PACKAGES").value
