"""The gate names a fleet's slow node and no node of a sound fleet, passes no unmeasured node, and needs few rounds."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from collbench.packages.gate.analyze import nodes as gate
from collbench.packages.gate.cli.gate import FAILED
from collbench.packages.gate.report import as_json, gate_document, metrics
from collbench.report.markdown import written
from conftest import ROOT, TINY
from proof import links
from proof.gate import ALLOWED, Fleet
from test_joined import on_host

needs_links = pytest.mark.skipif(links.unsupported() is not None, reason=str(links.unsupported()))
# On a busy machine, many processes take long to load torch, and a rank that hangs takes long to be noticed.
PATIENCE_S = 500
# A hang costs the time-out, which is far above the time of a call on a busy machine.
GATED = TINY.replace("[4KiB, 64KiB]", "[256KiB]").replace("iterations: 8", "iterations: 12").replace("10s", "15s")


def having(verdict, which=gate.FAIL):
    return [check.node for check in verdict.nodes if check.verdict == which]


def verdicts_of(fleets, nodes, slow=(), least_s=None, **more):
    """Judge this many fleets, which differ by chance only."""
    return [Fleet(nodes, dict(slow), seed, **more).judged(least_s) for seed in range(fleets)]


# ── rounds ───────────────────────────────────────────────────────────────────────────────────────
def test_the_schedule_is_what_a_fleet_takes():
    fleet = Fleet(16, several=range(16), scatter=0.001)
    fleet.judged()
    usual, further = gate.schedule(16, 16)
    assert sum(map(len, usual)) == fleet.rounds and further


# ── the nodes that are named ─────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("nodes", [4, 5, 6, 7, 9])
def test_in_a_small_fleet_the_slow_node_is_named_and_not_its_partners(nodes):
    for slow in range(nodes):
        verdict = Fleet(nodes, {slow: 0.7}, scatter=0.02, seed=slow).judged()
        assert having(verdict) == [slow] and having(verdict, gate.PASS) == [n for n in range(nodes) if n != slow]


def test_a_node_fails_only_if_all_of_its_interval_is_too_slow():
    """The point estimate of node 5 is below the limit half of the time; the upper bound of its rate hardly ever is."""
    verdicts = verdicts_of(40, 16, {5: ALLOWED, 9: 0.6})
    assert sum(5 in having(verdict) for verdict in verdicts) <= 2
    for check in (check for verdict in verdicts for check in verdict.nodes if check.rate is not None):
        if check.rate.known:
            assert check.rate.low < check.rate.value < check.rate.high
            assert (check.verdict == gate.FAIL) == (check.rate.high < ALLOWED)
            assert (check.verdict == gate.PASS) == (check.rate.low > ALLOWED)


@pytest.mark.parametrize(
    ("nodes", "slow", "named"),
    [
        (4, {1: 0.75}, 0),
        (4, {1: 0.7}, 16),
        (4, {0: 0.7, 1: 0.7}, 0),
        (8, {0: 0.7, 1: 0.7, 2: 0.7}, 0),
        (8, {5: 0.8}, 0),
    ],
)
def test_a_fleet_with_slow_nodes_does_not_pass(nodes, slow, named):
    """No node passes because it was not suspected: of 4 nodes, one at 70 % did in 15 % of fleets, and two in 30 %."""
    verdicts = verdicts_of(20, nodes, slow)
    assert sum(verdict.verdict == gate.PASS for verdict in verdicts) <= 1
    assert sum(bool(set(having(verdict)) - set(slow)) for verdict in verdicts) <= 1
    assert sum(having(verdict) == [*slow] for verdict in verdicts) >= named


# ── nodes that were not measured ─────────────────────────────────────────────────────────────────
def test_a_node_that_was_not_measured_does_not_pass():
    """One of eight nodes kills all four rounds; the other nodes took part and have no sample."""
    fleet = Fleet(8, failing=["look"])
    fleet.dropped[2] = FAILED["killed"](stage="look")
    verdict = fleet.judged()
    assert having(verdict) == [2] and len(having(verdict, gate.INCONCLUSIVE)) == 7
    verdict = Fleet(8, failing=["look"]).judged()
    assert verdict.verdict == gate.INCONCLUSIVE and not having(verdict, gate.PASS) and verdict.broken
    content = as_json(verdict, [f"n{node}" for node in range(8)])
    assert [entry["kind"] for entry in content["broken"]] == ["stage-failed"] * len(verdict.broken)
    assert "failed: look: all ranks wait" in written(gate_document(verdict, [f"n{node}" for node in range(8)]))


@pytest.mark.parametrize(("nodes", "slow"), [(8, 3), (8, 4), (8, 5), (16, 6), (16, 8), (64, 16), (64, 24), (64, 36)])
def test_where_many_nodes_are_slow_none_of_them_passes(nodes, slow):
    verdict = Fleet(nodes, {node: 0.5 + node / 1000 for node in range(slow)}, scatter=0.01).judged()
    assert verdict.verdict != gate.PASS and not set(range(slow)) & set(having(verdict, gate.PASS))


# ── against a table ──────────────────────────────────────────────────────────────────────────────
def test_each_node_is_checked_against_a_table():
    verdict = Fleet(16).judged(least_s=0.5)
    assert verdict.verdict == gate.FAIL and len(having(verdict)) == 16
    assert Fleet(16).judged(least_s=3.0).verdict != gate.FAIL
    assert gate.FAIL not in {verdict.verdict for verdict in verdicts_of(5, 16, least_s=1.0)}
    # Two or three nodes pass by a table only.
    few = [[Fleet(nodes, scatter=0.02).judged(least_s) for nodes in (2, 3)] for least_s in (None, 1.5, 0.5)]
    assert [[verdict.verdict for verdict in row] for row in few] == [
        [gate.INCONCLUSIVE] * 2, [gate.PASS] * 2, [gate.FAIL] * 2,
    ]  # fmt: skip


@pytest.mark.parametrize(("nodes", "slow"), [(64, 21), (16, 8)])
def test_of_two_generations_a_table_names_the_slow_one_and_no_other(nodes, slow):
    """A sound node with many slow partners was called too slow in 40 of 40 such fleets."""
    generation = dict.fromkeys(range(slow), 0.7)
    for verdict in verdicts_of(3, nodes, generation, least_s=1 / ALLOWED, scatter=0.03):
        assert having(verdict) == list(range(slow))


@pytest.mark.parametrize(("nodes", "switches"), [(16, 2), (64, 2), (64, 3)])
def test_slow_paths_between_switches_are_reported_and_fail_no_sound_node(nodes, switches):
    for verdict in verdicts_of(2, nodes, scatter=0.05, crossing=0.5, switches=switches):
        assert verdict.verdict == gate.INCONCLUSIVE and not having(verdict)
        assert verdict.path is not None and verdict.path.rate == pytest.approx(0.5, abs=0.05)
        assert verdict.path.groups == tuple(tuple(range(first, nodes, switches)) for first in range(switches))
    text = written(gate_document(verdict, [f"n{node}" for node in range(nodes)]))
    assert f"a slow path, no slow node: pairs across n0, n{switches}, n{2 * switches}" in text


def test_the_reference_parser_of_openmetrics_reads_a_verdict():
    verdict = Fleet(8, {3: 0.5}).judged()
    families = text_string_to_metric_families(metrics(verdict, [f'n"{node}' for node in range(8)]))
    gauge = {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}
    assert gauge["collbench_verdict", "gate"] == 1
    assert gauge["collbench_node_verdict", 'n"3'] == 1 and gauge["collbench_node_verdict", 'n"2'] == 0
    assert gauge["collbench_node_rate", 'n"3'] == pytest.approx(0.5, abs=0.15)


# ── for real: hosts are namespaces on one switch, each with a name of its own ────────────────────
class Job:
    """A gate on these nodes, with torchrun's variables; `done` returns status, output, gate.json and taint file.

    A node must reach half of the usual rate only: a busy machine then needs no further rounds to see that it does.

    name: of all nodes; None for a name of its own for each node.
    """

    def __init__(self, cli, network, ranks, name=None):
        config, self.folder = cli.config(GATED), cli.folder
        self.nodes = []
        for node in range(len(network.namespaces)):
            inside = on_host(cli, network, node, "", name or f"node{node}")
            place = {"WORLD_SIZE": str(len(network.namespaces) * ranks), "LOCAL_WORLD_SIZE": str(ranks)}
            place |= {"MASTER_ADDR": network.addresses[0], "MASTER_PORT": "29500"}
            self.nodes.append(
                [
                    subprocess.Popen(
                        [*inside, sys.executable, str(ROOT / "run_bench.py"), "gate", config, "--allow", "50%"],
                        cwd=cli.folder,
                        env=cli.environment | place | {"RANK": str(node * ranks + local), "LOCAL_RANK": str(local)},
                        stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT,
                        text=True,
                    )
                    for local in range(ranks)
                ]
            )

    def processes_of_node(self, node):
        """Return all processes of a node."""
        own = [psutil.Process(process.pid) for process in self.nodes[node]]
        return [*own, *(child for process in own for child in process.children(recursive=True))]

    def measuring_ranks_of_node(self, node):
        """Return the ranks once they have sent more than joining takes: before that, a silence may last much longer."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            ranks = [process for process in self.processes_of_node(node)[1:] if process.num_threads() > 3]
            if ranks and sent_bytes(ranks[0].pid) > 2**19:
                return ranks
            time.sleep(0.02)
        raise AssertionError("no rank measures")

    def wait_for_stage(self, stage):
        deadline = time.monotonic() + PATIENCE_S
        while not list(self.folder.glob(f"results/*-gate-{stage}")) and time.monotonic() < deadline:
            time.sleep(0.05)

    def done(self):
        text, _ = self.nodes[0][0].communicate(timeout=PATIENCE_S)
        (verdict,) = self.folder.glob("results/*/gate.json")
        return self.nodes[0][0].returncode, text, json.loads(verdict.read_bytes()), verdict.with_name("taint.txt")

    def end(self):
        for node, agents in enumerate(self.nodes):
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in self.processes_of_node(node):
                    process.kill()
            for agent in agents:
                agent.kill()
                with contextlib.suppress(ValueError):  # its output has been read
                    agent.communicate()


