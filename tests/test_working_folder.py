"""Files in the working folder, or next to the package, are not taken for modules of CollBench or of a side."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from collbench.launch import side_process
from collbench.launch.side_process import SideProcess
from collbench.machine import environment
from collbench.model.errors import BenchError

HOSTILE = "import pathlib\npathlib.Path({mark!r}).touch()\nraise ImportError('planted')\n"
FIND = "import importlib.util as u; print([getattr(u.find_spec(name), 'origin', None) for name in {names}])"


@pytest.fixture
def planted(cli):
    """Plant hostile modules in the working folder; return the file that each of them writes."""
    mark = cli.folder / "mark"
    for name in ("collbench.py", "torch.py", "numpy.py"):
        (cli.folder / name).write_text(HOSTILE.format(mark=str(mark)))
    return mark


def test_modules_of_the_working_folder_are_not_run(cli, planted):
    """An innocent file of such a name once made every case fail for good; a hostile file was executed."""
    done = cli("run", cli.config(), "--no-plots", "--quiet")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not planted.exists() and not [s for s in cli.only_run().samples if s.failure]


@pytest.mark.slow
def test_a_side_runs_no_module_of_the_working_folder(cli, planted):
    done = cli("bits", cli.config(), "--b", f"python={sys.executable}")
    assert done.returncode == 0 and not planted.exists(), done.stderr


def test_a_side_finds_the_package_and_nothing_next_to_it(tmp_path):
    """A's torch and numpy lie next to an installed package; ranks of B once loaded them in place of their own."""
    environ = environment.of_side({"NCCL_ALGO": "Ring"}, tmp_path)
    assert environ["NCCL_ALGO"] == "Ring"
    assert [path.name for path in tmp_path.iterdir()] == ["collbench"]
    program = FIND.format(names=["collbench", "configs", "tests", "proof"])
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], env=environ, cwd=environment.PACKAGE_ROOT, capture_output=True, text=True
    )
    assert done.stdout.strip() == str([str(tmp_path / "collbench" / "__init__.py"), None, None, None]), done


def test_a_stopped_process_is_reported_and_a_running_process_is_not(monkeypatch):
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            side = SideProcess("side B", sys.executable, {}, ())
            side._process, side._workers = child, SimpleNamespace(members={})
            side._check()
            os.kill(child.pid, signal.SIGSTOP)
            os.waitpid(child.pid, os.WUNTRACED)
            side._check()
            monkeypatch.setattr(side_process, "STOPPED_S", 0.0)
            with pytest.raises(BenchError, match="side B: its process is stopped"):
                side._check()
            os.kill(child.pid, signal.SIGCONT)
            os.waitpid(child.pid, os.WCONTINUED)
            side._check()
        finally:
            child.kill()
