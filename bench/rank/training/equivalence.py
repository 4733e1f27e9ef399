"""Run one rank of an equivalence proof: train a small model as one of K ranks and as one process, and compare.

In: a `RankContext` and an `EquivalenceJob`. Out, over the pipe: the messages of `protocol.messages`. The payload of
`sampled` is the numbers of one trial, sent by rank 0. Judges nothing: `training.equivalence` does. The model is small
so that dozens of trainings take seconds, and smooth so that training does not amplify rounding.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.catalog.equivalence import TIMEOUT_S, EquivalenceJob, PairTrial, SamplerTrial, Training
from bench.model.records import Json
from bench.protocol.rank_context import RankContext
from bench.rank.group import Group
from bench.rank.process import joined, run_rank, wait_to_begin

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
    "adam without eps": (torch.optim.Adam, 0.003, {"eps": 0.0}),
    "adagrad without eps": (torch.optim.Adagrad, 0.02, {"eps": 0.0}),
    "adamw": (torch.optim.AdamW, 0.003, {"weight_decay": 0.01}),
}


@dataclass(frozen=True, slots=True)
class ProcessRole:
    """The process that trains. rank: of the `sharing` processes that share the examples. ranks: K, also in one process.

    devices: GPUs of this process, all used by torch's DataParallel if there are several; 0 for the CPU.
    """

    rank: int
    sharing: int
    ranks: int
    devices: int = 0


@dataclass(frozen=True, slots=True)
class Trained:
    """The outcome of a training. losses: before it and after each step, the mean over all examples of all processes.

    batch: examples in the last step, of all processes together.
    """

    parameters: list[torch.Tensor]
    losses: list[float]
    batch: int


def main(context: RankContext, job: EquivalenceJob) -> None:
    """Entry of a rank's process; never returns."""
    run_rank(context, job.log, lambda: _work(context, job))


def _work(context: RankContext, job: EquivalenceJob) -> Json:
    with joined(context, "gloo", TIMEOUT_S) as group:
        wait_to_begin(context, group, lambda: {"rank": group.rank})
        for index, trial in enumerate(job.trials):
            if group.rank == 0:
                context.send({"kind": "begin", "index": index})
            numbers = _read(trial) if isinstance(trial, SamplerTrial) else _compare(trial, group, job.steps)
            context.tick()
            if group.rank == 0:
                context.send({"kind": "sampled", "failure": None}, json.dumps(numbers).encode())
    return {}


# ── one trial ────────────────────────────────────────────────────────────────────────────────────
def _read(trial: SamplerTrial) -> Json:
    """The examples that the ranks of a `SamplerTrial` read; the sampler of a rank needs no other rank."""
    ranks = [indices(trial.examples, rank, trial.ranks, trial.batch, trial.drop_last) for rank in range(trial.ranks)]
    steps = zip(*ranks, strict=True)
    return {"read": ", then ".join(" | ".join(" ".join(f"x{i + 1}" for i in part) for part in step) for step in steps)}


def _compare(trial: PairTrial, group: Group, steps: int) -> Json:
    """The numbers of a `TrialResult`. All ranks train the one process too: they would be idle otherwise."""
    ranks, gpus = group.world_size, torch.cuda.device_count()

    def one_process(how: Training, devices: int, times: int = 1) -> Trained:
        return train(replace(how, accumulate=1), ProcessRole(0, 1, ranks, devices), trial.dtype, steps * times)

    # DataParallel divides a batch only if there are at least two GPUs.
    if trial.data_parallel and gpus < 2:
        return {"missing": "not tried: needs two GPUs", "tried": False}
    if trial.gpu and not gpus:
        return {"missing": "not tried: needs a GPU", "tried": False}
    if trial.data_parallel and group.rank:
        return {}
    if trial.data_parallel:
        ours, alone = (one_process(trial.ranks, devices) for devices in (gpus, 1))
        apart, losses = difference(ours.parameters, alone.parameters), ours.losses
    else:
        ours = train(trial.ranks, ProcessRole(group.rank, ranks, ranks), trial.dtype, steps)
        if trial.alone is None:
            alone = None
            reference = [parameter.clone() for parameter in ours.parameters]
            for parameter in reference:
                dist.broadcast(parameter, 0)
        else:
            alone = one_process(trial.alone, int(trial.gpu), ranks**trial.ranks.growth)
            reference = alone.parameters
        gathered = group.gather((difference(ours.parameters, reference), ours.losses))
        # Python's max() can lose a NaN, which is a difference too.
        apart = float(torch.tensor([own for own, _ in gathered], dtype=torch.float64).max())
        losses = [sum(step) / ranks for step in zip(*(curve for _, curve in gathered), strict=True)]
    return {
        "difference": apart,
        "loss": losses,
        "alone": alone.losses if alone else [],
        "examples": [ours.batch, alone.batch if alone else ours.batch],
    }


def difference(ours: list[torch.Tensor], reference: list[torch.Tensor]) -> float:
    """The largest max |a − b| / max |b| of any tensor. A quotient per element would make rounding near 0 look large."""
    apart = [(a - b).abs().max() / b.abs().max() for a, b in zip(ours, reference, strict=True)]
    return float(torch.stack(apart).double().max())


