"""Steps of training: is a planted wait found, what do stamps cost, and do buckets take the time that was predicted?"""

import gc
import json
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import combinations

import numpy as np
import torch
import torch.distributed as dist

from bench.analyze.analysis import analyze
from bench.analyze.summaries import headlines
from bench.model.records import Case
from bench.packages.training.analyze import runs
from bench.packages.training.analyze.steps import by_launch, estimate, rounds_of, scenarios_of
from bench.packages.training.conclusions import training_of
from bench.packages.training.planning import buckets
from bench.packages.training.planning import link_model as known_links
from bench.packages.training.planning.advisor import advise
from bench.packages.training.planning.buckets import ReadyTimes
from bench.packages.training.planning.steps import shape_of
from bench.packages.training.rank import models
from bench.packages.training.rank import runner as runners
from bench.packages.training.rank.transport import ProcessGroupTransport, RankInfo
from bench.packages.training.synchronisation import Scenario, StepOptions, Strategy, strategy_in
from proof import links
from proof.claim import Line, at_least, not_tried, within
from proof.links import NamespacedLauncher
from proof.overhead import ratio_of
from proof.rig import Rig
from proof.synchronisers import WAIT_S

MS = 1e-3
WAIT = """
backends: [gloo]
world_sizes: [2]
launches: {launches}
training:
  models: [nano]
  batch: 1
  rounds: 16
  steps: 4
  max_foreign_cpu: 99%
  strategies: [{{import: proof.synchronisers:OneCall}}, {{import: proof.synchronisers:Late}}]
"""
WAIT_ALLOWED, STAMPS_ALLOWED = 0.10, 0.01


def planted_wait(rig: Rig, trials: int) -> list[Line]:
    """Two synchronisers that a user brings along, one of which waits for nothing after its call. trials: launches."""
    run = rig.measure(WAIT.format(launches=trials))
    ((scenario, cases),) = scenarios_of(run).items()
    right, late = (next(case for case in cases if f":{name}" in str(strategy_in(case))) for name in ("OneCall", "Late"))
    added = estimate(by_launch(rounds_of(run, scenario), late, minus=right))
    bounds = (bound / WAIT_S for bound in (added.value, added.low, added.high))
    return [within(f"an exposed wait of {WAIT_S / MS:g} ms, planted into a synchroniser", *bounds, WAIT_ALLOWED)]


# ── what stamps cost ─────────────────────────────────────────────────────────────────────────────
# Model, and steps in a block.
MODELS = (("micro", 25), ("tiny", 8))


class _Free:
    """A wire on which nothing takes time, so that what remains is computing and our own work."""

    world_size = 1
    stamped = False

    def __init__(self):
        self.sent = []

    def all_reduce(self, tensor):
        return self

    def wait(self): ...


def stamps(_: Rig, trials: int) -> list[Line]:
    """A stamped step of naive, which has most stamps, beside the same step written by hand; in one process."""
    with tempfile.NamedTemporaryFile() as file:
        dist.init_process_group("gloo", init_method=f"file://{file.name}", rank=0, world_size=1)
        try:
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            return [_stamps(model, steps, trials) for model, steps in MODELS]
        finally:
            torch.set_num_threads(threads)
            dist.destroy_process_group()


def _stamps(model: str, steps: int, trials: int) -> Line:
    case = Case(
        "training_step", "gloo", 1, "float32", 0, metric="pipelined", depth=2,
    own=StepOptions(model=model, batch=2, sequence=64, optimizer="sgd", threads=1))  # fmt: skip
    scenario, transport = Scenario(case), _Free()
    place = RankInfo(0, 1, torch.device("cpu"), ProcessGroupTransport(1))
    stamped = runners.build(Strategy("naive"), scenario, place, transport, range(1), 0)
    made = models.build(scenario, place.device, 0)
    kind, settings = runners.OPTIMIZERS["sgd"]
    optimizer = kind(made.module.parameters(), **settings)
    parameters = list(made.module.parameters())
    batch = made.batch(torch.Generator().manual_seed(0), scenario.options.batch)

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

    gc.collect()
    gc.disable()
    # Each equally often: what runs less often finds less of its data in the caches.
    kinds = (by_us, by_us, by_hand, by_hand)
    rng, sums = np.random.default_rng(6), np.zeros((trials + 1, len(kinds)))
    for block in range(trials + 1):  # the first one is warm-up
        for _ in range(steps):
            for which in rng.permutation(len(kinds)):
                sums[block, which] += _timed(kinds[which])
    gc.enable()
    ours, ours_again, hand, hand_again = sums[1:].T
    control = ratio_of(hand_again / hand)
    beside = "; by hand / by hand {:+.1%} [{:+.1%} to {:+.1%}]".format(*(bound - 1 for bound in control))
    says = f"a stamped step / the same step by hand, {model}"
    return within(says, *ratio_of(np.sqrt(ours * ours_again / hand / hand_again)), STAMPS_ALLOWED, beside)


