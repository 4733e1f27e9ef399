"""Models as a user would bring them: in `Model`, two layers share a weight, and one layer is not trained."""

import torch
from torch import nn

WIDTH = 24


class Model(nn.Module):
    """A model that returns the loss when called with a batch."""

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


class Normalised(nn.Module):
    """A model with BatchNorm and dropout: the loss of a batch is not the mean of the losses of its parts."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh(), nn.Dropout(0.2), nn.Linear(WIDTH, WIDTH)
        )

    def forward(self, x, y):
        return nn.functional.mse_loss(self.body(x), y)


def build_normalised():
    _, batch = build()
    return Normalised(), batch


class Newcomers(nn.Module):
    """A model as in a tutorial: two layers, and the loss of their output for a batch."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 1))

    def forward(self, x, y):
        return nn.functional.mse_loss(self.layers(x), y)


def build_newcomers():
    return Newcomers(), (torch.randn(8, 100), torch.randn(8, 1))
