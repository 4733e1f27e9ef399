"""Limit the memory that reading files from outside may take.

In: the files. Out: a context in which this process may allocate as much memory as the files could need; reading that
needs more ends in a ForeignError of one line. It is the last resort, after the limits of each reader. Without
/proc there is no limit.
"""

import contextlib
import resource
from collections.abc import Iterator, Sequence
from pathlib import Path

from collbench.model.errors import ForeignError
from collbench.model.units import first_few, format_bytes

# Memory in bytes for small files, and per byte on disk: a compressed trace expands to about ten times its size, and
# Python's objects take about ten times the size of their text.
LEAST, EACH = 2**29, 128
STATE = Path("/proc/self/statm")


@contextlib.contextmanager
def limited(paths: Sequence[Path]) -> Iterator[None]:
    """Raise ForeignError if reading takes too much memory. The process's own limit applies again afterwards."""
    size = sum(path.stat().st_size for path in paths if path.is_file())
    most = LEAST + EACH * size
    try:
        with _address_space(most):
            yield
    except (MemoryError, SystemError):  # the second in Python 3.11, without memory for a call
        files = first_few(list(map(str, paths)), 1)
        text = f"{files}: reading {format_bytes(size)} takes more than {format_bytes(most)} of memory"
        raise ForeignError(text) from None


@contextlib.contextmanager
def _address_space(further: int) -> Iterator[None]:
    """Let the process allocate at most `further` more bytes."""
    try:
        pages = int(STATE.read_text().split()[0])
    except OSError:
        yield
        return
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = pages * resource.getpagesize() + further
    limits = [limit for limit in (before, hard, wanted) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))
