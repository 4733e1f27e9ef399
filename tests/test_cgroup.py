"""Limits come from the process's own groups and from all groups above, wherever the batch system put the process."""

import pytest

from collbench.machine import host

GIB = 2**30


def put(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


JOB = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_7"


def test_a_job_without_a_namespace_of_its_own_is_found_below(tmp_path):
    """As in Slurm, the root and the step set no limit; the job between them sets a limit."""
    put(tmp_path, {
        "proc/self/cgroup": "0::/system.slice/slurmstepd.scope/job_7/step_0\n",
        "sys/fs/cgroup/cpu.stat": "nr_throttled 3\n",
        f"{JOB}/memory.max": f"{8 * GIB}\n", f"{JOB}/memory.current": f"{5 * GIB}\n",
        f"{JOB}/memory.stat": f"anon 1\ninactive_file {GIB}\n",
        f"{JOB}/cpu.max": "150000 100000\n", f"{JOB}/cpu.stat": "nr_periods 9\nnr_throttled 5\n",
        f"{JOB}/step_0/memory.max": "max\n", f"{JOB}/step_0/memory.current": f"{5 * GIB}\n",
        f"{JOB}/step_0/cpu.max": "max 100000\n",
    })  # fmt: skip
    assert host.free_memory_bytes(tmp_path) == 4 * GIB
    assert host.cpu_max(tmp_path) == "150000 100000"
    assert host.throttled_periods(tmp_path) == 5


def test_with_a_namespace_the_limit_is_at_the_root(tmp_path):
    put(tmp_path, {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": f"{2 * GIB}\n", "sys/fs/cgroup/memory.current": f"{3 * GIB}\n",
        "sys/fs/cgroup/cpu.max": "50000 100000\n",
    })  # fmt: skip
    assert host.free_memory_bytes(tmp_path) == 0
    assert host.cpu_max(tmp_path) == "50000 100000"


def test_version_1_has_other_names(tmp_path):
    put(tmp_path, {
        "proc/self/cgroup": "5:memory:/slurm/job_7\n4:cpu,cpuacct:/slurm/job_7\n1:name=systemd:/init\n",
        "sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes": f"{4 * GIB}\n",
        "sys/fs/cgroup/memory/slurm/job_7/memory.usage_in_bytes": f"{GIB}\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
        "sys/fs/cgroup/cpu/slurm/job_7/cpu.cfs_quota_us": "200000\n",
        "sys/fs/cgroup/cpu/slurm/job_7/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    })  # fmt: skip
    assert host.free_memory_bytes(tmp_path) == 3 * GIB
    assert host.cpu_max(tmp_path) == "200000 100000"


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/pids.max": "12\n", "sys/fs/cgroup/pids.current": "5\n"}, 7),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/pids.max": "3\n", "sys/fs/cgroup/pids.current": "5\n"}, 0),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/pids.max": "max\n", "sys/fs/cgroup/pids.current": "5\n"}, None),
        (
            {
                "proc/self/cgroup": "8:pids:/slurm/job_7\n",
                "sys/fs/cgroup/pids/slurm/job_7/pids.max": "max\n",
                "sys/fs/cgroup/pids/slurm/job_7/pids.current": "5\n",
                "sys/fs/cgroup/pids/slurm/pids.max": "100\n",
                "sys/fs/cgroup/pids/slurm/pids.current": "60\n",
            },
            40,
        ),
    ],
)
def test_the_tightest_limit_of_processes_counts(tmp_path, files, free):
    put(tmp_path, files)
    assert host.free_processes(tmp_path) == free


@pytest.mark.parametrize("files", [{}, {"proc/self/cgroup": "0::/gone/away\n"}, {"proc/self/cgroup": "nonsense\n::\n"}])
def test_without_information_there_is_no_limit(tmp_path, files):
    put(tmp_path, files)
    assert host.free_memory_bytes(tmp_path) is host.cpu_max(tmp_path) is host.throttled_periods(tmp_path) is None
    assert host.free_processes(tmp_path) is None
