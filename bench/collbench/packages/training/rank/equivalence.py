"""Run one rank of an equivalence proof: train a small model as one of K ranks and as one process, and compare.

In: a `RankContext`, and encoded trials with their number of steps. Out, over the pipe: the messages of
`protocol.messages`; the payload of `sampled` is an encoded `TrialResult`, sent by rank 0. The model is small so that
dozens of trainings take seconds, and smooth so that training does not amplify rounding.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import count, islice
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils.data import DistributedSampler

from collbench.model.records import Json
from collbench.packages.training.catalog.equivalence import TIMEOUT_S, Training, Trial, TrialResult
from collbench.protocol.rank_context import RankContext
from collbench.rank.group import Group
from collbench.rank.process import joined, run_rank, wait_to_begin
from collbench.store import encoding

INPUTS, WIDTH, OUTPUTS = 12, 24, 4
# Batch size B: 2, 3 and 4 ranks get equal shares of it, and each share divides into two micro-batches.
BATCH = 24
# Number of examples N: a whole number of batches of B · K for K = 2, 3 and 4.
EXAMPLES = 12 * BATCH
# Examples for each rank in the trials where K does not divide their number; one further example is left over.
SHARE = 10
# Seed of the initial parameters, the examples and the shuffling.
SEED = 20
# Learning rates with which training stays stable even where a trial multiplies them by K = 4.
OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], float, dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, 0.1, {}),
    "momentum": (torch.optim.SGD, 0.02, {"momentum": 0.9}),
    "nesterov": (torch.optim.SGD, 0.02, {"momentum": 0.9, "nesterov": True}),
    "adam": (torch.optim.Adam, 0.003, {}),
    "adam0": (torch.optim.Adam, 0.003, {"eps": 0.0}),
    "adagrad0": (torch.optim.Adagrad, 0.02, {"eps": 0.0}),
    "adamw": (torch.optim.AdamW, 0.003, {"weight_decay": 0.01}),
}


def main(context: RankContext, encoded: bytes) -> None:
    """Run a rank's process; never returns."""

    def work() -> Json:
        trials, steps = encoding.decoded(encoded, tuple[tuple[Trial, ...], int])
        with joined(context, "gloo", TIMEOUT_S) as group:
            wait_to_begin(context, group, lambda: {"rank": group.rank})
            for index, trial in enumerate(trials):
                if group.rank == 0:
                    context.send({"kind": "begin", "index": index})
                result = _compare(trial, group, steps)
                context.tick()
                if group.rank == 0:
                    context.send({"kind": "sampled", "failure": None}, encoding.encoded(result))
        return {}

    run_rank(context, work)


def _compare(trial: Trial, group: Group, steps: int) -> TrialResult:
    """Return the result of a trial. All ranks also train as the one process: they would be idle otherwise."""
    gpus, ranks = torch.cuda.device_count(), group.world_size
    if gpus < trial.gpus:
        return TrialResult(trial, untried=f"not tried: needs {'a GPU' if trial.gpus == 1 else 'two GPUs'}")
    rank, devices = (group.rank, 0) if trial.gpus < 2 else (None, gpus)
    parameters, losses, batch = train(trial.ranks, ranks, rank, trial.dtype, steps, devices)
    if trial.alone is None:
        alone, losses_alone, batch_alone = [parameter.clone() for parameter in parameters], list[float](), batch
        for parameter in alone:
            dist.broadcast(parameter, 0)
    else:
        steps *= ranks**trial.ranks.growth
        alone, losses_alone, batch_alone = train(trial.alone, ranks, None, trial.dtype, steps, min(1, trial.gpus))
    gathered = group.gather((difference(parameters, alone), losses))
    return TrialResult(
        trial,
        # Python's max() can lose a NaN, which is a difference too.
        difference=float(torch.tensor([own for own, _ in gathered], dtype=torch.float64).max()),
        loss=tuple(sum(step) / len(step) for step in zip(*(curve for _, curve in gathered), strict=True)),
        alone=tuple(losses_alone),
        examples=(batch, batch_alone),
    )


def difference(actual: list[torch.Tensor], reference: list[torch.Tensor]) -> float:
    """Return the largest max |a − b| / max |b| of any tensor. Per element, rounding near 0 would look large."""
    differences = [(a - b).abs().max() / b.abs().max() for a, b in zip(actual, reference, strict=True)]
    return float(torch.stack(differences).double().max())


