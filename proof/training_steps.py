"""Training steps: is a planted wait recovered, what do stamps cost, and do buckets take the predicted time?"""

import gc
import tempfile
import time
from functools import partial
from itertools import combinations

import numpy as np
import torch
import torch.distributed as dist

from collbench.analyze.against import by_launch, rounds_of
from collbench.analyze.analysis import analyze
from collbench.analyze.round_series import estimate
from collbench.analyze.summaries import headlines
from collbench.model.records import Case
from collbench.packages.training.analyze import runs
from collbench.packages.training.analyze.steps import scenarios_of
from collbench.packages.training.conclusions import training_of
from collbench.packages.training.planning import buckets
from collbench.packages.training.planning import link_model as known_links
from collbench.packages.training.planning.advisor import advise
from collbench.packages.training.planning.buckets import ReadyTimes
from collbench.packages.training.planning.steps import shape_of
from collbench.packages.training.rank import runner as runners
from collbench.packages.training.rank.transport import ProcessGroupTransport, RankInfo
from collbench.packages.training.synchronisation import Scenario, StepOptions, Strategy, strategy_in
from proof import links
from proof.claim import Line, at_least, within
from proof.links import NamespacedLauncher
from proof.overhead import note, ratio_of
from proof.rig import Rig, all_reduces, steps
from proof.synchronisers import WAIT_S

MS = 1e-3
WAIT_ALLOWED, STAMPS_ALLOWED = 0.10, 0.01


def planted_wait(rig: Rig, trials: int) -> list[Line]:
    """Compare two user-defined synchronisers, one with a needless wait after its call. trials: launches."""
    two = [{"import": f"proof.synchronisers:{name}"} for name in ("OneCall", "Late")]
    run = rig.measure(steps(trials, models=["nano"], rounds=16, steps=4, max_foreign_cpu="99%", strategies=two))
    ((scenario, cases),) = scenarios_of(run).items()
    right, late = (next(case for case in cases if f":{name}" in str(strategy_in(case))) for name in ("OneCall", "Late"))
    added = estimate(by_launch(rounds_of(run, scenario.case), late, minus=right))
    bounds = (bound / WAIT_S for bound in (added.value, added.low, added.high))
    return [within(f"an exposed wait of {WAIT_S / MS:g} ms, planted into a synchroniser", *bounds, WAIT_ALLOWED)]


# ── cost of stamps ─────────────────────────────────────────────────────────────────────────────
# Model, and steps per block.
MODELS = (("micro", 25), ("tiny", 8))


class _Free:
    """A link without any delay, so that only the computation and the suite's own work take time."""

    world_size = 1
    stamped = False

    def __init__(self):
        self.sent = []

    def all_reduce(self, tensor):
        return self

    def wait(self): ...


def stamps(_: Rig, trials: int) -> list[Line]:
    """Compare a stamped step of naive, which has most stamps, with the same step of the same model by hand.

    CPU times are compared: the step neither waits nor has a second thread, and other programs disturb them less.
    """
    with tempfile.NamedTemporaryFile() as file:
        dist.init_process_group("gloo", init_method=f"file://{file.name}", rank=0, world_size=1)
        try:
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            return [_stamps(model, count, trials) for model, count in MODELS]
        finally:
            torch.set_num_threads(threads)
            dist.destroy_process_group()


