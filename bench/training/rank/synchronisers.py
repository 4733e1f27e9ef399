"""Our own ways to synchronise gradients. One class for those that wait for backward, one for those that do not.

In: the model's parameters, a wire. A synchroniser leaves in each `grad` the mean over ranks. What is not waiting is
packing: hooks, flattening, copying, dividing; it is stamped, so that it can be told from waiting. What is packed after
backward while a call is still under way costs nothing and is not stamped: the step waits for that call anyway.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import nn

from bench.training.rank.stopwatch import Stopwatch
from bench.training.rank.transport import Handle, Transport
from bench.training.records import Strategy


class Synchroniser(Protocol):
    """What a runner calls in each step.

    module: what is called in the forward pass. bucketed: parameters of each call, in the order of calls; None where
    a library decides.
    """

    module: Any

    def micro(self, last: bool) -> Any:
        """Context of one micro-batch; gradients are synchronised with the last one."""

    def finish(self) -> None:
        """After backward: return when all gradients are synchronised and in place."""

    def updated(self) -> None:
        """After the optimizer's step."""


def _packing_after(last: Handle, watch: Stopwatch) -> AbstractContextManager[None]:
    """Packing is a part of its own once the last call is through."""
    return watch.packing() if last.is_completed() else nullcontext()


class Nothing:
    """No synchronisation."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def micro(self, last: bool) -> Any:
        return nullcontext()

    def finish(self) -> None: ...

    def updated(self) -> None: ...


class AfterBackward(Nothing):
    """naive, naive_async and flat: nothing happens before backward has ended."""

    def __init__(self, module: nn.Module, how: str, transport: Transport, watch: Stopwatch) -> None:
        super().__init__(module)
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._transport, self._watch = transport, watch
        self.finish = {"naive": self._naive, "naive_async": self._naive_async, "flat": self._flat}[how]  # type: ignore[method-assign]

    def _gradients(self) -> list[torch.Tensor]:
        return [p.grad for p in self._parameters if p.grad is not None]

    def _naive(self) -> None:
        for gradient in self._gradients():
            self._transport.all_reduce(gradient).wait()
            with self._watch.packing():
                gradient.div_(self._transport.world_size)

    def _naive_async(self) -> None:
        handles = [self._transport.all_reduce(gradient) for gradient in self._gradients()]
        for gradient, handle in zip(self._gradients(), handles, strict=True):
            handle.wait()
            with _packing_after(handles[-1], self._watch):
                gradient.div_(self._transport.world_size)

    def _flat(self) -> None:
        gradients = self._gradients()
        with self._watch.packing():
            flat = torch._utils._flatten_dense_tensors(gradients)
        self._transport.all_reduce(flat).wait()
        with self._watch.packing():
            flat.div_(self._transport.world_size)
            for gradient, mean in zip(gradients, torch._utils._unflatten_dense_tensors(flat, gradients), strict=True):
                gradient.copy_(mean)


class DuringBackward(Nothing):
    """overlap_param, overlap_bucket and plan: each bucket is launched when its last gradient is ready.

    buckets: numbers of parameters, in the order in which they are launched. A bucket waits for those before it, so that
    all ranks launch in one order. A bucket of one parameter is reduced where it lies, a larger one in a buffer. Where
    parameters have no memory, there is nothing to copy or divide.
    """

    def __init__(
        self, module: nn.Module, buckets: Sequence[Sequence[int]], transport: Transport, watch: Stopwatch
    ) -> None:
        super().__init__(module)
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._transport, self._watch = transport, watch
        self._buckets = [list(bucket) for bucket in buckets]
        self._bucket_of = {number: at for at, bucket in enumerate(buckets) for number in bucket}
        self._buffers = [self._buffer(bucket) for bucket in self._buckets]
        self._blank = self._parameters[0].is_meta
        self._views = [
            list(buffer.split([self._parameters[n].numel() for n in bucket]))
            if buffer is not None and not self._blank
            else []
            for buffer, bucket in zip(self._buffers, self._buckets, strict=True)
        ]
        self._active = False
        for number, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(self._hook(number))

    def _buffer(self, bucket: list[int]) -> torch.Tensor | None:
        if len(bucket) == 1:
            return None
        first = self._parameters[bucket[0]]
        return torch.zeros(sum(self._parameters[n].numel() for n in bucket), dtype=first.dtype, device=first.device)

    @contextmanager
    def micro(self, last: bool) -> Iterator[None]:
        self._active = last
        self._missing = [len(bucket) for bucket in self._buckets]
        self._handles: list[Handle] = []
        yield

    def _hook(self, number: int) -> Any:
        at = self._bucket_of[number]
        place = self._buckets[at].index(number)

        def ready(parameter: torch.Tensor) -> None:
            if not self._active:
                return
            with self._watch.packing():
                if self._views[at]:
                    assert parameter.grad is not None  # noqa: S101 - the hook runs when it is there
                    self._views[at][place].copy_(parameter.grad.view(-1))
                self._missing[at] -= 1
                self._launch()

        return ready

    def _launch(self) -> None:
        """All buckets that are complete, as far as those before them are launched."""
        while (at := len(self._handles)) < len(self._buckets) and not self._missing[at]:
            self._handles.append(self._transport.all_reduce(self._tensor(at)))

    def _tensor(self, at: int) -> torch.Tensor:
        buffer = self._buffers[at]
        found = self._parameters[self._buckets[at][0]].grad if buffer is None else buffer
        assert found is not None  # noqa: S101 - complete
        return found

    def finish(self) -> None:
        for at, handle in enumerate(self._handles):
            handle.wait()
            if self._blank:
                continue
            with _packing_after(self._handles[-1], self._watch):
                self._tensor(at).div_(self._transport.world_size)
                for view, number in zip(self._views[at], self._buckets[at], strict=False):
                    self._parameters[number].grad.copy_(view.view_as(self._parameters[number]))


def buckets_of(strategy: Strategy, order: Sequence[int], nbytes: Sequence[int]) -> list[list[int]]:
    """Parameters of each bucket. order: the numbers of the parameters as they become ready; nbytes: of each number.

    Raises ValueError where a plan does not fit the parameters.
    """
    if strategy.name == "overlap_param":
        return [[number] for number in order]
    if strategy.name == "plan":
        return _planned(strategy.buckets, order, nbytes)
    assert strategy.cap_bytes is not None  # noqa: S101 - `config` sees to it
    buckets: list[list[int]] = [[]]
    filled = 0
    for number in order:
        if strategy.bucket_boundary == "before" and buckets[-1] and filled + nbytes[number] > strategy.cap_bytes:
            buckets.append([])
            filled = 0
        buckets[-1].append(number)
        filled += nbytes[number]
        if strategy.bucket_boundary == "after" and filled >= strategy.cap_bytes:
            buckets.append([])
            filled = 0
    return [bucket for bucket in buckets if bucket]


def _planned(sizes: Sequence[int], order: Sequence[int], nbytes: Sequence[int]) -> list[list[int]]:
    buckets: list[list[int]] = []
    rest = list(order)
    for position, size in enumerate(sizes):
        bucket: list[int] = []
        while rest and sum(nbytes[n] for n in bucket) < size:
            bucket.append(rest.pop(0))
        got = sum(nbytes[n] for n in bucket)
        if got != size:
            raise ValueError(f"bucket {position + 1} of the plan has {size} bytes, but gradients make up {got}")
        buckets.append(bucket)
    if rest:
        raise ValueError(f"{len(rest)} gradients are in no bucket of the plan")
    return buckets
