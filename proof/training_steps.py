"""Steps of training: is nothing found where nothing is, a planted wait where one is, and what do stamps cost?"""

import gc
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from bench.analyze.analysis import analyze
from bench.model.records import Case, Launch, Plan, Run, Samples, Sampling, Scenario, Settings, Timings
from bench.model.training import PARTS, Strategy
from bench.model.units import format_seconds
from bench.planning.training import case_of, with_controls
from bench.rank.training import models
from bench.rank.training import runner as runners
from bench.rank.training.transport import ProcessGroupTransport, RankInfo
from bench.stats import intervals
from proof.bucket_plans import of_launches
from proof.claim import Effort, Outcome, counted
from proof.rig import Rig
from proof.synchronisers import WAIT_S

ROOT = Path(__file__).resolve().parents[1]
MS = 1e-3
SHORT = """
backends: [gloo]
world_sizes: [2]
launches: {launches}
training:
  models: [nano]
  batch: 8
  rounds: {rounds}
  steps: 4
  max_foreign_cpu: 99%
  strategies: {strategies}
"""
PLANTED = "[{import: proof.synchronisers:OneCall}, {import: proof.synchronisers:Late}]"
LAUNCHES_A_RUN = 3
# The bench's limit on two cores.
LIMIT_S = 240


def silence(rig: Rig, effort: Effort) -> list[Outcome]:
    """Runs of one launch, and of three: second copies of the step without synchronisation and of flat."""
    run = rig.measure(SHORT.format(launches=effort.quiet_trials, rounds=10, strategies="[flat]"))
    found = []
    for name, words in (("none again", "a strategy without communication"), ("flat", "an A/A pair of flat")):
        for length in (1, LAUNCHES_A_RUN):
            inside, widths = _silent(run, name, length)
            half = f"half an interval is {np.median(widths) / MS:.2f} ms in the median"
            found.append(
                Outcome(
                    f"{words} exposes 0 within its interval, runs of {length} launch{'es' if length > 1 else ''}",
                    "≥ 95 % of runs",
                    f"{sum(inside)} of {len(inside)}; {half}",
                    sum(inside) >= 0.95 * len(inside),
                )
            )
    return found


def _silent(run: Run, name: str, length: int) -> tuple[list[bool], list[float]]:
    """Of each run of so many launches: whether the twins' interval has 0 in it, and half its width."""
    inside, widths = [], []
    for first in range(1, run.plan.launches - length + 2, length):
        (comparison,) = analyze(of_launches(run, range(first, first + length))).scenarios
        (aa_pairs,) = [one for one in comparison.aa_pairs if one.label == name.removesuffix(" again")]
        inside.append(aa_pairs.difference.low <= 0 <= aa_pairs.difference.high)
        widths.append((aa_pairs.difference.high - aa_pairs.difference.low) / 2)
    return inside, widths


# ── simulated runs ───────────────────────────────────────────────────────────────────────────────
SIMULATED_RUNS, SIMULATED_ROUNDS = 200, 8
SIMULATED = with_controls([Strategy("flat"), Strategy("naive"), Strategy("naive_async"), Strategy("overlap_param")])
COMPUTE_S, EXPOSED_S = 0.08, {"flat": 0.04, "naive": 0.12, "naive_async": 0.1, "overlap_param": 0.05}


def simulated(_: Rig, effort: Effort) -> list[Outcome]:
    """Runs whose exposed times are known: of one launch, of three, of five.

    A block of 2 steps scatters by 3 %, in one of ten a step takes up to 30 ms longer, rounds drift; launches scatter by
    3 %, and each strategy in a launch by 1 % more, which runs of one launch cannot show and do not have here.
    """
    runs, found = max(20, round(SIMULATED_RUNS * effort.ab)), []
    for length in (1, LAUNCHES_A_RUN, 5):
        dice = np.random.default_rng(length)
        twins, exposed = [], []
        for _ in range(runs):
            (comparison,) = analyze(_simulated(dice, length)).scenarios
            twins += [pair.difference.low <= 0 <= pair.difference.high for pair in comparison.aa_pairs]
            exposed += [
                one.exposed.low <= EXPOSED_S[one.strategy.name] <= one.exposed.high
                for one in comparison.results
                if one.exposed and one.strategy.name in EXPOSED_S and not one.strategy.again
            ]
        for words, inside in (("0 for A/A pairs", twins), ("what strategies expose", exposed)):
            found.append(
                Outcome(
                    f"{runs} simulated runs of {length} launch{'es' if length > 1 else ''}: intervals hold {words}",
                    "≥ 95 %",
                    counted(sum(inside), len(inside)),
                    sum(inside) >= 0.95 * len(inside),
                )
            )
    return found