def train(
    setup: Training, ranks: int, rank: int | None, dtype: str, steps: int, devices: int
) -> tuple[list[torch.Tensor], list[float], int]:
    """Make `steps` training steps as one of K ranks, or in one process (rank None), on the CPU or on `devices` GPUs.

    Returns the parameters, the loss over all examples before training and after each step, and the examples in the
    last step of all processes together.
    """
    kind, device = getattr(torch, dtype), torch.device("cuda" if devices else "cpu")
    torch.manual_seed(SEED + rank if rank and setup.start != "same" else SEED)
    norm: list[nn.Module] = [nn.BatchNorm1d(WIDTH)] if setup.normalised else []
    layers = [nn.Linear(INPUTS, WIDTH), *norm, nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, OUTPUTS)]
    # Drawn in float32 and then converted, so that both precisions begin with the same parameters.
    module = nn.Sequential(*layers).to(device, kind)
    model: Any = module
    if devices > 1:
        model = DataParallel(module, device_ids=list(range(devices)))
    elif rank is not None and setup.gradients != "apart" and not setup.average:
        model = DistributedDataParallel(module, init_sync=setup.start != "own")
    build, rate, more = OPTIMIZERS[setup.optimizer]
    # A loss summed over B examples has gradients B times as large as the mean loss.
    scale = float(ranks) ** setup.lr_power / (BATCH if setup.loss == "sum" else 1)
    optimizer = build(module.parameters(), lr=rate * scale, **more)
    examples = _examples(SHARE * ranks + 1 if setup.odd else EXAMPLES)
    inputs, targets = (tensor.to(device, kind) for tensor in examples)

    def mean_loss() -> float:
        """Return the loss over all examples; it changes neither gradients nor the statistics of BatchNorm."""
        module.eval()
        with torch.no_grad():
            mean = float(functional.mse_loss(module(inputs), targets))
        module.train()
        return mean

    losses, batch = [mean_loss()], 0
    for step, numbers in enumerate(islice(_batches(setup, ranks, rank, len(inputs)), steps), start=1):
        optimizer.zero_grad()
        parts = numbers.chunk(setup.accumulate)
        for number, part in enumerate(parts, start=1):
            waits = model is not module and setup.micro != "synchronised" and number < len(parts)
            with model.no_sync() if waits else nullcontext():
                loss = functional.mse_loss(model(inputs[part]), targets[part])
                weight = len(part) if setup.loss == "sum" else 1
                (loss * weight / (1 if setup.micro == "undivided" else len(parts))).backward()
        if setup.gradients == "sum" and rank is not None:
            for parameter in module.parameters():
                parameter.grad *= ranks
        optimizer.step()
        if setup.average and step % setup.average == 0:
            for parameter in module.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= ranks
        losses.append(mean_loss())
        batch = len(numbers) * (1 if rank is None else ranks)
    return [parameter.detach().cpu() for parameter in module.parameters()], losses, batch


def _examples(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random inputs, and as targets the sine of a linear map of them, which the model cannot fit exactly."""
    generator = torch.Generator().manual_seed(SEED)
    inputs = torch.randn(EXAMPLES, INPUTS, generator=generator, dtype=torch.float64)
    weights = torch.randn(INPUTS, OUTPUTS, generator=generator, dtype=torch.float64)
    return inputs[:number], torch.sin(inputs @ weights / INPUTS**0.5)[:number]


def _batches(setup: Training, ranks: int, rank: int | None, number: int) -> Iterator[torch.Tensor]:
    """Yield the numbers of the examples in each batch of a process; an odd number of examples is one batch."""
    samplers: list[DistributedSampler[Any]] = [
        DistributedSampler(range(number), ranks, each, setup.sampler == "shuffled", SEED, setup.sampler == "drop_last")
        for each in range(ranks)
    ]
    size = BATCH * ranks**setup.growth // (1 if rank is None else ranks)
    for epoch in count():
        for sampler in samplers:
            sampler.set_epoch(epoch)
        shares = torch.tensor([[*sampler] for sampler in samplers])
        # Read across the shares, the examples of all ranks are in their order again.
        read = torch.arange(number) if setup.sampler == "none" else shares.T.flatten() if rank is None else shares[rank]
        yield from read.split(len(read) if setup.odd else size)
