"""Build one strategy on one rank (copy of the model, optimizer, synchroniser), and run and stamp its steps.

In: a Strategy, a Scenario, a transport. Out: a `Runner`, whose `step` leaves marks that `parts` turns into nanoseconds.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from collbench.packages.training.catalog.strategies import kind
from collbench.packages.training.rank import models, synchronisers, torch_synchronisers
from collbench.packages.training.rank.synchronisers import Build, Stopwatch, Synchroniser, trained
from collbench.packages.training.rank.transport import RankInfo, SharedTensors, Transport
from collbench.packages.training.synchronisation import PARTS, REFERENCE, Scenario, Strategy
from collbench.rank.device import device_of

# Learning rates so small that every preset's loss falls from the first step on, which I2 needs.
OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9}),
    "adamw": (torch.optim.AdamW, {"lr": 1e-3}),
}
Batch = tuple[torch.Tensor, ...]
# Function that gives every rank the values of all ranks (`Group.gather`).
Gather = Callable[[Any], list[Any]]
SYNCHRONISERS = synchronisers.SYNCHRONISERS | torch_synchronisers.SYNCHRONISERS


@dataclass(slots=True)
class Runner:
    """One strategy, ready to train."""

    strategy: Strategy
    sync: Synchroniser
    optimizer: torch.optim.Optimizer
    parameters: list[torch.Tensor]
    # Largest norm of all gradients; 0 for any.
    clip: float
    # Function that makes the context of each forward.
    cast: Callable[[], AbstractContextManager[Any]]
    watch: Stopwatch
    transport: Transport
    draw: Callable[[torch.Generator, int], Batch]
    # Number of a gradient → mark at which it was ready; all gradients if traced, else the last one.
    ready: dict[int, Any]
    # Marks of the last step: at its beginning, at the end of each of PARTS except pack, around packing, and around
    # calls within forward and backward.
    marks: tuple[Any, ...] = ()
    loss: Any = None

    def step(self, batch: Batch) -> None:
        """Make one training step; `parts` returns the time of its parts, from `marks`."""
        self.ready.clear()
        self.watch.clear()
        mark = self.watch.mark
        begin = mark()
        self.optimizer.zero_grad()
        count = self.strategy.accumulate
        forward = begin
        for number, micro in enumerate(divided(batch, count)):
            with self.sync.micro(number == count - 1):
                with self.cast():
                    loss = self.sync.module(*micro)
                forward = mark()
                (loss if count == 1 else loss / count).backward()
        # A mark after `backward()` would be too late: torch's DDP has then let the stream wait for its calls. On a
        # device, marks cannot be compared, but the stream passes them in the order in which they were made.
        marks = [*self.ready.values()]
        last = (max(marks) if self.watch.on_host else marks[-1]) if marks else mark()
        self.sync.finish()
        usable = clipped = mark()
        if self.clip:
            self.sync.clip(self.clip)
            clipped = mark()
        self.optimizer.step()
        updated = mark() if self.sync.updated_at is None else self.sync.updated_at
        self.sync.updated()
        self.loss = loss.detach()
        around = (self.watch.packing.taken(), self.watch.exchanging.taken())
        self.marks = (begin, forward, last, usable, clipped, updated, mark(), *around)

    def parts(self, marks: tuple[Any, ...]) -> dict[str, int]:
        """Return the nanoseconds of each of PARTS in a step that left these marks."""
        begin, forward, last, usable, clipped, updated, end, *around = marks
        between = self.watch.between
        packs, exchanges = (list(zip(flat[::2], flat[1::2], strict=True)) for flat in around)
        if not self.watch.on_host:
            packs = [(between(begin, a), between(begin, b)) for a, b in packs]
        ready = last if self.watch.on_host else between(begin, last)
        inside = sum(min(b, ready) - a for a, b in packs if a < ready)
        packed = sum(b - a for a, b in packs)
        exchanged = sum(b - a for a, b in exchanges)
        early = sum(b - a for a, b in exchanges if b <= forward)
        times = (
            between(begin, forward) - early, between(forward, last) - inside - (exchanged - early), packed,
            between(last, usable) - (packed - inside), between(usable, clipped), between(clipped, updated),
            between(updated, end) + exchanged,
        )  # fmt: skip
        return dict(zip(PARTS, times, strict=True))


def divided(batch: Batch, count: int) -> list[Batch]:
    """Divide a batch into `count` equal micro-batches."""
    if count == 1:
        return [batch]
    return list(zip(*(tensor.chunk(count) for tensor in batch), strict=True))


def build(
    strategy: Strategy,
    scenario: Scenario,
    place: RankInfo,
    transport: Transport,
    order: Sequence[int],
    seed: int,
    traced: bool = False,
    shared: SharedTensors | None = None,
) -> Runner:
    """Build the runner of a strategy, with newly drawn weights; all ranks begin with the weights of rank 0.

    Ranks first draw different weights, so that a missing broadcast is detected. order: numbers of the parameters in the
    order in which their gradients become ready. traced: stamp every gradient, not only the last, and record torch's own
    calls by a communication hook. shared: memory that strategies use in turn; without it, the runner has its own.
    """
    model, entry = models.build(scenario, place.device, seed + place.rank), kind(strategy)
    module, watch = model.module, Stopwatch(device_of(place.device))
    memory = SharedTensors() if shared is None else shared
    if not entry.shards_gradients:
        memory.adopt(module)
    parameters = trained(module)
    ready: dict[int, Any] = {}
    if not entry.shards_parameters:
        for number in range(len(parameters)) if traced else order[-1:]:
            parameters[number].register_post_accumulate_grad_hook(partial(_stamp, ready, watch, number))
    for tensor in model.examples:  # `build()` may draw them, and ranks are seeded differently
        place.real.broadcast(tensor)
    if not entry.broadcasts and scenario.shape is None:
        for tensor in module.state_dict().values():
            place.real.broadcast(tensor)
    ingredients = Build(strategy, module, place, transport, watch, order, memory, traced)
    sync = _Users(ingredients) if strategy.imported is not None else SYNCHRONISERS[strategy.name](ingredients)
    optimizer = sync.optimizer(*OPTIMIZERS[scenario.options.optimizer])
    if entry.shards_parameters:
        parameters = list(sync.module.parameters())
    lower = scenario.options.autocast
    clip = 0.0 if scenario.shape is not None else scenario.options.clip  # a shape has no gradients
    cast = partial(torch.autocast, place.device.type, getattr(torch, lower)) if lower else nullcontext
    return Runner(strategy, sync, optimizer, parameters, clip, cast, watch, transport, model.batch, ready)


def _stamp(ready: dict[int, Any], watch: Stopwatch, number: int, _: torch.Tensor) -> None:
    ready[number] = watch.mark()


class _Users(Synchroniser):
    """A synchroniser of the user: it has `finish()`, and may have `module`, `micro` and `updated`."""

    def __init__(self, build: Build) -> None:
        users = models.imported(str(build.strategy.imported))(build.module, build.place.world_size)
        super().__init__(getattr(users, "module", build.module))
        self.buckets = None
        self.finish = users.finish  # type: ignore[method-assign]
        self.micro = getattr(users, "micro", lambda last: nullcontext())  # type: ignore[method-assign]
        self.updated = getattr(users, "updated", self.updated)  # type: ignore[method-assign]


def ready_order(scenario: Scenario, place: RankInfo, gather: Gather, seed: int) -> list[int]:
    """Return the numbers of the parameters, by when their gradients become ready on rank 0; equal on every rank.

    gather: gives every rank the values of all ranks.
    """
    module = models.build(scenario, place.device, seed).module
    count = sum(p.requires_grad for p in module.parameters())
    traced = build(Strategy(REFERENCE), scenario, place, place.real, range(count), seed, traced=True)
    traced.step(traced.draw(torch.Generator().manual_seed(seed), scenario.options.batch))
    # The order in which marks were made: on a GPU marks cannot be compared yet, but were made in the stream's order.
    agreed: list[int] = gather(list(traced.ready))[0]
    return agreed + [number for number in range(count) if number not in agreed]
