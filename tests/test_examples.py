"""Files in examples/ that no other test runs are what their readers take: units of systemd, objects of Kubernetes."""

import shutil
import subprocess

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


def test_a_cron_job_measures_and_writes_what_node_exporter_reads():
    job = YAML(typ="safe", pure=True).load((EXAMPLES / "monitoring" / "cronjob.yaml").read_text())
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert job["kind"] == "CronJob" and pod["restartPolicy"] == "Never"
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    subprocess.run(["sh", "-n", "-c", container["args"][0]], check=True)


def test_an_init_container_is_the_gate_in_the_planned_job():
    (container,) = YAML(typ="safe", pure=True).load((EXAMPLES / "gate" / "init_container.yaml").read_text())[
        "initContainers"
    ]
    assert "gate" in container["command"] and {variable["name"] for variable in container["env"]} == {
        "PET_NODE_RANK", "COLLBENCH_SECRET",
    }  # fmt: skip