# ── one training ─────────────────────────────────────────────────────────────────────────────────
def train(how: Training, role: ProcessRole, dtype: str, steps: int) -> Trained:
    """Make `steps` training steps, by the same code in one process and as one of K ranks."""
    kind, device = getattr(torch, dtype), torch.device("cuda" if role.devices else "cpu")
    torch.manual_seed(SEED + role.rank if how.seeds else SEED)
    norm: list[nn.Module] = [nn.BatchNorm1d(WIDTH)] if how.normalised else []
    layers = [nn.Linear(INPUTS, WIDTH), *norm, nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, OUTPUTS)]
    # Drawn in float32 and then converted, so that both precisions begin with the same parameters.
    module = nn.Sequential(*layers).to(device, kind)
    model = _synchronised(module, how, role)
    build, rate, more = OPTIMIZERS[how.optimizer]
    # A loss summed over B examples has gradients B times as large as their mean.
    scale = float(role.ranks) ** how.lr_power / (BATCH if how.loss == "sum" else 1)
    optimizer = build(module.parameters(), lr=rate * scale, **more)
    # Both sides compute the loss over all examples: that of a batch rises and falls with the examples in it.
    whole = _examples(how if how.examples == "even" else replace(how, examples="odd"), role, kind)
    watched = [tensor.to(device) for tensor in whole.tensors]

    losses, batch = [_mean_loss(module, watched)], 0
    for step, examples in enumerate(islice(_batches(how, role, kind), steps), start=1):
        optimizer.zero_grad()
        parts = list(zip(*(tensor.to(device).chunk(how.accumulate) for tensor in examples), strict=True))
        for number, (inputs, targets) in enumerate(parts, start=1):
            waits = isinstance(model, DistributedDataParallel) and how.no_sync and number < len(parts)
            with model.no_sync() if waits else nullcontext():
                each = _losses(model, inputs, targets)
                loss = each.sum() if how.loss == "sum" else each.mean()
                (loss / len(parts) if how.divided else loss).backward()
        optimizer.step()
        if how.average and step % how.average == 0:
            for parameter in module.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= role.sharing
        losses.append(_mean_loss(module, watched))
        batch = len(examples[0]) * role.sharing
    return Trained([parameter.detach().cpu() for parameter in module.parameters()], losses, batch)


def _synchronised(module: nn.Module, how: Training, role: ProcessRole) -> nn.Module:
    if role.devices > 1:
        return DataParallel(module, device_ids=list(range(role.devices)))
    if role.sharing == 1 or how.gradients == "apart":
        return module

    def sum_hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The all-reduce that DDP makes without a hook, but without the division by K."""
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    wrapped = DistributedDataParallel(module, init_sync=how.broadcast)
    if how.gradients == "sum":
        wrapped.register_comm_hook(None, sum_hook)
    return wrapped


def _losses(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The loss of each example."""
    return (model(inputs) - targets).square().mean(dim=1)


def _mean_loss(module: nn.Module, examples: list[torch.Tensor]) -> float:
    """Mean loss over these examples; changes neither gradients nor the statistics of BatchNorm."""
    module.eval()
    with torch.no_grad():
        mean = float(_losses(module, *examples).mean())
    module.train()
    return mean


# ── the examples ─────────────────────────────────────────────────────────────────────────────────
def _examples(how: Training, role: ProcessRole, dtype: torch.dtype) -> TensorDataset:
    """Random inputs, and as targets the sine of a linear map of them, which the model cannot fit exactly.

    Where K does not divide their number there are SHARE · K + 1; "dropped" or "padded" in one process: those that K
    samplers give out together.
    """
    generator = torch.Generator().manual_seed(SEED)
    inputs = torch.randn(EXAMPLES, INPUTS, generator=generator, dtype=torch.float64)
    weights = torch.randn(INPUTS, OUTPUTS, generator=generator, dtype=torch.float64)
    targets = torch.sin(inputs @ weights / INPUTS**0.5)
    chosen = torch.arange(EXAMPLES if how.examples == "even" else SHARE * role.ranks + 1)
    if role.sharing == 1 and how.examples == "dropped":
        chosen = chosen[:-1]
    if role.sharing == 1 and how.examples == "padded":
        chosen = torch.cat([chosen, chosen[: role.ranks - 1]])
    return TensorDataset(inputs[chosen].to(dtype), targets[chosen].to(dtype))


def _batches(how: Training, role: ProcessRole, dtype: torch.dtype) -> Iterator[list[torch.Tensor]]:
    """Batches of a process's share, epoch after epoch; where K does not divide N, the whole share is one batch."""
    examples = _examples(how, role, dtype)
    parts, part = (1, 0) if how.sampler == "none" else (role.sharing, role.rank)
    sampler: DistributedSampler[Any] = DistributedSampler(
        examples, parts, part, shuffle=how.sampler == "shuffled", seed=SEED, drop_last=how.examples == "dropped"
    )
    share = BATCH * role.ranks**how.growth // role.sharing if how.examples == "even" else len(sampler)
    loader = DataLoader(examples, share, sampler=sampler)
    for epoch in count():
        sampler.set_epoch(epoch)
        yield from loader


def indices(number: int, rank: int, ranks: int, batch: int, drop_last: bool) -> list[list[int]]:
    """The numbers, from 0, of the examples that a rank reads of `number` examples, batch by batch."""
    everything = TensorDataset(torch.arange(number))
    sampler: DistributedSampler[Any] = DistributedSampler(everything, ranks, rank, shuffle=False, drop_last=drop_last)
    return [examples.tolist() for (examples,) in DataLoader(everything, batch, sampler=sampler)]
