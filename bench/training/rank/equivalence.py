"""Run one rank of an equivalence proof: train each case as one of K ranks and as one process, and compare.

In: a `RankContext` and an `EquivalenceJob`. Out, over the pipe: the messages of `protocol.messages`. The payload of
`sampled` is the numbers of one trial, sent by rank 0. Judges nothing: `training.equivalence` does.
"""

import json
from dataclasses import replace

import torch
import torch.distributed as dist

from bench.model.records import Json
from bench.protocol.rank_context import RankContext
from bench.rank.process import joined, run_rank, wait_to_begin
from bench.rank.process_group import Group
from bench.training.equivalence import TIMEOUT_S, EquivalenceJob, PairTrial, SamplerTrial, Training
from bench.training.rank import small_model
from bench.training.rank.small_model import ProcessRole, Trained, train

# DataParallel divides a batch only if there are at least so many GPUs.
GPUS_WANTED = 2


def main(context: RankContext, job: EquivalenceJob) -> None:
    """Entry of a rank's process; never returns."""
    run_rank(context, job.log, lambda: _work(context, job))


def _work(context: RankContext, job: EquivalenceJob) -> Json:
    with joined(context, "gloo", TIMEOUT_S) as group:
        _serve(context, job, group)
    return {}


def _serve(context: RankContext, job: EquivalenceJob, group: Group) -> None:
    wait_to_begin(context, group, lambda: {"rank": group.rank})
    for index, trial in enumerate(job.trials):
        if group.rank == 0:
            context.send({"kind": "begin", "index": index})
        numbers = _read(trial, group) if isinstance(trial, SamplerTrial) else _train(trial, group, job.steps)
        context.tick()
        if group.rank == 0:
            context.send({"kind": "sampled", "failure": None}, json.dumps(numbers).encode())


# ── which examples each rank reads ───────────────────────────────────────────────────────────────
def _read(reading: SamplerTrial, group: Group) -> Json:
    own = None
    if group.rank < reading.ranks:
        own = small_model.indices(reading.examples, group.rank, reading.ranks, reading.batch, reading.drop_last)
    steps = zip(*group.gather(own)[: reading.ranks], strict=True)
    return {"read": ", then ".join(" | ".join(" ".join(f"x{i + 1}" for i in part) for part in step) for step in steps)}


# ── which parameters training gives ──────────────────────────────────────────────────────────────
def _train(case: PairTrial, group: Group, steps: int) -> Json:
    if case.data_parallel:
        return _data_parallel(case, group, steps)
    if case.gpu and not torch.cuda.is_available():
        return {"missing": "not tried: needs a GPU", "tried": False}
    ours = train(case.ranks, ProcessRole(group.rank, group.world_size, group.world_size), case.dtype, steps)
    if case.alone is None:
        return _numbers(_against_rank_0(ours), ours, None, group)
    steps_alone = steps * group.world_size**case.ranks.growth
    one = _one_process(case.alone, group, case.dtype, steps_alone, devices=int(case.gpu))
    return _numbers(difference(ours.parameters, one.parameters), ours, one, group)


def _one_process(how: Training, group: Group, dtype: str, steps: int, devices: int = 0) -> Trained:
    """Train in one process. All K ranks do so: they would be idle otherwise, and no parameters have to be sent."""
    return train(replace(how, accumulate=1), ProcessRole(0, 1, group.world_size, devices), dtype, steps)


def _data_parallel(case: PairTrial, group: Group, steps: int) -> Json:
    gpus = torch.cuda.device_count()
    if gpus < GPUS_WANTED:
        return {"missing": "not tried: needs two GPUs", "tried": False}
    if group.rank != 0:
        return {}
    several = _one_process(case.ranks, group, case.dtype, steps, gpus)
    one = _one_process(case.ranks, group, case.dtype, steps, 1)
    return {
        "difference": difference(several.parameters, one.parameters),
        "loss": several.losses,
        "alone": one.losses,
        "examples": [several.batch, one.batch],
    }


def _numbers(apart: float, ours: Trained, one: Trained | None, group: Group) -> Json:
    everyone = group.gather((apart, ours.losses))
    losses = [sum(step) / len(step) for step in zip(*(losses for _, losses in everyone), strict=True)]
    return {
        # Python's max() can lose a NaN, which is a difference too.
        "difference": float(torch.tensor([found for found, _ in everyone], dtype=torch.float64).max()),
        "loss": losses,
        "alone": one.losses if one else [],
        "examples": [ours.batch, one.batch if one else ours.batch],
    }


def _against_rank_0(ours: Trained) -> float:
    first = [parameter.clone() for parameter in ours.parameters]
    for parameter in first:
        dist.broadcast(parameter, 0)
    return difference(ours.parameters, first)


def difference(ours: list[torch.Tensor], reference: list[torch.Tensor]) -> float:
    """The largest max |a − b| / max |b| of any tensor. A quotient per element would make rounding near 0 look large."""
    found = [(a - b).abs().max() / b.abs().max() for a, b in zip(ours, reference, strict=True)]
    return float(torch.stack(found).double().max())
