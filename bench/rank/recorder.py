"""What reaches torch: each collective with its tensors, its group and its peer, written down and not carried out.

In: calls made while a `Recorder` is active. Out: a `RecordedCall` for each. Tensors may lie on the meta device, which
holds no memory: nothing is moved, and every call is answered at once by work that is done. Judges nothing: `simulate`
does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeWork
from torch.utils._python_dispatch import TorchDispatchMode

# What torch's operators call the rank at the other end, or the root.
PEERS = ("root_rank", "dst", "src")


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call of torch's operators. sent, received: (start, stop) in bytes of the buffer, one for each tensor.

    ranks: of the group that it goes to. peer: the root, or the rank at the other end, within that group.
    sent_parts, received_parts: elements for each rank, where they are told apart.
    """

    name: str
    ranks: int
    sent: tuple[tuple[int, int], ...]
    received: tuple[tuple[int, int], ...]
    peer: int | None
    sent_parts: tuple[int, ...]
    received_parts: tuple[int, ...]


# A subclass, because torch knows no other way to see every operator.
class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Context in which torch's collectives are written down into `handed`."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[RecordedCall] = []

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func.namespace != "c10d":
            return func(*args, **(kwargs or {}))
        names = [argument.name for argument in func._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
        self.calls.append(_handed(func._schema.name.removeprefix("c10d::"), given))
        work = FakeWork().boxed()
        return (args[0], work) if len(func._schema.returns) > 1 else work


def _handed(name: str, given: Mapping[str, Any]) -> RecordedCall:
    """From an operator's arguments by their names, which are the same in all versions of torch."""
    outputs = [value for key, value in given.items() if key.startswith("output") and "split" not in key]
    inputs = [value for key, value in given.items() if key.startswith("input") and "split" not in key]
    both = given.get("tensors")
    if both is not None:
        inputs = [] if name.startswith("recv") else [both]
        outputs = [] if name == "send" else [both]
    return RecordedCall(
        name=name,
        ranks=dist.ProcessGroup.unbox(given["process_group"]).size(),
        sent=_spans(inputs),
        received=_spans(outputs),
        peer=next((int(given[key]) for key in PEERS if key in given), None),
        sent_parts=tuple(given.get("input_split_sizes", ())),
        received_parts=tuple(given.get("output_split_sizes", ())),
    )


def _spans(values: Any) -> tuple[tuple[int, int], ...]:
    """Where each tensor of a nest of lists begins and ends; all of them are contiguous."""
    if isinstance(values, torch.Tensor):
        begin = values.storage_offset() * values.element_size()
        return ((begin, begin + values.numel() * values.element_size()),)
    return tuple(span for value in values for span in _spans(value))
