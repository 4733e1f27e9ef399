"""Files that start a run on several hosts: the examples are the output of `plan`, and launchers can read the files."""

import ast
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from collbench.cli.plan import JOBS, job_of
from collbench.config import models as configuration
from collbench.config import names
from collbench.report.launch_files import FILE_NAMES, JobSpec, LauncherName, launch_file
from conftest import ROOT, TINY

EXAMPLES = ROOT / "examples" / "launch"
NOTES = ("World sizes above 8 will be skipped", "2 of the 8 ranks will wait")
WANTED = JobSpec("Big run_2", "run", JOBS["run"], "my configs/a'b.yaml", ("sizes=[1KiB]",), 4, 2, False, 8, 100.0)


def wanted_by_path(config: Path, nodes: int, each: int | None = None, verb: str = "run") -> JobSpec:
    """Return the job that `plan` writes if collbench is on PATH."""
    settings, _ = configuration.load(names.path_of(config), [])
    return replace(job_of(settings, config, [], nodes, each, verb), programs=None)


def test_the_examples_are_the_output_of_plan(monkeypatch):
    monkeypatch.chdir(ROOT)
    for launcher, name in FILE_NAMES.items():
        made = launch_file(launcher, wanted_by_path(Path("nccl"), nodes=2, each=8))
        assert (EXAMPLES / name).read_text() == made, name
    assert {path.name for path in EXAMPLES.iterdir()} == {*FILE_NAMES.values(), "hostfile"}


def test_the_verb_prints_the_file_and_nothing_else(warm):
    done = warm("plan", warm.config(), "--launcher", "slurm", "--nodes", "2")
    settings = configuration.parse(TINY.encode(), "tiny.yaml", default_name="tiny")
    assert done.stdout == launch_file(LauncherName.SLURM, job_of(settings, Path("tiny.yaml"), [], 2, None))
    assert "--ntasks-per-node=1\n" in done.stdout  # two ranks on two hosts
    assert warm("plan", "tiny.yaml", "--launcher", "slurm", "--nodes", "0").returncode == 2
    done = warm("plan", "tiny.yaml", "--verb", "gate", "--nodes", "1")
    assert done.returncode == 2 and done.stderr.count("\n") == 1


@pytest.mark.parametrize("verb", JOBS)
def test_shells_understand_the_files(verb):
    wanted = replace(WANTED, verb=verb, kind=JOBS[verb])
    for launcher in (LauncherName.TORCHRUN, LauncherName.SLURM, LauncherName.MPIRUN):
        for shell in ("sh", "bash"):
            subprocess.run([shell, "-n"], input=launch_file(launcher, wanted), text=True, check=True)


@pytest.mark.parametrize("launcher", LauncherName)
def test_a_gate_has_a_file_for_each_launcher(launcher):
    file = launch_file(launcher, wanted_by_path(ROOT / "configs/nccl.yaml", 16, 8, "gate"))
    assert_starts(file, launcher, ["gate", str(ROOT / "configs/nccl.yaml")])
    assert "128" in file or launcher in (LauncherName.TORCHRUN, LauncherName.SLURM, LauncherName.KUBERNETES)
    if launcher == LauncherName.SLURM:  # the other hosts go on without a lost host, and nothing is resumed
        assert "#SBATCH --no-kill\n" in file and "--no-kill" in file.splitlines()[-1] and "resume" not in file


def assert_starts(file: str, launcher: LauncherName, arguments: list[str]) -> None:
    """Assert that the file starts collbench with exactly these arguments."""
    match launcher:
        case LauncherName.KUBERNETES:
            _, job = YAML(typ="safe").load_all(file)
            command = job["spec"]["template"]["spec"]["containers"][0]["command"]
            assert command[command.index("--no-python") + 1 :] == ["collbench", *arguments]
        case LauncherName.RAY:
            (value,) = (node.value for node in ast.parse(file).body if isinstance(node, ast.Assign))
            assert ast.literal_eval(value) == arguments
        case _:
            command = shlex.split(file.splitlines()[-1])
            assert "collbench" in command[-len(arguments) - 1] and command[-len(arguments) :] == arguments


@pytest.mark.parametrize("options", [["--nodes", "2"], ["--ranks-per-node", "1"], ["--verb", "run"]])
def test_options_of_jobs_print_the_launch_file(warm, options):
    done = warm("plan", warm.config(), *options)
    assert done.returncode == 0 and done.stdout == warm("plan", "tiny.yaml", "--launcher", "torchrun").stdout
    assert "torchrun" in done.stdout


def test_the_command_survives_the_shell(tmp_path):
    programs = tmp_path / "an environment"
    programs.mkdir()
    (programs / "collbench").write_text("#!/bin/sh\nprintf '%s|' \"$@\"\n")
    (programs / "collbench").chmod(0o755)
    script = launch_file(LauncherName.SLURM, replace(WANTED, programs=programs))
    script = "\n".join(line.partition("--kill-on-bad-exit=0 ")[2] for line in script.splitlines())
    printed = subprocess.run(["sh"], input=script, capture_output=True, text=True, check=True).stdout
    assert printed == "run|my configs/a'b.yaml|--set|sizes=[1KiB]|"


def test_kubernetes_understands_the_file():
    service, job = YAML(typ="safe").load_all(launch_file(LauncherName.KUBERNETES, WANTED))
    assert service["metadata"]["name"] == job["metadata"]["name"] == "collbench-big-run-2"
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 4
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    address = f"{job['metadata']['name']}-0.{pod['subdomain']}"
    assert container["command"][1:4] == ["--nnodes=4", "--nproc-per-node=2", f"--master-addr={address}"]
    arguments = ["collbench", "run", "my configs/a'b.yaml", "--set", "sizes=[1KiB]"]
    assert container["command"][5:] == ["--no-python", *arguments]
    assert "resources" not in container
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def test_ranks_that_do_not_match_the_world_sizes_are_reported():
    for largest, words in ((8, []), (16, [NOTES[0]]), (6, [NOTES[1]])):
        for launcher in LauncherName:
            text = launch_file(launcher, replace(WANTED, largest=largest))
            assert [note for note in NOTES if note in text] == words
