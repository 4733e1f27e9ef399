"""Check each strategy before it is timed: the invariants of docs/training.md except I8.

In: a strategy in its scenario, on every rank. Out: an `InvariantCheck` for each invariant. Every rank must call the
functions in the same order, because they gather values from all ranks. I2 and I3 train the nano preset in place of any
other preset or shape, in equally many buckets; I2 in float64 and float32. The analysis of a run checks I8.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from collbench.model.records import InvariantCheck
from collbench.packages.training.catalog.equivalence import ALLOWED
from collbench.packages.training.catalog.presets import find
from collbench.packages.training.catalog.strategies import kind
from collbench.packages.training.planning.buckets import expected_calls, in_as_many
from collbench.packages.training.rank import models, synchronisers
from collbench.packages.training.rank import runner as runners
from collbench.packages.training.rank.runner import Gather, Runner
from collbench.packages.training.rank.transport import RankInfo
from collbench.packages.training.synchronisation import REFERENCE, Scenario, Strategy, label, options_of

# Steps before parameters are compared, all on one batch: unless the loss falls, the comparison proves nothing.
STEPS = 4
TWIN = "nano"
# Number of calls of the twin if the library does not report the calls of the measured model.
CALLS = 3
# Bytes of each call, and its content: parameters in their order, or the library that decides. With more than two ranks,
# the rounding of a sum depends on the position of the element in its call.
Sent = tuple[tuple[int, ...], Any]


@dataclass(slots=True)
class CheckContext:
    """The state that all checks of one launch share."""

    scenario: Scenario
    place: RankInfo
    gather: Gather
    seed: int
    order: list[int]
    sizes: list[int]
    references: dict[str, tuple[torch.Tensor, bool]] = field(default_factory=dict)
    # Label of a strategy → the calls that it sends, and the hash of the parameters that I2 trained.
    finals: dict[str, tuple[Sent | None, str]] = field(default_factory=dict)
    twin_order: list[int] = field(default_factory=list)


def digest(parameters: Sequence[torch.Tensor]) -> str:
    """Return the SHA-256 of the bits of all parameters."""
    flat = _flat(parameters).contiguous().view(torch.uint8).cpu()
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()


def _flat(parameters: Sequence[Any]) -> torch.Tensor:
    full_tensors = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in parameters]
    return torch.cat([p.detach().reshape(-1) for p in full_tensors])


def check_start(context: CheckContext, runner: Runner) -> InvariantCheck:
    """Check I9: all ranks begin with the same weights, whatever weights each rank drew."""
    equal = len(set(context.gather(digest(runner.parameters)))) == 1
    return InvariantCheck(
        "I9", equal, f"{'all ranks begin with the same' if equal else 'ranks begin with different'} weights"
    )


def check_end(context: CheckContext, runner: Runner, steps: int) -> InvariantCheck:
    """Check I1: after steps on their own data, ranks have the same bits; or I4: without synchronisation they differ."""
    equal = len(set(context.gather(digest(runner.parameters)))) == 1
    text = f"after {steps} steps, ranks' parameters are {'the same bits' if equal else 'not the same'}"
    if kind(runner.strategy).synchronises:
        return InvariantCheck("I1", equal, text)
    if context.place.world_size == 1:
        return InvariantCheck("I4", None, "one rank has no other to differ from")
    return InvariantCheck("I4", not equal, text + (": no control" if equal else ", as must be without synchronisation"))


def check_calls(context: CheckContext, runner: Runner) -> tuple[list[InvariantCheck], tuple[int, ...] | None]:
    """Check I5: each gradient is sent once; and I6: the calls match the strategy, as computed independently.

    Returns also the bytes of each call; None if a library does not report them.
    """
    calls = runner.sync.calls()
    if calls is None or not kind(runner.strategy).sends:
        why = "the library does not report its calls" if calls is None else "nothing is sent"
        return [InvariantCheck(name, None, why) for name in ("I5", "I6")], calls
    want, sent = sum(context.sizes), sum(calls)
    checks = [InvariantCheck("I5", sent == want, f"{sent} bytes sent of {want} bytes of gradients")]
    wanted = expected_calls(runner.strategy, context.sizes, context.order)
    if wanted is None:
        checks.append(InvariantCheck("I6", None, "no buckets were asked for"))
    elif len(calls) == len(wanted):
        checks.append(InvariantCheck("I6", calls == wanted, f"calls of {list(calls)} bytes, wanted {list(wanted)}"))
    else:
        checks.append(InvariantCheck("I6", False, f"{len(calls)} calls, {len(wanted)} wanted"))
    return checks, calls


def check_shards(context: CheckContext, runner: Runner) -> InvariantCheck:
    """Check I12: the ranks' optimizer states add up to one copy of the parameters."""
    if not kind(runner.strategy).sharded:
        return InvariantCheck("I12", None, "the optimizer is not sharded")
    # Elements of the largest state of each parameter that this rank updates.
    own = 0
    for state in getattr(runner.optimizer, "optim", runner.optimizer).state.values():
        sizes = [(t.to_local() if hasattr(t, "to_local") else t).numel() for t in state.values() if torch.is_tensor(t)]
        own += max(sizes, default=0)
    total, want = sum(context.gather(own)), sum(p.numel() for p in runner.parameters)
    # Shares have equal lengths, so together they can exceed the parameters by up to K − 1 elements.
    return InvariantCheck(
        "I12", want <= total < want + context.place.world_size, f"states of {total} for {want} parameters"
    )


