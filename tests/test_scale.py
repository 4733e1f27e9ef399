"""In runs of many ranks on several hosts, planted nodes, ranks and links are named as such; without a planted fault,
nothing is named."""

import json

import numpy as np
import pytest

from collbench.analyze import links
from collbench.analyze.analysis import NOBODY_LATE, diagnose
from collbench.analyze.ranks import LARGEST_SHARE
from collbench.store import folders
from tools import large_runs

RANKS = 64


def named(path) -> list[str]:
    return sorted(finding.subject for finding in diagnose(folders.read(path)).findings)


def small(root, late=(), **more):
    return large_runs.large_run(root, late, **{"ranks": RANKS, "cases": 4, "iterations": 30, **more})


def hosts_changed(path, rename) -> None:
    """Change the host names; `rename` takes the launch and the rank."""
    file = path / folders.ENVIRONMENT
    (session,) = json.loads(file.read_text())
    for launch in session["launches"]:
        launch["ranks"] = [{**r, "hostname": rename(launch["launch"], r["rank"])} for r in launch["ranks"]]
    file.write_text(json.dumps([session]))


@pytest.mark.parametrize("nodes", [[0], [5], [2, 6]])
def test_late_nodes_are_named_with_their_ranks_and_delay(tmp_path, nodes):
    late = [rank for node in nodes for rank in large_runs.ranks_of(node)]
    findings = diagnose(folders.read(small(tmp_path, late, delay_s=1e-3))).findings
    assert sorted(f.subject for f in findings) == [f"node node{node}" for node in nodes]
    for finding, node in zip(sorted(findings, key=lambda f: f.ranks), nodes, strict=True):
        assert (finding.kind, finding.ranks) == ("late node", tuple(large_runs.ranks_of(node)))
        assert finding.cost_s == pytest.approx(1e-3, rel=0.1)
        assert len(finding.cases) == 4 and finding.p < 1e-6


def test_a_late_rank_makes_no_late_node_and_both_can_be_late(tmp_path):
    assert named(small(tmp_path, [11])) == ["rank 11"]
    assert named(small(tmp_path, [11, 12, 13])) == ["rank 11", "rank 12", "rank 13"]
    assert named(small(tmp_path, [*large_runs.ranks_of(3), 11])) == ["node node3", "rank 11"]


def test_without_a_fault_nobody_is_named(tmp_path):
    assert not any(named(small(tmp_path, seed=seed)) for seed in range(12))


def test_ranks_are_late_only_if_most_others_are_not(tmp_path):
    most = range(int(LARGEST_SHARE * RANKS) + large_runs.RANKS_A_NODE)
    assert named(small(tmp_path, most)) == []
    assert diagnose(folders.read(small(tmp_path, most))).silent[0].kind is NOBODY_LATE


@pytest.mark.parametrize(
    "rename",
    [
        lambda launch, rank: None,
        lambda launch, rank: "one",
        lambda launch, rank: f"host of rank {rank}",
        lambda launch, rank: large_runs.host_of((rank + launch) % RANKS),
    ],
    ids=["not said", "all on one", "each on its own", "elsewhere in each launch"],
)
def test_ranks_are_named_if_hosts_do_not_group_them(tmp_path, rename):
    path = small(tmp_path, large_runs.ranks_of(2))
    hosts_changed(path, rename)
    assert named(path) == sorted(f"rank {rank}" for rank in large_runs.ranks_of(2))


def test_ranks_that_are_late_in_one_launch_only_are_not_named(tmp_path):
    path, other = small(tmp_path, [7], launches=1), small(tmp_path, launches=2)
    lines = (other / folders.SAMPLES).read_bytes().splitlines()
    late = (path / folders.SAMPLES).read_bytes().splitlines()
    (other / folders.SAMPLES).write_bytes(b"\n".join([*late, *lines[len(late) :]]) + b"\n")
    assert named(other) == []


@pytest.mark.parametrize(
    ("slow", "names"),
    [
        ({}, []),
        (large_runs.across(2, 32, 1.5), ["node node2"]),  # and not its ranks
        ({(a, b): 2.0 for a in large_runs.ranks_of(0) for b in large_runs.ranks_of(3)}, ["link node0–node3"]),
        (dict.fromkeys([(0, 24), (3, 25)], 3.0), ["link 0–24", "link 3–25"]),
    ],
    ids=["none", "a node", "a link of nodes", "two links of ranks"],
)
def test_slow_nodes_and_links_of_a_matrix_are_each_one_finding(tmp_path, slow, names):
    assert named(large_runs.pairs_run(tmp_path, slow)) == names


def test_the_fit_is_the_same_dense_and_sparse(monkeypatch):
    rng = np.random.default_rng(4)
    times = np.triu(rng.lognormal(0, 0.05, (12, 12)), 1)
    times[3, 7] = 3.0
    times = times + times.T
    dense = links.fit(times)
    monkeypatch.setattr(links, "LARGEST_DENSE", 2)
    assert np.abs(links.fit(times) - dense).max() < 1e-3
    assert dense[12:].max() == pytest.approx(np.log(3), abs=0.1)
