"""Synchronise gradients by torch: DistributedDataParallel, ZeroRedundancyOptimizer, fully_shard; and by our own zero1.

zero1 shows how torch's sharded optimizers work. In: a module on every rank. Out: a synchroniser and
an optimizer. torch's defaults are kept unless the strategy sets other values.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from collbench.model.units import MIB
from collbench.packages.training.catalog.strategies import DDP_FLAGS, NO_OPERATION, hooks_of, kind
from collbench.packages.training.rank.synchronisers import Build, Stopwatch, Synchroniser, sent_by, trained
from collbench.packages.training.rank.transport import EmulatedLink, ProcessGroupTransport
from collbench.rank import torch_names
from collbench.rank.collectives import ALL_GATHER, REDUCE_SCATTER

# A rank waits for the other ranks here (`rank.process`).
WAITS_FOR_RANKS = True

# torch 2.8 and newer let a caller make the calls of fully_shard.
CUSTOM = "set_custom_all_gather"


class Ddp(Synchroniser):
    """torch's DistributedDataParallel with the options of the strategy.

    If traced or on an emulated link, a hook sends its calls over the transport.
    """

    def __init__(self, build: Build) -> None:
        strategy, transport = build.strategy, build.transport
        self._strategy, self._transport, self._watch = strategy, transport, build.watch
        self._seen = build.traced or isinstance(transport, EmulatedLink)
        arguments: dict[str, Any] = {flag: True for flag in strategy.options if flag in DDP_FLAGS}
        if strategy.cap_bytes is not None:
            arguments["bucket_cap_mb"] = strategy.cap_bytes / MIB
        if strategy.buckets:
            arguments["bucket_cap_mb_list"] = [size / MIB for size in strategy.buckets]
        super().__init__(DistributedDataParallel(build.module, **arguments))
        self.buckets = None
        if hooks := hooks_of(strategy):
            _register(self.module, *hooks)
        elif self._seen:
            self.module.register_comm_hook(transport, _over_transport)

    def micro(self, last: bool) -> Any:
        return nullcontext() if last else self.module.no_sync()

    def calls(self) -> tuple[int, ...] | None:
        """Return the bytes of each call; without a hook, of rebuilt buckets, which torch reports two steps later."""
        if not kind(self._strategy).sends:
            return ()
        if self._seen:
            return sent_by(self._transport)
        if hooks_of(self._strategy):
            return None
        logged = torch_names.private(self.module, "_get_ddp_logging_data")()
        text = str(logged.get("rebuilt_bucket_sizes", ""))
        return tuple(int(size) for size in text.replace(",", " ").split()) or None


def _over_transport(
    transport: ProcessGroupTransport | EmulatedLink, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    return transport.future(bucket.buffer())


def _register(ddp: DistributedDataParallel, hook: str) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks, powerSGD_hook

    if hook == NO_OPERATION:
        ddp.register_comm_hook(None, debugging_hooks.noop_hook)
    elif hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    else:
        ddp.register_comm_hook(None, getattr(default_hooks, f"{hook}_compress_hook"))


class ZeroRedundancy(Ddp):
    """torch's DistributedDataParallel with ZeroRedundancyOptimizer."""

    def optimizer(self, build_with: type[torch.optim.Optimizer], settings: dict[str, Any]) -> torch.optim.Optimizer:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer: torch.optim.Optimizer = ZeroRedundancyOptimizer(
            self.module.parameters(), optimizer_class=build_with, **settings
        )
        optimizer.optim.register_step_post_hook(self._mark)
        return optimizer

    def _mark(self, *_: Any) -> None:
        """Mark that the rank's share is updated; the rest of the optimizer's step sends the shares to all ranks."""
        self.updated_at = self._watch.mark()

    def calls(self) -> None:
        return None


class Zero1(Synchroniser):
    """The strategy zero1: parameters lie in one flat tensor; each rank keeps the optimizer state of its share."""

    def __init__(self, build: Build) -> None:
        super().__init__(build.module)
        self.buckets = None
        rank, world_size = build.place.rank, build.place.world_size
        self._parameters = trained(build.module)
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
            parameter.grad = None  # the optimizer has only this rank's share, and clears nothing else
        self.mine.grad = torch.empty_like(self.mine)
        REDUCE_SCATTER(self.mine.grad, self._gradients)
        self.mine.grad.div_(self._world_size)

    def clip(self, largest: float) -> None:
        """Clip by the norm of all gradients, which is known after an all-reduce over the ranks' shares."""
        total = nn.utils.get_total_norm([self.mine.grad]).square()
        dist.all_reduce(total)
        nn.utils.clip_grads_with_norm_([self.mine], largest, total.sqrt())

    def updated(self) -> None:
        ALL_GATHER(self._flat, self.mine.data)

    def optimizer(self, build_with: type[torch.optim.Optimizer], settings: dict[str, Any]) -> torch.optim.Optimizer:
        return build_with([self.mine], **settings)


class Fsdp2(Synchroniser):
    """torch's fully_shard, applied to each layer and to the whole model.

    On the host its calls are stamped, as they block forward and backward; on a GPU they run on streams of their own.
    """

    def __init__(self, build: Build) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard

        mesh = init_device_mesh(build.place.device.type, (build.place.world_size,))
        for layer in getattr(build.module, "layers", ()):
            fully_shard(layer, mesh=mesh)
        super().__init__(fully_shard(build.module, mesh=mesh))
        self.buckets = None
        for module in self.module.modules() if build.watch.on_host and hasattr(FSDPModule, CUSTOM) else ():
            if isinstance(module, FSDPModule):
                module.set_custom_all_gather(_StampedCall(build.watch, ALL_GATHER))
                module.set_custom_reduce_scatter(_StampedCall(build.watch, REDUCE_SCATTER))

    def micro(self, last: bool) -> Any:
        self.module.set_requires_gradient_sync(last)
        return nullcontext()


class _StampedCall:
    """A call of fully_shard as torch makes it, stamped; torch documents it as `Comm`."""

    def __init__(self, watch: Stopwatch, call: Callable[..., Any]) -> None:
        self._watch, self._call = watch, call

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, **options: Any) -> Any:
        """Make the call. options: `async_op`, and the `op` of a reduce-scatter."""
        with self._watch.exchanging:
            return self._call(output_tensor, input_tensor, group=group, **options)


SYNCHRONISERS: dict[str, Callable[[Build], Synchroniser]] = {
    "ddp": Ddp,
    "zero1": Zero1,
    "zero_redundancy": ZeroRedundancy,
    "fsdp2": Fsdp2,
}
