"""Stand in for a model by its shape: parameters without memory, and a backward pass that sleeps instead of computing.

In: a `Shape`. Out: a module that a `Runner` uses like any other. Its parameters lie on torch's meta device, so that a
model of any size fits; hooks, buckets, calls and the optimizer run as usual, on tensors without data.
"""

import time
from typing import Any

import torch
from torch import nn

from bench.training.ready_times import ReadyTimes
from bench.training.records import Shape


class ByShape(nn.Module):  # type: ignore[misc]
    """Called with any tensor, it gives a loss; backward makes each gradient ready at the time that the shape says."""

    def __init__(self, shape: Shape, dtype: torch.dtype) -> None:
        super().__init__()
        self.gradients = nn.ParameterList(
            nn.Parameter(torch.empty(one.elements, dtype=dtype, device="meta")) for one in shape.gradients
        )
        ready_times = ReadyTimes.of_shape(shape)
        self._last_first = list(zip(reversed(ready_times.order), reversed(ready_times.ready_s), strict=True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        began = time.perf_counter()
        loss = x.sum().requires_grad_()
        for number, ready_s in self._last_first:
            loss = _Ready.apply(loss, self.gradients[number], began + ready_s)
        return loss


class _Ready(torch.autograd.Function):  # type: ignore[misc]
    """Forward does nothing; backward sleeps until `perf_counter` is `at`, then gives a gradient of the right size."""

    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor, parameter: torch.Tensor, at: float) -> torch.Tensor:
        ctx.parameter, ctx.at = parameter, at
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, incoming: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        left = ctx.at - time.perf_counter()
        if left > 0:
            time.sleep(left)
        return incoming, torch.empty_like(ctx.parameter), None
