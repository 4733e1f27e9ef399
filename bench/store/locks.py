"""Lock open files, as far as their file system can.

In: a file descriptor. Out: whether the lock was taken. Some file systems of clusters have no locks (Lustre mounted
without `flock`: ENOSYS); then nothing keeps two processes apart, and whoever asked says so.
"""

import errno
import fcntl

NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK})


def exclusive(fd: int) -> bool | None:
    """Take the lock alone, at once. True: it was free. False: another process has it. None: there are no locks."""
    return _taken(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def shared(fd: int) -> bool | None:
    """Take the lock beside others who share it, at once; as `exclusive` otherwise."""
    return _taken(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)


def wait_for(fd: int) -> bool | None:
    """Take the lock alone, however long another process has it; None if there are no locks."""
    return _taken(fd, fcntl.LOCK_EX)


def _taken(fd: int, how: int) -> bool | None:
    try:
        fcntl.flock(fd, how)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in NO_LOCKS:
            return None
        raise
    return True
