"""Each real launcher starts one run, which outlives a lost node: Slurm, MPICH, Intel MPI on two hosts, Ray on one.

The hosts are namespaces with own host names (proof/slurm.py). In other tests, the variables of Slurm simulate Slurm.
"""

import json
import subprocess
import sys
import tempfile

import pytest

from collbench.report.launch_files import LauncherName
from conftest import ROOT, TINY
from proof import slurm
from test_faults import wait_for, wait_for_samples
from test_gate import GATED, hosts
from test_joined import PATIENCE_S, RUN_BENCH, assert_measured, file_for, finished, started_by
from test_measure import assert_nothing_left

FOUR = TINY.replace("[2]", "[4]")
LONG = FOUR.replace("launches: 1", "launches: 12").replace("iterations: 8", "iterations: 60")
# Options for a job that outlives a node, as in the file of `plan --launcher slurm`.
SURVIVING = ["--nodes=2", "--no-kill", "--kill-on-bad-exit=0"]
# The folder in which make .venv-launchers/.installed installs launchers.
LAUNCHERS = ROOT / ".venv-launchers"
RAY = list(LAUNCHERS.glob("ray/lib/python3*/site-packages"))
pytestmark = pytest.mark.usefixtures("ended")
needs_slurm = pytest.mark.skipif(slurm.unsupported() is not None, reason=str(slurm.unsupported()))


@pytest.fixture(scope="module")
def shared_cluster():
    with slurm.cluster() as made:
        yield made


@pytest.fixture
def cluster(shared_cluster):
    """Return two idle nodes, in whatever state the previous test left them."""
    shared_cluster.reset()
    return shared_cluster