def _simulated(dice: np.random.Generator, launches: int) -> Run:
    """Of two ranks that take equally long; all that a strategy exposes is its tail."""
    scenario, steps, samples = _scenario("nano", 2, 2, 8), 2, []
    cases = {strategy: case_of(scenario, strategy) for strategy in SIMULATED}
    for launch in range(1, launches + 1):
        several = launches > 1
        whole = np.exp(dice.normal(0, 0.03)) if several else 1.0
        own = {strategy: np.exp(dice.normal(0, 0.01)) if several else 1.0 for strategy in SIMULATED}
        step_s: dict[Strategy, list[float]] = {strategy: [] for strategy in SIMULATED}
        for _ in range(SIMULATED_ROUNDS):  # round by round: the order of the dice is part of the protocol
            drift = np.exp(dice.normal(0, 0.03))
            for strategy, times in step_s.items():
                computing = COMPUTE_S * whole * own[strategy]
                time_s = (computing + EXPOSED_S.get(strategy.name, 0.0)) * drift * np.exp(dice.normal(0, 0.03))
                times.append(time_s + dice.uniform(0, 0.03) * (dice.random() < 0.1))
        for strategy, case in cases.items():
            walls = np.repeat((steps * np.array(step_s[strategy]) * 1e9).astype(np.int64)[:, None], 2, axis=1)
            parts = np.zeros((SIMULATED_ROUNDS, 2, len(PARTS) + steps), dtype=np.int64)
            timed = Timings(np.zeros_like(walls), walls, None, steps, (1,) * SIMULATED_ROUNDS, inner_duration_ns=parts)
            samples.append(Samples(case, launch, 0.0, timed=timed))
    order = tuple(Launch("gloo", 2, number, tuple(cases.values())) for number in range(1, launches + 1))
    settings = Settings(Sampling(0, 0.0, None, 0.05, 1.0, 1), 1, 60.0, 0, rounds=SIMULATED_ROUNDS)
    return Run(Path("simulated"), {}, Plan("simulated", order, (), launches, settings), [], samples)


def _scenario(model: str, ranks: int, batch: int, sequence: int) -> Scenario:
    return Scenario(
        Case(
            "training_step", "gloo", ranks, "float32", 0, metric="pipelined", depth=2, model=model, batch=batch,
            sequence=sequence, optimizer="sgd", threads=1,
        )
    )  # fmt: skip


def planted_wait(rig: Rig, effort: Effort) -> list[Outcome]:
    """Two synchronisers that a user brings along, one of which waits for nothing after its call."""
    run = rig.measure(SHORT.format(launches=max(3, effort.splits), rounds=10, strategies=PLANTED))
    (comparison,) = analyze(run).scenarios
    exposed = {one.label.split(":")[1]: one.exposed for one in comparison.results if ":" in one.label}
    late, right = exposed["Late"], exposed["OneCall"]
    found = late.value - right.value
    return [
        Outcome(
            f"an exposed wait of {WAIT_S / MS:g} ms, planted into a synchroniser, in {run.plan.launches} launches",
            "within 10 %",
            f"{found / MS:.2f} ms ({late.value / MS:.2f} [{late.low / MS:.2f} – {late.high / MS:.2f}] less "
            f"{right.value / MS:.2f} [{right.low / MS:.2f} – {right.high / MS:.2f}] ms)",
            abs(found / WAIT_S - 1) <= 0.1,
        )
    ]


