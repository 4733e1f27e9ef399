"""Synchronisers with a fault of known size, as a user would bring them along."""

import time

import torch
import torch.distributed as dist

from broken_syncs import Right

WAIT_S = 5e-3


class OneCall(Right):
    """The mean over ranks, in one all-reduce of all gradients after backward."""

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
    """The same, and then it waits for nothing."""

    wait_s = WAIT_S
