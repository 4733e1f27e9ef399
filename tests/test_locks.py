"""A file system without locks costs a warning, not the run: Lustre mounted without `flock`, some NFS."""

import errno
import fcntl

import pytest

from bench.launch.launcher import RendezvousFolder, remove_abandoned
from bench.store import folders, locks
from bench.store.folders import Journal
from conftest import TINY


@pytest.fixture
def unlockable(monkeypatch):
    def refused(fd, how):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refused)


def test_a_lock_is_free_taken_or_not_to_be_had(tmp_path, monkeypatch):
    path = tmp_path / "file"
    with path.open("w") as one, path.open("w") as other:
        assert locks.exclusive(one.fileno()) is True and locks.exclusive(other.fileno()) is False
        assert locks.shared(other.fileno()) is False
        monkeypatch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOLCK, "no locks")))
        assert locks.exclusive(one.fileno()) is locks.wait_for(one.fileno()) is None
        monkeypatch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.EBADF, "closed")))
        with pytest.raises(OSError, match="closed"):
            locks.exclusive(one.fileno())


def test_a_run_is_measured_with_a_note(warm, unlockable):
    done = warm("run", warm.config(TINY), "--no-plots")
    assert done.returncode == 0, done.stderr
    assert "its file system has no locks" in done.stderr
    assert warm.only_run().manifest["status"] == "complete"


def test_the_journal_says_that_nothing_keeps_others_away(tmp_path, unlockable):
    (tmp_path / folders.SAMPLES).write_text("")
    with Journal(tmp_path) as journal:
        journal.append(b"{}")
        assert not journal.locked and not folders.is_being_written(tmp_path)


def test_folders_of_others_are_not_taken_for_abandoned(tmp_path, unlockable):
    with RendezvousFolder(tmp_path) as one:
        remove_abandoned(tmp_path)
        assert one.folder.is_dir()
