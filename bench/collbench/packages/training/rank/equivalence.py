"""Run one rank of an equivalence proof: train a small model as one of K ranks and as one process, and compare.

In: a `RankContext` and an encoded `EquivalenceJob`. Out, over the pipe: the messages of `protocol.messages`; the
payload of `sampled` is an encoded `TrialResult`, sent by rank 0. The model is small so that dozens of trainings
take seconds, and smooth so that training does not amplify rounding.
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
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from collbench.model.records import Json
from collbench.packages.training.catalog.equivalence import (
    TIMEOUT_S,
    EquivalenceJob,
    Training,
    Trial,
    TrialResult,
)
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
    "adam without eps": (torch.optim.Adam, 0.003, {"eps": 0.0}),
    "adagrad without eps": (torch.optim.Adagrad, 0.02, {"eps": 0.0}),
    "adamw": (torch.optim.AdamW, 0.003, {"weight_decay": 0.01}),
}


@dataclass(frozen=True, slots=True)
class ProcessRole:
    """The role of the process that trains."""

    # Rank among the `sharing` processes that share the examples.
    rank: int
    sharing: int
    # K, also in one process.
    ranks: int
    # Number of GPUs of this process; if there are several, torch's DataParallel uses all. 0 for the CPU.
    devices: int = 0


def main(context: RankContext, encoded: bytes) -> None:
    """Run a rank's process; never returns."""

    def work() -> Json:
        job: EquivalenceJob = encoding.decoded(encoded, EquivalenceJob)
        with joined(context, "gloo", TIMEOUT_S) as group:
            wait_to_begin(context, group, lambda: {"rank": group.rank})
            for index, trial in enumerate(job.trials):
                if group.rank == 0:
                    context.send({"kind": "begin", "index": index})
                result = _compare(trial, group, job.steps)
                context.tick()
                if group.rank == 0:
                    context.send({"kind": "sampled", "failure": None}, encoding.encoded(result))
        return {}

    run_rank(context, work)


# ── one trial ────────────────────────────────────────────────────────────────────────────────────
def _compare(trial: Trial, group: Group, steps: int) -> TrialResult:
    """Return the result of a trial. All ranks also train as the one process: they would be idle otherwise."""
    gpus = torch.cuda.device_count()
    # DataParallel divides a batch only if there are at least two GPUs.
    if trial.data_parallel and gpus < 2:
        return TrialResult(trial, untried="not tried: needs two GPUs")
    if trial.gpu and not gpus:
        return TrialResult(trial, untried="not tried: needs a GPU")
    ranks = 1 if trial.data_parallel else group.world_size
    share = ProcessRole(group.rank if ranks > 1 else 0, ranks, group.world_size, gpus if trial.data_parallel else 0)
    parameters, losses, batch = train(trial.ranks, share, trial.dtype, steps)
    if trial.alone is None:
        alone, losses_alone, batch_alone = [parameter.clone() for parameter in parameters], list[float](), batch
        for parameter in alone:
            dist.broadcast(parameter, 0)
    else:
        role = ProcessRole(0, 1, group.world_size, int(trial.gpu or trial.data_parallel))
        steps *= group.world_size**trial.ranks.growth
        alone, losses_alone, batch_alone = train(replace(trial.alone, accumulate=1), role, trial.dtype, steps)
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


