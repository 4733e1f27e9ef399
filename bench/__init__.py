"""CollBench: collective-communication benchmarks whose numbers say how far they can be trusted.

Start reading at `bench/model/records.py`, which holds the data in the order in which it flows.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from bench.cli.notebook import LoadedRun

__all__ = ["__version__", "load_run"]
__version__ = "0.1.0"


def load_run(run: "Path | str | None" = None) -> "LoadedRun":
    """A run as pandas tables, for notebooks: its folder, its name below results/, or the newest (docs/reading.md)."""
    from bench.cli.notebook import load_run as load  # here: loads pandas, which no rank needs

    return load(run)
