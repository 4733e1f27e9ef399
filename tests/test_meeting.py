"""The folder in which ranks meet is kept while its maker lives, and removed at the latest by the next run."""

import os
import tempfile

import pytest

from bench.launch.launcher import LOCK, PREFIX, RendezvousFolder, remove_abandoned


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_is_gone_at_the_end(temporary):
    with RendezvousFolder() as meeting:
        assert meeting.place().parent == meeting.folder
    assert not list(temporary.iterdir())


def test_another_run_leaves_it_alone(temporary):
    with RendezvousFolder() as meeting:
        remove_abandoned()
        assert meeting.folder.is_dir()


def test_what_a_killed_run_left_is_removed(temporary):
    child = os.fork()
    if child == 0:
        RendezvousFolder().__enter__()
        os._exit(9)
    os.waitpid(child, 0)
    assert len(list(temporary.iterdir())) == 1
    with RendezvousFolder() as meeting:
        assert list(temporary.iterdir()) == [meeting.folder]


def test_a_stranger_of_the_same_name_stays(temporary):
    (temporary / f"{PREFIX}notes").mkdir()
    (temporary / f"{PREFIX}link").mkdir()
    (temporary / f"{PREFIX}link" / LOCK).symlink_to("/dev/null")
    remove_abandoned()
    assert len(list(temporary.iterdir())) == 2