# ── training ─────────────────────────────────────────────────────────────────────────────────────
def check_training(context: CheckContext, strategy: Strategy, calls: tuple[int, ...] | None) -> list[InvariantCheck]:
    """Check I2: training follows the gathered mean of gradients and, if comparable, one process with the whole batch.

    Also keeps a hash in float32 for I3. calls: bytes of each call of the measured model.
    """
    scenario, entry, checks = context.scenario, kind(strategy), []
    if not entry.exact:
        return [InvariantCheck("I2", None, "it does not compute the exact mean")]
    for dtype, allowed in ALLOWED.items():
        # A preset or a shape is replaced by a small preset.
        model = TWIN if scenario.shape is not None or find(scenario.options.model) else scenario.options.model
        sequence = min(scenario.options.sequence, 16)
        autocast = scenario.options.autocast if dtype == "float32" else ""  # autocast excludes float64
        own = replace(scenario.options, model=model, sequence=sequence, autocast=autocast)
        twin = Scenario(replace(scenario.case, dtype=dtype, own=own))
        with _deterministic(context.place.device):
            trained, fell, sent = _train(context, strategy, twin, len(calls) if calls else CALLS)
            want, mean_fell = _reference(context, twin, strategy)
        worst = _difference(context, trained, want)
        alone, alone_text = _against_one_process(context, twin, want)
        text = f"{dtype}: the loss rose"
        stable = all(context.gather(fell and mean_fell))
        if stable:
            text = f"{dtype}: differs from the ranks' mean by {worst:.1e} of the largest parameter, allowed {allowed:g}"
            text += f"; {alone_text}"
        checks.append(InvariantCheck("I2", max(worst, alone) <= allowed if stable else None, text))
        if dtype == "float32" and not (scenario.options.clip and entry.shards_gradients):
            context.finals[label(strategy)] = (sent, digest([trained]))
    return checks


@contextmanager
def _deterministic(device: torch.device) -> Iterator[None]:
    """Return a context in which a GPU sums in one order: bits could not be compared otherwise."""
    if device.type == "cuda":
        torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        if device.type == "cuda":
            torch.use_deterministic_algorithms(False)


def _train(
    context: CheckContext, strategy: Strategy, twin: Scenario, buckets: int
) -> tuple[torch.Tensor, bool, Sent | None]:
    """Train by the strategy; return all parameters, whether the loss fell on this rank, and the calls of a step.

    buckets: number to make if gradients share calls, so that a mistake between two buckets is detected.
    """
    if not context.twin_order:
        context.twin_order = runners.ready_order(twin, context.place, context.gather, context.seed)
    if kind(strategy).in_buckets:
        module = models.build(twin, context.place.device, context.seed).module
        sizes = [parameter.nbytes for parameter in synchronisers.trained(module)]
        strategy = in_as_many(strategy, buckets, [sizes[number] for number in context.twin_order])
    runner = _built(context, strategy, twin)
    trained, fell = _trained(context, runner)
    calls, made = runner.sync.calls(), runner.sync.buckets
    held = tuple(map(tuple, made)) if made is not None else strategy.name
    return trained, fell, (calls, held) if calls else None


def _built(context: CheckContext, strategy: Strategy, twin: Scenario) -> Runner:
    return runners.build(strategy, twin, context.place, context.place.real, context.twin_order, context.seed)


def _batch(context: CheckContext, runner: Runner, rank: int) -> runners.Batch:
    """Return the batch of a rank, which is the same whichever rank draws it."""
    dice = torch.Generator().manual_seed(context.seed * 1000 + rank)
    return runner.draw(dice, context.scenario.options.batch)


def _trained(context: CheckContext, runner: Runner, batch: runners.Batch | None = None) -> tuple[torch.Tensor, bool]:
    """Train STEPS steps, on this rank's batch if none is given; return all parameters, and whether the loss fell."""
    if batch is None:
        batch = _batch(context, runner, context.place.rank)
    losses = []
    for _ in range(STEPS):
        runner.transport.sent.clear()
        # Dropout drops the same elements in each step of every strategy: otherwise the loss could rise by chance.
        torch.manual_seed(context.seed + context.place.rank)
        runner.step(batch)
        losses.append(float(runner.loss))
    return _flat(runner.parameters), losses[-1] < losses[0]


