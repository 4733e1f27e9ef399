"""The secret that the processes of a job share: set by the user, or made by rank 0 in the shared results folder.

In: the job's place, the value of COLLBENCH_SECRET, the results folder. Out: keys for `protocol/channel.py`.

On one host, where rank 0 listens on loopback, the job's own number keeps jobs apart, and a secret may be added. Between
hosts the number is not enough, because it can be guessed. Raises ConfigError where there is neither variable nor shared
folder.
"""

import contextlib
import hashlib
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.launch.job import JobRank
from bench.model.errors import ConfigError

SECRET_BYTES = 32
# Pause between two attempts to reach rank 0, in seconds.
AGAIN_S = 0.3
NEITHER = (
    "processes on several hosts know each other by a secret: set COLLBENCH_SECRET to the same random text in all of "
    "them, or start them in a folder that all hosts share ({})"
)


@dataclass(frozen=True, slots=True)
class JobSecret:
    """told: by the user; empty if nothing was. folder: of results, in which rank 0 leaves a secret for the others."""

    place: JobRank
    told: str
    folder: Path

    @contextlib.contextmanager
    def made(self) -> Iterator[bytes]:
        """The key, on rank 0. A secret that is made here lies in a file, which only this user can read, meanwhile."""
        if not self._by_file:
            yield self._key(self.told)
            return
        secret, path = secrets.token_hex(SECRET_BYTES), self._path
        try:
            self.folder.mkdir(exist_ok=True)
            own = path.with_suffix(f".{os.getpid()}")
            with os.fdopen(os.open(own, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
                file.write(secret)
            own.replace(path)  # an earlier job that was killed may have left one
        except OSError as error:
            raise ConfigError(NEITHER.format(f"{self.folder}: {(error.strerror or str(error)).lower()}")) from None
        try:
            yield self._key(secret)
        finally:
            path.unlink(missing_ok=True)

    def keys(self, deadline: float) -> Iterator[bytes]:
        """The key on another process, again and again until the deadline: an earlier job may have left another one."""
        read_any = False
        while time.monotonic() < deadline:
            if not self._by_file:
                yield self._key(self.told)
            else:
                with contextlib.suppress(OSError, UnicodeDecodeError):
                    secret, read_any = self._path.read_text(), True
                    yield self._key(secret)
            time.sleep(AGAIN_S)
        if self._by_file and not read_any:
            raise ConfigError(NEITHER.format(f"rank 0 left no {self._path}"))

    @property
    def _by_file(self) -> bool:
        return not self.told and not self.place.one_host

    @property
    def _path(self) -> Path:
        return self.folder / f".secret-{hashlib.sha256(self.place.identity.encode()).hexdigest()[:16]}"

    def _key(self, secret: str) -> bytes:
        return hashlib.sha256(f"{self.place.identity}\n{secret}".encode()).digest()
