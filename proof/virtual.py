"""Device times on virtual GPUs, where the truth follows from a rule, and what the suite concludes from them.

All between CollBench and the stand-ins of proof/virtual_gpu is torch's own code: its CUDA part and ProcessGroupNCCL. So
a claim holds for the instrument, and says nothing of hardware.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bench.analyze.analysis import analyze, diagnose
from bench.machine import host
from bench.packages.training.conclusions import training_of
from proof.claim import HOLDS, MISSED, Line, at_least, at_most, not_tried
from proof.rig import Rig
from proof.virtual_gpu import rig as virtual

# Largest deviation of a device time from the rule, and of what the host's clock or several calls have part in.
EXACT, CLOSE, HOSTS = 0.005, 0.02, 0.10
# Largest share of a tail that ranks may have waited for each other; with more, nothing would be shown.
WAITED = 0.2
WORLDS = (2, 8)
RULE = {"gpus": 8, "memory_gib": 8, "latency_us": 12, "bus_gbps": 400, "timed_data": 0}
SWEEP = """
backends: [nccl]
world_sizes: [{ranks}]
launches: 1
operations: [{operations}]
sizes: [{sizes}]
metrics: [{metrics}]
buffers: reused
sampling: {{warmup: 1, warmup_seconds: 0, iterations: 12}}
timeout: 180s
"""
ONE = """
backends: [nccl]
world_sizes: [{ranks}]
launches: {launches}
operations: [{operation}]
sizes: [64KiB]
buffers: hot
sampling: {{warmup: 1, warmup_seconds: 0, iterations: {iterations}}}
timeout: 60s
"""
# A chain of layers of 1 MiB each. By rule a matrix product takes some ms, all else nothing.
LAYERS, LAYER_BYTES = 8, 2**20
CHAIN = """
import torch
from torch import nn

class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512, bias=False) for _ in range(8))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()

def build():
    return Chain(), (torch.randn(16, 512, generator=torch.Generator().manual_seed(1)),)
"""
STEPS = """
backends: [nccl]
world_sizes: [{ranks}]
launches: 1
timeout: 120s
training:
  models: [{{import: "chain:build"}}]
  batch: 16
  sequence: 16
  rounds: 4
  steps: 2
  strategies: [naive, flat, overlap_param, {{overlap_bucket: {{cap: 2MiB}}}}, ddp, {{ddp: {{cap: 1MiB}}}}]
"""
# Milliseconds of a matrix product, latency of a call in ms, and GB/s.
LINKS = ((4.0, 2.0, 0.5), (10.0, 5.0, 0.2))
FLEET = """
backends: [nccl]
launches: 3
operations: [all_reduce]
sizes: [16MiB]
buffers: reused
timeout: 90s
"""


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="virtual-") as name:
        yield Path(name)


@contextmanager
def _busy_cores() -> Iterator[None]:
    """A program on each core that never pauses."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in host.affinity()]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


# ── times ────────────────────────────────────────────────────────────────────────────────────────
def times(rig: Rig, trials: int) -> list[Line]:
    """Reported device times against the rule, beside a busy program on each core. trials: numbers of ranks."""
    if reason := virtual.missing():
        return not_tried(reason, "reported device times are those of the rule")
    found = []
    for ranks in WORLDS[:trials]:
        operations = "all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, send_recv"
        several = (operations, "1KiB, 1MiB, 16MiB", "isolated, pipelined, graph")
        off: dict[str, float] = {}
        # A size that two cores can fill and check for 2 ranks, and hardly for 8.
        for operations, sizes, metrics in (several, ("all_reduce", "1GiB", "isolated"))[: 2 if ranks == 2 else 1]:
            with _folder() as folder, _busy_cores():
                text = SWEEP.format(ranks=ranks, operations=operations, sizes=sizes, metrics=metrics)
                run, _ = virtual.measured(folder, RULE, text, timeout=1800)
            assert not run.plan.skips, run.plan.skips
            for summary in analyze(run).summaries:
                case, time_s = summary.case, summary.time_s
                truth_s = virtual.collective_us(case.op, case.size_bytes, ranks, RULE) / 1e6
                off[case.key] = abs(time_s.value / truth_s - 1) if time_s else 1.0
        right = sum(deviation <= EXACT for deviation in off.values())
        largest = "1 GiB" if ranks == 2 else "16 MiB"
        assert len(off) == (55 if ranks == 2 else 54)  # metrics × operations × sizes, and the largest
        worst = max(off, key=lambda key: off[key])
        says = f"device times within {EXACT:.1%} of the rule, {ranks} ranks, 1 KiB to {largest}"
        found.append(at_least(says, right, len(off), 1.0, f"; worst: {worst}, {off[worst]:.3%}", off=off))
    return found


