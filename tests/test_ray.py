"""Inside a Ray Train job the workers are one run. Needs the optional package ray."""

import importlib.util
import subprocess
import sys
import tempfile

import pytest

from bench.report.launch_files import LauncherName
from conftest import ROOT, TINY
from test_joined import assert_measured, file_for

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed (make install-ray)"
)


@needs_ray
def test_the_file_for_ray_runs_on_two_workers(cli):
    file = file_for(cli, LauncherName.RAY, TINY.replace("[2]", "[1, 2]"), nodes=1, each=2)
    with tempfile.TemporaryDirectory(prefix="r-") as place:  # short: a socket's path has a limit
        environment = cli.environment | {"PYTHONPATH": str(ROOT), "RAY_TMPDIR": place, "RAY_USAGE_STATS_ENABLED": "0"}
        command = [sys.executable, file]
        done = subprocess.run(command, cwd=cli.folder, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_measured(cli, "Ray Train", {1, 2})
