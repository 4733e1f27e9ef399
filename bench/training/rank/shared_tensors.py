"""Memory that the strategies of a launch use in turn: parameters, states of the optimizer, buckets.

In: modules of one model, optimizers, sizes. Out: the same with tensors of one set. Only one strategy trains at a time,
and its times do not depend on the values, so that ten strategies need little more memory than one. What a strategy
leaves in them, the next one goes on with. Not shared: what torch's DistributedDataParallel and fully_shard keep.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import nn


class SharedTensors:
    """One set of tensors; the first module, optimizer and buckets determine shapes."""

    def __init__(self) -> None:
        self._parameters: list[torch.Tensor] = []
        self._states: dict[int, dict[str, torch.Tensor]] = {}
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
        """Take the states of an optimizer that has made a step, such as momentum, into the set if it has none."""
        if self._states:
            return
        for number, parameter in enumerate(_parameters(optimizer)):
            for name, value in optimizer.state.get(parameter, {}).items():
                if type(value) is torch.Tensor and value.numel():
                    self._states.setdefault(number, {})[name] = value

    def lend_states(self, optimizer: torch.optim.Optimizer) -> None:
        """Have an optimizer that has made no step begin with the set's states, as zeros, where shapes agree.

        SGD and Adam begin with zeros, too, so that they train the same.
        """
        parameters = list(_parameters(optimizer))
        for number, states in self._states.items():
            parameter = parameters[number] if number < len(parameters) else None
            shapes = {state.shape for state in states.values() if state.dim()}
            if parameter is not None and shapes <= {parameter.shape}:
                optimizer.state[parameter] = {name: state.zero_() for name, state in states.items()}

    def buckets(self, elements: Sequence[int], like: torch.Tensor) -> list[torch.Tensor]:
        """A tensor for each bucket, one behind the other in the set's memory."""
        total = sum(elements)
        if not total:
            return []
        if self._buckets is None or self._buckets.numel() < total:
            # At once as many as any strategy needs: those before keep what they were given.
            most = max(total, sum(parameter.numel() for parameter in self._parameters))
            self._buckets = torch.zeros(most, dtype=like.dtype, device=like.device)
        return list(self._buckets[:total].split(list(elements)))


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """The parameters of an optimizer, in order."""
    for group in optimizer.param_groups:
        yield from group["params"]
