"""Limit the memory that reading files from outside may take.

In: the files. Out: a context in which this process may allocate as much as they could need; what needs more ends in a
ForeignError of one line. It is the last resort, behind the limits that each reader has. Where the system does not tell
how much a process has (other than Linux), there is no limit.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.model.errors import ForeignError
from bench.model.units import first_few, format_bytes

# What small files may need, and what each further byte on disk may: a packed trace unfolds to some ten times its size,
# and Python's objects take some ten times that of the text they are made of.
LEAST, EACH = 2**29, 128
STATE = Path("/proc/self/statm")


@contextlib.contextmanager
def limited(paths: Sequence[Path]) -> Iterator[None]:
    """Raises ForeignError where reading takes too much. The process's own limit holds again afterwards."""
    size = sum(path.stat().st_size for path in paths if path.is_file())
    most = LEAST + EACH * size
    with _address_space(most):
        try:
            yield
        except MemoryError:
            files = first_few(list(map(str, paths)), 1)
            text = f"{files}: reading {format_bytes(size)} takes more than {format_bytes(most)} of memory"
            raise ForeignError(text) from None


@contextlib.contextmanager
def _address_space(further: int) -> Iterator[None]:
    """Let the process allocate this many more bytes."""
    try:
        import resource  # here: Windows has none

        pages = int(STATE.read_text().split()[0])
    except (ImportError, OSError):
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
