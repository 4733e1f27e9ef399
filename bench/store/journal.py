"""Append to the samples of a run: one process at a time, line by line, each forced to disk.

In: the folder of a run, and lines. Out: `samples.jsonl`, which holds every line whole or not at all.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

from bench.model.errors import StoreError
from bench.store import locks
from bench.store.folders import SAMPLES, reason_of


class Journal:
    """`samples.jsonl`, opened for appending and locked: a second writer gets a StoreError.

    Opening it drops an incomplete last line, which only a crash while writing leaves behind. locked: False where the
    file system has no locks, so that nothing keeps a second writer away.
    """

    def __init__(self, path: Path) -> None:
        self._path = path / SAMPLES
        self._written = 0

    def __enter__(self) -> Journal:
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise StoreError(f"{self._path}: {reason_of(error)}") from None
        taken = locks.exclusive(self._fd)
        if taken is False:
            os.close(self._fd)
            raise StoreError(f"{self._path.parent}: another process is measuring into this run")
        self.locked = bool(taken)
        content = self._path.read_bytes()
        os.ftruncate(self._fd, content.rfind(b"\n") + 1)
        os.lseek(self._fd, 0, os.SEEK_END)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        os.close(self._fd)

    def append(self, line: bytes) -> None:
        """Write one line (or several, joined by newlines) and force it to disk. After a failure none of it remains."""
        end = os.lseek(self._fd, 0, os.SEEK_CUR)
        rest = memoryview(line + b"\n")
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
            os.fsync(self._fd)
        except OSError as error:
            os.ftruncate(self._fd, end)
            os.lseek(self._fd, end, os.SEEK_SET)
            why, run = reason_of(error), self._path.parent
            raise StoreError(
                f"{self._path}: {why}; what was measured is kept; go on with: run --resume {run}"
            ) from None
