"""Check device times on virtual GPUs, where the truth follows from a rule, and the conclusions from these times.

All code between CollBench and the stand-ins of proof/virtual_gpu is torch's own: its CUDA part and ProcessGroupNCCL.
So a claim holds for the instrument, not for any hardware.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np

from collbench.analyze.analysis import analyze, diagnose
from collbench.machine import host
from collbench.model.records import Run
from collbench.packages.training.conclusions import training_of
from proof.claim import HOLDS, MISSED, UNDECIDED, Limit, Line, at_least, at_most, rate, within
from proof.overhead import ratio_of
from proof.rig import Rig, all_reduces
from proof.virtual_gpu import rig as virtual

# Allowed deviations from the rule: of a device time; of a tail of several calls; of a time by the host's clock.
EXACT, CLOSE, HOSTS = 0.005, 0.02, 0.10
# Largest share of a tail that ranks may have waited for each other; a larger share would prove nothing.
WAITED = 0.2
WORLDS = (2, 4)
RULE = {"gpus": 8, "memory_gib": 8, "latency_us": 12, "bus_gbps": 400, "timed_data": 0}
SAMPLING = {"warmup": 1, "warmup_seconds": 0}
# A chain of layers of 1 MiB each. By rule, a matrix product takes some ms, and all other operations no time.
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
# Number of ranks, milliseconds of a matrix product, latency of a call in ms, and GB/s. Two cores run four ranks late
# by some ms a step, so that these have longer products.
LINKS = ((2, 4.0, 2.0, 0.5), (4, 10.0, 5.0, 0.2))
# How late a GPU is, in µs.
LATE_US, SLIGHTLY_LATE_US = 500, 200
APART = "ranks on two cores left a barrier up to 0.25 ms apart throughout a launch, which cancels so small a delay"
FLEET = all_reduces(backends=["nccl"], world_sizes=None, launches=3, sizes=["16MiB"], buffers="reused", timeout="90s")


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="virtual-") as name:
        yield Path(name)


def _measured(rule: Mapping[str, object], text: str, **modules: str) -> Run:
    """Run a configuration in a folder with these modules."""
    with _folder() as folder:
        for name, code in modules.items():
            (folder / f"{name}.py").write_text(code)
        return virtual.measured(folder, rule, text, timeout=1800)[0]


def _close(title: str, ratio: float, allowed: float) -> Line:
    """Judge a ratio that should be 1."""
    outcome = HOLDS if abs(ratio - 1) <= allowed else MISSED
    return Line(title, f"within ±{allowed:.1%}", f"{ratio - 1:+.2%}", outcome)


@contextmanager
def _busy_cores() -> Iterator[None]:
    """Run a program on each core that never pauses."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in host.affinity()]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


# ── times ────────────────────────────────────────────────────────────────────────────────────────
def times(rig: Rig, trials: int) -> list[Line]:
    """Compare device times with the rule; 2 ranks run beside a busy program on each core. trials: numbers of ranks."""
    lines = []
    for ranks in WORLDS[:trials]:
        operations = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv"]
        several = (operations, ["1KiB", "1MiB", "16MiB"], ["isolated", "pipelined", "graph"])
        off: dict[str, float] = {}
        # 1 GiB: two cores can fill and check it for 2 ranks, but hardly for more.
        for operations, sizes, metrics in (several, (["all_reduce"], ["1GiB"], ["isolated"]))[: 2 if ranks == 2 else 1]:
            text = all_reduces(
                backends=["nccl"], world_sizes=[ranks], launches=1, operations=operations, sizes=sizes, metrics=metrics,
                buffers="reused", sampling=SAMPLING | {"iterations": 12}, timeout="180s",
            )  # fmt: skip
            with _busy_cores() if ranks == 2 else nullcontext():
                run = _measured(RULE, text)
            assert not run.plan.skips, run.plan.skips
            for summary in analyze(run).summaries:
                case, time_s = summary.case, summary.time_s
                truth_s = virtual.collective_us(case.op, case.size_bytes, ranks, RULE) / 1e6
                off[case.key] = abs(time_s.value / truth_s - 1) if time_s else 1.0
        right = sum(deviation <= EXACT for deviation in off.values())
        largest = "1 GiB" if ranks == 2 else "16 MiB"
        assert len(off) == (55 if ranks == 2 else 54)  # metrics × operations × sizes, and the largest
        worst = max(off, key=lambda key: off[key])
        title = f"device times within {EXACT:.1%} of the rule, {ranks} ranks, 1 KiB to {largest}"
        lines.append(at_least(title, right, len(off), 1.0, f"; worst: {worst}, {off[worst]:.3%}", off=off))
    return lines


