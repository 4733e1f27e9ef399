"""A model as a user would bring it along: two of its weights are one, and one is not trained."""

import torch
from torch import nn

WIDTH = 24


class Model(nn.Module):
    """Called with a batch, it gives the loss."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(WIDTH, WIDTH)
        self.frozen.requires_grad_(False)
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.outer.weight = self.inner.weight

    def forward(self, x, y):
        return nn.functional.mse_loss(self.outer(torch.tanh(self.inner(self.frozen(x)))), y)


def build():
    generator = torch.Generator().manual_seed(1)
    return Model(), (torch.randn(8, WIDTH, generator=generator), torch.randn(8, WIDTH, generator=generator))
