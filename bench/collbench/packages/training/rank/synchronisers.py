"""Synchronise gradients by our own strategies: after backward, or during it.

In: a model and a transport. Out: a synchroniser, which leaves the mean over ranks in each `grad`. Packing (hooks,
flattening, copying, dividing) is stamped by a `Stopwatch`, so that it can be distinguished from waiting. Packing after
backward while a call is in flight costs nothing and is not stamped: the step waits for that call anyway.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import nn

from collbench.packages.training.planning.buckets import BucketPlan, by_caps, by_sizes
from collbench.packages.training.rank.transport import Handle, RankInfo, SharedTensors, Transport
from collbench.packages.training.synchronisation import REFERENCE, Strategy
from collbench.rank import torch_names
from collbench.rank.device import Device, Event

# A rank waits for the other ranks here (`rank.process`).
WAITS_FOR_RANKS = True


# ── parts and interface of a synchroniser ────────────────────────────────────────────────────────
class Stopwatch:
    """Marks of instants in one rank's steps: by the host's clock on a CPU, by events of the device's stream on a GPU.

    Marking does not wait for the device; the time between marks is read after the step. Events are made during
    warm-up, and used again in each step.
    """

    def __init__(self, device: Device) -> None:
        self._device, self._events, self._used = device, list[Event](), 0
        self.on_host = not device.enqueues
        # Function that marks this instant.
        self.mark: Callable[[], Any] = time.perf_counter_ns if self.on_host else self._event
        # Stretches of copying and dividing, which do not count as waiting.
        self.packing = Stretches(self.mark)
        # Stretches of calls that a sharded optimizer makes within forward and backward; on the host only.
        self.exchanging = Stretches(self.mark)

    def _event(self) -> Event:
        if self._used == len(self._events):
            self._events.append(self._device.event())
        event = self._events[self._used]
        self._used += 1
        event.record()
        return event

    def between(self, begin: Any, end: Any) -> int:
        """Return the nanoseconds between two marks; on a GPU the stream must have passed both."""
        return int(end - begin if self.on_host else end.ns_since(begin))

    def clear(self) -> None:
        """Forget all stretches and marks."""
        self._used = 0
        self.packing.taken()
        self.exchanging.taken()


class Stretches:
    """Context whose time is recorded separately; it must not be nested.

    One object serves all uses: a generator's context takes four times as long, and naive packs once per parameter.
    """

    __slots__ = ("_mark", "_marks")

    def __init__(self, mark: Callable[[], Any]) -> None:
        self._mark = mark
        self._marks: list[Any] = []

    def __enter__(self) -> None:
        self._marks.append(self._mark())

    def __exit__(self, *_: object) -> None:
        self._marks.append(self._mark())

    def taken(self) -> list[Any]:
        """Return the marks since the last call, two for each stretch, and forget them."""
        marks, self._marks = self._marks, []
        return marks


class Build(NamedTuple):
    """The parts that a synchroniser is built from, on one rank."""

    strategy: Strategy
    module: nn.Module
    place: RankInfo
    transport: Transport
    watch: Stopwatch
    # Numbers of the parameters in the order in which their gradients become ready.
    order: Sequence[int]
    # Memory that other strategies use, too.
    shared: SharedTensors
    # True to record also the calls that torch makes itself.
    traced: bool = False


class Synchroniser:
    """The interface that a runner calls in each step. The defaults synchronise nothing."""

    # Numbers of the parameters in each call, in the order of calls. None if a library decides.
    buckets: list[list[int]] | None
    # Mark of the update of this rank's share, if the optimizer also sends the share to other ranks; else None.
    updated_at: Any = None

    def __init__(self, module: nn.Module) -> None:
        # Module that is called in the forward pass.
        self.module: Any = module
        self.buckets = []

    def micro(self, last: bool) -> Any:
        """Return the context of one micro-batch; gradients are synchronised in the last one."""
        return nullcontext()

    def finish(self) -> None:
        """Finish after backward: return when all gradients are synchronised and in place."""

    def clip(self, largest: float) -> None:
        """Scale all gradients down if their norm exceeds `largest`. Called after `finish` if gradients are clipped."""
        nn.utils.clip_grad_norm_(trained(self.module), largest)

    def updated(self) -> None:
        """Do the work that follows the optimizer's step."""

    def optimizer(self, build_with: type[torch.optim.Optimizer], settings: dict[str, Any]) -> torch.optim.Optimizer:
        """Build the optimizer, of class `build_with`, for the parameters that this rank updates."""
        return build_with(self.module.parameters(), **settings)

    def close(self) -> None:
        """Release the parameters: a hook keeps its parameter alive, and Python does not find such reference cycles."""

    def calls(self) -> tuple[int, ...] | None:
        """Return the bytes of each all-reduce of the last step; None if a library does not report them."""
        return None if self.buckets is None else ()


