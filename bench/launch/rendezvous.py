"""Make and remove the private folder for the rendezvous of ranks on one host.

It lies in the temporary folder and holds, for each launch, the rendezvous file and the ranks' stacks. The process that
made it holds a lock in it and removes it at its end. If that process is killed, its ranks remove the folder. If they
could not either, the next run finds the lock free and removes it.
"""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from bench.store import locks

PREFIX, LOCK = "collbench-", "lock"


class RendezvousFolder:
    """Context with a private `folder`; no other run removes it while the context lasts.

    place: where to make it; None for the temporary folder.
    """

    folder: Path

    def __init__(self, place: Path | None = None) -> None:
        self._place = place

    def __enter__(self) -> "RendezvousFolder":
        place = self._place or Path(tempfile.gettempdir())
        remove_abandoned(place)
        while True:
            self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
            with contextlib.suppress(OSError):  # another run took it for abandoned before it was locked
                self._lock = os.open(self.folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
                if locks.exclusive(self._lock) is not False and (self.folder / LOCK).exists():
                    return self
                os.close(self._lock)

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)

    def place(self) -> Path:
        """A new folder for one launch."""
        return Path(tempfile.mkdtemp(dir=self.folder))


def remove_abandoned(place: Path | None = None) -> None:
    """Remove the folders of runs that were killed before they could do so."""
    for folder in (place or Path(tempfile.gettempdir())).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # it belongs to another user, or is just being removed
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            if _locked(lock):
                shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _locked(fd: int) -> bool:
    return locks.exclusive(fd) is True
