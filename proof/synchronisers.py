"""Synchronisers with a fault of known size, written as a user would write them."""

import time

import torch
import torch.distributed as dist

WAIT_S = 5e-3


class Right:
    """Average gradients over ranks, after backward."""

    def __init__(self, module, world_size):
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.world_size = world_size
        for p in module.parameters():
            dist.broadcast(p.data, 0)

    def finish(self):
        for p in self.parameters:
            dist.all_reduce(p.grad)
            p.grad.div_(self.world_size)


class OneCall(Right):
    """Average gradients over ranks, in one all-reduce of all gradients after backward."""

    wait_s = 0.0

    def finish(self):
        gradients = [p.grad for p in self.parameters]
        flat = torch._utils._flatten_dense_tensors(gradients)
        dist.all_reduce(flat)
        until = time.perf_counter() + self.wait_s
        while time.perf_counter() < until:
            time.sleep(max(0.0, until - time.perf_counter() - 1e-4))
        flat.div_(self.world_size)
        for gradient, mean in zip(gradients, torch._utils._unflatten_dense_tensors(flat, gradients), strict=True):
            gradient.copy_(mean)


class Late(OneCall):
    """As `OneCall`, with a needless wait of `WAIT_S` after the call."""

    wait_s = WAIT_S