def _timed(step: Callable[[], None]) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


# ── buckets on a link ────────────────────────────────────────────────────────────────────────────
# A link on which tiny's gradients take about as long as this backward: 27 MB at 1 Gbit/s.
SHAPED, BACKWARD_S = "1gbit", 0.25
CAPS = tuple(mib * 2**20 for mib in (1, 4, 8, 16))
# How far a tail may be from what was predicted; by how much predictions must differ to have an order.
TAIL, APART = 0.2, 1.2
# Back to back, as buckets follow each other: a call alone also waits for its own messages' ways there and back.
CURVE = """
backends: [gloo]
world_sizes: [2]
operations: [all_reduce]
metrics: [pipelined]
buffers: hot
launches: 1
sizes: {from: 4KiB, to: 32MiB, factor: 4}
sampling: {warmup: 1, warmup_seconds: 0, iterations: 4}
timeout: 60s
"""
STEPS = """
backends: [gloo]
world_sizes: [2]
launches: {launches}
training:
  models: [{{shape: tiny, backward: {backward}s}}]
  links: [real]
  batch: 1
  rounds: 4
  steps: 1
  strategies: {strategies}
"""


def buckets_on_a_link(rig: Rig, trials: int) -> list[Line]:
    """Two namespaces and a cable: the link's own curve is measured first, then plans on it. trials: launches."""
    says = (
        f"tail of buckets of tiny on a link shaped to {SHAPED}, within {TAIL:.0%} of what was predicted",
        "of two plans predicted to differ by a fifth, the shorter tail is the one predicted",
    )
    if reason := links.unsupported():
        return not_tried(reason, *says)
    profile = ReadyTimes.of_shape(shape_of("tiny", BACKWARD_S, "float32"))
    with links.shaped_pair(SHAPED) as network:
        starter = NamespacedLauncher(rig.launcher, network)
        cost = known_links.measured(headlines(rig.measure(CURVE, starter)), "proof", "float32").cost
        plans = {f"cap {cap >> 20} MiB": buckets.uniform(profile, cap) for cap in CAPS}
        plans |= {
            "torch's default": buckets.torch_default(profile),
            "best cap": buckets.uniform(profile, advise(profile, cost).cap_bytes),
        }
        asked = {"all in one": (Strategy("flat"), (len(profile.nbytes),))}
        for name, ends in plans.items():
            asked[name] = (Strategy("plan", buckets=buckets.bucket_bytes(profile, ends)), ends)
        run = rig.measure(_steps(trials, (strategy for strategy, _ in asked.values())), starter)
    (comparison,) = training_of(analyze(run)).scenarios
    found = runs.verified(asked, profile, cost, comparison)
    off = [plan.tail_s / plan.predicted_s - 1 for plan in found]
    apart = [pair for pair in combinations(found, 2) if _ratio(*(plan.predicted_s for plan in pair)) > APART]
    alike = sum((a.predicted_s < b.predicted_s) == (a.tail_s < b.tail_s) for a, b in apart)
    told = "; " + ", ".join(f"{plan.name} {one:+.0%}" for plan, one in zip(found, off, strict=True))
    return [
        at_least(says[0], sum(abs(one) <= TAIL for one in off), len(off), 1.0, told),
        at_least(says[1], alike, len(apart), 1.0),
    ]


def _ratio(a: float, b: float) -> float:
    return max(a, b) / min(a, b)


def _steps(launches: int, strategies: Iterable[Strategy]) -> str:
    """A configuration; JSON is YAML."""
    asked = [{one.name: {"buckets": list(one.buckets)}} if one.buckets else one.name for one in strategies]
    return STEPS.format(launches=launches, backward=BACKWARD_S, strategies=json.dumps(asked))
