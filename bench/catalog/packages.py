"""The table of packages, the only place where the core names them: to add one, put its record here."""

from bench.bits.package import BITS
from bench.gate.package import GATE
from bench.init.package import INIT
from bench.interop.package import INTEROP
from bench.modes.package import MODES
from bench.replay.package import REPLAY
from bench.training.package import TRAINING
from bench.tune.package import TUNE

PACKAGES = (TRAINING, BITS, REPLAY, GATE, INTEROP, MODES, INIT, TUNE)
