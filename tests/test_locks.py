"""A file system without locks costs a warning, not the run: Lustre mounted without `flock`, some NFS."""

import errno
import fcntl
import json
import os
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from collbench.launch.launcher import RendezvousFolder, remove_abandoned
from collbench.model.errors import StoreError
from collbench.store import folders, locks
from collbench.store.folders import Journal
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


# ── the owner, if there are no locks ─────────────────────────────────────────────────────────────
@pytest.fixture
def run(tmp_path):
    (tmp_path / folders.SAMPLES).write_text("")
    (tmp_path / folders.LOG).write_text("")
    return tmp_path


def owned_by(run, **changes):
    owner = replace(locks.this_process(), **changes)
    (run / folders.OWNER).write_text(json.dumps(asdict(owner)))


@pytest.mark.usefixtures("unlockable")
def test_without_locks_the_owner_keeps_a_second_process_away(run):
    with Journal(run):
        assert folders.is_being_written(run)
        with pytest.raises(StoreError, match=f"process {os.getpid()} on host"), Journal(run):
            pass
    assert not folders.is_being_written(run) and not (run / folders.OWNER).exists()
    for ended in ({"boot": "before"}, {"began": 1.0}, {"pid": 2**22 + 1}):
        owned_by(run, **ended)
        assert not folders.is_being_written(run)
        with Journal(run):
            pass


@pytest.mark.parametrize(("options", "refused"), [("rw,local_lock=all", True), ("rw,nolock", True), ("rw", False)])
def test_a_free_lock_of_another_host_counts_if_locks_reach_that_far(run, monkeypatch, options, refused):
    mounts = [SimpleNamespace(mountpoint=place, opts=opts) for place, opts in (("/", "rw"), (str(run), options))]
    monkeypatch.setattr(locks.psutil, "disk_partitions", lambda **_: mounts)
    owned_by(run, host="elsewhere", boot="there")
    assert folders.is_being_written(run) is refused
    if refused:
        with pytest.raises(StoreError, match=f"elsewhere.*remove .*{folders.OWNER}"), Journal(run):
            pass
        (run / folders.OWNER).unlink()
    with Journal(run):
        pass


def test_folders_of_other_processes_are_not_taken_for_abandoned(tmp_path, unlockable):
    with RendezvousFolder(tmp_path) as meeting:
        remove_abandoned(tmp_path)
        assert meeting.folder.is_dir()
