"""A foreign run folder runs nothing without confirmation; ranks get only variables that tune communication."""

import os
import shutil
import sys

import pytest

from collbench.catalog import variables
from collbench.config.models import parse
from collbench.machine import host
from collbench.model.errors import StoreError
from collbench.planning import plan as planning
from collbench.store import folders
from conftest import ROOT, TINY
from test_ab import assert_ended, kept

OWN_MODEL = """
backends: [gloo]
world_sizes: [2]
launches: 1
training: {models: [{import: "planted:build"}], strategies: [flat], rounds: 2, steps: 1}
"""
PLANTED = (
    "import pathlib\npathlib.Path({marker!r}).write_text('imported')\ndef build(): raise RuntimeError('no model')\n"
)


def one_line(done, *words) -> None:
    """Assert that a command ended with exit code 2 and one line with these words."""
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stdout + done.stderr
    assert all(word in done.stderr for word in words), done.stderr


def unfinished(place, **side_b) -> str:
    """Write an unfinished run of two sides with these entries of side B in its manifest; return its name."""
    name = kept(place.folder, [0.3, -0.3])
    path = place.folder / "results" / name
    manifest = folders.read_manifest(path)
    sides = {**manifest["sides"], "b": {**manifest["sides"]["b"], **side_b}}
    folders.update_manifest(path, sides=sides, ab={**manifest["ab"], "ended": None, "spent_s": 0.0})
    return name


# ── programs of a folder ─────────────────────────────────────────────────────────────────────────
def test_an_interpreter_of_a_folder_runs_only_when_it_is_confirmed(warm):
    marker, python = warm.folder / "marker", warm.folder / "python"
    python.write_text(f"#!/bin/sh\ntouch {marker}\nexit 1\n")
    python.chmod(0o755)
    name = unfinished(warm, python=str(python), own_process=True)
    one_line(warm("resume", name), str(python), "--trust")
    assert not marker.exists()
    one_line(warm("resume", name, "--trust"), str(python), "lacks")  # it is not Python
    assert marker.exists()


@pytest.mark.slow
def test_variables_of_a_folders_side_are_confirmed_and_then_set(cli):
    name = unfinished(cli, variables={"OMP_NUM_THREADS": "2"})
    one_line(cli("resume", name), "OMP_NUM_THREADS=2", "--trust")
    path = cli.folder / "results" / name
    (path / folders.SAMPLES).write_bytes(b"")  # everything is measured again, within the budget
    folders.update_manifest(path, ab={**folders.read_manifest(path)["ab"], "budget_s": 1.0})
    assert_ended(cli("resume", name, "--trust", "--no-plots"))
    (session,) = folders.read(path / "b").environment
    assert {rank["variables"]["OMP_NUM_THREADS"] for launch in session["launches"] for rank in launch["ranks"]} == {"2"}


@pytest.mark.slow
def test_a_model_of_a_folders_plan_is_imported_only_when_it_is_confirmed(cli):
    marker = cli.folder / "marker"
    (cli.folder / "planted.py").write_text(PLANTED.format(marker=str(marker)))
    cli.environment["PYTHONPATH"] = str(cli.folder)
    plan = planning.expand(parse(OWN_MODEL.encode(), "x.yaml", [], "x"), host.machine(), 1)
    path = folders.create(cli.folder / "results", plan, OWN_MODEL.encode(), {"argv": [], "collbench": "x"})
    one_line(cli("resume", path.name), "planted:build", "--trust")
    assert not marker.exists()
    assert cli("resume", path.name, "--trust", "--no-plots").returncode == 1
    assert marker.exists()


@pytest.mark.parametrize("file", [folders.SAMPLES, folders.LOG])
def test_a_file_that_is_a_link_is_not_written(warm, file):
    victim = warm.folder / "victim"
    victim.write_bytes(b"precious\nwithout an end")
    path = warm.folder / "results/20260101T000000Z-before"
    shutil.copytree(ROOT / "docs/example/before", path)
    (path / folders.SAMPLES).write_bytes(b"")  # everything is measured again
    (path / file).unlink()
    (path / file).symlink_to(victim)
    one_line(warm("resume", str(path), "--no-plots"), file, "link")
    assert victim.read_bytes() == b"precious\nwithout an end"


def test_a_file_that_is_a_pipe_blocks_nobody(warm):
    path = warm.folder / "results" / kept(warm.folder, [0.3, -0.3])
    (path / folders.SAMPLES).unlink()
    os.mkfifo(path / folders.SAMPLES)
    assert not folders.is_being_written(path)
    with pytest.raises(StoreError, match=folders.SAMPLES):
        folders.read(path / "a")


