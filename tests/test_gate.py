"""The gate names the slow node of a fleet, names nobody in a sound one, and needs few rounds."""

import math

import numpy as np
import pytest

from bench.analyze import gate

# Scatter of the logarithm of a pair's time from round to round, as it is on clusters that are in use.
SCATTER = 0.13
ALLOWED = 0.85


class Fleet:
    """Pairs and groups take as long as their slowest member lets them. slow: node → its rate, 1 is usual."""

    def __init__(self, nodes, slow=None, seed=0):
        self.nodes, self.slow, self.dice, self.rounds = nodes, slow or {}, np.random.default_rng(seed), 0

    def measured(self, groups):
        self.rounds += 1
        return {
            group: math.exp(self.dice.normal(0, SCATTER)) / min(self.slow.get(node, 1.0) for node in group)
            for group in groups
        }

    def judged(self, **options):
        taken = [self.measured(pairs) for pairs in gate.looks(self.nodes)]
        suspected = gate.suspects(taken, self.nodes, ALLOWED)
        again = [self.measured(pairs) for pairs in gate.retests(self.nodes, suspected)] if suspected else []
        checks = gate.judge(taken, again, suspected, self.nodes, ALLOWED, **options)
        sound = [one.node for one in checks if one.verdict != gate.FAIL]
        groups = [self.measured(level) for level in gate.levels(sound)]
        return gate.conclude(checks, gate.judge_groups(groups, taken, self.nodes, ALLOWED), [])


def named(verdict):
    return [one.node for one in verdict.nodes if one.verdict == gate.FAIL]


@pytest.mark.parametrize("nodes", [4, 7, 8, 33])
def test_in_a_matching_every_node_is_measured_once_with_another_partner_each_time(nodes):
    seen = set()
    for pairs in gate.looks(nodes):
        members = [node for pair in pairs for node in pair]
        assert len(members) == len(set(members)) == nodes - nodes % 2
        seen |= set(pairs)
    assert len(seen) == sum(map(len, gate.looks(nodes)))


def test_suspects_are_retested_with_partners_that_passed():
    suspected = [3, 9, 12]
    partners = {node: set() for node in suspected}
    for pairs in gate.retests(32, suspected):
        members = [node for pair in pairs for node in pair]
        assert len(members) == len(set(members))
        for pair in pairs:
            found = set(pair) & set(suspected)
            assert len(found) <= 1
            for node in found:
                partners[node] |= set(pair) - {node}
    assert all(len(found) == gate.RETESTS for found in partners.values())


@pytest.mark.parametrize("nodes", [512])
def test_a_large_fleet_needs_sixteen_rounds(nodes):
    fleet = Fleet(nodes, {77: 0.7})
    verdict = fleet.judged()
    assert verdict.verdict == gate.FAIL and fleet.rounds <= 16
    assert named(verdict) == [77]


def test_a_sound_fleet_passes():
    found = [Fleet(128, seed=seed).judged() for seed in range(40)]
    assert sum(one.verdict == gate.FAIL for one in found) <= 4
    assert sum(one.verdict == gate.PASS for one in found) >= 20


def test_slow_nodes_are_found_and_their_partners_are_not_named():
    fleets = [Fleet(64, {5: 0.7, 40: 0.5}, seed) for seed in range(20)]
    found = [named(fleet.judged()) for fleet in fleets]
    assert sum({5, 40} <= set(nodes) for nodes in found) >= 17
    assert sum(bool(set(nodes) - {5, 40}) for nodes in found) <= 2


def test_a_group_that_is_slow_together_is_named_as_a_group():
    level = {tuple(range(k, k + 4)): 1.0 + 0.001 * k for k in range(0, 64, 4)}
    level[0, 1, 2, 3] = 2.0
    looked = [{(0, 1): 1.0, (2, 3): 1.1, (4, 5): 0.9}]
    (found,) = gate.judge_groups([level], looked, 64, ALLOWED)
    assert found.nodes == (0, 1, 2, 3) and found.rate == pytest.approx(0.5, rel=0.05)
    assert gate.judge_groups([{(0, 1, 2, 3): 9.0, (4, 5, 6, 7): 1.0}], looked, 64, ALLOWED) == []


def test_groups_double_until_all_nodes_are_one():
    assert [len(level[0]) for level in gate.levels(range(20))] == [4, 8, 16, 20]
    assert gate.levels(range(2)) == []


def test_a_table_is_held_against_the_best_pair_of_each_node():
    verdict = Fleet(16).judged(usual_s=0.5)
    assert verdict.verdict == gate.FAIL and len(named(verdict)) == 16
    assert Fleet(16).judged(usual_s=3.0).verdict != gate.FAIL


def test_a_retest_that_failed_says_nothing_and_breaks_nothing():
    taken = [{(0, 1): 1.0, (2, 3): 2.0, (4, 5): 1.0}]
    (found,) = (one for one in gate.judge(taken, [{}], [2], 6, ALLOWED) if one.node == 2)
    assert found.verdict == gate.INCONCLUSIVE and "nobody to retest it with" in found.note
    again = [{}, {(0, 2): 2.0, (1, 4): 1.0}, {(1, 2): 2.0, (0, 5): 1.0}]
    assert gate.judge(taken, again, [2], 6, ALLOWED)[2].verdict == gate.FAIL


def test_what_broke_fails_the_gate():
    verdict = gate.conclude(gate.judge([], [], [], 2, ALLOWED), [], ["rank 3 was killed"])
    assert verdict.verdict == gate.FAIL
