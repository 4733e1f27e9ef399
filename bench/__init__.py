"""CollBench: collective-communication benchmarks whose numbers say how far they can be trusted.

Start reading at `bench/model/records.py`, which holds the data in the order in which it flows.
"""

from typing import Any

from bench.model.deferred import Deferred

__all__ = ["__version__", "load_run"]
__version__ = "0.1.0"


def load_run(run: Any = None) -> Any:
    """A run as pandas tables, for notebooks: its folder, its name below results/, or the newest (docs/python.md).

    Returns `bench.cli.notebook.LoadedRun`. pandas is imported by the first call.
    """
    return Deferred("cli.notebook:load_run")(run)
