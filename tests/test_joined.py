"""Processes that a launcher started measure together: one folder, one status, output of rank 0 only, nothing is left.

Real launchers run if they are installed; variables of Slurm simulate Slurm, two network namespaces simulate two hosts.
"""

import contextlib
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from collbench.analyze.sessions import hosts
from collbench.cli.plan import job_of
from collbench.config import models as configuration
from collbench.machine import host
from collbench.report.launch_files import LauncherName, launch_file
from collbench.report.notices import sentence
from collbench.store import folders
from conftest import ROOT, TINY, CommandLine
from proof import links
from test_faults import ranks_of, wait_for, wait_for_samples
from test_measure import assert_nothing_left
from test_turns import IN_TURNS, assert_took_turns

SWEEP = TINY.replace("[2]", "[1, 2]")
SLOW = TINY.replace("iterations: 8", "iterations: 400").replace("sizes: [4KiB, 64KiB]", "sizes: [4KiB]")
# On a machine that other work keeps busy, loading torch four times takes a minute.
PATIENCE_S = 240
# Messages if mpirun's daemon has lost count of the ranks (`rank.mpi`), or their shared memory: both happen when busy.
LOST = ("a rank of MPI was lost, and mpirun does not replace it", "failed during shared memory initialization")
RUN_BENCH = str(ROOT / "run_bench.py")
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
pytestmark = pytest.mark.usefixtures("ended")
needs_links = pytest.mark.skipif(links.unsupported() is not None, reason=str(links.unsupported()))
needs_mpi = pytest.mark.skipif(host.unsupported_mpi() is not None, reason=str(host.unsupported_mpi()))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def file_for(cli, launcher: LauncherName, text: str, nodes: int, each: int) -> str:
    """Write a configuration and the file that `plan --launcher` prints for it; return the name of the file."""
    config = cli.config(text)
    settings, _ = configuration.load(cli.folder / config, [])
    file = launch_file(launcher, job_of(settings, cli.folder / config, [], nodes, each))
    # An own port, because other tests may run at the same time; no pictures, to save time.
    file = file.replace("29400", str(free_port())).replace(f'{config}"]', f'{config}", "--no-plots"]')
    (cli.folder / "launch").write_text(file.replace(f"{config}\n", f"{config} --no-plots\n"))
    return "launch"


def finished(process: subprocess.Popen) -> subprocess.CompletedProcess:
    out, err = process.communicate(timeout=PATIENCE_S)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def slurm(cli, ranks: int) -> list[CommandLine]:
    """Return a command line for each task of a step, with the variables that srun would set."""
    step = {
        "SLURM_JOB_ID": str(secrets.randbelow(10**9)),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": str(ranks),
        "SLURM_STEP_NODELIST": "localhost",
    }
    tasks = [CommandLine(cli.folder) for _ in range(ranks)]
    for rank, task in enumerate(tasks):
        task.environment |= step | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
    return tasks


def started_by(cli, *command: str, **variables: str) -> subprocess.CompletedProcess:
    """Run the command of a launcher and return its result."""
    return subprocess.run(
        command, cwd=cli.folder, env=cli.environment | variables, capture_output=True, text=True, timeout=PATIENCE_S
    )


def by_torchrun(cli, port: int, *words: str) -> subprocess.CompletedProcess:
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={port}"]
    return started_by(cli, sys.executable, *launcher, RUN_BENCH, *words, "--no-plots")


def on_host(cli, network, number: int, addresses: str, name: str | None = None) -> list[str]:
    """Return the beginning of a command on a host of a network: with a name, a boot id and a file of addresses."""
    own = cli.folder / f"host-{number}"
    own.mkdir(exist_ok=True)
    (own / "hosts").write_text(f"127.0.0.1 localhost\n{addresses}\n")
    (own / "boot").write_text(f"boot-{number}\n")
    setting = f"mount --bind {own}/hosts /etc/hosts && mount --bind {own}/boot /proc/sys/kernel/random/boot_id"
    script = f'{setting} && hostname {name or f"n{number}"} && exec "$0" "$@"'
    return ["ip", "netns", "exec", network.namespaces[number], "unshare", "--uts", "--mount", "sh", "-c", script]


# The command line with shorter deadlines.
SOONER = """
import sys
from collbench.launch import agent, workers
agent.STORE_WAIT_S = workers.HANDSHAKE_S = 4
from collbench.__main__ import main
sys.exit(main())
"""


