"""Invariants that concern no strategy: how gradients scale (I10), and how a sampler divides examples (I11).

Each rank computes them for itself; nothing is communicated.
"""

import torch
from torch import nn
from torch.utils.data import DistributedSampler

from bench.training.records import InvariantCheck

ROUNDING = 1e-12


def checks() -> tuple[InvariantCheck, ...]:
    """Both of them."""
    return scaling(), sampling()


def scaling(ranks: int = 2) -> InvariantCheck:
    """I10: the mean over ranks needs no other learning rate, the sum one divided by the ranks; Adam needs none."""
    full, shares = _gradient(None, ranks), [_gradient(rank, ranks) for rank in range(ranks)]
    total = torch.stack(shares).sum(dim=0)
    mean_fits = _near(total / ranks, full)
    sum_is_more = _near(total, ranks * full)
    adam_alike = _near(_adam_step(total), _adam_step(full), 1e-5)
    ok = mean_fits and sum_is_more and adam_alike
    return InvariantCheck(
        "I10", ok, "the mean fits one process, the sum is K times it, Adam's step is the same for both"
    )


def _gradient(rank: int | None, ranks: int) -> torch.Tensor:
    torch.manual_seed(5)
    x, y = torch.randn(12, 5, dtype=torch.float64), torch.randn(12, 1, dtype=torch.float64)
    rows = slice(None) if rank is None else slice(rank, None, ranks)
    weights = torch.zeros(5, 1, dtype=torch.float64, requires_grad=True)
    nn.functional.mse_loss(x[rows] @ weights, y[rows]).backward()
    assert weights.grad is not None  # noqa: S101 - just computed
    return weights.grad


def _adam_step(gradient: torch.Tensor) -> torch.Tensor:
    weights = torch.zeros_like(gradient, requires_grad=True)
    weights.grad = gradient.clone()
    torch.optim.Adam([weights], lr=0.1).step()
    return weights.detach()


def _near(a: torch.Tensor, b: torch.Tensor, share: float = ROUNDING) -> bool:
    return bool((a - b).abs().max() <= share * b.abs().max())


def sampling() -> InvariantCheck:
    """I11: nine examples over two ranks: every second one each, padded with the first, or the last one dropped."""
    wanted = {False: ([0, 2, 4, 6, 8], [1, 3, 5, 7, 0]), True: ([0, 2, 4, 6], [1, 3, 5, 7])}
    for drop_last, want in wanted.items():
        got = tuple(
            list(DistributedSampler(range(9), 2, rank, shuffle=False, drop_last=drop_last)) for rank in range(2)
        )
        if got != want:
            return InvariantCheck("I11", False, f"DistributedSampler gives {got}, not {want} (drop_last={drop_last})")
    return InvariantCheck(
        "I11", True, "DistributedSampler gives rank::K, padded with the first example, or without the rest"
    )
