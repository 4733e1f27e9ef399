"""On odd hosts, a failure to measure or to write is one line that says what to change; the rest is measured."""

import os
import resource
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from collbench.cli import app
from collbench.launch import doctor, launcher
from collbench.machine import environment, host, limits
from collbench.machine.processes import ProcessHandle
from conftest import ROOT, TINY
from test_faults import wait_for
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
    done = isolated(cli, ["-n"], script, "run", cli.config(ONE), "--no-plots", "-q")
    assert done.returncode == 0, done.stderr


@needs_namespaces
@pytest.mark.parametrize(
    ("options", "script", "verb"),
    [(["-p", "-f"], "true", ["doctor"]), (["-m"], "umount -l /proc", ["run", "tiny.yaml"])],
    ids=["another", "none"],
)
def test_a_proc_of_another_namespace_or_none_is_named(cli, options, script, verb):
    cli.config()
    done = isolated(cli, options, script, *verb)
    refused(done, 3, "/proc", "mount -t proc")
    assert done.stdout == ""  # nothing was examined or planned


# ── folders ──────────────────────────────────────────────────────────────────────────────────────
@pytest.fixture
def example(warm):
    """Return a command line in a folder that has a run."""
    shutil.copytree(ROOT / "docs/example/before", warm.folder / "results/20260101T000000Z-before")
    return warm


def test_results_that_link_to_nowhere_are_named(warm):
    (warm.folder / "results").symlink_to("/not/mounted")
    refused(warm("run", warm.config(), "--no-plots"), 2, "results", "/not/mounted", "does not exist")


def test_pictures_that_cannot_be_written_fail_nothing_else(example):
    (example.folder / "plots").symlink_to("/not/mounted/either")
    (run,) = example.runs()
    (run / "report.md").unlink(missing_ok=True)
    refused(example("report"), 0, "note: no pictures: plots", "--no-plots")
    assert (run / "report.md").is_file()
    refused(example("compare", run.name, run.name, "--undecided", "pass"), 0, "note: no pictures: plots")


# ── what Python imports ──────────────────────────────────────────────────────────────────────────
def test_a_backend_of_matplotlib_that_this_python_lacks_is_hidden_from_a_verb_and_kept_for_its_caller(monkeypatch):
    seen, opened = [], app.open_streams
    monkeypatch.setenv("MPLBACKEND", "module://of.a.notebook")
    monkeypatch.setattr(app, "open_streams", lambda: opened() or seen.append(os.environ.get("MPLBACKEND")))
    assert app.call(["--version"]) == 0
    assert seen == [None] and os.environ["MPLBACKEND"] == "module://of.a.notebook"


def test_a_python_without_our_packages_is_named(tmp_path):
    command = [sys.executable, "-S", RUN_BENCH, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    refused(done, 2, "has no package", ".venv/bin/python")


# ── limits ───────────────────────────────────────────────────────────────────────────────────────
# In a process of its own: a hard limit that was lowered cannot be raised again.
LIMITED = """
import resource
from collbench.machine import environment, limits
for soft, hard in ((256, 4096), (128, 128), (68, 68), (20, 20)):
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    said = next(limits.limits())
    environment.prepare_process()
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], said, limits.too_low(16), sep="|")
"""


def test_the_soft_limit_of_open_files_is_raised_to_the_hard_one_which_the_doctor_reports():
    done = subprocess.run([sys.executable, "-c", LIMITED], cwd=ROOT, capture_output=True, text=True, check=True)
    wanted = []
    for files, text, low in (
        (4096, "256 allowed, which a run raises to 4096 (ulimit -n): enough for 1008 ranks", False),
        (128, "128 allowed (ulimit -n): enough for 16 ranks", False),
        (68, "68 allowed (ulimit -n): enough for 1 rank", True),
        (20, "20 allowed (ulimit -n): enough for 0 ranks", True),
    ):
        said = f"{text} on this machine"
        wanted.append(f"{files}|{said}|{f'; open files: {said}' if low else ''}")
    assert done.stdout.splitlines() == wanted


def test_a_limit_is_never_lowered(monkeypatch):
    new_limits = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (environment.MOST_FILES + 1, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: new_limits.append(limits[0]))
    assert environment.raise_file_limit() >= environment.MOST_FILES
    assert all(limit >= environment.MOST_FILES + 1 for limit in new_limits)
    assert doctor.RANKS_WANTED * limits.FILES_A_RANK < environment.MOST_FILES


def limited(files: int) -> dict:
    """Return the option of a command that may open so many files."""
    return {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))}


def test_a_limit_that_is_too_low_is_named(cli):
    words = ["fork server could not be started", "10 allowed (ulimit -n): enough for 0 ranks"]
    refused(cli("run", cli.config(), "--no-plots", "-q", **limited(10)), 2, *words)


@pytest.mark.slow
def test_a_limit_that_ends_a_rank_is_named_by_the_doctor(cli):
    done = cli("doctor", **limited(20))
    assert done.returncode == 1 and "20 allowed (ulimit -n): enough for 0 ranks" in done.stdout, done
    assert "out of memory" not in done.stdout


# ── what torch and MPI need ──────────────────────────────────────────────────────────────────────
def test_what_torch_says_when_it_cannot_be_loaded_is_said_once(cli):
    cli.environment["TORCH_DISTRIBUTED_DEBUG"] = "VERBOSE"
    words = "which loads torch for all ranks, ended by itself: ValueError: ", "; set here: TORCH_DISTRIBUTED_DEBUG=VERB"
    refused(cli("run", cli.config(), "--no-plots", "-q"), 2, *words)


