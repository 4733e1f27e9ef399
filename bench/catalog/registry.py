"""The table of packages, the only place where the core names them: to add one, put its record here."""

from bench.packages.bimodality.package import BIMODALITY
from bench.packages.bits.package import BITS
from bench.packages.gate.package import GATE
from bench.packages.interop.package import INTEROP
from bench.packages.joining.package import JOINING
from bench.packages.replay.package import REPLAY
from bench.packages.training.package import TRAINING
from bench.packages.tune.package import TUNE

PACKAGES = (TRAINING, BITS, REPLAY, GATE, INTEROP, BIMODALITY, JOINING, TUNE)
