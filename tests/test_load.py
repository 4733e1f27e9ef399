"""Other processes compute on the ranks' cores while a case with a load is measured, and end with it."""

import psutil
import pytest

from bench.machine import host
from bench.store import folders

CONFIG = """
backends: [gloo]
world_sizes: [2]
operations: [all_reduce]
sizes: [4KiB]
load: [none, cores, bursts]
launches: 2
sampling: {seconds_per_case: 1s, warmup: 1}
"""


@pytest.mark.slow
def test_a_load_uses_the_cores_and_leaves_no_process(tmp_path, cli):
    if host.unsupported_platform() or len(psutil.Process().cpu_affinity()) < 2:
        pytest.skip("needs Linux and two cores")
    (tmp_path / "c.yaml").write_text(CONFIG)
    done = cli("run", "c.yaml", "--no-plots")
    assert done.returncode == 0, done.stderr
    run = folders.read(next(folders.runs(tmp_path / "results")))

    def foreign(load):
        used = [s.usage for s in run.samples if s.case.load == load]
        return sum(u.machine_busy_s - sum(u.cpu_s) for u in used) / sum(u.wall_s for u in used)

    # CPU seconds of others in a second: of two endless loops and of two that sleep half of the time.
    assert foreign("cores") > foreign("none") + 0.3 and foreign("bursts") > foreign("none") + 0.2
    assert not [process for process in psutil.process_iter(["cwd"]) if process.info["cwd"] == str(tmp_path)]
    assert "load cores" in (run.path / "report.md").read_text()
