"""The key of a job is made of a secret that no other user can read, write or guess; each job has its own secret."""

import os
import secrets
from dataclasses import replace

import pytest

from collbench.launch.job import JobRank
from collbench.launch.secret import JobSecret
from collbench.model.errors import ConfigError

PORT = 29501
CHOSEN = secrets.token_hex(16)


def place(rank=1, one_host=False):
    return JobRank("torchrun", rank, 2, 0, "127.0.0.1" if one_host else "a", (PORT,), "torchrun 2 none 29500", one_host)


def secret_of(folder, rank=1, one_host=False, chosen=""):
    """Return the secret as seen by a process with two folders: its own folder and the shared one."""
    runtime, shared = folder / "runtime", folder / "shared"
    runtime.mkdir(exist_ok=True)
    return JobSecret(place(rank, one_host), chosen, runtime, shared)


def files(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("one_host", [False, True])
def test_the_secret_lies_in_a_private_file_for_as_long_as_processes_join(tmp_path, one_host):
    first, second = secret_of(tmp_path, 0, one_host), secret_of(tmp_path, 1, one_host)
    assert second.key(PORT) is None
    for _ in range(2):
        with first.made(PORT) as key:
            (file,) = files(tmp_path)
            assert file == first.path(PORT) == second.path(PORT)
            assert file.stat().st_mode & 0o777 == 0o600
            assert file.parent.stat().st_mode & 0o077 == 0 or not one_host
            assert second.key(PORT) == key and second.key(PORT + 1) is None
        assert not files(tmp_path)


def test_two_jobs_of_one_size_in_one_folder_do_not_touch_each_others_secret(tmp_path):
    """torchrun gives both jobs the same job and the same port; the jobs run on different hosts."""
    jobs = [replace(secret_of(tmp_path, 0), place=replace(place(0), address=address)) for address in "ab"]
    with jobs[0].made(PORT) as key:
        with jobs[1].made(PORT) as other:
            assert key != other and len(files(tmp_path)) == 2
            assert [job.key(PORT) for job in jobs] == [key, other]
        assert jobs[0].key(PORT) == key
    assert not files(tmp_path)


def test_a_secret_is_removed_only_by_its_writer(tmp_path):
    with secret_of(tmp_path, 0).made(PORT):
        path = secret_of(tmp_path).path(PORT)
        path.write_text("that of another job")
    assert path.read_text() == "that of another job"


def linked(path):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def pipe(path):
    path.unlink()
    os.mkfifo(path, 0o600)


def owned_by_another_user(path):
    if os.geteuid():
        pytest.skip("only root can give a file away")
    os.chown(path, 12345, -1)


CHANGES = {
    "readable": lambda path: path.chmod(0o644),
    "linked": linked,
    "pipe": pipe,
    "owned by another user": owned_by_another_user,
    "in an open folder": lambda path: path.parent.chmod(0o755),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_secret_that_another_user_could_have_written_is_refused(tmp_path, change):
    with secret_of(tmp_path, 0, True).made(PORT):
        path = secret_of(tmp_path, 1, True).path(PORT)
        CHANGES[change](path)
        with pytest.raises(ConfigError, match="COLLBENCH_SECRET") as caught:
            secret_of(tmp_path, 1, True).key(PORT)
        assert str(path.parent) in str(caught.value) and "\n" not in str(caught.value)


def test_a_secret_that_could_be_guessed_is_refused(tmp_path):
    assert secret_of(tmp_path, chosen=CHOSEN[:16]).key(PORT)
    with pytest.raises(ConfigError, match="15 characters"):
        secret_of(tmp_path, chosen=CHOSEN[:15])
