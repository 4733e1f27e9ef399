"""The table of packages: the only place where the core names them.

To add a package: a folder with a `package.py`, and its record here.
"""

from bench.bits.package import BITS
from bench.gate.package import GATE
from bench.interop.package import INTEROP
from bench.replay.package import REPLAY
from bench.training.package import TRAINING

PACKAGES = (TRAINING, BITS, REPLAY, GATE, INTEROP)
