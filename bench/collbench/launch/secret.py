"""Share the secret of a job between its processes, which authenticate each other with it.

In: a `JobRank`, the text that the user has set as COLLBENCH_SECRET, and two folders. Out: the key of the job, on rank 0
and on the other ranks. Every user of the host can know the data that a launcher provides (ranks, addresses, ports,
the job's number), so the key is not derived from these data alone.

If the user has set no secret, rank 0 makes a random secret and leaves it in a file until all processes have joined: on
one host in a private folder of this user, on several hosts in the folder of results, which the hosts share. Every
process refuses a file that another user could have written or read.
"""

import contextlib
import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from collbench.launch.job import JobRank
from collbench.machine import host, network
from collbench.model.errors import ConfigError

SECRET_BYTES = 32
# A shorter secret could be found by brute force. The files that CollBench writes for launchers use 64 characters.
LEAST_CHARACTERS = 16
VARIABLE = "COLLBENCH_SECRET"
FOLDER_TRIES = 5
REMEDY = f"set {VARIABLE} to the same random text in all processes"


@dataclass(frozen=True, slots=True)
class JobSecret:
    """The secret of a job. Raises ConfigError if the chosen secret is too short."""

    place: JobRank
    # The secret that the user chose for all processes; empty if rank 0 makes one.
    chosen: str
    # Folder that contains the private folder of this user.
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
        """Yield the key on rank 0, which listens on `port`. The file with the secret exists until the context ends.

        Only one process can listen on a port, so an existing file of this name was left by a killed process, and is
        replaced. Raises ConfigError if no private file can be written.
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
        """Return the key on other ranks, if rank 0 listens on `port`; None if there is no file. Raises ConfigError."""
        secret = self.chosen or self._read(port)
        return self._key(secret) if secret else None

    def path(self, port: int) -> Path:
        """Return the path of the file with the secret, if rank 0 listens on `port`."""
        folder, scope = self.shared, ""
        if self.place.one_host:  # a loopback address and a port differ in meaning between namespaces
            folder, scope = self.runtime / f".collbench-{os.geteuid()}", f"{host.boot()} {network.namespace()}"
        name = "\n".join([self.place.identity, self.place.address, str(port), scope])
        return folder / f".secret-{hashlib.sha256(name.encode()).hexdigest()[:32]}"

    def _leave(self, path: Path, secret: str) -> None:
        """Write the file, and its folder if need be; another job that ends may remove the folder at the same time."""
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
    """Write a file that is private and complete from the moment at which other processes see it."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secret)
            # A file system that keeps no modes or owners is refused here, before the other processes wait.
            _refuse_unless_private(path, os.fstat(descriptor), stat.S_ISREG, "file")
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _read(path: Path) -> str:
    """Return the content of a private file. Raises ConfigError if it is not private, FileNotFoundError if missing."""
    try:
        # Non-blocking: opening a named pipe of another user would wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:  # a symbolic link, or a file of another user
        raise ConfigError(f"{path}: {(error.strerror or str(error)).lower()}: remove it, or {REMEDY}") from None
    with os.fdopen(descriptor, "rb") as file:
        _refuse_unless_private(path, os.fstat(descriptor), stat.S_ISREG, "file")
        return file.read(2 * SECRET_BYTES).decode(errors="replace")


def _refuse_unless_private(path: Path, status: os.stat_result, is_kind: Callable[[int], bool], kind: str) -> None:
    """Raise ConfigError unless `path` is of this kind, this user owns it, and nobody else may use it."""
    flaw = None
    if not is_kind(status.st_mode):
        flaw = f"it is no {kind}"
    elif status.st_uid != os.geteuid():
        flaw = f"it belongs to user {status.st_uid}, not to {os.geteuid()}"
    elif status.st_mode & 0o077:
        flaw = f"others may use it (mode {stat.S_IMODE(status.st_mode):o})"
    if flaw is not None:
        raise ConfigError(f"{path} is not a private {kind} of this user, {flaw}: remove it, or {REMEDY}")