def by_hand(cli, network, config: str, addresses: list[str], ranks: list[int], master: str) -> list[subprocess.Popen]:
    """Start a run with a rank on each of these hosts, with variables that a user has set, and shorter deadlines."""
    (cli.folder / "sooner.py").write_text(SOONER)
    return [
        subprocess.Popen(
            [*on_host(cli, network, host, addresses[host]), sys.executable, "sooner.py", "run", config, "--no-plots"],
            cwd=cli.folder,
            env=cli.environment
            | {"PYTHONPATH": str(ROOT / "bench")}
            | {"RANK": str(rank), "WORLD_SIZE": str(len(ranks)), "LOCAL_RANK": str(ranks[:rank].count(host))}
            | {"LOCAL_WORLD_SIZE": str(ranks.count(host)), "MASTER_ADDR": master, "MASTER_PORT": "29500"},
            **PIPES,
        )
        for rank, host in enumerate(ranks)
    ]


def assert_measured(cli, launcher: str, sizes: set[int]) -> None:
    """Assert that there is one complete run, of exactly these world sizes."""
    measured = cli.only_run()
    assert measured.manifest["status"] == "complete"
    assert {s.case.world_size for s in measured.samples} == sizes
    assert all(s.failure is None for s in measured.samples), measured.samples
    assert all(s.timed.duration_ns.shape == (8, s.case.world_size) for s in measured.samples)
    (session,) = measured.environment
    assert (session["job"]["launcher"], session["job"]["ranks"]) == (launcher, max(sizes))
    assert sorted(rank for host in session["hosts"] for rank in host["ranks"]) == list(range(max(sizes)))
    assert_nothing_left(cli)


@pytest.mark.slow
def test_two_torchruns_of_two_ranks_each_are_one_job_of_four(cli):
    file = file_for(cli, LauncherName.TORCHRUN, TINY.replace("[2]", "[1, 3, 4, 5]"), nodes=2, each=2)
    nodes = [["sh", file, str(node), "127.0.0.1"] for node in range(2)]
    started = [subprocess.Popen(command, cwd=cli.folder, env=cli.environment, **PIPES) for command in nodes]
    first, second = [finished(process) for process in started]
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert first.stdout and not second.stdout  # only rank 0 prints
    assert_measured(cli, "torchrun", {1, 3, 4})
    assert {sentence(skip.reason) for skip in cli.only_run().plan.skips} == {"the job has 4 ranks"}


@pytest.mark.slow
def test_two_sides_in_a_job_take_turns_and_differ_in_variables_also_when_resumed(cli):
    """Rank 0 sends the variables, which are on no command line when a run is resumed."""

    def job(*words: str) -> None:
        done = by_torchrun(cli, free_port(), *words)
        assert done.returncode in {0, 1, 3}, done.stdout + done.stderr
        assert_nothing_left(cli)

    job("ab", cli.config(IN_TURNS), "--b", "GLOO_LOG_LEVEL=WARN", "--budget", "6s")
    (path,) = cli.runs()
    pairs = {sample.launch for sample in folders.read(path / "a").samples}
    facts = folders.read_manifest(path)["ab"]
    folders.update_manifest(path, ab={**facts, "budget_s": facts["spent_s"] + 2, "ended": None})
    job("resume", path.name, "--trust")
    for side, wanted in (("a", None), ("b", "WARN")):
        run = folders.read(path / side)
        assert {sample.launch for sample in run.samples} > pairs
        sessions = [[launch["ranks"] for launch in session["launches"]] for session in run.environment]
        assert len(sessions) == 2 and all(sessions)
        variables = [
            rank["variables"].get("GLOO_LOG_LEVEL") for launches in sessions for ranks in launches for rank in ranks
        ]
        assert set(variables) == {wanted}
    assert_took_turns({side: [s for s in folders.read(path / side).samples if s.launch == 1] for side in "ab"})


