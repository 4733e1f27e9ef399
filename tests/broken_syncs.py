"""Synchronisers that are wrong on purpose, one per class, as a user would supply them."""

import torch.distributed as dist

from proof.synchronisers import Right


class Sum(Right):
    """A synchroniser that forgets to divide."""

    def finish(self):
        for p in self.parameters:
            dist.all_reduce(p.grad)


class Rounded(Right):
    """A synchroniser that divides by three and multiplies by three halves: right except for the last bits."""

    def finish(self):
        for p in self.parameters:
            p.grad.div_(3)
            dist.all_reduce(p.grad)
            p.grad.mul_(1.5)


class Forgetful(Right):
    """A synchroniser that leaves the first parameter out."""

    def finish(self):
        for p in self.parameters[1:]:
            dist.all_reduce(p.grad)
            p.grad.div_(self.world_size)


class NoStart(Right):
    """A synchroniser without a broadcast: every rank begins with its own weights."""

    def __init__(self, module, world_size):
        self.parameters, self.world_size = [p for p in module.parameters() if p.requires_grad], world_size


class Raising(Right):
    """A synchroniser that raises in the first step."""

    def finish(self):
        raise ValueError("no such thing")


class Hoarding(Right):
    """A synchroniser that trains correctly, but keeps a copy of the gradients of every step."""

    def __init__(self, module, world_size):
        super().__init__(module, world_size)
        self.hoard = []

    def finish(self):
        super().finish()
        self.hoard.append([p.grad.clone() for p in self.parameters])
