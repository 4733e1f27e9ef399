"""What CollBench can do beyond timing collectives. Each folder is one package: its rooms are named like the core's.

PACKAGES is the table of packages. To add a package, put its record here; the core reads the table by name
(`catalog.registry`) and imports no package.
"""

from bench.packages.bimodality.package import BIMODALITY
from bench.packages.bits.package import BITS
from bench.packages.gate.package import GATE
from bench.packages.interop.package import INTEROP
from bench.packages.joining.package import JOINING
from bench.packages.replay.package import REPLAY
from bench.packages.training.package import TRAINING
from bench.packages.tune.package import TUNE

PACKAGES = (TRAINING, BITS, REPLAY, GATE, INTEROP, BIMODALITY, JOINING, TUNE)