@pytest.mark.slow
def test_a_job_of_tasks_of_slurm_listens_on_loopback_only_and_a_fault_of_another_process_costs_its_case_only(cli):
    """Rank 0, torch's store and gloo of every rank listen. The follower reports state, stack and progress of a hang."""
    faults = "faults=[{do: stop, rank: 1, iteration: 4, size: 8KiB}, {do: kill, rank: 1, iteration: 4, size: 16KiB}]"
    sets = ["--set", faults, "--set", "timeout=4s", "--set", "sizes=[4KiB, 8KiB, 16KiB, 64KiB]"]
    started = [task.start("run", cli.config(SWEEP), "--no-plots", *sets) for task in slurm(cli, 2)]
    listening = set()
    while any(process.poll() is None for process in started):
        for process in cli.processes():
            with contextlib.suppress(psutil.Error):
                listening |= {
                    (process.pid, connection.laddr.ip)
                    for connection in process.net_connections(kind="tcp")
                    if connection.status == psutil.CONN_LISTEN
                }
        time.sleep(0.05)
    first, second = [finished(process) for process in started]
    assert (first.returncode, second.stdout, second.stderr) == (1, "", ""), first.stderr
    assert "gloo, 2 ranks" in first.stderr
    assert {address for _, address in listening} == {"127.0.0.1"} and len(listening) >= 3
    run = cli.only_run()
    assert run.manifest["status"] == "complete" and run.environment[0]["job"]["launcher"] == "srun"
    failures = {(s.case.world_size, s.case.size_bytes): s.failure for s in run.samples}
    stopped, killed = failures.pop((2, 8192)), failures.pop((2, 16384))
    assert (stopped.kind, stopped.rank) == ("hang", 1) and "is stopped" in stopped.text
    assert (killed.kind, killed.rank) == ("killed", 1)
    assert len(failures) == 6 and {*failures.values()} == {None}
    assert_nothing_left(cli)


TRAINING = """
backends: [gloo]
world_sizes: [2, 3]
launches: 1
timeout: 100s
training:
  models: [{import: "users_model:build"}]
  links: [real, 1ms + 1GB/s]
  batch: 2
  rounds: 2
  steps: 1
  warmup: 3
  strategies: [flat]
"""


@pytest.mark.slow
def test_training_steps_in_a_job(cli):
    """A user's model is imported by the ranks of both processes; an emulated link is left out."""
    tasks = slurm(cli, 2)
    for task in tasks:
        task.environment["PYTHONPATH"] = str(ROOT / "tests")
    started = [task.start("run", cli.config(TRAINING), "--no-plots") for task in tasks]
    first, second = map(finished, started)
    assert first.returncode == 0, first.stderr
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    (path,) = cli.runs()
    measured = folders.read(path)
    assert {entry.timed.duration_ns.shape for entry in measured.samples} == {(2, 2)}
    assert {sentence(skip.reason).split(":")[0] for skip in measured.plan.skips} >= {
        "an emulated link is memory that ranks of one host share; in a job, measure the real link",
        "the job has 2 ranks",
    }
    assert_nothing_left(cli)


def by_mpirun(cli, *words: str, **variables: str) -> subprocess.CompletedProcess:
    """Run this command, which calls Open MPI's mpirun.

    The files of mpirun are not in /tmp, where another mpirun of these tests may remove the folder that both use.
    """
    (cli.folder / "m").mkdir()
    variables |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    variables |= {"PRTE_MCA_prte_tmpdir_base": str(cli.folder / "m")}
    return started_by(cli, *words, **variables)


def on_two_ranks(cli, *words: str, **variables: str) -> subprocess.CompletedProcess:
    launcher = [str(host.mpirun()), "--oversubscribe", "--bind-to", "none", "-n", "2"]
    return by_mpirun(cli, *launcher, sys.executable, RUN_BENCH, *words, "--no-plots", **variables)


@pytest.mark.slow
@needs_mpi
def test_the_file_for_mpirun_measures_gloo_and_mpi_over_tcp_in_every_launch(cli):
    """Ranks of MPI take the place of the processes that mpirun started, next to ranks of gloo.

    Later launches get the ports of the first launch, and ranks on one host listen on loopback only.
    """
    text = SWEEP.replace("backends: [gloo]", "backends: [gloo, mpi]").replace("launches: 1", "launches: 2")
    file = file_for(cli, LauncherName.MPIRUN, text, nodes=1, each=2)
    (cli.folder / "hosts").write_text("# a comment\nlocalhost slots=2\n")
    path = f"{host.mpirun().parent}{os.pathsep}{os.environ['PATH']}"
    done = by_mpirun(cli, "sh", file, "hosts", PATH=path, OMPI_MCA_btl="self,tcp")
    assert done.returncode == 0, done.stderr
    run = cli.only_run()
    measured = {(s.case.backend, s.case.world_size, s.launch) for s in run.samples if s.failure is None}
    assert measured == {*((backend, 2, launch) for backend in ("gloo", "mpi") for launch in (1, 2)),
                        *(("gloo", 1, launch) for launch in (1, 2))}  # fmt: skip
    assert {sentence(skip.reason) for skip in run.plan.skips} == {"in a job, mpi measures all of its ranks: 2"}
    assert_measured(cli, "mpirun (Open MPI)", {1, 2})