# ── what stamps cost ─────────────────────────────────────────────────────────────────────────────
class _Free:
    """A wire on which nothing takes time, so that what remains is computing and our own work."""

    world_size = 1
    stamped = False

    def __init__(self):
        self.sent = []

    def all_reduce(self, tensor):
        return self

    def wait(self): ...


def stamps(rig: Rig, effort: Effort) -> list[Outcome]:
    """A stamped step of naive, which has most stamps, beside the same step written by hand; in one process."""
    with tempfile.NamedTemporaryFile() as file:
        dist.init_process_group("gloo", init_method=f"file://{file.name}", rank=0, world_size=1)
        try:
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            return [_stamps(model, max(40, round(pairs * effort.blocks))) for model, pairs in SIZES]
        finally:
            torch.set_num_threads(threads)
            dist.destroy_process_group()


# Model, and pairs of steps.
SIZES = (("micro", 1500), ("tiny", 600))


def _stamps(model: str, pairs: int) -> Outcome:
    scenario = _scenario(model, 1, 2, 64)
    place, transport = RankInfo(0, 1, torch.device("cpu"), ProcessGroupTransport(1)), _Free()
    stamped = runners.build(Strategy("naive"), scenario, place, transport, range(1), 0)
    made = models.build(scenario, place.device, 0)
    kind, settings = runners.OPTIMIZERS["sgd"]
    optimizer = kind(made.module.parameters(), **settings)
    parameters = list(made.module.parameters())
    batch = made.batch(torch.Generator().manual_seed(0), scenario.case.batch)

    def by_hand():
        optimizer.zero_grad()
        made.module(*batch).backward()
        for parameter in parameters:
            transport.all_reduce(parameter.grad).wait()
            parameter.grad.div_(transport.world_size)
        optimizer.step()

    def by_us():
        stamped.step(batch)
        stamped.parts()

    ratios, controls = [], []
    gc.collect()
    gc.disable()
    for pair in range(pairs + 5):
        order = [by_hand, by_us, by_hand] if pair % 2 else [by_us, by_hand, by_hand]
        times = [_timed(step) for step in order]
        ours = times[order.index(by_us)]
        without_interval = [time_s for step, time_s in zip(order, times, strict=True) if step is by_hand]
        if pair >= 5:
            ratios.append(np.log(ours / np.sqrt(without_interval[0] * without_interval[1])))
            controls.append(np.log(without_interval[1] / without_interval[0]))
    gc.enable()
    ratio, control = (intervals.median_interval(np.array(values)) for values in (ratios, controls))
    return Outcome(
        f"a stamped step / the same step by hand, {model}, {pairs} pairs",
        "≤ 1.01",
        f"{np.exp(ratio.value):.4f} [{np.exp(ratio.low):.4f} – {np.exp(ratio.high):.4f}]; by hand / by hand "
        f"{np.exp(control.value):.4f} [{np.exp(control.low):.4f} – {np.exp(control.high):.4f}]",
        bool(np.exp(ratio.value) <= 1.01),
    )


def _timed(step):
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


# ── the whole ────────────────────────────────────────────────────────────────────────────────────
def duration(rig: Rig, effort: Effort) -> list[Outcome]:
    """What `make bench-ddp` runs, once it is installed."""
    claim, target = "`make bench-ddp`, all of it", f"< {LIMIT_S // 60} min"
    if effort.name == "quick":
        return [Outcome(claim, target, "takes too long for a quick proof", None)]
    began = time.monotonic()
    codes = []
    runs = (["run", str(ROOT / f"configs/{config}.yaml")] for config in ("ddp-buckets", "ddp"))
    for arguments in (*runs, ["advise", "--from", "ddp"]):
        command = [sys.executable, str(ROOT / "run_bench.py"), *arguments]
        codes.append(subprocess.run(command, cwd=rig.folder, capture_output=True, check=False).returncode)
    took = time.monotonic() - began
    said = format_seconds(took) + ("" if not any(codes) else f", exit codes {codes}")
    return [Outcome(claim, target, said, took < LIMIT_S and not any(codes))]
