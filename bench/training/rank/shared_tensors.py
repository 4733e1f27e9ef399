"""Memory that the strategies of a launch use in turn: parameters, states of the optimizer, buckets.

In: modules of one model, optimizers, sizes. Out: the same with tensors of one set. Only one strategy trains at a time,
and its times do not depend on the values, so that ten strategies need little more memory than one. What a strategy
leaves in them, the next one goes on with. Not shared: what torch's DistributedDataParallel and fully_shard keep.
"""

from collections.abc import Sequence

import torch
from torch import nn


class SharedTensors:
    """One set of tensors; the first module, optimizer and buckets determine shapes."""

    def __init__(self) -> None:
        self._parameters: list[torch.Tensor] = []
        self._states: dict[tuple[int, str], torch.Tensor] = {}
        self._buckets: torch.Tensor | None = None

    def adopt(self, module: nn.Module) -> None:
        """Move the module's parameters into the set, with the values that they have."""
        own = list(module.parameters())
        if any(parameter.is_meta for parameter in own):
            return
        if not self._parameters:
            self._parameters = [parameter.data for parameter in own]
            return
        with torch.no_grad():
            for parameter, shared in zip(own, self._parameters, strict=True):
                shared.copy_(parameter)
                parameter.data = shared

    def adopt_states(self, optimizer: torch.optim.Optimizer) -> None:
        """Have the optimizer go on with the set's states, such as momentum, where they have the same shape."""
        for number, state in enumerate(optimizer.state.values()):
            for name, value in state.items():
                if not torch.is_tensor(value) or not value.numel() or type(value) is not torch.Tensor:
                    continue
                shared = self._states.setdefault((number, name), value)
                if (shared.shape, shared.dtype) == (value.shape, value.dtype):
                    state[name] = shared

    def buckets(self, elements: Sequence[int], like: torch.Tensor) -> list[torch.Tensor]:
        """A tensor for each bucket, one behind the other in the set's memory."""
        total = sum(elements)
        if not total:
            return []
        if self._buckets is None or self._buckets.numel() < total:
            self._buckets = torch.zeros(total, dtype=like.dtype, device=like.device)
        return list(self._buckets[:total].split(list(elements)))