@pytest.mark.slow
@needs_mpi
def test_a_job_checks_a_rule_file_that_no_rank_reads(cli):
    """The launches get the choices of the file as settings instead."""
    (cli.folder / "own.conf").write_text("1 # collective\n3 # alltoall\n1\n2 # ranks\n1\n0 2 0 0 # pairwise\n")
    text = "backends: [mpi]\noperations: [all_to_all]\ndtypes: [float32]\nsizes: [64KiB]\ntimeout: 15s\n"
    text += "sampling: {seconds_per_case: 20ms}\n"
    done = on_two_ranks(cli, "tune", cli.config(text), "--check", "own.conf", "--budget", "15s")
    run = cli.only_run()
    settings = {case.settings for launch in run.plan.order for case in launch.cases}
    assert len(settings) == 2 and "rules_filename" not in str(settings), done.stderr
    measured = {s.case.settings for s in run.samples if s.failure is None}
    assert measured == settings or (measured and any(words in done.stderr for words in LOST)), done.stderr


@pytest.mark.slow
@needs_mpi
def test_a_job_reports_at_once_that_a_lost_rank_of_mpi_is_not_replaced(cli):
    text = TINY.replace("[gloo]", "[mpi]") + "faults: [{do: kill, rank: 1, iteration: 3, launch: 1}]\n"
    done = on_two_ranks(cli, "run", cli.config(text))
    assert done.returncode == 1, done.stderr
    lost, *later = [s.failure.text for s in cli.only_run().samples]
    assert "rank 1" in lost and later and all("mpirun does not replace it" in text for text in later)


def addresses_listened_on(namespace: str) -> set[str]:
    listed = subprocess.run(
        ["ip", "netns", "exec", namespace, "ss", "-Hltn"], capture_output=True, text=True, check=True
    )
    return {line.split()[3].rpartition(":")[0] for line in listed.stdout.splitlines()}


# ── networks that are not as they should be ──────────────────────────────────────────────────────
def ip(namespace: str, *lines: str) -> None:
    for line in lines:
        subprocess.run(["ip", "-n", namespace, *line.split()], check=True, capture_output=True)


@pytest.mark.slow
@needs_links
def test_a_host_that_knows_its_own_name_otherwise_than_the_others_is_found(cli):
    """Debian has 127.0.1.1 for it. Packets leave that host from an address that the others do not reach.

    The hosts are namespaces, which only a switch joins, and not loopback; no port is open on all interfaces.
    """
    with links.bridged(2, "1gbit") as network:
        # Rank 1 reaches rank 0 there, because both are on this host; rank 2 does not.
        ip(network.namespaces[0], "address add 192.168.50.1/32 dev lo")
        ip(network.namespaces[0], "route add default dev link0 src 192.168.50.1")
        config = cli.config(TINY.replace("[2]", "[3]").replace("iterations: 8", "iterations: 300"))
        started = by_hand(cli, network, config, ["127.0.1.1 n0", "10.77.0.1 n0"], [0, 0, 1], "n0")
        listening = set()
        while any(process.poll() is None for process in started):
            listening |= set.union(*map(addresses_listened_on, network.namespaces))
            time.sleep(0.1)
        done = [finished(process) for process in started]
    assert [result.returncode for result in done] == [0, 0, 0], "".join(result.stderr for result in done)
    assert all("unset them to measure on this machine alone" in result.stderr for result in done)
    assert {"10.77.0.1", "10.77.0.2"} <= listening <= {"10.77.0.1", "10.77.0.2", "192.168.50.1"}
    run = cli.only_run()
    assert all(s.failure is None for s in run.samples)
    (launch,) = run.environment[0]["launches"]
    assert {rank["variables"]["GLOO_SOCKET_IFNAME"] for rank in launch["ranks"]} == {"link0", "link1"}
    assert all(rank["clock"] for rank in launch["ranks"])
    assert hosts(run) == {("gloo", 3): {"n0": (0, 1), "n1": (2,)}}
    assert_nothing_left(cli)


