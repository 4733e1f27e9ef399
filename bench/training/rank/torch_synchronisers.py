"""What torch brings to synchronise gradients: DistributedDataParallel, ZeroRedundancyOptimizer, fully_shard.

And a sharded optimizer of our own (zero1), which shows what those do. In: a module on every rank. Out: a synchroniser
and an optimizer. torch's defaults are kept unless the strategy says otherwise.
"""

from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.rank.collectives import ALL_GATHER, REDUCE_SCATTER
from bench.training.rank.synchronisers import Nothing
from bench.training.rank.transport import EmulatedLink, Transport
from bench.training.records import Strategy
from bench.training.strategies import DDP_FLAGS

MIB = 2**20


class Ddp(Nothing):
    """torch's DistributedDataParallel. seen: its calls go over the wire by a hook, where we see them."""

    def __init__(self, module: nn.Module, strategy: Strategy, transport: Transport, seen: bool) -> None:
        super().__init__(wrapped(module, strategy, transport, seen))
        self.seen = seen or isinstance(transport, EmulatedLink)

    def micro(self, last: bool) -> Any:
        return nullcontext() if last else self.module.no_sync()

    def buckets(self) -> tuple[int, ...] | None:
        """Bytes of each bucket as torch rebuilt them; None before that, or where it does not tell."""
        text = str(self.module._get_ddp_logging_data().get("rebuilt_bucket_sizes", ""))
        return tuple(int(size) for size in text.replace(",", " ").split()) or None


def wrapped(module: nn.Module, strategy: Strategy, transport: Transport, seen: bool) -> Any:
    """The module in DistributedDataParallel as the strategy wants it."""
    arguments: dict[str, Any] = {flag: True for flag in strategy.options if flag in DDP_FLAGS}
    if strategy.cap_bytes is not None:
        arguments["bucket_cap_mb"] = strategy.cap_bytes / MIB
    if strategy.buckets:
        arguments["bucket_cap_mb_list"] = [size / MIB for size in strategy.buckets]
    ddp = DistributedDataParallel(module, **arguments)
    if "noop" in strategy.options:
        ddp.register_comm_hook(None, _noop)
    elif hook := next((one for one in ("fp16", "bf16", "powersgd") if one in strategy.options), None):
        _compress(ddp, hook)
    elif seen or isinstance(transport, EmulatedLink):
        ddp.register_comm_hook(transport, _over_wire)
    return ddp


def _noop(_: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def _over_wire(transport: Transport, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    return transport.future(bucket.buffer())


def _compress(ddp: DistributedDataParallel, hook: str) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    else:
        ddp.register_comm_hook(None, getattr(default_hooks, f"{hook}_compress_hook"))


class Zero1(Nothing):
    """Each rank holds the optimizer's state for its share of all parameters, which lie in one flat tensor."""

    def __init__(self, module: nn.Module, world_size: int, rank: int) -> None:
        super().__init__(module)
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._size = sum(p.numel() for p in self._parameters)
        self._share = -(-self._size // world_size)
        first = self._parameters[0]
        self._flat = torch.zeros(self._share * world_size, dtype=first.dtype, device=first.device)
        self._gradients = torch.zeros_like(self._flat)
        self._world_size = world_size
        with torch.no_grad():
            for parameter, view in zip(self._parameters, self._views(self._flat), strict=True):
                view.copy_(parameter)
                parameter.data = view
        self.mine = nn.Parameter(self._flat[rank * self._share : (rank + 1) * self._share].clone())

    def _views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        parts = flat[: self._size].split([p.numel() for p in self._parameters])
        return [part.view_as(p) for part, p in zip(parts, self._parameters, strict=True)]

    def finish(self) -> None:
        for parameter, view in zip(self._parameters, self._views(self._gradients), strict=True):
            view.copy_(parameter.grad)
            parameter.grad = None  # the optimizer knows only our share, and clears nothing else
        self.mine.grad = torch.empty_like(self.mine)
        REDUCE_SCATTER(self.mine.grad, self._gradients)
        self.mine.grad.div_(self._world_size)

    def updated(self) -> None:
        ALL_GATHER(self._flat, self.mine.data)


def sharded_optimizer(module: Any, kind: type[torch.optim.Optimizer], settings: dict[str, Any]) -> Any:
    """torch's ZeroRedundancyOptimizer of this kind."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(module.parameters(), optimizer_class=kind, **settings)


class Fsdp2(Nothing):
    """torch's fully_shard of each layer and of the whole."""

    def __init__(self, module: nn.Module, device: torch.device, world_size: int) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(device.type, (world_size,))
        for layer in getattr(module, "layers", ()):
            fully_shard(layer, mesh=mesh)
        super().__init__(fully_shard(module, mesh=mesh))

    def micro(self, last: bool) -> Any:
        self.module.set_requires_gradient_sync(last)
        return nullcontext()
