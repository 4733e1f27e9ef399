"""Lock open files, as far as their file system can, and record the owner of a file, in case locks do not suffice.

In: a file descriptor. Out: whether the lock was taken. Some file systems of clusters have no locks (Lustre mounted
without `flock`: ENOSYS), others have locks that reach no other host; then the record of an `Owner` replaces them.
"""

import errno
import fcntl
import os
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil

# Mount options of NFS and Lustre with which a lock is kept on one host.
LOCAL = frozenset({"nolock", "local_lock=all", "local_lock=flock", "localflock"})
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


def reach_other_hosts(path: Path) -> bool:
    """Return whether a lock in this file system also keeps out processes on other hosts, by its mount options."""
    mounts = {mount.mountpoint: mount.opts for mount in psutil.disk_partitions(all=True)}
    place = next((str(folder) for folder in (path.resolve(), *path.resolve().parents) if str(folder) in mounts), "/")
    return not LOCAL & set(mounts.get(place, "").split(","))


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, as another host can name it."""

    host: str
    # Boot id of the kernel of the host.
    boot: str
    pid: int
    # Start of the process in Unix time.
    began: float

    def may_live(self) -> bool:
        """Return False if the process has surely ended. A process on another host is assumed to be alive."""
        if (self.host, self.boot) != (socket.gethostname(), _boot()):
            return self.host != socket.gethostname()
        try:
            return abs(psutil.Process(self.pid).create_time() - self.began) < 1
        except psutil.Error:
            return False


def this_process() -> Owner:
    """Return the owner that names this process."""
    return Owner(socket.gethostname(), _boot(), os.getpid(), psutil.Process().create_time())


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # not Linux
        return ""