# ── one training ─────────────────────────────────────────────────────────────────────────────────
def train(setup: Training, role: ProcessRole, dtype: str, steps: int) -> tuple[list[torch.Tensor], list[float], int]:
    """Make `steps` training steps, by the same code in one process and as one of K ranks.

    Returns the parameters, the loss over all examples before training and after each step, and the examples in the
    last step of all processes together.
    """
    kind, device = getattr(torch, dtype), torch.device("cuda" if role.devices else "cpu")
    torch.manual_seed(SEED + role.rank if setup.seeds else SEED)
    norm: list[nn.Module] = [nn.BatchNorm1d(WIDTH)] if setup.normalised else []
    layers = [nn.Linear(INPUTS, WIDTH), *norm, nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, OUTPUTS)]
    # Drawn in float32 and then converted, so that both precisions begin with the same parameters.
    module = nn.Sequential(*layers).to(device, kind)
    model = _synchronised(module, setup, role)
    build, rate, more = OPTIMIZERS[setup.optimizer]
    # A loss summed over B examples has gradients B times as large as the mean loss.
    scale = float(role.ranks) ** setup.lr_power / (BATCH if setup.loss == "sum" else 1)
    optimizer = build(module.parameters(), lr=rate * scale, **more)
    # Both sides compute the loss over all examples: the loss of a batch varies with its examples.
    all_examples = _examples(setup if setup.examples == "even" else replace(setup, examples="odd"), role, kind)
    watched = [tensor.to(device) for tensor in all_examples.tensors]

    def each_loss(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (model(inputs) - targets).square().mean(dim=1)

    def mean_loss() -> float:
        """Return the loss over all examples; it changes neither gradients nor the statistics of BatchNorm."""
        module.eval()
        with torch.no_grad():
            mean = float(each_loss(module, *watched).mean())
        module.train()
        return mean

    losses, batch = [mean_loss()], 0
    for step, examples in enumerate(islice(_batches(setup, role, kind), steps), start=1):
        optimizer.zero_grad()
        parts = list(zip(*(tensor.to(device).chunk(setup.accumulate) for tensor in examples), strict=True))
        for number, part in enumerate(parts, start=1):
            waits = isinstance(model, DistributedDataParallel) and setup.no_sync and number < len(parts)
            with model.no_sync() if waits else nullcontext():
                each = each_loss(model, *part)
                loss = each.sum() if setup.loss == "sum" else each.mean()
                (loss / len(parts) if setup.divided else loss).backward()
        optimizer.step()
        if setup.average and step % setup.average == 0:
            for parameter in module.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= role.sharing
        losses.append(mean_loss())
        batch = len(examples[0]) * role.sharing
    return [parameter.detach().cpu() for parameter in module.parameters()], losses, batch


def _synchronised(module: nn.Module, setup: Training, role: ProcessRole) -> nn.Module:
    if role.devices > 1:
        return DataParallel(module, device_ids=list(range(role.devices)))
    if role.sharing == 1 or setup.gradients == "apart":
        return module
    wrapped = DistributedDataParallel(module, init_sync=setup.broadcast)
    if setup.gradients == "sum":
        # The all-reduce that DDP makes without a hook, but without the division by K.
        wrapped.register_comm_hook(
            None,
            lambda _, bucket: (
                dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])
            ),
        )
    return wrapped


# ── the examples ─────────────────────────────────────────────────────────────────────────────────
def _examples(setup: Training, role: ProcessRole, dtype: torch.dtype) -> TensorDataset:
    """Return random inputs, and as targets the sine of a linear map of them, which the model cannot fit exactly.

    If K must not divide their number, there are SHARE · K + 1 examples. "dropped" or "padded" in one process: the
    examples that K samplers give together.
    """
    generator = torch.Generator().manual_seed(SEED)
    inputs = torch.randn(EXAMPLES, INPUTS, generator=generator, dtype=torch.float64)
    weights = torch.randn(INPUTS, OUTPUTS, generator=generator, dtype=torch.float64)
    targets = torch.sin(inputs @ weights / INPUTS**0.5)
    chosen = torch.arange(EXAMPLES if setup.examples == "even" else SHARE * role.ranks + 1)
    if role.sharing == 1 and setup.examples == "dropped":
        chosen = chosen[:-1]
    if role.sharing == 1 and setup.examples == "padded":
        chosen = torch.cat([chosen, chosen[: role.ranks - 1]])
    return TensorDataset(inputs[chosen].to(dtype), targets[chosen].to(dtype))


def _batches(setup: Training, role: ProcessRole, dtype: torch.dtype) -> Iterator[list[torch.Tensor]]:
    """Yield batches of a process's share, epoch after epoch; the whole share is one batch if K does not divide N."""
    examples = _examples(setup, role, dtype)
    parts, part = (1, 0) if setup.sampler == "none" else (role.sharing, role.rank)
    sampler: DistributedSampler[Any] = DistributedSampler(
        examples, parts, part, shuffle=setup.sampler == "shuffled", seed=SEED, drop_last=setup.examples == "dropped"
    )
    share = BATCH * role.ranks**setup.growth // role.sharing if setup.examples == "even" else len(sampler)
    loader = DataLoader(examples, share, sampler=sampler)
    for epoch in count():
        sampler.set_epoch(epoch)
        yield from loader
