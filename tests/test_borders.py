"""On odd hosts, a failure to measure or to write is one line that says what to change; the rest is measured."""

import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from collbench.launch import launcher
from collbench.machine import host
from collbench.machine.processes import ProcessHandle
from collbench.store import locks
from conftest import ROOT, TINY, CommandLine
from test_joined import free_port

RUN_BENCH = str(ROOT / "run_bench.py")
ONE = TINY.replace("[4KiB, 64KiB]", "[4KiB]")
NO_NAMESPACES = shutil.which("unshare") is None or bool(
    subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False).returncode
)
needs_namespaces = pytest.mark.skipif(NO_NAMESPACES, reason="namespaces need root, and a container that allows them")

needs_mpi = pytest.mark.skipif(host.unsupported_mpi() is not None, reason="needs MPI")


def isolated(cli, options: list[str], script: str, *words: str) -> subprocess.CompletedProcess:
    """Run a command in namespaces of its own, after a shell script."""
    command = ["unshare", *options, "sh", "-c", f'{script}; "$0" "$@"', sys.executable, RUN_BENCH, *words]
    return subprocess.run(
        command, cwd=cli.folder, env=cli.environment, capture_output=True, text=True, timeout=240, check=False
    )


def wait_for(condition, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def refused(done: subprocess.CompletedProcess, code: int, *words: str) -> None:
    assert done.returncode == code, done.stderr
    assert len(done.stderr.splitlines()) == 1 and "Traceback" not in done.stderr, done.stderr
    assert all(text in done.stderr for text in words), done.stderr


# ── the network and /proc ────────────────────────────────────────────────────────────────────────
@needs_namespaces
@pytest.mark.parametrize("verb", [["run", "tiny.yaml"], ["doctor"]])
def test_a_loopback_interface_that_is_down_is_named(cli, verb):
    cli.config()
    done = isolated(cli, ["-n"], "true", *verb)
    assert done.returncode == 3 and "lo is down" in done.stderr and "ip link set lo up" in done.stderr, done.stderr


@needs_namespaces
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("ip") is None, reason="needs iproute2")
def test_ranks_measure_over_a_loopback_of_ipv6_only(cli):
    script = "ip link set lo up; ip addr del 127.0.0.1/8 dev lo"
    done = isolated(cli, ["-n"], script, "run", cli.config(), "--no-plots", "-q")
    assert done.returncode == 0, done.stderr


@needs_namespaces
@pytest.mark.parametrize("verb", [["run", "tiny.yaml"], ["doctor"]])
@pytest.mark.parametrize(("options", "script"), [(["-p", "-f"], "true"), (["-m"], "umount -l /proc")])
def test_a_proc_of_another_namespace_or_none_is_named(cli, verb, options, script):
    cli.config()
    refused(isolated(cli, options, script, *verb), 3, "/proc", "mount -t proc")


# ── folders ──────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.slow
def test_a_long_temporary_folder_is_used(cli, tmp_path):
    """The path of a Unix socket has at most 107 bytes."""
    place = tmp_path / ("x" * 100)
    place.mkdir()
    cli.environment["TMPDIR"] = str(place)
    done = cli("run", cli.config(), "--no-plots", "-q")
    assert done.returncode == 0, done.stderr
    assert not list(place.iterdir())


def test_results_that_link_to_nowhere_are_named(cli):
    (cli.folder / "results").symlink_to("/not/mounted")
    refused(cli("run", cli.config(), "--no-plots"), 2, "results", "/not/mounted", "does not exist")


def test_pictures_that_cannot_be_written_fail_nothing_else(warm):
    (warm.folder / "plots").symlink_to("/not/mounted/either")
    assert warm("run", warm.config(), "-q").returncode == 0
    (run,) = warm.runs()
    (run / "report.md").unlink()
    refused(warm("report"), 0, "note: no pictures: plots", "--no-plots")
    assert (run / "report.md").is_file()
    refused(warm("compare", run.name, run.name, "--undecided", "pass"), 0, "note: no pictures: plots")


def test_a_backend_of_matplotlib_that_this_python_lacks_harms_nothing(warm):
    assert warm("run", warm.config(), "--no-plots", "-q").returncode == 0
    cli = CommandLine(warm.folder)  # in a process of its own, because matplotlib reads the variable once
    cli.environment["MPLBACKEND"] = "module://of.a.notebook"
    done = cli("report")
    assert (done.returncode, done.stderr) == (0, "") and list(cli.folder.glob("plots/*/*.png"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_somebody_else_is_named(warm):
    assert warm("run", warm.config(), "--no-plots", "-q").returncode == 0
    (warm.folder / "plots").mkdir(mode=0o500)
    refused(warm("report"), 0, "plots", "permission denied")


# ── what Python imports ──────────────────────────────────────────────────────────────────────────
def test_a_python_without_our_packages_is_named(tmp_path):
    command = [sys.executable, "-S", RUN_BENCH, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    refused(done, 2, "has no package", ".venv/bin/python")


# ── limits ───────────────────────────────────────────────────────────────────────────────────────
def limited(**limits: int) -> dict:
    """Return the option of a command that has these limits."""
    return {"preexec_fn": lambda: [resource.setrlimit(getattr(resource, k), (v, v)) for k, v in limits.items()]}


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"RLIMIT_NOFILE": 10}, ["fork server could not be started", "10 allowed (ulimit -n): enough for 0 ranks"]),
        ({"RLIMIT_AS": 600_000 * 1024}, ["ulimit -v"]),
    ],
)
def test_a_limit_that_is_too_low_is_named(cli, limits, words):
    refused(cli("run", cli.config(), "--no-plots", "-q", **limited(**limits)), 2, *words)