# ── variables ────────────────────────────────────────────────────────────────────────────────────
REFUSED = (
    "LD_PRELOAD=x PYTHONPATH=x OMPI_MCA_mca_base_env_list=LD_PRELOAD=libevil OMPI_MCA_mca_base_component_path=x "
    "OMPI_MCA_plm_rsh_agent=x OMPI_MCA_coll_tuned_dynamic_rules_filename=x OMPI_MCA_btl_sm_backing_directory=x "
    "OMPI_MCA_pml_monitoring_filename=x UCX_GDB_COMMAND=x UCX_ERROR_MAIL_TO=x UCX_LOG_FILE=x UCX_STATS_DEST=x "
    "UCX_TUNING_PATH=x UCX_PROTO_INFO_DIR=x UCX_MODULE_DIR=x FI_PROVIDER_PATH=x NCCL_RAS_ADDR=0.0.0.0:28028 "
    "NCCL_COMM_ID=10.0.0.1:5 NCCL_NET_PLUGIN=x NCCL_ENV_PLUGIN=x NCCL_CONF_FILE=x NCCL_TOPO_DUMP_FILE=x "
    "NCCL_DEBUG_FILE=x TORCH_NCCL_DEBUG_INFO_TEMP_FILE=x GLOO_DEVICE_TRANSPORT_TCP_TLS_PKEY=x NCCL_ALG=Ring"
)
SETTABLE = (
    "NCCL_ALGO=Ring NCCL_SOCKET_IFNAME=^lo,docker0 NCCL_IB_HCA==mlx5_0:1 UCX_NET_DEVICES=mlx5_0:1 UCX_RNDV_THRESH=inf "
    "OMPI_MCA_coll_tuned_allreduce_algorithm=4 OMPI_MCA_btl=self,sm TORCH_NCCL_HIGH_PRIORITY=1 GLOO_LOG_LEVEL=WARN"
)
UNFIT = ["/tmp/x", "a b", "a;b", "a\nb", "a\n", "\x1b[2J", "a\x00", "$HOME", "`id`", "ä", "..\\x"]


def test_only_variables_that_tune_communication_may_be_set():
    for name, _, value in (setting.partition("=") for setting in REFUSED.split()):
        assert variables.unsettable(name, value), name
    for value in UNFIT:
        assert variables.unsettable("NCCL_ALGO", value), repr(value)
    assert variables.unsettable("NCCL_ALGO", "allreduce:tree;broadcast:ring") is None
    for name, _, value in (setting.partition("=") for setting in SETTABLE.split()):
        assert variables.unsettable(name, value) is None, name


# ── loopback ─────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("name", "value", "leaves"),
    [
        ("NCCL_SOCKET_IFNAME", "lo", False),
        ("NCCL_SOCKET_IFNAME", "^lo", True),
        ("GLOO_SOCKET_IFNAME", "", True),  # unset, gloo takes the address of the host's name
        ("GLOO_SOCKET_IFNAME", "lo,eth0", True),
        ("OMPI_MCA_btl", "self,tcp", False),  # on btl_tcp_if_include
        ("OMPI_MCA_pml", "ucx", True),
        ("UCX_TLS", "self,sm", False),
        ("NCCL_ALGO", "Ring", False),
    ],
)
def test_which_settings_leave_loopback(name, value, leaves):
    assert variables.unsettable(name, value) is None
    assert variables.leaves_loopback(name, value) is leaves


def test_a_resumed_run_that_leaves_loopback_is_confirmed(warm):
    path = warm.measure(TINY, "env={NCCL_SOCKET_IFNAME: [eth9]}").path  # read by NCCL, which is not measured
    one_line(warm("resume", path.name, "--no-plots"), "NCCL_SOCKET_IFNAME=eth9, which may open ports", "--trust")
    assert warm("resume", path.name, "--trust", "--no-plots").returncode == 0


def test_a_side_without_an_interpreter_of_its_own_has_the_one_that_runs(warm):
    """A folder that only names this interpreter needs no confirmation."""
    name = unfinished(warm, python=sys.executable)
    path = warm.folder / "results" / name
    folders.update_manifest(path, ab={**folders.read_manifest(path)["ab"], "ended": "the budget was spent"})
    assert "--trust" not in warm("resume", name, "--no-plots").stderr
