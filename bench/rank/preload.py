"""What the fork server loads and sets up once for all ranks. Importing this module is its whole purpose.

Freezing: a garbage collection in a rank would otherwise walk, and so copy, every page of torch's objects
that it shares with the server (0.1 to 0.3 s a collection, measured).
"""

import gc
import sys
from types import TracebackType

gc.disable()  # nothing of what is loaded is garbage: looking for some takes a tenth of the time

import bench.rank.main  # noqa: E402, F401 - torch, numpy and all that a rank needs

gc.collect()
gc.freeze()
gc.enable()


def _quiet_where_nobody_waits(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A run that is interrupted while it asks for a rank leaves a fork that reads its orders in vain: no news."""
    if not issubclass(kind, EOFError | BrokenPipeError | ConnectionError):
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _quiet_where_nobody_waits