def perf(rig: Rig, trials: int) -> list[Line]:
    """perf's columns have the host's clock, as nccl-tests has it; the device's time stands below. trials: rules.

    Enqueueing a call takes the host 5 ms and the device 12 µs, or the device 5 ms; two calls back to back, for what is
    enqueued later than the stream can be occupied has no time of the device.
    """
    says = "perf: time in nccl-tests' column / what its definition gives"
    if reason := virtual.missing():
        return not_tried(reason, says)
    found = []
    for enqueue_us, latency_us in ((5000, 12), (0, 5000))[:trials]:
        rule = RULE | {"gpus": 2, "enqueue_us": enqueue_us, "latency_us": latency_us}
        with _folder() as folder:
            done = virtual.run(
                folder, rule, "perf", "all_reduce", "-b", "1K", "-e", "1K", "-g", "2", "-n", "2", "--no-plots"
            )
        (row,) = (line.split() for line in done.stdout.splitlines() if line.split()[:1] == ["1024"])
        below = re.search(r"^# +1024  .*?([\d.]+) us in place", done.stdout, re.MULTILINE)
        column, device = float(row[9]) / max(enqueue_us, latency_us), float(below[1] if below else 0) / latency_us
        about = f"a call takes the host {enqueue_us} µs and the device {latency_us} µs"
        for what, ratio, allowed in ((says, column, HOSTS), ("device time below it / the rule", device, EXACT)):
            outcome = HOLDS if abs(ratio - 1) <= allowed else MISSED
            found.append(Line(f"{what}: {about}", f"within ±{allowed:.1%}", f"{ratio - 1:+.2%}", outcome))
    return found


# ── names ────────────────────────────────────────────────────────────────────────────────────────
def late(rig: Rig, trials: int) -> list[Line]:
    """A GPU that begins 200 µs late, and twice as many runs in which all are equal."""
    says = "a GPU that is 200 µs late is named, and no other", "all GPUs are equal, and one is named"
    if reason := virtual.missing():
        return not_tried(reason, *says)

    def named(rule: Mapping[str, object], launches: int) -> list[list[int | None]]:
        text = ONE.format(ranks=2, launches=launches, operation="all_reduce", iterations=40)
        return _named_by_launch(RULE | {"gpus": 2} | rule, text)

    late = [(rank, named({f"late_us@{rank}": 200}, len(range(rank, trials, 2)))) for rank in range(min(2, trials))]
    right = sum(launch == [rank] for rank, launches in late for launch in launches)
    wrong = sum(launch != [] for launch in named({}, 2 * trials))
    return [at_least(says[0], right, trials, 0.95), at_most(says[1], wrong, 2 * trials, 0.05)]


def _named_by_launch(rule: Mapping[str, object], text: str) -> list[list[int | None]]:
    """The ranks that each launch of a run names, as if it were a run of its own."""
    with _folder() as folder:
        run, _ = virtual.measured(folder, rule, text, timeout=1800)
    launches = sorted({one.launch for one in run.samples})
    alone = (replace(run, samples=[one for one in run.samples if one.launch == launch]) for launch in launches)
    return [[finding.rank for finding in diagnose(launch).findings] for launch in alone]


def slow_link(rig: Rig, trials: int) -> list[Line]:
    """Pairwise exchanges of 4 GPUs, one of which sends and receives at half the rate; and as many with equal ones."""
    says = "a GPU with links at half the rate is named by the pairwise matrix", "all links are equal, and one is named"
    if reason := virtual.missing():
        return not_tried(reason, *says)

    def named(rule: Mapping[str, object], launches: int) -> list[list[int | None]]:
        text = ONE.format(ranks=4, launches=launches, operation="pairwise", iterations=54).replace("64KiB", "4MiB")
        return _named_by_launch({**RULE, "timed_data": 1, "gpus": 4, "bus_gbps": 40, **rule}, text)

    slow = [(rank, named({f"bus_gbps@{rank}": 20}, len(range(rank, trials, 4)))) for rank in range(min(4, trials))]
    right = sum(launch == [rank] for rank, launches in slow for launch in launches)
    wrong = sum(launch != [] for launch in named({}, trials))
    return [at_least(says[0], right, trials, 0.95), at_most(says[1], wrong, trials, 0.05)]