def _difference(context: CheckContext, trained: torch.Tensor, want: torch.Tensor) -> float:
    """Return the largest difference on any rank, as a share of the largest parameter."""
    return float(max(context.gather(float((trained - want).abs().max() / want.abs().max()))))


class _GatheredMean(synchronisers.Synchroniser):
    """Sets each gradient to the mean over ranks, which every rank gathers and sums in the same order."""

    def __init__(self, module: nn.Module, place: RankInfo) -> None:
        super().__init__(module)
        self._real = place.real

    def finish(self) -> None:
        for parameter in synchronisers.trained(self.module):
            if parameter.grad is not None:
                # Each is overwritten by the gradient of one rank.
                gathered = [parameter.grad.contiguous().clone() for _ in range(self._real.world_size)]
                for rank, gradient in enumerate(gathered):
                    self._real.broadcast(gradient, rank)
                parameter.grad.copy_(torch.stack(gathered).mean(dim=0))


def _reference(context: CheckContext, twin: Scenario, strategy: Strategy) -> tuple[torch.Tensor, bool]:
    """Train by the gathered mean of gradients. Returns the parameters, and whether the loss fell on this rank.

    BatchNorm and dropout act on each rank's examples as they do under the strategy.
    """
    key = f"{twin.case.dtype}/{strategy.accumulate}"
    if key not in context.references:
        runner = _built(context, Strategy(REFERENCE, accumulate=strategy.accumulate), twin)
        runner.sync = _GatheredMean(runner.sync.module, context.place)
        context.references[key] = _trained(context, runner)
    return context.references[key]


def _against_one_process(context: CheckContext, twin: Scenario, want: torch.Tensor) -> tuple[float, str]:
    """Return the difference between one process with the whole batch and `want`, also in words; 0 if not comparable.

    Not comparable if the loss of a batch is not the mean of its parts' losses, or if sums are rounded to few bits.
    """
    if options_of(twin.case).autocast:
        return 0.0, "one process is no measure: autocast rounds the sums of a whole batch in another way"
    key = f"{twin.case.dtype}/alone"
    if key not in context.references:
        alone = replace(context.place, rank=0, world_size=1)
        runner = runners.build(Strategy(REFERENCE), twin, alone, alone.real, range(0), context.seed)
        batches = [_batch(context, runner, rank) for rank in range(context.place.world_size)]
        full_batch = tuple(torch.cat(parts) for parts in zip(*batches, strict=True))
        with torch.no_grad():
            batch_loss = float(runner.sync.module(*full_batch))
            mean_loss = sum(float(runner.sync.module(*batch)) for batch in batches) / len(batches)
        adds_up = abs(batch_loss - mean_loss) <= ALLOWED[twin.case.dtype] * abs(batch_loss)
        context.references[key] = (_trained(context, runner, full_batch)[0], adds_up)
    parameters, adds_up = context.references[key]
    if not all(context.gather(adds_up)):
        return 0.0, "one process is no measure: a batch's loss is not the mean of its parts' (BatchNorm, dropout)"
    worst = _difference(context, want, parameters)
    return worst, f"that mean differs from one process with the whole batch by {worst:.1e}"


def check_bits(context: CheckContext, strategy: Strategy) -> InvariantCheck:
    """Check I3: exact strategies have the same bits at two ranks; at more ranks, strategies with the same calls."""
    own = context.finals.get(label(strategy))
    if own is None:
        clipped = context.scenario.options.clip and kind(strategy).shards_gradients
        why = "the norm of shares is rounded in another way than that of all gradients"
        return InvariantCheck("I3", None, why if clipped else "it does not compute the exact mean")
    two_ranks = context.place.world_size == 2
    peers = {
        name: final
        for name, (sent, final) in context.finals.items()
        if strategy.accumulate == 1 and "micro-batches" not in name and (two_ranks or (sent and sent == own[0]))
    }
    if len(peers) < 2:
        return InvariantCheck("I3", None, "no other strategy must have the same bits")
    # A strategy fails if it differs from the most common bits: a strategy that rounds must not make all others fail.
    common = Counter(peers.values()).most_common(1)[0][0]
    agreeing = [name for name, final in peers.items() if final == common]
    if own[1] == common:
        return InvariantCheck("I3", True, f"the same bits as {len(agreeing) - 1} of {len(peers) - 1} others")
    return InvariantCheck("I3", False, f"other bits than {', '.join(agreeing)}")
