"""Lock open files, as far as their file system can.

In: a file descriptor. Out: whether the lock was taken. Some file systems of clusters have no locks (Lustre mounted
without `flock`: ENOSYS).
"""

import errno
import fcntl
import tempfile
from pathlib import Path

NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK})


def exclusive(fd: int) -> bool | None:
    """Take an exclusive lock, at once. True: it was free. False: another process has it. None: there are no locks."""
    return _taken(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def shared(fd: int) -> bool | None:
    """Take a shared lock, at once. True: it was free or shared. False and None: as for `exclusive`."""
    return _taken(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)


def wait_for(fd: int) -> bool | None:
    """Take an exclusive lock, however long another process has it; None if there are no locks."""
    return _taken(fd, fcntl.LOCK_EX)


def _taken(fd: int, operation: int) -> bool | None:
    try:
        fcntl.flock(fd, operation)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in NO_LOCKS:
            return None
        raise
    return True


def supported(folder: Path) -> bool:
    """Return whether files in this folder can be locked; True if no file can be made there, which others report."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return exclusive(file.fileno()) is not None
    except OSError:
        return True
