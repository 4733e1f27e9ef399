"""One strategy in one rank: its own copy of the model, its optimizer, its synchroniser; and a step of them, stamped.

In: a Strategy, a Scenario, a wire. Out: a `Runner`, whose `step` leaves marks that `parts` turns into nanoseconds.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from bench.training.rank import models
from bench.training.rank.stopwatch import Stopwatch
from bench.training.rank.synchronisers import AfterBackward, DuringBackward, Nothing, Synchroniser, buckets_of
from bench.training.rank.torch_synchronisers import Ddp, Fsdp2, Zero1, sharded_optimizer
from bench.training.rank.transport import Transport
from bench.training.records import PARTS, REFERENCE, Scenario, Strategy

# Small enough that every preset's loss falls from its first weights on, which the invariants need.
OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9}),
    "adamw": (torch.optim.AdamW, {"lr": 1e-3}),
}
Batch = tuple[torch.Tensor, ...]


@dataclass(slots=True)
class RankInfo:
    """What building a runner needs of the group: who this rank is, and where it computes."""

    rank: int
    world_size: int
    device: torch.device


@dataclass(slots=True)
class Runner:
    """One strategy, ready to train. ready: marks of gradients as they become ready, by number, where `traced`."""

    strategy: Strategy
    sync: Synchroniser
    optimizer: torch.optim.Optimizer
    parameters: list[torch.Tensor]
    watch: Stopwatch
    transport: Transport
    draw: Callable[[torch.Generator, int], Batch]
    buckets: list[list[int]] | None = None
    ready: dict[int, Any] = field(default_factory=dict)
    marks: list[Any] = field(default_factory=list)
    loss: Any = None

    def step(self, batch: Batch) -> None:
        """One training step; `parts` tells where its time went."""
        self.ready.clear()
        self.watch.clear()
        mark = self.watch.mark
        begin = mark()
        self.optimizer.zero_grad()
        count = self.strategy.accumulate
        forward = begin
        for number, micro in enumerate(divided(batch, count)):
            with self.sync.micro(number == count - 1):
                loss = self.sync.module(*micro)
                forward = mark()
                (loss if count == 1 else loss / count).backward()
        backward = max(self.ready.values(), default=None) if self.watch.on_host else None
        last = backward if backward is not None else mark()
        self.sync.finish()
        usable = mark()
        self.optimizer.step()
        self.sync.updated()
        self.loss = loss.detach()
        self.marks = [begin, forward, last, usable, mark()]

    def parts(self) -> dict[str, int]:
        """Nanoseconds of each of PARTS in the last step."""
        begin, forward, last, usable, end = self.marks
        between = self.watch.between
        packs = self.watch.clear()
        if not self.watch.on_host:
            packs = [(between(begin, a), between(begin, b)) for a, b in packs]
        ready = last if self.watch.on_host else between(begin, last)
        inside = sum(min(b, ready) - a for a, b in packs if a < ready)
        packed = sum(b - a for a, b in packs)
        times = (
            between(begin, forward), between(forward, last) - inside, packed,
            between(last, usable) - (packed - inside), between(usable, end),
        )  # fmt: skip
        return dict(zip(PARTS, times, strict=True))


def divided(batch: Batch, count: int) -> list[Batch]:
    """So many equal micro-batches."""
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
) -> Runner:
    """A fresh copy of the model under this strategy; all ranks begin with rank 0's weights.

    order: numbers of the parameters as their gradients become ready. traced: stamp every gradient, not only the last,
    and see torch's own calls by a hook. Ranks draw different weights first, so that a forgotten broadcast shows.
    """
    made = models.build(scenario, place.device, seed + place.rank)
    module, watch = made.module, Stopwatch(place.device)
    parameters = [p for p in module.parameters() if p.requires_grad]
    ready: dict[int, Any] = {}
    if strategy.name != "fsdp2":
        for number in range(len(parameters)) if traced else order[-1:]:
            parameters[number].register_post_accumulate_grad_hook(_stamp(number, ready, watch))
    # torch's DistributedDataParallel sees to it by itself: that it does is one of the invariants.
    own = strategy.name not in {"ddp", "zero_redundancy"} and strategy.imported is None
    if own and scenario.shape is None:
        for tensor in module.state_dict().values():
            dist.broadcast(tensor, 0)
    sync, buckets = _synchroniser(strategy, module, place, transport, watch, order, traced)
    optimizer = _optimizer(strategy, scenario.optimizer, sync)
    if strategy.name == "fsdp2":
        parameters = list(sync.module.parameters())
    return Runner(strategy, sync, optimizer, parameters, watch, transport, made.batch, buckets, ready)


def _stamp(number: int, ready: dict[int, Any], watch: Stopwatch) -> Callable[[torch.Tensor], None]:
    def stamp(_: torch.Tensor) -> None:
        ready[number] = watch.mark()

    return stamp


def _synchroniser(
    strategy: Strategy,
    module: Any,
    place: RankInfo,
    transport: Transport,
    watch: Stopwatch,
    order: Sequence[int],
    traced: bool,
) -> tuple[Synchroniser, list[list[int]] | None]:
    if strategy.imported is not None:
        return _Users(models.imported(strategy.imported)(module, place.world_size), module), None
    match strategy.name:
        case name if name == REFERENCE:
            return Nothing(module), []
        case "naive" | "naive_async" | "flat":
            count = sum(p.requires_grad for p in module.parameters())
            one = [list(range(count))]
            return (
                AfterBackward(module, strategy.name, transport, watch),
                one if strategy.name == "flat" else [[number] for number in range(count)],
            )
        case "overlap_param" | "overlap_bucket" | "plan":
            sizes = [p.numel() * p.element_size() for p in module.parameters() if p.requires_grad]
            buckets = buckets_of(strategy, order, sizes)
            return DuringBackward(module, buckets, transport, watch), buckets
        case "zero1":
            return Zero1(module, place.world_size, place.rank), None
        case "fsdp2":
            return Fsdp2(module, place.device, place.world_size), None
        case "ddp" | "zero_redundancy":
            return Ddp(module, strategy, transport, traced), None
    raise ValueError(f"{strategy.name} is not measured by processes of one rank each")


class _Users(Nothing):
    """A synchroniser that a user brought along: it has `finish()`, and may have `module`, `micro` and `updated`."""

    def __init__(self, theirs: Any, module: Any) -> None:
        super().__init__(getattr(theirs, "module", module))
        self.finish = theirs.finish  # type: ignore[method-assign]
        self.micro = getattr(theirs, "micro", lambda last: nullcontext())  # type: ignore[method-assign]
        self.updated = getattr(theirs, "updated", self.updated)  # type: ignore[method-assign]


def _optimizer(strategy: Strategy, name: str, sync: Synchroniser) -> torch.optim.Optimizer:
    kind, settings = OPTIMIZERS[name]
    if isinstance(sync, Zero1):
        return kind([sync.mine], **settings)
    if strategy.name == "zero_redundancy":
        made: torch.optim.Optimizer = sharded_optimizer(sync.module, kind, settings)
        return made
    return kind(sync.module.parameters(), **settings)


def readiness(scenario: Scenario, place: RankInfo, transport: Transport, seed: int) -> list[int]:
    """Numbers of the parameters in the order in which rank 0's gradients become ready, on every rank."""
    module = models.build(scenario, place.device, seed).module
    count = sum(p.requires_grad for p in module.parameters())
    runner = build(Strategy(REFERENCE), scenario, place, transport, range(count), seed, traced=True)
    runner.step(runner.draw(torch.Generator().manual_seed(seed), scenario.batch))
    # Where marks cannot be compared yet, on a GPU, the order in which they were made is the order of the stream.
    agreed = [list(runner.ready)]
    dist.broadcast_object_list(agreed, 0)
    return agreed[0] + [number for number in range(count) if number not in agreed[0]]