def sent_bytes(pid):
    """Return the bytes that the interfaces of a process's network have sent, including loopback."""
    lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    return sum(int(line.partition(":")[2].split()[8]) for line in lines)


@contextlib.contextmanager
def gated(cli, nodes, ranks=1, slow=None, name=None):
    """Yield a gate that runs; one link may carry an eighth of the other links' rate."""
    with links.bridged(nodes, "200mbit", slow, "25mbit") as network:
        job = Job(cli, network, ranks, name)
        try:
            yield job
        finally:
            job.end()


def hosts(content, verdict):
    return [check["host"] for check in content["nodes"] if check["verdict"] == verdict]


@pytest.mark.slow
@needs_links
def test_sound_nodes_of_several_ranks_are_measured_inside_and_in_pairs(cli):
    """All nodes have one name, as many containers do; their boot ids differ."""
    with gated(cli, nodes=4, ranks=2, name="localhost") as job:
        code, text, content, taint = job.done()
        labels = [f"localhost (rank {rank})" for rank in (0, 2, 4, 6)]
        assert [check["host"] for check in content["nodes"]] == labels, text
        assert not hosts(content, "FAIL") and not taint.read_text(), text
        assert code == {"PASS": 0, "INCONCLUSIVE": 3}[content["verdict"]], text
        assert "4 nodes: about" in text.partition("launch")[0]  # how long it takes, before anything starts
        stages = {path.name.split("-", 1)[1] for path in cli.folder.glob("results/*Z-*")}
        assert {"gate-inside", "gate-look"} <= stages and not content["remarks"]
        for agent in [process for node in job.nodes for process in node][1:]:
            assert "RANK=" in agent.communicate(timeout=PATIENCE_S)[0] and agent.returncode == code


