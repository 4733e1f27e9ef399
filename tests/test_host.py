"""The reason why a backend cannot be used here has a remedy, and is found without loading the backend.

Limits come from the process's own groups and from all groups above, wherever the batch system put the process.
"""

import importlib.metadata
import importlib.util
import subprocess
import sys

import pytest

from collbench.launch import mpirun
from collbench.machine import host
from collbench.model.records import Variables
from conftest import ROOT


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """Simulate a Python with mpi4py and without mpirun: the folder of Python and PATH are empty."""
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: real("sys" if name == "mpi4py" else name))
    monkeypatch.setattr(importlib.metadata, "files", lambda name: [])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def program(folder, text: str):
    folder.mkdir(exist_ok=True)
    (folder / "mpirun").write_text(f"#!/bin/sh\necho '{text}'\n")
    (folder / "mpirun").chmod(0o755)
    return folder / "mpirun"


def test_the_mpirun_of_the_package_is_not_started_for_its_version(monkeypatch, tmp_path):
    monkeypatch.setattr(host, "_packaged_mpirun", lambda: tmp_path / "mpirun")
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "5.0.11")
    monkeypatch.setattr(subprocess, "run", None)
    assert host.open_mpi_major(tmp_path / "mpirun") == 5


def test_variables_name_shared_memory_as_the_version_of_mpirun_does(nowhere, tmp_path):
    for folder, text, name in (("a", "mpirun (Open MPI) 4.1.6", "vader"), ("b", "mpirun (Open MPI) 5.0.11", "sm")):
        variables = mpirun._environment(program(nowhere / folder, text), tmp_path, "/dev/shm", Variables())
        assert variables["OMPI_MCA_btl"] == f"self,{name}"
        assert variables[f"OMPI_MCA_btl_{name}_backing_directory"] == "/dev/shm"


def test_describing_the_machine_loads_no_mpi():
    code = "import sys; from collbench.machine import host; host.machine(); assert 'mpi4py' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


# ── control groups ───────────────────────────────────────────────────────────────────────────────
GIB, GROUP = 2**30, "sys/fs/cgroup"
JOB, OLD = f"{GROUP}/system.slice/slurmstepd.scope/job_7", f"{GROUP}/memory/slurm/job_7"
OWN = "proc/self/cgroup"


def put(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("files", "free_gib", "cpu_max", "throttled"),
    [
        # As in Slurm, without a namespace: the root and the step set no limit; the job between them sets a limit.
        ({
            OWN: "0::/system.slice/slurmstepd.scope/job_7/step_0", f"{GROUP}/cpu.stat": "nr_throttled 3",
            f"{JOB}/memory.max": 8 * GIB, f"{JOB}/memory.current": 5 * GIB,
            f"{JOB}/memory.stat": f"anon 1\ninactive_file {GIB}",
            f"{JOB}/cpu.max": "150000 100000", f"{JOB}/cpu.stat": "nr_periods 9\nnr_throttled 5",
            f"{JOB}/step_0/memory.max": "max", f"{JOB}/step_0/memory.current": 5 * GIB,
            f"{JOB}/step_0/cpu.max": "max 100000",
        }, 4, "150000 100000", 5),
        # With a namespace, the limit is at the root.
        ({
            OWN: "0::/", f"{GROUP}/memory.max": 2 * GIB, f"{GROUP}/memory.current": 3 * GIB,
            f"{GROUP}/cpu.max": "50000 100000",
        }, 0, "50000 100000", None),
        # Version 1 has other names.
        ({
            OWN: "5:memory:/slurm/job_7\n4:cpu,cpuacct:/slurm/job_7\n1:name=systemd:/init",
            f"{OLD}/memory.limit_in_bytes": 4 * GIB, f"{OLD}/memory.usage_in_bytes": GIB,
            f"{GROUP}/memory/memory.limit_in_bytes": 9223372036854771712,
            f"{GROUP}/memory/memory.usage_in_bytes": GIB,
            f"{GROUP}/cpu/slurm/job_7/cpu.cfs_quota_us": 200000, f"{GROUP}/cpu/slurm/job_7/cpu.cfs_period_us": 100000,
            f"{GROUP}/cpu/cpu.cfs_quota_us": -1, f"{GROUP}/cpu/cpu.cfs_period_us": 100000,
        }, 3, "200000 100000", None),
        ({}, None, None, None),
        ({OWN: "0::/gone/away"}, None, None, None),
        ({OWN: "nonsense\n::"}, None, None, None),
    ],
)  # fmt: skip
def test_the_tightest_limit_of_memory_and_cpu_time_counts(tmp_path, files, free_gib, cpu_max, throttled):
    put(tmp_path, files)
    free = host.free_memory_bytes(tmp_path)
    assert free == (None if free_gib is None else free_gib * GIB)
    assert (host.cpu_max(tmp_path), host.throttled_periods(tmp_path)) == (cpu_max, throttled)
    assert host.free_processes(tmp_path) is None
