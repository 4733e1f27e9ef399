"""What CollBench can do beyond timing collectives. Each folder is one package: its rooms are named like the core's.

PACKAGES is the table of packages. To add a package, put its record here; the core reads the table by name
(`catalog.registry`) and imports no package. KINDS is the table of the modules that declare kinds of notices.
"""

from collbench.packages.bimodality.package import BIMODALITY
from collbench.packages.bits.package import BITS
from collbench.packages.gate.package import GATE
from collbench.packages.interop.package import INTEROP
from collbench.packages.joining.package import JOINING
from collbench.packages.replay.package import REPLAY
from collbench.packages.training.package import TRAINING
from collbench.packages.tune.package import TUNE

PACKAGES = (TRAINING, BITS, REPLAY, GATE, INTEROP, BIMODALITY, JOINING, TUNE)

# Modules of `collbench` in which kinds of notices stand, those of the core and those of packages. A kind that is read
# from a file may be in a module that is not loaded yet. None of them imports torch.
_OF_CORE = (
    "catalog.collectives", "catalog.rules",
    "planning.cases", "planning.plan", "machine.gpus", "machine.host", "machine.network", "model.comparisons",
    "store.folders", "launch.job", "stats.verdicts", "analyze.analysis", "analyze.compare", "analyze.consistency",
    "analyze.cost_model", "analyze.links", "analyze.notices", "analyze.pairs", "analyze.ranks", "analyze.summaries",
    "cli.comparison",
)  # fmt: skip
_OF_PACKAGES = (f"packages.{package.name}.{module}" for package in PACKAGES for module in package.kinds)
# Planning first: ranks read its kinds with a replay, and most other modules load numpy and scipy.
KINDS = sorted((*_OF_CORE, *_OF_PACKAGES), key=lambda module: ".planning" not in module)
