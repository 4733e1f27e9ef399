"""Other processes compute on the ranks' cores while a case with a load is measured, and end with it."""

import contextlib
import time

import psutil
import pytest

from collbench.machine import host
from collbench.store import folders

CONFIG = """
backends: [gloo]
world_sizes: [2]
operations: [all_reduce]
sizes: [4KiB]
load: [{load}]
launches: 1
sampling: {{seconds_per_case: 2s, warmup: 1}}
"""


@pytest.mark.slow
@pytest.mark.parametrize("load", ["cores", "bursts"])
def test_a_load_computes_on_every_core_and_leaves_no_process(tmp_path, cli, load):
    cores = psutil.Process().cpu_affinity()
    if host.unsupported_platform() or len(cores) < 2:
        pytest.skip("needs Linux and two cores")
    (tmp_path / "c.yaml").write_text(CONFIG.format(load=load))
    process, used = cli.start("run", "c.yaml", "--no-plots"), {}
    measuring = psutil.Process(process.pid)
    while process.poll() is None:
        with contextlib.suppress(psutil.Error):
            for child in measuring.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if len(pinned := child.cpu_affinity()) == 1:
                        used[child.pid] = pinned[0], child.cpu_times().user
        time.sleep(0.05)
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert {core for core, _ in used.values()} == set(cores) and all(seconds > 0 for _, seconds in used.values())
    run = folders.read(next(folders.runs(tmp_path / "results")))
    assert f"load {load}" in (run.path / "report.md").read_text()
    assert not [other for other in psutil.process_iter(["cwd"]) if other.info["cwd"] == str(tmp_path)]