def perf(rig: Rig, trials: int) -> list[Line]:
    """Check `perf`: columns by the host's clock, as in nccl-tests; the device time below them. trials: runs per rule.

    A call takes the host 5 ms and the device 12 µs, or the device 5 ms. Ranks begin at different times after a barrier,
    which 20 calls back to back divide; device times are of two: a call that is enqueued after the stream has become
    idle has none.
    """
    lines = []
    for enqueue_us, latency_us in ((5000, 12), (0, 5000)):
        rule = RULE | {"gpus": 2, "enqueue_us": enqueue_us, "latency_us": latency_us}
        printed = [line.split() for _ in range(trials) for line in _perf(rule, "20").splitlines()]
        columns = np.array([float(row[9]) for row in printed if row[:1] == ["1024"]]) / max(enqueue_us, latency_us)
        below = re.search(r"^# +1024  .*?([\d.]+) us in place", _perf(rule, "2"), re.MULTILINE)
        device = float(below[1] if below else 0) / latency_us
        about = f"a call takes the host {enqueue_us} µs and the device {latency_us} µs"
        title = f"perf: time in nccl-tests' column / what its definition gives: {about}"
        lines.append(within(title, *ratio_of(columns), HOSTS))
        lines.append(_close(f"device time below it / the rule: {about}", device, EXACT))
    return lines


def _perf(rule: Mapping[str, object], calls: str) -> str:
    with _folder() as folder:
        arguments = ("-b", "1K", "-e", "1K", "-g", "2", "-n", calls, "--no-plots")
        return virtual.run(folder, rule, "perf", "all_reduce", *arguments).stdout


