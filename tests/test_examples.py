"""Files in examples/ that no other test runs are valid for their readers: units of systemd, objects of Kubernetes."""

import functools
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from conftest import ROOT

EXAMPLES = ROOT / "examples"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_takes_the_units(tmp_path):
    program = tmp_path / "collbench"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for unit in ("collbench.service", "collbench.timer"):
        text = (EXAMPLES / "monitoring" / unit).read_text()
        (tmp_path / unit).write_text(text.replace("/opt/collbench/bin/collbench run", f"{program} run"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / "collbench.service", tmp_path / "collbench.timer"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0 and "collbench" not in done.stderr, done.stderr


def test_a_prolog_refuses_the_nodes_that_a_gate_named(tmp_path):
    script = (EXAMPLES / "gate/prolog.sh").read_text().replace("/shared/", f"{tmp_path}/")
    run = functools.partial(subprocess.run, ["sh", "-c", script], check=False)
    assert run().returncode == 0
    (tmp_path / "taint.txt").write_text(f"other\n{socket.gethostname()}\n")
    assert run().returncode == 1
    (tmp_path / "taint.txt").write_text(f"other\n{socket.gethostname()}-2\n")
    assert run().returncode == 0


def test_a_cron_job_measures_and_writes_what_node_exporter_reads():
    job = YAML(typ="safe", pure=True).load((EXAMPLES / "monitoring" / "cronjob.yaml").read_text())
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert job["kind"] == "CronJob" and pod["restartPolicy"] == "Never"
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    subprocess.run(["sh", "-n", "-c", container["args"][0]], check=True)


# ── the checkers of the readers ──────────────────────────────────────────────────────────────────
WORKFLOWS = sorted([*(ROOT / ".github/workflows").iterdir(), *(EXAMPLES / "ci").glob("github-*.yaml")])
SCRIPTS = sorted([*EXAMPLES.rglob("*.sh"), *EXAMPLES.rglob("*.sbatch")])
OBJECTS = [EXAMPLES / "launch/kubernetes.yaml", EXAMPLES / "monitoring/cronjob.yaml"]
SCHEMA = "check-jsonschema --builtin-schema vendor."


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "files"),
    [
        ("actionlint -shellcheck=", WORKFLOWS),
        (f"{SCHEMA}github-workflows", WORKFLOWS),
        (f"{SCHEMA}gitlab-ci", [EXAMPLES / "ci/gitlab-baseline.yaml"]),
        (f"{SCHEMA}citation-file-format", [ROOT / "CITATION.cff"]),
        (f"{SCHEMA}github-issue-forms", [ROOT / ".github/ISSUE_TEMPLATE/bug.yml"]),
        ("kubernetes-validate --strict", OBJECTS),
        ("shellcheck", SCRIPTS),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_checkers_find_nothing(command, files):
    program, *words = command.split()
    path = shutil.which(program, path=str(Path(sys.executable).parent))
    if path is None:
        pytest.skip(f"{program} is not installed (requirements-dev.txt)")
    done = subprocess.run([path, *words, *map(str, files)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
