"""In runs of many ranks on several hosts, planted nodes, ranks and links are named as such; without a planted fault,
nothing is named."""

import pytest

from collbench.analyze.analysis import diagnose
from collbench.store import folders
from tools import large_runs

RANKS = 64


def named(path) -> list[str]:
    return sorted(finding.subject for finding in diagnose(folders.read(path)).findings)


def small(root, late=(), **more):
    return large_runs.large_run(root, late, **{"ranks": RANKS, "cases": 4, "iterations": 30, **more})


def test_without_a_fault_nobody_is_named(tmp_path):
    assert not any(named(small(tmp_path, seed=seed)) for seed in range(12))


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