# ── names ────────────────────────────────────────────────────────────────────────────────────────
def late(rig: Rig, trials: int) -> list[Line]:
    """Measure a GPU that begins late, by two times, and as many launches in which all GPUs are equal."""
    rule = RULE | {"gpus": 2}
    case = ("all_reduce", "64KiB", 40)
    late = _found(rule, case, trials, lambda rank: {f"late_us@{rank}": LATE_US})
    slightly = _found(rule, case, trials // 2, lambda rank: {f"late_us@{rank}": SLIGHTLY_LATE_US})
    wrong = sum(launch != [] for launch in _named_by_launch(rule, case, trials))
    title = f"a GPU that is {SLIGHTLY_LATE_US} µs late is named, and no other"
    return [
        at_least(f"a GPU that is {LATE_US} µs late is named, and no other", late, trials, 0.95),
        rate(title, slightly, trials // 2, 0.95, limit=Limit(APART, least=0.5)),
        at_most("all GPUs are equal, and one is named", wrong, trials, 0.05),
    ]


def slow_link(rig: Rig, trials: int) -> list[Line]:
    """Measure pairwise exchanges of 4 GPUs, one of them at half the rate; and as many with equal GPUs."""
    rule = RULE | {"timed_data": 1, "gpus": 4, "bus_gbps": 40}
    case = ("pairwise", "4MiB", 54)
    right = _found(rule, case, trials, lambda rank: {f"bus_gbps@{rank}": 20})
    wrong = sum(launch != [] for launch in _named_by_launch(rule, case, trials))
    return [
        at_least("a GPU with links at half the rate is named by the pairwise matrix", right, trials, 0.95),
        at_most("all links are equal, and one is named", wrong, trials, 0.05),
    ]


def _found(
    rule: dict[str, int], case: tuple[str, str, int], trials: int, planted: Callable[[int], dict[str, int]]
) -> int:
    """Plant a fault into each rank in turn; return in how many launches this rank is named, and no other."""
    ranks, right = rule["gpus"], 0
    for rank in range(min(ranks, trials)):
        named = _named_by_launch(rule | planted(rank), case, len(range(rank, trials, ranks)))
        right += sum(launch == [rank] for launch in named)
    return right


def _named_by_launch(rule: Mapping[str, object], case: tuple[str, str, int], launches: int) -> list[list[int | None]]:
    """Return the ranks that are named per launch of a run, with each launch diagnosed as a separate run."""
    operation, size, iterations = case
    text = all_reduces(
        backends=["nccl"], world_sizes=[rule["gpus"]], launches=launches, operations=[operation], sizes=[size],
        buffers="hot", sampling=SAMPLING | {"iterations": iterations},
    )  # fmt: skip
    run = _measured(rule, text)
    numbers = sorted({s.launch for s in run.samples})
    alone = (replace(run, samples=[s for s in run.samples if s.launch == number]) for number in numbers)
    return [[finding.rank for finding in diagnose(launch).findings] for launch in alone]


def gate(rig: Rig, trials: int) -> list[Line]:
    """Run a gate over 8 hosts of 2 GPUs under torchrun, one host at 80 % of the others' rate. trials: fleets."""
    rule = RULE | {"gpus": 2, "memory_gib": 4}
    usual_us, slow_us = (
        virtual.collective_us("all_reduce", 2**24, 2, rule | {"bus_gbps": gbps}) for gbps in (400, 320)
    )
    hits, rates = 0, list[float]()
    for trial in range(trials):
        slow = (5 + 3 * trial) % 8
        with _folder() as folder:
            (folder / "gate.yaml").write_text(FLEET)
            rules = [rule | {"bus_gbps": 320 if host == slow else 400} for host in range(8)]
            virtual.on_hosts(folder, rules, "gate", "gate.yaml")
            (path,) = folder.glob("results/*/gate.json")
            nodes = json.loads(path.read_text())["nodes"]
        hits += [node["node"] for node in nodes if node["verdict"] != "PASS"] == [slow]
        rates.append(nodes[slow]["rate"]["value"] / (usual_us / slow_us))
    ratio = max(rates, key=lambda value: abs(value - 1))
    return [
        at_least("a node at 80 % of the others' rate fails the gate, and no other", hits, trials, 1.0),
        _close("its rate is what the rule says", ratio, EXACT),
    ]


# ── training ─────────────────────────────────────────────────────────────────────────────────────
def training(rig: Rig, trials: int) -> list[Line]:
    """Compare tails of training steps with arithmetic, as a range: without and with waits of ranks for each other.

    trials: rules. A tail is missed if no value in this range is within 2 % of the truth, and undecided if these waits
    are more than 20 % of the truth, because such a range proves nothing.
    """
    return [line for link in LINKS[:trials] for line in training_on(*link)]


def training_on(ranks: int, product_ms: float, latency_ms: float, gbps: float) -> list[Line]:
    """Compare tails for one rule and number of ranks; return one line per strategy."""
    rule = {"gpus": ranks, "kernel_us": 0, "copy_us": 0, "copy_gbps": 1e9, "bus_gbps": gbps}
    rule |= {"latency_us": 1000 * latency_ms}
    rule |= {f"kernel_us.{name}": 1000 * product_ms for name in ("mm", "addmm", "bmm", "linear")}
    with_buckets = [{"overlap_bucket": {"cap": "2MiB"}}, "ddp", {"ddp": {"cap": "1MiB"}}]
    training = {"models": [{"import": "chain:build"}], "batch": 16, "sequence": 16, "rounds": 4, "steps": 2}
    text = all_reduces(
        backends=["nccl"], world_sizes=[ranks], launches=1, operations=None, timeout="120s",
        training=training | {"strategies": ["naive", "flat", "overlap_param", *with_buckets]},
    )  # fmt: skip
    run = _measured(rule, text, chain=CHAIN)
    (scenario,) = training_of(analyze(run)).scenarios
    splits = {result.label: result.split for result in scenario.results}
    lines = []
    for name, truth_ms in tails_ms(product_ms, latency_ms, gbps, ranks).items():
        # Waiting for late ranks, which this machine causes, may be in the tail or before it.
        most = 1000 * splits[name].tail_s / truth_ms
        waited = 1000 * splits[name].late_s / truth_ms
        least = most - waited
        near = least <= 1 + CLOSE and most >= 1 - CLOSE
        outcome = MISSED if not near else HOLDS if waited <= WAITED else UNDECIDED
        title = f"tail of {name}: {product_ms:g} ms a product, {latency_ms:g} ms and {gbps:g} GB/s, {ranks} GPUs"
        measured = f"{least - 1:+.2%} to {most - 1:+.2%}"
        lines.append(Line(f"{title}, {truth_ms:.2f} ms", f"within ±{CLOSE:.0%}", measured, outcome))
    return lines


def tails_ms(product_ms: float, latency_ms: float, gbps: float, ranks: int) -> dict[str, float]:
    """Return the time that each strategy still sends after backward has ended, in ms.

    Backward takes two products per layer, and the gradient is ready after the second; the first layer takes only one.
    """

    def call_ms(layers: int) -> float:
        return latency_ms + 2 * (ranks - 1) / ranks * layers * LAYER_BYTES / gbps / 1e6

    def tail(buckets: Sequence[int]) -> float:
        """Send buckets (numbers of layers, the last layer first) on one link, each once its last gradient is ready."""
        ready, link = 0, 0.0
        for layers in buckets:
            ready += layers
            link = max(link, min(2 * ready, 2 * LAYERS - 1) * product_ms) + call_ms(layers)
        return link - (2 * LAYERS - 1) * product_ms

    singles, pairs = [1] * LAYERS, [2] * (LAYERS // 2)
    return {
        "naive": LAYERS * call_ms(1), "flat": call_ms(LAYERS), "overlap_param": tail(singles),
        "overlap_bucket 2 MiB": tail(pairs), "ddp 1 MiB": tail(singles), "ddp": tail([1, LAYERS - 1]),
    }  # fmt: skip