@pytest.mark.slow
@needs_links
@pytest.mark.parametrize("whole_host", [True, False], ids=["host", "rank"])
def test_a_node_that_hangs_and_one_that_is_slow_are_named_and_the_others_are_measured(cli, whole_host):
    """The whole host hangs, with all its processes; or the rank alone, so that its host still answers."""
    with gated(cli, nodes=5, slow=2) as job:
        job.wait_for_stage("look")
        ranks = job.measuring_ranks_of_node(3)
        for process in job.processes_of_node(3) if whole_host else ranks:
            process.send_signal(signal.SIGSTOP)
        code, text, content, taint = job.done()
    # On a busy machine the other nodes scatter so much that all may stay undecided, and a sound node whose rank got too
    # little of two cores may be named; the slow node never passes.
    assert "node3" in hosts(content, "FAIL"), text
    assert "node2" not in hosts(content, "PASS"), text
    assert code == 1 and content["verdict"] == "FAIL"
    assert taint.read_text().split() == hosts(content, "FAIL")
    hung, fine = content["nodes"][3], [content["nodes"][node] for node in (0, 1, 4)]
    assert ("answer" if whole_host else "stage look") in hung["note"]["text"] and hung["rate"] is None
    for check in fine:  # measured, and none of them passed unmeasured
        assert check["rate"] is not None or check["note"]["kind"] == "nothing-usual", text


def test_the_gate_needs_several_hosts(warm):
    done = warm("gate", warm.config())
    assert done.returncode == 3 and "this job has one" in done.stderr
