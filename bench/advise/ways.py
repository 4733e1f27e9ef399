"""Simulate ways to synchronise gradients as the code that is printed for them communicates.

In: ready times, the gradients' names, an `AllReduceCost`, and the points of a box. Out: a `Way` for each: what it
leaves after backward, how long computing waits within forward and backward, and whether that is worth typing.

A reduce-scatter and an all-gather together take as long as an all-reduce, half of it each. Calls of one job follow
each other in the order in which they are issued. Forward is spread over the gradients as backward is. Not modelled:
casting, copying, the update, and computing that slows down while communicating. Read in the sources: torch 2.13
(`fully_shard`), Accelerate 1.15, transformers 5.23, DeepSpeed 0.19.8 (DeepSpeedZeroOptimizer), Megatron-Core 0.16.1
(_ParamAndGradBuffer).
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.advise.planner import RESOLUTION_S, Grid, exposures, exposures_of_caps
from bench.model.conclusions import WORTH, Way
from bench.planning import buckets
from bench.planning.buckets import MIB, TORCH_CAPS, BucketPlan, ReadyTimes, bucket_bytes, by_caps
from bench.planning.link_model import AllReduceCost, LinkModel
from bench.stats.intervals import Floats

# Forward multiplies once by each weight where backward does twice.
FORWARD_OF_BACKWARD = 0.5
FLOAT32_BYTES = 4
# Batches a step with no_sync.
BATCHES = 4
# Numbers that are tried for a framework's bucket size.
TRIED = 48
# Elements: DeepSpeed's reduce_bucket_size and allgather_bucket_size; Megatron-LM's bucket, larger on many ranks.
DEEPSPEED_BUCKET, MEGATRON_BUCKET, MEGATRON_A_RANK = 500_000_000, 40_000_000, 1_000_000
# A block of a model by the name of its parameters: "layers.3" of "layers.3.norm1.weight".
BLOCK = re.compile(r"(.*?\b\d+)\.")


@dataclass(frozen=True, slots=True)
class Left:
    """What a way costs a step at each point of a grid, seconds. tail: after backward. waits: of computing before."""

    tail: Floats
    waits: Floats

    @property
    def total(self) -> Floats:
        return self.tail + self.waits

    @property
    def assumed(self) -> int:
        """The point in the middle of the box, where all is as assumed."""
        return len(self.tail) // 2


def computing_s(ready_times: ReadyTimes) -> float:
    """Seconds of forward and backward together."""
    return (1 + FORWARD_OF_BACKWARD) * ready_times.ready_s[-1]


def worth_typing(mine: Floats, usual: Floats, computing_s: float) -> bool:
    """Whether a way saves WORTH of the usual step where all is as assumed, and is slower at no point of the box."""
    saved, step_s = _saved(mine, usual, computing_s)
    return saved >= WORTH * step_s and bool(np.all(mine <= usual + RESOLUTION_S))


def _saved(mine: Floats, usual: Floats, computing_s: float) -> tuple[float, float]:
    """Seconds that a way saves of the usual step, and that step, where all is as assumed."""
    middle = len(usual) // 2
    return float(usual[middle] - mine[middle]), computing_s + float(usual[middle])


def ways(
    ready_times: ReadyTimes,
    plan: BucketPlan,
    names: Sequence[str],
    link: LinkModel,
    grid: Grid,
    itemsize: int,
) -> Iterator[Way]:
    """Every way that there is code for; those of torch first, in place of DistributedDataParallel with `plan`.

    names: of all gradients by registration number, or none. itemsize: bytes of an element of a gradient. Where
    communicating takes CPU time, `fully_shard` waits for each call, and DeepSpeed and Megatron-LM do not run.
    """
    cost = link.cost
    usual = _after_backward(exposures(ready_times, plan, cost, grid))

    def way(name: str, left: Left, of: Left = usual, number: int = 0) -> Way:
        saved, step_s = _saved(left.total, of.total, computing_s(ready_times))
        at = left.assumed
        worth = worth_typing(left.total, of.total, computing_s(ready_times))
        return Way(name, number, float(left.tail[at]), float(left.waits[at]), saved / step_s, worth)

    if itemsize == FLOAT32_BYTES:
        yield way("hook", _after_backward(_exposures_halved(ready_times, plan, cost, grid)))
    yield way("no_sync", _after_backward(usual.tail / BATCHES), number=BATCHES)
    if link.cpu:
        return
    if any(BLOCK.match(name) for name in names):
        for name, reshards in (("fsdp2 kept", False), ("fsdp2", True)):
            yield way(name, fully_sharded(ready_times, names, cost, grid, reshards))

    def bucketed(name: str, plain: Left, simulated: Callable[[int], Left], standard: int) -> Way:
        """Overlapping with the framework's own bucket size, or with another where that is worth typing, too."""
        overlapped = simulated(standard)
        sizes = [size // itemsize for size in buckets.useful_caps(ready_times, TRIED)]
        tried = {size: simulated(size) for size in sizes if size}
        least = np.min([left.total for left in tried.values()], axis=0)
        size = min(tried, key=lambda size: float(np.max(tried[size].total - least)))
        if worth_typing(tried[size].total, overlapped.total, computing_s(ready_times)):
            return way(name, tried[size], plain, size)
        return way(name, overlapped, plain)

    total = ready_times.total // itemsize
    gathered = _gathered(total, itemsize, cost, grid)
    plain = deepspeed(ready_times, itemsize * DEEPSPEED_BUCKET, cost, grid, overlap=False)
    yield bucketed(
        "deepspeed",
        _plus(plain, gathered),
        lambda size: _plus(deepspeed(ready_times, itemsize * size, cost, grid), gathered),
        DEEPSPEED_BUCKET,
    )
    # Megatron-LM fills buckets in the reverse order of registration, and has float32 gradients unless told otherwise.
    in_reverse = list(ready_times.order) == sorted(ready_times.order, reverse=True)
    if itemsize == FLOAT32_BYTES and in_reverse:
        yield bucketed(
            "megatron",
            _after_backward(exposures(ready_times, (len(ready_times.nbytes),), cost, grid)),
            lambda size: _after_backward(
                exposures(ready_times, by_caps(ready_times.nbytes, (itemsize * size,)), cost, grid)
            ),
            max(MEGATRON_BUCKET, MEGATRON_A_RANK * (link.ranks or 1)),
        )


def whole_cap(ready_times: ReadyTimes, cost: AllReduceCost, grid: Grid, cap: int) -> Way | None:
    """The best cap of whole MiB, of those about `cap` bytes and of others: what Accelerate and transformers take.

    Accelerate hands on no cap that equals its own default of 25, so that torch's own default would result. None if no
    such cap is worth typing.
    """
    most, near = -(-ready_times.total // MIB), cap // MIB
    caps = {*buckets.evenly(range(1, most + 1), TRIED), *range(max(1, near - 8), near + 9)} - {TORCH_CAPS[1] // MIB}
    sizes = sorted(caps)
    left = exposures_of_caps(ready_times, cost, [MIB * size for size in sizes], grid)
    best = int(np.argmin(np.max(left - np.min(left, axis=1)[:, None], axis=0)))
    mine = left[:, best]
    usual = exposures(ready_times, buckets.torch_default(ready_times), cost, grid)
    if not worth_typing(mine, usual, computing_s(ready_times)):
        return None
    saved, step_s = _saved(mine, usual, computing_s(ready_times))
    return Way("whole cap", sizes[best], float(mine[len(mine) // 2]), 0.0, saved / step_s, worth=True)


def _after_backward(tail: Floats) -> Left:
    return Left(tail, np.zeros_like(tail))


def _plus(left: Left, seconds: Floats) -> Left:
    return replace(left, tail=left.tail + seconds)


def _exposures_halved(ready_times: ReadyTimes, plan: BucketPlan, cost: AllReduceCost, grid: Grid) -> Floats:
    """With a hook, buckets are made of the gradients as they are, and half of their bytes are sent."""
    halved = replace(ready_times, nbytes=tuple(nbytes // 2 for nbytes in ready_times.nbytes))
    return exposures(halved, plan, cost, grid)


def stacks(names: Sequence[str]) -> tuple[str, ...]:
    """The names of the lists of blocks that a model is made of: "layers" of "layers.3.norm1.weight"."""
    return tuple(dict.fromkeys(match[1].rpartition(".")[0] for name in names if (match := BLOCK.match(name))))


# ── fully_shard ──────────────────────────────────────────────────────────────────────────────────
def fully_sharded(
    ready_times: ReadyTimes, names: Sequence[str], cost: AllReduceCost, grid: Grid, reshards: bool
) -> Left:
    """`fully_shard` on each block and on the model, which keeps what is in no block.

    reshards: blocks are gathered again in backward, as by default (`reshard_after_forward`).
    In forward the root is gathered first, then block after block, at most two ahead of the one that computes. In
    backward the next block is gathered before the gradients of this one are scattered; computing waits for the
    scattering of the block before this one (one input buffer); the root's gradients are scattered last.
    """
    sizes: dict[str, int] = {}
    ready: dict[str, float] = {}
    root, before_blocks = 0, 0.0
    for number, nbytes, ready_s in zip(ready_times.order, ready_times.nbytes, ready_times.ready_s, strict=True):
        if (match := BLOCK.match(names[number])) is None:
            root += nbytes
            before_blocks = before_blocks if sizes else ready_s
        else:
            sizes[match[1]] = sizes.get(match[1], 0) + nbytes
            ready[match[1]] = ready_s
    blocks = sorted(sizes, key=lambda block: ready[block])
    ends = np.array([before_blocks, *(ready[block] for block in blocks), ready_times.ready_s[-1]])
    # Of what comes before the blocks in backward, of each block, and of what comes behind them.
    lengths = np.maximum(0.0, np.diff(ends, prepend=0.0))[:, None] * grid.backward
    half = AllReduceCost(cost.sizes, tuple(time_s / 2 for time_s in cost.times_s), cost.slope_s / 2)
    calls = grid.times(half, np.array([*(sizes[block] for block in blocks), root], dtype=float)).T
    if not root:
        calls[-1] = 0.0

    link = calls[-1]
    now = link + FORWARD_OF_BACKWARD * lengths[-1]
    started: list[Floats] = []
    for number in reversed(range(len(blocks))):
        link = np.maximum(link, started[-2] if len(started) > 1 else 0.0) + calls[number]
        now = np.maximum(now, link)
        started.append(now)
        now = now + FORWARD_OF_BACKWARD * lengths[number + 1]
    computing = np.sum(lengths, axis=0)
    waits = now + FORWARD_OF_BACKWARD * lengths[0] - FORWARD_OF_BACKWARD * computing

    now, link, scattered = lengths[0], np.zeros_like(computing), np.zeros_like(computing)
    gathered = link = calls[0] if reshards else link
    for number in range(len(blocks)):
        now = np.maximum(now, gathered)
        if reshards and number + 1 < len(blocks):
            gathered = link = link + calls[number + 1]
        now = np.maximum(now + lengths[number + 1], scattered)
        scattered = link = np.maximum(link, now) + calls[number]
    now = now + lengths[-1]
    done = np.maximum(link, now) + calls[-1]
    return Left(done - now, waits + now - computing)


# ── DeepSpeed ────────────────────────────────────────────────────────────────────────────────────
def deepspeed(ready_times: ReadyTimes, cap: int, cost: AllReduceCost, grid: Grid, overlap: bool = True) -> Left:
    """DeepSpeed's reduction of gradients in ZeRO-1; that of ZeRO-2 is the same where a step has one micro-batch.

    A bucket ends before it would exceed `cap` bytes and is sent, by an all-reduce, when the gradient comes that no
    longer fits. With overlap_comm, computing then waits for the bucket before it; without, everything is sent after
    backward. What is updated is gathered after the step; see `_gathered`.
    """
    plan = by_caps(ready_times.nbytes, (cap,), "before")
    times = grid.times(cost, np.array(bucket_bytes(ready_times, plan), dtype=float)).T
    backward = ready_times.ready_s[-1] * grid.backward
    if not overlap:
        return _after_backward(np.sum(times, axis=0))
    waited, free = np.zeros_like(backward), np.zeros_like(backward)
    for end, time_s in zip(plan, times, strict=True):
        sent = ready_times.ready_s[min(end, len(ready_times.nbytes) - 1)] * grid.backward
        waited = np.maximum(waited, free - sent)
        free = sent + waited + time_s
    return Left(free - waited - backward, waited)


def _gathered(elements: int, itemsize: int, cost: AllReduceCost, grid: Grid) -> Floats:
    """Seconds of DeepSpeed's all-gather of all parameters after a step, in calls of allgather_bucket_size elements."""
    calls = max(1, elements // DEEPSPEED_BUCKET)
    return np.asarray(grid.times(cost, np.array([elements * itemsize / calls]))[:, 0] * calls / 2)