# Looked up once: packing is timed.
FLATTEN = torch_names.private("torch._utils", "_flatten_dense_tensors")
UNFLATTEN = torch_names.private("torch._utils", "_unflatten_dense_tensors")


# ── our own strategies ───────────────────────────────────────────────────────────────────────────
def _packing_after(handles: Sequence[Handle], at: int, watch: Stopwatch) -> AbstractContextManager[None]:
    """Stamp packing after call `at` only if the last call has completed; until then the step waits anyway.

    A device that enqueues cannot be queried now: there, packing is stamped after the wait for the last call.
    """
    over = handles[-1].is_completed() if watch.on_host else at == len(handles) - 1
    return watch.packing if over else nullcontext()


def _average(tensors: Sequence[torch.Tensor], transport: Transport, packing: AbstractContextManager[None]) -> None:
    """Average tensors over ranks in one call."""
    with packing:
        flat = FLATTEN(tensors)
    transport.all_reduce(flat).wait()
    with packing:
        flat.div_(transport.world_size)
        for tensor, mean in zip(tensors, UNFLATTEN(flat, tensors), strict=True):
            tensor.copy_(mean)


class AfterBackward(Synchroniser):
    """The strategies naive, naive_async and flat: all calls are made after backward."""

    def __init__(self, build: Build, send: Callable[["AfterBackward"], None], one_call: bool = False) -> None:
        super().__init__(build.module)
        self._parameters = trained(build.module)
        self._transport, self._watch, self._how = build.transport, build.watch, send
        numbers = list(range(len(self._parameters)))
        self.buckets = [numbers] if one_call else [[number] for number in numbers]

    def finish(self) -> None:
        self._how(self)

    def calls(self) -> tuple[int, ...]:
        return sent_by(self._transport)

    def _gradients(self) -> list[torch.Tensor]:
        return [p.grad for p in self._parameters if p.grad is not None]

    def naive(self) -> None:
        for gradient in self._gradients():
            self._transport.all_reduce(gradient).wait()
            with self._watch.packing:
                gradient.div_(self._transport.world_size)

    def naive_async(self) -> None:
        handles = [self._transport.all_reduce(gradient) for gradient in self._gradients()]
        for at, gradient in enumerate(self._gradients()):
            handles[at].wait()
            with _packing_after(handles, at, self._watch):
                gradient.div_(self._transport.world_size)

    def flat(self) -> None:
        _average(self._gradients(), self._transport, self._watch.packing)


class LocalSgd(Synchroniser):
    """The strategy local_sgd: gradients stay on their rank; after every few steps, ranks average their parameters.

    Each rank keeps its own optimizer state, such as momentum.
    """

    def __init__(self, build: Build) -> None:
        super().__init__(build.module)
        self._parameters, self._transport = trained(build.module), build.transport
        self._every, self._steps = build.strategy.every, 0

    def updated(self) -> None:
        self._steps += 1
        if not self._steps % self._every:
            _average([parameter.data for parameter in self._parameters], self._transport, nullcontext())


