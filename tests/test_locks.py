"""A file system without locks costs a warning, not the run: Lustre mounted without `flock`, some NFS."""

import errno
import fcntl

import pytest

from collbench.launch.launcher import RendezvousFolder, remove_abandoned
from collbench.store import locks
from conftest import TINY


@pytest.fixture
def unlockable(monkeypatch):
    def refused(fd, how):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refused)


def test_a_lock_is_free_taken_or_unavailable(tmp_path, monkeypatch):
    path = tmp_path / "file"
    with path.open("w") as first, path.open("w") as second:
        assert locks.exclusive(first.fileno()) is True and locks.exclusive(second.fileno()) is False
        assert locks.shared(second.fileno()) is False
        monkeypatch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOLCK, "no locks")))
        assert locks.exclusive(first.fileno()) is locks.wait_for(first.fileno()) is None
        monkeypatch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.EBADF, "closed")))
        with pytest.raises(OSError, match="closed"):
            locks.exclusive(first.fileno())


def test_a_run_is_measured_with_a_note(warm, unlockable):
    done = warm("run", warm.config(TINY), "--no-plots")
    assert done.returncode == 0, done.stderr
    assert "its file system has no locks" in done.stderr
    assert warm.only_run().manifest["status"] == "complete"


def test_folders_of_other_processes_are_not_taken_for_abandoned(tmp_path, unlockable):
    with RendezvousFolder(tmp_path) as meeting:
        remove_abandoned(tmp_path)
        assert meeting.folder.is_dir()