@pytest.mark.slow
@needs_links
def test_packets_that_the_switch_drops_are_named_on_both_hosts(cli):
    """The hosts send packets of 9000 bytes, and the switch passes on 1500: the first large message vanishes."""
    with links.bridged(2, "1gbit") as network:
        for number, name in enumerate(network.namespaces):
            ip(name, f"link set link{number} mtu 9000 gso_max_segs 1")
        done = [finished(p) for p in by_hand(cli, network, cli.config(), ["", ""], [0, 1], "10.77.0.1")]
    assert [result.returncode for result in done] == [2, 2]
    for result in done:
        error = result.stderr.splitlines()[-1]
        assert "10.77.0.2 proved itself, then sent nothing for 4 s: do large packets arrive (MTU)?" in error
        assert "SECRET" not in error
    assert_nothing_left(cli)


@pytest.mark.slow
@needs_links
def test_a_firewall_that_opens_the_ports_of_rank_0_only_costs_one_launch_and_is_named(cli):
    config = cli.config(TINY.replace("launches: 1", "launches: 2"))
    with links.bridged(2, "1gbit") as network:
        closed = "rule add pref 5 iif link0 ipproto tcp dport 29511-65534 blackhole"
        ip(network.namespaces[0], "rule add pref 10 lookup local", closed, "rule delete pref 0")
        done = [finished(p) for p in by_hand(cli, network, config, ["", ""], [0, 1], "10.77.0.1")]
    assert [result.returncode for result in done] == [1, 1], done[0].stderr
    run = cli.only_run()
    texts = [sample.failure.text for sample in run.samples]
    assert len(texts) == 4 and len(run.environment[0]["launches"]) == 1
    assert all(
        re.search(r"does not reach port \d+ of 10\.77\.0\.1 \(timed out\): hosts must reach", text) for text in texts
    )
    assert_nothing_left(cli)


# ── failures ─────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.slow
def test_a_lost_host_costs_only_the_cases_that_need_it(cli):
    text = SLOW.replace("[2]", "[2, 3]").replace("launches: 1", "launches: 2")
    first, second, third = (task.start("run", cli.config(text), "--no-plots") for task in slurm(cli, 3))
    wait_for(lambda: ranks_of(third.pid), PATIENCE_S)
    time.sleep(0.3)
    for process in [*psutil.Process(third.pid).children(recursive=True), third]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    done = [finished(process) for process in (first, second)]
    assert [result.returncode for result in done] == [1, 1], done[0].stderr
    failures = {(s.case.world_size, s.launch): s.failure for s in cli.only_run().samples}
    assert len(failures) == 4
    assert failures[2, 1] is failures[2, 2] is None
    lost = [failure for (size, _), failure in failures.items() if size == 3]
    assert {failure.kind for failure in lost} <= {"lost", "start"}  # start: killed before all had joined
    assert all(failure.rank == 2 and "rank 2 on host" in failure.text and "is lost" in failure.text for failure in lost)
    assert cli.only_run().manifest["status"] == "complete"
    assert "is lost" in (cli.only_run().path / "report.md").read_text()
    third.communicate()
    assert_nothing_left(cli)


@pytest.mark.slow
def test_an_interrupt_of_any_process_ends_the_job_which_can_be_resumed(cli):
    config = cli.config(TINY.replace("launches: 1", "launches: 40").replace("iterations: 8", "iterations: 60"))
    measured = 0
    for words, victims in ((["run", config], [0, 1]), (["resume", "tiny"], [1])):
        started = [task.start(*words, "--no-plots") for task in slurm(cli, 2)]
        wait_for_samples(cli, measured + 2, PATIENCE_S)
        for victim in victims:
            started[victim].send_signal(signal.SIGTERM)
        done = [finished(process) for process in started]
        assert [result.returncode for result in done] == [130, 130], done[0].stderr
        assert "collbench resume" in done[0].stderr and (done[1].stdout, done[1].stderr) == ("", "")
        assert "Traceback" not in done[0].stderr
        assert_nothing_left(cli)
        run = cli.only_run()
        assert run.manifest["status"] == "interrupted" and all(s.failure is None for s in run.samples)
        keys = {(s.case, s.launch) for s in run.samples}
        assert measured + 2 <= len(run.samples) == len(keys) < run.plan.total
        measured = len(run.samples)


def test_copies_that_know_nothing_of_each_other_are_refused(cli, tmp_path):
    """The process is started as if mpirun set no variables."""
    starter = tmp_path / "orted"
    starter.symlink_to(Path(sys.executable).resolve())
    call = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"
    done = started_by(cli, str(starter), "-c", call, sys.executable, RUN_BENCH, "run", cli.config())
    assert done.returncode == 2
    assert "error: started by orted, which sets no rank here" in done.stderr and not cli.runs()