def _stamps(model: str, count: int, trials: int) -> Line:
    case = Case(
        "training_step", "gloo", 1, "float32", 0, metric="pipelined", depth=2,
    own=StepOptions(model=model, batch=2, sequence=64, optimizer="sgd", threads=1))  # fmt: skip
    scenario, transport = Scenario(case), _Free()
    place = RankInfo(0, 1, torch.device("cpu"), ProcessGroupTransport(1))
    stamped = runners.build(Strategy("naive"), scenario, place, transport, range(1), 0)
    batch = stamped.draw(torch.Generator().manual_seed(0), scenario.options.batch)

    def by_hand():
        stamped.optimizer.zero_grad()
        loss = stamped.sync.module(*batch)
        loss.backward()
        for parameter in stamped.parameters:
            transport.all_reduce(parameter.grad).wait()
            parameter.grad.div_(transport.world_size)
        stamped.optimizer.step()
        return loss.detach()

    gc.collect()
    gc.disable()
    # All kinds equally often: a kind that runs less often finds less of its data in the caches.
    kinds = (partial(stamped.step, batch), partial(stamped.step, batch), by_hand, by_hand)
    rng, times_s = np.random.default_rng(6), np.zeros((trials + 1, count, len(kinds)))
    for step in np.ndindex(trials + 1, count):  # the first block is a warm-up
        for which in rng.permutation(len(kinds)):
            began = time.thread_time()
            kinds[which]()
            times_s[*step, which] = time.thread_time() - began
    gc.enable()
    ours, ours_again, hand, hand_again = np.exp(np.log(times_s[1:]).mean(axis=1)).T
    control = note("by hand / by hand", hand_again / hand)
    title = f"CPU time of a stamped step / of the same step by hand, {model}"
    return within(title, *ratio_of(np.sqrt(ours * ours_again / hand / hand_again)), STAMPS_ALLOWED, control)


# ── buckets on a link ────────────────────────────────────────────────────────────────────────────
# A link on which the gradients of tiny (27 MB at 1 Gbit/s) take about as long as this backward pass.
SHAPED, BACKWARD_S = "1gbit", 0.25
CAPS = tuple(mib * 2**20 for mib in (1, 4, 8, 16))
# Allowed deviation of a tail from its prediction; least ratio of two predictions whose order is tested.
TAIL, APART = 0.2, 1.2
# Back to back, as buckets follow each other: an isolated call also waits for the round trips of its own messages.
CURVE = all_reduces(
    metrics=["pipelined"], buffers="hot", launches=1, sizes={"from": "4KiB", "to": "32MiB", "factor": 4},
    sampling={"warmup": 1, "warmup_seconds": 0, "iterations": 4},
)  # fmt: skip


def buckets_on_a_link(rig: Rig, trials: int) -> list[Line]:
    """Measure the curve of a link between two namespaces, then plans of buckets on this link. trials: launches."""
    titles = (
        f"tail of buckets of tiny on a link shaped to {SHAPED}, within {TAIL:.0%} of what was predicted",
        "of two plans predicted to differ by a fifth, the shorter tail is the one predicted",
    )
    profile = ReadyTimes.of_shape(shape_of("tiny", BACKWARD_S, "float32"))
    with links.shaped_pair(SHAPED) as network:
        starter = NamespacedLauncher(rig.launcher, network)
        cost = known_links.measured(headlines(rig.measure(CURVE, starter)), "proof", "float32").cost
        plans = {f"cap {cap >> 20} MiB": buckets.uniform(profile, cap) for cap in CAPS}
        plans |= {
            "torch's default": buckets.torch_default(profile),
            "best cap": buckets.uniform(profile, advise(profile, cost).cap_bytes),
        }
        strategies = {"all in one": (Strategy("flat"), (len(profile.nbytes),))}
        for name, ends in plans.items():
            strategies[name] = (Strategy("plan", buckets=buckets.bucket_bytes(profile, ends)), ends)
        entries = [{s.name: {"buckets": [*s.buckets]}} if s.buckets else s.name for s, _ in strategies.values()]
        model = {"shape": "tiny", "backward": f"{BACKWARD_S}s"}
        text = steps(trials, models=[model], links=["real"], rounds=4, steps=1, strategies=entries)
        run = rig.measure(text, starter)
    (comparison,) = training_of(analyze(run)).scenarios
    verified = runs.verified(strategies, profile, cost, comparison)
    off = [plan.tail_s / plan.predicted_s - 1 for plan in verified]
    apart = [pair for pair in combinations(verified, 2) if _ratio(*(plan.predicted_s for plan in pair)) > APART]
    same_order = sum((a.predicted_s < b.predicted_s) == (a.tail_s < b.tail_s) for a, b in apart)
    note = "; " + ", ".join(f"{plan.name} {deviation:+.0%}" for plan, deviation in zip(verified, off, strict=True))
    return [
        at_least(titles[0], sum(abs(deviation) <= TAIL for deviation in off), len(off), 1.0, note),
        at_least(titles[1], same_order, len(apart), 1.0),
    ]


def _ratio(a: float, b: float) -> float:
    return max(a, b) / min(a, b)