@pytest.mark.slow
def test_a_limit_that_ends_the_fork_server_or_a_rank_is_named_for_each_case_and_by_the_doctor(cli):
    option = limited(RLIMIT_NOFILE=20)
    done = cli("run", cli.config(ONE), "--no-plots", "-q", **option)
    assert done.returncode in {1, 2} and "20 allowed (ulimit -n)" in done.stdout + done.stderr, done
    assert "out of memory" not in done.stdout + done.stderr
    done = cli("doctor", **option)
    assert done.returncode == 1 and "20 allowed (ulimit -n): enough for 0 ranks" in done.stdout, done


@pytest.fixture
def few_processes():
    """Return the option of a command that may have 12 processes and threads."""
    group = Path("/sys/fs/cgroup/pids", f"collbench-test-{os.getpid()}")
    try:
        group.mkdir()
    except OSError:
        pytest.skip("making a control group of version 1 needs root, and a container that allows it")
    (group / "pids.max").write_text("12")
    yield {"preexec_fn": lambda: (group / "cgroup.procs").write_text("0")}
    wait_for(lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


@pytest.mark.slow
def test_a_control_group_with_few_processes_is_named(cli, few_processes):
    done = cli("run", cli.config(ONE), "--no-plots", "-q", **few_processes)
    assert done.returncode in {1, 2} and "Traceback" not in done.stderr, done.stderr
    assert "more allowed (pids.max of a control group): enough for 0 ranks" in done.stdout + done.stderr


# ── what torch and MPI need ──────────────────────────────────────────────────────────────────────
def test_what_torch_says_when_it_cannot_be_loaded_is_said_once(cli):
    cli.environment["TORCH_DISTRIBUTED_DEBUG"] = "VERBOSE"
    done = cli("run", cli.config(), "--no-plots", "-q")
    refused(
        done,
        2,
        "which loads torch for all ranks, ended by itself: ValueError: ",
        "; set here: TORCH_DISTRIBUTED_DEBUG=VERBOSE",
    )


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("raise ImportError('libother.so.1: cannot open it\\nand more')", "ImportError: libother.so.1: cannot open it"),
        ("import os; os.abort()", "status -6"),
        ("import os; os._exit(9)", "status 9"),
        ("import os; os.write(2, b'terminate called\\n\\n'); os.abort()", "terminate called"),
    ],
)
def test_a_broken_torch_is_named_with_its_words(cli, program, words):
    (cli.folder / "torch").mkdir()
    (cli.folder / "torch" / "__init__.py").write_text(program)
    (cli.folder / "torch" / "version.py").write_text("__version__, cuda, hip = '2.9.0', None, None")
    cli.environment["PYTHONPATH"] = str(cli.folder)
    refused(
        cli("run", cli.config(), "--no-plots", "-q"), 2, f"which loads torch for all ranks, ended by itself: {words}"
    )


@pytest.mark.parametrize(
    ("backend", "variable"),
    [
        ("gloo", "GLOO_DEVICE_TRANSPORT=TCP_TLS"),
        pytest.param("gloo", "GLOO_SOCKET_IFNAME=no-such0,no-such1", marks=pytest.mark.slow),
        pytest.param("mpi", "OMPI_MCA_pml=no-such", marks=[pytest.mark.slow, needs_mpi]),
    ],
)
def test_variables_that_a_library_reads_are_named_if_ranks_cannot_join(cli, backend, variable):
    name, value = variable.split("=")
    cli.environment[name] = value
    done = cli("run", cli.config(ONE), "--no-plots", "-q", "--set", f"backends=[{backend}]")
    (text,) = {entry.failure.text for entry in cli.only_run().samples}
    assert done.returncode == 1 and text.endswith(f"; set here: {variable}"), (done, text)


