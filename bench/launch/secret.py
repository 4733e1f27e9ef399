"""Share the secret of a job between its processes; each one proves to the others that it knows it.

In: a `JobRank`, the text that the user has set as COLLBENCH_SECRET, and two folders. Out: the key of the job, on rank 0
and on the others. What a launcher provides (ranks, addresses, ports, the job's number) is known to every user of the
host, so no key is made of that alone.

Unless the user has set a secret, rank 0 makes a random one and leaves it in a file until all processes have joined: on
one host in a private folder of this user, between hosts in the folder of results, which they share. A file that
another user could have written or read is refused, on every side.
"""

import contextlib
import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.launch.job import JobRank
from bench.machine import host, network
from bench.model.errors import ConfigError

SECRET_BYTES = 32
# Fewer characters could be guessed by trying. The files that CollBench writes for launchers use 64.
LEAST_CHARACTERS = 16
VARIABLE = "COLLBENCH_SECRET"
FOLDER_TRIES = 5
REMEDY = f"set {VARIABLE} to the same random text in all processes"


@dataclass(frozen=True, slots=True)
class JobSecret:
    """The secret of a job. Raises ConfigError where the chosen one is too short."""

    place: JobRank
    # The secret that the user chose for all processes; empty if rank 0 makes one.
    chosen: str
    # Folder in which the private folder of this user lies.
    runtime: Path
    # Folder that all hosts of the job share.
    shared: Path

    def __post_init__(self) -> None:
        if 0 < len(self.chosen) < LEAST_CHARACTERS:
            raise ConfigError(
                f"{VARIABLE} has {len(self.chosen)} characters: a random text of {LEAST_CHARACTERS} or more is needed"
            )

    @contextlib.contextmanager
    def made(self, port: int) -> Iterator[bytes]:
        """The key on rank 0, which listens on `port`. The file lies there until the context ends.

        Only one process can listen on a port, so a file of this name that lies there already was left by a process that
        was killed, and is replaced. Raises ConfigError if no private file can be written.
        """
        if self.chosen:
            yield self._key(self.chosen)
            return
        secret, path = secrets.token_hex(SECRET_BYTES), self.path(port)
        try:
            self._leave(path, secret)
        except OSError as error:
            raise ConfigError(f"{path.parent}: {(error.strerror or str(error)).lower()}: {REMEDY}") from None
        try:
            yield self._key(secret)
        finally:
            with contextlib.suppress(ConfigError, OSError):
                if self._read(port) == secret:
                    path.unlink()
                if self.place.one_host:
                    path.parent.rmdir()  # refused while other jobs have files there

    def key(self, port: int) -> bytes | None:
        """The key on another process, if rank 0 listens on `port`; None if there is no file. Raises ConfigError."""
        secret = self.chosen or self._read(port)
        return self._key(secret) if secret else None

    def path(self, port: int) -> Path:
        """The file with the secret, if rank 0 listens on `port`."""
        folder, scope = self.shared, ""
        if self.place.one_host:  # there a loopback address and a port mean something else in every namespace
            folder, scope = self.runtime / f".collbench-{os.geteuid()}", f"{host.boot()} {network.namespace()}"
        name = "\n".join([self.place.identity, self.place.address, str(port), scope])
        return folder / f".secret-{hashlib.sha256(name.encode()).hexdigest()[:32]}"

    def _leave(self, path: Path, secret: str) -> None:
        """Write the file, and its folder if need be, which another job may remove at its end in this very moment."""
        for tries_left in reversed(range(FOLDER_TRIES)):
            path.parent.mkdir(mode=0o700 if self.place.one_host else 0o777, exist_ok=True)
            try:
                self._check_folder()
                _write(path, secret)
            except FileNotFoundError:
                if not tries_left:
                    raise
            else:
                return

    def _read(self, port: int) -> str | None:
        with contextlib.suppress(FileNotFoundError):
            self._check_folder()
            return _read(self.path(port))
        return None

    def _check_folder(self) -> None:
        """Raise ConfigError if the folder must be private and is not."""
        if self.place.one_host:
            folder = self.path(0).parent
            _refuse_unless_private(folder, folder.lstat(), stat.S_ISDIR, "folder")

    def _key(self, secret: str) -> bytes:
        return hashlib.scrypt(secret.encode(), salt=self.place.identity.encode(), n=2**14, r=8, p=1, dklen=32)


def _write(path: Path, secret: str) -> None:
    """Write a file that is private and complete from the moment at which others see it."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secret)
            # A file system that keeps no modes or owners is refused here, before the others wait.
            _refuse_unless_private(path, os.fstat(descriptor), stat.S_ISREG, "file")
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _read(path: Path) -> str:
    """The content of a private file. Raises ConfigError if it is not private, FileNotFoundError if there is none."""
    try:
        # Not blocking: a pipe of somebody else would never be opened.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:  # a link, or a file of somebody else
        raise ConfigError(f"{path}: {(error.strerror or str(error)).lower()}: remove it, or {REMEDY}") from None
    with os.fdopen(descriptor, "rb") as file:
        _refuse_unless_private(path, os.fstat(descriptor), stat.S_ISREG, "file")
        return file.read(2 * SECRET_BYTES).decode(errors="replace")


def _refuse_unless_private(path: Path, status: os.stat_result, is_kind: Callable[[int], bool], kind: str) -> None:
    """Raise ConfigError unless this user owns it and nobody else may read or write it."""
    flaw = None
    if not is_kind(status.st_mode):
        flaw = f"it is no {kind}"
    elif status.st_uid != os.geteuid():
        flaw = f"it belongs to user {status.st_uid}, not to {os.geteuid()}"
    elif status.st_mode & 0o077:
        flaw = f"others may use it (mode {stat.S_IMODE(status.st_mode):o})"
    if flaw is not None:
        raise ConfigError(f"{path} is no private {kind} of this user, {flaw}: remove it, or {REMEDY}")
