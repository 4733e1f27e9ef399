"""What CollBench can do beyond timing collectives. Each folder is one package: its rooms are named like the core's.

PACKAGES is the table of packages. To add a package, put its record here; the core reads the table by name
(`catalog.registry`) and imports no package.
"""

from collbench.packages.bimodality.package import BIMODALITY
from collbench.packages.bits.package import BITS
from collbench.packages.gate.package import GATE
from collbench.packages.interop.package import INTEROP
from collbench.packages.replay.package import REPLAY
from collbench.packages.training.package import TRAINING
from collbench.packages.tune.package import TUNE

PACKAGES = (TRAINING, BITS, REPLAY, GATE, INTEROP, BIMODALITY, TUNE)