@needs_namespaces
@pytest.mark.slow
@needs_mpi
def test_mpi_without_shared_memory_costs_its_own_cases_only(cli):
    text = ONE.replace("[gloo]", "[gloo, mpi]")
    script = "mount -t tmpfs -o {} none /dev/shm"
    assert isolated(cli, ["-m"], script.format("size=1m"), "run", cli.config(text), "--no-plots").returncode == 1
    failures = {entry.case.backend: entry.failure for entry in cli.only_run().samples}
    assert failures["gloo"] is None
    assert "/dev/shm has 1.00 MiB" in failures["mpi"].text and "--shm-size" in failures["mpi"].text
    done = isolated(cli, ["-m"], script.format("ro"), "doctor")
    assert done.returncode == 0 and "Ready: gloo." in done.stdout, done
    assert "read-only" in done.stdout and "--shm-size" in done.stdout, done


# ── the machine and its processes ────────────────────────────────────────────────────────────────
def test_faults_need_no_world_sizes(warm):
    text = TINY.replace("world_sizes: [2]\n", "") + "faults: [{do: raise, rank: 1}]\n"
    assert warm("plan", warm.config(text)).returncode == 0


def test_an_idle_server_is_ended_and_a_busy_server_is_not(monkeypatch, tmp_path):
    monkeypatch.setattr(launcher, "START_WAIT_S", 0.2)
    monkeypatch.setattr(launcher, "START_LOOK_S", 0.02)
    for program, ends in (("import time; time.sleep(60)", True), ("while True: pass", False)):
        process = subprocess.Popen([sys.executable, "-c", program])
        try:
            with launcher._EndingIfStuck(ProcessHandle(process.pid)) as watch:
                for _ in range(1200):
                    if watch.ended_it or (not ends and process.poll() is None and sum(watch._server.work_done()) > 1):
                        break
                    watch._over.wait(0.05)
            assert watch.ended_it is ends
        finally:
            process.kill()
            process.wait()


def test_locks_are_tried(tmp_path):
    assert locks.supported(tmp_path) and locks.supported(Path("/not/there"))


# ── jobs ─────────────────────────────────────────────────────────────────────────────────────────
def by_hand(rank: int, **more: str) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2", **more}


def test_two_jobs_of_one_port_do_not_cross(cli):
    """The second rank 0 is refused while the first waits for its ranks."""
    config, port = cli.config(), free_port()
    cli.environment |= by_hand(0, MASTER_PORT=str(port), XDG_RUNTIME_DIR=str(cli.folder))
    first = cli.start("run", config, "--no-plots")
    try:
        wait_for(lambda: list(cli.folder.glob(".collbench-*/.secret-*")))
        second = cli("run", config, "--no-plots")
        note, error = second.stderr.splitlines()
        assert second.returncode == 2 and "another rank 0" in error and "MASTER_PORT" in error
        assert "RANK=0 and WORLD_SIZE=2 are set" in note and "unset them" in note
        cli.environment |= by_hand(1)
        other = cli.start("run", config, "--no-plots")
        err = first.communicate(timeout=240)[1] + other.communicate(timeout=240)[1]
        assert first.returncode == other.returncode == 0, err
    finally:
        first.kill()
    assert len(cli.runs()) == 1


def test_a_rank_of_another_job_gets_the_reason(cli):
    """The rank is not refused without a reason: the rank 0 that answers belongs to another job."""
    config = cli.config()
    cli.environment |= by_hand(1, MASTER_PORT=str(free_port()), XDG_RUNTIME_DIR=str(cli.folder))
    cli.environment["WORLD_SIZE"] = cli.environment["LOCAL_WORLD_SIZE"] = "3"
    others = [cli.start("run", config, "--no-plots") for _ in range(2)]
    cli.environment |= {"RANK": "0", "LOCAL_RANK": "0"}
    first = cli.start("run", config, "--no-plots")
    outputs = [process.communicate(timeout=240) for process in (*others, first)]
    codes = [process.returncode for process in (*others, first)]
    assert codes == [2, 2, 2], outputs
    assert "two processes say that they are rank 1" in outputs[2][1]
    assert any("two processes say that they are rank 1" in err for _, err in outputs[:2]), outputs


@pytest.mark.parametrize("rank", [0, 1])
def test_what_torchrun_starts_again_does_not_begin_anew(cli, rank):
    cli.environment |= by_hand(rank, TORCHELASTIC_RUN_ID="x", TORCHELASTIC_RESTART_COUNT="1", MASTER_PORT="29400")
    done = cli("run", cli.config(), "--no-plots")
    assert done.returncode == 2 and not (cli.folder / "results").exists()
    assert ("collbench resume" in done.stderr) == (rank == 0), done.stderr


def test_in_a_job_one_process_of_each_host_examines_it(cli):
    cli.environment |= by_hand(1, MASTER_PORT="29400")
    done = cli("doctor")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_run_by_hand_in_an_allocation_says_how_to_use_it(cli):
    cli.environment |= {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_JOB_NUM_NODES": "2"}
    done = cli("run", "no-such.yaml")
    assert "4 tasks on 2 nodes" in done.stderr and "srun collbench" in done.stderr, done.stderr
