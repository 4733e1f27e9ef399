"""Train a small model, by the same code in one process and as one of K ranks.

In: a `Training` and a `ProcessRole`. Out: `Trained`, the parameters and the loss of each step. Compares nothing, and
knows no launcher. The model is small so that dozens of trainings take seconds, and smooth so that training does not
amplify rounding.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from bench.training.equivalence import Training

INPUTS, WIDTH, OUTPUTS = 12, 24, 4
# Batch size B: 2, 3 and 4 ranks get equal shares of it, and each share divides into two micro-batches.
BATCH = 24
# Number of examples N: a whole number of batches of B · K for K = 2, 3 and 4.
EXAMPLES = 12 * BATCH
# Examples for each rank in the cases where K does not divide their number; one further example is left over.
SHARE = 10
# Seed of the initial parameters, the examples and the shuffling.
SEED = 20
# Learning rates with which training stays stable even where a trial multiplies them by K = 4.
OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], float, dict[str, float]]] = {
    "sgd": (torch.optim.SGD, 0.1, {}),
    "momentum": (torch.optim.SGD, 0.02, {"momentum": 0.9}),
    "adam": (torch.optim.Adam, 0.003, {}),
    "adam without eps": (torch.optim.Adam, 0.003, {"eps": 0.0}),
    "adagrad without eps": (torch.optim.Adagrad, 0.02, {"eps": 0.0}),
    "adamw": (torch.optim.AdamW, 0.003, {"weight_decay": 0.01}),
}


@dataclass(frozen=True, slots=True)
class ProcessRole:
    """Where a training runs. rank, of: this rank, and how many share the examples. ranks: K, also in one process.

    devices: GPUs of this process, all used by torch's DataParallel if there are several; 0 for the CPU.
    """

    rank: int
    of: int
    ranks: int
    devices: int = 0


@dataclass(frozen=True, slots=True)
class Trained:
    """What a training gave. losses: before training and after each step, the mean over all examples of all processes.

    batch: examples in the last step, of all processes together.
    """

    parameters: list[torch.Tensor]
    losses: list[float]
    batch: int


def train(how: Training, place: ProcessRole, dtype: str, steps: int) -> Trained:
    """Make `steps` training steps from the initial parameters that `how` describes."""
    kind = getattr(torch, dtype)
    device = torch.device("cuda" if place.devices else "cpu")
    module = _module(how, place, kind).to(device)
    model = _synchronised(module, how, place)
    optimizer = _optimizer(module, how, place)
    # Both sides compute the loss over all examples: that of a batch rises and falls with the examples in it.
    every = _examples(how if how.examples == "even" else replace(how, examples="odd"), place, kind).tensors
    watched = [tensor.to(device) for tensor in every]
    losses, batch = [_loss(module, watched)], 0
    for examples in islice(_batches(how, place, kind), steps):
        optimizer.zero_grad()
        _backward(model, how, [tensor.to(device) for tensor in examples])
        optimizer.step()
        losses.append(_loss(module, watched))
        batch = len(examples[0]) * place.of
    return Trained([parameter.detach().cpu() for parameter in module.parameters()], losses, batch)


def indices(number: int, rank: int, ranks: int, batch: int, drop_last: bool) -> list[list[int]]:
    """Which of `number` examples a rank reads, batch by batch, numbered from 0."""
    everything = TensorDataset(torch.arange(number))
    sampler: DistributedSampler[Any] = DistributedSampler(everything, ranks, rank, shuffle=False, drop_last=drop_last)
    return [examples.tolist() for (examples,) in DataLoader(everything, batch, sampler=sampler)]


# ── the model ────────────────────────────────────────────────────────────────────────────────────
def _module(how: Training, place: ProcessRole, dtype: torch.dtype) -> nn.Module:
    """Drawn in float32 and then converted, so that both precisions begin with the same parameters."""
    torch.manual_seed(SEED + place.rank if how.seeds else SEED)
    norm: list[nn.Module] = [nn.BatchNorm1d(WIDTH)] if how.normalised else []
    layers = [nn.Linear(INPUTS, WIDTH), *norm, nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, OUTPUTS)]
    return nn.Sequential(*layers).to(dtype)


def _synchronised(module: nn.Module, how: Training, place: ProcessRole) -> nn.Module:
    if place.devices > 1:
        return DataParallel(module, device_ids=list(range(place.devices)))
    if place.of == 1 or how.gradients == "apart":
        return module
    wrapped = DistributedDataParallel(module, init_sync=how.broadcast)
    if how.gradients == "sum":
        wrapped.register_comm_hook(None, _sum_hook)
    return wrapped


def _sum_hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The all-reduce that DDP makes without a hook, but without the division by K."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def _optimizer(module: nn.Module, how: Training, place: ProcessRole) -> torch.optim.Optimizer:
    build, rate, more = OPTIMIZERS[how.optimizer]
    # A loss summed over B examples has gradients B times as large as their mean.
    scale = float(place.ranks) ** how.lr_power / (BATCH if how.loss == "sum" else 1)
    return build(module.parameters(), lr=rate * scale, **more)


def _backward(model: nn.Module, how: Training, batch: list[torch.Tensor]) -> None:
    """Compute the gradients of one step, in micro-batches."""
    parts = list(zip(*(tensor.chunk(how.accumulate) for tensor in batch), strict=True))
    for number, (inputs, targets) in enumerate(parts, start=1):
        waits = isinstance(model, DistributedDataParallel) and how.no_sync and number < len(parts)
        with model.no_sync() if waits else nullcontext():
            each = _losses(model, inputs, targets)
            loss = each.sum() if how.loss == "sum" else each.mean()
            (loss / len(parts) if how.divided else loss).backward()


def _losses(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (model(inputs) - targets).square().mean(dim=1)


def _loss(module: nn.Module, examples: list[torch.Tensor]) -> float:
    """Mean loss over these examples; changes neither gradients nor the statistics of BatchNorm."""
    module.eval()
    with torch.no_grad():
        mean = float(_losses(module, *examples).mean())
    module.train()
    return mean


# ── the examples ─────────────────────────────────────────────────────────────────────────────────
def _examples(how: Training, place: ProcessRole, dtype: torch.dtype) -> TensorDataset:
    """Random inputs, and as targets the sine of a linear map of them, which the model cannot fit exactly."""
    generator = torch.Generator().manual_seed(SEED)
    inputs = torch.randn(EXAMPLES, INPUTS, generator=generator, dtype=torch.float64)
    weights = torch.randn(INPUTS, OUTPUTS, generator=generator, dtype=torch.float64)
    targets = torch.sin(inputs @ weights / INPUTS**0.5)
    chosen = torch.arange(EXAMPLES)
    if how.examples != "even":
        chosen = _uneven(how, place)
    return TensorDataset(inputs[chosen].to(dtype), targets[chosen].to(dtype))


def _uneven(how: Training, place: ProcessRole) -> torch.Tensor:
    """SHARE · K + 1 examples; "dropped" or "padded" in one process: those that K samplers give out together."""
    every = torch.arange(SHARE * place.ranks + 1)
    if place.of > 1 or how.examples == "odd":
        return every
    return every[:-1] if how.examples == "dropped" else torch.cat([every, every[: place.ranks - 1]])


def _batches(how: Training, place: ProcessRole, dtype: torch.dtype) -> Iterator[list[torch.Tensor]]:
    """Batches of a process's share, epoch after epoch; where K does not divide N, the whole share is one batch."""
    examples: Dataset[Any] = _examples(how, place, dtype)
    of, rank = (1, 0) if how.sampler == "none" else (place.of, place.rank)
    sampler: DistributedSampler[Any] = DistributedSampler(
        examples, of, rank, shuffle=how.sampler == "shuffled", seed=SEED, drop_last=how.examples == "dropped"
    )
    share = BATCH * place.ranks**how.growth // place.of if how.examples == "even" else len(sampler)
    loader = DataLoader(examples, share, sampler=sampler)
    for epoch in count():
        sampler.set_epoch(epoch)
        yield from loader
