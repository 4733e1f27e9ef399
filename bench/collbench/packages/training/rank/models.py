"""Build the model that is trained: a preset, a model of the user, or a shape without weights.

In: a scenario, which names a preset or "package.module:build", or has a shape instead.
Out: a module whose call gives a loss, and batches for it. For a shape, parameters are on torch's meta device, so a
model of any size fits: hooks, buckets, calls and the optimizer run as usual, on tensors without data.
"""

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from collbench.packages.training.catalog.presets import Preset, find
from collbench.packages.training.planning.buckets import ReadyTimes
from collbench.packages.training.step_records import Shape
from collbench.packages.training.synchronisation import Scenario

THETA = 10_000.0


@dataclass(frozen=True, slots=True)
class Trainable:
    """A model, and the function that makes its batches."""

    # The call module(*batch) gives the loss, a mean over examples.
    module: nn.Module
    # The call batch(generator, examples) makes a batch of tensors.
    batch: Callable[[torch.Generator, int], tuple[torch.Tensor, ...]]
    # Tensors that the batches of a user's model are drawn from; their values may differ between ranks.
    examples: tuple[torch.Tensor, ...] = ()


def build(scenario: Scenario, device: torch.device, seed: int) -> Trainable:
    """Build the model with weights drawn from `seed`."""
    torch.manual_seed(seed)
    dtype = getattr(torch, scenario.case.dtype)
    if scenario.shape is not None:
        return Trainable(ByShape(scenario.shape, dtype), lambda generator, examples: (torch.zeros(examples),))
    preset = find(scenario.options.model)
    if preset is not None:

        def tokens(generator: torch.Generator, examples: int) -> tuple[torch.Tensor, ...]:
            drawn = torch.randint(preset.vocabulary, (examples, scenario.options.sequence + 1), generator=generator).to(
                device
            )
            return drawn[:, :-1], drawn[:, 1:]

        return Trainable(Transformer(preset).to(device, dtype), tokens)
    module, batch = imported(scenario.options.model)()
    held = tuple(tensor.to(device).contiguous() for tensor in batch)

    def drawn(generator: torch.Generator, examples: int) -> tuple[torch.Tensor, ...]:
        """Draw examples, with replacement, from the one batch that came with the user's model."""
        rows = torch.randint(len(held[0]), (examples,), generator=generator).to(device)
        chosen = [tensor[rows] for tensor in held]
        return tuple(tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in chosen)

    return Trainable(module.to(device, dtype), drawn, held)


def imported(name: str) -> Any:
    """Import and return the object that "package.module:name" names."""
    place, _, attribute = name.partition(":")
    return getattr(importlib.import_module(place), attribute)


# ── a preset ─────────────────────────────────────────────────────────────────────────────────────
class Transformer(nn.Module):  # type: ignore[misc]
    """Decoder-only transformer: RMSNorm, rotary positions, SwiGLU, no biases. Called with inputs and targets."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        self.embedding = nn.Embedding(preset.vocabulary, preset.d_model)
        self.layers = nn.ModuleList(Layer(preset) for _ in range(preset.layers))
        self.norm = nn.RMSNorm(preset.d_model)
        self.head = nn.Linear(preset.d_model, preset.vocabulary, bias=False)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.embedding(inputs)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Layer(nn.Module):  # type: ignore[misc]
    """Attention, then feed-forward, each after a norm and added to its input."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(preset.d_model)
        self.attention = Attention(preset)
        self.norm2 = nn.RMSNorm(preset.d_model)
        self.feed_forward = FeedForward(preset)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        out: torch.Tensor = x + self.feed_forward(self.norm2(x))
        return out


class Attention(nn.Module):  # type: ignore[misc]
    """Causal attention with rotary positions (Su et al., 2021)."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        width, self.heads = preset.d_model, preset.heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            linear(x).view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for linear in (self.q, self.k, self.v)
        )
        mixed = functional.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
        out: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


def rotated(x: torch.Tensor) -> torch.Tensor:
    """Apply rotary positions: pairs of elements, one of each half of a head, are turned by position × frequency."""
    length, half = x.shape[-2], x.shape[-1] // 2
    rates = THETA ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = torch.arange(length, device=x.device, dtype=torch.float32)[:, None] * rates
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half : 2 * half]
    return torch.cat([a * cos - b * sin, a * sin + b * cos, x[..., 2 * half :]], dim=-1)


class FeedForward(nn.Module):  # type: ignore[misc]
    """SwiGLU (Shazeer, 2020)."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        self.gate = nn.Linear(preset.d_model, preset.d_ff, bias=False)
        self.up = nn.Linear(preset.d_model, preset.d_ff, bias=False)
        self.down = nn.Linear(preset.d_ff, preset.d_model, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return out


# ── a shape ──────────────────────────────────────────────────────────────────────────────────────
class ByShape(nn.Module):  # type: ignore[misc]
    """A module that returns a loss for any tensor; backward makes each gradient ready at the shape's time."""

    def __init__(self, shape: Shape, dtype: torch.dtype) -> None:
        super().__init__()
        self.gradients = nn.ParameterList(
            nn.Parameter(torch.empty(gradient.elements, dtype=dtype, device="meta")) for gradient in shape.gradients
        )
        ready_times = ReadyTimes.of_shape(shape)
        self._last_first = list(zip(reversed(ready_times.order), reversed(ready_times.ready_s), strict=True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        began = time.perf_counter()
        loss = x.sum().requires_grad_()
        for number, ready_s in self._last_first:
            loss = _Ready.apply(loss, self.gradients[number], began + ready_s)
        return loss


class _Ready(torch.autograd.Function):  # type: ignore[misc]
    """Forward does nothing; backward sleeps until `perf_counter` is `at`, then gives a gradient of the right size."""

    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor, parameter: torch.Tensor, at: float) -> torch.Tensor:
        ctx.parameter, ctx.at = parameter, at
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, incoming: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        left = ctx.at - time.perf_counter()
        if left > 0:
            time.sleep(left)
        return incoming, torch.empty_like(ctx.parameter), None