class DuringBackward(Synchroniser):
    """The strategies overlap_param, overlap_bucket and plan: each bucket is launched when its last gradient is ready.

    A bucket is launched after all buckets before it, so all ranks launch in one order. A bucket of one parameter is
    reduced in place, a larger bucket in a buffer. A parameter that the last micro-batch did not use is sent after
    backward: its gradient of earlier micro-batches, or zeros. Parameters on the meta device have no data to copy or
    divide. ends: divides gradients into buckets, from their bytes in the order in which they become ready.
    """

    def __init__(self, build: Build, ends: Callable[[Strategy, Sequence[int]], BucketPlan]) -> None:
        super().__init__(build.module)
        self._parameters = trained(build.module)
        self._transport, self._watch = build.transport, build.watch
        sizes = [self._parameters[number].nbytes for number in build.order]
        self._buckets = [list(build.order[a:b]) for a, b in pairwise((0, *ends(build.strategy, sizes)))]
        self.buckets = self._buckets
        self._bucket_of = {number: at for at, bucket in enumerate(self._buckets) for number in bucket}
        elements = [[self._parameters[number].numel() for number in bucket] for bucket in self._buckets]
        # Empty for a bucket of one parameter.
        self._buffers = build.shared.buckets([sum(e) if len(e) > 1 else 0 for e in elements], self._parameters[0])
        self._blank = self._parameters[0].is_meta
        # Number of a parameter → its part of a buffer.
        self._views = {
            number: view
            for bucket, buffer, sizes in zip(self._buckets, self._buffers, elements, strict=True)
            if len(bucket) > 1 and not self._blank
            for number, view in zip(bucket, buffer.split(sizes), strict=True)
        }
        self._active = False
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._ready, number))
            for number, parameter in enumerate(self._parameters)
        ]

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def micro(self, last: bool) -> Any:
        self._active = last
        self._missing = [set(bucket) for bucket in self._buckets]
        self._handles: list[Handle] = []
        return nullcontext()

    def _ready(self, number: int, _: torch.Tensor) -> None:
        if self._active:
            self._pack(number)

    def _pack(self, number: int) -> None:
        """Copy a gradient into its bucket; then launch the complete buckets, up to the first that is not complete."""
        with self._watch.packing:
            gradient, view = self._parameters[number].grad, self._views.get(number)
            if view is not None and gradient is not None:
                view.copy_(gradient.view(-1))
            elif view is not None:
                view.zero_()
            self._missing[self._bucket_of[number]].remove(number)
            while (at := len(self._handles)) < len(self._buckets) and not self._missing[at]:
                self._handles.append(self._transport.all_reduce(self._tensor(at)))

    def _tensor(self, at: int) -> torch.Tensor:
        first, *more = self._buckets[at]
        if more:
            return self._buffers[at]
        gradient = self._parameters[first].grad
        return torch.zeros_like(self._parameters[first]) if gradient is None else gradient

    def calls(self) -> tuple[int, ...]:
        return sent_by(self._transport)

    def finish(self) -> None:
        for number in set().union(*self._missing):
            self._pack(number)
        for at, handle in enumerate(self._handles):
            handle.wait()
            if self._blank:
                continue
            with _packing_after(self._handles, at, self._watch):
                self._tensor(at).div_(self._transport.world_size)
                for number in self._buckets[at]:
                    gradient = self._parameters[number].grad
                    if number in self._views and gradient is not None:
                        gradient.copy_(self._views[number].view_as(gradient))


def trained(module: nn.Module) -> list[torch.Tensor]:
    """Return the parameters that have gradients, in order of registration."""
    return [p for p in module.parameters() if p.requires_grad]


def sent_by(transport: Transport) -> tuple[int, ...]:
    """Return the bytes of each call that a transport has recorded in this step."""
    return tuple(sent.nbytes for sent in transport.sent)


def _by_cap(strategy: Strategy, nbytes: Sequence[int]) -> BucketPlan:
    assert strategy.cap_bytes is not None  # noqa: S101 - `config` sees to it
    return by_caps(nbytes, (strategy.cap_bytes,))


SYNCHRONISERS: dict[str, Callable[[Build], Synchroniser]] = {
    REFERENCE: lambda build: Synchroniser(build.module),
    "naive": lambda build: AfterBackward(build, AfterBackward.naive),
    "naive_async": lambda build: AfterBackward(build, AfterBackward.naive_async),
    "flat": lambda build: AfterBackward(build, AfterBackward.flat, one_call=True),
    "local_sgd": LocalSgd,
    "overlap_param": lambda build: DuringBackward(build, lambda _, nbytes: tuple(range(1, len(nbytes) + 1))),
    "overlap_bucket": lambda build: DuringBackward(build, _by_cap),
    "plan": lambda build: DuringBackward(build, lambda strategy, nbytes: by_sizes(nbytes, strategy.buckets)),
}