def gate(rig: Rig, trials: int) -> list[Line]:
    """A gate over 8 hosts of 2 GPUs under torchrun, one of which has 80 % of the others' rate. trials: fleets."""
    says = "a node at 80 % of the others' rate fails the gate, and no other", "its rate is what the rule says"
    if reason := virtual.missing_hosts():
        return not_tried(reason, *says)
    rule = RULE | {"gpus": 2, "memory_gib": 4}
    usual_us, slow_us = (
        virtual.collective_us("all_reduce", 2**24, 2, rule | {"bus_gbps": gbps}) for gbps in (400, 320)
    )
    named, rates = 0, list[float]()
    for trial in range(trials):
        slow = (5 + 3 * trial) % 8
        with _folder() as folder:
            (folder / "gate.yaml").write_text(FLEET)
            rules = [rule | {"bus_gbps": 320 if host == slow else 400} for host in range(8)]
            virtual.on_hosts(folder, rules, "gate", "gate.yaml")
            (path,) = folder.glob("results/*/gate.json")
            nodes = json.loads(path.read_text())["nodes"]
        named += [node["node"] for node in nodes if node["verdict"] != "PASS"] == [slow]
        rates.append(nodes[slow]["rate"]["value"] / (usual_us / slow_us))
    ratio = max(rates, key=lambda value: abs(value - 1))
    outcome = HOLDS if abs(ratio - 1) <= EXACT else MISSED
    return [at_least(says[0], named, trials, 1.0), Line(says[1], f"within ±{EXACT:.1%}", f"{ratio - 1:+.2%}", outcome)]


# ── training ─────────────────────────────────────────────────────────────────────────────────────
def training(rig: Rig, trials: int) -> list[Line]:
    """Tails of a training step against arithmetic, from without what ranks wait for each other to with it.

    trials: rules. A tail holds if what was reported comes within 2 % of the truth by any part of that waiting, and if
    that waiting is no more than 20 % of it.
    """
    if reason := virtual.missing():
        return not_tried(reason, "the tail of a training step is what arithmetic gives")
    return [line for link in LINKS[:trials] for ranks in (2, 4) for line in training_on(ranks, *link)]


def training_on(ranks: int, product_ms: float, latency_ms: float, gbps: float) -> list[Line]:
    """The same of one rule and number of ranks, a line for each strategy."""
    rule = {"gpus": ranks, "kernel_us": 0, "copy_us": 0, "copy_gbps": 1e9, "bus_gbps": gbps}
    rule |= {"latency_us": 1000 * latency_ms}
    rule |= {f"kernel_us.{name}": 1000 * product_ms for name in ("mm", "addmm", "bmm", "linear")}
    with _folder() as folder:
        (folder / "chain.py").write_text(CHAIN)
        run, _ = virtual.measured(folder, rule, STEPS.format(ranks=ranks), timeout=1800)
    (scenario,) = training_of(analyze(run)).scenarios
    splits = {result.label: result.split for result in scenario.results}
    found = []
    for name, truth_ms in tails_ms(product_ms, latency_ms, gbps, ranks).items():
        # Waiting for late ranks, which is of this machine, may lie in the tail or before it.
        most = 1000 * splits[name].tail_s / truth_ms
        waited = 1000 * splits[name].late_s / truth_ms
        least = most - waited
        outcome = HOLDS if least <= 1 + CLOSE and most >= 1 - CLOSE and waited <= WAITED else MISSED
        says = f"tail of {name}: {product_ms:g} ms a product, {latency_ms:g} ms and {gbps:g} GB/s, {ranks} GPUs"
        measured = f"{least - 1:+.2%} to {most - 1:+.2%}"
        found.append(Line(f"{says}, {truth_ms:.2f} ms", f"within ±{CLOSE:.0%}", measured, outcome))
    return found


def tails_ms(product_ms: float, latency_ms: float, gbps: float, ranks: int) -> dict[str, float]:
    """What each strategy still sends when backward has ended, in ms.

    Backward takes two products a layer, and its gradient comes with the second; the first layer takes one.
    """

    def call_ms(layers: int) -> float:
        return latency_ms + 2 * (ranks - 1) / ranks * layers * LAYER_BYTES / gbps / 1e6

    def tail(buckets: Sequence[int]) -> float:
        """Buckets of so many layers, the last layer first, on one link, each when its last gradient is there."""
        ready, link = 0, 0.0
        for layers in buckets:
            ready += layers
            link = max(link, min(2 * ready, 2 * LAYERS - 1) * product_ms) + call_ms(layers)
        return link - (2 * LAYERS - 1) * product_ms

    one, pairs = [1] * LAYERS, [2] * (LAYERS // 2)
    return {
        "naive": LAYERS * call_ms(1), "flat": call_ms(LAYERS), "overlap_param": tail(one),
        "overlap_bucket 2 MiB": tail(pairs), "ddp 1 MiB": tail(one), "ddp": tail([1, LAYERS - 1]),
    }  # fmt: skip