@pytest.mark.parametrize(
    ("printed", "code", "by_itself", "words"),
    [
        ("Traceback\nImportError: libother.so.1: no\n", 1, True, "ended by itself: ImportError: libother.so.1: no"),
        ("", -6, True, "ended by itself: status -6"),
        ("", 9, True, "ended by itself: status 9"),
        ("terminate called\n\n", -6, True, "ended by itself: terminate called"),
        ("x" * 900, 1, True, f"ended by itself: {'x' * launcher.MOST_QUOTED}"),
        ("it printed something\n", -9, False, launcher.SERVER_LOST),
        ("", None, False, launcher.SERVER_LOST),
    ],
)
def test_a_fork_server_that_ended_by_itself_is_quoted_and_a_killed_one_is_not(
    tmp_path, printed, code, by_itself, words
):
    (tmp_path / "errors").write_text(printed)
    ended, text = launcher._how_lost(SimpleNamespace(exit_code=lambda: code), tmp_path / "errors")
    assert ended is by_itself and text.partition("; open files")[0].endswith(words)


@pytest.mark.parametrize(
    ("backend", "variable"),
    [
        ("gloo", "GLOO_DEVICE_TRANSPORT=TCP_TLS"),
        pytest.param("mpi", "OMPI_MCA_pml=no-such", marks=[pytest.mark.slow, needs_mpi]),
    ],
)
def test_variables_that_a_library_reads_are_named_if_ranks_cannot_join_and_a_resume_measures_all(
    cli, warm, backend, variable
):
    """A case is not at fault if its ranks did not start."""
    name, value = variable.split("=")
    cli.environment[name] = value
    done = cli("run", cli.config(ONE), "--no-plots", "-q", "--set", f"backends=[{backend}]")
    (failure,) = {entry.failure for entry in cli.only_run().samples}
    assert done.returncode == 1 and failure.kind == "start", done
    assert failure.text.endswith(f"; set here: {variable}"), failure
    assert warm("resume", cli.only_run().name, "--no-plots").returncode == 0
    assert [entry.failure for entry in cli.only_run().samples] == [None]


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
@pytest.mark.parametrize(("program", "ends"), [("import time; time.sleep(60)", True), ("while True: pass", False)])
def test_an_idle_server_is_ended_and_a_busy_server_is_not(monkeypatch, program, ends):
    monkeypatch.setattr(launcher, "START_WAIT_S", 0.2)
    monkeypatch.setattr(launcher, "START_LOOK_S", 0.02)
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


# ── jobs ─────────────────────────────────────────────────────────────────────────────────────────
def by_hand(rank: int, **more: str) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2", **more}


@pytest.fixture
def place(monkeypatch):
    """Return a function that gives this process variables of a launcher."""
    return lambda variables: [monkeypatch.setenv(name, value) for name, value in variables.items()]


@pytest.mark.usefixtures("ended")
def test_two_jobs_of_one_port_do_not_cross_and_processes_with_different_configurations_do_not_measure(cli, warm, place):
    """The second rank 0 is refused while the first waits for its ranks; rank 1 then has another configuration."""
    job = {"MASTER_PORT": str(free_port()), "XDG_RUNTIME_DIR": str(cli.folder)}
    cli.environment |= by_hand(0, **job)
    first = cli.start("run", cli.config(), "--no-plots")
    wait_for(lambda: list(cli.folder.glob(".collbench-*/.secret-*")))
    place(by_hand(0, **job))
    second = warm("run", "tiny.yaml", "--no-plots")
    note, error = second.stderr.splitlines()
    assert second.returncode == 2 and "another rank 0" in error and "MASTER_PORT" in error
    assert "RANK=0 and WORLD_SIZE=2 are set" in note and "unset them" in note
    place(by_hand(1, **job))
    other = warm("run", warm.config(ONE, "other.yaml"), "--no-plots")
    assert (other.returncode, other.stdout) == (2, "") and "error" not in other.stderr
    _, err = first.communicate(timeout=240)
    assert first.returncode == 2 and "unset them" in err.splitlines()[0] and not cli.runs()
    assert err.splitlines()[-1].startswith("error: rank 1 on host") and "has another configuration (" in err
    assert err.count("\n") == 2


@pytest.mark.parametrize("rank", [0, 1])
def test_what_torchrun_starts_again_does_not_begin_anew(warm, place, rank):
    place(by_hand(rank, TORCHELASTIC_RUN_ID="x", TORCHELASTIC_RESTART_COUNT="1", MASTER_PORT="29400"))
    done = warm("run", warm.config(), "--no-plots")
    assert done.returncode == 2 and not (warm.folder / "results").exists()
    assert ("collbench resume" in done.stderr) == (rank == 0), done.stderr


def test_in_a_job_one_process_of_each_host_examines_it_and_each_line_names_the_host(warm, place, monkeypatch):
    monkeypatch.setattr(doctor, "trials", lambda machine: [])
    place(by_hand(1, MASTER_PORT="29400"))
    done = warm("doctor")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    place(by_hand(0))
    lines = [line for line in warm("doctor").stdout.splitlines() if line.strip() and not line.startswith(" ")]
    assert len(lines) > 5 and all(line.startswith(f"{host.hostname()}: ") for line in lines), lines


def test_a_run_by_hand_in_an_allocation_says_how_to_use_it(warm, place):
    place({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_JOB_NUM_NODES": "2"})
    done = warm("run", "no-such.yaml")
    assert "4 tasks on 2 nodes" in done.stderr and "srun collbench" in done.stderr, done.stderr