def srun(cluster, cli, options: list[str], *words: str) -> subprocess.Popen:
    """Start a step on both nodes; each task runs this command line of collbench."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = ["srun", *options, "--cpu-bind=none", sys.executable, RUN_BENCH, *words]
    return cluster.start(*command, env=cli.environment, cwd=cli.folder, **pipes)


def ranks_of_hosts(run) -> dict[str, list[int]]:
    """Return the ranks per host of the last session."""
    return {host["hostname"]: host["ranks"] for host in run.environment[-1]["hosts"]}


# ── Slurm ────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.slow
@needs_slurm
def test_an_arbitrary_distribution_asks_for_the_host_of_rank_0(cluster, cli):
    (cli.folder / "hosts").write_text("node1\nnode0\n")
    cli.environment["SLURM_HOSTFILE"] = str(cli.folder / "hosts")
    words = ["-N2", "-n2", "--distribution=arbitrary"], "run", cli.config(TINY), "--no-plots"
    done = finished(srun(cluster, cli, *words))
    assert done.returncode == 2 and done.stderr.count("export MASTER_ADDR") == 2, done.stderr
    cli.environment["MASTER_ADDR"] = cluster.hosts.address("node1")
    done = finished(srun(cluster, cli, *words))
    assert done.returncode == 0, done.stderr
    assert ranks_of_hosts(cli.only_run()) == {"node1": [0], "node0": [1]}


@pytest.mark.slow
@needs_slurm
def test_the_file_for_slurm_runs_as_planned(cluster, cli):
    file = file_for(cli, LauncherName.SLURM, FOUR, nodes=2, each=2)
    done = cluster.run("sbatch", "--parsable", file, env=cli.environment, cwd=cli.folder)
    assert done.returncode == 0, done.stderr
    wait_for(lambda: not cluster.jobs(), PATIENCE_S)
    logs = "".join(log.read_text() for log in cli.folder.glob("*.log"))
    ended = cluster.run("scontrol", "show", "job", done.stdout.strip()).stdout
    assert "JobState=COMPLETED" in ended and "ExitCode=0:0" in ended, ended + logs
    assert_measured(cli, "srun", {4})
    assert ranks_of_hosts(cli.only_run()) == {"node0": [0, 1], "node1": [2, 3]}
    assert "gloo, 4 ranks" in logs


@pytest.mark.slow
@needs_slurm
def test_a_cancelled_job_can_be_resumed(cluster, cli):
    started = srun(cluster, cli, ["-N2", "-n4"], "run", cli.config(LONG), "--no-plots")
    wait_for_samples(cli, 2, PATIENCE_S)
    (job,) = cluster.jobs()
    assert cluster.run("scancel", job).returncode == 0
    done = finished(started)
    assert done.returncode != 0
    assert_nothing_left(cli, PATIENCE_S)
    run = cli.only_run()
    assert run.manifest["status"] == "interrupted", done.stderr
    assert 2 <= len(run.samples) < run.plan.total and all(s.failure is None for s in run.samples)

    cluster.reset()
    # On the login host, another barrier and another network would change the number.
    done = cluster.run(sys.executable, RUN_BENCH, "resume", "tiny", "--no-plots", env=cli.environment, cwd=cli.folder)
    assert done.returncode == 2 and "launcher: srun there, none here" in done.stderr, done.stderr
    assert all(name in done.stderr for name in slurm.NODES) and len(cli.only_run().samples) == len(run.samples)
    done = finished(srun(cluster, cli, ["-N2", "-n4"], "resume", "tiny", "--no-plots"))
    assert done.returncode == 0, done.stderr
    run = cli.only_run()
    assert run.manifest["status"] == "complete" and len(run.samples) == run.plan.total
    assert all(s.failure is None for s in run.samples) and len(run.environment) == 2
    assert_nothing_left(cli)


@pytest.mark.slow
@needs_slurm
def test_the_gate_names_the_lost_node(cluster, cli):
    started = srun(cluster, cli, ["-n2", *SURVIVING], "gate", cli.config(GATED))
    wait_for(lambda: list(cli.folder.glob("results/*-gate-look")), PATIENCE_S)
    cluster.lose("node1")
    done = finished(started)
    (verdict,) = cli.folder.glob("results/*/gate.json")
    content = json.loads(verdict.read_bytes())
    assert done.returncode != 0 and content["verdict"] == "FAIL", done.stdout + done.stderr
    assert hosts(content, "FAIL") == ["node1"] and hosts(content, "PASS") == []
    assert verdict.with_name("taint.txt").read_text().split() == ["node1"]
    assert_nothing_left(cli)


# ── MPICH and Intel MPI ──────────────────────────────────────────────────────────────────────────
@pytest.mark.slow
@needs_slurm
@pytest.mark.parametrize("name", ["mpich", "impi"])
def test_mpiexec_in_an_allocation_of_slurm(cluster, cli, name):
    """Hydra asks Slurm for the hosts, and starts its proxies with srun, whose variables the ranks see, too."""
    mpiexec = LAUNCHERS / name / "bin" / "mpiexec"
    if not mpiexec.exists():
        pytest.skip(f"{name} is not installed (make .venv-launchers/.installed)")
    words = ["salloc", "-N2", "-n4", "--ntasks-per-node=2", str(mpiexec), "-n", "4", "-ppn", "2"]
    words += ["-genv", "FI_PROVIDER", "tcp", sys.executable, RUN_BENCH, "run", cli.config(FOUR), "--no-plots"]
    done = cluster.run(*words, env=cli.environment, cwd=cli.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_measured(cli, "mpirun (Hydra)", {4})
    assert ranks_of_hosts(cli.only_run()) == {"node0": [0, 1], "node1": [2, 3]}


# ── Ray ──────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.slow
@pytest.mark.skipif(not RAY, reason="Ray is not installed (make .venv-launchers/.installed)")
def test_the_file_for_ray_runs_on_two_workers(cli):
    file = file_for(cli, LauncherName.RAY, TINY.replace("[2]", "[1, 2]"), nodes=1, each=2)
    with tempfile.TemporaryDirectory(prefix="r-") as place:  # short, because the path of a socket has a limit
        ray = {"PYTHONPATH": f"{ROOT}:{RAY[0]}", "RAY_TMPDIR": place, "RAY_USAGE_STATS_ENABLED": "0"}
        # Ray's workers have niceness 15 otherwise, so other tests come before them.
        done = started_by(cli, sys.executable, file, RAY_worker_niceness="0", **ray)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_measured(cli, "Ray Train", {1, 2})
